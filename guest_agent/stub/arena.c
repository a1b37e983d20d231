/*
 * arena.c - extents of whole pages with boundary tags, free ones in lists by the logarithm of their
 * length.
 */
#include "arena.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "wh_codec.h"

#define WH_CLASS_COUNT 32
#define WH_NO_PAGE UINT32_MAX

/* One per page; only an extent's first and last page are meaningful. */
struct page {
    uint32_t length; /* pages of the extent (first and last page) */
    uint32_t next;   /* free list or deferred list (first page) */
    uint32_t previous;
    uint8_t used;
    uint8_t held;   /* may stay for long (first page) */
    uint32_t shown; /* how many let the application see the data (first page) */
};

struct wh_arena {
    uint8_t *base;
    uint64_t first_bytes; /* where page 0 lies in the whole arena */
    uint32_t page_count;
    uint32_t free_pages;
    uint32_t held_pages;
    uint32_t deferred_head; /* singly linked through next, oldest first */
    uint32_t deferred_tail;
    uint32_t classes[WH_CLASS_COUNT];
    struct page pages[];
};

static unsigned int class_of(uint32_t length)
{
    return 31u - (unsigned int)__builtin_clz(length);
}

static void mark(struct wh_arena *arena, uint32_t first, uint32_t length, bool used)
{
    arena->pages[first].length = length;
    arena->pages[first].used = used;
    arena->pages[first + length - 1].length = length;
    arena->pages[first + length - 1].used = used;
}

static void insert(struct wh_arena *arena, uint32_t first, uint32_t length)
{
    mark(arena, first, length, false);
    uint32_t *head = &arena->classes[class_of(length)];
    arena->pages[first].next = *head;
    arena->pages[first].previous = WH_NO_PAGE;
    if (*head != WH_NO_PAGE) {
        arena->pages[*head].previous = first;
    }
    *head = first;
}

static void unlink_extent(struct wh_arena *arena, uint32_t first)
{
    struct page *page = &arena->pages[first];
    if (page->previous == WH_NO_PAGE) {
        arena->classes[class_of(page->length)] = page->next;
    } else {
        arena->pages[page->previous].next = page->next;
    }
    if (page->next != WH_NO_PAGE) {
        arena->pages[page->next].previous = page->previous;
    }
}

static uint32_t find(const struct wh_arena *arena, uint32_t length)
{
    for (unsigned int class = class_of(length); class < WH_CLASS_COUNT; class ++) {
        uint32_t first = arena->classes[class];
        /* Only the first class searched can hold extents that are too short. */
        while (first != WH_NO_PAGE && arena->pages[first].length < length) {
            first = arena->pages[first].next;
        }
        if (first != WH_NO_PAGE) {
            return first;
        }
    }
    return WH_NO_PAGE;
}

struct wh_arena *wh_arena_create(uint8_t *base, uint64_t first_bytes, uint64_t size_bytes)
{
    uint64_t page_count = size_bytes / WH_PAGE_BYTES;
    if (page_count == 0 || page_count >= WH_NO_PAGE) {
        return NULL;
    }
    struct wh_arena *arena = calloc(1, sizeof(*arena) + page_count * sizeof(struct page));
    if (arena == NULL) {
        return NULL;
    }
    arena->base = base;
    arena->first_bytes = first_bytes;
    arena->page_count = (uint32_t)page_count;
    arena->free_pages = arena->page_count;
    arena->deferred_head = WH_NO_PAGE;
    arena->deferred_tail = WH_NO_PAGE;
    for (int i = 0; i < WH_CLASS_COUNT; i++) {
        arena->classes[i] = WH_NO_PAGE;
    }
    insert(arena, 0, arena->page_count);
    return arena;
}

void wh_arena_destroy(struct wh_arena *arena)
{
    free(arena);
}

static uint64_t location_of(const struct wh_arena *arena, uint32_t first)
{
    return arena->first_bytes + (uint64_t)first * WH_PAGE_BYTES + WH_BLOCK_HEADER_BYTES;
}

static uint32_t page_of(const struct wh_arena *arena, uint64_t location)
{
    return (uint32_t)((location - arena->first_bytes) / WH_PAGE_BYTES);
}

uint32_t *wh_arena_busy_word(struct wh_arena *arena, uint64_t location)
{
    return (uint32_t *)(void *)(arena->base + location - WH_BLOCK_HEADER_BYTES);
}

uint64_t wh_arena_largest(const struct wh_arena *arena)
{
    return (uint64_t)arena->page_count * WH_PAGE_BYTES - WH_BLOCK_HEADER_BYTES;
}

uint64_t wh_arena_free_bytes(const struct wh_arena *arena)
{
    return (uint64_t)arena->free_pages * WH_PAGE_BYTES;
}

uint64_t wh_arena_alloc(struct wh_arena *arena, uint64_t size_bytes)
{
    if (size_bytes > wh_arena_largest(arena)) {
        return 0;
    }
    uint32_t length =
        (uint32_t)(wh_align(size_bytes + WH_BLOCK_HEADER_BYTES, WH_PAGE_BYTES) / WH_PAGE_BYTES);
    uint32_t first = find(arena, length);
    if (first == WH_NO_PAGE) {
        return 0;
    }
    uint32_t extent = arena->pages[first].length;
    unlink_extent(arena, first);
    if (extent > length) {
        insert(arena, first + length, extent - length);
    }
    mark(arena, first, length, true);
    arena->free_pages -= length;
    uint64_t location = location_of(arena, first);
    wh_store32(wh_arena_busy_word(arena, location), 0);
    return location;
}

void wh_arena_hold(struct wh_arena *arena, uint64_t location)
{
    struct page *page = &arena->pages[page_of(arena, location)];
    if (!page->held) {
        page->held = 1;
        arena->held_pages += page->length;
    }
}

uint64_t wh_arena_held_bytes(const struct wh_arena *arena)
{
    return (uint64_t)arena->held_pages * WH_PAGE_BYTES;
}

void wh_arena_show(struct wh_arena *arena, uint64_t location, int change)
{
    arena->pages[page_of(arena, location)].shown += (uint32_t)change;
}

uint64_t wh_arena_next_shown(const struct wh_arena *arena, uint64_t location, uint64_t *size_bytes)
{
    uint32_t first = 0;
    if (location != 0) {
        first = page_of(arena, location);
        first += arena->pages[first].length;
    }
    while (first < arena->page_count &&
           (!arena->pages[first].used || arena->pages[first].shown == 0)) {
        first += arena->pages[first].length;
    }
    if (first >= arena->page_count) {
        return 0;
    }
    *size_bytes = (uint64_t)arena->pages[first].length * WH_PAGE_BYTES - WH_BLOCK_HEADER_BYTES;
    return location_of(arena, first);
}

void wh_arena_free(struct wh_arena *arena, uint64_t location)
{
    uint32_t first = page_of(arena, location);
    uint32_t length = arena->pages[first].length;
    arena->pages[first].shown = 0;
    if (arena->pages[first].held) {
        arena->pages[first].held = 0;
        arena->held_pages -= length;
    }
    arena->free_pages += length;
    if (first > 0 && !arena->pages[first - 1].used) {
        uint32_t before = arena->pages[first - 1].length;
        unlink_extent(arena, first - before);
        first -= before;
        length += before;
    }
    uint32_t after = first + length;
    if (after < arena->page_count && !arena->pages[after].used) {
        unlink_extent(arena, after);
        length += arena->pages[after].length;
    }
    insert(arena, first, length);
}

void wh_arena_defer(struct wh_arena *arena, uint64_t location)
{
    uint32_t first = page_of(arena, location);
    arena->pages[first].next = WH_NO_PAGE;
    if (arena->deferred_tail == WH_NO_PAGE) {
        arena->deferred_head = first;
    } else {
        arena->pages[arena->deferred_tail].next = first;
    }
    arena->deferred_tail = first;
}

uint32_t wh_arena_reap(struct wh_arena *arena, uint32_t limit)
{
    uint32_t busy = 0;
    uint32_t *link = &arena->deferred_head;
    uint32_t last = WH_NO_PAGE;
    while (*link != WH_NO_PAGE && busy < limit) {
        uint32_t first = *link;
        /* Pairs with the worker's release when it has read the block for the last time. */
        if (wh_load_acquire32(wh_arena_busy_word(arena, location_of(arena, first))) == 0) {
            *link = arena->pages[first].next;
            if (arena->deferred_tail == first) {
                arena->deferred_tail = last;
            }
            wh_arena_free(arena, location_of(arena, first));
        } else {
            busy++;
            last = first;
            link = &arena->pages[first].next;
        }
    }
    return busy;
}

uint64_t wh_arena_oldest_busy(const struct wh_arena *arena)
{
    return arena->deferred_head == WH_NO_PAGE ? 0 : location_of(arena, arena->deferred_head);
}
