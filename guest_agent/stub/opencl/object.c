/*
 * object.c - the slab of objects: making, checking, counting and ending them.
 */
#include "object.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "callback.h"
#include "wh_opencl_kinds.h"
#include "wh_opencl_stub.h"
#include "wh_wire.h"

#define CELL_BYTES 256u
#define CELL_COUNT (1u << 18) /* 64 MiB of address space, touched as used */
#define FIRST_FREE_CELL 64u   /* 0: platform, 1..62: devices */
#define PARENTS_MAX 8u        /* event, queue, context and the like */
#define FORGOTTEN_MAX (PARENTS_MAX + WH_CL_DEVICES_MAX) /* a context may end its devices */
#define GENERATION_MASK 0xffffffu

_Static_assert(sizeof(struct wh_cl_object) <= CELL_BYTES, "an object fits its cell");
_Static_assert(CELL_COUNT <= WH_HANDLE_INDEX_MAX, "the number of a cell is a handle index");

/* The wait list that this thread has checked last has an event of another context. */
static __thread bool foreign_waits __attribute__((tls_model("initial-exec")));

static uint8_t *slab;
static uint32_t used_cells = FIRST_FREE_CELL;
static struct wh_cl_object *free_list;
static uint32_t events_serial; /* last session that has had an event */
static pthread_mutex_t slab_lock = PTHREAD_MUTEX_INITIALIZER;
/* Message for message, the last release must be the last one to arrive, also where the stub's own
 * thread releases what a callback held. */
static pthread_mutex_t release_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t slab_once = PTHREAD_ONCE_INIT;

static void lock_slab(void)
{
    pthread_mutex_lock(&release_lock);
    pthread_mutex_lock(&slab_lock);
}

static void unlock_slab(void)
{
    pthread_mutex_unlock(&slab_lock);
    pthread_mutex_unlock(&release_lock);
}

static struct wh_cl_object *cell(uint32_t index)
{
    return (struct wh_cl_object *)(slab + (size_t)index * CELL_BYTES);
}

static void make_slab(void)
{
    void *address = mmap(NULL, (size_t)CELL_COUNT * CELL_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        return;
    }
    slab = address;
    struct wh_cl_object *platform = cell(0);
    platform->dispatch = &wh_cl_dispatch;
    platform->kind = WH_KIND_PLATFORM;
    platform->references = 1;
    platform->own_references = 1;
    platform->handle = (uint64_t)WH_KIND_PLATFORM << 56 | 1ull << 32;
    /* A child of a fork must not find the lock held by a thread that it does not have. */
    pthread_atfork(lock_slab, unlock_slab, unlock_slab);
}

static bool has_slab(void)
{
    pthread_once(&slab_once, make_slab);
    return slab != NULL;
}

struct wh_cl_object *wh_cl_platform(void)
{
    return has_slab() ? cell(0) : NULL;
}

struct wh_cl_object *wh_cl_device(uint64_t handle)
{
    uint32_t index = (uint32_t)handle;
    if (!has_slab() || handle >> 56 != WH_KIND_DEVICE || index == 0 || index > WH_CL_DEVICES_MAX) {
        return NULL;
    }
    struct wh_cl_object *device = cell(index);
    pthread_mutex_lock(&slab_lock);
    if (device->kind == 0) {
        device->dispatch = &wh_cl_dispatch;
        device->references = 1;
        device->own_references = 1;
        device->handle = handle;
        __atomic_store_n(&device->kind, WH_KIND_DEVICE, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&slab_lock);
    return device->handle == handle ? device : NULL;
}

struct wh_cl_object *wh_cl_find(const void *pointer, bool *inside)
{
    uintptr_t distance = (uintptr_t)pointer - (uintptr_t)slab;
    *inside = slab != NULL && distance < (size_t)CELL_COUNT * CELL_BYTES;
    if (!*inside || distance % CELL_BYTES != 0) {
        return NULL;
    }
    struct wh_cl_object *object = (struct wh_cl_object *)(slab + distance);
    uint32_t kind = __atomic_load_n(&object->kind, __ATOMIC_ACQUIRE);
    if (kind == WH_KIND_PLATFORM || (kind == WH_KIND_DEVICE && object->serial == 0)) {
        return object;
    }
    return kind != 0 && object->serial == wh_session_serial() ? object : NULL;
}

struct wh_cl_object *wh_cl_get(const void *pointer, uint32_t kind)
{
    bool inside;
    struct wh_cl_object *object = wh_cl_find(pointer, &inside);
    return object != NULL && object->kind == kind ? object : NULL;
}

bool wh_cl_all_live(const void *const *pointers, cl_uint count, uint32_t kind)
{
    if ((pointers == NULL) != (count == 0)) {
        return false;
    }
    for (cl_uint i = 0; i < count; i++) {
        if (!wh_cl_live(pointers[i], kind)) {
            return false;
        }
    }
    return true;
}

cl_int wh_cl_check_waits(const void *queue, cl_uint count, const cl_event *events)
{
    const struct wh_cl_object *where = queue;
    if (!wh_cl_all_live((const void *const *)events, count, WH_KIND_EVENT)) {
        return CL_INVALID_EVENT_WAIT_LIST;
    }
    foreign_waits = false;
    for (cl_uint i = 0; i < count; i++) {
        const struct wh_cl_object *event = (const struct wh_cl_object *)events[i];
        foreign_waits = foreign_waits || event->context != where->context;
    }
    return CL_SUCCESS;
}

bool wh_cl_take_foreign_waits(void)
{
    bool foreign = foreign_waits;
    foreign_waits = false;
    return foreign;
}

struct wh_cl_object *wh_cl_object_new(uint32_t kind)
{
    if (!has_slab()) {
        return NULL;
    }
    pthread_mutex_lock(&slab_lock);
    struct wh_cl_object *object = free_list;
    if (object != NULL) {
        free_list = object->parent;
    } else if (used_cells < CELL_COUNT) {
        object = cell(used_cells++);
    }
    pthread_mutex_unlock(&slab_lock);
    if (object == NULL) {
        return NULL;
    }
    uint64_t generation = ((object->handle >> 32) + 1) & GENERATION_MASK;
    uint64_t index = (size_t)((uint8_t *)object - slab) / CELL_BYTES;
    memset(object, 0, sizeof(*object));
    generation = generation == 0 ? 1 : generation;
    object->dispatch = &wh_cl_dispatch;
    object->handle = (uint64_t)kind << 56 | generation << 32 | index;
    object->serial = wh_session_serial();
    object->references = 1;
    object->own_references = 1;
    if (kind == WH_KIND_EVENT) {
        __atomic_store_n(&events_serial, object->serial, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&object->kind, kind, __ATOMIC_RELEASE);
    return object;
}

bool wh_cl_has_events(void)
{
    uint32_t serial = __atomic_load_n(&events_serial, __ATOMIC_RELAXED);
    return serial != 0 && serial == wh_session_serial();
}

/* What an object owns apart from its cell. */
static void free_parts(struct wh_cl_object *object, uint32_t kind)
{
    wh_cl_info_free(object);
    if (kind == WH_KIND_CONTEXT) {
        free(object->u.of_context.properties);
        free(object->u.of_context.devices);
        wh_cl_notify_end(object->u.of_context.notify);
    } else if (kind == WH_KIND_MEM) {
        wh_cl_maps_free(object);
        wh_backing_free(&object->u.of_mem.backing, true);
    } else if (kind == WH_KIND_PROGRAM) {
        free(object->u.of_program.binary_bytes);
        free(object->u.of_program.devices);
        free(object->u.of_program.source);
    } else if (kind == WH_KIND_KERNEL) {
        wh_cl_arguments_free(object);
    }
}

/* The lock is held. */
static void give_back_when_done(struct wh_cl_object *object)
{
    if (object->ended && object->callbacks == 0) {
        object->ended = false;
        object->parent = free_list;
        free_list = object;
    }
}

static void free_cell(struct wh_cl_object *object)
{
    uint32_t kind = object->kind;
    __atomic_store_n(&object->kind, 0, __ATOMIC_RELEASE);
    free_parts(object, kind);
    pthread_mutex_lock(&slab_lock);
    object->ended = true;
    give_back_when_done(object);
    pthread_mutex_unlock(&slab_lock);
}

void wh_cl_callback_began(struct wh_cl_object *object)
{
    pthread_mutex_lock(&slab_lock);
    object->called = true;
    __atomic_store_n(&object->callbacks, object->callbacks + 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&slab_lock);
}

void wh_cl_callback_ended(struct wh_cl_object *object)
{
    pthread_mutex_lock(&slab_lock);
    __atomic_store_n(&object->callbacks, object->callbacks - 1, __ATOMIC_RELAXED);
    give_back_when_done(object);
    pthread_mutex_unlock(&slab_lock);
}

static void hold_inside(struct wh_cl_object *object)
{
    __atomic_fetch_add(&object->references, 1, __ATOMIC_RELAXED);
}

void wh_cl_hold(struct wh_cl_object *object)
{
    hold_inside(object);
    __atomic_fetch_add(&object->own_references, 1, __ATOMIC_RELAXED);
}

void wh_cl_set_parent(struct wh_cl_object *object, struct wh_cl_object *parent)
{
    hold_inside(parent);
    object->parent = parent;
    object->context = parent->kind == WH_KIND_CONTEXT ? parent : parent->context;
}

void wh_cl_unhold(struct wh_cl_object *object)
{
    __atomic_fetch_sub(&object->references, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&object->own_references, 1, __ATOMIC_RELAXED);
}

static bool drop(struct wh_cl_object *object)
{
    return __atomic_sub_fetch(&object->references, 1, __ATOMIC_ACQ_REL) == 0;
}

static uint16_t release_opcode(uint32_t kind)
{
    static const uint16_t opcodes[WH_KIND_COUNT] = {
        [WH_KIND_DEVICE] = WH_OP_clReleaseDevice,      [WH_KIND_CONTEXT] = WH_OP_clReleaseContext,
        [WH_KIND_QUEUE] = WH_OP_clReleaseCommandQueue, [WH_KIND_MEM] = WH_OP_clReleaseMemObject,
        [WH_KIND_PROGRAM] = WH_OP_clReleaseProgram,    [WH_KIND_KERNEL] = WH_OP_clReleaseKernel,
        [WH_KIND_EVENT] = WH_OP_clReleaseEvent,        [WH_KIND_SAMPLER] = WH_OP_clReleaseSampler,
    };
    return opcodes[kind];
}

/* The release message: the handle, whether it is the last, and parents whose handles end with it.
 * With callbacks it waits for those that it makes due. */
static cl_int send_release(uint64_t handle, uint16_t opcode, bool last, const uint64_t *forgotten,
                           size_t forgotten_count, bool callbacks)
{
    struct wh_call call;
    if (wh_call_begin(&call, opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, handle);
    wh_put_u64(&call, last);
    wh_put_blob(&call, forgotten_count > 0 ? forgotten : NULL, forgotten_count * sizeof(uint64_t));
    if (callbacks) {
        wh_call_settles(&call);
    } else if (wh_local_answers() && wh_oneway_calls()) {
        return wh_call_oneway(&call) == 0 ? CL_SUCCESS : WH_CL_LOST;
    }
    return wh_cl_call_error(&call);
}

/* Objects that ended, child first. The cells go back only after their release was published. */
struct ended {
    struct wh_cl_object *objects[FORGOTTEN_MAX];
    size_t count;
};

static void end_with_parents(struct wh_cl_object *object, struct ended *ended);

void wh_cl_hold_devices(const struct wh_cl_object *context)
{
    for (uint32_t i = 0; i < context->u.of_context.device_count; i++) {
        struct wh_cl_object *device = context->u.of_context.devices[i];
        if (wh_cl_is_sub_device(device)) {
            hold_inside(device);
        }
    }
}

static void let_go_of_devices(const struct wh_cl_object *context, struct ended *ended)
{
    for (uint32_t i = 0; i < context->u.of_context.device_count; i++) {
        struct wh_cl_object *device = context->u.of_context.devices[i];
        if (wh_cl_is_sub_device(device) && drop(device)) {
            end_with_parents(device, ended);
        }
    }
}

static void end_with_parents(struct wh_cl_object *object, struct ended *ended)
{
    while (object != NULL && ended->count < FORGOTTEN_MAX) {
        ended->objects[ended->count++] = object;
        if (object->kind == WH_KIND_CONTEXT) {
            let_go_of_devices(object, ended);
        }
        struct wh_cl_object *parent = object->parent;
        object = parent != NULL && drop(parent) ? parent : NULL;
    }
}

void wh_cl_discard(struct wh_cl_object *object)
{
    if (object == NULL) {
        return;
    }
    struct wh_cl_object *parent = object->parent;
    free_cell(object);
    if (parent != NULL) {
        (void)drop(parent); /* the application still holds it: it was just used */
    }
}

cl_int wh_cl_retain(void *pointer, uint32_t kind, uint16_t opcode)
{
    static const cl_int errors[WH_KIND_COUNT] = WH_KIND_ERRORS;
    struct wh_cl_object *object = wh_cl_get(pointer, kind);
    if (object == NULL) {
        return errors[kind];
    }
    if (kind != WH_KIND_DEVICE || wh_cl_is_sub_device(object)) {
        wh_cl_hold(object);
    }
    if (wh_local_answers()) {
        return CL_SUCCESS;
    }
    struct wh_call call;
    if (wh_call_begin(&call, opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, object->handle);
    return wh_cl_call_error(&call);
}

static bool has_callbacks(const struct wh_cl_object *object)
{
    return __atomic_load_n(&object->callbacks, __ATOMIC_RELAXED) > 0;
}

/* Locally every object ends with a message of its own, parents after children. */
static cl_int release_each(const struct ended *ended)
{
    cl_int error = CL_SUCCESS;
    for (size_t i = 0; i < ended->count; i++) {
        const struct wh_cl_object *object = ended->objects[i];
        cl_int own = send_release(object->handle, release_opcode(object->kind), true, NULL, 0,
                                  has_callbacks(object));
        error = error == CL_SUCCESS ? own : error;
    }
    return error;
}

/* Message for message: the server counts references itself and only has to forget the handles. */
static cl_int release_one(const struct wh_cl_object *object, uint16_t opcode,
                          const struct ended *ended)
{
    uint64_t forgotten[FORGOTTEN_MAX];
    size_t count = 0;
    bool callbacks = false;
    for (size_t i = 0; i < ended->count; i++) {
        callbacks = callbacks || has_callbacks(ended->objects[i]);
        if (i > 0) {
            forgotten[count++] = ended->objects[i]->handle;
        }
    }
    return send_release(object->handle, opcode, ended->count > 0, forgotten, count, callbacks);
}

cl_int wh_cl_release(void *pointer, uint32_t kind, uint16_t opcode)
{
    static const cl_int errors[WH_KIND_COUNT] = WH_KIND_ERRORS;
    struct wh_cl_object *object = wh_cl_get(pointer, kind);
    if (object == NULL) {
        return errors[kind];
    }
    if (kind == WH_KIND_QUEUE && __atomic_load_n(&object->references, __ATOMIC_ACQUIRE) == 1 &&
        wh_cl_reads_pending(object->handle)) {
        wh_cl_reads_go_on(object->handle); /* nobody can finish it any more */
    }
    if (kind == WH_KIND_QUEUE && __atomic_load_n(&object->references, __ATOMIC_ACQUIRE) == 1) {
        wh_cl_settle_writes(object->context);
    }
    struct ended ended = {.count = 0};
    bool counted = kind != WH_KIND_DEVICE || wh_cl_is_sub_device(object);
    bool ordered = object->called && !wh_local_answers();
    if (ordered) {
        pthread_mutex_lock(&release_lock);
    }
    if (counted) {
        __atomic_fetch_sub(&object->own_references, 1, __ATOMIC_RELAXED);
    }
    if (counted && drop(object)) {
        end_with_parents(object, &ended);
    }
    cl_int error = wh_local_answers() ? release_each(&ended) : release_one(object, opcode, &ended);
    if (ordered) {
        pthread_mutex_unlock(&release_lock);
    }
    for (size_t i = 0; i < ended.count; i++) {
        free_cell(ended.objects[i]);
    }
    if (ended.count > 0) {
        wh_cl_run_owed();
    }
    return error;
}

void *wh_cl_created(struct wh_cl_object *object, cl_int error, cl_int *errcode_ret)
{
    if (errcode_ret != NULL) {
        *errcode_ret = error;
    }
    if (error != CL_SUCCESS) {
        wh_cl_discard(object);
        return NULL;
    }
    return object;
}

struct wh_cl_object *wh_cl_event_new(const void *queue, cl_command_type command, bool wanted)
{
    struct wh_cl_object *event = wanted ? wh_cl_object_new(WH_KIND_EVENT) : NULL;
    if (event != NULL) {
        wh_cl_set_parent(event, (struct wh_cl_object *)queue);
        event->u.of_event.command = command;
        event->u.of_event.status = CL_QUEUED;
    }
    return event;
}

cl_int wh_cl_enqueued(struct wh_cl_object *created, cl_int error, cl_event *event)
{
    if (error != CL_SUCCESS) {
        wh_cl_discard(created);
    } else if (event != NULL) {
        *event = (cl_event)created;
    }
    return error;
}

void wh_cl_keep_queue(struct wh_cl_object *object, cl_context context, cl_device_id device,
                      cl_command_queue_properties properties)
{
    wh_cl_set_parent(object, (struct wh_cl_object *)context);
    if (__atomic_add_fetch(&object->context->u.of_context.queues, 1, __ATOMIC_SEQ_CST) == 1) {
        object->context->u.of_context.queue = object;
    } else {
        wh_cl_settle_writes(object->context);
    }
    object->u.of_queue.device = (struct wh_cl_object *)device;
    object->u.of_queue.properties = properties;
}

void wh_cl_keep_sub_buffer(struct wh_cl_object *object, cl_mem buffer, cl_mem_flags flags,
                           const void *region)
{
    /* What a part does not say it takes from the whole (OpenCL 3.0, clCreateSubBuffer). */
    const cl_mem_flags access = CL_MEM_READ_WRITE | CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY;
    const cl_mem_flags host =
        CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;
    const cl_mem_flags pointer = CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR;
    struct wh_cl_object *whole = (struct wh_cl_object *)buffer;
    cl_buffer_region part;
    memcpy(&part, region, sizeof(part));
    cl_mem_flags inherited = whole->u.of_mem.flags;
    flags |= (flags & access) == 0 ? inherited & access : 0;
    flags |= (flags & host) == 0 ? inherited & host : 0;
    wh_cl_set_parent(object, whole);
    object->u.of_mem.flags = flags | (inherited & pointer);
    object->u.of_mem.size_bytes = part.size;
    object->u.of_mem.sub = true;
    if (whole->u.of_mem.host != NULL) {
        object->u.of_mem.host = (uint8_t *)whole->u.of_mem.host + part.origin;
    }
    if (whole->u.of_mem.shared != NULL) {
        object->u.of_mem.shared = whole->u.of_mem.shared + part.origin;
    }
}

void wh_cl_keep_pipe(struct wh_cl_object *object, cl_context context, cl_mem_flags flags)
{
    wh_cl_set_parent(object, (struct wh_cl_object *)context);
    object->u.of_mem.flags = flags;
}

void wh_cl_keep_sampler(struct wh_cl_object *object, cl_context context)
{
    wh_cl_set_parent(object, (struct wh_cl_object *)context);
}

void wh_cl_keep_kernel(struct wh_cl_object *object, cl_program program)
{
    wh_cl_set_parent(object, (struct wh_cl_object *)program);
    pthread_mutex_init(&object->u.of_kernel.lock, NULL);
}

void wh_cl_keep_clone(struct wh_cl_object *object, cl_kernel source)
{
    /* The arguments were sent before, so the clone has them on the server. */
    wh_cl_keep_kernel(object, (cl_program)((struct wh_cl_object *)source)->parent);
}

void wh_cl_keep_user_event(struct wh_cl_object *object, cl_context context)
{
    wh_cl_set_parent(object, (struct wh_cl_object *)context);
    object->u.of_event.command = CL_COMMAND_USER;
    object->u.of_event.status = CL_SUBMITTED;
    object->u.of_event.user = true;
}

size_t wh_cl_properties_bytes(const void *properties)
{
    const uint64_t *items = properties; /* cl_properties, cl_queue_properties ...: 8 bytes each */
    size_t count = 0;
    if (items == NULL) {
        return 0;
    }
    while (items[count] != 0) {
        count += 2;
    }
    return (count + 1) * sizeof(uint64_t);
}

cl_command_queue_properties wh_cl_queue_properties(const cl_queue_properties *properties)
{
    for (size_t i = 0; properties != NULL && properties[i] != 0; i += 2) {
        if (properties[i] == CL_QUEUE_PROPERTIES) {
            return properties[i + 1];
        }
    }
    return 0;
}

size_t wh_cl_region_bytes(cl_buffer_create_type type, const void *region)
{
    return type == CL_BUFFER_CREATE_TYPE_REGION && region != NULL ? sizeof(cl_buffer_region) : 0;
}
