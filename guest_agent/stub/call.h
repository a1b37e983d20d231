/*
 * call.h - one forwarded call, as generated and manual stubs see it.
 *
 * A stub begins a call, puts its arguments in the order of the spec, sends it one way or waits for
 * the reply, gets the results in order, and ends it. The request is built in a buffer of the
 * calling thread, so nothing is shared until it is published whole.
 *
 *     struct wh_call call;
 *     if (wh_call_begin(&call, WH_OP_clFinish) != 0) { return CL_DEVICE_NOT_AVAILABLE; }
 *     wh_put_u64(&call, wh_cl_handle(queue));
 *     if (wh_call_sync(&call) != 0) { wh_call_end(&call); return CL_DEVICE_NOT_AVAILABLE; }
 *     cl_int error = (cl_int)wh_get_u64(&call);
 *     wh_call_end(&call);
 */
#ifndef WH_CALL_H
#define WH_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WH_CALL_AREAS_MAX 16

struct wh_client;
struct wh_thread;
struct wh_buffer;

/* State of one call. Lives on the caller's stack; the fields belong to call.c. */
struct wh_call {
    struct wh_client *client;
    struct wh_thread *thread;
    struct wh_buffer *buffer; /* request under construction, then the results; NULL once ended */
    size_t size_bytes;        /* of the request so far, header included */
    size_t reply_bytes;
    size_t reply_used_bytes;
    size_t inline_out_bytes; /* what the reply slot must hold for output areas */
    uint16_t opcode;
    bool published;
    bool blocks;  /* wh_call_blocks */
    bool settles; /* wh_call_settles */
    uint32_t notices;
    uint32_t patience_ms;
    int error; /* sticky: the first failed put or get wins; wh_call_sync then returns it without
                  sending */
    int block_count;
    int out_count;
    int out_next;
    struct {
        uint64_t location;
        bool outlives_call; /* the worker clears its busy word when it has read it */
    } areas[WH_CALL_AREAS_MAX];
    struct {
        uint64_t location;
        size_t capacity_bytes;
    } outs[WH_CALL_AREAS_MAX];
};

/* Opens the session on first use. Returns 0 or -errno (no server, version mismatch, session dead).
 */
int wh_call_begin(struct wh_call *call, uint16_t opcode);

/* Says that the reply comes when commands are complete: then their callbacks have run, too. */
void wh_call_blocks(struct wh_call *call);

/*
 * Around calls whose reply may take as long as the application makes it. False: so many threads are
 * in such calls that one more could take the last way to the server from the one that is to end
 * their wait; then the thread has to get there without, in calls that end in any case.
 */
bool wh_blocking_begin(void);
void wh_blocking_end(void);

/* Says that the thread takes the callbacks that the server's library makes during this call
 * (wh_take_owed) before its API call returns. */
void wh_call_settles(struct wh_call *call);

/* Batches of callbacks that calls of this thread have made: the next one's number, 0 for none. */
uint32_t wh_take_owed(void);

/* How long puts wait for room in the arena (10 s unless said otherwise) before the call fails with
 * -ENOMEM. */
void wh_call_patience(struct wh_call *call, uint32_t patience_ms);

void wh_put_u64(struct wh_call *call, uint64_t value);

/* Bytes of the caller; NULL pointer is kept as WH_NULL. Large ones go through the arena (shm) or
 * inline (tcp). */
void wh_put_blob(struct wh_call *call, const void *bytes, size_t size_bytes);

/*
 * Data of any size: what one message cannot carry goes to the worker in pieces first, before the
 * call begins. Then wh_put_large puts its token, or the bytes themselves if the token is 0.
 */
int wh_send_large(const void *bytes, size_t size_bytes, uint64_t *token);
void wh_put_large(struct wh_call *call, const void *bytes, size_t size_bytes, uint64_t token);

/*
 * Like wh_put_blob, for data that the worker may read after the call ended (non-blocking bulk
 * writes): the block is freed when the worker clears `busy`. At most wh_bulk_limit bytes: split
 * larger data. Ask wh_may_hold first, and use wh_put_blob and let the worker copy if it says no.
 */
void wh_put_bulk(struct wh_call *call, const void *bytes, size_t size_bytes);

/*
 * Whether data that the worker may keep for long can have size_bytes of the arena: no more than
 * half of it, so that nothing else has to wait for the application. Waits up to patience_ms for
 * room.
 */
bool wh_may_hold(size_t size_bytes, uint32_t patience_ms);

/* Whether the session's data lies in memory that both sides see. */
bool wh_uses_shm(void);

/* Largest piece of data that one call should carry, in or out, in bytes; 0 without a session. */
size_t wh_bulk_limit(void);

/* Reserves room for an output of at most capacity_bytes. wanted=false: the caller passed NULL.
 * Results come with wh_get_out in the same order. */
void wh_put_out(struct wh_call *call, size_t capacity_bytes, bool wanted);

/*
 * An output area that outlives the call (non-blocking reads). In the request it is {size, location,
 * token}. The data is complete when the application has seen the operation complete; copy it then
 * with wh_staging_copy (over TCP, or when the arena has no room, that is a call, WH_OP_whFetch).
 * Free it in any case.
 */
struct wh_staging {
    uint64_t location; /* in the arena, else 0 */
    uint64_t token;    /* name of the worker's buffer, else 0 */
    size_t size_bytes;
    uint32_t serial;
};
int wh_put_staging(struct wh_call *call, struct wh_staging *staging, size_t size_bytes);
int wh_staging_copy(struct wh_staging *staging, void *to, size_t size_bytes);
void wh_staging_free(struct wh_staging *staging);

/* The worker reads the area, too: then it ends only when the worker says so. */
void wh_staging_lend(const struct wh_staging *staging);
void wh_staging_free_lent(struct wh_staging *staging);

/*
 * Memory that a buffer lives in, seen by both sides: page-aligned, in the request as its location.
 * The worker clears the block's busy word when nothing uses the buffer any more.
 */
struct wh_backing {
    uint64_t location; /* of the block; 0: none */
    uint8_t *address;  /* of the buffer's first byte */
    uint32_t serial;
};

/* 0, -ENOMEM without room, -ENOTSUP where client and server share no memory. */
int wh_backing_take(struct wh_backing *backing, size_t size_bytes);
void wh_backing_free(struct wh_backing *backing, bool known_to_worker); /* of location 0: nothing */

/* The application is given a pointer into it, or one less: what it sees so, a child of a fork sees,
 * too. */
void wh_backing_show(const struct wh_backing *backing, bool shown);

/*
 * Publishes without waiting. Returns 0 or -errno (session dead). With the one-way switch off it
 * waits for an empty reply, so that wh_take_async_error then gives this call's own error. Ends the
 * call.
 */
int wh_call_oneway(struct wh_call *call);

/* Publishes and waits. Returns 0, or -errno: transport failed, or the worker's status was not 0. */
int wh_call_sync(struct wh_call *call);

uint64_t wh_get_u64(struct wh_call *call);

/* Copies the next output area to `to` (NULL: skipped), at most capacity_bytes; returns the bytes
 * that the worker wrote. */
size_t wh_get_out(struct wh_call *call, void *to, size_t capacity_bytes);

/* Frees buffers and the blocks of a sync call. */
void wh_call_end(struct wh_call *call);

/* API error of an earlier one-way call that came with a reply, reported once to whoever asks first;
 * 0 if none. */
int32_t wh_take_async_error(void);

/* The same with the opcode of the call that failed. */
int32_t wh_take_async(uint16_t *opcode);

/* How much has been published in the session so far, by all threads: the same number twice says
 * that nothing was between. 0 where that is not known (TCP). */
uint64_t wh_published(void);

/* Switches (read once). */
bool wh_local_answers(void);
bool wh_oneway_calls(void);

/* Counts data that the caller copied in the session's memory itself. */
void wh_count_bytes(size_t sent_bytes, size_t received_bytes);

/* Around a copy of bulk data that the caller does itself, for the opcode that it belongs to. */
uint64_t wh_copy_begin(void);
void wh_copy_end(uint64_t begun, uint16_t opcode);

/*
 * Counts an API call of the application (every entry point, forwarded or local). WH_API_CALL also
 * measures it to the end of the block, where that is wanted (times.h): 0 if it is not.
 */
uint64_t wh_count_api_call(void);
void wh_end_api_call(void);
static inline void wh_api_call_ends(const uint64_t *measured)
{
    if (*measured != 0) {
        wh_end_api_call();
    }
}
#define WH_API_CALL()                                                                              \
    __attribute__((cleanup(wh_api_call_ends))) const uint64_t wh_api_call = wh_count_api_call()

/*
 * The session's serial number: changes when the session was lost or the process forked; 0 before
 * the first call. Objects of another serial are stale.
 */
uint32_t wh_session_serial(void);

#endif
