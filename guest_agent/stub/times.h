/*
 * times.h - where the client's time of each call goes (WORMHOLE_INSTRUMENT), written with the
 * worker's own rows at every mark.
 *
 * It begins with the first mark: windows lie between marks. Durations alone are kept, each of one
 * clock. An API call lasts from its first statement to its end; what it spends on messages, and on
 * copies, is kept apart from the rest. Whatever the application's callbacks do inside is the
 * call's.
 */
#ifndef WH_TIMES_H
#define WH_TIMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wh_codec.h"

struct wh_client;

/* The row of an API call is that of the first message that it sends, row 0 if it sends none. */
struct wh_client_times {
    uint64_t calls;   /* API calls */
    uint64_t stub_ns; /* of API calls, without messages and copies */
    uint64_t copy_ns;
    uint64_t waits;   /* messages with a reply */
    uint64_t wait_ns; /* from the beginning of publishing to the reply's end */
    uint64_t busy_ns; /* how long the worker executed requests meanwhile, by its own clock */
    uint64_t sends;   /* messages one way */
    uint64_t send_ns;
};

/* An API call in progress, of a thread. */
struct wh_span {
    uint32_t depth; /* an API call may make another, in a callback for instance */
    uint16_t opcode;
    uint64_t begin_ticks;
    uint64_t apart_ticks;
};

extern bool wh_times_on;

/* 0 while nothing is measured. */
static inline uint64_t wh_times_now(void)
{
    return __atomic_load_n(&wh_times_on, __ATOMIC_RELAXED) ? wh_ticks() : 0;
}

void wh_times_sent(struct wh_span *span, uint16_t opcode, uint64_t begin_ticks);
void wh_times_waited(struct wh_span *span, uint16_t opcode, uint64_t begin_ticks, uint64_t busy_ns);
void wh_times_copied(struct wh_span *span, uint16_t opcode, uint64_t begin_ticks);
void wh_times_api_begin(struct wh_span *span, uint64_t begin_ticks);
void wh_times_api_end(struct wh_span *span);

/* At a mark: begins to measure, or writes what there is. */
void wh_times_mark(const char *label);

void wh_times_forked(void);

#endif
