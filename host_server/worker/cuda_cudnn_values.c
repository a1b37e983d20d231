/*
 * cuda_cudnn_values.c - real descriptors for values that come with calls.
 *
 * Each thread keeps those that it made last, by their values: a training loop has the same few at
 * every step. One that was made with another (a recurrent network with its dropout) holds that one
 * as long as it lives, for the library may keep the pointer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_backend.h"
#include "cuda_cudnn.h"
#include "wh_wire.h"

#define CACHE_SETS 512u /* a power of two */
#define CONTENT_BYTES_MAX ((size_t)1 << 20)
#define DEPTH_MAX 4u
#define PARTS_MAX 4u
#define TAKEN_MAX 16u
#define BAD_PARAM 2000
#define NO_MEMORY 4003

struct made {
    unsigned kind;
    uint32_t users; /* requests, and descriptors made with it */
    bool cached;
    void *descriptor;
    uint64_t hash;
    size_t size_bytes;
    struct made *parts[PARTS_MAX]; /* held */
    uint8_t bytes[];
};

static __thread struct made *cache[CACHE_SETS];
static __thread struct made *taken[TAKEN_MAX]; /* by the running request */
static __thread unsigned taken_count;
static __thread struct made *making; /* whose entries are being applied */
static __thread unsigned depth;

static void let_go(struct made *made)
{
    if (made == NULL || --made->users > 0 || made->cached) {
        return;
    }
    wh_cudnn_unmake(made->kind, made->descriptor);
    for (unsigned i = 0; i < PARTS_MAX; i++) {
        let_go(made->parts[i]);
    }
    free(made);
}

/* Out of the cache: it ends with its last user. */
static void evict(uint64_t set)
{
    struct made *made = cache[set];
    cache[set] = NULL;
    if (made != NULL) {
        made->cached = false;
        made->users++;
        let_go(made);
    }
}

static uint64_t hash_of(unsigned kind, const uint8_t *bytes, size_t size_bytes)
{
    uint64_t hash = 0xcbf29ce484222325ull ^ kind;
    for (size_t at = 0; at + sizeof(uint64_t) <= size_bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, sizeof(word));
        hash = (hash ^ word) * 0x100000001b3ull;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Applies the entries one after the other; a malformed one fails the request. */
static uint64_t apply(struct wh_request *request, struct made *made)
{
    uint64_t status = 0;
    struct made *outer = making;
    making = made;
    for (size_t at = 0; at < made->size_bytes && status == 0 && !request->failed;) {
        uint32_t header[2];
        size_t room_bytes = made->size_bytes - at;
        if (room_bytes < sizeof(header)) {
            request->failed = true;
            break;
        }
        memcpy(header, made->bytes + at, sizeof(header));
        if (header[1] > room_bytes - sizeof(header) || header[1] % WH_ITEM_BYTES != 0 ||
            header[0] > UINT16_MAX) {
            request->failed = true;
            break;
        }
        struct wh_request part = *request;
        part.bytes = made->bytes + at + sizeof(header);
        part.size_bytes = header[1];
        part.used_bytes = 0;
        status = header[0] == WH_OP_cudnnSetDropoutDescriptor && made->kind == WH_CUDNN_DROPOUT
                     ? wh_cudnn_apply_dropout(&part, made->descriptor)
                     : wh_cudnn_apply(made->kind, (uint16_t)header[0], &part, made->descriptor);
        request->failed = request->failed || part.failed;
        at += sizeof(header) + header[1];
    }
    making = outer;
    return status;
}

static struct made *make(struct wh_request *request, unsigned kind, const void *bytes,
                         size_t size_bytes, uint64_t *status)
{
    struct made *made = calloc(1, sizeof(*made) + size_bytes);
    if (made == NULL) {
        *status = NO_MEMORY;
        return NULL;
    }
    made->kind = kind;
    made->size_bytes = size_bytes;
    made->users = 1;
    memcpy(made->bytes, bytes, size_bytes);
    *status = wh_cudnn_make(kind, &made->descriptor);
    if (*status != 0) {
        free(made);
        return NULL;
    }
    *status = apply(request, made);
    if (*status != 0 || request->failed) {
        let_go(made);
        return NULL;
    }
    return made;
}

/* Whoever takes it holds it: the descriptor that is being made, or the request. */
static bool hand_over(struct made *made)
{
    if (making == NULL) {
        /* One descriptor may be there more than once. */
        if (taken_count < TAKEN_MAX) {
            taken[taken_count++] = made;
            return true;
        }
        return false;
    }
    for (unsigned i = 0; i < PARTS_MAX; i++) {
        if (making->parts[i] == NULL) {
            making->parts[i] = made;
            return true;
        }
    }
    return false;
}

/* The descriptor with these values, held once more; NULL with a status or a failed request. */
static struct made *find_or_make(struct wh_request *request, unsigned kind, const void *bytes,
                                 size_t size_bytes, uint64_t *status)
{
    uint64_t hash = hash_of(kind, bytes, size_bytes);
    uint64_t set = hash % CACHE_SETS;
    struct made *made = cache[set];
    if (made != NULL && made->hash == hash && made->kind == kind &&
        made->size_bytes == size_bytes && memcmp(made->bytes, bytes, size_bytes) == 0) {
        made->users++;
        return made;
    }
    depth++;
    made = depth > DEPTH_MAX ? NULL : make(request, kind, bytes, size_bytes, status);
    request->failed = request->failed || depth > DEPTH_MAX;
    depth--;
    if (made != NULL) {
        evict(set);
        made->hash = hash;
        made->cached = true;
        cache[set] = made;
    }
    return made;
}

void *wh_cudnn_take(struct wh_request *request, unsigned kind, uint64_t *status, bool *valid)
{
    size_t size_bytes = 0;
    uint64_t own = 0;
    const void *bytes = wh_take_blob(request, &size_bytes, CONTENT_BYTES_MAX);
    if (bytes == NULL || request->failed || !*valid) {
        return NULL;
    }
    struct made *made = find_or_make(request, kind, bytes, size_bytes, &own);
    if (made != NULL && !hand_over(made)) {
        let_go(made);
        made = NULL;
        own = BAD_PARAM;
    }
    if (own != 0 && *status == 0) {
        *status = own;
    }
    *valid = *valid && made != NULL;
    return made != NULL ? made->descriptor : NULL;
}

void wh_cudnn_end(void)
{
    while (taken_count > 0) {
        let_go(taken[--taken_count]);
    }
}

int wh_cudnn_check(struct wh_request *request, uint16_t opcode, unsigned kind)
{
    uint64_t status = 0;
    bool valid = true;
    wh_cuda_enter(request);
    (void)wh_cudnn_take(request, kind, &status, &valid);
    wh_cudnn_end();
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    wh_cuda_reply(request, opcode, status, 0);
    return 0;
}

bool wh_cudnn_placed(const struct wh_cudnn_table *real, cudnnHandle_t handle, unsigned places)
{
    (void)real;
    (void)handle;
    return (places & WH_CUDA_PLACE_DEVICE) == 0;
}
