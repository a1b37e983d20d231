/*
 * driver.h - what the driver API's parts share. All of it stands on the runtime's stub, whose
 * results have the same numbers.
 */
#ifndef WH_STUB_DRIVER_H
#define WH_STUB_DRIVER_H

#include "cuda.h"
#include "wh_cudart.h"
#include "wh_driver.h"

extern const struct wh_cuda_api wh_driver_api;

enum {
    WH_DRIVER_INVALID_VALUE = 1,
    WH_DRIVER_NOT_INITIALIZED = 3,
    WH_DRIVER_INVALID_DEVICE = 101,
    WH_DRIVER_INVALID_CONTEXT = 201,
    WH_DRIVER_FILE_NOT_FOUND = 301,
    WH_DRIVER_NOT_FOUND = 500,
    WH_DRIVER_NOT_SUPPORTED = 801,
};

#define WH_DRIVER_DEVICES_MAX 64

/* What the runtime remembers as the thread's last error is none of the driver API's business. */
#define WH_DRIVER(call)                                                                            \
    ({                                                                                             \
        int last_error = wh_cuda_thread()->last_error;                                             \
        int runtime_status = (call);                                                               \
        wh_cuda_thread()->last_error = last_error;                                                 \
        runtime_status;                                                                            \
    })

/* 0 once cuInit has succeeded, else the result that every other function has. */
int wh_driver_ready(void);

/* The same, and the thread has a context. */
int wh_driver_current(void);

/* Arguments that come packed in a buffer (`extra` of a launch), as pointers to each. */
int wh_driver_unpack(CUfunction function, void **extra, void **arguments);

/* A launch in the thread's context. */
int wh_driver_launch(const struct wh_cuda_launch *how, CUfunction function, void **parameters,
                     void **extra);

/* The context of a device that the runtime uses. */
CUcontext wh_driver_primary(int device);

#endif
