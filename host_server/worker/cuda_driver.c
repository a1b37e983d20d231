/*
 * cuda_driver.c - what only the driver's API has: tensor maps, and code that is compiled when it is
 * loaded. The runtime names the driver's functions.
 */
#include <errno.h>

#include "cuda_backend.h"
#include "cuda_kernel.h"
#include "times.h"
#include "wh_cudart.h"
#include "wh_wire.h"

#define FIRST_VERSION 12000 /* of CUDA that has tensor maps */
#define MAP_ALIGNMENT 64u

enum { INVALID_VALUE = 1, INVALID_HANDLE = 400, NOT_SUPPORTED = 801 };

typedef int (*encode_tiled)(void *map, uint32_t type, uint32_t rank, void *address,
                            const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                            const uint32_t *steps, uint32_t interleave, uint32_t swizzle,
                            uint32_t promotion, uint32_t fill);
typedef int (*encode_im2col)(void *map, uint32_t type, uint32_t rank, void *address,
                             const uint64_t *sizes, const uint64_t *strides, const int *lower,
                             const int *upper, uint32_t channels, uint32_t columns,
                             const uint32_t *steps, uint32_t interleave, uint32_t swizzle,
                             uint32_t promotion, uint32_t fill);

typedef int (*get_module)(void **module, cudaLibrary_t library);

int wh_skeleton_whcEncodeTensorMap(struct wh_request *request);
int wh_skeleton_whcLoadModule(struct wh_request *request);

/* A function of the driver's; NULL if it has none. */
static void *driver_function(const struct wh_cudart_table *real, const char *name)
{
    void *function = NULL;
    int found = 1;
    if (real == NULL || real->cudaGetDriverEntryPointByVersion == NULL || real->cudaFree == NULL ||
        real->cudaGetDriverEntryPointByVersion(name, &function, FIRST_VERSION, 0, &found) != 0) {
        return NULL;
    }
    (void)real->cudaFree(NULL); /* the thread needs a device context */
    return found == 0 ? function : NULL;
}

/* The driver reads as many elements as the rank says, which is within all arrays. */
static uint64_t encode(const struct wh_cudart_table *real, const struct wh_cuda_tensor_map *what,
                       void *map)
{
    void *address = (void *)(uintptr_t)what->address;
    if (what->form == WH_CUDA_TENSOR_TILED && what->rank >= 1 &&
        what->rank <= WH_CUDA_TENSOR_RANK_MAX) {
        encode_tiled tiled = (encode_tiled)driver_function(real, "cuTensorMapEncodeTiled");
        return tiled == NULL
                   ? NOT_SUPPORTED
                   : (uint64_t)tiled(map, what->type, what->rank, address, what->sizes,
                                     what->strides, what->box, what->steps, what->interleave,
                                     what->swizzle, what->promotion, what->fill);
    }
    if (what->form == WH_CUDA_TENSOR_IM2COL && what->rank >= 3 &&
        what->rank <= WH_CUDA_TENSOR_RANK_MAX) {
        encode_im2col im2col = (encode_im2col)driver_function(real, "cuTensorMapEncodeIm2col");
        return im2col == NULL
                   ? NOT_SUPPORTED
                   : (uint64_t)im2col(map, what->type, what->rank, address, what->sizes,
                                      what->strides, what->lower, what->upper, what->channels,
                                      what->columns, what->steps, what->interleave, what->swizzle,
                                      what->promotion, what->fill);
    }
    return INVALID_VALUE;
}

int wh_skeleton_whcEncodeTensorMap(struct wh_request *request)
{
    _Alignas(MAP_ALIGNMENT) uint8_t map[WH_CUDA_TENSOR_MAP_BYTES] = {0};
    struct wh_cuda_tensor_map what;
    size_t question_bytes = 0;
    size_t map_bytes = 0;
    wh_cuda_enter(request);
    const void *question = wh_take_blob(request, &question_bytes, sizeof(what));
    void *result = wh_take_out(request, &map_bytes);
    if (wh_request_failed(request) || question == NULL || question_bytes != sizeof(what) ||
        result == NULL || map_bytes < sizeof(map)) {
        return -EBADMSG;
    }
    memcpy(&what, question, sizeof(what));
    uint64_t status = encode(wh_cudart(), &what, map);
    memcpy(result, map, sizeof(map));
    wh_cuda_reply(request, WH_OP_whcEncodeTensorMap, status, 0);
    wh_reply_out(request, status == 0 ? sizeof(map) : 0);
    return 0;
}

/* The runtime compiles a library when one of its kernels is first used; to have its module is to
 * have it compiled. A runtime's library is a driver's. */
int wh_skeleton_whcLoadModule(struct wh_request *request)
{
    bool valid = true;
    void *module = NULL;
    uint64_t status = INVALID_HANDLE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    cudaLibrary_t library = wh_cuda_image_library(request, wh_take_u64(request), &valid);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (valid && library != NULL) {
        get_module get = (get_module)driver_function(real, "cuLibraryGetModule");
        uint64_t begin_ticks = wh_times_enter();
        status = get == NULL ? 0 : (uint64_t)get(&module, library);
        wh_times_leave(begin_ticks, WH_TIMES_COMPILE);
    }
    wh_cuda_reply(request, WH_OP_whcLoadModule, status, 0);
    return 0;
}
