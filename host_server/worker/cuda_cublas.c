/*
 * cuda_cublas.c - what is written by hand for cuBLAS.
 */
#include "cuda_cublas.h"

#define POINTER_MODE_HOST 0

bool wh_cublas_placed(const struct wh_cublas_table *real, cublasHandle_t handle, unsigned places)
{
    cublasPointerMode_t mode = POINTER_MODE_HOST;
    if (places == 0) {
        return true;
    }
    if (real->cublasGetPointerMode_v2 == NULL ||
        real->cublasGetPointerMode_v2(handle, &mode) != 0) {
        return false;
    }
    return places == (mode == POINTER_MODE_HOST ? WH_CUDA_PLACE_HOST : WH_CUDA_PLACE_DEVICE);
}
