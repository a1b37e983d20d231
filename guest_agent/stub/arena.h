/*
 * arena.h - hands out blocks of the session's arena. All book-keeping is in the client's own
 * memory: the arena holds data only.
 *
 * A location is the offset of the data in the arena; its block header lies WH_BLOCK_HEADER_BYTES in
 * front of it. Not thread-safe: the session's arena lock is held around every call.
 */
#ifndef WH_ARENA_H
#define WH_ARENA_H

#include <stdint.h>
#include <stddef.h>

struct wh_arena;

/* Hands out part of the arena, whole pages from first_bytes on; NULL without memory. base: first
 * byte of the whole arena, page-aligned; locations count from there. */
struct wh_arena *wh_arena_create(uint8_t *base, uint64_t first_bytes, uint64_t size_bytes);
void wh_arena_destroy(struct wh_arena *arena);

/* Location of a new block, 0 if there is no room now. Its busy word is 0. */
uint64_t wh_arena_alloc(struct wh_arena *arena, uint64_t size_bytes);
void wh_arena_free(struct wh_arena *arena, uint64_t location);

/* Frees the block once the worker has cleared its busy word (stored before publishing). */
void wh_arena_defer(struct wh_arena *arena, uint64_t location);

/* Marks a block that may stay for long; freeing it ends the mark. */
void wh_arena_hold(struct wh_arena *arena, uint64_t location);
uint64_t wh_arena_held_bytes(const struct wh_arena *arena);

/* One more or one less (change 1 or -1) that lets the application see the block's data; freeing it
 * ends them all. */
void wh_arena_show(struct wh_arena *arena, uint64_t location, int change);

/* The first block behind this location (0 to begin) that the application sees, 0 if none; the
 * bytes from there to the block's end. */
uint64_t wh_arena_next_shown(const struct wh_arena *arena, uint64_t location, uint64_t *size_bytes);

/* Frees deferred blocks that are no longer busy, looking at no more than `limit` busy ones; returns
 * how many those were. */
uint32_t wh_arena_reap(struct wh_arena *arena, uint32_t limit);

/* Location of a deferred block that was busy at the last reap, 0 if none. */
uint64_t wh_arena_oldest_busy(const struct wh_arena *arena);

uint32_t *wh_arena_busy_word(struct wh_arena *arena, uint64_t location);
uint64_t wh_arena_largest(const struct wh_arena *arena); /* of an empty arena */
uint64_t wh_arena_free_bytes(const struct wh_arena *arena);

#endif
