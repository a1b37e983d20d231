/*
 * stream.c - what streams are asked: capture of what they are given.
 */
#include "cudart.h"

static uint32_t captures;

/* The thread's latest wait for a stream. */
static __thread struct {
    const void *stream;
    uint64_t published; /* 0: none */
    uint32_t serial;
} settled;

void wh_stream_settled(const void *stream)
{
    settled.stream = stream;
    settled.published = wh_published();
    settled.serial = wh_cuda_session();
}

static bool is_settled(const void *stream)
{
    return settled.published != 0 && settled.stream == stream &&
           settled.serial == wh_cuda_session() && settled.published == wh_published() &&
           wh_local_answers();
}

/* What reads a value back waits for its stream, and programs wait for it once more. */
WH_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_call call;
    if (!wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_HANDLE);
    }
    if (is_settled(stream)) {
        return 0;
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaStreamSynchronize);
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_call_blocks(&call);
    wh_put_u64(&call, wh_cuda_stream(stream));
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    if (status == 0) {
        wh_stream_settled(stream);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

bool wh_capturing(void)
{
    return __atomic_load_n(&captures, __ATOMIC_ACQUIRE) != 0;
}

WH_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *status)
{
    WH_API_CALL();
    struct wh_call call;
    if (status == NULL || !wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api,
                            status == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_HANDLE);
    }
    if (!wh_capturing() && wh_local_answers()) {
        *status = 0;
        return 0;
    }
    int result = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaStreamIsCapturing);
    if (result != 0) {
        return wh_cuda_done(&wh_cudart_api, result);
    }
    wh_put_u64(&call, wh_cuda_stream(stream));
    wh_put_out(&call, sizeof(*status), true);
    result = wh_cuda_call(&call, &wh_cudart_api);
    if (result == 0) {
        (void)wh_get_out(&call, status, sizeof(*status));
    }
    wh_call_end(&call);
    return wh_cuda_done(&wh_cudart_api, result);
}

bool wh_stream_captures(void *stream)
{
    int last_error = wh_cuda_thread()->last_error;
    int status = 0;
    bool active = wh_capturing() && cudaStreamIsCapturing(stream, &status) == 0 && status == 1;
    wh_cuda_thread()->last_error = last_error;
    return active;
}

WH_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, int *status,
                                               unsigned long long *id, cudaGraph_t *graph,
                                               const void **nodes, const void **edges,
                                               size_t *count)
{
    WH_API_CALL();
    struct wh_call call;
    unsigned long long number = 0;
    int state = 0;
    if (status == NULL || !wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api,
                            status == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_HANDLE);
    }
    if (wh_capturing() || !wh_local_answers()) {
        int result = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaStreamGetCaptureInfo);
        if (result != 0) {
            return wh_cuda_done(&wh_cudart_api, result);
        }
        wh_put_u64(&call, wh_cuda_stream(stream));
        wh_put_out(&call, sizeof(state), true);
        wh_put_out(&call, sizeof(number), true);
        result = wh_cuda_call(&call, &wh_cudart_api);
        if (result == 0) {
            (void)wh_get_out(&call, &state, sizeof(state));
            (void)wh_get_out(&call, &number, sizeof(number));
        }
        wh_call_end(&call);
        if (result != 0) {
            return wh_cuda_done(&wh_cudart_api, result);
        }
    }
    if (state != 0 && (graph != NULL || nodes != NULL || edges != NULL || count != NULL)) {
        static int said;
        return wh_cuda_unsupported(&wh_cudart_api, "the graph of a capture under way", &said);
    }
    *status = state;
    if (id != NULL) {
        *id = number;
    }
    return 0;
}

WH_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int capture_mode)
{
    WH_API_CALL();
    struct wh_call call;
    if (!wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_HANDLE);
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaStreamBeginCapture);
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, wh_cuda_stream(stream));
    wh_put_u64(&call, (uint64_t)capture_mode);
    __atomic_add_fetch(&captures, 1, __ATOMIC_ACQ_REL);
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    if (status != 0) {
        __atomic_sub_fetch(&captures, 1, __ATOMIC_ACQ_REL);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    WH_API_CALL();
    struct wh_call call;
    if (graph == NULL || !wh_cuda_stream_live(stream)) {
        return wh_cuda_done(&wh_cudart_api,
                            graph == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_HANDLE);
    }
    *graph = NULL;
    uint64_t handle = wh_cuda_handle_new(WH_KIND_GRAPH);
    int status = handle == 0 ? WH_CUDA_MEMORY_ALLOCATION
                             : wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaStreamEndCapture);
    if (status != 0) {
        wh_cuda_handle_end(handle);
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_u64(&call, wh_cuda_stream(stream));
    wh_put_u64(&call, handle);
    status = wh_cuda_call(&call, &wh_cudart_api);
    wh_call_end(&call);
    /* A stream that captures nothing ended none; all others do, whatever came of it. */
    if (wh_capturing() && status != WH_CUDA_ILLEGAL_STATE && status != WH_CUDA_INVALID_VALUE) {
        __atomic_sub_fetch(&captures, 1, __ATOMIC_ACQ_REL);
    }
    if (status == 0) {
        *graph = (cudaGraph_t)(void *)(uintptr_t)handle;
    } else {
        wh_cuda_handle_end(handle);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(int *capture_mode)
{
    WH_API_CALL();
    struct wh_cuda_thread *thread = wh_cuda_thread();
    if (capture_mode == NULL || *capture_mode < 0 || *capture_mode > 2) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    int before = thread->capture_mode;
    thread->capture_mode = *capture_mode;
    *capture_mode = before;
    return 0;
}
