/*
 * wh_sha256.h - SHA-256 (FIPS 180-4) of bytes in memory, with the processor's own instructions
 * where it has them. Client and worker name device code by it.
 */
#ifndef WH_SHA256_H
#define WH_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define WH_SHA256_BYTES 32u
#define WH_SHA256_BLOCK_BYTES 64u

static const uint32_t wh_sha256_constants[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t wh_sha256_turn(uint32_t value, unsigned bits)
{
    return value >> bits | value << (32 - bits);
}

static inline void wh_sha256_plain(uint32_t state[8], const uint8_t *bytes, size_t block_count)
{
    for (; block_count > 0; block_count--, bytes += WH_SHA256_BLOCK_BYTES) {
        uint32_t words[64];
        uint32_t v[8];
        for (size_t i = 0; i < 16; i++) {
            memcpy(&words[i], bytes + 4 * i, sizeof(words[i]));
            words[i] = __builtin_bswap32(words[i]);
        }
        for (size_t i = 16; i < 64; i++) {
            uint32_t early = words[i - 15];
            uint32_t late = words[i - 2];
            words[i] = words[i - 16] + words[i - 7] +
                       (wh_sha256_turn(early, 7) ^ wh_sha256_turn(early, 18) ^ early >> 3) +
                       (wh_sha256_turn(late, 17) ^ wh_sha256_turn(late, 19) ^ late >> 10);
        }
        memcpy(v, state, sizeof(v));
        for (size_t i = 0; i < 64; i++) {
            uint32_t first =
                v[7] +
                (wh_sha256_turn(v[4], 6) ^ wh_sha256_turn(v[4], 11) ^ wh_sha256_turn(v[4], 25)) +
                ((v[4] & v[5]) ^ (~v[4] & v[6])) + wh_sha256_constants[i] + words[i];
            uint32_t second =
                (wh_sha256_turn(v[0], 2) ^ wh_sha256_turn(v[0], 13) ^ wh_sha256_turn(v[0], 22)) +
                ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
            memmove(v + 1, v, 7 * sizeof(v[0]));
            v[4] += first;
            v[0] = first + second;
        }
        for (size_t i = 0; i < 8; i++) {
            state[i] += v[i];
        }
    }
}

#if defined(__x86_64__)
/* GCC 12's __builtin_cpu_supports does not know "sha". Asked once: in a guest cpuid is an exit. */
static inline bool wh_sha256_has_instructions(void)
{
    static int known; /* 0: not asked yet, 1: no, 2: yes */
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (found == 0) {
        bool vectors =
            __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_1) != 0 && (c & bit_SSSE3) != 0;
        bool has = vectors && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1u << 29)) != 0;
        found = has ? 2 : 1;
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found == 2;
}

/* The instructions want the eight words of the state as ABEF and CDGH, and do four rounds at a time
 * with four words of the message, of which the next sixteen are made on the way. */
__attribute__((target("sha,sse4.1,ssse3"))) static inline void
wh_sha256_fast(uint32_t state[8], const uint8_t *bytes, size_t block_count)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)state), 0xb1);
    __m128i high =
        _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8);
    __m128i cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; block_count > 0; block_count--, bytes += WH_SHA256_BLOCK_BYTES) {
        const __m128i abef_before = abef;
        const __m128i cdgh_before = cdgh;
        __m128i words[4];
        for (size_t i = 0; i < 4; i++) {
            words[i] = _mm_shuffle_epi8(
                _mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * i)), order);
        }
        for (size_t i = 0; i < 16; i++) {
            __m128i now = words[i % 4];
            if (i >= 4) {
                __m128i back = words[(i + 3) % 4];
                now = _mm_sha256msg1_epu32(now, words[(i + 1) % 4]);
                now = _mm_add_epi32(now, _mm_alignr_epi8(back, words[(i + 2) % 4], 4));
                now = _mm_sha256msg2_epu32(now, back);
                words[i % 4] = now;
            }
            __m128i sum = _mm_add_epi32(
                now, _mm_load_si128((const __m128i *)(const void *)(wh_sha256_constants + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    low = _mm_shuffle_epi32(abef, 0x1b);
    high = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(high, low, 8));
}
#endif

static inline void wh_sha256_blocks(uint32_t state[8], const uint8_t *bytes, size_t block_count,
                                    bool plain)
{
#if defined(__x86_64__)
    if (!plain && wh_sha256_has_instructions()) {
        wh_sha256_fast(state, bytes, block_count);
        return;
    }
#endif
    wh_sha256_plain(state, bytes, block_count);
}

/* plain: without the processor's instructions, for tests. */
static inline void wh_sha256_by(const void *data, size_t size_bytes, bool plain,
                                uint8_t digest[WH_SHA256_BYTES])
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[2 * WH_SHA256_BLOCK_BYTES] = {0};
    const uint8_t *bytes = data;
    size_t whole = size_bytes / WH_SHA256_BLOCK_BYTES;
    size_t rest = size_bytes % WH_SHA256_BLOCK_BYTES;
    size_t blocks = rest + 9 > WH_SHA256_BLOCK_BYTES ? 2 : 1;
    uint64_t bits = __builtin_bswap64((uint64_t)size_bytes * 8);
    wh_sha256_blocks(state, bytes, whole, plain);
    if (rest > 0) {
        memcpy(last, bytes + whole * WH_SHA256_BLOCK_BYTES, rest);
    }
    last[rest] = 0x80;
    memcpy(last + blocks * WH_SHA256_BLOCK_BYTES - sizeof(bits), &bits, sizeof(bits));
    wh_sha256_blocks(state, last, blocks, plain);
    for (size_t i = 0; i < 8; i++) {
        uint32_t word = __builtin_bswap32(state[i]);
        memcpy(digest + 4 * i, &word, sizeof(word));
    }
}

static inline void wh_sha256(const void *data, size_t size_bytes, uint8_t digest[WH_SHA256_BYTES])
{
    wh_sha256_by(data, size_bytes, false, digest);
}

#endif
