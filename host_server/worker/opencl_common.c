/*
 * opencl_common.c - handles, errors and sizes of OpenCL requests; non-blocking reads until the
 * client has their data.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "opencl_transfer.h"
#include "times.h"
#include "wh_opencl_kinds.h"

void *wh_cl_object(struct wh_request *request, uint64_t handle, uint8_t kind, cl_int *error)
{
    static const cl_int errors[WH_KIND_COUNT] = WH_KIND_ERRORS;
    bool valid = false;
    void *object = wh_handle_get(request->session, handle, kind, &valid);
    if (!valid && *error == CL_SUCCESS) {
        *error = errors[kind];
    }
    return object;
}

void **wh_cl_objects(struct wh_request *request, uint8_t kind, cl_uint *count, cl_int *error)
{
    size_t size_bytes = 0;
    const uint64_t *handles = wh_take_blob(request, &size_bytes, WH_CL_BLOB_BYTES_MAX);
    *count = 0;
    if (handles == NULL) {
        return NULL;
    }
    if (size_bytes % sizeof(uint64_t) != 0 || size_bytes / sizeof(uint64_t) > UINT32_MAX) {
        request->failed = true;
        return NULL;
    }
    void **objects = wh_scratch(request, size_bytes);
    if (objects == NULL) {
        return NULL;
    }
    *count = (cl_uint)(size_bytes / sizeof(uint64_t));
    for (cl_uint i = 0; i < *count; i++) {
        request->failed = request->failed || handles[i] == 0; /* the stub checks its lists */
        objects[i] = wh_cl_object(request, handles[i], kind, error);
    }
    return objects;
}

const char **wh_cl_strings(struct wh_request *request, cl_uint *count)
{
    size_t size_bytes = 0;
    const char *text = wh_take_blob(request, &size_bytes, WH_CL_BLOB_BYTES_MAX);
    *count = 0;
    if (text == NULL) {
        return NULL;
    }
    if (!wh_cl_string_ends(text, size_bytes)) {
        request->failed = true;
        return NULL;
    }
    size_t found = 0;
    for (size_t at = 0; at < size_bytes; at += strlen(text + at) + 1) {
        found++;
    }
    const char **strings =
        found > UINT32_MAX ? NULL : wh_scratch(request, found * sizeof(*strings));
    if (strings == NULL) {
        request->failed = true;
        return NULL;
    }
    for (size_t at = 0; at < size_bytes; at += strlen(text + at) + 1) {
        strings[(*count)++] = text + at;
    }
    return strings;
}

static void release_object(uint8_t kind, void *object)
{
    switch (kind) {
    case WH_KIND_DEVICE:
        wh_cl->clReleaseDevice(object);
        break;
    case WH_KIND_CONTEXT:
        wh_cl->clReleaseContext(object);
        break;
    case WH_KIND_QUEUE:
        wh_cl->clReleaseCommandQueue(object);
        break;
    case WH_KIND_MEM:
        wh_cl->clReleaseMemObject(object);
        break;
    case WH_KIND_PROGRAM:
        wh_cl->clReleaseProgram(object);
        break;
    case WH_KIND_KERNEL:
        wh_cl->clReleaseKernel(object);
        break;
    case WH_KIND_EVENT:
        wh_cl->clReleaseEvent(object);
        break;
    case WH_KIND_SAMPLER:
        wh_cl->clReleaseSampler(object);
        break;
    default:
        break;
    }
}

cl_int wh_cl_register(struct wh_request *request, uint64_t handle, uint8_t kind, void *object,
                      cl_int error)
{
    if (error != CL_SUCCESS || object == NULL) {
        return error;
    }
    int result = wh_handle_put(request->session, handle, kind, object);
    if (result == 0) {
        return CL_SUCCESS;
    }
    release_object(kind, object);
    if (result != -ENOSPC) {
        request->failed = true; /* the client chose a handle that is in use or none */
    }
    return CL_OUT_OF_RESOURCES;
}

void wh_cl_count_retain(struct wh_request *request, uint64_t handle, uint8_t kind, cl_int error)
{
    if (error == CL_SUCCESS) {
        (void)wh_handle_hold(request->session, handle, kind);
    }
}

static bool is_root_device(const void *object)
{
    for (cl_uint i = 0; i < wh_cl_devices.count; i++) {
        if (wh_cl_devices.devices[i] == object) {
            return true;
        }
    }
    return false;
}

bool wh_cl_count_release(struct wh_request *request, uint64_t handle, uint8_t kind,
                         const void *object, bool last, cl_int *error)
{
    static const cl_int errors[WH_KIND_COUNT] = WH_KIND_ERRORS;
    if (*error != CL_SUCCESS || object == NULL || is_root_device(object)) {
        return *error == CL_SUCCESS; /* the library has the answer */
    }
    int result = wh_handle_let_go(request->session, handle, kind, last);
    if (result < 0) {
        *error = errors[kind];
    }
    return result > 0;
}

void wh_cl_forget(struct wh_request *request, const uint64_t *handles, size_t size_bytes)
{
    for (size_t i = 0; handles != NULL && i < size_bytes / sizeof(uint64_t); i++) {
        uint8_t kind = (uint8_t)(handles[i] >> 56);
        void *object = wh_handle_remove(request->session, handles[i], kind);
        if (object != NULL && !is_root_device(object)) {
            release_object(kind, object); /* the reference that the table kept */
        }
    }
}

void wh_cl_reply_error(struct wh_request *request, uint16_t opcode, cl_int error)
{
    wh_reply_u64(request, (uint64_t)(int64_t)error);
    if (request->oneway && error != CL_SUCCESS) {
        wh_async_error(request->session, error, opcode);
    }
}

void wh_cl_hide(cl_uint param, const cl_uint *opaque, size_t count, void *value, size_t size_bytes)
{
    for (size_t i = 0; i < count; i++) {
        if (opaque[i] == param && value != NULL) {
            memset(value, 0, size_bytes);
        }
    }
}

bool wh_cl_properties_end(const void *properties, size_t size_bytes)
{
    const uint64_t *items = properties;
    size_t count = size_bytes / sizeof(uint64_t);
    if (properties == NULL) {
        return true;
    }
    for (size_t i = 0; i < count; i += 2) {
        if (items[i] == 0) {
            return true;
        }
    }
    return false;
}

bool wh_cl_string_ends(const char *text, size_t size_bytes)
{
    return text == NULL || (size_bytes > 0 && text[size_bytes - 1] == '\0');
}

const void *wh_cl_padded(struct wh_request *request, const void *bytes, size_t size_bytes,
                         size_t least_bytes)
{
    if (bytes == NULL || size_bytes >= least_bytes) {
        return bytes;
    }
    uint8_t *padded = wh_scratch(request, least_bytes);
    if (padded != NULL) {
        memcpy(padded, bytes, size_bytes);
        memset(padded + size_bytes, 0, least_bytes - size_bytes);
    }
    return padded;
}

size_t wh_cl_image_format_bytes(cl_uint num_entries, const cl_uint *num_image_formats)
{
    cl_uint count = num_entries;
    if (num_image_formats != NULL && *num_image_formats < count) {
        count = *num_image_formats;
    }
    return count * sizeof(cl_image_format);
}

/* Non-blocking reads whose data the client has not copied yet. */
struct wh_cl_pending_read {
    struct wh_cl_pending_read *next;
    uint64_t id;
    cl_command_queue queue;
    cl_event event;
    const void *address;
    size_t size_bytes;
    uint64_t token;     /* TCP: the data lies in a buffer of ours */
    uint32_t flag;      /* cl_read of wire.yaml */
    uint32_t borrowers; /* writes from there that are not done */
    bool forgotten;     /* by the client */
    bool lent;          /* the client waits for its block */
};

static struct wh_cl_pending_read *pending;
static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER;

int wh_cl_add_read(uint64_t id, cl_command_queue queue, cl_event event, const void *address,
                   size_t size_bytes, uint64_t token)
{
    struct wh_cl_pending_read *read = calloc(1, sizeof(*read));
    if (read == NULL) {
        return -ENOMEM;
    }
    read->id = id;
    read->queue = queue;
    read->event = event;
    read->address = address;
    read->size_bytes = size_bytes;
    read->token = token;
    pthread_mutex_lock(&pending_lock);
    read->next = pending;
    pending = read;
    pthread_mutex_unlock(&pending_lock);
    return 0;
}

static void update(struct wh_session *session, struct wh_cl_pending_read *read,
                   cl_command_queue finished)
{
    cl_int status = CL_QUEUED;
    if (read->flag != WH_CL_READ_PENDING) {
        return;
    }
    if (read->queue == finished) {
        status = CL_COMPLETE;
    } else if (read->event == NULL) {
        status = wh_cl->clFinish(read->queue) == CL_SUCCESS ? CL_COMPLETE : CL_OUT_OF_RESOURCES;
    } else if (wh_cl->clGetEventInfo(read->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status),
                                     &status, NULL) != CL_SUCCESS) {
        status = CL_QUEUED;
    }
    if (status <= CL_COMPLETE) {
        read->flag = status == CL_COMPLETE ? WH_CL_READ_DONE : WH_CL_READ_FAILED;
        if (read->borrowers == 0) {
            wh_staging_settled(session, read->token);
        }
        if (read->event != NULL) {
            wh_cl->clReleaseEvent(read->event);
        }
        read->event = NULL;
    }
}

static struct wh_cl_pending_read *find(uint64_t id)
{
    struct wh_cl_pending_read *read = pending;
    while (read != NULL && read->id != id) {
        read = read->next;
    }
    return read;
}

/* The lock is held. */
static void end_read(struct wh_session *session, struct wh_cl_pending_read *read)
{
    struct wh_cl_pending_read **link = &pending;
    while (*link != read) {
        link = &(*link)->next;
    }
    *link = read->next;
    wh_staging_done(session, read->token);
    if (read->lent && read->token == 0) {
        wh_bulk_done(session, wh_block_at(session, read->address));
    }
    free(read);
}

/* The client has copied these: nobody can ask about them and need an answer. Each is id << 1, with
 * the lowest bit set if the client waits for its block. */
static void forget(struct wh_session *session, const uint64_t *words, uint64_t count)
{
    wh_cl_sweep_writes();
    pthread_mutex_lock(&pending_lock);
    for (uint64_t i = 0; i < count; i++) {
        struct wh_cl_pending_read *read = find(words[i] >> 1);
        if (read != NULL && read->flag != WH_CL_READ_PENDING) {
            read->forgotten = true;
            read->lent = (words[i] & 1) != 0;
            if (read->borrowers == 0) {
                end_read(session, read);
            }
        }
    }
    pthread_mutex_unlock(&pending_lock);
}

struct wh_cl_pending_read *wh_cl_borrow_read(struct wh_session *session, uint64_t id, size_t offset,
                                             size_t size_bytes, const void **bytes)
{
    pthread_mutex_lock(&pending_lock);
    struct wh_cl_pending_read *read = find(id);
    if (read == NULL || read->forgotten || offset > read->size_bytes ||
        size_bytes > read->size_bytes - offset || !wh_staging_keep(session, read->token)) {
        read = NULL;
    }
    if (read != NULL) {
        read->borrowers++;
        *bytes = (const uint8_t *)read->address + offset;
    }
    pthread_mutex_unlock(&pending_lock);
    return read;
}

void wh_cl_return_read(struct wh_session *session, struct wh_cl_pending_read *read)
{
    pthread_mutex_lock(&pending_lock);
    read->borrowers--;
    if (read->borrowers == 0 && read->flag != WH_CL_READ_PENDING) {
        wh_staging_settled(session, read->token);
    }
    if (read->borrowers == 0 && read->forgotten) {
        end_read(session, read);
    }
    pthread_mutex_unlock(&pending_lock);
}

__thread struct wh_cl_asked wh_cl_asked;

void wh_cl_take_reads(struct wh_request *request, struct wh_cl_reads *reads)
{
    uint64_t count = wh_take_u64(request);
    reads->session = request->session;
    reads->count = 0;
    if (count > WH_CL_READS_ASKED_MAX) {
        request->failed = true;
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        memset(&reads->items[i], 0, sizeof(reads->items[i]));
        reads->items[i].id = wh_take_u64(request);
        reads->items[i].carried = wh_take_u64(request) != 0;
        if (reads->items[i].carried) {
            reads->items[i].to = wh_take_out(request, &reads->items[i].capacity_bytes);
            wh_cl_asked.carried++;
        }
    }
    wh_cl_asked.count = (cl_uint)count;
    reads->count = (cl_uint)count;
    uint64_t ids[WH_CL_READS_ASKED_MAX];
    uint64_t copied = wh_take_u64(request);
    if (copied > WH_CL_READS_ASKED_MAX) {
        request->failed = true;
        return;
    }
    for (uint64_t i = 0; i < copied; i++) {
        ids[i] = wh_take_u64(request);
    }
    if (copied > 0 && !wh_request_failed(request)) {
        forget(request->session, ids, copied);
    }
}

/* Bytes copied: none if the client has released the worker's buffer already. */
static size_t carry(struct wh_session *session, const struct wh_cl_pending_read *read, void *to)
{
    if (read->token != 0) {
        int error = wh_staging_read(session, read->token, 0, to, read->size_bytes);
        return error == 0 ? read->size_bytes : 0;
    }
    /* Both may lie in the arena, wherever the client said. */
    uint64_t begin_ticks = wh_times_enter();
    memmove(to, read->address, read->size_bytes);
    wh_times_leave(begin_ticks, WH_TIMES_COPY);
    return read->size_bytes;
}

void wh_cl_look(struct wh_cl_reads *reads, cl_command_queue finished)
{
    if (reads->count == 0) {
        return;
    }
    pthread_mutex_lock(&pending_lock);
    for (cl_uint i = 0; i < reads->count; i++) {
        struct wh_cl_pending_read *read = find(reads->items[i].id);
        reads->items[i].flag = WH_CL_READ_GONE;
        if (read == NULL) {
            continue;
        }
        update(reads->session, read, finished);
        reads->items[i].flag = read->flag;
        if (read->flag == WH_CL_READ_DONE && reads->items[i].to != NULL &&
            reads->items[i].capacity_bytes >= read->size_bytes) {
            reads->items[i].written_bytes = carry(reads->session, read, reads->items[i].to);
        }
    }
    pthread_mutex_unlock(&pending_lock);
}

void wh_cl_reply_flags(struct wh_request *request, const struct wh_cl_reads *reads)
{
    for (cl_uint i = 0; i < reads->count; i++) {
        wh_reply_u64(request, reads->items[i].flag);
    }
}

void wh_cl_reply_reads(struct wh_request *request, const struct wh_cl_reads *reads)
{
    for (cl_uint i = 0; i < reads->count; i++) {
        if (reads->items[i].carried) {
            wh_reply_out(request, reads->items[i].written_bytes);
        }
    }
}
