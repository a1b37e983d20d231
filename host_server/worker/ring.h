/*
 * ring.h - the worker's side of the request ring: leader and followers (ARCHITECTURE.md, section
 * 3).
 */
#ifndef WH_WORKER_RING_H
#define WH_WORKER_RING_H

#include "session.h"

/* Checks the session header that the supervisor wrote and makes the ring. notify_fd: eventfd, only
 * polled. 0 or -errno. */
int wh_ring_init(struct wh_session *session, int notify_fd);

/* Starts the first thread. 0 or -errno. */
int wh_ring_start(struct wh_session *session);

/* Sums the threads' counters. */
void wh_ring_counters(struct wh_session *session, struct wh_worker_counters *totals);

/* The role while a call blocks; called by wh_block_begin and wh_block_end for an executor that
 * leads. */
void wh_ring_yield(struct wh_executor *executor);
void wh_ring_return(struct wh_executor *executor);

#endif
