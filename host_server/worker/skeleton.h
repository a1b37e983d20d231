/*
 * skeleton.h - one request, as generated and manual skeletons see it.
 *
 * A skeleton takes the arguments in the order of the spec, calls the backend, and puts the results
 * in order. The request is a private copy: nothing here reads shared memory except wh_take_bulk and
 * the output areas, whose contents are data only. The first failed take sticks; a skeleton checks
 * wh_request_failed once before it calls the backend and then returns -EBADMSG.
 */
#ifndef WH_SKELETON_H
#define WH_SKELETON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wh_session; /* worker (or replay client): handle table, arena, backend state */

struct wh_request {
    const uint8_t *bytes; /* arguments */
    size_t size_bytes;
    size_t used_bytes;
    bool failed;
    bool oneway; /* no reply is wanted: an API error must go to wh_async_error */
    struct wh_session *session;
    struct wh_reply *reply;
};

uint64_t wh_take_u64(struct wh_request *request);

/* A private copy of the bytes (valid until the call ends), NULL if the client passed NULL or on
 * failure. At most limit_bytes. */
const void *wh_take_blob(struct wh_request *request, size_t *size_bytes, size_t limit_bytes);

/* Like wh_take_blob, for what may have come in pieces before (whPutStaging): then *owned is to be
 * freed. */
const void *wh_take_large(struct wh_request *request, size_t *size_bytes, size_t limit_bytes,
                          void **owned);

/* Bytes that may lie in shared memory and change under us: only for bulk data that the backend
 * copies. *block is the token for wh_bulk_done (0: inline). */
const void *wh_take_bulk(struct wh_request *request, size_t *size_bytes, uint64_t *block);
void wh_bulk_done(struct wh_session *session, uint64_t block);

/* The block whose data begins at an address that wh_take_staging gave, without a token. */
uint64_t wh_block_at(const struct wh_session *session, const void *address);

/* Memory of the session in which an object of size_bytes shall live, page-aligned; NULL without any
 * (*block is 0) or on failure. wh_bulk_done gives it back. */
void *wh_take_backing(struct wh_request *request, size_t size_bytes, uint64_t *block);

/* An output area of the client's capacity; NULL if not wanted. Finish each, in order, with
 * wh_reply_out and the bytes really written. */
void *wh_take_out(struct wh_request *request, size_t *capacity_bytes);
void wh_reply_out(struct wh_request *request, size_t written_bytes);

/* An output area that outlives the call (wh_put_staging). Over TCP a host buffer registered under
 * the token; NULL, of a request that has not failed, beyond what a session may have of those. */
void *wh_take_staging(struct wh_request *request, size_t *size_bytes, uint64_t *token);

/* Keeps the host buffer of a token until it is settled (again); false if it is released already.
 * True for token 0. */
bool wh_staging_keep(struct wh_session *session, uint64_t token);

/* Nothing writes into the host buffer of a token any more; until then it stays, whatever the client
 * says. No-op for token 0. */
void wh_staging_settled(struct wh_session *session, uint64_t token);

/* Releases the host buffer of a token once its data went out; no-op for token 0. */
void wh_staging_done(struct wh_session *session, uint64_t token);

/* Copies part of a token's buffer, which stays. 0, -ENOENT, or -EINVAL for a part outside it. */
int wh_staging_read(struct wh_session *session, uint64_t token, uint64_t offset, void *to,
                    uint64_t size_bytes);

/* Writes part of a token's buffer that the client fills; the part at offset 0 makes it. 0, -ENOMEM,
 * or as above. */
int wh_staging_write(struct wh_session *session, uint64_t token, uint64_t total_bytes,
                     uint64_t offset, const void *from, uint64_t size_bytes);

/* Memory until the call ends, for lists made of a request. NULL and a failed request without
 * memory. */
void *wh_scratch(struct wh_request *request, size_t size_bytes);

void wh_reply_u64(struct wh_request *request, uint64_t value);

bool wh_request_failed(const struct wh_request *request);

/* Handle table: kind (1..255) checked, generation checked. NULL handle gives NULL and no failure. A
 * stale, foreign or wrong-kind handle gives *valid=false. */
void *wh_handle_get(struct wh_session *session, uint64_t handle, uint8_t kind, bool *valid);
int wh_handle_put(struct wh_session *session, uint64_t handle, uint8_t kind,
                  void *object); /* 0, -EEXIST, -EINVAL, -ENOSPC */
/* The handle of an object, 0 if it has none. Looks through all of them. */
uint64_t wh_handle_of(struct wh_session *session, uint8_t kind, const void *object);
void *wh_handle_remove(struct wh_session *session, uint64_t handle, uint8_t kind);

/* One more reference of the client, which the backend has given. 0, -ENOENT or -ENOSPC. */
int wh_handle_hold(struct wh_session *session, uint64_t handle, uint8_t kind);

/* One reference less. 1: the backend's goes too (last: and the handle ends); 0: it was the client's
 * last, but children still name the object, so the table keeps it; -ENOENT: there is none left. */
int wh_handle_let_go(struct wh_session *session, uint64_t handle, uint8_t kind, bool last);

/* Keeps the API error of a one-way call for the next reply. */
void wh_async_error(struct wh_session *session, int32_t error, uint16_t opcode);

/* Around a backend call that may block for long (spec: blocks). Gives the leader role away and
 * takes it back. */
void wh_block_begin(struct wh_session *session);
void wh_block_end(struct wh_session *session);

/* Generated: decodes, calls, encodes. Returns 0 or -errno (-ENOSYS unknown opcode, -EBADMSG
 * malformed). */
int wh_dispatch(uint16_t opcode, struct wh_request *request);

#endif
