/*
 * launch.c - launching kernels and asking about them.
 *
 * A launch goes one way once the same kernel with the same geometry has succeeded: what native
 * refuses at once (an empty grid, too many threads) is refused at once here, by the real library.
 */
#include "cudart.h"

#define PUSHED_MAX 64u
#define INLINE_PARAMETERS 4096u

struct configuration {
    struct wh_dim3 grid;
    struct wh_dim3 block;
    size_t shared_bytes;
    void *stream;
};

static __thread struct configuration pushed[PUSHED_MAX];
static __thread uint32_t pushed_count;

WH_EXPORT unsigned __cudaPushCallConfiguration(struct wh_dim3 grid, struct wh_dim3 block,
                                               size_t shared_bytes, cudaStream_t stream)
{
    WH_API_CALL();
    if (pushed_count == PUSHED_MAX) {
        return 1;
    }
    pushed[pushed_count++] = (struct configuration){grid, block, shared_bytes, stream};
    return wh_cuda_answered(&wh_cudart_api, 0) == 0 ? 0 : 1;
}

WH_EXPORT cudaError_t __cudaPopCallConfiguration(struct wh_dim3 *grid, struct wh_dim3 *block,
                                                 size_t *shared_bytes, void *stream)
{
    WH_API_CALL();
    if (pushed_count == 0) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_MISSING_CONFIGURATION);
    }
    const struct configuration *top = &pushed[--pushed_count];
    *grid = top->grid;
    *block = top->block;
    *shared_bytes = top->shared_bytes;
    *(void **)stream = top->stream;
    return wh_cuda_answered(&wh_cudart_api, 0);
}

void wh_put_parameters(struct wh_call *call, const struct wh_kernel *kernel, void **arguments)
{
    uint8_t few[INLINE_PARAMETERS];
    uint8_t many[kernel->parameter_bytes > sizeof(few) ? kernel->parameter_bytes : 1];
    uint8_t *packed = kernel->parameter_bytes > sizeof(few) ? many : few;
    memset(packed, 0, kernel->parameter_bytes);
    for (uint32_t i = 0; i < kernel->parameter_count; i++) {
        const struct wh_cuda_parameter *parameter = &kernel->parameters[i];
        memcpy(packed + parameter->offset, arguments[i], parameter->size_bytes);
    }
    wh_put_blob(call, packed, kernel->parameter_bytes);
}

static bool can_cross(const struct wh_cuda_attribute *attributes, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        int id = attributes[i].id;
        if (id == 7 || id == 12 || id == 13) { /* they name events and nodes */
            return false;
        }
    }
    return count <= WH_CUDA_ATTRIBUTES_MAX;
}

/* Kernel, stream, geometry and attributes, as launches and questions about them begin. */
static void put_launch(struct wh_call *call, const struct wh_kernel *kernel,
                       const struct wh_cuda_launch *how)
{
    struct wh_cuda_geometry geometry = {how->grid, how->block, how->shared_bytes};
    size_t attribute_bytes = how->attribute_count * sizeof(*how->attributes);
    wh_put_u64(call, kernel->handle);
    wh_put_u64(call, wh_cuda_stream(how->stream));
    wh_put_blob(call, &geometry, sizeof(geometry));
    wh_put_blob(call, attribute_bytes == 0 ? NULL : how->attributes, attribute_bytes);
}

static int launch(const struct wh_cuda_launch *how, const void *function, void **arguments)
{
    struct wh_kernel *kernel = NULL;
    struct wh_call call;
    if (!wh_cuda_stream_live(how->stream)) {
        return WH_CUDA_INVALID_HANDLE;
    }
    int status = wh_kernel_get(function, &kernel);
    if (status != 0) {
        /* What no kernel was registered under is taken for a kernel's handle. */
        return kernel == NULL ? WH_CUDA_INVALID_HANDLE : status;
    }
    if (kernel->parameter_count > 0 && arguments == NULL) {
        return WH_CUDA_INVALID_VALUE;
    }
    if (!can_cross(how->attributes, how->attribute_count)) {
        return WH_CUDA_NOT_SUPPORTED;
    }
    status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaLaunchKernelExC);
    if (status != 0) {
        return status;
    }
    put_launch(&call, kernel, how);
    wh_put_parameters(&call, kernel, arguments);
    uint64_t shape = wh_shape(WH_OP_cudaLaunchKernelExC);
    shape = wh_shape_add(shape, kernel->handle);
    shape = wh_shape_add(shape, (uint64_t)(uintptr_t)how->stream);
    shape = wh_shape_add(shape, (uint64_t)how->grid.x << 32 | how->grid.y);
    shape = wh_shape_add(shape, (uint64_t)how->grid.z << 32 | how->block.x);
    shape = wh_shape_add(shape, (uint64_t)how->block.y << 32 | how->block.z);
    shape = wh_shape_add(shape, how->shared_bytes);
    if (how->attribute_count > 0) {
        shape = wh_shape_add_bytes(shape, how->attributes,
                                   how->attribute_count * sizeof(*how->attributes));
    }
    return wh_cuda_send_shape(&call, &wh_cudart_api, shape);
}

static int launch_plain(const void *function, struct wh_dim3 grid, struct wh_dim3 block,
                        void **arguments, size_t shared_bytes, void *stream)
{
    const struct wh_cuda_launch how = {
        .grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream};
    return wh_cuda_done(&wh_cudart_api, launch(&how, function, arguments));
}

WH_EXPORT cudaError_t cudaLaunchKernel(const void *function, struct wh_dim3 grid,
                                       struct wh_dim3 block, void **arguments, size_t shared_bytes,
                                       cudaStream_t stream)
{
    WH_API_CALL();
    return launch_plain(function, grid, block, arguments, shared_bytes, stream);
}

WH_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, struct wh_dim3 grid,
                                         struct wh_dim3 block, void **arguments,
                                         size_t shared_bytes, cudaStream_t stream)
{
    WH_API_CALL();
    return launch_plain(kernel, grid, block, arguments, shared_bytes, stream);
}

WH_EXPORT cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, struct wh_dim3 grid,
                                              struct wh_dim3 block, void **arguments,
                                              size_t shared_bytes, cudaStream_t stream)
{
    WH_API_CALL();
    return launch_plain(kernel, grid, block, arguments, shared_bytes,
                        stream == NULL ? WH_CUDA_PER_THREAD : stream);
}

WH_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *function, struct wh_dim3 grid,
                                                  struct wh_dim3 block, void **arguments,
                                                  size_t shared_bytes, cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_cuda_attribute cooperative = {.id = WH_CUDA_ATTRIBUTE_COOPERATIVE};
    const int yes = 1;
    memcpy(cooperative.value, &yes, sizeof(yes));
    const struct wh_cuda_launch how = {.grid = grid,
                                       .block = block,
                                       .shared_bytes = shared_bytes,
                                       .stream = stream,
                                       .attributes = &cooperative,
                                       .attribute_count = 1};
    return wh_cuda_done(&wh_cudart_api, launch(&how, function, arguments));
}

WH_EXPORT cudaError_t cudaLaunchKernelExC(const struct wh_cuda_launch *configuration,
                                          const void *function, void **arguments)
{
    WH_API_CALL();
    if (configuration == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    return wh_cuda_done(&wh_cudart_api, launch(configuration, function, arguments));
}

WH_EXPORT cudaError_t cudaFuncGetAttributes(void *attributes, const void *function)
{
    WH_API_CALL();
    struct wh_kernel *kernel = NULL;
    struct wh_call call;
    if (attributes == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    int status = wh_kernel_get(function, &kernel);
    if (status == 0 && kernel->attributes_known && wh_local_answers()) {
        memcpy(attributes, kernel->attributes, sizeof(kernel->attributes));
        return 0;
    }
    if (status == 0) {
        status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaFuncGetAttributes);
    }
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, kernel->handle);
    wh_put_out(&call, WH_CUDA_FUNCTION_BYTES, true);
    status = wh_cuda_call(&call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(&call, attributes, WH_CUDA_FUNCTION_BYTES);
        memcpy(kernel->attributes, attributes, sizeof(kernel->attributes));
        kernel->attributes_known = true;
    }
    wh_call_end(&call);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value)
{
    WH_API_CALL();
    struct wh_kernel *kernel = NULL;
    struct wh_call call;
    int status = wh_kernel_get(function, &kernel);
    bool can_keep = attribute >= 0 && attribute < 16;
    uint32_t bit = can_keep ? 1u << attribute : 0;
    if (status == 0 && wh_local_answers() &&
        (__atomic_load_n(&kernel->settings_known, __ATOMIC_ACQUIRE) & bit) != 0 &&
        kernel->settings[attribute] == value) {
        return 0;
    }
    if (status == 0) {
        status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaFuncSetAttribute);
    }
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, kernel->handle);
    wh_put_u64(&call, (uint64_t)attribute);
    wh_put_u64(&call, (uint64_t)value);
    kernel->attributes_known = false;
    uint64_t shape = wh_shape_add(wh_shape(WH_OP_cudaFuncSetAttribute), kernel->handle);
    shape = wh_shape_add(shape, (uint64_t)attribute);
    shape = wh_shape_add(shape, (uint64_t)value);
    status = wh_cuda_send_shape(&call, &wh_cudart_api, shape);
    if (status == 0 && can_keep) {
        kernel->settings[attribute] = value;
        __atomic_fetch_or(&kernel->settings_known, bit, __ATOMIC_RELEASE);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaFuncSetCacheConfig(const void *function, int config)
{
    WH_API_CALL();
    struct wh_kernel *kernel = NULL;
    (void)config;
    return wh_cuda_done(&wh_cudart_api, wh_kernel_get(function, &kernel));
}

WH_EXPORT cudaError_t cudaFuncGetParamInfo(const void *function, size_t index, size_t *offset,
                                           size_t *size)
{
    WH_API_CALL();
    struct wh_kernel *kernel = NULL;
    int status = wh_kernel_get(function, &kernel);
    if (status == 0 && (index >= kernel->parameter_count || offset == NULL)) {
        status = WH_CUDA_INVALID_VALUE;
    }
    if (status == 0) {
        *offset = kernel->parameters[index].offset;
        if (size != NULL) {
            *size = kernel->parameters[index].size_bytes;
        }
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

/* Of a kernel whose attributes were set the answer is another than before. */
static int ask_occupancy(struct wh_call *call, const struct wh_kernel *kernel)
{
    bool set = __atomic_load_n(&kernel->settings_known, __ATOMIC_ACQUIRE) != 0;
    return set ? wh_cuda_call(call, &wh_cudart_api) : wh_cuda_call_pure(call, &wh_cudart_api);
}

WH_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *function, int block_size, size_t shared_bytes, unsigned int flags)
{
    WH_API_CALL();
    struct wh_kernel *kernel = NULL;
    struct wh_call call;
    int status = blocks == NULL ? WH_CUDA_INVALID_VALUE : wh_kernel_get(function, &kernel);
    if (status == 0) {
        status = wh_cuda_begin(&call, &wh_cudart_api,
                               WH_OP_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    }
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, kernel->handle);
    wh_put_u64(&call, (uint64_t)block_size);
    wh_put_u64(&call, shared_bytes);
    wh_put_u64(&call, flags);
    wh_put_out(&call, sizeof(*blocks), true);
    status = ask_occupancy(&call, kernel);
    if (status == 0) {
        (void)wh_get_out(&call, blocks, sizeof(*blocks));
    }
    wh_call_end(&call);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                                                    const void *function,
                                                                    int block_size,
                                                                    size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                  shared_bytes, 0);
}

WH_EXPORT cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *size_bytes,
                                                                const void *function, int blocks,
                                                                int block_size)
{
    WH_API_CALL();
    struct wh_kernel *kernel = NULL;
    struct wh_call call;
    int status = size_bytes == NULL ? WH_CUDA_INVALID_VALUE : wh_kernel_get(function, &kernel);
    if (status == 0) {
        status =
            wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaOccupancyAvailableDynamicSMemPerBlock);
    }
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, kernel->handle);
    wh_put_u64(&call, (uint64_t)blocks);
    wh_put_u64(&call, (uint64_t)block_size);
    wh_put_out(&call, sizeof(*size_bytes), true);
    status = ask_occupancy(&call, kernel);
    if (status == 0) {
        (void)wh_get_out(&call, size_bytes, sizeof(*size_bytes));
    }
    wh_call_end(&call);
    return wh_cuda_done(&wh_cudart_api, status);
}

/* How many clusters there can be, or how large one can be, of a launch. */
static int ask_clusters(uint16_t opcode, int *answer, const void *function,
                        const struct wh_cuda_launch *how)
{
    struct wh_kernel *kernel = NULL;
    struct wh_call call;
    if (answer == NULL || how == NULL) {
        return WH_CUDA_INVALID_VALUE;
    }
    if (!wh_cuda_stream_live(how->stream)) {
        return WH_CUDA_INVALID_HANDLE;
    }
    int status = wh_kernel_get(function, &kernel);
    if (status == 0 && !can_cross(how->attributes, how->attribute_count)) {
        status = WH_CUDA_NOT_SUPPORTED;
    }
    status = status != 0 ? status : wh_cuda_begin(&call, &wh_cudart_api, opcode);
    if (status != 0) {
        return status;
    }
    put_launch(&call, kernel, how);
    wh_put_out(&call, sizeof(*answer), true);
    status = wh_cuda_call(&call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(&call, answer, sizeof(*answer));
    }
    wh_call_end(&call);
    return status;
}

WH_EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                                     const struct wh_cuda_launch *configuration)
{
    WH_API_CALL();
    int status =
        ask_clusters(WH_OP_cudaOccupancyMaxActiveClusters, clusters, function, configuration);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaOccupancyMaxPotentialClusterSize(
    int *size, const void *function, const struct wh_cuda_launch *configuration)
{
    WH_API_CALL();
    int status =
        ask_clusters(WH_OP_cudaOccupancyMaxPotentialClusterSize, size, function, configuration);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, int attribute, int value,
                                                      int device)
{
    WH_API_CALL();
    int before = wh_cuda_thread()->device;
    int status = cudaSetDevice(device);
    if (status == 0) {
        status = cudaFuncSetAttribute(kernel, attribute, value);
        wh_cuda_thread()->device = before;
    }
    return wh_cuda_done(&wh_cudart_api, status);
}
