/*
 * cuda_cublas.h - what the skeletons of cuBLAS ask about a handle.
 */
#ifndef WH_CUDA_CUBLAS_H
#define WH_CUDA_CUBLAS_H

#include <stdbool.h>

#include "cuda_scalar.h"
#include "wh_cublas.h"

const struct wh_cublas_table *wh_cublas(void);

/* Whether the handle takes scalars where the client says that they are. A client that keeps to the
 * order of its calls is always right; another could have the library read the worker's memory. */
bool wh_cublas_placed(const struct wh_cublas_table *real, cublasHandle_t handle, unsigned places);

#endif
