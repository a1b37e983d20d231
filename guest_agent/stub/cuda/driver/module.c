/*
 * module.c - modules, functions and launches: images and kernels of the runtime's.
 */
#include "driver.h"

#include <stdlib.h>

/* What `extra` of a launch says. */
#define EXTRA_END ((void *)0)
#define EXTRA_BUFFER ((void *)1)
#define EXTRA_SIZE ((void *)2)

/* Attributes of a function: where the runtime's structure has them, and whether as size_t. */
struct place {
    uint8_t offset;
    bool wide;
};

static const struct place places[] = {
    {24, false}, {0, true},   {8, true},   {16, true},  {28, false}, {32, false},
    {36, false}, {40, false}, {44, false}, {48, false}, {52, false}, {56, false},
    {60, false}, {64, false}, {72, false}, {68, false},
};

WH_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    int status = wh_driver_current();
    if (status == 0) {
        wh_cuda_thread()->loads_modules = true;
        status = WH_DRIVER(cudaLibraryLoadData((cudaLibrary_t *)(void *)module, image, NULL, NULL,
                                               0, NULL, NULL, 0));
        wh_cuda_thread()->loads_modules = false;
    }
    return status;
}

WH_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                      int *options, void **optionValues)
{
    (void)numOptions;
    (void)options;
    (void)optionValues;
    return cuModuleLoadData(module, image);
}

WH_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return cuModuleLoadData(module, fatCubin);
}

WH_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    int status = wh_driver_current();
    if (status == 0) {
        wh_cuda_thread()->loads_modules = true;
        status = WH_DRIVER(cudaLibraryLoadFromFile((cudaLibrary_t *)(void *)module, fname, NULL,
                                                   NULL, 0, NULL, NULL, 0));
        wh_cuda_thread()->loads_modules = false;
    }
    return status;
}

WH_EXPORT CUresult cuModuleUnload(CUmodule hmod)
{
    return WH_DRIVER(cudaLibraryUnload((cudaLibrary_t)(void *)hmod));
}

WH_EXPORT CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    return WH_DRIVER(
        cudaLibraryGetKernel((cudaKernel_t *)(void *)hfunc, (cudaLibrary_t)(void *)hmod, name));
}

WH_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod,
                                        const char *name)
{
    return WH_DRIVER(cudaLibraryGetGlobal((void **)dptr, bytes, (cudaLibrary_t)(void *)hmod, name));
}

WH_EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
    WH_API_CALL();
    if (mode == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    *mode = 2; /* lazy */
    return 0;
}

WH_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jitOptions,
                                     void **jitOptionsValues, unsigned int numJitOptions,
                                     int *libraryOptions, void **libraryOptionValues,
                                     unsigned int numLibraryOptions)
{
    return WH_DRIVER(cudaLibraryLoadData((cudaLibrary_t *)(void *)library, code, jitOptions,
                                         jitOptionsValues, numJitOptions, libraryOptions,
                                         libraryOptionValues, numLibraryOptions));
}

WH_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, int *jitOptions,
                                         void **jitOptionsValues, unsigned int numJitOptions,
                                         int *libraryOptions, void **libraryOptionValues,
                                         unsigned int numLibraryOptions)
{
    return WH_DRIVER(cudaLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues,
                                             numJitOptions, libraryOptions, libraryOptionValues,
                                             numLibraryOptions));
}

WH_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    return WH_DRIVER(cudaLibraryUnload(library));
}

WH_EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    return WH_DRIVER(cudaLibraryGetKernel(pKernel, library, name));
}

WH_EXPORT CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    WH_API_CALL();
    if (pMod == NULL || library == NULL) {
        return pMod == NULL ? WH_DRIVER_INVALID_VALUE : 400;
    }
    *pMod = (CUmodule)(void *)library;
    return 0;
}

WH_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
                                      const char *name)
{
    return WH_DRIVER(cudaLibraryGetGlobal((void **)dptr, bytes, library, name));
}

WH_EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    WH_API_CALL();
    if (pFunc == NULL || kernel == NULL) {
        return pFunc == NULL ? WH_DRIVER_INVALID_VALUE : 400;
    }
    *pFunc = (CUfunction)(void *)kernel;
    return 0;
}

WH_EXPORT CUresult cuFuncGetAttribute(int *pi, int attrib, CUfunction hfunc)
{
    uint8_t attributes[WH_CUDA_FUNCTION_BYTES];
    size_t wide = 0;
    if (pi == NULL || attrib < 0 || attrib >= (int)(sizeof(places) / sizeof(places[0]))) {
        return WH_DRIVER_INVALID_VALUE;
    }
    int status = WH_DRIVER(cudaFuncGetAttributes(attributes, hfunc));
    if (status != 0) {
        return status;
    }
    if (places[attrib].wide) {
        memcpy(&wide, attributes + places[attrib].offset, sizeof(wide));
        *pi = (int)wide;
    } else {
        memcpy(pi, attributes + places[attrib].offset, sizeof(*pi));
    }
    return 0;
}

WH_EXPORT CUresult cuKernelGetAttribute(int *pi, int attrib, CUkernel kernel, CUdevice dev)
{
    (void)dev;
    return cuFuncGetAttribute(pi, attrib, (CUfunction)(void *)kernel);
}

WH_EXPORT CUresult cuFuncSetAttribute(CUfunction hfunc, int attrib, int value)
{
    return WH_DRIVER(cudaFuncSetAttribute(hfunc, attrib, value));
}

WH_EXPORT CUresult cuKernelSetAttribute(int attrib, int val, CUkernel kernel, CUdevice dev)
{
    (void)dev;
    return cuFuncSetAttribute((CUfunction)(void *)kernel, attrib, val);
}

WH_EXPORT CUresult cuFuncSetCacheConfig(CUfunction hfunc, int config)
{
    return WH_DRIVER(cudaFuncSetCacheConfig(hfunc, config));
}

WH_EXPORT CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    return WH_DRIVER(cudaFuncGetName(name, hfunc));
}

WH_EXPORT CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    return WH_DRIVER(cudaFuncGetName(name, hfunc));
}

WH_EXPORT CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
                                      size_t *paramSize)
{
    return WH_DRIVER(cudaFuncGetParamInfo(func, paramIndex, paramOffset, paramSize));
}

WH_EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                        size_t *paramSize)
{
    return cuFuncGetParamInfo((CUfunction)(void *)kernel, paramIndex, paramOffset, paramSize);
}

/* A function is one of the runtime's kernels, which knows its image. */
WH_EXPORT CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    const char *name = NULL;
    const struct wh_kernel *kernel = (const void *)hfunc;
    int status = WH_DRIVER(cudaFuncGetName(&name, hfunc));
    if (status == 0 && hmod == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0 && kernel->magic != WH_KERNEL_MAGIC) {
        return WH_DRIVER_INVALID_HANDLE; /* the compiler's name for one, which the runtime takes */
    }
    if (status == 0) {
        *hmod = (CUmodule)(void *)kernel->image;
    }
    return status;
}

WH_EXPORT CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    return cuFuncGetModule((CUmodule *)(void *)pLib, (CUfunction)(void *)kernel);
}

WH_EXPORT CUresult cuFuncLoad(CUfunction function)
{
    uint8_t attributes[WH_CUDA_FUNCTION_BYTES];
    return WH_DRIVER(cudaFuncGetAttributes(attributes, function));
}

WH_EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction function)
{
    WH_API_CALL();
    if (state == NULL || function == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    *state = 1; /* a function was loaded when it was found */
    return 0;
}

/*
 * Arguments that come packed in a buffer, as pointers to each. How many bytes there are is said:
 * with more than the function has parameters it is not launched; what is missing is 0.
 */
int wh_driver_unpack(CUfunction function, void **extra, void **arguments)
{
    static uint8_t missing[WH_CUDA_PARAMETER_BYTES_MAX];
    uint8_t *buffer = NULL;
    size_t size_bytes = 0;
    size_t offset = 0;
    size_t bytes = 0;
    size_t end_bytes = 0;
    for (size_t i = 0; extra[i] != EXTRA_END; i += 2) {
        if (extra[i] == EXTRA_BUFFER) {
            buffer = extra[i + 1];
        } else if (extra[i] == EXTRA_SIZE) {
            size_bytes = *(size_t *)extra[i + 1];
        } else {
            return WH_DRIVER_INVALID_VALUE;
        }
    }
    for (uint32_t i = 0; i < WH_CUDA_PARAMETERS_MAX; i++) {
        int status = WH_DRIVER(cudaFuncGetParamInfo(function, i, &offset, &bytes));
        if (status == WH_DRIVER_INVALID_HANDLE) {
            return status;
        }
        if (status != 0) {
            break;
        }
        if (buffer == NULL) {
            return WH_DRIVER_INVALID_VALUE;
        }
        end_bytes = offset + bytes > end_bytes ? offset + bytes : end_bytes;
        arguments[i] = end_bytes <= size_bytes ? buffer + offset : missing;
    }
    return size_bytes > end_bytes ? WH_DRIVER_OUT_OF_RESOURCES : 0;
}

int wh_driver_launch(const struct wh_cuda_launch *how, CUfunction function, void **parameters,
                     void **extra)
{
    void *unpacked[WH_CUDA_PARAMETERS_MAX];
    int status = wh_driver_current();
    if (status == 0 && extra != NULL && parameters == NULL) {
        status = wh_driver_unpack(function, extra, unpacked);
        parameters = unpacked;
    }
    if (status != 0) {
        return status;
    }
    status = how->attribute_count == 0
                 ? WH_DRIVER(cudaLaunchKernel(function, how->grid, how->block, parameters,
                                              how->shared_bytes, how->stream))
                 : WH_DRIVER(cudaLaunchKernelExC(how, function, parameters));
    return status;
}

WH_EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                  unsigned int gridDimZ, unsigned int blockDimX,
                                  unsigned int blockDimY, unsigned int blockDimZ,
                                  unsigned int sharedMemBytes, CUstream hStream,
                                  void **kernelParams, void **extra)
{
    const struct wh_cuda_launch how = {
        .grid = {gridDimX, gridDimY, gridDimZ},
        .block = {blockDimX, blockDimY, blockDimZ},
        .shared_bytes = sharedMemBytes,
        .stream = hStream,
    };
    return wh_driver_launch(&how, f, kernelParams, extra);
}

/* CUlaunchConfig */
struct config {
    struct wh_dim3 grid;
    struct wh_dim3 block;
    unsigned shared_bytes;
    void *stream;
    struct wh_cuda_attribute *attributes;
    unsigned attribute_count;
};

bool wh_driver_launch_of(const void *config, struct wh_cuda_launch *launch)
{
    const struct config *from = config;
    if (from == NULL || (from->attributes == NULL && from->attribute_count > 0)) {
        return false;
    }
    *launch = (struct wh_cuda_launch){
        .grid = from->grid,
        .block = from->block,
        .shared_bytes = from->shared_bytes,
        .stream = from->stream,
        .attributes = from->attributes,
        .attribute_count = from->attribute_count,
    };
    return true;
}

WH_EXPORT CUresult cuLaunchKernelEx(const void *config, CUfunction f, void **kernelParams,
                                    void **extra)
{
    struct wh_cuda_launch how;
    return wh_driver_launch_of(config, &how) ? wh_driver_launch(&how, f, kernelParams, extra)
                                             : WH_DRIVER_INVALID_VALUE;
}

WH_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                             unsigned int gridDimY, unsigned int gridDimZ,
                                             unsigned int blockDimX, unsigned int blockDimY,
                                             unsigned int blockDimZ, unsigned int sharedMemBytes,
                                             CUstream hStream, void **kernelParams)
{
    struct wh_cuda_attribute cooperative = {.id = WH_CUDA_ATTRIBUTE_COOPERATIVE};
    const int yes = 1;
    memcpy(cooperative.value, &yes, sizeof(yes));
    const struct wh_cuda_launch how = {
        .grid = {gridDimX, gridDimY, gridDimZ},
        .block = {blockDimX, blockDimY, blockDimZ},
        .shared_bytes = sharedMemBytes,
        .stream = hStream,
        .attributes = &cooperative,
        .attribute_count = 1,
    };
    return wh_driver_launch(&how, f, kernelParams, NULL);
}
