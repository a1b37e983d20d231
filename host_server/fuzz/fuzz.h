/*
 * fuzz.h - what the parts of the fuzzer share.
 *
 * fuzz.c forks a process a session and judges its end; client.c is the hostile client in it;
 * message.c makes messages by the grammar; stream.c takes them from a recorded call stream.
 */
#ifndef WH_FUZZ_H
#define WH_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "session.h"

#define WH_FUZZ_MESSAGE_BYTES WH_REQUEST_BYTES_MAX
#define WH_FUZZ_BINARY_BYTES_MAX ((size_t)1 << 20)
#define WH_FUZZ_HANDLES_MAX 64u
#define WH_FUZZ_SESSION_BYTES ((uint64_t)2 << 20)
#define WH_FUZZ_EXIT_BLOCKED                                                                       \
    4 /* the worker took no more: a blocked session, which is its own loss */

/* Random numbers that depend on the seed alone. */
struct wh_random {
    uint64_t state;
};

uint64_t wh_random(struct wh_random *random);
uint32_t wh_below(struct wh_random *random, uint32_t limit);
bool wh_one_in(struct wh_random *random, uint32_t count);
/* Numbers that break things: borders, wraps, signs. */
uint64_t wh_odd_number(struct wh_random *random);

/* Handles that the session has, by kind. */
struct wh_handles {
    uint64_t handles[256][WH_FUZZ_HANDLES_MAX];
    uint32_t counts[256];
    uint32_t next_index;
};

void wh_handles_add(struct wh_handles *handles, uint64_t handle);

/* A message that is being made. */
struct wh_message {
    uint8_t bytes[WH_FUZZ_MESSAGE_BYTES];
    size_t size_bytes;
};

/* A program's binary as the device gives it, or device code; what is too large for a message stays
 * unused. */
struct wh_binary {
    uint8_t bytes[WH_FUZZ_BINARY_BYTES_MAX];
    size_t size_bytes;
};

struct wh_shapes;

struct wh_maker {
    struct wh_random *random;
    const struct wh_shapes *shapes;
    struct wh_handles *handles;
    uint8_t *arena; /* NULL: everything inline */
    uint64_t arena_bytes;
    const struct wh_binary *binary;
    uint32_t wrong_one_in; /* how rarely an item is wrong on purpose */
    uint64_t unfinished;   /* a new image that is to be completed; 0: none */
    uint64_t last_read;    /* the last one that does not block; 0: none */
};

/* A message by the grammar; `shape` is an index into the maker's shapes. */
void wh_make_message(struct wh_maker *maker, size_t shape, struct wh_message *message);
/* Any bytes, with an opcode that may exist. */
void wh_make_noise(const struct wh_maker *maker, struct wh_message *message);
/* Flips bits, cuts, doubles, overwrites with odd numbers. */
void wh_damage(struct wh_random *random, struct wh_message *message);

/* Parts of messages. */
struct wh_shape;
struct wh_item;
void wh_message_items(struct wh_maker *maker, const struct wh_shape *shape,
                      struct wh_message *message);
void wh_message_bytes(struct wh_message *message, const void *bytes, size_t size_bytes);
void wh_message_u64(struct wh_message *message, uint64_t value);
/* In place or in the arena. */
void wh_message_blob(struct wh_maker *maker, struct wh_message *message, const void *bytes,
                     size_t size_bytes);
void wh_message_out(struct wh_maker *maker, struct wh_message *message, uint64_t capacity_bytes);
uint64_t wh_message_handle(struct wh_maker *maker, uint8_t kind);

/* An item that CUDA alone has. */
void wh_message_cuda(struct wh_maker *maker, struct wh_message *message,
                     const struct wh_item *item);

/* A recorded call stream (wh_record.h). */
struct wh_stream;
struct wh_stream *wh_stream_open(const char *path, char *error, size_t error_bytes);
size_t wh_stream_count(const struct wh_stream *stream);
const struct wh_request_header *wh_stream_request(const struct wh_stream *stream, size_t index);

/* What sessions tell the parent; in memory that all share. */
struct wh_tally {
    uint64_t executed;
    uint64_t sent;
    uint64_t opcode_executed[65536];
    uint64_t opcode_succeeded[65536];
    uint64_t opcode_malformed[65536];
};

/* What a session is told. */
struct wh_plan {
    struct wh_session *session;
    struct wh_tally *tally;
    const struct wh_stream *stream; /* NULL: none */
    size_t stream_next;
    struct wh_handles handles;
    struct wh_binary binary;
    uint64_t seed;
    uint32_t messages;
    bool opencl;
    bool cuda;
    int notify_fd;
    int wake_fd;
};

/* An object that the session has from its beginning. */
void wh_fuzz_keep(struct wh_plan *plan, uint8_t kind, void *object);

/* Device code from a file; and the objects of a session, made in its own process, since the double
 * of a device does not survive a fork. */
bool wh_fuzz_read_code(const char *path, struct wh_binary *code);
void wh_fuzz_cuda_objects(struct wh_plan *plan);

/* Serves a session and is its hostile client; ends the process. */
void wh_hostile_session(struct wh_plan *plan) __attribute__((noreturn));

#endif
