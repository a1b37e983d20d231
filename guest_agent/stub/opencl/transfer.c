/*
 * transfer.c - reading and writing buffers.
 *
 * Data that is too large for one message crosses in pieces. A non-blocking write is copied at once,
 * so it can go one way after the first to the same buffer succeeded; a non-blocking read goes
 * through a staging area (reads.c).
 */
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

cl_int wh_cl_check_transfer(const struct wh_cl_transfer *transfer)
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
    cl_int error = wh_cl_check_waits(queue, transfer->wait_count, transfer->wait_list);
    if (error != CL_SUCCESS) {
        return error;
    }
    size_t limit = mem->u.of_mem.size_bytes;
    if (transfer->offset > limit || transfer->size > limit - transfer->offset) {
        return CL_INVALID_VALUE;
    }
    return CL_SUCCESS;
}

static void put_common(struct wh_call *call, const struct wh_cl_transfer *transfer, size_t done,
                       size_t piece, bool last, const struct wh_cl_object *event)
{
    wh_put_u64(call, wh_cl_handle(transfer->queue));
    wh_put_u64(call, wh_cl_handle(transfer->mem));
    wh_put_u64(call, transfer->blocking != CL_FALSE);
    wh_put_u64(call, transfer->offset + done);
    wh_put_u64(call, piece);
    wh_cl_put_handles(call, (const void *const *)transfer->wait_list, transfer->wait_count);
    wh_put_u64(call, last && event != NULL ? event->handle : 0);
}

static cl_int read_piece(const struct wh_cl_transfer *transfer, size_t done, size_t piece,
                         bool last, const struct wh_cl_object *event)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    bool more = false;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    put_common(&call, transfer, done, piece, last, event);
    wh_put_out(&call, piece, true);
    wh_cl_put_reads(&call, &reads);
    cl_int error = wh_cl_call_sync(&call);
    wh_cl_take_flags(&call, &reads);
    if (error == CL_SUCCESS) {
        (void)wh_get_out(&call, (uint8_t *)transfer->to + done, piece);
        wh_cl_take_reads(&call, &reads);
        more = reads.more;
    }
    wh_call_end(&call);
    if (more) {
        (void)wh_cl_finish((struct wh_cl_object *)transfer->queue);
    }
    return error;
}

static cl_int read_blocking(const struct wh_cl_transfer *transfer, const struct wh_cl_object *event)
{
    size_t limit = wh_bulk_limit();
    size_t done = 0;
    if (limit == 0) {
        return WH_CL_LOST;
    }
    do {
        size_t left = transfer->size - done;
        size_t piece = left < limit ? left : limit;
        cl_int error = read_piece(transfer, done, piece, piece == left, event);
        if (error != CL_SUCCESS) {
            return error;
        }
        done += piece;
    } while (done < transfer->size);
    return CL_SUCCESS;
}

static uint64_t transfer_shape(const struct wh_cl_transfer *transfer,
                               const struct wh_cl_object *event)
{
    uint64_t shape = wh_cl_shape(transfer->opcode);
    shape = wh_cl_shape_add(shape, wh_cl_handle(transfer->queue));
    shape = wh_cl_shape_add(shape, wh_cl_handle(transfer->mem));
    return wh_cl_shape_add(shape, event != NULL);
}

static cl_int read_later(const struct wh_cl_transfer *transfer, const struct wh_cl_object *event)
{
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    struct wh_cl_read *read =
        wh_cl_read_new(transfer->to, transfer->size, wh_cl_handle(transfer->queue));
    if (read == NULL) {
        wh_call_end(&call);
        return CL_OUT_OF_HOST_MEMORY;
    }
    put_common(&call, transfer, 0, transfer->size, true, event);
    wh_cl_read_put(&call, read);
    cl_int error = wh_cl_call_shape(&call, transfer->queue, transfer_shape(transfer, event));
    if (error == CL_SUCCESS) {
        wh_cl_read_add(read);
    } else {
        wh_cl_read_cancel(read);
    }
    return error;
}

cl_int wh_cl_read(const struct wh_cl_transfer *transfer, const struct wh_cl_object *event)
{
    if (transfer->blocking != CL_FALSE || transfer->size > wh_bulk_limit()) {
        struct wh_cl_transfer blocking = *transfer;
        blocking.blocking = CL_TRUE;
        return read_blocking(&blocking, event);
    }
    return read_later(transfer, event);
}

static cl_int write_piece(const struct wh_cl_transfer *transfer, size_t done, size_t piece,
                          bool last, const struct wh_cl_object *event)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    put_common(&call, transfer, done, piece, last, event);
    wh_put_bulk(&call, (const uint8_t *)transfer->from + done, piece);
    if (transfer->blocking == CL_FALSE) {
        wh_cl_put_no_reads(&call, &reads); /* shows nothing complete */
        return wh_cl_call_shape(&call, transfer->queue, transfer_shape(transfer, event));
    }
    wh_cl_put_reads(&call, &reads);
    cl_int error = wh_cl_call_sync(&call);
    wh_cl_take_flags(&call, &reads);
    wh_cl_take_reads(&call, &reads);
    bool more = reads.more && error == CL_SUCCESS;
    wh_call_end(&call);
    if (more) {
        (void)wh_cl_finish((struct wh_cl_object *)transfer->queue);
    }
    return error;
}

cl_int wh_cl_write(const struct wh_cl_transfer *transfer, const struct wh_cl_object *event)
{
    size_t limit = wh_bulk_limit();
    size_t done = 0;
    if (limit == 0) {
        return WH_CL_LOST;
    }
    do {
        size_t left = transfer->size - done;
        size_t piece = left < limit ? left : limit;
        cl_int error = write_piece(transfer, done, piece, piece == left, event);
        if (error != CL_SUCCESS) {
            return error;
        }
        done += piece;
    } while (done < transfer->size);
    return CL_SUCCESS;
}

/* What both entry points do around the transfer itself. */
static cl_int enqueue(struct wh_cl_transfer *transfer, cl_command_type command, cl_event *event)
{
    cl_int error = wh_cl_check_transfer(transfer);
    if (error == CL_SUCCESS && (transfer->to == NULL && transfer->from == NULL)) {
        error = CL_INVALID_VALUE;
    }
    if (error == CL_SUCCESS && transfer->size == 0) {
        error = CL_INVALID_VALUE;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl_take_async();
    }
    if (error != CL_SUCCESS) {
        return error;
    }
    struct wh_cl_object *created = wh_cl_event_new(transfer->queue, command, event != NULL);
    if (event != NULL && created == NULL) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    error = transfer->to != NULL ? wh_cl_read(transfer, created) : wh_cl_write(transfer, created);
    if (error == CL_SUCCESS && transfer->blocking != CL_FALSE && created != NULL) {
        wh_cl_event_seen(created, CL_COMPLETE);
    }
    error = wh_cl_enqueued(created, error, event);
    return error;
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
    wh_count_api_call(WH_OP_clEnqueueReadBuffer);
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
    wh_count_api_call(WH_OP_clEnqueueWriteBuffer);
    return enqueue(&transfer, CL_COMMAND_WRITE_BUFFER, event);
}
