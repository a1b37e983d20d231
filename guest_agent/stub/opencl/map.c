/*
 * map.c - mapped buffers: the application gets memory of its own, filled by a read
 * and written back by a write when it is unmapped.
 */
#include "maps.h"
#include "transfer.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

static struct wh_cl_map *new_map(const struct wh_cl_object *mem, cl_map_flags flags, size_t offset,
                                 size_t size)
{
    uint8_t *host = mem->u.of_mem.host;
    struct wh_cl_map *map = wh_cl_map_new(host == NULL ? NULL : host + offset, size, flags);
    if (map != NULL) {
        map->offset = offset;
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
        wh_cl_map_free(map);
        return NULL;
    }
    wh_cl_map_add(mem, map);
    return map->address;
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
    struct wh_cl_map *map = wh_cl_map_take((struct wh_cl_object *)memobj, mapped_ptr);
    if (map == NULL) {
        return CL_INVALID_VALUE;
    }
    struct wh_cl_object *created =
        wh_cl_event_new(command_queue, CL_COMMAND_UNMAP_MEM_OBJECT, event != NULL);
    transfer.offset = map->offset;
    /* Nobody has written what nobody has seen. Without anything to write only the command's place
     * remains. */
    bool unseen = wh_cl_reads_abandon(map->address, map->size);
    transfer.size = map->writes && !unseen ? map->size : 0;
    transfer.from = map->address;
    bool image = ((struct wh_cl_object *)memobj)->u.of_mem.image.element_bytes != 0;
    if (event != NULL && created == NULL) {
        error = CL_OUT_OF_HOST_MEMORY;
    } else if (image && transfer.size > 0) {
        transfer.opcode = WH_OP_clEnqueueWriteImage;
        error = wh_cl_unmap_image(&transfer, map, created);
    } else {
        error = wh_cl_write(&transfer, created);
    }
    wh_cl_map_free(map);
    return wh_cl_enqueued(created, error, event);
}
