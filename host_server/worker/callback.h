/*
 * callback.h - callbacks on their way to the client.
 *
 * The real library calls us in whatever thread it likes, often with locks of its own: so a callback
 * only becomes a record here. If it comes inside a call whose client said that it settles them, the
 * record goes into a batch that the reply names, and the client runs it before that call returns,
 * as it happens natively. All others wait in one queue for the client's callback thread. A record
 * says which callback of the same object came due before it, so that two threads of the client keep
 * their order.
 */
#ifndef WH_CALLBACK_H
#define WH_CALLBACK_H

#include "session.h"

struct wh_callbacks;
struct wh_callback;

/* NULL without memory. */
struct wh_callbacks *wh_callbacks_create(void);

/* A registration under the client's number for an object of the client; NULL if there are too many
 * already. */
struct wh_callback *wh_callback_new(struct wh_session *session, uint64_t id, uint64_t handle);

/* The library did not accept it. */
void wh_callback_cancel(struct wh_callback *callback);

/* It is due; ends the registration. From any thread. */
void wh_callback_due(struct wh_callback *callback, int32_t status);

/* An error of a context under the client's number for it; dropped if too many wait. From any
 * thread. */
void wh_callback_message(struct wh_session *session, uint64_t id, const char *text,
                         const void *info, size_t info_bytes);

/* How many have been queued so far. */
uint32_t wh_callbacks_queued(const struct wh_session *session);

/* Records of a batch, 0: of the queue, as many as fit. *needed: bytes of the next one that did not.
 */
void wh_callbacks_take(struct wh_session *session, uint64_t batch, void *data, size_t size_bytes,
                       uint64_t *written, uint64_t *needed);

#endif
