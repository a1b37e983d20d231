/*
 * mover.c - copies of the client's own memory that a graph makes at each launch: a host function
 * moves the bytes between that memory and a pinned buffer, which the device copies from or to.
 *
 * A buffer of a graph that has ended waits here for the next one. To give pinned memory back is to
 * wait for the device, which may be waiting for a host function: so the thread that runs those
 * never does it, and a thread of the program's only where it would wait for memory anyway.
 */
#include "cudart.h"

#include <stdlib.h>

#include "fork_lock.h"

#define IDLE_BYTES_MAX ((size_t)32 << 20)

struct wh_mover {
    struct wh_mover *next; /* of those that have ended */
    uint32_t serial;       /* of the session that knows its memory */
    void *bytes;           /* pinned, without gaps */
    size_t size_bytes;
    struct wh_cuda_copy copy;
    bool out;
};

WH_FORK_LOCK(mover_lock);
static struct wh_mover *idle;
static size_t idle_bytes;

/* One that is large enough, but not much too large. */
static struct wh_mover *take_idle(size_t size_bytes)
{
    struct wh_mover *found = NULL;
    pthread_mutex_lock(&mover_lock);
    for (struct wh_mover **link = &idle; *link != NULL; link = &(*link)->next) {
        struct wh_mover *this = *link;
        if (this->serial == wh_cuda_session() && this->size_bytes >= size_bytes &&
            this->size_bytes / 2 <= size_bytes) {
            found = this;
            *link = this->next;
            idle_bytes -= this->size_bytes;
            break;
        }
    }
    pthread_mutex_unlock(&mover_lock);
    return found;
}

/* Gives back the memory of all that have ended. */
static void drop_idle(void)
{
    pthread_mutex_lock(&mover_lock);
    struct wh_mover *ended = idle;
    idle = NULL;
    idle_bytes = 0;
    pthread_mutex_unlock(&mover_lock);
    while (ended != NULL) {
        struct wh_mover *next = ended->next;
        if (ended->serial == wh_cuda_session()) {
            (void)cudaFreeHost(ended->bytes);
        }
        free(ended);
        ended = next;
    }
}

static struct wh_mover *make(size_t size_bytes)
{
    struct wh_mover *mover = calloc(1, sizeof(*mover));
    if (mover == NULL) {
        return NULL;
    }
    mover->serial = wh_cuda_session();
    mover->size_bytes = size_bytes;
    int status = cudaHostAlloc(&mover->bytes, size_bytes, 0);
    if (status == 0 && !wh_cuda_is_shared(mover->bytes, size_bytes)) {
        (void)cudaFreeHost(mover->bytes);
        status = WH_CUDA_MEMORY_ALLOCATION;
    }
    if (status != 0) {
        free(mover);
        return NULL;
    }
    return mover;
}

/* Errors of making room are not the program's. */
static struct wh_mover *find_or_make(size_t size_bytes)
{
    int last_error = wh_cuda_thread()->last_error;
    struct wh_mover *mover = take_idle(size_bytes);
    if (mover == NULL) {
        if (__atomic_load_n(&idle_bytes, __ATOMIC_RELAXED) > IDLE_BYTES_MAX) {
            drop_idle();
        }
        mover = make(size_bytes);
    }
    if (mover == NULL) {
        drop_idle();
        mover = make(size_bytes);
    }
    wh_cuda_thread()->last_error = last_error;
    return mover;
}

struct wh_mover *wh_mover_new(const struct wh_cuda_copy *copy, bool out)
{
    const struct wh_cuda_extent *extent = &copy->extent;
    size_t size_bytes = 0;
    if (__builtin_mul_overflow(extent->width, extent->height, &size_bytes) ||
        __builtin_mul_overflow(size_bytes, extent->depth, &size_bytes) || size_bytes == 0 ||
        !wh_cuda_shares_addresses()) {
        return NULL;
    }
    struct wh_mover *mover = find_or_make(size_bytes);
    if (mover != NULL) {
        mover->next = NULL;
        mover->copy = *copy;
        mover->out = out;
    }
    return mover;
}

void *wh_mover_bytes(const struct wh_mover *mover)
{
    return mover->bytes;
}

void wh_mover_run(void *argument)
{
    const struct wh_mover *mover = argument;
    const struct wh_cuda_copy *copy = &mover->copy;
    const struct wh_cuda_pitched *own = mover->out ? &copy->dst : &copy->src;
    const struct wh_cuda_position *at = mover->out ? &copy->dst_at : &copy->src_at;
    char *pinned = mover->bytes;
    for (size_t z = 0; z < copy->extent.depth; z++) {
        for (size_t y = 0; y < copy->extent.height; y++) {
            char *row =
                (char *)own->pointer + ((at->z + z) * own->height + at->y + y) * own->pitch + at->x;
            if (mover->out) {
                memcpy(row, pinned, copy->extent.width);
            } else {
                memcpy(pinned, row, copy->extent.width);
            }
            pinned += copy->extent.width;
        }
    }
}

void wh_mover_end(void *argument)
{
    struct wh_mover *mover = argument;
    pthread_mutex_lock(&mover_lock);
    mover->next = idle;
    idle = mover;
    idle_bytes += mover->size_bytes;
    pthread_mutex_unlock(&mover_lock);
}
