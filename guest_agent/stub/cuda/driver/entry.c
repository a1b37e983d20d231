/*
 * entry.c - entry points by name, names of results, and what is asked of NVIDIA's private tables.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */

#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define OWN_NAME "libcuda.so.1"
#define NAME_BYTES_MAX 128u
#define LATEST_FORM 4

enum { FOUND = 0, NOT_FOUND = 1 };

/* Forms of functions that differ in their arguments, and the version of CUDA from which on programs
 * know them. Of others every program knows the latest form. */
static const struct {
    const char *symbol;
    int form;
    int version;
} forms[] = {
    {"cuCtxCreate", 2, 3020},
    {"cuCtxCreate", 3, 11040},
    {"cuCtxCreate", 4, 12050},
    {"cuCtxGetDevice", 2, 13000},
    {"cuCtxSynchronize", 2, 13000},
    {"cuDeviceGetUuid", 2, 11040},
    {"cuEventElapsedTime", 2, 12080},
    {"cuGetProcAddress", 2, 12000},
    {"cuGraphAddDependencies", 2, 12030},
    {"cuGraphAddKernelNode", 2, 12000},
    {"cuGraphAddNode", 2, 12030},
    {"cuGraphAddNode", 3, 13010},
    {"cuGraphExecKernelNodeSetParams", 2, 12000},
    {"cuGraphExecUpdate", 2, 12000},
    {"cuGraphGetEdges", 2, 12030},
    {"cuGraphInstantiate", 2, 11000},
    {"cuGraphKernelNodeGetParams", 2, 12000},
    {"cuGraphKernelNodeSetParams", 2, 12000},
    {"cuGraphNodeGetDependencies", 2, 12030},
    {"cuGraphNodeGetDependentNodes", 2, 12030},
    {"cuGraphNodeSetParams", 2, 13010},
    {"cuGraphRemoveDependencies", 2, 12030},
    {"cuLaunchHostFunc", 2, 13010},
    {"cuMemAdvise", 2, 12020},
    {"cuMemPrefetchAsync", 2, 12020},
    {"cuMemcpy3DBatchAsync", 2, 13000},
    {"cuMemcpyBatchAsync", 2, 13000},
    {"cuMulticastBindAddr", 2, 13010},
    {"cuMulticastBindMem", 2, 13010},
    {"cuStreamBatchMemOp", 2, 11070},
    {"cuStreamBeginCapture", 2, 10010},
    {"cuStreamGetCaptureInfo", 2, 11030},
    {"cuStreamGetCaptureInfo", 3, 12030},
    {"cuStreamGetCtx", 2, 12050},
    {"cuStreamUpdateCaptureDependencies", 2, 12030},
    {"cuStreamWaitValue32", 2, 11070},
    {"cuStreamWaitValue64", 2, 11070},
    {"cuStreamWriteValue32", 2, 11070},
    {"cuStreamWriteValue64", 2, 11070},
};

WH_EXPORT CUresult cuGetExportTable(const void **ppExportTable, const void *pExportTableId)
{
    WH_API_CALL();
    static int said;
    (void)pExportTableId;
    if (ppExportTable != NULL) {
        *ppExportTable = NULL;
    }
    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) == 0) {
        wh_cuda_say(
            "a library in this program wants private tables of NVIDIA's driver, which are "
            "not imitated: link the program with the shared CUDA runtime (nvcc -cudart "
            "shared), and let the testbed's libcudart, libcublas, libcublasLt and libcudnn "
            "be found first. cuFFT, NCCL and others that contain a runtime of their own are "
            "not supported yet");
    }
    return WH_DRIVER_NOT_SUPPORTED;
}

/* The function of that name and form, 1 for the plain one. */
static void *find_form(void *library, const char *symbol, int form)
{
    char name[NAME_BYTES_MAX];
    int used = form < 2 ? snprintf(name, sizeof(name), "%s", symbol)
                        : snprintf(name, sizeof(name), "%s_v%d", symbol, form);
    return used > 0 && (size_t)used < sizeof(name) ? dlsym(library, name) : NULL;
}

static bool knows(const char *symbol, int form, int version)
{
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (forms[i].form == form && strcmp(forms[i].symbol, symbol) == 0) {
            return version >= forms[i].version;
        }
    }
    return true;
}

/* The latest form that a program of this version of CUDA knows. */
static void *find(const char *symbol, int version)
{
    void *library = dlopen(OWN_NAME, RTLD_LAZY | RTLD_NOLOAD);
    void *function = NULL;
    for (int form = LATEST_FORM; library != NULL && function == NULL && form > 0; form--) {
        function =
            form == 1 || knows(symbol, form, version) ? find_form(library, symbol, form) : NULL;
    }
    if (library != NULL) {
        dlclose(library);
    }
    return function;
}

WH_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion,
                                       uint64_t flags, int *symbolStatus)
{
    WH_API_CALL();
    (void)flags;
    if (symbol == NULL || pfn == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    *pfn = find(symbol, cudaVersion);
    if (symbolStatus != NULL) {
        *symbolStatus = *pfn != NULL ? FOUND : NOT_FOUND;
    }
    return *pfn != NULL || symbolStatus != NULL ? 0 : WH_DRIVER_NOT_FOUND;
}

WH_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

/* Every result that the driver knows. */
static const struct {
    CUresult error;
    const char *name;
} results[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {4, "CUDA_ERROR_DEINITIALIZED"},
    {5, "CUDA_ERROR_PROFILER_DISABLED"},
    {6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED"},
    {7, "CUDA_ERROR_PROFILER_ALREADY_STARTED"},
    {8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED"},
    {34, "CUDA_ERROR_STUB_LIBRARY"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {102, "CUDA_ERROR_DEVICE_NOT_LICENSED"},
    {200, "CUDA_ERROR_INVALID_IMAGE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT"},
    {205, "CUDA_ERROR_MAP_FAILED"},
    {206, "CUDA_ERROR_UNMAP_FAILED"},
    {207, "CUDA_ERROR_ARRAY_IS_MAPPED"},
    {208, "CUDA_ERROR_ALREADY_MAPPED"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {210, "CUDA_ERROR_ALREADY_ACQUIRED"},
    {211, "CUDA_ERROR_NOT_MAPPED"},
    {212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY"},
    {213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT"},
    {216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
    {218, "CUDA_ERROR_INVALID_PTX"},
    {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED"},
    {224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"},
    {225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC"},
    {226, "CUDA_ERROR_CONTAINED"},
    {300, "CUDA_ERROR_INVALID_SOURCE"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND"},
    {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"},
    {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM"},
    {400, "CUDA_ERROR_INVALID_HANDLE"},
    {401, "CUDA_ERROR_ILLEGAL_STATE"},
    {402, "CUDA_ERROR_LOSSY_QUERY"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
    {703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {710, "CUDA_ERROR_ASSERT"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"},
    {718, "CUDA_ERROR_INVALID_PC"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK"},
    {800, "CUDA_ERROR_NOT_PERMITTED"},
    {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED"},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE"},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY"},
    {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"},
    {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
    {811, "CUDA_ERROR_CDP_NOT_SUPPORTED"},
    {812, "CUDA_ERROR_CDP_VERSION_MISMATCH"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {907, "CUDA_ERROR_CAPTURED_EVENT"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {909, "CUDA_ERROR_TIMEOUT"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE"},
    {913, "CUDA_ERROR_FUNCTION_NOT_LOADED"},
    {914, "CUDA_ERROR_INVALID_RESOURCE_TYPE"},
    {915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"},
    {916, "CUDA_ERROR_KEY_ROTATION"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

static const char *name_of(CUresult error)
{
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        if (results[i].error == error) {
            return results[i].name;
        }
    }
    return NULL;
}

/* What the driver does not know has neither name nor text, and that is an error of its own. */
WH_EXPORT CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    WH_API_CALL();
    if (pStr == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    *pStr = name_of(error) == NULL ? NULL : cudaGetErrorString(error);
    return *pStr != NULL ? 0 : WH_DRIVER_INVALID_VALUE;
}

WH_EXPORT CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    WH_API_CALL();
    if (pStr == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    *pStr = name_of(error);
    return *pStr != NULL ? 0 : WH_DRIVER_INVALID_VALUE;
}
