/*
 * record.h - appends the call stream to a file (WORMHOLE_RECORD); format in wh_record.h.
 */
#ifndef WH_STUB_RECORD_H
#define WH_STUB_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "wh_record.h"

/* Locks the order of publication; wh_record_unlock after the message was sent. Nothing without a
 * record. */
void wh_record_lock(void);
void wh_record_unlock(void);

/* Appends one entry of one or two parts; called with the lock held for requests, without it
 * otherwise. */
void wh_record_request(uint32_t thread, const void *bytes, size_t size_bytes);
void wh_record_reply(uint32_t thread, const void *header, const void *results, size_t size_bytes);
void wh_record_mark(uint32_t thread, const char *label);

void wh_record_flush(void);

/* In a forked child: its calls are not the recorded program's. */
void wh_record_forked(void);

#endif
