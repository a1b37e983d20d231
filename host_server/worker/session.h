/*
 * session.h - the worker's own state: the session, its threads and their requests. Private to the
 * worker and the replay client.
 */
#ifndef WH_WORKER_SESSION_H
#define WH_WORKER_SESSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "skeleton.h"
#include "wh_codec.h"

#define WH_EXECUTOR_MAX                                                                            \
    256 /* threads of a worker: shared memory needs slots + 1, TCP one per connection */
#define WH_OUTS_MAX 32 /* output areas of one call */
/* What a session's staging areas may take together: a client that keeps to cl_kept_bytes_max, which
 * hears of the end of an area later, gets along with half of it. */
#define WH_STAGING_BYTES_MAX ((uint64_t)2 << 30)
#define WH_SCRATCH_BYTES                                                                           \
    16384u /* of a thread, for output areas and copies; larger ones are allocated */

struct wh_handle_table;
struct wh_staging_area;
struct wh_backend;
struct wh_ring;
struct wh_callbacks;
struct wh_output;
struct wh_times;

/* What a worker counts; per thread, summed by the main thread. */
struct wh_worker_counters {
    uint64_t messages;
    uint64_t replies;
    uint64_t sleeps;
    uint64_t bytes_received; /* messages and bulk data; not what lies in mapped buffers */
    uint64_t bytes_sent;
};

struct wh_session {
    const struct wh_backend *backend;
    struct wh_handle_table *handles;
    uint64_t async_error; /* API error in the low half, opcode in the high half; 0 none */
    uint64_t oneway_nops; /* for whCount */

    /* Shared memory; NULL over TCP. */
    uint8_t *base;
    uint64_t size_bytes;
    struct wh_session_header *header;
    uint8_t *arena;
    uint64_t arena_bytes;
    struct wh_ring *ring;
    int wake_fd;
    uint64_t wakes_sent;

    /* TCP. */
    pthread_mutex_t turn_lock;
    pthread_cond_t turn_changed;
    uint32_t turn; /* sequence of the ordered request that may run */
    pthread_mutex_t staging_lock;
    struct wh_staging_area *staging;
    uint64_t staging_bytes;

    /* What only we can know, see notice.h. */
    struct wh_callbacks *callbacks;
    struct wh_output *output; /* NULL: descriptor 1 is nobody's business */
    bool output_is_direct;    /* the library writes to it, not through stdio */
    pthread_mutex_t notice_lock;
    pthread_cond_t notice_set;
    uint64_t notices; /* enum wh_wait_for */

    struct wh_times *times; /* NULL: nobody has asked, see times.h */

    bool notify_always;
    uint64_t spin_ticks;
    uint64_t burst_ticks; /* ring.c: a burst of one-way requests may grow for half a us */
    bool pause_is_cheap;
};

/* Results of one request. Private memory; copied to the client when complete. */
struct wh_reply {
    uint8_t *bytes;
    size_t size_bytes;
    size_t capacity_bytes;
    size_t limit_bytes; /* what the way back can carry */
    bool failed;        /* results did not fit, or no memory */
    int out_count;
    int out_next;
    struct {
        uint8_t *address;
        uint64_t location;
        uint64_t capacity_bytes;
    } outs[WH_OUTS_MAX];
};

/* The request that a thread executes, measured; see times.h. */
struct wh_span {
    uint64_t begin_ticks; /* 0: not measured */
    uint64_t executed_ticks;
    uint64_t leave_ticks; /* end of the latest part, 0 none */
    uint64_t part_ticks[4];
    bool inside; /* a part */
};

/* One thread that executes requests. */
struct wh_executor {
    struct wh_session *session;
    uint8_t *buffer; /* private copy of the request */
    size_t buffer_bytes;
    struct wh_reply reply;
    uint8_t *scratch;
    size_t scratch_used_bytes;
    void *large;  /* list of allocated scratch, linked through their first word */
    bool leads;   /* holds the leader role (shared memory) or the turn (TCP) */
    bool yielded; /* has given the role up since it last looked at the head */
    uint32_t turn;
    bool settles;   /* the request that runs takes the callbacks that it makes */
    uint32_t batch; /* of those it made, 0 none */
    struct wh_worker_counters counters;
    struct wh_span span;
};

/* The executor of the calling thread; NULL in threads that execute none (the backend's own). */
extern __thread struct wh_executor *wh_this_executor;

/* 0 or -ENOMEM. transport fields are set by the caller. */
int wh_session_init(struct wh_session *session);

struct wh_executor *wh_executor_create(struct wh_session *session, size_t buffer_bytes,
                                       size_t reply_limit_bytes);
void wh_executor_destroy(struct wh_executor *executor);

/*
 * Runs the request whose private copy is `bytes` (header included, size already checked). Returns
 * the status for the reply: 0, -ENOSYS, -EMSGSIZE; -EBADMSG means a malformed request, which ends
 * the session.
 */
int wh_execute(struct wh_executor *executor, const struct wh_request_header *header,
               const uint8_t *bytes);

/* Fills a reply header from the executor's results; takes the pending one-way error along. */
void wh_fill_reply_header(struct wh_executor *executor, struct wh_reply_header *header,
                          uint32_t sequence, int status);

/* Wakes the client's sleepers. From any thread. */
void wh_wake_client(struct wh_session *session);

/* After something that a sleeping client may wait for (ring space, a block) was released. */
void wh_wake_if_space_wanted(struct wh_session *session);

/* One line on stderr; the session is dead and the process ends with exit code 3. */
void wh_protocol_fault(struct wh_session *session, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

/* Handle table. */
struct wh_handle_table *wh_handle_table_create(void);
void wh_handle_table_destroy(struct wh_handle_table *table);

#endif
