/*
 * cudnn.h - what the stubs of cuDNN share.
 */
#ifndef WH_STUB_CUDNN_H
#define WH_STUB_CUDNN_H

#include <stddef.h>

#include "cuda.h"
#include "wh_cudnn.h"

extern const struct wh_cuda_api wh_cudnn_api;

/* Sends the stream that the application has set since the handle's last call, if it is another. */
void wh_cudnn_settle(cudnnHandle_t handle);

/* Bytes of alpha and beta for tensors like this one: doubles have doubles, all else floats. */
size_t wh_cudnn_scalar_bytes(cudnnTensorDescriptor_t tensor);

#endif
