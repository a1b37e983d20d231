/*
 * ring.c - consumes the request ring. The client's counterpart is guest_agent/stub/ring.c.
 *
 * All threads are alike. One holds the leader role and consumes; the others sleep in epoll_wait on
 * one epoll, whose edge-triggered eventfds wake one of them per notification. A leader gives the
 * role up when the ring stays empty or before a call that may block: it frees the role, raises
 * host_idle and looks at the ring once more. Whoever publishes later sees host_idle and notifies.
 */
#include "ring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "times.h"
#include "wh_spin.h"

#define WH_POLLS_PER_CLOCK 16
#define WH_TAIL_STEP_BYTES                                                                         \
    (WH_RING_BYTES / 8) /* how far the published tail may lag behind while there is work */
#define WH_THREADS_MAX (WH_SLOT_COUNT + 1)

struct wh_ring {
    struct wh_session *session;
    const uint8_t *bytes;
    uint8_t *slots;
    int epoll_fd;
    int relay_fd; /* eventfd: a thread of ours wakes another */

    uint32_t role; /* 1 while somebody leads; guards tail and tail_published */
    uint64_t tail;
    uint64_t tail_published;
    struct wh_spin_habit habit; /* of the leader's waits for requests; the role's */

    pthread_mutex_t threads_lock;
    uint32_t thread_count;
    uint32_t idle_count;
    struct wh_executor *executors[WH_THREADS_MAX];
};

static const struct wh_session_header *sound_header(const struct wh_session *session,
                                                    struct wh_session_header *copy)
{
    *copy = *session->header;
    uint64_t size_bytes = session->size_bytes;
    bool sound =
        copy->magic == WH_MAGIC && copy->version == WH_PROTOCOL_VERSION &&
        copy->spec_hash == WH_SPEC_HASH && copy->session_bytes == size_bytes &&
        copy->slot_count == WH_SLOT_COUNT && copy->ring_offset <= size_bytes &&
        size_bytes - copy->ring_offset >= WH_RING_BYTES && copy->slots_offset <= size_bytes &&
        size_bytes - copy->slots_offset >= (uint64_t)WH_SLOT_COUNT * WH_SLOT_BYTES &&
        copy->arena_offset <= size_bytes && copy->arena_bytes <= size_bytes - copy->arena_offset &&
        (copy->ring_offset | copy->slots_offset | copy->arena_offset) % WH_PAGE_BYTES == 0;
    return sound ? copy : NULL;
}

static int watch(int epoll_fd, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

int wh_ring_init(struct wh_session *session, int notify_fd)
{
    struct wh_session_header copy;
    const struct wh_session_header *header = sound_header(session, &copy);
    if (header == NULL) {
        return -EPROTO;
    }
    struct wh_ring *ring = calloc(1, sizeof(*ring));
    if (ring == NULL) {
        return -ENOMEM;
    }
    ring->session = session;
    ring->bytes = session->base + header->ring_offset;
    ring->slots = session->base + header->slots_offset;
    ring->tail = header->tail;
    ring->tail_published = header->tail;
    pthread_mutex_init(&ring->threads_lock, NULL);
    session->arena = session->base + header->arena_offset;
    session->arena_bytes = header->arena_bytes;
    session->ring = ring;
    ring->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    ring->relay_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->epoll_fd < 0 || ring->relay_fd < 0) {
        return -errno;
    }
    int error = watch(ring->epoll_fd, notify_fd);
    return error != 0 ? error : watch(ring->epoll_fd, ring->relay_fd);
}

static void write_one(int fd)
{
    const uint64_t one = 1;
    /* A full counter means that a wake is pending, which is all that is wanted. */
    ssize_t written = write(fd, &one, sizeof(one));
    (void)written;
}

void wh_wake_client(struct wh_session *session)
{
    uint64_t sent = __atomic_add_fetch(&session->wakes_sent, 1, __ATOMIC_RELAXED);
    /* Shown at once, so that the client's marks tell the wakes of each step apart. */
    wh_store64(&session->header->wakes_sent, sent);
    write_one(session->wake_fd);
}

void wh_wake_if_space_wanted(struct wh_session *session)
{
    /* Pairs with begin_waiting in the client, which counts itself, fences and rechecks. The count
     * is left alone: every waiter has a word of its own, and this may not be the one of all. */
    wh_fence();
    if (wh_load32(&session->header->space_waiting) != 0) {
        wh_wake_client(session);
    }
}

static void publish_tail(struct wh_ring *ring)
{
    if (ring->tail_published != ring->tail) {
        ring->tail_published = ring->tail;
        /* Pairs with the client's acquire load before it writes over what we have read. */
        wh_store_release64(&ring->session->header->tail, ring->tail);
        wh_wake_if_space_wanted(ring->session);
    }
}

/* The role. */

static bool take_role(struct wh_ring *ring)
{
    if (wh_load32(&ring->role) != 0 || __atomic_exchange_n(&ring->role, 1, __ATOMIC_SEQ_CST) != 0) {
        return false;
    }
    wh_store32(&ring->session->header->host_idle, 0);
    return true;
}

static bool ring_is_empty(const struct wh_ring *ring)
{
    return wh_load_acquire64(&ring->session->header->head) == wh_load64(&ring->tail);
}

/*
 * Frees the role and raises host_idle, in this order: whoever takes the flag wakes a thread that
 * then finds the role free. The other way round a client that was late to look at the flag, its
 * request long consumed, could take it before the role was free; the woken thread went back to
 * sleep, and with nobody leading and no flag up the next request would have woken nobody. True if a
 * request came meanwhile that may have seen neither.
 */
static bool free_role(struct wh_ring *ring)
{
    publish_tail(ring);
    __atomic_store_n(&ring->role, 0, __ATOMIC_SEQ_CST);
    /* Pairs with the client, which stores head, fences and looks at host_idle. */
    wh_store32(&ring->session->header->host_idle, 1);
    wh_fence();
    return !ring_is_empty(ring);
}

static void *run_thread(void *argument);

/* A thread that can be woken must exist before a leader blocks. */
static int ensure_follower(struct wh_ring *ring)
{
    int error = 0;
    pthread_mutex_lock(&ring->threads_lock);
    if (ring->idle_count == 0 && ring->thread_count < WH_THREADS_MAX) {
        pthread_t thread;
        struct wh_executor *executor = wh_executor_create(
            ring->session, WH_REQUEST_BYTES_MAX,
            WH_SLOT_BYTES - sizeof(struct wh_slot_header) - sizeof(struct wh_reply_header));
        error = executor == NULL ? ENOMEM : pthread_create(&thread, NULL, run_thread, executor);
        if (error == 0) {
            pthread_detach(thread);
            ring->executors[ring->thread_count++] = executor;
            ring->idle_count++; /* it begins as one */
        } else if (executor != NULL) {
            wh_executor_destroy(executor);
        }
    }
    pthread_mutex_unlock(&ring->threads_lock);
    return -error;
}

int wh_ring_start(struct wh_session *session)
{
    return ensure_follower(session->ring);
}

void wh_ring_yield(struct wh_executor *executor)
{
    struct wh_ring *ring = executor->session->ring;
    ensure_follower(ring);
    executor->leads = false;
    executor->yielded = true;
    if (free_role(ring)) {
        write_one(ring->relay_fd);
    }
}

void wh_ring_return(struct wh_executor *executor)
{
    executor->leads = take_role(executor->session->ring);
}

/* Consuming. */

/* Copies the next request out; false if it was filler. A malformed one ends the session. */
static bool take_request(struct wh_ring *ring, struct wh_executor *executor, uint64_t head,
                         struct wh_request_header *header)
{
    wh_times_begin(executor);
    uint64_t offset = ring->tail & (WH_RING_BYTES - 1);
    uint64_t to_end = WH_RING_BYTES - offset;
    uint64_t available = head - ring->tail < to_end ? head - ring->tail : to_end;
    memcpy(header, ring->bytes + offset, sizeof(*header));
    uint32_t size_bytes = header->size_bytes;
    if (size_bytes < sizeof(*header) || size_bytes % WH_REQUEST_ALIGN != 0 ||
        size_bytes > available) {
        wh_protocol_fault(ring->session, "a request of %u bytes where %llu are published",
                          size_bytes, (unsigned long long)available);
    }
    if ((header->flags & WH_REQUEST_FLAG_PAD) != 0) {
        wh_store64(&ring->tail, ring->tail + size_bytes);
        return false;
    }
    bool wants_reply = (header->flags & WH_REQUEST_FLAG_REPLY) != 0;
    if (size_bytes > WH_REQUEST_BYTES_MAX || header->slot >= WH_SLOT_COUNT ||
        (wants_reply && header->sequence == 0)) {
        wh_protocol_fault(ring->session, "a request with %u bytes, slot %u, sequence %u",
                          size_bytes, header->slot, header->sequence);
    }
    memcpy(executor->buffer + sizeof(*header), ring->bytes + offset + sizeof(*header),
           size_bytes - sizeof(*header));
    wh_store64(&ring->tail, ring->tail + size_bytes);
    return true;
}

static void send_reply(struct wh_ring *ring, struct wh_executor *executor,
                       const struct wh_request_header *header, int status)
{
    uint8_t *slot = ring->slots + (size_t)header->slot * WH_SLOT_BYTES;
    struct wh_slot_header *flags = (struct wh_slot_header *)(void *)slot;
    struct wh_reply_header *to = (struct wh_reply_header *)(void *)(slot + sizeof(*flags));
    struct wh_reply_header reply;
    wh_fill_reply_header(executor, &reply, header->sequence, status);
    memcpy(to + 1, executor->reply.bytes, reply.size_bytes);
    memcpy(&to->size_bytes, &reply.size_bytes,
           sizeof(reply) - offsetof(struct wh_reply_header, size_bytes));
    /* Pairs with the client's acquire load of ready. */
    wh_store_release32(&to->ready, reply.ready);
    /* Pairs with begin_waiting in the client, which says what it waits for, fences and rechecks. */
    wh_fence();
    bool waits = wh_take_flag_of(&flags->waiting, reply.ready);
    if (waits || ring->session->notify_always) {
        wh_wake_client(ring->session);
    }
}

static void handle(struct wh_ring *ring, struct wh_executor *executor,
                   const struct wh_request_header *header)
{
    int status = wh_execute(executor, header, executor->buffer);
    if (status == -EBADMSG) {
        wh_protocol_fault(ring->session, "malformed arguments of opcode %u", header->opcode);
    }
    wh_times_executed(executor);
    if ((header->flags & WH_REQUEST_FLAG_REPLY) != 0) {
        send_reply(ring, executor, header, status);
    }
    wh_times_end(executor, header);
}

/*
 * In a burst of one-way requests every look at head takes its cache line from the client, which
 * then waits for it before it can publish the next one. Nobody waits for an answer, so leave the
 * line with the client for a moment and take several requests at once.
 */
static void let_burst_grow(const struct wh_session *session)
{
    uint64_t start_ticks = wh_ticks();
    while (wh_ticks() - start_ticks < session->burst_ticks) {
        wh_pause(session->pause_is_cheap);
    }
}

/* Spins until there is a request or the bound has passed; returns the head seen. */
static uint64_t wait_for_request(struct wh_ring *ring)
{
    const struct wh_session *session = ring->session;
    const uint64_t *word = &session->header->head;
    const uint64_t spin_ticks = wh_spin_bound(&ring->habit, session->spin_ticks);
    uint64_t start_ticks = 0;
    uint64_t head = 0;
    do {
        for (int i = 0; i < WH_POLLS_PER_CLOCK; i++) {
            /* Pairs with the client's release store after it has written the request. */
            head = wh_load_acquire64(word);
            if (head != ring->tail) {
                wh_spin_ended(&ring->habit, true);
                return head;
            }
            if (spin_ticks == 0) {
                return head;
            }
            wh_pause(session->pause_is_cheap);
        }
        if (start_ticks == 0) {
            start_ticks = wh_ticks();
        }
    } while (wh_ticks() - start_ticks < spin_ticks);
    wh_spin_ended(&ring->habit, false);
    return head;
}

/* Consumes until the ring stays empty or a blocking call has cost us the role. */
static void lead(struct wh_ring *ring, struct wh_executor *executor)
{
    struct wh_request_header header;
    bool burst = false;
    executor->leads = true;
    executor->yielded = false;
    for (;;) {
        uint64_t head = wh_load_acquire64(&ring->session->header->head);
        if (head == ring->tail) {
            publish_tail(ring);
            if (burst) {
                let_burst_grow(ring->session);
                burst = false;
            }
            head = wait_for_request(ring);
        }
        uint64_t published_bytes = head - ring->tail;
        if (published_bytes == 0) {
            executor->leads = false;
            if (!free_role(ring) || !take_role(ring)) {
                return;
            }
            executor->leads = true;
            continue;
        }
        if (published_bytes > WH_RING_BYTES || published_bytes % WH_REQUEST_ALIGN != 0) {
            wh_protocol_fault(ring->session, "%llu bytes published in a ring of %u",
                              (unsigned long long)published_bytes, WH_RING_BYTES);
        }
        while (ring->tail != head) {
            if (ring->tail - ring->tail_published >= WH_TAIL_STEP_BYTES) {
                publish_tail(ring);
            }
            if (take_request(ring, executor, head, &header)) {
                handle(ring, executor, &header);
                burst = (header.flags & WH_REQUEST_FLAG_REPLY) == 0;
            }
            if (!executor->leads) {
                return;
            }
            if (executor->yielded) {
                /* Others have consumed meanwhile: the head seen before may lie behind the tail now.
                 */
                executor->yielded = false;
                break;
            }
        }
    }
}

static void change_idle(struct wh_ring *ring, uint32_t change)
{
    pthread_mutex_lock(&ring->threads_lock);
    ring->idle_count += change;
    pthread_mutex_unlock(&ring->threads_lock);
}

static void *run_thread(void *argument)
{
    struct wh_executor *executor = argument;
    struct wh_ring *ring = executor->session->ring;
    struct epoll_event event;
    wh_this_executor = executor;
    for (;;) {
        if (take_role(ring)) {
            change_idle(ring, (uint32_t)-1);
            lead(ring, executor);
            change_idle(ring, 1);
            /* A request that came while we were not counted idle has notified nobody but us. */
            if (!ring_is_empty(ring)) {
                continue;
            }
        }
        wh_count(&executor->counters.sleeps, 1);
        epoll_wait(ring->epoll_fd, &event, 1, -1);
    }
    return NULL;
}

void wh_ring_counters(struct wh_session *session, struct wh_worker_counters *totals)
{
    struct wh_ring *ring = session->ring;
    pthread_mutex_lock(&ring->threads_lock);
    for (uint32_t i = 0; i < ring->thread_count; i++) {
        const struct wh_worker_counters *counters = &ring->executors[i]->counters;
        totals->messages += wh_load64(&counters->messages);
        totals->replies += wh_load64(&counters->replies);
        totals->sleeps += wh_load64(&counters->sleeps);
        totals->bytes_received += wh_load64(&counters->bytes_received);
        totals->bytes_sent += wh_load64(&counters->bytes_sent);
    }
    pthread_mutex_unlock(&ring->threads_lock);
}
