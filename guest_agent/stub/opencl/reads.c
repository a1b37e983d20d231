/*
 * reads.c - data of non-blocking reads on its way to the application.
 *
 * Such a read fills a staging area. The application may look at its memory as soon as it has seen
 * the read complete, in whatever way: by its event, by a later event, by finishing the queue. So
 * each call that can show completion asks the server which of the pending reads are complete, and
 * copies them before it returns. A read stays in the list until it is copied, under the lock, so
 * that a second thread that sees it complete also finds its data. The server keeps what it knows
 * of a read until it is told that the data was copied: only then may it answer that it is gone.
 */
#include "object.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "service.h"
#include "wh_opencl_kinds.h"

#define AWAIT_PAUSE_NS 1000000
#define TAKE_PAUSE_NS 50000000
#define ROOM_PATIENCE_MS 2000u
#define CARRIED_MAX 8u /* areas that one reply carries over TCP, beside the call's own */

struct wh_cl_read {
    struct wh_cl_read *next;
    uint64_t id;
    uint64_t queue;
    struct wh_staging staging;
    uint8_t *to;            /* NULL: nobody wants the data */
    uint8_t *packed;        /* a rectangle's bytes on their way to its rows */
    struct wh_cl_rows rows; /* without packed: one */
    size_t size_bytes;
    size_t kept_bytes; /* by the server outside the arena */
    uint32_t serial;
    uint32_t borrowers; /* writes from its staging area that are about to be published */
    bool lent;          /* there were some: the server says when the area is free */
    bool goes_on;       /* by itself: wh_cl_reads_go_on */
};

static struct wh_cl_read *pending;
static struct wh_cl_read *copied; /* the server is to be told */
static uint32_t pending_count;
static uint64_t last_id;
static bool taking; /* a thread of ours takes reads that go on by themselves */
static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_pending(void)
{
    pthread_mutex_lock(&pending_lock);
}

static void unlock_pending(void)
{
    pthread_mutex_unlock(&pending_lock);
}

static void unlock_in_child(void)
{
    taking = false; /* the thread is the parent's */
    unlock_pending();
}

__attribute__((constructor)) static void protect_fork(void)
{
    pthread_atfork(lock_pending, unlock_pending, unlock_in_child);
}

/* What the server keeps of the reads in a list, outside the arena. The lock is held. */
static size_t kept_bytes(const struct wh_cl_read *read, uint32_t serial)
{
    size_t bytes = 0;
    for (; read != NULL; read = read->next) {
        bytes += read->serial == serial ? read->kept_bytes : 0;
    }
    return bytes;
}

static bool may_keep(size_t size_bytes)
{
    uint32_t serial = wh_session_serial();
    pthread_mutex_lock(&pending_lock);
    size_t bytes = kept_bytes(pending, serial) + kept_bytes(copied, serial);
    pthread_mutex_unlock(&pending_lock);
    return size_bytes <= WH_CL_KEPT_BYTES_MAX && bytes <= WH_CL_KEPT_BYTES_MAX - size_bytes;
}

/* Reads that are merely slow make room in time; those that the application holds back do not. */
static bool await_room(size_t size_bytes)
{
    const struct timespec pause = {.tv_nsec = AWAIT_PAUSE_NS};
    uint32_t looks = 0;
    while (!may_keep(size_bytes)) {
        if (looks++ == ROOM_PATIENCE_MS) {
            return false;
        }
        wh_cl_ask_reads(0);
        nanosleep(&pause, NULL);
    }
    return true;
}

struct wh_cl_read *wh_cl_read_new(void *to, size_t size_bytes, uint64_t queue)
{
    struct wh_cl_read *read = await_room(size_bytes) ? calloc(1, sizeof(*read)) : NULL;
    if (read != NULL) {
        read->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
        read->queue = queue;
        read->to = to;
        read->rows = (struct wh_cl_rows){.first = to, .region = {size_bytes, 1, 1}};
        read->size_bytes = size_bytes;
        read->serial = wh_session_serial();
    }
    return read;
}

struct wh_cl_read *wh_cl_read_new_rows(const struct wh_cl_rows *rows, size_t size_bytes,
                                       uint64_t queue)
{
    struct wh_cl_read *read = wh_cl_read_new(rows->first, size_bytes, queue);
    if (read != NULL) {
        read->rows = *rows;
        read->packed = malloc(size_bytes);
    }
    if (read != NULL && read->packed == NULL) {
        free(read);
        return NULL;
    }
    return read;
}

void wh_cl_rows_copy(const struct wh_cl_rows *rows, uint8_t *packed, bool pack)
{
    for (size_t z = 0; z < rows->region[2]; z++) {
        for (size_t y = 0; y < rows->region[1]; y++) {
            uint8_t *row = rows->first + y * rows->row_pitch + z * rows->slice_pitch;
            memcpy(pack ? packed : row, pack ? row : packed, rows->region[0]);
            packed += rows->region[0];
        }
    }
}

void wh_cl_read_put(struct wh_call *call, struct wh_cl_read *read)
{
    wh_put_u64(call, read->id);
    (void)wh_put_staging(call, &read->staging, read->size_bytes); /* a failure sticks to the call */
    read->kept_bytes = read->staging.token != 0 ? read->size_bytes : 0;
}

void wh_cl_read_add(struct wh_cl_read *read)
{
    pthread_mutex_lock(&pending_lock);
    /* In the order of the ids, so that asking can go on behind the last one asked about. */
    struct wh_cl_read **place = &pending;
    while (*place != NULL && (*place)->id < read->id) {
        place = &(*place)->next;
    }
    read->next = *place;
    *place = read;
    __atomic_store_n(&pending_count, pending_count + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&pending_lock);
}

static void free_staging(struct wh_cl_read *read)
{
    if (read->lent) {
        wh_staging_free_lent(&read->staging);
    }
    read->staging.token = 0; /* the server releases its buffer itself, see wh_cl_take_reads */
    if (read->staging.location != 0) {
        wh_staging_free(&read->staging);
    }
}

void wh_cl_read_cancel(struct wh_cl_read *read)
{
    if (read != NULL) {
        free_staging(read);
        free(read->packed);
        free(read);
    }
}

static bool fills(const struct wh_cl_read *read, const void *memory, size_t size_bytes)
{
    uintptr_t begin = (uintptr_t)memory;
    uintptr_t to = (uintptr_t)read->to;
    const struct wh_cl_rows *rows = &read->rows;
    size_t extent = wh_cl_extent(rows->region, rows->row_pitch, rows->slice_pitch);
    return read->to != NULL && to < begin + size_bytes && begin < to + extent;
}

bool wh_cl_any_reads(void)
{
    return __atomic_load_n(&pending_count, __ATOMIC_ACQUIRE) != 0;
}

bool wh_cl_read_into(const void *memory, size_t size_bytes)
{
    bool found = false;
    if (!wh_cl_any_reads()) {
        return false;
    }
    uint32_t serial = wh_session_serial();
    pthread_mutex_lock(&pending_lock);
    for (const struct wh_cl_read *read = pending; read != NULL && !found; read = read->next) {
        found = read->serial == serial && fills(read, memory, size_bytes);
    }
    pthread_mutex_unlock(&pending_lock);
    return found;
}

void wh_cl_await_reads(const void *memory, size_t size_bytes)
{
    const struct timespec pause = {.tv_nsec = AWAIT_PAUSE_NS};
    for (wh_cl_ask_reads(0); wh_cl_read_into(memory, size_bytes); wh_cl_ask_reads(0)) {
        nanosleep(&pause, NULL);
    }
}

/* Looks at the rows of a pending read: the latest one that fills the first byte is the source, and
 * what another one fills ends its part. */
static void look_at(struct wh_cl_source *source, struct wh_cl_read *read, uintptr_t begin,
                    size_t *covered, size_t *next)
{
    const struct wh_cl_rows *rows = &read->rows;
    size_t row_bytes = rows->region[0];
    size_t packed_offset = 0;
    for (size_t z = 0; z < rows->region[2]; z++) {
        for (size_t y = 0; y < rows->region[1]; y++, packed_offset += row_bytes) {
            uintptr_t row = (uintptr_t)read->to + y * rows->row_pitch + z * rows->slice_pitch;
            if (row > begin) {
                *next = row - begin < *next ? row - begin : *next;
            } else if (begin - row < row_bytes) {
                source->read = read;
                source->offset = packed_offset + (begin - row);
                *covered = row_bytes - (begin - row);
            }
        }
    }
}

size_t wh_cl_source_begin(struct wh_cl_source *source, const void *memory, size_t size_bytes,
                          uint64_t queue, bool waits)
{
    size_t covered = size_bytes;
    size_t next = size_bytes;
    memset(source, 0, sizeof(*source));
    if (__atomic_load_n(&pending_count, __ATOMIC_ACQUIRE) == 0) {
        return size_bytes;
    }
    uint32_t serial = wh_session_serial();
    pthread_mutex_lock(&pending_lock);
    for (struct wh_cl_read *read = pending; read != NULL; read = read->next) {
        bool before = waits || read->queue == queue;
        if (before && read->serial == serial && fills(read, memory, size_bytes)) {
            look_at(source, read, (uintptr_t)memory, &covered, &next);
        }
    }
    if (source->read != NULL) {
        source->id = source->read->id;
        source->read->borrowers++;
        source->read->lent = true;
        wh_staging_lend(&source->read->staging);
    }
    pthread_mutex_unlock(&pending_lock);
    return covered < next ? covered : next;
}

void wh_cl_source_end(struct wh_cl_source *source)
{
    if (source->read != NULL) {
        pthread_mutex_lock(&pending_lock);
        source->read->borrowers--;
        pthread_mutex_unlock(&pending_lock);
    }
}

uint64_t wh_cl_reads_mark(void)
{
    return __atomic_load_n(&last_id, __ATOMIC_RELAXED);
}

bool wh_cl_reads_abandon(const void *memory, size_t size_bytes, uint64_t since)
{
    bool found = false;
    if (__atomic_load_n(&pending_count, __ATOMIC_ACQUIRE) == 0) {
        return false;
    }
    pthread_mutex_lock(&pending_lock);
    for (struct wh_cl_read *read = pending; read != NULL; read = read->next) {
        if (read->id > since && fills(read, memory, size_bytes)) {
            read->to = NULL;
            found = true;
        }
    }
    pthread_mutex_unlock(&pending_lock);
    return found;
}

bool wh_cl_reads_pending(uint64_t queue)
{
    bool found = false;
    if (__atomic_load_n(&pending_count, __ATOMIC_ACQUIRE) == 0) {
        return false;
    }
    pthread_mutex_lock(&pending_lock);
    for (const struct wh_cl_read *read = pending; read != NULL && !found; read = read->next) {
        found = queue == 0 || read->queue == queue;
    }
    pthread_mutex_unlock(&pending_lock);
    return found;
}

/* Ends when there is no such read any more. */
static void take_what_goes_on(void)
{
    struct timespec pause = {.tv_nsec = AWAIT_PAUSE_NS};
    for (bool found = true; found;) {
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec < TAKE_PAUSE_NS ? pause.tv_nsec * 2 : TAKE_PAUSE_NS;
        wh_cl_ask_reads(0);
        uint32_t serial = wh_session_serial();
        pthread_mutex_lock(&pending_lock);
        const struct wh_cl_read *read = pending;
        while (read != NULL && (!read->goes_on || read->serial != serial)) {
            read = read->next;
        }
        found = read != NULL;
        taking = found;
        pthread_mutex_unlock(&pending_lock);
    }
}

void wh_cl_reads_go_on(uint64_t queue)
{
    bool start = false;
    wh_cl_ask_reads(0);
    pthread_mutex_lock(&pending_lock);
    for (struct wh_cl_read *read = pending; read != NULL; read = read->next) {
        if (read->queue == queue) {
            read->goes_on = true;
            start = !taking;
        }
    }
    taking = taking || start;
    pthread_mutex_unlock(&pending_lock);
    if (start && wh_service_start("wh-reads", take_what_goes_on) != 0) {
        pthread_mutex_lock(&pending_lock);
        taking = false; /* they come with the next call that shows anything complete */
        pthread_mutex_unlock(&pending_lock);
    }
}

/* Tells the server which reads it can forget. */
static void put_copied(struct wh_call *call)
{
    uint64_t ids[WH_CL_READS_ASKED_MAX];
    uint64_t count = 0;
    if (__atomic_load_n(&copied, __ATOMIC_ACQUIRE) != NULL) {
        uint32_t serial = wh_session_serial();
        pthread_mutex_lock(&pending_lock);
        struct wh_cl_read **link = &copied;
        while (*link != NULL && count < WH_CL_READS_ASKED_MAX) {
            struct wh_cl_read *read = *link;
            if (read->borrowers > 0) {
                link = &read->next; /* the server must know it a little longer */
                continue;
            }
            *link = read->next;
            if (read->serial == serial) {
                ids[count++] = read->id << 1 | read->lent;
            }
            free(read->packed);
            free(read);
        }
        pthread_mutex_unlock(&pending_lock);
    }
    wh_put_u64(call, count);
    for (uint64_t i = 0; i < count; i++) {
        wh_put_u64(call, ids[i]);
    }
}

void wh_cl_put_reads(struct wh_call *call, struct wh_cl_reads *reads, uint64_t after)
{
    size_t sizes[WH_CL_READS_ASKED_MAX];
    size_t carried_bytes = 0;
    uint32_t carried = 0;
    bool may_carry = !wh_uses_shm(); /* else a call of its own takes what is not in the arena */
    reads->count = 0;
    reads->more = false;
    if (__atomic_load_n(&pending_count, __ATOMIC_ACQUIRE) > 0) {
        uint32_t serial = wh_session_serial();
        pthread_mutex_lock(&pending_lock);
        for (const struct wh_cl_read *read = pending; read != NULL; read = read->next) {
            bool carries = may_carry && read->staging.token != 0;
            if (read->serial != serial || read->id <= after) {
                continue; /* of another session: a forked child never sees it complete */
            }
            if (reads->count == WH_CL_READS_ASKED_MAX || (carries && carried == CARRIED_MAX) ||
                (carried > 0 && carried_bytes + read->size_bytes > wh_bulk_limit())) {
                reads->more = true;
                break;
            }
            carried_bytes += carries ? read->size_bytes : 0;
            reads->ids[reads->count] = read->id;
            reads->carried[reads->count] = carries;
            sizes[reads->count] = read->size_bytes;
            reads->count++;
            carried += carries;
        }
        pthread_mutex_unlock(&pending_lock);
    }
    wh_put_u64(call, reads->count);
    for (uint32_t i = 0; i < reads->count; i++) {
        wh_put_u64(call, reads->ids[i]);
        wh_put_u64(call, reads->carried[i]);
        if (reads->carried[i]) {
            wh_put_out(call, sizes[i], true);
        }
    }
    put_copied(call);
}

void wh_cl_put_no_reads(struct wh_call *call, struct wh_cl_reads *reads)
{
    reads->count = 0;
    reads->more = false;
    wh_put_u64(call, 0);
    wh_put_u64(call, 0);
}

void wh_cl_take_flags(struct wh_call *call, struct wh_cl_reads *reads)
{
    for (uint32_t i = 0; i < reads->count; i++) {
        reads->flags[i] = wh_get_u64(call);
    }
}

static struct wh_cl_read **find(uint64_t id)
{
    struct wh_cl_read **link = &pending;
    while (*link != NULL && (*link)->id != id) {
        link = &(*link)->next;
    }
    return link;
}

static void take_one(struct wh_call *call, uint64_t id, uint64_t flag, bool carried)
{
    pthread_mutex_lock(&pending_lock);
    struct wh_cl_read **link = find(id);
    struct wh_cl_read *read = *link;
    bool wanted = flag == WH_CL_READ_DONE && read != NULL && read->to != NULL;
    uint8_t *to = !wanted ? NULL : read->packed != NULL ? read->packed : read->to;
    if (carried) {
        (void)wh_get_out(call, to, wanted ? read->size_bytes : 0);
    } else if (wanted) {
        (void)wh_staging_copy(&read->staging, to, read->size_bytes);
    }
    if (wanted && read->packed != NULL) {
        wh_cl_rows_copy(&read->rows, read->packed, false);
    }
    if (read != NULL && flag != WH_CL_READ_PENDING) {
        *link = read->next;
        __atomic_store_n(&pending_count, pending_count - 1, __ATOMIC_RELEASE);
        free_staging(read);
        read->next = copied;
        __atomic_store_n(&copied, read, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&pending_lock);
}

void wh_cl_take_reads(struct wh_call *call, struct wh_cl_reads *reads)
{
    for (uint32_t i = 0; i < reads->count && call->error == 0; i++) {
        take_one(call, reads->ids[i], reads->flags[i], reads->carried[i]);
    }
}
