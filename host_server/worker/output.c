/*
 * output.c - the pipe behind descriptor 1 and what has come out of it.
 */
#define _GNU_SOURCE

#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "notice.h"

#define WH_OUTPUT_BYTES (1024u * 1024u) /* kept for the client */
#define WH_DISCARD_BYTES 4096u
#define WH_DISCARDS_MAX 64u /* at once: whoever prints without end must not keep us */

struct wh_output {
    pthread_mutex_t lock;
    int pipe_fd;
    int room_fd;
    uint32_t watched;
    uint32_t waiting; /* something is kept, or was lost; read without the lock */
    size_t start_bytes;
    size_t end_bytes;
    uint64_t lost_bytes;
    uint8_t bytes[WH_OUTPUT_BYTES];
};

int wh_output_start(struct wh_session *session)
{
    int ends[2];
    struct wh_output *output = calloc(1, sizeof(*output));
    if (output == NULL) {
        return -ENOMEM;
    }
    pthread_mutex_init(&output->lock, NULL);
    output->room_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (output->room_fd < 0 || pipe2(ends, O_CLOEXEC) != 0 ||
        dup2(ends[1], STDOUT_FILENO) != STDOUT_FILENO) {
        return -errno;
    }
    close(ends[1]);
    output->pipe_fd = ends[0];
    fcntl(output->pipe_fd, F_SETFL, O_NONBLOCK);
    /* A library that prints through stdio must not keep lines of a kernel that is complete. */
    setvbuf(stdout, NULL, _IONBF, 0);
    session->output = output;
    return 0;
}

static bool is_full(const struct wh_output *output)
{
    return output->end_bytes - output->start_bytes == WH_OUTPUT_BYTES;
}

static void make_room(struct wh_output *output)
{
    if (output->start_bytes > 0 && output->end_bytes == WH_OUTPUT_BYTES) {
        memmove(output->bytes, output->bytes + output->start_bytes,
                output->end_bytes - output->start_bytes);
        output->end_bytes -= output->start_bytes;
        output->start_bytes = 0;
    }
}

/* Moves what the pipe holds to where it is kept. The lock is held. */
static void collect(struct wh_output *output)
{
    uint32_t discards = 0;
    ssize_t got = 0;
    do {
        make_room(output);
        if (!is_full(output)) {
            got = read(output->pipe_fd, output->bytes + output->end_bytes,
                       WH_OUTPUT_BYTES - output->end_bytes);
            output->end_bytes += got > 0 ? (size_t)got : 0;
        } else if (wh_load32(&output->watched) == 0) {
            uint8_t discarded[WH_DISCARD_BYTES];
            got = read(output->pipe_fd, discarded, sizeof(discarded));
            output->lost_bytes += got > 0 ? (size_t)got : 0;
            discards++;
        } else {
            got = 0;
        }
    } while (got > 0 && discards < WH_DISCARDS_MAX);
    bool waits = output->end_bytes > output->start_bytes || output->lost_bytes > 0;
    wh_store32(&output->waiting, waits);
}

int wh_output_source(struct wh_session *session)
{
    struct wh_output *output = session->output;
    if (output == NULL) {
        return -1;
    }
    pthread_mutex_lock(&output->lock);
    bool reads = !is_full(output) || wh_load32(&output->watched) == 0;
    pthread_mutex_unlock(&output->lock);
    return reads ? output->pipe_fd : -1;
}

int wh_output_room(const struct wh_session *session)
{
    return session->output == NULL ? -1 : session->output->room_fd;
}

void wh_output_arrived(struct wh_session *session)
{
    struct wh_output *output = session->output;
    uint64_t count = 0;
    ssize_t got = read(output->room_fd, &count, sizeof(count));
    (void)got; /* it only ends the main thread's sleep */
    pthread_mutex_lock(&output->lock);
    collect(output);
    if (wh_load32(&output->waiting) != 0) {
        wh_notice_set(session, WH_WAIT_FOR_OUTPUT);
    }
    pthread_mutex_unlock(&output->lock);
}

void wh_output_watch(struct wh_session *session)
{
    if (session->output != NULL) {
        wh_store32(&session->output->watched, 1);
    }
}

void wh_output_take(struct wh_session *session, void *data, size_t size_bytes, uint64_t *written,
                    uint64_t *lost)
{
    struct wh_output *output = session->output;
    *written = 0;
    *lost = 0;
    if (output == NULL) {
        return;
    }
    pthread_mutex_lock(&output->lock);
    collect(output);
    bool was_full = is_full(output);
    size_t kept_bytes = output->end_bytes - output->start_bytes;
    size_t taken_bytes = kept_bytes < size_bytes ? kept_bytes : size_bytes;
    memcpy(data, output->bytes + output->start_bytes, taken_bytes);
    output->start_bytes += taken_bytes;
    if (output->start_bytes == output->end_bytes) {
        output->start_bytes = 0;
        output->end_bytes = 0;
        *lost = output->lost_bytes; /* behind all that was kept */
        output->lost_bytes = 0;
        wh_store32(&output->waiting, 0);
        wh_notice_clear(session, WH_WAIT_FOR_OUTPUT);
    }
    pthread_mutex_unlock(&output->lock);
    *written = taken_bytes;
    if (was_full) {
        const uint64_t one = 1;
        ssize_t told = write(output->room_fd, &one, sizeof(one));
        (void)told;
    }
}

uint32_t wh_output_notice(struct wh_session *session)
{
    struct wh_output *output = session->output;
    if (output == NULL) {
        return 0;
    }
    if (wh_load32(&output->watched) != 0) {
        pthread_mutex_lock(&output->lock);
        collect(output);
        pthread_mutex_unlock(&output->lock);
    }
    return wh_load32(&output->waiting) != 0 ? WH_REPLY_NOTICE_OUTPUT : 0;
}
