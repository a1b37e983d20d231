/*
 * transfer.c - reading and writing buffers.
 *
 * Data that is too large for one message crosses in pieces. A non-blocking write is copied at once,
 * so it can go one way after the first to the same buffer succeeded; a non-blocking read goes
 * through a staging area (reads.c).
 */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "callback.h"
#include "output.h"
#include "wh_codec.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define WRITES_AHEAD_MAX 64u

cl_int wh_cl_check_objects(const struct wh_cl_transfer *transfer, bool image)
{
    const struct wh_cl_object *queue = wh_cl_get(transfer->queue, WH_KIND_QUEUE);
    const struct wh_cl_object *mem = wh_cl_get(transfer->mem, WH_KIND_MEM);
    if (queue == NULL) {
        return CL_INVALID_COMMAND_QUEUE;
    }
    if (mem == NULL) {
        return CL_INVALID_MEM_OBJECT;
    }
    if (queue->context != mem->context) {
        return CL_INVALID_CONTEXT;
    }
    if (image && mem->u.of_mem.image.element_bytes == 0) {
        return CL_INVALID_MEM_OBJECT;
    }
    return wh_cl_check_waits(queue, transfer->wait_count, transfer->wait_list);
}

cl_int wh_cl_check_transfer(const struct wh_cl_transfer *transfer)
{
    cl_int error = wh_cl_check_objects(transfer, false);
    if (error != CL_SUCCESS) {
        return error;
    }
    const struct wh_cl_object *mem = (const struct wh_cl_object *)transfer->mem;
    size_t limit = mem->u.of_mem.size_bytes;
    if (transfer->offset > limit || transfer->size > limit - transfer->offset) {
        return CL_INVALID_VALUE;
    }
    return CL_SUCCESS;
}

void wh_cl_pieces_begin(struct wh_cl_pieces *pieces, const struct wh_cl_transfer *transfer,
                        struct wh_cl_object *event)
{
    pieces->transfer = *transfer;
    pieces->whole_event = event;
    pieces->before = NULL;
}

cl_int wh_cl_piece_begin(struct wh_cl_pieces *pieces, bool last)
{
    struct wh_cl_transfer *transfer = &pieces->transfer;
    if (pieces->before != NULL) {
        transfer->wait_count = 1;
        transfer->wait_list = &pieces->before;
    }
    transfer->event = pieces->whole_event;
    if (!last) {
        bool chained = transfer->blocking == CL_FALSE;
        transfer->event = wh_cl_event_new(transfer->queue, CL_COMMAND_MARKER, chained);
        if (chained && transfer->event == NULL) {
            return CL_OUT_OF_HOST_MEMORY;
        }
    }
    return CL_SUCCESS;
}

/* The event of a transfer of which a piece has failed before the last one, whose command would have
 * had it: one of the application's kind, as failed as those of commands. */
static cl_int fail_whole(const struct wh_cl_pieces *pieces)
{
    const struct wh_cl_object *queue = (const struct wh_cl_object *)pieces->transfer.queue;
    struct wh_call call;
    if (wh_call_begin(&call, WH_OP_clCreateUserEvent) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(queue->context));
    wh_put_u64(&call, wh_cl_handle(pieces->whole_event));
    cl_int error = wh_cl_call_error(&call);
    if (error != CL_SUCCESS) {
        return error;
    }
    if (wh_call_begin(&call, WH_OP_clSetUserEventStatus) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(pieces->whole_event));
    wh_put_u64(&call, (uint64_t)(int64_t)WH_CL_FAILED_STATUS);
    return wh_cl_call_error(&call);
}

cl_int wh_cl_piece_end(struct wh_cl_pieces *pieces, cl_int error)
{
    struct wh_cl_transfer *transfer = &pieces->transfer;
    struct wh_cl_object *own = transfer->event == pieces->whole_event ? NULL : transfer->event;
    if (pieces->before != NULL) {
        (void)wh_cl_release(pieces->before, WH_KIND_EVENT, WH_OP_clReleaseEvent);
        pieces->before = NULL;
    }
    if (error == WH_CL_OUTCOME_FAILED && transfer->event != pieces->whole_event) {
        cl_int wrong = fail_whole(pieces);
        error = wrong != CL_SUCCESS ? wrong : error;
    }
    if (error != CL_SUCCESS) {
        wh_cl_discard(own);
        return error;
    }
    pieces->before = (cl_event)own;
    transfer->wait_count = 0; /* a piece that blocks has waited for all of them */
    transfer->wait_list = NULL;
    return CL_SUCCESS;
}

void wh_cl_put_transfer(struct wh_call *call, const struct wh_cl_transfer *transfer, size_t done,
                        size_t piece, uint32_t mode)
{
    wh_put_u64(call, wh_cl_handle(transfer->queue));
    wh_put_u64(call, wh_cl_handle(transfer->mem));
    wh_put_u64(call, mode);
    wh_put_u64(call, transfer->offset + done);
    wh_put_u64(call, piece);
    wh_cl_put_handles(call, (const void *const *)transfer->wait_list, transfer->wait_count);
    wh_put_u64(call, wh_cl_handle(transfer->event));
    if (mode == WH_CL_MODE_HELD) {
        wh_put_u64(call, transfer->hold);
    }
}

static cl_int read_now(const struct wh_cl_transfer *transfer, size_t done, size_t piece)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_call_blocks(&call);
    wh_call_patience(&call, WH_CL_ROOM_MS);
    wh_cl_put_transfer(&call, transfer, done, piece,
                       transfer->hold != 0 ? WH_CL_MODE_HELD : WH_CL_MODE_BLOCKING);
    wh_put_out(&call, piece, true);
    if (call.error == -ENOMEM) {
        wh_call_end(&call);
        return WH_CL_NO_ROOM;
    }
    wh_cl_put_reads(&call, &reads, 0);
    return wh_cl_call_reads(&call, &reads, (uint8_t *)transfer->to + done, piece);
}

uint64_t wh_cl_transfer_shape(const struct wh_cl_transfer *transfer)
{
    uint64_t shape = wh_shape(transfer->opcode);
    shape = wh_shape_add(shape, wh_cl_handle(transfer->queue));
    shape = wh_shape_add(shape, wh_cl_handle(transfer->mem));
    return wh_shape_add(shape, transfer->event != NULL);
}

static cl_int read_later(const struct wh_cl_transfer *transfer, size_t done, size_t piece)
{
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    struct wh_cl_read *read =
        wh_cl_read_new((uint8_t *)transfer->to + done, piece, wh_cl_handle(transfer->queue));
    if (read == NULL) {
        wh_call_end(&call);
        return CL_OUT_OF_HOST_MEMORY;
    }
    wh_cl_put_transfer(&call, transfer, done, piece, WH_CL_MODE_LATER);
    wh_cl_read_put(&call, read);
    cl_int error = wh_cl_call_shape(&call, wh_cl_transfer_shape(transfer));
    if (error == CL_SUCCESS) {
        wh_cl_read_add(read);
    } else {
        wh_cl_read_cancel(read);
    }
    return error;
}

static cl_int write_piece(const struct wh_cl_transfer *transfer, size_t done, size_t piece)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    const uint8_t *from = (const uint8_t *)transfer->from + done;
    uint32_t mode = wh_cl_write_mode(transfer, piece);
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_call_patience(&call, WH_CL_ROOM_MS);
    wh_cl_put_transfer(&call, transfer, done, piece, mode);
    wh_cl_put_write(&call, mode, from, piece);
    if (call.error == -ENOMEM) {
        wh_call_end(&call);
        return WH_CL_NO_ROOM;
    }
    if (mode != WH_CL_MODE_BLOCKING && mode != WH_CL_MODE_HELD) {
        wh_cl_put_no_reads(&call, &reads); /* shows nothing complete */
        return wh_cl_call_shape(&call, wh_cl_transfer_shape(transfer));
    }
    wh_call_blocks(&call);
    wh_cl_put_reads(&call, &reads, 0);
    return wh_cl_call_reads(&call, &reads, NULL, 0);
}

static cl_int write_from_read(const struct wh_cl_transfer *transfer, size_t done, size_t piece,
                              const struct wh_cl_source *source)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_cl_put_transfer(&call, transfer, done, piece, WH_CL_MODE_FROM_READ);
    wh_put_u64(&call, source->id);
    wh_put_u64(&call, source->offset);
    wh_cl_put_no_reads(&call, &reads);
    return wh_cl_call_shape(&call, wh_cl_transfer_shape(transfer));
}

uint32_t wh_cl_write_mode(const struct wh_cl_transfer *transfer, size_t size)
{
    if (transfer->hold != 0) {
        return WH_CL_MODE_HELD;
    }
    if (transfer->blocking != CL_FALSE) {
        return WH_CL_MODE_BLOCKING;
    }
    return wh_may_hold(size, WH_CL_HOLD_MS) ? WH_CL_MODE_LATER : WH_CL_MODE_COPY;
}

void wh_cl_put_write(struct wh_call *call, uint32_t mode, const void *bytes, size_t size)
{
    if (mode == WH_CL_MODE_COPY) {
        wh_put_blob(call, bytes, size);
    } else {
        wh_put_bulk(call, bytes, size);
    }
}

size_t wh_cl_piece_limit(const struct wh_cl_transfer *transfer)
{
    size_t limit = wh_bulk_limit();
    if (transfer->to != NULL && transfer->blocking == CL_FALSE && !wh_may_hold(limit, 0)) {
        wh_cl_ask_reads(0); /* what is complete makes room */
    }
    return limit;
}

/* The whole transfer, in as many pieces as the room between client and server makes necessary. */
static cl_int move(const struct wh_cl_transfer *transfer, struct wh_cl_object *event)
{
    struct wh_cl_pieces pieces;
    size_t limit = wh_cl_piece_limit(transfer);
    size_t done = 0;
    if (limit == 0) {
        return WH_CL_LOST;
    }
    uint64_t mark = wh_cl_reads_mark();
    wh_cl_pieces_begin(&pieces, transfer, event);
    do {
        size_t left = transfer->size - done;
        size_t piece = left < limit ? left : limit;
        struct wh_cl_source source = {0};
        if (transfer->to == NULL && transfer->blocking == CL_FALSE) {
            piece = wh_cl_source_begin(&source, (const uint8_t *)transfer->from + done, piece,
                                       wh_cl_handle(transfer->queue), transfer->wait_count > 0);
        }
        cl_int error = wh_cl_piece_begin(&pieces, piece == left);
        if (error == CL_SUCCESS && transfer->to == NULL) {
            error = source.read != NULL ? write_from_read(&pieces.transfer, done, piece, &source)
                                        : write_piece(&pieces.transfer, done, piece);
        } else if (error == CL_SUCCESS) {
            error = transfer->blocking != CL_FALSE ? read_now(&pieces.transfer, done, piece)
                                                   : read_later(&pieces.transfer, done, piece);
        }
        wh_cl_source_end(&source);
        if (error == WH_CL_NO_ROOM && piece > 1) {
            limit = piece / 2; /* small enough ones need no room at all */
            wh_cl_piece_again(&pieces);
            continue;
        }
        error = wh_cl_piece_end(&pieces, error == WH_CL_NO_ROOM ? CL_OUT_OF_HOST_MEMORY : error);
        if (error != CL_SUCCESS) {
            (void)wh_cl_reads_abandon(transfer->to, done, mark);
            return error;
        }
        done += piece;
    } while (done < transfer->size);
    return CL_SUCCESS;
}

void wh_cl_piece_again(struct wh_cl_pieces *pieces)
{
    if (pieces->transfer.event != pieces->whole_event) {
        wh_cl_discard(pieces->transfer.event);
    }
}

/* Whether reads bring part of what is written, which have not yet. */
static bool writes_from_reads(const struct wh_cl_transfer *transfer, size_t extent_bytes)
{
    if (transfer->from == NULL || !wh_cl_read_into(transfer->from, extent_bytes)) {
        return false;
    }
    wh_cl_ask_reads(0);
    return wh_cl_read_into(transfer->from, extent_bytes);
}

cl_int wh_cl_transfer_begin(struct wh_cl_transfer *transfer, size_t extent_bytes,
                            cl_command_type command, bool event_wanted,
                            struct wh_cl_object **created)
{
    bool from_reads = writes_from_reads(transfer, extent_bytes);
    transfer->counted = transfer->blocking != CL_FALSE && !from_reads && wh_blocking_begin();
    transfer->waits_apart = transfer->blocking != CL_FALSE && !transfer->counted;
    if (transfer->waits_apart) {
        transfer->blocking = CL_FALSE;
    }
    bool wanted = event_wanted || transfer->waits_apart;
    *created = wh_cl_event_new(transfer->queue, command, wanted);
    return wanted && *created == NULL ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
}

cl_int wh_cl_transfer_end(const struct wh_cl_transfer *transfer, struct wh_cl_object *created,
                          cl_int error, cl_event *event)
{
    cl_event own = NULL;
    if (transfer->counted) {
        wh_blocking_end();
    }
    error = wh_cl_enqueued(created, error == WH_CL_OUTCOME_FAILED ? CL_SUCCESS : error, &own);
    if (error == CL_SUCCESS && transfer->waits_apart) {
        error = wh_cl_wait(1, &own);
        error = error == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST ? CL_SUCCESS : error;
    }
    bool may_fail = transfer->wait_count > 0; /* with what it waits for: the server knows */
    if (error == CL_SUCCESS && own != NULL && (transfer->counted || transfer->waits_apart) &&
        !may_fail) {
        wh_cl_event_seen(created, CL_COMPLETE);
    }
    if (error == CL_SUCCESS && event != NULL) {
        *event = own;
    } else if (own != NULL) {
        (void)wh_cl_release(own, WH_KIND_EVENT, WH_OP_clReleaseEvent);
    }
    return error;
}

bool wh_cl_worth_holding(const struct wh_cl_transfer *transfer, size_t size,
                         const struct wh_cl_object *event)
{
    const struct wh_cl_object *mem = (const struct wh_cl_object *)transfer->mem;
    const struct wh_cl_object *queue = (const struct wh_cl_object *)transfer->queue;
    bool timed = event != NULL && (queue->u.of_queue.properties & CL_QUEUE_PROFILING_ENABLE) != 0;
    return transfer->blocking != CL_FALSE && mem->u.of_mem.shared != NULL &&
           size >= WH_CL_HOLD_BYTES_MIN && !timed;
}

/* Whether a transfer is worth, or needs, a command that holds its place. An image is none of a
 * buffer's: that the server says. */
static bool is_held(const struct wh_cl_transfer *transfer, const struct wh_cl_object *event)
{
    const struct wh_cl_object *mem = (const struct wh_cl_object *)transfer->mem;
    if (mem->u.of_mem.image.element_bytes == 0 &&
        wh_cl_worth_holding(transfer, transfer->size, event)) {
        return true;
    }
    return transfer->blocking != CL_FALSE && transfer->size > wh_bulk_limit();
}

static cl_int move_or_hold(const struct wh_cl_transfer *transfer, struct wh_cl_object *event)
{
    if (is_held(transfer, event)) {
        return wh_cl_held_transfer(transfer, event, move);
    }
    if (transfer->blocking == CL_FALSE) {
        return move(transfer, event);
    }
    wh_cl_emptying_begin(transfer->queue);
    cl_int error = move(transfer, event);
    wh_cl_emptying_end(transfer->queue);
    return error;
}

cl_int wh_cl_read(const struct wh_cl_transfer *transfer, struct wh_cl_object *event)
{
    return move_or_hold(transfer, event);
}

cl_int wh_cl_write(const struct wh_cl_transfer *transfer, struct wh_cl_object *event)
{
    return move_or_hold(transfer, event);
}

/* Whether a context has one queue, and never had another. */
static bool has_one_queue(const struct wh_cl_object *context)
{
    return __atomic_load_n(&context->u.of_context.queues, __ATOMIC_SEQ_CST) == 1;
}

/*
 * Whether a write that blocks may go one way, like one that does not. It is copied at its call,
 * which is all that the API promises; but a program may count on more: that the write, and all
 * before it in the queue, is complete. Nothing shows it the difference while it has one queue, in
 * order, for what its context holds, and no events, callbacks, reads that do not block, or kernels
 * that print. A second queue, the end of this one, a callback and a question for a reference count
 * wait for what went ahead. So does one write of some: nothing else keeps a program that only
 * writes from getting ever further ahead of its device.
 */
static bool may_go_ahead(const struct wh_cl_transfer *transfer)
{
    const struct wh_cl_object *queue = (const struct wh_cl_object *)transfer->queue;
    struct wh_cl_object *context = queue->context;
    if (transfer->blocking == CL_FALSE || transfer->from == NULL || !wh_oneway_calls() ||
        transfer->size == 0 || transfer->size > WH_INLINE_BYTES_MAX || transfer->wait_count > 0) {
        return false;
    }
    if ((queue->u.of_queue.properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0 ||
        !has_one_queue(context) || wh_cl_has_events() || wh_cl_has_callbacks() ||
        wh_cl_any_reads() || wh_output_expected()) {
        return false;
    }
    uint32_t number = __atomic_add_fetch(&context->u.of_context.writes_ahead, 1, __ATOMIC_SEQ_CST);
    return number % WRITES_AHEAD_MAX != 0;
}

void wh_cl_settle_writes(struct wh_cl_object *context)
{
    uint32_t ahead = context == NULL ? 0 : wh_load32(&context->u.of_context.writes_ahead);
    if (ahead != 0 && ahead != wh_load32(&context->u.of_context.writes_settled)) {
        (void)wh_cl_finish(context->u.of_context.queue); /* what fails shows in a call to come */
        wh_store32(&context->u.of_context.writes_settled, ahead);
    }
}

static cl_int write_ahead(struct wh_cl_transfer *transfer)
{
    transfer->blocking = CL_FALSE;
    cl_int error = wh_cl_write(transfer, NULL);
    struct wh_cl_object *context = ((struct wh_cl_object *)transfer->queue)->context;
    if (error == CL_SUCCESS && !has_one_queue(context)) {
        wh_cl_settle_writes(context); /* it came meanwhile, and may have settled before */
    }
    return error;
}

/* What both entry points do around the transfer itself. */
static cl_int enqueue(struct wh_cl_transfer *transfer, cl_command_type command, cl_event *event)
{
    cl_int error = wh_cl_check_transfer(transfer);
    if (error == CL_SUCCESS && (transfer->to == NULL && transfer->from == NULL)) {
        error = CL_INVALID_VALUE;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl_take_async();
    }
    if (error != CL_SUCCESS) {
        return error;
    }
    if (event == NULL && may_go_ahead(transfer)) {
        return write_ahead(transfer);
    }
    struct wh_cl_object *created = NULL;
    error = wh_cl_transfer_begin(transfer, transfer->size, command, event != NULL, &created);
    if (error == CL_SUCCESS) {
        error =
            transfer->to != NULL ? wh_cl_read(transfer, created) : wh_cl_write(transfer, created);
    }
    return wh_cl_transfer_end(transfer, created, error, event);
}

cl_int CL_API_CALL wh_stub_clEnqueueReadBuffer(cl_command_queue command_queue, cl_mem buffer,
                                               cl_bool blocking_read, size_t offset, size_t size,
                                               void *ptr, cl_uint num_events_in_wait_list,
                                               const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueReadBuffer,
        .queue = command_queue,
        .mem = buffer,
        .blocking = blocking_read,
        .offset = offset,
        .size = size,
        .to = ptr,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    WH_API_CALL();
    cl_int error = enqueue(&transfer, CL_COMMAND_READ_BUFFER, event);
    if (error == CL_SUCCESS && blocking_read != CL_FALSE) {
        return wh_cl_take_async();
    }
    return error;
}

cl_int CL_API_CALL wh_stub_clEnqueueWriteBuffer(cl_command_queue command_queue, cl_mem buffer,
                                                cl_bool blocking_write, size_t offset, size_t size,
                                                const void *ptr, cl_uint num_events_in_wait_list,
                                                const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueWriteBuffer,
        .queue = command_queue,
        .mem = buffer,
        .blocking = blocking_write,
        .offset = offset,
        .size = size,
        .from = ptr,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    WH_API_CALL();
    return enqueue(&transfer, CL_COMMAND_WRITE_BUFFER, event);
}
