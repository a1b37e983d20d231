/*
 * driver.h - what the driver API's parts share. All of it stands on the runtime's stub, whose
 * results have the same numbers.
 */
#ifndef WH_STUB_DRIVER_H
#define WH_STUB_DRIVER_H

#include "cuda.h"
#include "cudart/cudart.h"
#include "wh_cudart.h"
#include "wh_driver.h"

extern const struct wh_cuda_api wh_driver_api;

enum {
    WH_DRIVER_INVALID_VALUE = 1,
    WH_DRIVER_NOT_INITIALIZED = 3,
    WH_DRIVER_INVALID_DEVICE = 101,
    WH_DRIVER_INVALID_CONTEXT = 201,
    WH_DRIVER_FILE_NOT_FOUND = 301,
    WH_DRIVER_INVALID_HANDLE = 400,
    WH_DRIVER_NOT_FOUND = 500,
    WH_DRIVER_OUT_OF_RESOURCES = 701,
    WH_DRIVER_DESTROYED = 709,
    WH_DRIVER_NOT_SUPPORTED = 801,
};

#define WH_DRIVER_DEVICES_MAX 64

/* CUDA_MEMCPY3D */
struct wh_driver_copy {
    size_t from_x, from_y, from_z, from_lod;
    int from_type;
    const void *from_host;
    CUdeviceptr from_device;
    void *from_array, *reserved_from;
    size_t from_pitch, from_height;
    size_t to_x, to_y, to_z, to_lod;
    int to_type;
    void *to_host;
    CUdeviceptr to_device;
    void *to_array, *reserved_to;
    size_t to_pitch, to_height;
    size_t width, height, depth;
};

/* The driver's result for one of the runtime's: most have the same number. */
static inline int wh_driver_status(int status)
{
    switch (status) {
    case WH_CUDA_INVALID_FUNCTION:
        return WH_DRIVER_INVALID_HANDLE;
    case WH_CUDA_INVALID_CONFIGURATION:
    case WH_CUDA_INVALID_PITCH:
    case WH_CUDA_INVALID_SYMBOL:
    case WH_CUDA_INVALID_DIRECTION:
        return WH_DRIVER_INVALID_VALUE;
    default:
        return status;
    }
}

/* What the runtime remembers as the thread's last error, or has for its context, is none of the
 * driver API's business. */
#define WH_DRIVER(call)                                                                            \
    ({                                                                                             \
        int last_error = wh_cuda_thread()->last_error;                                             \
        bool used_primary = wh_cuda_thread()->uses_primary;                                        \
        int driver_status = wh_driver_status(call);                                                \
        wh_cuda_thread()->last_error = last_error;                                                 \
        wh_cuda_thread()->uses_primary = used_primary;                                             \
        driver_status;                                                                             \
    })

/* What the client knows itself; where local answers are off, it is a round trip all the same. */
static inline int wh_driver_answered(int status)
{
    return status != 0 ? status : wh_cuda_answered(&wh_driver_api, 0);
}

/* 0 once cuInit has succeeded, else the result that every other function has. */
int wh_driver_ready(void);

/* The same, and the thread has a context. */
int wh_driver_current(void);

/* Arguments that come packed in a buffer (`extra` of a launch), as pointers to each. */
int wh_driver_unpack(CUfunction function, void **extra, void **arguments);

/* A launch in the thread's context. */
int wh_driver_launch(const struct wh_cuda_launch *how, CUfunction function, void **parameters,
                     void **extra);

/* CUlaunchConfig as the runtime has it. False: there is none. */
bool wh_driver_launch_of(const void *config, struct wh_cuda_launch *launch);

/* The context of a device that the runtime uses. */
CUcontext wh_driver_primary(int device);

#endif
