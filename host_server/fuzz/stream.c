/*
 * stream.c - a recorded call stream as a source of valid messages.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "wh_record.h"

struct wh_stream {
    size_t count;
    const struct wh_request_header **requests;
};

/* The request of an entry; NULL for another entry. */
static const struct wh_request_header *request_of(const struct wh_record_entry *entry)
{
    const struct wh_request_header *request = (const void *)(entry + 1);
    return entry->type == WH_RECORD_REQUEST && entry->size_bytes >= sizeof(*request) &&
                   request->size_bytes == entry->size_bytes
               ? request
               : NULL;
}

static size_t walk(const uint8_t *bytes, size_t size_bytes, const struct wh_request_header **found)
{
    size_t count = 0;
    size_t at = sizeof(struct wh_record_header);
    while (size_bytes - at >= sizeof(struct wh_record_entry)) {
        const struct wh_record_entry *entry = (const void *)(bytes + at);
        at += sizeof(*entry);
        if (entry->size_bytes > size_bytes - at) {
            break;
        }
        const struct wh_request_header *request = request_of(entry);
        if (request != NULL && found != NULL) {
            found[count] = request;
        }
        count += request != NULL;
        at += wh_align(entry->size_bytes, WH_ITEM_BYTES);
        at = at < size_bytes ? at : size_bytes;
    }
    return count;
}

struct wh_stream *wh_stream_open(const char *path, char *error, size_t error_bytes)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        snprintf(error, error_bytes, "cannot read it");
        return NULL;
    }
    size_t size_bytes = (size_t)status.st_size;
    const uint8_t *bytes = mmap(NULL, size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    const struct wh_record_header *header = (const void *)bytes;
    if (bytes == MAP_FAILED || size_bytes < sizeof(*header) || header->magic != WH_RECORD_MAGIC ||
        header->spec_hash != WH_SPEC_HASH) {
        snprintf(error, error_bytes, "it is no recording of this version of the protocol");
        return NULL;
    }
    struct wh_stream *stream = calloc(1, sizeof(*stream));
    size_t count = walk(bytes, size_bytes, NULL);
    if (stream == NULL || (stream->requests = calloc(count + 1, sizeof(void *))) == NULL) {
        snprintf(error, error_bytes, "no memory");
        free(stream);
        return NULL;
    }
    stream->count = walk(bytes, size_bytes, stream->requests);
    return stream;
}

size_t wh_stream_count(const struct wh_stream *stream)
{
    return stream->count;
}

const struct wh_request_header *wh_stream_request(const struct wh_stream *stream, size_t index)
{
    return stream->requests[index];
}
