/*
 * memory.c - device memory, pinned memory, and what is known of pointers.
 *
 * Pinned memory lies in the arena, where the device reads and writes it in place, and has one
 * address on both sides. Where that cannot be (TCP, no room) it is the client's own memory: copies
 * of it are complete when they return, kernels cannot reach it.
 */
#define _GNU_SOURCE

#include "cudart.h"

#include <stdlib.h>

#include "fork_lock.h"

#define POOLED_DEVICES_MAX 64
#define PLACES_MAX 8 /* tries for an address that is free here, too */
#define PIN_ALIGN 4096u
#define REGISTER_FLAGS 0xfu

static int allocate_once(size_t size, void **pointer)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaMalloc);
    if (status != 0) {
        return status;
    }
    wh_put_out(&call, sizeof(*pointer), true);
    wh_put_u64(&call, size);
    status = wh_cuda_call(&call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(&call, pointer, sizeof(*pointer));
    }
    wh_call_end(&call);
    return status;
}

static int free_once(void *pointer)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaFree);
    if (status != 0) {
        return status;
    }
    wh_call_blocks(&call);
    wh_put_u64(&call, (uint64_t)(uintptr_t)pointer);
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    return status;
}

static void keep(void *pointer, size_t size)
{
    struct wh_cuda_range range = {.base = (uintptr_t)pointer,
                                  .size_bytes = size,
                                  .memory = WH_CUDA_DEVICE,
                                  .device = wh_cuda_thread()->device};
    if (pointer != NULL) {
        (void)wh_cuda_range_add(&range);
    }
}

WH_EXPORT cudaError_t cudaMalloc(void **pointer, size_t size)
{
    WH_API_CALL();
    void *refused[PLACES_MAX];
    int count = 0;
    int status = WH_CUDA_INVALID_VALUE;
    bool reserved = false;
    if (pointer == NULL) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    do {
        status = allocate_once(size, pointer);
        reserved = status == 0 && (*pointer == NULL || wh_cuda_reserve(*pointer, size));
        if (status == 0 && !reserved && count < PLACES_MAX) {
            refused[count++] = *pointer;
        }
    } while (status == 0 && !reserved && count < PLACES_MAX);
    if (status == 0 && !reserved) {
        /* The last one is used all the same: ranges that are known decide where it points. */
        wh_cuda_say("device memory at %p lies where this process has memory of its own", *pointer);
        count--;
    }
    for (int i = 0; i < count; i++) {
        (void)free_once(refused[i]);
    }
    if (status == 0) {
        keep(*pointer, size);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaFree(void *pointer)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    int status = free_once(pointer);
    if (status == 0 && pointer != NULL) {
        (void)wh_cuda_range_remove(pointer, &range);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    WH_API_CALL();
    struct wh_call call;
    if (pointer == NULL || pitch == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaMallocPitch);
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_out(&call, sizeof(*pointer), true);
    wh_put_out(&call, sizeof(*pitch), true);
    wh_put_u64(&call, width);
    wh_put_u64(&call, height);
    status = wh_cuda_call(&call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(&call, pointer, sizeof(*pointer));
        (void)wh_get_out(&call, pitch, sizeof(*pitch));
    }
    wh_call_end(&call);
    if (status == 0) {
        (void)wh_cuda_reserve(*pointer, *pitch * height);
        keep(*pointer, *pitch * height);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

/* Makes a call whose only result is new memory. */
static cudaError_t allocate(struct wh_call *call, void **pointer, size_t size)
{
    int status = wh_cuda_call(call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(call, pointer, sizeof(*pointer));
    }
    wh_call_end(call);
    if (status == 0) {
        (void)wh_cuda_reserve(*pointer, size);
        keep(*pointer, size);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_call call;
    if (pointer == NULL || !wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api,
                            pointer == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_HANDLE);
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaMallocAsync);
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_out(&call, sizeof(*pointer), true);
    wh_put_u64(&call, size);
    wh_put_u64(&call, wh_cuda_stream(stream));
    return allocate(&call, pointer, size);
}

WH_EXPORT cudaError_t cudaMalloc3D(struct wh_cuda_pitched *pitched, struct wh_cuda_extent extent)
{
    WH_API_CALL();
    size_t rows = 0;
    if (pitched == NULL || __builtin_mul_overflow(extent.height, extent.depth, &rows)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    int status = cudaMallocPitch(&pitched->pointer, &pitched->pitch, extent.width, rows);
    if (status == 0) {
        pitched->width = extent.width;
        pitched->height = extent.height;
    }
    return status;
}

/* Pools. */

static cudaMemPool_t default_pools[POOLED_DEVICES_MAX];
static cudaMemPool_t current_pools[POOLED_DEVICES_MAX]; /* NULL: the default one */
static uint32_t pools_serial;
WH_FORK_LOCK(pool_lock);

/* With the lock held. The default pool has one handle, however often it is asked for. */
static int default_pool(int device, cudaMemPool_t *pool)
{
    struct wh_call call;
    if (pools_serial != wh_cuda_session()) {
        memset(default_pools, 0, sizeof(default_pools));
        memset(current_pools, 0, sizeof(current_pools));
        pools_serial = wh_cuda_session();
    }
    if (default_pools[device] != NULL) {
        *pool = default_pools[device];
        return 0;
    }
    uint64_t handle = wh_cuda_handle_new(WH_KIND_MEM_POOL);
    int status = handle == 0
                     ? WH_CUDA_MEMORY_ALLOCATION
                     : wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaDeviceGetDefaultMemPool);
    if (status == 0) {
        wh_put_u64(&call, handle);
        wh_put_u64(&call, (uint64_t)device);
        status = wh_cuda_call(&call, &wh_cudart_api);
        wh_call_end(&call);
    }
    if (status != 0) {
        wh_cuda_handle_end(handle);
        return status;
    }
    pools_serial = wh_cuda_session();
    default_pools[device] = (cudaMemPool_t)(void *)(uintptr_t)handle;
    *pool = default_pools[device];
    return 0;
}

static int pool_of(cudaMemPool_t *pool, int device, bool current)
{
    if (pool == NULL || device < 0 || device >= POOLED_DEVICES_MAX) {
        return pool == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_DEVICE;
    }
    pthread_mutex_lock(&pool_lock);
    int status = default_pool(device, pool);
    if (status == 0 && current && current_pools[device] != NULL) {
        *pool = current_pools[device];
    }
    pthread_mutex_unlock(&pool_lock);
    return status;
}

WH_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    WH_API_CALL();
    return wh_cuda_done(&wh_cudart_api, pool_of(pool, device, false));
}

WH_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    WH_API_CALL();
    return wh_cuda_done(&wh_cudart_api, pool_of(pool, device, true));
}

WH_EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
    WH_API_CALL();
    struct wh_call call;
    cudaMemPool_t usual = NULL;
    int status = wh_cuda_handle_live(pool, WH_KIND_MEM_POOL) ? pool_of(&usual, device, false)
                                                             : WH_CUDA_INVALID_VALUE;
    if (status == 0) {
        status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaDeviceSetMemPool);
    }
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, (uint64_t)device);
    wh_put_u64(&call, (uint64_t)(uintptr_t)pool);
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    if (status == 0) {
        pthread_mutex_lock(&pool_lock);
        current_pools[device] = pool;
        pthread_mutex_unlock(&pool_lock);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t size, cudaMemPool_t pool,
                                              cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_call call;
    if (pointer == NULL || !wh_cuda_handle_live(pool, WH_KIND_MEM_POOL) ||
        !wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaMallocFromPoolAsync);
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_out(&call, sizeof(*pointer), true);
    wh_put_u64(&call, size);
    wh_put_u64(&call, (uint64_t)(uintptr_t)pool);
    wh_put_u64(&call, wh_cuda_stream(stream));
    return allocate(&call, pointer, size);
}

WH_EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_call call;
    struct wh_cuda_range range;
    if (!wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_HANDLE);
    }
    bool known = wh_cuda_range_find(pointer, &range) && range.base == (uintptr_t)pointer;
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaFreeAsync);
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, (uint64_t)(uintptr_t)pointer);
    wh_put_u64(&call, wh_cuda_stream(stream));
    if (known) {
        (void)wh_cuda_range_remove(pointer, &range);
        return wh_cuda_done(&wh_cudart_api, wh_cuda_send(&call, &wh_cudart_api));
    }
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    return wh_cuda_done(&wh_cudart_api, status);
}

/* Pinned memory. */

static int pin(struct wh_cuda_range *range)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcPin);
    if (status != 0) {
        return status;
    }
    wh_put_u64(&call, range->base);
    wh_put_u64(&call, range->size_bytes);
    wh_put_u64(&call, range->flags);
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    return status;
}

static bool in_arena(struct wh_cuda_range *range)
{
    if (!wh_cuda_shares_addresses() || wh_backing_take(&range->backing, range->size_bytes) != 0) {
        return false;
    }
    range->base = (uintptr_t)wh_cuda_shared_address(range->backing.address);
    range->memory = WH_CUDA_PINNED;
    if (pin(range) != 0) {
        wh_backing_free(&range->backing, false);
        return false;
    }
    return true;
}

WH_EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    WH_API_CALL();
    if (pointer == NULL || size == 0 || (flags & ~7u) != 0) {
        if (pointer != NULL && size == 0 && (flags & ~7u) == 0) {
            *pointer = NULL;
            return 0;
        }
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    struct wh_cuda_range range = {
        .size_bytes = size, .flags = flags, .device = wh_cuda_thread()->device};
    if (!in_arena(&range)) {
        void *own = NULL;
        if (wh_cuda_session() == 0) {
            return wh_cuda_done(&wh_cudart_api, wh_cudart_api.lost);
        }
        if (posix_memalign(&own, PIN_ALIGN, size) != 0) {
            return wh_cuda_done(&wh_cudart_api, WH_CUDA_MEMORY_ALLOCATION);
        }
        range.base = (uintptr_t)own;
        range.memory = WH_CUDA_REGISTERED;
        range.owned = true;
    }
    if (!wh_cuda_range_add(&range)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_MEMORY_ALLOCATION);
    }
    *pointer = (void *)range.base;
    return 0;
}

WH_EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size)
{
    return cudaHostAlloc(pointer, size, 0);
}

WH_EXPORT cudaError_t cudaFreeHost(void *pointer)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    struct wh_call call;
    if (pointer == NULL) {
        return 0;
    }
    if (!wh_cuda_range_find(pointer, &range) || range.base != (uintptr_t)pointer ||
        !(range.memory == WH_CUDA_PINNED || range.owned)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    (void)wh_cuda_range_remove(pointer, &range);
    if (range.owned) {
        free(pointer);
        return 0;
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcUnpin);
    if (status == 0) {
        wh_call_blocks(&call);
        wh_put_u64(&call, range.base);
        status = wh_cuda_call(&call, &wh_cudart_api);
        wh_call_end(&call);
    }
    wh_backing_free(&range.backing, false);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned int flags)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    if (pointer == NULL || size == 0 || (flags & ~REGISTER_FLAGS) != 0) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    if (wh_cuda_range_find(pointer, &range) ||
        wh_cuda_range_find((char *)pointer + size - 1, &range)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_ALREADY_REGISTERED);
    }
    range = (struct wh_cuda_range){.base = (uintptr_t)pointer,
                                   .size_bytes = size,
                                   .memory = WH_CUDA_REGISTERED,
                                   .flags = flags,
                                   .device = wh_cuda_thread()->device};
    return wh_cuda_done(&wh_cudart_api, wh_cuda_range_add(&range) ? 0 : WH_CUDA_MEMORY_ALLOCATION);
}

WH_EXPORT cudaError_t cudaHostUnregister(void *pointer)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    if (pointer == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    if (!wh_cuda_range_find(pointer, &range) || range.base != (uintptr_t)pointer ||
        range.memory != WH_CUDA_REGISTERED || range.owned) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_NOT_REGISTERED);
    }
    (void)wh_cuda_range_remove(pointer, &range);
    return 0;
}

WH_EXPORT cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *pointer,
                                               unsigned int flags)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    if (device_pointer == NULL || flags != 0 || !wh_cuda_range_find(pointer, &range) ||
        range.memory == WH_CUDA_DEVICE) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    if (range.memory != WH_CUDA_PINNED) {
        static int said;
        return wh_cuda_unsupported(&wh_cudart_api,
                                   "the device's view of memory that is not in the arena", &said);
    }
    *device_pointer = pointer;
    return 0;
}

WH_EXPORT cudaError_t cudaHostGetFlags(unsigned int *flags, void *pointer)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    if (flags == NULL || !wh_cuda_range_find(pointer, &range) || range.memory == WH_CUDA_DEVICE) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    *flags = range.flags;
    return 0;
}

WH_EXPORT cudaError_t cudaPointerGetAttributes(struct wh_cuda_pointer *attributes,
                                               const void *pointer)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    if (attributes == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    memset(attributes, 0, sizeof(*attributes));
    if (!wh_cuda_range_find(pointer, &range)) {
        attributes->device = -2;
        attributes->host_pointer = (void *)(uintptr_t)pointer;
        return 0;
    }
    attributes->type = range.memory == WH_CUDA_DEVICE ? 2 : 1;
    attributes->device = range.device;
    if (range.memory != WH_CUDA_REGISTERED) {
        attributes->device_pointer = (void *)(uintptr_t)pointer;
    }
    if (range.memory != WH_CUDA_DEVICE) {
        attributes->host_pointer = (void *)(uintptr_t)pointer;
    }
    return 0;
}

/* The device context is the session's; what the process has in it ends. */
WH_EXPORT cudaError_t cudaDeviceReset(void)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    int status = cudaDeviceSynchronize();
    while (status == 0 && wh_cuda_range_any(&range)) {
        (void)free_once((void *)range.base);
        (void)wh_cuda_range_remove((void *)range.base, &range);
    }
    if (status == 0) {
        wh_cuda_primary_end(wh_cuda_thread()->device);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}
