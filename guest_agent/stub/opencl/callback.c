/*
 * callback.c - registers callbacks and runs them.
 */
#include "callback.h"

#include <stdlib.h>
#include <string.h>

#include "fork_lock.h"
#include "service.h"
#include "wh_codec.h"
#include "wh_core_stub.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define LISTS 1024u      /* of registrations, by number */
#define TAKE_BYTES 2048u /* needs no room in the arena */
#define RECORD_BYTES_MAX (sizeof(struct wh_callback_record) + 2 * WH_CALLBACK_TEXT_BYTES_MAX + 16)

typedef void(CL_CALLBACK *event_function)(cl_event, cl_int, void *);
typedef void(CL_CALLBACK *mem_function)(cl_mem, void *);
typedef void(CL_CALLBACK *program_function)(cl_program, void *);
typedef void(CL_CALLBACK *context_function)(cl_context, void *);

struct due;

struct registration {
    struct registration *next;
    uint64_t id;
    uint16_t opcode; /* of the function that registered it */
    struct wh_cl_object *object;
    union {
        event_function event;
        mem_function mem;
        program_function program;
        context_function context;
        wh_cl_notify notify;
    } function;
    void *data;
    struct due *waiting; /* of the same object, due later, while this one has not run */
};

/* A callback that is to run. */
struct due {
    struct due *next;
    struct registration *registration;
    int32_t status;
};

/* What the parent registered belongs to its session: numbers go on, so nothing is mixed up. */
WH_FORK_LOCK(callback_lock);
static struct registration *registrations[LISTS];
static uint64_t last_id;
static uint32_t served_serial; /* session that has its thread */

static struct registration **find(uint64_t id)
{
    struct registration **link = &registrations[id % LISTS];
    while (*link != NULL && (*link)->id != id) {
        link = &(*link)->next;
    }
    return link;
}

static struct registration *add(uint16_t opcode, struct wh_cl_object *object, void *data)
{
    struct registration *registration = calloc(1, sizeof(*registration));
    if (registration == NULL) {
        return NULL;
    }
    registration->opcode = opcode;
    registration->object = object;
    registration->data = data;
    pthread_mutex_lock(&callback_lock);
    registration->id = ++last_id;
    registration->next = registrations[registration->id % LISTS];
    registrations[registration->id % LISTS] = registration;
    pthread_mutex_unlock(&callback_lock);
    return registration;
}

/* Ends a registration; what has waited for it. */
static struct due *finish(struct registration *registration)
{
    pthread_mutex_lock(&callback_lock);
    struct registration **link = find(registration->id);
    if (*link == registration) {
        *link = registration->next;
    }
    struct due *waiting = registration->waiting;
    pthread_mutex_unlock(&callback_lock);
    free(registration);
    return waiting;
}

/* Running. */

static void call_function(const struct registration *registration, int32_t status)
{
    void *object = registration->object;
    void *data = registration->data;
    if (wh_cl_reads_pending(0)) {
        wh_cl_ask_reads(0); /* the application may look at what has been read so far */
    }
    switch (registration->opcode) {
    case WH_OP_clSetEventCallback:
        registration->function.event(object, status, data);
        break;
    case WH_OP_clSetMemObjectDestructorCallback:
        registration->function.mem(object, data);
        break;
    case WH_OP_clSetProgramReleaseCallback:
        if (registration->function.program != NULL) {
            registration->function.program(object, data);
        }
        break;
    default:
        registration->function.context(object, data);
        break;
    }
}

/* Runs one, and then those that have waited for it, oldest first. */
static void run(struct due *due)
{
    while (due != NULL) {
        struct due *next = due->next;
        struct registration *registration = due->registration;
        struct wh_cl_object *object = registration->object;
        bool holds = registration->opcode == WH_OP_clSetEventCallback;
        call_function(registration, due->status);
        free(due);
        due = finish(registration);
        struct due **end = &due;
        while (*end != NULL) {
            end = &(*end)->next;
        }
        *end = next;
        wh_cl_callback_ended(object);
        if (holds) {
            (void)wh_cl_release(object, WH_KIND_EVENT, WH_OP_clReleaseEvent);
        }
    }
}

static void deliver_message(uint64_t id, const uint8_t *payload,
                            const struct wh_callback_record *record)
{
    wh_cl_notify function = NULL;
    void *data = NULL;
    pthread_mutex_lock(&callback_lock);
    const struct registration *registration = *find(id);
    if (registration != NULL && registration->opcode == WH_OP_clCreateContext) {
        function = registration->function.notify;
        data = registration->data;
    }
    pthread_mutex_unlock(&callback_lock);
    if (function != NULL) {
        const uint8_t *info = payload + wh_align(record->text_bytes, WH_ITEM_BYTES);
        function((const char *)payload, record->info_bytes == 0 ? NULL : info, record->info_bytes,
                 data);
    }
}

static void deliver(const struct wh_callback_record *record)
{
    struct due *due = calloc(1, sizeof(*due));
    if (due == NULL) {
        return;
    }
    pthread_mutex_lock(&callback_lock);
    due->registration = *find(record->id);
    due->status = record->status;
    struct registration *before = record->after == 0 ? NULL : *find(record->after);
    bool waits = due->registration != NULL && before != NULL && before != due->registration;
    if (waits) {
        /* Another thread has it, and runs this one afterwards. */
        struct due **end = &before->waiting;
        while (*end != NULL) {
            end = &(*end)->next;
        }
        *end = due;
    }
    pthread_mutex_unlock(&callback_lock);
    if (due->registration == NULL) {
        free(due);
    } else if (!waits) {
        run(due);
    }
}

/* Runs the records in `bytes`; each is copied before anything of the application runs. */
static void deliver_all(uint32_t batch, const uint8_t *bytes, size_t size_bytes)
{
    size_t at = 0;
    while (size_bytes - at >= sizeof(struct wh_callback_record)) {
        struct wh_callback_record record;
        memcpy(&record, bytes + at, sizeof(record));
        at += sizeof(record);
        size_t payload_bytes =
            wh_align(record.text_bytes, WH_ITEM_BYTES) + wh_align(record.info_bytes, WH_ITEM_BYTES);
        if (payload_bytes > size_bytes - at) {
            return; /* the server broke the contract */
        }
        if (batch != 0) {
            wh_service_await(record.queued & (UINT32_MAX >> WH_BATCH_SHIFT));
        }
        if (record.text_bytes > 0 && bytes[at + record.text_bytes - 1] == '\0') {
            deliver_message(record.id, bytes + at, &record);
        } else {
            deliver(&record);
        }
        if (batch == 0) {
            wh_service_ran();
        }
        at += payload_bytes;
    }
}

/* One message's worth of records. False: there are no more. */
static bool take_some(uint32_t batch, uint8_t *few)
{
    uint64_t written = 0;
    uint64_t needed = 0;
    if (whTakeCallbacks(batch, few, TAKE_BYTES, &written, &needed) != 0) {
        return false;
    }
    uint64_t more = needed;
    deliver_all(batch, few, written);
    if (written == 0 && more > 0 && more <= RECORD_BYTES_MAX) {
        uint8_t *large = malloc(more);
        if (large == NULL || whTakeCallbacks(batch, large, more, &written, &needed) != 0) {
            written = 0;
        }
        deliver_all(batch, large, written);
        free(large);
    }
    return written > 0;
}

/* Takes a batch (0: the queue) and runs it. Not on the stack: a callback may set a user event whose
 * callback sets the next, thousands deep. */
static void take_and_run(uint32_t batch)
{
    uint8_t *few = malloc(TAKE_BYTES);
    while (few != NULL && take_some(batch, few)) {
    }
    free(few);
}

void wh_cl_run_owed(void)
{
    uint32_t batch = wh_take_owed();
    while (batch != 0) {
        take_and_run(batch);
        batch = wh_take_owed();
    }
}

static void serve_callbacks(void)
{
    while (wh_service_wait(WH_WAIT_FOR_CALLBACKS)) {
        take_and_run(0);
    }
}

static bool have_thread(void)
{
    uint32_t serial = wh_session_serial();
    int error = 0;
    pthread_mutex_lock(&callback_lock);
    if (served_serial != serial) {
        wh_service_begin();
        error = wh_service_start("wormhole-calls", serve_callbacks);
        if (error == 0) {
            __atomic_store_n(&served_serial, serial, __ATOMIC_RELAXED);
        }
    }
    pthread_mutex_unlock(&callback_lock);
    return error == 0;
}

bool wh_cl_has_callbacks(void)
{
    uint32_t serial = __atomic_load_n(&served_serial, __ATOMIC_RELAXED);
    return serial != 0 && serial == wh_session_serial();
}

/* Registering. */

/* The object is counted as one with a callback, and an event held, until the callback has run. */
static cl_int enter(struct registration *registration, cl_int status)
{
    struct wh_cl_object *object = registration->object;
    struct wh_call call;
    bool is_event = registration->opcode == WH_OP_clSetEventCallback;
    wh_cl_callback_began(object);
    wh_cl_settle_writes(object->kind == WH_KIND_CONTEXT ? object : object->context);
    cl_int error = WH_CL_LOST;
    if (wh_call_begin(&call, registration->opcode) == 0) {
        wh_call_settles(&call);
        wh_put_u64(&call, object->handle);
        if (is_event) {
            wh_cl_hold(object);
            wh_put_u64(&call, (uint64_t)status);
            wh_put_u64(&call, !wh_local_answers());
        }
        wh_put_u64(&call, registration->id);
        error = wh_cl_call_error(&call);
        if (error != CL_SUCCESS && is_event) {
            wh_cl_unhold(object);
        }
    }
    if (error != CL_SUCCESS) {
        (void)finish(registration);
        wh_cl_callback_ended(object);
    }
    return error;
}

/* A registration for a live object, which the caller completes; NULL and *error. */
static struct registration *begin(void *pointer, uint32_t kind, uint16_t opcode, bool callable,
                                  void *data, cl_int *error)
{
    static const cl_int errors[WH_KIND_COUNT] = WH_KIND_ERRORS;
    WH_API_CALL();
    struct wh_cl_object *object = wh_cl_get(pointer, kind);
    struct registration *registration = NULL;
    *error = object == NULL ? errors[kind] : callable ? CL_SUCCESS : CL_INVALID_VALUE;
    if (*error == CL_SUCCESS) {
        registration = have_thread() ? add(opcode, object, data) : NULL;
        *error = registration == NULL ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
    }
    return registration;
}

/* What the library has run at once runs before the application knows that it is registered. */
static cl_int end(struct registration *registration, cl_int status, cl_int error)
{
    if (registration != NULL) {
        error = enter(registration, status);
        wh_cl_run_owed();
    }
    return error;
}

cl_int CL_API_CALL wh_stub_clSetEventCallback(
    cl_event event, cl_int command_exec_callback_type,
    void(CL_CALLBACK *pfn_notify)(cl_event event, cl_int event_command_status, void *user_data),
    void *user_data)
{
    cl_int error;
    struct registration *registration = begin(event, WH_KIND_EVENT, WH_OP_clSetEventCallback,
                                              pfn_notify != NULL, user_data, &error);
    if (registration != NULL) {
        registration->function.event = pfn_notify;
    }
    return end(registration, command_exec_callback_type, error);
}

cl_int CL_API_CALL wh_stub_clSetMemObjectDestructorCallback(
    cl_mem memobj, void(CL_CALLBACK *pfn_notify)(cl_mem memobj, void *user_data), void *user_data)
{
    cl_int error;
    struct registration *registration =
        begin(memobj, WH_KIND_MEM, WH_OP_clSetMemObjectDestructorCallback, pfn_notify != NULL,
              user_data, &error);
    if (registration != NULL) {
        registration->function.mem = pfn_notify;
    }
    return end(registration, 0, error);
}

cl_int CL_API_CALL wh_stub_clSetProgramReleaseCallback(
    cl_program program, void(CL_CALLBACK *pfn_notify)(cl_program program, void *user_data),
    void *user_data)
{
    cl_int error;
    /* Without a function, too, the library says whether it has such callbacks at all. */
    struct registration *registration =
        begin(program, WH_KIND_PROGRAM, WH_OP_clSetProgramReleaseCallback, true, user_data, &error);
    if (registration != NULL) {
        registration->function.program = pfn_notify;
    }
    error = end(registration, 0, error);
    return error == CL_SUCCESS && pfn_notify == NULL ? CL_INVALID_VALUE : error;
}

cl_int CL_API_CALL wh_stub_clSetContextDestructorCallback(
    cl_context context, void(CL_CALLBACK *pfn_notify)(cl_context context, void *user_data),
    void *user_data)
{
    cl_int error;
    struct registration *registration =
        begin(context, WH_KIND_CONTEXT, WH_OP_clSetContextDestructorCallback, pfn_notify != NULL,
              user_data, &error);
    if (registration != NULL) {
        registration->function.context = pfn_notify;
    }
    return end(registration, 0, error);
}

/* Errors of contexts. */

uint64_t wh_cl_notify_add(wh_cl_notify function, void *data)
{
    struct registration *registration =
        have_thread() ? add(WH_OP_clCreateContext, NULL, data) : NULL;
    if (registration == NULL) {
        return 0;
    }
    registration->function.notify = function;
    return registration->id;
}

void wh_cl_notify_end(uint64_t id)
{
    pthread_mutex_lock(&callback_lock);
    struct registration **link = find(id);
    struct registration *registration = *link;
    if (registration != NULL) {
        *link = registration->next;
    }
    pthread_mutex_unlock(&callback_lock);
    free(registration);
}
