/*
 * opencl_context.c - skeletons of platforms, devices, contexts and buffers.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "opencl_backend.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define PROPERTIES_MAX 64u    /* 8-byte items of a property list */
#define SUB_DEVICES_MAX 1024u /* made by one call */

int wh_skeleton_clGetPlatformIDs(struct wh_request *request)
{
    wh_cl_reply_error(request, WH_OP_clGetPlatformIDs, CL_SUCCESS);
    wh_reply_u64(request, 1);
    return 0;
}

int wh_skeleton_clGetDeviceIDs(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_device_id devices[WH_CL_DEVICES_MAX];
    cl_uint count = 0;
    size_t capacity = 0;
    uint64_t handle = wh_take_u64(request);
    cl_platform_id platform = wh_cl_object(request, handle, WH_KIND_PLATFORM, &error);
    cl_device_type type = wh_take_u64(request);
    uint64_t wanted = wh_take_u64(request);
    uint64_t *handles = wh_take_out(request, &capacity);
    if (wh_request_failed(request) || wanted > WH_CL_DEVICES_MAX ||
        (handles != NULL && capacity < wanted * sizeof(*handles))) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl->clGetDeviceIDs(platform, type, WH_CL_DEVICES_MAX, devices, &count);
    }
    count = error == CL_SUCCESS ? count : 0;
    size_t given = 0;
    for (cl_uint i = 0; handles != NULL && i < count && given < wanted; i++) {
        handles[given++] = wh_cl_device_handle(devices[i]);
    }
    wh_cl_reply_error(request, WH_OP_clGetDeviceIDs, error);
    wh_reply_u64(request, count);
    wh_reply_out(request, given * sizeof(*handles));
    return 0;
}

/* Gives the devices that were made their handles; those without one end again. */
static cl_int register_devices(struct wh_request *request, const uint64_t *handles,
                               cl_device_id *devices, cl_uint count)
{
    cl_int error = CL_SUCCESS;
    for (cl_uint i = 0; i < count && devices[i] != NULL; i++) {
        if (error == CL_SUCCESS) {
            error = wh_cl_register(request, handles[i], WH_KIND_DEVICE, devices[i], CL_SUCCESS);
        } else {
            wh_cl->clReleaseDevice(devices[i]);
        }
    }
    return error;
}

int wh_skeleton_clCreateSubDevices(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_uint count = 0;
    size_t properties_bytes = 0;
    size_t handles_bytes = 0;
    uint64_t handle = wh_take_u64(request);
    cl_device_id device = wh_cl_object(request, handle, WH_KIND_DEVICE, &error);
    const cl_device_partition_property *properties =
        wh_take_blob(request, &properties_bytes, SUB_DEVICES_MAX * 2 * sizeof(*properties));
    uint64_t wanted = wh_take_u64(request);
    bool devices_wanted = wh_take_u64(request) != 0;
    bool count_wanted = wh_take_u64(request) != 0;
    const uint64_t *handles =
        wh_take_blob(request, &handles_bytes, SUB_DEVICES_MAX * sizeof(*handles));
    size_t items = properties_bytes / sizeof(*properties);
    if (wh_request_failed(request) || wanted > UINT32_MAX ||
        (devices_wanted && handles_bytes != wanted * sizeof(*handles)) ||
        (properties != NULL &&
         (items < 2 || properties[items - 1] != 0 ||
          (properties[0] == CL_DEVICE_PARTITION_BY_COUNTS && properties[items - 2] != 0)))) {
        return -EBADMSG;
    }
    cl_device_id *devices =
        devices_wanted ? wh_scratch(request, (wanted + 1) * sizeof(*devices)) : NULL;
    if (devices_wanted && devices == NULL) {
        error = CL_OUT_OF_HOST_MEMORY;
    } else if (devices_wanted) {
        memset(devices, 0, (wanted + 1) * sizeof(*devices));
    }
    if (error == CL_SUCCESS) {
        error = wh_cl->clCreateSubDevices(device, properties, (cl_uint)wanted, devices,
                                          count_wanted || devices_wanted ? &count : NULL);
    }
    if (error == CL_SUCCESS && devices_wanted) {
        error = register_devices(request, handles, devices, (cl_uint)wanted);
    }
    wh_cl_reply_error(request, WH_OP_clCreateSubDevices, error);
    wh_reply_u64(request, error == CL_SUCCESS ? count : 0);
    return 0;
}

/* The client's property list with the real platform. NULL for none; a list that does not end fails
 * the request. */
static const cl_context_properties *take_properties(struct wh_request *request)
{
    size_t size_bytes = 0;
    const void *bytes = wh_take_blob(request, &size_bytes, PROPERTIES_MAX * sizeof(uint64_t));
    if (bytes == NULL) {
        return NULL;
    }
    if (!wh_cl_properties_end(bytes, size_bytes)) {
        request->failed = true;
        return NULL;
    }
    cl_context_properties *properties = wh_scratch(request, size_bytes);
    if (properties == NULL) {
        return NULL;
    }
    memcpy(properties, bytes, size_bytes);
    for (size_t i = 0; properties[i] != 0; i += 2) {
        if (properties[i] == CL_CONTEXT_PLATFORM) {
            properties[i + 1] = (cl_context_properties)wh_cl_devices.platform;
        } else if (properties[i] != CL_CONTEXT_INTEROP_USER_SYNC) {
            request->failed = true; /* the stub refuses others: they are pointers */
            return NULL;
        }
    }
    return properties;
}

/* The handle of a context's device: one of those it was made of, or a device of the platform. */
static uint64_t handle_of(cl_device_id device, cl_uint count, const cl_device_id *given,
                          const uint64_t *handles)
{
    for (cl_uint i = 0; i < count; i++) {
        if (given[i] == device) {
            return handles[i];
        }
    }
    return wh_cl_device_handle(device);
}

/* Registers a new context and says which devices it has. */
static int reply_context(struct wh_request *request, uint16_t opcode, cl_context context,
                         uint64_t created, cl_int error, cl_uint given_count,
                         const cl_device_id *given, const uint64_t *given_handles,
                         uint64_t *handles, size_t capacity)
{
    cl_device_id devices[WH_CL_DEVICES_MAX];
    size_t found_bytes = 0;
    if (error == CL_SUCCESS) {
        error = wh_cl->clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof(devices), devices,
                                        &found_bytes);
        if (error != CL_SUCCESS) {
            wh_cl->clReleaseContext(context);
        }
    }
    size_t count = error == CL_SUCCESS ? found_bytes / sizeof(devices[0]) : 0;
    count = count < capacity / sizeof(*handles) ? count : capacity / sizeof(*handles);
    for (size_t i = 0; i < count; i++) {
        handles[i] = handle_of(devices[i], given_count, given, given_handles);
    }
    error = wh_cl_register(request, created, WH_KIND_CONTEXT, context, error);
    wh_cl_reply_error(request, opcode, error);
    wh_reply_u64(request, count);
    wh_reply_out(request, count * sizeof(*handles));
    return 0;
}

int wh_skeleton_clCreateContext(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_uint count = 0;
    size_t capacity = 0;
    size_t handles_bytes = 0;
    cl_context context = NULL;
    const cl_context_properties *properties = take_properties(request);
    struct wh_request ahead = *request; /* the devices' handles, before they become devices */
    const uint64_t *given_handles = wh_take_blob(&ahead, &handles_bytes, WH_CL_BLOB_BYTES_MAX);
    const cl_device_id *devices = (void *)wh_cl_objects(request, WH_KIND_DEVICE, &count, &error);
    uint64_t notified = wh_take_u64(request);
    uint64_t created = wh_take_u64(request);
    uint64_t *handles = wh_take_out(request, &capacity);
    if (wh_request_failed(request) || handles == NULL) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        context = wh_cl->clCreateContext(properties, count, devices,
                                         wh_cl_context_notify(request, notified),
                                         (void *)(uintptr_t)notified, &error);
    }
    return reply_context(request, WH_OP_clCreateContext, context, created, error, count, devices,
                         given_handles, handles, capacity);
}

int wh_skeleton_clCreateContextFromType(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    size_t capacity = 0;
    const cl_context_properties *properties = take_properties(request);
    cl_device_type type = wh_take_u64(request);
    uint64_t notified = wh_take_u64(request);
    uint64_t created = wh_take_u64(request);
    uint64_t *handles = wh_take_out(request, &capacity);
    if (wh_request_failed(request) || handles == NULL) {
        return -EBADMSG;
    }
    cl_context context =
        wh_cl->clCreateContextFromType(properties, type, wh_cl_context_notify(request, notified),
                                       (void *)(uintptr_t)notified, &error);
    return reply_context(request, WH_OP_clCreateContextFromType, context, created, error, 0, NULL,
                         NULL, handles, capacity);
}

/* A buffer with a piece of its initial data; a later piece names the buffer by its handle. */
struct piece {
    cl_context context;
    const cl_mem_properties *properties;
    cl_mem_flags flags;
    size_t size;
    uint64_t created;
    size_t offset;
    const void *bytes;
    size_t piece_bytes;
    void
        *backing; /* the client's memory in which the buffer lies, with the initial data; or NULL */
    uint64_t backing_block;
};

/* Initial data that came in pieces is written with a queue of its own: the client may have none
 * yet. */
static cl_int write_piece(cl_context context, cl_mem buffer, const struct piece *piece)
{
    cl_device_id devices[WH_CL_DEVICES_MAX];
    cl_int error =
        wh_cl->clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof(devices), devices, NULL);
    if (error != CL_SUCCESS) {
        return error;
    }
    cl_command_queue queue = wh_cl->clCreateCommandQueue(context, devices[0], 0, &error);
    if (error != CL_SUCCESS) {
        return error;
    }
    error = wh_cl->clEnqueueWriteBuffer(queue, buffer, CL_TRUE, piece->offset, piece->piece_bytes,
                                        piece->bytes, 0, NULL, NULL);
    wh_cl->clReleaseCommandQueue(queue);
    return error;
}

static cl_int create(struct wh_request *request, const struct piece *piece, uint16_t opcode)
{
    cl_int error = CL_SUCCESS;
    cl_mem_flags flags = piece->flags;
    bool whole = piece->bytes == NULL || piece->piece_bytes == piece->size;
    void *host = whole ? (void *)piece->bytes : NULL;
    flags &= whole ? flags : ~(cl_mem_flags)CL_MEM_COPY_HOST_PTR;
    if (piece->backing != NULL) {
        host = piece->backing;
        flags &= ~(cl_mem_flags)(CL_MEM_COPY_HOST_PTR | CL_MEM_ALLOC_HOST_PTR);
        flags |= CL_MEM_USE_HOST_PTR;
    }
    cl_mem buffer = opcode == WH_OP_clCreateBuffer
                        ? wh_cl->clCreateBuffer(piece->context, flags, piece->size, host, &error)
                        : wh_cl->clCreateBufferWithProperties(piece->context, piece->properties,
                                                              flags, piece->size, host, &error);
    if (piece->backing != NULL) {
        return wh_cl_register_placed(request, piece->created, buffer, piece->backing_block, error);
    }
    if (error == CL_SUCCESS && !whole) {
        error = write_piece(piece->context, buffer, piece);
        if (error != CL_SUCCESS) {
            wh_cl->clReleaseMemObject(buffer);
        }
    }
    return wh_cl_register(request, piece->created, WH_KIND_MEM, buffer, error);
}

static int create_buffer(struct wh_request *request, uint16_t opcode)
{
    struct piece piece = {0};
    cl_int error = CL_SUCCESS;
    size_t properties_bytes = 0;
    uint64_t block = 0;
    uint64_t context = wh_take_u64(request);
    piece.context = wh_cl_object(request, context, WH_KIND_CONTEXT, &error);
    piece.properties = wh_take_blob(request, &properties_bytes, PROPERTIES_MAX * sizeof(uint64_t));
    piece.flags = wh_take_u64(request);
    piece.size = wh_take_u64(request);
    piece.created = wh_take_u64(request);
    piece.offset = wh_take_u64(request);
    piece.bytes = wh_take_bulk(request, &piece.piece_bytes, &block);
    piece.backing = wh_take_backing(request, piece.size, &piece.backing_block);
    if (wh_request_failed(request) || !wh_cl_properties_end(piece.properties, properties_bytes) ||
        (piece.flags & CL_MEM_USE_HOST_PTR) != 0 || piece.offset > piece.size ||
        piece.piece_bytes > piece.size - piece.offset ||
        (piece.backing != NULL && (piece.bytes != NULL || piece.offset != 0))) {
        return -EBADMSG;
    }
    if (error != CL_SUCCESS) {
        wh_bulk_done(request->session, piece.backing_block);
    } else if (piece.offset == 0) {
        error = create(request, &piece, opcode);
    } else {
        cl_mem buffer = wh_cl_object(request, piece.created, WH_KIND_MEM, &error);
        error = error == CL_SUCCESS ? write_piece(piece.context, buffer, &piece) : error;
    }
    wh_bulk_done(request->session, block);
    wh_cl_reply_error(request, opcode, error);
    return 0;
}

int wh_skeleton_clCreateBuffer(struct wh_request *request)
{
    return create_buffer(request, WH_OP_clCreateBuffer);
}

int wh_skeleton_clCreateBufferWithProperties(struct wh_request *request)
{
    return create_buffer(request, WH_OP_clCreateBufferWithProperties);
}
