/*
 * backend.h - what stands behind the skeletons: the accelerator library that a worker was started
 * with.
 */
#ifndef WH_BACKEND_H
#define WH_BACKEND_H

#include <stddef.h>
#include <stdint.h>

struct wh_session;
struct wh_request;

struct wh_backend {
    const char *name; /* as in --backend */
    /* Loads the library; inside the jail. 0, or -errno with a line of text in error. */
    int (*init)(struct wh_session *session, char *error, size_t error_bytes);
    /* What it understands; NULL: everything (wh_dispatch). */
    int (*dispatch)(uint16_t opcode, struct wh_request *request);
    /* From now on calls of the library are measured (times.h); NULL: there are none. */
    void (*time_calls)(void);
};

extern const struct wh_backend wh_backend_null;
extern const struct wh_backend wh_backend_opencl
    __attribute__((weak)); /* absent in the runtime's own tests */
extern const struct wh_backend wh_backend_cuda __attribute__((weak));

/* NULL if there is none of that name. */
const struct wh_backend *wh_backend_find(const char *name);

#endif
