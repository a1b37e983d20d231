/*
 * matmul.c - products of matrices, and the choice of algorithms for them.
 */
#include "cublaslt.h"
#include "cuda.h"
#include "wh_cuda_types.h"
#include "wh_wire.h"

#define INVALID_VALUE 7
#define NOT_INITIALIZED 1

static int done(int status)
{
    return wh_cuda_done(&wh_cublaslt_api, status);
}

/* A handle of cuBLAS is one of cuBLASLt, too. */
static bool is_handle(cublasLtHandle_t handle)
{
    return wh_cuda_handle_live(handle, WH_KIND_CUBLASLT) ||
           wh_cuda_handle_live(handle, WH_KIND_CUBLAS);
}

static int begin(struct wh_call *call, uint16_t opcode, cublasLtHandle_t handle)
{
    int status = wh_cuda_begin(call, &wh_cublaslt_api, opcode);
    if (status == 0) {
        wh_put_u64(call, (uint64_t)(uintptr_t)handle);
    }
    return status;
}

/* A descriptor with stand-ins for its pointers. */
static void put_plain(struct wh_call *call, const void *descriptor, enum wh_lt_kind kind)
{
    uint8_t plain[WH_LT_DESCRIPTOR_BYTES_MAX];
    size_t size_bytes = descriptor == NULL ? 0 : wh_lt_plain(descriptor, kind, plain);
    wh_put_blob(call, descriptor == NULL ? NULL : plain, size_bytes);
}

static void put_whole(struct wh_call *call, const void *descriptor, enum wh_lt_kind kind)
{
    wh_put_blob(call, descriptor, descriptor == NULL ? 0 : wh_lt_bytes(descriptor, kind));
}

static uint64_t add_plain(uint64_t shape, const void *descriptor, enum wh_lt_kind kind)
{
    uint8_t plain[WH_LT_DESCRIPTOR_BYTES_MAX + sizeof(uint64_t)] = {0};
    if (descriptor == NULL) {
        return wh_shape_add(shape, 0);
    }
    size_t size_bytes = wh_lt_plain(descriptor, kind, plain);
    for (size_t at = 0; at < size_bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, plain + at, sizeof(word));
        shape = wh_shape_add(shape, word);
    }
    return shape;
}

WH_EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle)
{
    WH_API_CALL();
    struct wh_call call;
    if (!wh_cuda_handle_live(lightHandle, WH_KIND_CUBLASLT)) {
        return done(NOT_INITIALIZED);
    }
    int status = begin(&call, WH_OP_cublasLtDestroy, lightHandle);
    if (status == 0) {
        status = wh_cuda_call(&call, &wh_cublaslt_api);
        wh_call_end(&call);
    }
    wh_cuda_handle_end((uint64_t)(uintptr_t)lightHandle);
    return done(status);
}

/* An attribute that says what alpha and beta are; -1 if the library does not say. */
static int attribute_of(uint16_t opcode, const void *descriptor, enum wh_lt_kind kind,
                        int attribute)
{
    struct wh_call call;
    int32_t value = -1;
    uint64_t found = 0;
    if (wh_cuda_begin(&call, &wh_cublaslt_api, opcode) != 0) {
        return -1;
    }
    put_plain(&call, descriptor, kind);
    wh_put_u64(&call, (uint64_t)attribute);
    wh_put_u64(&call, sizeof(value));
    wh_put_out(&call, sizeof(found), true);
    wh_put_out(&call, sizeof(value), true);
    if (wh_cuda_call_pure(&call, &wh_cublaslt_api) == 0) {
        (void)wh_get_out(&call, &found, sizeof(found));
        (void)wh_get_out(&call, &value, sizeof(value));
    }
    wh_call_end(&call);
    return value;
}

/* Bytes of alpha and beta in the host's memory; 0: the device has them. */
struct scalars {
    size_t alpha_bytes;
    size_t beta_bytes;
    bool beta_is_zero;
};

static bool scalars_of(int type, int mode, struct scalars *scalars)
{
    size_t bytes = wh_cuda_type_bytes(type);
    if (bytes == 0 || mode < WH_LT_HOST || mode > WH_LT_ALPHA_VECTOR_BETA_HOST) {
        return false;
    }
    scalars->alpha_bytes = mode == WH_LT_HOST ? bytes : 0;
    scalars->beta_bytes = mode == WH_LT_HOST || mode == WH_LT_ALPHA_VECTOR_BETA_HOST ? bytes : 0;
    scalars->beta_is_zero = mode == WH_LT_ALPHA_VECTOR_BETA_ZERO;
    return true;
}

WH_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, void *computeDesc,
                                        const void *alpha, const void *A, void *Adesc,
                                        const void *B, void *Bdesc, const void *beta, const void *C,
                                        void *Cdesc, void *D, void *Ddesc, const void *algo,
                                        void *workspace, size_t workspaceSizeInBytes,
                                        cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_call call;
    struct scalars scalars;
    const uint16_t ask = WH_OP_cublasLtMatmulDescGetAttribute;
    if (!is_handle(lightHandle) || computeDesc == NULL || !wh_cuda_stream_live(stream)) {
        return done(is_handle(lightHandle) ? INVALID_VALUE : NOT_INITIALIZED);
    }
    if (!scalars_of(attribute_of(ask, computeDesc, WH_LT_MATMUL, WH_LT_SCALE_TYPE),
                    attribute_of(ask, computeDesc, WH_LT_MATMUL, WH_LT_POINTER_MODE), &scalars)) {
        return done(INVALID_VALUE);
    }
    beta = scalars.beta_is_zero ? NULL : beta;
    int status = begin(&call, WH_OP_cublasLtMatmul, lightHandle);
    if (status != 0) {
        return done(status);
    }
    put_whole(&call, computeDesc, WH_LT_MATMUL);
    wh_cuda_put_scalar(&call, alpha, scalars.alpha_bytes);
    wh_put_u64(&call, (uint64_t)(uintptr_t)A);
    put_whole(&call, Adesc, WH_LT_LAYOUT);
    wh_put_u64(&call, (uint64_t)(uintptr_t)B);
    put_whole(&call, Bdesc, WH_LT_LAYOUT);
    wh_cuda_put_scalar(&call, beta, scalars.beta_bytes);
    wh_put_u64(&call, (uint64_t)(uintptr_t)C);
    put_whole(&call, Cdesc, WH_LT_LAYOUT);
    wh_put_u64(&call, (uint64_t)(uintptr_t)D);
    put_whole(&call, Ddesc, WH_LT_LAYOUT);
    put_whole(&call, algo, WH_LT_ALGO);
    wh_put_u64(&call, (uint64_t)(uintptr_t)workspace);
    wh_put_u64(&call, workspaceSizeInBytes);
    wh_put_u64(&call, wh_cuda_stream(stream));
    uint64_t shape = wh_shape(WH_OP_cublasLtMatmul);
    shape = wh_shape_add(shape, (uint64_t)(uintptr_t)lightHandle);
    shape = add_plain(shape, computeDesc, WH_LT_MATMUL);
    shape = add_plain(shape, Adesc, WH_LT_LAYOUT);
    shape = add_plain(shape, Bdesc, WH_LT_LAYOUT);
    shape = add_plain(shape, Cdesc, WH_LT_LAYOUT);
    shape = add_plain(shape, Ddesc, WH_LT_LAYOUT);
    shape = add_plain(shape, algo, WH_LT_ALGO);
    shape = wh_shape_add(shape, workspaceSizeInBytes);
    const void *const pointers[] = {alpha, A, B, beta, C, D, workspace};
    for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
        /* Algorithms want alignments. */
        shape = wh_shape_add(shape, wh_lt_plain_pointer((uint64_t)(uintptr_t)pointers[i]));
    }
    return done(wh_cuda_send_shape(&call, &wh_cublaslt_api, shape));
}

WH_EXPORT cublasStatus_t cublasLtMatrixTransform(cublasLtHandle_t lightHandle, void *transformDesc,
                                                 const void *alpha, const void *A, void *Adesc,
                                                 const void *beta, const void *B, void *Bdesc,
                                                 void *C, void *Cdesc, cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_call call;
    struct scalars scalars;
    const uint16_t ask = WH_OP_cublasLtMatrixTransformDescGetAttribute;
    if (!is_handle(lightHandle) || transformDesc == NULL || !wh_cuda_stream_live(stream)) {
        return done(is_handle(lightHandle) ? INVALID_VALUE : NOT_INITIALIZED);
    }
    int type = attribute_of(ask, transformDesc, WH_LT_TRANSFORM, WH_LT_TRANSFORM_SCALE_TYPE);
    int mode = attribute_of(ask, transformDesc, WH_LT_TRANSFORM, WH_LT_TRANSFORM_POINTER_MODE);
    if (!scalars_of(type, mode, &scalars)) {
        return done(INVALID_VALUE);
    }
    int status = begin(&call, WH_OP_cublasLtMatrixTransform, lightHandle);
    if (status != 0) {
        return done(status);
    }
    put_whole(&call, transformDesc, WH_LT_TRANSFORM);
    wh_cuda_put_scalar(&call, alpha, scalars.alpha_bytes);
    wh_put_u64(&call, (uint64_t)(uintptr_t)A);
    put_whole(&call, Adesc, WH_LT_LAYOUT);
    wh_cuda_put_scalar(&call, beta, scalars.beta_bytes);
    wh_put_u64(&call, (uint64_t)(uintptr_t)B);
    put_whole(&call, Bdesc, WH_LT_LAYOUT);
    wh_put_u64(&call, (uint64_t)(uintptr_t)C);
    put_whole(&call, Cdesc, WH_LT_LAYOUT);
    wh_put_u64(&call, wh_cuda_stream(stream));
    uint64_t shape = wh_shape(WH_OP_cublasLtMatrixTransform);
    shape = wh_shape_add(shape, (uint64_t)(uintptr_t)lightHandle);
    shape = add_plain(shape, transformDesc, WH_LT_TRANSFORM);
    shape = add_plain(shape, Adesc, WH_LT_LAYOUT);
    shape = add_plain(shape, Bdesc, WH_LT_LAYOUT);
    shape = add_plain(shape, Cdesc, WH_LT_LAYOUT);
    const void *const pointers[] = {alpha, A, beta, B, C};
    for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
        shape = wh_shape_add(shape, wh_lt_plain_pointer((uint64_t)(uintptr_t)pointers[i]));
    }
    return done(wh_cuda_send_shape(&call, &wh_cublaslt_api, shape));
}

WH_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lightHandle,
                                                        void *operationDesc, void *Adesc,
                                                        void *Bdesc, void *Cdesc, void *Ddesc,
                                                        void *preference, int requestedAlgoCount,
                                                        void *heuristicResultsArray,
                                                        int *returnAlgoCount)
{
    WH_API_CALL();
    struct wh_call call;
    int count = 0;
    if (!is_handle(lightHandle)) {
        return done(NOT_INITIALIZED);
    }
    if (requestedAlgoCount < 1 || requestedAlgoCount > WH_LT_ALGOS_MAX ||
        heuristicResultsArray == NULL || returnAlgoCount == NULL) {
        return done(INVALID_VALUE);
    }
    int status = begin(&call, WH_OP_cublasLtMatmulAlgoGetHeuristic, lightHandle);
    if (status != 0) {
        return done(status);
    }
    size_t room_bytes = (size_t)requestedAlgoCount * WH_LT_HEURISTIC_BYTES;
    put_plain(&call, operationDesc, WH_LT_MATMUL);
    put_plain(&call, Adesc, WH_LT_LAYOUT);
    put_plain(&call, Bdesc, WH_LT_LAYOUT);
    put_plain(&call, Cdesc, WH_LT_LAYOUT);
    put_plain(&call, Ddesc, WH_LT_LAYOUT);
    put_plain(&call, preference, WH_LT_PREFERENCE);
    wh_put_u64(&call, (uint64_t)requestedAlgoCount);
    wh_put_out(&call, sizeof(count), true);
    wh_put_out(&call, room_bytes, true);
    status = wh_cuda_call_pure(&call, &wh_cublaslt_api);
    if (status == 0) {
        (void)wh_get_out(&call, &count, sizeof(count));
        (void)wh_get_out(&call, heuristicResultsArray, room_bytes);
    }
    wh_call_end(&call);
    *returnAlgoCount = count;
    return done(status);
}

WH_EXPORT cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t lightHandle, void *operationDesc,
                                                 void *Adesc, void *Bdesc, void *Cdesc, void *Ddesc,
                                                 const void *algo, void *result)
{
    WH_API_CALL();
    struct wh_call call;
    if (!is_handle(lightHandle) || algo == NULL || result == NULL) {
        return done(is_handle(lightHandle) ? INVALID_VALUE : NOT_INITIALIZED);
    }
    int status = begin(&call, WH_OP_cublasLtMatmulAlgoCheck, lightHandle);
    if (status != 0) {
        return done(status);
    }
    put_plain(&call, operationDesc, WH_LT_MATMUL);
    put_plain(&call, Adesc, WH_LT_LAYOUT);
    put_plain(&call, Bdesc, WH_LT_LAYOUT);
    put_plain(&call, Cdesc, WH_LT_LAYOUT);
    put_plain(&call, Ddesc, WH_LT_LAYOUT);
    put_plain(&call, algo, WH_LT_ALGO);
    wh_put_out(&call, WH_LT_HEURISTIC_BYTES, true);
    status = wh_cuda_call_pure(&call, &wh_cublaslt_api);
    if (status == 0) {
        (void)wh_get_out(&call, result, WH_LT_HEURISTIC_BYTES);
    }
    wh_call_end(&call);
    return done(status);
}

/* Types of a product, as numbers of a message. */
static void put_types(struct wh_call *call, int computeType, int scaleType, int Atype, int Btype,
                      int Ctype, int Dtype)
{
    const int types[] = {computeType, scaleType, Atype, Btype, Ctype, Dtype};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        wh_put_u64(call, (uint64_t)types[i]);
    }
}

WH_EXPORT cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t lightHandle, int computeType,
                                                  int scaleType, int Atype, int Btype, int Ctype,
                                                  int Dtype, int requestedAlgoCount,
                                                  int *algoIdsArray, int *returnAlgoCount)
{
    WH_API_CALL();
    struct wh_call call;
    int count = 0;
    if (!is_handle(lightHandle)) {
        return done(NOT_INITIALIZED);
    }
    if (requestedAlgoCount < 1 || requestedAlgoCount > WH_LT_ALGOS_MAX || algoIdsArray == NULL) {
        return done(INVALID_VALUE);
    }
    int status = begin(&call, WH_OP_cublasLtMatmulAlgoGetIds, lightHandle);
    if (status != 0) {
        return done(status);
    }
    size_t room_bytes = (size_t)requestedAlgoCount * sizeof(int);
    put_types(&call, computeType, scaleType, Atype, Btype, Ctype, Dtype);
    wh_put_u64(&call, (uint64_t)requestedAlgoCount);
    wh_put_out(&call, sizeof(count), true);
    wh_put_out(&call, room_bytes, true);
    status = wh_cuda_call_pure(&call, &wh_cublaslt_api);
    if (status == 0) {
        (void)wh_get_out(&call, &count, sizeof(count));
        (void)wh_get_out(&call, algoIdsArray, room_bytes);
    }
    wh_call_end(&call);
    if (returnAlgoCount != NULL) {
        *returnAlgoCount = count;
    }
    return done(status);
}

WH_EXPORT cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t lightHandle, int computeType,
                                                int scaleType, int Atype, int Btype, int Ctype,
                                                int Dtype, int algoId, void *algo)
{
    WH_API_CALL();
    struct wh_call call;
    if (!is_handle(lightHandle) || algo == NULL) {
        return done(is_handle(lightHandle) ? INVALID_VALUE : NOT_INITIALIZED);
    }
    int status = begin(&call, WH_OP_cublasLtMatmulAlgoInit, lightHandle);
    if (status != 0) {
        return done(status);
    }
    put_types(&call, computeType, scaleType, Atype, Btype, Ctype, Dtype);
    wh_put_u64(&call, (uint64_t)algoId);
    wh_put_out(&call, WH_LT_ALGO_BYTES, true);
    status = wh_cuda_call_pure(&call, &wh_cublaslt_api);
    if (status == 0) {
        (void)wh_get_out(&call, algo, WH_LT_ALGO_BYTES);
    }
    wh_call_end(&call);
    return done(status);
}

WH_EXPORT size_t cublasLtGetVersion(void)
{
    WH_API_CALL();
    static size_t kept;
    struct wh_call call;
    size_t version = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    if (version != 0 && wh_local_answers()) {
        return version;
    }
    if (wh_cuda_begin(&call, &wh_cublaslt_api, WH_OP_cublasLtGetVersion) != 0) {
        return 0;
    }
    if (wh_cuda_call(&call, &wh_cublaslt_api) == 0) {
        version = (size_t)wh_get_u64(&call);
        __atomic_store_n(&kept, version, __ATOMIC_RELAXED);
    }
    wh_call_end(&call);
    return version;
}

WH_EXPORT size_t cublasLtGetCudartVersion(void)
{
    WH_API_CALL();
    return 13000; /* CUDA 13.0 */
}

WH_EXPORT const char *cublasLtGetStatusName(cublasStatus_t status)
{
    WH_API_CALL();
    return wh_cublas_status_name(status);
}

WH_EXPORT const char *cublasLtGetStatusString(cublasStatus_t status)
{
    WH_API_CALL();
    return wh_cublas_status_words(status);
}

WH_EXPORT cublasStatus_t cublasLtCtxInit(void)
{
    WH_API_CALL();
    return 0;
}

WH_EXPORT int cublasLtGetEnvironmentMode(void)
{
    WH_API_CALL();
    return 0;
}

WH_EXPORT cublasStatus_t cublasLtLoggerSetLevel(int level)
{
    WH_API_CALL();
    (void)level;
    return 0;
}

WH_EXPORT cublasStatus_t cublasLtLoggerSetMask(int mask)
{
    WH_API_CALL();
    (void)mask;
    return 0;
}

WH_EXPORT cublasStatus_t cublasLtLoggerForceDisable(void)
{
    WH_API_CALL();
    return 0;
}
