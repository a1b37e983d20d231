/*
 * cublas.h - what generated stubs of cuBLAS ask about a handle and about numbers.
 */
#ifndef WH_STUB_CUBLAS_H
#define WH_STUB_CUBLAS_H

#include <stddef.h>

#include "cuda.h"
#include "wh_cublas.h"

extern const struct wh_cuda_api wh_cublas_api;

/* Sends what the application has set since the handle's last call, if it differs. */
void wh_cublas_settle(cublasHandle_t handle);

/* size_bytes if scalars of the handle lie in the host's memory, 0 if the device has them. */
size_t wh_cublas_host(cublasHandle_t handle, size_t size_bytes);

/* Bytes of one number of a cudaDataType; 0 for one that is smaller than a byte or unknown. */
size_t wh_cublas_type_bytes(cudaDataType type);

/* Bytes of alpha and beta where the computation has this type and A has that one. */
size_t wh_cublas_scale_bytes(cublasComputeType_t compute, cudaDataType a_type);

#endif
