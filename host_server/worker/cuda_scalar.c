/*
 * cuda_scalar.c - scalars and results of the mathematical libraries.
 */
#include "cuda_scalar.h"

#include "cuda_backend.h"

#define VALUE_BYTES_MAX ((size_t)64) /* the largest is a rotation of five numbers */

const void *wh_cuda_take_scalar(struct wh_request *request, unsigned *places)
{
    size_t size_bytes = 0;
    const void *device = (const void *)(uintptr_t)wh_take_u64(request);
    const void *host = wh_take_blob(request, &size_bytes, VALUE_BYTES_MAX);
    if (host == NULL) {
        *places |= device != NULL ? WH_CUDA_PLACE_DEVICE : 0;
        return device;
    }
    *places |= WH_CUDA_PLACE_HOST;
    /* The library reads as much as its types have, whatever came. */
    void *value = wh_scratch(request, VALUE_BYTES_MAX);
    if (value != NULL) {
        memset(value, 0, VALUE_BYTES_MAX);
        memcpy(value, host, size_bytes);
    }
    return value;
}

void *wh_cuda_take_result(struct wh_request *request, unsigned *places, size_t *size_bytes,
                          bool *host)
{
    uint64_t bytes = wh_take_u64(request);
    *host = bytes != 0;
    *size_bytes = 0;
    if (bytes == 0) {
        void *device = (void *)(uintptr_t)wh_take_u64(request);
        *places |= device != NULL ? WH_CUDA_PLACE_DEVICE : 0;
        return device;
    }
    void *to = wh_take_out(request, size_bytes);
    *places |= to != NULL ? WH_CUDA_PLACE_HOST : 0;
    if (to != NULL && *size_bytes > VALUE_BYTES_MAX) {
        request->failed = true;
    }
    return to;
}
