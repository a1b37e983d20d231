/*
 * written.c - cases written by hand, where one call alone says nothing: what order, failed events,
 * mappings, parts of buffers and lifetimes come to.
 */
#include "cases.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 8
#define WORDS (DATA_BYTES / sizeof(cl_int))

static void say_call(struct outcome *outcome, const char *name, cl_int error)
{
    say(outcome, " %s=%d", name, error);
}

static cl_command_queue unordered_queue(struct setting *s)
{
    const cl_queue_properties list[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
                                        0};
    return clCreateCommandQueueWithProperties(s->context, s->device, list, NULL);
}

/* Adds to every word of a buffer. */
static cl_int add(struct setting *s, cl_command_queue queue, cl_kernel kernel, cl_mem to, int value,
                  cl_event after, cl_event *event)
{
    const size_t global = 64;
    clSetKernelArg(kernel, 0, sizeof(to), &to);
    clSetKernelArg(kernel, 1, sizeof(value), &value);
    (void)s;
    return clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, after != NULL,
                                  after != NULL ? &after : NULL, event);
}

static cl_int first_word(struct setting *s, cl_mem mem)
{
    cl_int word = 0;
    clEnqueueReadBuffer(s->queue, mem, CL_TRUE, 0, sizeof(word), &word, 0, NULL, NULL);
    return word;
}

/* --- order -------------------------------------------------------------------------------- */

/* Commands of an out-of-order queue chained by their events, in the reverse order of their number.
 */
static void unordered_chain(struct setting *s, struct outcome *o)
{
    cl_command_queue queue = unordered_queue(s);
    cl_event gate = fresh_event(s);
    cl_event events[3] = {NULL, NULL, NULL};
    cl_int zero = 0;
    setting_reset(s);
    clEnqueueFillBuffer(s->queue, s->mem, &zero, sizeof(zero), 0, DATA_BYTES, 0, NULL, NULL);
    clFinish(s->queue);
    say(o, "%d", add(s, queue, s->kernel, s->mem, 1, gate, &events[0]));
    say_call(o, "fill",
             clEnqueueFillBuffer(queue, s->mem, &zero, sizeof(zero), 0, DATA_BYTES, 1, &events[0],
                                 &events[1]));
    say_call(o, "add", add(s, queue, s->kernel, s->mem, 5, events[1], &events[2]));
    say_call(o, "open", clSetUserEventStatus(gate, CL_COMPLETE));
    say_call(o, "finish", clFinish(queue));
    say(o, " word=%d", first_word(s, s->mem));
    for (int i = 0; i < 3; i++) {
        say_event(o, "event", events[i]);
    }
    clReleaseEvent(gate);
    clReleaseCommandQueue(queue);
}

/* A second queue waits for an event of the first, which a user event holds back. */
static void two_queues(struct setting *s, struct outcome *o)
{
    cl_command_queue second = fresh_queue(s);
    cl_event gate = fresh_event(s);
    cl_event event = NULL;
    cl_int status = 99;
    cl_int zero = 0;
    clEnqueueFillBuffer(s->queue, s->mem, &zero, sizeof(zero), 0, DATA_BYTES, 0, NULL, NULL);
    clFinish(s->queue);
    say(o, "%d", add(s, s->queue, s->kernel, s->mem, 7, gate, &event));
    say_call(o, "copy",
             clEnqueueCopyBuffer(second, s->mem, s->other, 0, 0, DATA_BYTES, 1, &event, NULL));
    clFlush(s->queue);
    clFlush(second);
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL);
    say(o, " waits=%d", status > CL_RUNNING);
    say_call(o, "open", clSetUserEventStatus(gate, CL_COMPLETE));
    say_call(o, "finish", clFinish(second));
    say(o, " word=%d", first_word(s, s->other));
    say_event(o, "event", event);
    clReleaseEvent(gate);
    clReleaseCommandQueue(second);
}

static void profile(struct setting *s, struct outcome *o)
{
    static const cl_profiling_info names[] = {CL_PROFILING_COMMAND_QUEUED,
                                              CL_PROFILING_COMMAND_SUBMIT,
                                              CL_PROFILING_COMMAND_START, CL_PROFILING_COMMAND_END};
    cl_ulong times[4] = {0};
    cl_event event = NULL;
    cl_event gate = fresh_event(s);
    say(o, "%d", add(s, s->queue, s->kernel, s->mem, 1, gate, &event));
    say_call(o, "pending",
             clGetEventProfilingInfo(event, names[3], sizeof(times[0]), &times[0], NULL));
    clSetUserEventStatus(gate, CL_COMPLETE);
    clFinish(s->queue);
    for (int i = 0; i < 4; i++) {
        say_call(o, "time",
                 clGetEventProfilingInfo(event, names[i], sizeof(times[i]), &times[i], NULL));
    }
    say(o, " ordered=%d", times[0] <= times[1] && times[1] <= times[2] && times[2] <= times[3]);
    say_call(o, "user", clGetEventProfilingInfo(gate, names[0], sizeof(times[0]), times, NULL));
    clReleaseEvent(event);
    clReleaseEvent(gate);
}

/* --- data --------------------------------------------------------------------------------- */

/* Transfers of nothing, with and without waiting. */
static void empty(struct setting *s, struct outcome *o)
{
    setting_reset(s);
    for (int i = 0; i < 4; i++) {
        cl_event event = NULL;
        cl_bool waits = i % 2 == 0 ? CL_TRUE : CL_FALSE;
        cl_int error =
            i < 2 ? clEnqueueReadBuffer(s->queue, s->mem, waits, 8, 0, s->host, 0, NULL, &event)
                  : clEnqueueWriteBuffer(s->queue, s->mem, waits, 8, 0, s->host, 0, NULL, &event);
        say(o, "%s%d", i == 0 ? "" : " ", error);
        clFinish(s->queue);
        say_event(o, "event", event);
    }
    say_memory(s, o);
}

static void patterns(struct setting *s, struct outcome *o)
{
    static const size_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 3, 5, 24, 256};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        setting_reset(s);
        say(o, "%s%d", i == 0 ? "" : " ",
            clEnqueueFillBuffer(s->queue, s->mem, s->host, sizes[i], sizes[i], 4 * sizes[i], 0,
                                NULL, NULL));
        say_memory(s, o);
    }
}

/* Two parts that overlap, written through one and read through the others. */
static void parts(struct setting *s, struct outcome *o)
{
    const cl_buffer_region regions[2] = {{1024, 1001}, {1024 + 128, 512}};
    cl_mem subs[2] = {NULL, NULL};
    cl_int error = 0;
    setting_reset(s);
    for (int i = 0; i < 2; i++) {
        subs[i] = clCreateSubBuffer(s->mem, 0, CL_BUFFER_CREATE_TYPE_REGION, &regions[i], &error);
        say(o, "%s%d", i == 0 ? "" : " ", error);
    }
    if (subs[0] != NULL && subs[1] != NULL) {
        say_call(o, "add", add(s, s->queue, s->kernel, subs[1], 1000, NULL, NULL));
        say_call(
            o, "write",
            clEnqueueWriteBuffer(s->queue, subs[0], CL_TRUE, 200, 100, s->host, 0, NULL, NULL));
        say_call(o, "beyond",
                 clEnqueueWriteBuffer(s->queue, subs[0], CL_TRUE, 1000, 2, s->host, 0, NULL, NULL));
        say_call(o, "over itself",
                 clEnqueueCopyBuffer(s->queue, s->mem, s->mem, 0, 16, 64, 0, NULL, NULL));
        say_call(o, "over each other",
                 clEnqueueCopyBuffer(s->queue, subs[0], subs[1], 128, 0, 64, 0, NULL, NULL));
        say_memory(s, o);
    }
    for (int i = 0; i < 2; i++) {
        if (subs[i] != NULL) {
            clReleaseMemObject(subs[i]);
        }
    }
}

static cl_uint map_count(cl_mem mem)
{
    cl_uint count = 99;
    clGetMemObjectInfo(mem, CL_MEM_MAP_COUNT, sizeof(count), &count, NULL);
    return count;
}

static void maps(struct setting *s, struct outcome *o)
{
    static const cl_map_flags flags[] = {CL_MAP_READ, CL_MAP_WRITE, CL_MAP_READ | CL_MAP_WRITE,
                                         CL_MAP_WRITE_INVALIDATE_REGION};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        cl_int error = 0;
        setting_reset(s);
        uint8_t *mapped = clEnqueueMapBuffer(s->queue, s->mem, CL_TRUE, flags[i], 100, 200, 0, NULL,
                                             NULL, &error);
        say(o, "%s%d count=%u", i == 0 ? "" : " ", error, map_count(s->mem));
        if (mapped != NULL) {
            if (flags[i] == CL_MAP_READ) {
                say(o, " holds=#%08x", (unsigned)hash_of(mapped, 200));
            } else {
                memset(mapped, (int)i, 200);
            }
            say_call(o, "unmap", clEnqueueUnmapMemObject(s->queue, s->mem, mapped, 0, NULL, NULL));
        }
        say_memory(s, o);
        say(o, " count=%u", map_count(s->mem));
    }
}

/* Read mappings that overlap, and one by an event that is held back. */
static void many_maps(struct setting *s, struct outcome *o)
{
    cl_int error = 0;
    cl_event gate = fresh_event(s);
    cl_event event = NULL;
    setting_reset(s);
    uint8_t *first =
        clEnqueueMapBuffer(s->queue, s->mem, CL_TRUE, CL_MAP_READ, 0, 512, 0, NULL, NULL, &error);
    say(o, "%d", error);
    uint8_t *second =
        clEnqueueMapBuffer(s->queue, s->mem, CL_TRUE, CL_MAP_READ, 256, 512, 0, NULL, NULL, &error);
    say(o, " %d count=%u", error, map_count(s->mem));
    say(o, " same=%d", first != NULL && second != NULL && memcmp(first + 256, second, 256) == 0);
    uint8_t *later = clEnqueueMapBuffer(s->queue, s->other, CL_FALSE, CL_MAP_READ, 0, 64, 1, &gate,
                                        &event, &error);
    say_call(o, "later", error);
    clSetUserEventStatus(gate, CL_COMPLETE);
    say_event(o, "event", event);
    say(o, " holds=#%08x", later == NULL ? 0 : (unsigned)hash_of(later, 64));
    say_call(o, "unmap", clEnqueueUnmapMemObject(s->queue, s->mem, second, 0, NULL, NULL));
    say_call(o, "unmap", clEnqueueUnmapMemObject(s->queue, s->mem, first, 0, NULL, NULL));
    say_call(o, "unmap", clEnqueueUnmapMemObject(s->queue, s->other, later, 0, NULL, NULL));
    clFinish(s->queue);
    say(o, " count=%u", map_count(s->mem));
    clReleaseEvent(gate);
}

/* Structures of many sizes by value, pointers between them. */
static void layouts(struct setting *s, struct outcome *o)
{
    static const size_t sizes[] = {1, 2, 8, 12, 16, 64, 320, 1000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char source[600];
        const char *text = source;
        const size_t global = 16;
        cl_int error = 0;
        snprintf(source, sizeof(source),
                 "typedef struct { uchar b[%zu]; } some;\n"
                 "__kernel void take(char c, some v, __global uchar *to, double d, some w)\n"
                 "{ int i = get_global_id(0); to[i] = v.b[i %% %zu] + w.b[(i + 1) %% %zu] + c + "
                 "(uchar)d; }\n",
                 sizes[i], sizes[i], sizes[i]);
        cl_program program = clCreateProgramWithSource(s->context, 1, &text, NULL, NULL);
        say(o, "%s%d", i == 0 ? "" : " ", clBuildProgram(program, 0, NULL, NULL, NULL, NULL));
        cl_kernel kernel = clCreateKernel(program, "take", &error);
        if (kernel != NULL) {
            const double number = 3.0;
            setting_reset(s);
            say_call(o, "c", clSetKernelArg(kernel, 0, 1, s->host));
            say_call(o, "v", clSetKernelArg(kernel, 1, sizes[i], s->host + 64));
            say_call(o, "to", clSetKernelArg(kernel, 2, sizeof(s->mem), &s->mem));
            say_call(o, "d", clSetKernelArg(kernel, 3, sizeof(number), &number));
            say_call(o, "w", clSetKernelArg(kernel, 4, sizes[i], s->host + 128));
            say_call(
                o, "run",
                clEnqueueNDRangeKernel(s->queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL));
            say_memory(s, o);
            clReleaseKernel(kernel);
        }
        clReleaseProgram(program);
    }
}

/* --- lifetimes ---------------------------------------------------------------------------- */

/* Everything is released while a command that needs it is held back. */
static void released_early(struct setting *s, struct outcome *o)
{
    cl_event gate = fresh_event(s);
    cl_event event = NULL;
    cl_command_queue queue = fresh_queue(s);
    cl_mem mem = fresh_mem(s);
    cl_kernel kernel = clCreateKernel(s->program, "add", NULL);
    say(o, "%d", add(s, queue, kernel, mem, 2, gate, &event));
    say_call(o, "kernel", clReleaseKernel(kernel));
    say_call(o, "mem", clReleaseMemObject(mem));
    say_call(o, "flush", clFlush(queue));
    say_call(o, "queue", clReleaseCommandQueue(queue));
    say_call(o, "open", clSetUserEventStatus(gate, CL_COMPLETE));
    say_event(o, "event", event);
    clReleaseEvent(gate);
}

/* A kernel argument is released before the launch; another buffer takes its place. */
static void argument_released(struct setting *s, struct outcome *o)
{
    const size_t global = 16;
    const int value = 9;
    const cl_int zero = 0;
    cl_mem mem = fresh_mem(s);
    cl_mem next = fresh_mem(s);
    cl_kernel kernel = clCreateKernel(s->program, "add", NULL);
    clEnqueueFillBuffer(s->queue, next, &zero, sizeof(zero), 0, DATA_BYTES, 0, NULL, NULL);
    say(o, "%d", clSetKernelArg(kernel, 0, sizeof(mem), &mem));
    say_call(o, "value", clSetKernelArg(kernel, 1, sizeof(value), &value));
    say_call(o, "release", clReleaseMemObject(mem));
    say_call(o, "set", clSetKernelArg(kernel, 0, sizeof(next), &next));
    say_call(o, "run",
             clEnqueueNDRangeKernel(s->queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL));
    say(o, " word=%d", first_word(s, next));
    clReleaseKernel(kernel);
    clReleaseMemObject(next);
}

/* A kernel's argument of another context, where one of its own has been launched before. */
static void foreign_argument(struct setting *s, struct outcome *o)
{
    const cl_int zero = 0;
    cl_kernel kernel = clCreateKernel(s->program, "add", NULL);
    clEnqueueFillBuffer(s->foreign, s->abroad, &zero, sizeof(zero), 0, DATA_BYTES, 0, NULL, NULL);
    clFinish(s->foreign);
    for (int i = 0; i < 3; i++) {
        say(o, "%s%d", i == 0 ? "" : " ", add(s, s->queue, kernel, s->mem, 1, NULL, NULL));
        say_call(o, "set", clSetKernelArg(kernel, 0, sizeof(s->abroad), &s->abroad));
        say_call(o, "run", add(s, s->queue, kernel, s->abroad, 2 + i, NULL, NULL));
        say_call(o, "finish", clFinish(s->queue));
        cl_int word = 0;
        clEnqueueReadBuffer(s->foreign, s->abroad, CL_TRUE, 0, sizeof(word), &word, 0, NULL, NULL);
        say(o, " word=%d", word);
    }
    clReleaseKernel(kernel);
}

static void say_references(struct outcome *o, const char *when, cl_context context,
                           cl_command_queue queue, cl_mem mem, cl_kernel kernel, cl_event event)
{
    cl_uint counts[5] = {0};
    clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof(cl_uint), &counts[0], NULL);
    clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof(cl_uint), &counts[1], NULL);
    clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT, sizeof(cl_uint), &counts[2], NULL);
    clGetKernelInfo(kernel, CL_KERNEL_REFERENCE_COUNT, sizeof(cl_uint), &counts[3], NULL);
    clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof(cl_uint), &counts[4], NULL);
    say(o, " %s=%u,%u,%u,%u,%u", when, counts[0], counts[1], counts[2], counts[3], counts[4]);
}

/* While commands wait, a library counts its own references, too. */
static void references(struct setting *s, struct outcome *o)
{
    const size_t global = 16;
    const int value = 1;
    static uint8_t bytes[DATA_BYTES];
    cl_context context = fresh_context(s);
    cl_command_queue queue = clCreateCommandQueueWithProperties(context, s->device, NULL, NULL);
    cl_mem mem = clCreateBuffer(context, 0, DATA_BYTES, NULL, NULL);
    cl_event gate = clCreateUserEvent(context, NULL);
    cl_event event = NULL;
    cl_program program = clCreateProgramWithSource(
        context, 1,
        (const char *[]){"kernel void put(global int *to, int v) { to[get_global_id(0)] = v; }"},
        NULL, NULL);
    clBuildProgram(program, 0, NULL, NULL, NULL, NULL);
    cl_kernel kernel = clCreateKernel(program, "put", NULL);
    clSetKernelArg(kernel, 0, sizeof(mem), &mem);
    clSetKernelArg(kernel, 1, sizeof(value), &value);
    say_references(o, "idle", context, queue, mem, kernel, gate);
    clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 1, &gate, &event);
    say_references(o, "waiting", context, queue, mem, kernel, event);
    clEnqueueReadBuffer(queue, mem, CL_FALSE, 0, DATA_BYTES, bytes, 0, NULL, NULL);
    say_references(o, "reading", context, queue, mem, kernel, event);
    clRetainContext(context);
    clRetainCommandQueue(queue);
    clRetainMemObject(mem);
    clRetainKernel(kernel);
    clRetainEvent(event);
    say_references(o, "retained", context, queue, mem, kernel, event);
    clReleaseContext(context);
    clReleaseCommandQueue(queue);
    clReleaseMemObject(mem);
    clReleaseKernel(kernel);
    clReleaseEvent(event);
    say_references(o, "released", context, queue, mem, kernel, event);
    say_call(o, "set", clSetUserEventStatus(gate, CL_COMPLETE));
    say_call(o, "finish", clFinish(queue));
    clReleaseEvent(event);
    clReleaseEvent(gate);
    clReleaseKernel(kernel);
    clReleaseProgram(program);
    clReleaseMemObject(mem);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
}

static void cloned(struct setting *s, struct outcome *o)
{
    const size_t global = 16;
    const int value = 40;
    cl_int error = 0;
    cl_int zero = 0;
    clEnqueueFillBuffer(s->queue, s->mem, &zero, sizeof(zero), 0, DATA_BYTES, 0, NULL, NULL);
    cl_kernel kernel = clCreateKernel(s->program, "add", NULL);
    clSetKernelArg(kernel, 0, sizeof(s->mem), &s->mem);
    clSetKernelArg(kernel, 1, sizeof(value), &value);
    cl_kernel clone = clCloneKernel(kernel, &error);
    say(o, "%d", error);
    if (clone != NULL) {
        const int other = 2;
        clSetKernelArg(clone, 1, sizeof(other), &other);
        clReleaseKernel(kernel);
        say_call(o, "run",
                 clEnqueueNDRangeKernel(s->queue, clone, 1, NULL, &global, NULL, 0, NULL, NULL));
        say(o, " word=%d", first_word(s, s->mem));
        kernel = clone;
    }
    clReleaseKernel(kernel);
}

/* The context goes before its children; the last of them still works. */
static void parents_first(struct setting *s, struct outcome *o)
{
    cl_uint count = 0;
    cl_context context = fresh_context(s);
    cl_command_queue queue = clCreateCommandQueueWithProperties(context, s->device, NULL, NULL);
    cl_mem mem = clCreateBuffer(context, 0, DATA_BYTES, NULL, NULL);
    cl_context got = NULL;
    say(o, "%d", clReleaseContext(context));
    say_call(o, "info", clGetMemObjectInfo(mem, CL_MEM_CONTEXT, sizeof(got), &got, NULL));
    say(o, " same=%d", got == context);
    clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT, sizeof(count), &count, NULL);
    say(o, " count=%u", count);
    say_call(o, "write",
             clEnqueueWriteBuffer(queue, mem, CL_TRUE, 0, DATA_BYTES, s->host, 0, NULL, NULL));
    say_call(o, "mem", clReleaseMemObject(mem));
    say_call(o, "queue", clReleaseCommandQueue(queue));
}

/* --- events that fail, threads -------------------------------------------------------------- */

static void failed_wait(struct setting *s, struct outcome *o)
{
    cl_event failing = fresh_event(s);
    cl_int status = 99;
    say(o, "%d", clSetUserEventStatus(failing, -7));
    say_call(o, "again", clSetUserEventStatus(failing, CL_COMPLETE));
    say_call(o, "wait", clWaitForEvents(1, &failing));
    clGetEventInfo(failing, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL);
    say(o, " status=%d", status);
    clReleaseEvent(failing);
}

struct worker {
    pthread_t thread;
    struct setting *setting;
    int number;
    cl_int result;
};

static void *work(void *data)
{
    struct worker *worker = data;
    struct setting *s = worker->setting;
    cl_command_queue queue = fresh_queue(s);
    cl_mem mem = fresh_mem(s);
    cl_kernel kernel = clCreateKernel(s->program, "add", NULL);
    cl_int zero = 0;
    cl_int word = 0;
    clEnqueueFillBuffer(queue, mem, &zero, sizeof(zero), 0, DATA_BYTES, 0, NULL, NULL);
    for (int i = 0; i < 50; i++) {
        add(s, queue, kernel, mem, worker->number + 1, NULL, NULL);
    }
    clEnqueueReadBuffer(queue, mem, CL_TRUE, 252, sizeof(word), &word, 0, NULL, NULL);
    worker->result = word;
    clReleaseKernel(kernel);
    clReleaseMemObject(mem);
    clReleaseCommandQueue(queue);
    return NULL;
}

static void threads(struct setting *s, struct outcome *o)
{
    struct worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.setting = s, .number = i};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            say(o, "no thread");
            return;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        say(o, "%s%d", i == 0 ? "" : " ", workers[i].result);
    }
}

/* --- the list ------------------------------------------------------------------------------ */

struct written {
    const char *name;
    void (*run)(struct setting *setting, struct outcome *outcome);
};

static const struct written order[] = {
    {"unordered chain", unordered_chain}, {"two queues", two_queues}, {"profiling", profile},
    {"failed event", failed_wait},        {"threads", threads},
};
static const struct written data[] = {
    {"empty transfers", empty},   {"fill patterns", patterns},
    {"overlapping parts", parts}, {"maps", maps},
    {"many maps", many_maps},     {"argument layouts", layouts},
};
static const struct written lifetimes[] = {
    {"released early", released_early},
    {"argument released", argument_released},
    {"argument of another context", foreign_argument},
    {"references", references},
    {"cloned", cloned},
    {"parents first", parents_first},
};

#define GROUP(list)                                                                                \
    static void name_##list(size_t number, char *name, size_t size)                                \
    {                                                                                              \
        snprintf(name, size, "%s", list[number].name);                                             \
    }                                                                                              \
    static void run_##list(struct setting *setting, size_t number, struct outcome *outcome)        \
    {                                                                                              \
        list[number].run(setting, outcome);                                                        \
    }

GROUP(order)
GROUP(data)
GROUP(lifetimes)

#define LISTED(list) {#list, sizeof(list) / sizeof(list[0]), name_##list, NULL, run_##list}

const struct group written_groups[] = {LISTED(order), LISTED(data), LISTED(lifetimes)};
const size_t written_group_count = sizeof(written_groups) / sizeof(written_groups[0]);
