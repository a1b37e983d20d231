/*
 * launch.c - kernel arguments and launches.
 *
 * An argument whose shape (index, size, sort of value) the server has accepted once is kept here,
 * and travels with the next launch if it changed. A launch of a geometry that succeeded once goes
 * one way.
 */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define ARGUMENTS_MAX 4096u
#define ARGUMENT_BYTES_MAX ((size_t)64 << 10)
#define TRUSTED_BYTES_MAX 64u /* of a size that no argument has had yet */
#define DIMENSIONS_MAX 3u
#define PACKED_BYTES ((size_t)2048) /* on the stack; more is allocated */
#define KIND_FOREIGN (1u << 31)     /* of another context */

/* How an argument crosses; the server has the same list (opencl_launch.c). */
enum sort {
    SORT_NONE,
    SORT_BYTES,
    SORT_HANDLE,
    SORT_LOCAL, /* a size without a value */
};

struct wh_cl_argument {
    size_t size;
    uint64_t handle;
    uint8_t small[16];
    uint8_t *large; /* values that do not fit */
    size_t large_capacity;
    size_t accepted_size; /* shape that the server has accepted */
    uint32_t accepted_kind;
    uint8_t accepted_sort;
    uint8_t sort;
    bool dirty; /* the server has an older value */
};

/* One item of a packed list: this header, then the bytes, padded to 8. */
struct packed_argument {
    uint32_t index;
    uint32_t sort;
    uint64_t size;
};

static const uint8_t *bytes_of(const struct wh_cl_argument *argument)
{
    return argument->size <= sizeof(argument->small) ? argument->small : argument->large;
}

void wh_cl_arguments_free(struct wh_cl_object *kernel)
{
    for (uint32_t i = 0; i < kernel->u.of_kernel.argument_count; i++) {
        free(kernel->u.of_kernel.arguments[i].large);
    }
    free(kernel->u.of_kernel.arguments);
}

/* Room for an index; NULL without memory. The kernel's lock is held. */
static struct wh_cl_argument *argument_at(struct wh_cl_object *kernel, cl_uint index)
{
    uint32_t count = kernel->u.of_kernel.argument_count;
    if (index >= ARGUMENTS_MAX) {
        return NULL;
    }
    if (index >= count) {
        uint32_t wanted = index + 8;
        struct wh_cl_argument *grown =
            realloc(kernel->u.of_kernel.arguments, wanted * sizeof(*grown));
        if (grown == NULL) {
            return NULL;
        }
        memset(grown + count, 0, (wanted - count) * sizeof(*grown));
        kernel->u.of_kernel.arguments = grown;
        kernel->u.of_kernel.argument_count = wanted;
    }
    return &kernel->u.of_kernel.arguments[index];
}

/* What an application's value is: the stub has no signature, so a live object's pointer counts as
 * that object. */
struct value {
    enum sort sort;
    size_t size;
    const void *bytes;
    const struct wh_cl_object *object;
    uint32_t kind; /* what kernels tell apart of objects, see kind_of */
};

/* What a kernel tells apart: a buffer is no image, nor is one sort of image another. Whether an
 * object may be of another context the real library says. */
static uint32_t kind_of(const struct wh_cl_object *kernel, const struct wh_cl_object *object)
{
    bool image = object->kind == WH_KIND_MEM && object->u.of_mem.image.element_bytes != 0;
    uint32_t kind = image ? object->kind | object->u.of_mem.image.type << 8 : object->kind;
    return object->context == kernel->context ? kind : kind | KIND_FOREIGN;
}

/* Behind a wrong size there need not be as many bytes. */
static const uint8_t no_bytes[ARGUMENT_BYTES_MAX];

static cl_int read_value(const struct wh_cl_object *kernel, size_t size, const void *bytes,
                         struct value *value)
{
    void *pointer;
    bool inside;
    *value = (struct value){.sort = SORT_BYTES, .size = size, .bytes = bytes};
    if (bytes == NULL) {
        value->sort = SORT_LOCAL;
        return CL_SUCCESS;
    }
    if (size > ARGUMENT_BYTES_MAX) {
        value->size = ARGUMENT_BYTES_MAX; /* no kernel takes that much: it is refused */
        value->bytes = no_bytes;
        return CL_SUCCESS;
    }
    if (size != sizeof(pointer)) {
        return CL_SUCCESS;
    }
    memcpy(&pointer, bytes, sizeof(pointer));
    const struct wh_cl_object *object = wh_cl_find(pointer, &inside);
    if (object == NULL) {
        return inside ? CL_INVALID_MEM_OBJECT : CL_SUCCESS; /* released, or a number */
    }
    value->sort = SORT_HANDLE;
    value->object = object;
    value->kind = kind_of(kernel, object);
    return CL_SUCCESS;
}

static bool store(struct wh_cl_argument *argument, const struct value *value)
{
    uint8_t *to = argument->small;
    if (value->sort == SORT_BYTES && value->size > sizeof(argument->small)) {
        if (value->size > argument->large_capacity) {
            uint8_t *grown = realloc(argument->large, value->size);
            if (grown == NULL) {
                return false;
            }
            argument->large = grown;
            argument->large_capacity = value->size;
        }
        to = argument->large;
    }
    if (value->sort == SORT_BYTES) {
        memcpy(to, value->bytes, value->size);
    }
    argument->handle = value->object == NULL ? 0 : value->object->handle;
    argument->size = value->size;
    argument->sort = (uint8_t)value->sort;
    return true;
}

static bool same(const struct wh_cl_argument *argument, const struct value *value)
{
    if (argument->sort != value->sort || argument->size != value->size) {
        return false;
    }
    if (value->sort == SORT_HANDLE) {
        return argument->handle == value->object->handle;
    }
    return value->sort == SORT_LOCAL || memcmp(bytes_of(argument), value->bytes, value->size) == 0;
}

static bool accepted(const struct wh_cl_argument *argument, const struct value *value)
{
    return argument->accepted_sort == value->sort && argument->accepted_size == value->size &&
           argument->accepted_kind == value->kind;
}

static cl_int send_argument(const struct wh_cl_object *kernel, cl_uint index,
                            const struct value *value)
{
    struct wh_call call;
    uint64_t handle = value->object == NULL ? 0 : value->object->handle;
    if (wh_call_begin(&call, WH_OP_clSetKernelArg) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, kernel->handle);
    wh_put_u64(&call, index);
    wh_put_u64(&call, value->sort);
    wh_put_u64(&call, value->size);
    if (value->sort == SORT_HANDLE) {
        wh_put_blob(&call, &handle, sizeof(handle));
    } else {
        wh_put_blob(&call, value->bytes, value->size);
    }
    return wh_cl_call_error(&call);
}

/* Sends one argument by itself and remembers what the server accepted. The kernel's lock is held.
 */
static cl_int set_in_full(struct wh_cl_object *kernel, cl_uint index,
                          struct wh_cl_argument *argument, const struct value *value)
{
    cl_int error = send_argument(kernel, index, value);
    if (error != CL_SUCCESS) {
        return error;
    }
    if (argument->dirty) {
        argument->dirty = false;
        kernel->u.of_kernel.dirty_count--;
    }
    kernel->u.of_kernel.foreign_count += value->kind / KIND_FOREIGN;
    kernel->u.of_kernel.foreign_count -= argument->accepted_kind / KIND_FOREIGN;
    argument->accepted_sort = (uint8_t)value->sort;
    argument->accepted_size = value->size;
    argument->accepted_kind = value->kind;
    if (!store(argument, value)) {
        argument->sort = SORT_NONE; /* unknown here, so never taken for unchanged */
    }
    return CL_SUCCESS;
}

static cl_int set_argument(struct wh_cl_object *kernel, cl_uint index, const struct value *value)
{
    struct wh_cl_argument *argument = argument_at(kernel, index);
    if (argument == NULL) {
        return index >= ARGUMENTS_MAX ? CL_INVALID_ARG_INDEX : CL_OUT_OF_HOST_MEMORY;
    }
    if (value->sort == SORT_BYTES && value->size > TRUSTED_BYTES_MAX &&
        !accepted(argument, value)) {
        /* The size is judged before the bytes are touched, as the real library does. */
        struct value size_alone = *value;
        size_alone.bytes = no_bytes;
        cl_int error = send_argument(kernel, index, &size_alone);
        if (error != CL_SUCCESS) {
            return error;
        }
    }
    if (!wh_local_answers() || !accepted(argument, value)) {
        return set_in_full(kernel, index, argument, value);
    }
    if (same(argument, value)) {
        return CL_SUCCESS;
    }
    if (!store(argument, value)) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    if (!argument->dirty) {
        argument->dirty = true;
        kernel->u.of_kernel.dirty_count++;
    }
    return CL_SUCCESS;
}

cl_int CL_API_CALL wh_stub_clSetKernelArg(cl_kernel kernel, cl_uint arg_index, size_t arg_size,
                                          const void *arg_value)
{
    struct value value;
    WH_API_CALL();
    struct wh_cl_object *object = wh_cl_get(kernel, WH_KIND_KERNEL);
    if (object == NULL) {
        return CL_INVALID_KERNEL;
    }
    cl_int error = read_value(object, arg_size, arg_value, &value);
    if (error != CL_SUCCESS) {
        return error;
    }
    pthread_mutex_lock(&object->u.of_kernel.lock);
    error = set_argument(object, arg_index, &value);
    pthread_mutex_unlock(&object->u.of_kernel.lock);
    return error;
}

static size_t packed_size(const struct wh_cl_argument *argument)
{
    size_t bytes = argument->sort == SORT_BYTES ? argument->size : 8;
    return sizeof(struct packed_argument) + ((bytes + 7) & ~(size_t)7);
}

static uint8_t *pack(uint8_t *to, uint32_t index, const struct wh_cl_argument *argument)
{
    struct packed_argument header = {index, argument->sort, argument->size};
    size_t size = packed_size(argument);
    memset(to, 0, size);
    memcpy(to, &header, sizeof(header));
    if (argument->sort == SORT_BYTES) {
        memcpy(to + sizeof(header), bytes_of(argument), argument->size);
    } else {
        memcpy(to + sizeof(header), &argument->handle, sizeof(argument->handle));
    }
    return to + size;
}

/* Puts the arguments that the server has not got, and takes them for sent. The kernel's lock is
 * held. */
static cl_int put_dirty(struct wh_call *call, struct wh_cl_object *kernel)
{
    uint8_t stack[PACKED_BYTES];
    uint8_t *packed = stack;
    size_t size = 0;
    if (kernel->u.of_kernel.dirty_count == 0) {
        wh_put_blob(call, NULL, 0);
        return CL_SUCCESS;
    }
    for (uint32_t i = 0; i < kernel->u.of_kernel.argument_count; i++) {
        const struct wh_cl_argument *argument = &kernel->u.of_kernel.arguments[i];
        size += argument->dirty ? packed_size(argument) : 0;
    }
    if (size > sizeof(stack)) {
        packed = malloc(size);
        if (packed == NULL) {
            return CL_OUT_OF_HOST_MEMORY;
        }
    }
    uint8_t *end = packed;
    for (uint32_t i = 0; i < kernel->u.of_kernel.argument_count; i++) {
        struct wh_cl_argument *argument = &kernel->u.of_kernel.arguments[i];
        if (argument->dirty) {
            end = pack(end, i, argument);
        }
    }
    wh_put_blob(call, packed, size);
    if (packed != stack) {
        free(packed);
    }
    return CL_SUCCESS;
}

static void all_sent(struct wh_cl_object *kernel)
{
    for (uint32_t i = 0; kernel->u.of_kernel.dirty_count > 0; i++) {
        if (kernel->u.of_kernel.arguments[i].dirty) {
            kernel->u.of_kernel.arguments[i].dirty = false;
            kernel->u.of_kernel.dirty_count--;
        }
    }
}

void wh_cl_send_arguments(cl_kernel kernel)
{
    struct wh_cl_object *object = (struct wh_cl_object *)kernel;
    pthread_mutex_lock(&object->u.of_kernel.lock);
    for (uint32_t i = 0;
         object->u.of_kernel.dirty_count > 0 && i < object->u.of_kernel.argument_count; i++) {
        struct wh_cl_argument *argument = &object->u.of_kernel.arguments[i];
        struct wh_call call;
        if (!argument->dirty || wh_call_begin(&call, WH_OP_clSetKernelArg) != 0) {
            continue;
        }
        wh_put_u64(&call, object->handle);
        wh_put_u64(&call, i);
        wh_put_u64(&call, argument->sort);
        wh_put_u64(&call, argument->size);
        if (argument->sort == SORT_BYTES) {
            wh_put_blob(&call, bytes_of(argument), argument->size);
        } else {
            wh_put_blob(&call, &argument->handle, sizeof(argument->handle));
        }
        if (wh_cl_call_error(&call) == CL_SUCCESS) {
            argument->dirty = false;
            object->u.of_kernel.dirty_count--;
        }
    }
    pthread_mutex_unlock(&object->u.of_kernel.lock);
}

struct launch {
    uint16_t opcode;
    cl_command_type command;
    cl_uint dimensions;
    const size_t *offset;
    const size_t *global;
    const size_t *local;
    cl_uint wait_count;
    const cl_event *wait_list;
};

static uint64_t put_sizes(struct wh_call *call, const size_t *sizes, cl_uint dimensions,
                          uint64_t shape)
{
    for (cl_uint i = 0; i < dimensions; i++) {
        uint64_t value = sizes == NULL ? 0 : sizes[i];
        wh_put_u64(call, value);
        shape = wh_shape_add(shape, value);
    }
    return shape;
}

/* The kernel's lock is held: the arguments that travel are those of this launch. */
static cl_int send_launch(const struct launch *launch, const void *queue,
                          struct wh_cl_object *kernel, const struct wh_cl_object *event)
{
    struct wh_call call;
    uint64_t given = (launch->offset != NULL ? 1u : 0) | (launch->global != NULL ? 2u : 0) |
                     (launch->local != NULL ? 4u : 0);
    uint64_t shape = wh_shape(launch->opcode);
    if (wh_call_begin(&call, launch->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(queue));
    wh_put_u64(&call, kernel->handle);
    cl_int error = put_dirty(&call, kernel);
    if (error != CL_SUCCESS) {
        wh_call_end(&call);
        return error;
    }
    wh_put_u64(&call, launch->dimensions);
    wh_put_u64(&call, given);
    shape = wh_shape_add(shape, wh_cl_handle(queue));
    shape = wh_shape_add(shape, kernel->handle);
    shape = wh_shape_add(shape, kernel->u.of_kernel.foreign_count);
    shape = wh_shape_add(shape, (uint64_t)launch->dimensions << 8 | given);
    cl_uint sent = launch->dimensions <= DIMENSIONS_MAX ? launch->dimensions : 0;
    shape = put_sizes(&call, launch->offset, sent, shape);
    shape = put_sizes(&call, launch->global, sent, shape);
    shape = put_sizes(&call, launch->local, sent, shape);
    wh_cl_put_handles(&call, (const void *const *)launch->wait_list, launch->wait_count);
    wh_put_u64(&call, event == NULL ? 0 : event->handle);
    error = wh_cl_call_shape(&call, wh_shape_add(shape, event != NULL));
    if (error == CL_SUCCESS) {
        all_sent(kernel);
    }
    return error;
}

static cl_int enqueue(const struct launch *launch, cl_command_queue queue, cl_kernel kernel,
                      cl_event *event)
{
    struct wh_cl_object *object = wh_cl_get(kernel, WH_KIND_KERNEL);
    const struct wh_cl_object *where = wh_cl_get(queue, WH_KIND_QUEUE);
    if (where == NULL) {
        return CL_INVALID_COMMAND_QUEUE;
    }
    if (object == NULL) {
        return CL_INVALID_KERNEL;
    }
    if (where->context != object->context) {
        return CL_INVALID_CONTEXT;
    }
    cl_int error = wh_cl_check_waits(where, launch->wait_count, launch->wait_list);
    if (error != CL_SUCCESS) {
        return error;
    }
    error = wh_cl_take_async();
    if (error != CL_SUCCESS) {
        return error;
    }
    struct wh_cl_object *created = wh_cl_event_new(queue, launch->command, event != NULL);
    if (event != NULL && created == NULL) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_lock(&object->u.of_kernel.lock);
    error = send_launch(launch, queue, object, created);
    pthread_mutex_unlock(&object->u.of_kernel.lock);
    return wh_cl_enqueued(created, error, event);
}

cl_int CL_API_CALL wh_stub_clEnqueueNDRangeKernel(
    cl_command_queue command_queue, cl_kernel kernel, cl_uint work_dim,
    const size_t *global_work_offset, const size_t *global_work_size, const size_t *local_work_size,
    cl_uint num_events_in_wait_list, const cl_event *event_wait_list, cl_event *event)
{
    const struct launch launch = {
        .opcode = WH_OP_clEnqueueNDRangeKernel,
        .command = CL_COMMAND_NDRANGE_KERNEL,
        .dimensions = work_dim,
        .offset = global_work_offset,
        .global = global_work_size,
        .local = local_work_size,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    WH_API_CALL();
    return enqueue(&launch, command_queue, kernel, event);
}

cl_int CL_API_CALL wh_stub_clEnqueueTask(cl_command_queue command_queue, cl_kernel kernel,
                                         cl_uint num_events_in_wait_list,
                                         const cl_event *event_wait_list, cl_event *event)
{
    const size_t one = 1;
    const struct launch launch = {
        .opcode = WH_OP_clEnqueueTask,
        .command = CL_COMMAND_TASK,
        .dimensions = 1,
        .global = &one,
        .local = &one,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    WH_API_CALL();
    return enqueue(&launch, command_queue, kernel, event);
}
