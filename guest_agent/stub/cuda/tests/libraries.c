/*
 * libraries.c - what programs do with CUDA's mathematical libraries, case by case, on the tests'
 * double of a device. It prints results, so that a native run and a forwarded one can be compared
 * line by line; a case fails by itself where the right value is known.
 *
 *     libraries          all cases
 *     libraries CASE...  these
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wh_cublas.h"
#include "wh_cublaslt.h"
#include "wh_cudart.h"
#include "wh_cudnn.h"

enum { TO_DEVICE = 1, TO_HOST = 2 };

/* What programs call to bound a step in the counters; absent natively. */
__attribute__((weak)) void wormhole_mark(const char *label);

static int failures;
static const char *case_name;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("%s: ", case_name);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    fflush(stdout);
}

static void expect(int got, int wanted, const char *what)
{
    if (got != wanted) {
        say("WRONG %s: %d instead of %d", what, got, wanted);
        failures++;
    }
}

#define OK(call) expect((call), 0, #call)
#define IS(call, wanted) expect((call), (wanted), #call)

static void mark(const char *label)
{
    if (wormhole_mark != NULL) {
        wormhole_mark(label);
    }
}

static void *device(const void *from, size_t size_bytes)
{
    void *memory = NULL;
    OK(cudaMalloc(&memory, size_bytes));
    if (from != NULL) {
        OK(cudaMemcpy(memory, from, size_bytes, TO_DEVICE));
    }
    return memory;
}

static void show(const char *what, const void *memory, int count, int type)
{
    double wide[32];
    float narrow[32];
    char line[1024];
    int used = 0;
    OK(cudaMemcpy(type == 1 ? (void *)wide : narrow, memory,
                  (size_t)count * (type == 1 ? sizeof(double) : sizeof(float)), TO_HOST));
    for (int i = 0; i < count; i++) {
        used += snprintf(line + used, sizeof(line) - (size_t)used, " %.9g",
                         type == 1 ? wide[i] : (double)narrow[i]);
    }
    say("%s =%s", what, line);
}

/* cuBLAS. */

static void blas_handle(void)
{
    cublasHandle_t handle = NULL;
    cudaStream_t stream = NULL;
    cudaStream_t got = (cudaStream_t)1;
    int value = -1;
    OK(cublasCreate_v2(&handle));
    OK(cublasGetVersion_v2(handle, &value));
    say("version %d", value);
    for (int type = 0; type < 4; type++) {
        int status = cublasGetProperty(type, &value);
        say("property %d: %d %d", type, status, status == 0 ? value : -1);
    }
    OK(cublasGetStream_v2(handle, &got));
    say("stream is default: %d", got == NULL);
    OK(cudaStreamCreate(&stream));
    OK(cublasSetStream_v2(handle, stream));
    OK(cublasGetStream_v2(handle, &got));
    say("stream is kept: %d", got == stream);
    OK(cublasSetMathMode(handle, 3));
    OK(cublasGetMathMode(handle, &value));
    IS(value, 3);
    IS(cublasSetMathMode(handle, 1000), 7);
    OK(cublasGetMathMode(handle, &value));
    IS(value, 3);
    OK(cublasSetAtomicsMode(handle, 1));
    OK(cublasGetAtomicsMode(handle, &value));
    IS(value, 1);
    OK(cublasSetSmCountTarget(handle, 16));
    OK(cublasGetSmCountTarget(handle, &value));
    IS(value, 16);
    say("%s", cublasGetStatusName(7));
    OK(cublasDestroy_v2(handle));
    OK(cudaStreamDestroy(stream));
}

static void blas_products(void)
{
    const float a[] = {1, 2, 3, 4, 5, 6};
    const float b[] = {1, 0, 2, -1, 3, 1};
    const float start[] = {10, 20, 30, 40};
    const double wide[] = {1.5, 2.5, 3.5, 4.5};
    float alpha = 2;
    float beta = 0.5f;
    double wide_alpha = 1.25;
    double wide_beta = 0;
    cublasHandle_t handle = NULL;
    OK(cublasCreate_v2(&handle));
    void *da = device(a, sizeof(a));
    void *db = device(b, sizeof(b));
    void *dc = device(start, sizeof(start));
    void *dd = device(wide, sizeof(wide));
    OK(cublasSgemm_v2(handle, 0, 0, 2, 2, 3, &alpha, da, 2, db, 3, &beta, dc, 2));
    show("sgemm", dc, 4, 0);
    for (int i = 0; i < 3; i++) {
        /* Again, with other scalars: one way by now. */
        alpha += 1;
        OK(cublasSgemm_v2(handle, 0, 0, 2, 2, 3, &alpha, da, 2, db, 3, &beta, dc, 2));
    }
    show("sgemm four times", dc, 4, 0);
    OK(cublasSgemm_v2_64(handle, 1, 0, 2, 2, 3, &alpha, da, 3, db, 3, &beta, dc, 2));
    show("sgemm_64 transposed", dc, 4, 0);
    IS(cublasSgemm_v2(handle, 0, 0, -1, 2, 3, &alpha, da, 2, db, 3, &beta, dc, 2), 7);
    IS(cublasSgemm_v2(handle, 0, 0, 2, 2, 3, NULL, da, 2, db, 3, &beta, dc, 2), 7);
    OK(cublasDgemm_v2(handle, 0, 1, 2, 2, 2, &wide_alpha, dd, 2, dd, 2, &wide_beta, dd, 2));
    show("dgemm", dd, 4, 1);
    OK(cublasGemmEx(handle, 0, 0, 2, 2, 3, &alpha, da, 0, 2, db, 0, 3, &beta, dc, 0, 2, 68, -1));
    show("gemm_ex of floats", dc, 4, 0);
    OK(cudaMemcpy(dd, wide, sizeof(wide), TO_DEVICE));
    OK(cublasGemmEx(handle, 0, 0, 1, 1, 2, &wide_alpha, dd, 1, 1, dd, 1, 2, &wide_beta, dd, 1, 1,
                    70, -1));
    show("gemm_ex of doubles", dd, 4, 1);
    IS(cublasGemmEx(handle, 0, 0, 2, 2, 3, &alpha, da, 2, 2, db, 0, 3, &beta, dc, 0, 2, 68, -1),
       15);
    OK(cublasSgemmStridedBatched(handle, 0, 0, 1, 1, 1, &alpha, da, 1, 1, db, 1, 1, &beta, dc, 1, 1,
                                 4));
    show("strided", dc, 4, 0);
    void *const left[] = {da, (float *)da + 1};
    void *const right[] = {db, (float *)db + 2};
    void *const out[] = {dc, (float *)dc + 3};
    void *dl = device(left, sizeof(left));
    void *dr = device(right, sizeof(right));
    void *dout = device(out, sizeof(out));
    OK(cublasSgemmBatched(handle, 0, 0, 1, 1, 1, &alpha, dl, 1, dr, 1, &beta, dout, 1, 2));
    show("batched", dc, 4, 0);
    IS(cublasSgemm_v2(NULL, 0, 0, 2, 2, 3, &alpha, da, 2, db, 3, &beta, dc, 2), 1);
    OK(cublasDestroy_v2(handle));
}

/* Scalars and results: host or device, by the handle's mode. */
static void blas_scalars(void)
{
    const float x[] = {1, -7, 3, 4};
    const float y[] = {2, 1, 0, 5};
    const double z[] = {3, 4, 0, 12};
    const cuComplex c[] = {{1, 2}, {3, -1}};
    float alpha = 3;
    cuComplex turn = {0, 1};
    double half = 0.5;
    float dot = -1;
    double norm = -1;
    int64_t index = -1;
    int info = 99;
    cublasHandle_t handle = NULL;
    OK(cublasCreate_v2(&handle));
    void *dx = device(x, sizeof(x));
    void *dy = device(y, sizeof(y));
    void *dz = device(z, sizeof(z));
    void *dc = device(c, sizeof(c));
    void *result = device(NULL, 64);
    OK(cublasSaxpy_v2(handle, 4, &alpha, dx, 1, dy, 1));
    show("saxpy", dy, 4, 0);
    OK(cublasCaxpy_v2(handle, 1, &turn, dc, 1, (cuComplex *)dc + 1, 1));
    show("caxpy", dc, 4, 0);
    OK(cublasDscal_v2(handle, 2, &half, dz, 2));
    show("dscal", dz, 4, 1);
    OK(cublasSdot_v2(handle, 4, dx, 1, dy, 1, &dot));
    say("sdot %.9g", (double)dot);
    OK(cublasDznrm2_v2(handle, 2, dz, 1, &norm));
    say("dznrm2 %.9g", norm);
    OK(cublasIsamax_v2_64(handle, 4, dx, 1, &index));
    say("isamax_64 %lld", (long long)index);
    IS(cublasSgetrsBatched(handle, 0, 2, 1, dx, 1, dx, dy, 2, &info, 1), 7);
    IS(cublasSgetrsBatched(handle, 0, 2, 1, dx, 2, dx, dy, 2, &info, 1), 0);
    say("info %d", info);
    OK(cublasSetPointerMode_v2(handle, 1));
    void *dalpha = device(&alpha, sizeof(alpha));
    OK(cublasSaxpy_v2(handle, 4, dalpha, dx, 1, dy, 1));
    OK(cublasSaxpy_v2(handle, 4, dalpha, dx, 1, dy, 1));
    show("saxpy twice, device's alpha", dy, 4, 0);
    OK(cublasSdot_v2(handle, 4, dx, 1, dy, 1, result));
    OK(cublasSdot_v2(handle, 4, dx, 1, dy, 1, result));
    show("sdot, device's result", result, 1, 0);
    OK(cublasSetPointerMode_v2(handle, 0));
    OK(cublasSdot_v2(handle, 4, dx, 1, dx, 1, &dot));
    say("sdot %.9g", (double)dot);
    OK(cublasDestroy_v2(handle));
}

static void blas_matrices(void)
{
    const float a[] = {1, 2, -1, 3, 4, -1, 5, 6, -1};
    float back[12] = {0};
    void *da = device(NULL, 64);
    OK(cublasSetMatrix(2, 3, sizeof(float), a, 3, da, 2));
    show("matrix", da, 6, 0);
    OK(cublasGetMatrix_64(1, 3, sizeof(float), da, 2, back, 4));
    say("rows %g %g %g", (double)back[0], (double)back[4], (double)back[8]);
    OK(cublasSetVector(3, sizeof(float), a, 3, da, 1));
    OK(cublasGetVector(3, sizeof(float), da, 1, back, 1));
    say("vector %g %g %g", (double)back[0], (double)back[1], (double)back[2]);
    IS(cublasSetMatrix(4, 3, sizeof(float), a, 3, da, 4), 7);
    IS(cublasSetVector(3, 0, a, 1, da, 1), 7);
    OK(cublasSetVectorAsync(0, sizeof(float), a, 1, da, 1, NULL));
}

/* Settings cost nothing on the way: stream and workspace before each product, as PyTorch does. */
static void blas_step(void)
{
    const float ones[] = {1, 1, 1, 1};
    float alpha = 1;
    float beta = 1;
    cublasHandle_t handle = NULL;
    cudaStream_t stream = NULL;
    OK(cublasCreate_v2(&handle));
    OK(cudaStreamCreate(&stream));
    void *da = device(ones, sizeof(ones));
    void *dc = device(ones, sizeof(ones));
    void *workspace = device(NULL, 1 << 20);
    for (int i = 0; i < 20; i++) {
        if (i == 10) {
            OK(cudaStreamSynchronize(stream));
            mark("blas");
        }
        OK(cublasSetStream_v2(handle, stream));
        OK(cublasSetWorkspace_v2(handle, workspace, 1 << 20));
        OK(cublasSetMathMode(handle, i % 2));
        OK(cublasSetMathMode(handle, 0));
        OK(cublasSgemm_v2(handle, 0, 0, 2, 2, 2, &alpha, da, 2, da, 2, &beta, dc, 2));
    }
    mark("blas end");
    OK(cudaStreamSynchronize(stream));
    show("c", dc, 4, 0);
    IS(cublasSetWorkspace_v2(handle, (char *)workspace + 4, 1024), 7);
    OK(cublasDestroy_v2(handle));
    OK(cudaStreamDestroy(stream));
}

/* cuBLASLt. */

static void lt_product(void)
{
    const float a[] = {1, 2, 3, 4};
    const float bias[] = {100, 200};
    float alpha = 2;
    float beta = 0;
    int32_t number = 0;
    size_t written = 0;
    void *pointer = NULL;
    /* In memory of the program's own, and copied. */
    uint64_t own[32] = {0};
    uint64_t copy[32] = {0};
    uint64_t layout[8] = {0};
    void *preference = NULL;
    struct {
        uint64_t algo[8];
        size_t workspace_bytes;
        int state;
        float waves;
        int reserved[4];
    } found[4];
    int count = -1;
    cublasLtHandle_t handle = NULL;
    cublasHandle_t blas = NULL;
    OK(cublasLtCreate(&handle));
    say("version %zu", cublasLtGetVersion());
    void *da = device(a, sizeof(a));
    void *dd = device(a, sizeof(a));
    void *dbias = device(bias, sizeof(bias));
    void *other_bias = device(a, sizeof(a));
    OK(cublasLtMatmulDescInit_internal(own, sizeof(own), 68, 0));
    IS(cublasLtMatmulDescInit_internal(own, 8, 68, 0), 7);
    IS(cublasLtMatmulDescInit_internal(copy, sizeof(copy), 1, 0), 15);
    OK(cublasLtMatrixLayoutInit_internal(layout, sizeof(layout), 0, 2, 2, 2));
    number = 1;
    OK(cublasLtMatmulDescSetAttribute(own, 3, &number, sizeof(number)));
    number = 4;
    OK(cublasLtMatmulDescSetAttribute(own, 7, &number, sizeof(number)));
    OK(cublasLtMatmulDescSetAttribute(own, 8, &dbias, sizeof(dbias)));
    IS(cublasLtMatmulDescSetAttribute(own, 60, &number, sizeof(number)), 7);
    OK(cublasLtMatmulDescGetAttribute(own, 8, &pointer, sizeof(pointer), &written));
    say("bias is kept: %d, %zu bytes", pointer == dbias, written);
    memcpy(copy, own, sizeof(copy));
    OK(cublasLtMatmulPreferenceCreate(&preference));
    uint64_t limit = 4096;
    OK(cublasLtMatmulPreferenceSetAttribute(preference, 1, &limit, sizeof(limit)));
    OK(cublasLtMatmulAlgoGetHeuristic(handle, copy, layout, layout, layout, layout, preference, 4,
                                      found, &count));
    say("%d algorithms, first %llu, workspace %zu, waves %g", count,
        (unsigned long long)found[0].algo[0], found[0].workspace_bytes, (double)found[0].waves);
    OK(cublasLtMatmul(handle, copy, &alpha, da, layout, da, layout, &beta, dd, layout, dd, layout,
                      found[0].algo, NULL, 0, NULL));
    show("product with bias", dd, 4, 0);
    /* Another bias: other results, and the first one's stay as they were. */
    OK(cublasLtMatmulDescSetAttribute(copy, 8, &other_bias, sizeof(other_bias)));
    OK(cublasLtMatmulDescGetAttribute(copy, 8, &pointer, sizeof(pointer), &written));
    say("other bias is kept: %d", pointer == other_bias);
    OK(cublasLtMatmul(handle, copy, &alpha, da, layout, da, layout, &beta, dd, layout, dd, layout,
                      found[0].algo, NULL, 0, NULL));
    show("with the other bias", dd, 4, 0);
    OK(cublasLtMatmul(handle, own, &alpha, da, layout, da, layout, &beta, dd, layout, dd, layout,
                      NULL, NULL, 0, NULL));
    show("with the first again", dd, 4, 0);
    number = 5;
    OK(cublasLtMatmulAlgoConfigSetAttribute(found[0].algo, 1, &number, sizeof(number)));
    OK(cublasLtMatmulAlgoConfigGetAttribute(found[0].algo, 1, &number, sizeof(number), &written));
    say("tile %d", number);
    /* Scalars of the device's; a handle of cuBLAS's. */
    void *dalpha = device(&alpha, sizeof(alpha));
    void *dbeta = device(&beta, sizeof(beta));
    number = 1;
    OK(cublasLtMatmulDescSetAttribute(own, 2, &number, sizeof(number)));
    OK(cublasCreate_v2(&blas));
    OK(cublasLtMatmul((cublasLtHandle_t)(void *)blas, own, dalpha, da, layout, da, layout, dbeta,
                      dd, layout, dd, layout, NULL, NULL, 0, NULL));
    show("scalars of the device's", dd, 4, 0);
    IS(cublasLtMatmul(NULL, own, dalpha, da, layout, da, layout, dbeta, dd, layout, dd, layout,
                      NULL, NULL, 0, NULL),
       1);
    OK(cublasLtMatmulPreferenceDestroy(preference));
    OK(cublasDestroy_v2(blas));
    OK(cublasLtDestroy(handle));
}

/* As a linear layer does it: all descriptors made anew at each step. */
static void lt_step(void)
{
    const float ones[] = {1, 1, 1, 1};
    float alpha = 1;
    float beta = 0;
    int32_t epilogue = 4;
    cublasLtHandle_t handle = NULL;
    OK(cublasLtCreate(&handle));
    void *da = device(ones, sizeof(ones));
    void *dd = device(ones, sizeof(ones));
    void *biases[4];
    for (int i = 0; i < 4; i++) {
        float values[] = {(float)i, (float)(i * i)};
        biases[i] = device(values, sizeof(values));
    }
    for (int i = 0; i < 24; i++) {
        void *operation = NULL;
        void *layout = NULL;
        void *preference = NULL;
        uint64_t found[12];
        int count = 0;
        if (i == 12) {
            OK(cudaDeviceSynchronize());
            mark("lt");
        }
        OK(cublasLtMatmulDescCreate(&operation, 68, 0));
        OK(cublasLtMatmulDescSetAttribute(operation, 7, &epilogue, sizeof(epilogue)));
        OK(cublasLtMatmulDescSetAttribute(operation, 8, &biases[i % 4], sizeof(void *)));
        OK(cublasLtMatrixLayoutCreate(&layout, 0, 2, 2, 2));
        OK(cublasLtMatmulPreferenceCreate(&preference));
        OK(cublasLtMatmulAlgoGetHeuristic(handle, operation, layout, layout, layout, layout,
                                          preference, 1, found, &count));
        OK(cublasLtMatmul(handle, operation, &alpha, da, layout, dd, layout, &beta, dd, layout, dd,
                          layout, found, NULL, 0, NULL));
        OK(cublasLtMatmulPreferenceDestroy(preference));
        OK(cublasLtMatrixLayoutDestroy(layout));
        OK(cublasLtMatmulDescDestroy(operation));
    }
    mark("lt end");
    show("d", dd, 4, 0);
    OK(cublasLtDestroy(handle));
}

/* cuDNN. */

static void dnn_values(void)
{
    const int sizes[] = {1, 1, 1, 4};
    const int strides[] = {4, 4, 4, 1};
    const int bad[] = {1, 1, -1, 4};
    const float a[] = {1, 2, 3, 4};
    const double z[] = {1, 2, 3, 4};
    int got_sizes[8] = {0};
    int got_strides[8] = {0};
    int type = -1;
    int count = -1;
    size_t bytes = 0;
    float alpha = 2;
    float beta = 0.5f;
    double wide_alpha = 0.125;
    double wide_beta = 1;
    char text[128] = "";
    cudnnHandle_t handle = NULL;
    cudnnTensorDescriptor_t tensor = NULL;
    cudnnTensorDescriptor_t wide = NULL;
    OK(cudnnCreate(&handle));
    say("version %zu %zu", cudnnGetVersion(), cudnnGetCudartVersion());
    say("%s", cudnnGetErrorString(2000));
    OK(cudnnCreateTensorDescriptor(&tensor));
    OK(cudnnCreateTensorDescriptor(&wide));
    IS(cudnnSetTensorNdDescriptor(tensor, 0, 4, bad, strides), 2000);
    cudnnGetLastErrorString(text, sizeof(text));
    say("%s", text);
    IS(cudnnSetTensorNdDescriptor(tensor, 0, 9, sizes, strides), 3000);
    IS(cudnnSetTensorNdDescriptor(tensor, 0, 4, NULL, strides), 2000);
    OK(cudnnSetTensorNdDescriptor(tensor, 0, 4, sizes, strides));
    OK(cudnnSetTensor4dDescriptor(wide, 1, 1, 1, 2, 2, 1));
    OK(cudnnGetTensorNdDescriptor(wide, 8, &type, &count, got_sizes, got_strides));
    say("type %d, sizes %d %d %d %d, strides %d %d %d %d", type, got_sizes[0], got_sizes[1],
        got_sizes[2], got_sizes[3], got_strides[0], got_strides[1], got_strides[2], got_strides[3]);
    OK(cudnnGetTensorSizeInBytes(wide, &bytes));
    say("%zu bytes", bytes);
    /* A refused setter leaves a descriptor as it was. */
    IS(cudnnSetTensorNdDescriptor(tensor, 0, 4, bad, strides), 2000);
    void *da = device(a, sizeof(a));
    void *dc = device(a, sizeof(a));
    void *dz = device(z, sizeof(z));
    for (int i = 0; i < 3; i++) {
        OK(cudnnAddTensor(handle, &alpha, tensor, da, &beta, tensor, dc));
    }
    show("add", dc, 4, 0);
    OK(cudnnAddTensor(handle, &wide_alpha, wide, dz, &wide_beta, wide, dz));
    show("add doubles", dz, 4, 1);
    IS(cudnnAddTensor(handle, &alpha, tensor, da, &beta, wide, dc), 2000);
    IS(cudnnAddTensor(handle, &alpha, NULL, da, &beta, tensor, dc), 2000);
    IS(cudnnAddTensor(handle, NULL, tensor, da, &beta, tensor, dc), 2000);
    OK(cudnnDestroyTensorDescriptor(tensor));
    OK(cudnnDestroyTensorDescriptor(wide));
    OK(cudnnDestroy(handle));
}

static void dnn_step(void)
{
    const int sizes[] = {1, 1, 4};
    const int strides[] = {4, 4, 1};
    const float a[] = {1, 2, 3, 4};
    float alpha = 1;
    cudnnHandle_t handle = NULL;
    cudaStream_t stream = NULL;
    OK(cudnnCreate(&handle));
    OK(cudaStreamCreate(&stream));
    void *da = device(a, sizeof(a));
    void *dc = device(a, sizeof(a));
    for (int i = 0; i < 20; i++) {
        cudnnTensorDescriptor_t from = NULL;
        cudnnTensorDescriptor_t to = NULL;
        if (i == 10) {
            OK(cudaDeviceSynchronize());
            mark("dnn");
        }
        OK(cudnnSetStream(handle, stream));
        OK(cudnnCreateTensorDescriptor(&from));
        OK(cudnnCreateTensorDescriptor(&to));
        OK(cudnnSetTensorNdDescriptor(from, 0, 3, sizes, strides));
        OK(cudnnSetTensorNdDescriptor(to, 0, 3, sizes, strides));
        OK(cudnnAddTensor(handle, &alpha, from, da, &alpha, to, dc));
        OK(cudnnDestroyTensorDescriptor(from));
        OK(cudnnDestroyTensorDescriptor(to));
    }
    mark("dnn end");
    OK(cudaStreamSynchronize(stream));
    show("c", dc, 4, 0);
    OK(cudnnDestroy(handle));
    OK(cudaStreamDestroy(stream));
}

static void dnn_recurrent(void)
{
    const int lengths[] = {3, 1};
    const float x[] = {1, 2, 3, 4, 5, 6};
    const float weights[] = {10, 0, 0, 0};
    unsigned char states[256];
    size_t bytes = 0;
    size_t reserve = 0;
    float rate = 0;
    void *got_states = NULL;
    uint64_t seed = 0;
    int type = -1;
    int count = -1;
    int sizes[8] = {0};
    int strides[8] = {0};
    cudnnHandle_t handle = NULL;
    cudnnDropoutDescriptor_t dropout = NULL;
    cudnnRNNDescriptor_t rnn = NULL;
    cudnnRNNDataDescriptor_t data = NULL;
    cudnnTensorDescriptor_t m = NULL;
    cudnnTensorDescriptor_t b = NULL;
    OK(cudnnCreate(&handle));
    OK(cudnnCreateDropoutDescriptor(&dropout));
    OK(cudnnCreateRNNDescriptor(&rnn));
    OK(cudnnCreateRNNDataDescriptor(&data));
    OK(cudnnCreateTensorDescriptor(&m));
    OK(cudnnCreateTensorDescriptor(&b));
    OK(cudnnDropoutGetStatesSize(handle, &bytes));
    void *dstates = device(NULL, bytes);
    IS(cudnnSetDropoutDescriptor(dropout, handle, 2, NULL, 0, 0), 2000);
    OK(cudnnSetDropoutDescriptor(dropout, handle, 0.25f, dstates, bytes, 7));
    OK(cudaMemcpy(states, dstates, sizeof(states), TO_HOST));
    say("states of %zu bytes: %d %d", bytes, states[0], states[255]);
    OK(cudnnGetDropoutDescriptor(dropout, handle, &rate, &got_states, &seed));
    say("rate %g, states kept %d, seed %llu", (double)rate, got_states == dstates,
        (unsigned long long)seed);
    IS(cudnnSetRNNDescriptor_v8(rnn, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, dropout, 0), 2000);
    OK(cudnnSetRNNDescriptor_v8(rnn, 0, 2, 0, 0, 0, 0, 0, 0, 3, 2, 2, 2, dropout, 0));
    OK(cudnnRNNSetClip_v9(rnn, 1, -5, 5));
    OK(cudnnSetRNNDataDescriptor(data, 0, 0, 3, 2, 1, lengths, NULL));
    OK(cudnnGetRNNWeightSpaceSize(handle, rnn, &bytes));
    say("weights of %zu bytes", bytes);
    OK(cudnnGetRNNTempSpaceSizes(handle, rnn, 1, data, &bytes, NULL));
    OK(cudnnGetRNNTempSpaceSizes(handle, rnn, 1, data, &bytes, &reserve));
    say("work %zu, reserve %zu", bytes, reserve);
    void *space = device(NULL, 4096);
    for (int layer = 0; layer < 2; layer++) {
        for (int id = 0; id < 2; id++) {
            void *ma = NULL;
            void *ba = NULL;
            char *base = (char *)space + 512 * layer;
            OK(cudnnGetRNNWeightParams(handle, rnn, layer, 1024, base, id, m, &ma, b, &ba));
            say("weight %d %d at %zd, bias %zd", layer, id, (char *)ma - base,
                ba == NULL ? (ssize_t)-1 : (char *)ba - base);
            OK(cudnnGetTensorNdDescriptor(m, 8, &type, &count, sizes, strides));
            say("of %d dimensions, %d x %d", count, sizes[1], sizes[2]);
        }
    }
    void *ma = NULL;
    void *ba = NULL;
    /* PyTorch wants to know one of the two, and gives NULL for the other. */
    OK(cudnnGetRNNWeightParams(handle, rnn, 1, 1024, space, 0, NULL, NULL, b, &ba));
    OK(cudnnGetTensorNdDescriptor(b, 8, &type, &count, sizes, strides));
    say("bias alone at %zd, %d x %d", (char *)ba - (char *)space, sizes[1], sizes[2]);
    IS(cudnnGetRNNWeightParams(handle, rnn, 9, 1024, space, 0, m, &ma, b, &ba), 2000);
    void *dx = device(x, sizeof(x));
    void *dy = device(NULL, sizeof(x));
    void *dw = device(weights, sizeof(weights));
    for (int i = 0; i < 3; i++) {
        OK(cudnnRNNForward(handle, rnn, 1, NULL, data, dx, data, dy, NULL, NULL, NULL, NULL, NULL,
                           NULL, sizeof(weights), dw, 0, NULL, 0, NULL));
    }
    show("y", dy, 6, 0);
    /* Without memory for states: only a value. */
    OK(cudnnSetDropoutDescriptor(dropout, handle, 0.5f, NULL, 0, 0));
    IS(cudnnRestoreDropoutDescriptor(dropout, handle, 0.5f, NULL, 0, 0), 2000);
    OK(cudnnSetRNNDescriptor_v8(rnn, 0, 2, 0, 0, 0, 0, 0, 0, 3, 2, 2, 2, dropout, 0));
    OK(cudnnRNNForward(handle, rnn, 1, NULL, data, dx, data, dy, NULL, NULL, NULL, NULL, NULL, NULL,
                       sizeof(weights), dw, 0, NULL, 0, NULL));
    show("y without states", dy, 6, 0);
    OK(cudnnDestroyTensorDescriptor(m));
    OK(cudnnDestroyTensorDescriptor(b));
    OK(cudnnDestroyRNNDataDescriptor(data));
    OK(cudnnDestroyRNNDescriptor(rnn));
    OK(cudnnDestroyDropoutDescriptor(dropout));
    OK(cudnnDestroy(handle));
}

/* A tensor of the graph, complete. */
static void *graph_tensor(int64_t id, int64_t elements, bool by_value)
{
    void *tensor = NULL;
    int type = 0;
    OK(cudnnBackendCreateDescriptor(WH_CUDNN_BACKEND_TENSOR, &tensor));
    OK(cudnnBackendSetAttribute(tensor, WH_CUDNN_ATTR_TENSOR_DATA_TYPE, 1, 1, &type));
    OK(cudnnBackendSetAttribute(tensor, WH_CUDNN_ATTR_TENSOR_DIMENSIONS, 3, 1, &elements));
    OK(cudnnBackendSetAttribute(tensor, WH_CUDNN_ATTR_TENSOR_UNIQUE_ID, 3, 1, &id));
    OK(cudnnBackendSetAttribute(tensor, WH_CUDNN_ATTR_TENSOR_IS_BY_VALUE, 2, 1, &by_value));
    OK(cudnnBackendFinalize(tensor));
    return tensor;
}

/* An operation on so many elements, and the plan that executes it. */
struct problem {
    void *tensors[3];
    void *operation;
    void *graph;
    void *heuristic;
    void *configs[3];
    void *plan;
    int64_t workspace_bytes;
};

static struct problem make_problem(cudnnHandle_t handle, int64_t elements)
{
    int64_t count = -1;
    struct problem made = {.tensors = {graph_tensor(11, elements, false), graph_tensor(12, 1, true),
                                       graph_tensor(13, elements, false)}};
    OK(cudnnBackendCreateDescriptor(13, &made.operation));
    OK(cudnnBackendSetAttribute(made.operation, 750, WH_CUDNN_TYPE_DESCRIPTOR, 3, made.tensors));
    OK(cudnnBackendFinalize(made.operation));
    OK(cudnnBackendCreateDescriptor(15, &made.graph));
    OK(cudnnBackendSetAttribute(made.graph, 800, WH_CUDNN_TYPE_HANDLE, 1, &handle));
    OK(cudnnBackendSetAttribute(made.graph, 801, WH_CUDNN_TYPE_DESCRIPTOR, 1, &made.operation));
    OK(cudnnBackendFinalize(made.graph));
    OK(cudnnBackendCreateDescriptor(4, &made.heuristic));
    OK(cudnnBackendSetAttribute(made.heuristic, 201, WH_CUDNN_TYPE_DESCRIPTOR, 1, &made.graph));
    OK(cudnnBackendFinalize(made.heuristic));
    OK(cudnnBackendGetAttribute(made.heuristic, 202, WH_CUDNN_TYPE_DESCRIPTOR, 0, &count, NULL));
    say("%lld configurations", (long long)count);
    for (int i = 0; i < 3; i++) {
        OK(cudnnBackendCreateDescriptor(3, &made.configs[i]));
    }
    OK(cudnnBackendGetAttribute(made.heuristic, 202, WH_CUDNN_TYPE_DESCRIPTOR, 3, &count,
                                made.configs));
    say("%lld filled in", (long long)count);
    OK(cudnnBackendCreateDescriptor(5, &made.plan));
    OK(cudnnBackendSetAttribute(made.plan, 400, WH_CUDNN_TYPE_HANDLE, 1, &handle));
    OK(cudnnBackendSetAttribute(made.plan, 401, WH_CUDNN_TYPE_DESCRIPTOR, 1, &made.configs[1]));
    OK(cudnnBackendFinalize(made.plan));
    OK(cudnnBackendGetAttribute(made.plan, 402, 3, 1, &count, &made.workspace_bytes));
    return made;
}

static void end_problem(const struct problem *problem)
{
    void *const all[] = {problem->plan,       problem->configs[0], problem->configs[1],
                         problem->configs[2], problem->heuristic,  problem->graph,
                         problem->operation,  problem->tensors[0], problem->tensors[1],
                         problem->tensors[2]};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        OK(cudnnBackendDestroyDescriptor(all[i]));
    }
}

/* What the library refuses is known at once, whatever has succeeded before. */
static void refused_attributes(void)
{
    void *none = NULL;
    void *operation = NULL;
    void *tensor = graph_tensor(14, 4, false);
    void *unfinished = NULL;
    int64_t number = 15;
    char text[128] = "";
    IS(cudnnBackendCreateDescriptor(1000, &none), 3000);
    OK(cudnnBackendCreateDescriptor(13, &operation));
    IS(cudnnBackendFinalize(operation), 2000);
    cudnnGetLastErrorString(text, sizeof(text));
    say("%s", text);
    OK(cudnnBackendCreateDescriptor(WH_CUDNN_BACKEND_TENSOR, &unfinished));
    void *tensors[] = {unfinished, tensor, tensor};
    IS(cudnnBackendSetAttribute(operation, 750, WH_CUDNN_TYPE_DESCRIPTOR, 3, tensors), 2004);
    IS(cudnnBackendSetAttribute(tensor, WH_CUDNN_ATTR_TENSOR_UNIQUE_ID, 3, 1, &number), 2000);
    OK(cudnnBackendSetAttribute(unfinished, WH_CUDNN_ATTR_TENSOR_UNIQUE_ID, 3, 1, &number));
    OK(cudnnBackendFinalize(unfinished));
    OK(cudnnBackendSetAttribute(operation, 750, WH_CUDNN_TYPE_DESCRIPTOR, 3, tensors));
    OK(cudnnBackendFinalize(operation));
    OK(cudnnBackendDestroyDescriptor(operation));
    OK(cudnnBackendDestroyDescriptor(unfinished));
    OK(cudnnBackendDestroyDescriptor(tensor));
}

static void dnn_graph(void)
{
    const float x[] = {1, 2, 3, 4};
    const int64_t ids[] = {11, 12, 13};
    cudnnHandle_t handle = NULL;
    OK(cudnnCreate(&handle));
    refused_attributes();
    struct problem first = make_problem(handle, 4);
    refused_attributes();
    mark("problem");
    struct problem other = make_problem(handle, 8);
    mark("problem end");
    mark("again");
    struct problem same = make_problem(handle, 8);
    mark("again end");
    end_problem(&other);
    end_problem(&same);
    void *plan = first.plan;
    say("workspace of %lld bytes", (long long)first.workspace_bytes);
    void *dx = device(x, sizeof(x));
    void *dy = device(x, sizeof(x));
    void *workspace = device(NULL, (size_t)first.workspace_bytes);
    for (int i = 0; i < 20; i++) {
        float scalar = (float)i;
        void *pointers[] = {dx, &scalar, dy};
        void *pack = NULL;
        if (i == 10) {
            OK(cudaDeviceSynchronize());
            mark("graph");
        }
        OK(cudnnSetStream(handle, NULL));
        OK(cudnnBackendCreateDescriptor(WH_CUDNN_BACKEND_VARIANT_PACK, &pack));
        OK(cudnnBackendSetAttribute(pack, WH_CUDNN_ATTR_PACK_DATA_POINTERS, WH_CUDNN_TYPE_VOID_PTR,
                                    3, pointers));
        OK(cudnnBackendSetAttribute(pack, WH_CUDNN_ATTR_PACK_UNIQUE_IDS, 3, 3, ids));
        OK(cudnnBackendSetAttribute(pack, WH_CUDNN_ATTR_PACK_WORKSPACE, WH_CUDNN_TYPE_VOID_PTR, 1,
                                    &workspace));
        OK(cudnnBackendFinalize(pack));
        OK(cudnnBackendExecute(handle, plan, pack));
        OK(cudnnBackendDestroyDescriptor(pack));
        scalar = -1; /* the library has taken it */
    }
    mark("graph end");
    show("y", dy, 4, 0);
    end_problem(&first);
    OK(cudnnDestroy(handle));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"blas_handle", blas_handle},   {"blas_products", blas_products},
    {"blas_scalars", blas_scalars}, {"blas_matrices", blas_matrices},
    {"blas_step", blas_step},       {"lt_product", lt_product},
    {"lt_step", lt_step},           {"dnn_values", dnn_values},
    {"dnn_step", dnn_step},         {"dnn_recurrent", dnn_recurrent},
    {"dnn_graph", dnn_graph},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool wanted = argc == 1;
        for (int j = 1; j < argc; j++) {
            wanted = wanted || strcmp(argv[j], cases[i].name) == 0;
        }
        if (wanted) {
            case_name = cases[i].name;
            cases[i].run();
        }
    }
    case_name = "end";
    say("%d wrong", failures);
    return failures == 0 ? 0 : 1;
}
