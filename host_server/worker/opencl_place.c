/*
 * opencl_place.c - buffers and images in place: they lie in memory that both sides see. The client
 * maps it, and copies into and out of it while a command of ours holds its place in the queue.
 *
 * A held transfer is two commands, markers where the device works in the host's memory: the first
 * is complete when the client may begin (what was before is complete), the last waits for a user
 * event that is set when the client says that it is done. Both are enqueued before anything else
 * can be, so nothing of another thread slips in between.
 */
#include "opencl_transfer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

struct hold {
    struct hold *next;
    uint64_t id; /* the client's */
    cl_command_queue queue;
    cl_command_queue side; /* for the pieces of a buffer that lies elsewhere; NULL: none yet */
    cl_event first;
    cl_event gate;
    cl_event last;
};

static struct hold *holds;
static pthread_mutex_t holds_lock = PTHREAD_MUTEX_INITIALIZER;

struct placed {
    struct wh_session *session;
    uint64_t block;
};

static void CL_CALLBACK give_block_back(cl_mem mem, void *data)
{
    struct placed *placed = data;
    (void)mem;
    wh_bulk_done(placed->session, placed->block);
    free(placed);
}

cl_int wh_cl_register_placed(struct wh_request *request, uint64_t handle, cl_mem mem,
                             uint64_t block, cl_int error)
{
    struct placed *placed = error == CL_SUCCESS ? malloc(sizeof(*placed)) : NULL;
    if (error == CL_SUCCESS && placed == NULL) {
        error = CL_OUT_OF_HOST_MEMORY;
    }
    if (error == CL_SUCCESS) {
        placed->session = request->session;
        placed->block = block;
        error = wh_cl->clSetMemObjectDestructorCallback(mem, give_block_back, placed);
    }
    if (error == CL_SUCCESS) {
        return wh_cl_register(request, handle, WH_KIND_MEM, mem, CL_SUCCESS);
    }
    if (mem != NULL) {
        wh_cl->clReleaseMemObject(mem);
    }
    free(placed);
    wh_bulk_done(request->session, block);
    return error;
}

/* The first byte of an object in memory that both sides see, NULL if it lies elsewhere. The library
 * keeps it for us: nothing else makes objects at a host pointer. */
static uint8_t *place_of(cl_mem mem)
{
    void *place = NULL;
    cl_int error = wh_cl->clGetMemObjectInfo(mem, CL_MEM_HOST_PTR, sizeof(place), &place, NULL);
    return error == CL_SUCCESS ? place : NULL;
}

static void *map_at(const struct wh_cl_transfer *transfer, bool blocking, cl_map_flags flags,
                    cl_event *event, cl_int *error)
{
    uintptr_t wanted = (uintptr_t)place_of(transfer->mem) + transfer->offset;
    void *mapped = NULL;
    size_t row_pitch = 0;
    size_t slice_pitch = 0;
    if (transfer->image) {
        mapped = wh_cl->clEnqueueMapImage(
            transfer->queue, transfer->mem, blocking, flags, transfer->origin, transfer->region,
            &row_pitch, &slice_pitch, transfer->wait_count, transfer->wait_list, event, error);
    } else {
        mapped = wh_cl->clEnqueueMapBuffer(transfer->queue, transfer->mem, blocking, flags,
                                           transfer->offset, transfer->size, transfer->wait_count,
                                           transfer->wait_list, event, error);
    }
    if (*error == CL_SUCCESS && (uintptr_t)mapped != wanted) {
        *error = CL_MAP_FAILURE; /* a library that does not keep to the host pointer */
    }
    return mapped;
}

int wh_cl_map_in_place(struct wh_request *request, uint16_t opcode, struct wh_cl_transfer *transfer)
{
    struct wh_cl_reads reads;
    cl_event event = NULL;
    bool blocking = wh_take_u64(request) != 0;
    cl_map_flags flags = wh_take_u64(request);
    wh_cl_take_reads(request, &reads);
    if (wh_request_failed(request) ||
        (transfer->error == CL_SUCCESS && place_of(transfer->mem) == NULL)) {
        return -EBADMSG;
    }
    cl_int error = transfer->error;
    if (error == CL_SUCCESS) {
        if (blocking) {
            wh_block_begin(request->session);
        }
        (void)map_at(transfer, blocking, flags, transfer->created == 0 ? NULL : &event, &error);
        if (blocking) {
            wh_block_end(request->session);
        }
        if (error != CL_SUCCESS && event != NULL) {
            wh_cl->clReleaseEvent(event);
        }
        error = wh_cl_register(request, transfer->created, WH_KIND_EVENT, event, error);
    }
    wh_cl_look(&reads, NULL);
    wh_cl_reply_error(request, opcode, error);
    wh_cl_reply_flags(request, &reads);
    wh_cl_reply_reads(request, &reads);
    return 0;
}

int wh_cl_unmap_in_place(struct wh_request *request, struct wh_cl_transfer *transfer)
{
    cl_event event = NULL;
    cl_int error = transfer->error;
    uint8_t *place = error == CL_SUCCESS ? place_of(transfer->mem) : NULL;
    if (wh_request_failed(request) || (error == CL_SUCCESS && place == NULL)) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl->clEnqueueUnmapMemObject(
            transfer->queue, transfer->mem, place + transfer->offset, transfer->wait_count,
            transfer->wait_list, transfer->created == 0 ? NULL : &event);
    }
    error = wh_cl_register(request, transfer->created, WH_KIND_EVENT, event, error);
    wh_cl_reply_error(request, WH_OP_clEnqueueUnmapMemObject, error);
    return 0;
}

static void free_hold(struct hold *hold)
{
    cl_event events[] = {hold->first, hold->gate, hold->last};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        if (events[i] != NULL) {
            wh_cl->clReleaseEvent(events[i]);
        }
    }
    if (hold->side != NULL) {
        wh_cl->clReleaseCommandQueue(hold->side);
    }
    free(hold);
}

/* The lock is held. */
static struct hold *find(uint64_t id)
{
    struct hold *hold = holds;
    while (hold != NULL && hold->id != id) {
        hold = hold->next;
    }
    return hold;
}

/* 0, or -EEXIST for an id in use. */
static int keep_hold(struct hold *hold)
{
    pthread_mutex_lock(&holds_lock);
    int error = find(hold->id) != NULL ? -EEXIST : 0;
    if (error == 0) {
        hold->next = holds;
        holds = hold;
    }
    pthread_mutex_unlock(&holds_lock);
    return error;
}

static struct hold *take_hold(uint64_t id)
{
    pthread_mutex_lock(&holds_lock);
    struct hold **link = &holds;
    while (*link != NULL && (*link)->id != id) {
        link = &(*link)->next;
    }
    struct hold *hold = *link;
    if (hold != NULL) {
        *link = hold->next;
    }
    pthread_mutex_unlock(&holds_lock);
    return hold;
}

/* Whether the client may reach what lies in place between two markers. A map of ours would be one
 * of several at the same address, and the library ends whichever it finds first: the application's,
 * or one of another thread, that is not even complete. */
static bool needs_no_map(const struct wh_cl_transfer *transfer)
{
    cl_device_id device = NULL;
    cl_bool unified = CL_FALSE;
    return wh_cl->clGetCommandQueueInfo(transfer->queue, CL_QUEUE_DEVICE, sizeof(device), &device,
                                        NULL) == CL_SUCCESS &&
           wh_cl->clGetDeviceInfo(device, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof(unified), &unified,
                                  NULL) == CL_SUCCESS &&
           unified != CL_FALSE;
}

/* What a map or the transfer itself would say of the buffer's flags. */
static cl_int check_host_access(cl_mem mem, bool writes)
{
    const cl_mem_flags denied =
        CL_MEM_HOST_NO_ACCESS | (writes ? CL_MEM_HOST_READ_ONLY : CL_MEM_HOST_WRITE_ONLY);
    cl_mem_flags flags = 0;
    cl_int error = wh_cl->clGetMemObjectInfo(mem, CL_MEM_FLAGS, sizeof(flags), &flags, NULL);
    return error == CL_SUCCESS && (flags & denied) != 0 ? CL_INVALID_OPERATION : error;
}

/* A marker without a wait list waits for all of its queue, also where a transfer would not: so it
 * gets an event to wait for that is complete. */
static cl_int enqueue_first_marker(const struct wh_cl_transfer *transfer, cl_context context,
                                   cl_event *first)
{
    cl_int error = CL_SUCCESS;
    if (transfer->wait_count > 0) {
        return wh_cl->clEnqueueMarkerWithWaitList(transfer->queue, transfer->wait_count,
                                                  transfer->wait_list, first);
    }
    cl_event nothing = wh_cl->clCreateUserEvent(context, &error);
    if (error == CL_SUCCESS) {
        error = wh_cl->clSetUserEventStatus(nothing, CL_COMPLETE);
        error = error == CL_SUCCESS
                    ? wh_cl->clEnqueueMarkerWithWaitList(transfer->queue, 1, &nothing, first)
                    : error;
        wh_cl->clReleaseEvent(nothing);
    }
    return error;
}

/* Both commands. The second follows at once: even a failed first one must not leave a map behind.
 */
static cl_int enqueue_both(const struct wh_cl_transfer *transfer, cl_context context, bool writes,
                           struct hold *hold)
{
    cl_int error = CL_SUCCESS;
    bool in_place = place_of(transfer->mem) != NULL;
    if (!in_place || needs_no_map(transfer)) {
        error = in_place ? check_host_access(transfer->mem, writes) : CL_SUCCESS;
        error = error == CL_SUCCESS ? enqueue_first_marker(transfer, context, &hold->first) : error;
        if (error == CL_SUCCESS) {
            const cl_event waits[] = {hold->first, hold->gate};
            error = wh_cl->clEnqueueMarkerWithWaitList(transfer->queue, 2, waits, &hold->last);
        }
        return error;
    }
    cl_map_flags flags = writes ? CL_MAP_WRITE_INVALIDATE_REGION : CL_MAP_READ;
    void *mapped = map_at(transfer, false, flags, &hold->first, &error);
    if (mapped != NULL && hold->first != NULL) {
        const cl_event waits[] = {hold->first, hold->gate};
        cl_int unmapped = wh_cl->clEnqueueUnmapMemObject(transfer->queue, transfer->mem, mapped, 2,
                                                         waits, &hold->last);
        error = error == CL_SUCCESS ? unmapped : error;
    }
    return error;
}

static cl_int begin_hold(struct wh_request *request, const struct wh_cl_transfer *transfer,
                         bool writes, struct hold *hold)
{
    cl_context context = NULL;
    cl_int error = wh_cl->clGetCommandQueueInfo(transfer->queue, CL_QUEUE_CONTEXT, sizeof(context),
                                                &context, NULL);
    if (error != CL_SUCCESS) {
        return error;
    }
    hold->queue = transfer->queue;
    hold->gate = wh_cl->clCreateUserEvent(context, &error);
    if (error != CL_SUCCESS) {
        return error;
    }
    error = enqueue_both(transfer, context, writes, hold);
    if (error == CL_SUCCESS) {
        wh_cl->clFlush(transfer->queue);
        wh_block_begin(request->session);
        error = wh_cl->clWaitForEvents(1, &hold->first);
        wh_block_end(request->session);
    }
    if (error != CL_SUCCESS) {
        wh_cl->clSetUserEventStatus(hold->gate, CL_COMPLETE);
    }
    if (error == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST && hold->last != NULL) {
        wh_block_begin(request->session);
        (void)wh_cl->clWaitForEvents(1, &hold->last); /* it fails with the first */
        wh_block_end(request->session);
        wh_cl_keep_failed(hold->first);
        wh_cl_keep_failed(hold->last);
        error = WH_CL_OUTCOME_FAILED;
    }
    return error;
}

/* The client's handles for the two commands. */
static cl_int register_both(struct wh_request *request, const struct wh_cl_transfer *transfer,
                            uint64_t first, const struct hold *hold)
{
    cl_int error = CL_SUCCESS;
    if (transfer->created != 0) {
        wh_cl->clRetainEvent(hold->last);
        error = wh_cl_register(request, transfer->created, WH_KIND_EVENT, hold->last, error);
    }
    if (first != 0 && error == CL_SUCCESS) {
        wh_cl->clRetainEvent(hold->first);
        error = wh_cl_register(request, first, WH_KIND_EVENT, hold->first, error);
    }
    return error;
}

int wh_cl_hold(struct wh_request *request, uint16_t opcode, struct wh_cl_transfer *transfer)
{
    struct wh_cl_reads reads;
    uint64_t id = wh_take_u64(request);
    uint64_t first = wh_take_u64(request);
    wh_cl_take_reads(request, &reads);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    cl_int error = transfer->error;
    struct hold *hold = error == CL_SUCCESS ? calloc(1, sizeof(*hold)) : NULL;
    error = error == CL_SUCCESS && hold == NULL ? CL_OUT_OF_HOST_MEMORY : error;
    if (error == CL_SUCCESS) {
        hold->id = id;
        error = begin_hold(request, transfer, opcode == WH_OP_clEnqueueWriteBuffer, hold);
    }
    if (error == CL_SUCCESS || error == WH_CL_OUTCOME_FAILED) {
        cl_int wrong = register_both(request, transfer, first, hold);
        error = wrong != CL_SUCCESS ? wrong : error;
    }
    if (error == CL_SUCCESS && keep_hold(hold) != 0) {
        wh_cl->clSetUserEventStatus(hold->gate, CL_COMPLETE);
        free_hold(hold);
        return -EBADMSG; /* the client chose an id that is in use */
    }
    if (error != CL_SUCCESS && hold != NULL) {
        free_hold(hold);
    }
    wh_cl_look(&reads, NULL);
    wh_cl_reply_error(request, opcode, error);
    wh_cl_reply_flags(request, &reads);
    wh_cl_reply_reads(request, &reads);
    return 0;
}

static cl_command_queue new_side_queue(const struct hold *hold, cl_int *error)
{
    cl_context context = NULL;
    cl_device_id device = NULL;
    *error = wh_cl->clGetCommandQueueInfo(hold->queue, CL_QUEUE_CONTEXT, sizeof(context), &context,
                                          NULL);
    if (*error == CL_SUCCESS) {
        *error = wh_cl->clGetCommandQueueInfo(hold->queue, CL_QUEUE_DEVICE, sizeof(device), &device,
                                              NULL);
    }
    return *error == CL_SUCCESS ? wh_cl->clCreateCommandQueue(context, device, 0, error) : NULL;
}

cl_int wh_cl_side_queue(uint64_t id, cl_command_queue *queue)
{
    cl_int error = CL_SUCCESS;
    *queue = NULL;
    pthread_mutex_lock(&holds_lock);
    struct hold *hold = find(id);
    if (hold == NULL) {
        error = CL_INVALID_VALUE;
    } else if (hold->side == NULL) {
        hold->side = new_side_queue(hold, &error);
    }
    if (error == CL_SUCCESS) {
        *queue = hold->side;
        error = wh_cl->clRetainCommandQueue(*queue);
    }
    pthread_mutex_unlock(&holds_lock);
    return error;
}

int wh_cl_let_go(struct wh_request *request, uint16_t opcode)
{
    uint64_t id = wh_take_u64(request);
    bool waits = wh_take_u64(request) != 0;
    cl_int status = (cl_int)wh_take_u64(request);
    struct hold *hold = wh_request_failed(request) ? NULL : take_hold(id);
    if (hold == NULL) {
        return -EBADMSG;
    }
    cl_int error = wh_cl->clSetUserEventStatus(hold->gate, status < 0 ? status : CL_COMPLETE);
    if (error == CL_SUCCESS && waits) {
        wh_block_begin(request->session);
        (void)wh_cl->clWaitForEvents(1, &hold->last); /* the transfer's own error is told already */
        wh_block_end(request->session);
    }
    free_hold(hold);
    wh_cl_reply_error(request, opcode, error);
    return 0;
}
