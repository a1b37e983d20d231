/*
 * cuda_cudnn.c - what is written by hand for cuDNN: numbers and texts without a status, the graph
 * interface, weights of recurrent networks.
 */
#include "cuda_cudnn.h"

#include <errno.h>

#include "cuda_backend.h"
#include "times.h"
#include "wh_wire.h"

#define BAD_PARAM 2000
#define NOT_SUPPORTED 3000
#define NOT_INITIALIZED 1001
#define TYPE_INT64 3

static int reply(struct wh_request *request, uint16_t opcode, uint64_t status)
{
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    wh_cuda_reply(request, opcode, status, 0);
    return 0;
}

/* A number that the library gives without a status. */
static int reply_number(struct wh_request *request, uint16_t opcode, size_t (*function)(void))
{
    uint64_t number = function != NULL ? function() : 0;
    int error = reply(request, opcode, function != NULL ? 0 : NOT_SUPPORTED);
    if (error == 0) {
        wh_reply_u64(request, number);
    }
    return error;
}

int wh_skeleton_cudnnGetVersion(struct wh_request *request)
{
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    return reply_number(request, WH_OP_cudnnGetVersion,
                        real != NULL ? real->cudnnGetVersion : NULL);
}

int wh_skeleton_cudnnGetCudartVersion(struct wh_request *request)
{
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    return reply_number(request, WH_OP_cudnnGetCudartVersion,
                        real != NULL ? real->cudnnGetCudartVersion : NULL);
}

int wh_skeleton_cudnnGetMaxDeviceVersion(struct wh_request *request)
{
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    return reply_number(request, WH_OP_cudnnGetMaxDeviceVersion,
                        real != NULL ? real->cudnnGetMaxDeviceVersion : NULL);
}

int wh_skeleton_cudnnGetLastErrorString(struct wh_request *request)
{
    size_t room_bytes = 0;
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    char *text = wh_take_out(request, &room_bytes);
    bool there = real != NULL && real->cudnnGetLastErrorString != NULL;
    if (wh_request_failed(request) || text == NULL || room_bytes == 0) {
        return -EBADMSG;
    }
    text[0] = '\0';
    if (there) {
        real->cudnnGetLastErrorString(text, room_bytes);
    }
    int error = reply(request, WH_OP_cudnnGetLastErrorString, there ? 0 : NOT_SUPPORTED);
    wh_reply_out(request, strnlen(text, room_bytes - 1) + 1);
    return error;
}

/* Elements of an attribute as the library wants them: handles become what they stand for. */
static void *take_elements(struct wh_request *request, int type, size_t count, bool *valid)
{
    size_t size_bytes = 0;
    size_t element_bytes = wh_cudnn_element_bytes(type);
    const uint64_t *sent = wh_take_blob(request, &size_bytes, WH_CUDA_BLOB_BYTES_MAX);
    if (sent == NULL || wh_request_failed(request)) {
        return NULL;
    }
    if (element_bytes == 0 || size_bytes != count * element_bytes) {
        request->failed = true;
        return NULL;
    }
    void *elements = wh_scratch(request, size_bytes + sizeof(uint64_t));
    if (elements == NULL) {
        return NULL;
    }
    memcpy(elements, sent, size_bytes);
    if (type != WH_CUDNN_TYPE_DESCRIPTOR && type != WH_CUDNN_TYPE_HANDLE) {
        return elements;
    }
    uint8_t kind = type == WH_CUDNN_TYPE_HANDLE ? WH_KIND_CUDNN : WH_KIND_BACKEND;
    void **objects = elements;
    for (size_t i = 0; i < count; i++) {
        objects[i] = wh_cuda_object(request, (uint64_t)(uintptr_t)objects[i], kind, valid);
    }
    return elements;
}

int wh_skeleton_cudnnBackendSetAttribute(struct wh_request *request)
{
    bool valid = true;
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    uint64_t handle = wh_take_u64(request);
    void *descriptor = wh_cuda_object(request, handle, WH_KIND_BACKEND, &valid);
    int name = (int)wh_take_u64(request);
    int type = (int)wh_take_u64(request);
    uint64_t count = wh_take_u64(request);
    if (count > WH_CUDNN_ELEMENTS_MAX) {
        return -EBADMSG;
    }
    const void *elements = take_elements(request, type, count, &valid);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    uint64_t status = BAD_PARAM;
    if (real == NULL || real->cudnnBackendSetAttribute == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && descriptor != NULL) {
        uint64_t begin_ticks = wh_times_enter();
        status = (uint64_t)real->cudnnBackendSetAttribute(descriptor, name, type, (int64_t)count,
                                                          elements);
        wh_times_leave(begin_ticks, WH_TIMES_BACKEND);
    }
    return reply(request, WH_OP_cudnnBackendSetAttribute, status);
}

int wh_skeleton_cudnnBackendGetAttribute(struct wh_request *request)
{
    bool valid = true;
    size_t found_bytes = 0;
    size_t room_bytes = 0;
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    uint64_t handle = wh_take_u64(request);
    void *descriptor = wh_cuda_object(request, handle, WH_KIND_BACKEND, &valid);
    int name = (int)wh_take_u64(request);
    int type = (int)wh_take_u64(request);
    uint64_t count = wh_take_u64(request);
    size_t element_bytes = wh_cudnn_element_bytes(type);
    if (count > WH_CUDNN_ELEMENTS_MAX || element_bytes == 0 || type == WH_CUDNN_TYPE_HANDLE) {
        return -EBADMSG;
    }
    void *filled = take_elements(request, WH_CUDNN_TYPE_DESCRIPTOR, count, &valid);
    int64_t *found = wh_take_out(request, &found_bytes);
    void *to = wh_take_out(request, &room_bytes);
    if (wh_request_failed(request) || found == NULL || found_bytes < sizeof(*found) ||
        (to != NULL && room_bytes < count * element_bytes) ||
        (filled != NULL && type != WH_CUDNN_TYPE_DESCRIPTOR) ||
        (to != NULL && type == WH_CUDNN_TYPE_DESCRIPTOR)) {
        return -EBADMSG; /* descriptors are the session's objects, never bytes that came */
    }
    *found = 0;
    uint64_t status = BAD_PARAM;
    if (real == NULL || real->cudnnBackendGetAttribute == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && descriptor != NULL) {
        uint64_t begin_ticks = wh_times_enter();
        status = (uint64_t)real->cudnnBackendGetAttribute(descriptor, name, type, (int64_t)count,
                                                          found, filled != NULL ? filled : to);
        wh_times_leave(begin_ticks, WH_TIMES_BACKEND);
    }
    size_t got = status != 0 || *found < 0 ? 0 : (uint64_t)*found > count ? count : (size_t)*found;
    int error = reply(request, WH_OP_cudnnBackendGetAttribute, status);
    wh_reply_out(request, sizeof(*found));
    wh_reply_out(request, to != NULL ? got * element_bytes : 0);
    return error;
}

/* A real variant pack with these pointers; 0 or the library's refusal. */
static uint64_t fill_pack(const struct wh_cudnn_table *real, cudnnBackendDescriptor_t pack,
                          size_t count, const int64_t *ids, void *const *pointers, void *workspace)
{
    int status = real->cudnnBackendSetAttribute(pack, WH_CUDNN_ATTR_PACK_DATA_POINTERS,
                                                WH_CUDNN_TYPE_VOID_PTR, (int64_t)count, pointers);
    if (status == 0) {
        status = real->cudnnBackendSetAttribute(pack, WH_CUDNN_ATTR_PACK_UNIQUE_IDS, TYPE_INT64,
                                                (int64_t)count, ids);
    }
    if (status == 0) {
        status = real->cudnnBackendSetAttribute(pack, WH_CUDNN_ATTR_PACK_WORKSPACE,
                                                WH_CUDNN_TYPE_VOID_PTR, 1, &workspace);
    }
    return (uint64_t)(status != 0 ? status : real->cudnnBackendFinalize(pack));
}

int wh_skeleton_cudnnBackendExecute(struct wh_request *request)
{
    bool valid = true;
    size_t id_bytes = 0;
    size_t pointer_bytes = 0;
    size_t value_bytes = 0;
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    uint64_t handle = wh_take_u64(request);
    cudnnHandle_t context = wh_cuda_object(request, handle, WH_KIND_CUDNN, &valid);
    uint64_t status = valid && context != NULL ? BAD_PARAM : NOT_INITIALIZED;
    void *plan = wh_cuda_object(request, wh_take_u64(request), WH_KIND_BACKEND, &valid);
    const int64_t *ids = wh_take_blob(request, &id_bytes, WH_CUDA_BLOB_BYTES_MAX);
    const void *sent = wh_take_blob(request, &pointer_bytes, WH_CUDA_BLOB_BYTES_MAX);
    void *workspace = (void *)(uintptr_t)wh_take_u64(request);
    struct wh_cudnn_value *values =
        (struct wh_cudnn_value *)wh_take_blob(request, &value_bytes, WH_CUDA_BLOB_BYTES_MAX);
    size_t count = pointer_bytes / sizeof(void *);
    void **pointers = wh_scratch(request, pointer_bytes + sizeof(void *));
    if (wh_request_failed(request) || id_bytes != count * sizeof(*ids) ||
        pointer_bytes != count * sizeof(void *) || value_bytes % sizeof(*values) != 0) {
        return -EBADMSG;
    }
    if (count > 0) {
        memcpy(pointers, sent, pointer_bytes);
    }
    for (size_t i = 0; i < value_bytes / sizeof(*values); i++) {
        if (values[i].place >= count) {
            return -EBADMSG;
        }
        pointers[values[i].place] = values[i].bytes;
    }
    if (real == NULL || real->cudnnBackendExecute == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && context != NULL && plan != NULL) {
        cudnnBackendDescriptor_t pack = NULL;
        uint64_t begin_ticks = wh_times_enter();
        status = (uint64_t)real->cudnnBackendCreateDescriptor(WH_CUDNN_BACKEND_VARIANT_PACK, &pack);
        if (status == 0) {
            status = fill_pack(real, pack, count, ids, pointers, workspace);
            if (status == 0) {
                status = (uint64_t)real->cudnnBackendExecute(context, plan, pack);
            }
            (void)real->cudnnBackendDestroyDescriptor(pack);
        }
        wh_times_leave(begin_ticks, WH_TIMES_BACKEND);
    }
    return reply(request, WH_OP_cudnnBackendExecute, status);
}

/* What the library says of a tensor; 0 or its refusal. */
static uint64_t describe(const struct wh_cudnn_table *real, cudnnTensorDescriptor_t tensor,
                         struct wh_cudnn_tensor *to)
{
    return (uint64_t)real->cudnnGetTensorNdDescriptor(tensor, WH_CUDNN_DIMS_MAX, &to->type,
                                                      &to->count, to->sizes, to->strides);
}

/* Asks for a weight and its bias, each with its tensor and its place. */
static uint64_t ask_weights(const struct wh_cudnn_table *real, cudnnHandle_t context, void *rnn,
                            int32_t layer, size_t size_bytes, uint8_t *space, int32_t id,
                            struct wh_cudnn_weight *weights)
{
    cudnnTensorDescriptor_t tensors[2] = {NULL, NULL};
    void *addresses[2] = {NULL, NULL};
    uint64_t status = (uint64_t)real->cudnnCreateTensorDescriptor(&tensors[0]);
    if (status == 0) {
        status = (uint64_t)real->cudnnCreateTensorDescriptor(&tensors[1]);
    }
    if (status == 0) {
        status = (uint64_t)real->cudnnGetRNNWeightParams(context, rnn, layer, size_bytes, space, id,
                                                         tensors[0], &addresses[0], tensors[1],
                                                         &addresses[1]);
    }
    for (int i = 0; i < 2 && status == 0; i++) {
        weights[i].there = addresses[i] != NULL;
        if (weights[i].there != 0) {
            weights[i].offset = (uint64_t)((uint8_t *)addresses[i] - space);
            status = describe(real, tensors[i], &weights[i].tensor);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (tensors[i] != NULL) {
            (void)real->cudnnDestroyTensorDescriptor(tensors[i]);
        }
    }
    return status;
}

int wh_skeleton_cudnnGetRNNWeightParams(struct wh_request *request)
{
    bool valid = true;
    uint64_t status = 0;
    size_t room_bytes = 0;
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    cudnnHandle_t context = wh_cuda_object(request, wh_take_u64(request), WH_KIND_CUDNN, &valid);
    status = valid && context != NULL ? 0 : NOT_INITIALIZED;
    void *rnn = wh_cudnn_take(request, WH_CUDNN_RNN, &status, &valid);
    int32_t layer = (int32_t)wh_take_u64(request);
    size_t size_bytes = wh_take_u64(request);
    int32_t id = (int32_t)wh_take_u64(request);
    struct wh_cudnn_weight *weights = wh_take_out(request, &room_bytes);
    uint8_t *space = (uint8_t *)(uintptr_t)wh_take_u64(request);
    bool bad = wh_request_failed(request) || weights == NULL || room_bytes < 2 * sizeof(*weights);
    if (!bad) {
        memset(weights, 0, 2 * sizeof(*weights));
        if (real == NULL || real->cudnnGetRNNWeightParams == NULL) {
            status = NOT_SUPPORTED;
        } else if (valid && status == 0) {
            status = ask_weights(real, context, rnn, layer, size_bytes, space, id, weights);
        }
    }
    wh_cudnn_end();
    if (bad) {
        return -EBADMSG;
    }
    int error = reply(request, WH_OP_cudnnGetRNNWeightParams, status);
    wh_reply_out(request, status == 0 ? 2 * sizeof(*weights) : 0);
    return error;
}

int wh_skeleton_cudnnDeriveBNTensorDescriptor(struct wh_request *request)
{
    bool valid = true;
    uint64_t status = 0;
    size_t room_bytes = 0;
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    void *from = wh_cudnn_take(request, WH_CUDNN_TENSOR, &status, &valid);
    int mode = (int)wh_take_u64(request);
    struct wh_cudnn_tensor *to = wh_take_out(request, &room_bytes);
    bool bad = wh_request_failed(request) || to == NULL || room_bytes < sizeof(*to);
    if (!bad && (real == NULL || real->cudnnDeriveBNTensorDescriptor == NULL)) {
        status = NOT_SUPPORTED;
    } else if (!bad && valid) {
        cudnnTensorDescriptor_t derived = NULL;
        status = (uint64_t)real->cudnnCreateTensorDescriptor(&derived);
        if (status == 0) {
            status = (uint64_t)real->cudnnDeriveBNTensorDescriptor(derived, from, mode);
            status = status == 0 ? describe(real, derived, to) : status;
            (void)real->cudnnDestroyTensorDescriptor(derived);
        }
    }
    wh_cudnn_end();
    if (bad) {
        return -EBADMSG;
    }
    int error = reply(request, WH_OP_cudnnDeriveBNTensorDescriptor, status);
    wh_reply_out(request, status == 0 ? sizeof(*to) : 0);
    return error;
}

/* What a setting of dropout consists of. */
struct dropout {
    cudnnHandle_t context;
    float rate;
    void *states;
    size_t size_bytes;
    uint64_t seed;
};

static bool take_dropout(struct wh_request *request, struct dropout *dropout)
{
    bool valid = true;
    dropout->context = wh_cuda_object(request, wh_take_u64(request), WH_KIND_CUDNN, &valid);
    dropout->rate = wh_cuda_bits_float(wh_take_u64(request));
    dropout->states = (void *)(uintptr_t)wh_take_u64(request);
    dropout->size_bytes = wh_take_u64(request);
    dropout->seed = wh_take_u64(request);
    return valid && dropout->context != NULL;
}

uint64_t wh_cudnn_apply_dropout(struct wh_request *request, void *descriptor)
{
    struct dropout dropout;
    const struct wh_cudnn_table *real = wh_cudnn();
    bool valid = take_dropout(request, &dropout);
    if (wh_request_failed(request) || dropout.states != NULL) {
        request->failed = true;
        return 0;
    }
    if (real == NULL || real->cudnnSetDropoutDescriptor == NULL) {
        return NOT_SUPPORTED;
    }
    return valid ? (uint64_t)real->cudnnSetDropoutDescriptor(descriptor, dropout.context,
                                                             dropout.rate, NULL, dropout.size_bytes,
                                                             dropout.seed)
                 : NOT_INITIALIZED;
}

int wh_skeleton_cudnnSetDropoutDescriptor(struct wh_request *request)
{
    struct dropout dropout;
    uint64_t status = NOT_INITIALIZED;
    wh_cuda_enter(request);
    const struct wh_cudnn_table *real = wh_cudnn();
    bool valid = take_dropout(request, &dropout);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudnnSetDropoutDescriptor == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        cudnnDropoutDescriptor_t descriptor = NULL;
        status = (uint64_t)real->cudnnCreateDropoutDescriptor(&descriptor);
        if (status == 0) {
            status = (uint64_t)real->cudnnSetDropoutDescriptor(descriptor, dropout.context,
                                                               dropout.rate, dropout.states,
                                                               dropout.size_bytes, dropout.seed);
            (void)real->cudnnDestroyDropoutDescriptor(descriptor);
        }
    }
    return reply(request, WH_OP_cudnnSetDropoutDescriptor, status);
}
