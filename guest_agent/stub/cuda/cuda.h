/*
 * cuda.h - what the stubs of all CUDA libraries share: calls, handles, the thread's state, where
 * pointers point. One library (libwormhole_cuda.so) holds it, and the runtime, so that a process
 * has one session however many of the libraries it loads.
 */
#ifndef WH_STUB_CUDA_H
#define WH_STUB_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "call.h"
#include "mark.h"
#include "shape.h"
#include "wh_cuda.h"

/* A library and the results that any of its functions can have. */
struct wh_cuda_api {
    const char *name;
    int success;
    int lost;
    int unsupported;
    int memory;
    int invalid;
    uint16_t first_opcode;
};

/* The stream of the calling thread, as applications name it. */
#define WH_CUDA_PER_THREAD ((void *)(uintptr_t)2)
#define WH_CUDA_LEGACY ((void *)(uintptr_t)1)

/* Of the CUDA runtime's results those that are needed here. */
enum {
    WH_CUDA_INVALID_VALUE = 1,
    WH_CUDA_MEMORY_ALLOCATION = 2,
    WH_CUDA_INITIALIZATION = 3,
    WH_CUDA_INVALID_CONFIGURATION = 9,
    WH_CUDA_INVALID_PITCH = 12,
    WH_CUDA_INVALID_SYMBOL = 13,
    WH_CUDA_INVALID_DIRECTION = 21,
    WH_CUDA_MISSING_CONFIGURATION = 52,
    WH_CUDA_INVALID_FUNCTION = 98,
    WH_CUDA_NO_DEVICE = 100,
    WH_CUDA_INVALID_DEVICE = 101,
    WH_CUDA_INVALID_IMAGE = 200,
    WH_CUDA_FILE_NOT_FOUND = 301,
    WH_CUDA_INVALID_HANDLE = 400,
    WH_CUDA_ILLEGAL_STATE = 401,
    WH_CUDA_SYMBOL_NOT_FOUND = 500,
    WH_CUDA_NOT_READY = 600,
    WH_CUDA_ALREADY_REGISTERED = 712,
    WH_CUDA_NOT_REGISTERED = 713,
    WH_CUDA_NOT_SUPPORTED = 801,
    WH_CUDA_CAPTURE_UNSUPPORTED = 900,
    WH_CUDA_UNKNOWN = 999,
};

/* What CUDA keeps for each thread. */
struct wh_cuda_thread {
    int device;
    int last_error;
    uint64_t stream;        /* cudaStreamPerThread, once used */
    uint32_t stream_serial; /* of its session */
    int capture_mode;
    bool uses_primary;      /* the runtime has made its device's primary context current */
    uint32_t context_depth; /* contexts that the driver's API has made current, one on the other */
    bool loads_modules;     /* images that it loads are modules, which are compiled at once */
};
struct wh_cuda_thread *wh_cuda_thread(void);

/* The runtime needs its device's primary context now: it becomes the thread's if that has none. */
void wh_cuda_use_primary(void);

/* Whether the runtime has used the device's primary context; false again after a reset. */
bool wh_cuda_primary_is_active(int device);
void wh_cuda_primary_end(int device);

/* Calls. */

/* Begins a message: opens the session on first use and puts the context word. 0, or the result that
 * the API call has. */
int wh_cuda_begin(struct wh_call *call, const struct wh_cuda_api *api, uint16_t opcode);

/* The same, and the way to wait, for questions about errors: they are answered after an error that
 * has ended the device context, and leave earlier failures to the next call. */
int wh_cuda_begin_question(struct wh_call *call, const struct wh_cuda_api *api, uint16_t opcode);
int wh_cuda_call_question(struct wh_call *call, const struct wh_cuda_api *api);

/* Sends and waits; the call's own result, or an earlier one-way failure. Results follow; end the
 * call with wh_call_end. */
int wh_cuda_call(struct wh_call *call, const struct wh_cuda_api *api);

/* The same for a question that always has the same answer: see answers.h. */
int wh_cuda_call_pure(struct wh_call *call, const struct wh_cuda_api *api);
/* The last free_bytes of the request are no part of the question. */
int wh_cuda_call_pure_but(struct wh_call *call, const struct wh_cuda_api *api, size_t free_bytes);

/* Sends one way (where the switch says so) and ends the call. */
int wh_cuda_send(struct wh_call *call, const struct wh_cuda_api *api);

/* Sends one way if the same shape has succeeded before; ends the call. */
int wh_cuda_send_shape(struct wh_call *call, const struct wh_cuda_api *api, uint64_t shape);

/* What an API function returns: the runtime's remembers it as the thread's last error. */
int wh_cuda_done(const struct wh_cuda_api *api, int status);

/* The same of a call that needs no server; where local answers are off, it is a round trip all the
 * same. */
int wh_cuda_answered(const struct wh_cuda_api *api, int status);

/* The answer of an export that is not forwarded; one line, the first time. */
int wh_cuda_unsupported(const struct wh_cuda_api *api, const char *name, int *said);

/* Results of cuBLAS and cuBLASLt in words. */
const char *wh_cublas_status_name(int status);
const char *wh_cublas_status_words(int status);

/* One line on standard error. */
void wh_cuda_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The session's serial once a CUDA call has opened it, else 0. */
uint32_t wh_cuda_session(void);

/* Whether pinned memory has one address on both sides. */
bool wh_cuda_shares_addresses(void);

/* An address in the session's memory as both sides know it. */
void *wh_cuda_shared_address(void *address);

/* A value in host memory, or a pointer of the device's if host_bytes is 0. */
void wh_cuda_put_scalar(struct wh_call *call, const void *pointer, size_t host_bytes);

/* Host memory that the call fills in (wh_get_out), or a pointer of the device's if host_bytes is 0.
 */
void wh_cuda_put_result(struct wh_call *call, void *pointer, size_t host_bytes);

static inline uint64_t wh_cuda_float_bits(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline uint64_t wh_cuda_double_bits(double value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Handles: what the application gets is the number itself. */

uint64_t wh_cuda_handle_new(uint8_t kind); /* 0 without room */
void wh_cuda_handle_end(uint64_t handle);
bool wh_cuda_handle_is_live(uint64_t handle, uint8_t kind);
static inline bool wh_cuda_handle_live(const void *handle, uint8_t kind)
{
    return wh_cuda_handle_is_live((uint64_t)(uintptr_t)handle, kind);
}
bool wh_cuda_stream_live(const void *stream); /* the special ones are */
uint64_t wh_cuda_stream(const void *stream);  /* for the message */

/* Memory. */

enum wh_cuda_memory {
    WH_CUDA_PAGEABLE,
    WH_CUDA_DEVICE,
    WH_CUDA_PINNED,     /* in the arena: the device sees it at the same address */
    WH_CUDA_REGISTERED, /* told to be pinned, but the client's alone */
};

struct wh_cuda_range {
    uintptr_t base;
    size_t size_bytes;
    enum wh_cuda_memory memory;
    int device;
    unsigned flags;
    struct wh_backing backing; /* WH_CUDA_PINNED */
    bool owned;                /* memory of malloc's in the place of an arena block */
};

bool wh_cuda_range_add(const struct wh_cuda_range *range);
/* Takes out the range that begins there; false if there is none. */
bool wh_cuda_range_remove(const void *base, struct wh_cuda_range *removed);
/* The range that has the address; false: pageable host memory. */
bool wh_cuda_range_find(const void *address, struct wh_cuda_range *found);
/* Any one of the device's; false: none is left. */
bool wh_cuda_range_any(struct wh_cuda_range *found);
/* Whether all of it is of the device or pinned: then a copy can only fail with the device. */
bool wh_cuda_is_shared(const void *pointer, size_t size_bytes);

/* Keeps the client's own mappings away from device memory. False: something lies there already. */
bool wh_cuda_reserve(const void *base, size_t size_bytes);

#endif
