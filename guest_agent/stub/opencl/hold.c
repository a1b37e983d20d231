/*
 * hold.c - large transfers that block: a command of the server holds the transfer's place in the
 * queue while the data is moved (opencl_place.c of the worker).
 */
#include "transfer.h"

#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

static uint64_t last_id;

/* 0, or the API's error: then nothing is held. *first is for the profile of the whole. */
static cl_int hold(const struct wh_cl_transfer *transfer, uint64_t id,
                   const struct wh_cl_object *first)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_call_blocks(&call);
    wh_cl_put_transfer(&call, transfer, 0, transfer->size, WH_CL_MODE_HOLD);
    wh_put_u64(&call, id);
    wh_put_u64(&call, wh_cl_handle(first));
    wh_cl_put_reads(&call, &reads, 0);
    return wh_cl_call_reads(&call, &reads, NULL, 0);
}

/* An event that the application gets must be complete when the transfer is: then the server waits
 * for it. */
static cl_int let_go(const struct wh_cl_transfer *transfer, uint64_t id, bool wait, cl_int status)
{
    const struct wh_cl_transfer nothing = {
        .opcode = transfer->opcode, .queue = transfer->queue, .mem = transfer->mem};
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_cl_put_transfer(&call, &nothing, 0, 0, WH_CL_MODE_LET_GO);
    wh_put_u64(&call, id);
    wh_put_u64(&call, wait);
    wh_put_u64(&call, (uint64_t)(int64_t)status);
    if (!wait) {
        return wh_call_oneway(&call) == 0 ? CL_SUCCESS : WH_CL_LOST;
    }
    wh_call_blocks(&call);
    return wh_cl_call_error(&call);
}

static void copy_in_place(const struct wh_cl_transfer *transfer, uint8_t *shared)
{
    /* The application may pass memory that it mapped of the same buffer: the ranges may overlap. */
    if (transfer->to != NULL) {
        memmove(transfer->to, shared + transfer->offset, transfer->size);
        wh_count_bytes(0, transfer->size);
    } else {
        memmove(shared + transfer->offset, transfer->from, transfer->size);
        wh_count_bytes(transfer->size, 0);
    }
}

cl_int wh_cl_held_transfer(const struct wh_cl_transfer *transfer, struct wh_cl_object *event,
                           cl_int (*move)(const struct wh_cl_transfer *, struct wh_cl_object *))
{
    const struct wh_cl_object *mem = (const struct wh_cl_object *)transfer->mem;
    struct wh_cl_transfer held = *transfer;
    held.event = event;
    held.hold = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    cl_int error = hold(&held, held.hold, NULL);
    if (error != CL_SUCCESS) {
        return error;
    }
    if (mem->u.of_mem.shared != NULL) {
        copy_in_place(transfer, mem->u.of_mem.shared);
    } else {
        held.event = NULL;
        held.wait_count = 0;
        held.wait_list = NULL;
        error = move(&held, NULL);
    }
    cl_int ended = let_go(transfer, held.hold, event != NULL, error);
    return error != CL_SUCCESS ? error : ended;
}
