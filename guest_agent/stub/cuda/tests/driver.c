/*
 * driver.c - what programs do with the driver API: tinygrad's and Triton's ways to run a kernel,
 * and what is refused. Every value is known, so that no native run is needed, which the double of a
 * device could not give.
 *
 *     driver FILE          with the test program's kernels, in a form that the device takes
 *     driver FILE common   only what NVIDIA's own driver does, too: a test that it fails is wrong
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wh_cudart.h"
#include "wh_driver.h"

#define COUNT 1000
#define ARGUMENT_BYTES 20 /* of the kernel `scale` */
#define EXTRA_BUFFER ((void *)1)
#define EXTRA_SIZE ((void *)2)

static int failures;
static bool common; /* nothing that only the forwarding refuses */

static void expect(long got, long wanted, const char *what)
{
    if (got != wanted) {
        printf("WRONG %s: %ld instead of %ld\n", what, got, wanted);
        failures++;
    }
}

#define OK(call) expect((call), 0, #call)
#define IS(call, wanted) expect((call), (wanted), #call)

/* x[i] = x[i] * factor + shift */
static void check_values(CUdeviceptr x, int factor, int shift, const char *what)
{
    static int values[COUNT];
    OK(cuMemcpyDtoH_v2(values, x, sizeof(values)));
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        wrong += values[i] != i * factor + shift;
    }
    expect(wrong, 0, what);
}

static void set_values(CUdeviceptr x)
{
    static int values[COUNT];
    for (int i = 0; i < COUNT; i++) {
        values[i] = i;
    }
    OK(cuMemcpyHtoD_v2(x, values, sizeof(values)));
    OK(cuCtxSynchronize()); /* a copy of pageable memory may still be under way */
}

/* tinygrad: a context, a module from memory, arguments packed in a buffer, events. */
static void packed(const void *image)
{
    CUcontext context = NULL;
    CUcontext got = NULL;
    CUmodule module = NULL;
    CUfunction scale = NULL;
    CUfunction none = NULL;
    CUdeviceptr x = 0;
    CUdeviceptr base = 0;
    CUevent events[2];
    size_t size = 0;
    float elapsed_ms = -1;
    int value = -1;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuCtxGetCurrent(&got));
    expect(got == context, 1, "the new context is current");
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    IS(cuModuleGetFunction(&none, module, "no_such_kernel"), 500);
    OK(cuFuncGetAttribute(&value, 0, scale));
    expect(value > 0, 1, "threads of a block");
    OK(cuMemAlloc_v2(&x, COUNT * sizeof(int)));
    OK(cuMemGetAddressRange_v2(&base, &size, x + 40));
    expect(base == x && size == COUNT * sizeof(int), 1, "range");
    IS(cuMemAlloc_v2(&base, 0), 1);
    set_values(x);
    struct {
        CUdeviceptr x;
        int factor, shift, n;
    } arguments = {x, 3, 7, COUNT};
    size = ARGUMENT_BYTES;
    void *extra[] = {EXTRA_BUFFER, &arguments, EXTRA_SIZE, &size, NULL};
    OK(cuEventCreate(&events[0], 0));
    OK(cuEventCreate(&events[1], 0));
    OK(cuEventRecord(events[0], NULL));
    OK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
    OK(cuEventRecord(events[1], NULL));
    OK(cuEventSynchronize(events[1]));
    OK(cuEventElapsedTime(&elapsed_ms, events[0], events[1]));
    expect(elapsed_ms >= 0, 1, "elapsed time");
    check_values(x, 3, 7, "packed arguments");
    size = sizeof(arguments); /* with what the compiler adds for the alignment */
    IS(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra), 701);
    IS(cuLaunchKernel(NULL, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra), 400);
    IS(cuLaunchKernel(scale, 0, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL), 1);
    OK(cuEventDestroy_v2(events[0]));
    OK(cuEventDestroy_v2(events[1]));
    OK(cuMemFree_v2(x));
    OK(cuModuleUnload(module));
    IS(cuModuleUnload(module), 400);
    OK(cuCtxDestroy_v2(context));
    /* The runtime knows nothing of the driver's failures. */
    IS(cudaPeekAtLastError(), 0);
}

/* Triton: the primary context, a launch by a structure, a kernel of the runtime's memory. */
static void structured(const void *image)
{
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUfunction scale = NULL;
    CUstream stream = NULL;
    CUdevice device = -1;
    void *x = NULL;
    CUcontext owner = NULL;
    int type = 0;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetDevice(&device));
    expect(device, 0, "device of the context");
    OK(cuCtxGetDevice_v2(&device, context));
    expect(device, 0, "device of a context");
    OK(cuCtxSynchronize_v2(context));
    OK(cudaMalloc(&x, COUNT * sizeof(int)));
    OK(cuPointerGetAttribute(&type, 2, (CUdeviceptr)(uintptr_t)x));
    expect(type, 2, "memory type");
    OK(cuPointerGetAttribute(&owner, 1, (CUdeviceptr)(uintptr_t)x));
    expect(owner == context, 1, "context of memory");
    IS(cuPointerGetAttribute(&type, 2, (CUdeviceptr)(uintptr_t)&type), 1);
    OK(cuModuleLoadDataEx(&module, image, 0, NULL, NULL));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuStreamCreate(&stream, 1));
    set_values((CUdeviceptr)(uintptr_t)x);
    int factor = 2;
    int shift = 1;
    int n = COUNT;
    void *parameters[] = {&x, &factor, &shift, &n};
    struct {
        unsigned grid[3], block[3], shared_bytes;
        CUstream stream;
        void *attributes;
        unsigned attribute_count;
    } config = {{4, 1, 1}, {256, 1, 1}, 0, stream, NULL, 0};
    OK(cuLaunchKernelEx(&config, scale, parameters, NULL));
    OK(cuStreamSynchronize(stream));
    check_values((CUdeviceptr)(uintptr_t)x, 2, 1, "structure");
    OK(cuMemsetD32_v2((CUdeviceptr)(uintptr_t)x, 0x01020304, COUNT));
    check_values((CUdeviceptr)(uintptr_t)x, 0, 0x01020304, "a pattern of words");
    OK(cuMemsetD8_v2((CUdeviceptr)(uintptr_t)x, 0x11, COUNT * sizeof(int)));
    check_values((CUdeviceptr)(uintptr_t)x, 0, 0x11111111, "a pattern of bytes");
    OK(cuStreamDestroy_v2(stream));
    OK(cuModuleUnload(module));
    OK(cudaFree(x));
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void *without_context(void *unused)
{
    CUdevice device = -1;
    CUdeviceptr x = 0;
    (void)unused;
    IS(cuCtxGetDevice(&device), 201);
    IS(cuMemAlloc_v2(&x, 4), 201);
    return NULL;
}

static void questions(void)
{
    int value = -1;
    char name[256] = "";
    const char *text = NULL;
    size_t bytes = 0;
    void *function = NULL;
    int found = -1;
    pthread_t thread;
    OK(cuDeviceGetCount(&value));
    expect(value > 0, 1, "devices");
    IS(cuDevicePrimaryCtxRelease_v2(0), 201);
    OK(cuDeviceGet(&value, 0));
    IS(cuDeviceGet(&value, 1000), 101);
    OK(cuDeviceGetName(name, sizeof(name), 0));
    expect(strlen(name) > 0, 1, "name");
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    expect(bytes > 0, 1, "memory");
    OK(cuDeviceGetAttribute(&value, 75, 0));
    expect(value > 0, 1, "capability");
    OK(cuGetErrorName(500, &text));
    expect(strcmp(text, "CUDA_ERROR_NOT_FOUND"), 0, "name of a result");
    IS(cuGetErrorName(123456, &text), 1);
    expect(text == NULL, 1, "no name");
    OK(cuGetErrorString(1, &text));
    expect(text != NULL && strlen(text) > 0, 1, "text of a result");
    IS(cuGetErrorString(123456, &text), 1);
    expect(text == NULL, 1, "no text");
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &found));
    expect(function == (void *)cuMemAlloc_v2 && found == 0, 1, "cuMemAlloc by name");
    OK(cuGetProcAddress_v2("cuCtxCreate", &function, 11000, 0, &found));
    expect(function == (void *)cuCtxCreate_v2, 1, "cuCtxCreate of CUDA 11");
    OK(cuGetProcAddress_v2("cuCtxCreate", &function, 12000, 0, &found));
    expect(function == (void *)cuCtxCreate_v3, 1, "cuCtxCreate of CUDA 12");
    OK(cuGetProcAddress_v2("cuStreamGetCtx", &function, 12000, 0, &found));
    expect(function == (void *)cuStreamGetCtx, 1, "cuStreamGetCtx of CUDA 12");
    OK(cuGetProcAddress_v2("cuCtxSynchronize", &function, 12000, 0, &found));
    expect(function == (void *)cuCtxSynchronize, 1, "cuCtxSynchronize of CUDA 12");
    OK(cuGetProcAddress_v2("cuCtxSynchronize", &function, 13000, 0, &found));
    expect(function == (void *)cuCtxSynchronize_v2, 1, "cuCtxSynchronize of CUDA 13");
    OK(cuGetProcAddress_v2("cuCtxCreate", &function, 13000, 0, &found));
    expect(function == (void *)cuCtxCreate_v4, 1, "cuCtxCreate of CUDA 13");
    (void)cuGetProcAddress_v2("cuNoSuchThing", &function, 13000, 0, &found);
    expect(function == NULL && found == 1, 1, "what there is not");
    if (!common) {
        IS(cuGetExportTable((const void **)&function, "0123456789abcdef"), 801);
    }
    OK(pthread_create(&thread, NULL, without_context, NULL));
    OK(pthread_join(thread, NULL));
}

/* tinygrad's graphs: kernels node by node, arguments changed between launches. */
static void graphs(const void *image)
{
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUfunction scale = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode nodes[3];
    CUdeviceptr x = 0;
    CUdeviceptr y = 0;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuMemAlloc_v2(&x, COUNT * sizeof(int)));
    OK(cuMemAlloc_v2(&y, COUNT * sizeof(int)));
    set_values(x);
    int factor = 3;
    int shift = 1;
    int n = COUNT;
    void *parameters[] = {&x, &factor, &shift, &n};
    struct {
        CUfunction function;
        unsigned grid[3], block[3], shared_bytes;
        void **parameters, **extra;
    } kernel = {scale, {4, 1, 1}, {256, 1, 1}, 0, parameters, NULL};
    struct {
        size_t from_place[4];
        int from_type;
        const void *from_host;
        CUdeviceptr from_device;
        void *from_rest[2];
        size_t from_pitch[2], to_place[4];
        int to_type;
        void *to_host;
        CUdeviceptr to_device;
        void *to_rest[2];
        size_t to_pitch[2], width, height, depth;
    } copied = {.from_type = 2,
                .from_device = x,
                .to_type = 2,
                .to_device = y,
                .width = COUNT * sizeof(int),
                .height = 1,
                .depth = 1};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel));
    factor = 100; /* the node has its own */
    OK(cuGraphAddMemcpyNode(&nodes[1], graph, &nodes[0], 1, &copied, context));
    OK(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    OK(cuGraphLaunch(exec, NULL));
    check_values(y, 3, 1, "a graph");
    factor = 2;
    shift = 0;
    OK(cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
    OK(cuGraphLaunch(exec, NULL));
    check_values(y, 6, 2, "a graph with other arguments");
    IS(cuGraphExecKernelNodeSetParams(exec, nodes[1], &kernel), 1);
    copied.height = 2;
    if (!common) {
        IS(cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &copied, context), 801);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree_v2(x));
    OK(cuMemFree_v2(y));
    OK(cuModuleUnload(module));
    OK(cuCtxDestroy_v2(context));
}

static void *runtime_alone(void *unused)
{
    CUcontext context = NULL;
    CUcontext primary = NULL;
    CUcontext own = NULL;
    unsigned flags = 0;
    int active = 0;
    void *x = NULL;
    (void)unused;
    OK(cuCtxGetCurrent(&context));
    expect(context == NULL, 1, "no context before the runtime is used");
    OK(cudaMalloc(&x, 4));
    OK(cudaFree(x));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxGetCurrent(&context));
    expect(context == primary, 1, "the runtime's context");
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    expect(active, 1, "the primary context is active");
    OK(cuCtxCreate_v2(&own, 0, 0));
    OK(cuCtxPopCurrent_v2(&context));
    expect(context == own, 1, "the context on top");
    OK(cuCtxGetCurrent(&context));
    expect(context == primary, 1, "the runtime's context below");
    OK(cuCtxSetCurrent(own));
    OK(cuCtxSetCurrent(NULL));
    OK(cuCtxGetCurrent(&context));
    expect(context == NULL, 1, "nothing below what took the runtime's place");
    OK(cudaMalloc(&x, 4));
    OK(cuCtxGetCurrent(&context));
    expect(context == primary, 1, "the runtime's context again");
    OK(cudaFree(x));
    OK(cuCtxDestroy_v2(own));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return NULL;
}

/* CUDA_MEMCPY2D */
struct copy_rows {
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    CUdeviceptr from_device;
    void *from_array;
    size_t from_pitch, to_x, to_y;
    int to_type;
    void *to_host;
    CUdeviceptr to_device;
    void *to_array;
    size_t to_pitch, width, height;
};

/* CUDA_MEMCPY3D */
struct copy_layers {
    size_t from_place[4];
    int from_type;
    const void *from_host;
    CUdeviceptr from_device;
    void *from_rest[2];
    size_t from_pitch, from_height, to_place[4];
    int to_type;
    void *to_host;
    CUdeviceptr to_device;
    void *to_rest[2];
    size_t to_pitch, to_height, width, height, depth;
};

/* Rectangles and boxes: 6 rows of 16 bytes on the device, of which parts are set and copied. */
static void rectangles(void)
{
    enum { ROW = 16, ROWS = 6 };
    unsigned char bytes[ROWS][ROW];
    unsigned char got[ROWS][ROW];
    CUcontext context = NULL;
    CUdeviceptr x = 0;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&x, sizeof(bytes)));
    OK(cuMemsetD8_v2(x, 0, sizeof(bytes)));
    OK(cuMemsetD2D8_v2(x + 1, ROW, 7, 3, 2));
    OK(cuMemsetD2D16_v2(x + 2 * ROW, ROW, 0x0102, 2, 2));
    OK(cuMemsetD2D32_v2(x + 4 * ROW + 4, ROW, 0x01020304, 2, 2));
    OK(cuMemcpyDtoH_v2(got, x, sizeof(got)));
    memset(bytes, 0, sizeof(bytes));
    for (int row = 0; row < 2; row++) {
        memset(&bytes[row][1], 7, 3);
        memcpy(&bytes[2 + row][0], "\2\1\2\1", 4);
        memcpy(&bytes[4 + row][4], "\4\3\2\1\4\3\2\1", 8);
    }
    expect(memcmp(bytes, got, sizeof(bytes)), 0, "rows that were set");
    struct copy_rows rows = {.from_x = 1,
                             .from_y = 1,
                             .from_type = 1,
                             .from_host = bytes,
                             .from_pitch = ROW,
                             .to_x = 8,
                             .to_y = 0,
                             .to_type = 2,
                             .to_device = x,
                             .to_pitch = ROW,
                             .width = 5,
                             .height = 3};
    for (int i = 0; i < ROW * ROWS; i++) {
        bytes[i / ROW][i % ROW] = (unsigned char)(i + 1);
    }
    OK(cuMemcpyHtoD_v2(x, bytes, sizeof(bytes)));
    OK(cuMemcpy2D_v2(&rows));
    OK(cuMemcpyDtoH_v2(got, x, sizeof(got)));
    int wrong = 0;
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < ROW; i++) {
            bool copied = row < 3 && i >= 8 && i < 13;
            wrong += got[row][i] != (copied ? bytes[row + 1][i - 7] : bytes[row][i]);
        }
    }
    expect(wrong, 0, "rows that were copied");
    /* Layers of three rows: row 1 of each goes to rows 0 and 1 of host memory. */
    struct copy_layers layers = {.from_place = {4, 1, 0, 0},
                                 .from_type = 2,
                                 .from_device = x,
                                 .from_pitch = ROW,
                                 .from_height = 3,
                                 .to_type = 1,
                                 .to_host = got,
                                 .to_pitch = ROW,
                                 .to_height = 1,
                                 .width = 4,
                                 .height = 1,
                                 .depth = 2};
    memset(got, 0, sizeof(got));
    OK(cuMemcpyHtoD_v2(x, bytes, sizeof(bytes)));
    OK(cuMemcpy3D_v2(&layers));
    expect(memcmp(got[0], &bytes[1][4], 4) == 0 && memcmp(got[1], &bytes[4][4], 4) == 0 &&
               got[2][0] == 0,
           1, "layers that were copied");
    OK(cuMemFree_v2(x));
    OK(cuCtxDestroy_v2(context));
}

/* What Triton asks before it launches, and the tensor maps that its kernels take. */
static void asked(const void *image)
{
    _Alignas(64) unsigned char map[128] = {0};
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUmodule owner = NULL;
    CUfunction scale = NULL;
    CUdeviceptr x = 0;
    int value = -1;
    int grid = -1;
    size_t bytes = 0;
    size_t offset = 99;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuFuncGetModule(&owner, scale));
    expect(owner == module, 1, "module of a function");
    OK(cuFuncGetParamInfo(scale, 1, &offset, &bytes));
    expect(offset == 8 && bytes == 4, 1, "place of a parameter");
    IS(cuFuncGetParamInfo(scale, 4, &offset, &bytes), 1);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, scale, 256, 0));
    expect(value > 0, 1, "blocks of a multiprocessor");
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &value, scale, NULL, 0, 0));
    expect(grid > 0 && value > 0 && value <= 1024, 1, "a block's best size");
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, scale, 1, 128));
    expect(bytes > 0, 1, "shared memory that is left");
    struct {
        int id;
        char pad[4];
        unsigned value[16];
    } cluster = {4, {0}, {2, 1, 1}};
    struct {
        unsigned grid[3], block[3], shared_bytes;
        CUstream stream;
        void *attributes;
        unsigned attribute_count;
    } config = {{4, 1, 1}, {128, 1, 1}, 0, NULL, &cluster, 1};
    OK(cuOccupancyMaxActiveClusters(&value, scale, &config));
    expect(value > 0, 1, "clusters at once");
    OK(cuOccupancyMaxPotentialClusterSize(&value, scale, &config));
    expect(value > 0, 1, "a cluster's size");
    OK(cuFuncSetAttribute(scale, 8, 4096));
    OK(cuFuncSetCacheConfig(scale, 1));
    OK(cuMemAlloc_v2(&x, 64 * 64 * 4));
    const uint64_t sizes[] = {64, 64};
    const uint64_t strides[] = {64 * 4};
    const uint32_t box[] = {16, 8};
    const uint32_t steps[] = {1, 1};
    void *address = (void *)(uintptr_t)x;
    OK(cuTensorMapEncodeTiled(map, 7, 2, address, sizes, strides, box, steps, 0, 0, 2, 0));
    int used = 0;
    for (size_t i = 0; i < sizeof(map); i++) {
        used += map[i] != 0;
    }
    expect(used > 0, 1, "a tensor map");
    address = (void *)(uintptr_t)(x + 4);
    IS(cuTensorMapEncodeTiled(map, 7, 2, address, sizes, strides, box, steps, 0, 0, 2, 0), 1);
    address = (void *)(uintptr_t)x;
    IS(cuTensorMapEncodeTiled(map, 7, 0, address, sizes, strides, box, steps, 0, 0, 2, 0), 1);
    IS(cuTensorMapEncodeTiled(map, 7, 6, address, sizes, strides, box, steps, 0, 0, 2, 0), 1);
    IS(cuTensorMapEncodeTiled(NULL, 7, 2, address, sizes, strides, box, steps, 0, 0, 2, 0), 1);
    const uint64_t volume[] = {64, 8, 8, 1};
    const uint64_t volume_strides[] = {256, 2048, 16384};
    const int lower[] = {-1, -1};
    const int upper[] = {-1, -1};
    const uint32_t ones[] = {1, 1, 1, 1};
    OK(cuTensorMapEncodeIm2col(map, 7, 4, address, volume, volume_strides, lower, upper, 16, 32,
                               ones, 0, 0, 0, 0));
    OK(cuMemFree_v2(x));
    OK(cuModuleUnload(module));
    OK(cuCtxDestroy_v2(context));
}

/* Memory of a pool, and what streams have. */
static void pools(void)
{
    CUcontext context = NULL;
    CUmemoryPool pool = NULL;
    CUmemoryPool first = NULL;
    CUdeviceptr x = 0;
    CUstream stream = NULL;
    /* CUmemAllocationProp's beginning: pinned memory of device 0. */
    struct {
        int type, handles, location, id;
        void *attributes;
        size_t max_bytes;
        unsigned short usage;
        unsigned char rest[54];
    } properties = {.type = 1, .location = 1};
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuDeviceGetDefaultMemPool(&first, 0));
    OK(cuMemPoolTrimTo(first, 0));
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocFromPoolAsync(&x, 1000, pool, stream));
    OK(cuMemFreeAsync(x, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolDestroy(pool));
    OK(cuStreamDestroy_v2(stream));
    OK(cuCtxDestroy_v2(context));
}

/* Code that is no code. */
static void refused(void)
{
    CUmodule module = NULL;
    CUcontext context = NULL;
    OK(cuCtxCreate_v2(&context, 0, 0));
    IS(cuModuleLoadData(&module, ".version 8.0\nnonsense"), 218);
    IS(cuModuleLoad(&module, "/no/such/file"), 301);
    IS(cuModuleLoadData(&module, NULL), 1);
    OK(cuCtxDestroy_v2(context));
}

static void *read_image(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *bytes = calloc(1, 1 << 22);
    if (file == NULL || bytes == NULL || fread(bytes, 1, (1 << 22) - 1, file) == 0) {
        printf("cannot read %s\n", path);
        exit(2);
    }
    fclose(file);
    return bytes;
}

static void from_file(const char *path)
{
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUfunction scale = NULL;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoad(&module, path));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuModuleUnload(module));
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    OK(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "scale"));
    OK(cuLibraryUnload(library));
    OK(cuCtxDestroy_v2(context));
}

int main(int argc, char **argv)
{
    CUcontext context = NULL;
    pthread_t thread;
    int version = 0;
    if (argc != 2 && argc != 3) {
        printf("usage: driver FILE [common]\n");
        return 2;
    }
    common = argc == 3 && strcmp(argv[2], "common") == 0;
    IS(cuCtxGetCurrent(&context), 3);
    OK(cuInit(0));
    IS(cuInit(1), 1);
    OK(cuDriverGetVersion(&version));
    expect(version > 0, 1, "version");
    questions();
    void *image = read_image(argv[1]);
    packed(image);
    structured(image);
    graphs(image);
    rectangles();
    asked(image);
    pools();
    OK(pthread_create(&thread, NULL, runtime_alone, NULL));
    OK(pthread_join(thread, NULL));
    refused();
    from_file(argv[1]);
    free(image);
    printf("%d wrong\n", failures);
    return failures == 0 ? 0 : 1;
}
