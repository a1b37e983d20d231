/*
 * reflibs.h - what the doubles of the mathematical libraries share.
 */
#ifndef REFLIBS_H
#define REFLIBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "refcuda.h"

/* Of the double of the runtime: these libraries do their work when the stream has done its own. */
int cudaStreamSynchronize(void *stream);

static inline void ref_wait(void *stream)
{
    (void)cudaStreamSynchronize(NULL); /* which others wait for, too */
    (void)cudaStreamSynchronize(stream);
}

#define REF_SIZE_MAX (1 << 20)
#define REF_WORK_MAX ((int64_t)1 << 26)

/* What would keep a test for hours is refused. */
static inline bool ref_bounded(int64_t a, int64_t b, int64_t c)
{
    bool small = a <= REF_SIZE_MAX && b <= REF_SIZE_MAX && c <= REF_SIZE_MAX;
    return small && (a > 1 ? a : 1) * (b > 1 ? b : 1) * (c > 1 ? c : 1) <= REF_WORK_MAX;
}

#endif
