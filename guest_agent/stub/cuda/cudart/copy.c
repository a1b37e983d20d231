/*
 * copy.c - copies and fills, by where their ends lie.
 *
 * Device memory and pinned memory have the same addresses on both sides, so such copies are one
 * message. Bytes of the client's own memory are taken at the call, in as many messages as needed;
 * a copy into it waits, as it does natively.
 */
#include "cudart.h"

#include <stdlib.h>

#include "fork_lock.h"

#define BOUNCE_BYTES (4u << 20)
#define BOUNCE_COUNT 4u
/* What the device writes lies in a small part of the processor's cache, and not for long. */
#define BOUNCE_OUT_BYTES (1u << 20)
#define HALVES_LEAST_BYTES (1u << 20) /* of a part */
#define HALVES_WHOLE_BYTES (16u << 20)
/* So much of pageable memory the library takes at once; for more it waits until the stream is
 * there, and so must whoever sends it: a one-way call that blocks would hold up every other thread.
 */
#define STAGED_BYTES (64u << 10)

enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

struct rectangle {
    char *dst;
    size_t dst_pitch;
    const char *src;
    size_t src_pitch;
    size_t width;
    size_t height;
    void *stream;
};

bool wh_is_client_memory(const void *pointer)
{
    struct wh_cuda_range range;
    return !wh_cuda_range_find(pointer, &range) || range.memory == WH_CUDA_REGISTERED;
}

static bool is_pinned(const void *pointer)
{
    struct wh_cuda_range range;
    return wh_cuda_range_find(pointer, &range) && range.memory == WH_CUDA_PINNED;
}

/* Rows that one message can carry, of `left`; wide ones travel in parts, *width at most. */
static size_t rows_of(const struct rectangle *area, size_t left, size_t *width)
{
    size_t limit = wh_bulk_limit();
    if (limit == 0) {
        return 0;
    }
    *width = area->width < limit ? area->width : limit;
    size_t rows = limit / *width;
    return rows < left ? rows : left;
}

static void gather(char *to, const struct rectangle *area, size_t row, size_t rows, size_t column,
                   size_t width)
{
    for (size_t i = 0; i < rows; i++) {
        memcpy(to + i * width, area->src + (row + i) * area->src_pitch + column, width);
    }
}

static int put_in(const struct rectangle *area, size_t row, size_t rows, size_t column,
                  size_t width, bool waits)
{
    struct wh_call call;
    waits = waits || rows * width > STAGED_BYTES;
    const char *from = area->src + row * area->src_pitch + column;
    char *packed = NULL;
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcCopyIn);
    if (status != 0) {
        return status;
    }
    if (rows > 1 && area->src_pitch != width) {
        packed = malloc(rows * width);
        if (packed == NULL) {
            wh_call_end(&call);
            return WH_CUDA_MEMORY_ALLOCATION;
        }
        gather(packed, area, row, rows, column, width);
        from = packed;
    }
    if (waits) {
        wh_call_blocks(&call);
    }
    wh_put_u64(&call, (uint64_t)(uintptr_t)(area->dst + row * area->dst_pitch + column));
    wh_put_u64(&call, area->dst_pitch);
    wh_put_u64(&call, width);
    wh_put_u64(&call, rows);
    wh_put_u64(&call, wh_cuda_stream(area->stream));
    wh_put_bulk(&call, from, rows * width);
    if (waits) {
        status = wh_cuda_call(&call, &wh_cudart_api);
        wh_call_end(&call);
    } else {
        status = wh_cuda_send(&call, &wh_cudart_api);
    }
    free(packed);
    return status;
}

static int take_out(const struct rectangle *area, size_t row, size_t rows, size_t column,
                    size_t width)
{
    struct wh_call call;
    char *to = area->dst + row * area->dst_pitch + column;
    char *packed = rows > 1 && area->dst_pitch != width ? malloc(rows * width) : to;
    int status = packed == NULL ? WH_CUDA_MEMORY_ALLOCATION
                                : wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcCopyOut);
    if (status == 0) {
        wh_call_blocks(&call);
        wh_put_u64(&call, (uint64_t)(uintptr_t)(area->src + row * area->src_pitch + column));
        wh_put_u64(&call, area->src_pitch);
        wh_put_u64(&call, width);
        wh_put_u64(&call, rows);
        wh_put_u64(&call, wh_cuda_stream(area->stream));
        wh_put_out(&call, rows * width, true);
        status = wh_cuda_call(&call, &wh_cudart_api);
        if (status == 0) {
            (void)wh_get_out(&call, packed, rows * width);
        }
        wh_call_end(&call);
        if (status == 0) {
            wh_stream_settled(area->stream);
        }
    }
    for (size_t i = 0; status == 0 && packed != to && i < rows; i++) {
        memcpy(to + i * area->dst_pitch, packed + i * width, width);
    }
    if (packed != to) {
        free(packed);
    }
    return status;
}

/* Between the client's own memory and the device's, in as many messages as needed. */
static int through_messages(const struct rectangle *area, bool in, bool waits)
{
    int status = 0;
    for (size_t row = 0; row < area->height && status == 0;) {
        size_t width = 0;
        size_t rows = rows_of(area, area->height - row, &width);
        if (rows == 0) {
            return wh_cudart_api.lost;
        }
        for (size_t column = 0; column < area->width && status == 0; column += width) {
            size_t part = area->width - column < width ? area->width - column : width;
            status = in ? put_in(area, row, rows, column, part, waits)
                        : take_out(area, row, rows, column, part);
        }
        row += rows;
    }
    return status;
}

/*
 * Large copies of the client's own memory go through a few pinned buffers in turn: while the device
 * reads or writes one of them in place, this side fills or empties another.
 */
WH_FORK_LOCK(bounce_lock);
static struct {
    char *bytes;
    cudaEvent_t free; /* recorded behind the last copy */
    bool pending;
    uint32_t serial;
} bounces[BOUNCE_COUNT];
static uint32_t next_bounce;

static int in_place(const struct rectangle *area, int kind, bool waits);

/* With the lock held. False: there is no memory that both sides know by one address, or no room. */
static bool have_bounces(void)
{
    for (uint32_t i = 0; i < BOUNCE_COUNT; i++) {
        if (bounces[i].serial != 0 && bounces[i].serial == wh_cuda_session()) {
            continue;
        }
        void *bytes = NULL;
        if (!wh_cuda_shares_addresses() || cudaHostAlloc(&bytes, BOUNCE_BYTES, 0) != 0) {
            return false;
        }
        if (!is_pinned(bytes) || cudaEventCreateWithFlags(&bounces[i].free, 2) != 0) {
            (void)cudaFreeHost(bytes);
            return false;
        }
        bounces[i].bytes = bytes;
        bounces[i].serial = wh_cuda_session();
    }
    return true;
}

static int bounce(const struct rectangle *area, uint32_t which, size_t at, size_t size_bytes,
                  bool in)
{
    const struct rectangle part = {
        .dst = in ? area->dst + at : bounces[which].bytes,
        .src = in ? bounces[which].bytes : area->src + at,
        .width = size_bytes,
        .height = 1,
        .stream = area->stream,
    };
    int status = in_place(&part, in ? HOST_TO_DEVICE : DEVICE_TO_HOST, false);
    bounces[which].pending = true;
    return status != 0 ? status : cudaEventRecord(bounces[which].free, area->stream);
}

static int await_bounce(uint32_t which)
{
    int status = bounces[which].pending ? cudaEventSynchronize(bounces[which].free) : 0;
    bounces[which].pending = false;
    return status;
}

/* With the lock held. */
static void copy_bytes(void *dst, const void *src, size_t size_bytes, bool by_halves, bool streams)
{
    uint64_t begun = wh_copy_begin();
    if (by_halves && size_bytes >= HALVES_LEAST_BYTES) {
        wh_halves_copy(dst, src, size_bytes, streams);
    } else {
        wh_copy_bytes(dst, src, size_bytes, streams);
    }
    wh_copy_end(begun, WH_OP_cudaMemcpyAsync);
}

static size_t part_of(const struct rectangle *area, size_t at, size_t most)
{
    return area->width - at < most ? area->width - at : most;
}

static int bounce_in(const struct rectangle *area)
{
    int status = 0;
    bool by_halves = area->width >= HALVES_WHOLE_BYTES && wh_halves_begin();
    for (size_t at = 0; at < area->width && status == 0; at += BOUNCE_BYTES) {
        uint32_t which = next_bounce++ % BOUNCE_COUNT;
        status = await_bounce(which);
        if (status == 0) {
            size_t part = part_of(area, at, BOUNCE_BYTES);
            copy_bytes(bounces[which].bytes, area->src + at, part, by_halves, false);
            wh_count_bytes(part, 0);
            status = bounce(area, which, at, part, true);
        }
    }
    return status;
}

static int bounce_out(const struct rectangle *area)
{
    int status = 0;
    bool large = area->width >= HALVES_WHOLE_BYTES;
    bool by_halves = large && wh_halves_begin();
    size_t asked = 0;
    /* A copy into a buffer that another stream still reads would overwrite what that is to have. */
    for (uint32_t i = 0; i < BOUNCE_COUNT && status == 0; i++) {
        status = await_bounce(i);
    }
    for (size_t at = 0; at < area->width && status == 0; at += BOUNCE_OUT_BYTES) {
        uint32_t which = (uint32_t)(at / BOUNCE_OUT_BYTES % BOUNCE_COUNT);
        while (status == 0 && asked < area->width &&
               asked < at + (size_t)BOUNCE_OUT_BYTES * BOUNCE_COUNT) {
            uint32_t next = (uint32_t)(asked / BOUNCE_OUT_BYTES % BOUNCE_COUNT);
            status = bounce(area, next, asked, part_of(area, asked, BOUNCE_OUT_BYTES), false);
            asked += BOUNCE_OUT_BYTES;
        }
        status = status != 0 ? status : await_bounce(which);
        if (status == 0) {
            size_t part = part_of(area, at, BOUNCE_OUT_BYTES);
            copy_bytes(area->dst + at, bounces[which].bytes, part, by_halves, large);
            wh_count_bytes(0, part);
        }
    }
    return status;
}

/* False: to be done by messages. The device's end is known, so only the device can fail. */
static bool through_bounces(const struct rectangle *area, bool in, int *status)
{
    if (area->height != 1 || area->width <= STAGED_BYTES) {
        return false;
    }
    /* Who holds them may wait for what another thread is about to copy. */
    if (pthread_mutex_trylock(&bounce_lock) != 0) {
        return false;
    }
    bool possible = have_bounces();
    if (possible) {
        *status = in ? bounce_in(area) : bounce_out(area);
    }
    pthread_mutex_unlock(&bounce_lock);
    return possible;
}

/* Both ends have one address on both sides. */
static int in_place(const struct rectangle *area, int kind, bool waits)
{
    struct wh_call call;
    bool line = area->height == 1;
    uint16_t opcode = line ? WH_OP_cudaMemcpyAsync : WH_OP_cudaMemcpy2DAsync;
    int status = wh_cuda_begin(&call, &wh_cudart_api, opcode);
    if (status != 0) {
        return status;
    }
    wh_put_u64(&call, (uint64_t)(uintptr_t)area->dst);
    if (!line) {
        wh_put_u64(&call, area->dst_pitch);
    }
    wh_put_u64(&call, (uint64_t)(uintptr_t)area->src);
    if (!line) {
        wh_put_u64(&call, area->src_pitch);
    }
    wh_put_u64(&call, area->width);
    if (!line) {
        wh_put_u64(&call, area->height);
    }
    wh_put_u64(&call, (uint64_t)kind);
    wh_put_u64(&call, wh_cuda_stream(area->stream));
    if (!waits) {
        return wh_cuda_send(&call, &wh_cudart_api);
    }
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    return status;
}

static size_t extent(size_t pitch, const struct rectangle *area)
{
    return pitch * (area->height - 1) + area->width;
}

static int in_client(const struct rectangle *area)
{
    int status = cudaStreamSynchronize(area->stream);
    for (size_t row = 0; status == 0 && row < area->height; row++) {
        memmove(area->dst + row * area->dst_pitch, area->src + row * area->src_pitch, area->width);
    }
    return status;
}

/* The rows as a copy of the runtime's has them; one slice. */
static struct wh_cuda_copy one_slice(const struct rectangle *area)
{
    return (struct wh_cuda_copy){
        .src = {(void *)(uintptr_t)area->src, area->src_pitch, area->width, area->height},
        .dst = {area->dst, area->dst_pitch, area->width, area->height},
        .extent = {area->width, area->height, 1},
        .kind = BY_ADDRESS,
    };
}

/* In a stream that is captured: each launch of the graph takes the bytes that are there then. */
static int into_graph(const struct rectangle *area, bool from_client)
{
    const struct wh_cuda_copy whole = one_slice(area);
    struct wh_mover *mover = wh_mover_new(&whole, !from_client);
    if (mover == NULL) {
        return WH_CUDA_CAPTURE_UNSUPPORTED;
    }
    struct rectangle part = *area;
    if (from_client) {
        part.src = wh_mover_bytes(mover);
        part.src_pitch = area->width;
    } else {
        part.dst = wh_mover_bytes(mover);
        part.dst_pitch = area->width;
    }
    int status = from_client ? 0 : in_place(&part, DEVICE_TO_HOST, true);
    if (status == 0) {
        status = wh_host_function_enqueue(area->stream, wh_mover_run, mover, wh_mover_end);
        if (status != 0 && !from_client) {
            return status; /* the graph has the pinned memory's address: nobody else may get it */
        }
    }
    if (status != 0) {
        wh_mover_end(mover);
        return status;
    }
    return from_client ? in_place(&part, HOST_TO_DEVICE, true) : 0;
}

static int copy(const struct rectangle *area, int kind, bool sync)
{
    if (area->width == 0 || area->height == 0) {
        return 0;
    }
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS) {
        return WH_CUDA_INVALID_DIRECTION;
    }
    if (area->height > 1 && (area->dst_pitch < area->width || area->src_pitch < area->width)) {
        return 12; /* invalid pitch */
    }
    if (!wh_cuda_stream_live(area->stream)) {
        return WH_CUDA_INVALID_HANDLE;
    }
    bool from_client = wh_is_client_memory(area->src);
    bool to_client = wh_is_client_memory(area->dst);
    bool known = wh_cuda_is_shared(from_client ? area->dst : area->src,
                                   extent(from_client ? area->dst_pitch : area->src_pitch, area));
    if (from_client && to_client) {
        if (kind == HOST_TO_HOST || kind == BY_ADDRESS) {
            return in_client(area);
        }
        /* One of them should be the device's: the real library says what it is. */
        from_client = kind == HOST_TO_DEVICE;
        to_client = kind == DEVICE_TO_HOST;
        known = false;
    }
    if ((from_client || to_client) && !sync && wh_stream_captures(area->stream)) {
        return into_graph(area, from_client);
    }
    bool right_kind = kind == BY_ADDRESS || kind == (from_client ? HOST_TO_DEVICE : DEVICE_TO_HOST);
    if (known && right_kind && (from_client || to_client)) {
        int status = 0;
        if (through_bounces(area, from_client, &status)) {
            return status;
        }
    }
    if (from_client) {
        return kind == DEVICE_TO_DEVICE || kind == DEVICE_TO_HOST
                   ? WH_CUDA_INVALID_VALUE
                   : through_messages(area, true, !known);
    }
    if (to_client) {
        return kind == DEVICE_TO_DEVICE || kind == HOST_TO_DEVICE
                   ? WH_CUDA_INVALID_VALUE
                   : through_messages(area, false, true);
    }
    known = known && wh_cuda_is_shared(area->dst, extent(area->dst_pitch, area));
    int status = in_place(area, kind, !known);
    if (status == 0 && sync && (is_pinned(area->src) || is_pinned(area->dst))) {
        status = cudaStreamSynchronize(area->stream);
    }
    return status;
}

int wh_copy(void *dst, const void *src, size_t count, int kind, void *stream, bool sync)
{
    const struct rectangle area = {dst, count, src, count, count, 1, stream};
    return copy(&area, kind, sync);
}

WH_EXPORT cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, int kind)
{
    WH_API_CALL();
    return wh_cuda_done(&wh_cudart_api, wh_copy(dst, src, count, kind, NULL, true));
}

WH_EXPORT cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, int kind,
                                      cudaStream_t stream)
{
    WH_API_CALL();
    return wh_cuda_done(&wh_cudart_api, wh_copy(dst, src, count, kind, stream, false));
}

WH_EXPORT cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch,
                                   size_t width, size_t height, int kind)
{
    WH_API_CALL();
    const struct rectangle area = {dst, dpitch, src, spitch, width, height, NULL};
    return wh_cuda_done(&wh_cudart_api, copy(&area, kind, true));
}

WH_EXPORT cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                        size_t width, size_t height, int kind, cudaStream_t stream)
{
    WH_API_CALL();
    const struct rectangle area = {dst, dpitch, src, spitch, width, height, stream};
    return wh_cuda_done(&wh_cudart_api, copy(&area, kind, false));
}

/* Slice by slice; those that lie one behind the other are one rectangle. */
static int copy_slices(const struct wh_cuda_copy *what, void *stream, bool sync)
{
    static int said;
    if (what == NULL) {
        return WH_CUDA_INVALID_VALUE;
    }
    if (what->src_array != NULL || what->dst_array != NULL) {
        return wh_cuda_unsupported(&wh_cudart_api, "a copy of an array", &said);
    }
    const struct wh_cuda_extent *extent = &what->extent;
    struct rectangle slice = {wh_cuda_first_byte(&what->dst, &what->dst_at),
                              what->dst.pitch,
                              wh_cuda_first_byte(&what->src, &what->src_at),
                              what->src.pitch,
                              extent->width,
                              extent->height,
                              stream};
    if (extent->depth > 1 &&
        (what->dst.height < extent->height || what->src.height < extent->height)) {
        return WH_CUDA_INVALID_VALUE;
    }
    size_t slices = extent->depth;
    if (slices > 1 && what->dst.height == extent->height && what->src.height == extent->height) {
        if (__builtin_mul_overflow(extent->height, slices, &slice.height)) {
            return WH_CUDA_INVALID_VALUE;
        }
        slices = 1;
    }
    int status = 0;
    for (size_t i = 0; i < slices && status == 0; i++) {
        status = copy(&slice, what->kind, sync);
        slice.dst += what->dst.pitch * what->dst.height;
        slice.src += what->src.pitch * what->src.height;
    }
    return status;
}

WH_EXPORT cudaError_t cudaMemcpy3D(const struct wh_cuda_copy *what)
{
    WH_API_CALL();
    return wh_cuda_done(&wh_cudart_api, copy_slices(what, NULL, true));
}

WH_EXPORT cudaError_t cudaMemcpy3DAsync(const struct wh_cuda_copy *what, cudaStream_t stream)
{
    WH_API_CALL();
    return wh_cuda_done(&wh_cudart_api, copy_slices(what, stream, false));
}

static int fill_slices(const struct wh_cuda_pitched *pitched, int value,
                       const struct wh_cuda_extent *extent, void *stream, bool sync)
{
    char *slice = pitched->pointer;
    size_t rows = extent->height;
    size_t slices = extent->depth;
    if (extent->depth > 1 && pitched->height < extent->height) {
        return WH_CUDA_INVALID_VALUE;
    }
    if (slices > 1 && pitched->height == rows) {
        if (__builtin_mul_overflow(rows, slices, &rows)) {
            return WH_CUDA_INVALID_VALUE;
        }
        slices = 1;
    }
    int status = 0;
    for (size_t i = 0; i < slices && status == 0; i++) {
        status = sync
                     ? cudaMemset2D(slice, pitched->pitch, value, extent->width, rows)
                     : cudaMemset2DAsync(slice, pitched->pitch, value, extent->width, rows, stream);
        slice += pitched->pitch * pitched->height;
    }
    return status;
}

WH_EXPORT cudaError_t cudaMemset3D(struct wh_cuda_pitched pitched, int value,
                                   struct wh_cuda_extent extent)
{
    WH_API_CALL();
    return wh_cuda_done(&wh_cudart_api, fill_slices(&pitched, value, &extent, NULL, true));
}

WH_EXPORT cudaError_t cudaMemset3DAsync(struct wh_cuda_pitched pitched, int value,
                                        struct wh_cuda_extent extent, cudaStream_t stream)
{
    WH_API_CALL();
    return wh_cuda_done(&wh_cudart_api, fill_slices(&pitched, value, &extent, stream, false));
}

static int copy_symbol(const void *symbol, size_t count, size_t offset, char **address)
{
    void *base = NULL;
    size_t size_bytes = 0;
    int status = wh_variable_get(symbol, &base, &size_bytes);
    if (status == 0 && (offset > size_bytes || count > size_bytes - offset)) {
        status = WH_CUDA_INVALID_VALUE;
    }
    *address = (char *)base + offset;
    return status;
}

WH_EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *src, size_t count,
                                              size_t offset, int kind, cudaStream_t stream)
{
    WH_API_CALL();
    char *address = NULL;
    int status = copy_symbol(symbol, count, offset, &address);
    status = status != 0 ? status : wh_copy(address, src, count, kind, stream, false);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaMemcpyFromSymbolAsync(void *dst, const void *symbol, size_t count,
                                                size_t offset, int kind, cudaStream_t stream)
{
    WH_API_CALL();
    char *address = NULL;
    int status = copy_symbol(symbol, count, offset, &address);
    status = status != 0 ? status : wh_copy(dst, address, count, kind, stream, false);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *src, size_t count,
                                         size_t offset, int kind)
{
    WH_API_CALL();
    char *address = NULL;
    int status = copy_symbol(symbol, count, offset, &address);
    status = status != 0 ? status : wh_copy(address, src, count, kind, NULL, true);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaMemcpyFromSymbol(void *dst, const void *symbol, size_t count,
                                           size_t offset, int kind)
{
    WH_API_CALL();
    char *address = NULL;
    int status = copy_symbol(symbol, count, offset, &address);
    status = status != 0 ? status : wh_copy(dst, address, count, kind, NULL, true);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaMemsetAsync(void *pointer, int value, size_t count, cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_call call;
    if (!wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_HANDLE);
    }
    bool known = wh_cuda_is_shared(pointer, count);
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaMemsetAsync);
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, (uint64_t)(uintptr_t)pointer);
    wh_put_u64(&call, (uint64_t)value);
    wh_put_u64(&call, count);
    wh_put_u64(&call, wh_cuda_stream(stream));
    if (known) {
        return wh_cuda_done(&wh_cudart_api, wh_cuda_send(&call, &wh_cudart_api));
    }
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    return wh_cuda_done(&wh_cudart_api, status);
}
