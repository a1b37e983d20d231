/*
 * opencl_stress.c - an OpenCL program that checks every result: opencl_stress KIND CALLS THREADS
 * SEED PAUSE_US.
 *
 * Threads share a context and have a queue, a kernel and a buffer each, whose contents they keep a
 * copy of. KIND picks the steps: copies, launches, builds, maps, events, callbacks, objects, or
 * mixed. Now and then a thread pauses for about PAUSE_US, so that both sides go to sleep in every
 * phase. One line at the end; status 1 and the first wrong result, else.
 */
#define CL_TARGET_OPENCL_VERSION 120

#include <CL/cl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS 1024u
#define SIZE_BYTES (WORDS * sizeof(cl_uint))
#define THREADS_MAX 64
#define PAUSE_EVERY 64u /* steps, about */

static const char *const source =
    "kernel void add(global uint *data, uint value) { data[get_global_id(0)] += value; }\n"
    "kernel void times(global uint *data, uint factor) { data[get_global_id(0)] *= factor; }\n";

static cl_context context;
static cl_device_id device;
static cl_program program;
static uint64_t calls_wanted;
static unsigned pause_us;
static unsigned steps_wanted;

struct worker {
    pthread_t thread;
    uint64_t random;
    uint64_t calls;
    cl_command_queue queue;
    cl_kernel kernel;
    cl_mem buffer;
    cl_uint value_set; /* the kernel's last argument */
    cl_uint copy[WORDS];
    cl_uint seen[WORDS];
};

static void check(cl_int status, const char *what)
{
    if (status != CL_SUCCESS) {
        fprintf(stderr, "opencl_stress: %s: error %d\n", what, status);
        exit(1);
    }
}

static void expect(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "opencl_stress: wrong: %s\n", what);
        exit(1);
    }
}

/* Counts the call and checks its status. */
#define CALL(call)                                                                                 \
    do {                                                                                           \
        check((call), #call);                                                                      \
        worker->calls++;                                                                           \
    } while (0)

static uint32_t draw(struct worker *worker, uint32_t limit)
{
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return (uint32_t)(worker->random >> 32) % limit;
}

/* A random part of the buffer, in words. */
static uint32_t part(struct worker *worker, uint32_t *first)
{
    *first = draw(worker, WORDS);
    return 1 + draw(worker, WORDS - *first);
}

static void fill(struct worker *worker, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        worker->copy[i] = (cl_uint)draw(worker, UINT32_MAX);
    }
}

static void step_write(struct worker *worker)
{
    uint32_t first;
    uint32_t count = part(worker, &first);
    cl_bool blocking = draw(worker, 2) == 0;
    if (!blocking) {
        CALL(clFinish(worker->queue)); /* an earlier write may still read the copy */
    }
    fill(worker, first, count);
    CALL(clEnqueueWriteBuffer(worker->queue, worker->buffer, blocking, first * sizeof(cl_uint),
                              count * sizeof(cl_uint), &worker->copy[first], 0, NULL, NULL));
    if (!blocking) {
        CALL(clFinish(worker->queue));
    }
}

static void step_read(struct worker *worker)
{
    uint32_t first;
    uint32_t count = part(worker, &first);
    cl_event event;
    if (draw(worker, 2) == 0) {
        CALL(clEnqueueReadBuffer(worker->queue, worker->buffer, CL_TRUE, first * sizeof(cl_uint),
                                 count * sizeof(cl_uint), worker->seen, 0, NULL, NULL));
    } else {
        CALL(clEnqueueReadBuffer(worker->queue, worker->buffer, CL_FALSE, first * sizeof(cl_uint),
                                 count * sizeof(cl_uint), worker->seen, 0, NULL, &event));
        CALL(clWaitForEvents(1, &event));
        CALL(clReleaseEvent(event));
    }
    expect(memcmp(worker->seen, &worker->copy[first], count * sizeof(cl_uint)) == 0, "a read");
}

static void step_launch(struct worker *worker)
{
    const size_t words = WORDS;
    if (draw(worker, 4) == 0) {
        worker->value_set = (cl_uint)draw(worker, 1000);
        CALL(clSetKernelArg(worker->kernel, 1, sizeof(cl_uint), &worker->value_set));
    }
    CALL(clEnqueueNDRangeKernel(worker->queue, worker->kernel, 1, NULL, &words, NULL, 0, NULL,
                                NULL));
    for (uint32_t i = 0; i < WORDS; i++) {
        worker->copy[i] += worker->value_set;
    }
}

static void step_map(struct worker *worker)
{
    uint32_t first;
    uint32_t count = part(worker, &first);
    bool writes = draw(worker, 2) == 0;
    cl_int status;
    cl_uint *mapped = clEnqueueMapBuffer(
        worker->queue, worker->buffer, CL_TRUE, CL_MAP_READ | (writes ? CL_MAP_WRITE : 0),
        first * sizeof(cl_uint), count * sizeof(cl_uint), 0, NULL, NULL, &status);
    CALL(status);
    expect(memcmp(mapped, &worker->copy[first], count * sizeof(cl_uint)) == 0, "a map");
    if (writes) {
        fill(worker, first, count);
        memcpy(mapped, &worker->copy[first], count * sizeof(cl_uint));
    }
    CALL(clEnqueueUnmapMemObject(worker->queue, worker->buffer, mapped, 0, NULL, NULL));
}

/* A write that a user event holds back. */
static void step_event(struct worker *worker)
{
    uint32_t first;
    uint32_t count = part(worker, &first);
    cl_int status;
    cl_event gate = clCreateUserEvent(context, &status);
    cl_event written;
    CALL(status);
    CALL(clFinish(worker->queue));
    fill(worker, first, count);
    CALL(clEnqueueWriteBuffer(worker->queue, worker->buffer, CL_FALSE, first * sizeof(cl_uint),
                              count * sizeof(cl_uint), &worker->copy[first], 1, &gate, &written));
    cl_int state = CL_COMPLETE;
    CALL(clGetEventInfo(written, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, NULL));
    expect(state > CL_COMPLETE, "a write that is held back is complete");
    CALL(clSetUserEventStatus(gate, CL_COMPLETE));
    CALL(clWaitForEvents(1, &written));
    CALL(clGetEventInfo(written, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, NULL));
    expect(state == CL_COMPLETE, "a write that was waited for is not complete");
    CALL(clReleaseEvent(written));
    CALL(clReleaseEvent(gate));
}

static void step_objects(struct worker *worker)
{
    size_t size_bytes = 4 * (1 + draw(worker, 4096));
    size_t seen_bytes = 0;
    cl_uint count = 0;
    char name[16] = "";
    cl_int status;
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, size_bytes, NULL, &status);
    CALL(status);
    CALL(clRetainMemObject(buffer));
    CALL(clGetMemObjectInfo(buffer, CL_MEM_REFERENCE_COUNT, sizeof(count), &count, NULL));
    CALL(clGetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof(seen_bytes), &seen_bytes, NULL));
    expect(count == 2 && seen_bytes == size_bytes, "what a buffer says");
    cl_kernel kernel = clCreateKernel(program, "times", &status);
    CALL(status);
    CALL(clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof(name), name, NULL));
    expect(strcmp(name, "times") == 0, "a kernel's name");
    CALL(clReleaseKernel(kernel));
    CALL(clReleaseMemObject(buffer));
    CALL(clReleaseMemObject(buffer));
}

static void CL_CALLBACK complete(cl_event event, cl_int status, void *data)
{
    cl_command_type type = 0;
    check(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL), "in a callback");
    expect(status == CL_COMPLETE && type == CL_COMMAND_READ_BUFFER, "what a callback is told");
    sem_post(data);
}

/* The data of a read are there when its callback runs. */
static void step_callback(struct worker *worker)
{
    sem_t called;
    cl_event event;
    sem_init(&called, 0, 0);
    memset(worker->seen, 0, sizeof(worker->seen));
    CALL(clEnqueueReadBuffer(worker->queue, worker->buffer, CL_FALSE, 0, SIZE_BYTES, worker->seen,
                             0, NULL, &event));
    CALL(clSetEventCallback(event, CL_COMPLETE, complete, &called));
    CALL(clFlush(worker->queue));
    while (sem_wait(&called) != 0) {
    }
    expect(memcmp(worker->seen, worker->copy, SIZE_BYTES) == 0, "a read, in its callback");
    CALL(clReleaseEvent(event));
    sem_destroy(&called);
}

/* A program of its own, run once: *7, which is odd and can be undone by nobody's mistake. */
static void step_build(struct worker *worker)
{
    const size_t words = WORDS;
    const cl_uint factor = 7;
    char text[160];
    const char *texts[1] = {text};
    cl_int status;
    snprintf(text, sizeof(text),
             "kernel void times_%u(global uint *data, uint f) { data[get_global_id(0)] *= f; }",
             draw(worker, 1000000));
    cl_program built = clCreateProgramWithSource(context, 1, texts, NULL, &status);
    CALL(status);
    CALL(clBuildProgram(built, 1, &device, "", NULL, NULL));
    char *name = strchr(text, '_');
    cl_kernel kernel = NULL;
    *strchr(text, '(') = '\0';
    kernel = clCreateKernel(built, name - strlen("times"), &status);
    CALL(status);
    CALL(clSetKernelArg(kernel, 0, sizeof(cl_mem), &worker->buffer));
    CALL(clSetKernelArg(kernel, 1, sizeof(factor), &factor));
    CALL(clEnqueueNDRangeKernel(worker->queue, kernel, 1, NULL, &words, NULL, 0, NULL, NULL));
    CALL(clReleaseKernel(kernel));
    CALL(clReleaseProgram(built));
    for (uint32_t i = 0; i < WORDS; i++) {
        worker->copy[i] *= factor;
    }
}

static const struct {
    const char *kind;
    bool mixed; /* one of the steps of `mixed`; builds take too long */
    void (*step)(struct worker *worker);
} steps[] = {
    {"copies", true, step_write},       {"copies", true, step_read},
    {"launches", true, step_launch},    {"maps", true, step_map},
    {"events", true, step_event},       {"objects", true, step_objects},
    {"builds", false, step_build},      {"launches", false, step_read},
    {"callbacks", true, step_callback},
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    while (worker->calls < calls_wanted) {
        unsigned chosen = draw(worker, sizeof(steps) / sizeof(steps[0]));
        if ((steps_wanted & 1u << chosen) == 0) {
            continue;
        }
        steps[chosen].step(worker);
        if (pause_us > 0 && draw(worker, PAUSE_EVERY) == 0) {
            usleep(pause_us / 2 + draw(worker, pause_us));
        }
    }
    step_read(worker);
    CALL(clFinish(worker->queue));
    return NULL;
}

static void set_up(struct worker *worker, uint64_t seed)
{
    cl_int status;
    worker->random = seed * 0x9e3779b97f4a7c15u + 1;
    worker->queue = clCreateCommandQueue(context, device, 0, &status);
    CALL(status);
    fill(worker, 0, WORDS);
    worker->buffer = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, SIZE_BYTES,
                                    worker->copy, &status);
    CALL(status);
    worker->kernel = clCreateKernel(program, "add", &status);
    CALL(status);
    worker->value_set = 1;
    CALL(clSetKernelArg(worker->kernel, 0, sizeof(cl_mem), &worker->buffer));
    CALL(clSetKernelArg(worker->kernel, 1, sizeof(cl_uint), &worker->value_set));
}

static void set_up_all(void)
{
    cl_platform_id platform;
    cl_int status;
    check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    check(status, "clCreateContext");
    const char *texts[1] = {source};
    program = clCreateProgramWithSource(context, 1, texts, NULL, &status);
    check(status, "clCreateProgramWithSource");
    check(clBuildProgram(program, 1, &device, "", NULL, NULL), "clBuildProgram");
}

int main(int argc, char **argv)
{
    static struct worker workers[THREADS_MAX];
    if (argc != 6) {
        fprintf(stderr, "usage: opencl_stress KIND CALLS THREADS SEED PAUSE_US\n");
        return 2;
    }
    bool mixed = strcmp(argv[1], "mixed") == 0;
    for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        bool wanted = mixed ? steps[i].mixed : strcmp(argv[1], steps[i].kind) == 0;
        steps_wanted |= wanted ? 1u << i : 0;
    }
    unsigned threads = (unsigned)atoi(argv[3]);
    if (steps_wanted == 0 || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "opencl_stress: no such kind, or not 1 to %d threads\n", THREADS_MAX);
        return 2;
    }
    calls_wanted = strtoull(argv[2], NULL, 10) / threads;
    pause_us = (unsigned)atoi(argv[5]);
    set_up_all();
    uint64_t calls = 0;
    for (unsigned i = 0; i < threads; i++) {
        set_up(&workers[i], strtoull(argv[4], NULL, 10) * THREADS_MAX + i);
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        calls += workers[i].calls;
        check(clReleaseKernel(workers[i].kernel), "clReleaseKernel");
        check(clReleaseMemObject(workers[i].buffer), "clReleaseMemObject");
        check(clReleaseCommandQueue(workers[i].queue), "clReleaseCommandQueue");
    }
    check(clReleaseProgram(program), "clReleaseProgram");
    check(clReleaseContext(context), "clReleaseContext");
    printf("%llu calls, every result right\n", (unsigned long long)calls);
    return 0;
}
