/*
 * matrices.c - vectors and matrices between the program's memory and the device's: copies of rows,
 * which the runtime does.
 */
#include "cublas.h"
#include "wh_cudart.h"

#define INVALID_VALUE 7
#define MAPPING_ERROR 11

enum { TO_DEVICE = 1, TO_HOST = 2 };

/* Columns of `rows` elements, so far apart on both sides. */
struct matrix {
    int64_t rows;
    int64_t columns;
    int64_t element_bytes;
    const void *from;
    int64_t from_lead;
    void *to;
    int64_t to_lead;
    int kind;
};

static cublasStatus_t copy(const struct matrix *matrix, const cudaStream_t *stream)
{
    if (matrix->rows < 0 || matrix->columns < 0 || matrix->element_bytes <= 0 ||
        matrix->from_lead <= 0 || matrix->to_lead <= 0 || matrix->from_lead < matrix->rows ||
        matrix->to_lead < matrix->rows) {
        return INVALID_VALUE;
    }
    if (matrix->rows == 0 || matrix->columns == 0) {
        return 0;
    }
    size_t element_bytes = (size_t)matrix->element_bytes;
    size_t from_pitch = (size_t)matrix->from_lead * element_bytes;
    size_t to_pitch = (size_t)matrix->to_lead * element_bytes;
    size_t width = (size_t)matrix->rows * element_bytes;
    size_t height = (size_t)matrix->columns;
    int last_error = wh_cuda_thread()->last_error;
    int status = stream == NULL ? cudaMemcpy2D(matrix->to, to_pitch, matrix->from, from_pitch,
                                               width, height, matrix->kind)
                                : cudaMemcpy2DAsync(matrix->to, to_pitch, matrix->from, from_pitch,
                                                    width, height, matrix->kind, *stream);
    wh_cuda_thread()->last_error = last_error;
    return status == 0 ? 0 : MAPPING_ERROR;
}

/* A vector is a matrix of one row, and elements that are apart. */
static cublasStatus_t copy_vector(int64_t count, int64_t element_bytes, const void *from,
                                  int64_t from_step, void *to, int64_t to_step, int kind,
                                  const cudaStream_t *stream)
{
    const struct matrix matrix = {1, count, element_bytes, from, from_step, to, to_step, kind};
    const struct matrix dense = {count, 1, element_bytes, from, count, to, count, kind};
    return copy(from_step == 1 && to_step == 1 && count > 0 ? &dense : &matrix, stream);
}

WH_EXPORT cublasStatus_t cublasSetVector(int n, int elemSize, const void *from, int incx, void *to,
                                         int incy)
{
    return copy_vector(n, elemSize, from, incx, to, incy, TO_DEVICE, NULL);
}

WH_EXPORT cublasStatus_t cublasSetVector_64(int64_t n, int64_t elemSize, const void *from,
                                            int64_t incx, void *to, int64_t incy)
{
    return copy_vector(n, elemSize, from, incx, to, incy, TO_DEVICE, NULL);
}

WH_EXPORT cublasStatus_t cublasSetVectorAsync(int n, int elemSize, const void *from, int incx,
                                              void *to, int incy, cudaStream_t stream)
{
    return copy_vector(n, elemSize, from, incx, to, incy, TO_DEVICE, &stream);
}

WH_EXPORT cublasStatus_t cublasSetVectorAsync_64(int64_t n, int64_t elemSize, const void *from,
                                                 int64_t incx, void *to, int64_t incy,
                                                 cudaStream_t stream)
{
    return copy_vector(n, elemSize, from, incx, to, incy, TO_DEVICE, &stream);
}

WH_EXPORT cublasStatus_t cublasGetVector(int n, int elemSize, const void *from, int incx, void *to,
                                         int incy)
{
    return copy_vector(n, elemSize, from, incx, to, incy, TO_HOST, NULL);
}

WH_EXPORT cublasStatus_t cublasGetVector_64(int64_t n, int64_t elemSize, const void *from,
                                            int64_t incx, void *to, int64_t incy)
{
    return copy_vector(n, elemSize, from, incx, to, incy, TO_HOST, NULL);
}

WH_EXPORT cublasStatus_t cublasGetVectorAsync(int n, int elemSize, const void *from, int incx,
                                              void *to, int incy, cudaStream_t stream)
{
    return copy_vector(n, elemSize, from, incx, to, incy, TO_HOST, &stream);
}

WH_EXPORT cublasStatus_t cublasGetVectorAsync_64(int64_t n, int64_t elemSize, const void *from,
                                                 int64_t incx, void *to, int64_t incy,
                                                 cudaStream_t stream)
{
    return copy_vector(n, elemSize, from, incx, to, incy, TO_HOST, &stream);
}

WH_EXPORT cublasStatus_t cublasSetMatrix(int rows, int cols, int elemSize, const void *from,
                                         int lda, void *to, int ldb)
{
    const struct matrix matrix = {rows, cols, elemSize, from, lda, to, ldb, TO_DEVICE};
    return copy(&matrix, NULL);
}

WH_EXPORT cublasStatus_t cublasSetMatrix_64(int64_t rows, int64_t cols, int64_t elemSize,
                                            const void *from, int64_t lda, void *to, int64_t ldb)
{
    const struct matrix matrix = {rows, cols, elemSize, from, lda, to, ldb, TO_DEVICE};
    return copy(&matrix, NULL);
}

WH_EXPORT cublasStatus_t cublasSetMatrixAsync(int rows, int cols, int elemSize, const void *from,
                                              int lda, void *to, int ldb, cudaStream_t stream)
{
    const struct matrix matrix = {rows, cols, elemSize, from, lda, to, ldb, TO_DEVICE};
    return copy(&matrix, &stream);
}

WH_EXPORT cublasStatus_t cublasSetMatrixAsync_64(int64_t rows, int64_t cols, int64_t elemSize,
                                                 const void *from, int64_t lda, void *to,
                                                 int64_t ldb, cudaStream_t stream)
{
    const struct matrix matrix = {rows, cols, elemSize, from, lda, to, ldb, TO_DEVICE};
    return copy(&matrix, &stream);
}

WH_EXPORT cublasStatus_t cublasGetMatrix(int rows, int cols, int elemSize, const void *from,
                                         int lda, void *to, int ldb)
{
    const struct matrix matrix = {rows, cols, elemSize, from, lda, to, ldb, TO_HOST};
    return copy(&matrix, NULL);
}

WH_EXPORT cublasStatus_t cublasGetMatrix_64(int64_t rows, int64_t cols, int64_t elemSize,
                                            const void *from, int64_t lda, void *to, int64_t ldb)
{
    const struct matrix matrix = {rows, cols, elemSize, from, lda, to, ldb, TO_HOST};
    return copy(&matrix, NULL);
}

WH_EXPORT cublasStatus_t cublasGetMatrixAsync(int rows, int cols, int elemSize, const void *from,
                                              int lda, void *to, int ldb, cudaStream_t stream)
{
    const struct matrix matrix = {rows, cols, elemSize, from, lda, to, ldb, TO_HOST};
    return copy(&matrix, &stream);
}

WH_EXPORT cublasStatus_t cublasGetMatrixAsync_64(int64_t rows, int64_t cols, int64_t elemSize,
                                                 const void *from, int64_t lda, void *to,
                                                 int64_t ldb, cudaStream_t stream)
{
    const struct matrix matrix = {rows, cols, elemSize, from, lda, to, ldb, TO_HOST};
    return copy(&matrix, &stream);
}
