/*
 * driver.c - entry points of the driver's API: those of our library of it, which stands on this
 * one. The real one would open a device context of its own beside the forwarded one, so where a
 * program has loaded that before, there are none.
 */
#define _GNU_SOURCE

#include "cudart.h"

#include <dlfcn.h>

#define DRIVER "libcuda.so.1"
#define CUDA_VERSION 13000
#define OUR_MARK "wormhole_cuda_driver" /* a symbol that only ours has */

enum { FOUND = 0, NOT_FOUND = 1 };

typedef int (*get_function)(const char *symbol, void **function, int version, uint64_t flags,
                            int *status);

/* The function in the form that a program of this version of CUDA knows. */
static void *find(const char *symbol, unsigned version)
{
    void *function = NULL;
    int status = NOT_FOUND;
    void *library = dlopen(DRIVER, RTLD_LAZY);
    if (library == NULL || dlsym(library, OUR_MARK) == NULL) {
        return NULL;
    }
    get_function get = (get_function)dlsym(library, "cuGetProcAddress_v2");
    return get != NULL && get(symbol, &function, (int)version, 0, &status) == 0 ? function : NULL;
}

WH_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                       unsigned int version,
                                                       unsigned long long flags, int *status)
{
    WH_API_CALL();
    (void)flags;
    if (symbol == NULL || function == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    *function = find(symbol, version);
    if (status != NULL) {
        *status = *function != NULL ? FOUND : NOT_FOUND;
    }
    return 0;
}

WH_EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function,
                                              unsigned long long flags, int *status)
{
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDA_VERSION, flags, status);
}
