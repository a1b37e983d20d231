/*
 * handles.c - numbers of objects, chosen here and checked by the worker: kind << 56 | generation <<
 * 32 | index.
 */
#include "cuda.h"

#include <stdlib.h>

#include "fork_lock.h"
#include "wh_wire.h"

#define GENERATION_MASK 0xffffffu
#define CHUNK 1024u

struct entry {
    uint64_t handle; /* 0: free */
    uint32_t generation;
    uint32_t next; /* free list */
};

WH_FORK_LOCK(handle_lock);
static struct entry *chunks[WH_HANDLE_INDEX_MAX / CHUNK];
static uint32_t used = CHUNK; /* the first ones are OpenCL's devices, where a worker has both */
static uint32_t first_free;

static struct entry *entry_of(uint32_t index)
{
    struct entry *chunk = __atomic_load_n(&chunks[index / CHUNK], __ATOMIC_ACQUIRE);
    return chunk == NULL ? NULL : &chunk[index % CHUNK];
}

static uint32_t take_index(void)
{
    if (first_free != 0) {
        uint32_t index = first_free;
        first_free = entry_of(index)->next;
        return index;
    }
    if (used == WH_HANDLE_INDEX_MAX) {
        return 0;
    }
    if (chunks[used / CHUNK] == NULL) {
        struct entry *chunk = calloc(CHUNK, sizeof(*chunk));
        if (chunk == NULL) {
            return 0;
        }
        __atomic_store_n(&chunks[used / CHUNK], chunk, __ATOMIC_RELEASE);
    }
    return used++;
}

uint64_t wh_cuda_handle_new(uint8_t kind)
{
    uint64_t handle = 0;
    pthread_mutex_lock(&handle_lock);
    uint32_t index = take_index();
    if (index != 0) {
        struct entry *entry = entry_of(index);
        entry->generation = (entry->generation + 1) & GENERATION_MASK;
        entry->generation += entry->generation == 0;
        handle = (uint64_t)kind << 56 | (uint64_t)entry->generation << 32 | index;
        __atomic_store_n(&entry->handle, handle, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&handle_lock);
    return handle;
}

void wh_cuda_handle_end(uint64_t handle)
{
    uint32_t index = (uint32_t)handle;
    pthread_mutex_lock(&handle_lock);
    struct entry *entry = index < CHUNK || index >= used ? NULL : entry_of(index);
    if (entry != NULL && entry->handle == handle) {
        __atomic_store_n(&entry->handle, 0, __ATOMIC_RELEASE);
        entry->next = first_free;
        first_free = index;
    }
    pthread_mutex_unlock(&handle_lock);
}

bool wh_cuda_handle_is_live(uint64_t handle, uint8_t kind)
{
    uint32_t index = (uint32_t)handle;
    if (handle == 0 || handle >> 56 != kind || index >= WH_HANDLE_INDEX_MAX) {
        return false;
    }
    const struct entry *entry = entry_of(index);
    return entry != NULL && __atomic_load_n(&entry->handle, __ATOMIC_ACQUIRE) == handle;
}
