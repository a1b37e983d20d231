/*
 * record.c - the recorder: buffered appends under one lock; a failed write ends the record with one
 * line.
 */
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config.h"

#define WH_RECORD_BUFFER_BYTES (256u * 1024u)

/* Not stdio: a forked child would write the parent's buffer a second time when it exits. */
static uint8_t buffer[WH_RECORD_BUFFER_BYTES];
static size_t buffered_bytes;
static int file = -1;
static bool opened;
static bool disabled;
static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;

static bool wanted(void)
{
    return wh_config()->record_path[0] != '\0';
}

static void fail(void)
{
    fprintf(stderr, "wormhole: writing WORMHOLE_RECORD=%s failed: %s; the record is not usable\n",
            wh_config()->record_path, strerror(errno));
    disabled = true;
    buffered_bytes = 0;
    if (file >= 0) {
        close(file);
        file = -1;
        unlink(wh_config()->record_path);
    }
}

static void write_all(const uint8_t *bytes, size_t size_bytes)
{
    while (size_bytes > 0 && !disabled) {
        ssize_t written = write(file, bytes, size_bytes);
        if (written < 0 && errno != EINTR) {
            fail();
        } else if (written > 0) {
            bytes += written;
            size_bytes -= (size_t)written;
        }
    }
}

static void append(const void *bytes, size_t size_bytes)
{
    if (buffered_bytes + size_bytes > sizeof(buffer)) {
        write_all(buffer, buffered_bytes);
        buffered_bytes = 0;
    }
    if (size_bytes > sizeof(buffer)) {
        write_all(bytes, size_bytes);
    } else if (size_bytes > 0 && !disabled) {
        memcpy(buffer + buffered_bytes, bytes, size_bytes);
        buffered_bytes += size_bytes;
    }
}

static void open_file(void)
{
    struct wh_record_header header = {
        .magic = WH_RECORD_MAGIC, .version = WH_RECORD_VERSION, .spec_hash = WH_SPEC_HASH};
    opened = true;
    file = open(wh_config()->record_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) {
        fail();
        return;
    }
    append(&header, sizeof(header));
}

static void append_entry(uint32_t type, uint32_t thread, const void *first, size_t first_bytes,
                         const void *second, size_t second_bytes)
{
    static const uint8_t zeros[WH_ITEM_BYTES];
    struct wh_record_entry entry = {.type = type,
                                    .thread = thread,
                                    .size_bytes = first_bytes + second_bytes,
                                    .time_ns = wh_now_ns()};
    if (!opened && !disabled) {
        open_file();
    }
    if (disabled) {
        return;
    }
    append(&entry, sizeof(entry));
    append(first, first_bytes);
    append(second, second_bytes);
    append(zeros, wh_align(entry.size_bytes, WH_ITEM_BYTES) - entry.size_bytes);
}

void wh_record_lock(void)
{
    if (wanted()) {
        pthread_mutex_lock(&record_lock);
    }
}

void wh_record_unlock(void)
{
    if (wanted()) {
        pthread_mutex_unlock(&record_lock);
    }
}

void wh_record_request(uint32_t thread, const void *bytes, size_t size_bytes)
{
    if (wanted()) {
        append_entry(WH_RECORD_REQUEST, thread, bytes, size_bytes, NULL, 0);
    }
}

void wh_record_reply(uint32_t thread, const void *header, const void *results, size_t size_bytes)
{
    if (wanted()) {
        pthread_mutex_lock(&record_lock);
        append_entry(WH_RECORD_REPLY, thread, header, sizeof(struct wh_reply_header), results,
                     size_bytes);
        pthread_mutex_unlock(&record_lock);
    }
}

void wh_record_mark(uint32_t thread, const char *label)
{
    if (wanted()) {
        pthread_mutex_lock(&record_lock);
        append_entry(WH_RECORD_MARK, thread, label, strlen(label), NULL, 0);
        pthread_mutex_unlock(&record_lock);
    }
}

void wh_record_flush(void)
{
    if (wanted()) {
        pthread_mutex_lock(&record_lock);
        write_all(buffer, buffered_bytes);
        buffered_bytes = 0;
        pthread_mutex_unlock(&record_lock);
    }
}

void wh_record_forked(void)
{
    disabled = true;
    buffered_bytes = 0;
    pthread_mutex_init(&record_lock, NULL);
}
