/*
 * descriptors.c - making, setting and asking descriptors of cuBLASLt: each a question that the
 * server answers once.
 */
#include "answers.h"
#include "cublaslt.h"
#include "cuda.h"
#include "wh_wire.h"

#define INVALID_VALUE 7
#define NOT_SUPPORTED 15
#define EMULATION_DESCRIPTOR 38 /* points to a descriptor of the program's */

static int done(int status)
{
    return wh_cuda_done(&wh_cublaslt_api, status);
}

static int begin(struct wh_call *call, uint16_t opcode)
{
    return wh_cuda_begin(call, &wh_cublaslt_api, opcode);
}

/* What is common to the two ways to make a descriptor: parameters go, bytes come. */
static int make(uint16_t opcode, void *descriptor, size_t size_bytes, const uint64_t *parameters,
                size_t count, size_t *got_bytes)
{
    struct wh_call call;
    int status = begin(&call, opcode);
    if (status != 0) {
        return status;
    }
    wh_put_u64(&call, size_bytes);
    for (size_t i = 0; i < count; i++) {
        wh_put_u64(&call, parameters[i]);
    }
    wh_put_out(&call, size_bytes, true);
    status = wh_cuda_call_pure(&call, &wh_cublaslt_api);
    if (status == 0) {
        *got_bytes = wh_get_out(&call, descriptor, size_bytes);
    }
    wh_call_end(&call);
    return status;
}

static int init(uint16_t opcode, enum wh_lt_kind kind, void *descriptor, size_t size_bytes,
                const uint64_t *parameters, size_t count)
{
    size_t got_bytes = 0;
    if (descriptor == NULL || size_bytes > WH_LT_DESCRIPTOR_BYTES_MAX) {
        return done(INVALID_VALUE);
    }
    int status = make(opcode, descriptor, size_bytes, parameters, count, &got_bytes);
    if (status == 0) {
        wh_lt_learn_size(kind, size_bytes);
    }
    return done(status);
}

static int create(uint16_t opcode, enum wh_lt_kind kind, void **descriptor,
                  const uint64_t *parameters, size_t count)
{
    size_t got_bytes = 0;
    if (descriptor == NULL) {
        return done(INVALID_VALUE);
    }
    void *made = wh_lt_new(kind);
    if (made == NULL) {
        return done(wh_cublaslt_api.memory);
    }
    int status = make(opcode, made, WH_LT_DESCRIPTOR_BYTES_MAX, parameters, count, &got_bytes);
    if (status != 0) {
        (void)wh_lt_free(made);
        return done(status);
    }
    wh_lt_resize(made, got_bytes);
    *descriptor = made;
    return 0;
}

static int destroy(void *descriptor)
{
    return wh_cuda_answered(&wh_cublaslt_api,
                            descriptor == NULL || wh_lt_free(descriptor) ? 0 : INVALID_VALUE);
}

static int set(uint16_t opcode, enum wh_lt_kind kind, void *descriptor, int attribute,
               const void *value, size_t value_bytes)
{
    struct wh_call call;
    uint8_t plain[WH_LT_DESCRIPTOR_BYTES_MAX];
    uint8_t result[WH_LT_DESCRIPTOR_BYTES_MAX];
    size_t place = SIZE_MAX;
    uint64_t pointer = 0;
    if (descriptor == NULL || value == NULL || value_bytes > WH_LT_ATTRIBUTE_BYTES_MAX) {
        return done(INVALID_VALUE);
    }
    if (kind == WH_LT_MATMUL && attribute == EMULATION_DESCRIPTOR) {
        return done(NOT_SUPPORTED);
    }
    bool is_pointer = wh_lt_is_pointer(kind, attribute, &place) && value_bytes == sizeof(pointer);
    if (is_pointer) {
        memcpy(&pointer, value, sizeof(pointer));
    }
    bool stands_in = is_pointer && place != SIZE_MAX;
    uint64_t sent = stands_in ? wh_lt_plain_pointer(pointer) : pointer;
    size_t size_bytes = wh_lt_plain(descriptor, kind, plain);
    int status = begin(&call, opcode);
    if (status != 0) {
        return done(status);
    }
    wh_put_blob(&call, plain, size_bytes);
    wh_put_u64(&call, (uint64_t)attribute);
    wh_put_blob(&call, is_pointer ? (const void *)&sent : value, value_bytes);
    wh_put_out(&call, size_bytes, true);
    status = wh_cuda_call_pure(&call, &wh_cublaslt_api);
    if (status == 0) {
        (void)wh_get_out(&call, result, size_bytes);
    }
    wh_call_end(&call);
    if (status != 0) {
        return done(status);
    }
    if (is_pointer && !stands_in) {
        wh_lt_learn_pointer(kind, attribute, plain, result, size_bytes, pointer);
    }
    wh_lt_restore(descriptor, kind, result);
    if (is_pointer && wh_lt_is_pointer(kind, attribute, &place) && place != SIZE_MAX) {
        memcpy(result + place, &pointer, sizeof(pointer));
    }
    memcpy(descriptor, result, size_bytes);
    return 0;
}

static int get(uint16_t opcode, enum wh_lt_kind kind, const void *descriptor, int attribute,
               void *value, size_t value_bytes, size_t *written)
{
    struct wh_call call;
    uint64_t found = 0;
    size_t place = SIZE_MAX;
    if (descriptor == NULL || value_bytes > WH_LT_ATTRIBUTE_BYTES_MAX) {
        return done(INVALID_VALUE);
    }
    int status = begin(&call, opcode);
    if (status != 0) {
        return done(status);
    }
    uint8_t plain[WH_LT_DESCRIPTOR_BYTES_MAX];
    size_t size_bytes = wh_lt_plain(descriptor, kind, plain);
    wh_put_blob(&call, plain, size_bytes);
    wh_put_u64(&call, (uint64_t)attribute);
    wh_put_u64(&call, value_bytes);
    wh_put_out(&call, sizeof(found), true);
    wh_put_out(&call, value_bytes, value != NULL);
    status = wh_cuda_call_pure(&call, &wh_cublaslt_api);
    if (status == 0) {
        (void)wh_get_out(&call, &found, sizeof(found));
        (void)wh_get_out(&call, value, value_bytes);
    }
    wh_call_end(&call);
    if (status == 0 && written != NULL) {
        *written = (size_t)found;
    }
    if (status == 0 && value != NULL && value_bytes == sizeof(uint64_t) &&
        wh_lt_is_pointer(kind, attribute, &place) && place != SIZE_MAX) {
        memcpy(value, (const uint8_t *)descriptor + place, sizeof(uint64_t));
    }
    return done(status);
}

WH_EXPORT cublasStatus_t cublasLtMatmulDescInit_internal(void *matmulDesc, size_t size,
                                                         int computeType, int scaleType)
{
    WH_API_CALL();
    const uint64_t parameters[] = {(uint64_t)computeType, (uint64_t)scaleType};
    return init(WH_OP_cublasLtMatmulDescInit_internal, WH_LT_MATMUL, matmulDesc, size, parameters,
                2);
}

WH_EXPORT cublasStatus_t cublasLtMatmulDescCreate(void **matmulDesc, int computeType, int scaleType)
{
    WH_API_CALL();
    const uint64_t parameters[] = {(uint64_t)computeType, (uint64_t)scaleType};
    return create(WH_OP_cublasLtMatmulDescCreate, WH_LT_MATMUL, matmulDesc, parameters, 2);
}

WH_EXPORT cublasStatus_t cublasLtMatrixLayoutInit_internal(void *matLayout, size_t size, int type,
                                                           uint64_t rows, uint64_t cols, int64_t ld)
{
    WH_API_CALL();
    const uint64_t parameters[] = {(uint64_t)type, rows, cols, (uint64_t)ld};
    return init(WH_OP_cublasLtMatrixLayoutInit_internal, WH_LT_LAYOUT, matLayout, size, parameters,
                4);
}

WH_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(void **matLayout, int type, uint64_t rows,
                                                    uint64_t cols, int64_t ld)
{
    WH_API_CALL();
    const uint64_t parameters[] = {(uint64_t)type, rows, cols, (uint64_t)ld};
    return create(WH_OP_cublasLtMatrixLayoutCreate, WH_LT_LAYOUT, matLayout, parameters, 4);
}

WH_EXPORT cublasStatus_t cublasLtMatrixTransformDescInit_internal(void *transformDesc, size_t size,
                                                                  int scaleType)
{
    WH_API_CALL();
    const uint64_t parameters[] = {(uint64_t)scaleType};
    return init(WH_OP_cublasLtMatrixTransformDescInit_internal, WH_LT_TRANSFORM, transformDesc,
                size, parameters, 1);
}

WH_EXPORT cublasStatus_t cublasLtMatrixTransformDescCreate(void **transformDesc, int scaleType)
{
    WH_API_CALL();
    const uint64_t parameters[] = {(uint64_t)scaleType};
    return create(WH_OP_cublasLtMatrixTransformDescCreate, WH_LT_TRANSFORM, transformDesc,
                  parameters, 1);
}

WH_EXPORT cublasStatus_t cublasLtMatmulPreferenceInit_internal(void *pref, size_t size)
{
    WH_API_CALL();
    return init(WH_OP_cublasLtMatmulPreferenceInit_internal, WH_LT_PREFERENCE, pref, size, NULL, 0);
}

WH_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(void **pref)
{
    WH_API_CALL();
    return create(WH_OP_cublasLtMatmulPreferenceCreate, WH_LT_PREFERENCE, pref, NULL, 0);
}

#define DESCRIPTOR(what, kind, name)                                                               \
    WH_EXPORT cublasStatus_t cublasLt##what##Destroy(void *name)                                   \
    {                                                                                              \
        WH_API_CALL();                                                                             \
        return destroy(name);                                                                      \
    }                                                                                              \
    WH_EXPORT cublasStatus_t cublasLt##what##SetAttribute(void *name, int attr, const void *buf,   \
                                                          size_t sizeInBytes)                      \
    {                                                                                              \
        WH_API_CALL();                                                                             \
        return set(WH_OP_cublasLt##what##SetAttribute, kind, name, attr, buf, sizeInBytes);        \
    }                                                                                              \
    WH_EXPORT cublasStatus_t cublasLt##what##GetAttribute(void *name, int attr, void *buf,         \
                                                          size_t sizeInBytes, size_t *sizeWritten) \
    {                                                                                              \
        WH_API_CALL();                                                                             \
        return get(WH_OP_cublasLt##what##GetAttribute, kind, name, attr, buf, sizeInBytes,         \
                   sizeWritten);                                                                   \
    }                                                                                              \
    _Static_assert(1, "for the semicolon")

DESCRIPTOR(MatmulDesc, WH_LT_MATMUL, matmulDesc);
DESCRIPTOR(MatrixLayout, WH_LT_LAYOUT, matLayout);
DESCRIPTOR(MatrixTransformDesc, WH_LT_TRANSFORM, transformDesc);
DESCRIPTOR(MatmulPreference, WH_LT_PREFERENCE, pref);

WH_EXPORT cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(void *algo, int attr, const void *buf,
                                                              size_t sizeInBytes)
{
    WH_API_CALL();
    return set(WH_OP_cublasLtMatmulAlgoConfigSetAttribute, WH_LT_ALGO, algo, attr, buf,
               sizeInBytes);
}

WH_EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const void *algo, int attr, void *buf,
                                                              size_t sizeInBytes,
                                                              size_t *sizeWritten)
{
    WH_API_CALL();
    return get(WH_OP_cublasLtMatmulAlgoConfigGetAttribute, WH_LT_ALGO, algo, attr, buf, sizeInBytes,
               sizeWritten);
}

WH_EXPORT cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const void *algo, int attr, void *buf,
                                                           size_t sizeInBytes, size_t *sizeWritten)
{
    WH_API_CALL();
    return get(WH_OP_cublasLtMatmulAlgoCapGetAttribute, WH_LT_ALGO, algo, attr, buf, sizeInBytes,
               sizeWritten);
}
