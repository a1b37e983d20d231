/*
 * call.h - one forwarded call, as generated and manual stubs see it.
 *
 * A stub begins a call, puts its arguments in the order of the spec, sends it one way or waits for the reply, gets the results in
 * order, and ends it. The request is built in a buffer of the calling thread, so nothing is shared until it is published whole.
 *
 *     struct wh_call call;
 *     if (wh_call_begin(&call, WH_OP_clFinish) != 0) { return CL_DEVICE_NOT_AVAILABLE; }
 *     wh_put_u64(&call, wh_handle_of(queue));
 *     if (wh_call_sync(&call) != 0) { wh_call_end(&call); return CL_DEVICE_NOT_AVAILABLE; }
 *     cl_int error = (cl_int)wh_get_u64(&call);
 *     wh_call_end(&call);
 */
#ifndef WH_CALL_H
#define WH_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_block; /* an arena block, see arena.h */

#define WH_CALL_BLOCKS_MAX 16

/* State of one call. Lives on the caller's stack; the fields belong to call.c. */
struct wh_call {
    uint8_t *buffer;        /* request under construction (thread-local) */
    size_t size_bytes;      /* bytes put so far, header included */
    const uint8_t *reply;   /* results of the reply */
    size_t reply_bytes;
    size_t reply_used_bytes;
    uint16_t opcode;
    bool failed;            /* sticky: first failed put or get wins; wh_call_sync then returns -errno without sending */
    int error;
    uint32_t slot;
    int block_count;        /* arena blocks that end with this call */
    uint64_t blocks[WH_CALL_BLOCKS_MAX];
    int out_count;          /* output areas asked for, for wh_get_out */
    struct {
        uint64_t location;
        size_t capacity_bytes;
    } outs[WH_CALL_BLOCKS_MAX];
    int out_next;
};

/* Opens the session on first use. Returns 0 or -errno (no server, version mismatch, session dead). */
int wh_call_begin(struct wh_call *call, uint16_t opcode);

void wh_put_u64(struct wh_call *call, uint64_t value);

/* Bytes of the caller; NULL pointer is kept as WH_NULL. Large ones go through the arena (shm) or inline (tcp). */
void wh_put_blob(struct wh_call *call, const void *bytes, size_t size_bytes);

/* Like wh_put_blob, for data that the worker may read after the call ended (one-way bulk writes): the block is freed when the worker clears `busy`. */
void wh_put_bulk(struct wh_call *call, const void *bytes, size_t size_bytes);

/* Reserves room for an output of at most capacity_bytes. wanted=false: the caller passed NULL. Results come with wh_get_out in the same order. */
void wh_put_out(struct wh_call *call, size_t capacity_bytes, bool wanted);

/* An output area that outlives the call (non-blocking reads). Writes its location; *address is where the data will be,
 * or NULL over TCP, where the data must be fetched by a later call (WH_OP_whFetch with this token). Free with wh_staging_free. */
struct wh_staging {
    void *address;
    uint64_t location; /* arena offset, or 0 over TCP */
    uint64_t token;    /* nonzero over TCP */
    size_t size_bytes;
};
int wh_put_staging(struct wh_call *call, struct wh_staging *staging, size_t size_bytes);
void wh_staging_free(struct wh_staging *staging);

/* Publishes without waiting. Returns 0 or -errno (session dead). With the one-way switch off it waits for an empty reply. Ends the call. */
int wh_call_oneway(struct wh_call *call);

/* Publishes and waits. Returns 0, or -errno: transport failed, or the worker's status was not 0. */
int wh_call_sync(struct wh_call *call);

uint64_t wh_get_u64(struct wh_call *call);

/* Copies the next output area to `to` (may be NULL: skipped); returns the bytes that the worker wrote (<= capacity). */
size_t wh_get_out(struct wh_call *call, void *to, size_t capacity_bytes);

/* Frees buffers and the blocks of a sync call. */
void wh_call_end(struct wh_call *call);

/* API error of an earlier one-way call, reported once; 0 if none. */
int32_t wh_take_async_error(void);

/* Switches (read once). */
bool wh_local_answers(void);
bool wh_oneway_calls(void);

/* Counts an API call of the application (every entry point, forwarded or local). */
void wh_count_api_call(uint16_t opcode);

/* The session's serial number: changes when the session was lost or the process forked; 0 before the first call. Objects of another serial are stale. */
uint32_t wh_session_serial(void);

#endif
