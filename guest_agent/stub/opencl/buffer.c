/*
 * buffer.c - making buffers. Host memory is copied to the server: a pointer of the application
 * means nothing there. Where the device works in the host's memory, or the application asks for
 * memory of that kind, the buffer itself lies in memory that both sides see.
 */
#include "object.h"

#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define BACKED_BYTES_MIN 4096u /* a smaller buffer is not worth its two pages */

bool wh_cl_uses_host_memory(struct wh_cl_object *context)
{
    enum { UNKNOWN, NO, YES };
    uint32_t known = __atomic_load_n(&context->u.of_context.host_memory, __ATOMIC_RELAXED);
    if (known != UNKNOWN) {
        return known == YES;
    }
    cl_bool all = context->u.of_context.device_count > 0;
    for (uint32_t i = 0; all && i < context->u.of_context.device_count; i++) {
        const struct wh_cl_query query = {
            .opcode = WH_OP_clGetDeviceInfo,
            .kind = WH_KIND_DEVICE,
            .object = context->u.of_context.devices[i],
            .cache = WH_CL_CACHE_ALL,
            .param = CL_DEVICE_HOST_UNIFIED_MEMORY,
            .size = sizeof(all),
            .value = &all,
        };
        all = wh_cl_info(&query) == CL_SUCCESS && all;
    }
    __atomic_store_n(&context->u.of_context.host_memory, all ? YES : NO, __ATOMIC_RELAXED);
    return all;
}

bool wh_cl_may_share(cl_context context, cl_mem_flags flags)
{
    if ((flags & CL_MEM_USE_HOST_PTR) != 0 || !wh_uses_shm()) {
        return false;
    }
    return (flags & CL_MEM_ALLOC_HOST_PTR) != 0 ||
           wh_cl_uses_host_memory((struct wh_cl_object *)context);
}

bool wh_cl_share(struct wh_cl_object *mem, cl_mem_flags flags, size_t size, const void *host_ptr,
                 size_t host_bytes)
{
    struct wh_backing *backing = &mem->u.of_mem.backing;
    bool pinned = (flags & CL_MEM_ALLOC_HOST_PTR) != 0;
    if (size == 0 || (!pinned && size < BACKED_BYTES_MIN) || wh_backing_take(backing, size) != 0) {
        return false;
    }
    if (host_ptr != NULL) {
        uint64_t begun = wh_copy_begin();
        memcpy(backing->address, host_ptr, host_bytes);
        wh_copy_end(begun, WH_OP_clCreateBuffer);
    }
    mem->u.of_mem.shared = backing->address;
    return true;
}

/* The server must not take a pointer; what it may mean is kept here. */
static cl_mem_flags server_flags(cl_mem_flags flags)
{
    if ((flags & CL_MEM_USE_HOST_PTR) != 0) {
        flags = (flags & ~(cl_mem_flags)CL_MEM_USE_HOST_PTR) | CL_MEM_COPY_HOST_PTR;
    }
    return flags;
}

static cl_int check(cl_mem_flags flags, size_t size, const void *host_ptr)
{
    const cl_mem_flags needs = CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR;
    const cl_mem_flags known = 2 * CL_MEM_HOST_NO_ACCESS - 1;
    if ((flags & CL_MEM_USE_HOST_PTR) != 0 &&
        (flags & (CL_MEM_COPY_HOST_PTR | CL_MEM_ALLOC_HOST_PTR)) != 0) {
        return CL_INVALID_VALUE;
    }
    if (((flags & needs) != 0) != (host_ptr != NULL)) {
        return (flags & ~known) != 0 ? CL_INVALID_VALUE : CL_INVALID_HOST_PTR;
    }
    return size == 0 ? CL_INVALID_BUFFER_SIZE : CL_SUCCESS;
}

/* One piece of the initial data; the first (offset 0) makes the buffer. */
struct piece {
    size_t offset;
    size_t size;
};

static cl_int send_piece(uint16_t opcode, const struct wh_cl_object *object, cl_context context,
                         const cl_mem_properties *properties, cl_mem_flags flags, size_t size,
                         const void *host_ptr, struct piece piece)
{
    uint64_t backing = object->u.of_mem.backing.location;
    struct wh_call call;
    const uint8_t *bytes = host_ptr == NULL ? NULL : (const uint8_t *)host_ptr + piece.offset;
    if (wh_call_begin(&call, opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(context));
    wh_put_blob(&call, properties, wh_cl_properties_bytes(properties));
    wh_put_u64(&call, server_flags(flags));
    wh_put_u64(&call, size);
    wh_put_u64(&call, object->handle);
    wh_put_u64(&call, piece.offset);
    wh_put_blob(&call, bytes, piece.size);
    wh_put_u64(&call, backing);
    return wh_cl_call_error(&call);
}

static cl_int create(uint16_t opcode, const struct wh_cl_object *object, cl_context context,
                     const cl_mem_properties *properties, cl_mem_flags flags, size_t size,
                     const void *host_ptr)
{
    size_t limit = wh_bulk_limit();
    size_t left = host_ptr == NULL ? 0 : size;
    struct piece piece = {.offset = 0, .size = left < limit ? left : limit};
    cl_int error = send_piece(opcode, object, context, properties, flags, size, host_ptr, piece);
    while (error == CL_SUCCESS && left > piece.size) {
        left -= piece.size;
        piece.offset += piece.size;
        piece.size = left < limit ? left : limit;
        error = send_piece(opcode, object, context, properties, flags, size, host_ptr, piece);
    }
    return error;
}

static cl_mem create_buffer(uint16_t opcode, cl_context context,
                            const cl_mem_properties *properties, cl_mem_flags flags, size_t size,
                            void *host_ptr, cl_int *errcode_ret)
{
    if (!wh_cl_live(context, WH_KIND_CONTEXT)) {
        return wh_cl_created(NULL, CL_INVALID_CONTEXT, errcode_ret);
    }
    cl_int error = check(flags, size, host_ptr);
    struct wh_cl_object *object = error == CL_SUCCESS ? wh_cl_object_new(WH_KIND_MEM) : NULL;
    if (object == NULL) {
        error = error == CL_SUCCESS ? CL_OUT_OF_HOST_MEMORY : error;
        return wh_cl_created(NULL, error, errcode_ret);
    }
    bool shared =
        wh_cl_may_share(context, flags) && wh_cl_share(object, flags, size, host_ptr, size);
    error = create(opcode, object, context, properties, flags, size, shared ? NULL : host_ptr);
    if (error == CL_SUCCESS) {
        wh_cl_set_parent(object, (struct wh_cl_object *)context);
        object->u.of_mem.flags = flags;
        object->u.of_mem.size_bytes = size;
        object->u.of_mem.host = (flags & CL_MEM_USE_HOST_PTR) != 0 ? host_ptr : NULL;
    }
    return wh_cl_created(object, error, errcode_ret);
}

cl_mem CL_API_CALL wh_stub_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size,
                                          void *host_ptr, cl_int *errcode_ret)
{
    WH_API_CALL();
    return create_buffer(WH_OP_clCreateBuffer, context, NULL, flags, size, host_ptr, errcode_ret);
}

cl_mem CL_API_CALL wh_stub_clCreateBufferWithProperties(cl_context context,
                                                        const cl_mem_properties *properties,
                                                        cl_mem_flags flags, size_t size,
                                                        void *host_ptr, cl_int *errcode_ret)
{
    WH_API_CALL();
    return create_buffer(WH_OP_clCreateBufferWithProperties, context, properties, flags, size,
                         host_ptr, errcode_ret);
}
