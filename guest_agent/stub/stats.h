/*
 * stats.h - what the stub counts, and the JSON lines in which it says so (WORMHOLE_STATS).
 */
#ifndef WH_STATS_H
#define WH_STATS_H

#include <stdint.h>

#include "wh_codec.h"

/* Counted per thread without atomics' cost; summed when a line is written. Add the name in stats.c.
 */
struct wh_counters {
    uint64_t api_calls;
    uint64_t local_answers; /* api_calls that sent no message */
    uint64_t messages;
    uint64_t round_trips;
    uint64_t oneway;
    uint64_t bytes_sent;     /* messages and arena data */
    uint64_t bytes_received; /* replies and arena data */
    uint64_t notifications_sent;
    uint64_t sleeps; /* waits that outlasted the spin bound */
    uint64_t ring_full;
    uint64_t notifications_received; /* as the worker counts them, read when a line is written */
};

#define WH_COUNTER_COUNT (sizeof(struct wh_counters) / sizeof(uint64_t))

/* Appends a line: event "mark" or "exit", label may be NULL, totals of the process so far. */
void wh_stats_write(const char *event, const char *label, const struct wh_counters *totals);

/* Head of a line with neither its counters nor its end; returns its length, at most 512. */
size_t wh_stats_begin(char *line, const char *event, const char *label);
void wh_stats_append(const char *line, size_t size_bytes);

/* In a forked child: the line at its exit goes to the same file, appended. */
void wh_stats_forked(void);

#endif
