/*
 * values.c - descriptors whose values come from the library or go to the device: dropout, weights
 * of recurrent networks, normalisation; texts.
 */
#include <stdbool.h>

#include "answers.h"
#include "content.h"
#include "cuda.h"
#include "cudnn.h"
#include "wh_wire.h"

#define BAD_PARAM 2000
#define NULL_POINTER 2002
#define DOUBLE 1

size_t wh_cudnn_scalar_bytes(cudnnTensorDescriptor_t tensor)
{
    return wh_content_type(tensor) == DOUBLE ? sizeof(double) : sizeof(float);
}

static int done(int status)
{
    return wh_cuda_done(&wh_cudnn_api, status);
}

/*
 * With memory for states the library fills it, on the device; afterwards the descriptor is as one
 * that is restored with that memory. Without, it is only a value: what was set is set again.
 */
WH_EXPORT cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropoutDesc,
                                                  cudnnHandle_t handle, float dropout, void *states,
                                                  size_t stateSizeInBytes, uint64_t seed)
{
    WH_API_CALL();
    struct wh_call call;
    struct wh_entry entry;
    if (wh_content_of(dropoutDesc, WH_CUDNN_DROPOUT) == NULL) {
        return done(dropoutDesc == NULL ? NULL_POINTER : BAD_PARAM);
    }
    if (!wh_cuda_handle_live(handle, WH_KIND_CUDNN)) {
        return done(1001);
    }
    wh_cudnn_settle(handle);
    int status = wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnSetDropoutDescriptor);
    if (status == 0) {
        wh_put_u64(&call, (uint64_t)(uintptr_t)handle);
        wh_put_u64(&call, wh_cuda_float_bits(dropout));
        wh_put_u64(&call, (uint64_t)(uintptr_t)states);
        wh_put_u64(&call, stateSizeInBytes);
        wh_put_u64(&call, seed);
        status = states == NULL ? wh_cuda_call_pure(&call, &wh_cudnn_api)
                                : wh_cuda_call(&call, &wh_cudnn_api);
        wh_call_end(&call);
    }
    if (status != 0) {
        return done(status);
    }
    wh_entry_begin(&entry, dropoutDesc, WH_CUDNN_DROPOUT,
                   states == NULL ? WH_OP_cudnnSetDropoutDescriptor
                                  : WH_OP_cudnnRestoreDropoutDescriptor);
    wh_entry_u64(&entry, (uint64_t)(uintptr_t)handle);
    wh_entry_u64(&entry, wh_cuda_float_bits(dropout));
    wh_entry_u64(&entry, (uint64_t)(uintptr_t)states);
    wh_entry_u64(&entry, stateSizeInBytes);
    wh_entry_u64(&entry, seed);
    return wh_entry_keep(&entry, &wh_cudnn_api);
}

/* A tensor as the server describes it: type, count of dimensions, dimensions, strides. */
static int keep_tensor(cudnnTensorDescriptor_t tensor, const struct wh_cudnn_tensor *from)
{
    struct wh_entry entry;
    size_t bytes = wh_cudnn_dims(from->count) * sizeof(int);
    wh_entry_begin(&entry, tensor, WH_CUDNN_TENSOR, WH_OP_cudnnSetTensorNdDescriptor);
    wh_entry_u64(&entry, (uint64_t)from->type);
    wh_entry_u64(&entry, (uint64_t)from->count);
    wh_entry_blob(&entry, from->sizes, bytes);
    wh_entry_blob(&entry, from->strides, bytes);
    wh_entry_type(&entry, from->type);
    return wh_entry_keep(&entry, &wh_cudnn_api);
}

/* One weight of a network: which tensor it is, and where it lies from the beginning of the space.
 */
static int give_weight(const struct wh_cudnn_weight *weight, const void *space,
                       cudnnTensorDescriptor_t tensor, void **address)
{
    /* Of a weight that there is not, the library says so in the address; and a program may not want
     * to know of one of the two. */
    if (address != NULL) {
        *address = weight->there ? (uint8_t *)(uintptr_t)space + weight->offset : NULL;
    }
    return weight->there && tensor != NULL ? keep_tensor(tensor, &weight->tensor) : 0;
}

static bool is_tensor_or_none(cudnnTensorDescriptor_t tensor)
{
    return tensor == NULL || wh_content_of(tensor, WH_CUDNN_TENSOR) != NULL;
}

WH_EXPORT cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnnDesc,
                                                int32_t pseudoLayer, size_t weightSpaceSize,
                                                void *weightSpace, int32_t linLayerID,
                                                cudnnTensorDescriptor_t mDesc, void **mAddr,
                                                cudnnTensorDescriptor_t bDesc, void **bAddr)
{
    WH_API_CALL();
    struct wh_call call;
    struct wh_cudnn_weight weights[2] = {0};
    if (!wh_cuda_handle_live(handle, WH_KIND_CUDNN)) {
        return done(1001);
    }
    if (!is_tensor_or_none(mDesc) || !is_tensor_or_none(bDesc)) {
        return done(BAD_PARAM);
    }
    int status = wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnGetRNNWeightParams);
    if (status != 0) {
        return done(status);
    }
    wh_put_u64(&call, (uint64_t)(uintptr_t)handle);
    wh_content_put(&call, rnnDesc, WH_CUDNN_RNN);
    wh_put_u64(&call, (uint64_t)pseudoLayer);
    wh_put_u64(&call, weightSpaceSize);
    wh_put_u64(&call, (uint64_t)linLayerID);
    wh_put_out(&call, sizeof(weights), true);
    wh_put_u64(&call, (uint64_t)(uintptr_t)weightSpace); /* last: no part of the question */
    status = wh_cuda_call_pure_but(&call, &wh_cudnn_api, sizeof(uint64_t));
    if (status == 0) {
        (void)wh_get_out(&call, weights, sizeof(weights));
    }
    wh_call_end(&call);
    if (status == 0) {
        status = give_weight(&weights[0], weightSpace, mDesc, mAddr);
    }
    if (status == 0) {
        status = give_weight(&weights[1], weightSpace, bDesc, bAddr);
    }
    return done(status);
}

WH_EXPORT cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derivedBnDesc,
                                                      cudnnTensorDescriptor_t xDesc, int mode)
{
    WH_API_CALL();
    struct wh_call call;
    struct wh_cudnn_tensor tensor = {0};
    if (wh_content_of(derivedBnDesc, WH_CUDNN_TENSOR) == NULL) {
        return done(derivedBnDesc == NULL ? NULL_POINTER : BAD_PARAM);
    }
    int status = wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnDeriveBNTensorDescriptor);
    if (status != 0) {
        return done(status);
    }
    wh_content_put(&call, xDesc, WH_CUDNN_TENSOR);
    wh_put_u64(&call, (uint64_t)mode);
    wh_put_out(&call, sizeof(tensor), true);
    status = wh_cuda_call_pure(&call, &wh_cudnn_api);
    if (status == 0) {
        (void)wh_get_out(&call, &tensor, sizeof(tensor));
    }
    wh_call_end(&call);
    return status == 0 ? keep_tensor(derivedBnDesc, &tensor) : done(status);
}

WH_EXPORT void cudnnGetLastErrorString(char *message, size_t max_size)
{
    WH_API_CALL();
    struct wh_call call;
    if (message == NULL || max_size == 0) {
        return;
    }
    message[0] = '\0';
    if (wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnGetLastErrorString) != 0) {
        return;
    }
    size_t room = max_size < WH_CUDNN_TEXT_BYTES_MAX ? max_size : WH_CUDNN_TEXT_BYTES_MAX;
    wh_put_out(&call, room, true);
    if (wh_cuda_call(&call, &wh_cudnn_api) == 0) {
        (void)wh_get_out(&call, message, room);
        message[room - 1] = '\0';
    }
    wh_call_end(&call);
}

WH_EXPORT const char *cudnnGetErrorString(cudnnStatus_t status)
{
    WH_API_CALL();
    static const struct {
        cudnnStatus_t status;
        const char *name;
    } names[] = {
        {0, "CUDNN_STATUS_SUCCESS"},
        {1001, "CUDNN_STATUS_NOT_INITIALIZED"},
        {1002, "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"},
        {1003, "CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH"},
        {1004, "CUDNN_STATUS_DEPRECATED"},
        {1005, "CUDNN_STATUS_LICENSE_ERROR"},
        {1006, "CUDNN_STATUS_RUNTIME_IN_PROGRESS"},
        {1007, "CUDNN_STATUS_RUNTIME_FP_OVERFLOW"},
        {1008, "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"},
        {2000, "CUDNN_STATUS_BAD_PARAM"},
        {2002, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"},
        {2003, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"},
        {2004, "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"},
        {2005, "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND"},
        {2006, "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT"},
        {2007, "CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH"},
        {2008, "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH"},
        {2009, "CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES"},
        {2010, "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE"},
        {2011, "CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH"},
        {2012, "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE"},
        {3000, "CUDNN_STATUS_NOT_SUPPORTED"},
        {3001, "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN"},
        {3002, "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"},
        {3003, "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE"},
        {3004, "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT"},
        {3005, "CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER"},
        {3006, "CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART"},
        {3007, "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"},
        {3008, "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING"},
        {3009, "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE"},
        {3010, "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"},
        {3011, "CUDNN_STATUS_NOT_SUPPORTED_PADDING"},
        {3012, "CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM"},
        {3013, "CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API"},
        {3014, "CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE"},
        {4000, "CUDNN_STATUS_INTERNAL_ERROR"},
        {4001, "CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED"},
        {4002, "CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE"},
        {4003, "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
        {4004, "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"},
        {4005, "CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM"},
        {4006, "CUDNN_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED"},
        {5000, "CUDNN_STATUS_EXECUTION_FAILED"},
        {5001, "CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER"},
        {5002, "CUDNN_STATUS_EXECUTION_FAILED_CUBLAS"},
        {5003, "CUDNN_STATUS_EXECUTION_FAILED_CUDART"},
        {5004, "CUDNN_STATUS_EXECUTION_FAILED_CURAND"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].status == status) {
            return names[i].name;
        }
    }
    return "CUDNN_STATUS_UNKNOWN";
}
