/*
 * driver.c - what programs do with the driver API: tinygrad's and Triton's ways to run a kernel,
 * and what is refused. Every value is known, so that no native run is needed, which the double of a
 * device could not give.
 *
 *     driver FILE          with the test program's kernels, in a form that the device takes
 *     driver FILE common   only what NVIDIA's own driver does as well: a test that it fails is wrong
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wh_cudart.h"
#include "wh_driver.h"

#define COUNT 1000
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
    size = sizeof(arguments);
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
    size = 4;
    IS(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra), 1);
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
    IS(cuDevicePrimaryCtxRelease_v2(0), 201);
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
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &found));
    expect(function == (void *)cuMemAlloc_v2 && found == 0, 1, "cuMemAlloc by name");
    OK(cuGetProcAddress_v2("cuCtxCreate", &function, 12000, 0, &found));
    expect(function == (void *)cuCtxCreate_v2, 1, "cuCtxCreate of CUDA 12");
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

/* Code that is no code. */
static void refused(void)
{
    CUmodule module = NULL;
    CUcontext context = NULL;
    OK(cuCtxCreate_v2(&context, 0, 0));
    expect(cuModuleLoadData(&module, ".version 8.0\nnonsense") != 0, 1, "a text that is no code");
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
    OK(cuCtxDestroy_v2(context));
}

int main(int argc, char **argv)
{
    CUcontext context = NULL;
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
    refused();
    from_file(argv[1]);
    free(image);
    printf("%d wrong\n", failures);
    return failures == 0 ? 0 : 1;
}
