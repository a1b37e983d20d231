/*
 * settings.c - a handle's stream, workspace and modes.
 *
 * Programs set them before every call, mostly to what they are: PyTorch sets stream and workspace
 * for each product of matrices. So they are kept here, and only what has changed is sent, before
 * the next call that works with the handle. Setting the stream puts the workspace back to the
 * library's own, as the real one does.
 */
#include <stdbool.h>

#include "cells.h"
#include "cublas.h"
#include "cuda.h"
#include "wh_wire.h"

#define WORKSPACE_ALIGN 256u
#define INVALID_VALUE 7
#define KNOWN_MAX 64u

enum mode { MODE_POINTER, MODE_ATOMICS, MODE_MATH, MODE_SM_COUNT, MODE_COUNT };

static const uint16_t mode_opcodes[MODE_COUNT] = {
    WH_OP_cublasSetPointerMode_v2,
    WH_OP_cublasSetAtomicsMode,
    WH_OP_cublasSetMathMode,
    WH_OP_cublasSetSmCountTarget,
};

struct values {
    cudaStream_t stream;
    uint64_t stream_handle; /* a stream may get the address of one that ended */
    void *workspace;
    size_t workspace_bytes;
    bool own_workspace; /* the application's */
    int modes[MODE_COUNT];
};

struct cell {
    struct wh_cell head;
    struct values wanted;
    struct values sent;
};

static struct wh_cells cells = WH_CELLS(struct cell);
static __thread void *latest; /* of this thread */

/* Values that the real library has taken, so that its refusal of others comes at once. */
static uint64_t known[KNOWN_MAX];

static struct cell *find(cublasHandle_t handle)
{
    return wh_cell_find(&cells, handle, &latest);
}

WH_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    WH_API_CALL();
    struct wh_call call;
    if (handle == NULL) {
        return wh_cuda_done(&wh_cublas_api, INVALID_VALUE);
    }
    uint64_t number = wh_cuda_handle_new(WH_KIND_CUBLAS);
    if (number == 0) {
        return wh_cuda_done(&wh_cublas_api, wh_cublas_api.memory);
    }
    int status = wh_cuda_begin(&call, &wh_cublas_api, WH_OP_cublasCreate_v2);
    if (status == 0) {
        wh_put_u64(&call, number);
        status = wh_cuda_call(&call, &wh_cublas_api);
        wh_call_end(&call);
    }
    if (status == 0 && wh_cell_add(&cells, number) == NULL) {
        status = wh_cublas_api.memory;
    }
    if (status != 0) {
        wh_cuda_handle_end(number);
        return wh_cuda_done(&wh_cublas_api, status);
    }
    *handle = (cublasHandle_t)(uintptr_t)number;
    return 0;
}

WH_EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    WH_API_CALL();
    struct wh_call call;
    struct cell *cell = find(handle);
    if (cell == NULL) {
        return wh_cuda_done(&wh_cublas_api, 1);
    }
    int status = wh_cuda_begin(&call, &wh_cublas_api, WH_OP_cublasDestroy_v2);
    if (status == 0) {
        wh_put_u64(&call, cell->head.handle);
        status = wh_cuda_call(&call, &wh_cublas_api);
        wh_call_end(&call);
    }
    wh_cuda_handle_end(cell->head.handle);
    wh_cell_end(cell);
    return wh_cuda_done(&wh_cublas_api, status);
}

/* One setting, one way or waiting for what the library says. */
static int send(const struct cell *cell, uint16_t opcode, uint64_t first, const uint64_t *second,
                bool wait)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cublas_api, opcode);
    if (status != 0) {
        return status;
    }
    wh_put_u64(&call, cell->head.handle);
    wh_put_u64(&call, first);
    if (second != NULL) {
        wh_put_u64(&call, *second);
    }
    if (!wait) {
        return wh_cuda_send(&call, &wh_cublas_api);
    }
    status = wh_cuda_call(&call, &wh_cublas_api);
    wh_call_end(&call);
    return status;
}

static int send_stream(struct cell *cell, bool wait)
{
    int status = send(cell, WH_OP_cublasSetStream_v2, cell->wanted.stream_handle, NULL, wait);
    cell->sent.stream_handle = cell->wanted.stream_handle;
    cell->sent.own_workspace = false;
    return status;
}

static int send_workspace(struct cell *cell, bool wait)
{
    uint64_t bytes = cell->wanted.workspace_bytes;
    uint64_t address = (uint64_t)(uintptr_t)cell->wanted.workspace;
    int status = send(cell, WH_OP_cublasSetWorkspace_v2, address, &bytes, wait);
    cell->sent.workspace = cell->wanted.workspace;
    cell->sent.workspace_bytes = cell->wanted.workspace_bytes;
    cell->sent.own_workspace = true;
    return status;
}

void wh_cublas_settle(cublasHandle_t handle)
{
    struct cell *cell = find(handle);
    if (cell == NULL) {
        return;
    }
    struct values *wanted = &cell->wanted;
    struct values *sent = &cell->sent;
    if (wanted->stream_handle != sent->stream_handle ||
        (sent->own_workspace && !wanted->own_workspace)) {
        (void)send_stream(cell, false);
    }
    if (wanted->own_workspace && (!sent->own_workspace || wanted->workspace != sent->workspace ||
                                  wanted->workspace_bytes != sent->workspace_bytes)) {
        (void)send_workspace(cell, false);
    }
    for (int i = 0; i < MODE_COUNT; i++) {
        if (wanted->modes[i] != sent->modes[i]) {
            (void)send(cell, mode_opcodes[i], (uint64_t)wanted->modes[i], NULL, false);
            sent->modes[i] = wanted->modes[i];
        }
    }
}

size_t wh_cublas_host(cublasHandle_t handle, size_t size_bytes)
{
    const struct cell *cell = find(handle);
    return cell == NULL || cell->wanted.modes[MODE_POINTER] == 0 ? size_bytes : 0;
}

WH_EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t streamId)
{
    WH_API_CALL();
    struct cell *cell = find(handle);
    if (cell == NULL) {
        return wh_cuda_done(&wh_cublas_api, 1);
    }
    if (!wh_cuda_stream_live(streamId)) {
        return wh_cuda_done(&wh_cublas_api, INVALID_VALUE);
    }
    cell->wanted.stream = streamId;
    cell->wanted.stream_handle = wh_cuda_stream(streamId);
    cell->wanted.own_workspace = false;
    return wh_local_answers() ? 0 : wh_cuda_done(&wh_cublas_api, send_stream(cell, true));
}

WH_EXPORT cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *streamId)
{
    WH_API_CALL();
    const struct cell *cell = find(handle);
    if (cell == NULL || streamId == NULL) {
        return wh_cuda_done(&wh_cublas_api, cell == NULL ? 1 : INVALID_VALUE);
    }
    *streamId = cell->wanted.stream;
    return wh_cuda_answered(&wh_cublas_api, 0);
}

WH_EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace,
                                               size_t workspaceSizeInBytes)
{
    WH_API_CALL();
    struct cell *cell = find(handle);
    if (cell == NULL) {
        return wh_cuda_done(&wh_cublas_api, 1);
    }
    if ((uintptr_t)workspace % WORKSPACE_ALIGN != 0) {
        return wh_cuda_done(&wh_cublas_api, INVALID_VALUE);
    }
    cell->wanted.workspace = workspace;
    cell->wanted.workspace_bytes = workspaceSizeInBytes;
    cell->wanted.own_workspace = true;
    return wh_local_answers() ? 0 : wh_cuda_done(&wh_cublas_api, send_workspace(cell, true));
}

/* Whether the library has taken this value before; then it goes with the next call. */
static bool is_known(enum mode mode, int value)
{
    uint64_t entry = (uint64_t)(mode + 1) << 32 | (uint32_t)value;
    for (uint32_t i = 0; i < KNOWN_MAX; i++) {
        if (__atomic_load_n(&known[i], __ATOMIC_RELAXED) == entry) {
            return true;
        }
    }
    return false;
}

static void learn(enum mode mode, int value)
{
    static uint32_t next;
    uint32_t place = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % KNOWN_MAX;
    __atomic_store_n(&known[place], (uint64_t)(mode + 1) << 32 | (uint32_t)value, __ATOMIC_RELAXED);
}

static cublasStatus_t set_mode(cublasHandle_t handle, enum mode mode, int value)
{
    struct cell *cell = find(handle);
    if (cell == NULL) {
        return wh_cuda_done(&wh_cublas_api, 1);
    }
    if (wh_local_answers() && (value == cell->wanted.modes[mode] || is_known(mode, value))) {
        cell->wanted.modes[mode] = value;
        return 0;
    }
    int status = send(cell, mode_opcodes[mode], (uint64_t)value, NULL, true);
    if (status == 0) {
        cell->wanted.modes[mode] = value;
        cell->sent.modes[mode] = value;
        learn(mode, value);
    }
    return wh_cuda_done(&wh_cublas_api, status);
}

static cublasStatus_t get_mode(cublasHandle_t handle, enum mode mode, uint16_t opcode, int *value)
{
    const struct cell *cell = find(handle);
    if (cell == NULL || value == NULL) {
        return wh_cuda_done(&wh_cublas_api, cell == NULL ? 1 : INVALID_VALUE);
    }
    *value = cell->wanted.modes[mode];
    if (wh_local_answers()) {
        return 0;
    }
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cublas_api, opcode);
    if (status == 0) {
        wh_put_u64(&call, cell->head.handle);
        wh_put_out(&call, sizeof(*value), true);
        status = wh_cuda_call(&call, &wh_cublas_api);
        if (status == 0) {
            (void)wh_get_out(&call, value, sizeof(*value));
        }
        wh_call_end(&call);
    }
    return wh_cuda_done(&wh_cublas_api, status);
}

WH_EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    WH_API_CALL();
    return set_mode(handle, MODE_POINTER, mode);
}

WH_EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode)
{
    WH_API_CALL();
    return get_mode(handle, MODE_POINTER, WH_OP_cublasGetPointerMode_v2, mode);
}

WH_EXPORT cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode)
{
    WH_API_CALL();
    return set_mode(handle, MODE_ATOMICS, mode);
}

WH_EXPORT cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t *mode)
{
    WH_API_CALL();
    return get_mode(handle, MODE_ATOMICS, WH_OP_cublasGetAtomicsMode, mode);
}

WH_EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    WH_API_CALL();
    return set_mode(handle, MODE_MATH, mode);
}

WH_EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode)
{
    WH_API_CALL();
    return get_mode(handle, MODE_MATH, WH_OP_cublasGetMathMode, mode);
}

WH_EXPORT cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int smCountTarget)
{
    WH_API_CALL();
    return set_mode(handle, MODE_SM_COUNT, smCountTarget);
}

WH_EXPORT cublasStatus_t cublasGetSmCountTarget(cublasHandle_t handle, int *smCountTarget)
{
    WH_API_CALL();
    return get_mode(handle, MODE_SM_COUNT, WH_OP_cublasGetSmCountTarget, smCountTarget);
}
