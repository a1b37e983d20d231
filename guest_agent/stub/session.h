/*
 * session.h - the process's one session with the host server, its lanes and its threads. Private to
 * the stub's runtime.
 *
 * A lane is what one waiting call needs: a reply slot over shared memory, a connection over TCP. A
 * thread keeps coming back to its own lane, and takes another only if that one is in use (more than
 * WH_LANE_COUNT threads, or a nested call).
 */
#ifndef WH_SESSION_H
#define WH_SESSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "config.h"
#include "stats.h"
#include "times.h"
#include "wh_codec.h"
#include "wh_spin.h"

#define WH_LANE_COUNT WH_SLOT_COUNT
/* Threads in calls that may wait for long: the rest of the lanes is for calls that end the wait. */
#define WH_BLOCKING_MAX (WH_LANE_COUNT - 8u)
#define WH_TRANSFERS_BYTES (64ull << 20) /* of the arena, where half of it has as much */
#define WH_OPEN_TIMEOUT_MS 30000 /* the server may have to start a worker and load a backend */
#define WH_LOOK_INTERVAL_MS 100  /* how often a sleeper looks whether the host still lives */
#define WH_IDLE_INTERVAL_MS 1000 /* the same for a thread that only waits for the server */
#define WH_OWED_MAX 8u           /* batches of one API call: an object and its parents may end */
#define WH_HEARTBEAT_LIMIT_NS 10000000000ull

struct wh_buffer {
    uint8_t *bytes;
    size_t capacity_bytes;
    struct wh_buffer *next;
};

#define WH_HABITS 64u /* a function's waits go by its opcode's remainder */

/* One application thread that has called the stub; registered so that counters can be summed. */
struct wh_thread {
    struct wh_thread *next;
    struct wh_thread *previous;
    uint32_t number;
    uint32_t lane; /* where it looks first */
    struct wh_counters counters;
    struct wh_span span;
    bool serves; /* a thread of the stub's own */
    bool idle;   /* waits for the server alone: no spinning, few looks */
    uint32_t owed_count;
    uint32_t owed_batches[WH_OWED_MAX];     /* callbacks that its calls made, see wh_take_owed */
    uint64_t messages_before;               /* counters.messages when the latest API call began */
    struct wh_buffer *buffers;              /* free ones */
    struct wh_spin_habit habits[WH_HABITS]; /* of its waits for replies */
    struct wh_spin_habit room;              /* of those for room in the ring or the arena */
    struct wh_spin_habit *habit;            /* that of the reply it waits for; NULL: `room` */
    int epoll_fd;                           /* unix: its own look at the wake eventfd; -1 none */
    uint32_t epoll_serial;                  /* of the session that epoll_fd belongs to */
};

static inline struct wh_spin_habit *wh_thread_habit(struct wh_thread *thread)
{
    return thread->habit != NULL ? thread->habit : &thread->room;
}

struct wh_lane {
    uint32_t busy;
    uint32_t sequence;
    int socket; /* TCP, -1 none */
    bool recorded;
} __attribute__((aligned(64)));

enum wh_session_state {
    WH_SESSION_NONE,
    WH_SESSION_READY,
    WH_SESSION_DEAD,
};

struct wh_client;

/* What differs between the ways to reach a server. Functions return 0 or -errno. */
struct wh_transport {
    int (*open)(struct wh_client *client);
    /* Publishes header and arguments. */
    int (*send)(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                uint8_t *request, size_t size_bytes);
    /* Waits for the lane's reply; its results are then in *buffer. */
    int (*receive)(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                   struct wh_buffer *buffer, struct wh_reply_header *header);
    /* Shared memory only: a notification to the worker; sleep until *word may differ from value. */
    int (*notify)(struct wh_client *client);
    int (*sleep)(struct wh_client *client, struct wh_thread *thread, const uint32_t *word,
                 uint32_t value, int timeout_ms);
};

struct wh_client {
    uint32_t state; /* enum wh_session_state */
    uint32_t serial;
    const struct wh_config *config;
    const struct wh_transport *transport;

    /* Shared memory. */
    uint8_t *base;
    uint64_t size_bytes;
    struct wh_session_header *header;
    uint8_t *ring;
    uint8_t *slots;
    uint8_t *arena_base;
    uint64_t arena_bytes;
    pthread_mutex_t publish_lock; /* head, tail_seen and the order of the ring */
    uint64_t head;
    uint64_t tail_seen;
    pthread_mutex_t arena_lock;
    uint64_t transfers_bytes; /* of the arena; the rest is the buffers' */
    struct wh_arena *arena;   /* blocks of calls and transfers */
    struct wh_arena *buffers; /* blocks that back a buffer as long as it lives */
    uint64_t stuck_block;     /* a busy block that nobody should wait for again */
    int device_fd;
    int notify_fd;
    int wake_fd;

    /* Unix: the connection is the session's life. TCP: lanes carry connections. */
    int socket;
    uint64_t tcp_session;
    uint32_t ticket; /* TCP: sequence numbers of the whole session */
    uint64_t token;  /* last staging token */

    uint64_t async_error; /* API error in the low half, opcode in the high half; 0 none */
    struct wh_lane lanes[WH_LANE_COUNT];
};

/* Sums of all threads of the process, those that ended included. */
void wh_counters_total(struct wh_counters *totals);

/* The open session, opening it if this is the first call. -errno in *error and NULL on failure. */
struct wh_client *wh_client_get(int *error);

/* Whether the thread's latest API call has sent no message (so far). */
static inline bool wh_answered_locally(const struct wh_thread *thread)
{
    return wh_load64(&thread->counters.api_calls) != 0 &&
           wh_load64(&thread->counters.messages) == wh_load64(&thread->messages_before);
}

/* At the beginning of the next API call: counts the one before if it was answered locally. */
static inline void wh_settle_local_answer(struct wh_thread *thread)
{
    if (wh_answered_locally(thread)) {
        wh_count(&thread->counters.local_answers, 1);
    }
    wh_store64(&thread->messages_before, wh_load64(&thread->counters.messages));
}

/* How often a thread that sleeps looks whether the host still lives. */
static inline int wh_look_interval_ms(const struct wh_thread *thread)
{
    return thread->idle ? WH_IDLE_INTERVAL_MS : WH_LOOK_INTERVAL_MS;
}

/* The calling thread's record; NULL without memory. */
struct wh_thread *wh_thread_get(void);

/* A lane for one call; waits if all are in use. */
struct wh_lane *wh_lane_acquire(struct wh_client *client, struct wh_thread *thread);
void wh_lane_release(struct wh_lane *lane);
uint32_t wh_lane_index(const struct wh_client *client, const struct wh_lane *lane);

/* Marks the session dead, once, with one line; every waiting and later call fails. Returns -EPIPE.
 */
int wh_client_fail(struct wh_client *client, const char *reason);

/* 0, or -EPIPE if the session is dead or the host says that it is. */
int wh_client_check(struct wh_client *client);

static inline bool wh_client_uses_shm(const struct wh_client *client)
{
    return client->base != NULL;
}

/* A buffer of the thread, at least capacity_bytes; NULL without memory. */
struct wh_buffer *wh_buffer_take(struct wh_thread *thread, size_t capacity_bytes);
void wh_buffer_give(struct wh_thread *thread, struct wh_buffer *buffer);
bool wh_buffer_grow(struct wh_buffer *buffer, size_t capacity_bytes);

/* A map of the session in fd (consumed or not by the caller's choice): checks the header, fills the
 * pointers. */
int wh_client_map(struct wh_client *client, int fd, uint64_t size_bytes);

/* Sends all, or gives -errno. Never raises SIGPIPE. */
int wh_send_all(int socket, const void *bytes, size_t size_bytes);

/* hello and welcome on a fresh connection; fds may be NULL. -errno with one line for a refusal. */
int wh_handshake(struct wh_client *client, int socket, uint64_t session, struct wh_welcome *welcome,
                 int *fds, int fd_count);

extern const struct wh_transport wh_transport_unix;
extern const struct wh_transport wh_transport_device;
extern const struct wh_transport wh_transport_tcp;

#endif
