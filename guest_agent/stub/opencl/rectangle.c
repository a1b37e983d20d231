/*
 * rectangle.c - reading and writing rectangles of buffers: rows travel without the gaps that the
 * application's memory has between them.
 */
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

/* A rectangle in the application's memory, as OpenCL describes it. */
struct rectangle {
    const size_t *origin;
    const size_t *region;
    size_t row_pitch;
    size_t slice_pitch;
};

static cl_int complete_pitches(struct rectangle *rectangle)
{
    const size_t *region = rectangle->region;
    if (rectangle->origin == NULL || region == NULL || wh_cl_nothing(region)) {
        return CL_INVALID_VALUE;
    }
    if (rectangle->row_pitch == 0) {
        rectangle->row_pitch = region[0];
    }
    if (rectangle->slice_pitch == 0) {
        rectangle->slice_pitch = region[1] * rectangle->row_pitch;
    }
    bool fits = rectangle->row_pitch >= region[0] &&
                rectangle->slice_pitch >= region[1] * rectangle->row_pitch;
    return fits ? CL_SUCCESS : CL_INVALID_VALUE;
}

/* A piece of a rectangle: some slices, or some rows of one. */
struct piece {
    size_t buffer_origin[3];
    struct wh_cl_rows rows;
    size_t size;
};

static void put_rectangle(struct wh_call *call, const struct wh_cl_transfer *transfer,
                          const struct piece *piece, size_t row_pitch, size_t slice_pitch,
                          uint32_t mode)
{
    const size_t *bytes = piece->rows.region;
    size_t unit = transfer->element_bytes == 0 ? 1 : transfer->element_bytes;
    const size_t region[3] = {bytes[0] / unit, bytes[1], bytes[2]};
    wh_put_u64(call, wh_cl_handle(transfer->queue));
    wh_put_u64(call, wh_cl_handle(transfer->mem));
    wh_put_u64(call, mode);
    wh_put_blob(call, piece->buffer_origin, sizeof(piece->buffer_origin));
    wh_put_blob(call, region, sizeof(region));
    wh_put_u64(call, row_pitch);
    wh_put_u64(call, slice_pitch);
    wh_cl_put_handles(call, (const void *const *)transfer->wait_list, transfer->wait_count);
    wh_put_u64(call, wh_cl_handle(transfer->event));
}

void wh_cl_put_image(struct wh_call *call, const struct wh_cl_transfer *transfer,
                     const size_t *origin, const size_t *region, uint32_t mode)
{
    struct piece piece = {0};
    memcpy(piece.buffer_origin, origin, sizeof(piece.buffer_origin));
    memcpy(piece.rows.region, region, sizeof(piece.rows.region));
    put_rectangle(call, transfer, &piece, 0, 0, mode);
}

static cl_int check_rectangle(const struct wh_cl_transfer *transfer, const size_t *buffer_origin,
                              struct rectangle *host)
{
    size_t plane;
    size_t size;
    cl_int error = wh_cl_check_transfer(transfer);
    if (error != CL_SUCCESS) {
        return error;
    }
    bool given = host->slice_pitch != 0 && transfer->element_bytes == 0;
    error = complete_pitches(host);
    if (error == CL_SUCCESS && given && host->slice_pitch % host->row_pitch != 0) {
        return CL_INVALID_VALUE;
    }
    if (error != CL_SUCCESS || buffer_origin == NULL) {
        return CL_INVALID_VALUE;
    }
    if (__builtin_mul_overflow(host->region[0], host->region[1], &plane) ||
        __builtin_mul_overflow(plane, host->region[2], &size) ||
        size > ((struct wh_cl_object *)transfer->mem)->u.of_mem.size_bytes) {
        return CL_INVALID_VALUE;
    }
    return wh_cl_take_async();
}

/* A non-blocking transfer of an image may go one way: its bounds are checked here. */
static cl_int call_later(struct wh_call *call, const struct wh_cl_transfer *transfer, size_t size)
{
    if (transfer->element_bytes == 0 || size == 0) {
        return wh_cl_call_error(call);
    }
    return wh_cl_call_shape(call, wh_cl_transfer_shape(transfer));
}

static bool has_gaps(const struct wh_cl_rows *rows)
{
    const size_t *region = rows->region;
    bool between_rows = region[1] > 1 && rows->row_pitch != region[0];
    return between_rows || (region[2] > 1 && rows->slice_pitch != region[0] * region[1]);
}

static cl_int read_rectangle_later(const struct wh_cl_transfer *transfer, const struct piece *piece,
                                   struct wh_call *call)
{
    uint64_t queue = wh_cl_handle(transfer->queue);
    struct wh_cl_read *read = has_gaps(&piece->rows)
                                  ? wh_cl_read_new_rows(&piece->rows, piece->size, queue)
                                  : wh_cl_read_new(piece->rows.first, piece->size, queue);
    if (read == NULL) {
        wh_call_end(call);
        return CL_OUT_OF_HOST_MEMORY;
    }
    wh_cl_read_put(call, read);
    cl_int error = call_later(call, transfer, piece->size);
    if (error == CL_SUCCESS) {
        wh_cl_read_add(read);
    } else {
        wh_cl_read_cancel(read);
    }
    return error;
}

/* The bytes of a row that a pending read brings. */
static cl_int write_from_read(const struct wh_cl_transfer *transfer, const struct piece *piece,
                              size_t row_pitch, size_t slice_pitch,
                              const struct wh_cl_source *source)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    put_rectangle(&call, transfer, piece, row_pitch, slice_pitch, WH_CL_MODE_FROM_READ);
    wh_put_u64(&call, source->id);
    wh_put_u64(&call, source->offset);
    wh_cl_put_no_reads(&call, &reads);
    return call_later(&call, transfer, piece->size);
}

static cl_int move_piece(const struct wh_cl_transfer *transfer, const struct piece *piece,
                         size_t row_pitch, size_t slice_pitch)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    bool blocking = transfer->blocking != CL_FALSE;
    bool reading = transfer->to != NULL;
    uint32_t mode = reading ? (blocking ? WH_CL_MODE_BLOCKING : WH_CL_MODE_LATER)
                            : wh_cl_write_mode(transfer, piece->size);
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    put_rectangle(&call, transfer, piece, row_pitch, slice_pitch, mode);
    if (reading && !blocking) {
        return read_rectangle_later(transfer, piece, &call);
    }
    bool gaps = has_gaps(&piece->rows);
    uint8_t *packed = gaps ? malloc(piece->size) : piece->rows.first;
    if (packed == NULL) {
        wh_call_end(&call);
        return CL_OUT_OF_HOST_MEMORY;
    }
    cl_int error = CL_SUCCESS;
    if (reading) {
        wh_put_out(&call, piece->size, true);
    } else {
        if (gaps) {
            wh_cl_rows_copy(&piece->rows, packed, true);
        }
        wh_cl_put_write(&call, mode, packed, piece->size);
    }
    if (blocking) {
        wh_call_blocks(&call);
        wh_cl_put_reads(&call, &reads, 0);
        wh_cl_emptying_begin(transfer->queue);
        error = wh_cl_call_reads(&call, &reads, reading ? packed : NULL, piece->size);
        wh_cl_emptying_end(transfer->queue);
    } else {
        wh_cl_put_no_reads(&call, &reads);
        error = call_later(&call, transfer, piece->size);
    }
    if (reading && gaps && error == CL_SUCCESS) {
        wh_cl_rows_copy(&piece->rows, packed, false);
    }
    if (gaps) {
        free(packed);
    }
    return error;
}

/* As many whole slices from `at` as fit the limit, or as many rows of that slice, or as much of
 * that row. at: bytes, rows, slices. */
static void cut_piece(struct piece *piece, const struct wh_cl_transfer *transfer,
                      const struct rectangle *host, const size_t *buffer_origin, const size_t *at,
                      size_t limit)
{
    uint8_t *memory = transfer->to != NULL ? transfer->to : (uint8_t *)transfer->from;
    size_t unit = transfer->element_bytes == 0 ? 1 : transfer->element_bytes;
    const size_t *region = host->region;
    size_t *size = piece->rows.region;
    size[0] = region[0] - at[0];
    size[1] = 1;
    size[2] = 1;
    if (wh_cl_nothing(region)) {
        memcpy(size, region, 3 * sizeof(*size));
    } else if (size[0] > limit) {
        size[0] = limit < unit ? unit : limit / unit * unit;
    } else if (size[0] == region[0]) {
        size_t plane = region[0] * region[1];
        size[1] = region[1] - at[1];
        size[1] = size[1] < limit / region[0] ? size[1] : limit / region[0];
        size[2] = at[1] == 0 && plane <= limit ? limit / plane : 1;
        size[2] = size[2] < region[2] - at[2] ? size[2] : region[2] - at[2];
    }
    piece->rows.row_pitch = host->row_pitch;
    piece->rows.slice_pitch = host->slice_pitch;
    piece->rows.first = memory + host->origin[0] + at[0] +
                        (host->origin[1] + at[1]) * host->row_pitch +
                        (host->origin[2] + at[2]) * host->slice_pitch;
    piece->size = size[0] * size[1] * size[2];
    piece->buffer_origin[0] = buffer_origin[0] + at[0] / unit;
    piece->buffer_origin[1] = buffer_origin[1] + at[1];
    piece->buffer_origin[2] = buffer_origin[2] + at[2];
}

/* Cuts a piece of one row to what comes from one place. The element of an image that comes from
 * several is waited for. */
static void find_source(struct wh_cl_source *source, const struct wh_cl_transfer *transfer,
                        struct piece *piece)
{
    size_t unit = transfer->element_bytes == 0 ? 1 : transfer->element_bytes;
    size_t size = wh_cl_source_begin(source, piece->rows.first, piece->size,
                                     wh_cl_handle(transfer->queue), transfer->wait_count > 0);
    if (size < unit) {
        wh_cl_source_end(source);
        source->read = NULL;
        wh_cl_await_reads(piece->rows.first, unit);
        size = unit;
    }
    piece->size = size / unit * unit;
    piece->rows.region[0] = piece->size;
}

/* Goes on to what comes behind a piece; of a region with nothing in it there is only one. */
static void step(size_t *at, const struct wh_cl_rows *rows, const size_t *region)
{
    if (wh_cl_nothing(region)) {
        at[2] = region[2];
        return;
    }
    at[0] += rows->region[0];
    if (at[0] < region[0]) {
        return;
    }
    at[0] = 0;
    at[1] += rows->region[1];
    if (at[1] == region[1]) {
        at[1] = 0;
        at[2] += rows->region[2];
    }
}

/* The buffer's slice pitch must not depend on how many rows a piece has. */
static size_t slice_pitch_of(const struct rectangle *host, size_t row_pitch, size_t slice_pitch)
{
    size_t row = row_pitch != 0 ? row_pitch : host->region[0];
    return slice_pitch != 0 ? slice_pitch : row * host->region[1];
}

/* Bytes from the application's pointer to the rectangle's end. */
static size_t end_of(const struct rectangle *host)
{
    return host->origin[0] + host->origin[1] * host->row_pitch +
           host->origin[2] * host->slice_pitch +
           wh_cl_extent(host->region, host->row_pitch, host->slice_pitch);
}

static cl_int move_rectangle(const struct wh_cl_transfer *transfer, const size_t *buffer_origin,
                             struct rectangle *host, size_t row_pitch, size_t slice_pitch,
                             struct wh_cl_object *event)
{
    struct wh_cl_pieces pieces;
    struct piece piece;
    size_t at[3] = {0, 0, 0};
    size_t limit = wh_cl_piece_limit(transfer);
    bool from_reads = transfer->from != NULL && transfer->blocking == CL_FALSE &&
                      wh_cl_read_into(transfer->from, end_of(host));
    if (limit == 0) {
        return WH_CL_LOST;
    }
    if (from_reads && !wh_cl_nothing(host->region) && limit > host->region[0]) {
        limit = host->region[0];
    }
    uint64_t mark = wh_cl_reads_mark();
    wh_cl_pieces_begin(&pieces, transfer, event);
    do {
        bool first = at[0] == 0 && at[1] == 0 && at[2] == 0;
        struct wh_cl_source source = {0};
        cut_piece(&piece, transfer, host, buffer_origin, at, limit);
        if (from_reads) {
            find_source(&source, transfer, &piece);
        }
        step(at, &piece.rows, host->region);
        bool whole = first && at[2] == host->region[2];
        cl_int error = wh_cl_piece_begin(&pieces, at[2] == host->region[2]);
        size_t pitch = whole ? slice_pitch : slice_pitch_of(host, row_pitch, slice_pitch);
        if (error == CL_SUCCESS && source.read != NULL) {
            error = write_from_read(&pieces.transfer, &piece, row_pitch, pitch, &source);
        } else if (error == CL_SUCCESS) {
            error = move_piece(&pieces.transfer, &piece, row_pitch, pitch);
        }
        wh_cl_source_end(&source);
        error = wh_cl_piece_end(&pieces, error);
        if (error != CL_SUCCESS) {
            (void)wh_cl_reads_abandon(transfer->to, end_of(host), mark);
            return error;
        }
    } while (at[2] < host->region[2]);
    return CL_SUCCESS;
}

cl_int wh_cl_move_image(const struct wh_cl_transfer *transfer, const size_t *origin,
                        const size_t *region, size_t row_pitch, size_t slice_pitch,
                        struct wh_cl_object *event)
{
    static const size_t zero[3];
    struct rectangle host = {zero, region, row_pitch, slice_pitch};
    return move_rectangle(transfer, origin, &host, 0, 0, event);
}

static cl_int transfer_rectangle(struct wh_cl_transfer *transfer, const size_t *buffer_origin,
                                 struct rectangle *host, size_t row_pitch, size_t slice_pitch,
                                 cl_command_type command, cl_event *event)
{
    cl_int error = check_rectangle(transfer, buffer_origin, host);
    if (error != CL_SUCCESS) {
        return error;
    }
    struct wh_cl_object *created = NULL;
    error = wh_cl_transfer_begin(transfer, end_of(host), command, event != NULL, &created);
    if (error == CL_SUCCESS) {
        error = move_rectangle(transfer, buffer_origin, host, row_pitch, slice_pitch, created);
    }
    return wh_cl_transfer_end(transfer, created, error, event);
}

cl_int CL_API_CALL wh_stub_clEnqueueReadBufferRect(
    cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_read,
    const size_t *buffer_origin, const size_t *host_origin, const size_t *region,
    size_t buffer_row_pitch, size_t buffer_slice_pitch, size_t host_row_pitch,
    size_t host_slice_pitch, void *ptr, cl_uint num_events_in_wait_list,
    const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueReadBufferRect,
        .queue = command_queue,
        .mem = buffer,
        .blocking = blocking_read,
        .to = ptr,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    struct rectangle host = {host_origin, region, host_row_pitch, host_slice_pitch};
    WH_API_CALL();
    if (ptr == NULL) {
        return CL_INVALID_VALUE;
    }
    return transfer_rectangle(&transfer, buffer_origin, &host, buffer_row_pitch, buffer_slice_pitch,
                              CL_COMMAND_READ_BUFFER_RECT, event);
}

cl_int CL_API_CALL wh_stub_clEnqueueWriteBufferRect(
    cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_write,
    const size_t *buffer_origin, const size_t *host_origin, const size_t *region,
    size_t buffer_row_pitch, size_t buffer_slice_pitch, size_t host_row_pitch,
    size_t host_slice_pitch, const void *ptr, cl_uint num_events_in_wait_list,
    const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueWriteBufferRect,
        .queue = command_queue,
        .mem = buffer,
        .blocking = blocking_write,
        .from = ptr,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    struct rectangle host = {host_origin, region, host_row_pitch, host_slice_pitch};
    WH_API_CALL();
    if (ptr == NULL) {
        return CL_INVALID_VALUE;
    }
    return transfer_rectangle(&transfer, buffer_origin, &host, buffer_row_pitch, buffer_slice_pitch,
                              CL_COMMAND_WRITE_BUFFER_RECT, event);
}
