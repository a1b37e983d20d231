/*
 * wait.c - calls that show the application that commands are complete: clFinish, clWaitForEvents,
 * clGetEventInfo; and the one by which it completes an event itself.
 */
#include "callback.h"
#include "transfer.h"

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

/* No events: only the question about reads. */
static uint64_t ask_once(uint64_t after)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, WH_OP_clWaitForEvents) != 0) {
        return 0;
    }
    wh_cl_put_handles(&call, NULL, 0);
    wh_cl_put_reads(&call, &reads, after);
    cl_int error = wh_cl_call_sync(&call);
    wh_cl_take_flags(&call, &reads);
    wh_cl_take_reads(&call, &reads);
    wh_call_end(&call);
    return error == CL_SUCCESS ? wh_cl_reads_next(&reads) : 0;
}

void wh_cl_ask_reads(uint64_t after)
{
    do {
        after = ask_once(after);
    } while (after != 0);
}

cl_int wh_cl_call_reads(struct wh_call *call, struct wh_cl_reads *reads, void *out, size_t size)
{
    cl_int error = wh_cl_call_sync(call);
    wh_cl_take_flags(call, reads);
    if (out != NULL) {
        /* Also of a failed call: what follows are the reads' own. */
        (void)wh_get_out(call, out, error == CL_SUCCESS ? size : 0);
    }
    wh_cl_take_reads(call, reads);
    uint64_t next = error == CL_SUCCESS ? wh_cl_reads_next(reads) : 0;
    wh_call_end(call);
    if (next != 0) {
        wh_cl_ask_reads(next);
    }
    return error;
}

static cl_int finish_at_server(uint64_t queue)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, WH_OP_clFinish) != 0) {
        return WH_CL_LOST;
    }
    wh_call_blocks(&call);
    wh_put_u64(&call, queue);
    wh_cl_put_reads(&call, &reads, 0);
    return wh_cl_call_reads(&call, &reads, NULL, 0);
}

/* Enqueues a marker behind all that is in the queue. */
static cl_int mark(uint64_t queue, struct wh_cl_object *event)
{
    struct wh_call call;
    if (wh_call_begin(&call, WH_OP_clEnqueueMarkerWithWaitList) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, queue);
    wh_put_u64(&call, 0);
    wh_cl_put_handles(&call, NULL, 0);
    wh_put_u64(&call, event->handle);
    return wh_cl_call_error(&call);
}

/* A marker fails with the first command that does, others may still run: the next one tells. */
static cl_int finish_apart(struct wh_cl_object *queue)
{
    cl_int error = CL_SUCCESS;
    do {
        cl_event event = NULL;
        struct wh_cl_object *marker = wh_cl_event_new(queue, CL_COMMAND_MARKER, true);
        error = marker == NULL ? CL_OUT_OF_HOST_MEMORY : mark(queue->handle, marker);
        error = wh_cl_enqueued(marker, error, &event);
        if (error == CL_SUCCESS) {
            error = wh_cl_wait(1, &event);
            (void)wh_cl_release(event, WH_KIND_EVENT, WH_OP_clReleaseEvent);
        }
    } while (error == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    return error;
}

cl_int wh_cl_finish(struct wh_cl_object *queue)
{
    if (!wh_blocking_begin()) {
        return finish_apart(queue);
    }
    wh_cl_emptying_begin((cl_command_queue)queue);
    cl_int error = finish_at_server(queue->handle);
    wh_cl_emptying_end((cl_command_queue)queue);
    wh_blocking_end();
    return error;
}

cl_int CL_API_CALL wh_stub_clFinish(cl_command_queue command_queue)
{
    WH_API_CALL();
    struct wh_cl_object *queue = wh_cl_get(command_queue, WH_KIND_QUEUE);
    if (queue == NULL) {
        return CL_INVALID_COMMAND_QUEUE;
    }
    cl_int error = wh_cl_finish(queue);
    return error != CL_SUCCESS ? error : wh_cl_take_async();
}

static cl_int wait_at_server(cl_uint count, const cl_event *events)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, WH_OP_clWaitForEvents) != 0) {
        return WH_CL_LOST;
    }
    wh_call_blocks(&call);
    wh_cl_put_handles(&call, (const void *const *)events, count);
    wh_cl_put_reads(&call, &reads, 0);
    return wh_cl_call_reads(&call, &reads, NULL, 0);
}

cl_int wh_cl_wait(cl_uint count, const cl_event *events)
{
    bool counted = wh_blocking_begin();
    cl_int error = counted ? CL_SUCCESS : wh_cl_wait_apart(count, events);
    if (error == CL_SUCCESS) {
        error = wait_at_server(count, events);
    }
    if (counted) {
        wh_blocking_end();
    }
    return error;
}

/* Whether all events are known to be complete and of one context, so that nobody need be asked. */
static bool all_seen(cl_uint count, const cl_event *events, cl_int *error)
{
    const struct wh_cl_object *first = (const struct wh_cl_object *)events[0];
    *error = CL_SUCCESS;
    for (cl_uint i = 0; i < count; i++) {
        const struct wh_cl_object *event = (const struct wh_cl_object *)events[i];
        int32_t status = wh_cl_event_status(event);
        if (status > CL_COMPLETE || event->context != first->context) {
            return false;
        }
        if (status < 0) {
            *error = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
        }
    }
    return true;
}

cl_int CL_API_CALL wh_stub_clWaitForEvents(cl_uint num_events, const cl_event *event_list)
{
    cl_int error;
    WH_API_CALL();
    if (num_events == 0 || event_list == NULL) {
        return CL_INVALID_VALUE;
    }
    if (!wh_cl_all_live((const void *const *)event_list, num_events, WH_KIND_EVENT)) {
        return CL_INVALID_EVENT;
    }
    if (wh_local_answers() && all_seen(num_events, event_list, &error)) {
        return error;
    }
    error = wh_cl_wait(num_events, event_list);
    for (cl_uint i = 0; error == CL_SUCCESS && i < num_events; i++) {
        wh_cl_event_seen((struct wh_cl_object *)event_list[i], CL_COMPLETE);
    }
    return error != CL_SUCCESS ? error : wh_cl_take_async();
}

static cl_int ask_event(const struct wh_cl_query *query, uint64_t *next)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    bool status = query->param == CL_EVENT_COMMAND_EXECUTION_STATUS;
    size_t size = wh_cl_answer_room(query->size);
    *next = 0;
    if (wh_call_begin(&call, WH_OP_clGetEventInfo) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(query->object));
    wh_put_u64(&call, query->param);
    wh_put_u64(&call, size);
    wh_put_out(&call, size, query->value != NULL);
    wh_put_out(&call, sizeof(size_t), query->size_ret != NULL);
    if (status) {
        wh_cl_put_reads(&call, &reads, 0);
    } else {
        wh_cl_put_no_reads(&call, &reads);
    }
    cl_int error = wh_cl_call_sync(&call);
    wh_cl_take_flags(&call, &reads);
    if (error == CL_SUCCESS) {
        (void)wh_get_out(&call, query->value, size);
        (void)wh_get_out(&call, query->size_ret, query->size_ret == NULL ? 0 : sizeof(size_t));
        wh_cl_take_reads(&call, &reads);
    }
    wh_call_end(&call);
    *next = error == CL_SUCCESS ? wh_cl_reads_next(&reads) : 0;
    return error;
}

cl_int wh_cl_event_ask(const struct wh_cl_object *event, cl_int *status)
{
    uint64_t next; /* reads to ask about; the wait that follows does */
    const struct wh_cl_query query = {
        .opcode = WH_OP_clGetEventInfo,
        .kind = WH_KIND_EVENT,
        .object = event,
        .param = CL_EVENT_COMMAND_EXECUTION_STATUS,
        .size = sizeof(*status),
        .value = status,
    };
    return ask_event(&query, &next);
}

cl_int CL_API_CALL wh_stub_clGetEventInfo(cl_event event, cl_event_info param_name,
                                          size_t param_value_size, void *param_value,
                                          size_t *param_value_size_ret)
{
    WH_API_CALL();
    struct wh_cl_object *object = wh_cl_get(event, WH_KIND_EVENT);
    const struct wh_cl_query query = {
        .opcode = WH_OP_clGetEventInfo,
        .kind = WH_KIND_EVENT,
        .object = object,
        .param = param_name,
        .size = param_value_size,
        .value = param_value,
        .size_ret = param_value_size_ret,
    };
    uint64_t next;
    cl_int error = CL_SUCCESS;
    if (object == NULL) {
        return CL_INVALID_EVENT;
    }
    if (wh_local_answers() && wh_cl_own_answer(&query, &error)) {
        return error;
    }
    error = ask_event(&query, &next);
    if (next != 0) {
        wh_cl_ask_reads(next);
    }
    if (error == CL_SUCCESS && param_name == CL_EVENT_COMMAND_EXECUTION_STATUS &&
        param_value != NULL && param_value_size >= sizeof(cl_int)) {
        wh_cl_event_seen(object, *(const cl_int *)param_value);
    }
    if (error == CL_SUCCESS && !wh_local_answers()) {
        (void)wh_cl_own_answer(&query, &error); /* what the server must not know */
    }
    if (error == CL_SUCCESS) {
        wh_cl_count_own(&query);
    }
    return error;
}

cl_int CL_API_CALL wh_stub_clSetUserEventStatus(cl_event event, cl_int execution_status)
{
    struct wh_call call;
    WH_API_CALL();
    if (!wh_cl_live(event, WH_KIND_EVENT)) {
        return CL_INVALID_EVENT;
    }
    if (wh_call_begin(&call, WH_OP_clSetUserEventStatus) != 0) {
        return WH_CL_LOST;
    }
    wh_call_settles(&call);
    wh_put_u64(&call, wh_cl_handle(event));
    wh_put_u64(&call, (uint64_t)execution_status);
    cl_int error = wh_cl_call_error(&call);
    wh_cl_run_owed();
    return error;
}
