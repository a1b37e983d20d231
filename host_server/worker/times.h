/*
 * times.h - where the worker's time of each request goes, in a session that asked (whTimes).
 *
 * A request's time is what passes from the look at it to the end of its reply, on one clock. The
 * accelerator library's part is measured by a second table of its functions (generated), which is
 * put in the first one's place: a session that never asked pays a look at one pointer a request.
 */
#ifndef WH_TIMES_H
#define WH_TIMES_H

#include "session.h"

/* What a span of the accelerator library is counted as. */
enum wh_times_part {
    WH_TIMES_BACKEND,
    WH_TIMES_COMPILE,
    WH_TIMES_KERNEL, /* waits until commands are complete */
    WH_TIMES_COPY,
    WH_TIMES_PARTS,
};
_Static_assert(WH_TIMES_PARTS == sizeof(((struct wh_span *)0)->part_ticks) / sizeof(uint64_t),
               "a sum for each part");

/* Where a request begins, where it is executed and its reply not yet sent, where it ends. */
void wh_times_begin_now(struct wh_executor *executor);
void wh_times_executed_now(struct wh_executor *executor);
void wh_times_end_now(struct wh_executor *executor, const struct wh_request_header *header);

static inline void wh_times_begin(struct wh_executor *executor)
{
    if (__atomic_load_n(&executor->session->times, __ATOMIC_ACQUIRE) != NULL) {
        wh_times_begin_now(executor);
    }
}

static inline void wh_times_executed(struct wh_executor *executor)
{
    if (executor->span.begin_ticks != 0) {
        wh_times_executed_now(executor);
    }
}

static inline void wh_times_end(struct wh_executor *executor,
                                const struct wh_request_header *header)
{
    if (executor->span.begin_ticks != 0) {
        wh_times_end_now(executor, header);
    }
}

/* Around a part of a request: 0 if nothing is to be measured, in a part that is measured already
 * for instance. */
uint64_t wh_times_enter(void);
void wh_times_leave(uint64_t begin_ticks, enum wh_times_part part);

/* Begins to measure with the first call; then gives the rows of all opcodes that came. 0, or
 * -errno. */
int wh_times_take(struct wh_session *session, void *to, size_t size_bytes, uint64_t *written);

#endif
