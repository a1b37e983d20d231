/*
 * content.c - descriptors that are only values.
 */
#include "content.h"

#include <stdlib.h>

#include "answers.h"
#include "wh_codec.h"

#define ENTRY_HEADER_BYTES 8u
#define FIRST_BYTES 256u

struct wh_content *wh_content_of(const void *descriptor, uint32_t kind)
{
    struct wh_content *content = (struct wh_content *)(uintptr_t)descriptor;
    if (content == NULL || content->magic != WH_CONTENT_MAGIC || content->kind != kind) {
        return NULL;
    }
    return content;
}

int wh_content_make(const struct wh_cuda_api *api, uint32_t kind, void **descriptor)
{
    if (descriptor == NULL) {
        return wh_cuda_done(api, api->invalid);
    }
    struct wh_content *content = calloc(1, sizeof(*content));
    if (content == NULL) {
        return wh_cuda_done(api, api->memory);
    }
    content->magic = WH_CONTENT_MAGIC;
    content->kind = kind;
    content->type = -1;
    content->hash = kind;
    *descriptor = content;
    return wh_cuda_answered(api, api->success);
}

int wh_content_drop(const struct wh_cuda_api *api, uint32_t kind, void *descriptor)
{
    struct wh_content *content = wh_content_of(descriptor, kind);
    if (content == NULL) {
        /* As the real library: NULL is nothing to destroy. */
        return descriptor == NULL ? api->success : wh_cuda_done(api, api->invalid);
    }
    content->magic = 0;
    free(content->bytes);
    free(content);
    return wh_cuda_answered(api, api->success);
}

int wh_content_type(const void *descriptor)
{
    const struct wh_content *content = descriptor;
    return content == NULL || content->magic != WH_CONTENT_MAGIC ? -1 : content->type;
}

uint64_t wh_content_hash(const void *descriptor)
{
    const struct wh_content *content = descriptor;
    return content == NULL || content->magic != WH_CONTENT_MAGIC ? 0 : content->hash;
}

void wh_content_put(struct wh_call *call, const void *descriptor, uint32_t kind)
{
    const struct wh_content *content = wh_content_of(descriptor, kind);
    if (content == NULL) {
        /* NULL, or nothing that the library could know: it answers as for NULL. */
        wh_put_blob(call, NULL, 0);
        return;
    }
    /* Without entries there is still a descriptor. */
    wh_put_blob(call, content->bytes != NULL ? content->bytes : (const uint8_t *)"",
                content->size_bytes);
}

static void add(struct wh_entry *entry, const void *bytes, size_t size_bytes)
{
    size_t padded_bytes = wh_align(size_bytes, WH_ITEM_BYTES);
    size_t needed_bytes = entry->size_bytes + padded_bytes;
    if (entry->failed || padded_bytes < size_bytes || needed_bytes > WH_CONTENT_BYTES_MAX) {
        entry->failed = true;
        return;
    }
    if (needed_bytes > entry->capacity_bytes) {
        size_t capacity_bytes = needed_bytes < FIRST_BYTES ? FIRST_BYTES : needed_bytes * 2;
        uint8_t *larger = realloc(entry->bytes, capacity_bytes);
        if (larger == NULL) {
            entry->failed = true;
            return;
        }
        entry->bytes = larger;
        entry->capacity_bytes = capacity_bytes;
    }
    memset(entry->bytes + needed_bytes - (padded_bytes > 0 ? WH_ITEM_BYTES : 0), 0,
           padded_bytes > 0 ? WH_ITEM_BYTES : 0);
    if (size_bytes > 0) {
        memcpy(entry->bytes + entry->size_bytes, bytes, size_bytes);
    }
    entry->size_bytes = needed_bytes;
}

void wh_entry_begin(struct wh_entry *entry, void *descriptor, uint32_t kind, uint16_t opcode)
{
    const uint32_t header[2] = {opcode, 0};
    memset(entry, 0, sizeof(*entry));
    entry->content = wh_content_of(descriptor, kind);
    entry->opcode = opcode;
    entry->type = -1;
    add(entry, header, sizeof(header));
}

void wh_entry_u64(struct wh_entry *entry, uint64_t value)
{
    add(entry, &value, sizeof(value));
}

void wh_entry_blob(struct wh_entry *entry, const void *bytes, size_t size_bytes)
{
    wh_entry_u64(entry, bytes != NULL ? size_bytes : 0);
    wh_entry_u64(entry, bytes != NULL ? WH_INLINE : WH_NULL);
    if (bytes != NULL) {
        add(entry, bytes, size_bytes);
    }
}

void wh_entry_content(struct wh_entry *entry, const void *descriptor, uint32_t kind)
{
    const struct wh_content *content = wh_content_of(descriptor, kind);
    if (content == NULL) {
        wh_entry_blob(entry, NULL, 0);
        return;
    }
    wh_entry_blob(entry, content->bytes != NULL ? content->bytes : (const uint8_t *)"",
                  content->size_bytes);
}

void wh_entry_type(struct wh_entry *entry, int type)
{
    entry->type = type;
}

static uint64_t hash_of(uint32_t kind, const uint8_t *bytes, size_t size_bytes)
{
    uint64_t hash = wh_shape_add(0x5bd1e995, kind);
    for (size_t at = 0; at + WH_ITEM_BYTES <= size_bytes; at += WH_ITEM_BYTES) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, sizeof(word));
        hash = wh_shape_add(hash, word);
    }
    return hash;
}

/* Size of the entry that begins there, header included; 0 at the end. */
static size_t entry_bytes(const uint8_t *bytes, size_t room_bytes)
{
    uint32_t header[2];
    if (room_bytes < sizeof(header)) {
        return 0;
    }
    memcpy(header, bytes, sizeof(header));
    return sizeof(header) + header[1];
}

static uint16_t opcode_at(const uint8_t *bytes)
{
    uint32_t opcode = 0;
    memcpy(&opcode, bytes, sizeof(opcode));
    return (uint16_t)opcode;
}

/*
 * The whole new content in the entry's own buffer: a setter of everything comes first and replaces
 * the one there was; one that modifies stands behind it, once.
 */
static void combine(struct wh_entry *entry, bool modifies)
{
    const struct wh_content *content = entry->content;
    uint32_t size_bytes = (uint32_t)(entry->size_bytes - ENTRY_HEADER_BYTES);
    if (entry->failed) {
        return;
    }
    memcpy(entry->bytes + sizeof(uint32_t), &size_bytes, sizeof(size_bytes));
    uint8_t *own = entry->bytes;
    size_t own_bytes = entry->size_bytes;
    if (content->bytes == NULL) {
        return;
    }
    entry->bytes = NULL;
    entry->size_bytes = 0;
    entry->capacity_bytes = 0;
    if (!modifies) {
        add(entry, own, own_bytes);
    }
    bool first = true;
    for (size_t at = 0; at < content->size_bytes;) {
        size_t step = entry_bytes(content->bytes + at, content->size_bytes - at);
        bool replaced = opcode_at(content->bytes + at) == entry->opcode || (first && !modifies);
        if (!replaced) {
            add(entry, content->bytes + at, step);
        }
        first = false;
        at += step;
    }
    if (modifies) {
        add(entry, own, own_bytes);
    }
    free(own);
}

/* What the library says of the new content: asked once for each. */
static int ask(const struct wh_entry *entry, const struct wh_cuda_api *api)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, api, entry->opcode);
    if (status != 0) {
        return status;
    }
    wh_put_blob(&call, entry->bytes, entry->size_bytes);
    status = wh_cuda_call_pure(&call, api);
    wh_call_end(&call);
    return status;
}

static void take_over(struct wh_entry *entry)
{
    struct wh_content *content = entry->content;
    free(content->bytes);
    content->bytes = entry->bytes;
    content->size_bytes = entry->size_bytes;
    content->hash = hash_of(content->kind, content->bytes, content->size_bytes);
    if (entry->type >= 0) {
        content->type = entry->type;
    }
}

static int commit(struct wh_entry *entry, const struct wh_cuda_api *api, bool modifies, bool known)
{
    int status = api->invalid;
    if (entry->content != NULL) {
        combine(entry, modifies);
        status = api->memory;
        if (!entry->failed) {
            status = known ? api->success : ask(entry, api);
        }
    }
    if (status == api->success) {
        take_over(entry);
    } else {
        free(entry->bytes);
    }
    return wh_cuda_done(api, status);
}

int wh_entry_commit(struct wh_entry *entry, const struct wh_cuda_api *api, bool modifies)
{
    return commit(entry, api, modifies, false);
}

int wh_entry_keep(struct wh_entry *entry, const struct wh_cuda_api *api)
{
    return commit(entry, api, false, true);
}
