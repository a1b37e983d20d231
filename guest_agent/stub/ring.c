/*
 * ring.c - publishes requests and waits for replies. The worker's counterpart is
 * host_server/worker/ring.c.
 */
#include "ring.h"

#include <errno.h>

#define WH_POLLS_PER_CLOCK 16 /* looks at the word between two looks at the clock */

/* Whether the host still lives, for a sleeper: its heart must beat within the limit. */
struct heartbeat {
    uint64_t value;
    uint64_t since_ns;
};

static int check_heartbeat(struct wh_client *client, struct heartbeat *heartbeat)
{
    uint64_t value = wh_load64(&client->header->heartbeat);
    uint64_t now_ns = wh_now_ns();
    if (heartbeat->since_ns == 0 || value != heartbeat->value) {
        heartbeat->value = value;
        heartbeat->since_ns = now_ns;
        return 0;
    }
    if (now_ns - heartbeat->since_ns < WH_HEARTBEAT_LIMIT_NS) {
        return 0;
    }
    return wh_client_fail(client, "the worker's heartbeat has stood still for 10 s");
}

static bool spin(struct wh_client *client, struct wh_thread *thread, const uint32_t *word,
                 uint32_t value)
{
    const struct wh_config *config = client->config;
    struct wh_spin_habit *habit = wh_thread_habit(thread);
    const uint64_t spin_ticks = thread->idle ? 0 : wh_spin_bound(habit, config->spin_ticks);
    uint64_t start_ticks = 0;
    do {
        for (int i = 0; i < WH_POLLS_PER_CLOCK; i++) {
            /* Pairs with the worker's release store of the same word. */
            if (wh_load_acquire32(word) != value) {
                wh_spin_ended(habit, true);
                return true;
            }
            if (spin_ticks == 0) {
                return false;
            }
            wh_pause(config->pause_is_cheap);
        }
        if (start_ticks == 0) {
            start_ticks = wh_ticks();
        }
    } while (wh_ticks() - start_ticks < spin_ticks && wh_client_check(client) == 0);
    wh_spin_ended(habit, false);
    return false;
}

/* Milliseconds to sleep before the next look; 0 once the deadline has passed. */
static int look_interval_ms(const struct wh_thread *thread, uint64_t deadline_ns)
{
    const int most_ms = wh_look_interval_ms(thread);
    uint64_t now_ns = deadline_ns == UINT64_MAX ? 0 : wh_now_ns();
    uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / 1000000u + 1 : 0;
    return left_ms < (uint64_t)most_ms ? (int)left_ms : most_ms;
}

/*
 * Whom a sleeper asks to be woken: the worker thread that answers `sequence` in its reply slot, or,
 * with no slot, whoever makes room in the ring or in the arena.
 */
struct sleeper {
    uint32_t *waiting; /* of the reply slot; NULL */
    uint32_t sequence;
};

/*
 * A reply slot has one waiter. Its flag is the sequence that it waits for, since a worker thread
 * may be late to look at the flag for the reply before: it must not take this one's. For room
 * several threads wait, each for a word of its own: there the flag is a count, which the worker
 * only reads, so that no waiter's waking or giving up silences another.
 */
static void begin_waiting(struct wh_client *client, const struct sleeper *sleeper)
{
    if (sleeper->waiting != NULL) {
        wh_store32(sleeper->waiting, sleeper->sequence);
    } else {
        __atomic_add_fetch(&client->header->space_waiting, 1, __ATOMIC_SEQ_CST);
    }
    /* Pairs with the fence in the worker between storing the word and looking at the flag. */
    wh_fence();
}

static void end_waiting(struct wh_client *client, const struct sleeper *sleeper)
{
    if (sleeper->waiting != NULL) {
        wh_store32(sleeper->waiting, 0);
    } else {
        __atomic_sub_fetch(&client->header->space_waiting, 1, __ATOMIC_SEQ_CST);
    }
}

/* Sleeps once. 0: look again; -ETIMEDOUT; -EPIPE if the session died. */
static int sleep_once(struct wh_client *client, struct wh_thread *thread, const uint32_t *word,
                      uint32_t value, uint64_t deadline_ns, struct heartbeat *heartbeat)
{
    int interval_ms = look_interval_ms(thread, deadline_ns);
    if (interval_ms == 0) {
        return -ETIMEDOUT;
    }
    int error = client->transport->sleep(client, thread, word, value, interval_ms);
    if (wh_load_acquire32(word) != value) {
        return 0;
    }
    if (error == -EPIPE) {
        return wh_client_fail(client, "the host server closed it");
    }
    error = wh_client_check(client);
    return error != 0 ? error : check_heartbeat(client, heartbeat);
}

/* Spins, then sleeps until the word differs from `value`. 0, -ETIMEDOUT, or -EPIPE. */
static int wait_until(struct wh_client *client, struct wh_thread *thread, const uint32_t *word,
                      uint32_t value, struct sleeper sleeper, uint64_t deadline_ns)
{
    struct heartbeat heartbeat = {0};
    if (spin(client, thread, word, value)) {
        return 0;
    }
    wh_count(&thread->counters.sleeps, 1);
    for (;;) {
        /* Again before every sleep: the worker may have taken the flag for an earlier wake. */
        begin_waiting(client, &sleeper);
        int error = 0;
        if (wh_load_acquire32(word) == value) {
            error = sleep_once(client, thread, word, value, deadline_ns, &heartbeat);
        }
        end_waiting(client, &sleeper);
        if (error != 0 || wh_load_acquire32(word) != value) {
            return error;
        }
    }
}

int wh_ring_wait_for_room(struct wh_client *client, struct wh_thread *thread, const uint32_t *word,
                          uint32_t value, uint64_t deadline_ns)
{
    return wait_until(client, thread, word, value, (struct sleeper){0}, deadline_ns);
}

/* Waits until `size_bytes` fit behind head; the publish lock is held. */
static int wait_for_space(struct wh_client *client, struct wh_thread *thread, uint64_t size_bytes)
{
    struct wh_session_header *header = client->header;
    bool counted = false;
    for (;;) {
        uint64_t tail = wh_load_acquire64(&header->tail);
        if (client->head - tail > WH_RING_BYTES) {
            return wh_client_fail(client, "the worker's tail is outside the ring");
        }
        client->tail_seen = tail;
        if (client->head - tail + size_bytes <= WH_RING_BYTES) {
            return 0;
        }
        if (!counted) {
            wh_count(&thread->counters.ring_full, 1);
            counted = true;
        }
        /* The low half of the tail changes with every request consumed. */
        const uint32_t *word = (const uint32_t *)(const void *)&header->tail;
        int error = wh_ring_wait_for_room(client, thread, word, (uint32_t)tail, UINT64_MAX);
        if (error != 0) {
            return error;
        }
    }
}

static void put_pad(struct wh_client *client, uint64_t offset, uint64_t size_bytes)
{
    struct wh_request_header pad = {.size_bytes = (uint32_t)size_bytes,
                                    .flags = WH_REQUEST_FLAG_PAD};
    memcpy(client->ring + offset, &pad, sizeof(pad));
    client->head += size_bytes;
}

static int publish(struct wh_client *client, struct wh_thread *thread, const uint8_t *request,
                   size_t size_bytes)
{
    uint64_t offset = client->head & (WH_RING_BYTES - 1);
    uint64_t to_end = WH_RING_BYTES - offset;
    uint64_t needed = size_bytes + (to_end < size_bytes ? to_end : 0);
    if (client->head - client->tail_seen + needed > WH_RING_BYTES) {
        int error = wait_for_space(client, thread, needed);
        if (error != 0) {
            return error;
        }
    }
    if (to_end < size_bytes) {
        put_pad(client, offset, to_end);
        offset = 0;
    }
    memcpy(client->ring + offset, request, size_bytes);
    client->head += size_bytes;
    /* Pairs with the worker's acquire load of head. */
    wh_store_release64(&client->header->head, client->head);
    return 0;
}

int wh_ring_send(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                 uint8_t *request, size_t size_bytes)
{
    struct wh_request_header *header = (struct wh_request_header *)(void *)request;
    if (size_bytes > WH_REQUEST_BYTES_MAX) {
        return -EMSGSIZE;
    }
    if (lane != NULL) {
        lane->sequence = wh_next_sequence(lane->sequence);
        header->slot = wh_lane_index(client, lane);
        header->sequence = lane->sequence;
    }
    pthread_mutex_lock(&client->publish_lock);
    int error = wh_client_check(client);
    if (error == 0) {
        error = publish(client, thread, request, size_bytes);
    }
    pthread_mutex_unlock(&client->publish_lock);
    if (error != 0) {
        return error;
    }
    /* Pairs with the worker, which stores host_idle, fences and rechecks head before it sleeps. */
    wh_fence();
    bool idle = wh_take_flag(&client->header->host_idle);
    if (!idle && !client->config->notify_always) {
        return 0;
    }
    wh_count(&thread->counters.notifications_sent, 1);
    error = client->transport->notify(client);
    return error == 0 ? 0 : wh_client_fail(client, "notifying the worker failed");
}

int wh_ring_receive(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                    struct wh_buffer *buffer, struct wh_reply_header *header)
{
    uint8_t *slot = client->slots + (size_t)wh_lane_index(client, lane) * WH_SLOT_BYTES;
    struct wh_slot_header *flags = (struct wh_slot_header *)(void *)slot;
    struct wh_reply_header *reply = (struct wh_reply_header *)(void *)(slot + sizeof(*flags));
    const struct sleeper sleeper = {.waiting = &flags->waiting, .sequence = lane->sequence};
    const size_t room = WH_SLOT_BYTES - sizeof(*flags) - sizeof(*reply);
    for (;;) {
        uint32_t ready = wh_load_acquire32(&reply->ready);
        if (ready == lane->sequence) {
            break;
        }
        int error = wait_until(client, thread, &reply->ready, ready, sleeper, UINT64_MAX);
        if (error != 0) {
            return error;
        }
    }
    *header = *reply;
    if (header->size_bytes > room) {
        return wh_client_fail(client, "a reply is longer than its slot");
    }
    if (!wh_buffer_grow(buffer, header->size_bytes)) {
        return -ENOMEM;
    }
    memcpy(buffer->bytes, reply + 1, header->size_bytes);
    return 0;
}
