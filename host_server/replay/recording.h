/*
 * recording.h - a recorded call stream in memory: requests in the order in which they are sent
 * again, each with its reply.
 */
#ifndef WH_RECORDING_H
#define WH_RECORDING_H

#include <stddef.h>
#include <stdint.h>

struct wh_request_header;
struct wh_reply_header;

/* One thing to do: a call, or a mark (request NULL). */
struct wh_recorded {
    uint64_t entry;                          /* number in the file, from 0 */
    const struct wh_request_header *request; /* arguments follow */
    const struct wh_reply_header *reply;     /* results follow */
    const char *label;
    size_t label_bytes;
};

struct wh_recording {
    struct wh_recorded *items;
    size_t count;
    size_t calls;
    void *file;
    size_t file_bytes;
};

/* 0, or -errno with a line of text. */
int wh_recording_open(struct wh_recording *recording, const char *path, char *error,
                      size_t error_bytes);
void wh_recording_close(struct wh_recording *recording);

#endif
