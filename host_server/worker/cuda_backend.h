/*
 * cuda_backend.h - what the skeletons of CUDA's libraries share: the real libraries, the device
 * that a message is for, objects, results.
 */
#ifndef WH_CUDA_BACKEND_H
#define WH_CUDA_BACKEND_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "session.h"
#include "wh_cuda.h"

/* One function of a library and its place in the generated table. */
struct wh_cuda_entry {
    const char *name;
    size_t offset;
};

/* A real library; loaded when its first function is called. */
struct wh_cuda_library {
    const char *soname;
    const struct wh_cuda_entry *entries; /* name NULL ends them */
    void *table;
    void *handle;
    bool tried;
    pthread_mutex_t lock;
};

/* False: there is none, which was said once. */
bool wh_cuda_open(struct wh_cuda_library *library);

/* Takes the context word and makes its device the calling thread's. */
void wh_cuda_enter(struct wh_request *request);

/* The object of a handle; NULL for 0. *valid becomes false for a wrong one. */
void *wh_cuda_object(struct wh_request *request, uint64_t handle, uint8_t kind, bool *valid);

/* The same for a stream: 0 and 1 are the device's own. */
void *wh_cuda_stream_object(struct wh_request *request, uint64_t handle, bool *valid);

/* A list of handles as objects. */
void **wh_cuda_objects(struct wh_request *request, uint8_t kind, size_t *count, bool *valid);

/* An output area that begins with the bytes that came. */
void *wh_cuda_take_inout(struct wh_request *request, size_t *size_bytes);

/* Whether all of it is memory that the client may name by its address here. */
bool wh_cuda_in_arena(const struct wh_session *session, uint64_t address, uint64_t size_bytes);

bool wh_cuda_string_ends(const char *text, size_t size_bytes);

/* The result; of a one-way call a failure is kept for the next reply. */
void wh_cuda_reply(struct wh_request *request, uint16_t opcode, uint64_t status, uint64_t success);

static inline float wh_cuda_bits_float(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float value = 0;
    memcpy(&value, &low, sizeof(value));
    return value;
}

static inline double wh_cuda_bits_double(uint64_t bits)
{
    double value = 0;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

struct wh_cudart_table;
const struct wh_cudart_table *wh_cudart(void);

#endif
