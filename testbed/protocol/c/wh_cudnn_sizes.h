/*
 * wh_cudnn_sizes.h - how many bytes cuDNN reads and writes where a program says how many numbers;
 * for both sides, so that they agree.
 */
#ifndef WH_CUDNN_SIZES_H
#define WH_CUDNN_SIZES_H

#include <stddef.h>
#include <stdint.h>

#define WH_CUDNN_DIMS_MAX 8              /* CUDNN_DIM_MAX: more are refused by the library */
#define WH_CUDNN_COUNT_MAX 65536         /* of other lists */
#define WH_CUDNN_PERF_BYTES ((size_t)48) /* cudnnConvolution*AlgoPerf_t */
#define WH_CUDNN_ELEMENTS_MAX 65536      /* of an attribute */
#define WH_CUDNN_POINTERS_MAX 1024u      /* of a variant pack */

static inline size_t wh_cudnn_dims(int64_t count)
{
    return count < 0 ? 0 : count > WH_CUDNN_DIMS_MAX ? WH_CUDNN_DIMS_MAX : (size_t)count;
}

static inline size_t wh_cudnn_count(int64_t count)
{
    return count < 0 ? 0 : count > WH_CUDNN_COUNT_MAX ? WH_CUDNN_COUNT_MAX : (size_t)count;
}

/* By cudnnDataType_t; what is unknown or smaller than a byte has one. */
static inline size_t wh_cudnn_type_bytes(int type)
{
    static const uint8_t bytes[] = {4, 8, 2, 1, 4, 4, 1, 4, 32, 2,  8, 1,
                                    1, 1, 4, 1, 1, 1, 1, 4, 8,  16, 1, 1};
    return type >= 0 && (size_t)type < sizeof(bytes) ? bytes[type] : 1;
}

/* Kinds of attributes whose elements are not plain values (cudnnBackendAttributeType_t). */
#define WH_CUDNN_TYPE_HANDLE 0
#define WH_CUDNN_TYPE_VOID_PTR 6
#define WH_CUDNN_TYPE_DESCRIPTOR 15
#define WH_CUDNN_TYPE_LAST 33

/* Bytes of an element of an attribute, 0 for a type that is not known. */
static inline size_t wh_cudnn_element_bytes(int type)
{
    switch (type) {
    case WH_CUDNN_TYPE_HANDLE:
    case 3: /* int64 */
    case 5: /* double */
    case WH_CUDNN_TYPE_VOID_PTR:
    case WH_CUDNN_TYPE_DESCRIPTOR:
        return 8;
    case 2:  /* boolean */
    case 24: /* char */
        return 1;
    case 26: /* fraction: two int64 */
        return 16;
    default: /* float, int32 and all enumerations */
        return type > 0 && type <= WH_CUDNN_TYPE_LAST ? 4 : 0;
    }
}

/* Descriptors and attributes that the client itself has to know. */
#define WH_CUDNN_BACKEND_HEURISTICS 4
#define WH_CUDNN_BACKEND_PLAN 5
#define WH_CUDNN_BACKEND_FIRST_OPERATION 10
#define WH_CUDNN_BACKEND_OPERATION_GRAPH 15
#define WH_CUDNN_BACKEND_VARIANT_PACK 16
#define WH_CUDNN_BACKEND_TENSOR 17
#define WH_CUDNN_BACKEND_LAST_KNOWN 33
#define WH_CUDNN_ATTR_TENSOR_DATA_TYPE 901
#define WH_CUDNN_ATTR_TENSOR_DIMENSIONS 902
#define WH_CUDNN_ATTR_TENSOR_STRIDES 903
#define WH_CUDNN_ATTR_TENSOR_UNIQUE_ID 906
#define WH_CUDNN_ATTR_TENSOR_IS_BY_VALUE 908
#define WH_CUDNN_ATTR_PACK_UNIQUE_IDS 1000
#define WH_CUDNN_ATTR_PACK_DATA_POINTERS 1001
#define WH_CUDNN_ATTR_PACK_WORKSPACE 1003

/* A scalar that a plan takes by value: where its pointer would stand, and its bytes behind it. */
struct wh_cudnn_value {
    uint32_t place;
    uint32_t size_bytes;
    uint64_t bytes[2];
};

#define WH_CUDNN_TEXT_BYTES_MAX ((size_t)2048)

/* A tensor that the library describes. */
struct wh_cudnn_tensor {
    int32_t type;
    int32_t count;
    int32_t sizes[WH_CUDNN_DIMS_MAX];
    int32_t strides[WH_CUDNN_DIMS_MAX];
};

/* A weight of a recurrent network, and its place in the space of all. */
struct wh_cudnn_weight {
    uint64_t there;
    uint64_t offset;
    struct wh_cudnn_tensor tensor;
};

#endif
