/*
 * occupancy.c - how much of a function fits on the device, and tensor maps: what the server's
 * libraries say.
 */
#include "driver.h"

#include "wh_wire.h"

/* Attributes of a device, and of a function. */
enum { BLOCK_THREADS = 1, WARP_SIZE = 10, MULTIPROCESSORS = 16, FUNCTION_THREADS = 0 };

#define TENSOR_MAP_ALIGNMENT 64u

WH_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int flags)
{
    return WH_DRIVER(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        numBlocks, func, blockSize, dynamicSMemSize, flags));
}

WH_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func,
                                                               int blockSize,
                                                               size_t dynamicSMemSize)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                dynamicSMemSize, 0);
}

WH_EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func,
                                                           int numBlocks, int blockSize)
{
    return WH_DRIVER(
        cudaOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize, func, numBlocks, blockSize));
}

WH_EXPORT CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func,
                                                const void *config)
{
    struct wh_cuda_launch how;
    if (!wh_driver_launch_of(config, &how)) {
        return WH_DRIVER_INVALID_VALUE;
    }
    return WH_DRIVER(cudaOccupancyMaxActiveClusters(numClusters, func, &how));
}

WH_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func,
                                                      const void *config)
{
    struct wh_cuda_launch how;
    if (!wh_driver_launch_of(config, &how)) {
        return WH_DRIVER_INVALID_VALUE;
    }
    return WH_DRIVER(cudaOccupancyMaxPotentialClusterSize(clusterSize, func, &how));
}

/* How many threads a block may have, a block's step, and how many multiprocessors there are. */
static int limits_of(CUfunction function, int *most, int *step, int *multiprocessors)
{
    CUdevice device = 0;
    int function_most = 0;
    int status = cuCtxGetDevice(&device);
    status = status != 0 ? status : cuDeviceGetAttribute(most, BLOCK_THREADS, device);
    status = status != 0 ? status : cuDeviceGetAttribute(step, WARP_SIZE, device);
    status = status != 0 ? status : cuDeviceGetAttribute(multiprocessors, MULTIPROCESSORS, device);
    status = status != 0 ? status : cuFuncGetAttribute(&function_most, FUNCTION_THREADS, function);
    *most = status == 0 && function_most < *most ? function_most : *most;
    return status != 0 || *step > 0 ? status : WH_DRIVER_INVALID_VALUE;
}

/* The block with which most threads run at once, the larger one of equals. */
WH_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(
    int *minGridSize, int *blockSize, CUfunction func,
    wh_driver_shared_size blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags)
{
    size_t (*shared_of)(int) = (size_t (*)(int))(uintptr_t)blockSizeToDynamicSMemSize;
    int most = 0;
    int step = 1;
    int multiprocessors = 0;
    int best_threads = 0;
    if (minGridSize == NULL || blockSize == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    int status = limits_of(func, &most, &step, &multiprocessors);
    if (status == 0 && blockSizeLimit > 0 && blockSizeLimit < most) {
        most = blockSizeLimit;
    }
    for (int size = (most + step - 1) / step * step; status == 0 && size > 0; size -= step) {
        int tried = size < most ? size : most;
        int blocks = 0;
        size_t shared_bytes = shared_of != NULL ? shared_of(tried) : dynamicSMemSize;
        status = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, func, tried,
                                                                      shared_bytes, flags);
        if (status == 0 && blocks * tried > best_threads) {
            best_threads = blocks * tried;
            *blockSize = tried;
            *minGridSize = blocks * multiprocessors;
        }
    }
    return status != 0 || best_threads > 0 ? status : WH_DRIVER_INVALID_VALUE;
}

WH_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(
    int *minGridSize, int *blockSize, CUfunction func,
    wh_driver_shared_size blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
                                                     blockSizeToDynamicSMemSize, dynamicSMemSize,
                                                     blockSizeLimit, 0);
}

/* The driver's own function on the server: what the bytes mean is the device's business. */
static int encode(void *map, const struct wh_cuda_tensor_map *question)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_driver_api, WH_OP_whcEncodeTensorMap);
    if (status != 0) {
        return status;
    }
    wh_put_blob(&call, question, sizeof(*question));
    wh_put_out(&call, WH_CUDA_TENSOR_MAP_BYTES, true);
    status = wh_cuda_call_pure(&call, &wh_driver_api);
    if (status == 0 &&
        wh_get_out(&call, map, WH_CUDA_TENSOR_MAP_BYTES) != WH_CUDA_TENSOR_MAP_BYTES) {
        status = wh_driver_api.lost;
    }
    wh_call_end(&call);
    return status;
}

/* What both forms have; the driver looks at the values. */
static int begin_question(struct wh_cuda_tensor_map *question, const void *map, uint32_t rank,
                          const uint64_t *sizes, const uint64_t *strides, const uint32_t *steps)
{
    int status = wh_driver_ready();
    if (status == 0 && (map == NULL || (uintptr_t)map % TENSOR_MAP_ALIGNMENT != 0 || rank == 0 ||
                        rank > WH_CUDA_TENSOR_RANK_MAX || sizes == NULL || steps == NULL ||
                        (strides == NULL && rank > 1))) {
        status = WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        question->rank = rank;
        memcpy(question->sizes, sizes, rank * sizeof(*sizes));
        memcpy(question->steps, steps, rank * sizeof(*steps));
        if (rank > 1) {
            memcpy(question->strides, strides, (rank - 1) * sizeof(*strides));
        }
    }
    return status;
}

WH_EXPORT CUresult cuTensorMapEncodeTiled(void *tensorMap, int tensorDataType, uint32_t tensorRank,
                                          void *globalAddress, const uint64_t *globalDim,
                                          const uint64_t *globalStrides, const uint32_t *boxDim,
                                          const uint32_t *elementStrides, int interleave,
                                          int swizzle, int l2Promotion, int oobFill)
{
    WH_API_CALL();
    struct wh_cuda_tensor_map question = {.address = (uintptr_t)globalAddress,
                                          .form = WH_CUDA_TENSOR_TILED,
                                          .type = (uint32_t)tensorDataType,
                                          .interleave = (uint32_t)interleave,
                                          .swizzle = (uint32_t)swizzle,
                                          .promotion = (uint32_t)l2Promotion,
                                          .fill = (uint32_t)oobFill};
    int status =
        begin_question(&question, tensorMap, tensorRank, globalDim, globalStrides, elementStrides);
    if (status != 0 || boxDim == NULL) {
        return status != 0 ? status : WH_DRIVER_INVALID_VALUE;
    }
    memcpy(question.box, boxDim, tensorRank * sizeof(*boxDim));
    return encode(tensorMap, &question);
}

WH_EXPORT CUresult cuTensorMapEncodeIm2col(
    void *tensorMap, int tensorDataType, uint32_t tensorRank, void *globalAddress,
    const uint64_t *globalDim, const uint64_t *globalStrides, const int *pixelBoxLowerCorner,
    const int *pixelBoxUpperCorner, uint32_t channelsPerPixel, uint32_t pixelsPerColumn,
    const uint32_t *elementStrides, int interleave, int swizzle, int l2Promotion, int oobFill)
{
    WH_API_CALL();
    struct wh_cuda_tensor_map question = {.address = (uintptr_t)globalAddress,
                                          .form = WH_CUDA_TENSOR_IM2COL,
                                          .type = (uint32_t)tensorDataType,
                                          .channels = channelsPerPixel,
                                          .columns = pixelsPerColumn,
                                          .interleave = (uint32_t)interleave,
                                          .swizzle = (uint32_t)swizzle,
                                          .promotion = (uint32_t)l2Promotion,
                                          .fill = (uint32_t)oobFill};
    int status =
        begin_question(&question, tensorMap, tensorRank, globalDim, globalStrides, elementStrides);
    if (status != 0 || tensorRank < 3 || pixelBoxLowerCorner == NULL ||
        pixelBoxUpperCorner == NULL) {
        return status != 0 ? status : WH_DRIVER_INVALID_VALUE;
    }
    memcpy(question.lower, pixelBoxLowerCorner, (tensorRank - 2) * sizeof(*pixelBoxLowerCorner));
    memcpy(question.upper, pixelBoxUpperCorner, (tensorRank - 2) * sizeof(*pixelBoxUpperCorner));
    return encode(tensorMap, &question);
}
