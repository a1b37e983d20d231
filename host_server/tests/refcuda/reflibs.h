/*
 * reflibs.h - what the doubles of the mathematical libraries share.
 */
#ifndef REFLIBS_H
#define REFLIBS_H

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

#endif
