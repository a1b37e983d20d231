/*
 * test_arena.c - the arena's allocator against a page map: blocks never overlap, all pages come
 * back, deferred ones when released.
 */
#include <stdio.h>
#include <stdlib.h>

#include "arena.h"
#include "wh_codec.h"

#define PAGES 512u
#define BLOCKS 128
#define STEPS 200000

struct block {
    uint64_t location;
    uint32_t pages;
    int deferred;
};

static uint8_t used[PAGES];
static struct block blocks[BLOCKS];

static void fail(const char *what, int step)
{
    fprintf(stderr, "test_arena: %s at step %d\n", what, step);
    exit(1);
}

static void set(const struct block *block, uint8_t value, int step)
{
    uint64_t first = block->location / WH_PAGE_BYTES;
    if (block->location % WH_PAGE_BYTES != WH_BLOCK_HEADER_BYTES || first + block->pages > PAGES) {
        fail("a block outside the arena", step);
    }
    for (uint32_t i = 0; i < block->pages; i++) {
        if (used[first + i] == value) {
            fail("a page in two blocks", step);
        }
        used[first + i] = value;
    }
}

static uint64_t free_bytes(void)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < PAGES; i++) {
        pages += used[i] == 0;
    }
    return pages * WH_PAGE_BYTES;
}

static void step_block(struct wh_arena *arena, struct block *block, uint32_t random, int step)
{
    if (block->location == 0) {
        uint64_t size_bytes = (random >> 4) % (random % 16 == 0 ? 40 * WH_PAGE_BYTES : 9000);
        uint64_t location = wh_arena_alloc(arena, size_bytes);
        if (location != 0) {
            block->location = location;
            block->pages = (uint32_t)(wh_align(size_bytes + WH_BLOCK_HEADER_BYTES, WH_PAGE_BYTES) /
                                      WH_PAGE_BYTES);
            block->deferred = 0;
            set(block, 1, step);
        }
    } else if (block->deferred) {
        wh_store32(wh_arena_busy_word(arena, block->location), 0);
        wh_arena_reap(arena, UINT32_MAX);
        set(block, 0, step);
        block->location = 0;
    } else if (random % 4 == 0) {
        wh_store32(wh_arena_busy_word(arena, block->location), 1);
        wh_arena_defer(arena, block->location);
        wh_arena_reap(arena, random % 3);
        block->deferred = 1;
    } else {
        wh_arena_free(arena, block->location);
        set(block, 0, step);
        block->location = 0;
    }
}

/* Blocks that are shown are found, in order, and no others. */
static void check_shown(struct wh_arena *arena)
{
    uint64_t size_bytes = 0;
    uint64_t locations[5];
    for (int i = 0; i < 5; i++) {
        locations[i] = wh_arena_alloc(arena, (uint64_t)(i + 1) * WH_PAGE_BYTES);
        wh_arena_show(arena, locations[i], 1);
    }
    wh_arena_show(arena, locations[1], 1);
    wh_arena_show(arena, locations[1], -1);
    wh_arena_show(arena, locations[2], -1);
    wh_arena_free(arena, locations[0]);
    uint64_t found = wh_arena_next_shown(arena, 0, &size_bytes);
    if (found != locations[1] || size_bytes != 3 * WH_PAGE_BYTES - WH_BLOCK_HEADER_BYTES) {
        fail("the first block that is shown is not found", 0);
    }
    found = wh_arena_next_shown(arena, found, &size_bytes);
    if (found != locations[3] || wh_arena_next_shown(arena, found, &size_bytes) != locations[4] ||
        wh_arena_next_shown(arena, locations[4], &size_bytes) != 0) {
        fail("not all that are shown are found, or others", 0);
    }
    for (int i = 1; i < 5; i++) {
        wh_arena_free(arena, locations[i]);
    }
    if (wh_arena_next_shown(arena, 0, &size_bytes) != 0) {
        fail("a free block is shown", 0);
    }
}

int main(void)
{
    uint8_t *base = aligned_alloc(WH_PAGE_BYTES, (size_t)PAGES * WH_PAGE_BYTES);
    struct wh_arena *arena = wh_arena_create(base, 0, (uint64_t)PAGES * WH_PAGE_BYTES);
    uint32_t seed = 1;
    if (base == NULL || arena == NULL) {
        fail("no memory", 0);
    }
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1664525u + 1013904223u;
        step_block(arena, &blocks[(seed >> 8) % BLOCKS], seed >> 3, step);
        if (wh_arena_free_bytes(arena) != free_bytes()) {
            fail("the free pages do not add up", step);
        }
    }
    for (int i = 0; i < BLOCKS; i++) {
        while (blocks[i].location != 0) {
            step_block(arena, &blocks[i], 1, STEPS + i);
        }
    }
    check_shown(arena);
    /* Everything has grown together again. */
    if (wh_arena_alloc(arena, wh_arena_largest(arena)) == 0) {
        fail("the empty arena is in pieces", STEPS);
    }
    if (wh_arena_alloc(arena, 1) != 0) {
        fail("a block from a full arena", STEPS);
    }
    wh_arena_destroy(arena);
    free(base);
    puts("ok");
    return 0;
}
