/*
 * hold.c - large transfers that block: a command of the server holds the transfer's place in the
 * queue while the data is moved (opencl_place.c of the worker).
 */
#include "transfer.h"

#include <string.h>
#include <time.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

/*
 * How often a held transfer looks whether it may begin, and how often at most: the call that it
 * gives way to may be waiting for what this thread does next. While no other held transfer is under
 * way the queue empties, and a fifth of a second or so is enough; else several seconds.
 */
#define GIVE_WAY_PAUSE_NS 100000
#define GIVE_WAY_ALONE_LOOKS_MAX 1000
#define GIVE_WAY_LOOKS_MAX 50000

static uint64_t last_id;

void wh_cl_emptying_begin(cl_command_queue queue)
{
    struct wh_cl_object *object = (struct wh_cl_object *)queue;
    __atomic_add_fetch(&object->u.of_queue.emptying_begun, 1, __ATOMIC_RELAXED);
}

void wh_cl_emptying_end(cl_command_queue queue)
{
    struct wh_cl_object *object = (struct wh_cl_object *)queue;
    __atomic_add_fetch(&object->u.of_queue.emptying_ended, 1, __ATOMIC_RELAXED);
}

/*
 * Natively all blocking transfers of a queue wait until it is empty, and so it empties. Ours return
 * as soon as they are done: a few threads that keep transferring would leave a command in the queue
 * at every moment, and whoever waits for an empty one would wait for ever. So each lets the calls
 * that it finds waiting end first; those that come later wait no longer than for what is under way.
 */
static void give_way(const struct wh_cl_object *queue)
{
    const struct timespec pause = {.tv_nsec = GIVE_WAY_PAUSE_NS};
    const uint32_t *ended = &queue->u.of_queue.emptying_ended;
    int alone = 0;
    uint32_t begun = __atomic_load_n(&queue->u.of_queue.emptying_begun, __ATOMIC_RELAXED);
    for (int looks = 0; looks < GIVE_WAY_LOOKS_MAX && alone < GIVE_WAY_ALONE_LOOKS_MAX; looks++) {
        if ((int32_t)(begun - __atomic_load_n(ended, __ATOMIC_RELAXED)) <= 0) {
            return;
        }
        alone = __atomic_load_n(&queue->u.of_queue.held, __ATOMIC_RELAXED) == 0 ? alone + 1 : 0;
        nanosleep(&pause, NULL);
    }
}

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

/* The application may pass memory that it mapped of the same image. */
static void copy_rows(const struct wh_cl_rows *to, const struct wh_cl_rows *from)
{
    for (size_t z = 0; z < to->region[2]; z++) {
        for (size_t y = 0; y < to->region[1]; y++) {
            memmove(to->first + y * to->row_pitch + z * to->slice_pitch,
                    from->first + y * from->row_pitch + z * from->slice_pitch, to->region[0]);
        }
    }
}

/* The command that holds the place says nothing of rows: it is the same as for a buffer. */
cl_int wh_cl_held_rows(const struct wh_cl_transfer *transfer, const struct wh_cl_rows *place,
                       const struct wh_cl_rows *host, struct wh_cl_object *event)
{
    bool reads = transfer->to != NULL;
    size_t size = place->region[0] * place->region[1] * place->region[2];
    struct wh_cl_transfer held = *transfer;
    held.opcode = reads ? WH_OP_clEnqueueReadBuffer : WH_OP_clEnqueueWriteBuffer;
    held.event = event;
    give_way((const struct wh_cl_object *)transfer->queue);
    held.hold = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    cl_int error = hold(&held, held.hold, NULL);
    if (error != CL_SUCCESS) {
        return error;
    }
    uint64_t begun = wh_copy_begin();
    if (reads) {
        copy_rows(host, place);
        wh_count_bytes(0, size);
    } else {
        copy_rows(place, host);
        wh_count_bytes(size, 0);
    }
    wh_copy_end(begun, held.opcode);
    return let_go(&held, held.hold, event != NULL, CL_SUCCESS);
}

static void copy_in_place(const struct wh_cl_transfer *transfer, uint8_t *shared)
{
    /* The application may pass memory that it mapped of the same buffer: the ranges may overlap. */
    uint64_t begun = wh_copy_begin();
    if (transfer->to != NULL) {
        memmove(transfer->to, shared + transfer->offset, transfer->size);
        wh_count_bytes(0, transfer->size);
    } else {
        memmove(shared + transfer->offset, transfer->from, transfer->size);
        wh_count_bytes(transfer->size, 0);
    }
    wh_copy_end(begun, transfer->opcode);
}

static cl_int transfer_held(const struct wh_cl_transfer *transfer, struct wh_cl_object *event,
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

cl_int wh_cl_held_transfer(const struct wh_cl_transfer *transfer, struct wh_cl_object *event,
                           cl_int (*move)(const struct wh_cl_transfer *, struct wh_cl_object *))
{
    struct wh_cl_object *queue = (struct wh_cl_object *)transfer->queue;
    give_way(queue);
    __atomic_add_fetch(&queue->u.of_queue.held, 1, __ATOMIC_RELAXED);
    cl_int error = transfer_held(transfer, event, move);
    __atomic_sub_fetch(&queue->u.of_queue.held, 1, __ATOMIC_RELAXED);
    return error;
}
