/*
 * library.c - device code that a program loads itself: made at run time, or read from a file.
 */
#include "cudart.h"

static int done(int status)
{
    return wh_cuda_done(&wh_cudart_api, status);
}

/* Options change how the code is compiled, or ask for the compiler's log: neither crosses. */
WH_EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, void *options,
                                          void **option_values, unsigned int option_count,
                                          void *library_options, void **library_values,
                                          unsigned int library_count)
{
    WH_API_CALL();
    struct wh_image *image = NULL;
    (void)options;
    (void)option_values;
    (void)option_count;
    (void)library_options;
    (void)library_values;
    (void)library_count;
    if (library == NULL) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    int status = wh_image_new(code, &image);
    if (status == 0) {
        *library = (cudaLibrary_t)(void *)image;
    }
    return done(status);
}

WH_EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    WH_API_CALL();
    return done(wh_image_end((struct wh_image *)(void *)library));
}

WH_EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library,
                                           const char *name)
{
    WH_API_CALL();
    struct wh_kernel *found = NULL;
    if (kernel == NULL) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    int status = wh_image_kernel((struct wh_image *)(void *)library, name, &found);
    if (status == 0) {
        *kernel = (cudaKernel_t)(void *)found;
    }
    return done(status);
}

WH_EXPORT cudaError_t cudaLibraryGetGlobal(void **address, size_t *size_bytes,
                                           cudaLibrary_t library, const char *name)
{
    WH_API_CALL();
    void *found = NULL;
    size_t bytes = 0;
    int status = wh_image_variable((struct wh_image *)(void *)library, name, &found, &bytes);
    if (status == 0 && address != NULL) {
        *address = found;
    }
    if (status == 0 && size_bytes != NULL) {
        *size_bytes = bytes;
    }
    return done(status);
}
