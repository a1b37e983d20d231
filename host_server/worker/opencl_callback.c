/*
 * opencl_callback.c - skeletons that register callbacks: what the real library calls becomes a
 * record for the client (callback.h).
 */
#include <errno.h>

#include "callback.h"
#include "opencl_backend.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

static void CL_CALLBACK event_reached(cl_event event, cl_int status, void *data)
{
    (void)event;
    wh_callback_due(data, status);
}

static void CL_CALLBACK mem_ended(cl_mem mem, void *data)
{
    (void)mem;
    wh_callback_due(data, 0);
}

static void CL_CALLBACK program_ended(cl_program program, void *data)
{
    (void)program;
    wh_callback_due(data, 0);
}

static void CL_CALLBACK context_ended(cl_context context, void *data)
{
    (void)context;
    wh_callback_due(data, 0);
}

/* A registration: the object, what events have beside it, and the client's number. */
struct registration {
    uint64_t handle;
    void *object;
    cl_int status;
    bool retain; /* the client counts no references itself: the callback has one of its own */
    cl_int error;
};

static cl_int set(uint16_t opcode, const struct registration *registration,
                  struct wh_callback *callback)
{
    switch (opcode) {
    case WH_OP_clSetEventCallback:
        return wh_cl->clSetEventCallback(registration->object, registration->status, event_reached,
                                         callback);
    case WH_OP_clSetMemObjectDestructorCallback:
        return wh_cl->clSetMemObjectDestructorCallback(registration->object, mem_ended, callback);
    case WH_OP_clSetProgramReleaseCallback:
        return wh_cl->clSetProgramReleaseCallback(registration->object, program_ended, callback);
    default:
        return wh_cl->clSetContextDestructorCallback(registration->object, context_ended, callback);
    }
}

static cl_int enter(struct wh_request *request, uint16_t opcode, uint64_t id,
                    const struct registration *registration)
{
    struct wh_callback *callback = wh_callback_new(request->session, id, registration->handle);
    if (callback == NULL) {
        return CL_OUT_OF_RESOURCES;
    }
    if (registration->retain) {
        cl_int retained = wh_cl->clRetainEvent(registration->object);
        wh_cl_count_retain(request, registration->handle, WH_KIND_EVENT, retained);
    }
    /* It may be due before this returns, and is gone then. */
    cl_int error = set(opcode, registration, callback);
    if (error != CL_SUCCESS) {
        wh_callback_cancel(callback);
        cl_int released = CL_SUCCESS;
        if (registration->retain &&
            wh_cl_count_release(request, registration->handle, WH_KIND_EVENT, registration->object,
                                false, &released)) {
            wh_cl->clReleaseEvent(registration->object);
        }
    }
    return error;
}

static int register_callback(struct wh_request *request, uint16_t opcode, uint8_t kind)
{
    struct registration registration = {.error = CL_SUCCESS};
    registration.handle = wh_take_u64(request);
    registration.object = wh_cl_object(request, registration.handle, kind, &registration.error);
    if (kind == WH_KIND_EVENT) {
        registration.status = (cl_int)wh_take_u64(request);
        registration.retain = wh_take_u64(request) != 0;
    }
    uint64_t id = wh_take_u64(request);
    if (wh_request_failed(request) || registration.handle == 0 || id == 0) {
        return -EBADMSG;
    }
    cl_int error = registration.error;
    if (error == CL_SUCCESS) {
        error = enter(request, opcode, id, &registration);
    }
    wh_cl_reply_error(request, opcode, error);
    return 0;
}

int wh_skeleton_clSetEventCallback(struct wh_request *request)
{
    return register_callback(request, WH_OP_clSetEventCallback, WH_KIND_EVENT);
}

int wh_skeleton_clSetMemObjectDestructorCallback(struct wh_request *request)
{
    return register_callback(request, WH_OP_clSetMemObjectDestructorCallback, WH_KIND_MEM);
}

int wh_skeleton_clSetProgramReleaseCallback(struct wh_request *request)
{
    return register_callback(request, WH_OP_clSetProgramReleaseCallback, WH_KIND_PROGRAM);
}

int wh_skeleton_clSetContextDestructorCallback(struct wh_request *request)
{
    return register_callback(request, WH_OP_clSetContextDestructorCallback, WH_KIND_CONTEXT);
}

/* There is one session; a context may report for as long as the process lives. */
static struct wh_session *session_of_contexts;
static uint64_t latest_notified;

static void CL_CALLBACK context_reports(const char *text, const void *info, size_t info_bytes,
                                        void *data)
{
    uint64_t id = (uint64_t)(uintptr_t)data;
    if (id == 0) {
        id = __atomic_load_n(&latest_notified, __ATOMIC_RELAXED); /* Oclgrind passes no data on */
    }
    wh_callback_message(session_of_contexts, id, text, info, info_bytes);
}

wh_cl_notify_function wh_cl_context_notify(struct wh_request *request, uint64_t id)
{
    if (id == 0) {
        return NULL;
    }
    session_of_contexts = request->session;
    __atomic_store_n(&latest_notified, id, __ATOMIC_RELAXED);
    return context_reports;
}
