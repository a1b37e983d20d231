/*
 * library.c - device code that a program loads itself: made at run time, or read from a file.
 */
#include "cudart.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((off_t)1 << 30)

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

/* A file's bytes with a final NUL, to be freed; NULL without it. */
static void *read_file(const char *path)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    char *bytes = NULL;
    if (file >= 0 && fstat(file, &status) == 0 && status.st_size > 0 &&
        status.st_size < FILE_BYTES_MAX) {
        bytes = calloc(1, (size_t)status.st_size + 1);
        for (off_t at = 0; bytes != NULL && at < status.st_size;) {
            ssize_t got = read(file, bytes + at, (size_t)(status.st_size - at));
            if (got <= 0) {
                free(bytes);
                bytes = NULL;
            }
            at += got;
        }
    }
    if (file >= 0) {
        close(file);
    }
    return bytes;
}

WH_EXPORT cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t *library, const char *path,
                                              void *options, void **option_values,
                                              unsigned int option_count, void *library_options,
                                              void **library_values, unsigned int library_count)
{
    WH_API_CALL();
    void *bytes = path == NULL ? NULL : read_file(path);
    if (bytes == NULL) {
        return done(path == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_FILE_NOT_FOUND);
    }
    int status = cudaLibraryLoadData(library, bytes, options, option_values, option_count,
                                     library_options, library_values, library_count);
    free(bytes);
    return status;
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
