/*
 * opencl_callbacks.c - callbacks of every kind, what kernels print, events set by hand. Every
 * scenario that `opencl_callbacks` lists also holds for native OpenCL: `opencl_callbacks
 * SCENARIO...`.
 */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS

#include "scenarios.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define WAIT_S 60
#define COUNT 4096

static const char *const source =
    "__kernel void add(__global int *to, int value) { to[get_global_id(0)] += value; }\n";

static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_kernel kernel;
static cl_mem buffer;

/* What callbacks have noted, in their order. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t log_changed = PTHREAD_COND_INITIALIZER;
static intptr_t noted[COUNT * 4];
static size_t noted_count;

static void note(intptr_t what)
{
    pthread_mutex_lock(&log_lock);
    noted[noted_count++] = what;
    pthread_cond_broadcast(&log_changed);
    pthread_mutex_unlock(&log_lock);
}

static void wait_for(size_t count)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += WAIT_S;
    int error = 0;
    pthread_mutex_lock(&log_lock);
    while (noted_count < count && error == 0) {
        error = pthread_cond_timedwait(&log_changed, &log_lock, &limit);
    }
    pthread_mutex_unlock(&log_lock);
    EXPECT(noted_count, count);
}

static cl_context new_context(void)
{
    cl_int error = CL_SUCCESS;
    cl_context made = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    OK(error);
    return made;
}

static cl_mem new_buffer(size_t size)
{
    cl_int error = CL_SUCCESS;
    cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE, size, NULL, &error);
    OK(error);
    return made;
}

static cl_event gate(void)
{
    cl_int error = CL_SUCCESS;
    cl_event event = clCreateUserEvent(context, &error);
    OK(error);
    return event;
}

static cl_kernel kernel_of(const char *text, const char *name)
{
    cl_int error = CL_SUCCESS;
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &error);
    OK(error);
    OK(clBuildProgram(program, 0, NULL, NULL, NULL, NULL));
    cl_kernel made = clCreateKernel(program, name, &error);
    OK(error);
    OK(clReleaseProgram(program));
    return made;
}

static void open_all(void)
{
    cl_int error = CL_SUCCESS;
    cl_platform_id platform;
    int zeros[COUNT] = {0};
    const int one = 1;
    OK(clGetPlatformIDs(1, &platform, NULL));
    OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    context = new_context();
    queue = clCreateCommandQueue(context, device, 0, &error);
    OK(error);
    kernel = kernel_of(source, "add");
    buffer = new_buffer(sizeof(zeros));
    OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof(zeros), zeros, 0, NULL, NULL));
    OK(clSetKernelArg(kernel, 0, sizeof(buffer), &buffer));
    OK(clSetKernelArg(kernel, 1, sizeof(one), &one));
}

static void launch(cl_uint waits, const cl_event *list, cl_event *event)
{
    const size_t global = 16;
    OK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, waits, list, event));
}

static cl_int status_of(cl_event event)
{
    cl_int status = 1234;
    OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
    return status;
}

static cl_uint references_of(cl_event event)
{
    cl_uint count = 0;
    OK(clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof(count), &count, NULL));
    return count;
}

static void CL_CALLBACK note_status(cl_event event, cl_int status, void *data)
{
    (void)event;
    (void)data;
    note(status);
}

static void CL_CALLBACK note_data(cl_event event, cl_int status, void *data)
{
    (void)event;
    (void)status;
    note((intptr_t)data);
}

/* The states of one command, in their order, each once; registered in another order. */
static void states(void)
{
    cl_event event;
    cl_event first = gate();
    launch(1, &first, &event);
    OK(clSetEventCallback(event, CL_COMPLETE, note_status, NULL));
    OK(clSetEventCallback(event, CL_SUBMITTED, note_status, NULL));
    OK(clSetEventCallback(event, CL_RUNNING, note_status, NULL));
    EXPECT(noted_count, 0);
    OK(clSetUserEventStatus(first, CL_COMPLETE));
    OK(clWaitForEvents(1, &event));
    wait_for(3);
    EXPECT(noted[0], CL_SUBMITTED);
    EXPECT(noted[1], CL_RUNNING);
    EXPECT(noted[2], CL_COMPLETE);
    OK(clReleaseEvent(first));
    OK(clReleaseEvent(event));
    OK(clFinish(queue));
    EXPECT(noted_count, 3);
}

/* Registered when the command is long complete: it runs all the same, with its own status. */
static void late(void)
{
    cl_event event;
    launch(0, NULL, &event);
    OK(clWaitForEvents(1, &event));
    OK(clSetEventCallback(event, CL_COMPLETE, note_status, NULL));
    OK(clSetEventCallback(event, CL_RUNNING, note_status, NULL));
    wait_for(2);
    EXPECT(noted[0], CL_COMPLETE);
    EXPECT(noted[1], CL_RUNNING);
    OK(clReleaseEvent(event));
}

/* Who has seen a command complete counts on its callbacks having run, as they have natively. */
static void before_completion(void)
{
    for (size_t i = 0; i < 200; i++) {
        cl_event event;
        int value;
        launch(0, NULL, &event);
        OK(clSetEventCallback(event, CL_COMPLETE, note_status, NULL));
        if (i % 3 == 0) {
            OK(clFinish(queue));
        } else if (i % 3 == 1) {
            OK(clWaitForEvents(1, &event));
        } else {
            OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof(value), &value, 0, NULL,
                                   NULL));
        }
        EXPECT(noted_count, i + 1);
        OK(clReleaseEvent(event));
    }
}

/* Many of one event, and of many events of one queue. */
static void many(void)
{
    cl_event events[64];
    cl_event first = gate();
    for (intptr_t i = 0; i < 64; i++) {
        launch(i == 0 ? 1 : 0, i == 0 ? &first : NULL, &events[i]);
        for (intptr_t j = 0; j < 8; j++) {
            OK(clSetEventCallback(events[i], CL_COMPLETE, note_data, (void *)(i * 8 + j)));
        }
        OK(clReleaseEvent(events[i])); /* before it is complete: the callback has a valid one */
    }
    OK(clSetUserEventStatus(first, CL_COMPLETE));
    OK(clFinish(queue));
    wait_for(512);
    for (intptr_t i = 0; i < 512; i++) {
        EXPECT(noted[i], i);
    }
    OK(clReleaseEvent(first));
}

static void CL_CALLBACK use_api(cl_event event, cl_int status, void *data)
{
    int value = 0;
    cl_event own;
    EXPECT(status, CL_COMPLETE);
    EXPECT(status_of(event), CL_COMPLETE);
    cl_command_queue other = data;
    OK(clEnqueueNDRangeKernel(other, kernel, 1, NULL, &(size_t){1}, NULL, 0, NULL, &own));
    OK(clFlush(other));
    OK(clRetainEvent(event));
    OK(clReleaseEvent(event));
    OK(clSetEventCallback(own, CL_COMPLETE, note_data, (void *)2));
    OK(clReleaseEvent(own));
    cl_mem made = new_buffer(64);
    OK(clEnqueueFillBuffer(other, made, &(int){7}, sizeof(int), 0, 64, 0, NULL, NULL));
    OK(clEnqueueReadBuffer(other, made, CL_TRUE, 60, 4, &value, 0, NULL, NULL));
    EXPECT(value, 7);
    OK(clReleaseMemObject(made));
    note(1);
}

/* A callback calls the API again, also calls that block, and registers another callback. */
static void calls_again(void)
{
    cl_int error = CL_SUCCESS;
    cl_event event;
    cl_event first = gate();
    cl_command_queue other = clCreateCommandQueue(context, device, 0, &error);
    OK(error);
    launch(1, &first, &event);
    OK(clSetEventCallback(event, CL_COMPLETE, use_api, other));
    OK(clSetUserEventStatus(first, CL_COMPLETE));
    wait_for(2);
    EXPECT(noted[0] + noted[1], 3);
    OK(clFinish(queue));
    OK(clReleaseCommandQueue(other));
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(first));
}

static int read_values[COUNT];

static void CL_CALLBACK look_at_data(cl_event event, cl_int status, void *data)
{
    const int *values = data;
    (void)event;
    EXPECT(status, CL_COMPLETE);
    note(values[0] == 41 && values[COUNT - 1] == 41);
}

/* The data of a non-blocking read is there when its callback runs, and that of one before it. */
static void reads(void)
{
    for (int round = 0; round < 20; round++) {
        cl_event event;
        cl_event marker;
        cl_event first = gate();
        cl_mem made = new_buffer(sizeof(read_values));
        memset(read_values, 0, sizeof(read_values));
        OK(clEnqueueFillBuffer(queue, made, &(int){41}, sizeof(int), 0, sizeof(read_values), 1,
                               &first, NULL));
        OK(clEnqueueReadBuffer(queue, made, CL_FALSE, 0, sizeof(read_values), read_values, 0, NULL,
                               &event));
        OK(clEnqueueMarkerWithWaitList(queue, 0, NULL, &marker));
        OK(clSetEventCallback(round % 2 == 0 ? event : marker, CL_COMPLETE, look_at_data,
                              read_values));
        OK(clSetUserEventStatus(first, CL_COMPLETE));
        OK(clFlush(queue));
        wait_for((size_t)round + 1);
        EXPECT(noted[round], 1);
        OK(clFinish(queue));
        OK(clReleaseMemObject(made));
        OK(clReleaseEvent(event));
        OK(clReleaseEvent(marker));
        OK(clReleaseEvent(first));
    }
}

static int *mapped;

static void CL_CALLBACK look_at_map(cl_event event, cl_int status, void *data)
{
    (void)event;
    (void)data;
    EXPECT(status, CL_COMPLETE);
    note(mapped[0] == 42 && mapped[COUNT - 1] == 42);
}

/* Memory that the device shares is read in a callback. */
static void maps(void)
{
    cl_int error = CL_SUCCESS;
    cl_event event;
    cl_event first = gate();
    cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                 COUNT * sizeof(int), NULL, &error);
    OK(error);
    OK(clEnqueueFillBuffer(queue, made, &(int){42}, sizeof(int), 0, COUNT * sizeof(int), 1, &first,
                           NULL));
    mapped = clEnqueueMapBuffer(queue, made, CL_FALSE, CL_MAP_READ, 0, COUNT * sizeof(int), 0, NULL,
                                &event, &error);
    OK(error);
    OK(clSetEventCallback(event, CL_COMPLETE, look_at_map, NULL));
    OK(clSetUserEventStatus(first, CL_COMPLETE));
    OK(clFlush(queue));
    wait_for(1);
    EXPECT(noted[0], 1);
    OK(clEnqueueUnmapMemObject(queue, made, mapped, 0, NULL, NULL));
    OK(clFinish(queue));
    OK(clReleaseMemObject(made));
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(first));
}

/* Callbacks are registered while more calls are on their way than the ring holds. */
static void full_ring(void)
{
    intptr_t registered = 0;
    for (int i = 0; i < 6000; i++) {
        cl_event event;
        launch(0, NULL, i % 100 == 0 ? &event : NULL);
        if (i % 100 == 0) {
            OK(clSetEventCallback(event, CL_COMPLETE, note_data, (void *)registered));
            OK(clReleaseEvent(event));
            registered++;
        }
    }
    OK(clFinish(queue));
    wait_for((size_t)registered);
    for (intptr_t i = 0; i < registered; i++) {
        EXPECT(noted[i], i);
    }
}

static void user_events(void)
{
    cl_event event = gate();
    EXPECT(status_of(event), CL_SUBMITTED);
    OK(clSetEventCallback(event, CL_COMPLETE, note_status, NULL));
    EXPECT(references_of(event), 1);
    EXPECT(clSetUserEventStatus(event, CL_QUEUED), CL_INVALID_VALUE);
    EXPECT(clSetUserEventStatus(event, CL_RUNNING), CL_INVALID_VALUE);
    EXPECT(clSetUserEventStatus(event, 5), CL_INVALID_VALUE);
    EXPECT(noted_count, 0);
    OK(clSetUserEventStatus(event, CL_COMPLETE));
    wait_for(1);
    EXPECT(noted[0], CL_COMPLETE);
    EXPECT(clSetUserEventStatus(event, CL_COMPLETE), CL_INVALID_OPERATION);
    EXPECT(clSetUserEventStatus(event, -43), CL_INVALID_OPERATION);
    EXPECT(references_of(event), 1);
    OK(clReleaseEvent(event));
    event = gate();
    OK(clSetUserEventStatus(event, -42));
    EXPECT(status_of(event), -42);
    EXPECT(clSetUserEventStatus(event, CL_COMPLETE), CL_INVALID_OPERATION);
    EXPECT(clWaitForEvents(1, &event), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    OK(clReleaseEvent(event));
    launch(0, NULL, &event);
    EXPECT(clSetUserEventStatus(event, CL_COMPLETE), CL_INVALID_EVENT);
    OK(clFinish(queue));
    OK(clReleaseEvent(event));
    EXPECT(clSetUserEventStatus(NULL, CL_COMPLETE), CL_INVALID_EVENT);
}

enum { DEPTH = 3000 };
static cl_event nested[DEPTH];

static void CL_CALLBACK complete_next(cl_event event, cl_int status, void *data)
{
    intptr_t own = (intptr_t)data;
    (void)event;
    EXPECT(status, CL_COMPLETE);
    if (own + 1 < DEPTH) {
        OK(clSetUserEventStatus(nested[own + 1], CL_COMPLETE));
    }
    note(own);
}

/* Each callback runs inside the call that the one before makes: the last is the first to end. */
static void nested_callbacks(void)
{
    for (intptr_t i = 0; i < DEPTH; i++) {
        nested[i] = gate();
        OK(clSetEventCallback(nested[i], CL_COMPLETE, complete_next, (void *)i));
    }
    OK(clSetUserEventStatus(nested[0], CL_COMPLETE));
    EXPECT(noted_count, DEPTH);
    for (int i = 0; i < DEPTH; i++) {
        EXPECT(noted[i], DEPTH - 1 - i);
        OK(clReleaseEvent(nested[i]));
    }
}

/* What hangs on a failed event fails as well, and what hangs on that. */
static void failed_events(void)
{
    cl_event events[2];
    cl_event first = gate();
    launch(1, &first, &events[0]);
    launch(1, &events[0], &events[1]);
    OK(clSetUserEventStatus(first, -42));
    for (int i = 1; i >= 0; i--) {
        EXPECT(clWaitForEvents(1, &events[i]), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
        EXPECT(status_of(events[i]) < 0, 1);
    }
    EXPECT(clWaitForEvents(2, events), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    EXPECT(clWaitForEvents(1, &first), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    OK(clFinish(queue));
    OK(clReleaseEvent(events[0]));
    OK(clReleaseEvent(events[1]));
    OK(clReleaseEvent(first));
}

static void wait_lists(void)
{
    cl_int error = CL_SUCCESS;
    cl_context second = new_context();
    cl_event events[2] = {gate(), clCreateUserEvent(second, &error)};
    OK(error);
    OK(clSetUserEventStatus(events[0], CL_COMPLETE));
    OK(clSetUserEventStatus(events[1], CL_COMPLETE));
    for (int round = 0; round < 2; round++) {
        EXPECT(clWaitForEvents(2, events), CL_INVALID_CONTEXT);
        OK(clWaitForEvents(1, &events[0])); /* seen complete from here on */
        OK(clWaitForEvents(1, &events[1]));
    }
    EXPECT(clWaitForEvents(0, NULL), CL_INVALID_VALUE);
    EXPECT(clWaitForEvents(0, events), CL_INVALID_VALUE);
    EXPECT(clWaitForEvents(1, NULL), CL_INVALID_VALUE);
    OK(clReleaseEvent(events[0]));
    OK(clReleaseEvent(events[1]));
    OK(clReleaseContext(second));
}

static void CL_CALLBACK mem_gone(cl_mem mem, void *data)
{
    (void)mem;
    note((intptr_t)data);
}

/* Last registered first, when nothing needs the memory any more. */
static void destructors(void)
{
    cl_mem made = new_buffer(4096);
    for (intptr_t i = 1; i <= 4; i++) {
        OK(clSetMemObjectDestructorCallback(made, mem_gone, (void *)i));
    }
    OK(clRetainMemObject(made));
    OK(clReleaseMemObject(made));
    EXPECT(noted_count, 0);
    OK(clReleaseMemObject(made));
    wait_for(4);
    for (intptr_t i = 0; i < 4; i++) {
        EXPECT(noted[i], 4 - i);
    }
    EXPECT(clSetMemObjectDestructorCallback(buffer, NULL, NULL), CL_INVALID_VALUE);
    EXPECT(clSetMemObjectDestructorCallback(NULL, mem_gone, NULL), CL_INVALID_MEM_OBJECT);
}

/* A command that has not run yet keeps the memory alive. */
static void used_memory(void)
{
    cl_mem made = new_buffer(4096);
    cl_event first = gate();
    OK(clSetMemObjectDestructorCallback(made, mem_gone, (void *)1));
    OK(clEnqueueFillBuffer(queue, made, &(int){7}, sizeof(int), 0, 64, 1, &first, NULL));
    OK(clReleaseMemObject(made));
    OK(clFlush(queue));
    EXPECT(noted_count, 0);
    OK(clSetUserEventStatus(first, CL_COMPLETE));
    OK(clFinish(queue));
    wait_for(1);
    OK(clReleaseEvent(first));
}

/* The whole lives as long as its parts. */
static void parts(void)
{
    cl_int error = CL_SUCCESS;
    const cl_buffer_region region = {0, 64};
    cl_mem whole = new_buffer(4096);
    cl_mem part =
        clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
    OK(error);
    OK(clSetMemObjectDestructorCallback(whole, mem_gone, (void *)2));
    OK(clSetMemObjectDestructorCallback(part, mem_gone, (void *)1));
    OK(clReleaseMemObject(whole));
    EXPECT(noted_count, 0);
    OK(clReleaseMemObject(part));
    wait_for(2);
    EXPECT(noted[0], 1);
    EXPECT(noted[1], 2);
}

static void CL_CALLBACK context_gone(cl_context which, void *data)
{
    (void)which;
    note((intptr_t)data);
}

/* With the last object in it, last registered first. */
static void contexts(void)
{
    cl_int error = CL_SUCCESS;
    cl_context second = new_context();
    cl_event inside = clCreateUserEvent(second, &error);
    OK(error);
    OK(clSetContextDestructorCallback(second, context_gone, (void *)1));
    OK(clSetContextDestructorCallback(second, context_gone, (void *)2));
    EXPECT(clSetContextDestructorCallback(second, NULL, NULL), CL_INVALID_VALUE);
    EXPECT(clSetContextDestructorCallback(NULL, context_gone, NULL), CL_INVALID_CONTEXT);
    OK(clReleaseContext(second));
    EXPECT(noted_count, 0);
    OK(clSetUserEventStatus(inside, CL_COMPLETE));
    OK(clReleaseEvent(inside));
    wait_for(2);
    EXPECT(noted[0], 2);
    EXPECT(noted[1], 1);
}

static void CL_CALLBACK program_gone(cl_program program, void *data)
{
    (void)program;
    (void)data;
}

/* What the library does not have it says itself. */
static void programs(void)
{
    cl_program program;
    OK(clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof(program), &program, NULL));
    EXPECT(clSetProgramReleaseCallback(program, program_gone, NULL), CL_INVALID_OPERATION);
    EXPECT(clSetProgramReleaseCallback(program, NULL, NULL), CL_INVALID_OPERATION);
    EXPECT(clSetProgramReleaseCallback(NULL, program_gone, NULL), CL_INVALID_PROGRAM);
}

static void wrong_arguments(void)
{
    cl_event event = gate();
    EXPECT(clSetEventCallback(event, CL_QUEUED, note_status, NULL), CL_INVALID_VALUE);
    EXPECT(clSetEventCallback(event, 77, note_status, NULL), CL_INVALID_VALUE);
    EXPECT(clSetEventCallback(event, CL_COMPLETE, NULL, NULL), CL_INVALID_VALUE);
    EXPECT(clSetEventCallback(NULL, CL_COMPLETE, note_status, NULL), CL_INVALID_EVENT);
    OK(clSetUserEventStatus(event, CL_COMPLETE));
    OK(clReleaseEvent(event));
    EXPECT(noted_count, 0);
}

static void *register_and_launch(void *argument)
{
    cl_int error = CL_SUCCESS;
    intptr_t number = (intptr_t)argument;
    cl_command_queue own = clCreateCommandQueue(context, device, 0, &error);
    OK(error);
    for (intptr_t i = 0; i < 100; i++) {
        cl_event event;
        OK(clEnqueueMarkerWithWaitList(own, 0, NULL, &event));
        OK(clSetEventCallback(event, CL_COMPLETE, note_data, (void *)(number * 100 + i)));
        OK(clReleaseEvent(event));
    }
    OK(clFinish(own));
    OK(clReleaseCommandQueue(own));
    return NULL;
}

/* Eight threads, a queue each: every callback once, those of a queue in its order. */
static void threads(void)
{
    pthread_t running[8];
    intptr_t next[8] = {0};
    for (intptr_t i = 0; i < 8; i++) {
        EXPECT(pthread_create(&running[i], NULL, register_and_launch, (void *)i), 0);
    }
    for (size_t i = 0; i < 8; i++) {
        EXPECT(pthread_join(running[i], NULL), 0);
    }
    wait_for(800);
    for (size_t i = 0; i < 800; i++) {
        intptr_t number = noted[i] / 100;
        EXPECT(noted[i] % 100, next[number]);
        next[number]++;
    }
}

static void handle_signal(int number)
{
    (void)number;
    EXPECT(gettid(), getpid()); /* never in a thread that is not the application's */
}

/* Signals are the application's own threads' business. */
static void signals(void)
{
    cl_event event;
    signal(SIGUSR1, handle_signal);
    launch(0, NULL, &event);
    OK(clSetEventCallback(event, CL_COMPLETE, note_status, NULL));
    wait_for(1);
    for (int i = 0; i < 200; i++) {
        kill(getpid(), SIGUSR1);
    }
    OK(clReleaseEvent(event));
}

static void CL_CALLBACK leave(cl_event event, cl_int status, void *data)
{
    (void)event;
    (void)status;
    (void)data;
    exit(0);
}

/* A child ends with callbacks outstanding in its parent; the parent's still run. */
static void forks(void)
{
    cl_event first = gate();
    OK(clSetEventCallback(first, CL_COMPLETE, note_status, NULL));
    for (int round = 0; round < 2; round++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0 && round == 0) {
            exit(0);
        } else if (child == 0) {
            _exit(0);
        }
        int status = 1;
        EXPECT(waitpid(child, &status, 0), child);
        EXPECT(status, 0);
    }
    EXPECT(noted_count, 0);
    OK(clSetUserEventStatus(first, CL_COMPLETE));
    wait_for(1);
    OK(clReleaseEvent(first));
}

/* Last of all: the process ends while a callback waits for its command. */
static void ends_with_callbacks(void)
{
    cl_event first = gate();
    OK(clSetEventCallback(first, CL_COMPLETE, note_status, NULL));
    puts("ends_with_callbacks ok");
    exit(0);
}

/* Last of all: a callback ends the process. */
static void ends_in_callback(void)
{
    cl_event event;
    launch(0, NULL, &event);
    puts("ends_in_callback ok");
    fflush(stdout);
    OK(clSetEventCallback(event, CL_COMPLETE, leave, NULL));
    OK(clFinish(queue));
    sleep(WAIT_S);
    exit(1);
}

/* Forwarded only, natively it is undefined: the kernel's memory has ended when the launch arrives.
 * If the same launch has succeeded before it goes one way, and fails late: the next call that waits
 * reports it, once. */
static void late_failure(void)
{
    const char *oneway = getenv("WORMHOLE_ONEWAY");
    const size_t global = 16;
    launch(0, NULL, NULL);
    OK(clFinish(queue));
    for (int round = 0; round < 2; round++) {
        cl_mem made = new_buffer(4096);
        OK(clSetKernelArg(kernel, 0, sizeof(made), &made));
        OK(clReleaseMemObject(made));
        cl_int error = clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL);
        if (oneway == NULL || strcmp(oneway, "0") != 0) {
            EXPECT(error, CL_SUCCESS);
            error = clFinish(queue);
        }
        EXPECT(error, CL_INVALID_MEM_OBJECT);
        OK(clFinish(queue));
    }
    OK(clSetKernelArg(kernel, 0, sizeof(buffer), &buffer));
    launch(0, NULL, NULL);
    OK(clFinish(queue));
}

static int thread_count(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    EXPECT(tasks != NULL, 1);
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) {
        count += task->d_name[0] != '.';
    }
    closedir(tasks);
    return count;
}

/* Forwarded only: who registers nothing and prints nothing has no thread of the stub's. */
static void own_threads(void)
{
    cl_event event;
    launch(0, NULL, &event);
    OK(clFinish(queue));
    EXPECT(thread_count(), 1);
    OK(clSetEventCallback(event, CL_COMPLETE, note_status, NULL));
    wait_for(1);
    EXPECT(thread_count(), 2);
    OK(clReleaseEvent(event));
    OK(clReleaseKernel(kernel_of("__kernel void f(int i) { printf(\"%d\", i); }", "f")));
    EXPECT(thread_count(), 3);
}

/* Libraries differ in what they say of an event of another context: this prints what it is. */
static void foreign_waits(void)
{
    const size_t global = 16;
    const int one = 1;
    cl_int error = CL_SUCCESS;
    cl_context second = new_context();
    cl_event event = clCreateUserEvent(second, &error);
    OK(error);
    OK(clSetUserEventStatus(event, CL_COMPLETE));
    for (int round = 0; round < 2; round++) {
        launch(0, NULL, NULL); /* so that the next one might go one way */
        OK(clFinish(queue));
        printf("launch %d\n",
               clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 1, &event, NULL));
        printf("fill %d\n", clEnqueueFillBuffer(queue, buffer, &one, sizeof(one), 0, sizeof(one), 1,
                                                &event, NULL));
        printf("read %d\n", clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof(one), read_values,
                                                1, &event, NULL));
        printf("marker %d\n", clEnqueueMarkerWithWaitList(queue, 1, &event, NULL));
        printf("finish %d\n", clFinish(queue));
    }
    OK(clReleaseEvent(event));
    OK(clReleaseContext(second));
}

static const struct scenario scenarios[] = {
    {"states", states, false},
    {"late", late, false},
    {"before_completion", before_completion, false},
    {"many", many, false},
    {"calls_again", calls_again, false},
    {"reads", reads, false},
    {"maps", maps, false},
    {"full_ring", full_ring, false},
    {"user_events", user_events, false},
    {"nested_callbacks", nested_callbacks, false},
    {"failed_events", failed_events, false},
    {"wait_lists", wait_lists, false},
    {"destructors", destructors, false},
    {"used_memory", used_memory, false},
    {"parts", parts, false},
    {"contexts", contexts, false},
    {"programs", programs, false},
    {"wrong_arguments", wrong_arguments, false},
    {"threads", threads, false},
    {"signals", signals, false},
    {"forks", forks, false},
    {"late_failure", late_failure, true},
    {"foreign_waits", foreign_waits, true},
    {"own_threads", own_threads, true},
    {"ends_with_callbacks", ends_with_callbacks, true},
    {"ends_in_callback", ends_in_callback, true},
};

int main(int argc, char **argv)
{
    if (argc < 2) {
        list_scenarios(scenarios, LENGTH(scenarios));
        return 0;
    }
    open_all();
    for (int i = 1; i < argc; i++) {
        noted_count = 0;
        find_scenario(scenarios, LENGTH(scenarios), argv[i])->run();
        say_ok(argv[i]);
    }
    return 0;
}
