/*
 * handle.c - handles of cuDNN and their streams; what the library says of itself.
 *
 * Programs set the stream before every call, mostly to what it is: it is sent when it has changed,
 * before the next call that works with the handle.
 */
#include <stdbool.h>

#include "cells.h"
#include "cuda.h"
#include "cudnn.h"
#include "wh_wire.h"

#define BAD_PARAM 2000
#define NOT_INITIALIZED 1001

struct cell {
    struct wh_cell head;
    cudaStream_t stream;
    uint64_t wanted; /* the stream's handle */
    uint64_t sent;
};

static struct wh_cells cells = WH_CELLS(struct cell);
static __thread void *latest;

static struct cell *find(cudnnHandle_t handle)
{
    return wh_cell_find(&cells, handle, &latest);
}

WH_EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    WH_API_CALL();
    struct wh_call call;
    if (handle == NULL) {
        return wh_cuda_done(&wh_cudnn_api, wh_cudnn_api.invalid);
    }
    uint64_t number = wh_cuda_handle_new(WH_KIND_CUDNN);
    if (number == 0) {
        return wh_cuda_done(&wh_cudnn_api, wh_cudnn_api.memory);
    }
    int status = wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnCreate);
    if (status == 0) {
        wh_put_u64(&call, number);
        status = wh_cuda_call(&call, &wh_cudnn_api);
        wh_call_end(&call);
    }
    if (status == 0 && wh_cell_add(&cells, number) == NULL) {
        status = wh_cudnn_api.memory;
    }
    if (status != 0) {
        wh_cuda_handle_end(number);
        return wh_cuda_done(&wh_cudnn_api, status);
    }
    *handle = (cudnnHandle_t)(uintptr_t)number;
    return 0;
}

WH_EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    WH_API_CALL();
    struct wh_call call;
    struct cell *cell = find(handle);
    if (cell == NULL) {
        return wh_cuda_done(&wh_cudnn_api, NOT_INITIALIZED);
    }
    int status = wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnDestroy);
    if (status == 0) {
        wh_put_u64(&call, cell->head.handle);
        status = wh_cuda_call(&call, &wh_cudnn_api);
        wh_call_end(&call);
    }
    wh_cuda_handle_end(cell->head.handle);
    wh_cell_end(cell);
    return wh_cuda_done(&wh_cudnn_api, status);
}

static int send_stream(struct cell *cell, bool wait)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cudnn_api, WH_OP_cudnnSetStream);
    if (status != 0) {
        return status;
    }
    wh_put_u64(&call, cell->head.handle);
    wh_put_u64(&call, cell->wanted);
    cell->sent = cell->wanted;
    if (!wait) {
        return wh_cuda_send(&call, &wh_cudnn_api);
    }
    status = wh_cuda_call(&call, &wh_cudnn_api);
    wh_call_end(&call);
    return status;
}

void wh_cudnn_settle(cudnnHandle_t handle)
{
    struct cell *cell = find(handle);
    if (cell != NULL && cell->wanted != cell->sent) {
        (void)send_stream(cell, false);
    }
}

WH_EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId)
{
    WH_API_CALL();
    struct cell *cell = find(handle);
    if (cell == NULL || !wh_cuda_stream_live(streamId)) {
        return wh_cuda_done(&wh_cudnn_api, cell == NULL ? NOT_INITIALIZED : BAD_PARAM);
    }
    cell->stream = streamId;
    cell->wanted = wh_cuda_stream(streamId);
    return wh_local_answers() ? 0 : wh_cuda_done(&wh_cudnn_api, send_stream(cell, true));
}

WH_EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *streamId)
{
    WH_API_CALL();
    const struct cell *cell = find(handle);
    if (cell == NULL || streamId == NULL) {
        return wh_cuda_done(&wh_cudnn_api, cell == NULL ? NOT_INITIALIZED : BAD_PARAM);
    }
    *streamId = cell->stream;
    return wh_cuda_answered(&wh_cudnn_api, 0);
}

/* A number that the library gives without a status; 0 without a server. */
static size_t ask_number(uint16_t opcode, size_t *kept)
{
    struct wh_call call;
    size_t number = __atomic_load_n(kept, __ATOMIC_RELAXED);
    if (number != 0 && wh_local_answers()) {
        return number;
    }
    if (wh_cuda_begin(&call, &wh_cudnn_api, opcode) != 0) {
        return 0;
    }
    if (wh_cuda_call(&call, &wh_cudnn_api) == 0) {
        number = (size_t)wh_get_u64(&call);
        __atomic_store_n(kept, number, __ATOMIC_RELAXED);
    }
    wh_call_end(&call);
    return number;
}

WH_EXPORT size_t cudnnGetVersion(void)
{
    WH_API_CALL();
    static size_t kept;
    return ask_number(WH_OP_cudnnGetVersion, &kept);
}

WH_EXPORT size_t cudnnGetCudartVersion(void)
{
    WH_API_CALL();
    static size_t kept;
    return ask_number(WH_OP_cudnnGetCudartVersion, &kept);
}

WH_EXPORT size_t cudnnGetMaxDeviceVersion(void)
{
    WH_API_CALL();
    static size_t kept;
    return ask_number(WH_OP_cudnnGetMaxDeviceVersion, &kept);
}

WH_EXPORT cudnnStatus_t cudnnGraphVersionCheck(void)
{
    WH_API_CALL();
    return 0;
}

WH_EXPORT cudnnStatus_t cudnnOpsVersionCheck(void)
{
    WH_API_CALL();
    return 0;
}

WH_EXPORT cudnnStatus_t cudnnCnnVersionCheck(void)
{
    WH_API_CALL();
    return 0;
}

WH_EXPORT cudnnStatus_t cudnnAdvVersionCheck(void)
{
    WH_API_CALL();
    return 0;
}
