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
#define CUDA_13 13000

enum { FOUND = 0, NOT_FOUND = 1, TOO_OLD = 2 };

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

/* The function of that name and form, 0 for the plain one. */
static void *find_form(void *library, const char *symbol, int form)
{
    char name[NAME_BYTES_MAX];
    int used = form < 2 ? snprintf(name, sizeof(name), "%s", symbol)
                        : snprintf(name, sizeof(name), "%s_v%d", symbol, form);
    return used > 0 && (size_t)used < sizeof(name) ? dlsym(library, name) : NULL;
}

/* The latest form that a program of this version of CUDA knows. */
static void *find(const char *symbol, int version)
{
    void *library = dlopen(OWN_NAME, RTLD_LAZY | RTLD_NOLOAD);
    int latest = LATEST_FORM;
    void *function = NULL;
    if (version < CUDA_13 && strcmp(symbol, "cuCtxCreate") == 0) {
        latest = 2; /* later ones have further arguments */
    }
    if (version < CUDA_13 && strcmp(symbol, "cuEventElapsedTime") == 0) {
        latest = 0;
    }
    for (int form = latest; library != NULL && function == NULL && form != 0; form--) {
        function = find_form(library, symbol, form);
    }
    if (library != NULL && function == NULL) {
        function = find_form(library, symbol, 0);
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

WH_EXPORT CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    if (pStr == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    *pStr = cudaGetErrorString(error);
    return 0;
}

WH_EXPORT CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    WH_API_CALL();
    static const struct {
        CUresult error;
        const char *name;
    } names[] = {
        {0, "CUDA_SUCCESS"},
        {1, "CUDA_ERROR_INVALID_VALUE"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {4, "CUDA_ERROR_DEINITIALIZED"},
        {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {101, "CUDA_ERROR_INVALID_DEVICE"},
        {200, "CUDA_ERROR_INVALID_IMAGE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {205, "CUDA_ERROR_MAP_FAILED"},
        {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
        {215, "CUDA_ERROR_UNSUPPORTED_LIMIT"},
        {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
        {218, "CUDA_ERROR_INVALID_PTX"},
        {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {300, "CUDA_ERROR_INVALID_SOURCE"},
        {301, "CUDA_ERROR_FILE_NOT_FOUND"},
        {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"},
        {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"},
        {304, "CUDA_ERROR_OPERATING_SYSTEM"},
        {400, "CUDA_ERROR_INVALID_HANDLE"},
        {401, "CUDA_ERROR_ILLEGAL_STATE"},
        {500, "CUDA_ERROR_NOT_FOUND"},
        {600, "CUDA_ERROR_NOT_READY"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
        {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
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
        {800, "CUDA_ERROR_NOT_PERMITTED"},
        {801, "CUDA_ERROR_NOT_SUPPORTED"},
        {802, "CUDA_ERROR_SYSTEM_NOT_READY"},
        {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
        {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
        {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
        {999, "CUDA_ERROR_UNKNOWN"},
    };
    if (pStr == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    *pStr = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].error == error) {
            *pStr = names[i].name;
            return 0;
        }
    }
    return WH_DRIVER_INVALID_VALUE;
}
