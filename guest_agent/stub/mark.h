/*
 * mark.h - the one function that programs may call by name: a boundary (a training step) in the
 * counters and the record.
 */
#ifndef WH_MARK_H
#define WH_MARK_H

#define WH_EXPORT __attribute__((visibility("default")))

/* Writes a "mark" line with the totals so far to WORMHOLE_STATS, and an entry to WORMHOLE_RECORD.
 */
WH_EXPORT void wormhole_mark(const char *label);

#endif
