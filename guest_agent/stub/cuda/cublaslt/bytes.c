/*
 * bytes.c - descriptors of cuBLASLt as bytes.
 *
 * Programs have them in memory of their own, initialised by a function that is told their size, or
 * have the library make them. What bytes a setter makes is the real library's affair; it is asked
 * once for each question. Pointers to device memory would make every question a new one: so where
 * they stand is found out when they are set, and questions have others in their place.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "cublaslt.h"

#define CELLS 16384u
#define CELL_BYTES WH_LT_DESCRIPTOR_BYTES_MAX
#define ATTRIBUTES_MAX 64u
#define UNKNOWN SIZE_MAX
#define LEAST_POINTER 4096u
#define STAND_IN 0x100000u
#define ALIGN_MASK 0xffu

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *cells;             /* CELLS of CELL_BYTES */
static uint16_t cell_bytes[CELLS]; /* 0: free */
static uint32_t next_cell;

/* As CUDA 13.0 has them, until a program says otherwise. */
static size_t own_bytes[WH_LT_KINDS] = {256, 64, 64, 64, WH_LT_ALGO_BYTES};

/* Where the pointers of a product's descriptor stand, by attribute; 0 unknown, else offset + 1. */
static uint32_t pointer_places[ATTRIBUTES_MAX];

static bool inside(const void *descriptor, uint32_t *cell)
{
    const uint8_t *base = __atomic_load_n(&cells, __ATOMIC_ACQUIRE);
    const uint8_t *address = descriptor;
    if (base == NULL || address < base || address >= base + (size_t)CELLS * CELL_BYTES) {
        return false;
    }
    *cell = (uint32_t)((size_t)(address - base) / CELL_BYTES);
    return true;
}

size_t wh_lt_bytes(const void *descriptor, enum wh_lt_kind kind)
{
    uint32_t cell = 0;
    if (kind != WH_LT_ALGO && inside(descriptor, &cell)) {
        return cell_bytes[cell];
    }
    return __atomic_load_n(&own_bytes[kind], __ATOMIC_RELAXED);
}

void wh_lt_learn_size(enum wh_lt_kind kind, size_t size_bytes)
{
    __atomic_store_n(&own_bytes[kind], size_bytes, __ATOMIC_RELAXED);
}

static bool map_cells(void)
{
    void *memory = mmap(NULL, (size_t)CELLS * CELL_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    __atomic_store_n(&cells, memory, __ATOMIC_RELEASE);
    return true;
}

void *wh_lt_new(enum wh_lt_kind kind)
{
    uint8_t *descriptor = NULL;
    pthread_mutex_lock(&lock);
    if (cells != NULL || map_cells()) {
        for (uint32_t i = 0; i < CELLS && descriptor == NULL; i++) {
            uint32_t cell = next_cell++ % CELLS;
            if (cell_bytes[cell] == 0) {
                cell_bytes[cell] = (uint16_t)own_bytes[kind];
                descriptor = cells + (size_t)cell * CELL_BYTES;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    if (descriptor != NULL) {
        memset(descriptor, 0, CELL_BYTES);
    }
    return descriptor;
}

void wh_lt_resize(void *descriptor, size_t size_bytes)
{
    uint32_t cell = 0;
    if (inside(descriptor, &cell) && size_bytes <= CELL_BYTES && size_bytes > 0) {
        cell_bytes[cell] = (uint16_t)size_bytes;
    }
}

bool wh_lt_free(void *descriptor)
{
    uint32_t cell = 0;
    if (!inside(descriptor, &cell)) {
        return false;
    }
    pthread_mutex_lock(&lock);
    bool used = cell_bytes[cell] != 0;
    cell_bytes[cell] = 0;
    pthread_mutex_unlock(&lock);
    return used;
}

bool wh_lt_is_pointer(enum wh_lt_kind kind, int attribute, size_t *offset)
{
    /* Bias, auxiliary buffer, scales of A to D and of the auxiliary buffer, maxima, D's new scale.
     */
    static const uint64_t pointers = 1ull << 8 | 1ull << 11 | 1ull << 17 | 1ull << 18 | 1ull << 19 |
                                     1ull << 20 | 1ull << 21 | 1ull << 23 | 1ull << 24 | 1ull << 36;
    *offset = UNKNOWN;
    if (kind != WH_LT_MATMUL || attribute < 0 || attribute >= (int)ATTRIBUTES_MAX ||
        (pointers >> attribute & 1) == 0) {
        return false;
    }
    uint32_t place = __atomic_load_n(&pointer_places[attribute], __ATOMIC_RELAXED);
    *offset = place == 0 ? UNKNOWN : place - 1;
    return true;
}

void wh_lt_learn_pointer(enum wh_lt_kind kind, int attribute, const uint8_t *before,
                         const uint8_t *after, size_t size_bytes, uint64_t pointer)
{
    size_t found = UNKNOWN;
    size_t known = 0;
    if (!wh_lt_is_pointer(kind, attribute, &known) || known != UNKNOWN || pointer < LEAST_POINTER) {
        return;
    }
    for (size_t at = 0; at + sizeof(pointer) <= size_bytes; at += sizeof(pointer)) {
        uint64_t word = 0;
        memcpy(&word, after + at, sizeof(word));
        if (word == pointer && memcmp(before + at, after + at, sizeof(word)) != 0) {
            if (found != UNKNOWN) {
                return; /* in two places: questions stay as they are */
            }
            found = at;
        }
    }
    if (found != UNKNOWN) {
        __atomic_store_n(&pointer_places[attribute], (uint32_t)found + 1, __ATOMIC_RELAXED);
    }
}

uint64_t wh_lt_plain_pointer(uint64_t pointer)
{
    return pointer < LEAST_POINTER ? pointer : STAND_IN | (pointer & ALIGN_MASK);
}

/* Calls for each known place of a pointer: replaces it, or copies it from elsewhere. */
static void each_pointer(uint8_t *bytes, size_t size_bytes, const uint8_t *from)
{
    for (uint32_t i = 0; i < ATTRIBUTES_MAX; i++) {
        uint32_t place = __atomic_load_n(&pointer_places[i], __ATOMIC_RELAXED);
        uint64_t word = 0;
        if (place == 0 || place - 1 + sizeof(word) > size_bytes) {
            continue;
        }
        if (from != NULL) {
            memcpy(bytes + place - 1, from + place - 1, sizeof(word));
            continue;
        }
        memcpy(&word, bytes + place - 1, sizeof(word));
        word = wh_lt_plain_pointer(word);
        memcpy(bytes + place - 1, &word, sizeof(word));
    }
}

size_t wh_lt_plain(const void *descriptor, enum wh_lt_kind kind, uint8_t *plain)
{
    size_t size_bytes = wh_lt_bytes(descriptor, kind);
    memcpy(plain, descriptor, size_bytes);
    if (kind == WH_LT_MATMUL) {
        each_pointer(plain, size_bytes, NULL);
    }
    return size_bytes;
}

void wh_lt_restore(const void *descriptor, enum wh_lt_kind kind, uint8_t *bytes)
{
    if (kind == WH_LT_MATMUL) {
        each_pointer(bytes, wh_lt_bytes(descriptor, kind), descriptor);
    }
}
