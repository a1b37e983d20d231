/*
 * opencl_hard.c - uses of the API that forwarding gets wrong: commands held back by a user event,
 * data that outgrows the memory between client and server, completion seen in unusual ways. Every
 * scenario also holds for native OpenCL: `opencl_hard SCENARIO...`, without one it lists them.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS

#include "scenarios.h"

#include <pthread.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)

static const char *const source =
    "__kernel void put(__global int *to, int value) { to[get_global_id(0)] = value; }\n"
    "__kernel void add(__global int *to, int value) { to[get_global_id(0)] += value; }\n"
    "__kernel void slow(__global int *to, int rounds)\n"
    "{ int x = to[0]; for (int i = 0; i < rounds; i++) { x = x * 1664525 + 1013904223; if (x == "
    "12345) to[1] = i; } to[0] = x; }\n"
    "struct big { int a[80]; };\n"
    "struct __attribute__((aligned(16))) wide { long a; char b; };\n"
    "typedef struct { char c; double d; short s; } mixed;\n"
    "__kernel void layout(char c, __global int *to, double d, struct big b, short s, struct wide "
    "w,\n"
    "    __global int *none, long8 v, mixed m, float3 f, __local int *l, uchar u)\n"
    "{ to[0] = c; to[1] = (int)d; to[2] = b.a[0]; to[3] = b.a[79]; to[4] = s; to[5] = (int)w.a;\n"
    "  to[6] = w.b; to[7] = none == 0; to[8] = (int)v.s7; to[9] = m.c; to[10] = (int)m.d;\n"
    "  to[11] = m.s; to[12] = (int)f.z; l[0] = 5; to[13] = l[0]; to[14] = u; to[15] = (int)v.s0; "
    "}\n";

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_program program;

static cl_command_queue new_queue(cl_command_queue_properties properties)
{
    cl_int error = CL_SUCCESS;
    cl_command_queue made = clCreateCommandQueue(context, device, properties, &error);
    OK(error);
    return made;
}

static void open_all(void)
{
    cl_int error = CL_SUCCESS;
    OK(clGetPlatformIDs(1, &platform, NULL));
    OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    OK(error);
    queue = new_queue(0);
    program = clCreateProgramWithSource(context, 1, (const char **)&source, NULL, &error);
    OK(error);
    OK(clBuildProgram(program, 0, NULL, NULL, NULL, NULL));
}

static cl_mem buffer_of(size_t size)
{
    cl_int error = CL_SUCCESS;
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, size, NULL, &error);
    OK(error);
    return buffer;
}

static cl_event gate(void)
{
    cl_int error = CL_SUCCESS;
    cl_event event = clCreateUserEvent(context, &error);
    OK(error);
    return event;
}

static void launch(cl_command_queue where, const char *name, cl_mem to, int value, size_t global,
                   cl_uint waits, const cl_event *list, cl_event *event)
{
    cl_int error = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program, name, &error);
    OK(error);
    OK(clSetKernelArg(kernel, 0, sizeof(to), &to));
    OK(clSetKernelArg(kernel, 1, sizeof(value), &value));
    OK(clEnqueueNDRangeKernel(where, kernel, 1, NULL, &global, NULL, waits, list, event));
    OK(clReleaseKernel(kernel));
}

static void size_classes(void)
{
    static const size_t sizes[] = {
        1,       63,          64,           65,           4095,     4096,         4097,     8191,
        8192,    8193,        65535,        65536,        65537,    MIB - 1,      MIB,      MIB + 1,
        2 * MIB, 4 * MIB + 1, 16 * MIB - 1, 64 * MIB - 1, 64 * MIB, 64 * MIB + 1, 130 * MIB};
    cl_mem buffer = buffer_of(140 * MIB);
    uint8_t *result = malloc(140 * MIB);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int way = 0; way < 4; way++) {
            size_t size = sizes[i];
            size_t offset = (size_t)way * 3 + i;
            uint8_t *bytes = random_bytes(size, (uint32_t)(i * 7 + way));
            cl_event event;
            memset(result, 0xaa, size);
            result[size] = 0x55;
            OK(clEnqueueWriteBuffer(queue, buffer, way & 1, offset, size, bytes, 0, NULL, NULL));
            OK(clEnqueueReadBuffer(queue, buffer, way >> 1 & 1, offset, size, result, 0, NULL,
                                   &event));
            OK(clWaitForEvents(1, &event));
            OK(clReleaseEvent(event));
            EXPECT(memcmp(bytes, result, size), 0);
            EXPECT(result[size], 0x55);
            free(bytes);
        }
    }
    free(result);
    OK(clReleaseMemObject(buffer));
}

/* Many reads of one queue wait for a user event; other queues and events go on meanwhile. */
static void gated_reads(void)
{
    enum { N = 200 };
    static int values[N];
    cl_mem buffer = buffer_of(64);
    cl_command_queue other = new_queue(0);
    cl_event never = gate();
    cl_event event;
    cl_int status = 0;
    int one = 0;
    launch(other, "put", buffer, 7, 4, 0, NULL, NULL);
    OK(clFinish(other));
    for (int i = 0; i < N; i++) {
        OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, 4, &values[i], 1, &never, NULL));
    }
    OK(clEnqueueReadBuffer(other, buffer, CL_TRUE, 0, 4, &one, 0, NULL, NULL));
    EXPECT(one, 7);
    OK(clEnqueueReadBuffer(other, buffer, CL_FALSE, 0, 4, &one, 0, NULL, &event));
    OK(clFinish(other));
    OK(clWaitForEvents(1, &event));
    OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
    EXPECT(status, CL_COMPLETE);
    OK(clReleaseEvent(event));
    for (int i = 0; i < N; i++) {
        EXPECT(values[i], 0);
    }
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clFinish(queue));
    for (int i = 0; i < N; i++) {
        EXPECT(values[i], 7);
    }
    OK(clReleaseEvent(never));
    OK(clReleaseCommandQueue(other));
    OK(clReleaseMemObject(buffer));
}

/* A read of any size that waits for a user event does not block. */
static void gated_large_read(void)
{
    size_t size = 96 * MIB;
    cl_mem buffer = buffer_of(size);
    uint8_t *bytes = random_bytes(size, 1);
    uint8_t *result = calloc(1, size);
    cl_event never = gate();
    cl_event event;
    OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, size, bytes, 0, NULL, NULL));
    OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, size, result, 1, &never, &event));
    OK(clFlush(queue));
    EXPECT(result[12345], 0);
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clWaitForEvents(1, &event));
    EXPECT(memcmp(bytes, result, size), 0);
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(buffer));
    free(bytes);
    free(result);
}

static void gated_large_write(void)
{
    size_t size = 96 * MIB;
    cl_mem buffer = buffer_of(size);
    uint8_t *bytes = random_bytes(size, 2);
    uint8_t *result = calloc(1, size);
    cl_event never = gate();
    cl_event event;
    OK(clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 0, size, bytes, 1, &never, &event));
    OK(clFlush(queue));
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clWaitForEvents(1, &event));
    OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, size, result, 0, NULL, NULL));
    EXPECT(memcmp(bytes, result, size), 0);
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(buffer));
    free(bytes);
    free(result);
}

static void gated_many_writes(void)
{
    enum { N = 150 };
    cl_mem buffer = buffer_of(N * MIB);
    uint8_t *bytes = random_bytes(N * MIB, 3);
    uint8_t *result = calloc(1, N * MIB);
    cl_event never = gate();
    for (int i = 0; i < N; i++) {
        OK(clEnqueueWriteBuffer(queue, buffer, CL_FALSE, i * MIB, MIB, bytes + i * MIB, i == 0,
                                i == 0 ? &never : NULL, NULL));
    }
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, N * MIB, result, 0, NULL, NULL));
    EXPECT(memcmp(bytes, result, N * MIB), 0);
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(buffer));
    free(bytes);
    free(result);
}

/* More reads under way than there is memory between client and server. */
static void many_reads(void)
{
    enum { N = 150 };
    cl_mem buffer = buffer_of(N * MIB);
    uint8_t *bytes = random_bytes(N * MIB, 4);
    uint8_t *result = calloc(1, N * MIB);
    OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, N * MIB, bytes, 0, NULL, NULL));
    for (int gated = 0; gated < 2; gated++) {
        cl_event never = gate();
        memset(result, 0, N * MIB);
        for (int i = 0; i < N; i++) {
            OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, i * MIB, MIB, result + i * MIB, gated,
                                   gated ? &never : NULL, NULL));
        }
        OK(clSetUserEventStatus(never, CL_COMPLETE));
        OK(clFinish(queue));
        EXPECT(memcmp(bytes, result, N * MIB), 0);
        OK(clReleaseEvent(never));
    }
    OK(clReleaseMemObject(buffer));
    free(bytes);
    free(result);
}

/* Memory that a read fills is the source of a write behind it. */
static void read_then_write_from(void)
{
    enum { N = 1024 };
    static int host[N];
    static int result[N];
    cl_mem from = buffer_of(sizeof(host));
    cl_mem to = buffer_of(sizeof(host));
    for (int round = 1; round < 4; round++) {
        launch(queue, "put", from, 5 * round, N, 0, NULL, NULL);
        OK(clEnqueueReadBuffer(queue, from, CL_FALSE, 0, sizeof(host), host, 0, NULL, NULL));
        OK(clEnqueueWriteBuffer(queue, to, CL_FALSE, 0, sizeof(host), host, 0, NULL, NULL));
        OK(clEnqueueReadBuffer(queue, to, CL_TRUE, 0, sizeof(result), result, 0, NULL, NULL));
        EXPECT(result[0], 5 * round);
        EXPECT(result[N - 1], 5 * round);
        EXPECT(host[N - 1], 5 * round);
    }
    OK(clReleaseMemObject(from));
    OK(clReleaseMemObject(to));
}

/* A blocking rectangle, like any blocking call, shows that what is before it is complete. */
static void rectangle_shows_completion(void)
{
    static int host[1024];
    static int piece[1024];
    const size_t zero[3] = {0, 0, 0};
    const size_t region[3] = {16, 1, 1};
    cl_mem buffer = buffer_of(sizeof(host));
    for (int write = 0; write < 2; write++) {
        memset(host, 0, sizeof(host));
        launch(queue, "put", buffer, 9, 1024, 0, NULL, NULL);
        OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, sizeof(host), host, 0, NULL, NULL));
        if (write) {
            OK(clEnqueueWriteBufferRect(queue, buffer, CL_TRUE, zero, zero, region, 0, 0, 0, 0,
                                        piece, 0, NULL, NULL));
        } else {
            OK(clEnqueueReadBufferRect(queue, buffer, CL_TRUE, zero, zero, region, 0, 0, 0, 0,
                                       piece, 0, NULL, NULL));
        }
        EXPECT(host[1023], 9);
        OK(clFinish(queue));
    }
    OK(clReleaseMemObject(buffer));
}

/* A transfer that fails takes nothing of the data of a read that it shows complete. */
static void failure_shows_completion(void)
{
    static int host[1024];
    static int piece[1024];
    const size_t zero[3] = {0, 0, 0};
    const size_t region[3] = {16, 2, 1};
    cl_mem buffer = buffer_of(sizeof(host));
    launch(queue, "put", buffer, 9, 1024, 0, NULL, NULL);
    OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, sizeof(host), host, 0, NULL, NULL));
    OK(clFlush(queue));
    usleep(200000); /* until the read is complete, in all likelihood */
    EXPECT(clEnqueueReadBufferRect(queue, buffer, CL_TRUE, zero, zero, region, 3, 0, 0, 0, piece, 0,
                                   NULL, NULL),
           CL_INVALID_VALUE);
    OK(clFinish(queue));
    EXPECT(host[1023], 9);
    OK(clReleaseMemObject(buffer));
}

static void gated_rectangle(void)
{
    static int host[1024];
    static int again[1024];
    const size_t zero[3] = {0, 0, 0};
    const size_t region[3] = {64, 4, 2};
    cl_mem buffer = buffer_of(sizeof(host));
    cl_event never = gate();
    cl_event event;
    for (int i = 0; i < 1024; i++) {
        host[i] = i;
    }
    OK(clEnqueueWriteBufferRect(queue, buffer, CL_FALSE, zero, zero, region, 0, 0, 0, 0, host, 1,
                                &never, NULL));
    OK(clEnqueueReadBufferRect(queue, buffer, CL_FALSE, zero, zero, region, 0, 0, 0, 0, again, 0,
                               NULL, &event));
    EXPECT(again[100], 0);
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clWaitForEvents(1, &event));
    EXPECT(memcmp(host, again, 512), 0);
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(buffer));
}

/* Mapped and unmapped again without looking: the buffer stays as it is. */
static void map_unmap_unseen(void)
{
    enum { N = 1024 };
    static int result[N];
    cl_int error = CL_SUCCESS;
    cl_mem buffer = buffer_of(sizeof(result));
    for (int gated = 0; gated < 2; gated++) {
        cl_event never = gate();
        launch(queue, "put", buffer, 3 + gated, N, gated, gated ? &never : NULL, NULL);
        for (int i = 0; i < 20; i++) {
            void *at = clEnqueueMapBuffer(queue, buffer, CL_FALSE,
                                          i % 2 ? CL_MAP_READ : CL_MAP_READ | CL_MAP_WRITE, 0,
                                          sizeof(result), 0, NULL, NULL, &error);
            OK(error);
            OK(clEnqueueUnmapMemObject(queue, buffer, at, 0, NULL, NULL));
        }
        OK(clSetUserEventStatus(never, CL_COMPLETE));
        OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof(result), result, 0, NULL, NULL));
        for (int i = 0; i < N; i++) {
            EXPECT(result[i], 3 + gated);
        }
        OK(clReleaseEvent(never));
    }
    OK(clReleaseMemObject(buffer));
}

/* Events of pieces: in a queue without order a large transfer's event stands for all of it. */
static void out_of_order_large(void)
{
    size_t size = 80 * MIB;
    cl_command_queue wild = new_queue(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    cl_mem buffer = buffer_of(size);
    uint8_t *result = calloc(1, size);
    for (uint32_t round = 0; round < 3; round++) {
        uint8_t *bytes = random_bytes(size, round);
        cl_event written;
        cl_event read;
        OK(clEnqueueWriteBuffer(wild, buffer, CL_FALSE, 0, size, bytes, 0, NULL, &written));
        OK(clEnqueueReadBuffer(wild, buffer, CL_FALSE, 0, size, result, 1, &written, &read));
        OK(clWaitForEvents(1, &read));
        EXPECT(memcmp(bytes, result, size), 0);
        OK(clReleaseEvent(written));
        OK(clReleaseEvent(read));
        free(bytes);
    }
    free(result);
    OK(clReleaseMemObject(buffer));
    OK(clReleaseCommandQueue(wild));
}

static void out_of_order_finish(void)
{
    enum { N = 300 };
    static int values[N];
    cl_command_queue wild = new_queue(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    cl_mem buffer = buffer_of(N * 4);
    for (int i = 0; i < N; i++) {
        cl_event event;
        launch(wild, "put", buffer, i, 1, 0, NULL, &event);
        OK(clWaitForEvents(1, &event));
        OK(clReleaseEvent(event));
        OK(clEnqueueReadBuffer(wild, buffer, CL_FALSE, 0, 4, &values[i], 0, NULL, &event));
        OK(clEnqueueBarrierWithWaitList(wild, 1, &event, NULL));
        OK(clReleaseEvent(event));
        OK(clFinish(wild));
        EXPECT(values[i], i);
    }
    OK(clReleaseMemObject(buffer));
    OK(clReleaseCommandQueue(wild));
}

static void layout(void)
{
    struct big {
        int a[80];
    } big;
    struct wide {
        long a;
        char b;
        char pad[7];
    } wide = {-17, 4, {0}};
    struct {
        char c;
        double d;
        short s;
    } mixed = {3, 99.0, -7};
    cl_int error = CL_SUCCESS;
    int out[16];
    char c = -5;
    double d = 1234.0;
    short s = -300;
    cl_long8 v = {{1, 2, 3, 4, 5, 6, 7, 8}};
    cl_float3 f = {{1, 2, 3}};
    cl_uchar u = 200;
    cl_mem buffer = buffer_of(sizeof(out));
    size_t one = 1;
    cl_kernel kernel = clCreateKernel(program, "layout", &error);
    OK(error);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 80; i++) {
            big.a[i] = i + 11 + round;
        }
        v.s[7] = 8 + round;
        OK(clSetKernelArg(kernel, 0, sizeof(c), &c));
        OK(clSetKernelArg(kernel, 1, sizeof(buffer), &buffer));
        OK(clSetKernelArg(kernel, 2, sizeof(d), &d));
        OK(clSetKernelArg(kernel, 3, sizeof(big), &big));
        OK(clSetKernelArg(kernel, 4, sizeof(s), &s));
        OK(clSetKernelArg(kernel, 5, sizeof(wide), &wide));
        cl_mem none = NULL;
        OK(clSetKernelArg(kernel, 6, sizeof(cl_mem), round % 2 ? (void *)&none : NULL));
        OK(clSetKernelArg(kernel, 7, sizeof(v), &v));
        OK(clSetKernelArg(kernel, 8, sizeof(mixed), &mixed));
        OK(clSetKernelArg(kernel, 9, sizeof(f), &f));
        OK(clSetKernelArg(kernel, 10, 64 + 16 * (size_t)(round / 2), NULL));
        OK(clSetKernelArg(kernel, 11, sizeof(u), &u));
        OK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL));
        OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL));
        const int wanted[16] = {-5,        1234, 11 + round, 90 + round, -300, -17, 4,   1,
                                8 + round, 3,    99,         -7,         3,    5,   200, 1};
        for (int i = 0; i < 16; i++) {
            EXPECT(out[i], wanted[i]);
        }
    }
    OK(clReleaseKernel(kernel));
    OK(clReleaseMemObject(buffer));
}

static void sub_buffers(void)
{
    enum { N = 4096 };
    static int host[N];
    cl_int error = CL_SUCCESS;
    cl_uint align_bits = 0;
    cl_mem buffer = buffer_of(sizeof(host));
    OK(clGetDeviceInfo(device, CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof(align_bits), &align_bits,
                       NULL));
    size_t step = align_bits / 8;
    cl_buffer_region first = {step, 3 * step + 4};
    cl_buffer_region second = {2 * step, 5 * step + 12};
    cl_buffer_region odd = {step + 1, 16};
    cl_buffer_region out = {sizeof(host) - 4, 16};
    cl_mem a =
        clCreateSubBuffer(buffer, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &first, &error);
    OK(error);
    cl_mem b =
        clCreateSubBuffer(buffer, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &second, &error);
    OK(error);
    EXPECT(clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &odd, &error) == NULL, 1);
    EXPECT(error, CL_MISALIGNED_SUB_BUFFER_OFFSET);
    EXPECT(clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &out, &error) == NULL, 1);
    EXPECT(error, CL_INVALID_VALUE);
    EXPECT(clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, NULL, &error) == NULL, 1);
    EXPECT(error, CL_INVALID_VALUE);
    EXPECT(clCreateSubBuffer(a, 0, CL_BUFFER_CREATE_TYPE_REGION, &first, &error) == NULL, 1);
    EXPECT(error, CL_INVALID_MEM_OBJECT);
    memset(host, 0, sizeof(host));
    OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof(host), host, 0, NULL, NULL));
    for (int i = 0; i < 3; i++) {
        launch(queue, "add", a, 1, first.size / 4, 0, NULL, NULL);
        launch(queue, "add", b, 10, second.size / 4, 0, NULL, NULL);
    }
    OK(clReleaseMemObject(a));
    OK(clReleaseMemObject(b));
    OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof(host), host, 0, NULL, NULL));
    for (size_t i = 0; i < N; i++) {
        size_t at = i * 4;
        int wanted = (at >= first.origin && at < first.origin + first.size ? 3 : 0) +
                     (at >= second.origin && at < second.origin + second.size ? 30 : 0);
        EXPECT(host[i], wanted);
    }
    OK(clReleaseMemObject(buffer));
}

static void profiling(void)
{
    cl_command_queue timed = new_queue(CL_QUEUE_PROFILING_ENABLE);
    cl_mem buffer = buffer_of(64);
    cl_event event;
    cl_event plain;
    cl_event never = gate();
    cl_ulong times[4];
    for (int round = 0; round < 3; round++) {
        launch(timed, "put", buffer, 1, 4, 0, NULL, &event);
        OK(clWaitForEvents(1, &event));
        for (int i = 0; i < 4; i++) {
            OK(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_QUEUED + i, 8, &times[i], NULL));
        }
        EXPECT(times[0] <= times[1] && times[1] <= times[2] && times[2] <= times[3], 1);
        EXPECT(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, 4, &times[0], NULL),
               CL_INVALID_VALUE);
        EXPECT(clGetEventProfilingInfo(event, 0x1111, 8, &times[0], NULL), CL_INVALID_VALUE);
        OK(clReleaseEvent(event));
    }
    launch(queue, "put", buffer, 1, 4, 0, NULL, &plain);
    OK(clWaitForEvents(1, &plain));
    EXPECT(clGetEventProfilingInfo(plain, CL_PROFILING_COMMAND_END, 8, &times[0], NULL),
           CL_PROFILING_INFO_NOT_AVAILABLE);
    launch(timed, "put", buffer, 1, 4, 1, &never, &event);
    EXPECT(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, 8, &times[0], NULL),
           CL_PROFILING_INFO_NOT_AVAILABLE);
    EXPECT(clGetEventProfilingInfo(never, CL_PROFILING_COMMAND_END, 8, &times[0], NULL),
           CL_PROFILING_INFO_NOT_AVAILABLE);
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clWaitForEvents(1, &event));
    OK(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, 8, &times[0], NULL));
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(plain));
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(buffer));
    OK(clReleaseCommandQueue(timed));
}

/* A user event that fails takes with it what waits for it. */
static void failed_gate(void)
{
    int value = 77;
    cl_int status = 0;
    cl_mem buffer = buffer_of(64);
    cl_event never = gate();
    cl_event event = NULL;
    OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, 4, &value, 0, NULL, NULL));
    OK(clFinish(queue));
    value = 77;
    OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, 4, &value, 1, &never, &event));
    OK(clSetUserEventStatus(never, -5));
    EXPECT(clSetUserEventStatus(never, CL_COMPLETE), CL_INVALID_OPERATION);
    EXPECT(clWaitForEvents(1, &event), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
    EXPECT(status < 0, 1);
    EXPECT(value, 77);
    EXPECT(clWaitForEvents(1, &event), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(never));
    cl_event later = gate();
    EXPECT(clSetUserEventStatus(later, 3), CL_INVALID_VALUE);
    OK(clSetUserEventStatus(later, CL_COMPLETE));
    OK(clReleaseEvent(later));
    OK(clReleaseMemObject(buffer));
}

static void null_outs(void)
{
    cl_uint count = 0;
    cl_int error = CL_SUCCESS;
    size_t size = 0;
    char text[256];
    cl_mem buffer = buffer_of(64);
    EXPECT(clGetPlatformIDs(0, NULL, NULL), CL_INVALID_VALUE);
    EXPECT(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, NULL), CL_INVALID_VALUE);
    OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &count));
    EXPECT(count >= 1, 1);
    EXPECT(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ACCELERATOR, 0, NULL, &count),
           CL_DEVICE_NOT_FOUND);
    OK(clGetDeviceInfo(device, CL_DEVICE_NAME, 0, NULL, &size));
    OK(clGetDeviceInfo(device, CL_DEVICE_NAME, 0, NULL, NULL));
    OK(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof(text), text, NULL));
    EXPECT(strlen(text) + 1, size);
    OK(clGetPlatformInfo(platform, CL_PLATFORM_NAME, 0, NULL, &size));
    cl_context made = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
    EXPECT(made != NULL, 1);
    OK(clReleaseContext(made));
    EXPECT(clCreateContext(NULL, 0, &device, NULL, NULL, NULL) == NULL, 1);
    cl_kernel kernel = clCreateKernel(program, "put", NULL);
    EXPECT(clCreateKernel(program, NULL, &error) == NULL, 1);
    EXPECT(error, CL_INVALID_VALUE);
    OK(clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, 0, NULL, &size));
    EXPECT(size, 4);
    OK(clGetProgramInfo(program, CL_PROGRAM_SOURCE, 0, NULL, &size));
    EXPECT(size, strlen(source) + 1);
    OK(clRetainProgram(program));
    cl_uint more = 0;
    OK(clGetProgramInfo(program, CL_PROGRAM_REFERENCE_COUNT, sizeof(count), &count, NULL));
    OK(clReleaseProgram(program));
    OK(clGetProgramInfo(program, CL_PROGRAM_REFERENCE_COUNT, sizeof(more), &more, NULL));
    EXPECT(count, more + 1);
    OK(clGetKernelWorkGroupInfo(kernel, NULL, CL_KERNEL_WORK_GROUP_SIZE, 0, NULL, &size));
    EXPECT(size, sizeof(size_t));
    OK(clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_WORK_GROUP_SIZE, 8, &size, NULL));
    EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, NULL, 0, NULL, NULL),
           CL_INVALID_VALUE);
    EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, text, 1, NULL, NULL),
           CL_INVALID_EVENT_WAIT_LIST);
    cl_event event = gate();
    EXPECT(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, text, 0, &event, NULL),
           CL_INVALID_EVENT_WAIT_LIST);
    OK(clSetUserEventStatus(event, CL_COMPLETE));
    OK(clReleaseEvent(event));
    OK(clGetMemObjectInfo(buffer, CL_MEM_SIZE, 0, NULL, NULL));
    EXPECT(clGetMemObjectInfo(buffer, CL_MEM_SIZE, 2, text, NULL), CL_INVALID_VALUE);
    EXPECT(clCreateBuffer(context, CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, 64, NULL, &error) == NULL,
           1);
    EXPECT(error, CL_INVALID_VALUE);
    OK(clReleaseKernel(kernel));
    OK(clReleaseMemObject(buffer));
}

static void empty_arrays(void)
{
    cl_mem buffer = buffer_of(64);
    cl_mem none = NULL;
    cl_event event = gate();
    EXPECT(clEnqueueMigrateMemObjects(queue, 0, &buffer, 0, 0, NULL, NULL), CL_INVALID_VALUE);
    EXPECT(clEnqueueMigrateMemObjects(queue, 1, NULL, 0, 0, NULL, NULL), CL_INVALID_VALUE);
    EXPECT(clEnqueueMigrateMemObjects(queue, 1, &none, 0, 0, NULL, NULL), CL_INVALID_MEM_OBJECT);
    EXPECT(clWaitForEvents(0, &event), CL_INVALID_VALUE);
    EXPECT(clWaitForEvents(1, NULL), CL_INVALID_VALUE);
    OK(clSetUserEventStatus(event, CL_COMPLETE));
    OK(clReleaseEvent(event));
    OK(clReleaseMemObject(buffer));
}

static cl_mem shared;

struct user {
    pthread_t id;
    cl_event event;
    int number;
};

/* Each kind of call that blocks; each is back with what it should bring. */
static void block(cl_command_queue where, cl_mem buffer, int kind, cl_uint waits,
                  const cl_event *list)
{
    const size_t zero[3] = {0, 0, 0};
    const size_t region[3] = {64, 1, 1};
    int values[16] = {0};
    cl_int error = CL_SUCCESS;
    cl_int status = 1;
    cl_event event = NULL;
    int *mapped;
    switch (kind) {
    case 0:
        OK(clFinish(where));
        return;
    case 1:
        OK(clEnqueueMarkerWithWaitList(where, waits, list, &event));
        OK(clWaitForEvents(1, &event));
        break;
    case 2:
        OK(clEnqueueReadBuffer(where, buffer, CL_TRUE, 0, 64, values, waits, list, &event));
        EXPECT(values[15], 7);
        break;
    case 3:
        OK(clEnqueueReadBufferRect(where, buffer, CL_TRUE, zero, zero, region, 0, 0, 0, 0, values,
                                   waits, list, &event));
        EXPECT(values[15], 7);
        break;
    case 4:
        values[0] = 7;
        OK(clEnqueueWriteBuffer(where, buffer, CL_TRUE, 64, 4, values, waits, list, &event));
        break;
    default:
        mapped = clEnqueueMapBuffer(where, buffer, CL_TRUE, CL_MAP_READ, 0, 64, waits, list, &event,
                                    &error);
        OK(error);
        EXPECT(mapped[15], 7);
        OK(clEnqueueUnmapMemObject(where, buffer, mapped, 0, NULL, NULL));
        break;
    }
    OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
    EXPECT(status, CL_COMPLETE);
    OK(clReleaseEvent(event));
}

enum { KINDS = 6 };
static cl_command_queue held;

static void *blocks(void *data)
{
    struct user *user = data;
    /* One map: of several at one address PoCL ends whichever it finds. */
    int kind = user->number == 0 ? KINDS - 1 : user->number % (KINDS - 1);
    block(held, shared, kind, 1, &user->event);
    return NULL;
}

/* Hundreds of threads block, in every kind of call, until another one that blocks in all of them,
 * too, lets them go. */
static void many_blocked(void)
{
    enum { N = 300 };
    static struct user users[N];
    cl_mem other = buffer_of(4096);
    cl_event never = gate();
    held = new_queue(0);
    shared = buffer_of(4096);
    launch(queue, "put", shared, 7, 1024, 0, NULL, NULL);
    launch(queue, "put", other, 7, 1024, 0, NULL, NULL);
    OK(clFinish(queue));
    OK(clEnqueueMarkerWithWaitList(held, 1, &never, NULL));
    for (int i = 0; i < N; i++) {
        users[i].number = i;
        users[i].event = never;
        EXPECT(pthread_create(&users[i].id, NULL, blocks, &users[i]), 0);
    }
    usleep(500000);
    for (int kind = 0; kind < KINDS; kind++) {
        block(queue, other, kind, 0, NULL);
    }
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    for (int i = 0; i < N; i++) {
        EXPECT(pthread_join(users[i].id, NULL), 0);
    }
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(shared));
    OK(clReleaseMemObject(other));
    OK(clReleaseCommandQueue(held));
}

static void *works(void *data)
{
    struct user *user = data;
    cl_command_queue own = new_queue(0);
    cl_mem buffer = buffer_of(4096);
    cl_int error;
    int value;
    cl_kernel kernel = clCreateKernel(program, "add", &error);
    int one = user->number + 1;
    int total = 0;
    size_t global = 64;
    launch(own, "put", buffer, 0, 64, 0, NULL, NULL);
    OK(clSetKernelArg(kernel, 0, sizeof(buffer), &buffer));
    for (int i = 0; i < 1000; i++) {
        cl_event event;
        int by = one * (i % 7);
        OK(clSetKernelArg(kernel, 1, sizeof(by), &by));
        OK(clEnqueueNDRangeKernel(own, kernel, 1, NULL, &global, NULL, 0, NULL, &event));
        total += by;
        if (i % 5 == 0) {
            OK(clWaitForEvents(1, &event));
        }
        if (i % 50 == 0) {
            OK(clEnqueueReadBuffer(own, buffer, i % 100 == 0, 252, 4, &value, 0, NULL, NULL));
            OK(clFinish(own));
            EXPECT(value, total);
        }
        OK(clReleaseEvent(event));
    }
    OK(clEnqueueReadBuffer(own, buffer, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
    EXPECT(value, total);
    OK(clReleaseKernel(kernel));
    OK(clReleaseMemObject(buffer));
    OK(clReleaseCommandQueue(own));
    return NULL;
}

static void threads(void)
{
    static struct user users[8];
    for (int i = 0; i < 8; i++) {
        users[i].number = i;
        EXPECT(pthread_create(&users[i].id, NULL, works, &users[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        EXPECT(pthread_join(users[i].id, NULL), 0);
    }
}

enum { LARGE = 40 };

static void *copies_large(void *data)
{
    struct user *user = data;
    cl_command_queue own = new_queue(0);
    cl_mem buffer = buffer_of(LARGE * MIB);
    uint8_t *bytes = random_bytes(LARGE * MIB, (uint32_t)user->number);
    uint8_t *result = malloc(LARGE * MIB);
    for (int i = 0; i < 3; i++) {
        memset(result, 0, LARGE * MIB);
        OK(clEnqueueWriteBuffer(own, buffer, i != 1, 0, LARGE * MIB, bytes, 0, NULL, NULL));
        OK(clEnqueueReadBuffer(own, buffer, i != 2, 0, LARGE * MIB, result, 0, NULL, NULL));
        OK(clFinish(own));
        EXPECT(memcmp(bytes, result, LARGE * MIB), 0);
    }
    free(bytes);
    free(result);
    OK(clReleaseMemObject(buffer));
    OK(clReleaseCommandQueue(own));
    return NULL;
}

/* Together they want more memory between client and server than there is. */
static void threads_large(void)
{
    static struct user users[8];
    for (int i = 0; i < 8; i++) {
        users[i].number = i;
        EXPECT(pthread_create(&users[i].id, NULL, copies_large, &users[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        EXPECT(pthread_join(users[i].id, NULL), 0);
    }
}

/* Thread A enqueues one way, tells B; B enqueues after it in the same queue. */
static int turn;
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;

static void *alternates(void *data)
{
    struct user *user = data;
    cl_int error;
    size_t global = 1;
    cl_kernel slow = clCreateKernel(program, "slow", &error);
    OK(clSetKernelArg(slow, 0, sizeof(shared), &shared));
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&turn_lock);
        while (turn % 2 != user->number) {
            pthread_cond_wait(&turn_changed, &turn_lock);
        }
        pthread_mutex_unlock(&turn_lock);
        int rounds = user->number + 1;
        OK(clSetKernelArg(slow, 1, sizeof(rounds), &rounds));
        OK(clEnqueueNDRangeKernel(queue, slow, 1, NULL, &global, NULL, 0, NULL, NULL));
        static int next[2][500];
        next[user->number][i] = i;
        OK(clEnqueueWriteBuffer(queue, shared, CL_FALSE, 8 + 4 * (size_t)user->number, 4,
                                &next[user->number][i], 0, NULL, NULL));
        pthread_mutex_lock(&turn_lock);
        turn++;
        pthread_cond_broadcast(&turn_changed);
        pthread_mutex_unlock(&turn_lock);
    }
    OK(clReleaseKernel(slow));
    return NULL;
}

static void thread_order(void)
{
    static struct user users[2];
    int out[4] = {1, 0, 0, 0};
    uint32_t x = 1;
    shared = buffer_of(64);
    OK(clEnqueueWriteBuffer(queue, shared, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        users[i].number = i;
        EXPECT(pthread_create(&users[i].id, NULL, alternates, &users[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        EXPECT(pthread_join(users[i].id, NULL), 0);
    }
    for (int i = 0; i < 1500; i++) {
        x = x * 1664525u + 1013904223u;
    }
    OK(clEnqueueReadBuffer(queue, shared, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL));
    EXPECT((uint32_t)out[0], x);
    EXPECT(out[2], 499);
    EXPECT(out[3], 499);
    OK(clReleaseMemObject(shared));
}

static void two_contexts(void)
{
    cl_int error;
    cl_context second = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    cl_command_queue other = clCreateCommandQueue(second, device, 0, &error);
    cl_mem foreign = clCreateBuffer(second, 0, 64, NULL, &error);
    cl_mem own = buffer_of(64);
    int value = 3;
    cl_kernel kernel = clCreateKernel(program, "put", &error);
    size_t global = 1;
    OK(error);
    EXPECT(clEnqueueReadBuffer(queue, foreign, CL_TRUE, 0, 4, &value, 0, NULL, NULL),
           CL_INVALID_CONTEXT);
    EXPECT(clEnqueueCopyBuffer(queue, foreign, own, 0, 0, 4, 0, NULL, NULL), CL_INVALID_CONTEXT);
    OK(clSetKernelArg(kernel, 0, sizeof(own), &own));
    OK(clSetKernelArg(kernel, 1, sizeof(value), &value));
    OK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL));
    EXPECT(clEnqueueNDRangeKernel(other, kernel, 1, NULL, &global, NULL, 0, NULL, NULL),
           CL_INVALID_CONTEXT);
    OK(clEnqueueReadBuffer(queue, own, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
    EXPECT(value, 3);
    cl_event a = gate();
    cl_event b = clCreateUserEvent(second, &error);
    cl_event both[2] = {a, b};
    EXPECT(clWaitForEvents(2, both), CL_INVALID_CONTEXT);
    OK(clSetUserEventStatus(a, 0));
    OK(clSetUserEventStatus(b, 0));
    OK(clReleaseEvent(a));
    OK(clReleaseEvent(b));
    OK(clReleaseKernel(kernel));
    OK(clReleaseMemObject(foreign));
    OK(clReleaseMemObject(own));
    OK(clReleaseCommandQueue(other));
    OK(clReleaseContext(second));
}

/* The queue goes before its event; a read's data comes with the event. */
static void queue_released_first(void)
{
    int value = 0;
    cl_mem buffer = buffer_of(64);
    cl_command_queue own = new_queue(0);
    cl_event event;
    launch(own, "put", buffer, 21, 4, 0, NULL, NULL);
    OK(clEnqueueReadBuffer(own, buffer, CL_FALSE, 0, 4, &value, 0, NULL, &event));
    OK(clReleaseCommandQueue(own));
    OK(clReleaseMemObject(buffer));
    OK(clWaitForEvents(1, &event));
    EXPECT(value, 21);
    OK(clReleaseEvent(event));
}

static void gated_queue_released(void)
{
    int value = 0;
    cl_mem buffer = buffer_of(64);
    cl_command_queue own = new_queue(0);
    cl_event event;
    cl_event never = gate();
    launch(queue, "put", buffer, 22, 4, 0, NULL, NULL);
    OK(clFinish(queue));
    OK(clEnqueueReadBuffer(own, buffer, CL_FALSE, 0, 4, &value, 1, &never, &event));
    OK(clReleaseCommandQueue(own));
    OK(clReleaseMemObject(buffer));
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clWaitForEvents(1, &event));
    EXPECT(value, 22);
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(never));
}

/* Nobody can ask a queue that is gone, and no event says it: the data comes all the same. */
static void gated_read_of_no_queue(void)
{
    static int value;
    cl_mem buffer = buffer_of(64);
    cl_command_queue own = new_queue(0);
    cl_event never = gate();
    launch(queue, "put", buffer, 23, 4, 0, NULL, NULL);
    OK(clFinish(queue));
    OK(clEnqueueReadBuffer(own, buffer, CL_FALSE, 0, 4, &value, 1, &never, NULL));
    OK(clReleaseCommandQueue(own));
    EXPECT(__atomic_load_n(&value, __ATOMIC_ACQUIRE), 0);
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    for (int i = 0; i < 20000 && __atomic_load_n(&value, __ATOMIC_ACQUIRE) == 0; i++) {
        usleep(1000);
    }
    EXPECT(value, 23);
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(buffer));
}

/* Forwarded alone: where client and server share no memory, the server keeps what reads bring until
 * they may be complete. That has a limit, which reads that are merely slow never meet. */
static void too_many_gated_reads(void)
{
    enum { FIT = 4 };
    const size_t size = 256 * MIB;
    cl_mem buffer = buffer_of(size);
    uint8_t *bytes = malloc(size);
    cl_event never = gate();
    cl_event event;
    for (int i = 0; i < FIT; i++) {
        OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, size, bytes, 1, &never, NULL));
    }
    EXPECT(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, size, bytes, 1, &never, NULL),
           CL_OUT_OF_HOST_MEMORY);
    OK(clSetUserEventStatus(never, -1)); /* they bring nothing, which takes no memory */
    OK(clFinish(queue));
    OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, size, bytes, 0, NULL, &event));
    OK(clWaitForEvents(1, &event));
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(buffer));
    free(bytes);
}

static void host_pointer(void)
{
    enum { N = 1024 };
    cl_int error;
    int *host = aligned_alloc(4096, N * 4);
    for (int i = 0; i < N; i++) {
        host[i] = i;
    }
    cl_mem buffer = clCreateBuffer(context, CL_MEM_USE_HOST_PTR, N * 4, host, &error);
    OK(error);
    for (int round = 1; round < 4; round++) {
        launch(queue, "add", buffer, 1000, N, 0, NULL, NULL);
        int *at = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 16, 64, 0,
                                     NULL, NULL, &error);
        OK(error);
        EXPECT(at == host + 4, 1);
        EXPECT(at[0], 4 + 1000 * round);
        OK(clEnqueueUnmapMemObject(queue, buffer, at, 0, NULL, NULL));
    }
    int *all =
        clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_WRITE, 0, N * 4, 0, NULL, NULL, &error);
    all[7] = -1;
    OK(clEnqueueUnmapMemObject(queue, buffer, all, 0, NULL, NULL));
    launch(queue, "add", buffer, 1, N, 0, NULL, NULL);
    int got[N];
    OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof(got), got, 0, NULL, NULL));
    EXPECT(got[7], 0);
    EXPECT(got[8], 8 + 3001);
    OK(clReleaseMemObject(buffer));
    free(host);
}

static int *map_ints(cl_mem buffer, size_t offset, size_t count)
{
    cl_int error = CL_SUCCESS;
    int *at = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, offset * 4,
                                 count * 4, 0, NULL, NULL, &error);
    OK(error);
    return at;
}

/* A child of a fork, and its child: what was mapped is as it was at the fork, and their own. */
static void look_in_children(int *whole, int *part, int *small, int from_parent)
{
    char byte;
    int status = 0;
    EXPECT(read(from_parent, &byte, 1), 1); /* the parent has written to it since */
    EXPECT(whole[0], 1);
    EXPECT(whole[2000], 2);
    EXPECT(part[7], 3);
    EXPECT(small[0], 4);
    whole[0] = 10;
    small[0] = 40;
    pid_t grandchild = fork();
    if (grandchild == 0) {
        EXPECT(whole[0], 10);
        EXPECT(part[7], 3);
        EXPECT(small[0], 40);
        whole[0] = 100;
        _exit(0);
    }
    EXPECT(waitpid(grandchild, &status, 0), grandchild);
    EXPECT(status, 0);
    EXPECT(whole[0], 10);
    _exit(0);
}

static void fork_sees_maps(void)
{
    enum { N = 4096 };
    cl_int error = CL_SUCCESS;
    cl_buffer_region region = {N, 1024};
    int pipe_ends[2];
    int status = 0;
    cl_mem whole_buffer = buffer_of(N * 4);
    cl_mem other_buffer = buffer_of(N * 4);
    cl_mem small_buffer = buffer_of(64);
    cl_mem part_buffer = clCreateSubBuffer(other_buffer, CL_MEM_READ_WRITE,
                                           CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
    OK(error);
    int *whole = map_ints(whole_buffer, 0, N);
    int *upper = map_ints(whole_buffer, N / 2, N / 2);
    int *part = map_ints(part_buffer, 0, 256);
    int *small = map_ints(small_buffer, 0, 16);
    whole[0] = 1;
    whole[2000] = 2;
    part[7] = 3;
    small[0] = 4;
    EXPECT(pipe(pipe_ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        look_in_children(whole, part, small, pipe_ends[0]);
    }
    EXPECT(child > 0, 1);
    whole[0] = 5;
    whole[2000] = 6;
    part[7] = 7;
    small[0] = 8;
    EXPECT(write(pipe_ends[1], "", 1), 1);
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
    EXPECT(whole[0], 5);
    EXPECT(part[7], 7);
    OK(clEnqueueUnmapMemObject(queue, whole_buffer, upper, 0, NULL, NULL));
    OK(clEnqueueUnmapMemObject(queue, whole_buffer, whole, 0, NULL, NULL));
    OK(clEnqueueUnmapMemObject(queue, part_buffer, part, 0, NULL, NULL));
    OK(clEnqueueUnmapMemObject(queue, small_buffer, small, 0, NULL, NULL));
    OK(clReleaseMemObject(part_buffer));
    int got[2] = {0, 0};
    OK(clEnqueueReadBuffer(queue, whole_buffer, CL_TRUE, 0, 4, &got[0], 0, NULL, NULL));
    OK(clEnqueueReadBuffer(queue, other_buffer, CL_TRUE, N + 28, 4, &got[1], 0, NULL, NULL));
    EXPECT(got[0], 5);
    EXPECT(got[1], 7);
    OK(clReleaseMemObject(whole_buffer));
    OK(clReleaseMemObject(other_buffer));
    OK(clReleaseMemObject(small_buffer));
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

static void long_kernel_async_read(void)
{
    int value[2] = {0, 0};
    int start[2] = {1, 0};
    uint32_t x = 1;
    cl_mem buffer = buffer_of(64);
    cl_event event;
    cl_int status;
    for (int round = 0; round < 2; round++) {
        x = 1;
        value[0] = -1;
        OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, 8, start, 0, NULL, NULL));
        launch(queue, "slow", buffer, 200000000, 1, 0, NULL, NULL);
        OK(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, 4, value, 0, NULL, &event));
        EXPECT(value[0], -1);
        OK(clFlush(queue));
        OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
        EXPECT(status > CL_COMPLETE, 1);
        OK(round == 0 ? clFinish(queue) : clWaitForEvents(1, &event));
        for (int i = 0; i < 200000000; i++) {
            x = x * 1664525u + 1013904223u;
        }
        EXPECT((uint32_t)value[0], x);
        OK(clReleaseEvent(event));
    }
    OK(clReleaseMemObject(buffer));
}

static void events_many(void)
{
    enum { N = 20000 };
    static cl_event events[N];
    cl_mem buffer = buffer_of(64);
    cl_int error;
    size_t global = 1;
    int one = 1;
    int value = -1;
    cl_kernel kernel = clCreateKernel(program, "add", &error);
    launch(queue, "put", buffer, 0, 1, 0, NULL, NULL);
    OK(clSetKernelArg(kernel, 0, sizeof(buffer), &buffer));
    OK(clSetKernelArg(kernel, 1, sizeof(one), &one));
    for (int i = 0; i < N; i++) {
        OK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, i > 0,
                                  i > 0 ? &events[i - 1] : NULL, &events[i]));
    }
    OK(clWaitForEvents(N, events));
    for (int i = 0; i < N; i++) {
        OK(clReleaseEvent(events[i]));
    }
    OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4, &value, 0, NULL, NULL));
    EXPECT(value, N);
    OK(clReleaseKernel(kernel));
    OK(clReleaseMemObject(buffer));
}

int main(int argc, char **argv)
{
#define S(name) {#name, name, false}
    static const struct scenario scenarios[] = {
        S(size_classes),
        S(gated_reads),
        S(gated_large_read),
        S(gated_large_write),
        S(gated_many_writes),
        S(many_reads),
        S(read_then_write_from),
        S(rectangle_shows_completion),
        S(failure_shows_completion),
        S(gated_rectangle),
        S(map_unmap_unseen),
        S(out_of_order_large),
        S(out_of_order_finish),
        S(layout),
        S(sub_buffers),
        S(profiling),
        S(failed_gate),
        S(null_outs),
        S(empty_arrays),
        S(many_blocked),
        S(threads),
        S(threads_large),
        S(thread_order),
        S(two_contexts),
        S(queue_released_first),
        S(gated_queue_released),
        S(gated_read_of_no_queue),
        {"too_many_gated_reads", too_many_gated_reads, true},
        S(host_pointer),
        S(fork_sees_maps),
        S(long_kernel_async_read),
        S(events_many),
    };
    if (argc == 1) {
        list_scenarios(scenarios, LENGTH(scenarios));
        return 0;
    }
    open_all();
    for (int i = 1; i < argc; i++) {
        find_scenario(scenarios, LENGTH(scenarios), argv[i])->run();
        say_ok(argv[i]);
    }
    OK(clReleaseProgram(program));
    OK(clReleaseCommandQueue(queue));
    OK(clReleaseContext(context));
    return 0;
}
