/*
 * opencl_client.c - an application for the tests: `opencl_client SCENARIO...` uses OpenCL through
 * the system's loader and fails at the first thing that is not as the API says. Every scenario but
 * those marked also holds for native OpenCL.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS

#include "scenarios.h"

#include <pthread.h>
#include <sys/wait.h>

#define COUNT 4096u
#define THREADS 8
#define ROUNDS 200

static const char *const source =
    "__kernel void scale(__global const int *from, __global int *to, int factor, __local int *t)\n"
    "{ int i = get_global_id(0); t[get_local_id(0)] = from[i]; to[i] = t[get_local_id(0)] * "
    "factor; }\n"
    "struct many { long words[8]; };\n"
    "__kernel void add(__global int *to, struct many values)\n"
    "{ to[get_global_id(0)] += (int)values.words[get_global_id(0) % 8]; }\n";

struct setting {
    cl_platform_id platform;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_program program;
};

static struct setting open_setting(void)
{
    struct setting setting;
    cl_uint count = 0;
    cl_int error = CL_SUCCESS;
    EXPECT(clGetPlatformIDs(1, &setting.platform, &count), CL_SUCCESS);
    EXPECT(count, 1);
    EXPECT(clGetDeviceIDs(setting.platform, CL_DEVICE_TYPE_ALL, 1, &setting.device, NULL),
           CL_SUCCESS);
    setting.context = clCreateContext(NULL, 1, &setting.device, NULL, NULL, &error);
    EXPECT(error, CL_SUCCESS);
    setting.queue = clCreateCommandQueue(setting.context, setting.device, 0, &error);
    EXPECT(error, CL_SUCCESS);
    setting.program =
        clCreateProgramWithSource(setting.context, 1, (const char **)&source, NULL, &error);
    EXPECT(error, CL_SUCCESS);
    EXPECT(clBuildProgram(setting.program, 0, NULL, NULL, NULL, NULL), CL_SUCCESS);
    return setting;
}

static void close_setting(struct setting *setting)
{
    EXPECT(clReleaseProgram(setting->program), CL_SUCCESS);
    EXPECT(clReleaseCommandQueue(setting->queue), CL_SUCCESS);
    EXPECT(clReleaseContext(setting->context), CL_SUCCESS);
}

static cl_kernel kernel_of(const struct setting *setting, const char *name)
{
    cl_int error = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(setting->program, name, &error);
    EXPECT(error, CL_SUCCESS);
    return kernel;
}

static cl_mem buffer_of(const struct setting *setting, size_t size, cl_mem_flags flags, void *data)
{
    cl_int error = CL_SUCCESS;
    cl_mem buffer = clCreateBuffer(setting->context, flags, size, data, &error);
    EXPECT(error, CL_SUCCESS);
    return buffer;
}

/* from[i] = i, so that scaled data shows the factor and the place. */
static void fill(int *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = (int)i;
    }
}

static void check_scaled(const int *values, size_t count, int factor)
{
    for (size_t i = 0; i < count; i++) {
        EXPECT(values[i], (int)i * factor);
    }
}

/* Sets all arguments and launches; the factor is what changes from launch to launch. */
static void scale(cl_command_queue queue, cl_kernel kernel, cl_mem from, cl_mem to, int factor,
                  cl_event *event)
{
    const size_t global = COUNT;
    const size_t local = 64;
    EXPECT(clSetKernelArg(kernel, 0, sizeof(from), &from), CL_SUCCESS);
    EXPECT(clSetKernelArg(kernel, 1, sizeof(to), &to), CL_SUCCESS);
    EXPECT(clSetKernelArg(kernel, 2, sizeof(factor), &factor), CL_SUCCESS);
    EXPECT(clSetKernelArg(kernel, 3, local * sizeof(int), NULL), CL_SUCCESS);
    EXPECT(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, &local, 0, NULL, event),
           CL_SUCCESS);
}

static void scenario_launch(void)
{
    static int values[COUNT];
    static int result[COUNT];
    struct setting setting = open_setting();
    cl_kernel kernel = kernel_of(&setting, "scale");
    fill(values, COUNT);
    cl_mem from = buffer_of(&setting, sizeof(values), CL_MEM_COPY_HOST_PTR, values);
    cl_mem to[2] = {buffer_of(&setting, sizeof(values), 0, NULL),
                    buffer_of(&setting, sizeof(values), 0, NULL)};
    for (int i = 0; i < ROUNDS; i++) {
        scale(setting.queue, kernel, from, to[i % 2], i, NULL);
        memset(result, 0xff, sizeof(result));
        EXPECT(clEnqueueReadBuffer(setting.queue, to[i % 2], i % 3 == 0, 0, sizeof(result), result,
                                   0, NULL, NULL),
               CL_SUCCESS);
        EXPECT(clFinish(setting.queue), CL_SUCCESS);
        check_scaled(result, COUNT, i);
    }
    long words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const size_t global = COUNT;
    cl_kernel add = kernel_of(&setting, "add");
    EXPECT(clEnqueueWriteBuffer(setting.queue, to[0], CL_FALSE, 0, sizeof(values), values, 0, NULL,
                                NULL),
           CL_SUCCESS);
    for (int i = 0; i < 4; i++) {
        words[7] = i;
        EXPECT(clSetKernelArg(add, 0, sizeof(to[0]), &to[0]), CL_SUCCESS);
        EXPECT(clSetKernelArg(add, 1, sizeof(words), words), CL_SUCCESS);
        EXPECT(clEnqueueNDRangeKernel(setting.queue, add, 1, NULL, &global, NULL, 0, NULL, NULL),
               CL_SUCCESS);
    }
    EXPECT(clEnqueueReadBuffer(setting.queue, to[0], CL_TRUE, 0, sizeof(result), result, 0, NULL,
                               NULL),
           CL_SUCCESS);
    for (size_t i = 0; i < COUNT; i++) {
        EXPECT(result[i], (int)i + (i % 8 == 7 ? 0 + 1 + 2 + 3 : 4 * (int)(i % 8 + 1)));
    }
    EXPECT(clReleaseKernel(add), CL_SUCCESS);
    EXPECT(clReleaseKernel(kernel), CL_SUCCESS);
    EXPECT(clReleaseMemObject(from), CL_SUCCESS);
    EXPECT(clReleaseMemObject(to[0]), CL_SUCCESS);
    EXPECT(clReleaseMemObject(to[1]), CL_SUCCESS);
    close_setting(&setting);
}

/* Every way to see that a non-blocking read is complete must also bring its data. */
static void scenario_observe(void)
{
    static int values[COUNT];
    static int result[COUNT];
    struct setting setting = open_setting();
    cl_int error = CL_SUCCESS;
    cl_command_queue other = clCreateCommandQueue(setting.context, setting.device, 0, &error);
    EXPECT(error, CL_SUCCESS);
    fill(values, COUNT);
    cl_mem buffer = buffer_of(&setting, sizeof(values), CL_MEM_COPY_HOST_PTR, values);
    for (int way = 0; way < 6; way++) {
        cl_event event = NULL;
        cl_event later = NULL;
        cl_int status = CL_QUEUED;
        int one = 0;
        memset(result, 0xff, sizeof(result));
        EXPECT(clEnqueueReadBuffer(setting.queue, buffer, CL_FALSE, 0, sizeof(result), result, 0,
                                   NULL, &event),
               CL_SUCCESS);
        switch (way) {
        case 0:
            EXPECT(clWaitForEvents(1, &event), CL_SUCCESS);
            break;
        case 1:
            EXPECT(clFlush(setting.queue), CL_SUCCESS);
            while (status != CL_COMPLETE) {
                EXPECT(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status),
                                      &status, NULL),
                       CL_SUCCESS);
            }
            break;
        case 2:
            EXPECT(clEnqueueMarkerWithWaitList(setting.queue, 0, NULL, &later), CL_SUCCESS);
            EXPECT(clWaitForEvents(1, &later), CL_SUCCESS);
            break;
        case 3: /* through another queue that waited for it */
            EXPECT(clEnqueueMarkerWithWaitList(other, 1, &event, &later), CL_SUCCESS);
            EXPECT(clFlush(setting.queue), CL_SUCCESS);
            EXPECT(clWaitForEvents(1, &later), CL_SUCCESS);
            break;
        case 4: /* a blocking read of the same queue comes after it */
            EXPECT(clEnqueueReadBuffer(setting.queue, buffer, CL_TRUE, 4, sizeof(one), &one, 0,
                                       NULL, NULL),
                   CL_SUCCESS);
            EXPECT(one, 1);
            break;
        default:
            EXPECT(clFinish(setting.queue), CL_SUCCESS);
            break;
        }
        check_scaled(result, COUNT, 1);
        EXPECT(clReleaseEvent(event), CL_SUCCESS);
        if (later != NULL) {
            EXPECT(clReleaseEvent(later), CL_SUCCESS);
        }
    }
    /* Many at once: more than one message asks for. */
    static int many[100][16];
    memset(many, 0xff, sizeof(many));
    for (size_t i = 0; i < 100; i++) {
        EXPECT(clEnqueueReadBuffer(setting.queue, buffer, CL_FALSE, 0, sizeof(many[i]), many[i], 0,
                                   NULL, NULL),
               CL_SUCCESS);
    }
    EXPECT(clFinish(setting.queue), CL_SUCCESS);
    for (size_t i = 0; i < 100; i++) {
        check_scaled(many[i], 16, 1);
    }
    EXPECT(clReleaseMemObject(buffer), CL_SUCCESS);
    EXPECT(clReleaseCommandQueue(other), CL_SUCCESS);
    close_setting(&setting);
}

static void scenario_bulk(void)
{
    const size_t size = (size_t)96 << 20; /* more than a session's memory */
    struct setting setting = open_setting();
    uint32_t *values = malloc(size);
    uint32_t *result = malloc(size);
    EXPECT(values != NULL && result != NULL, 1);
    for (size_t i = 0; i < size / 4; i++) {
        values[i] = (uint32_t)(i * 2654435761u);
    }
    cl_mem first = buffer_of(&setting, size, CL_MEM_COPY_HOST_PTR, values);
    cl_mem second = buffer_of(&setting, size, 0, NULL);
    memset(result, 0, size);
    EXPECT(clEnqueueReadBuffer(setting.queue, first, CL_TRUE, 0, size, result, 0, NULL, NULL),
           CL_SUCCESS);
    EXPECT(memcmp(values, result, size), 0);
    EXPECT(clEnqueueWriteBuffer(setting.queue, second, CL_FALSE, 0, size, values, 0, NULL, NULL),
           CL_SUCCESS);
    memset(result, 0, size);
    EXPECT(clEnqueueReadBuffer(setting.queue, second, CL_FALSE, 0, size, result, 0, NULL, NULL),
           CL_SUCCESS);
    EXPECT(clFinish(setting.queue), CL_SUCCESS);
    EXPECT(memcmp(values, result, size), 0);
    /* Many small ones, so that the memory between client and server is used over and over. */
    for (uint32_t i = 0; i < 2000; i++) {
        size_t bytes = 4096 + i * 64;
        EXPECT(clEnqueueWriteBuffer(setting.queue, second, CL_FALSE, i * 4096, 4096, values + i, 0,
                                    NULL, NULL),
               CL_SUCCESS);
        EXPECT(
            clEnqueueWriteBuffer(setting.queue, first, CL_FALSE, 0, bytes, values, 0, NULL, NULL),
            CL_SUCCESS);
    }
    EXPECT(
        clEnqueueReadBuffer(setting.queue, second, CL_TRUE, 0, 2000 * 4096, result, 0, NULL, NULL),
        CL_SUCCESS);
    for (uint32_t i = 0; i < 2000; i++) {
        EXPECT(memcmp(result + i * 1024, values + i, 4096), 0);
    }
    EXPECT(clReleaseMemObject(first), CL_SUCCESS);
    EXPECT(clReleaseMemObject(second), CL_SUCCESS);
    free(values);
    free(result);
    close_setting(&setting);
}

static void scenario_map(void)
{
    static int values[COUNT];
    static int result[COUNT];
    struct setting setting = open_setting();
    cl_int error = CL_SUCCESS;
    fill(values, COUNT);
    cl_mem buffer = buffer_of(&setting, sizeof(values), CL_MEM_COPY_HOST_PTR, values);
    int *mapped = clEnqueueMapBuffer(setting.queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 64,
                                     256, 0, NULL, NULL, &error);
    EXPECT(error, CL_SUCCESS);
    for (int i = 0; i < 64; i++) {
        EXPECT(mapped[i], 16 + i);
        mapped[i] = -i;
    }
    EXPECT(clEnqueueUnmapMemObject(setting.queue, buffer, mapped, 0, NULL, NULL), CL_SUCCESS);
    EXPECT(clEnqueueReadBuffer(setting.queue, buffer, CL_TRUE, 0, sizeof(result), result, 0, NULL,
                               NULL),
           CL_SUCCESS);
    for (int i = 0; i < (int)COUNT; i++) {
        EXPECT(result[i], i >= 16 && i < 80 ? 16 - i : i);
    }
    EXPECT(clEnqueueUnmapMemObject(setting.queue, buffer, result, 0, NULL, NULL), CL_INVALID_VALUE);
    int pattern = 7;
    EXPECT(
        clEnqueueFillBuffer(setting.queue, buffer, &pattern, sizeof(pattern), 0, 64, 0, NULL, NULL),
        CL_SUCCESS);
    EXPECT(clEnqueueCopyBuffer(setting.queue, buffer, buffer, 0, 1024, 64, 0, NULL, NULL),
           CL_SUCCESS);
    const cl_buffer_region part = {1024, 1024};
    cl_mem sub = clCreateSubBuffer(buffer, 0, CL_BUFFER_CREATE_TYPE_REGION, &part, &error);
    EXPECT(error, CL_SUCCESS);
    EXPECT(clEnqueueReadBuffer(setting.queue, sub, CL_TRUE, 0, 1024, result, 0, NULL, NULL),
           CL_SUCCESS);
    EXPECT(result[0], 7);
    EXPECT(result[15], 7);
    EXPECT(result[16], 256 + 16);
    cl_mem whole = NULL;
    EXPECT(clGetMemObjectInfo(sub, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof(whole), &whole, NULL),
           CL_SUCCESS);
    EXPECT(whole == buffer, 1);
    const size_t buffer_origin[3] = {16, 2, 0};
    const size_t host_origin[3] = {4, 1, 0};
    const size_t region[3] = {8, 3, 1};
    memset(result, 0, sizeof(result));
    EXPECT(clEnqueueWriteBuffer(setting.queue, buffer, CL_TRUE, 0, sizeof(values), values, 0, NULL,
                                NULL),
           CL_SUCCESS);
    EXPECT(clEnqueueReadBufferRect(setting.queue, buffer, CL_TRUE, buffer_origin, host_origin,
                                   region, 64, 0, 32, 0, result, 0, NULL, NULL),
           CL_SUCCESS);
    for (int row = 0; row < 3; row++) {
        EXPECT(result[(1 + row) * 8 + 1], (2 + row) * 16 + 4);
        EXPECT(result[(1 + row) * 8 + 2], (2 + row) * 16 + 5);
        EXPECT(result[(1 + row) * 8 + 3], 0);
    }
    EXPECT(clReleaseMemObject(sub), CL_SUCCESS);
    EXPECT(clReleaseMemObject(buffer), CL_SUCCESS);
    close_setting(&setting);
}

static void scenario_errors(void)
{
    static int values[COUNT];
    struct setting setting = open_setting();
    cl_int error = CL_SUCCESS;
    const size_t global = COUNT;
    cl_kernel kernel = kernel_of(&setting, "scale");
    cl_mem buffer = buffer_of(&setting, sizeof(values), 0, NULL);
    int factor = 1;
    EXPECT(clEnqueueNDRangeKernel(setting.queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL),
           CL_INVALID_KERNEL_ARGS);
    EXPECT(clSetKernelArg(kernel, 9, sizeof(factor), &factor), CL_INVALID_ARG_INDEX);
    EXPECT(clSetKernelArg(kernel, 2, 2, &factor), CL_INVALID_ARG_SIZE);
    EXPECT(clCreateKernel(setting.program, "none", &error) == NULL, 1);
    EXPECT(error, CL_INVALID_KERNEL_NAME);
    EXPECT(clCreateBuffer(setting.context, 0, 0, NULL, &error) == NULL, 1);
    EXPECT(error, CL_INVALID_BUFFER_SIZE);
    EXPECT(clCreateBuffer(setting.context, 0, 16, values, &error) == NULL, 1);
    EXPECT(error, CL_INVALID_HOST_PTR);
    for (int i = 0; i < 3; i++) {
        EXPECT(clEnqueueReadBuffer(setting.queue, buffer, CL_FALSE, 8, sizeof(values), values, 0,
                                   NULL, NULL),
               CL_INVALID_VALUE);
        EXPECT(clEnqueueWriteBuffer(setting.queue, buffer, CL_FALSE, 0, 4, values, 0, NULL, NULL),
               CL_SUCCESS);
        EXPECT(clEnqueueWriteBuffer(setting.queue, buffer, CL_FALSE, SIZE_MAX, 4, values, 0, NULL,
                                    NULL),
               CL_INVALID_VALUE);
    }
    EXPECT(clFinish(NULL), CL_INVALID_COMMAND_QUEUE);
    EXPECT(clWaitForEvents(0, NULL), CL_INVALID_VALUE);
    EXPECT(clGetDeviceInfo(setting.device, 0xffff, 0, NULL, NULL), CL_INVALID_VALUE);
    char tiny = 0;
    EXPECT(clGetDeviceInfo(setting.device, CL_DEVICE_NAME, 1, &tiny, NULL), CL_INVALID_VALUE);
    /* An event of another context is refused at once, also when the same call has succeeded before.
     */
    cl_context context = clCreateContext(NULL, 1, &setting.device, NULL, NULL, &error);
    cl_event foreign = clCreateUserEvent(context, &error);
    EXPECT(error, CL_SUCCESS);
    EXPECT(clEnqueueMarkerWithWaitList(setting.queue, 0, NULL, NULL), CL_SUCCESS);
    EXPECT(clEnqueueWriteBuffer(setting.queue, buffer, CL_FALSE, 0, 4, values, 1, &foreign, NULL),
           CL_INVALID_CONTEXT);
    EXPECT(clSetUserEventStatus(foreign, CL_COMPLETE), CL_SUCCESS);
    EXPECT(clReleaseEvent(foreign), CL_SUCCESS);
    EXPECT(clReleaseContext(context), CL_SUCCESS);
    const char *broken = "__kernel void broken(";
    char log[65536] = "";
    cl_program program = clCreateProgramWithSource(setting.context, 1, &broken, NULL, &error);
    EXPECT(clBuildProgram(program, 1, &setting.device, "", NULL, NULL), CL_BUILD_PROGRAM_FAILURE);
    EXPECT(clGetProgramBuildInfo(program, setting.device, CL_PROGRAM_BUILD_LOG, sizeof(log), log,
                                 NULL),
           CL_SUCCESS);
    EXPECT(strstr(log, "error") != NULL, 1);
    EXPECT(clReleaseProgram(program), CL_SUCCESS);
    EXPECT(clFinish(setting.queue), CL_SUCCESS);
    EXPECT(clReleaseKernel(kernel), CL_SUCCESS);
    EXPECT(clReleaseMemObject(buffer), CL_SUCCESS);
    close_setting(&setting);
}

/* Not native: objects that are none, of which the real library may crash. */
static void scenario_stale(void)
{
    struct setting setting = open_setting();
    struct setting copy;
    cl_int error = CL_SUCCESS;
    int value = 0;
    cl_mem buffer = buffer_of(&setting, 64, 0, NULL);
    cl_mem gone = buffer_of(&setting, 64, 0, NULL);
    cl_kernel kernel = kernel_of(&setting, "scale");
    EXPECT(clReleaseMemObject(gone), CL_SUCCESS);
    EXPECT(clEnqueueReadBuffer(setting.queue, gone, CL_TRUE, 0, 4, &value, 0, NULL, NULL),
           CL_INVALID_MEM_OBJECT);
    EXPECT(clSetKernelArg(kernel, 0, sizeof(gone), &gone), CL_INVALID_MEM_OBJECT);
    EXPECT(clEnqueueReadBuffer(setting.queue, (cl_mem)kernel, CL_TRUE, 0, 4, &value, 0, NULL, NULL),
           CL_INVALID_MEM_OBJECT);
    EXPECT(clFinish((cl_command_queue)buffer), CL_INVALID_COMMAND_QUEUE);
    memcpy(&copy, &setting, sizeof(copy));
    /* Looks like an object to the loader, which calls through the first pointer, but is none of
     * ours. */
    void *imitation[32];
    memcpy(imitation, setting.queue, sizeof(imitation));
    EXPECT(clFinish((cl_command_queue)imitation), CL_INVALID_COMMAND_QUEUE);
    EXPECT(clCreateImage2D(setting.context, 0, NULL, 1, 1, 0, NULL, &error) == NULL, 1);
    EXPECT(error, CL_INVALID_IMAGE_FORMAT_DESCRIPTOR);
    EXPECT(clSVMAlloc(setting.context, 0, 64, 0) == NULL, 1);
    EXPECT(clReleaseKernel(kernel), CL_SUCCESS);
    EXPECT(clReleaseMemObject(buffer), CL_SUCCESS);
    close_setting(&copy);
}

static void scenario_objects(void)
{
    struct setting setting = open_setting();
    cl_uint count = 0;
    void *pointer = NULL;
    cl_kernel kernel = kernel_of(&setting, "scale");
    cl_mem buffer = buffer_of(&setting, 64, CL_MEM_READ_ONLY, NULL);
    EXPECT(clGetMemObjectInfo(buffer, CL_MEM_REFERENCE_COUNT, sizeof(count), &count, NULL),
           CL_SUCCESS);
    EXPECT(count, 1);
    EXPECT(clRetainMemObject(buffer), CL_SUCCESS);
    EXPECT(clGetMemObjectInfo(buffer, CL_MEM_REFERENCE_COUNT, sizeof(count), &count, NULL),
           CL_SUCCESS);
    EXPECT(count, 2);
    EXPECT(clReleaseMemObject(buffer), CL_SUCCESS);
    EXPECT(clGetCommandQueueInfo(setting.queue, CL_QUEUE_CONTEXT, sizeof(pointer), &pointer, NULL),
           CL_SUCCESS);
    EXPECT(pointer == (void *)setting.context, 1);
    EXPECT(clGetCommandQueueInfo(setting.queue, CL_QUEUE_DEVICE, sizeof(pointer), &pointer, NULL),
           CL_SUCCESS);
    EXPECT(pointer == (void *)setting.device, 1);
    EXPECT(clGetDeviceInfo(setting.device, CL_DEVICE_PLATFORM, sizeof(pointer), &pointer, NULL),
           CL_SUCCESS);
    EXPECT(pointer == (void *)setting.platform, 1);
    EXPECT(clGetContextInfo(setting.context, CL_CONTEXT_DEVICES, sizeof(pointer), &pointer, NULL),
           CL_SUCCESS);
    EXPECT(pointer == (void *)setting.device, 1);
    EXPECT(clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof(pointer), &pointer, NULL), CL_SUCCESS);
    EXPECT(pointer == (void *)setting.program, 1);
    EXPECT(clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof(count), &count, NULL), CL_SUCCESS);
    EXPECT(count, 4);
    /* A queue keeps its context alive, and the context can be had from it. */
    EXPECT(clReleaseContext(setting.context), CL_SUCCESS);
    EXPECT(clGetCommandQueueInfo(setting.queue, CL_QUEUE_CONTEXT, sizeof(pointer), &pointer, NULL),
           CL_SUCCESS);
    setting.context = pointer;
    EXPECT(clRetainContext(setting.context), CL_SUCCESS);
    cl_mem another = buffer_of(&setting, 64, 0, NULL);
    /* Binaries: out and in again. */
    size_t size = 0;
    cl_int status = -1;
    cl_int error = CL_SUCCESS;
    EXPECT(clGetProgramInfo(setting.program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, NULL),
           CL_SUCCESS);
    unsigned char *binary = malloc(size);
    EXPECT(clGetProgramInfo(setting.program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL),
           CL_SUCCESS);
    cl_program program =
        clCreateProgramWithBinary(setting.context, 1, &setting.device, &size,
                                  (const unsigned char **)&binary, &status, &error);
    EXPECT(error, CL_SUCCESS);
    EXPECT(status, CL_SUCCESS);
    EXPECT(clBuildProgram(program, 1, &setting.device, NULL, NULL, NULL), CL_SUCCESS);
    cl_kernel kernels[4];
    EXPECT(clCreateKernelsInProgram(program, 4, kernels, &count), CL_SUCCESS);
    EXPECT(count, 2);
    EXPECT(clReleaseKernel(kernels[0]), CL_SUCCESS);
    EXPECT(clReleaseKernel(kernels[1]), CL_SUCCESS);
    EXPECT(clReleaseProgram(program), CL_SUCCESS);
    free(binary);
    /* More objects than a chunk of the server's table holds, so that handles are used again. */
    for (int round = 0; round < 3; round++) {
        static cl_mem buffers[3000];
        for (int i = 0; i < 3000; i++) {
            buffers[i] = buffer_of(&setting, 64, 0, NULL);
        }
        for (int i = 0; i < 3000; i++) {
            EXPECT(clReleaseMemObject(buffers[i]), CL_SUCCESS);
        }
    }
    EXPECT(clReleaseMemObject(another), CL_SUCCESS);
    EXPECT(clReleaseMemObject(buffer), CL_SUCCESS);
    EXPECT(clReleaseKernel(kernel), CL_SUCCESS);
    close_setting(&setting);
}

static void write_header(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    EXPECT(file != NULL, 1);
    fputs(text, file);
    EXPECT(fclose(file), 0);
}

/* Headers lie where the application runs. */
static void scenario_include(void)
{
    const char *text =
        "#include \"outer.h\"\n__kernel void put(__global int *to)\n"
        "{ to[get_global_id(0)] = VALUE; }\n#ifdef WRONG\n#error wrong here\n#endif\n";
    char folder[] = "/tmp/wormhole-include-XXXXXX";
    char options[300];
    char log[4096] = "";
    const size_t global = 4;
    int result[4] = {0};
    cl_int error = CL_SUCCESS;
    struct setting setting = open_setting();
    EXPECT(mkdtemp(folder) != NULL, 1);
    write_header(folder, "outer.h", "#include <inner.h>\n#define VALUE (INNER + 1)\n");
    write_header(folder, "inner.h", "#define INNER 41");
    cl_program program = clCreateProgramWithSource(setting.context, 1, &text, NULL, &error);
    EXPECT(error, CL_SUCCESS);
    snprintf(options, sizeof(options), "-I %s -DWRONG", folder);
    EXPECT(clBuildProgram(program, 1, &setting.device, options, NULL, NULL),
           CL_BUILD_PROGRAM_FAILURE);
    EXPECT(clGetProgramBuildInfo(program, setting.device, CL_PROGRAM_BUILD_LOG, sizeof(log), log,
                                 NULL),
           CL_SUCCESS);
    EXPECT(strstr(log, ":5:") != NULL && strstr(log, "wrong here") != NULL, 1);
    snprintf(options, sizeof(options), "-cl-std=CL1.2 -I%s", folder);
    EXPECT(clBuildProgram(program, 1, &setting.device, options, NULL, NULL), CL_SUCCESS);
    cl_kernel kernel = clCreateKernel(program, "put", &error);
    EXPECT(error, CL_SUCCESS);
    cl_mem buffer = buffer_of(&setting, sizeof(result), 0, NULL);
    EXPECT(clSetKernelArg(kernel, 0, sizeof(buffer), &buffer), CL_SUCCESS);
    EXPECT(clEnqueueNDRangeKernel(setting.queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL),
           CL_SUCCESS);
    EXPECT(clEnqueueReadBuffer(setting.queue, buffer, CL_TRUE, 0, sizeof(result), result, 0, NULL,
                               NULL),
           CL_SUCCESS);
    EXPECT(result[0], 42);
    EXPECT(result[3], 42);
    EXPECT(clReleaseMemObject(buffer), CL_SUCCESS);
    EXPECT(clReleaseKernel(kernel), CL_SUCCESS);
    EXPECT(clReleaseProgram(program), CL_SUCCESS);
    close_setting(&setting);
    snprintf(options, sizeof(options), "%s/outer.h", folder);
    EXPECT(unlink(options), 0);
    snprintf(options, sizeof(options), "%s/inner.h", folder);
    EXPECT(unlink(options), 0);
    EXPECT(rmdir(folder), 0);
}

struct thread {
    pthread_t id;
    const struct setting *setting;
    cl_event event;
    int number;
};

static void *work(void *data)
{
    const struct thread *thread = data;
    int *values = malloc(COUNT * sizeof(int));
    int *result = malloc(COUNT * sizeof(int));
    cl_int error = CL_SUCCESS;
    cl_command_queue queue =
        clCreateCommandQueue(thread->setting->context, thread->setting->device, 0, &error);
    EXPECT(error, CL_SUCCESS);
    cl_kernel kernel = kernel_of(thread->setting, "scale");
    fill(values, COUNT);
    cl_mem from = buffer_of(thread->setting, COUNT * sizeof(int), CL_MEM_COPY_HOST_PTR, values);
    cl_mem to = buffer_of(thread->setting, COUNT * sizeof(int), 0, NULL);
    for (int i = 1; i < 40; i++) {
        cl_event event = NULL;
        scale(queue, kernel, from, to, thread->number * 1000 + i, NULL);
        memset(result, 0xff, COUNT * sizeof(int));
        EXPECT(clEnqueueReadBuffer(queue, to, CL_FALSE, 0, COUNT * sizeof(int), result, 0, NULL,
                                   &event),
               CL_SUCCESS);
        EXPECT(i % 2 == 0 ? clFinish(queue) : clWaitForEvents(1, &event), CL_SUCCESS);
        check_scaled(result, COUNT, thread->number * 1000 + i);
        EXPECT(clReleaseEvent(event), CL_SUCCESS);
    }
    EXPECT(clReleaseMemObject(from), CL_SUCCESS);
    EXPECT(clReleaseMemObject(to), CL_SUCCESS);
    EXPECT(clReleaseKernel(kernel), CL_SUCCESS);
    EXPECT(clReleaseCommandQueue(queue), CL_SUCCESS);
    free(values);
    free(result);
    return NULL;
}

static void *wait_for_event(void *data)
{
    const struct thread *thread = data;
    EXPECT(clWaitForEvents(1, &thread->event), CL_SUCCESS);
    return NULL;
}

static void scenario_threads(void)
{
    struct setting setting = open_setting();
    struct thread threads[THREADS] = {0};
    struct thread waiter = {.setting = &setting};
    cl_int error = CL_SUCCESS;
    /* One thread blocks until this one sets its event; nobody else may be held up. */
    waiter.event = clCreateUserEvent(setting.context, &error);
    EXPECT(error, CL_SUCCESS);
    EXPECT(pthread_create(&waiter.id, NULL, wait_for_event, &waiter), 0);
    for (int i = 0; i < THREADS; i++) {
        threads[i].setting = &setting;
        threads[i].number = i;
        EXPECT(pthread_create(&threads[i].id, NULL, work, &threads[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i].id, NULL), 0);
    }
    EXPECT(clSetUserEventStatus(waiter.event, CL_COMPLETE), CL_SUCCESS);
    EXPECT(pthread_join(waiter.id, NULL), 0);
    EXPECT(clReleaseEvent(waiter.event), CL_SUCCESS);
    close_setting(&setting);
}

/* Not native: a child does not have its parent's session, but can have its own. */
static void scenario_fork(void)
{
    struct setting setting = open_setting();
    int status = 0;
    cl_mem buffer = buffer_of(&setting, 64, 0, NULL);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int value = 0;
        EXPECT(clFinish(setting.queue), CL_INVALID_COMMAND_QUEUE);
        EXPECT(clReleaseMemObject(buffer), CL_INVALID_MEM_OBJECT);
        EXPECT(clEnqueueReadBuffer(setting.queue, buffer, CL_TRUE, 0, 4, &value, 0, NULL, NULL),
               CL_INVALID_COMMAND_QUEUE);
        scenario_launch();
        exit(0);
    }
    EXPECT(child > 0, 1);
    EXPECT(waitpid(child, &status, 0), child);
    EXPECT(status, 0);
    EXPECT(clFinish(setting.queue), CL_SUCCESS);
    EXPECT(clReleaseMemObject(buffer), CL_SUCCESS);
    close_setting(&setting);
    scenario_launch();
}

/* Kills the worker of this session: the only child of the server that appeared. */
static void *kill_worker(void *data)
{
    (void)data;
    usleep(300 * 1000);
    EXPECT(system("kill -9 $(pgrep -P $(cat \"$SUPERVISOR_PID_FILE\") wormhole-worker)"), 0);
    return NULL;
}

/* Not native: the server dies while one call waits. */
static void scenario_lost(void)
{
    struct setting setting = open_setting();
    pthread_t killer;
    cl_int error = CL_SUCCESS;
    cl_event never = clCreateUserEvent(setting.context, &error);
    EXPECT(error, CL_SUCCESS);
    EXPECT(pthread_create(&killer, NULL, kill_worker, NULL), 0);
    EXPECT(clWaitForEvents(1, &never) != CL_SUCCESS, 1);
    EXPECT(pthread_join(killer, NULL), 0);
    EXPECT(clFinish(setting.queue) != CL_SUCCESS, 1);
    clCreateBuffer(setting.context, 0, 64, NULL, &error);
    EXPECT(error != CL_SUCCESS, 1);
    EXPECT(clReleaseCommandQueue(setting.queue) != CL_SUCCESS, 1);
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        {"launch", scenario_launch, false},   {"observe", scenario_observe, false},
        {"bulk", scenario_bulk, false},       {"map", scenario_map, false},
        {"errors", scenario_errors, false},   {"objects", scenario_objects, false},
        {"threads", scenario_threads, false}, {"stale", scenario_stale, true},
        {"fork", scenario_fork, true},        {"lost", scenario_lost, true},
        {"include", scenario_include, false},
    };
    return run_scenarios(scenarios, LENGTH(scenarios), argc, argv);
}
