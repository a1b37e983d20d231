/*
 * ranges.c - what the client knows of memory: the device's, pinned memory, all else is its own.
 *
 * Device pointers are the worker's. Their ranges are reserved here, so that nothing of the client's
 * can have such an address: a pointer alone then says where it points.
 */
#define _GNU_SOURCE

#include "cuda.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "fork_lock.h"

#define CHUNK_BYTES (2ull << 20)

/* Sorted by base; they do not overlap. */
WH_FORK_LOCK(range_lock);
static struct wh_cuda_range *ranges;
static size_t count;
static size_t capacity;

/* Chunks of address space that are reserved, sorted. */
static uintptr_t *reserved;
static size_t reserved_count;
static size_t reserved_capacity;

/* Index of the first range that begins behind the address. */
static size_t behind(uintptr_t address)
{
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool wh_cuda_range_add(const struct wh_cuda_range *range)
{
    bool added = true;
    pthread_mutex_lock(&range_lock);
    if (count == capacity) {
        size_t larger = capacity == 0 ? 256 : capacity * 2;
        struct wh_cuda_range *grown = realloc(ranges, larger * sizeof(*grown));
        added = grown != NULL;
        ranges = added ? grown : ranges;
        capacity = added ? larger : capacity;
    }
    if (added) {
        size_t at = behind(range->base);
        memmove(&ranges[at + 1], &ranges[at], (count - at) * sizeof(*ranges));
        ranges[at] = *range;
        count++;
    }
    pthread_mutex_unlock(&range_lock);
    return added;
}

bool wh_cuda_range_remove(const void *base, struct wh_cuda_range *removed)
{
    bool found = false;
    pthread_mutex_lock(&range_lock);
    size_t at = behind((uintptr_t)base);
    if (at > 0 && ranges[at - 1].base == (uintptr_t)base) {
        *removed = ranges[at - 1];
        memmove(&ranges[at - 1], &ranges[at], (count - at) * sizeof(*ranges));
        count--;
        found = true;
    }
    pthread_mutex_unlock(&range_lock);
    return found;
}

bool wh_cuda_range_find(const void *address, struct wh_cuda_range *found)
{
    bool inside = false;
    pthread_mutex_lock(&range_lock);
    size_t at = behind((uintptr_t)address);
    if (at > 0 && (uintptr_t)address - ranges[at - 1].base < ranges[at - 1].size_bytes) {
        *found = ranges[at - 1];
        inside = true;
    }
    pthread_mutex_unlock(&range_lock);
    return inside;
}

bool wh_cuda_range_any(struct wh_cuda_range *found)
{
    bool any = false;
    pthread_mutex_lock(&range_lock);
    for (size_t i = 0; i < count && !any; i++) {
        any = ranges[i].memory == WH_CUDA_DEVICE && ranges[i].flags == 0;
        *found = ranges[i];
    }
    pthread_mutex_unlock(&range_lock);
    return any;
}

bool wh_cuda_is_shared(const void *pointer, size_t size_bytes)
{
    struct wh_cuda_range range;
    return wh_cuda_range_find(pointer, &range) &&
           (range.memory == WH_CUDA_DEVICE || range.memory == WH_CUDA_PINNED) &&
           size_bytes <= range.size_bytes - ((uintptr_t)pointer - range.base);
}

static size_t reserved_place(uintptr_t chunk)
{
    size_t low = 0;
    size_t high = reserved_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (reserved[middle] < chunk) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool reserve_chunk(uintptr_t chunk)
{
    size_t at = reserved_place(chunk);
    if (at < reserved_count && reserved[at] == chunk) {
        return true;
    }
    if (reserved_count == reserved_capacity) {
        size_t larger = reserved_capacity == 0 ? 1024 : reserved_capacity * 2;
        uintptr_t *grown = realloc(reserved, larger * sizeof(*grown));
        if (grown == NULL) {
            return false;
        }
        reserved = grown;
        reserved_capacity = larger;
    }
    void *wanted = (void *)(chunk * CHUNK_BYTES);
    void *got = mmap(wanted, CHUNK_BYTES, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted) {
        if (got != MAP_FAILED) {
            munmap(got, CHUNK_BYTES);
        }
        return false;
    }
    memmove(&reserved[at + 1], &reserved[at], (reserved_count - at) * sizeof(*reserved));
    reserved[at] = chunk;
    reserved_count++;
    return true;
}

/* Address space is never given back: the device's allocator comes to the same places again. */
bool wh_cuda_reserve(const void *base, size_t size_bytes)
{
    bool all = true;
    pthread_mutex_lock(&range_lock);
    uintptr_t first = (uintptr_t)base / CHUNK_BYTES;
    uintptr_t last = ((uintptr_t)base + (size_bytes > 0 ? size_bytes - 1 : 0)) / CHUNK_BYTES;
    for (uintptr_t chunk = first; chunk <= last && all; chunk++) {
        all = reserve_chunk(chunk);
    }
    pthread_mutex_unlock(&range_lock);
    return all;
}
