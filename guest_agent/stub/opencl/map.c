/*
 * map.c - mapped buffers, and the end of every map: the buffer itself where it lies in memory that
 * both sides see; else the application gets memory of its own, filled by a read and written back by
 * a write when it is unmapped.
 */
#include "maps.h"
#include "transfer.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

static struct wh_cl_map *new_map(const struct wh_cl_object *mem, cl_map_flags flags, size_t offset,
                                 size_t size)
{
    uint8_t *memory = mem->u.of_mem.shared != NULL ? mem->u.of_mem.shared : mem->u.of_mem.host;
    struct wh_cl_map *map = wh_cl_map_new(memory == NULL ? NULL : memory + offset, size, flags);
    if (map != NULL) {
        map->offset = offset;
        map->in_place = mem->u.of_mem.shared != NULL;
    }
    return map;
}

cl_int wh_cl_map_in_place(const struct wh_cl_transfer *transfer, const struct wh_cl_map *map,
                          cl_map_flags flags)
{
    struct wh_cl_reads reads;
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    if (transfer->element_bytes == 0) {
        wh_cl_put_transfer(&call, transfer, 0, transfer->size, WH_CL_MODE_IN_PLACE);
    } else {
        wh_cl_put_image(&call, transfer, map->origin, map->region, WH_CL_MODE_IN_PLACE);
        wh_put_u64(&call, map->offset);
    }
    wh_put_u64(&call, transfer->blocking != CL_FALSE);
    wh_put_u64(&call, flags);
    if (transfer->blocking == CL_FALSE) {
        wh_cl_put_no_reads(&call, &reads);
        uint64_t shape = wh_shape_add(wh_cl_transfer_shape(transfer), flags);
        shape = wh_shape_add(wh_shape_add(shape, map->offset), map->size);
        shape = wh_shape_add_bytes(shape, map->region, sizeof(map->region));
        return wh_cl_call_shape(&call, shape);
    }
    wh_call_blocks(&call);
    wh_cl_put_reads(&call, &reads, 0);
    wh_cl_emptying_begin(transfer->queue);
    cl_int error = wh_cl_call_reads(&call, &reads, NULL, 0);
    wh_cl_emptying_end(transfer->queue);
    return error;
}

static cl_int unmap_in_place(const struct wh_cl_transfer *transfer)
{
    struct wh_call call;
    if (wh_call_begin(&call, transfer->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_cl_put_transfer(&call, transfer, 0, 0, WH_CL_MODE_IN_PLACE);
    return wh_cl_call_shape(&call, wh_cl_transfer_shape(transfer));
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
    WH_API_CALL();
    cl_int error = wh_cl_check_transfer(&transfer);
    error = error == CL_SUCCESS && size == 0 ? CL_INVALID_VALUE : error;
    error = error == CL_SUCCESS && mem->u.of_mem.image.element_bytes != 0 ? CL_INVALID_MEM_OBJECT
                                                                          : error;
    error = error == CL_SUCCESS ? wh_cl_take_async() : error;
    if (error == CL_SUCCESS) {
        map = new_map(mem, map_flags, offset, size);
        error = map == NULL ? CL_OUT_OF_HOST_MEMORY : error;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl_transfer_begin(&transfer, 0, CL_COMMAND_MAP_BUFFER, event != NULL, &created);
    }
    if (error == CL_SUCCESS && map->in_place) {
        transfer.event = created;
        error = wh_cl_map_in_place(&transfer, map, map_flags);
    } else if (error == CL_SUCCESS) {
        /* Also for CL_MAP_WRITE_INVALIDATE_REGION, where the old content is merely allowed to be
         * lost. */
        transfer.to = map->address;
        error = wh_cl_read(&transfer, created);
        map->writes = map->writes && error != WH_CL_OUTCOME_FAILED; /* it has no content */
    }
    error = wh_cl_transfer_end(&transfer, created, error, event);
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

/* What the server refuses to unmap stays mapped. */
static void end_unmap(struct wh_cl_object *mem, struct wh_cl_map *map, cl_int error)
{
    if (error == CL_SUCCESS || error == WH_CL_LOST) {
        wh_cl_map_free(map);
    } else {
        wh_cl_map_add(mem, map);
    }
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
    WH_API_CALL();
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
    if (event != NULL && created == NULL) {
        wh_cl_map_add((struct wh_cl_object *)memobj, map);
        return CL_OUT_OF_HOST_MEMORY;
    }
    transfer.offset = map->offset;
    if (map->in_place) {
        transfer.event = created;
        error = unmap_in_place(&transfer);
        end_unmap((struct wh_cl_object *)memobj, map, error);
        return wh_cl_enqueued(created, error, event);
    }
    /* Nobody has written what nobody has seen. Without anything to write only the command's place
     * remains. */
    bool unseen = wh_cl_reads_abandon(map->address, map->size, 0);
    map->writes = map->writes && !unseen;
    transfer.size = map->writes ? map->size : 0;
    transfer.from = map->address;
    bool image = ((struct wh_cl_object *)memobj)->u.of_mem.image.element_bytes != 0;
    if (image && transfer.size > 0) {
        transfer.opcode = WH_OP_clEnqueueWriteImage;
        error = wh_cl_unmap_image(&transfer, map, created);
    } else {
        error = wh_cl_write(&transfer, created);
    }
    end_unmap((struct wh_cl_object *)memobj, map, error);
    return wh_cl_enqueued(created, error, event);
}
