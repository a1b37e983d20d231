/*
 * opencl_transfer.c - skeletons of reads, writes, maps and the calls that wait.
 */
#include "opencl_transfer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

/* What every transfer request begins with. */
struct transfer {
    cl_command_queue queue;
    cl_mem mem;
    bool blocking;
    size_t offset;
    size_t size;
    cl_uint wait_count;
    cl_event *wait_list;
    uint64_t created;
    cl_int error;
};

static void take_transfer(struct wh_request *request, struct transfer *transfer)
{
    memset(transfer, 0, sizeof(*transfer));
    uint64_t queue = wh_take_u64(request);
    uint64_t mem = wh_take_u64(request);
    transfer->queue = wh_cl_object(request, queue, WH_KIND_QUEUE, &transfer->error);
    transfer->mem = wh_cl_object(request, mem, WH_KIND_MEM, &transfer->error);
    transfer->blocking = wh_take_u64(request) != 0;
    transfer->offset = wh_take_u64(request);
    transfer->size = wh_take_u64(request);
    transfer->wait_list =
        (void *)wh_cl_objects(request, WH_KIND_EVENT, &transfer->wait_count, &transfer->error);
    transfer->created = wh_take_u64(request);
}

static cl_int read_now(struct wh_request *request, struct transfer *transfer, void *to)
{
    cl_event event = NULL;
    wh_block_begin(request->session);
    cl_int error = wh_cl->clEnqueueReadBuffer(
        transfer->queue, transfer->mem, CL_TRUE, transfer->offset, transfer->size, to,
        transfer->wait_count, transfer->wait_list, transfer->created == 0 ? NULL : &event);
    wh_block_end(request->session);
    return wh_cl_register(request, transfer->created, WH_KIND_EVENT, event, error);
}

static int read_blocking(struct wh_request *request, uint16_t opcode, struct transfer *transfer)
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
    wh_cl_look(request, &reads, NULL);
    wh_cl_reply_error(request, opcode, error);
    wh_cl_reply_flags(request, &reads);
    wh_reply_out(request, error == CL_SUCCESS ? transfer->size : 0);
    wh_cl_reply_reads(request, &reads);
    return 0;
}

/* Keeps the event for finding out later, beside the client's own use of it. */
static cl_int read_started(struct wh_request *request, const struct transfer *transfer,
                           cl_event event, uint64_t id, const void *to, uint64_t token)
{
    cl_int error = CL_SUCCESS;
    if (transfer->created != 0) {
        wh_cl->clRetainEvent(event);
        error = wh_cl_register(request, transfer->created, WH_KIND_EVENT, event, CL_SUCCESS);
    }
    if (wh_cl_add_read(id, transfer->queue, event, to, transfer->size, token) != 0) {
        wh_cl->clReleaseEvent(event);
        error = CL_OUT_OF_HOST_MEMORY;
    }
    return error;
}

static int read_later(struct wh_request *request, uint16_t opcode, struct transfer *transfer)
{
    size_t size = 0;
    uint64_t token = 0;
    cl_event event = NULL;
    uint64_t id = wh_take_u64(request);
    void *to = wh_take_staging(request, &size, &token);
    if (wh_request_failed(request) || to == NULL || size < transfer->size) {
        return -EBADMSG;
    }
    cl_int error = transfer->error;
    if (error == CL_SUCCESS) {
        error = wh_cl->clEnqueueReadBuffer(transfer->queue, transfer->mem, CL_FALSE,
                                           transfer->offset, transfer->size, to,
                                           transfer->wait_count, transfer->wait_list, &event);
    }
    if (error == CL_SUCCESS) {
        error = read_started(request, transfer, event, id, to, token);
    } else {
        wh_staging_done(request->session, token);
    }
    wh_cl_reply_error(request, opcode, error);
    return 0;
}

static int read_buffer(struct wh_request *request, uint16_t opcode)
{
    struct transfer transfer;
    take_transfer(request, &transfer);
    return transfer.blocking ? read_blocking(request, opcode, &transfer)
                             : read_later(request, opcode, &transfer);
}

int wh_skeleton_clEnqueueReadBuffer(struct wh_request *request)
{
    return read_buffer(request, WH_OP_clEnqueueReadBuffer);
}

/* The client's mapped memory is a copy: mapping is reading. */
int wh_skeleton_clEnqueueMapBuffer(struct wh_request *request)
{
    return read_buffer(request, WH_OP_clEnqueueMapBuffer);
}

/* Data that the device has not read yet: an arena block of the client, or a copy of bytes that came inline. */
struct pending_write {
    struct pending_write *next;
    struct wh_session *session;
    cl_command_queue queue;
    cl_event event;
    uint64_t block;
    void *copy;
    uint32_t done;
};

static struct pending_write *writes;
static pthread_mutex_t writes_lock = PTHREAD_MUTEX_INITIALIZER;

/* Runs in a thread of the real library, which may hold locks of the event: it only frees the client's block. */
static void CL_CALLBACK write_done(cl_event event, cl_int status, void *data)
{
    struct pending_write *write = data;
    (void)event;
    (void)status;
    wh_bulk_done(write->session, write->block);
    __atomic_store_n(&write->done, 1, __ATOMIC_RELEASE);
}

static bool is_done(struct pending_write *write, cl_command_queue finished)
{
    return __atomic_load_n(&write->done, __ATOMIC_ACQUIRE) != 0 ||
           (write->done == 2 && write->queue == finished);
}

void wh_cl_sweep_writes(cl_command_queue finished)
{
    if (__atomic_load_n(&writes, __ATOMIC_ACQUIRE) == NULL) {
        return;
    }
    pthread_mutex_lock(&writes_lock);
    struct pending_write **link = &writes;
    while (*link != NULL) {
        struct pending_write *write = *link;
        if (is_done(write, finished)) {
            *link = write->next;
            wh_cl->clReleaseEvent(write->event);
            free(write->copy);
            free(write);
        } else {
            link = &write->next;
        }
    }
    pthread_mutex_unlock(&writes_lock);
}

/* Inline bytes live as long as the call; the device may read later. */
static struct pending_write *new_write(struct wh_request *request, const struct transfer *transfer,
                                       const void **from, uint64_t block)
{
    struct pending_write *write = calloc(1, sizeof(*write));
    if (write == NULL) {
        return NULL;
    }
    write->session = request->session;
    write->queue = transfer->queue;
    write->block = block;
    if (block == 0) {
        write->copy = malloc(transfer->size > 0 ? transfer->size : 1);
        if (write->copy == NULL) {
            free(write);
            return NULL;
        }
        memcpy(write->copy, *from, transfer->size);
        *from = write->copy;
    }
    return write;
}

static void drop_write(struct pending_write *write)
{
    if (write != NULL) {
        free(write->copy);
        free(write);
    }
}
