/*
 * kernels.c - the test program's kernels, for the double of a device.
 */
#include <string.h>
#include <time.h>

#include "refcuda.h"

#define LAYOUT(name, ...)                                                                          \
    REF_EXPORT const struct wh_cuda_parameter name##_layout[] = {__VA_ARGS__, {0, 0}}

static uint64_t threads_of(const struct ref_launch *launch)
{
    return (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z * launch->block.x *
           launch->block.y * launch->block.z;
}

/* c[i] = a[i] + b[i], n values. */
LAYOUT(vector_add, {0, 8}, {8, 8}, {16, 8}, {24, 4});
REF_EXPORT void vector_add(struct ref_launch *launch, void *const *parameters)
{
    const float *a = *(const float **)parameters[0];
    const float *b = *(const float **)parameters[1];
    float *c = *(float **)parameters[2];
    int n = *(int *)parameters[3];
    for (uint64_t i = 0; i < threads_of(launch) && i < (uint64_t)n; i++) {
        c[i] = a[i] + b[i];
    }
}

/* x[i] = x[i] * factor + shift */
LAYOUT(scale, {0, 8}, {8, 4}, {12, 4}, {16, 4});
REF_EXPORT void scale(struct ref_launch *launch, void *const *parameters)
{
    int *x = *(int **)parameters[0];
    int n = *(int *)parameters[3];
    for (uint64_t i = 0; i < threads_of(launch) && i < (uint64_t)n; i++) {
        x[i] = x[i] * *(int *)parameters[1] + *(int *)parameters[2];
    }
}

/* Waits, then stores: so that what comes before it in the stream takes its time. */
LAYOUT(slow_store, {0, 8}, {8, 4}, {12, 4}, {16, 4});
REF_EXPORT void slow_store(struct ref_launch *launch, void *const *parameters)
{
    int milliseconds = *(int *)parameters[3];
    const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000l};
    (void)launch;
    nanosleep(&pause, NULL);
    int *x = *(int **)parameters[0];
    for (int i = 0; i < *(int *)parameters[2]; i++) {
        x[i] = *(int *)parameters[1];
    }
}

/* All kinds of parameters: their bytes go to where the first one points. */
struct block {
    char bytes[320];
};
struct aligned {
    long long parts[2];
} __attribute__((aligned(16)));
struct large {
    char bytes[3600];
};
LAYOUT(layout_probe, {0, 8}, {8, 1}, {16, 8}, {32, 16}, {48, 8}, {56, 320}, {376, 2}, {378, 3600});
REF_EXPORT void layout_probe(struct ref_launch *launch, void *const *parameters)
{
    char *out = *(char **)parameters[0];
    static const size_t sizes[] = {1, 8, 16, 8, 320, 2, 3600};
    (void)launch;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        memcpy(out, parameters[i + 1], sizes[i]);
        out += sizes[i];
    }
}

LAYOUT(fault, {0, 8});
REF_EXPORT void fault(struct ref_launch *launch, void *const *parameters)
{
    (void)parameters;
    launch->error = 700;
}

REF_EXPORT int table[64];
REF_EXPORT const size_t table_bytes = sizeof(table);

LAYOUT(sum_table, {0, 8});
REF_EXPORT void sum_table(struct ref_launch *launch, void *const *parameters)
{
    int sum = 0;
    (void)launch;
    for (int i = 0; i < 64; i++) {
        sum += table[i];
    }
    **(int **)parameters[0] = sum;
}
