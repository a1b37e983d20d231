/*
 * numbers.c - sizes of numbers, versions, texts: what cuBLAS answers without a device.
 */
#include "cublas.h"
#include "cuda.h"
#include "wh_cuda_types.h"

size_t wh_cublas_type_bytes(cudaDataType type)
{
    return wh_cuda_type_bytes(type);
}

static int is_complex(cudaDataType type)
{
    return (type >= 4 && type <= 7) || type == 9 || type == 11 || type == 13 || type == 15;
}

size_t wh_cublas_scale_bytes(cublasComputeType_t compute, cudaDataType a_type)
{
    size_t real_bytes = 4; /* 32F and all that compute like it, 32I */
    if (compute == 64 || compute == 65) {
        real_bytes = 2; /* 16F */
    } else if (compute == 70 || compute == 71 || compute == 79) {
        real_bytes = 8; /* 64F */
    }
    return is_complex(a_type) ? 2 * real_bytes : real_bytes;
}

WH_EXPORT const char *cublasGetStatusName(cublasStatus_t status)
{
    WH_API_CALL();
    return wh_cublas_status_name(status);
}

WH_EXPORT const char *cublasGetStatusString(cublasStatus_t status)
{
    WH_API_CALL();
    return wh_cublas_status_words(status);
}

WH_EXPORT size_t cublasGetCudartVersion(void)
{
    WH_API_CALL();
    return 13000; /* CUDA 13.0 */
}

WH_EXPORT cublasStatus_t cublasLoggerConfigure(int logIsOn, int logToStdOut, int logToStdErr,
                                               const char *logFileName)
{
    WH_API_CALL();
    (void)logIsOn;
    (void)logToStdOut;
    (void)logToStdErr;
    (void)logFileName;
    return 0;
}
