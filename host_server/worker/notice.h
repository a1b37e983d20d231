/*
 * notice.h - what threads of the client wait for that do nothing else: callbacks that are due,
 * output of kernels (whWait).
 */
#ifndef WH_NOTICE_H
#define WH_NOTICE_H

#include "session.h"

/* what: enum wh_wait_for. From any thread; the caller's lock guards what the bit stands for, and is
 * held. */
void wh_notice_set(struct wh_session *session, uint64_t what);
void wh_notice_clear(struct wh_session *session, uint64_t what);

/* Waits until one of `wanted` is set, at most limit_ms. What is set of them, 0 at the limit. */
uint64_t wh_notice_wait(struct wh_session *session, uint64_t wanted, uint64_t limit_ms);

#endif
