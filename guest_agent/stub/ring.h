/*
 * ring.h - the client's side of the request ring and the reply slots, over shared memory
 * (ARCHITECTURE.md, section 3).
 */
#ifndef WH_RING_H
#define WH_RING_H

#include "session.h"

/* Publishes one request in the session's total order and notifies the worker if it sleeps. */
int wh_ring_send(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                 uint8_t *request, size_t size_bytes);

/* Waits for the reply in the lane's slot: spins up to the bound, then sleeps. */
int wh_ring_receive(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                    struct wh_buffer *buffer, struct wh_reply_header *header);

/*
 * For ring space and arena blocks: spins, then sleeps until the 32-bit word differs from `value`,
 * no later than deadline_ns (wh_now_ns): then -ETIMEDOUT. 0, or -EPIPE if the session died.
 */
int wh_ring_wait_for_room(struct wh_client *client, struct wh_thread *thread, const uint32_t *word,
                          uint32_t value, uint64_t deadline_ns);

#endif
