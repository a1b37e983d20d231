/*
 * object.h - the objects that an application holds, and the pieces that generated stubs are made
 * of.
 *
 * Every object lies in one slab of equal cells, so that a pointer is checked without looking at
 * what it points to, and the cell's number is the index of the handle. An object counts the
 * application's references and those of its children (a queue holds its context), like the real one
 * does; it ends on the server when the last of them goes.
 */
#ifndef WH_CL_OBJECT_H
#define WH_CL_OBJECT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "call.h"
#include "shape.h"
#include "wh_opencl_kinds.h"
#include "wh_opencl_stub.h"
#include "wh_wire.h"

/* What the API says when the server is gone. */
#define WH_CL_LOST CL_DEVICE_NOT_AVAILABLE

#define WH_CL_DEVICES_MAX 62u

struct wh_cl_info;
struct wh_cl_map;
struct wh_cl_argument;

/* What the server says of an image. */
struct wh_cl_image {
    cl_mem_object_type type;
    uint32_t element_bytes; /* 0: the object is a buffer */
    size_t size[3];         /* pixels, rows and slices, as origins and regions count them */
    size_t row_pitch; /* as the API reports them; image.c says which rows are apart by which */
    size_t slice_pitch;
};

struct wh_cl_object {
    const cl_icd_dispatch *dispatch; /* first: the loader calls through it */
    uint64_t handle;
    uint32_t serial; /* session it belongs to */
    uint32_t kind;   /* 0: the cell is free */
    uint32_t references;
    uint32_t own_references;      /* among them: the application's, and those of its callbacks */
    uint32_t callbacks;           /* registered and not run yet; an event is held by each */
    bool called;                  /* has had a callback */
    bool ended;                   /* but the cell is kept for callbacks */
    struct wh_cl_object *parent;  /* held: context, program, queue or buffer */
    struct wh_cl_object *context; /* held through the parents */
    struct wh_cl_info *infos;     /* answers that cannot change */
    union {
        struct {
            cl_context_properties *properties; /* with the terminating 0 */
            size_t properties_bytes;
            struct wh_cl_object **devices;
            uint32_t device_count;
            uint32_t queues;            /* ever made in it */
            struct wh_cl_object *queue; /* the first of them */
            uint32_t writes_ahead;      /* transfer.c */
            uint32_t writes_settled;
            uint32_t host_memory; /* buffer.c: whether the devices work in the host's memory */
            uint64_t notify;      /* number of the application's function for errors, 0 none */
        } of_context;
        struct {
            struct wh_cl_object *device;
            cl_command_queue_properties properties;
            uint32_t emptying_begun; /* hold.c */
            uint32_t emptying_ended;
            uint32_t held; /* held transfers under way */
        } of_queue;
        struct {
            cl_mem_flags flags;
            size_t size_bytes;
            void *host; /* CL_MEM_USE_HOST_PTR */
            bool sub;
            uint8_t *shared; /* first byte, where the object lies in the session's memory */
            struct wh_backing
                backing; /* the memory itself; a part of a buffer has none of its own */
            struct wh_cl_map *maps;
            struct wh_cl_image image;
        } of_mem;
        struct {
            struct wh_cl_object **devices;
            size_t *binary_bytes; /* last answer to CL_PROGRAM_BINARY_SIZES, one a device */
            uint32_t device_count;
            char *source; /* only if it includes files, which may be the application's own */
            size_t source_bytes;
            bool rewritten; /* the server has another source (includes.c) */
            bool foreign;   /* the server's answers may name files as they are called there */
        } of_program;
        struct {
            struct wh_cl_argument *arguments;
            uint32_t argument_count;
            uint32_t dirty_count;
            uint32_t foreign_count; /* arguments of another context */
            pthread_mutex_t lock;
        } of_kernel;
        struct {
            cl_command_type command;
            int32_t status; /* CL_COMPLETE or negative once seen, else CL_QUEUED */
            bool user;
        } of_event;
    } u;
};

/* The object behind a pointer of the application, NULL unless it is a live one of that kind. */
struct wh_cl_object *wh_cl_get(const void *pointer, uint32_t kind);

static inline bool wh_cl_live(const void *pointer, uint32_t kind)
{
    return wh_cl_get(pointer, kind) != NULL;
}

/* A live object of any kind, NULL if it is none; *inside: the pointer lies in the slab at all. */
struct wh_cl_object *wh_cl_find(const void *pointer, bool *inside);

/* count live objects; false also for a list that does not fit its count. An empty list is NULL and
 * 0. */
bool wh_cl_all_live(const void *const *pointers, cl_uint count, uint32_t kind);

/* A wait list of live events, or the API's error for it. The queue is live. What an event of
 * another context means the real library says: libraries differ. */
cl_int wh_cl_check_waits(const void *queue, cl_uint count, const cl_event *events);

/* Whether the list that was checked last has such an event; asked once. */
bool wh_cl_take_foreign_waits(void);

/* Handle of a checked pointer; 0 for NULL. */
static inline uint64_t wh_cl_handle(const void *pointer)
{
    return pointer == NULL ? 0 : ((const struct wh_cl_object *)pointer)->handle;
}

/* A new object with one reference and a handle of its own, NULL without memory. */
struct wh_cl_object *wh_cl_object_new(uint32_t kind);

/* Ends an object that the server does not have. NULL is fine. */
void wh_cl_discard(struct wh_cl_object *object);

/* The one platform, and the device of a handle that the server gave (NULL if it is none). */
struct wh_cl_object *wh_cl_platform(void);
struct wh_cl_object *wh_cl_device(uint64_t handle);

/* A device that was made, and is counted; others are there for good. */
static inline bool wh_cl_is_sub_device(const struct wh_cl_object *object)
{
    return object->kind == WH_KIND_DEVICE && object->serial != 0;
}

/* A context holds its devices. */
void wh_cl_hold_devices(const struct wh_cl_object *context);

/* One reference more that the application, or a callback of its, gives back by a release. */
void wh_cl_hold(struct wh_cl_object *object);

/* Takes back a hold that was not the last one. */
void wh_cl_unhold(struct wh_cl_object *object);

/* A callback of the object is registered, or has run or failed: its pointer means nothing else in
 * between. */
void wh_cl_callback_began(struct wh_cl_object *object);
void wh_cl_callback_ended(struct wh_cl_object *object);

void wh_cl_set_parent(struct wh_cl_object *object, struct wh_cl_object *parent);
cl_int wh_cl_retain(void *pointer, uint32_t kind, uint16_t opcode);
cl_int wh_cl_release(void *pointer, uint32_t kind, uint16_t opcode);

/* Ends a creating stub: the object, or NULL with its error. */
void *wh_cl_created(struct wh_cl_object *object, cl_int error, cl_int *errcode_ret);

/* One call, begun with wh_call_begin; a lost server is WH_CL_LOST. */
void wh_cl_put_handles(struct wh_call *call, const void *const *pointers, cl_uint count);
void wh_cl_put_strings(struct wh_call *call, const char *const *strings, cl_uint count);
cl_int
wh_cl_call_sync(struct wh_call *call); /* API error; results follow; the caller ends the call */
cl_int wh_cl_call_error(struct wh_call *call); /* API error; ends the call */
cl_int wh_cl_take_async(void);

uint64_t wh_cl_shape_add_handles(uint64_t shape, const void *const *pointers, cl_uint count);
cl_int wh_cl_call_shape(struct wh_call *call, uint64_t shape); /* ends the call */

/* Waits for the writes that went ahead in a context, and all before them (transfer.c). */
void wh_cl_settle_writes(struct wh_cl_object *context);

/* Events of enqueued commands. */
bool wh_cl_has_events(void); /* whether this session has had any, of whatever kind */
struct wh_cl_object *wh_cl_event_new(const void *queue, cl_command_type command, bool wanted);
cl_int wh_cl_enqueued(struct wh_cl_object *created, cl_int error, cl_event *event);

/* Status of an event as far as the application has seen it. */
static inline int32_t wh_cl_event_status(const struct wh_cl_object *event)
{
    return __atomic_load_n(&event->u.of_event.status, __ATOMIC_RELAXED);
}

static inline void wh_cl_event_seen(struct wh_cl_object *event, int32_t status)
{
    __atomic_store_n(&event->u.of_event.status, status, __ATOMIC_RELAXED);
}

/* Queries. */
enum wh_cl_cache {
    WH_CL_CACHE_NONE,
    WH_CL_CACHE_ALL,
    WH_CL_CACHE_COMPLETE, /* available only when final */
};

struct wh_cl_query {
    uint16_t opcode;
    uint32_t kind;
    const void *object;
    bool has_second;
    bool second_optional;
    const void *second_object; /* of second_kind, or second_value */
    uint32_t second_kind;
    uint64_t second_value;
    enum wh_cl_cache cache;
    cl_uint param;
    size_t size;
    void *value;
    size_t *size_ret;
};

cl_int wh_cl_info(const struct wh_cl_query *query);

/* The server's whole answer, to be freed; the query's own buffer stays as it is. */
cl_int wh_cl_ask_whole(const struct wh_cl_query *query, void **answer, size_t *size_bytes);

/* Gives an answer as a query wants it: CL_INVALID_VALUE if it does not fit. */
cl_int wh_cl_answer(const struct wh_cl_query *query, const void *bytes, size_t size_bytes);
/* What calls take by its size is short; a size that is wrong has no bytes behind it. */
#define WH_CL_IN_BYTES_MAX ((size_t)4096)

/* The room for an answer of at most this size: what can cross at once. */
size_t wh_cl_answer_room(size_t size);
/* Ends a question for a reference count, if it is one: adds what the server does not know. */
void wh_cl_count_own(const struct wh_cl_query *query);
bool wh_cl_own_answer(const struct wh_cl_query *query, cl_int *error);
void wh_cl_info_free(struct wh_cl_object *object);

/* What the stub remembers of new objects (spec: keep). */
void wh_cl_keep_queue(struct wh_cl_object *object, cl_context context, cl_device_id device,
                      cl_command_queue_properties properties);
void wh_cl_keep_sub_buffer(struct wh_cl_object *object, cl_mem buffer, cl_mem_flags flags,
                           const void *region);
void wh_cl_keep_pipe(struct wh_cl_object *object, cl_context context, cl_mem_flags flags);
void wh_cl_keep_sampler(struct wh_cl_object *object, cl_context context);
void wh_cl_keep_program(struct wh_cl_object *object, cl_context context, cl_uint count,
                        const cl_device_id *devices); /* none given: all of the context */
void wh_cl_keep_kernel(struct wh_cl_object *object, cl_program program);
void wh_cl_keep_clone(struct wh_cl_object *object, cl_kernel source);
void wh_cl_keep_user_event(struct wh_cl_object *object, cl_context context);

/* Sizes of lists that say themselves where they end. 0 for NULL. */
size_t wh_cl_properties_bytes(const void *properties);
cl_command_queue_properties wh_cl_queue_properties(const cl_queue_properties *properties);
size_t wh_cl_region_bytes(cl_buffer_create_type type, const void *region);
size_t wh_cl_color_bytes(const void *image);

/* Headers of the application (includes.c): sends what the programs' sources may include. The
 * options as the server must have them, to be freed; NULL if they stay as they are. */
cl_int wh_cl_ship_includes(const struct wh_cl_object *const *programs, size_t count,
                           const char *options, char **new_options);

/* A source with the server's names for absolute ones, to be freed; NULL if it has none. */
char *wh_cl_rewrite_source(const char *source, size_t size, size_t *new_size);

/* An answer of the compiler with the application's names, to be freed; NULL without memory. */
char *wh_cl_own_names(const char *answer);

/* Kernel arguments (launch.c). */
void wh_cl_send_arguments(cl_kernel kernel);
void wh_cl_arguments_free(struct wh_cl_object *kernel);

/*
 * Non-blocking reads whose data has not reached the application yet (reads.c). Every call by which
 * an application can learn that commands are complete asks about them, and copies those that are.
 */
struct wh_cl_reads {
    uint32_t count;
    bool more; /* more are pending than one message asks for: wh_cl_ask_reads */
    uint64_t ids[WH_CL_READS_ASKED_MAX];
    uint64_t flags[WH_CL_READS_ASKED_MAX]; /* cl_read of wire.yaml */
    bool carried[WH_CL_READS_ASKED_MAX];   /* the reply carries the data */
};

/* after: id of the last read that was asked about, 0 to begin. */
void wh_cl_put_reads(struct wh_call *call, struct wh_cl_reads *reads, uint64_t after);
void wh_cl_put_no_reads(struct wh_call *call, struct wh_cl_reads *reads); /* asks about none */
void wh_cl_take_flags(struct wh_call *call, struct wh_cl_reads *reads); /* right after the error */
void wh_cl_take_reads(struct wh_call *call,
                      struct wh_cl_reads *reads); /* after the call's own outs */
bool wh_cl_reads_pending(uint64_t queue);         /* 0: of any queue */

/* Lets the reads of a queue reach the application though it calls nothing any more that shows them
 * complete. */
void wh_cl_reads_go_on(uint64_t queue);

/* Where to go on asking after this message; 0: all were asked about. */
static inline uint64_t wh_cl_reads_next(const struct wh_cl_reads *reads)
{
    return reads->more ? reads->ids[reads->count - 1] : 0;
}

/* Asks about the pending reads behind `after` and takes those that are complete, without waiting
 * for any (wait.c). */
void wh_cl_ask_reads(uint64_t after);

/* API error of a call whose last arguments are the reads (wh_cl_put_reads); ends it. What it shows
 * complete is taken, and `size` bytes of its own out before, where out is not NULL. */
cl_int wh_cl_call_reads(struct wh_call *call, struct wh_cl_reads *reads, void *out, size_t size);

/* Rows in the application's memory; the same bytes come and go without gaps. */
struct wh_cl_rows {
    uint8_t *first;
    size_t region[3]; /* bytes, rows, slices */
    size_t row_pitch;
    size_t slice_pitch;
};

/* Whether a region of three dimensions has nothing in it. */
static inline bool wh_cl_nothing(const size_t *region)
{
    return region[0] == 0 || region[1] == 0 || region[2] == 0;
}

/* Bytes of memory from the first to the last of a region (bytes, rows, slices) with such pitches.
 */
static inline size_t wh_cl_extent(const size_t *region, size_t row_pitch, size_t slice_pitch)
{
    return wh_cl_nothing(region)
               ? 0
               : region[0] + (region[1] - 1) * row_pitch + (region[2] - 1) * slice_pitch;
}

void wh_cl_rows_copy(const struct wh_cl_rows *rows, uint8_t *packed, bool pack);

/* A read of size_bytes to the application's memory; it is pending once added, after its request was
 * published. */
struct wh_cl_read; /* new: NULL without memory, or if the server is to keep too much */
struct wh_cl_read *wh_cl_read_new(void *to, size_t size_bytes, uint64_t queue);
struct wh_cl_read *wh_cl_read_new_rows(const struct wh_cl_rows *rows, size_t size_bytes,
                                       uint64_t queue);
void wh_cl_read_put(struct wh_call *call, struct wh_cl_read *read); /* id and staging area */
void wh_cl_read_add(struct wh_cl_read *read);
void wh_cl_read_cancel(struct wh_cl_read *read);

bool wh_cl_any_reads(void);

/* Whether a pending read fills part of this memory. */
bool wh_cl_read_into(const void *memory, size_t size_bytes);

/* Waits until none does. */
void wh_cl_await_reads(const void *memory, size_t size_bytes);

/*
 * What a write takes whose source is the target of a read before it that is still pending: the
 * server writes the bytes that it will have read. Gives how many of the bytes from `memory` on come
 * from one place: source->read, or the memory itself if that is NULL. What must come before the
 * write is what is in its queue, or what it waits for.
 */
struct wh_cl_source {
    struct wh_cl_read *read;
    uint64_t id;
    size_t offset;
};
size_t wh_cl_source_begin(struct wh_cl_source *source, const void *memory, size_t size_bytes,
                          uint64_t queue, bool waits);
void wh_cl_source_end(struct wh_cl_source *source); /* after the write was published */

/* Lets go of memory that pending reads would fill; false if there are none. since: only of reads
 * begun after wh_cl_reads_mark gave it, 0 for all. */
bool wh_cl_reads_abandon(const void *memory, size_t size_bytes, uint64_t since);
uint64_t wh_cl_reads_mark(void);

/* Waits for live events; an API error (wait.c). */
cl_int wh_cl_wait(cl_uint count, const cl_event *events);

/* Comes back when a call that waits for them would not block, without one (apart.c). */
cl_int wh_cl_wait_apart(cl_uint count, const cl_event *events);

/* What the server says of an event now. An API error. */
cl_int wh_cl_event_ask(const struct wh_cl_object *event, cl_int *status);

/* Waits for all that is in a queue. */
cl_int wh_cl_finish(struct wh_cl_object *queue);

/* Whether all devices of a context work in the host's memory, so that objects may as well lie in
 * ours (buffer.c). */
bool wh_cl_uses_host_memory(struct wh_cl_object *context);

/* Whether a new object may lie in memory that both sides see; and takes such memory for
 * it, with its initial data. False without room: the object is to lie in the server's memory. */
bool wh_cl_may_share(cl_context context, cl_mem_flags flags);
bool wh_cl_share(struct wh_cl_object *mem, cl_mem_flags flags, size_t size, const void *host_ptr,
                 size_t host_bytes);

/* Maps (maps.c; the list itself is in maps.h). */
void wh_cl_maps_free(struct wh_cl_object *mem);
cl_uint wh_cl_map_count(const struct wh_cl_object *mem);

#endif
