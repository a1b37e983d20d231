/*
 * refcublas.c - a test double of cuBLAS: some functions of each shape that arguments have, in plain
 * loops on the double's memory. What it is for, refcuda.c says.
 */
#include <math.h>
#include <stdlib.h>

#include "reflibs.h"
#include "wh_cublas.h"

#define INVALID 7
#define NOT_SUPPORTED 15

REF_EXPORT const int wormhole_test_double = 1;

struct cublasContext {
    cudaStream_t stream;
    int pointer_mode;
    int atomics_mode;
    int math_mode;
    int sm_count;
    void *workspace;
    size_t workspace_bytes;
};

REF_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    *handle = calloc(1, sizeof(**handle));
    return *handle == NULL ? 3 : 0;
}

REF_EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    free(handle);
    return 0;
}

REF_EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version)
{
    (void)handle;
    *version = 130099;
    return 0;
}

REF_EXPORT cublasStatus_t cublasGetProperty(int type, int *value)
{
    static const int version[] = {13, 0, 99};
    if (type < 0 || type > 2) {
        return INVALID;
    }
    *value = version[type];
    return 0;
}

REF_EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->workspace = NULL;
    return 0;
}

REF_EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace,
                                                size_t size_bytes)
{
    if ((uintptr_t)workspace % 256 != 0) {
        return INVALID;
    }
    handle->workspace = workspace;
    handle->workspace_bytes = size_bytes;
    return 0;
}

#define MODE(set, get, field, largest)                                                             \
    REF_EXPORT cublasStatus_t set(cublasHandle_t handle, int value)                                \
    {                                                                                              \
        if (value < 0 || value > (largest)) {                                                      \
            return INVALID;                                                                        \
        }                                                                                          \
        handle->field = value;                                                                     \
        return 0;                                                                                  \
    }                                                                                              \
    REF_EXPORT cublasStatus_t get(cublasHandle_t handle, int *value)                               \
    {                                                                                              \
        *value = handle->field;                                                                    \
        return 0;                                                                                  \
    }                                                                                              \
    _Static_assert(1, "for the semicolon")

MODE(cublasSetPointerMode_v2, cublasGetPointerMode_v2, pointer_mode, 1);
MODE(cublasSetAtomicsMode, cublasGetAtomicsMode, atomics_mode, 1);
MODE(cublasSetMathMode, cublasGetMathMode, math_mode, 9);
MODE(cublasSetSmCountTarget, cublasGetSmCountTarget, sm_count, 1000);

/* Column-major; element (i, j) of an operand that may be transposed. */
#define AT(matrix, ld, transposed, i, j)                                                           \
    ((transposed) ? (matrix)[(size_t)(i) * (size_t)(ld) + (size_t)(j)]                             \
                  : (matrix)[(size_t)(j) * (size_t)(ld) + (size_t)(i)])

#define GEMM(name, type)                                                                           \
    static cublasStatus_t name(cublasHandle_t handle, int ta, int tb, int64_t m, int64_t n,        \
                               int64_t k, const type *alpha, const type *a, int64_t lda,           \
                               const type *b, int64_t ldb, const type *beta, type *c, int64_t ldc) \
    {                                                                                              \
        if (handle == NULL) {                                                                      \
            return 1;                                                                              \
        }                                                                                          \
        if (m < 0 || n < 0 || k < 0 || ldc < (m > 1 ? m : 1) || alpha == NULL || beta == NULL ||   \
            !ref_bounded(m, n, k)) {                                                               \
            return INVALID;                                                                        \
        }                                                                                          \
        ref_wait(handle->stream);                                                                  \
        for (int64_t j = 0; j < n; j++) {                                                          \
            for (int64_t i = 0; i < m; i++) {                                                      \
                type sum = 0;                                                                      \
                for (int64_t l = 0; l < k; l++) {                                                  \
                    sum += AT(a, lda, ta != 0, i, l) * AT(b, ldb, tb != 0, l, j);                  \
                }                                                                                  \
                type *to = &c[j * ldc + i];                                                        \
                *to = *alpha * sum + (*beta == 0 ? 0 : *beta * *to);                               \
            }                                                                                      \
        }                                                                                          \
        return 0;                                                                                  \
    }

GEMM(gemm_float, float)
GEMM(gemm_double, double)

REF_EXPORT cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, int ta, int tb, int m, int n, int k,
                                         const float *alpha, void *a, int lda, void *b, int ldb,
                                         const float *beta, void *c, int ldc)
{
    return gemm_float(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

REF_EXPORT cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, int ta, int tb, int m, int n, int k,
                                         const double *alpha, void *a, int lda, void *b, int ldb,
                                         const double *beta, void *c, int ldc)
{
    return gemm_double(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

REF_EXPORT cublasStatus_t cublasSgemm_v2_64(cublasHandle_t handle, int ta, int tb, int64_t m,
                                            int64_t n, int64_t k, const float *alpha, void *a,
                                            int64_t lda, void *b, int64_t ldb, const float *beta,
                                            void *c, int64_t ldc)
{
    return gemm_float(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/* Types of 32 and 64 bits alone: what is tested is where alpha and beta come from. */
REF_EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, int ta, int tb, int m, int n, int k,
                                       const void *alpha, void *a, int a_type, int lda, void *b,
                                       int b_type, int ldb, const void *beta, void *c, int c_type,
                                       int ldc, int compute, int algo)
{
    (void)algo;
    if (a_type != b_type || a_type != c_type) {
        return NOT_SUPPORTED;
    }
    if (a_type == 0 && compute == 68) {
        return gemm_float(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    }
    if (a_type == 1 && compute == 70) {
        return gemm_double(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    }
    return NOT_SUPPORTED;
}

REF_EXPORT cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, int ta, int tb, int m,
                                                    int n, int k, const float *alpha, void *a,
                                                    int lda, int64_t stride_a, void *b, int ldb,
                                                    int64_t stride_b, const float *beta, void *c,
                                                    int ldc, int64_t stride_c, int count)
{
    cublasStatus_t status = ref_bounded(count, 1, 1) ? 0 : INVALID;
    for (int i = 0; i < count && status == 0; i++) {
        status = gemm_float(handle, ta, tb, m, n, k, alpha, (float *)a + i * stride_a, lda,
                            (float *)b + i * stride_b, ldb, beta, (float *)c + i * stride_c, ldc);
    }
    return status;
}

REF_EXPORT cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, int ta, int tb, int m, int n,
                                             int k, const float *alpha, void *a, int lda, void *b,
                                             int ldb, const float *beta, void *c, int ldc,
                                             int count)
{
    cublasStatus_t status = ref_bounded(count, 1, 1) ? 0 : INVALID;
    ref_wait(handle->stream);
    for (int i = 0; i < count && status == 0; i++) {
        status = gemm_float(handle, ta, tb, m, n, k, alpha, ((float **)a)[i], lda, ((float **)b)[i],
                            ldb, beta, ((float **)c)[i], ldc);
    }
    return status;
}

REF_EXPORT cublasStatus_t cublasSaxpy_v2(cublasHandle_t handle, int n, const float *alpha, void *x,
                                         int incx, void *y, int incy)
{
    if (!ref_bounded(n, 1, 1)) {
        return INVALID;
    }
    ref_wait(handle->stream);
    for (int i = 0; i < n; i++) {
        ((float *)y)[i * incy] += *alpha * ((float *)x)[i * incx];
    }
    return 0;
}

REF_EXPORT cublasStatus_t cublasCaxpy_v2(cublasHandle_t handle, int n, const cuComplex *alpha,
                                         void *x, int incx, void *y, int incy)
{
    if (!ref_bounded(n, 1, 1)) {
        return INVALID;
    }
    const cuComplex *from = x;
    cuComplex *to = y;
    ref_wait(handle->stream);
    for (int i = 0; i < n; i++) {
        const cuComplex *one = &from[i * incx];
        to[i * incy].x += alpha->x * one->x - alpha->y * one->y;
        to[i * incy].y += alpha->x * one->y + alpha->y * one->x;
    }
    return 0;
}

REF_EXPORT cublasStatus_t cublasDscal_v2(cublasHandle_t handle, int n, const double *alpha, void *x,
                                         int incx)
{
    if (!ref_bounded(n, 1, 1)) {
        return INVALID;
    }
    ref_wait(handle->stream);
    for (int i = 0; i < n; i++) {
        ((double *)x)[i * incx] *= *alpha;
    }
    return 0;
}

REF_EXPORT cublasStatus_t cublasSdot_v2(cublasHandle_t handle, int n, void *x, int incx, void *y,
                                        int incy, float *result)
{
    if (!ref_bounded(n, 1, 1)) {
        return INVALID;
    }
    float sum = 0;
    ref_wait(handle->stream);
    for (int i = 0; i < n; i++) {
        sum += ((float *)x)[i * incx] * ((float *)y)[i * incy];
    }
    *result = sum;
    return 0;
}

REF_EXPORT cublasStatus_t cublasDznrm2_v2(cublasHandle_t handle, int n, void *x, int incx,
                                          double *result)
{
    if (!ref_bounded(n, 1, 1)) {
        return INVALID;
    }
    double sum = 0;
    ref_wait(handle->stream);
    for (int i = 0; i < n; i++) {
        const cuDoubleComplex *one = &((const cuDoubleComplex *)x)[i * incx];
        sum += one->x * one->x + one->y * one->y;
    }
    *result = sqrt(sum);
    return 0;
}

REF_EXPORT cublasStatus_t cublasIsamax_v2_64(cublasHandle_t handle, int64_t n, void *x,
                                             int64_t incx, int64_t *result)
{
    if (!ref_bounded(n, 1, 1)) {
        return INVALID;
    }
    ref_wait(handle->stream);
    *result = 0;
    for (int64_t i = 0; i < n; i++) {
        const float *values = x;
        if (*result == 0 || fabsf(values[i * incx]) > fabsf(values[(*result - 1) * incx])) {
            *result = i + 1;
        }
    }
    return 0;
}

/* Only its arguments are looked at. */
REF_EXPORT cublasStatus_t cublasSgetrsBatched(cublasHandle_t handle, int trans, int n, int nrhs,
                                              void *a, int lda, void *pivots, void *b, int ldb,
                                              int *info, int count)
{
    (void)handle;
    (void)trans;
    (void)a;
    (void)pivots;
    (void)b;
    *info = n < 0 ? -2 : nrhs < 0 ? -3 : lda < n ? -5 : ldb < n ? -8 : count < 0 ? -10 : 0;
    return *info == 0 ? 0 : INVALID;
}

REF_EXPORT cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream)
{
    *stream = handle->stream;
    return 0;
}

REF_EXPORT const char *cublasGetStatusName(cublasStatus_t status)
{
    return status == INVALID ? "CUBLAS_STATUS_INVALID_VALUE" : "?";
}

static cublasStatus_t copy(int64_t rows, int64_t columns, int64_t bytes, const void *from,
                           int64_t from_lead, void *to, int64_t to_lead)
{
    if (bytes <= 0 || from_lead < rows || to_lead < rows || from_lead < 1 || to_lead < 1 ||
        !ref_bounded(rows, columns, 1)) {
        return INVALID;
    }
    ref_wait(NULL);
    for (int64_t i = 0; i < columns; i++) {
        memcpy((char *)to + i * to_lead * bytes, (const char *)from + i * from_lead * bytes,
               (size_t)(rows * bytes));
    }
    return 0;
}

REF_EXPORT cublasStatus_t cublasSetMatrix(int rows, int columns, int bytes, const void *from,
                                          int from_lead, void *to, int to_lead)
{
    return copy(rows, columns, bytes, from, from_lead, to, to_lead);
}

REF_EXPORT cublasStatus_t cublasGetMatrix_64(int64_t rows, int64_t columns, int64_t bytes,
                                             const void *from, int64_t from_lead, void *to,
                                             int64_t to_lead)
{
    return copy(rows, columns, bytes, from, from_lead, to, to_lead);
}

REF_EXPORT cublasStatus_t cublasSetVector(int count, int bytes, const void *from, int from_step,
                                          void *to, int to_step)
{
    return copy(1, count, bytes, from, from_step, to, to_step);
}

REF_EXPORT cublasStatus_t cublasGetVector(int count, int bytes, const void *from, int from_step,
                                          void *to, int to_step)
{
    return copy(1, count, bytes, from, from_step, to, to_step);
}

REF_EXPORT cublasStatus_t cublasSetVectorAsync(int count, int bytes, const void *from,
                                               int from_step, void *to, int to_step,
                                               cudaStream_t stream)
{
    ref_wait(stream);
    return copy(1, count, bytes, from, from_step, to, to_step);
}
