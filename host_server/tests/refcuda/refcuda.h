/*
 * refcuda.h - kernels of the tests' double of a CUDA device, which run on the processor.
 *
 * An "image" is a shared library behind a fat binary's header. A kernel NAME is a function of this
 * type that runs the whole grid, and an array NAME_layout of its parameters, ended by a size of 0.
 */
#ifndef REFCUDA_H
#define REFCUDA_H

#include <stddef.h>
#include <stdint.h>

#include "wh_cuda.h"

struct ref_launch {
    struct wh_dim3 grid;
    struct wh_dim3 block;
    size_t shared_bytes;
    int error; /* set by a kernel: the device context is dead with it */
};

#define REF_EXPORT __attribute__((visibility("default")))
typedef void ref_kernel(struct ref_launch *launch, void *const *parameters);

#endif
