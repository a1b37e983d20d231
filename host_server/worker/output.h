/*
 * output.h - what kernels print: it goes to the worker's descriptor 1, and from there to the
 * client, whose standard output it belongs to.
 *
 * Descriptor 1 is a pipe. What comes out of it is kept up to a bound until the client takes it. A
 * client that watches is told by each reply whether something is there; beyond the bound the
 * kernel's write waits until the client has taken some, as it does natively when nobody reads. If
 * nobody watches, the rest is cut and counted: nothing that the library prints unasked may stop it.
 */
#ifndef WH_OUTPUT_H
#define WH_OUTPUT_H

#include "session.h"

struct wh_output;

/* Takes descriptor 1; single-threaded. 0 or -errno. Without it there is no output. */
int wh_output_start(struct wh_session *session);

/* For the main thread's poll: what to read (-1: no room), what tells that there is room again. */
int wh_output_source(struct wh_session *session);
int wh_output_room(const struct wh_session *session);

/* One of the two is ready. */
void wh_output_arrived(struct wh_session *session);

/* What the client does: see core.yaml. */
void wh_output_watch(struct wh_session *session);
void wh_output_take(struct wh_session *session, void *data, size_t size_bytes, uint64_t *written,
                    uint64_t *lost);

/* Bits for a reply's notices: whether output waits. All that was printed so far counts if the
 * client watches. */
uint32_t wh_output_notice(struct wh_session *session);

#endif
