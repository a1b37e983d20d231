/*
 * opencl_transfer.c - skeletons of reads, writes, maps and the calls that wait.
 */
#include "opencl_transfer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "times.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define FAILED_KEPT 8u /* events, see wh_cl_keep_failed */

static void take_mode(struct wh_request *request, struct wh_cl_transfer *transfer)
{
    uint64_t mode = wh_take_u64(request);
    request->failed = request->failed || mode > WH_CL_MODE_FROM_READ;
    transfer->mode = mode;
    transfer->blocking = mode == WH_CL_MODE_BLOCKING || mode == WH_CL_MODE_HELD;
    transfer->copies = mode == WH_CL_MODE_COPY;
}

static void take_transfer(struct wh_request *request, struct wh_cl_transfer *transfer)
{
    memset(transfer, 0, sizeof(*transfer));
    uint64_t queue = wh_take_u64(request);
    uint64_t mem = wh_take_u64(request);
    transfer->queue = wh_cl_object(request, queue, WH_KIND_QUEUE, &transfer->error);
    transfer->mem = wh_cl_object(request, mem, WH_KIND_MEM, &transfer->error);
    take_mode(request, transfer);
    transfer->offset = wh_take_u64(request);
    transfer->size = wh_take_u64(request);
    transfer->wait_list =
        (void *)wh_cl_objects(request, WH_KIND_EVENT, &transfer->wait_count, &transfer->error);
    transfer->created = wh_take_u64(request);
    if (transfer->mode == WH_CL_MODE_HELD) {
        uint64_t id = wh_take_u64(request);
        cl_int error = wh_cl_side_queue(id, &transfer->queue); /* end_piece gives it back */
        transfer->error = transfer->error == CL_SUCCESS ? error : transfer->error;
    }
}

/* What is the same for reading and writing: no data travels with these. */
static bool is_hold(const struct wh_cl_transfer *transfer)
{
    return transfer->mode == WH_CL_MODE_HOLD || transfer->mode == WH_CL_MODE_LET_GO;
}

/* The queue of a held transfer's piece is kept for the call. */
static int end_piece(const struct wh_cl_transfer *transfer, int status)
{
    if (transfer->mode == WH_CL_MODE_HELD && transfer->queue != NULL) {
        wh_cl->clReleaseCommandQueue(transfer->queue);
    }
    return status;
}

static int hold(struct wh_request *request, uint16_t opcode, struct wh_cl_transfer *transfer)
{
    return transfer->mode == WH_CL_MODE_HOLD ? wh_cl_hold(request, opcode, transfer)
                                             : wh_cl_let_go(request, opcode);
}

static cl_int enqueue_read(const struct wh_cl_transfer *transfer, void *to, cl_event *event)
{
    static const size_t zero[3];
    if (transfer->image) {
        return wh_cl->clEnqueueReadImage(transfer->queue, transfer->mem, transfer->blocking,
                                         transfer->origin, transfer->region, 0, 0, to,
                                         transfer->wait_count, transfer->wait_list, event);
    }
    if (transfer->origin != NULL) {
        return wh_cl->clEnqueueReadBufferRect(transfer->queue, transfer->mem, transfer->blocking,
                                              transfer->origin, zero, transfer->region,
                                              transfer->row_pitch, transfer->slice_pitch, 0, 0, to,
                                              transfer->wait_count, transfer->wait_list, event);
    }
    return wh_cl->clEnqueueReadBuffer(transfer->queue, transfer->mem, transfer->blocking,
                                      transfer->offset, transfer->size, to, transfer->wait_count,
                                      transfer->wait_list, event);
}

void wh_cl_keep_failed(cl_event event)
{
    static cl_event kept[FAILED_KEPT];
    static uint32_t count;
    uint32_t place = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED) % FAILED_KEPT;
    wh_cl->clRetainEvent(event);
    cl_event before = __atomic_exchange_n(&kept[place], event, __ATOMIC_ACQ_REL);
    if (before != NULL) {
        wh_cl->clReleaseEvent(before);
    }
}

/* Whether a transfer that blocks needs an event: only what waits for others fails with them. A
 * replay adds none that the application did not ask for: it would be a call more. */
static bool needs_event(const struct wh_cl_transfer *transfer)
{
    return transfer->created != 0 || (transfer->wait_count > 0 && !wh_cl_requests_stay);
}

/* The answer of a transfer that has blocked; the event is given over. */
static cl_int end_now(struct wh_request *request, const struct wh_cl_transfer *transfer,
                      cl_event event, cl_int error)
{
    cl_int status = CL_COMPLETE;
    if (error != CL_SUCCESS || event == NULL) {
        return error;
    }
    if (transfer->wait_count > 0 &&
        wh_cl->clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status,
                              NULL) == CL_SUCCESS &&
        status < 0) {
        wh_cl_keep_failed(event);
    }
    if (transfer->created != 0) {
        error = wh_cl_register(request, transfer->created, WH_KIND_EVENT, event, CL_SUCCESS);
    } else {
        wh_cl->clReleaseEvent(event);
    }
    return error == CL_SUCCESS && status < 0 ? (cl_int)WH_CL_OUTCOME_FAILED : error;
}

static cl_int read_now(struct wh_request *request, struct wh_cl_transfer *transfer, void *to)
{
    cl_event event = NULL;
    wh_block_begin(request->session);
    cl_int error = enqueue_read(transfer, to, needs_event(transfer) ? &event : NULL);
    wh_block_end(request->session);
    return end_now(request, transfer, event, error);
}

static int read_blocking(struct wh_request *request, uint16_t opcode,
                         struct wh_cl_transfer *transfer)
{
    struct wh_cl_reads reads;
    size_t capacity = 0;
    void *to = wh_take_out(request, &capacity);
    wh_cl_take_reads(request, &reads);
    if (wh_request_failed(request) || to == NULL || capacity < transfer->size) {
        return -EBADMSG;
    }
    cl_int error = transfer->error;
    if (error == CL_SUCCESS) {
        error = read_now(request, transfer, to);
    }
    wh_cl_look(&reads, NULL);
    wh_cl_reply_error(request, opcode, error);
    wh_cl_reply_flags(request, &reads);
    wh_reply_out(request, error == CL_SUCCESS ? transfer->size : 0);
    wh_cl_reply_reads(request, &reads);
    return 0;
}

/* Keeps the event for finding out later, beside the client's own use of it. */
static cl_int read_started(struct wh_request *request, const struct wh_cl_transfer *transfer,
                           cl_event event, uint64_t id, const void *to, uint64_t token)
{
    cl_int error = CL_SUCCESS;
    if (transfer->created != 0) {
        wh_cl->clRetainEvent(event);
        error = wh_cl_register(request, transfer->created, WH_KIND_EVENT, event, CL_SUCCESS);
    }
    if (wh_cl_add_read(id, transfer->queue, event, to, transfer->size, token) != 0) {
        if (event != NULL) {
            wh_cl->clReleaseEvent(event);
        }
        error = CL_OUT_OF_HOST_MEMORY;
    }
    return error;
}

static int read_later(struct wh_request *request, uint16_t opcode, struct wh_cl_transfer *transfer)
{
    size_t size = 0;
    uint64_t token = 0;
    cl_event event = NULL;
    uint64_t id = wh_take_u64(request);
    void *to = wh_take_staging(request, &size, &token);
    if (wh_request_failed(request) || (to != NULL && size < transfer->size)) {
        return -EBADMSG;
    }
    /* A replay adds no event that the application did not ask for: it would be a call more. */
    bool watched = transfer->created != 0 || !wh_cl_requests_stay;
    cl_int error = transfer->error;
    if (error == CL_SUCCESS && to == NULL) {
        error = CL_OUT_OF_HOST_MEMORY;
    }
    if (error == CL_SUCCESS) {
        error = enqueue_read(transfer, to, watched ? &event : NULL);
    }
    if (error == CL_SUCCESS) {
        error = read_started(request, transfer, event, id, to, token);
    } else {
        wh_staging_settled(request->session, token);
        wh_staging_done(request->session, token);
    }
    wh_cl_reply_error(request, opcode, error);
    return 0;
}

static int read_buffer(struct wh_request *request, uint16_t opcode)
{
    struct wh_cl_transfer transfer;
    take_transfer(request, &transfer);
    if (is_hold(&transfer)) {
        return hold(request, opcode, &transfer);
    }
    return end_piece(&transfer, transfer.blocking ? read_blocking(request, opcode, &transfer)
                                                  : read_later(request, opcode, &transfer));
}

int wh_skeleton_clEnqueueReadBuffer(struct wh_request *request)
{
    return read_buffer(request, WH_OP_clEnqueueReadBuffer);
}

/* Memory that the client sees is mapped; else its mapped memory is a copy, and mapping is reading.
 */
int wh_skeleton_clEnqueueMapBuffer(struct wh_request *request)
{
    struct wh_request ahead = *request;
    struct wh_cl_transfer transfer;
    take_transfer(&ahead, &transfer);
    if (transfer.mode == WH_CL_MODE_IN_PLACE) {
        take_transfer(request, &transfer);
        return wh_cl_map_in_place(request, WH_OP_clEnqueueMapBuffer, &transfer);
    }
    return read_buffer(request, WH_OP_clEnqueueMapBuffer);
}

/* Data that the device has not read yet: an arena block of the client, or a copy of bytes that came
 * inline. */
struct pending_write {
    struct pending_write *next;
    struct wh_session *session;
    cl_event event;
    uint64_t block;
    void *copy;
    size_t copy_bytes;
    struct wh_cl_pending_read *read; /* whose data it writes; NULL: the client's */
    uint32_t done;
};

/* What copies may take together: an application that holds back more writes than that, beyond what
 * the arena holds, is told that it is too much. */
#define COPIES_BYTES_MAX ((size_t)1 << 30)
#define COPIES_PATIENCE_MS 2000u
#define COPIES_PAUSE_MS 5u

static struct pending_write *writes;
static size_t copies_bytes; /* of those in the list and those about to be */
static pthread_mutex_t writes_lock = PTHREAD_MUTEX_INITIALIZER;

static void free_write(struct pending_write *write)
{
    if (write->read != NULL) {
        wh_cl_return_read(write->session, write->read);
    }
    __atomic_sub_fetch(&copies_bytes, write->copy_bytes, __ATOMIC_RELAXED);
    free(write->copy);
    free(write);
}

/* Counts a copy that is about to be made. Waits a while for writes that are only slow, and lets no
 * other request go on meanwhile: this one's place in the queue is not taken yet. */
static bool count_copy(size_t size)
{
    const struct timespec pause = {.tv_nsec = COPIES_PAUSE_MS * 1000000l};
    for (unsigned int waited_ms = 0; waited_ms <= COPIES_PATIENCE_MS;
         waited_ms += COPIES_PAUSE_MS) {
        if (__atomic_add_fetch(&copies_bytes, size, __ATOMIC_RELAXED) <= COPIES_BYTES_MAX) {
            return true;
        }
        __atomic_sub_fetch(&copies_bytes, size, __ATOMIC_RELAXED);
        nanosleep(&pause, NULL);
        wh_cl_sweep_writes();
    }
    return false;
}

/* Runs in a thread of the real library, which may hold locks of the event: it only gives the
 * client's block back. */
static void CL_CALLBACK write_done(cl_event event, cl_int status, void *data)
{
    struct pending_write *write = data;
    (void)event;
    (void)status;
    wh_bulk_done(write->session, write->block);
    __atomic_store_n(&write->done, 1, __ATOMIC_RELEASE);
}

/* Ends the writes whose callback has run; called where the next one begins. */
void wh_cl_sweep_writes(void)
{
    pthread_mutex_lock(&writes_lock);
    struct pending_write **link = &writes;
    while (*link != NULL) {
        struct pending_write *write = *link;
        if (__atomic_load_n(&write->done, __ATOMIC_ACQUIRE) != 0) {
            *link = write->next;
            wh_cl_own->clReleaseEvent(write->event);
            free_write(write);
        } else {
            link = &write->next;
        }
    }
    pthread_mutex_unlock(&writes_lock);
}

/* Inline bytes live as long as the call; the device may read later. */
static struct pending_write *new_write(struct wh_request *request, size_t size, const void **from,
                                       uint64_t block, struct wh_cl_pending_read *read)
{
    struct pending_write *write = calloc(1, sizeof(*write));
    if (write == NULL) {
        return NULL;
    }
    write->session = request->session;
    write->block = block;
    write->read = read;
    if (block == 0 && read == NULL && size != 0) {
        write->copy_bytes = count_copy(size) ? size : 0;
        write->copy = write->copy_bytes != 0 ? malloc(size) : NULL;
        if (write->copy == NULL) {
            free_write(write);
            return NULL;
        }
        uint64_t begin_ticks = wh_times_enter();
        memcpy(write->copy, *from, size);
        wh_times_leave(begin_ticks, WH_TIMES_COPY);
        *from = write->copy;
    }
    return write;
}

/* The event is given over. Without callbacks in the library the data's end can only be waited for.
 */
static void watch_write(struct pending_write *write, cl_event event)
{
    write->event = event;
    pthread_mutex_lock(&writes_lock);
    write->next = writes;
    writes = write;
    pthread_mutex_unlock(&writes_lock);
    if (wh_cl_own->clSetEventCallback(event, CL_COMPLETE, write_done, write) != CL_SUCCESS) {
        wh_cl->clWaitForEvents(1, &event);
        write_done(event, CL_COMPLETE, write);
    }
}

static cl_int enqueue_write(const struct wh_cl_transfer *transfer, const void *from,
                            cl_event *event)
{
    static const size_t zero[3];
    if (transfer->image) {
        return wh_cl->clEnqueueWriteImage(transfer->queue, transfer->mem, transfer->blocking,
                                          transfer->origin, transfer->region, 0, 0, from,
                                          transfer->wait_count, transfer->wait_list, event);
    }
    if (transfer->origin != NULL) {
        return wh_cl->clEnqueueWriteBufferRect(
            transfer->queue, transfer->mem, transfer->blocking, transfer->origin, zero,
            transfer->region, transfer->row_pitch, transfer->slice_pitch, 0, 0, from,
            transfer->wait_count, transfer->wait_list, event);
    }
    return wh_cl->clEnqueueWriteBuffer(transfer->queue, transfer->mem, transfer->blocking,
                                       transfer->offset, transfer->size, from, transfer->wait_count,
                                       transfer->wait_list, event);
}

static cl_int write_now(struct wh_request *request, const struct wh_cl_transfer *transfer,
                        const void *from, uint64_t block)
{
    cl_event event = NULL;
    wh_block_begin(request->session);
    cl_int error = enqueue_write(transfer, from, needs_event(transfer) ? &event : NULL);
    wh_block_end(request->session);
    wh_bulk_done(request->session, block);
    return end_now(request, transfer, event, error);
}

/* From a block of the client's, from what a read brings, or from a copy of other bytes. */
static cl_int write_later(struct wh_request *request, const struct wh_cl_transfer *transfer,
                          const void *from, uint64_t block, struct wh_cl_pending_read *read)
{
    cl_event event = NULL;
    if (wh_cl_requests_stay) {
        cl_int error = enqueue_write(transfer, from, transfer->created == 0 ? NULL : &event);
        return wh_cl_register(request, transfer->created, WH_KIND_EVENT, event, error);
    }
    wh_cl_sweep_writes();
    struct pending_write *write =
        new_write(request, transfer->size, &from, transfer->copies ? 0 : block, read);
    if (write == NULL && read != NULL) {
        wh_cl_return_read(request->session, read);
    }
    if (transfer->copies) {
        wh_bulk_done(request->session, block);
        block = 0;
    }
    cl_int error = write == NULL ? CL_OUT_OF_HOST_MEMORY : enqueue_write(transfer, from, &event);
    if (error != CL_SUCCESS) {
        wh_bulk_done(request->session, block);
        if (write != NULL) {
            free_write(write);
        }
        return error;
    }
    if (transfer->created != 0) {
        wh_cl->clRetainEvent(event);
        error = wh_cl_register(request, transfer->created, WH_KIND_EVENT, event, CL_SUCCESS);
    }
    watch_write(write, event);
    return error;
}

static int write_from_read(struct wh_request *request, uint16_t opcode,
                           struct wh_cl_transfer *transfer)
{
    struct wh_cl_reads reads;
    uint64_t id = wh_take_u64(request);
    size_t offset = wh_take_u64(request);
    wh_cl_take_reads(request, &reads);
    if (wh_request_failed(request) || transfer->size == 0) {
        return -EBADMSG;
    }
    cl_int error = transfer->error;
    if (error == CL_SUCCESS) {
        const void *from = NULL;
        struct wh_cl_pending_read *read =
            wh_cl_borrow_read(request->session, id, offset, transfer->size, &from);
        if (read == NULL) {
            return -EBADMSG;
        }
        error = write_later(request, transfer, from, 0, read);
    }
    wh_cl_look(&reads, NULL);
    wh_cl_reply_error(request, opcode, error);
    wh_cl_reply_flags(request, &reads);
    wh_cl_reply_reads(request, &reads);
    return 0;
}

static int write_data(struct wh_request *request, uint16_t opcode, struct wh_cl_transfer *transfer)
{
    if (transfer->mode == WH_CL_MODE_FROM_READ) {
        return write_from_read(request, opcode, transfer);
    }
    struct wh_cl_reads reads;
    size_t size = 0;
    uint64_t block = 0;
    const void *from = wh_take_bulk(request, &size, &block);
    wh_cl_take_reads(request, &reads);
    if (wh_request_failed(request) || from == NULL || size < transfer->size) {
        return -EBADMSG;
    }
    cl_int error = transfer->error;
    if (error != CL_SUCCESS) {
        wh_bulk_done(request->session, block);
    } else if (transfer->blocking) {
        error = write_now(request, transfer, from, block);
    } else {
        error = write_later(request, transfer, from, block, NULL);
    }
    wh_cl_look(&reads, NULL);
    wh_cl_reply_error(request, opcode, error);
    wh_cl_reply_flags(request, &reads);
    wh_cl_reply_reads(request, &reads);
    return 0;
}

static int write_buffer(struct wh_request *request, uint16_t opcode)
{
    struct wh_cl_transfer transfer;
    take_transfer(request, &transfer);
    if (is_hold(&transfer)) {
        return hold(request, opcode, &transfer);
    }
    return end_piece(&transfer, write_data(request, opcode, &transfer));
}

int wh_skeleton_clEnqueueWriteBuffer(struct wh_request *request)
{
    return write_buffer(request, WH_OP_clEnqueueWriteBuffer);
}

/* Unmapping writes the client's copy back; without changes it only takes its place in the queue. */
int wh_skeleton_clEnqueueUnmapMemObject(struct wh_request *request)
{
    struct wh_request ahead = *request;
    struct wh_cl_transfer transfer;
    cl_event event = NULL;
    take_transfer(&ahead, &transfer);
    if (transfer.mode == WH_CL_MODE_IN_PLACE) {
        take_transfer(request, &transfer);
        return wh_cl_unmap_in_place(request, &transfer);
    }
    if (!wh_request_failed(&ahead) && transfer.size > 0) {
        return write_buffer(request, WH_OP_clEnqueueUnmapMemObject);
    }
    if (wh_request_failed(&ahead)) {
        return -EBADMSG;
    }
    cl_int error = transfer.error;
    if (error == CL_SUCCESS) {
        error = wh_cl->clEnqueueMarkerWithWaitList(transfer.queue, transfer.wait_count,
                                                   transfer.wait_list,
                                                   transfer.created == 0 ? NULL : &event);
    }
    error = wh_cl_register(request, transfer.created, WH_KIND_EVENT, event, error);
    wh_cl_reply_error(request, WH_OP_clEnqueueUnmapMemObject, error);
    return 0;
}

static void take_rectangle(struct wh_request *request, struct wh_cl_transfer *transfer)
{
    size_t origin_bytes = 0;
    size_t region_bytes = 0;
    size_t plane = 0;
    memset(transfer, 0, sizeof(*transfer));
    uint64_t queue = wh_take_u64(request);
    uint64_t mem = wh_take_u64(request);
    transfer->queue = wh_cl_object(request, queue, WH_KIND_QUEUE, &transfer->error);
    transfer->mem = wh_cl_object(request, mem, WH_KIND_MEM, &transfer->error);
    take_mode(request, transfer);
    transfer->origin = wh_take_blob(request, &origin_bytes, WH_CL_BLOB_BYTES_MAX);
    transfer->region = wh_take_blob(request, &region_bytes, WH_CL_BLOB_BYTES_MAX);
    transfer->row_pitch = wh_take_u64(request);
    transfer->slice_pitch = wh_take_u64(request);
    transfer->wait_list =
        (void *)wh_cl_objects(request, WH_KIND_EVENT, &transfer->wait_count, &transfer->error);
    transfer->created = wh_take_u64(request);
    if (wh_request_failed(request) || origin_bytes != 3 * sizeof(size_t) ||
        region_bytes != 3 * sizeof(size_t) ||
        __builtin_mul_overflow(transfer->region[0], transfer->region[1], &plane) ||
        __builtin_mul_overflow(plane, transfer->region[2], &transfer->size)) {
        request->failed = true;
    }
}

int wh_skeleton_clEnqueueReadBufferRect(struct wh_request *request)
{
    struct wh_cl_transfer transfer;
    take_rectangle(request, &transfer);
    return transfer.blocking ? read_blocking(request, WH_OP_clEnqueueReadBufferRect, &transfer)
                             : read_later(request, WH_OP_clEnqueueReadBufferRect, &transfer);
}

int wh_skeleton_clEnqueueWriteBufferRect(struct wh_request *request)
{
    struct wh_cl_transfer transfer;
    take_rectangle(request, &transfer);
    return write_data(request, WH_OP_clEnqueueWriteBufferRect, &transfer);
}

/* As a rectangle; how large its elements are the image says. */
static void take_image(struct wh_request *request, struct wh_cl_transfer *transfer)
{
    size_t element_bytes = 0;
    take_rectangle(request, transfer);
    transfer->image = true;
    if (wh_request_failed(request) || transfer->error != CL_SUCCESS) {
        return;
    }
    transfer->error = wh_cl->clGetImageInfo(transfer->mem, CL_IMAGE_ELEMENT_SIZE,
                                            sizeof(element_bytes), &element_bytes, NULL);
    if (transfer->error == CL_SUCCESS &&
        __builtin_mul_overflow(transfer->size, element_bytes, &transfer->size)) {
        request->failed = true;
    }
}

static int read_image(struct wh_request *request, uint16_t opcode, struct wh_cl_transfer *transfer)
{
    return transfer->blocking ? read_blocking(request, opcode, transfer)
                              : read_later(request, opcode, transfer);
}

int wh_skeleton_clEnqueueReadImage(struct wh_request *request)
{
    struct wh_cl_transfer transfer;
    take_image(request, &transfer);
    return read_image(request, WH_OP_clEnqueueReadImage, &transfer);
}

/* As a buffer; where in place the region begins the client says, to be checked. */
int wh_skeleton_clEnqueueMapImage(struct wh_request *request)
{
    struct wh_cl_transfer transfer;
    take_image(request, &transfer);
    if (transfer.mode == WH_CL_MODE_IN_PLACE) {
        transfer.offset = wh_take_u64(request);
        return wh_cl_map_in_place(request, WH_OP_clEnqueueMapImage, &transfer);
    }
    return read_image(request, WH_OP_clEnqueueMapImage, &transfer);
}

int wh_skeleton_clEnqueueWriteImage(struct wh_request *request)
{
    struct wh_cl_transfer transfer;
    take_image(request, &transfer);
    return write_data(request, WH_OP_clEnqueueWriteImage, &transfer);
}

int wh_skeleton_clFinish(struct wh_request *request)
{
    struct wh_cl_reads reads;
    cl_int error = CL_SUCCESS;
    uint64_t handle = wh_take_u64(request);
    cl_command_queue queue = wh_cl_object(request, handle, WH_KIND_QUEUE, &error);
    wh_cl_take_reads(request, &reads);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        wh_block_begin(request->session);
        error = wh_cl->clFinish(queue);
        wh_block_end(request->session);
        wh_cl_sweep_writes(); /* so that reference counts are those of an idle queue */
    }
    wh_cl_look(&reads, error == CL_SUCCESS ? queue : NULL);
    wh_cl_reply_error(request, WH_OP_clFinish, error);
    wh_cl_reply_flags(request, &reads);
    wh_cl_reply_reads(request, &reads);
    return 0;
}

int wh_skeleton_clWaitForEvents(struct wh_request *request)
{
    struct wh_cl_reads reads;
    cl_int error = CL_SUCCESS;
    cl_uint count = 0;
    cl_event *events = (void *)wh_cl_objects(request, WH_KIND_EVENT, &count, &error);
    wh_cl_take_reads(request, &reads);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS && count > 0) { /* none: only the question about reads */
        wh_block_begin(request->session);
        error = wh_cl->clWaitForEvents(count, events);
        wh_block_end(request->session);
    }
    wh_cl_look(&reads, NULL);
    wh_cl_reply_error(request, WH_OP_clWaitForEvents, error);
    wh_cl_reply_flags(request, &reads);
    wh_cl_reply_reads(request, &reads);
    return 0;
}

int wh_skeleton_clGetEventInfo(struct wh_request *request)
{
    static const cl_uint opaque[] = {CL_EVENT_COMMAND_QUEUE, CL_EVENT_CONTEXT};
    struct wh_cl_reads reads;
    cl_int error = CL_SUCCESS;
    size_t value_bytes = 0;
    size_t size_ret_bytes = 0;
    size_t written = 0;
    uint64_t handle = wh_take_u64(request);
    cl_event event = wh_cl_object(request, handle, WH_KIND_EVENT, &error);
    cl_event_info param = (cl_event_info)wh_take_u64(request);
    size_t size = wh_take_u64(request);
    void *value = wh_take_out(request, &value_bytes);
    size_t *size_ret = wh_take_out(request, &size_ret_bytes);
    wh_cl_take_reads(request, &reads);
    if (wh_request_failed(request) || (value != NULL && value_bytes < size) ||
        (size_ret != NULL && size_ret_bytes < sizeof(*size_ret))) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl->clGetEventInfo(event, param, size, value, &written);
    }
    if (error == CL_SUCCESS) {
        wh_cl_hide(param, opaque, sizeof(opaque) / sizeof(opaque[0]), value, written);
        if (size_ret != NULL) {
            *size_ret = written;
        }
    }
    wh_cl_look(&reads, NULL);
    wh_cl_reply_error(request, WH_OP_clGetEventInfo, error);
    wh_cl_reply_flags(request, &reads);
    wh_reply_out(request, value == NULL || error != CL_SUCCESS ? 0 : written);
    wh_reply_out(request, size_ret == NULL || error != CL_SUCCESS ? 0 : sizeof(*size_ret));
    wh_cl_reply_reads(request, &reads);
    return 0;
}
