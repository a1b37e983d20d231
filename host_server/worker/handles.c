/*
 * handles.c - the handle table: client-chosen names for the backend's objects.
 *
 * A handle is kind << 56 | generation << 32 | index. The entry keeps the whole handle, so one
 * compare checks kind, generation and liveness. Chunks of entries appear as indices are used and
 * stay, so a look-up takes no lock.
 *
 * References are counted here as well as in the backend: an object that the table names is one that
 * the table holds, however often a client says that it releases it.
 */
#include <errno.h>
#include <stdlib.h>

#include "session.h"

#define WH_CHUNK_ENTRIES 1024u
#define WH_CHUNK_COUNT (WH_HANDLE_INDEX_MAX / WH_CHUNK_ENTRIES)

struct entry {
    uint64_t handle; /* 0: free; stored last on creation, first on removal */
    void *object;
    uint32_t references; /* the client's; 0: only its children still name the object */
};

struct wh_handle_table {
    pthread_mutex_t lock; /* creation and removal */
    struct entry *chunks[WH_CHUNK_COUNT];
};

struct wh_handle_table *wh_handle_table_create(void)
{
    struct wh_handle_table *table = calloc(1, sizeof(*table));
    if (table != NULL) {
        pthread_mutex_init(&table->lock, NULL);
    }
    return table;
}

void wh_handle_table_destroy(struct wh_handle_table *table)
{
    if (table == NULL) {
        return;
    }
    for (size_t i = 0; i < WH_CHUNK_COUNT; i++) {
        free(table->chunks[i]);
    }
    pthread_mutex_destroy(&table->lock);
    free(table);
}

static uint32_t index_of(uint64_t handle)
{
    return (uint32_t)handle;
}

static uint8_t kind_of(uint64_t handle)
{
    return (uint8_t)(handle >> 56);
}

static struct entry *find(struct wh_handle_table *table, uint64_t handle, uint8_t kind)
{
    uint32_t index = index_of(handle);
    if (kind == 0 || kind_of(handle) != kind || index >= WH_HANDLE_INDEX_MAX) {
        return NULL;
    }
    /* Pairs with the release store in wh_handle_put: a chunk is seen zeroed. */
    struct entry *chunk =
        __atomic_load_n(&table->chunks[index / WH_CHUNK_ENTRIES], __ATOMIC_ACQUIRE);
    return chunk == NULL ? NULL : &chunk[index % WH_CHUNK_ENTRIES];
}

void *wh_handle_get(struct wh_session *session, uint64_t handle, uint8_t kind, bool *valid)
{
    if (handle == 0) {
        *valid = true;
        return NULL;
    }
    const struct entry *entry = find(session->handles, handle, kind);
    *valid = entry != NULL && wh_load_acquire64(&entry->handle) == handle;
    return *valid ? __atomic_load_n(&entry->object, __ATOMIC_RELAXED) : NULL;
}

uint64_t wh_handle_of(struct wh_session *session, uint8_t kind, const void *object)
{
    struct wh_handle_table *table = session->handles;
    uint64_t handle = 0;
    pthread_mutex_lock(&table->lock);
    for (size_t i = 0; i < WH_CHUNK_COUNT && handle == 0; i++) {
        const struct entry *chunk = table->chunks[i];
        for (size_t j = 0; chunk != NULL && j < WH_CHUNK_ENTRIES && handle == 0; j++) {
            handle =
                kind_of(chunk[j].handle) == kind && chunk[j].object == object ? chunk[j].handle : 0;
        }
    }
    pthread_mutex_unlock(&table->lock);
    return handle;
}

int wh_handle_put(struct wh_session *session, uint64_t handle, uint8_t kind, void *object)
{
    struct wh_handle_table *table = session->handles;
    uint32_t index = index_of(handle);
    if (kind == 0 || kind_of(handle) != kind || index >= WH_HANDLE_INDEX_MAX) {
        return -EINVAL;
    }
    int error = 0;
    pthread_mutex_lock(&table->lock);
    struct entry **chunk = &table->chunks[index / WH_CHUNK_ENTRIES];
    if (*chunk == NULL) {
        __atomic_store_n(chunk, calloc(WH_CHUNK_ENTRIES, sizeof(**chunk)), __ATOMIC_RELEASE);
    }
    if (*chunk == NULL) {
        error = -ENOSPC;
    } else if ((*chunk)[index % WH_CHUNK_ENTRIES].handle != 0) {
        error = -EEXIST;
    } else {
        struct entry *entry = &(*chunk)[index % WH_CHUNK_ENTRIES];
        __atomic_store_n(&entry->object, object, __ATOMIC_RELAXED);
        entry->references = 1;
        wh_store_release64(&entry->handle, handle);
    }
    pthread_mutex_unlock(&table->lock);
    return error;
}

void *wh_handle_remove(struct wh_session *session, uint64_t handle, uint8_t kind)
{
    void *object = NULL;
    pthread_mutex_lock(&session->handles->lock);
    struct entry *entry = handle == 0 ? NULL : find(session->handles, handle, kind);
    if (entry != NULL && entry->handle == handle) {
        object = entry->object;
        wh_store_release64(&entry->handle, 0);
    }
    pthread_mutex_unlock(&session->handles->lock);
    return object;
}

int wh_handle_hold(struct wh_session *session, uint64_t handle, uint8_t kind)
{
    int error = -ENOENT;
    pthread_mutex_lock(&session->handles->lock);
    struct entry *entry = handle == 0 ? NULL : find(session->handles, handle, kind);
    if (entry != NULL && entry->handle == handle) {
        error = entry->references == UINT32_MAX ? -ENOSPC : 0;
        entry->references += error == 0;
    }
    pthread_mutex_unlock(&session->handles->lock);
    return error;
}

int wh_handle_let_go(struct wh_session *session, uint64_t handle, uint8_t kind, bool last)
{
    int result = -ENOENT;
    pthread_mutex_lock(&session->handles->lock);
    struct entry *entry = handle == 0 ? NULL : find(session->handles, handle, kind);
    if (entry != NULL && entry->handle == handle && last) {
        wh_store_release64(&entry->handle, 0);
        result = 1;
    } else if (entry != NULL && entry->handle == handle && entry->references > 0) {
        entry->references--;
        result = entry->references > 0;
    }
    pthread_mutex_unlock(&session->handles->lock);
    return result;
}
