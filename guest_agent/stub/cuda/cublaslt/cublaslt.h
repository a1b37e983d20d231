/*
 * cublaslt.h - descriptors of cuBLASLt: plain bytes, in the caller's memory or in ours.
 */
#ifndef WH_STUB_CUBLASLT_H
#define WH_STUB_CUBLASLT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda.h"
#include "wh_cublaslt.h"

extern const struct wh_cuda_api wh_cublaslt_api;

enum wh_lt_kind {
    WH_LT_MATMUL,
    WH_LT_LAYOUT,
    WH_LT_TRANSFORM,
    WH_LT_PREFERENCE,
    WH_LT_ALGO,
    WH_LT_KINDS,
};

/* Bytes of a descriptor of this kind at this place. */
size_t wh_lt_bytes(const void *descriptor, enum wh_lt_kind kind);

/* Memory of ours for a new one, zero at first; NULL without room. False: it is none of ours. */
void *wh_lt_new(enum wh_lt_kind kind);
void wh_lt_resize(void *descriptor, size_t size_bytes);
bool wh_lt_free(void *descriptor);

/* The size that programs have their own descriptors of this kind with. */
void wh_lt_learn_size(enum wh_lt_kind kind, size_t size_bytes);

/* A copy in which device pointers are replaced by ones that say only how they are aligned: what the
 * library makes of a descriptor does not depend on more. Returns the descriptor's bytes. */
size_t wh_lt_plain(const void *descriptor, enum wh_lt_kind kind, uint8_t *plain);

/* The pointer that stands for one in such a copy. */
uint64_t wh_lt_plain_pointer(uint64_t pointer);

/* Puts the descriptor's own pointers back into what has become of its copy. */
void wh_lt_restore(const void *descriptor, enum wh_lt_kind kind, uint8_t *bytes);

/* Whether the attribute is a pointer to device memory; where it stands, SIZE_MAX if unknown so far.
 */
bool wh_lt_is_pointer(enum wh_lt_kind kind, int attribute, size_t *offset);

/* Finds out where, from a descriptor before and after it was set. */
void wh_lt_learn_pointer(enum wh_lt_kind kind, int attribute, const uint8_t *before,
                         const uint8_t *after, size_t size_bytes, uint64_t pointer);

#endif
