/*
 * cuda_scalar.h - scalars and results of the mathematical libraries, which lie in the host's memory
 * or in the device's, as the object that a call is made with has been told.
 */
#ifndef WH_CUDA_SCALAR_H
#define WH_CUDA_SCALAR_H

#include <stdbool.h>
#include <stddef.h>

struct wh_request;

/* Where a call's scalars and results lie, as the client says; bits. */
#define WH_CUDA_PLACE_HOST 1u
#define WH_CUDA_PLACE_DEVICE 2u

/* A value that came, in memory that is as large as any value, or a pointer of the device's. */
const void *wh_cuda_take_scalar(struct wh_request *request, unsigned *places);

/* Memory for a result; or a pointer of the device's, then *host is false. */
void *wh_cuda_take_result(struct wh_request *request, unsigned *places, size_t *size_bytes,
                          bool *host);

#endif
