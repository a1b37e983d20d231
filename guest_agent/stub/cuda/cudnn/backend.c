/*
 * backend.c - the graph interface: descriptors of the server's, set and asked attribute by
 * attribute, and the execution of a plan.
 *
 * Making a plan takes a few hundred calls, once a problem; each is a message. Most of them - making
 * descriptors, setting their attributes - go one way once the same has succeeded, so that another
 * problem waits for little but what the library finds out. Executing a plan takes a new variant
 * pack each time - which tensor lies where -: that is kept here and travels with the
 * execution, one message in all. Some of its pointers are to scalars in the host's memory, because
 * the graph has them by value; so every descriptor remembers which tensors of the graph it belongs
 * to are so, and their bytes travel.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "cuda.h"
#include "cudnn.h"
#include "wh_wire.h"

#define MAGIC 0x42444e43u
#define BAD_PARAM 2000
#define NULL_POINTER 2002
#define NOT_FINALIZED 2004
#define NOT_SUPPORTED 3000
#define TYPE_INT64 3
#define VALUES_MAX 64u

/* A tensor that is given by value. */
struct value {
    int64_t id;
    uint32_t size_bytes;
};

/* What the application's pointer points to. */
struct backend {
    uint32_t magic;
    int type;
    uint64_t handle; /* the server's; 0: a variant pack */
    uint64_t made;   /* a hash of all that it was made of; 0: nobody but the library knows */
    bool finalized;
    struct value *values;
    uint32_t value_count;
    union {
        struct {
            int64_t id;
            size_t elements;
            int type;
            bool by_value;
        } tensor;
        struct {
            int64_t *ids;
            void **pointers;
            uint32_t id_count;
            uint32_t pointer_count;
            void *workspace;
            bool finalized;
        } pack;
    } u;
};

static struct backend *backend_of(const void *pointer)
{
    struct backend *backend = (struct backend *)(uintptr_t)pointer;
    return backend != NULL && backend->magic == MAGIC ? backend : NULL;
}

static bool is_pack(const struct backend *backend)
{
    return backend->type == WH_CUDNN_BACKEND_VARIANT_PACK;
}

static int done(int status)
{
    return wh_cuda_done(&wh_cudnn_api, status);
}

static int answered(int status)
{
    return wh_cuda_answered(&wh_cudnn_api, status);
}

/* A message about one descriptor, begun; 0 or the call's result. */
static int begin(struct wh_call *call, uint16_t opcode, const struct backend *backend)
{
    int status = wh_cuda_begin(call, &wh_cudnn_api, opcode);
    if (status == 0) {
        wh_put_u64(call, backend->handle);
    }
    return status;
}

static void drop(struct backend *backend)
{
    if (is_pack(backend)) {
        free(backend->u.pack.ids);
        free(backend->u.pack.pointers);
    }
    free(backend->values);
    backend->magic = 0;
    free(backend);
}

WH_EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(int descriptorType,
                                                     cudnnBackendDescriptor_t *descriptor)
{
    WH_API_CALL();
    struct wh_call call;
    if (descriptor == NULL) {
        return done(NULL_POINTER);
    }
    struct backend *backend = calloc(1, sizeof(*backend));
    if (backend == NULL) {
        return done(wh_cudnn_api.memory);
    }
    backend->magic = MAGIC;
    backend->type = descriptorType;
    backend->made = wh_shape(WH_OP_cudnnBackendCreateDescriptor);
    backend->made = wh_shape_add(backend->made, (uint64_t)descriptorType);
    if (is_pack(backend)) {
        *descriptor = backend;
        return answered(0);
    }
    if (descriptorType == WH_CUDNN_BACKEND_TENSOR) {
        backend->u.tensor.elements = 1;
    }
    backend->handle = wh_cuda_handle_new(WH_KIND_BACKEND);
    int status = backend->handle == 0
                     ? wh_cudnn_api.memory
                     : wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnBackendCreateDescriptor);
    if (status == 0) {
        wh_put_u64(&call, (uint64_t)descriptorType);
        wh_put_u64(&call, backend->handle);
        status = wh_cuda_send_shape(&call, &wh_cudnn_api, backend->made);
    }
    if (status != 0) {
        wh_cuda_handle_end(backend->handle);
        drop(backend);
        return done(status);
    }
    *descriptor = backend;
    return 0;
}

WH_EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    WH_API_CALL();
    struct wh_call call;
    struct backend *backend = backend_of(descriptor);
    if (backend == NULL) {
        return done(descriptor == NULL ? 0 : BAD_PARAM);
    }
    int status = 0;
    if (is_pack(backend)) {
        status = answered(0);
    } else {
        status = begin(&call, WH_OP_cudnnBackendDestroyDescriptor, backend);
        if (status == 0) {
            status = wh_cuda_send(&call, &wh_cudnn_api);
        }
        wh_cuda_handle_end(backend->handle);
    }
    drop(backend);
    return done(status);
}

/* Whether it only describes tensors and operations: what it is made of decides whether it is valid.
 * Graphs, engines, heuristics and plans depend on more. */
static bool is_description(int type)
{
    return type == 0 || type == 1 ||
           (type >= WH_CUDNN_BACKEND_FIRST_OPERATION && type <= WH_CUDNN_BACKEND_LAST_KNOWN &&
            type != WH_CUDNN_BACKEND_OPERATION_GRAPH);
}

WH_EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    WH_API_CALL();
    struct wh_call call;
    struct backend *backend = backend_of(descriptor);
    if (backend == NULL) {
        return done(descriptor == NULL ? NULL_POINTER : BAD_PARAM);
    }
    if (is_pack(backend)) {
        bool whole = backend->u.pack.id_count == backend->u.pack.pointer_count;
        backend->u.pack.finalized = whole;
        return answered(whole ? 0 : BAD_PARAM);
    }
    int status = begin(&call, WH_OP_cudnnBackendFinalize, backend);
    if (status == 0 && backend->made != 0 && is_description(backend->type)) {
        uint64_t shape = wh_shape_add(wh_shape(WH_OP_cudnnBackendFinalize), backend->made);
        status = wh_cuda_send_shape(&call, &wh_cudnn_api, shape);
    } else if (status == 0) {
        status = wh_cuda_call(&call, &wh_cudnn_api);
        wh_call_end(&call);
    }
    backend->finalized = backend->finalized || status == 0;
    backend->made = status == 0 ? backend->made : 0;
    return done(status);
}

/* Remembers a tensor that the graph has by value. False without memory. */
static bool add_value(struct backend *backend, struct value value)
{
    for (uint32_t i = 0; i < backend->value_count; i++) {
        if (backend->values[i].id == value.id) {
            return true;
        }
    }
    struct value *larger =
        backend->value_count == VALUES_MAX
            ? NULL
            : realloc(backend->values, (backend->value_count + 1) * sizeof(*larger));
    if (larger == NULL) {
        return false;
    }
    backend->values = larger;
    backend->values[backend->value_count++] = value;
    return true;
}

/* What belongs to a descriptor belongs to those that are made of it. */
static bool inherit(struct backend *heir, const struct backend *from)
{
    bool kept = true;
    for (uint32_t i = 0; i < from->value_count; i++) {
        kept = add_value(heir, from->values[i]) && kept;
    }
    if (from->type == WH_CUDNN_BACKEND_TENSOR && from->u.tensor.by_value) {
        size_t bytes = from->u.tensor.elements * wh_cudnn_type_bytes(from->u.tensor.type);
        kept = add_value(heir, (struct value){from->u.tensor.id, (uint32_t)bytes}) && kept;
    }
    return kept;
}

/* The first of an attribute's integers. */
static int64_t first_of(const void *elements, size_t element_bytes)
{
    int64_t wide = 0;
    int32_t narrow = 0;
    if (element_bytes == sizeof(wide)) {
        memcpy(&wide, elements, sizeof(wide));
        return wide;
    }
    if (element_bytes == sizeof(narrow)) {
        memcpy(&narrow, elements, sizeof(narrow));
        return narrow;
    }
    return *(const uint8_t *)elements;
}

static void note_tensor(struct backend *backend, int name, size_t element_bytes, size_t count,
                        const void *elements)
{
    int64_t first = first_of(elements, element_bytes);
    if (name == WH_CUDNN_ATTR_TENSOR_UNIQUE_ID) {
        backend->u.tensor.id = first;
    } else if (name == WH_CUDNN_ATTR_TENSOR_IS_BY_VALUE) {
        backend->u.tensor.by_value = first != 0;
    } else if (name == WH_CUDNN_ATTR_TENSOR_DATA_TYPE) {
        backend->u.tensor.type = (int)first;
    } else if (name == WH_CUDNN_ATTR_TENSOR_DIMENSIONS && element_bytes == sizeof(int64_t)) {
        backend->u.tensor.elements = 1;
        for (size_t i = 0; i < count; i++) {
            int64_t size = first_of((const int64_t *)elements + i, element_bytes);
            backend->u.tensor.elements *= size > 0 ? (size_t)size : 1;
        }
    }
}

/* A copy in the place of what there was; false without memory. */
static bool replace(void **kept, const void *bytes, size_t size_bytes)
{
    void *copy = malloc(size_bytes > 0 ? size_bytes : 1);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, bytes, size_bytes);
    free(*kept);
    *kept = copy;
    return true;
}

static int set_pack(struct backend *backend, int name, int type, int64_t count,
                    const void *elements)
{
    bool ids = name == WH_CUDNN_ATTR_PACK_UNIQUE_IDS && type == TYPE_INT64;
    bool pointers = type == WH_CUDNN_TYPE_VOID_PTR && (name == WH_CUDNN_ATTR_PACK_DATA_POINTERS ||
                                                       name == WH_CUDNN_ATTR_PACK_WORKSPACE);
    if (!ids && !pointers) {
        return name == WH_CUDNN_ATTR_PACK_UNIQUE_IDS || name == WH_CUDNN_ATTR_PACK_DATA_POINTERS ||
                       name == WH_CUDNN_ATTR_PACK_WORKSPACE
                   ? BAD_PARAM
                   : NOT_SUPPORTED;
    }
    if (elements == NULL || count < 0 || count > WH_CUDNN_POINTERS_MAX) {
        return elements == NULL ? NULL_POINTER : BAD_PARAM;
    }
    bool kept = true;
    if (ids) {
        kept = replace((void **)&backend->u.pack.ids, elements, (size_t)count * sizeof(int64_t));
        backend->u.pack.id_count = kept ? (uint32_t)count : 0;
    } else if (name == WH_CUDNN_ATTR_PACK_DATA_POINTERS) {
        kept =
            replace((void **)&backend->u.pack.pointers, elements, (size_t)count * sizeof(void *));
        backend->u.pack.pointer_count = kept ? (uint32_t)count : 0;
    } else {
        memcpy(&backend->u.pack.workspace, elements, count > 0 ? sizeof(void *) : 0);
    }
    return kept ? 0 : wh_cudnn_api.memory;
}

/* The server's handles of the application's descriptors, to be freed; NULL for a wrong one. */
static uint64_t *handles_of(void *const *descriptors, size_t count)
{
    uint64_t *handles = calloc(count > 0 ? count : 1, sizeof(*handles));
    for (size_t i = 0; handles != NULL && i < count; i++) {
        const struct backend *backend = backend_of(descriptors[i]);
        if (backend == NULL || backend->handle == 0) {
            free(handles);
            return NULL;
        }
        handles[i] = backend->handle;
    }
    return handles;
}

/* Whether what an attribute may be set to does not depend on what was set before. The number of an
 * engine does: which there are, the graph decides. */
static bool takes_alike(int type)
{
    return is_description(type) || type == WH_CUDNN_BACKEND_HEURISTICS ||
           type == WH_CUDNN_BACKEND_PLAN || type == WH_CUDNN_BACKEND_OPERATION_GRAPH;
}

/* Sizes, strides and numbers of tensors are what a new problem has others of. Whether the library
 * takes one is decided by its sign and its magnitude. */
static bool is_free_number(const struct backend *backend, int name, int type)
{
    return backend->type == WH_CUDNN_BACKEND_TENSOR && type == TYPE_INT64 &&
           (name == WH_CUDNN_ATTR_TENSOR_DIMENSIONS || name == WH_CUDNN_ATTR_TENSOR_STRIDES ||
            name == WH_CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

static uint64_t class_of(int64_t number)
{
    uint64_t magnitude = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    return (number == 0 ? 0u : number < 0 ? 1u : 2u) + (magnitude > INT32_MAX ? 4u : 0u);
}

/* What must be the same for an attribute to go one way: the kind of descriptor, which attribute,
 * and its elements - of descriptors what they are and whether they are complete. */
static uint64_t attribute_shape(const struct backend *backend, int name, int type, int64_t count,
                                const void *elements)
{
    uint64_t shape = wh_shape(WH_OP_cudnnBackendSetAttribute);
    shape = wh_shape_add(shape, (uint64_t)backend->type);
    shape = wh_shape_add(shape, (uint64_t)name);
    shape = wh_shape_add(shape, (uint64_t)type);
    shape = wh_shape_add(shape, (uint64_t)count);
    if (type != WH_CUDNN_TYPE_DESCRIPTOR && !is_free_number(backend, name, type)) {
        return wh_shape_add_bytes(shape, elements, (size_t)count * wh_cudnn_element_bytes(type));
    }
    for (int64_t i = 0; i < count; i++) {
        if (type == WH_CUDNN_TYPE_DESCRIPTOR) {
            const struct backend *part = backend_of(((void *const *)elements)[i]);
            shape = wh_shape_add(shape, (uint64_t)part->type);
            shape = wh_shape_add(shape, part->finalized);
        } else {
            shape = wh_shape_add(shape, class_of(((const int64_t *)elements)[i]));
        }
    }
    return shape;
}

/* Adds an attribute to what the descriptor is made of. */
static void note_made(struct backend *backend, int name, int type, int64_t count,
                      const void *elements)
{
    uint64_t made = wh_shape_add(wh_shape_add(backend->made, (uint64_t)name), (uint64_t)type);
    made = wh_shape_add(made, (uint64_t)count);
    if (type != WH_CUDNN_TYPE_DESCRIPTOR) {
        made = wh_shape_add_bytes(made, elements, (size_t)count * wh_cudnn_element_bytes(type));
    }
    bool known = backend->made != 0;
    for (int64_t i = 0; type == WH_CUDNN_TYPE_DESCRIPTOR && i < count; i++) {
        const struct backend *part = backend_of(((void *const *)elements)[i]);
        known = known && part->made != 0;
        made = wh_shape_add(wh_shape_add(made, part->made), part->finalized);
    }
    backend->made = known ? made : 0;
}

static int set_remote(struct backend *backend, int name, int type, int64_t count,
                      const void *elements)
{
    struct wh_call call;
    size_t element_bytes = wh_cudnn_element_bytes(type);
    if (element_bytes == 0 || count < 0 || count > WH_CUDNN_ELEMENTS_MAX) {
        return element_bytes == 0 ? NOT_SUPPORTED : BAD_PARAM;
    }
    uint64_t *handles = NULL;
    const void *sent = elements;
    if (type == WH_CUDNN_TYPE_DESCRIPTOR && elements != NULL) {
        handles = handles_of(elements, (size_t)count);
        if (handles == NULL) {
            return BAD_PARAM;
        }
        sent = handles;
    }
    int status = begin(&call, WH_OP_cudnnBackendSetAttribute, backend);
    if (status == 0) {
        wh_put_u64(&call, (uint64_t)name);
        wh_put_u64(&call, (uint64_t)type);
        wh_put_u64(&call, (uint64_t)count);
        wh_put_blob(&call, sent, (size_t)count * element_bytes);
        if (elements != NULL && !backend->finalized && takes_alike(backend->type)) {
            uint64_t shape = attribute_shape(backend, name, type, count, elements);
            status = wh_cuda_send_shape(&call, &wh_cudnn_api, shape);
        } else {
            status = wh_cuda_call(&call, &wh_cudnn_api);
            wh_call_end(&call);
        }
    }
    free(handles);
    if (status != 0 || elements == NULL) {
        backend->made = 0; /* what a refused attribute leaves is the library's to know */
        return status;
    }
    note_made(backend, name, type, count, elements);
    bool kept = true;
    if (type == WH_CUDNN_TYPE_DESCRIPTOR) {
        for (int64_t i = 0; i < count; i++) {
            kept = inherit(backend, backend_of(((void *const *)elements)[i])) && kept;
        }
    } else if (backend->type == WH_CUDNN_BACKEND_TENSOR && count > 0) {
        note_tensor(backend, name, element_bytes, (size_t)count, elements);
    }
    return kept ? 0 : wh_cudnn_api.memory;
}

WH_EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                 int attributeName, int attributeType,
                                                 int64_t elementCount, const void *arrayOfElements)
{
    WH_API_CALL();
    struct backend *backend = backend_of(descriptor);
    if (backend == NULL) {
        return done(descriptor == NULL ? NULL_POINTER : BAD_PARAM);
    }
    if (is_pack(backend)) {
        return answered(
            set_pack(backend, attributeName, attributeType, elementCount, arrayOfElements));
    }
    return done(set_remote(backend, attributeName, attributeType, elementCount, arrayOfElements));
}

WH_EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                                 int attributeName, int attributeType,
                                                 int64_t requestedElementCount,
                                                 int64_t *elementCount, void *arrayOfElements)
{
    WH_API_CALL();
    struct wh_call call;
    const struct backend *backend = backend_of(descriptor);
    size_t element_bytes = wh_cudnn_element_bytes(attributeType);
    if (backend == NULL) {
        return done(descriptor == NULL ? NULL_POINTER : BAD_PARAM);
    }
    if (is_pack(backend) || element_bytes == 0 || attributeType == WH_CUDNN_TYPE_HANDLE) {
        return done(NOT_SUPPORTED);
    }
    if (requestedElementCount < 0 || requestedElementCount > WH_CUDNN_ELEMENTS_MAX) {
        return done(BAD_PARAM);
    }
    size_t count = (size_t)requestedElementCount;
    bool filled = attributeType == WH_CUDNN_TYPE_DESCRIPTOR;
    uint64_t *handles = NULL;
    if (filled && arrayOfElements != NULL) {
        handles = handles_of(arrayOfElements, count);
        if (handles == NULL) {
            return done(BAD_PARAM);
        }
    }
    int64_t found = 0;
    int status = begin(&call, WH_OP_cudnnBackendGetAttribute, backend);
    if (status == 0) {
        wh_put_u64(&call, (uint64_t)attributeName);
        wh_put_u64(&call, (uint64_t)attributeType);
        wh_put_u64(&call, count);
        wh_put_blob(&call, handles, count * sizeof(*handles));
        wh_put_out(&call, sizeof(found), true);
        wh_put_out(&call, count * element_bytes, !filled && arrayOfElements != NULL);
        status = wh_cuda_call(&call, &wh_cudnn_api);
        if (status == 0) {
            (void)wh_get_out(&call, &found, sizeof(found));
            (void)wh_get_out(&call, arrayOfElements, count * element_bytes);
        }
        wh_call_end(&call);
    }
    free(handles);
    if (status != 0) {
        return done(status);
    }
    if (elementCount != NULL) {
        *elementCount = found;
    }
    bool kept = true;
    for (size_t i = 0; filled && arrayOfElements != NULL && i < count && (int64_t)i < found; i++) {
        struct backend *part = backend_of(((void **)arrayOfElements)[i]);
        part->made = 0;
        part->finalized = true;
        kept = inherit(part, backend) && kept;
    }
    return done(kept ? 0 : wh_cudnn_api.memory);
}

/* The scalars among the pointers; how many, -1 if one has no memory behind it or is too large. */
static int values_of(const struct backend *plan, const struct backend *pack,
                     struct wh_cudnn_value *values)
{
    int count = 0;
    for (uint32_t i = 0; plan->value_count > 0 && i < pack->u.pack.id_count; i++) {
        for (uint32_t j = 0; j < plan->value_count; j++) {
            const struct value *value = &plan->values[j];
            if (value->id != pack->u.pack.ids[i]) {
                continue;
            }
            if (pack->u.pack.pointers[i] == NULL || count == (int)VALUES_MAX ||
                value->size_bytes > sizeof(values->bytes)) {
                return -1;
            }
            values[count] = (struct wh_cudnn_value){.place = i, .size_bytes = value->size_bytes};
            memcpy(values[count].bytes, pack->u.pack.pointers[i], value->size_bytes);
            count++;
        }
    }
    return count;
}

WH_EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                            cudnnBackendDescriptor_t executionPlan,
                                            cudnnBackendDescriptor_t variantPack)
{
    WH_API_CALL();
    struct wh_call call;
    struct wh_cudnn_value values[VALUES_MAX];
    const struct backend *plan = backend_of(executionPlan);
    const struct backend *pack = backend_of(variantPack);
    if (!wh_cuda_handle_live(handle, WH_KIND_CUDNN)) {
        return done(1001);
    }
    if (plan == NULL || pack == NULL || is_pack(plan) || !is_pack(pack)) {
        return done(plan == NULL || pack == NULL ? NULL_POINTER : BAD_PARAM);
    }
    if (!pack->u.pack.finalized) {
        return done(NOT_FINALIZED);
    }
    int count = values_of(plan, pack, values);
    if (count < 0) {
        return done(BAD_PARAM);
    }
    size_t pointers = pack->u.pack.id_count;
    wh_cudnn_settle(handle);
    int status = wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnBackendExecute);
    if (status != 0) {
        return done(status);
    }
    wh_put_u64(&call, (uint64_t)(uintptr_t)handle);
    wh_put_u64(&call, plan->handle);
    wh_put_blob(&call, pack->u.pack.ids, pointers * sizeof(int64_t));
    wh_put_blob(&call, pack->u.pack.pointers, pointers * sizeof(void *));
    wh_put_u64(&call, (uint64_t)(uintptr_t)pack->u.pack.workspace);
    wh_put_blob(&call, values, (size_t)count * sizeof(values[0]));
    uint64_t shape = wh_shape(WH_OP_cudnnBackendExecute);
    shape = wh_shape_add(shape, (uint64_t)(uintptr_t)handle);
    shape = wh_shape_add(shape, plan->handle);
    for (size_t i = 0; i < pointers; i++) {
        shape = wh_shape_add(shape, (uint64_t)pack->u.pack.ids[i]);
        shape = wh_shape_add(shape, pack->u.pack.pointers[i] != NULL);
    }
    shape = wh_shape_add(shape, pack->u.pack.workspace != NULL);
    return done(wh_cuda_send_shape(&call, &wh_cudnn_api, shape));
}
