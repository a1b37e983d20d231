/*
 * wh_record.h - file format of a recorded call stream (WORMHOLE_RECORD): a header, then entries,
 * little endian.
 *
 * A request and its reply are recorded as they travelled over TCP: header, then arguments or
 * results, all data inline. Entries stand in the order in which requests were published and replies
 * arrived; a reply carries its request's sequence number, which is unique within the file until it
 * wraps.
 */
#ifndef WH_RECORD_H
#define WH_RECORD_H

#include <stdint.h>

#define WH_RECORD_MAGIC 0x4452434552484f57ULL /* "WOHRECRD" */
#define WH_RECORD_VERSION 1u

enum wh_record_type {
    WH_RECORD_REQUEST = 1, /* struct wh_request_header and arguments */
    WH_RECORD_REPLY = 2,   /* struct wh_reply_header (ready = sequence) and results */
    WH_RECORD_MARK = 3,    /* the label of wormhole_mark, no terminator */
};

struct wh_record_header {
    uint64_t magic;
    uint32_t version;
    uint32_t reserved;
    uint64_t spec_hash;
    uint64_t reserved2;
};

struct wh_record_entry {
    uint32_t type;       /* enum wh_record_type */
    uint32_t thread;     /* number of the client thread, from 0 */
    uint64_t size_bytes; /* of what follows; the next entry begins at the next multiple of 8 */
    uint64_t time_ns;    /* CLOCK_MONOTONIC of the recording machine */
};

#endif
