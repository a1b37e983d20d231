/*
 * info.c - queries: what the stub knows itself, what it has asked before, and the question to the
 * server.
 */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#include "fork_lock.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

/* Fits the reply slot; longer answers are asked for again. */
#define FIRST_ASK_BYTES ((size_t)1024)
#define ANSWER_BYTES_MAX ((size_t)64 << 20)

struct wh_cl_info {
    struct wh_cl_info *next;
    uint16_t opcode;
    cl_uint param;
    uint64_t second;
    size_t size_bytes;
    uint8_t bytes[];
};

WH_FORK_LOCK(info_lock);

cl_int wh_cl_answer(const struct wh_cl_query *query, const void *bytes, size_t size_bytes)
{
    if (query->value != NULL) {
        if (query->size < size_bytes) {
            return CL_INVALID_VALUE;
        }
        memcpy(query->value, bytes, size_bytes);
    }
    if (query->size_ret != NULL) {
        *query->size_ret = size_bytes;
    }
    return CL_SUCCESS;
}

static bool answer_pointer(const struct wh_cl_query *query, const void *pointer, cl_int *error)
{
    *error = wh_cl_answer(query, &pointer, sizeof(pointer));
    return true;
}

static bool answer_uint(const struct wh_cl_query *query, cl_uint value, cl_int *error)
{
    *error = wh_cl_answer(query, &value, sizeof(value));
    return true;
}

/* The real library's count also has what it holds itself, such as commands that are under way. */
static bool asks_references(const struct wh_cl_query *query)
{
    switch (query->param) {
    case CL_DEVICE_REFERENCE_COUNT:
    case CL_CONTEXT_REFERENCE_COUNT:
    case CL_QUEUE_REFERENCE_COUNT:
    case CL_MEM_REFERENCE_COUNT:
    case CL_SAMPLER_REFERENCE_COUNT:
    case CL_PROGRAM_REFERENCE_COUNT:
    case CL_KERNEL_REFERENCE_COUNT:
    case CL_EVENT_REFERENCE_COUNT:
        return true;
    default:
        return false;
    }
}

/* The server knows of one reference of the application's, or of all if every call is a message; and
 * of those of callbacks, which are no one's business. */
void wh_cl_count_own(const struct wh_cl_query *query)
{
    const struct wh_cl_object *object = query->object;
    cl_uint count;
    if (!asks_references(query) || query->value == NULL) {
        return;
    }
    memcpy(&count, query->value, sizeof(count));
    if (wh_local_answers()) {
        count += __atomic_load_n(&object->own_references, __ATOMIC_RELAXED) - 1;
    }
    if (object->kind == WH_KIND_EVENT) {
        count -= __atomic_load_n(&object->callbacks, __ATOMIC_RELAXED);
    }
    memcpy(query->value, &count, sizeof(count));
}

static bool own_device(const struct wh_cl_query *query, const struct wh_cl_object *object,
                       cl_int *error)
{
    switch (query->param) {
    case CL_DEVICE_PLATFORM:
        return answer_pointer(query, wh_cl_platform(), error);
    case CL_DEVICE_PARENT_DEVICE:
        return answer_pointer(query, object->parent, error);
    default:
        return false;
    }
}

static bool own_context(const struct wh_cl_query *query, const struct wh_cl_object *object,
                        cl_int *error)
{
    switch (query->param) {
    case CL_CONTEXT_DEVICES:
        *error = wh_cl_answer(query, object->u.of_context.devices,
                              object->u.of_context.device_count * sizeof(void *));
        return true;
    case CL_CONTEXT_PROPERTIES:
        *error = wh_cl_answer(query, object->u.of_context.properties,
                              object->u.of_context.properties_bytes);
        return true;
    default:
        return false;
    }
}

static bool own_queue(const struct wh_cl_query *query, const struct wh_cl_object *object,
                      cl_int *error)
{
    switch (query->param) {
    case CL_QUEUE_CONTEXT:
        return answer_pointer(query, object->context, error);
    case CL_QUEUE_DEVICE:
        return answer_pointer(query, object->u.of_queue.device, error);
    default:
        return false;
    }
}

static bool own_mem(const struct wh_cl_query *query, const struct wh_cl_object *object,
                    cl_int *error)
{
    cl_uint maps = 0;
    switch (query->param) {
    case CL_MEM_FLAGS:
        *error = wh_cl_answer(query, &object->u.of_mem.flags, sizeof(cl_mem_flags));
        return true;
    case CL_MEM_HOST_PTR:
        return answer_pointer(query, object->u.of_mem.host, error);
    case CL_MEM_CONTEXT:
        return answer_pointer(query, object->context, error);
    case CL_MEM_ASSOCIATED_MEMOBJECT:
        return answer_pointer(query, object->u.of_mem.sub ? object->parent : NULL, error);
    case CL_MEM_MAP_COUNT:
        maps = wh_cl_map_count(object);
        return answer_uint(query, maps, error);
    default:
        return false;
    }
}

static bool own_program(const struct wh_cl_query *query, const struct wh_cl_object *object,
                        cl_int *error)
{
    switch (query->param) {
    case CL_PROGRAM_CONTEXT:
        return answer_pointer(query, object->context, error);
    case CL_PROGRAM_DEVICES:
        *error = wh_cl_answer(query, object->u.of_program.devices,
                              object->u.of_program.device_count * sizeof(void *));
        return true;
    case CL_PROGRAM_SOURCE:
        if (!object->u.of_program.rewritten) {
            return false;
        }
        *error = wh_cl_answer(query, object->u.of_program.source,
                              strlen(object->u.of_program.source) + 1);
        return true;
    default:
        return false;
    }
}

static bool own_kernel(const struct wh_cl_query *query, const struct wh_cl_object *object,
                       cl_int *error)
{
    switch (query->param) {
    case CL_KERNEL_CONTEXT:
        return answer_pointer(query, object->context, error);
    case CL_KERNEL_PROGRAM:
        return answer_pointer(query, object->parent, error);
    default:
        return false;
    }
}

static bool own_event(const struct wh_cl_query *query, const struct wh_cl_object *object,
                      cl_int *error)
{
    int32_t status = wh_cl_event_status(object);
    switch (query->param) {
    case CL_EVENT_COMMAND_QUEUE:
        return answer_pointer(query, object->u.of_event.user ? NULL : object->parent, error);
    case CL_EVENT_CONTEXT:
        return answer_pointer(query, object->context, error);
    case CL_EVENT_COMMAND_TYPE:
        if (object->u.of_event.command == CL_COMMAND_TASK) {
            return false; /* which some libraries call a kernel's launch */
        }
        return answer_uint(query, object->u.of_event.command, error);
    case CL_EVENT_COMMAND_EXECUTION_STATUS:
        if (status > CL_COMPLETE || !wh_local_answers()) {
            return false;
        }
        *error = wh_cl_answer(query, &status, sizeof(status));
        return true;
    default:
        return false;
    }
}

static bool own_sampler(const struct wh_cl_query *query, const struct wh_cl_object *object,
                        cl_int *error)
{
    switch (query->param) {
    case CL_SAMPLER_CONTEXT:
        return answer_pointer(query, object->context, error);
    default:
        return false;
    }
}

bool wh_cl_own_answer(const struct wh_cl_query *query, cl_int *error)
{
    const struct wh_cl_object *object = query->object;
    switch (query->opcode) {
    case WH_OP_clGetDeviceInfo:
        return own_device(query, object, error);
    case WH_OP_clGetContextInfo:
        return own_context(query, object, error);
    case WH_OP_clGetCommandQueueInfo:
        return own_queue(query, object, error);
    case WH_OP_clGetMemObjectInfo:
        return own_mem(query, object, error);
    case WH_OP_clGetImageInfo:
        return query->param == CL_IMAGE_BUFFER && object->u.of_mem.image.element_bytes != 0 &&
               answer_pointer(query, object->u.of_mem.sub ? object->parent : NULL, error);
    case WH_OP_clGetProgramInfo:
        return own_program(query, object, error);
    case WH_OP_clGetKernelInfo:
        return own_kernel(query, object, error);
    case WH_OP_clGetEventInfo:
        return own_event(query, object, error);
    case WH_OP_clGetSamplerInfo:
        return own_sampler(query, object, error);
    default:
        return false;
    }
}

size_t wh_cl_answer_room(size_t size)
{
    size_t most = wh_bulk_limit();
    return size < most ? size : most;
}

/* The question as the application asked it, or with the stub's own buffer. */
static cl_int ask(const struct wh_cl_query *query, size_t size, void *value, size_t *size_ret)
{
    struct wh_call call;
    size = wh_cl_answer_room(size);
    if (wh_call_begin(&call, query->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(query->object));
    if (query->has_second) {
        wh_put_u64(&call, query->second_kind != 0 ? wh_cl_handle(query->second_object)
                                                  : query->second_value);
    }
    wh_put_u64(&call, query->param);
    wh_put_u64(&call, size);
    wh_put_out(&call, size, value != NULL);
    wh_put_out(&call, sizeof(size_t), size_ret != NULL);
    cl_int error = wh_cl_call_sync(&call);
    if (error == CL_SUCCESS) {
        (void)wh_get_out(&call, value, size);
        (void)wh_get_out(&call, size_ret, size_ret == NULL ? 0 : sizeof(size_t));
    }
    wh_call_end(&call);
    return error;
}

/* The whole answer in memory of its own, with one message if it is short; none if there is only the
 * API's word for how the question was asked. */
static cl_int ask_whole(const struct wh_cl_query *query, struct wh_cl_info **answer)
{
    size_t capacity = FIRST_ASK_BYTES;
    for (int attempt = 0; attempt < 2; attempt++) {
        struct wh_cl_info *info = malloc(sizeof(*info) + capacity);
        if (info == NULL) {
            return CL_OUT_OF_HOST_MEMORY;
        }
        size_t size_bytes = 0;
        cl_int error = ask(query, capacity, info->bytes, &size_bytes);
        if (error == CL_SUCCESS && size_bytes <= capacity) {
            info->size_bytes = size_bytes;
            *answer = info;
            return CL_SUCCESS;
        }
        free(info);
        if (error != CL_SUCCESS && error != CL_INVALID_VALUE) {
            return error;
        }
        error = ask(query, 0, NULL, &size_bytes); /* too long, or no such query */
        if (error != CL_SUCCESS || size_bytes <= capacity || size_bytes > ANSWER_BYTES_MAX) {
            return ask(query, query->size, query->value, query->size_ret);
        }
        capacity = size_bytes;
    }
    return CL_INVALID_VALUE;
}

cl_int wh_cl_ask_whole(const struct wh_cl_query *query, void **answer, size_t *size_bytes)
{
    struct wh_cl_info *info = NULL;
    *answer = NULL;
    cl_int error = ask_whole(query, &info);
    if (error != CL_SUCCESS) {
        return error;
    }
    *size_bytes = info->size_bytes;
    *answer = memmove(info, info->bytes, info->size_bytes);
    return CL_SUCCESS;
}

static uint64_t second_key(const struct wh_cl_query *query)
{
    return query->second_kind != 0 ? wh_cl_handle(query->second_object) : query->second_value;
}

static const struct wh_cl_info *find(const struct wh_cl_query *query)
{
    const struct wh_cl_object *object = query->object;
    const struct wh_cl_info *info = object->infos;
    while (info != NULL && (info->opcode != query->opcode || info->param != query->param ||
                            info->second != second_key(query))) {
        info = info->next;
    }
    return info;
}

static cl_int ask_and_keep(const struct wh_cl_query *query)
{
    struct wh_cl_object *object = (struct wh_cl_object *)query->object;
    struct wh_cl_info *info = NULL;
    cl_int error = ask_whole(query, &info);
    if (error != CL_SUCCESS || info == NULL) {
        return error;
    }
    error = wh_cl_answer(query, info->bytes, info->size_bytes);
    info->opcode = query->opcode;
    info->param = query->param;
    info->second = second_key(query);
    pthread_mutex_lock(&info_lock);
    if (find(query) == NULL) {
        info->next = object->infos;
        object->infos = info;
        info = NULL;
    }
    pthread_mutex_unlock(&info_lock);
    free(info);
    return error;
}

static bool may_keep(const struct wh_cl_query *query)
{
    /* Depends on the arguments set so far. */
    bool moves =
        query->opcode == WH_OP_clGetKernelWorkGroupInfo && query->param == CL_KERNEL_LOCAL_MEM_SIZE;
    return wh_local_answers() && query->cache != WH_CL_CACHE_NONE && !moves &&
           !asks_references(query);
}

static cl_int answer_query(const struct wh_cl_query *query)
{
    cl_int error = CL_SUCCESS;
    if (wh_local_answers() && wh_cl_own_answer(query, &error)) {
        return error;
    }
    if (may_keep(query)) {
        pthread_mutex_lock(&info_lock);
        const struct wh_cl_info *info = find(query);
        error = info != NULL ? wh_cl_answer(query, info->bytes, info->size_bytes) : CL_SUCCESS;
        pthread_mutex_unlock(&info_lock);
        return info != NULL ? error : ask_and_keep(query);
    }
    if (query->kind == WH_KIND_KERNEL) {
        wh_cl_send_arguments((cl_kernel)query->object);
    }
    if (asks_references(query)) {
        struct wh_cl_object *object = (struct wh_cl_object *)query->object;
        wh_cl_settle_writes(query->kind == WH_KIND_CONTEXT ? object : object->context);
    }
    error = ask(query, query->size, query->value, query->size_ret);
    if (error == CL_SUCCESS && !wh_local_answers()) {
        (void)wh_cl_own_answer(query, &error); /* pointers of the application, not of the server */
    }
    if (error == CL_SUCCESS) {
        wh_cl_count_own(query);
    }
    return error;
}

cl_int wh_cl_info(const struct wh_cl_query *query)
{
    static const cl_int errors[WH_KIND_COUNT] = WH_KIND_ERRORS;
    struct wh_cl_query own = *query;
    if (own.kind == WH_KIND_PLATFORM && own.object == NULL) {
        own.object = wh_cl_platform();
    }
    if (!wh_cl_live(own.object, own.kind)) {
        return errors[own.kind];
    }
    bool missing = own.second_object == NULL && own.second_optional;
    if (own.second_kind != 0 && !missing && !wh_cl_live(own.second_object, own.second_kind)) {
        return errors[own.second_kind];
    }
    return answer_query(&own);
}

void wh_cl_info_free(struct wh_cl_object *object)
{
    struct wh_cl_info *info = object->infos;
    object->infos = NULL;
    while (info != NULL) {
        struct wh_cl_info *next = info->next;
        free(info);
        info = next;
    }
}
