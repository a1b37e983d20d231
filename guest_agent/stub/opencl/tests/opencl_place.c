/*
 * opencl_place.c - memory that client and server both see: maps of buffers and images, pinned
 * memory, large transfers that hold their place in the queue, writes from what a read will have
 * brought. Every scenario also holds for native OpenCL: `opencl_place SCENARIO...`, without one it
 * lists them.
 */
#define CL_TARGET_OPENCL_VERSION 120
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS

#include "scenarios.h"

#include <pthread.h>

#define MIB ((size_t)1 << 20)

static const char *const source =
    "__kernel void put(__global int *to, int value) { to[get_global_id(0)] = value; }\n"
    "__kernel void add(__global int *to, int value) { to[get_global_id(0)] += value; }\n"
    "__kernel void crawl(__global int *to, int rounds)\n"
    "{ uint x = to[0]; for (int i = 0; i < rounds; i++) x = x * 1664525u + 1013904223u;\n"
    "  to[0] = (int)x | 1; }\n"
    "__kernel void turn(__read_only image2d_t from, __write_only image2d_t to)\n"
    "{ const sampler_t how = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | "
    "CLK_FILTER_NEAREST;\n"
    "  int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
    "  write_imageui(to, at, read_imageui(from, how, at) + 7); }\n";

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
    cl_platform_id platform;
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

static cl_mem buffer_of(size_t size, cl_mem_flags flags, void *data)
{
    cl_int error = CL_SUCCESS;
    cl_mem buffer = clCreateBuffer(context, flags, size, data, &error);
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
                   cl_uint waits, const cl_event *list)
{
    cl_int error = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program, name, &error);
    OK(error);
    OK(clSetKernelArg(kernel, 0, sizeof(to), &to));
    OK(clSetKernelArg(kernel, 1, sizeof(value), &value));
    OK(clEnqueueNDRangeKernel(where, kernel, 1, NULL, &global, NULL, waits, list, NULL));
    OK(clReleaseKernel(kernel));
}

static void *map(cl_mem buffer, cl_map_flags flags, size_t offset, size_t size)
{
    cl_int error = CL_SUCCESS;
    void *address =
        clEnqueueMapBuffer(queue, buffer, CL_TRUE, flags, offset, size, 0, NULL, NULL, &error);
    OK(error);
    return address;
}

static void unmap(cl_mem buffer, void *address)
{
    OK(clEnqueueUnmapMemObject(queue, buffer, address, 0, NULL, NULL));
}

/* What the host writes the kernel sees, and the other way round; in parts, too. */
static void maps(void)
{
    static const size_t sizes[] = {4, 1000, 4096, 5000, 100000, 3 * MIB};
    static const cl_mem_flags kinds[] = {0, CL_MEM_ALLOC_HOST_PTR};
    for (size_t k = 0; k < 2 * sizeof(sizes) / sizeof(sizes[0]); k++) {
        size_t count = sizes[k / 2] / 4;
        cl_mem buffer = buffer_of(count * 4, CL_MEM_READ_WRITE | kinds[k % 2], NULL);
        int *whole = map(buffer, CL_MAP_WRITE_INVALIDATE_REGION, 0, count * 4);
        EXPECT((uintptr_t)whole % 64, 0);
        for (size_t i = 0; i < count; i++) {
            whole[i] = (int)i;
        }
        unmap(buffer, whole);
        launch(queue, "add", buffer, 5, count, 0, NULL);
        size_t at = count / 3;
        int *part = map(buffer, CL_MAP_READ | CL_MAP_WRITE, at * 4, (count - at) * 4);
        for (size_t i = at; i < count; i++) {
            EXPECT(part[i - at], i + 5);
        }
        part[0] = -1;
        unmap(buffer, part);
        int seen = 0;
        OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, at * 4, 4, &seen, 0, NULL, NULL));
        EXPECT(seen, -1);
        OK(clReleaseMemObject(buffer));
    }
}

/* The application is told what it asked for, wherever the buffer lies. */
static void what_is_told(void)
{
    static int data[4096];
    cl_mem_flags flags = 0;
    void *host = data;
    cl_uint count = 9;
    size_t size = 0;
    for (int i = 0; i < 4096; i++) {
        data[i] = i;
    }
    const cl_mem_flags asked = CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR | CL_MEM_ALLOC_HOST_PTR;
    cl_mem buffer = buffer_of(sizeof(data), asked, data);
    OK(clGetMemObjectInfo(buffer, CL_MEM_FLAGS, sizeof(flags), &flags, NULL));
    EXPECT(flags, asked);
    OK(clGetMemObjectInfo(buffer, CL_MEM_HOST_PTR, sizeof(host), &host, NULL));
    OK(clGetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof(size), &size, NULL));
    EXPECT(size, sizeof(data));
    int *mapped = map(buffer, CL_MAP_READ, 0, sizeof(data));
    EXPECT(memcmp(mapped, data, sizeof(data)), 0);
    EXPECT(mapped == data, 0);
    OK(clGetMemObjectInfo(buffer, CL_MEM_MAP_COUNT, sizeof(count), &count, NULL));
    EXPECT(count, 1);
    EXPECT(clEnqueueUnmapMemObject(queue, buffer, mapped + 1, 0, NULL, NULL), CL_INVALID_VALUE);
    unmap(buffer, mapped);
    EXPECT(clEnqueueUnmapMemObject(queue, buffer, mapped, 0, NULL, NULL), CL_INVALID_VALUE);
    OK(clFinish(queue));
    OK(clReleaseMemObject(buffer));
}

/* Parts of one buffer that overlap, mapped and copied. */
static void parts(void)
{
    enum { N = 1 << 19 };
    static int result[N];
    cl_int error = CL_SUCCESS;
    cl_mem whole = buffer_of(N * 4, CL_MEM_READ_WRITE, NULL);
    const cl_buffer_region first = {4096, N * 2};
    const cl_buffer_region second = {8192, N * 2};
    cl_mem a = clCreateSubBuffer(whole, 0, CL_BUFFER_CREATE_TYPE_REGION, &first, &error);
    OK(error);
    cl_mem b = clCreateSubBuffer(whole, 0, CL_BUFFER_CREATE_TYPE_REGION, &second, &error);
    OK(error);
    launch(queue, "put", whole, 1, N, 0, NULL);
    int *mapped = map(a, CL_MAP_WRITE, 400, 800);
    for (int i = 0; i < 200; i++) {
        EXPECT(mapped[i], 1);
        mapped[i] = 2;
    }
    unmap(a, mapped);
    launch(queue, "add", b, 10, N / 2, 0, NULL);
    OK(clEnqueueReadBuffer(queue, whole, CL_TRUE, 0, sizeof(result), result, 0, NULL, NULL));
    for (int i = 0; i < N; i++) {
        int wanted = i >= 1024 + 100 && i < 1024 + 300 ? 2 : 1;
        wanted += i >= 2048 && i < 2048 + N / 2 ? 10 : 0;
        EXPECT(result[i], wanted);
    }
    for (int i = 0; i < N / 2; i++) {
        result[i] = i;
    }
    OK(clEnqueueWriteBuffer(queue, b, CL_TRUE, 0, N * 2, result, 0, NULL, NULL));
    OK(clReleaseMemObject(whole)); /* the parts hold it */
    mapped = map(b, CL_MAP_READ, 0, N * 2);
    EXPECT(memcmp(mapped, result, N * 2), 0);
    unmap(b, mapped);
    OK(clReleaseMemObject(a));
    OK(clReleaseMemObject(b));
}

/* A buffer that is given up while a command still waits to write to it; its memory is not another's
 * before that. */
static void given_up_in_use(void)
{
    enum { N = 1 << 16, OTHERS = 8 };
    static int result[N];
    cl_event never = gate();
    cl_command_queue held = new_queue(0);
    cl_mem others[OTHERS];
    for (int round = 0; round < 3; round++) {
        cl_mem buffer = buffer_of(N * 4, CL_MEM_READ_WRITE, NULL);
        launch(held, "put", buffer, 77, N, 1, &never);
        OK(clReleaseMemObject(buffer));
    }
    for (int i = 0; i < OTHERS; i++) {
        others[i] = buffer_of(N * 4, CL_MEM_READ_WRITE, NULL);
        launch(queue, "put", others[i], i, N, 0, NULL);
    }
    OK(clFinish(queue));
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clFinish(held));
    for (int i = 0; i < OTHERS; i++) {
        OK(clEnqueueReadBuffer(queue, others[i], CL_TRUE, 0, N * 4, result, 0, NULL, NULL));
        EXPECT(result[0], i);
        EXPECT(result[N - 1], i);
        OK(clReleaseMemObject(others[i]));
    }
    OK(clReleaseEvent(never));
    OK(clReleaseCommandQueue(held));
}

enum { WHOLE = 3 << 20, ADDS = 40 };
static cl_mem together;

static void *adds(void *data)
{
    (void)data;
    for (int i = 0; i < ADDS; i++) {
        launch(queue, "add", together, 1, WHOLE / 4, 0, NULL);
    }
    OK(clFlush(queue));
    return NULL;
}

/* Kernels of another thread in the same queue come before or after all of a transfer. */
static void transfers_are_whole(void)
{
    static int values[WHOLE / 4];
    pthread_t thread;
    together = buffer_of(WHOLE, CL_MEM_READ_WRITE, NULL);
    launch(queue, "put", together, 0, WHOLE / 4, 0, NULL);
    OK(clFinish(queue));
    EXPECT(pthread_create(&thread, NULL, adds, NULL), 0);
    for (int i = 1; i <= 10; i++) {
        OK(clEnqueueReadBuffer(queue, together, CL_TRUE, 0, WHOLE, values, 0, NULL, NULL));
        for (size_t k = 0; k < WHOLE / 4; k++) {
            EXPECT(values[k], values[0]);
        }
        for (size_t k = 0; k < WHOLE / 4; k++) {
            values[k] = 1000 * i;
        }
        OK(clEnqueueWriteBuffer(queue, together, CL_TRUE, 0, WHOLE, values, 0, NULL, NULL));
    }
    EXPECT(pthread_join(thread, NULL), 0);
    OK(clEnqueueReadBuffer(queue, together, CL_TRUE, 0, WHOLE, values, 0, NULL, NULL));
    for (size_t k = 0; k < WHOLE / 4; k++) {
        EXPECT(values[k], values[0]);
    }
    OK(clReleaseMemObject(together));
}

static void *opens_gate(void *data)
{
    usleep(20000);
    OK(clSetUserEventStatus(data, CL_COMPLETE));
    return NULL;
}

/* What a transfer that blocks waits for; its event is complete, and timed, when it is back. */
static void blocking_events(void)
{
    static const cl_command_queue_properties kinds[] = {CL_QUEUE_PROFILING_ENABLE,
                                                        CL_QUEUE_PROFILING_ENABLE |
                                                            CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE};
    uint8_t *bytes = random_bytes(WHOLE, 3);
    uint8_t *result = malloc(WHOLE);
    for (int k = 0; k < 4; k++) {
        cl_command_queue timed = new_queue(kinds[k % 2]);
        cl_mem buffer = buffer_of(WHOLE, CL_MEM_READ_WRITE, NULL);
        cl_event never = gate();
        cl_event events[2];
        cl_ulong times[4];
        cl_int status = 1;
        cl_command_type type = 0;
        pthread_t thread;
        EXPECT(pthread_create(&thread, NULL, opens_gate, never), 0);
        OK(clEnqueueWriteBuffer(timed, buffer, CL_TRUE, 0, WHOLE, bytes, 1, &never, &events[0]));
        OK(clEnqueueReadBuffer(timed, buffer, CL_TRUE, 0, WHOLE, result, 1, events, &events[1]));
        EXPECT(memcmp(bytes, result, WHOLE), 0);
        for (int i = 0; i < 2; i++) {
            OK(clGetEventInfo(events[i], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status,
                              NULL));
            EXPECT(status, CL_COMPLETE);
            OK(clGetEventInfo(events[i], CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL));
            EXPECT(type, i == 0 ? CL_COMMAND_WRITE_BUFFER : CL_COMMAND_READ_BUFFER);
            for (int t = 0; t < 4; t++) {
                OK(clGetEventProfilingInfo(events[i], CL_PROFILING_COMMAND_QUEUED + t, 8, &times[t],
                                           NULL));
            }
            EXPECT(times[0] <= times[1] && times[1] <= times[2] && times[2] <= times[3], 1);
            OK(clReleaseEvent(events[i]));
        }
        EXPECT(pthread_join(thread, NULL), 0);
        OK(clReleaseEvent(never));
        OK(clReleaseMemObject(buffer));
        OK(clReleaseCommandQueue(timed));
    }
    free(bytes);
    free(result);
}

/* A write takes what a read before it in the queue brings, though a user event of the same thread
 * holds both back. */
static void write_from_gated_read(void)
{
    static const size_t sizes[] = {4, 1000, 100000, 3 * MIB};
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        size_t size = sizes[k];
        uint8_t *bytes = random_bytes(size, (uint32_t)k);
        uint8_t *host = calloc(1, size);
        uint8_t *result = calloc(1, size);
        cl_mem from = buffer_of(size, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes);
        cl_mem to = buffer_of(size, CL_MEM_READ_WRITE, NULL);
        cl_event never = gate();
        OK(clEnqueueReadBuffer(queue, from, CL_FALSE, 0, size, host, 1, &never, NULL));
        OK(clEnqueueWriteBuffer(queue, to, CL_FALSE, 0, size, host, 0, NULL, NULL));
        OK(clEnqueueReadBuffer(queue, to, CL_FALSE, 0, size, result, 0, NULL, NULL));
        OK(clSetUserEventStatus(never, CL_COMPLETE));
        OK(clFinish(queue));
        EXPECT(memcmp(host, bytes, size), 0);
        EXPECT(memcmp(result, bytes, size), 0);
        free(bytes);
        free(host);
        free(result);
        OK(clReleaseEvent(never));
        OK(clReleaseMemObject(from));
        OK(clReleaseMemObject(to));
    }
}

/* The same in a queue without order, where events make it; from two reads and what lies between,
 * and with a second gate that holds the write back when the read has long been seen. */
static void write_from_parts_of_reads(void)
{
    enum { N = 200000, PART = 60000, GAP = 70000 };
    cl_command_queue loose = new_queue(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    uint8_t *bytes = random_bytes(N, 9);
    uint8_t *host = random_bytes(N, 11);
    uint8_t *wanted = malloc(N);
    uint8_t *result = calloc(1, N);
    cl_mem from = buffer_of(N, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes);
    cl_mem to = buffer_of(N, CL_MEM_READ_WRITE, NULL);
    cl_event gates[2] = {gate(), gate()};
    cl_event waits[3] = {NULL, NULL, gates[1]};
    cl_event written;
    memcpy(wanted, host, N);
    memcpy(wanted, bytes, PART);
    memcpy(wanted + GAP, bytes + GAP, PART);
    OK(clEnqueueReadBuffer(loose, from, CL_FALSE, 0, PART, host, 1, gates, &waits[0]));
    OK(clEnqueueReadBuffer(loose, from, CL_FALSE, GAP, PART, host + GAP, 1, gates, &waits[1]));
    OK(clEnqueueWriteBuffer(loose, to, CL_FALSE, 0, N, host, 3, waits, &written));
    OK(clSetUserEventStatus(gates[0], CL_COMPLETE));
    OK(clWaitForEvents(2, waits));
    EXPECT(memcmp(host, wanted, N), 0);
    for (int i = 0; i < 20; i++) { /* what else wants the memory that the reads had */
        cl_mem other = buffer_of(N, CL_MEM_READ_WRITE, NULL);
        OK(clEnqueueWriteBuffer(queue, other, CL_FALSE, 0, N, result, 0, NULL, NULL));
        OK(clFinish(queue));
        OK(clReleaseMemObject(other));
    }
    OK(clSetUserEventStatus(gates[1], CL_COMPLETE));
    OK(clWaitForEvents(1, &written));
    OK(clEnqueueReadBuffer(loose, to, CL_TRUE, 0, N, result, 0, NULL, NULL));
    EXPECT(memcmp(result, wanted, N), 0);
    for (int i = 0; i < 2; i++) {
        OK(clReleaseEvent(gates[i]));
        OK(clReleaseEvent(waits[i]));
    }
    OK(clReleaseEvent(written));
    OK(clReleaseMemObject(from));
    OK(clReleaseMemObject(to));
    OK(clReleaseCommandQueue(loose));
    free(bytes);
    free(host);
    free(wanted);
    free(result);
}

/* The same for rows and for images, and from rows that a read fills: each write waits for the gate
 * of its own thread, blocking ones in a thread apart. */
static void rows_from_gated_reads(void)
{
    enum { WIDTH = 60, HEIGHT = 40, SLICES = 2, PITCH = 64, SLICE = PITCH * HEIGHT };
    enum { N = SLICES * SLICE };
    static const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    const cl_image_desc desc = {
        .image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = WIDTH / 4, .image_height = HEIGHT};
    const size_t zero[3] = {0, 0, 0};
    const size_t bytes_region[3] = {WIDTH, HEIGHT, SLICES};
    const size_t pixels[3] = {WIDTH / 4, HEIGHT, 1};
    const size_t shifted[3] = {2, 1, 0};
    const size_t inner[3] = {WIDTH - 5, HEIGHT - 1, SLICES};
    uint8_t *bytes = random_bytes(N, 21);
    uint8_t *host = malloc(N);
    uint8_t *rows = malloc(N);
    uint8_t *result = malloc(N);
    cl_int error = CL_SUCCESS;
    cl_mem from = buffer_of(N, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes);
    cl_mem to = buffer_of(N, CL_MEM_READ_WRITE, NULL);
    cl_mem again = buffer_of(N, CL_MEM_READ_WRITE, NULL);
    cl_mem image = clCreateImage(context, CL_MEM_READ_WRITE, &format, &desc, NULL, &error);
    OK(error);
    for (int apart = 0; apart < 2; apart++) {
        uint8_t none = 0;
        cl_event never = gate();
        memset(host, 1, N);
        memset(rows, 2, N);
        OK(clEnqueueFillBuffer(queue, to, &none, 1, 0, N, 0, NULL, NULL));
        OK(clEnqueueFillBuffer(queue, again, &none, 1, 0, N, 0, NULL, NULL));
        OK(clFinish(queue));
        /* Two reads next to each other, one into rows; what lies between its rows stays. */
        OK(clEnqueueReadBuffer(queue, from, CL_FALSE, 0, 1000, host, 1, &never, NULL));
        OK(clEnqueueReadBuffer(queue, from, CL_FALSE, 1000, N - 1000, host + 1000, 0, NULL, NULL));
        OK(clEnqueueReadBufferRect(queue, from, CL_FALSE, zero, zero, bytes_region, PITCH, SLICE,
                                   PITCH, SLICE, rows, 0, NULL, NULL));
        /* From both, into rows of a buffer and of an image, and in one piece. */
        OK(clEnqueueWriteBufferRect(queue, to, CL_FALSE, shifted, shifted, inner, PITCH, SLICE,
                                    PITCH, SLICE, apart ? rows : host, 0, NULL, NULL));
        OK(clEnqueueWriteImage(queue, image, CL_FALSE, zero, pixels, PITCH, 0, apart ? host : rows,
                               0, NULL, NULL));
        OK(clEnqueueWriteBuffer(queue, again, CL_FALSE, 0, N, rows, 0, NULL, NULL));
        if (apart) {
            pthread_t thread;
            EXPECT(pthread_create(&thread, NULL, opens_gate, never), 0);
            OK(clEnqueueWriteBufferRect(queue, to, CL_TRUE, shifted, shifted, inner, PITCH, SLICE,
                                        PITCH, SLICE, rows, 0, NULL, NULL));
            EXPECT(pthread_join(thread, NULL), 0);
        } else {
            OK(clSetUserEventStatus(never, CL_COMPLETE));
        }
        OK(clFinish(queue));
        EXPECT(memcmp(host, bytes, N), 0);
        OK(clEnqueueReadBuffer(queue, again, CL_TRUE, 0, N, result, 0, NULL, NULL));
        for (int i = 0; i < N; i++) {
            EXPECT(rows[i], i % PITCH < WIDTH ? bytes[i] : 2);
            EXPECT(result[i], rows[i]);
        }
        OK(clEnqueueReadBuffer(queue, to, CL_TRUE, 0, N, result, 0, NULL, NULL));
        for (int i = 0; i < N; i++) {
            bool written = i % PITCH >= 2 && i % PITCH < WIDTH - 3 && i % SLICE >= PITCH;
            EXPECT(result[i], written ? bytes[i] : 0);
        }
        OK(clEnqueueReadImage(queue, image, CL_TRUE, zero, pixels, 0, 0, result, 0, NULL, NULL));
        for (int i = 0; i < WIDTH * HEIGHT; i++) {
            EXPECT(result[i], bytes[i / WIDTH * PITCH + i % WIDTH]);
        }
        OK(clReleaseEvent(never));
    }
    OK(clReleaseMemObject(from));
    OK(clReleaseMemObject(to));
    OK(clReleaseMemObject(again));
    OK(clReleaseMemObject(image));
    free(bytes);
    free(host);
    free(rows);
    free(result);
}

/* A write of another queue waits for no read that was not before it, whatever it would find. */
static void write_beside_gated_read(void)
{
    enum { N = 100000 };
    static uint8_t host[N];
    cl_command_queue held = new_queue(0);
    cl_mem from = buffer_of(N, CL_MEM_READ_WRITE, NULL);
    cl_mem to = buffer_of(N, CL_MEM_READ_WRITE, NULL);
    const size_t zero[3] = {0, 0, 0};
    const size_t region[3] = {100, 10, 1};
    cl_event never = gate();
    OK(clEnqueueReadBuffer(held, from, CL_FALSE, 0, N, host, 1, &never, NULL));
    OK(clEnqueueWriteBuffer(queue, to, CL_TRUE, 0, N, host, 0, NULL, NULL));
    OK(clEnqueueWriteBufferRect(queue, to, CL_TRUE, zero, zero, region, 0, 0, 0, 0, host, 0, NULL,
                                NULL));
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clFinish(held));
    OK(clReleaseEvent(never));
    OK(clReleaseMemObject(from));
    OK(clReleaseMemObject(to));
    OK(clReleaseCommandQueue(held));
}

static int reading;

static void *keep_reading(void *buffer)
{
    uint8_t *bytes = malloc(4 * MIB);
    while (__atomic_load_n(&reading, __ATOMIC_ACQUIRE)) {
        OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 4 * MIB, bytes, 0, NULL, NULL));
    }
    free(bytes);
    return NULL;
}

/* Transfers are no maps: they end none, neither one that waits in another queue nor one of another
 * thread. */
static void maps_beside_transfers(void)
{
    enum { READERS = 3, ROUNDS = 40 };
    cl_int error = CL_SUCCESS;
    cl_command_queue other = new_queue(0);
    uint8_t *bytes = random_bytes(4 * MIB, 5);
    uint8_t *result = calloc(1, 4 * MIB);
    cl_mem buffer = buffer_of(4 * MIB, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes);
    cl_event never = gate();
    cl_event mapped;
    uint8_t *memory = clEnqueueMapBuffer(queue, buffer, CL_FALSE, CL_MAP_READ, 0, 4 * MIB, 1,
                                         &never, &mapped, &error);
    OK(error);
    for (int i = 0; i < ROUNDS; i++) {
        OK(clEnqueueReadBuffer(other, buffer, CL_TRUE, 0, 4 * MIB, result, 0, NULL, NULL));
    }
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clWaitForEvents(1, &mapped));
    EXPECT(memcmp(memory, bytes, 4 * MIB), 0);
    OK(clEnqueueUnmapMemObject(queue, buffer, memory, 0, NULL, NULL));
    OK(clFinish(queue));

    pthread_t readers[READERS];
    __atomic_store_n(&reading, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < READERS; i++) {
        EXPECT(pthread_create(&readers[i], NULL, keep_reading, buffer), 0);
    }
    for (int i = 0; i < ROUNDS; i++) {
        memory = clEnqueueMapBuffer(queue, buffer, CL_TRUE, CL_MAP_READ, 0, 4 * MIB, 0, NULL, NULL,
                                    &error);
        OK(error);
        OK(clEnqueueUnmapMemObject(queue, buffer, memory, 0, NULL, NULL));
    }
    __atomic_store_n(&reading, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < READERS; i++) {
        EXPECT(pthread_join(readers[i], NULL), 0);
    }
    OK(clReleaseEvent(never));
    OK(clReleaseEvent(mapped));
    OK(clReleaseMemObject(buffer));
    OK(clReleaseCommandQueue(other));
    free(bytes);
    free(result);
}

/* What waits for all of a queue ends, though other threads keep transferring in it: at every moment
 * one of them has a transfer there. */
static void others_keep_transferring(void)
{
    enum { READERS = 3, ROUNDS = 8 };
    static const size_t origin[3] = {0, 0, 0};
    static const size_t region[3] = {16, 16, 1};
    int value = 0;
    pthread_t readers[READERS];
    cl_mem large = buffer_of(4 * MIB, CL_MEM_READ_WRITE, NULL);
    cl_mem small = buffer_of(1024, CL_MEM_READ_WRITE, NULL);
    uint8_t result[1024];
    __atomic_store_n(&reading, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < READERS; i++) {
        EXPECT(pthread_create(&readers[i], NULL, keep_reading, large), 0);
    }
    for (value = 0; value < ROUNDS; value++) {
        launch(queue, "put", small, value, 256, 0, NULL);
        OK(clFinish(queue));
        OK(clEnqueueReadBuffer(queue, small, CL_TRUE, 0, 1024, result, 0, NULL, NULL));
        EXPECT(memcmp(result, &value, 4), 0);
        OK(clEnqueueWriteBuffer(queue, small, CL_TRUE, 0, 1024, result, 0, NULL, NULL));
        OK(clEnqueueReadBufferRect(queue, small, CL_TRUE, origin, origin, region, 16, 0, 16, 0,
                                   result, 0, NULL, NULL));
        unmap(large, map(large, CL_MAP_READ, 0, 4 * MIB));
    }
    __atomic_store_n(&reading, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < READERS; i++) {
        EXPECT(pthread_join(readers[i], NULL), 0);
    }
    OK(clReleaseMemObject(small));
    OK(clReleaseMemObject(large));
}

static void *read_with_event(void *buffer)
{
    uint8_t *bytes = malloc(MIB);
    cl_event event = NULL;
    for (int i = 0; i < 3; i++) {
        OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, MIB, bytes, 0, NULL, &event));
        EXPECT(bytes[MIB - 1], 7);
        OK(clReleaseEvent(event));
    }
    free(bytes);
    return NULL;
}

/* More threads than there are places for calls that block, all in one queue. */
static void many_threads(void)
{
    enum { THREADS = 100 };
    pthread_t threads[THREADS];
    uint8_t value = 7;
    cl_mem buffer = buffer_of(MIB, CL_MEM_READ_WRITE, NULL);
    OK(clEnqueueFillBuffer(queue, buffer, &value, 1, 0, MIB, 0, NULL, NULL));
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, read_with_event, buffer), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL), 0);
    }
    OK(clReleaseMemObject(buffer));
}

/* Images of 32-bit numbers: each is where it lies, plus a base. */
static const struct shape {
    cl_mem_object_type type;
    size_t size[3]; /* pixels, rows, slices */
} shapes[] = {
    {CL_MEM_OBJECT_IMAGE1D, {3000, 1, 1}},       {CL_MEM_OBJECT_IMAGE1D_ARRAY, {300, 20, 1}},
    {CL_MEM_OBJECT_IMAGE2D, {500, 301, 1}},      {CL_MEM_OBJECT_IMAGE2D, {7, 5, 1}},
    {CL_MEM_OBJECT_IMAGE2D_ARRAY, {100, 50, 7}}, {CL_MEM_OBJECT_IMAGE3D, {100, 50, 7}},
    {CL_MEM_OBJECT_IMAGE3D, {1000, 300, 2}},
};
static const size_t zero[3];

static size_t count_of(const struct shape *shape)
{
    return shape->size[0] * shape->size[1] * shape->size[2];
}

static size_t place_of(const struct shape *shape, size_t x, size_t y, size_t z)
{
    return x + shape->size[0] * (y + shape->size[1] * z);
}

/* Rows of initial data are `gap` pixels longer than the image's. */
static cl_mem image_of(const struct shape *shape, cl_mem_flags flags, void *data, size_t gap)
{
    const cl_image_format format = {CL_R, CL_UNSIGNED_INT32};
    cl_image_desc desc = {.image_type = shape->type, .image_width = shape->size[0]};
    cl_int error = CL_SUCCESS;
    switch (shape->type) {
    case CL_MEM_OBJECT_IMAGE1D_ARRAY:
        desc.image_array_size = shape->size[1];
        break;
    case CL_MEM_OBJECT_IMAGE2D_ARRAY:
        desc.image_height = shape->size[1];
        desc.image_array_size = shape->size[2];
        break;
    case CL_MEM_OBJECT_IMAGE3D:
        desc.image_height = shape->size[1];
        desc.image_depth = shape->size[2];
        break;
    case CL_MEM_OBJECT_IMAGE2D:
        desc.image_height = shape->size[1];
        break;
    default:
        break;
    }
    desc.image_row_pitch = data == NULL ? 0 : (shape->size[0] + gap) * 4;
    cl_mem image = clCreateImage(context, flags, &format, &desc, data, &error);
    OK(error);
    return image;
}

struct mapped {
    uint8_t *memory;
    size_t row_pitch;
    size_t slice_pitch;
};

static struct mapped map_image(cl_mem image, const struct shape *shape, cl_map_flags flags,
                               const size_t *origin, const size_t *region)
{
    struct mapped mapped = {0};
    cl_int error = CL_SUCCESS;
    mapped.memory =
        clEnqueueMapImage(queue, image, CL_TRUE, flags, origin, region, &mapped.row_pitch,
                          &mapped.slice_pitch, 0, NULL, NULL, &error);
    OK(error);
    if (shape->type == CL_MEM_OBJECT_IMAGE1D_ARRAY) {
        mapped.row_pitch = mapped.slice_pitch;
    }
    return mapped;
}

static uint32_t *pixel(const struct mapped *mapped, size_t x, size_t y, size_t z)
{
    return (uint32_t *)(void *)(mapped->memory + 4 * x + mapped->row_pitch * y +
                                mapped->slice_pitch * z);
}

static void expect_content(cl_mem image, const struct shape *shape, uint32_t base)
{
    size_t count = count_of(shape);
    uint32_t *seen = calloc(count, 4);
    OK(clEnqueueReadImage(queue, image, CL_TRUE, zero, shape->size, 0, 0, seen, 0, NULL, NULL));
    for (size_t i = 0; i < count; i++) {
        EXPECT(seen[i], i + base);
    }
    free(seen);
}

/* Initial data, with gaps between its rows, is what is mapped; what is written there the device
 * has; what the device writes is mapped. */
static void image_maps(void)
{
    static const cl_mem_flags kinds[] = {
        0,
        CL_MEM_ALLOC_HOST_PTR,
        CL_MEM_COPY_HOST_PTR,
        CL_MEM_COPY_HOST_PTR | CL_MEM_ALLOC_HOST_PTR,
        CL_MEM_HOST_WRITE_ONLY,
    };
    for (size_t k = 0; k < LENGTH(shapes) * LENGTH(kinds); k++) {
        const struct shape *shape = &shapes[k % LENGTH(shapes)];
        cl_mem_flags flags = kinds[k / LENGTH(shapes)];
        const size_t *size = shape->size;
        size_t gap = (flags & CL_MEM_COPY_HOST_PTR) != 0 ? k % 3 : 0;
        size_t row = size[0] + gap;
        uint32_t *data = NULL;
        if ((flags & CL_MEM_COPY_HOST_PTR) != 0) {
            data = calloc(row * size[1] * size[2], 4);
            for (size_t i = 0; i < count_of(shape); i++) {
                data[i / size[0] * row + i % size[0]] = (uint32_t)i;
            }
        }
        cl_mem image = image_of(shape, flags, data, gap);
        if (data != NULL) {
            memset(data, 0xee, row * size[1] * size[2] * 4);
            expect_content(image, shape, 0);
        }
        free(data);
        struct mapped mapped = map_image(image, shape, CL_MAP_WRITE_INVALIDATE_REGION, zero, size);
        EXPECT((uintptr_t)mapped.memory % 64, 0);
        for (size_t i = 0; i < count_of(shape); i++) {
            *pixel(&mapped, i % size[0], i / size[0] % size[1], i / size[0] / size[1]) =
                (uint32_t)i + 5;
        }
        OK(clEnqueueUnmapMemObject(queue, image, mapped.memory, 0, NULL, NULL));
        if ((flags & CL_MEM_HOST_WRITE_ONLY) != 0) {
            cl_mem buffer = buffer_of(count_of(shape) * 4, CL_MEM_READ_WRITE, NULL);
            OK(clEnqueueCopyImageToBuffer(queue, image, buffer, zero, size, 0, 0, NULL, NULL));
            uint32_t *seen = map(buffer, CL_MAP_READ, 0, count_of(shape) * 4);
            for (size_t i = 0; i < count_of(shape); i++) {
                EXPECT(seen[i], i + 5);
            }
            unmap(buffer, seen);
            OK(clReleaseMemObject(buffer));
            OK(clReleaseMemObject(image));
            continue;
        }
        expect_content(image, shape, 5);
        const cl_uint color[4] = {99, 0, 0, 0};
        const size_t origin[3] = {size[0] / 3, size[1] / 3, size[2] / 3};
        const size_t region[3] = {size[0] / 2, (size[1] + 1) / 2, (size[2] + 1) / 2};
        const size_t one[3] = {1, 1, 1};
        OK(clEnqueueFillImage(queue, image, color, origin, one, 0, NULL, NULL));
        mapped = map_image(image, shape, CL_MAP_READ | CL_MAP_WRITE, origin, region);
        struct mapped again = map_image(image, shape, CL_MAP_READ, origin, one);
        EXPECT(*pixel(&again, 0, 0, 0), 99);
        OK(clEnqueueUnmapMemObject(queue, image, again.memory, 0, NULL, NULL));
        OK(clFinish(queue));
        EXPECT(*pixel(&mapped, 0, 0, 0), 99);
        size_t first = place_of(shape, origin[0], origin[1], origin[2]);
        *pixel(&mapped, 0, 0, 0) = (uint32_t)first + 5;
        for (size_t i = 0; i < region[0] * region[1] * region[2]; i++) {
            size_t x = i % region[0], y = i / region[0] % region[1], z = i / region[0] / region[1];
            EXPECT(*pixel(&mapped, x, y, z), first + place_of(shape, x, y, z) + 5);
        }
        OK(clEnqueueUnmapMemObject(queue, image, mapped.memory, 0, NULL, NULL));
        expect_content(image, shape, 5);
        OK(clReleaseMemObject(image));
    }
}

/* Maps that wait, again and again, between kernels, with events that tell what they are. */
static void image_maps_later(void)
{
    enum { ROUNDS = 20 };
    const struct shape *shape = &shapes[2];
    cl_int error = CL_SUCCESS;
    cl_mem image = image_of(shape, CL_MEM_READ_WRITE, NULL, 0);
    cl_mem other = image_of(shape, CL_MEM_READ_WRITE, NULL, 0);
    cl_kernel turn = clCreateKernel(program, "turn", &error);
    OK(error);
    OK(clSetKernelArg(turn, 0, sizeof(image), &image));
    OK(clSetKernelArg(turn, 1, sizeof(other), &other));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        cl_event never = gate();
        cl_event mapped_event = NULL;
        cl_event unmapped_event = NULL;
        cl_command_type type = 0;
        cl_int status = 1;
        struct mapped mapped = {0};
        mapped.memory = clEnqueueMapImage(queue, image, CL_FALSE, CL_MAP_WRITE, zero, shape->size,
                                          &mapped.row_pitch, &mapped.slice_pitch, 1, &never,
                                          &mapped_event, &error);
        OK(error);
        OK(clGetEventInfo(mapped_event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status,
                          NULL));
        EXPECT(status > CL_COMPLETE, 1);
        OK(clSetUserEventStatus(never, CL_COMPLETE));
        OK(clWaitForEvents(1, &mapped_event));
        OK(clGetEventInfo(mapped_event, CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL));
        EXPECT(type, CL_COMMAND_MAP_IMAGE);
        for (size_t i = 0; i < count_of(shape); i++) {
            *pixel(&mapped, i % shape->size[0], i / shape->size[0], 0) = (uint32_t)i + round;
        }
        OK(clEnqueueUnmapMemObject(queue, image, mapped.memory, 0, NULL, &unmapped_event));
        OK(clGetEventInfo(unmapped_event, CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL));
        EXPECT(type, CL_COMMAND_UNMAP_MEM_OBJECT);
        OK(clEnqueueNDRangeKernel(queue, turn, 2, NULL, shape->size, NULL, 1, &unmapped_event,
                                  NULL));
        mapped = map_image(other, shape, CL_MAP_READ, zero, shape->size);
        for (size_t i = 0; i < count_of(shape); i++) {
            EXPECT(*pixel(&mapped, i % shape->size[0], i / shape->size[0], 0), i + round + 7);
        }
        OK(clEnqueueUnmapMemObject(queue, other, mapped.memory, 0, NULL, NULL));
        OK(clReleaseEvent(never));
        OK(clReleaseEvent(mapped_event));
        OK(clReleaseEvent(unmapped_event));
    }
    OK(clReleaseKernel(turn));
    OK(clReleaseMemObject(image));
    OK(clReleaseMemObject(other));
}

/* An image over a buffer is mapped where the buffer lies. */
static void image_of_buffer(void)
{
    enum { N = 4096, FIRST = 3, COUNT = 100 };
    const cl_image_format format = {CL_R, CL_UNSIGNED_INT32};
    const struct shape shape = {CL_MEM_OBJECT_IMAGE1D_BUFFER, {N, 1, 1}};
    const size_t origin[3] = {FIRST, 0, 0};
    const size_t region[3] = {COUNT, 1, 1};
    static uint32_t values[N];
    cl_int error = CL_SUCCESS;
    cl_mem buffer = buffer_of(sizeof(values), CL_MEM_READ_WRITE, NULL);
    cl_image_desc desc = {.image_type = shape.type, .image_width = N};
    desc.buffer = buffer;
    launch(queue, "put", buffer, 1, N, 0, NULL);
    cl_mem image = clCreateImage(context, 0, &format, &desc, NULL, &error);
    OK(error);
    OK(clReleaseMemObject(buffer)); /* the image holds it */
    for (uint32_t round = 1; round <= 3; round++) {
        struct mapped mapped = map_image(image, &shape, CL_MAP_READ | CL_MAP_WRITE, origin, region);
        for (size_t i = 0; i < COUNT; i++) {
            EXPECT(*pixel(&mapped, i, 0, 0), round);
            *pixel(&mapped, i, 0, 0) = round + 1;
        }
        OK(clEnqueueUnmapMemObject(queue, image, mapped.memory, 0, NULL, NULL));
        OK(clEnqueueReadImage(queue, image, CL_TRUE, zero, shape.size, 0, 0, values, 0, NULL,
                              NULL));
        for (size_t i = 0; i < N; i++) {
            EXPECT(values[i], i >= FIRST && i < FIRST + COUNT ? round + 1 : 1);
        }
    }
    OK(clReleaseMemObject(image));
}

/* An image that is given up while a command still waits to write to it. */
static void image_given_up_in_use(void)
{
    enum { OTHERS = 6 };
    const struct shape *shape = &shapes[2];
    const cl_uint color[4] = {77, 0, 0, 0};
    cl_event never = gate();
    cl_command_queue held = new_queue(0);
    cl_mem others[OTHERS];
    for (int round = 0; round < 3; round++) {
        cl_mem image = image_of(shape, CL_MEM_READ_WRITE, NULL, 0);
        OK(clEnqueueFillImage(held, image, color, zero, shape->size, 1, &never, NULL));
        OK(clReleaseMemObject(image));
    }
    for (int i = 0; i < OTHERS; i++) {
        const cl_uint own[4] = {(cl_uint)i, 0, 0, 0};
        others[i] = image_of(shape, CL_MEM_READ_WRITE, NULL, 0);
        OK(clEnqueueFillImage(queue, others[i], own, zero, shape->size, 0, NULL, NULL));
    }
    OK(clFinish(queue));
    OK(clSetUserEventStatus(never, CL_COMPLETE));
    OK(clFinish(held));
    for (int i = 0; i < OTHERS; i++) {
        struct mapped mapped = map_image(others[i], shape, CL_MAP_READ, zero, shape->size);
        EXPECT(*pixel(&mapped, 0, 0, 0), i);
        EXPECT(*pixel(&mapped, shape->size[0] - 1, shape->size[1] - 1, 0), i);
        OK(clEnqueueUnmapMemObject(queue, others[i], mapped.memory, 0, NULL, NULL));
        OK(clReleaseMemObject(others[i]));
    }
    OK(clReleaseEvent(never));
    OK(clReleaseCommandQueue(held));
}

/* Many images, one after the other: the memory of each is free again. */
static void images_come_and_go(void)
{
    const struct shape shape = {CL_MEM_OBJECT_IMAGE2D, {512, 1024, 1}};
    for (uint32_t i = 0; i < 200; i++) {
        cl_mem image = image_of(&shape, CL_MEM_READ_WRITE, NULL, 0);
        struct mapped mapped = map_image(image, &shape, CL_MAP_WRITE, zero, shape.size);
        *pixel(&mapped, 511, 1023, 0) = i;
        OK(clEnqueueUnmapMemObject(queue, image, mapped.memory, 0, NULL, NULL));
        mapped = map_image(image, &shape, CL_MAP_READ, zero, shape.size);
        EXPECT(*pixel(&mapped, 511, 1023, 0), i);
        OK(clEnqueueUnmapMemObject(queue, image, mapped.memory, 0, NULL, NULL));
        OK(clReleaseMemObject(image));
    }
}

/* Regions of large images that move while a call blocks, with gaps between the rows of the
 * application's memory, held back by an event, in queues of every kind. */
static void image_transfers(void)
{
    static const struct shape large[] = {
        {CL_MEM_OBJECT_IMAGE2D, {1000, 700, 1}},
        {CL_MEM_OBJECT_IMAGE2D_ARRAY, {200, 300, 12}},
        {CL_MEM_OBJECT_IMAGE3D, {200, 300, 12}},
        {CL_MEM_OBJECT_IMAGE1D_ARRAY, {4000, 150, 1}},
    };
    static const cl_command_queue_properties kinds[] = {0, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
                                                        CL_QUEUE_PROFILING_ENABLE};
    for (size_t k = 0; k < LENGTH(large) * LENGTH(kinds); k++) {
        const struct shape *shape = &large[k % LENGTH(large)];
        const size_t *size = shape->size;
        const size_t origin[3] = {size[0] / 20, size[1] / 20, size[2] / 4};
        const size_t region[3] = {size[0] - 2 * origin[0], size[1] - 2 * origin[1],
                                  size[2] - 2 * origin[2]};
        bool rows = shape->type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
        size_t row = (region[0] + 5) * 4;
        size_t slice = rows ? row : row * (region[1] + 2);
        size_t bytes = rows ? row * region[1] : slice * region[2];
        cl_command_queue where = new_queue(kinds[k / LENGTH(large)]);
        cl_mem image = image_of(shape, CL_MEM_READ_WRITE, NULL, 0);
        uint8_t *data = random_bytes(bytes, (uint32_t)k);
        uint8_t *seen = calloc(1, bytes);
        uint32_t *whole = calloc(count_of(shape), 4);
        const cl_uint color[4] = {7, 0, 0, 0};
        cl_event never = gate();
        cl_event written = NULL;
        cl_command_type type = 0;
        cl_int status = 1;
        pthread_t thread;
        OK(clEnqueueFillImage(where, image, color, zero, size, 0, NULL, NULL));
        OK(clFinish(where));
        EXPECT(pthread_create(&thread, NULL, opens_gate, never), 0);
        OK(clEnqueueWriteImage(where, image, CL_TRUE, origin, region, row, slice, data, 1, &never,
                               &written));
        OK(clGetEventInfo(never, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
        EXPECT(status, CL_COMPLETE);
        OK(clGetEventInfo(written, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status,
                          NULL));
        EXPECT(status, CL_COMPLETE);
        OK(clGetEventInfo(written, CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL));
        EXPECT(type, CL_COMMAND_WRITE_IMAGE);
        OK(clEnqueueReadImage(where, image, CL_TRUE, origin, region, row, slice, seen, 1, &written,
                              NULL));
        OK(clEnqueueReadImage(where, image, CL_TRUE, zero, size, 0, 0, whole, 0, NULL, NULL));
        for (size_t i = 0; i < count_of(shape); i++) {
            size_t x = i % size[0] - origin[0];
            size_t y = i / size[0] % size[1] - origin[1];
            size_t z = i / size[0] / size[1] - origin[2];
            uint32_t wanted = 7;
            if (x < region[0] && y < region[1] && z < region[2]) { /* none is below its origin */
                size_t at = y * row + z * slice + x * 4;
                memcpy(&wanted, data + at, 4);
                EXPECT(memcmp(seen + at, data + at, 4), 0);
            }
            EXPECT(whole[i], wanted);
        }
        EXPECT(seen[region[0] * 4], 0); /* a gap stays what it was */
        EXPECT(pthread_join(thread, NULL), 0);
        OK(clReleaseEvent(never));
        OK(clReleaseEvent(written));
        OK(clReleaseMemObject(image));
        OK(clReleaseCommandQueue(where));
        free(data);
        free(seen);
        free(whole);
    }
}

static void *fills(void *image)
{
    for (cl_uint i = 0; i < ADDS; i++) {
        const cl_uint color[4] = {i, 0, 0, 0};
        OK(clEnqueueFillImage(queue, image, color, zero, shapes[6].size, 0, NULL, NULL));
    }
    OK(clFlush(queue));
    return NULL;
}

/* Commands of another thread in the same queue come before or after all of a transfer. */
static void image_transfers_are_whole(void)
{
    const struct shape *shape = &shapes[6];
    pthread_t thread;
    cl_mem image = image_of(shape, CL_MEM_READ_WRITE, NULL, 0);
    size_t count = count_of(shape);
    uint32_t *values = calloc(count, 4);
    OK(clEnqueueWriteImage(queue, image, CL_TRUE, zero, shape->size, 0, 0, values, 0, NULL, NULL));
    EXPECT(pthread_create(&thread, NULL, fills, image), 0);
    for (uint32_t i = 0; i < 10; i++) {
        OK(clEnqueueReadImage(queue, image, CL_TRUE, zero, shape->size, 0, 0, values, 0, NULL,
                              NULL));
        for (size_t k = 0; k < count; k++) {
            EXPECT(values[k], values[0]);
        }
        for (size_t k = 0; k < count; k++) {
            values[k] = 1000 + i;
        }
        OK(clEnqueueWriteImage(queue, image, CL_TRUE, zero, shape->size, 0, 0, values, 0, NULL,
                               NULL));
    }
    EXPECT(pthread_join(thread, NULL), 0);
    free(values);
    OK(clReleaseMemObject(image));
}

/* What a test counts the bytes of: an image of 4 MiB, mapped ten times. */
static void image_mapped_often(void)
{
    const struct shape shape = {CL_MEM_OBJECT_IMAGE2D, {1024, 1024, 1}};
    cl_mem image = image_of(&shape, CL_MEM_READ_WRITE, NULL, 0);
    for (uint32_t round = 0; round < 10; round++) {
        struct mapped mapped =
            map_image(image, &shape, CL_MAP_READ | CL_MAP_WRITE, zero, shape.size);
        for (size_t i = 0; i < count_of(&shape); i++) {
            uint32_t *at = pixel(&mapped, i % 1024, i / 1024, 0);
            EXPECT(round == 0 || *at == i + round - 1, 1);
            *at = (uint32_t)i + round;
        }
        OK(clEnqueueUnmapMemObject(queue, image, mapped.memory, 0, NULL, NULL));
    }
    OK(clFinish(queue));
    OK(clReleaseMemObject(image));
}

/* A transfer that blocks and waits for an event that fails meanwhile. The queue holds nothing else,
 * and is held by each command: so one can see that the transfer has been enqueued, before which
 * PoCL must not meet the failure. */
struct failing {
    cl_command_queue queue;
    cl_event gate;
};

static void *fail_gate(void *data)
{
    const struct failing *failing = data;
    cl_uint count = 0;
    for (int looks = 0; looks < 10000 && count < 2; looks++) {
        usleep(2000);
        OK(clGetCommandQueueInfo(failing->queue, CL_QUEUE_REFERENCE_COUNT, sizeof(count), &count,
                                 NULL));
    }
    EXPECT(count >= 2, 1);
    usleep(20000);
    OK(clSetUserEventStatus(failing->gate, -5));
    return NULL;
}

enum { READ, WRITE, READ_ROWS, WRITE_ROWS, MAP_READ, MAP_WRITE, READ_PIXELS, WRITE_PIXELS, WAYS };

/* *mapped: what a map gives, else NULL. memory: as large as the object. */
static cl_int transfer_so(int way, cl_command_queue where, cl_mem mem, size_t size, void *memory,
                          const cl_event *wait, cl_event *event, void **mapped)
{
    cl_int error = CL_SUCCESS;
    const size_t rows[3] = {size / 4, 2, 1}; /* of which memory and buffer have half */
    const size_t pixels[3] = {1024, size / 4096, 1};
    switch (way) {
    case READ:
        return clEnqueueReadBuffer(where, mem, CL_TRUE, 0, size, memory, 1, wait, event);
    case WRITE:
        return clEnqueueWriteBuffer(where, mem, CL_TRUE, 0, size, memory, 1, wait, event);
    case READ_ROWS:
        return clEnqueueReadBufferRect(where, mem, CL_TRUE, zero, zero, rows, size / 2, 0, size / 2,
                                       0, memory, 1, wait, event);
    case WRITE_ROWS:
        return clEnqueueWriteBufferRect(where, mem, CL_TRUE, zero, zero, rows, size / 2, 0,
                                        size / 2, 0, memory, 1, wait, event);
    case READ_PIXELS:
        return clEnqueueReadImage(where, mem, CL_TRUE, zero, pixels, 0, 0, memory, 1, wait, event);
    case WRITE_PIXELS:
        return clEnqueueWriteImage(where, mem, CL_TRUE, zero, pixels, 0, 0, memory, 1, wait, event);
    default:
        *mapped =
            clEnqueueMapBuffer(where, mem, CL_TRUE, way == MAP_READ ? CL_MAP_READ : CL_MAP_WRITE, 0,
                               size, 1, wait, event, &error);
        return error;
    }
}

static void expect_all(const uint8_t *bytes, size_t size, uint8_t value)
{
    EXPECT(bytes[0], value);
    EXPECT(memcmp(bytes, bytes + 1, size - 1), 0);
}

static void fail_transfer(int way, size_t size)
{
    bool image = way == READ_PIXELS || way == WRITE_PIXELS;
    const struct shape shape = {CL_MEM_OBJECT_IMAGE2D, {1024, size / 4096, 1}};
    const size_t pixels[3] = {1024, size / 4096, 1};
    cl_int error = CL_SUCCESS;
    cl_int status = CL_COMPLETE;
    cl_event event = NULL;
    void *mapped = NULL;
    pthread_t thread;
    uint8_t *memory = malloc(size);
    memset(memory, 0x77, size);
    cl_mem_flags flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
    cl_mem mem = image ? image_of(&shape, flags, memory, 0) : buffer_of(size, flags, memory);
    struct failing failing = {new_queue(0), clCreateUserEvent(context, &error)};
    OK(error);
    memset(memory, 0x11, size);
    EXPECT(pthread_create(&thread, NULL, fail_gate, &failing), 0);
    OK(transfer_so(way, failing.queue, mem, size, memory, &failing.gate, &event, &mapped));
    EXPECT(pthread_join(thread, NULL), 0);
    OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
    EXPECT(status < 0, 1);
    EXPECT(clWaitForEvents(1, &event), CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    expect_all(memory, size, 0x11);
    if (mapped != NULL) {
        OK(clEnqueueUnmapMemObject(queue, mem, mapped, 0, NULL, NULL));
    }
    OK(image ? clEnqueueReadImage(queue, mem, CL_TRUE, zero, pixels, 0, 0, memory, 0, NULL, NULL)
             : clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, size, memory, 0, NULL, NULL));
    expect_all(memory, size, 0x77);
    OK(clReleaseEvent(event));
    OK(clReleaseEvent(failing.gate));
    OK(clReleaseCommandQueue(failing.queue));
    OK(clReleaseMemObject(mem));
    free(memory);
}

/* Its event tells; neither memory nor object is touched. Small ones, such as are copied in place,
 * and some that may need several pieces. */
static void waits_that_fail(void)
{
    static const size_t sizes[] = {4096, MIB, 20 * MIB};
    for (size_t i = 0; i < LENGTH(sizes); i++) {
        for (int way = 0; way < WAYS; way++) {
            fail_transfer(way, sizes[i]);
        }
    }
}

#define AHEAD 200
#define CRAWL                                                                                      \
    100000000 /* steps, each of which needs the one before: a tenth of a second and more */

static cl_uint references_of(cl_mem buffer)
{
    cl_uint count = 0;
    OK(clGetMemObjectInfo(buffer, CL_MEM_REFERENCE_COUNT, sizeof(count), &count, NULL));
    return count;
}

static int first_of(cl_command_queue where, cl_mem buffer)
{
    int value = 0;
    OK(clEnqueueReadBuffer(where, buffer, CL_TRUE, 0, sizeof(value), &value, 0, NULL, NULL));
    return value;
}

/* Writes that block, without anything that shows whether they have waited. */
static void writes_in_order(void)
{
    const size_t one = 1;
    const int more = 1000;
    cl_int error = CL_SUCCESS;
    cl_mem buffer = buffer_of(64, CL_MEM_READ_WRITE, NULL);
    cl_kernel kernel = clCreateKernel(program, "add", &error);
    OK(error);
    OK(clSetKernelArg(kernel, 0, sizeof(buffer), &buffer));
    OK(clSetKernelArg(kernel, 1, sizeof(more), &more));
    for (int i = 0; i < AHEAD; i++) {
        int value = i;
        OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof(value), &value, 0, NULL, NULL));
        value = -1;
        OK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL));
    }
    EXPECT(first_of(queue, buffer), AHEAD - 1 + more);
    OK(clReleaseKernel(kernel));
    OK(clReleaseMemObject(buffer));
}

/* Behind a kernel that takes its time; the shape of the write is known to succeed. */
static cl_mem written_behind(int value)
{
    const int before = 1;
    cl_mem buffer = buffer_of(64, CL_MEM_READ_WRITE, NULL);
    cl_mem busy = buffer_of(64, CL_MEM_READ_WRITE, NULL);
    OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof(before), &before, 0, NULL, NULL));
    launch(queue, "crawl", busy, CRAWL, 1, 0, NULL);
    OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, sizeof(value), &value, 0, NULL, NULL));
    OK(clReleaseMemObject(busy));
    return buffer;
}

/* Whatever could tell that a write which blocks has not waited finds it complete. */
static void writes_are_complete(void)
{
    cl_mem counted = written_behind(11);
    EXPECT(references_of(counted), 1);
    cl_mem buffer = written_behind(12);
    cl_command_queue other = new_queue(0);
    launch(other, "add", buffer, 100, 1, 0, NULL);
    EXPECT(first_of(other, buffer), 112);
    EXPECT(first_of(other, counted), 11);
    OK(clReleaseMemObject(buffer));
    buffer = written_behind(13); /* now with a second queue */
    launch(other, "add", buffer, 100, 1, 0, NULL);
    EXPECT(first_of(other, buffer), 113);
    OK(clReleaseCommandQueue(other));
    OK(clReleaseMemObject(buffer));
    OK(clReleaseMemObject(counted));
}

/* The same of the queue's end. */
static void queue_ends_behind_write(void)
{
    cl_mem buffer = written_behind(14);
    OK(clReleaseCommandQueue(queue));
    queue = new_queue(0);
    launch(queue, "add", buffer, 100, 1, 0, NULL);
    EXPECT(first_of(queue, buffer), 114);
    OK(clReleaseMemObject(buffer));
}

int main(int argc, char **argv)
{
#define S(name) {#name, name, false}
    static const struct scenario scenarios[] = {
        S(maps),
        S(what_is_told),
        S(parts),
        S(given_up_in_use),
        S(transfers_are_whole),
        S(blocking_events),
        S(waits_that_fail),
        S(write_from_gated_read),
        S(write_from_parts_of_reads),
        S(rows_from_gated_reads),
        S(write_beside_gated_read),
        S(maps_beside_transfers),
        S(others_keep_transferring),
        S(many_threads),
        S(image_maps),
        S(image_maps_later),
        S(image_of_buffer),
        S(image_given_up_in_use),
        S(images_come_and_go),
        S(image_transfers),
        S(image_transfers_are_whole),
        S(image_mapped_often),
        S(writes_in_order),
        S(writes_are_complete),
        S(queue_ends_behind_write),
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
