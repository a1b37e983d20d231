/*
 * recording.c - reads and checks a recorded call stream.
 *
 * Calls are sent again in the order in which they were published. A wait is moved to the place of
 * its reply: a thread that waited for what another thread did later would otherwise hold up the one
 * thread of the replay for ever.
 */
#include "recording.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wh_record.h"
#include "wh_wire.h"

#define ALIGNMENT 8u

/* A request whose reply has not come yet. */
struct waiting {
    struct wh_recorded call;
    size_t place; /* in items, unless the call is a wait */
    bool waits;
};

struct reader {
    struct wh_recording *recording;
    size_t capacity;
    struct waiting *waiting;
    size_t waiting_count;
    size_t waiting_capacity;
    uint64_t entry;
};

static struct wh_recorded *add(struct reader *reader, const struct wh_recorded *item)
{
    struct wh_recording *recording = reader->recording;
    if (recording->count == reader->capacity) {
        size_t capacity = reader->capacity == 0 ? 1024 : reader->capacity * 2;
        struct wh_recorded *grown = realloc(recording->items, capacity * sizeof(*grown));
        if (grown == NULL) {
            return NULL;
        }
        recording->items = grown;
        reader->capacity = capacity;
    }
    recording->items[recording->count] = *item;
    return &recording->items[recording->count++];
}

static int take_request(struct reader *reader, const uint8_t *bytes, uint64_t size_bytes)
{
    const struct wh_request_header *header = (const void *)bytes;
    if (size_bytes < sizeof(*header) || header->size_bytes != size_bytes) {
        return -EBADMSG;
    }
    if (reader->waiting_count == reader->waiting_capacity) {
        size_t capacity = reader->waiting_capacity == 0 ? 64 : reader->waiting_capacity * 2;
        struct waiting *grown = realloc(reader->waiting, capacity * sizeof(*grown));
        if (grown == NULL) {
            return -ENOMEM;
        }
        reader->waiting = grown;
        reader->waiting_capacity = capacity;
    }
    struct waiting *waiting = &reader->waiting[reader->waiting_count++];
    memset(waiting, 0, sizeof(*waiting));
    waiting->call.entry = reader->entry;
    waiting->call.request = header;
    waiting->waits = header->opcode == WH_OP_clFinish || header->opcode == WH_OP_clWaitForEvents;
    waiting->place = reader->recording->count;
    if (!waiting->waits && add(reader, &waiting->call) == NULL) {
        return -ENOMEM;
    }
    return 0;
}

static int take_reply(struct reader *reader, const uint8_t *bytes, uint64_t size_bytes)
{
    const struct wh_reply_header *header = (const void *)bytes;
    if (size_bytes < sizeof(*header) || header->size_bytes != size_bytes - sizeof(*header)) {
        return -EBADMSG;
    }
    for (size_t i = 0; i < reader->waiting_count; i++) {
        struct waiting *waiting = &reader->waiting[i];
        if (waiting->call.request->sequence != header->ready) {
            continue;
        }
        waiting->call.reply = header;
        if (!waiting->waits) {
            reader->recording->items[waiting->place].reply = header;
        } else if (add(reader, &waiting->call) == NULL) {
            return -ENOMEM;
        }
        reader->recording->calls++;
        *waiting = reader->waiting[--reader->waiting_count];
        return 0;
    }
    return -EBADMSG;
}

static int take_mark(struct reader *reader, const uint8_t *bytes, uint64_t size_bytes)
{
    const struct wh_recorded mark = {
        .entry = reader->entry,
        .label = (const char *)bytes,
        .label_bytes = size_bytes,
    };
    return add(reader, &mark) == NULL ? -ENOMEM : 0;
}

static int take_entry(struct reader *reader, const struct wh_record_entry *entry,
                      const uint8_t *bytes)
{
    switch (entry->type) {
    case WH_RECORD_REQUEST:
        return take_request(reader, bytes, entry->size_bytes);
    case WH_RECORD_REPLY:
        return take_reply(reader, bytes, entry->size_bytes);
    case WH_RECORD_MARK:
        return take_mark(reader, bytes, entry->size_bytes);
    default:
        return -EBADMSG;
    }
}

static int read_entries(struct reader *reader, char *error, size_t error_bytes)
{
    const uint8_t *bytes = reader->recording->file;
    size_t size_bytes = reader->recording->file_bytes;
    size_t at = sizeof(struct wh_record_header);
    while (at < size_bytes) {
        const struct wh_record_entry *entry = (const void *)(bytes + at);
        size_t left_bytes = size_bytes - at;
        int result = -EBADMSG;
        if (left_bytes >= sizeof(*entry) && entry->size_bytes <= left_bytes - sizeof(*entry)) {
            result = take_entry(reader, entry, bytes + at + sizeof(*entry));
        }
        if (result != 0) {
            snprintf(error, error_bytes, "entry %llu at byte %zu: %s",
                     (unsigned long long)reader->entry, at,
                     result == -EBADMSG ? "damaged or cut off; record again" : strerror(-result));
            return result;
        }
        at += sizeof(*entry) + ((entry->size_bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1));
        reader->entry++;
    }
    if (reader->waiting_count > 0) {
        snprintf(error, error_bytes, "%zu calls have no reply; record again",
                 reader->waiting_count);
        return -EBADMSG;
    }
    return 0;
}

static int check_header(const struct wh_recording *recording, char *error, size_t error_bytes)
{
    const struct wh_record_header *header = recording->file;
    if (header->magic != WH_RECORD_MAGIC) {
        snprintf(error, error_bytes, "no recording");
        return -EBADMSG;
    }
    if (header->version != WH_RECORD_VERSION) {
        snprintf(error, error_bytes, "a recording of version %u, this program reads version %u",
                 header->version, WH_RECORD_VERSION);
        return -EPROTONOSUPPORT;
    }
    if (header->spec_hash != WH_SPEC_HASH) {
        snprintf(error, error_bytes,
                 "recorded under the specs %016llx, this program has %016llx; record again",
                 (unsigned long long)header->spec_hash, (unsigned long long)WH_SPEC_HASH);
        return -EPROTONOSUPPORT;
    }
    return 0;
}

static int map_file(struct wh_recording *recording, const char *path, char *error,
                    size_t error_bytes)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        int result = -errno;
        snprintf(error, error_bytes, "%s", strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return result;
    }
    recording->file_bytes = (size_t)status.st_size;
    recording->file = MAP_FAILED;
    if (recording->file_bytes >= sizeof(struct wh_record_header)) {
        /* Populated: reading the file must not be part of what is measured. */
        recording->file =
            mmap(NULL, recording->file_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    }
    close(fd);
    if (recording->file == MAP_FAILED) {
        recording->file = NULL;
        snprintf(error, error_bytes, "too short to be a recording, or too long for memory");
        return -EBADMSG;
    }
    return 0;
}

int wh_recording_open(struct wh_recording *recording, const char *path, char *error,
                      size_t error_bytes)
{
    memset(recording, 0, sizeof(*recording));
    int result = map_file(recording, path, error, error_bytes);
    if (result == 0) {
        result = check_header(recording, error, error_bytes);
    }
    if (result == 0) {
        struct reader reader = {.recording = recording};
        result = read_entries(&reader, error, error_bytes);
        free(reader.waiting);
    }
    if (result != 0) {
        wh_recording_close(recording);
    }
    return result;
}

void wh_recording_close(struct wh_recording *recording)
{
    if (recording->file != NULL) {
        munmap(recording->file, recording->file_bytes);
    }
    free(recording->items);
    memset(recording, 0, sizeof(*recording));
}
