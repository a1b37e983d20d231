/*
 * cuda_memory.c - copies between the client's own memory and the device's, and pinned memory.
 *
 * The client maps the session's memory a second time, at the address that it has here: what it
 * allocates as pinned is then the same pointer for both sides and for the device.
 */
#include <errno.h>

#include "cuda_backend.h"
#include "times.h"
#include "wh_cudart.h"
#include "wh_wire.h"

enum {
    INVALID_VALUE = 1,
    INVALID_HANDLE = 400,
    NOT_SUPPORTED = 801,
    HOST_TO_DEVICE = 1,
    DEVICE_TO_HOST = 2
};

#define TEXT_BYTES 256u

/* cudaMemPoolProps, as far as it is looked at here. */
struct pool_properties {
    int32_t allocation;
    int32_t handle_types;
    int32_t location;
    int32_t device;
    uint64_t security_attributes;
    uint8_t others[64];
};
_Static_assert(sizeof(struct pool_properties) == 88, "cudaMemPoolProps has 88 bytes");

enum { POOL_PINNED = 1, POOL_ON_DEVICE = 1 };

int wh_skeleton_whcOpen(struct wh_request *request);
int wh_skeleton_whcPin(struct wh_request *request);
int wh_skeleton_whcUnpin(struct wh_request *request);
int wh_skeleton_whcCopyIn(struct wh_request *request);
int wh_skeleton_whcCopyOut(struct wh_request *request);
int wh_skeleton_whcErrorText(struct wh_request *request);
int wh_skeleton_cudaMemPoolCreate(struct wh_request *request);

int wh_skeleton_whcOpen(struct wh_request *request)
{
    size_t size_bytes = 0;
    (void)wh_take_u64(request); /* no device is needed yet */
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t *base = wh_take_out(request, &size_bytes);
    if (wh_request_failed(request) || base == NULL || size_bytes < sizeof(*base)) {
        return -EBADMSG;
    }
    /* 0 where there is no memory that both sides see. */
    *base = (uint64_t)(uintptr_t)request->session->base;
    wh_cuda_reply(request, WH_OP_whcOpen, real == NULL ? NOT_SUPPORTED : 0, 0);
    wh_reply_out(request, sizeof(*base));
    return 0;
}

bool wh_cuda_in_arena(const struct wh_session *session, uint64_t address, uint64_t size_bytes)
{
    uint64_t arena = (uint64_t)(uintptr_t)session->arena;
    return arena != 0 && address >= arena && size_bytes > 0 &&
           address - arena < session->arena_bytes &&
           size_bytes <= session->arena_bytes - (address - arena);
}

int wh_skeleton_whcPin(struct wh_request *request)
{
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t address = wh_take_u64(request);
    uint64_t size_bytes = wh_take_u64(request);
    unsigned flags = (unsigned)wh_take_u64(request);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaHostRegister == NULL) {
        status = NOT_SUPPORTED;
    } else if (wh_cuda_in_arena(request->session, address, size_bytes)) {
        uint64_t begin_ticks = wh_times_enter();
        /* Flags of an allocation; portable and mapped mean the same for a registration. */
        status =
            (uint64_t)real->cudaHostRegister((void *)(uintptr_t)address, size_bytes, flags & 3u);
        wh_times_leave(begin_ticks, WH_TIMES_BACKEND);
    }
    wh_cuda_reply(request, WH_OP_whcPin, status, 0);
    return 0;
}

int wh_skeleton_whcUnpin(struct wh_request *request)
{
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t address = wh_take_u64(request);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaHostUnregister == NULL) {
        status = NOT_SUPPORTED;
    } else if (wh_cuda_in_arena(request->session, address, 1)) {
        wh_block_begin(request->session);
        status = (uint64_t)real->cudaHostUnregister((void *)(uintptr_t)address);
        wh_block_end(request->session);
    }
    wh_cuda_reply(request, WH_OP_whcUnpin, status, 0);
    return 0;
}

/* Whether rows of this size are so many bytes; nothing overflows. */
static bool is_area(uint64_t pitch, uint64_t width, uint64_t height, uint64_t size_bytes)
{
    uint64_t bytes = 0;
    return width > 0 && height > 0 && !__builtin_mul_overflow(width, height, &bytes) &&
           bytes == size_bytes && (height == 1 || pitch >= width);
}

int wh_skeleton_whcCopyIn(struct wh_request *request)
{
    bool valid = true;
    uint64_t block = 0;
    size_t size_bytes = 0;
    uint64_t status = INVALID_HANDLE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    void *dst = (void *)(uintptr_t)wh_take_u64(request);
    uint64_t pitch = wh_take_u64(request);
    uint64_t width = wh_take_u64(request);
    uint64_t height = wh_take_u64(request);
    void *stream = wh_cuda_stream_object(request, wh_take_u64(request), &valid);
    const void *bytes = wh_take_bulk(request, &size_bytes, &block);
    if (wh_request_failed(request) || bytes == NULL || !is_area(pitch, width, height, size_bytes)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaMemcpyAsync == NULL || real->cudaMemcpy2DAsync == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        /* Who sends much waits for it; one way comes only what the library takes at once. */
        if (!request->oneway) {
            wh_block_begin(request->session);
        }
        uint64_t begin_ticks = wh_times_enter();
        /* From memory that is not pinned: the library has taken the bytes when it returns. */
        status = height == 1
                     ? (uint64_t)real->cudaMemcpyAsync(dst, bytes, width, HOST_TO_DEVICE, stream)
                     : (uint64_t)real->cudaMemcpy2DAsync(dst, pitch, bytes, width, width, height,
                                                         HOST_TO_DEVICE, stream);
        wh_times_leave(begin_ticks, WH_TIMES_COPY);
        if (!request->oneway) {
            wh_block_end(request->session);
        }
    }
    wh_bulk_done(request->session, block);
    wh_cuda_reply(request, WH_OP_whcCopyIn, status, 0);
    return 0;
}

int wh_skeleton_whcCopyOut(struct wh_request *request)
{
    bool valid = true;
    size_t size_bytes = 0;
    uint64_t status = INVALID_HANDLE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    const void *src = (const void *)(uintptr_t)wh_take_u64(request);
    uint64_t pitch = wh_take_u64(request);
    uint64_t width = wh_take_u64(request);
    uint64_t height = wh_take_u64(request);
    void *stream = wh_cuda_stream_object(request, wh_take_u64(request), &valid);
    void *bytes = wh_take_out(request, &size_bytes);
    if (wh_request_failed(request) || bytes == NULL || !is_area(pitch, width, height, size_bytes)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaMemcpyAsync == NULL || real->cudaMemcpy2DAsync == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        wh_block_begin(request->session);
        uint64_t begin_ticks = wh_times_enter();
        status = height == 1
                     ? (uint64_t)real->cudaMemcpyAsync(bytes, src, width, DEVICE_TO_HOST, stream)
                     : (uint64_t)real->cudaMemcpy2DAsync(bytes, width, src, pitch, width, height,
                                                         DEVICE_TO_HOST, stream);
        if (status == 0) {
            status = (uint64_t)real->cudaStreamSynchronize(stream);
        }
        wh_times_leave(begin_ticks, WH_TIMES_KERNEL);
        wh_block_end(request->session);
    }
    wh_cuda_reply(request, WH_OP_whcCopyOut, status, 0);
    wh_reply_out(request, status == 0 ? size_bytes : 0);
    return 0;
}

static size_t copy_text(char *to, size_t size_bytes, const char *text)
{
    size_t length = text == NULL || size_bytes == 0 ? 0 : strnlen(text, size_bytes - 1) + 1;
    if (length > 0) {
        memcpy(to, text, length - 1);
        to[length - 1] = '\0';
    }
    return length;
}

int wh_skeleton_whcErrorText(struct wh_request *request)
{
    size_t name_bytes = 0;
    size_t text_bytes = 0;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    int error = (int)wh_take_u64(request);
    char *name = wh_take_out(request, &name_bytes);
    char *text = wh_take_out(request, &text_bytes);
    if (wh_request_failed(request) || name == NULL || text == NULL || name_bytes > TEXT_BYTES ||
        text_bytes > TEXT_BYTES) {
        return -EBADMSG;
    }
    bool there = real != NULL && real->cudaGetErrorName != NULL && real->cudaGetErrorString != NULL;
    wh_cuda_reply(request, WH_OP_whcErrorText, there ? 0 : NOT_SUPPORTED, 0);
    wh_reply_out(request, there ? copy_text(name, name_bytes, real->cudaGetErrorName(error)) : 0);
    wh_reply_out(request, there ? copy_text(text, text_bytes, real->cudaGetErrorString(error)) : 0);
    return 0;
}

/*
 * A pool may lie in the host's memory, where nothing would bound it: only those of a device are
 * made, without handles to share.
 */
int wh_skeleton_cudaMemPoolCreate(struct wh_request *request)
{
    size_t size_bytes = 0;
    struct pool_properties properties;
    cudaMemPool_t pool = NULL;
    uint64_t status = NOT_SUPPORTED;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t handle = wh_take_u64(request);
    const void *given = wh_take_blob(request, &size_bytes, WH_CUDA_BLOB_BYTES_MAX);
    if (wh_request_failed(request) || (given != NULL && size_bytes < sizeof(properties))) {
        return -EBADMSG;
    }
    if (given == NULL) {
        status = INVALID_VALUE;
    } else if (real != NULL && real->cudaMemPoolCreate != NULL) {
        memcpy(&properties, given, sizeof(properties));
        if (properties.allocation == POOL_PINNED && properties.handle_types == 0 &&
            properties.location == POOL_ON_DEVICE && properties.security_attributes == 0) {
            uint64_t begin_ticks = wh_times_enter();
            status = (uint64_t)real->cudaMemPoolCreate(&pool, &properties);
            wh_times_leave(begin_ticks, WH_TIMES_BACKEND);
        }
    }
    if (status == 0 && wh_handle_put(request->session, handle, WH_KIND_MEM_POOL, pool) != 0) {
        (void)real->cudaMemPoolDestroy(pool);
        status = INVALID_HANDLE;
    }
    wh_cuda_reply(request, WH_OP_cudaMemPoolCreate, status, 0);
    return 0;
}
