/*
 * refcudnn.c - a test double of cuDNN: classic descriptors with the library's checks, a few
 * operations, a recurrent network that is none, and a graph interface whose one engine multiplies a
 * tensor by a scalar. What it is for, refcuda.c says.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "reflibs.h"
#include "wh_cudnn.h"

#define BAD_PARAM 2000
#define NOT_FINALIZED 2004
#define BAD_TYPE 2010
#define NOT_SUPPORTED 3000

REF_EXPORT const int wormhole_test_double = 1;

struct cudnnContext {
    cudaStream_t stream;
};

static __thread char last_error[256];

static cudnnStatus_t refuse(cudnnStatus_t status, const char *why)
{
    snprintf(last_error, sizeof(last_error), "%s", why);
    return status;
}

REF_EXPORT size_t cudnnGetVersion(void)
{
    return 91999;
}

REF_EXPORT size_t cudnnGetCudartVersion(void)
{
    return 13000;
}

REF_EXPORT cudnnStatus_t cudnnGetProperty(int type, int *value)
{
    static const int version[] = {9, 19, 99};
    if (type < 0 || type > 2) {
        return BAD_PARAM;
    }
    *value = version[type];
    return 0;
}

REF_EXPORT void cudnnGetLastErrorString(char *message, size_t size_bytes)
{
    snprintf(message, size_bytes, "%s", last_error);
}

REF_EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = calloc(1, sizeof(**handle));
    return *handle == NULL ? 4003 : 0;
}

REF_EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return 0;
}

/* Classic descriptors. */

struct tensor {
    int type, count;
    int sizes[8], strides[8];
};

struct dropout {
    float rate;
    void *states;
    size_t size_bytes;
    uint64_t seed;
};

struct rnn {
    int cell, type, input, hidden, layers;
    const struct dropout *dropout; /* kept, as the real one may */
    double clip;
};

struct rnn_data {
    int type, steps, batch, size;
    int lengths[64];
};

#define KIND(name, type)                                                                           \
    REF_EXPORT cudnnStatus_t cudnnCreate##name##Descriptor(cudnn##name##Descriptor_t *descriptor)  \
    {                                                                                              \
        *descriptor = calloc(1, sizeof(struct type));                                              \
        return *descriptor == NULL ? 4003 : 0;                                                     \
    }                                                                                              \
    REF_EXPORT cudnnStatus_t cudnnDestroy##name##Descriptor(cudnn##name##Descriptor_t descriptor)  \
    {                                                                                              \
        if (descriptor != NULL) {                                                                  \
            memset(descriptor, 0x5a, sizeof(struct type)); /* who still uses it, sees it */        \
        }                                                                                          \
        free(descriptor);                                                                          \
        return 0;                                                                                  \
    }                                                                                              \
    _Static_assert(1, "for the semicolon")

KIND(Tensor, tensor);
KIND(Dropout, dropout);
KIND(RNN, rnn);
KIND(RNNData, rnn_data);

REF_EXPORT cudnnStatus_t cudnnSetTensorNdDescriptor(void *descriptor, int type, int count,
                                                    const int *sizes, const int *strides)
{
    struct tensor *tensor = descriptor;
    if (tensor == NULL || count < 3 || count > 8 || sizes == NULL || strides == NULL) {
        return refuse(count > 8 ? NOT_SUPPORTED : BAD_PARAM, "a tensor has 3 to 8 dimensions");
    }
    for (int i = 0; i < count; i++) {
        if (sizes[i] <= 0) {
            return refuse(BAD_PARAM, "a dimension is not positive");
        }
        tensor->sizes[i] = sizes[i];
        tensor->strides[i] = strides[i];
    }
    tensor->type = type;
    tensor->count = count;
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnSetTensor4dDescriptor(void *descriptor, int format, int type, int n,
                                                    int c, int h, int w)
{
    const int sizes[] = {n, c, h, w};
    const int planar[] = {c * h * w, h * w, w, 1};
    const int packed[] = {c * h * w, 1, w * c, c};
    return cudnnSetTensorNdDescriptor(descriptor, type, 4, sizes, format == 1 ? packed : planar);
}

REF_EXPORT cudnnStatus_t cudnnGetTensorNdDescriptor(void *descriptor, int wanted, int *type,
                                                    int *count, int *sizes, int *strides)
{
    const struct tensor *tensor = descriptor;
    if (tensor == NULL) {
        return BAD_PARAM;
    }
    *type = tensor->type;
    *count = tensor->count;
    for (int i = 0; i < wanted && i < tensor->count; i++) {
        sizes[i] = tensor->sizes[i];
        strides[i] = tensor->strides[i];
    }
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnGetTensorSizeInBytes(void *descriptor, size_t *size)
{
    const struct tensor *tensor = descriptor;
    *size = tensor->type == 1 ? 8 : 4;
    for (int i = 0; i < tensor->count; i++) {
        *size *= (size_t)tensor->sizes[i];
    }
    return 0;
}

static size_t elements_of(const struct tensor *tensor)
{
    size_t count = 1;
    for (int i = 0; i < tensor->count; i++) {
        count *= (size_t)tensor->sizes[i];
    }
    return count;
}

/* c = alpha * a + beta * c, for tensors of one size. */
REF_EXPORT cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void *alpha, void *a_desc,
                                        void *a, const void *beta, void *c_desc, void *c)
{
    const struct tensor *ta = a_desc;
    const struct tensor *tc = c_desc;
    if (ta == NULL || tc == NULL || alpha == NULL || beta == NULL || ta->type != tc->type ||
        elements_of(ta) != elements_of(tc)) {
        return refuse(BAD_PARAM, "tensors differ");
    }
    ref_wait(handle->stream);
    for (size_t i = 0; i < elements_of(ta); i++) {
        if (ta->type == 1) {
            double *to = (double *)c + i;
            *to = *(const double *)alpha * ((double *)a)[i] + *(const double *)beta * *to;
        } else {
            float *to = (float *)c + i;
            *to = *(const float *)alpha * ((float *)a)[i] + *(const float *)beta * *to;
        }
    }
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *size)
{
    (void)handle;
    *size = 256;
    return 0;
}

static cudnnStatus_t set_dropout(struct dropout *dropout, cudnnHandle_t handle, float rate,
                                 void *states, size_t size_bytes, uint64_t seed)
{
    if (handle == NULL || rate < 0 || rate > 1) {
        return refuse(BAD_PARAM, "a rate is between 0 and 1");
    }
    *dropout = (struct dropout){rate, states, size_bytes, seed};
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnRestoreDropoutDescriptor(void *descriptor, cudnnHandle_t handle,
                                                       float rate, void *states, size_t size_bytes,
                                                       uint64_t seed)
{
    if (states == NULL || size_bytes < 256) {
        return refuse(BAD_PARAM, "there is nothing to restore");
    }
    return set_dropout(descriptor, handle, rate, states, size_bytes, seed);
}

REF_EXPORT cudnnStatus_t cudnnSetDropoutDescriptor(void *descriptor, cudnnHandle_t handle,
                                                   float rate, void *states, size_t size_bytes,
                                                   uint64_t seed)
{
    cudnnStatus_t status = set_dropout(descriptor, handle, rate, states, size_bytes, seed);
    if (status == 0 && states != NULL) {
        ref_wait(handle->stream);
        memset(states, (int)seed, size_bytes);
    }
    return status;
}

REF_EXPORT cudnnStatus_t cudnnGetDropoutDescriptor(void *descriptor, cudnnHandle_t handle,
                                                   float *rate, void **states, uint64_t *seed)
{
    const struct dropout *dropout = descriptor;
    (void)handle;
    *rate = dropout->rate;
    *states = dropout->states;
    *seed = dropout->seed;
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnSetRNNDescriptor_v8(void *descriptor, int algo, int cell, int bias,
                                                  int direction, int input_mode, int type,
                                                  int precision, int math, int32_t input,
                                                  int32_t hidden, int32_t projection,
                                                  int32_t layers, void *dropout, uint32_t flags)
{
    struct rnn *rnn = descriptor;
    (void)algo;
    (void)bias;
    (void)direction;
    (void)input_mode;
    (void)precision;
    (void)math;
    (void)projection;
    (void)flags;
    if (input < 1 || hidden < 1 || layers < 1 || dropout == NULL) {
        return refuse(BAD_PARAM, "a network has layers of some size");
    }
    *rnn = (struct rnn){.cell = cell,
                        .type = type,
                        .input = input,
                        .hidden = hidden,
                        .layers = layers,
                        .dropout = dropout,
                        .clip = rnn->clip};
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnRNNSetClip_v9(void *descriptor, int mode, double low, double high)
{
    (void)low;
    ((struct rnn *)descriptor)->clip = mode == 0 ? 0 : high;
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnSetRNNDataDescriptor(void *descriptor, int type, int layout,
                                                   int steps, int batch, int size,
                                                   const int *lengths, void *fill)
{
    struct rnn_data *data = descriptor;
    (void)layout;
    (void)fill;
    if (steps < 1 || batch < 1 || batch > 64 || lengths == NULL ||
        !ref_bounded(steps, batch, size)) {
        return refuse(BAD_PARAM, "sequences have lengths");
    }
    *data = (struct rnn_data){.type = type, .steps = steps, .batch = batch, .size = size};
    memcpy(data->lengths, lengths, (size_t)batch * sizeof(int));
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, void *descriptor,
                                                    size_t *size)
{
    const struct rnn *rnn = descriptor;
    (void)handle;
    *size = (size_t)rnn->layers * 2 * ((size_t)rnn->hidden * (size_t)rnn->input + 1) * 4;
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, void *descriptor, int mode,
                                                   void *x_desc, size_t *work, size_t *reserve)
{
    const struct rnn *rnn = descriptor;
    const struct rnn_data *x = x_desc;
    (void)handle;
    *work = (size_t)(rnn->hidden * x->batch) * 4;
    if (reserve != NULL) {
        *reserve = mode == 0 ? 0 : *work * (size_t)x->steps;
    }
    return 0;
}

/* A matrix and a bias for each layer; there is no second bias. */
REF_EXPORT cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, void *descriptor,
                                                 int32_t layer, size_t size_bytes, void *space,
                                                 int32_t id, void *m_desc, void **m_address,
                                                 void *b_desc, void **b_address)
{
    const struct rnn *rnn = descriptor;
    size_t each = ((size_t)rnn->hidden * (size_t)rnn->input + 1) * 4;
    size_t offset = ((size_t)layer * 2 + (size_t)id) * each;
    (void)handle;
    if (layer < 0 || layer >= rnn->layers || id < 0 || id > 1 || offset + each > size_bytes) {
        return refuse(BAD_PARAM, "no such weight");
    }
    const int sizes[] = {1, rnn->hidden, rnn->input};
    const int strides[] = {rnn->hidden * rnn->input, rnn->input, 1};
    const int ones[] = {1, 1, 1};
    if (m_address != NULL) {
        *m_address = (char *)space + offset;
    }
    if (b_address != NULL) {
        *b_address = id == 0 ? (char *)space + offset + each - 4 : NULL;
    }
    cudnnStatus_t status =
        m_desc == NULL ? 0 : cudnnSetTensorNdDescriptor(m_desc, rnn->type, 3, sizes, strides);
    return status != 0 || id != 0 || b_desc == NULL
               ? status
               : cudnnSetTensorNdDescriptor(b_desc, rnn->type, 3, ones, ones);
}

/* y = x * first weight + clip + dropout's rate, over all steps that a sequence has; the rest is 0.
 */
REF_EXPORT cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, void *descriptor, int mode,
                                         const void *lengths, void *x_desc, void *x, void *y_desc,
                                         void *y, void *h_desc, void *hx, void *hy, void *c_desc,
                                         void *cx, void *cy, size_t weight_bytes, void *weights,
                                         size_t work_bytes, void *work, size_t reserve_bytes,
                                         void *reserve)
{
    const struct rnn *rnn = descriptor;
    const struct rnn_data *from = x_desc;
    const struct rnn_data *to = y_desc;
    (void)mode;
    (void)lengths;
    (void)h_desc;
    (void)hx;
    (void)hy;
    (void)c_desc;
    (void)cx;
    (void)cy;
    (void)weight_bytes;
    (void)work_bytes;
    (void)work;
    (void)reserve_bytes;
    (void)reserve;
    if (from == NULL || to == NULL || from->batch != to->batch || from->size != to->size) {
        return refuse(BAD_PARAM, "input and output differ");
    }
    ref_wait(handle->stream);
    for (int step = 0; step < from->steps; step++) {
        for (int sequence = 0; sequence < from->batch; sequence++) {
            for (int i = 0; i < from->size; i++) {
                int at = (step * from->batch + sequence) * from->size + i;
                float value = ((const float *)x)[at] * ((const float *)weights)[0] +
                              (float)rnn->clip + rnn->dropout->rate;
                ((float *)y)[at] = step < from->lengths[sequence] ? value : 0;
            }
        }
    }
    return 0;
}

/* The graph interface. */

#define ENGINE_CONFIG 3
#define HEURISTIC 4
#define PLAN 5
#define OPERATION 13
#define GRAPH 15
#define LINKS_MAX 8

struct node {
    int type;
    bool finalized;
    struct node *links[LINKS_MAX];
    int link_count;
    int64_t id, size, by_value;
    int data_type;
    int64_t ids[LINKS_MAX];
    void *pointers[LINKS_MAX];
    int pointer_count, id_count;
    void *workspace;
};

REF_EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(int type, void **descriptor)
{
    struct node *node = calloc(1, sizeof(*node));
    if (type < 0 || type > 50) {
        free(node);
        return NOT_SUPPORTED;
    }
    node->type = type;
    node->size = 1;
    *descriptor = node;
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(void *descriptor)
{
    (void)descriptor; /* another may name it: kept, as a double may */
    return 0;
}

static cudnnStatus_t set_tensor(struct node *node, int name, int type, int64_t count,
                                const void *elements)
{
    if (name == WH_CUDNN_ATTR_TENSOR_UNIQUE_ID && type == 3) {
        node->id = *(const int64_t *)elements;
    } else if (name == WH_CUDNN_ATTR_TENSOR_DIMENSIONS && type == 3) {
        node->size = 1;
        for (int64_t i = 0; i < count; i++) {
            node->size *= ((const int64_t *)elements)[i];
        }
    } else if (name == WH_CUDNN_ATTR_TENSOR_DATA_TYPE && type == 1) {
        node->data_type = *(const int *)elements;
    } else if (name == WH_CUDNN_ATTR_TENSOR_IS_BY_VALUE && type == 2) {
        node->by_value = *(const bool *)elements;
    } else {
        return refuse(BAD_TYPE, "no such attribute of a tensor");
    }
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnBackendSetAttribute(void *descriptor, int name, int type,
                                                  int64_t count, const void *elements)
{
    struct node *node = descriptor;
    if (node->finalized || count < 1 || count > LINKS_MAX || elements == NULL) {
        return refuse(BAD_PARAM, "an attribute has elements and comes before the end");
    }
    if (node->type == WH_CUDNN_BACKEND_TENSOR) {
        return set_tensor(node, name, type, count, elements);
    }
    if (type == WH_CUDNN_TYPE_DESCRIPTOR) {
        for (int64_t i = 0; i < count; i++) {
            struct node *link = ((struct node *const *)elements)[i];
            if (!link->finalized) {
                return refuse(NOT_FINALIZED, "a part is not complete");
            }
            node->links[node->link_count++ % LINKS_MAX] = link;
        }
        return 0;
    }
    if (type == WH_CUDNN_TYPE_HANDLE) {
        return *(void *const *)elements == NULL ? BAD_PARAM : 0;
    }
    if (node->type != WH_CUDNN_BACKEND_VARIANT_PACK) {
        return 0;
    }
    if (name == WH_CUDNN_ATTR_PACK_DATA_POINTERS) {
        memcpy(node->pointers, elements, (size_t)count * sizeof(void *));
        node->pointer_count = (int)count;
    } else if (name == WH_CUDNN_ATTR_PACK_UNIQUE_IDS) {
        memcpy(node->ids, elements, (size_t)count * sizeof(int64_t));
        node->id_count = (int)count;
    } else if (name == WH_CUDNN_ATTR_PACK_WORKSPACE) {
        memcpy(&node->workspace, elements, sizeof(void *));
    }
    return 0;
}

REF_EXPORT cudnnStatus_t cudnnBackendFinalize(void *descriptor)
{
    struct node *node = descriptor;
    if (node->type == OPERATION && node->link_count != 3) {
        return refuse(BAD_PARAM, "an operation has three tensors");
    }
    node->finalized = true;
    return 0;
}

/* A heuristic gives two configurations, the caller's own descriptors; a plan's size is a number. */
REF_EXPORT cudnnStatus_t cudnnBackendGetAttribute(void *descriptor, int name, int type,
                                                  int64_t wanted, int64_t *count, void *elements)
{
    struct node *node = descriptor;
    (void)name;
    if (node->type == HEURISTIC && type == WH_CUDNN_TYPE_DESCRIPTOR) {
        struct node **configs = elements;
        for (int64_t i = 0; configs != NULL && i < wanted && i < 2; i++) {
            configs[i]->links[0] = node->links[0];
            configs[i]->link_count = 1;
            configs[i]->finalized = true;
        }
        *count = 2;
        return 0;
    }
    if (node->type == PLAN && type == 3 && wanted == 1) {
        *(int64_t *)elements = 4096;
        *count = 1;
        return 0;
    }
    return refuse(NOT_SUPPORTED, "nothing to say");
}

static void *pointer_of(const struct node *pack, const struct node *tensor)
{
    for (int i = 0; i < pack->id_count; i++) {
        if (pack->ids[i] == tensor->id) {
            return pack->pointers[i];
        }
    }
    return NULL;
}

/* Plan -> configuration -> graph -> operation -> x, scalar, y: y = x * scalar. */
REF_EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, void *plan, void *pack)
{
    const struct node *config = ((struct node *)plan)->links[0];
    if (config == NULL || !((struct node *)pack)->finalized) {
        return refuse(BAD_PARAM, "nothing to execute");
    }
    const struct node *operation = config->links[0]->links[0];
    const struct node *x = operation->links[0];
    const float *from = pointer_of(pack, x);
    const float *scalar = pointer_of(pack, operation->links[1]);
    float *to = pointer_of(pack, operation->links[2]);
    if (from == NULL || scalar == NULL || to == NULL) {
        return refuse(BAD_PARAM, "a tensor has no memory");
    }
    ref_wait(handle->stream);
    for (int64_t i = 0; i < x->size; i++) {
        to[i] = from[i] * *scalar;
    }
    return 0;
}

REF_EXPORT const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "?";
}
