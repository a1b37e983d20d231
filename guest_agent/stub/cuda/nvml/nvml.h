/*
 * nvml.h - the management library on top of the runtime.
 */
#ifndef WH_STUB_NVML_H
#define WH_STUB_NVML_H

#include "cuda.h"
#include "wh_cudart.h"
#include "wh_nvml.h"

extern const struct wh_cuda_api wh_nvml_api;

#endif
