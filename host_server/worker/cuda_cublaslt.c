/*
 * cuda_cublaslt.c - cuBLASLt: its descriptors come as bytes and go back as bytes.
 */
#include "cuda_cublaslt.h"

#include <errno.h>
#include <malloc.h>

#include "cuda_backend.h"
#include "cuda_scalar.h"
#include "times.h"
#include "wh_wire.h"

#define INVALID_VALUE 7
#define NOT_INITIALIZED 1
#define NOT_SUPPORTED 15

static int reply(struct wh_request *request, uint16_t opcode, uint64_t status)
{
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    wh_cuda_reply(request, opcode, status, 0);
    return 0;
}

/* A descriptor in memory that is as large as any; NULL for NULL. */
static void *take_descriptor(struct wh_request *request)
{
    size_t size_bytes = 0;
    const void *bytes = wh_take_blob(request, &size_bytes, WH_LT_DESCRIPTOR_BYTES_MAX);
    void *descriptor = bytes == NULL ? NULL : wh_scratch(request, WH_LT_DESCRIPTOR_BYTES_MAX);
    if (descriptor != NULL) {
        memset(descriptor, 0, WH_LT_DESCRIPTOR_BYTES_MAX);
        memcpy(descriptor, bytes, size_bytes);
    }
    return descriptor;
}

/* A handle of either library; *valid becomes false for another. */
static cublasLtHandle_t take_handle(struct wh_request *request, bool *valid)
{
    uint64_t handle = wh_take_u64(request);
    uint8_t kind = handle >> 56 == WH_KIND_CUBLAS ? WH_KIND_CUBLAS : WH_KIND_CUBLASLT;
    void *object = wh_cuda_object(request, handle, kind, valid);
    *valid = *valid && object != NULL;
    return object;
}

int wh_skeleton_cublasLtDestroy(struct wh_request *request)
{
    bool valid = true;
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    uint64_t handle = wh_take_u64(request);
    cublasLtHandle_t object = wh_cuda_object(request, handle, WH_KIND_CUBLASLT, &valid);
    uint64_t status = NOT_INITIALIZED;
    if (valid && object != NULL && real != NULL && real->cublasLtDestroy != NULL) {
        status = (uint64_t)real->cublasLtDestroy(object);
        (void)wh_handle_remove(request->session, handle, WH_KIND_CUBLASLT);
    }
    return reply(request, WH_OP_cublasLtDestroy, status);
}

/* The parameters of a new descriptor. */
struct parameters {
    size_t size_bytes;
    uint64_t values[4];
    uint8_t *to;
    size_t room_bytes;
};

static bool take_parameters(struct wh_request *request, size_t count, struct parameters *from)
{
    wh_cuda_enter(request);
    from->size_bytes = wh_take_u64(request);
    for (size_t i = 0; i < count; i++) {
        from->values[i] = wh_take_u64(request);
    }
    from->to = wh_take_out(request, &from->room_bytes);
    if (wh_request_failed(request) || from->to == NULL ||
        from->size_bytes > WH_LT_DESCRIPTOR_BYTES_MAX || from->room_bytes < from->size_bytes) {
        request->failed = true;
        return false;
    }
    memset(from->to, 0, from->room_bytes);
    return true;
}

static int reply_bytes(struct wh_request *request, uint16_t opcode, uint64_t status, size_t bytes)
{
    int error = reply(request, opcode, status);
    if (error == 0) {
        wh_reply_out(request, status == 0 ? bytes : 0);
    }
    return error;
}

/* The library's own descriptor as bytes: as many as it has reserved for one. */
static size_t copy_made(const void *made, uint8_t *to, size_t room_bytes)
{
    size_t bytes = malloc_usable_size((void *)(uintptr_t)made);
    bytes = bytes < room_bytes ? bytes : room_bytes;
    bytes -= bytes % sizeof(uint64_t);
    memcpy(to, made, bytes);
    return bytes;
}

#define P(i) from.values[i]

/* Both ways to make a descriptor of a kind. ARGS: what follows the descriptor in the prototypes. */
#define MAKE(what, count, ...)                                                                     \
    int wh_skeleton_cublasLt##what##Init_internal(struct wh_request *request)                      \
    {                                                                                              \
        struct parameters from = {0};                                                              \
        const struct wh_cublaslt_table *real = wh_cublaslt();                                      \
        uint64_t status = NOT_SUPPORTED;                                                           \
        if (!take_parameters(request, count, &from)) {                                             \
            return -EBADMSG;                                                                       \
        }                                                                                          \
        if (real != NULL && real->cublasLt##what##Init_internal != NULL) {                         \
            status = (uint64_t)real->cublasLt##what##Init_internal(from.to,                        \
                                                                   from.size_bytes __VA_ARGS__);   \
        }                                                                                          \
        return reply_bytes(request, WH_OP_cublasLt##what##Init_internal, status, from.size_bytes); \
    }                                                                                              \
    int wh_skeleton_cublasLt##what##Create(struct wh_request *request)                             \
    {                                                                                              \
        struct parameters from = {0};                                                              \
        const struct wh_cublaslt_table *real = wh_cublaslt();                                      \
        uint64_t status = NOT_SUPPORTED;                                                           \
        size_t bytes = 0;                                                                          \
        if (!take_parameters(request, count, &from)) {                                             \
            return -EBADMSG;                                                                       \
        }                                                                                          \
        if (real != NULL && real->cublasLt##what##Create != NULL) {                                \
            void *made = NULL;                                                                     \
            status = (uint64_t)real->cublasLt##what##Create(&made __VA_ARGS__);                    \
            if (status == 0) {                                                                     \
                bytes = copy_made(made, from.to, from.size_bytes);                                 \
                (void)real->cublasLt##what##Destroy(made);                                         \
            }                                                                                      \
        }                                                                                          \
        return reply_bytes(request, WH_OP_cublasLt##what##Create, status, bytes);                  \
    }                                                                                              \
    _Static_assert(1, "for the semicolon")

MAKE(MatmulDesc, 2, , (int)P(0), (int)P(1));
MAKE(MatrixLayout, 4, , (int)P(0), P(1), P(2), (int64_t)P(3));
MAKE(MatrixTransformDesc, 1, , (int)P(0));
MAKE(MatmulPreference, 0);

typedef cublasStatus_t (*set_function)(void *, int, const void *, size_t);
typedef cublasStatus_t (*get_function)(const void *, int, void *, size_t, size_t *);

static int set(struct wh_request *request, uint16_t opcode, set_function function)
{
    size_t value_bytes = 0;
    size_t room_bytes = 0;
    void *descriptor = take_descriptor(request);
    int attribute = (int)wh_take_u64(request);
    const void *value = wh_take_blob(request, &value_bytes, WH_LT_ATTRIBUTE_BYTES_MAX);
    void *to = wh_take_out(request, &room_bytes);
    if (wh_request_failed(request) || descriptor == NULL || value == NULL || to == NULL ||
        room_bytes > WH_LT_DESCRIPTOR_BYTES_MAX) {
        return -EBADMSG;
    }
    uint64_t status = NOT_SUPPORTED;
    if (function != NULL) {
        status = (uint64_t)function(descriptor, attribute, value, value_bytes);
        memcpy(to, descriptor, room_bytes);
    }
    return reply_bytes(request, opcode, status, room_bytes);
}

static int get(struct wh_request *request, uint16_t opcode, get_function function)
{
    size_t found_bytes = 0;
    size_t room_bytes = 0;
    size_t written = 0;
    const void *descriptor = take_descriptor(request);
    int attribute = (int)wh_take_u64(request);
    uint64_t value_bytes = wh_take_u64(request);
    uint64_t *found = wh_take_out(request, &found_bytes);
    void *value = wh_take_out(request, &room_bytes);
    if (wh_request_failed(request) || descriptor == NULL || found == NULL ||
        found_bytes < sizeof(*found) || value_bytes > WH_LT_ATTRIBUTE_BYTES_MAX ||
        (value != NULL && room_bytes < value_bytes)) {
        return -EBADMSG;
    }
    uint64_t status = NOT_SUPPORTED;
    if (function != NULL) {
        status = (uint64_t)function(descriptor, attribute, value, value_bytes, &written);
    }
    *found = written;
    int error = reply(request, opcode, status);
    wh_reply_out(request, sizeof(*found));
    wh_reply_out(request, status == 0 && value != NULL ? value_bytes : 0);
    return error;
}

#define ATTRIBUTES(what)                                                                           \
    int wh_skeleton_cublasLt##what##SetAttribute(struct wh_request *request)                       \
    {                                                                                              \
        wh_cuda_enter(request);                                                                    \
        const struct wh_cublaslt_table *real = wh_cublaslt();                                      \
        return set(request, WH_OP_cublasLt##what##SetAttribute,                                    \
                   real != NULL ? (set_function)real->cublasLt##what##SetAttribute : NULL);        \
    }                                                                                              \
    int wh_skeleton_cublasLt##what##GetAttribute(struct wh_request *request)                       \
    {                                                                                              \
        wh_cuda_enter(request);                                                                    \
        const struct wh_cublaslt_table *real = wh_cublaslt();                                      \
        return get(request, WH_OP_cublasLt##what##GetAttribute,                                    \
                   real != NULL ? (get_function)real->cublasLt##what##GetAttribute : NULL);        \
    }                                                                                              \
    _Static_assert(1, "for the semicolon")

ATTRIBUTES(MatmulDesc);
ATTRIBUTES(MatrixLayout);
ATTRIBUTES(MatrixTransformDesc);
ATTRIBUTES(MatmulPreference);
ATTRIBUTES(MatmulAlgoConfig);

int wh_skeleton_cublasLtMatmulAlgoCapGetAttribute(struct wh_request *request)
{
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    return get(request, WH_OP_cublasLtMatmulAlgoCapGetAttribute,
               real != NULL ? (get_function)real->cublasLtMatmulAlgoCapGetAttribute : NULL);
}

int wh_skeleton_cublasLtMatmulAlgoGetHeuristic(struct wh_request *request)
{
    bool valid = true;
    size_t count_bytes = 0;
    size_t room_bytes = 0;
    void *descriptors[6];
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    cublasLtHandle_t handle = take_handle(request, &valid);
    for (size_t i = 0; i < 6; i++) {
        descriptors[i] = take_descriptor(request);
    }
    uint64_t wanted = wh_take_u64(request);
    int *count = wh_take_out(request, &count_bytes);
    void *results = wh_take_out(request, &room_bytes);
    if (wh_request_failed(request) || count == NULL || count_bytes < sizeof(*count) ||
        results == NULL || wanted > WH_LT_ALGOS_MAX ||
        room_bytes < wanted * WH_LT_HEURISTIC_BYTES) {
        return -EBADMSG;
    }
    *count = 0;
    uint64_t status = NOT_INITIALIZED;
    if (real == NULL || real->cublasLtMatmulAlgoGetHeuristic == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        memset(results, 0, room_bytes);
        status = (uint64_t)real->cublasLtMatmulAlgoGetHeuristic(
            handle, descriptors[0], descriptors[1], descriptors[2], descriptors[3], descriptors[4],
            descriptors[5], (int)wanted, results, count);
    }
    size_t got = status != 0 || *count < 0 ? 0 : (size_t)*count;
    int error = reply(request, WH_OP_cublasLtMatmulAlgoGetHeuristic, status);
    wh_reply_out(request, sizeof(*count));
    wh_reply_out(request, (got < wanted ? got : wanted) * WH_LT_HEURISTIC_BYTES);
    return error;
}

int wh_skeleton_cublasLtMatmulAlgoCheck(struct wh_request *request)
{
    bool valid = true;
    size_t room_bytes = 0;
    void *descriptors[6];
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    cublasLtHandle_t handle = take_handle(request, &valid);
    for (size_t i = 0; i < 6; i++) {
        descriptors[i] = take_descriptor(request);
    }
    void *result = wh_take_out(request, &room_bytes);
    if (wh_request_failed(request) || result == NULL || room_bytes < WH_LT_HEURISTIC_BYTES) {
        return -EBADMSG;
    }
    uint64_t status = NOT_INITIALIZED;
    if (real == NULL || real->cublasLtMatmulAlgoCheck == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        memset(result, 0, WH_LT_HEURISTIC_BYTES);
        status = (uint64_t)real->cublasLtMatmulAlgoCheck(handle, descriptors[0], descriptors[1],
                                                         descriptors[2], descriptors[3],
                                                         descriptors[4], descriptors[5], result);
    }
    return reply_bytes(request, WH_OP_cublasLtMatmulAlgoCheck, status, WH_LT_HEURISTIC_BYTES);
}

static void take_types(struct wh_request *request, int *types)
{
    for (size_t i = 0; i < 6; i++) {
        types[i] = (int)wh_take_u64(request);
    }
}

int wh_skeleton_cublasLtMatmulAlgoGetIds(struct wh_request *request)
{
    bool valid = true;
    size_t count_bytes = 0;
    size_t room_bytes = 0;
    int types[6];
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    cublasLtHandle_t handle = take_handle(request, &valid);
    take_types(request, types);
    uint64_t wanted = wh_take_u64(request);
    int *count = wh_take_out(request, &count_bytes);
    int *ids = wh_take_out(request, &room_bytes);
    if (wh_request_failed(request) || count == NULL || count_bytes < sizeof(*count) ||
        ids == NULL || wanted > WH_LT_ALGOS_MAX || room_bytes < wanted * sizeof(*ids)) {
        return -EBADMSG;
    }
    *count = 0;
    uint64_t status = NOT_INITIALIZED;
    if (real == NULL || real->cublasLtMatmulAlgoGetIds == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        status =
            (uint64_t)real->cublasLtMatmulAlgoGetIds(handle, types[0], types[1], types[2], types[3],
                                                     types[4], types[5], (int)wanted, ids, count);
    }
    size_t got = status != 0 || *count < 0 ? 0 : (size_t)*count;
    int error = reply(request, WH_OP_cublasLtMatmulAlgoGetIds, status);
    wh_reply_out(request, sizeof(*count));
    wh_reply_out(request, (got < wanted ? got : wanted) * sizeof(*ids));
    return error;
}

int wh_skeleton_cublasLtMatmulAlgoInit(struct wh_request *request)
{
    bool valid = true;
    size_t room_bytes = 0;
    int types[6];
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    cublasLtHandle_t handle = take_handle(request, &valid);
    take_types(request, types);
    int id = (int)wh_take_u64(request);
    void *algo = wh_take_out(request, &room_bytes);
    if (wh_request_failed(request) || algo == NULL || room_bytes < WH_LT_ALGO_BYTES) {
        return -EBADMSG;
    }
    uint64_t status = NOT_INITIALIZED;
    if (real == NULL || real->cublasLtMatmulAlgoInit == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        memset(algo, 0, WH_LT_ALGO_BYTES);
        status = (uint64_t)real->cublasLtMatmulAlgoInit(handle, types[0], types[1], types[2],
                                                        types[3], types[4], types[5], id, algo);
    }
    return reply_bytes(request, WH_OP_cublasLtMatmulAlgoInit, status, WH_LT_ALGO_BYTES);
}

/* Whether alpha and beta lie where the descriptor has them, see wh_cublas_placed. */
static bool placed(get_function ask, const void *descriptor, int attribute, unsigned alpha,
                   unsigned beta)
{
    int32_t mode = WH_LT_HOST;
    size_t written = 0;
    if (ask == NULL || ask(descriptor, attribute, &mode, sizeof(mode), &written) != 0) {
        return false;
    }
    unsigned alpha_wrong = mode == WH_LT_HOST ? WH_CUDA_PLACE_DEVICE : WH_CUDA_PLACE_HOST;
    unsigned beta_wrong = mode == WH_LT_HOST || mode == WH_LT_ALPHA_VECTOR_BETA_HOST
                              ? WH_CUDA_PLACE_DEVICE
                              : WH_CUDA_PLACE_HOST;
    return (alpha & alpha_wrong) == 0 && (beta & beta_wrong) == 0;
}

static void *take_pointer(struct wh_request *request)
{
    return (void *)(uintptr_t)wh_take_u64(request);
}

int wh_skeleton_cublasLtMatmul(struct wh_request *request)
{
    bool valid = true;
    unsigned alpha_place = 0;
    unsigned beta_place = 0;
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    cublasLtHandle_t handle = take_handle(request, &valid);
    uint64_t status = valid ? INVALID_VALUE : NOT_INITIALIZED;
    void *descriptor = take_descriptor(request);
    const void *alpha = wh_cuda_take_scalar(request, &alpha_place);
    const void *a = take_pointer(request);
    void *a_layout = take_descriptor(request);
    const void *b = take_pointer(request);
    void *b_layout = take_descriptor(request);
    const void *beta = wh_cuda_take_scalar(request, &beta_place);
    const void *c = take_pointer(request);
    void *c_layout = take_descriptor(request);
    void *d = take_pointer(request);
    void *d_layout = take_descriptor(request);
    const void *algo = take_descriptor(request);
    void *workspace = take_pointer(request);
    size_t workspace_bytes = wh_take_u64(request);
    cudaStream_t stream = wh_cuda_stream_object(request, wh_take_u64(request), &valid);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cublasLtMatmul == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && placed((get_function)real->cublasLtMatmulDescGetAttribute, descriptor,
                               WH_LT_POINTER_MODE, alpha_place, beta_place)) {
        uint64_t begin_ticks = wh_times_enter();
        status = (uint64_t)real->cublasLtMatmul(handle, descriptor, alpha, a, a_layout, b, b_layout,
                                                beta, c, c_layout, d, d_layout, algo, workspace,
                                                workspace_bytes, stream);
        wh_times_leave(begin_ticks, WH_TIMES_BACKEND);
    }
    return reply(request, WH_OP_cublasLtMatmul, status);
}

int wh_skeleton_cublasLtMatrixTransform(struct wh_request *request)
{
    bool valid = true;
    unsigned alpha_place = 0;
    unsigned beta_place = 0;
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    cublasLtHandle_t handle = take_handle(request, &valid);
    uint64_t status = valid ? INVALID_VALUE : NOT_INITIALIZED;
    void *descriptor = take_descriptor(request);
    const void *alpha = wh_cuda_take_scalar(request, &alpha_place);
    const void *a = take_pointer(request);
    void *a_layout = take_descriptor(request);
    const void *beta = wh_cuda_take_scalar(request, &beta_place);
    const void *b = take_pointer(request);
    void *b_layout = take_descriptor(request);
    void *c = take_pointer(request);
    void *c_layout = take_descriptor(request);
    cudaStream_t stream = wh_cuda_stream_object(request, wh_take_u64(request), &valid);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cublasLtMatrixTransform == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && placed((get_function)real->cublasLtMatrixTransformDescGetAttribute,
                               descriptor, WH_LT_TRANSFORM_POINTER_MODE, alpha_place, beta_place)) {
        uint64_t begin_ticks = wh_times_enter();
        status = (uint64_t)real->cublasLtMatrixTransform(handle, descriptor, alpha, a, a_layout,
                                                         beta, b, b_layout, c, c_layout, stream);
        wh_times_leave(begin_ticks, WH_TIMES_BACKEND);
    }
    return reply(request, WH_OP_cublasLtMatrixTransform, status);
}

int wh_skeleton_cublasLtGetVersion(struct wh_request *request)
{
    wh_cuda_enter(request);
    const struct wh_cublaslt_table *real = wh_cublaslt();
    bool there = real != NULL && real->cublasLtGetVersion != NULL;
    int error = reply(request, WH_OP_cublasLtGetVersion, there ? 0 : NOT_SUPPORTED);
    if (error == 0) {
        wh_reply_u64(request, there ? real->cublasLtGetVersion() : 0);
    }
    return error;
}
