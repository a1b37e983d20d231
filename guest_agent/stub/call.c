/*
 * call.c - builds requests, sends them, takes results apart (ARCHITECTURE.md, section 4).
 */
#include "call.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "output.h"
#include "ring.h"
#include "service.h"
#include "session.h"
#include "wh_core_stub.h"

#define WH_FIRST_BUFFER_BYTES WH_REQUEST_BYTES_MAX
#define WH_RESERVED_BYTES 2048u /* of a request or a reply slot, kept for scalars */
#define WH_REAP_LIMIT 8u        /* busy blocks that an allocation looks at */
#define WH_PATIENCE_MS 10000u
#define WH_ROOM_PAUSE_NS 1000000 /* between two looks while other threads' calls have the room */
#define WH_SLOT_ROOM                                                                               \
    (WH_SLOT_BYTES - sizeof(struct wh_slot_header) - sizeof(struct wh_reply_header) -              \
     WH_RESERVED_BYTES)

static void fail(struct wh_call *call, int error)
{
    if (call->error == 0) {
        call->error = error;
    }
}

int wh_call_begin(struct wh_call *call, uint16_t opcode)
{
    int error = 0;
    call->buffer = NULL;
    call->client = wh_client_get(&error);
    if (call->client == NULL) {
        return error;
    }
    call->thread = wh_thread_get();
    call->buffer =
        call->thread != NULL ? wh_buffer_take(call->thread, WH_FIRST_BUFFER_BYTES) : NULL;
    if (call->buffer == NULL) {
        return -ENOMEM;
    }
    call->size_bytes = sizeof(struct wh_request_header);
    call->reply_bytes = 0;
    call->reply_used_bytes = 0;
    call->inline_out_bytes = 0;
    call->opcode = opcode;
    call->published = false;
    call->blocks = false;
    call->settles = false;
    call->notices = 0;
    call->patience_ms = WH_PATIENCE_MS;
    call->error = 0;
    call->block_count = 0;
    call->out_count = 0;
    call->out_next = 0;
    return 0;
}

/* Room for size_bytes more, padded to whole items; NULL and a failed call if there is none. */
static uint8_t *extend(struct wh_call *call, size_t size_bytes)
{
    size_t padded_bytes = wh_align(size_bytes, WH_ITEM_BYTES);
    if (call->error != 0) {
        return NULL;
    }
    if (padded_bytes < size_bytes || padded_bytes > WH_TCP_MESSAGE_BYTES_MAX) {
        fail(call, -EMSGSIZE);
        return NULL;
    }
    /* Room for the padding of the whole request, too. */
    if (!wh_buffer_grow(call->buffer, call->size_bytes + padded_bytes + WH_REQUEST_ALIGN)) {
        fail(call, -ENOMEM);
        return NULL;
    }
    uint8_t *to = call->buffer->bytes + call->size_bytes;
    call->size_bytes += padded_bytes;
    if (padded_bytes > size_bytes) {
        memset(to + size_bytes, 0, padded_bytes - size_bytes);
    }
    return to;
}

void wh_put_u64(struct wh_call *call, uint64_t value)
{
    uint8_t *to = extend(call, sizeof(value));
    if (to != NULL) {
        memcpy(to, &value, sizeof(value));
    }
}

void wh_call_blocks(struct wh_call *call)
{
    call->blocks = true;
}

void wh_call_settles(struct wh_call *call)
{
    call->settles = true;
}

static void owe(struct wh_thread *thread, uint32_t batch)
{
    if (batch != 0 && thread->owed_count < WH_OWED_MAX) {
        thread->owed_batches[thread->owed_count++] = batch;
    }
}

uint32_t wh_take_owed(void)
{
    struct wh_thread *thread = wh_thread_get();
    if (thread == NULL || thread->owed_count == 0) {
        return 0;
    }
    uint32_t batch = thread->owed_batches[0];
    thread->owed_count--;
    memmove(thread->owed_batches, thread->owed_batches + 1,
            thread->owed_count * sizeof(thread->owed_batches[0]));
    return batch;
}

void wh_call_patience(struct wh_call *call, uint32_t patience_ms)
{
    call->patience_ms = patience_ms;
}

static uint64_t deadline_after(uint32_t patience_ms)
{
    return wh_now_ns() + (uint64_t)patience_ms * 1000000u;
}

/* Waits while the worker still reads a block, or other threads' calls use theirs. 0: try again. */
static int wait_for_room(struct wh_client *client, uint64_t busy_location, uint64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = WH_ROOM_PAUSE_NS};
    if (wh_now_ns() >= deadline_ns) {
        return -ENOMEM;
    }
    if (busy_location == 0) {
        nanosleep(&pause, NULL);
        return wh_client_check(client);
    }
    const uint32_t *word = wh_arena_busy_word(client->arena, busy_location);
    int error = wh_ring_wait_for_room(client, wh_thread_get(), word, 1, deadline_ns);
    return error == -ETIMEDOUT ? -ENOMEM : error;
}

static uint64_t allocate(struct wh_call *call, size_t size_bytes)
{
    struct wh_client *client = call->client;
    uint64_t deadline_ns = 0;
    if (size_bytes > wh_arena_largest(client->arena)) {
        fail(call, -EMSGSIZE);
        return 0;
    }
    uint32_t limit = WH_REAP_LIMIT;
    while (call->error == 0) {
        pthread_mutex_lock(&client->arena_lock);
        wh_arena_reap(client->arena, limit);
        uint64_t location = wh_arena_alloc(client->arena, size_bytes);
        uint64_t busy_location = wh_arena_oldest_busy(client->arena);
        pthread_mutex_unlock(&client->arena_lock);
        if (location != 0) {
            return location;
        }
        if (limit == UINT32_MAX) {
            deadline_ns = deadline_ns == 0 ? deadline_after(call->patience_ms) : deadline_ns;
            int error = wait_for_room(client, busy_location, deadline_ns);
            if (error != 0) {
                fail(call, error);
            }
        }
        limit = UINT32_MAX;
    }
    return 0;
}

/* Looks whether there is room to hold; *busy: a block to wait for, 0 if none will help. */
static bool room_to_hold(struct wh_client *client, size_t size_bytes, uint64_t *busy)
{
    bool fits = false;
    pthread_mutex_lock(&client->arena_lock);
    for (int attempt = 0; attempt < 2 && !fits; attempt++) {
        wh_arena_reap(client->arena, attempt == 0 ? WH_REAP_LIMIT : UINT32_MAX);
        fits = wh_arena_held_bytes(client->arena) + size_bytes <= client->transfers_bytes / 2;
    }
    *busy = wh_arena_oldest_busy(client->arena);
    *busy = *busy == client->stuck_block ? 0 : *busy;
    pthread_mutex_unlock(&client->arena_lock);
    return fits;
}

bool wh_may_hold(size_t size_bytes, uint32_t patience_ms)
{
    int error = 0;
    uint64_t busy = 0;
    uint64_t deadline_ns = 0;
    struct wh_client *client = wh_client_get(&error);
    if (client == NULL || !wh_client_uses_shm(client) || size_bytes <= WH_INLINE_BYTES_MAX) {
        return true;
    }
    while (!room_to_hold(client, size_bytes, &busy)) {
        deadline_ns = deadline_ns == 0 ? deadline_after(patience_ms) : deadline_ns;
        if (busy == 0) {
            return false;
        }
        if (wait_for_room(client, busy, deadline_ns) != 0) {
            pthread_mutex_lock(&client->arena_lock);
            client->stuck_block = busy; /* the next one need not find out again */
            pthread_mutex_unlock(&client->arena_lock);
            return false;
        }
    }
    return true;
}

bool wh_uses_shm(void)
{
    int error = 0;
    const struct wh_client *client = wh_client_get(&error);
    return client != NULL && wh_client_uses_shm(client);
}

/* A block that stays, 0 if there is no room for one now. */
static uint64_t hold(struct wh_client *client, size_t size_bytes)
{
    pthread_mutex_lock(&client->arena_lock);
    uint64_t location = wh_arena_alloc(client->arena, size_bytes);
    if (location != 0) {
        wh_arena_hold(client->arena, location);
    }
    pthread_mutex_unlock(&client->arena_lock);
    return location;
}

static void release(struct wh_client *client, uint64_t location, bool outlives_call)
{
    pthread_mutex_lock(&client->arena_lock);
    if (outlives_call) {
        wh_arena_defer(client->arena, location);
    } else {
        wh_arena_free(client->arena, location);
    }
    pthread_mutex_unlock(&client->arena_lock);
}

/* A block that ends with the call, or later if outlives_call; 0 and a failed call on failure. */
static uint64_t add_block(struct wh_call *call, size_t size_bytes, bool outlives_call)
{
    if (call->error != 0) {
        return 0;
    }
    if (call->block_count == WH_CALL_AREAS_MAX) {
        fail(call, -E2BIG);
        return 0;
    }
    uint64_t location = allocate(call, size_bytes);
    if (location == 0) {
        return 0;
    }
    if (outlives_call) {
        pthread_mutex_lock(&call->client->arena_lock);
        wh_arena_hold(call->client->arena, location);
        pthread_mutex_unlock(&call->client->arena_lock);
    }
    call->areas[call->block_count].location = location;
    call->areas[call->block_count].outlives_call = outlives_call;
    call->block_count++;
    return location;
}

static void put_bytes(struct wh_call *call, const void *bytes, size_t size_bytes,
                      bool outlives_call)
{
    bool fits_inline = size_bytes <= WH_INLINE_BYTES_MAX &&
                       call->size_bytes + size_bytes <= WH_REQUEST_BYTES_MAX - WH_RESERVED_BYTES;
    wh_put_u64(call, bytes != NULL ? size_bytes : 0);
    if (bytes == NULL) {
        wh_put_u64(call, WH_NULL);
        return;
    }
    if (fits_inline || !wh_client_uses_shm(call->client)) {
        wh_put_u64(call, WH_INLINE);
        uint8_t *to = extend(call, size_bytes);
        if (to != NULL && size_bytes > 0) {
            memcpy(to, bytes, size_bytes);
        }
        return;
    }
    uint64_t location = add_block(call, size_bytes, outlives_call);
    if (location != 0) {
        uint64_t begin_ticks = wh_times_now();
        memcpy(call->client->arena_base + location, bytes, size_bytes);
        wh_times_copied(&call->thread->span, call->opcode, begin_ticks);
        wh_count(&call->thread->counters.bytes_sent, size_bytes);
    }
    wh_put_u64(call, location);
}

void wh_put_blob(struct wh_call *call, const void *bytes, size_t size_bytes)
{
    put_bytes(call, bytes, size_bytes, false);
}

void wh_put_bulk(struct wh_call *call, const void *bytes, size_t size_bytes)
{
    put_bytes(call, bytes, size_bytes, true);
}

size_t wh_bulk_limit(void)
{
    int error = 0;
    const struct wh_client *client = wh_client_get(&error);
    if (client == NULL) {
        return 0;
    }
    /* A quarter of the arena: several pieces can be on their way. */
    return wh_client_uses_shm(client) ? wh_arena_largest(client->arena) / 4
                                      : WH_TCP_MESSAGE_BYTES_MAX / 4;
}

int wh_send_large(const void *bytes, size_t size_bytes, uint64_t *token)
{
    int error = 0;
    struct wh_client *client = wh_client_get(&error);
    *token = 0;
    if (client == NULL) {
        return error;
    }
    const size_t limit = wh_bulk_limit();
    if (size_bytes <= limit) {
        return 0;
    }
    *token = __atomic_add_fetch(&client->token, 1, __ATOMIC_RELAXED);
    for (size_t done = 0; done < size_bytes && error == 0;) {
        size_t piece = size_bytes - done < limit ? size_bytes - done : limit;
        error = whPutStaging(*token, size_bytes, done, (const uint8_t *)bytes + done, piece);
        done += piece;
    }
    return error;
}

void wh_put_large(struct wh_call *call, const void *bytes, size_t size_bytes, uint64_t token)
{
    wh_put_u64(call, token);
    if (token == 0) {
        wh_put_blob(call, bytes, size_bytes);
    }
}

static void add_out(struct wh_call *call, uint64_t location, size_t capacity_bytes)
{
    if (call->out_count == WH_CALL_AREAS_MAX) {
        fail(call, -E2BIG);
        return;
    }
    call->outs[call->out_count].location = location;
    call->outs[call->out_count].capacity_bytes = capacity_bytes;
    call->out_count++;
}

void wh_put_out(struct wh_call *call, size_t capacity_bytes, bool wanted)
{
    uint64_t location = WH_INLINE;
    bool fits_slot =
        capacity_bytes <= WH_INLINE_BYTES_MAX &&
        call->inline_out_bytes + wh_align(capacity_bytes, WH_ITEM_BYTES) <= WH_SLOT_ROOM;
    if (!wanted) {
        location = WH_NULL;
        capacity_bytes = 0;
    } else if (wh_client_uses_shm(call->client) && !fits_slot) {
        location = add_block(call, capacity_bytes, false);
    } else {
        call->inline_out_bytes += wh_align(capacity_bytes, WH_ITEM_BYTES);
    }
    wh_put_u64(call, capacity_bytes);
    wh_put_u64(call, location);
    add_out(call, location, capacity_bytes);
}

int wh_put_staging(struct wh_call *call, struct wh_staging *staging, size_t size_bytes)
{
    memset(staging, 0, sizeof(*staging));
    staging->size_bytes = size_bytes;
    staging->serial = call->client->serial;
    if (wh_client_uses_shm(call->client) && wh_may_hold(size_bytes, 0)) {
        staging->location = hold(call->client, size_bytes);
    }
    if (staging->location == 0) {
        staging->token = __atomic_add_fetch(&call->client->token, 1, __ATOMIC_RELAXED);
    }
    wh_put_u64(call, size_bytes);
    wh_put_u64(call, staging->token != 0 ? WH_INLINE : staging->location);
    wh_put_u64(call, staging->token);
    return call->error;
}

/* The client of a live session with this serial, else NULL. */
static struct wh_client *client_of(const struct wh_staging *staging)
{
    int error = 0;
    if (staging->location == 0 && staging->token == 0) {
        return NULL;
    }
    if (wh_session_serial() != staging->serial) {
        return NULL;
    }
    return wh_client_get(&error);
}

/* Takes the worker's buffer. Where there is an arena it has no room, and who waits for room may
 * wait for us: so the pieces are small enough to need none. */
static int fetch(const struct wh_staging *staging, uint8_t *to, size_t size_bytes, bool shm)
{
    const size_t limit = shm ? WH_INLINE_BYTES_MAX : WH_TCP_MESSAGE_BYTES_MAX / 4;
    int error = 0;
    for (size_t done = 0; done < size_bytes && error == 0;) {
        size_t piece = size_bytes - done < limit ? size_bytes - done : limit;
        error = whFetch(staging->token, done, to + done, piece);
        done += piece;
    }
    return error;
}

int wh_staging_copy(struct wh_staging *staging, void *to, size_t size_bytes)
{
    struct wh_client *client = client_of(staging);
    if (client == NULL) {
        return -EPIPE;
    }
    if (size_bytes > staging->size_bytes) {
        return -EINVAL;
    }
    if (staging->token != 0) {
        return fetch(staging, to, size_bytes, wh_client_uses_shm(client));
    }
    uint64_t begin_ticks = wh_times_now();
    memcpy(to, client->arena_base + staging->location, size_bytes);
    wh_times_copied(&wh_thread_get()->span, WH_OP_whFetch, begin_ticks);
    wh_count(&wh_thread_get()->counters.bytes_received, size_bytes);
    return 0;
}

/* The data begins with a page, so the block does a page less its header before it. */
#define BACKING_GAP_BYTES (WH_PAGE_BYTES - WH_BLOCK_HEADER_BYTES)

int wh_backing_take(struct wh_backing *backing, size_t size_bytes)
{
    int error = 0;
    struct wh_client *client = wh_client_get(&error);
    memset(backing, 0, sizeof(*backing));
    if (client == NULL || !wh_client_uses_shm(client)) {
        return -ENOTSUP;
    }
    if (size_bytes > wh_arena_largest(client->buffers) - BACKING_GAP_BYTES) {
        return -ENOMEM;
    }
    pthread_mutex_lock(&client->arena_lock);
    for (int attempt = 0; attempt < 2 && backing->location == 0; attempt++) {
        wh_arena_reap(client->buffers, attempt == 0 ? WH_REAP_LIMIT : UINT32_MAX);
        backing->location = wh_arena_alloc(client->buffers, size_bytes + BACKING_GAP_BYTES);
    }
    pthread_mutex_unlock(&client->arena_lock);
    if (backing->location == 0) {
        return -ENOMEM;
    }
    wh_store32(wh_arena_busy_word(client->buffers, backing->location), 1);
    backing->address = client->arena_base + backing->location + BACKING_GAP_BYTES;
    backing->serial = client->serial;
    return 0;
}

void wh_backing_free(struct wh_backing *backing, bool known_to_worker)
{
    int error = 0;
    if (backing->location == 0 || wh_session_serial() != backing->serial) {
        return;
    }
    struct wh_client *client = wh_client_get(&error);
    if (client != NULL) {
        pthread_mutex_lock(&client->arena_lock);
        if (known_to_worker) {
            wh_arena_defer(client->buffers, backing->location);
        } else {
            wh_arena_free(client->buffers, backing->location);
        }
        pthread_mutex_unlock(&client->arena_lock);
    }
    backing->location = 0;
}

void wh_backing_show(const struct wh_backing *backing, bool shown)
{
    int error = 0;
    if (backing->location == 0 || wh_session_serial() != backing->serial) {
        return;
    }
    struct wh_client *client = wh_client_get(&error);
    if (client != NULL) {
        pthread_mutex_lock(&client->arena_lock);
        wh_arena_show(client->buffers, backing->location, shown ? 1 : -1);
        pthread_mutex_unlock(&client->arena_lock);
    }
}

void wh_staging_free(struct wh_staging *staging)
{
    struct wh_client *client = client_of(staging);
    if (client != NULL && staging->token != 0) {
        (void)whFetch(staging->token, 0, NULL, 0);
    } else if (client != NULL) {
        release(client, staging->location, false);
    }
    staging->location = 0;
    staging->token = 0;
}

void wh_staging_lend(const struct wh_staging *staging)
{
    struct wh_client *client = client_of(staging);
    if (client != NULL && staging->location != 0) {
        wh_store32(wh_arena_busy_word(client->arena, staging->location), 1);
    }
}

void wh_staging_free_lent(struct wh_staging *staging)
{
    struct wh_client *client = client_of(staging);
    if (client != NULL && staging->location != 0) {
        release(client, staging->location, true);
    }
    staging->location = 0;
    staging->token = 0;
}

/* Sets the busy words that the worker will clear, and finishes the header. */
static void seal(struct wh_call *call, bool wants_reply)
{
    struct wh_request_header header = {.opcode = call->opcode, .sequence = 1};
    while (call->size_bytes % WH_REQUEST_ALIGN != 0) {
        wh_put_u64(call, 0);
    }
    header.size_bytes = (uint32_t)call->size_bytes;
    header.flags = wants_reply ? WH_REQUEST_FLAG_REPLY : 0;
    header.flags |= call->settles ? WH_REQUEST_FLAG_SETTLES : 0;
    memcpy(call->buffer->bytes, &header, sizeof(header));
    for (int i = 0; i < call->block_count; i++) {
        call->areas[i].outlives_call |= !wants_reply;
        if (call->areas[i].outlives_call) {
            wh_store32(wh_arena_busy_word(call->client->arena, call->areas[i].location), 1);
        }
    }
}

static int send_request(struct wh_call *call, struct wh_lane *lane)
{
    struct wh_counters *counters = &call->thread->counters;
    int error = call->client->transport->send(call->client, call->thread, lane, call->buffer->bytes,
                                              call->size_bytes);
    if (error == 0) {
        call->published = true;
        wh_count(&counters->messages, 1);
        wh_count(&counters->bytes_sent, call->size_bytes);
    }
    return error;
}

static void keep_async_error(struct wh_client *client, const struct wh_reply_header *reply)
{
    if (reply->async_error != 0) {
        uint64_t value = (uint64_t)reply->async_opcode << 32 | (uint32_t)reply->async_error;
        __atomic_store_n(&client->async_error, value, __ATOMIC_RELEASE);
    }
}

static int exchange(struct wh_call *call, struct wh_lane *lane)
{
    struct wh_counters *counters = &call->thread->counters;
    struct wh_reply_header reply;
    int error = send_request(call, lane);
    if (error != 0) {
        return error;
    }
    call->thread->habit = &call->thread->habits[call->opcode % WH_HABITS];
    error =
        call->client->transport->receive(call->client, call->thread, lane, call->buffer, &reply);
    call->thread->habit = NULL;
    if (error != 0) {
        return error;
    }
    call->reply_bytes = reply.size_bytes;
    call->notices = reply.notices;
    wh_count(&counters->round_trips, 1);
    wh_count(&counters->bytes_received, sizeof(reply) + reply.size_bytes);
    keep_async_error(call->client, &reply);
    return reply.status;
}

/* How long the worker has executed requests, by its own clock; nothing of it is known over TCP. */
static uint64_t worker_busy_ns(const struct wh_client *client)
{
    return wh_client_uses_shm(client) ? wh_load64(&client->header->busy_ns) : 0;
}

/* What the reply says beside its results. */
static void settle(struct wh_call *call)
{
    uint32_t number = call->notices >> WH_BATCH_SHIFT;
    wh_output_settle(call->opcode, (call->notices & WH_REPLY_NOTICE_OUTPUT) != 0);
    if (call->settles) {
        owe(call->thread, number);
    } else if (call->blocks && call->opcode != WH_OP_whWait) {
        wh_service_await(number);
    }
}

int wh_call_sync(struct wh_call *call)
{
    if (call->error != 0) {
        return call->error;
    }
    seal(call, true);
    struct wh_lane *lane = wh_lane_acquire(call->client, call->thread);
    if (lane == NULL) {
        fail(call, -EPIPE);
        return call->error;
    }
    uint64_t begin_ticks = wh_times_now();
    uint64_t busy_ns = begin_ticks != 0 ? worker_busy_ns(call->client) : 0;
    int error = exchange(call, lane);
    if (begin_ticks != 0) {
        busy_ns = worker_busy_ns(call->client) - busy_ns;
        wh_times_waited(&call->thread->span, call->opcode, begin_ticks, busy_ns);
    }
    wh_lane_release(lane);
    settle(call);
    if (error != 0) {
        fail(call, error);
    }
    return error;
}

static int send_oneway(struct wh_call *call)
{
    struct wh_lane *lane = NULL;
    seal(call, false);
    if (!wh_client_uses_shm(call->client)) {
        lane = wh_lane_acquire(call->client, call->thread);
        if (lane == NULL) {
            return -EPIPE;
        }
    }
    uint64_t begin_ticks = wh_times_now();
    int error = send_request(call, lane);
    wh_times_sent(&call->thread->span, call->opcode, begin_ticks);
    if (lane != NULL) {
        wh_lane_release(lane);
    }
    if (error == 0) {
        wh_count(&call->thread->counters.oneway, 1);
    }
    return error;
}

int wh_call_oneway(struct wh_call *call)
{
    int error = call->error;
    if (error == 0) {
        error = call->client->config->oneway ? send_oneway(call) : wh_call_sync(call);
    }
    wh_call_end(call);
    return error;
}

uint64_t wh_get_u64(struct wh_call *call)
{
    uint64_t value = 0;
    if (call->error != 0) {
        return 0;
    }
    if (call->reply_bytes - call->reply_used_bytes < sizeof(value)) {
        fail(call, -EBADMSG);
        return 0;
    }
    memcpy(&value, call->buffer->bytes + call->reply_used_bytes, sizeof(value));
    call->reply_used_bytes += sizeof(value);
    return value;
}

size_t wh_get_out(struct wh_call *call, void *to, size_t capacity_bytes)
{
    uint64_t written_bytes = wh_get_u64(call);
    if (call->error == 0 && call->out_next == call->out_count) {
        fail(call, -EINVAL);
    }
    if (call->error != 0) {
        return 0;
    }
    uint64_t location = call->outs[call->out_next].location;
    size_t limit_bytes = call->outs[call->out_next].capacity_bytes;
    call->out_next++;
    size_t padded_bytes = wh_align(written_bytes, WH_ITEM_BYTES);
    bool is_inline = location == WH_INLINE;
    if (written_bytes > limit_bytes ||
        (is_inline && padded_bytes > call->reply_bytes - call->reply_used_bytes)) {
        fail(call, -EBADMSG);
        return 0;
    }
    size_t copied_bytes = written_bytes < capacity_bytes ? written_bytes : capacity_bytes;
    if (to != NULL && copied_bytes > 0) {
        const uint8_t *from = is_inline ? call->buffer->bytes + call->reply_used_bytes
                                        : call->client->arena_base + location;
        uint64_t begin_ticks = is_inline ? 0 : wh_times_now();
        memcpy(to, from, copied_bytes);
        wh_times_copied(&call->thread->span, call->opcode, begin_ticks);
    }
    if (is_inline) {
        call->reply_used_bytes += padded_bytes;
    } else {
        wh_count(&call->thread->counters.bytes_received, written_bytes);
    }
    return written_bytes;
}

void wh_call_end(struct wh_call *call)
{
    if (call->buffer == NULL) {
        return;
    }
    for (int i = 0; i < call->block_count; i++) {
        bool busy = call->published && call->areas[i].outlives_call;
        release(call->client, call->areas[i].location, busy);
    }
    wh_buffer_give(call->thread, call->buffer);
    call->buffer = NULL;
}

int32_t wh_take_async(uint16_t *opcode)
{
    int error = 0;
    struct wh_client *client = wh_client_get(&error);
    if (client == NULL || wh_load64(&client->async_error) == 0) {
        return 0;
    }
    uint64_t value = __atomic_exchange_n(&client->async_error, 0, __ATOMIC_ACQ_REL);
    *opcode = (uint16_t)(value >> 32);
    return (int32_t)(uint32_t)value;
}

int32_t wh_take_async_error(void)
{
    uint16_t opcode = 0;
    return wh_take_async(&opcode);
}

uint64_t wh_published(void)
{
    int error = 0;
    const struct wh_client *client = wh_client_get(&error);
    return client != NULL && wh_client_uses_shm(client) ? wh_load64(&client->head) : 0;
}

bool wh_local_answers(void)
{
    return wh_config()->local;
}

bool wh_oneway_calls(void)
{
    return wh_config()->oneway;
}

void wh_count_bytes(size_t sent_bytes, size_t received_bytes)
{
    struct wh_thread *thread = wh_thread_get();
    if (thread != NULL) {
        wh_count(&thread->counters.bytes_sent, sent_bytes);
        wh_count(&thread->counters.bytes_received, received_bytes);
    }
}

uint64_t wh_copy_begin(void)
{
    return wh_times_now();
}

void wh_copy_end(uint64_t begun, uint16_t opcode)
{
    if (begun != 0) {
        wh_times_copied(&wh_thread_get()->span, opcode, begun);
    }
}

uint64_t wh_count_api_call(void)
{
    uint64_t begin_ticks = wh_times_now();
    struct wh_thread *thread = wh_thread_get();
    if (thread == NULL) {
        return 0;
    }
    wh_settle_local_answer(thread);
    wh_count(&thread->counters.api_calls, 1);
    if (begin_ticks != 0) {
        wh_times_api_begin(&thread->span, begin_ticks);
    }
    return begin_ticks;
}

void wh_end_api_call(void)
{
    wh_times_api_end(&wh_thread_get()->span);
}
