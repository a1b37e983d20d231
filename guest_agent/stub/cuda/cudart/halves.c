/*
 * halves.c - copies bulk data with two threads: one alone does not reach what the memory can give.
 *
 * On the way out it stores past the caches: the program's buffer is much larger than they are, and
 * an ordinary store would read each line of it first.
 *
 * The helper spins while a large copy is under way, so that a piece costs no wake-up, and sleeps
 * otherwise. It exists only where processors are not scarce.
 */
#define _GNU_SOURCE

#include "cudart.h"

#include <emmintrin.h>
#include <sched.h>
#include <unistd.h>

#include "fork_lock.h"
#include "service.h"
#include "wh_codec.h"

#define PROCESSORS_LEAST 4
#define IDLE_LOOKS 200000u /* some milliseconds without a piece: the copy is over */

static struct {
    char *dst;
    const char *src;
    size_t size_bytes;
    bool streams;
    uint32_t wanted; /* number of the latest piece; stored last */
    uint32_t done;   /* of the latest that is copied */
    uint32_t awake;  /* the helper looks at `wanted` */
} piece;

WH_FORK_LOCK(helper_lock);
static pthread_cond_t called = PTHREAD_COND_INITIALIZER;
static bool started;
static pid_t owner; /* process that has the thread */

/* memcpy that leaves no line of dst in the caches. */
static void copy_past(char *dst, const char *src, size_t size_bytes)
{
    size_t head = -(uintptr_t)dst % 64;
    head = head < size_bytes ? head : size_bytes;
    memcpy(dst, src, head);
    size_t at = head;
    for (; at + 64 <= size_bytes; at += 64) {
        const __m128i *from = (const __m128i *)(const void *)(src + at);
        __m128i *to = (__m128i *)(void *)(dst + at);
        __m128i a = _mm_loadu_si128(from);
        __m128i b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2);
        __m128i d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    memcpy(dst + at, src + at, size_bytes - at);
    _mm_sfence(); /* such stores are ordered by nothing else */
}

void wh_copy_bytes(void *dst, const void *src, size_t size_bytes, bool streams)
{
    if (streams) {
        copy_past(dst, src, size_bytes);
    } else {
        memcpy(dst, src, size_bytes);
    }
}

static void look(void)
{
    uint32_t idle = 0;
    while (idle < IDLE_LOOKS) {
        uint32_t wanted = wh_load_acquire32(&piece.wanted);
        if (wanted != wh_load32(&piece.done)) {
            wh_copy_bytes(piece.dst, piece.src, piece.size_bytes, piece.streams);
            wh_store_release32(&piece.done, wanted);
            idle = 0;
        } else {
            idle++;
            __builtin_ia32_pause();
        }
    }
}

static void help(void)
{
    for (;;) {
        pthread_mutex_lock(&helper_lock);
        while (wh_load32(&piece.awake) == 0) {
            pthread_cond_wait(&called, &helper_lock);
        }
        pthread_mutex_unlock(&helper_lock);
        look();
        /* A piece that is wanted now is seen by the caller as not taken: see wh_halves_copy. */
        wh_store32(&piece.awake, 0);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (wh_load_acquire32(&piece.wanted) != wh_load32(&piece.done)) {
            wh_store32(&piece.awake, 1);
        }
    }
}

bool wh_halves_begin(void)
{
    pthread_mutex_lock(&helper_lock);
    if (!started || owner != getpid()) {
        started = sysconf(_SC_NPROCESSORS_ONLN) >= PROCESSORS_LEAST &&
                  wh_service_start("wormhole-copies", help) == 0;
        owner = getpid();
    }
    if (started) {
        wh_store32(&piece.awake, 1);
        pthread_cond_signal(&called);
    }
    pthread_mutex_unlock(&helper_lock);
    return started;
}

void wh_halves_copy(void *dst, const void *src, size_t size_bytes, bool streams)
{
    size_t half = size_bytes / 2 / 64 * 64;
    piece.dst = (char *)dst + half;
    piece.src = (const char *)src + half;
    piece.size_bytes = size_bytes - half;
    piece.streams = streams;
    uint32_t number = wh_load32(&piece.wanted) + 1;
    /* Pairs with the helper's acquire load: it sees the piece whole. */
    wh_store_release32(&piece.wanted, number);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (wh_load32(&piece.awake) == 0) {
        pthread_mutex_lock(&helper_lock);
        wh_store32(&piece.awake, 1);
        pthread_cond_signal(&called);
        pthread_mutex_unlock(&helper_lock);
    }
    wh_copy_bytes(dst, src, half, streams);
    for (uint32_t looks = 0; wh_load_acquire32(&piece.done) != number; looks++) {
        if (looks < IDLE_LOOKS) {
            __builtin_ia32_pause();
        } else {
            sched_yield(); /* the helper has lost its processor */
        }
    }
}
