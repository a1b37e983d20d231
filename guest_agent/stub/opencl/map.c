/*
 * map.c - mapped buffers and rectangles: the application gets memory of its own, filled by a read
 * and written back by a write when it is unmapped.
 */
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define MAP_ALIGNMENT 128u /* the largest OpenCL type */

struct wh_cl_map {
    struct wh_cl_map *next;
    void *address;
    size_t offset;
    size_t size;
    bool own; /* our memory, not the application's CL_MEM_USE_HOST_PTR */
    bool writes;
};

static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_maps(void)
{
    pthread_mutex_lock(&map_lock);
}

static void unlock_maps(void)
{
    pthread_mutex_unlock(&map_lock);
}

__attribute__((constructor)) static void protect_fork(void)
{
    pthread_atfork(lock_maps, unlock_maps, unlock_maps);
}

static void free_map(struct wh_cl_map *map)
{
    if (map != NULL && map->own) {
        free(map->address);
    }
    free(map);
}

void wh_cl_maps_free(struct wh_cl_object *mem)
{
    while (mem->u.of_mem.maps != NULL) {
        struct wh_cl_map *map = mem->u.of_mem.maps;
        mem->u.of_mem.maps = map->next;
        free_map(map);
    }
}

cl_uint wh_cl_map_count(const struct wh_cl_object *mem)
{
    cl_uint count = 0;
    pthread_mutex_lock(&map_lock);
    for (const struct wh_cl_map *map = mem->u.of_mem.maps; map != NULL; map = map->next) {
        count++;
    }
    pthread_mutex_unlock(&map_lock);
    return count;
}

static struct wh_cl_map *new_map(const struct wh_cl_object *mem, cl_map_flags flags, size_t offset,
                                 size_t size)
{
    struct wh_cl_map *map = calloc(1, sizeof(*map));
    if (map == NULL) {
        return NULL;
    }
    map->offset = offset;
    map->size = size;
    map->writes = (flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION)) != 0;
    map->own = mem->u.of_mem.host == NULL;
    map->address = (uint8_t *)mem->u.of_mem.host + offset;
    if (map->own) {
        size_t padded = (size + MAP_ALIGNMENT - 1) & ~(size_t)(MAP_ALIGNMENT - 1);
        map->address = padded < size ? NULL : aligned_alloc(MAP_ALIGNMENT, padded);
    }
    if (map->address == NULL) {
        free(map);
        return NULL;
    }
    return map;
}

void *CL_API_CALL wh_stub_clEnqueueMapBuffer(cl_command_queue command_queue, cl_mem buffer,
                                             cl_bool blocking_map, cl_map_flags map_flags,
                                             size_t offset, size_t size,
                                             cl_uint num_events_in_wait_list,
                                             const cl_event *event_wait_list, cl_event *event,
                                             cl_int *errcode_ret)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueMapBuffer,
        .queue = command_queue,
        .mem = buffer,
        .blocking = blocking_map,
        .offset = offset,
        .size = size,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    struct wh_cl_object *mem = (struct wh_cl_object *)buffer;
    struct wh_cl_object *created = NULL;
    struct wh_cl_map *map = NULL;
    wh_count_api_call(WH_OP_clEnqueueMapBuffer);
    cl_int error = wh_cl_check_transfer(&transfer);
    error = error == CL_SUCCESS && size == 0 ? CL_INVALID_VALUE : error;
    error = error == CL_SUCCESS ? wh_cl_take_async() : error;
    if (error == CL_SUCCESS) {
        map = new_map(mem, map_flags, offset, size);
        created = wh_cl_event_new(command_queue, CL_COMMAND_MAP_BUFFER, event != NULL);
        error = map == NULL || (event != NULL && created == NULL) ? CL_OUT_OF_HOST_MEMORY : error;
    }
    if (error == CL_SUCCESS) {
        /* Also for CL_MAP_WRITE_INVALIDATE_REGION, where the old content is merely allowed to be
         * lost. */
        transfer.to = map->address;
        error = wh_cl_read(&transfer, created);
    }
    error = wh_cl_enqueued(created, error, event);
    if (errcode_ret != NULL) {
        *errcode_ret = error;
    }
    if (error != CL_SUCCESS) {
        free_map(map);
        return NULL;
    }
    pthread_mutex_lock(&map_lock);
    map->next = mem->u.of_mem.maps;
    mem->u.of_mem.maps = map;
    pthread_mutex_unlock(&map_lock);
    return map->address;
}

static struct wh_cl_map *take_map(struct wh_cl_object *mem, const void *address)
{
    pthread_mutex_lock(&map_lock);
    struct wh_cl_map **link = &mem->u.of_mem.maps;
    while (*link != NULL && (*link)->address != address) {
        link = &(*link)->next;
    }
    struct wh_cl_map *map = *link;
    if (map != NULL) {
        *link = map->next;
    }
    pthread_mutex_unlock(&map_lock);
    return map;
}

cl_int CL_API_CALL wh_stub_clEnqueueUnmapMemObject(cl_command_queue command_queue, cl_mem memobj,
                                                   void *mapped_ptr,
                                                   cl_uint num_events_in_wait_list,
                                                   const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueUnmapMemObject,
        .queue = command_queue,
        .mem = memobj,
        .blocking = CL_FALSE,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    wh_count_api_call(WH_OP_clEnqueueUnmapMemObject);
    cl_int error = wh_cl_check_transfer(&transfer);
    error = error == CL_SUCCESS ? wh_cl_take_async() : error;
    if (error != CL_SUCCESS) {
        return error;
    }
    struct wh_cl_map *map = take_map((struct wh_cl_object *)memobj, mapped_ptr);
    if (map == NULL) {
        return CL_INVALID_VALUE;
    }
    struct wh_cl_object *created =
        wh_cl_event_new(command_queue, CL_COMMAND_UNMAP_MEM_OBJECT, event != NULL);
    transfer.offset = map->offset;
    transfer.size = map->writes ? map->size : 0; /* nothing to write: only the command's place */
    transfer.from = map->address;
    error =
        event != NULL && created == NULL ? CL_OUT_OF_HOST_MEMORY : wh_cl_write(&transfer, created);
    free_map(map);
    return wh_cl_enqueued(created, error, event);
}

/* A rectangle in the application's memory, as OpenCL describes it. */
struct rectangle {
    const size_t *origin;
    const size_t *region;
    size_t row_pitch;
    size_t slice_pitch;
};

static cl_int complete_pitches(struct rectangle *rectangle)
{
    const size_t *region = rectangle->region;
    if (rectangle->origin == NULL || region == NULL || region[0] == 0 || region[1] == 0 ||
        region[2] == 0) {
        return CL_INVALID_VALUE;
    }
    if (rectangle->row_pitch == 0) {
        rectangle->row_pitch = region[0];
    }
    if (rectangle->slice_pitch == 0) {
        rectangle->slice_pitch = region[1] * rectangle->row_pitch;
    }
    bool fits = rectangle->row_pitch >= region[0] &&
                rectangle->slice_pitch >= region[1] * rectangle->row_pitch;
    return fits ? CL_SUCCESS : CL_INVALID_VALUE;
}

/* Between the rectangle in the application's memory and the same bytes without gaps. */
static void copy_rectangle(const struct rectangle *rectangle, uint8_t *memory, uint8_t *packed,
                           bool pack)
{
    const size_t *origin = rectangle->origin;
    const size_t *region = rectangle->region;
    for (size_t z = 0; z < region[2]; z++) {
        for (size_t y = 0; y < region[1]; y++) {
            uint8_t *row = memory + origin[0] + (origin[1] + y) * rectangle->row_pitch +
                           (origin[2] + z) * rectangle->slice_pitch;
            uint8_t *tight = packed + (z * region[1] + y) * region[0];
            memcpy(pack ? tight : row, pack ? row : tight, region[0]);
        }
    }
}

static void put_rectangle(struct wh_call *call, const struct wh_cl_transfer *transfer,
                          const size_t *buffer_origin, const size_t *region, size_t row_pitch,
                          size_t slice_pitch, const struct wh_cl_object *created)
{
    wh_put_u64(call, wh_cl_handle(transfer->queue));
    wh_put_u64(call, wh_cl_handle(transfer->mem));
    wh_put_blob(call, buffer_origin, 3 * sizeof(size_t));
    wh_put_blob(call, region, 3 * sizeof(size_t));
    wh_put_u64(call, row_pitch);
    wh_put_u64(call, slice_pitch);
    wh_cl_put_handles(call, (const void *const *)transfer->wait_list, transfer->wait_count);
    wh_put_u64(call, created == NULL ? 0 : created->handle);
}

static cl_int check_rectangle(const struct wh_cl_transfer *transfer, const size_t *buffer_origin,
                              struct rectangle *host, size_t *size)
{
    cl_int error = wh_cl_check_transfer(transfer);
    if (error != CL_SUCCESS) {
        return error;
    }
    error = complete_pitches(host);
    if (error != CL_SUCCESS || buffer_origin == NULL) {
        return CL_INVALID_VALUE;
    }
    size_t plane;
    if (__builtin_mul_overflow(host->region[0], host->region[1], &plane) ||
        __builtin_mul_overflow(plane, host->region[2], size) ||
        *size > ((struct wh_cl_object *)transfer->mem)->u.of_mem.size_bytes) {
        return CL_INVALID_VALUE;
    }
    if (*size > wh_bulk_limit()) {
        return CL_OUT_OF_RESOURCES; /* larger than one message carries */
    }
    return wh_cl_take_async();
}

/* Rectangles are always done when the call returns, whether that was asked for or not. */
static cl_int transfer_rectangle(const struct wh_cl_transfer *transfer, const size_t *buffer_origin,
                                 struct rectangle *host, size_t row_pitch, size_t slice_pitch,
                                 cl_command_type command, cl_event *event)
{
    size_t size = 0;
    struct wh_call call;
    cl_int error = check_rectangle(transfer, buffer_origin, host, &size);
    if (error != CL_SUCCESS) {
        return error;
    }
    struct wh_cl_object *created = wh_cl_event_new(transfer->queue, command, event != NULL);
    uint8_t *packed = malloc(size);
    if (packed == NULL || (event != NULL && created == NULL)) {
        free(packed);
        return wh_cl_enqueued(created, CL_OUT_OF_HOST_MEMORY, event);
    }
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        free(packed);
        return wh_cl_enqueued(created, WH_CL_LOST, event);
    }
    put_rectangle(&call, transfer, buffer_origin, host->region, row_pitch, slice_pitch, created);
    if (transfer->to != NULL) {
        wh_put_out(&call, size, true);
        error = wh_cl_call_sync(&call);
        if (error == CL_SUCCESS) {
            (void)wh_get_out(&call, packed, size);
            copy_rectangle(host, transfer->to, packed, false);
        }
    } else {
        copy_rectangle(host, (uint8_t *)transfer->from, packed, true);
        wh_put_blob(&call, packed, size);
        error = wh_cl_call_sync(&call);
    }
    wh_call_end(&call);
    free(packed);
    return wh_cl_enqueued(created, error, event);
}

cl_int CL_API_CALL wh_stub_clEnqueueReadBufferRect(
    cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_read,
    const size_t *buffer_origin, const size_t *host_origin, const size_t *region,
    size_t buffer_row_pitch, size_t buffer_slice_pitch, size_t host_row_pitch,
    size_t host_slice_pitch, void *ptr, cl_uint num_events_in_wait_list,
    const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueReadBufferRect,
        .queue = command_queue,
        .mem = buffer,
        .blocking = blocking_read,
        .to = ptr,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    struct rectangle host = {host_origin, region, host_row_pitch, host_slice_pitch};
    wh_count_api_call(WH_OP_clEnqueueReadBufferRect);
    if (ptr == NULL) {
        return CL_INVALID_VALUE;
    }
    return transfer_rectangle(&transfer, buffer_origin, &host, buffer_row_pitch, buffer_slice_pitch,
                              CL_COMMAND_READ_BUFFER_RECT, event);
}

cl_int CL_API_CALL wh_stub_clEnqueueWriteBufferRect(
    cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_write,
    const size_t *buffer_origin, const size_t *host_origin, const size_t *region,
    size_t buffer_row_pitch, size_t buffer_slice_pitch, size_t host_row_pitch,
    size_t host_slice_pitch, const void *ptr, cl_uint num_events_in_wait_list,
    const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueWriteBufferRect,
        .queue = command_queue,
        .mem = buffer,
        .blocking = blocking_write,
        .from = ptr,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    struct rectangle host = {host_origin, region, host_row_pitch, host_slice_pitch};
    wh_count_api_call(WH_OP_clEnqueueWriteBufferRect);
    if (ptr == NULL) {
        return CL_INVALID_VALUE;
    }
    return transfer_rectangle(&transfer, buffer_origin, &host, buffer_row_pitch, buffer_slice_pitch,
                              CL_COMMAND_WRITE_BUFFER_RECT, event);
}
