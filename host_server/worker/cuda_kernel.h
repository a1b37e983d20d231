/*
 * cuda_kernel.h - what a kernel's handle names, and its arguments.
 */
#ifndef WH_CUDA_KERNEL_H
#define WH_CUDA_KERNEL_H

#include "cuda_backend.h"
#include "wh_cudart.h"

struct wh_cuda_kernel {
    cudaKernel_t real;
    uint32_t parameter_count;
    uint32_t parameter_bytes;
    struct wh_cuda_parameter parameters[];
};

/* Pointers to each of the arguments that came packed, WH_CUDA_PARAMETERS_MAX at most. */
static inline void wh_cuda_unpack(const struct wh_cuda_kernel *kernel, const uint8_t *packed,
                                  void **arguments)
{
    for (uint32_t i = 0; i < kernel->parameter_count; i++) {
        arguments[i] = (void *)(uintptr_t)(packed + kernel->parameters[i].offset);
    }
}

/* The library of an image's handle; NULL, or *valid false, if it is none. */
cudaLibrary_t wh_cuda_image_library(struct wh_request *request, uint64_t handle, bool *valid);

#endif
