/*
 * wh_codec.h - what stub and worker must do alike: alignment, ordered access to shared words, and
 * time in a spin.
 *
 * Every shared word has one writer; the helpers name the pairing that makes each access safe.
 */
#ifndef WH_CODEC_H
#define WH_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "wh_wire.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#define WH_ITEM_BYTES 8u     /* every argument and result starts at a multiple of this */
#define WH_REQUEST_ALIGN 16u /* requests in the ring */

static inline size_t wh_align(size_t size_bytes, size_t alignment)
{
    return (size_bytes + alignment - 1) & ~(alignment - 1);
}

/* Publishes everything stored before; pairs with wh_load_acquire32 or -64 of the same word on the
 * other side. */
static inline void wh_store_release32(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline void wh_store_release64(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint32_t wh_load_acquire32(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline uint64_t wh_load_acquire64(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* For words whose value alone matters (flags re-read after a fence, counters). */
static inline uint32_t wh_load32(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline uint64_t wh_load64(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void wh_store32(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline void wh_store64(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/*
 * The two halves of going to sleep without a lost wake-up: the sleeper stores its flag, fences and
 * rechecks the data; the sender stores the data, fences and looks at the flag. One of them sees the
 * other.
 */
static inline void wh_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Takes a sleeper's flag: true for exactly one of several senders. The plain look first keeps the
 * common case cheap. */
static inline bool wh_take_flag(uint32_t *flag)
{
    return wh_load32(flag) != 0 && __atomic_exchange_n(flag, 0, __ATOMIC_SEQ_CST) != 0;
}

/* Takes the flag of a sleeper that waits for this very value, and of no later one. */
static inline bool wh_take_flag_of(uint32_t *flag, uint32_t value)
{
    return wh_load32(flag) == value &&
           __atomic_compare_exchange_n(flag, &value, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Adds to a counter that one thread owns and others read. */
static inline void wh_count(uint64_t *counter, uint64_t amount)
{
    wh_store64(counter, wh_load64(counter) + amount);
}

static inline uint64_t wh_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A clock for spinning: in an emulated guest clock_gettime is a system call, the counter is not. */
static inline uint64_t wh_ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#else
    return wh_now_ns();
#endif
}

/* Ticks of a microsecond, measured over 200 us; call once. */
static inline uint64_t wh_measure_ticks_per_us(void)
{
#if defined(__x86_64__)
    uint64_t start_ns = wh_now_ns();
    uint64_t start_ticks = wh_ticks();
    uint64_t end_ns;
    do {
        end_ns = wh_now_ns();
    } while (end_ns - start_ns < 200000u);
    uint64_t ticks = (wh_ticks() - start_ticks) * 1000u / (end_ns - start_ns);
    return ticks > 0 ? ticks : 1;
#else
    return 1000;
#endif
}

/*
 * Whether to use the pause instruction while spinning. Under QEMU's emulator it leaves the
 * translated code and takes a global lock, which costs more than the whole round trip.
 */
static inline bool wh_pause_is_cheap(void)
{
#if defined(__x86_64__)
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & (1u << 31)) == 0) {
        return true;
    }
    char name[13] = {0};
    __cpuid(0x40000000, a, b, c, d);
    memcpy(name, &b, 4);
    memcpy(name + 4, &c, 4);
    memcpy(name + 8, &d, 4);
    return strcmp(name, "TCGTCGTCGTCG") != 0;
#else
    return true;
#endif
}

static inline void wh_pause(bool pause_is_cheap)
{
#if defined(__x86_64__)
    if (pause_is_cheap) {
        _mm_pause();
    }
#else
    (void)pause_is_cheap;
#endif
}

/* The next sequence number; 0 is never one, so that a fresh reply slot is never taken for a reply.
 */
static inline uint32_t wh_next_sequence(uint32_t sequence)
{
    return sequence + 1 == 0 ? 1 : sequence + 1;
}

#endif
