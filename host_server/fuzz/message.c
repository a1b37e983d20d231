/*
 * message.c - makes messages: by the grammar, near it, and without it.
 */
#define _GNU_SOURCE

#include <stdio.h>
#include <string.h>

#include "fuzz.h"
#include "grammar.h"
#include "wh_opencl_kinds.h"

#define INLINE_BYTES_MAX 512u
#define LIST_MAX 4u

uint64_t wh_random(struct wh_random *random)
{
    uint64_t value = random->state += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

uint32_t wh_below(struct wh_random *random, uint32_t limit)
{
    return (uint32_t)(wh_random(random) % limit);
}

bool wh_one_in(struct wh_random *random, uint32_t count)
{
    return wh_below(random, count) == 0;
}

uint64_t wh_odd_number(struct wh_random *random)
{
    switch (wh_below(random, 6)) {
    case 0:
        return wh_below(random, 4);
    case 1:
        return (1ull << wh_below(random, 64)) + wh_below(random, 3) - 1;
    case 2:
        return 0 - (uint64_t)wh_below(random, 300);
    case 3:
        return WH_NULL + wh_below(random, 3);
    case 4:
        return WH_FUZZ_SESSION_BYTES - wh_below(random, 4096);
    default:
        return wh_random(random);
    }
}

void wh_handles_add(struct wh_handles *handles, uint64_t handle)
{
    uint8_t kind = (uint8_t)(handle >> 56);
    handles->handles[kind][handles->counts[kind]++ % WH_FUZZ_HANDLES_MAX] = handle;
}

/* Writing. What does not fit is left out: the message is then simply too short. */

void wh_message_bytes(struct wh_message *message, const void *bytes, size_t size_bytes)
{
    size_t padded_bytes = wh_align(size_bytes, WH_ITEM_BYTES);
    if (padded_bytes > sizeof(message->bytes) - WH_REQUEST_ALIGN - message->size_bytes) {
        return;
    }
    memset(message->bytes + message->size_bytes, 0, padded_bytes);
    memcpy(message->bytes + message->size_bytes, bytes, size_bytes);
    message->size_bytes += padded_bytes;
}

void wh_message_u64(struct wh_message *message, uint64_t value)
{
    wh_message_bytes(message, &value, sizeof(value));
}

/* Bytes of a message, inline or in the arena, or with a place that is wrong. */
void wh_message_blob(struct wh_maker *maker, struct wh_message *message, const void *bytes,
                     size_t size_bytes)
{
    struct wh_random *random = maker->random;
    if (wh_one_in(random, maker->wrong_one_in)) {
        wh_message_u64(message, wh_odd_number(random));
        wh_message_u64(message, wh_odd_number(random));
        return;
    }
    wh_message_u64(message, size_bytes);
    bool in_arena = maker->arena != NULL && (size_bytes > INLINE_BYTES_MAX || wh_one_in(random, 8));
    if (!in_arena) {
        wh_message_u64(message, WH_INLINE);
        wh_message_bytes(message, bytes, size_bytes);
        return;
    }
    uint64_t lines = (maker->arena_bytes - size_bytes) / WH_LINE_BYTES - 1;
    uint64_t location = WH_LINE_BYTES * (1 + wh_random(random) % lines);
    memcpy(maker->arena + location, bytes, size_bytes);
    wh_message_u64(message, location);
}

void wh_message_out(struct wh_maker *maker, struct wh_message *message, uint64_t capacity_bytes)
{
    struct wh_random *random = maker->random;
    wh_message_u64(message,
                   wh_one_in(random, maker->wrong_one_in) ? wh_odd_number(random) : capacity_bytes);
    if (wh_one_in(random, maker->wrong_one_in)) {
        wh_message_u64(message, wh_odd_number(random));
    } else if (wh_one_in(random, 30)) {
        wh_message_u64(message, WH_NULL); /* which some calls refuse */
    } else if (maker->arena != NULL && wh_one_in(random, 4)) {
        wh_message_u64(message, WH_LINE_BYTES * (1ull + wh_below(random, 4096)));
    } else {
        wh_message_u64(message, WH_INLINE);
    }
}

/* Choosing. */

static uint64_t size_number(struct wh_random *random)
{
    static const uint16_t sizes[] = {0,  1,  2,  3,   4,   8,   12,   16,
                                     24, 32, 64, 100, 128, 256, 1024, 4096};
    return sizes[wh_below(random, sizeof(sizes) / sizeof(sizes[0]))];
}

static uint64_t number(struct wh_maker *maker, const struct wh_item *item)
{
    struct wh_random *random = maker->random;
    if (wh_one_in(random, maker->wrong_one_in)) {
        return wh_odd_number(random);
    }
    switch (item->hint) {
    case WH_HINT_SIZE:
        return size_number(random);
    case WH_HINT_LENGTH:
        return 4 + 4 * wh_below(random, wh_one_in(random, 8) ? 1000 : 64);
    case WH_HINT_SMALL:
        return wh_one_in(random, 2) ? 4 : wh_below(random, 17);
    case WH_HINT_ZERO:
        return wh_one_in(random, 50);
    case WH_HINT_ROOM:
        return 8 * wh_below(random, 129);
    case WH_HINT_ID:
        return 1 + wh_below(random, 16);
    case WH_HINT_FLAGS:
        return 1ull << wh_below(random, 10);
    case WH_HINT_BOOLEAN:
        return wh_below(random, 2);
    case WH_HINT_MODE:
        return wh_below(random, wh_one_in(random, 3) ? item->argument : 2);
    case WH_HINT_PHASE:
        if (maker->unfinished != 0 && wh_one_in(random, 2)) {
            return wh_one_in(random, 4) ? WH_CL_PHASE_DATA : WH_CL_PHASE_PLACE;
        }
        return wh_one_in(random, 50);
    case WH_HINT_QUERY:
        return item->argument + wh_below(random, 20);
    case WH_HINT_TIME:
        return wh_below(random, 50);
    default:
        return wh_one_in(random, 3) ? 0xffffffffull : wh_below(random, 8);
    }
}

/* Images are the last that the parent keeps of its kind; calls for them are rare enough. */
static uint64_t image_of(struct wh_maker *maker)
{
    return maker->handles->handles[WH_KIND_MEM][6 + wh_below(maker->random, 3)];
}

uint64_t wh_message_handle(struct wh_maker *maker, uint8_t kind)
{
    struct wh_random *random = maker->random;
    if (wh_one_in(random, maker->wrong_one_in)) {
        uint64_t odd = wh_odd_number(random);
        return wh_one_in(random, 2) ? odd : (uint64_t)kind << 56 | (odd & 0xffffffffffull);
    }
    if (wh_one_in(random, maker->wrong_one_in)) {
        kind = (uint8_t)(1 + wh_below(random, 10));
    }
    uint32_t count = maker->handles->counts[kind];
    count = count < WH_FUZZ_HANDLES_MAX ? count : WH_FUZZ_HANDLES_MAX;
    if (count == 0) {
        return 0;
    }
    /* Rather an early one: those exist, what a session makes itself may have failed. */
    uint32_t one = wh_below(random, count);
    uint32_t other = wh_below(random, count);
    return maker->handles->handles[kind][one < other ? one : other];
}

static uint64_t created_handle(struct wh_maker *maker, uint8_t kind)
{
    struct wh_random *random = maker->random;
    if (wh_one_in(random, maker->wrong_one_in * 4)) {
        return wh_message_handle(maker, kind);
    }
    uint64_t handle = (uint64_t)kind << 56 | 1ull << 32 | (maker->handles->next_index++ & 0xfffff);
    wh_handles_add(maker->handles, handle);
    return handle;
}

static void put_handles(struct wh_maker *maker, struct wh_message *message, uint8_t kind,
                        uint32_t count)
{
    uint64_t list[LIST_MAX];
    if (count == 0) {
        wh_message_u64(message, 0);
        wh_message_u64(message, WH_NULL);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        list[i] = wh_message_handle(maker, kind);
    }
    wh_message_blob(maker, message, list, count * sizeof(list[0]));
}

static void put_list(struct wh_maker *maker, struct wh_message *message, uint16_t first_name)
{
    uint64_t list[2 * LIST_MAX + 1];
    uint32_t pairs = first_name == 0 ? 0 : wh_below(maker->random, 3);
    if (wh_one_in(maker->random, 3)) {
        wh_message_u64(message, 0);
        wh_message_u64(message, WH_NULL);
        return;
    }
    for (uint32_t i = 0; i < pairs; i++) {
        list[2 * i] = first_name + wh_below(maker->random, 2);
        list[2 * i + 1] = wh_below(maker->random, 8);
    }
    list[2 * (size_t)pairs] = wh_one_in(maker->random, maker->wrong_one_in) ? 1 : 0;
    wh_message_blob(maker, message, list, (2 * pairs + 1) * sizeof(list[0]));
}

static void put_created_list(struct wh_maker *maker, struct wh_message *message, uint8_t kind)
{
    uint64_t list[LIST_MAX];
    uint32_t count = wh_below(maker->random, LIST_MAX);
    for (uint32_t i = 0; i < count; i++) {
        list[i] = created_handle(maker, kind);
    }
    wh_message_blob(maker, message, list, count * sizeof(list[0]));
}

static void put_data(struct wh_maker *maker, struct wh_message *message, uint64_t length)
{
    static uint8_t bytes[4096];
    memset(bytes, (int)wh_random(maker->random), 64);
    wh_message_blob(maker, message, bytes, length <= sizeof(bytes) ? length : sizeof(bytes));
}

static void put_triple(struct wh_maker *maker, struct wh_message *message, uint8_t hint)
{
    struct wh_random *random = maker->random;
    uint64_t sizes[3];
    for (int i = 0; i < 3; i++) {
        uint64_t good = hint == WH_HINT_ORIGIN ? wh_below(random, 3) : 1 + wh_below(random, 4);
        sizes[i] = wh_one_in(random, maker->wrong_one_in) ? wh_odd_number(random) : good;
    }
    if (wh_one_in(random, 2)) { /* all that an image of two dimensions has */
        sizes[2] = hint == WH_HINT_ORIGIN ? 0 : hint == WH_HINT_REGION ? 1 : wh_below(random, 2);
    }
    wh_message_blob(maker, message, sizes, sizeof(sizes));
}

static void put_text(struct wh_maker *maker, struct wh_message *message, const char *text)
{
    wh_message_blob(maker, message, text,
                    strlen(text) + !wh_one_in(maker->random, maker->wrong_one_in));
}

static void put_string(struct wh_maker *maker, struct wh_message *message, uint8_t hint)
{
    static const char *const strings[] = {"", "add", "copy", "say", "-DX=3", "fill", "%n"};
    static const char *const paths[] = {"a.h", "b/", "b/c.h", "a.h/d", "b/./c", "x"};
    static const char *const options[] = {"",   "-DX=3",           "-cl-kernel-arg-info",
                                          "-w", "-create-library", "-I b -DY"};
    uint32_t number = wh_below(maker->random, 42);
    put_text(maker, message,
             hint == WH_HINT_PATH ? paths[wh_one_in(maker->random, 50) ? number % 6 : number % 3]
             : hint == WH_HINT_OPTIONS ? options[number % 6]
                                       : strings[number % 7]);
}

static void put_source(struct wh_maker *maker, struct wh_message *message)
{
    static const char *const sources[] = {
        "",
        "kernel void add(global int *a, int b) { a[get_global_id(0)] += b; }",
        "kernel void copy(global int *a, global int *b, local int *c) { b[0] = a[0]; }",
        "#include \"a.h\"\nkernel void say(int n) { printf(\"%d\\n\", n); }",
        "kernel void broken(",
    };
    const char *text = sources[wh_below(maker->random, sizeof(sources) / sizeof(sources[0]))];
    wh_message_blob(maker, message, text, strlen(text));
}

static void put_bytes(struct wh_maker *maker, struct wh_message *message)
{
    uint64_t words[512];
    size_t size_bytes =
        wh_one_in(maker->random, maker->wrong_one_in) ? size_number(maker->random) : 256;
    if (wh_one_in(maker->random, maker->wrong_one_in)) {
        wh_message_u64(message, 0);
        wh_message_u64(message, WH_NULL);
        return;
    }
    for (size_t i = 0; i * sizeof(words[0]) < size_bytes; i++) {
        words[i] = wh_one_in(maker->random, 8) ? wh_message_handle(maker, WH_KIND_MEM)
                                               : wh_below(maker->random, 16);
    }
    wh_message_blob(maker, message, words, size_bytes);
}

/* Sorts are 1 bytes, 2 handle, 3 local memory. */
static void put_argument(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    bool wrong = wh_one_in(random, maker->wrong_one_in);
    uint64_t sort = 1 + wh_below(random, wrong ? 5 : 3);
    uint64_t value = sort == 2 ? wh_message_handle(maker, WH_KIND_MEM) : wh_below(random, 100);
    wh_message_u64(message, wrong ? wh_odd_number(random) : wh_below(random, 4));
    wh_message_u64(message, sort);
    wh_message_u64(message, wrong ? wh_odd_number(random) : wh_one_in(random, 2) ? 4 : 8);
    wh_message_blob(maker, message, &value, sizeof(value));
}

/* Kernel arguments of a launch: header of index, sort and size, then the value. */
static void put_packed(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    uint64_t words[3 * LIST_MAX];
    uint32_t count = wh_below(random, LIST_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t sort = 1 + wh_below(random, wh_one_in(random, maker->wrong_one_in) ? 5 : 3);
        words[3 * i] = sort << 32 | i;
        words[3 * i + 1] = sort == 1 ? 4 : 8;
        words[3 * i + 2] =
            sort == 2 ? wh_message_handle(maker, WH_KIND_MEM) : wh_below(random, 100);
    }
    wh_message_blob(maker, message, words, (size_t)count * 3 * sizeof(words[0]));
}

static void put_geometry(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    bool wrong = wh_one_in(random, maker->wrong_one_in);
    uint64_t dimensions = wrong ? wh_odd_number(random) : 1 + wh_below(random, 3);
    wh_message_u64(message, dimensions);
    wh_message_u64(message, wh_below(random, 8));
    for (uint64_t i = 0; i < 3 * (dimensions <= 3 ? dimensions : 0); i++) {
        wh_message_u64(message, wh_one_in(random, maker->wrong_one_in) ? wh_odd_number(random)
                                                                       : wh_below(random, 5));
    }
}

static void put_reads(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    uint64_t count =
        wh_one_in(random, maker->wrong_one_in) ? wh_odd_number(random) : wh_below(random, 3);
    wh_message_u64(message, count);
    for (uint64_t i = 0; i < (count < LIST_MAX ? count : 0); i++) {
        bool carried = wh_one_in(random, 2);
        wh_message_u64(message, wh_below(random, 16));
        wh_message_u64(message, carried);
        if (carried) {
            wh_message_out(maker, message, 4096);
        }
    }
    uint64_t copied = wh_below(random, 2);
    wh_message_u64(message, copied);
    for (uint64_t i = 0; i < copied; i++) {
        wh_message_u64(message, wh_below(random, 16));
    }
}

static void put_staging(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    maker->last_read = 1 + wh_below(random, 1000);
    wh_message_u64(message, maker->last_read);
    wh_message_u64(message, 4096);
    wh_message_u64(message, maker->arena == NULL || wh_one_in(random, 3)
                                ? WH_INLINE
                                : WH_LINE_BYTES * (1ull + wh_below(random, 4096)));
    wh_message_u64(message, wh_one_in(random, 4) ? wh_below(random, 17)
                                                 : 100 + wh_below(random, 1000)); /* the token */
}

/* What follows a transfer. In place, held and let go there is no data; a held piece names its
 * transfer before it. */
static void put_answer(struct wh_maker *maker, struct wh_message *message, uint64_t mode,
                       uint64_t length, bool writes)
{
    struct wh_random *random = maker->random;
    switch (mode) {
    case WH_CL_MODE_IN_PLACE:
        wh_message_u64(message, wh_below(random, 2));
        wh_message_u64(message, 1 + wh_below(random, 4));
        put_reads(maker, message);
        return;
    case WH_CL_MODE_HOLD:
        wh_message_u64(message, wh_below(random, 8));
        wh_message_u64(message, wh_one_in(random, 2) ? 0 : created_handle(maker, WH_KIND_EVENT));
        put_reads(maker, message);
        return;
    case WH_CL_MODE_LET_GO:
        wh_message_u64(message, wh_below(random, 8));
        wh_message_u64(message, wh_below(random, 2));
        wh_message_u64(message, wh_one_in(random, 8) ? 0 - 5ull : 0);
        return;
    case WH_CL_MODE_HELD:
        wh_message_u64(message, wh_below(random, 8));
        break;
    case WH_CL_MODE_FROM_READ:
        if (writes) {
            bool known = maker->last_read != 0 && !wh_one_in(random, 8);
            wh_message_u64(message, known ? maker->last_read : wh_below(random, 8));
            wh_message_u64(message, wh_one_in(random, 8) ? wh_odd_number(random) : 0);
            put_reads(maker, message);
            return;
        }
        break;
    default:
        break;
    }
    if (writes) {
        put_data(maker, message, length);
        put_reads(maker, message);
    } else if (mode == WH_CL_MODE_BLOCKING || mode == WH_CL_MODE_HELD) {
        wh_message_out(maker, message, 4096);
        put_reads(maker, message);
    } else {
        put_staging(maker, message);
    }
}

/* Where a buffer or an image is to lie; 0: in the worker's memory. */
static void put_backing(struct wh_maker *maker, struct wh_message *message, bool backed)
{
    uint64_t page = wh_below(maker->random, 200);
    wh_message_u64(message, backed ? WH_PAGE_BYTES * page + WH_BLOCK_HEADER_BYTES : 0);
}

/* What completes an image names one that the session has begun. */
static uint64_t created_image(struct wh_maker *maker, uint8_t kind, uint64_t phase)
{
    uint64_t handle = phase == WH_CL_PHASE_CREATE ? 0 : maker->unfinished;
    handle = handle == 0 ? created_handle(maker, kind) : handle;
    maker->unfinished = phase == WH_CL_PHASE_CREATE ? handle : 0;
    return handle;
}

/* cl_image_format and cl_image_desc, then whether data follows, and whether anything does; a piece
 * of the data; or a place. */
static void put_image(struct wh_maker *maker, struct wh_message *message, uint64_t phase)
{
    struct wh_random *random = maker->random;
    if (phase == WH_CL_PHASE_PLACE) {
        put_backing(maker, message, maker->arena != NULL && !wh_one_in(random, 4));
        return;
    }
    if (phase == WH_CL_PHASE_DATA) {
        wh_message_u64(message, wh_one_in(random, 4) ? 64 : 0);
        wh_message_u64(message, wh_below(random, 2));
        put_data(maker, message, 64);
        return;
    }
    const uint32_t format[2] = {0x10b0 + wh_below(random, 8), 0x10d0 + wh_below(random, 16)};
    const uint64_t desc[9] = {0x10f0 + wh_below(random, 8),
                              1 + wh_below(random, 16),
                              1 + wh_below(random, 16),
                              wh_below(random, 4),
                              wh_below(random, 4),
                              wh_one_in(random, 8) ? 256 : 0,
                              wh_one_in(random, 16) ? 4096 : 0};
    put_list(maker, message, 0);
    wh_message_u64(message, 1ull << wh_below(random, 6));
    wh_message_blob(maker, message, format, sizeof(format));
    wh_message_blob(maker, message, desc, sizeof(desc));
    wh_message_u64(message, wh_one_in(random, 4) ? wh_message_handle(maker, WH_KIND_MEM) : 0);
    wh_message_u64(message, wh_one_in(random, 4));
    wh_message_u64(message, wh_below(random, 2));
}

/* With data, in memory of the client, or neither; the flags fit, but for 8: a pointer. */
static void put_buffer(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    bool wrong = wh_one_in(random, maker->wrong_one_in);
    bool data = wh_one_in(random, 2);
    bool backed = maker->arena != NULL && (wrong || (!data && wh_one_in(random, 2)));
    uint64_t length = 4 + 4 * wh_below(random, 256);
    wh_message_u64(message, wrong ? 1ull << wh_below(random, 12)
                                  : (data ? 32 : 0) | 1ull << wh_below(random, 3));
    wh_message_u64(message, wrong ? wh_odd_number(random) : length);
    wh_message_u64(message, created_handle(maker, WH_KIND_MEM));
    wh_message_u64(message, wrong ? wh_below(random, 64) : 0);
    if (data) {
        put_data(maker, message, length);
    } else {
        wh_message_u64(message, 0);
        wh_message_u64(message, WH_NULL);
    }
    put_backing(maker, message, backed);
}

/* A damaged binary is only for sessions that send what is wrong: a library may fall over it. */
static void put_binary(struct wh_maker *maker, struct wh_message *message)
{
    const struct wh_binary *binary = maker->binary;
    bool wrong = wh_one_in(maker->random, maker->wrong_one_in);
    uint64_t size = wrong ? wh_below(maker->random, 64) : binary->size_bytes;
    bool fits = maker->arena != NULL || size < WH_FUZZ_MESSAGE_BYTES / 2;
    size = fits ? size : 0;
    wh_message_blob(maker, message, &size, sizeof(size));
    wh_message_u64(message, wrong ? 4 : 0);
    wh_message_blob(maker, message, binary->bytes, size);
}

static void put_headers(struct wh_maker *maker, struct wh_message *message)
{
    uint32_t count = wh_below(maker->random, 2);
    wh_message_u64(message, wh_one_in(maker->random, maker->wrong_one_in) ? 2 : count);
    put_handles(maker, message, WH_KIND_PROGRAM, count);
    if (count == 0) {
        wh_message_u64(message, 0);
        wh_message_u64(message, WH_NULL);
    } else {
        put_text(maker, message, "a.h");
    }
}

static void put_part(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    uint64_t region[2] = {128 * wh_below(random, 16), 4 + 4 * wh_below(random, 64)};
    bool wrong = wh_one_in(random, maker->wrong_one_in);
    region[wh_below(random, 2)] += wrong ? wh_odd_number(random) : 0;
    wh_message_u64(message, 0x1220); /* CL_BUFFER_CREATE_TYPE_REGION */
    wh_message_blob(maker, message, region, sizeof(region));
}

/* Equally or by counts, into parts of one unit, of which a device of the fuzzer has one. */
static void put_partition(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    bool by_counts = wh_one_in(random, 2);
    bool devices_wanted = wh_one_in(random, 2);
    bool wrong = wh_one_in(random, maker->wrong_one_in);
    const uint64_t list[4] = {0x1086 + by_counts, wrong ? wh_odd_number(random) : 1};
    wh_message_blob(maker, message, list, 8 * (wrong ? 2 + wh_below(random, 3) : 3u + by_counts));
    wh_message_u64(message, wrong ? wh_odd_number(random) : devices_wanted);
    wh_message_u64(message, devices_wanted);
    wh_message_u64(message, wh_one_in(random, 2));
    if (devices_wanted) {
        uint64_t handle = created_handle(maker, WH_KIND_DEVICE);
        wh_message_blob(maker, message, &handle, sizeof(handle));
    } else {
        wh_message_u64(message, 0);
        wh_message_u64(message, WH_NULL);
    }
}

/* Items of several words that only one function or two have. */
static void put_special(struct wh_maker *maker, struct wh_message *message,
                        const struct wh_item *item)
{
    switch (item->kind) {
    case WH_FUZZ_BUFFER:
        put_buffer(maker, message);
        break;
    case WH_FUZZ_BINARY:
        put_binary(maker, message);
        break;
    case WH_FUZZ_ARGUMENT:
        put_argument(maker, message);
        break;
    case WH_FUZZ_HEADERS:
        put_headers(maker, message);
        break;
    case WH_FUZZ_PART:
        put_part(maker, message);
        break;
    case WH_FUZZ_PARTITION:
        put_partition(maker, message);
        break;
    case WH_FUZZ_PACKED:
        put_packed(maker, message);
        break;
    case WH_FUZZ_GEOMETRY:
        put_geometry(maker, message);
        break;
    default:
        wh_message_cuda(maker, message, item);
        break;
    }
}

/* Whether a function's memory object of that index, from 0, is an image. */
static bool takes_image(const char *name, uint32_t index)
{
    if (strstr(name, "ImageToBuffer") != NULL) {
        return index == 0;
    }
    return strstr(name, "BufferToImage") != NULL ? index == 1 : strstr(name, "Image") != NULL;
}

void wh_message_items(struct wh_maker *maker, const struct wh_shape *shape,
                      struct wh_message *message)
{
    struct wh_random *random = maker->random;
    uint64_t last = 0;
    uint64_t mode = 0;
    uint64_t length = 256;
    uint32_t list_count = wh_below(random, LIST_MAX);
    uint32_t mems = 0;
    for (int i = 0; i < shape->count; i++) {
        const struct wh_item *item = &shape->items[i];
        uint8_t kind = (uint8_t)item->argument;
        switch (item->kind) {
        case WH_FUZZ_NUMBER:
            last = number(maker, item);
            if (item->hint == WH_HINT_MODE && last == WH_CL_MODE_IN_PLACE &&
                strcasestr(shape->name, "map") == NULL) {
                last = WH_CL_MODE_COPY; /* only mapping happens in place */
            }
            if (item->hint == WH_HINT_MODE && maker->last_read != 0 && wh_one_in(random, 4) &&
                strstr(shape->name, "Write") != NULL) {
                last = WH_CL_MODE_FROM_READ; /* rectangles and images, too */
            }
            length = item->hint == WH_HINT_LENGTH ? last : length;
            mode = item->hint == WH_HINT_MODE ? last : mode;
            wh_message_u64(message, last);
            break;
        case WH_FUZZ_COUNT:
            wh_message_u64(message, list_count);
            break;
        case WH_FUZZ_HANDLE:
            wh_message_u64(message, kind == WH_KIND_MEM && takes_image(shape->name, mems++) &&
                                            !wh_one_in(random, 10)
                                        ? image_of(maker)
                                        : wh_message_handle(maker, kind));
            break;
        case WH_FUZZ_CREATED_LIST:
            put_created_list(maker, message, kind);
            break;
        case WH_FUZZ_HANDLES:
            list_count = item->hint == 1 ? 1 : list_count;
            put_handles(maker, message, kind, list_count);
            /* CUDA's lists of one message have one length, which comes behind them. */
            list_count = maker->shapes == &wh_cuda_shapes ? list_count : wh_below(random, 2);
            break;
        case WH_FUZZ_BYTES:
            put_bytes(maker, message);
            break;
        case WH_FUZZ_DATA:
            put_data(maker, message, length);
            break;
        case WH_FUZZ_TRIPLE:
            put_triple(maker, message, item->hint);
            break;
        case WH_FUZZ_LIST:
            put_list(maker, message, item->argument);
            break;
        case WH_FUZZ_STRING:
            put_string(maker, message, item->hint);
            break;
        case WH_FUZZ_SOURCE:
            put_source(maker, message);
            break;
        case WH_FUZZ_OUT:
            wh_message_out(maker, message, item->argument != 0 ? item->argument : 1024);
            break;
        case WH_FUZZ_OUT_SIZE:
            wh_message_out(maker, message, last);
            break;
        case WH_FUZZ_CREATED:
            wh_message_u64(message, strstr(shape->name, "clCreateImage") != NULL
                                        ? created_image(maker, kind, last)
                                        : created_handle(maker, kind));
            break;
        case WH_FUZZ_EVENT:
            wh_message_u64(message,
                           wh_one_in(random, 2) ? 0 : created_handle(maker, WH_KIND_EVENT));
            break;
        case WH_FUZZ_READS:
            put_reads(maker, message);
            break;
        case WH_FUZZ_ANSWER:
            if (mode == WH_CL_MODE_IN_PLACE && strstr(shape->name, "MapImage") != NULL) {
                wh_message_u64(message, 4 * wh_below(random, 256)); /* where it begins */
            }
            put_answer(maker, message, mode, length,
                       strstr(shape->name, "Write") != NULL ||
                           strstr(shape->name, "Unmap") != NULL);
            break;
        case WH_FUZZ_IMAGE:
            put_image(maker, message, last);
            break;
        default:
            put_special(maker, message, item);
            break;
        }
    }
}

void wh_make_message(struct wh_maker *maker, size_t shape_index, struct wh_message *message)
{
    const struct wh_shape *shape = &maker->shapes->shapes[shape_index];
    struct wh_request_header header = {.opcode = shape->opcode};
    message->size_bytes = sizeof(header);
    wh_message_items(maker, shape, message);
    memcpy(message->bytes, &header, sizeof(header));
}

void wh_make_noise(const struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    const struct wh_shapes *known = maker->shapes;
    struct wh_request_header header = {0};
    header.opcode = wh_one_in(random, 8)
                        ? (uint16_t)wh_random(random)
                        : known->shapes[wh_below(random, (uint32_t)known->count)].opcode;
    uint32_t words = wh_below(random, 40);
    message->size_bytes = sizeof(header);
    memcpy(message->bytes, &header, sizeof(header));
    for (uint32_t i = 0; i < words; i++) {
        wh_message_u64(message, wh_odd_number(random));
    }
}

void wh_damage(struct wh_random *random, struct wh_message *message)
{
    size_t body_bytes = message->size_bytes - sizeof(struct wh_request_header);
    uint8_t *body = message->bytes + sizeof(struct wh_request_header);
    for (uint32_t count = 1 + wh_below(random, 3); count > 0 && body_bytes >= 8; count--) {
        size_t at = wh_below(random, (uint32_t)(body_bytes / 8)) * (size_t)8;
        uint64_t odd = wh_odd_number(random);
        switch (wh_below(random, 4)) {
        case 0:
            body[at + wh_below(random, 8)] ^= (uint8_t)(1u << wh_below(random, 8));
            break;
        case 1:
            memcpy(body + at, &odd, sizeof(odd));
            break;
        case 2:
            memmove(body, body + at, body_bytes - at);
            break;
        default:
            body_bytes = at;
            break;
        }
    }
    message->size_bytes = sizeof(struct wh_request_header) + body_bytes;
}
