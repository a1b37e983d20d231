/*
 * memory.c - memory: the runtime's, under the driver's names.
 */
#include "driver.h"

#include <stdlib.h>

enum { ANY = 4, TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 };

/* Attributes of a pointer. */
enum {
    POINTER_CONTEXT = 1,
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE = 3,
    POINTER_HOST = 4,
    POINTER_SYNC = 6,
    POINTER_IS_MANAGED = 8,
    POINTER_ORDINAL = 9,
    POINTER_RANGE_START = 11,
    POINTER_RANGE_SIZE = 12,
    POINTER_MAPPED = 13,
};

enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_UNIFIED = 4 };

#define PATTERN_BYTES_MAX ((size_t)1 << 20)

static void *pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

WH_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaMemGetInfo(free, total));
}

WH_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    int status = wh_driver_current();
    if (status == 0 && bytesize == 0) {
        status = WH_DRIVER_INVALID_VALUE; /* which the runtime allows */
    }
    return status != 0 ? status : WH_DRIVER(cudaMalloc((void **)dptr, bytesize));
}

WH_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                      size_t Height, unsigned int ElementSizeBytes)
{
    int status = wh_driver_current();
    if (status == 0 && ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16) {
        status = WH_DRIVER_INVALID_VALUE;
    }
    return status != 0 ? status
                       : WH_DRIVER(cudaMallocPitch((void **)dptr, pPitch, WidthInBytes, Height));
}

WH_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaFree(pointer(dptr)));
}

WH_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaMallocAsync((void **)dptr, bytesize, hStream));
}

WH_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    return WH_DRIVER(cudaFreeAsync(pointer(dptr), hStream));
}

WH_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    int status = wh_driver_ready();
    return status != 0 ? status : WH_DRIVER(cudaDeviceGetDefaultMemPool(pool_out, dev));
}

WH_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    int status = wh_driver_ready();
    return status != 0 ? status : WH_DRIVER(cudaDeviceGetMemPool(pool, dev));
}

WH_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    return WH_DRIVER(cudaMemPoolTrimTo(pool, minBytesToKeep));
}

/* Attributes have the runtime's numbers, which begin at 1 as well. */
WH_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attr, void *value)
{
    return WH_DRIVER(cudaMemPoolGetAttribute(pool, attr, value));
}

WH_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attr, void *value)
{
    return WH_DRIVER(cudaMemPoolSetAttribute(pool, attr, value));
}

WH_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const void *poolProps)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaMemPoolCreate(pool, poolProps));
}

WH_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    return WH_DRIVER(cudaMemPoolDestroy(pool));
}

WH_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const void *map, size_t count)
{
    return WH_DRIVER(cudaMemPoolSetAccess(pool, map, count));
}

WH_EXPORT CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool memPool, void *location)
{
    return WH_DRIVER(cudaMemPoolGetAccess(flags, memPool, location));
}

WH_EXPORT CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    return WH_DRIVER(cudaDeviceSetMemPool(dev, pool));
}

WH_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                           CUstream hStream)
{
    int status = wh_driver_current();
    return status != 0 ? status
                       : WH_DRIVER(cudaMallocFromPoolAsync((void **)dptr, bytesize, pool, hStream));
}

WH_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    if (!wh_cuda_range_find(pointer(dptr), &range) || range.memory != WH_CUDA_DEVICE) {
        return WH_DRIVER_NOT_FOUND;
    }
    if (pbase != NULL) {
        *pbase = range.base;
    }
    if (psize != NULL) {
        *psize = range.size_bytes;
    }
    return 0;
}

WH_EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return WH_DRIVER(cudaMallocHost(pp, bytesize));
}

WH_EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    return WH_DRIVER(cudaHostAlloc(pp, bytesize, Flags));
}

WH_EXPORT CUresult cuMemFreeHost(void *p)
{
    return WH_DRIVER(cudaFreeHost(p));
}

WH_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    return WH_DRIVER(cudaHostGetDevicePointer((void **)pdptr, p, Flags));
}

WH_EXPORT CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    return WH_DRIVER(cudaHostGetFlags(pFlags, p));
}

WH_EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    return WH_DRIVER(cudaHostRegister(p, bytesize, Flags));
}

WH_EXPORT CUresult cuMemHostUnregister(void *p)
{
    return WH_DRIVER(cudaHostUnregister(p));
}

static int copy(void *dst, const void *src, size_t count, int kind)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaMemcpy(dst, src, count, kind));
}

static int copy_async(void *dst, const void *src, size_t count, int kind, CUstream stream)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaMemcpyAsync(dst, src, count, kind, stream));
}

WH_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return copy(pointer(dst), pointer(src), ByteCount, ANY);
}

WH_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                                 CUstream hStream)
{
    return copy_async(pointer(dst), pointer(src), ByteCount, ANY, hStream);
}

WH_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return copy(pointer(dstDevice), srcHost, ByteCount, TO_DEVICE);
}

WH_EXPORT CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy(dstHost, pointer(srcDevice), ByteCount, TO_HOST);
}

WH_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy(pointer(dstDevice), pointer(srcDevice), ByteCount, ON_DEVICE);
}

WH_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost,
                                        size_t ByteCount, CUstream hStream)
{
    return copy_async(pointer(dstDevice), srcHost, ByteCount, TO_DEVICE, hStream);
}

WH_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                        CUstream hStream)
{
    return copy_async(dstHost, pointer(srcDevice), ByteCount, TO_HOST, hStream);
}

WH_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                        size_t ByteCount, CUstream hStream)
{
    return copy_async(pointer(dstDevice), pointer(srcDevice), ByteCount, ON_DEVICE, hStream);
}

/* Addresses say where they lie, whatever the context. */
WH_EXPORT CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                CUcontext srcContext, size_t ByteCount)
{
    (void)dstContext;
    (void)srcContext;
    return copy(pointer(dstDevice), pointer(srcDevice), ByteCount, ON_DEVICE);
}

WH_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
                                     CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                                     CUstream hStream)
{
    (void)dstContext;
    (void)srcContext;
    return copy_async(pointer(dstDevice), pointer(srcDevice), ByteCount, ON_DEVICE, hStream);
}

/* CUDA_MEMCPY2D */
struct copy_rows {
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    CUdeviceptr from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    int to_type;
    void *to_host;
    CUdeviceptr to_device;
    void *to_array;
    size_t to_pitch;
    size_t width, height;
};

/* Where one end of a copy begins; its kind of memory says which member counts. NULL: an array,
 * which is not forwarded. */
static char *end_of(int type, const void *host, CUdeviceptr device)
{
    return type == TYPE_HOST                             ? (char *)(uintptr_t)host
           : type == TYPE_DEVICE || type == TYPE_UNIFIED ? pointer(device)
                                                         : NULL;
}

/* `depth` rectangles, each so many rows behind the one before. */
struct box {
    char *from, *to;
    size_t from_pitch, to_pitch, from_step, to_step;
    size_t width, height, depth;
};

static int copy_box(const struct box *box, bool sync, CUstream stream)
{
    int status = wh_driver_current();
    if (status == 0 && (box->from == NULL || box->to == NULL)) {
        status = WH_DRIVER_NOT_SUPPORTED;
    }
    /* A pitch of 0 says that there is but one row. */
    size_t from_pitch = box->from_pitch != 0 ? box->from_pitch : box->width;
    size_t to_pitch = box->to_pitch != 0 ? box->to_pitch : box->width;
    if (status == 0 && box->height > 1 && (from_pitch < box->width || to_pitch < box->width)) {
        status = WH_DRIVER_INVALID_VALUE;
    }
    for (size_t layer = 0; layer < box->depth && status == 0 && box->width > 0; layer++) {
        const char *from = box->from + layer * box->from_step * from_pitch;
        char *to = box->to + layer * box->to_step * to_pitch;
        status = sync ? WH_DRIVER(cudaMemcpy2D(to, to_pitch, from, from_pitch, box->width,
                                               box->height, ANY))
                      : WH_DRIVER(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, box->width,
                                                    box->height, ANY, stream));
    }
    return status;
}

static int copy_2d(const void *parameters, bool sync, CUstream stream)
{
    const struct copy_rows *copied = parameters;
    if (copied == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    struct box box = {
        .from = end_of(copied->from_type, copied->from_host, copied->from_device),
        .to = end_of(copied->to_type, copied->to_host, copied->to_device),
        .from_pitch = copied->from_pitch,
        .to_pitch = copied->to_pitch,
        .width = copied->width,
        .height = copied->height,
        .depth = 1,
    };
    if (box.from != NULL && box.to != NULL) {
        box.from += copied->from_y * copied->from_pitch + copied->from_x;
        box.to += copied->to_y * copied->to_pitch + copied->to_x;
    }
    return copy_box(&box, sync, stream);
}

static int copy_3d(const void *parameters, bool sync, CUstream stream)
{
    const struct wh_driver_copy *copied = parameters;
    if (copied == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    struct box box = {
        .from = end_of(copied->from_type, copied->from_host, copied->from_device),
        .to = end_of(copied->to_type, copied->to_host, copied->to_device),
        .from_pitch = copied->from_pitch,
        .to_pitch = copied->to_pitch,
        .from_step = copied->from_height != 0 ? copied->from_height : copied->height,
        .to_step = copied->to_height != 0 ? copied->to_height : copied->height,
        .width = copied->width,
        .height = copied->height,
        .depth = copied->depth,
    };
    if (box.from != NULL && box.to != NULL) {
        box.from += (copied->from_z * copied->from_height + copied->from_y) * copied->from_pitch +
                    copied->from_x;
        box.to +=
            (copied->to_z * copied->to_height + copied->to_y) * copied->to_pitch + copied->to_x;
    }
    return copy_box(&box, sync, stream);
}

WH_EXPORT CUresult cuMemcpy2D_v2(const void *pCopy)
{
    return copy_2d(pCopy, true, NULL);
}

WH_EXPORT CUresult cuMemcpy2DUnaligned_v2(const void *pCopy)
{
    return copy_2d(pCopy, true, NULL);
}

WH_EXPORT CUresult cuMemcpy2DAsync_v2(const void *pCopy, CUstream hStream)
{
    return copy_2d(pCopy, false, hStream);
}

WH_EXPORT CUresult cuMemcpy3D_v2(const void *pCopy)
{
    return copy_3d(pCopy, true, NULL);
}

WH_EXPORT CUresult cuMemcpy3DAsync_v2(const void *pCopy, CUstream hStream)
{
    return copy_3d(pCopy, false, hStream);
}

/* The runtime sets bytes alone; a pattern of other ones is written. */
static int fill(CUdeviceptr address, uint32_t value, size_t element_bytes, size_t count,
                CUstream stream)
{
    uint8_t bytes[sizeof(value)];
    size_t total_bytes = count * element_bytes;
    bool same = true;
    int status = wh_driver_current();
    memcpy(bytes, &value, sizeof(bytes));
    for (size_t i = 1; i < element_bytes; i++) {
        same = same && bytes[i] == bytes[0];
    }
    if (status != 0 || address % element_bytes != 0 || total_bytes / element_bytes != count) {
        return status != 0 ? status : WH_DRIVER_INVALID_VALUE;
    }
    if (same) {
        return WH_DRIVER(cudaMemsetAsync(pointer(address), bytes[0], total_bytes, stream));
    }
    size_t piece_bytes = total_bytes < PATTERN_BYTES_MAX ? total_bytes : PATTERN_BYTES_MAX;
    uint8_t *pattern = malloc(piece_bytes > 0 ? piece_bytes : 1);
    if (pattern == NULL) {
        return wh_driver_api.memory;
    }
    for (size_t i = 0; i < piece_bytes; i++) {
        pattern[i] = bytes[i % element_bytes];
    }
    for (size_t at = 0; at < total_bytes && status == 0; at += piece_bytes) {
        size_t rest_bytes = total_bytes - at;
        status = copy_async(pointer(address + at), pattern,
                            rest_bytes < piece_bytes ? rest_bytes : piece_bytes, TO_DEVICE, stream);
    }
    free(pattern); /* its bytes were taken at the call: it is pageable */
    return status;
}

/* Rows of a width in elements; pitched memory of other patterns than bytes is set row by row. */
static int fill_rows(CUdeviceptr address, size_t pitch_bytes, uint32_t value, size_t element_bytes,
                     size_t width, size_t height, CUstream stream)
{
    int status = wh_driver_current();
    if (status == 0 && (address % element_bytes != 0 || pitch_bytes % element_bytes != 0 ||
                        (height > 1 && width > pitch_bytes / element_bytes))) {
        status = WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0 && element_bytes == 1) {
        return stream == NULL ? WH_DRIVER(cudaMemset2D(pointer(address), pitch_bytes, (int)value,
                                                       width, height))
                              : WH_DRIVER(cudaMemset2DAsync(pointer(address), pitch_bytes,
                                                            (int)value, width, height, stream));
    }
    for (size_t row = 0; row < height && status == 0; row++) {
        status = fill(address + row * pitch_bytes, value, element_bytes, width, stream);
    }
    return status;
}

WH_EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                   size_t Width, size_t Height)
{
    return fill_rows(dstDevice, dstPitch, uc, 1, Width, Height, NULL);
}

WH_EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                    size_t Width, size_t Height)
{
    return fill_rows(dstDevice, dstPitch, us, 2, Width, Height, NULL);
}

WH_EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                    size_t Width, size_t Height)
{
    return fill_rows(dstDevice, dstPitch, ui, 4, Width, Height, NULL);
}

WH_EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                     size_t Width, size_t Height, CUstream hStream)
{
    return fill_rows(dstDevice, dstPitch, uc, 1, Width, Height, hStream);
}

WH_EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                      size_t Width, size_t Height, CUstream hStream)
{
    return fill_rows(dstDevice, dstPitch, us, 2, Width, Height, hStream);
}

WH_EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                      size_t Width, size_t Height, CUstream hStream)
{
    return fill_rows(dstDevice, dstPitch, ui, 4, Width, Height, hStream);
}

WH_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    return fill(dstDevice, uc, 1, N, NULL);
}

WH_EXPORT CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    return fill(dstDevice, us, 2, N, NULL);
}

WH_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    return fill(dstDevice, ui, 4, N, NULL);
}

WH_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                   CUstream hStream)
{
    return fill(dstDevice, uc, 1, N, hStream);
}

WH_EXPORT CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                    CUstream hStream)
{
    return fill(dstDevice, us, 2, N, hStream);
}

WH_EXPORT CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                    CUstream hStream)
{
    return fill(dstDevice, ui, 4, N, hStream);
}

/* A value of its own size to where the program wants it. */
static int give(void *data, const void *value, size_t size_bytes)
{
    memcpy(data, value, size_bytes);
    return 0;
}

static int attribute_of(void *data, int attribute, const struct wh_cuda_range *range,
                        CUdeviceptr address)
{
    const int type = range->memory == WH_CUDA_DEVICE ? TYPE_DEVICE : TYPE_HOST;
    const int yes = 1;
    const unsigned char no = 0;
    const CUcontext context = wh_driver_primary(range->device);
    switch (attribute) {
    case POINTER_CONTEXT:
        return give(data, &context, sizeof(context));
    case POINTER_MEMORY_TYPE:
        return give(data, &type, sizeof(type));
    case POINTER_DEVICE:
        /* Memory that is the client's alone has no address on the device. */
        return type == TYPE_DEVICE || range->memory == WH_CUDA_PINNED
                   ? give(data, &address, sizeof(address))
                   : WH_DRIVER_INVALID_VALUE;
    case POINTER_HOST:
        return type == TYPE_HOST ? give(data, &address, sizeof(address)) : WH_DRIVER_INVALID_VALUE;
    case POINTER_SYNC:
    case POINTER_IS_MANAGED:
        return give(data, &no, sizeof(no));
    case POINTER_ORDINAL:
        return give(data, &range->device, sizeof(range->device));
    case POINTER_RANGE_START:
        return give(data, &range->base, sizeof(range->base));
    case POINTER_RANGE_SIZE:
        return give(data, &range->size_bytes, sizeof(range->size_bytes));
    case POINTER_MAPPED:
        return give(data, &yes, sizeof(unsigned char));
    default:
        return WH_DRIVER_NOT_SUPPORTED;
    }
}

WH_EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    if (data == NULL || !wh_cuda_range_find(pointer(ptr), &range)) {
        return WH_DRIVER_INVALID_VALUE;
    }
    return wh_driver_answered(attribute_of(data, attribute, &range, ptr));
}

/* Of memory that it does not know, this one says zeros. */
WH_EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes, int *attributes, void **data,
                                          CUdeviceptr ptr)
{
    WH_API_CALL();
    struct wh_cuda_range range;
    int status = attributes == NULL || data == NULL ? WH_DRIVER_INVALID_VALUE : 0;
    bool known = wh_cuda_range_find(pointer(ptr), &range);
    for (unsigned i = 0; i < numAttributes && status == 0; i++) {
        bool narrow = attributes[i] == POINTER_MEMORY_TYPE || attributes[i] == POINTER_ORDINAL;
        bool byte = attributes[i] == POINTER_SYNC || attributes[i] == POINTER_IS_MANAGED ||
                    attributes[i] == POINTER_MAPPED;
        memset(data[i], 0, byte ? 1 : narrow ? sizeof(int) : sizeof(void *));
        if (known && !(attributes[i] == POINTER_HOST && range.memory == WH_CUDA_DEVICE)) {
            status = attribute_of(data[i], attributes[i], &range, ptr);
        }
    }
    return wh_driver_answered(status);
}
