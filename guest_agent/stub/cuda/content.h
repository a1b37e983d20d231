/*
 * content.h - descriptors that are only values: what setters were given, kept here and sent with
 * each call that has such a descriptor.
 *
 * A content is a list of entries, one a setter: {u32 opcode, u32 size_bytes} and the setter's
 * arguments as items of a message. The server applies them, in order, to a descriptor of the real
 * library's.
 */
#ifndef WH_STUB_CONTENT_H
#define WH_STUB_CONTENT_H

#include "cuda.h"

#define WH_CONTENT_MAGIC 0x57434e54u
#define WH_CONTENT_BYTES_MAX ((size_t)1 << 20)

/* What the application's pointer points to. */
struct wh_content {
    uint32_t magic;
    uint32_t kind;
    int type; /* of the elements, -1 unknown */
    uint64_t hash;
    uint8_t *bytes; /* NULL: nothing is set */
    size_t size_bytes;
};

/* The next content of a descriptor, while a setter runs. */
struct wh_entry {
    struct wh_content *content; /* NULL: no descriptor of that kind */
    uint16_t opcode;
    int type;
    bool failed; /* no memory, or too large */
    uint8_t *bytes;
    size_t size_bytes;
    size_t capacity_bytes;
};

int wh_content_make(const struct wh_cuda_api *api, uint32_t kind, void **descriptor);
int wh_content_drop(const struct wh_cuda_api *api, uint32_t kind, void *descriptor);

/* The content behind a pointer, NULL if it is none of that kind. */
struct wh_content *wh_content_of(const void *descriptor, uint32_t kind);

/* Element type that was set, -1 without one. */
int wh_content_type(const void *descriptor);

/* Into a message: kind and entries; NULL descriptors stay NULL. */
void wh_content_put(struct wh_call *call, const void *descriptor, uint32_t kind);
uint64_t wh_content_hash(const void *descriptor);

void wh_entry_begin(struct wh_entry *entry, void *descriptor, uint32_t kind, uint16_t opcode);
void wh_entry_u64(struct wh_entry *entry, uint64_t value);
void wh_entry_blob(struct wh_entry *entry, const void *bytes, size_t size_bytes);
void wh_entry_content(struct wh_entry *entry, const void *descriptor, uint32_t kind);
void wh_entry_type(struct wh_entry *entry, int type);

/* The descriptor has these values from now on, if the library accepts them: it is asked when it
 * sees them for the first time. modifies: what others have set stays. */
int wh_entry_commit(struct wh_entry *entry, const struct wh_cuda_api *api, bool modifies);

/* The same for values that the library has given itself. */
int wh_entry_keep(struct wh_entry *entry, const struct wh_cuda_api *api);

#endif
