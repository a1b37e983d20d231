/*
 * refcuda.c - a test double: the CUDA runtime's functions on the host's own memory, for machines
 * without a GPU. Never a device that is measured: its name says what it is, and a worker takes it
 * only if the tests' setting allows it.
 *
 * It does what programs can observe: streams run in order in threads of their own, the default one
 * with the blocking others; copies of pageable memory take their bytes at the call or wait; errors
 * of a launch come at once, errors of a kernel later and for good.
 */
#define _GNU_SOURCE

#include "refinner.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define DEVICE_BASE 0x200000000000ull /* a sanitizer has nothing there */
#define DEVICE_BYTES (1ull << 40)
#define MEMORY_BYTES (1ull << 30) /* what the device "has" */
#define CHUNK_BYTES (2ull << 20)
#define RANGES_MAX 65536
#define STREAMS_MAX 4096
#define QUEUE_MAX 1024
#define FATBIN_MAGIC 0xba55ed50u

EXPORT const int wormhole_test_double = 1;

static __thread int last_error;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int dead;    /* the error that ended the device context */
static bool used;   /* a device context exists */
static bool forked; /* it was the parent's */

static void after_fork(void)
{
    forked = used;
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

static int done(int error)
{
    used = true;
    if (forked) {
        error = 3;
    }
    if (error == 0 && __atomic_load_n(&dead, __ATOMIC_RELAXED) != 0) {
        error = dead;
    }
    if (error != 0 && error != NOT_READY) {
        last_error = error;
    }
    return error;
}

int ref_done(int error)
{
    return done(error);
}

/* Of a call that only enqueues: what it has enqueued may have failed already, which is told later.
 */
static int enqueued(int error)
{
    if (error != 0) {
        last_error = error;
    }
    return error;
}

/* Memory. */

struct range {
    char *base;
    size_t size_bytes;
    int type; /* 1 host, 2 device */
    unsigned flags;
    bool owned;
};

static struct range ranges[RANGES_MAX];
static size_t range_count;
static uint64_t next_chunk;
static uint64_t used_bytes;

static struct range *range_of(const void *pointer)
{
    for (size_t i = 0; i < range_count; i++) {
        if ((const char *)pointer >= ranges[i].base &&
            (const char *)pointer < ranges[i].base + ranges[i].size_bytes) {
            return &ranges[i];
        }
    }
    return NULL;
}

static bool is_device(const void *pointer, size_t size_bytes)
{
    pthread_mutex_lock(&lock);
    const struct range *range = range_of(pointer);
    bool inside = range != NULL && range->type == 2 &&
                  size_bytes <= range->size_bytes - (size_t)((const char *)pointer - range->base);
    pthread_mutex_unlock(&lock);
    return inside;
}

static bool is_pinned(const void *pointer)
{
    pthread_mutex_lock(&lock);
    const struct range *range = range_of(pointer);
    bool pinned = range != NULL && range->type == 1;
    pthread_mutex_unlock(&lock);
    return pinned;
}

static int add_range(char *base, size_t size_bytes, int type, unsigned flags, bool owned)
{
    pthread_mutex_lock(&lock);
    bool fits = range_count < RANGES_MAX;
    if (fits) {
        ranges[range_count++] = (struct range){base, size_bytes, type, flags, owned};
    }
    pthread_mutex_unlock(&lock);
    return fits ? 0 : MEMORY;
}

static bool remove_range(const void *base, int type, struct range *removed)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    struct range *range = range_of(base);
    if (range != NULL && range->base == base && range->type == type) {
        *removed = *range;
        *range = ranges[--range_count];
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

EXPORT cudaError_t cudaMalloc(void **pointer, size_t size)
{
    if (pointer == NULL) {
        return done(VALUE);
    }
    *pointer = NULL;
    if (size == 0) {
        return done(0);
    }
    size_t room = (size + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
    pthread_mutex_lock(&lock);
    bool fits = size <= MEMORY_BYTES && used_bytes + size <= MEMORY_BYTES &&
                next_chunk + room <= DEVICE_BYTES;
    uint64_t at = DEVICE_BASE + next_chunk;
    used_bytes += fits ? size : 0;
    next_chunk += fits ? room : 0;
    pthread_mutex_unlock(&lock);
    if (!fits) {
        return done(MEMORY);
    }
    void *place = mmap((void *)at, room, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (place != (void *)at) {
        return done(MEMORY);
    }
    *pointer = place;
    return done(add_range(place, size, 2, 0, true));
}

EXPORT cudaError_t cudaDeviceSynchronize(void);

EXPORT cudaError_t cudaFree(void *pointer)
{
    struct range range;
    if (pointer == NULL) {
        return done(0);
    }
    (void)cudaDeviceSynchronize();
    if (!remove_range(pointer, 2, &range)) {
        return done(VALUE);
    }
    pthread_mutex_lock(&lock);
    used_bytes -= range.size_bytes;
    pthread_mutex_unlock(&lock);
    munmap(range.base, (range.size_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES);
    return done(0);
}

EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(pointer, *pitch * height);
}

EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream)
{
    (void)stream;
    return cudaMalloc(pointer, size);
}

EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    (void)stream;
    return cudaFree(pointer);
}

EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    if (pointer == NULL || (flags & ~7u) != 0) {
        return done(VALUE);
    }
    *pointer = NULL;
    if (size == 0) {
        return done(0);
    }
    if (posix_memalign(pointer, 4096, size) != 0) {
        return done(MEMORY);
    }
    return done(add_range(*pointer, size, 1, flags, true));
}

EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size)
{
    return cudaHostAlloc(pointer, size, 0);
}

EXPORT cudaError_t cudaFreeHost(void *pointer)
{
    struct range range;
    if (pointer == NULL) {
        return done(0);
    }
    (void)cudaDeviceSynchronize();
    if (!remove_range(pointer, 1, &range)) {
        return done(VALUE);
    }
    free(range.base);
    return done(0);
}

EXPORT cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned int flags)
{
    if (pointer == NULL || size == 0 || (flags & ~15u) != 0) {
        return done(VALUE);
    }
    if (is_pinned(pointer)) {
        return done(712);
    }
    return done(add_range(pointer, size, 1, flags, false));
}

EXPORT cudaError_t cudaHostUnregister(void *pointer)
{
    struct range range;
    (void)cudaDeviceSynchronize();
    if (pointer == NULL) {
        return done(VALUE);
    }
    return done(remove_range(pointer, 1, &range) ? 0 : 713);
}

EXPORT cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *pointer, unsigned flags)
{
    if (device_pointer == NULL || flags != 0 || !is_pinned(pointer)) {
        return done(VALUE);
    }
    *device_pointer = pointer;
    return done(0);
}

EXPORT cudaError_t cudaHostGetFlags(unsigned int *flags, void *pointer)
{
    int error = VALUE;
    pthread_mutex_lock(&lock);
    const struct range *range = range_of(pointer);
    if (range != NULL && range->type == 1 && flags != NULL) {
        *flags = range->flags;
        error = 0;
    }
    pthread_mutex_unlock(&lock);
    return done(error);
}

EXPORT cudaError_t cudaPointerGetAttributes(struct wh_cuda_pointer *attributes, const void *pointer)
{
    if (attributes == NULL) {
        return done(VALUE);
    }
    memset(attributes, 0, sizeof(*attributes));
    pthread_mutex_lock(&lock);
    const struct range *range = range_of(pointer);
    attributes->type = range != NULL ? range->type : 0;
    attributes->device = range != NULL ? 0 : -2;
    attributes->device_pointer = range != NULL ? (void *)(uintptr_t)pointer : NULL;
    attributes->host_pointer =
        range != NULL && range->type == 2 ? NULL : (void *)(uintptr_t)pointer;
    pthread_mutex_unlock(&lock);
    return done(0);
}

EXPORT cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    pthread_mutex_lock(&lock);
    if (available != NULL) {
        *available = MEMORY_BYTES - used_bytes;
    }
    if (total != NULL) {
        *total = MEMORY_BYTES;
    }
    pthread_mutex_unlock(&lock);
    return done(0);
}

/* Streams: a thread each, and operations in order. */

static struct stream *streams[STREAMS_MAX];
static size_t stream_count;
static struct stream *default_stream;

static void *serve(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (stream->first == NULL && !stream->ending) {
            pthread_cond_wait(&changed, &lock);
        }
        struct operation *operation = stream->first;
        if (operation == NULL) {
            break;
        }
        while (operation->after != NULL && operation->after->completed < operation->after_number) {
            pthread_cond_wait(&changed, &lock);
        }
        pthread_mutex_unlock(&lock);
        if (operation->run != NULL && __atomic_load_n(&dead, __ATOMIC_RELAXED) == 0) {
            operation->run(operation);
        }
        pthread_mutex_lock(&lock);
        stream->first = operation->next;
        stream->completed = operation->number;
        free(operation->owned);
        free(operation);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* With the lock held. */
static struct stream *new_stream(bool blocking, unsigned flags, int priority)
{
    struct stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL || stream_count == STREAMS_MAX) {
        free(stream);
        return NULL;
    }
    stream->blocking = blocking;
    stream->flags = flags;
    stream->priority = priority;
    if (pthread_create(&stream->thread, NULL, serve, stream) != 0) {
        free(stream);
        return NULL;
    }
    streams[stream_count++] = stream;
    return stream;
}

static struct stream *find_stream(cudaStream_t handle)
{
    if ((uintptr_t)handle <= 2) {
        if (default_stream == NULL) {
            default_stream = new_stream(true, 0, 0);
        }
        return default_stream;
    }
    for (size_t i = 0; i < stream_count; i++) {
        if (streams[i] == (struct stream *)(void *)handle) {
            return streams[i];
        }
    }
    return NULL;
}

struct stream *ref_stream(cudaStream_t handle)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(handle);
    pthread_mutex_unlock(&lock);
    return stream;
}

/* With the lock held. */
static void append(struct stream *stream, struct operation *operation)
{
    operation->number = ++stream->enqueued;
    if (stream->first == NULL) {
        stream->first = operation;
    } else {
        stream->last->next = operation;
    }
    stream->last = operation;
    pthread_cond_broadcast(&changed);
}

static void append_wait(struct stream *stream, struct stream *other)
{
    struct operation *wait = other == stream ? NULL : calloc(1, sizeof(*wait));
    if (wait != NULL) {
        wait->after = other;
        wait->after_number = other->enqueued;
        append(stream, wait);
    }
}

struct operation *ref_copy_of(const struct operation *operation)
{
    struct operation *made = malloc(sizeof(*made));
    memcpy(made, operation, sizeof(*made));
    made->next = NULL;
    if (operation->owned != NULL) {
        made->owned = aligned_alloc(64, (operation->owned_bytes + 63) / 64 * 64);
        memcpy(made->owned, operation->owned, operation->owned_bytes);
    }
    for (uint32_t i = 0; i < operation->parameter_count; i++) {
        made->parameters[i] =
            (char *)made->owned + ((char *)operation->parameters[i] - (char *)operation->owned);
    }
    return made;
}

void ref_drop(struct operation *operation)
{
    if (operation != NULL) {
        free(operation->owned);
        free(operation);
    }
}

/* Enqueues; *stream and *number (may be NULL) say where. */
static int enqueue(cudaStream_t handle, struct operation *operation, struct stream **in)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(handle);
    if (stream == NULL) {
        pthread_mutex_unlock(&lock);
        ref_drop(operation);
        return HANDLE;
    }
    if (stream->graph != NULL) {
        int error = ref_capture(stream, operation);
        pthread_mutex_unlock(&lock);
        return error;
    }
    if (stream == default_stream) {
        for (size_t i = 0; i < stream_count; i++) {
            if (streams[i]->blocking) {
                append_wait(stream, streams[i]);
            }
        }
    } else if (stream->blocking && default_stream != NULL) {
        append_wait(stream, default_stream);
    }
    /* As a device's queue: who finds it full waits for room. */
    while (stream->enqueued - stream->completed >= QUEUE_MAX) {
        pthread_cond_wait(&changed, &lock);
    }
    append(stream, operation);
    if (in != NULL) {
        *in = stream;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

void ref_end_capture(const struct ref_graph *graph)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < stream_count; i++) {
        if (streams[i]->graph == graph) {
            streams[i]->graph = NULL;
            streams[i]->tail = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
}

int ref_enqueue(cudaStream_t handle, struct operation *operation, struct stream **in)
{
    return enqueue(handle, operation, in);
}

static void wait_for(struct stream *stream)
{
    uint64_t number = stream->enqueued;
    while (stream->completed < number) {
        pthread_cond_wait(&changed, &lock);
    }
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(handle);
    if (stream != NULL && stream == default_stream) {
        for (size_t i = 0; i < stream_count; i++) {
            if (streams[i]->blocking) {
                wait_for(streams[i]);
            }
        }
    } else if (stream != NULL) {
        wait_for(stream);
    }
    pthread_mutex_unlock(&lock);
    return done(stream == NULL ? HANDLE : 0);
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < stream_count; i++) {
        wait_for(streams[i]);
    }
    pthread_mutex_unlock(&lock);
    return done(0);
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority)
{
    if (handle == NULL || flags > 1) {
        return done(VALUE);
    }
    pthread_mutex_lock(&lock);
    *handle = (cudaStream_t)(void *)new_stream(flags == 0, flags, priority);
    pthread_mutex_unlock(&lock);
    return done(*handle == NULL ? MEMORY : 0);
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags)
{
    return cudaStreamCreateWithPriority(handle, flags, 0);
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *handle)
{
    return cudaStreamCreateWithPriority(handle, 0, 0);
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = (uintptr_t)handle <= 2 ? NULL : find_stream(handle);
    if (stream != NULL) {
        wait_for(stream);
        stream->ending = true;
        pthread_cond_broadcast(&changed);
        for (size_t i = 0; i < stream_count; i++) {
            if (streams[i] == stream) {
                streams[i] = streams[--stream_count];
            }
        }
    }
    pthread_mutex_unlock(&lock);
    /* Events may name it: it is kept, as a double may. */
    return done(stream == NULL ? HANDLE : 0);
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(handle);
    bool ready = stream != NULL && stream->completed == stream->enqueued;
    pthread_mutex_unlock(&lock);
    return done(stream == NULL ? HANDLE : ready ? 0 : NOT_READY);
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    pthread_mutex_lock(&lock);
    const struct stream *stream = find_stream(handle);
    pthread_mutex_unlock(&lock);
    if (stream != NULL && priority != NULL) {
        *priority = stream->priority;
    }
    return done(stream == NULL ? HANDLE : priority == NULL ? VALUE : 0);
}

EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags)
{
    pthread_mutex_lock(&lock);
    const struct stream *stream = find_stream(handle);
    pthread_mutex_unlock(&lock);
    if (stream != NULL && flags != NULL) {
        *flags = stream->flags;
    }
    return done(stream == NULL ? HANDLE : flags == NULL ? VALUE : 0);
}

EXPORT cudaError_t cudaStreamGetAttribute(cudaStream_t handle, int attribute, void *value)
{
    const struct stream *stream = ref_stream(handle);
    if (stream == NULL || attribute < 0 || attribute >= 16) {
        return done(stream == NULL ? HANDLE : VALUE);
    }
    memcpy(value, stream->attributes[attribute], sizeof(stream->attributes[attribute]));
    if (attribute == 8) {
        memcpy(value, &stream->priority, sizeof(stream->priority));
    }
    return done(0);
}

EXPORT cudaError_t cudaStreamSetAttribute(cudaStream_t handle, int attribute, const void *value)
{
    struct stream *stream = ref_stream(handle);
    if (stream == NULL || attribute < 0 || attribute >= 16) {
        return done(stream == NULL ? HANDLE : VALUE);
    }
    memcpy(stream->attributes[attribute], value, sizeof(stream->attributes[attribute]));
    return done(0);
}

EXPORT cudaError_t cudaStreamCopyAttributes(cudaStream_t dst, cudaStream_t src)
{
    struct stream *to = ref_stream(dst);
    const struct stream *from = ref_stream(src);
    if (to == NULL || from == NULL) {
        return done(HANDLE);
    }
    memcpy(to->attributes, from->attributes, sizeof(to->attributes));
    return done(0);
}

/* Copies. */

static void run_copy(struct operation *operation)
{
    for (size_t slice = 0; slice < operation->depth; slice++) {
        char *dst = operation->dst + slice * operation->dst_slice;
        const char *src = operation->src + slice * operation->src_slice;
        for (size_t row = 0; row < operation->height; row++) {
            memmove(dst + row * operation->dst_pitch, src + row * operation->src_pitch,
                    operation->width);
        }
    }
}

static void run_fill(struct operation *operation)
{
    for (size_t row = 0; row < operation->height; row++) {
        char *at = operation->dst + row * operation->dst_pitch;
        if (operation->element_bytes == 1) {
            memset(at, operation->value, operation->width);
            continue;
        }
        for (size_t i = 0; i < operation->width; i++) {
            memcpy(at + i * operation->element_bytes, &operation->value, operation->element_bytes);
        }
    }
}

static size_t extent_of(const struct wh_cuda_pitched *of, const struct wh_cuda_extent *extent)
{
    return (extent->depth - 1) * of->pitch * of->height + (extent->height - 1) * of->pitch +
           extent->width;
}

static char *first_byte(const struct wh_cuda_pitched *of, const struct wh_cuda_position *at)
{
    return (char *)of->pointer + (at->z * of->height + at->y) * of->pitch + at->x;
}

int ref_copy_operation(const struct wh_cuda_copy *copy, struct operation **made)
{
    char *dst = first_byte(&copy->dst, &copy->dst_at);
    const char *src = first_byte(&copy->src, &copy->src_at);
    int kind = copy->kind;
    bool to_device = is_device(dst, extent_of(&copy->dst, &copy->extent)) || is_pinned(dst);
    bool from_device = is_device(src, extent_of(&copy->src, &copy->extent)) || is_pinned(src);
    if (kind < 0 || kind > 4) {
        return 21;
    }
    if (((kind == 1 || kind == 3) && !to_device) || ((kind == 2 || kind == 3) && !from_device)) {
        return VALUE;
    }
    struct operation *operation = calloc(1, sizeof(*operation));
    operation->run = run_copy;
    operation->dst = dst;
    operation->src = src;
    operation->dst_pitch = copy->dst.pitch;
    operation->src_pitch = copy->src.pitch;
    operation->dst_slice = copy->dst.pitch * copy->dst.height;
    operation->src_slice = copy->src.pitch * copy->src.height;
    operation->width = copy->extent.width;
    operation->height = copy->extent.height;
    operation->depth = copy->extent.depth;
    *made = operation;
    return 0;
}

static bool is_captured(cudaStream_t handle)
{
    const struct stream *stream = ref_stream(handle);
    return stream != NULL && stream->graph != NULL;
}

static int copy_area(const struct wh_cuda_copy *what, cudaStream_t stream, bool waits)
{
    struct operation *operation = NULL;
    if (what->extent.width == 0 || what->extent.height == 0 || what->extent.depth == 0) {
        return 0;
    }
    int error = ref_copy_operation(what, &operation);
    if (error != 0) {
        return error;
    }
    /* Bytes of pageable memory are taken at the call; a graph takes them at each launch. */
    bool captured = is_captured(stream);
    if (!captured && !is_device(operation->src, 1) && !is_pinned(operation->src)) {
        size_t row_count = operation->height * operation->depth;
        operation->owned_bytes = operation->width * row_count;
        operation->owned = malloc(operation->owned_bytes);
        for (size_t i = 0; i < row_count; i++) {
            memcpy((char *)operation->owned + i * operation->width,
                   operation->src + i / operation->height * operation->src_slice +
                       i % operation->height * operation->src_pitch,
                   operation->width);
        }
        operation->src = operation->owned;
        operation->src_pitch = operation->width;
        operation->src_slice = operation->width * operation->height;
    }
    waits = waits || (!is_device(operation->dst, 1) && !is_pinned(operation->dst));
    error = enqueue(stream, operation, NULL);
    return error == 0 && waits && !captured ? cudaStreamSynchronize(stream) : error;
}

static int copy(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                size_t height, int kind, cudaStream_t stream, bool waits)
{
    const struct wh_cuda_copy what = {
        .src = {(void *)(uintptr_t)src, src_pitch, width, height},
        .dst = {dst, dst_pitch, width, height},
        .extent = {width, height, 1},
        .kind = kind,
    };
    return copy_area(&what, stream, waits);
}

EXPORT cudaError_t cudaMemcpy3D(const struct wh_cuda_copy *what)
{
    return done(what == NULL ? VALUE : copy_area(what, NULL, true));
}

EXPORT cudaError_t cudaMemcpy3DAsync(const struct wh_cuda_copy *what, cudaStream_t stream)
{
    return done(what == NULL ? VALUE : copy_area(what, stream, false));
}

EXPORT cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, int kind)
{
    return done(copy(dst, count, src, count, count, 1, kind, NULL, true));
}

EXPORT cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, int kind,
                                   cudaStream_t stream)
{
    return done(copy(dst, count, src, count, count, 1, kind, stream, false));
}

EXPORT cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch,
                                size_t width, size_t height, int kind)
{
    return done(dpitch < width || spitch < width
                    ? 12
                    : copy(dst, dpitch, src, spitch, width, height, kind, NULL, true));
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                     size_t width, size_t height, int kind, cudaStream_t stream)
{
    return done(dpitch < width || spitch < width
                    ? 12
                    : copy(dst, dpitch, src, spitch, width, height, kind, stream, false));
}

int ref_fill_operation(const struct wh_cuda_fill *fill, struct operation **made)
{
    size_t row_bytes = fill->width * fill->element_bytes;
    if (fill->element_bytes != 1 && fill->element_bytes != 2 && fill->element_bytes != 4) {
        return VALUE;
    }
    if (!is_device(fill->dst, fill->pitch * (fill->height - 1) + row_bytes) &&
        !is_pinned(fill->dst)) {
        return VALUE;
    }
    struct operation *operation = calloc(1, sizeof(*operation));
    operation->run = run_fill;
    operation->dst = fill->dst;
    operation->dst_pitch = fill->pitch;
    operation->width = fill->width;
    operation->height = fill->height;
    operation->element_bytes = fill->element_bytes;
    operation->value = (int)fill->value;
    *made = operation;
    return 0;
}

static int fill(void *pointer, size_t pitch, int value, size_t width, size_t height,
                cudaStream_t stream)
{
    const struct wh_cuda_fill what = {pointer, pitch, (unsigned)value, 1, width, height};
    struct operation *operation = NULL;
    if (width == 0 || height == 0) {
        return 0;
    }
    int error = ref_fill_operation(&what, &operation);
    return error != 0 ? error : enqueue(stream, operation, NULL);
}

EXPORT cudaError_t cudaMemset(void *pointer, int value, size_t count)
{
    return done(fill(pointer, count, value, count, 1, NULL));
}

EXPORT cudaError_t cudaMemsetAsync(void *pointer, int value, size_t count, cudaStream_t stream)
{
    return done(fill(pointer, count, value, count, 1, stream));
}

EXPORT cudaError_t cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height)
{
    return done(fill(pointer, pitch, value, width, height, NULL));
}

EXPORT cudaError_t cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width,
                                     size_t height, cudaStream_t stream)
{
    return done(fill(pointer, pitch, value, width, height, stream));
}

static int fill_slices(struct wh_cuda_pitched pitched, int value, struct wh_cuda_extent extent,
                       cudaStream_t stream)
{
    int error = 0;
    for (size_t i = 0; i < extent.depth && error == 0; i++) {
        error = fill((char *)pitched.pointer + i * pitched.pitch * pitched.height, pitched.pitch,
                     value, extent.width, extent.height, stream);
    }
    return error;
}

EXPORT cudaError_t cudaMemset3D(struct wh_cuda_pitched pitched, int value,
                                struct wh_cuda_extent extent)
{
    return done(fill_slices(pitched, value, extent, NULL));
}

EXPORT cudaError_t cudaMemset3DAsync(struct wh_cuda_pitched pitched, int value,
                                     struct wh_cuda_extent extent, cudaStream_t stream)
{
    return done(fill_slices(pitched, value, extent, stream));
}

EXPORT cudaError_t cudaMalloc3D(struct wh_cuda_pitched *pitched, struct wh_cuda_extent extent)
{
    pitched->width = extent.width;
    pitched->height = extent.height;
    return cudaMallocPitch(&pitched->pointer, &pitched->pitch, extent.width,
                           extent.height * extent.depth);
}

/* Events. */

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    if (event == NULL || (flags & ~7u) != 0) {
        return done(VALUE);
    }
    struct event *made = calloc(1, sizeof(*made));
    made->timing = (flags & 2) == 0;
    *event = (cudaEvent_t)(void *)made;
    return done(0);
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    (void)event; /* an operation may name it: kept, as a double may */
    return done(event == NULL ? HANDLE : 0);
}

static void run_record(struct operation *operation)
{
    pthread_mutex_lock(&lock);
    clock_gettime(CLOCK_MONOTONIC, &operation->event->time);
    operation->event->timed = operation->number;
    pthread_mutex_unlock(&lock);
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream)
{
    struct event *event = (struct event *)(void *)handle;
    struct operation *operation = calloc(1, sizeof(*operation));
    struct stream *in = ref_stream(stream);
    operation->run = run_record;
    operation->event = event;
    event->graph = in == NULL ? NULL : in->graph;
    event->node = in == NULL ? NULL : in->tail;
    if (event->graph != NULL) {
        free(operation);
        return done(0);
    }
    int error = enqueue(stream, operation, &in);
    if (error == 0) {
        pthread_mutex_lock(&lock);
        event->stream = in;
        event->number = in->enqueued;
        pthread_mutex_unlock(&lock);
    }
    return done(error);
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    return flags != 0 ? done(VALUE) : cudaEventRecord(event, stream);
}

static bool is_complete(const struct event *event)
{
    return event->stream == NULL || event->stream->completed >= event->number;
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    pthread_mutex_lock(&lock);
    bool ready = is_complete((struct event *)(void *)handle);
    pthread_mutex_unlock(&lock);
    return done(ready ? 0 : NOT_READY);
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    pthread_mutex_lock(&lock);
    while (!is_complete((struct event *)(void *)handle)) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return done(0);
}

EXPORT cudaError_t cudaEventElapsedTime(float *elapsed_ms, cudaEvent_t start, cudaEvent_t end)
{
    const struct event *first = (struct event *)(void *)start;
    const struct event *second = (struct event *)(void *)end;
    int error = 0;
    pthread_mutex_lock(&lock);
    if (elapsed_ms == NULL) {
        error = VALUE;
    } else if (first->stream == NULL || second->stream == NULL || !first->timing ||
               !second->timing) {
        error = HANDLE;
    } else if (!is_complete(first) || !is_complete(second)) {
        error = NOT_READY;
    } else {
        *elapsed_ms = (float)(second->time.tv_sec - first->time.tv_sec) * 1e3f +
                      (float)(second->time.tv_nsec - first->time.tv_nsec) / 1e6f;
    }
    pthread_mutex_unlock(&lock);
    return done(error);
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned flags)
{
    const struct event *event = (struct event *)(void *)handle;
    struct stream *in = ref_stream(stream);
    (void)flags;
    if (event->graph != NULL && in != NULL) {
        ref_join(in, event->node);
        in->graph = event->graph;
        return done(0);
    }
    struct operation *operation = calloc(1, sizeof(*operation));
    pthread_mutex_lock(&lock);
    operation->after = event->stream;
    operation->after_number = event->number;
    pthread_mutex_unlock(&lock);
    return done(enqueue(stream, operation, NULL));
}

/* Host functions. */

static void run_function(struct operation *operation)
{
    if (operation->function != NULL) {
        operation->function(operation->data);
    } else {
        operation->callback(operation->dst, 0, operation->data);
    }
}

struct operation *ref_function_operation(void *function, void *data)
{
    struct operation *operation = calloc(1, sizeof(*operation));
    operation->run = run_function;
    operation->function = (void (*)(void *))function;
    operation->data = data;
    return operation;
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void *function, void *data)
{
    return done(function == NULL ? VALUE
                                 : enqueue(stream, ref_function_operation(function, data), NULL));
}

EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, void *function, void *data,
                                         unsigned flags)
{
    struct operation *operation = calloc(1, sizeof(*operation));
    if (function == NULL || flags != 0 || is_captured(stream)) {
        free(operation);
        return done(is_captured(stream) ? CAPTURE_UNSUPPORTED : VALUE);
    }
    operation->run = run_function;
    operation->callback = (void (*)(void *, int, void *))function;
    operation->dst = (char *)stream;
    operation->data = data;
    return done(enqueue(stream, operation, NULL));
}

/* Images, kernels. */

struct image {
    void *library;
};

struct kernel {
    struct kernel *next;
    const void *function; /* host function, if registered */
    ref_kernel *run;
    const struct wh_cuda_parameter *layout;
    uint32_t count;
    struct image *image; /* registered, not loaded yet */
    const char *name;
    int dynamic_bytes;
};

struct registered {
    const uint8_t *bytes;
    struct image image;
};

struct variable {
    struct variable *next;
    const void *shadow;
    struct registered *of;
    const char *name;
    size_t size_bytes;
};

static struct kernel *kernels;
static struct variable *variables;

static void *load(const uint8_t *bytes)
{
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t size_bytes;
    } header;
    char path[256];
    const char *folder = getenv("TMPDIR");
    memcpy(&header, bytes, sizeof(header));
    if (header.magic != FATBIN_MAGIC) {
        return NULL;
    }
    snprintf(path, sizeof(path), "%s/refcuda-XXXXXX", folder != NULL ? folder : "/tmp");
    int file = mkstemp(path);
    if (file < 0) {
        return NULL;
    }
    const uint8_t *from = bytes + header.header_bytes;
    void *library = NULL;
    if (write(file, from, header.size_bytes) == (ssize_t)header.size_bytes) {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            fprintf(stderr, "refcuda: %s\n", dlerror());
        }
    }
    close(file);
    unlink(path);
    return library;
}

static int resolve(struct kernel *kernel, void *library, const char *name)
{
    char layout[256];
    snprintf(layout, sizeof(layout), "%s_layout", name);
    kernel->run = (ref_kernel *)dlsym(library, name);
    kernel->layout = dlsym(library, layout);
    if (kernel->run == NULL || kernel->layout == NULL) {
        return NOT_FOUND;
    }
    kernel->count = 0;
    while (kernel->layout[kernel->count].size_bytes != 0) {
        kernel->count++;
    }
    return 0;
}

EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, void *options,
                                       void **option_values, unsigned option_count,
                                       void *library_options, void **library_values,
                                       unsigned library_count)
{
    struct image *image = calloc(1, sizeof(*image));
    (void)options;
    (void)option_values;
    (void)option_count;
    (void)library_options;
    (void)library_values;
    (void)library_count;
    image->library = load(code);
    *library = (cudaLibrary_t)(void *)image;
    /* Text is compiled when it is used. */
    return done(image->library == NULL && *(const char *)code != '.' ? 200 : 0);
}

/* cuLibraryGetModule: has the code compiled. */
static int get_module(void **module, cudaLibrary_t library)
{
    *module = library;
    return ((struct image *)(void *)library)->library == NULL ? 218 : 0;
}

EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    (void)library;
    return done(0);
}

EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t *result, cudaLibrary_t library,
                                        const char *name)
{
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    void *code = ((struct image *)(void *)library)->library;
    int error = code == NULL ? 218 : resolve(kernel, code, name);
    if (error == 0) {
        pthread_mutex_lock(&lock);
        kernel->next = kernels;
        kernels = kernel;
        pthread_mutex_unlock(&lock);
        *result = (cudaKernel_t)(void *)kernel;
    }
    return done(error);
}

EXPORT cudaError_t cudaLibraryGetGlobal(void **address, size_t *size_bytes, cudaLibrary_t library,
                                        const char *name)
{
    char sizes[256];
    void *handle = ((struct image *)(void *)library)->library;
    snprintf(sizes, sizeof(sizes), "%s_bytes", name);
    void *found = dlsym(handle, name);
    const size_t *size = dlsym(handle, sizes);
    if (found == NULL || size == NULL) {
        return done(NOT_FOUND);
    }
    if (address != NULL) {
        *address = found;
    }
    if (size_bytes != NULL) {
        *size_bytes = *size;
    }
    return is_device(found, 1) ? 0 : done(add_range(found, *size, 2, 0, false));
}

EXPORT void **__cudaRegisterFatBinary(void *wrapper)
{
    struct {
        int magic, version;
        const void *data;
    } what;
    struct registered *registered = calloc(1, sizeof(*registered));
    memcpy(&what, wrapper, sizeof(what));
    registered->bytes = what.data;
    return (void **)registered;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **image)
{
    (void)image;
}

EXPORT void __cudaUnregisterFatBinary(void **image)
{
    (void)image;
}

EXPORT void __cudaRegisterFunction(void **image, const char *function, char *device_function,
                                   const char *device_name, int thread_limit, void *thread,
                                   void *block, void *block_size, void *grid_size, int *warp_size)
{
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    (void)device_function;
    (void)thread_limit;
    (void)thread;
    (void)block;
    (void)block_size;
    (void)grid_size;
    (void)warp_size;
    kernel->function = function;
    kernel->image = &((struct registered *)(void *)image)->image;
    kernel->name = device_name;
    kernel->next = kernels;
    kernels = kernel;
}

EXPORT void __cudaRegisterVar(void **image, char *shadow, char *device_address,
                              const char *device_name, int external, size_t size_bytes,
                              int constant, int global)
{
    struct variable *variable = calloc(1, sizeof(*variable));
    (void)device_address;
    (void)external;
    (void)constant;
    (void)global;
    variable->shadow = shadow;
    variable->of = (struct registered *)(void *)image;
    variable->name = device_name;
    variable->size_bytes = size_bytes;
    variable->next = variables;
    variables = variable;
}

static struct kernel *find_kernel(const void *function)
{
    struct kernel *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct kernel *kernel = kernels; kernel != NULL && found == NULL; kernel = kernel->next) {
        if (kernel == function || (kernel->function != NULL && kernel->function == function)) {
            found = kernel;
        }
    }
    if (found != NULL && found->run == NULL) {
        struct registered *of = (struct registered *)(void *)((char *)found->image -
                                                              offsetof(struct registered, image));
        if (of->image.library == NULL) {
            of->image.library = load(of->bytes);
        }
        if (of->image.library == NULL || resolve(found, of->image.library, found->name) != 0) {
            found = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static int address_of(const void *symbol, void **address, size_t *size_bytes)
{
    for (struct variable *variable = variables; variable != NULL; variable = variable->next) {
        if (variable->shadow == symbol) {
            if (variable->of->image.library == NULL) {
                variable->of->image.library = load(variable->of->bytes);
            }
            return cudaLibraryGetGlobal(
                address, size_bytes, (cudaLibrary_t)(void *)&variable->of->image, variable->name);
        }
    }
    return SYMBOL;
}

EXPORT cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol)
{
    return done(address_of(symbol, pointer, NULL));
}

EXPORT cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol)
{
    return done(address_of(symbol, NULL, size));
}

EXPORT cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *src, size_t count,
                                      size_t offset, int kind)
{
    void *address = NULL;
    int error = address_of(symbol, &address, NULL);
    return error != 0 ? done(error) : cudaMemcpy((char *)address + offset, src, count, kind);
}

EXPORT cudaError_t cudaMemcpyFromSymbol(void *dst, const void *symbol, size_t count, size_t offset,
                                        int kind)
{
    void *address = NULL;
    int error = address_of(symbol, &address, NULL);
    return error != 0 ? done(error) : cudaMemcpy(dst, (char *)address + offset, count, kind);
}

static void run_kernel(struct operation *operation)
{
    operation->kernel(&operation->launch, operation->parameters);
    if (operation->launch.error != 0) {
        int none = 0;
        __atomic_compare_exchange_n(&dead, &none, operation->launch.error, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    }
}

int ref_launch_operation(const void *function, const struct wh_cuda_launch *how, void **arguments,
                         struct operation **made)
{
    const struct kernel *kernel = find_kernel(function);
    uint64_t threads = (uint64_t)how->block.x * how->block.y * how->block.z;
    uint64_t blocks = (uint64_t)how->grid.x * how->grid.y * how->grid.z;
    if (__atomic_load_n(&dead, __ATOMIC_RELAXED) != 0) {
        return dead;
    }
    if (kernel == NULL) {
        return HANDLE;
    }
    if (threads == 0 || threads > 1024 || blocks == 0) {
        return VALUE;
    }
    if (how->shared_bytes > (size_t)(kernel->dynamic_bytes > 0 ? kernel->dynamic_bytes : 49152)) {
        return VALUE;
    }
    struct operation *operation = calloc(1, sizeof(*operation));
    size_t bytes = 1;
    for (uint32_t i = 0; i < kernel->count; i++) {
        size_t end = kernel->layout[i].offset + kernel->layout[i].size_bytes;
        bytes = end > bytes ? end : bytes;
    }
    operation->run = run_kernel;
    operation->kernel = kernel->run;
    operation->launch = (struct ref_launch){
        .grid = how->grid, .block = how->block, .shared_bytes = how->shared_bytes};
    operation->owned_bytes = bytes;
    operation->owned = aligned_alloc(64, (bytes + 63) / 64 * 64);
    operation->parameter_count = kernel->count;
    for (uint32_t i = 0; i < kernel->count; i++) {
        operation->parameters[i] = (char *)operation->owned + kernel->layout[i].offset;
        memcpy(operation->parameters[i], arguments[i], kernel->layout[i].size_bytes);
    }
    *made = operation;
    return 0;
}

static int launch(const void *function, const struct wh_cuda_launch *how, void **arguments)
{
    struct operation *operation = NULL;
    int error = ref_launch_operation(function, how, arguments, &operation);
    return error != 0 ? error : enqueue((cudaStream_t)how->stream, operation, NULL);
}

EXPORT cudaError_t cudaLaunchKernel(const void *function, struct wh_dim3 grid, struct wh_dim3 block,
                                    void **arguments, size_t shared_bytes, cudaStream_t stream)
{
    const struct wh_cuda_launch how = {
        .grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream};
    return enqueued(launch(function, &how, arguments));
}

EXPORT cudaError_t cudaLaunchKernelExC(const struct wh_cuda_launch *how, const void *function,
                                       void **arguments)
{
    return enqueued(launch(function, how, arguments));
}

EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *function, struct wh_dim3 grid,
                                               struct wh_dim3 block, void **arguments,
                                               size_t shared_bytes, cudaStream_t stream)
{
    return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream);
}

EXPORT cudaError_t cudaFuncGetParamInfo(const void *function, size_t index, size_t *offset,
                                        size_t *size)
{
    const struct kernel *kernel = find_kernel(function);
    if (kernel == NULL || index >= kernel->count || offset == NULL) {
        return done(kernel == NULL ? FUNCTION : VALUE);
    }
    *offset = kernel->layout[index].offset;
    if (size != NULL) {
        *size = kernel->layout[index].size_bytes;
    }
    return done(0);
}

EXPORT cudaError_t cudaFuncGetAttributes(void *attributes, const void *function)
{
    const struct kernel *kernel = find_kernel(function);
    if (kernel == NULL) {
        return done(FUNCTION);
    }
    memset(attributes, 0, WH_CUDA_FUNCTION_BYTES);
    const int most = 1024;
    memcpy((char *)attributes + 24, &most, sizeof(most)); /* maxThreadsPerBlock */
    memcpy((char *)attributes + 44, &kernel->dynamic_bytes, sizeof(int));
    return done(0);
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value)
{
    struct kernel *kernel = find_kernel(function);
    if (kernel == NULL || (attribute != 8 && attribute != 9) || value > 200000) {
        return done(kernel == NULL ? FUNCTION : VALUE);
    }
    if (attribute == 8) {
        kernel->dynamic_bytes = value;
    }
    return done(0);
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *function, int block_size, size_t shared_bytes, unsigned flags)
{
    (void)shared_bytes;
    (void)flags;
    if (find_kernel(function) == NULL || block_size <= 0 || blocks == NULL) {
        return done(block_size <= 0 || blocks == NULL ? VALUE : FUNCTION);
    }
    *blocks = 2048 / block_size;
    return done(0);
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                                 int block_size,
                                                                 size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                  shared_bytes, 0);
}

EXPORT cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *size_bytes,
                                                             const void *function, int blocks,
                                                             int block_size)
{
    if (find_kernel(function) == NULL || blocks <= 0 || block_size <= 0) {
        return done(blocks <= 0 || block_size <= 0 ? VALUE : FUNCTION);
    }
    *size_bytes = 49152;
    return done(0);
}

/* Pools: what they are told; memory is the device's. */

struct pool {
    uint64_t attributes[16];
    int access;
};

static struct pool default_pool;
static struct pool *current_pool = &default_pool;

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    *pool = (cudaMemPool_t)(void *)&default_pool;
    return done(device == 0 ? 0 : DEVICE);
}

EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    *pool = (cudaMemPool_t)(void *)current_pool;
    return done(device == 0 ? 0 : DEVICE);
}

EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
    current_pool = (struct pool *)(void *)pool;
    return done(device == 0 ? 0 : DEVICE);
}

EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const void *properties)
{
    int type = 0;
    memcpy(&type, properties, sizeof(type));
    if (type != 1) { /* pinned memory of the device's */
        return done(VALUE);
    }
    *pool = calloc(1, sizeof(struct pool));
    return done(0);
}

EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    if ((struct pool *)(void *)pool == &default_pool) {
        return done(VALUE);
    }
    free(pool);
    return done(0);
}

EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, int attribute, void *value)
{
    if (attribute < 1 || attribute > 4) {
        return done(VALUE);
    }
    memcpy(&((struct pool *)(void *)pool)->attributes[attribute], value, attribute <= 3 ? 4 : 8);
    return done(0);
}

EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, int attribute, void *value)
{
    if (attribute < 1 || attribute > 8) {
        return done(VALUE);
    }
    memcpy(value, &((struct pool *)(void *)pool)->attributes[attribute], attribute <= 3 ? 4 : 8);
    return done(0);
}

EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep_bytes)
{
    (void)pool;
    (void)keep_bytes;
    return done(0);
}

EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const void *descriptions, size_t count)
{
    const int *description = descriptions; /* location (2), access */
    if (count != 1 || description[1] != 0) {
        return done(DEVICE);
    }
    ((struct pool *)(void *)pool)->access = description[2];
    return done(0);
}

EXPORT cudaError_t cudaMemPoolGetAccess(int *access, cudaMemPool_t pool, void *location)
{
    (void)pool;
    (void)location;
    *access = 3; /* a device has its own */
    return done(0);
}

EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t size, cudaMemPool_t pool,
                                           cudaStream_t stream)
{
    (void)pool;
    (void)stream;
    return cudaMalloc(pointer, size);
}

/* The device. */

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = 0;
    return done(device == 0 && peer == 0 ? 0 : DEVICE);
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer; /* a device is no peer of its own */
    (void)flags;
    return done(PEER_UNSUPPORTED);
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return done(0);
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return done(0);
}

EXPORT cudaError_t cudaSetDevice(int device)
{
    return done(device == 0 ? 0 : DEVICE);
}

EXPORT cudaError_t cudaGetDeviceProperties(void *properties, int device)
{
    if (device != 0) {
        return done(DEVICE);
    }
    memset(properties, 0, WH_CUDA_PROPERTIES_BYTES);
    snprintf(properties, 256, "Reference device of the tests (no accelerator)");
    const size_t memory_bytes = MEMORY_BYTES;
    memcpy((char *)properties + 288, &memory_bytes, sizeof(memory_bytes));
    const int yes = 1;
    memcpy((char *)properties + 664, &yes, sizeof(yes)); /* attribute 91 */
    return done(0);
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    if (device == 0 && (attribute == 10 || attribute == 16)) {
        *value = attribute == 10 ? 32 : 1; /* threads of a warp, multiprocessors */
        return done(0);
    }
    if (device != 0 || attribute <= 0 || attribute > 200) {
        return done(device != 0 ? DEVICE : VALUE);
    }
    /* Threads of a block, capability, registered memory by the host's pointer. */
    *value = attribute == 1 ? 1024 : attribute == 75 || attribute == 91 ? 1 : 0;
    return done(0);
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = -5;
    }
    return done(0);
}

/* The width of a launch's clusters, 1 without any. */
static unsigned cluster_width(const struct wh_cuda_launch *how)
{
    unsigned width = 1;
    for (unsigned i = 0; i < how->attribute_count; i++) {
        if (how->attributes[i].id == 4) { /* cudaLaunchAttributeClusterDimension */
            memcpy(&width, how->attributes[i].value, sizeof(width));
        }
    }
    return width;
}

EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                                  const struct wh_cuda_launch *how)
{
    unsigned width = cluster_width(how);
    if (find_kernel(function) == NULL || width == 0 || how->grid.x % width != 0) {
        return done(find_kernel(function) == NULL ? FUNCTION : VALUE);
    }
    *clusters = (int)(64 / width);
    return done(0);
}

EXPORT cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *function,
                                                        const struct wh_cuda_launch *how)
{
    (void)how;
    if (find_kernel(function) == NULL) {
        return done(FUNCTION);
    }
    *size = 8;
    return done(0);
}

/* The driver's API: a tensor map is what it was made of, in a form that tests can read. */

static int encode_tiled(void *map, uint32_t type, uint32_t rank, void *address,
                        const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                        const uint32_t *steps, uint32_t interleave, uint32_t swizzle,
                        uint32_t promotion, uint32_t fill)
{
    const uint32_t last = rank - 1;
    const uint64_t values[16] = {type,       rank,        (uintptr_t)address,
                                 sizes[0],   sizes[last], last > 0 ? strides[last - 1] : 0,
                                 box[0],     box[last],   steps[0],
                                 interleave, swizzle,     promotion,
                                 fill};
    if ((uintptr_t)map % 64 != 0 || (uintptr_t)address % 16 != 0) {
        return VALUE;
    }
    memcpy(map, values, sizeof(values));
    return 0;
}

static int encode_im2col(void *map, uint32_t type, uint32_t rank, void *address,
                         const uint64_t *sizes, const uint64_t *strides, const int *lower,
                         const int *upper, uint32_t channels, uint32_t columns,
                         const uint32_t *steps, uint32_t interleave, uint32_t swizzle,
                         uint32_t promotion, uint32_t fill)
{
    const uint32_t box[] = {(uint32_t)lower[0], (uint32_t)upper[rank - 3], channels, columns,
                            columns};
    (void)promotion;
    return encode_tiled(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle,
                        channels, fill);
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                    unsigned int version, unsigned long long flags,
                                                    int *status)
{
    (void)version;
    (void)flags;
    *function = strcmp(symbol, "cuTensorMapEncodeTiled") == 0    ? (void *)encode_tiled
                : strcmp(symbol, "cuTensorMapEncodeIm2col") == 0 ? (void *)encode_im2col
                : strcmp(symbol, "cuLibraryGetModule") == 0      ? (void *)get_module
                                                                 : NULL;
    *status = *function != NULL ? 0 : 1;
    return done(0);
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return done(0);
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return done(0);
}

EXPORT cudaError_t cudaGetLastError(void)
{
    int error = last_error;
    last_error = 0;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    return error == 0 ? "cudaSuccess" : error == VALUE ? "cudaErrorInvalidValue" : "cudaErrorOther";
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    return error == 0 ? "no error" : error == VALUE ? "invalid argument" : "some other error";
}
