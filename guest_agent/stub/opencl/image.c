/*
 * image.c - making, reading, writing and mapping images.
 *
 * Rows travel without the gaps that they have in the application's memory (rectangle.c). Initial
 * data is the exception: the server makes the image from memory laid out as the application's is,
 * so that it takes the pitches and refuses them as it would natively. What lies in memory that both
 * sides see is mapped in place.
 */
#include "maps.h"
#include "transfer.h"

#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

struct creation {
    uint16_t opcode;
    cl_context context;
    const cl_mem_properties *properties;
    cl_mem_flags flags;
    const cl_image_format *format;
    const cl_image_desc *desc;
    const uint8_t *host;
};

/* Where the rows of an array of one-dimensional images begin the slice pitch says. */
static size_t pitch_of_rows(const struct wh_cl_image *image)
{
    bool array = image->type == CL_MEM_OBJECT_IMAGE1D_ARRAY && image->slice_pitch != 0;
    return array ? image->slice_pitch : image->row_pitch;
}

static size_t extent_bytes(const struct wh_cl_image *image)
{
    const size_t region[3] = {image->size[0] * image->element_bytes, image->size[1],
                              image->size[2]};
    return wh_cl_extent(region, pitch_of_rows(image), image->slice_pitch);
}

/* Where a pixel lies in an image's memory. */
static size_t offset_of(const struct wh_cl_image *image, const size_t *origin)
{
    return origin[0] * image->element_bytes + origin[1] * pitch_of_rows(image) +
           origin[2] * image->slice_pitch;
}

static void keep_sizes(struct wh_cl_image *image, const cl_image_desc *desc)
{
    image->type = desc->image_type;
    image->size[0] = desc->image_width;
    image->size[1] = 1;
    image->size[2] = 1;
    switch (desc->image_type) {
    case CL_MEM_OBJECT_IMAGE1D_ARRAY:
        image->size[1] = desc->image_array_size;
        break;
    case CL_MEM_OBJECT_IMAGE2D_ARRAY:
        image->size[1] = desc->image_height;
        image->size[2] = desc->image_array_size;
        break;
    case CL_MEM_OBJECT_IMAGE3D:
        image->size[1] = desc->image_height;
        image->size[2] = desc->image_depth;
        break;
    case CL_MEM_OBJECT_IMAGE2D:
        image->size[1] = desc->image_height;
        break;
    default:
        break;
    }
}

/* The server copies host memory; what the application asked for is what it is told. */
static cl_mem_flags own_flags(cl_mem_flags flags, cl_mem_flags asked,
                              const struct wh_cl_object *whole)
{
    cl_mem_flags inherited = whole == NULL ? 0 : whole->u.of_mem.flags;
    if (((asked | inherited) & CL_MEM_USE_HOST_PTR) != 0) {
        flags = (flags & ~(cl_mem_flags)CL_MEM_COPY_HOST_PTR) | CL_MEM_USE_HOST_PTR;
    }
    if (whole != NULL && whole->u.of_mem.shared != NULL) {
        /* The server's buffer lies at a pointer whatever the application asked for. */
        const cl_mem_flags pointers =
            CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR;
        flags = (flags & ~pointers) | (inherited & pointers);
    }
    return flags;
}

static struct wh_cl_object *whole_of(const struct creation *creation)
{
    return creation->desc == NULL ? NULL : (struct wh_cl_object *)creation->desc->mem_object;
}

/* completed: the request only shows whether there may be such an image, and *place_bytes is what it
 * takes in memory that both sides see. */
static cl_int ask(const struct creation *creation, struct wh_cl_object *object, bool completed,
                  size_t *place_bytes)
{
    struct wh_call call;
    cl_image_desc desc = {0};
    struct wh_cl_image *image = &object->u.of_mem.image;
    struct wh_cl_object *whole = whole_of(creation);
    if (creation->desc != NULL) {
        desc = *creation->desc;
        desc.mem_object = NULL;
    }
    if (wh_call_begin(&call, creation->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, WH_CL_PHASE_CREATE);
    wh_put_u64(&call, wh_cl_handle(creation->context));
    wh_put_u64(&call, object->handle);
    wh_put_blob(&call, creation->properties, wh_cl_properties_bytes(creation->properties));
    wh_put_u64(&call, creation->flags);
    wh_put_blob(&call, creation->format, creation->format == NULL ? 0 : sizeof(cl_image_format));
    wh_put_blob(&call, creation->desc == NULL ? NULL : &desc,
                creation->desc == NULL ? 0 : sizeof(desc));
    wh_put_u64(&call, wh_cl_handle(whole));
    wh_put_u64(&call, creation->host != NULL);
    wh_put_u64(&call, completed);
    cl_int error = wh_cl_call_sync(&call);
    object->u.of_mem.flags = own_flags(wh_get_u64(&call), creation->flags, whole);
    object->u.of_mem.size_bytes = wh_get_u64(&call);
    image->element_bytes = (uint32_t)wh_get_u64(&call);
    image->row_pitch = wh_get_u64(&call);
    image->slice_pitch = wh_get_u64(&call);
    *place_bytes = wh_get_u64(&call);
    wh_call_end(&call);
    return error;
}

static cl_int send_data(const struct creation *creation, const struct wh_cl_object *object)
{
    size_t extent = extent_bytes(&object->u.of_mem.image);
    size_t limit = wh_bulk_limit();
    cl_int error = limit == 0 ? WH_CL_LOST : CL_SUCCESS;
    for (size_t done = 0; error == CL_SUCCESS && done < extent;) {
        struct wh_call call;
        size_t piece = extent - done < limit ? extent - done : limit;
        if (wh_call_begin(&call, creation->opcode) != 0) {
            return WH_CL_LOST;
        }
        wh_put_u64(&call, WH_CL_PHASE_DATA);
        wh_put_u64(&call, wh_cl_handle(creation->context));
        wh_put_u64(&call, object->handle);
        wh_put_u64(&call, done);
        wh_put_u64(&call, done + piece == extent);
        wh_put_blob(&call, creation->host + done, piece);
        error = wh_cl_call_error(&call);
        done += piece;
    }
    return error;
}

/* Makes the image where it may lie, *placed, or anywhere if it has no initial data. */
static cl_int place(const struct creation *creation, const struct wh_cl_object *object,
                    bool *placed)
{
    struct wh_call call;
    if (wh_call_begin(&call, creation->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, WH_CL_PHASE_PLACE);
    wh_put_u64(&call, wh_cl_handle(creation->context));
    wh_put_u64(&call, object->handle);
    wh_put_u64(&call, object->u.of_mem.backing.location);
    cl_int error = wh_cl_call_sync(&call);
    *placed = wh_get_u64(&call) != 0;
    wh_call_end(&call);
    return error;
}

/* What may lie in memory that both sides see, and has its sizes. */
static cl_int complete(const struct creation *creation, struct wh_cl_object *object,
                       size_t place_bytes)
{
    bool shared = wh_cl_share(object, creation->flags, place_bytes, creation->host,
                              extent_bytes(&object->u.of_mem.image));
    if (!shared && creation->host != NULL) {
        return send_data(creation, object);
    }
    bool placed = false;
    cl_int error = place(creation, object, &placed);
    if (!shared || placed || error != CL_SUCCESS) {
        return error;
    }
    wh_backing_free(&object->u.of_mem.backing, true);
    object->u.of_mem.shared = NULL;
    return creation->host != NULL ? send_data(creation, object) : CL_SUCCESS;
}

static void *host_of(const struct creation *creation)
{
    const struct wh_cl_object *whole = whole_of(creation);
    if (whole != NULL) {
        return whole->u.of_mem.host;
    }
    return (creation->flags & CL_MEM_USE_HOST_PTR) != 0 ? (void *)creation->host : NULL;
}

static cl_mem create(const struct creation *creation, cl_int *errcode_ret)
{
    if (!wh_cl_live(creation->context, WH_KIND_CONTEXT)) {
        return wh_cl_created(NULL, CL_INVALID_CONTEXT, errcode_ret);
    }
    struct wh_cl_object *whole = whole_of(creation);
    if (whole != NULL && !wh_cl_live(whole, WH_KIND_MEM)) {
        return wh_cl_created(NULL, CL_INVALID_MEM_OBJECT, errcode_ret);
    }
    struct wh_cl_object *object = wh_cl_object_new(WH_KIND_MEM);
    if (object == NULL) {
        return wh_cl_created(NULL, CL_OUT_OF_HOST_MEMORY, errcode_ret);
    }
    size_t place_bytes = 0;
    bool may_share = whole == NULL && wh_cl_may_share(creation->context, creation->flags);
    cl_int error = ask(creation, object, may_share, &place_bytes);
    if (error == CL_SUCCESS) {
        keep_sizes(&object->u.of_mem.image, creation->desc);
    }
    if (error == CL_SUCCESS && may_share) {
        error = complete(creation, object, place_bytes);
    } else if (error == CL_SUCCESS && creation->host != NULL) {
        error = send_data(creation, object);
    }
    if (error == CL_SUCCESS) {
        wh_cl_set_parent(object, whole != NULL ? whole : (struct wh_cl_object *)creation->context);
        object->u.of_mem.sub = whole != NULL;
        object->u.of_mem.host = host_of(creation);
        if (creation->desc->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER && whole != NULL) {
            object->u.of_mem.shared = whole->u.of_mem.shared;
        }
    }
    return wh_cl_created(object, error, errcode_ret);
}

cl_mem CL_API_CALL wh_stub_clCreateImage(cl_context context, cl_mem_flags flags,
                                         const cl_image_format *image_format,
                                         const cl_image_desc *image_desc, void *host_ptr,
                                         cl_int *errcode_ret)
{
    const struct creation creation = {
        .opcode = WH_OP_clCreateImage,
        .context = context,
        .flags = flags,
        .format = image_format,
        .desc = image_desc,
        .host = host_ptr,
    };
    WH_API_CALL();
    return create(&creation, errcode_ret);
}

cl_mem CL_API_CALL wh_stub_clCreateImageWithProperties(cl_context context,
                                                       const cl_mem_properties *properties,
                                                       cl_mem_flags flags,
                                                       const cl_image_format *image_format,
                                                       const cl_image_desc *image_desc,
                                                       void *host_ptr, cl_int *errcode_ret)
{
    const struct creation creation = {
        .opcode = WH_OP_clCreateImageWithProperties,
        .context = context,
        .properties = properties,
        .flags = flags,
        .format = image_format,
        .desc = image_desc,
        .host = host_ptr,
    };
    WH_API_CALL();
    return create(&creation, errcode_ret);
}

cl_mem CL_API_CALL wh_stub_clCreateImage2D(cl_context context, cl_mem_flags flags,
                                           const cl_image_format *image_format, size_t image_width,
                                           size_t image_height, size_t image_row_pitch,
                                           void *host_ptr, cl_int *errcode_ret)
{
    const cl_image_desc desc = {
        .image_type = CL_MEM_OBJECT_IMAGE2D,
        .image_width = image_width,
        .image_height = image_height,
        .image_row_pitch = image_row_pitch,
    };
    const struct creation creation = {
        .opcode = WH_OP_clCreateImage2D,
        .context = context,
        .flags = flags,
        .format = image_format,
        .desc = &desc,
        .host = host_ptr,
    };
    WH_API_CALL();
    return create(&creation, errcode_ret);
}

cl_mem CL_API_CALL wh_stub_clCreateImage3D(cl_context context, cl_mem_flags flags,
                                           const cl_image_format *image_format, size_t image_width,
                                           size_t image_height, size_t image_depth,
                                           size_t image_row_pitch, size_t image_slice_pitch,
                                           void *host_ptr, cl_int *errcode_ret)
{
    const cl_image_desc desc = {
        .image_type = CL_MEM_OBJECT_IMAGE3D,
        .image_width = image_width,
        .image_height = image_height,
        .image_depth = image_depth,
        .image_row_pitch = image_row_pitch,
        .image_slice_pitch = image_slice_pitch,
    };
    const struct creation creation = {
        .opcode = WH_OP_clCreateImage3D,
        .context = context,
        .flags = flags,
        .format = image_format,
        .desc = &desc,
        .host = host_ptr,
    };
    WH_API_CALL();
    return create(&creation, errcode_ret);
}

/* One color: a number for a depth image, four otherwise. */
size_t wh_cl_color_bytes(const void *image)
{
    struct wh_cl_object *object = (struct wh_cl_object *)image;
    cl_image_format format = {0};
    const struct wh_cl_query query = {
        .opcode = WH_OP_clGetImageInfo,
        .kind = WH_KIND_MEM,
        .object = image,
        .cache = WH_CL_CACHE_ALL,
        .param = CL_IMAGE_FORMAT,
        .size = sizeof(format),
        .value = &format,
    };
    if (object->u.of_mem.image.element_bytes == 0) {
        return 0; /* no image: the server says so */
    }
    bool depth = wh_cl_info(&query) == CL_SUCCESS && format.image_channel_order == CL_DEPTH;
    return depth ? sizeof(cl_float) : 4 * sizeof(cl_uint);
}

/* Whether the region lies in the image; one without pixels is for the library to judge. */
static bool inside(const struct wh_cl_image *image, const size_t *origin, const size_t *region)
{
    for (int i = 0; i < 3; i++) {
        if (origin[i] > image->size[i] || region[i] > image->size[i] - origin[i]) {
            return false;
        }
    }
    return true;
}

static cl_int check(const struct wh_cl_transfer *transfer, const size_t *origin,
                    const size_t *region, cl_mem_flags forbidden)
{
    cl_int error = wh_cl_check_objects(transfer, true);
    if (error != CL_SUCCESS) {
        return error;
    }
    const struct wh_cl_object *mem = (const struct wh_cl_object *)transfer->mem;
    if ((mem->u.of_mem.flags & forbidden) != 0) {
        return CL_INVALID_OPERATION;
    }
    if (origin == NULL || region == NULL || !inside(&mem->u.of_mem.image, origin, region)) {
        return CL_INVALID_VALUE;
    }
    return wh_cl_take_async();
}

/* The region with its rows in bytes, and how far rows and slices are apart in the application's
 * memory: rows may lie over each other, as PoCL lays them. False for pitches that it refuses. */
static bool lay_out(const struct wh_cl_image *image, const size_t *region, size_t *bytes,
                    size_t *row_pitch, size_t *slice_pitch)
{
    bool array = image->type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
    bytes[0] = region[0] * image->element_bytes;
    bytes[1] = region[1];
    bytes[2] = region[2];
    if (*row_pitch == 0) {
        *row_pitch = bytes[0];
    }
    size_t plane = array ? *row_pitch : *row_pitch * bytes[1];
    if ((array || bytes[2] > 1) && *slice_pitch != 0 && *slice_pitch < plane) {
        return false;
    }
    if (array && *slice_pitch != 0) {
        *row_pitch = *slice_pitch;
    }
    *slice_pitch = *slice_pitch == 0 ? plane : *slice_pitch;
    return true;
}

struct box {
    const size_t *origin;
    const size_t *region;
    size_t row_pitch;
    size_t slice_pitch;
};

/* bytes: the region with its rows in bytes. What lies in memory that both sides see is copied here,
 * once, if that is worth a command that holds its place. */
static cl_int move(const struct wh_cl_transfer *transfer, const struct box *box,
                   const size_t *bytes, struct wh_cl_object *event)
{
    const struct wh_cl_object *mem = (const struct wh_cl_object *)transfer->mem;
    const struct wh_cl_image *image = &mem->u.of_mem.image;
    if (!wh_cl_worth_holding(transfer, bytes[0] * bytes[1] * bytes[2], event) ||
        !wh_cl_uses_host_memory(mem->context)) {
        return wh_cl_move_image(transfer, box->origin, bytes, box->row_pitch, box->slice_pitch,
                                event);
    }
    const struct wh_cl_rows place = {
        .first = mem->u.of_mem.shared + offset_of(image, box->origin),
        .region = {bytes[0], bytes[1], bytes[2]},
        .row_pitch = pitch_of_rows(image),
        .slice_pitch = image->slice_pitch,
    };
    const struct wh_cl_rows host = {
        .first = transfer->to != NULL ? transfer->to : (uint8_t *)transfer->from,
        .region = {bytes[0], bytes[1], bytes[2]},
        .row_pitch = box->row_pitch,
        .slice_pitch = box->slice_pitch,
    };
    return wh_cl_held_rows(transfer, &place, &host, event);
}

static cl_int enqueue(struct wh_cl_transfer *transfer, struct box *box, cl_mem_flags forbidden,
                      cl_command_type command, cl_event *event)
{
    size_t bytes[3];
    cl_int error = transfer->to == NULL && transfer->from == NULL ? CL_INVALID_VALUE : CL_SUCCESS;
    cl_int wrong = check(transfer, box->origin, box->region, forbidden);
    error = wrong != CL_SUCCESS ? wrong : error;
    if (error != CL_SUCCESS) {
        return error;
    }
    const struct wh_cl_image *image = &((struct wh_cl_object *)transfer->mem)->u.of_mem.image;
    if (!lay_out(image, box->region, bytes, &box->row_pitch, &box->slice_pitch)) {
        return CL_INVALID_VALUE;
    }
    transfer->element_bytes = image->element_bytes;
    struct wh_cl_object *created = NULL;
    size_t extent = wh_cl_extent(bytes, box->row_pitch, box->slice_pitch);
    error = wh_cl_transfer_begin(transfer, extent, command, event != NULL, &created);
    if (error == CL_SUCCESS) {
        error = move(transfer, box, bytes, created);
    }
    return wh_cl_transfer_end(transfer, created, error, event);
}

cl_int CL_API_CALL wh_stub_clEnqueueReadImage(cl_command_queue command_queue, cl_mem image,
                                              cl_bool blocking_read, const size_t *origin,
                                              const size_t *region, size_t row_pitch,
                                              size_t slice_pitch, void *ptr,
                                              cl_uint num_events_in_wait_list,
                                              const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueReadImage,
        .queue = command_queue,
        .mem = image,
        .blocking = blocking_read,
        .to = ptr,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    struct box box = {origin, region, row_pitch, slice_pitch};
    WH_API_CALL();
    cl_int error = enqueue(&transfer, &box, CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS,
                           CL_COMMAND_READ_IMAGE, event);
    return error == CL_SUCCESS && blocking_read != CL_FALSE ? wh_cl_take_async() : error;
}

cl_int CL_API_CALL wh_stub_clEnqueueWriteImage(cl_command_queue command_queue, cl_mem image,
                                               cl_bool blocking_write, const size_t *origin,
                                               const size_t *region, size_t input_row_pitch,
                                               size_t input_slice_pitch, const void *ptr,
                                               cl_uint num_events_in_wait_list,
                                               const cl_event *event_wait_list, cl_event *event)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueWriteImage,
        .queue = command_queue,
        .mem = image,
        .blocking = blocking_write,
        .from = ptr,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    struct box box = {origin, region, input_row_pitch, input_slice_pitch};
    WH_API_CALL();
    return enqueue(&transfer, &box, CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS,
                   CL_COMMAND_WRITE_IMAGE, event);
}

/* What may not be mapped so. */
static cl_mem_flags forbidden_to_map(cl_map_flags flags)
{
    cl_mem_flags forbidden = 0;
    if ((flags & CL_MAP_READ) != 0) {
        forbidden |= CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS;
    }
    if ((flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION)) != 0) {
        forbidden |= CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;
    }
    return forbidden;
}

static struct wh_cl_map *new_map(const struct wh_cl_object *mem, cl_map_flags flags,
                                 const size_t *origin, const size_t *region)
{
    const struct wh_cl_image *image = &mem->u.of_mem.image;
    const size_t bytes[3] = {region[0] * image->element_bytes, region[1], region[2]};
    bool in_place = mem->u.of_mem.shared != NULL;
    uint8_t *memory = in_place ? mem->u.of_mem.shared : mem->u.of_mem.host;
    size_t offset = offset_of(image, origin);
    size_t size = wh_cl_extent(bytes, pitch_of_rows(image), image->slice_pitch);
    struct wh_cl_map *map = wh_cl_map_new(memory == NULL ? NULL : memory + offset, size, flags);
    if (map != NULL) {
        map->in_place = in_place;
        map->offset = offset;
        memcpy(map->origin, origin, sizeof(map->origin));
        memcpy(map->region, bytes, sizeof(map->region));
        map->row_pitch = pitch_of_rows(image);
        map->slice_pitch = image->slice_pitch;
    }
    return map;
}

static cl_int check_map(const struct wh_cl_transfer *transfer, const size_t *origin,
                        const size_t *region, cl_map_flags flags, const size_t *row_pitch,
                        const size_t *slice_pitch)
{
    cl_int error = check(transfer, origin, region, forbidden_to_map(flags));
    if (error != CL_SUCCESS) {
        return error;
    }
    if (wh_cl_nothing(region)) {
        return CL_INVALID_VALUE;
    }
    cl_mem_object_type type = ((struct wh_cl_object *)transfer->mem)->u.of_mem.image.type;
    bool slices = type == CL_MEM_OBJECT_IMAGE3D || type == CL_MEM_OBJECT_IMAGE1D_ARRAY ||
                  type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    return row_pitch == NULL || (slices && slice_pitch == NULL) ? CL_INVALID_VALUE : CL_SUCCESS;
}

void *CL_API_CALL wh_stub_clEnqueueMapImage(cl_command_queue command_queue, cl_mem image,
                                            cl_bool blocking_map, cl_map_flags map_flags,
                                            const size_t *origin, const size_t *region,
                                            size_t *image_row_pitch, size_t *image_slice_pitch,
                                            cl_uint num_events_in_wait_list,
                                            const cl_event *event_wait_list, cl_event *event,
                                            cl_int *errcode_ret)
{
    struct wh_cl_transfer transfer = {
        .opcode = WH_OP_clEnqueueMapImage,
        .queue = command_queue,
        .mem = image,
        .blocking = blocking_map,
        .wait_count = num_events_in_wait_list,
        .wait_list = event_wait_list,
    };
    struct wh_cl_object *mem = (struct wh_cl_object *)image;
    struct wh_cl_object *created = NULL;
    struct wh_cl_map *map = NULL;
    WH_API_CALL();
    cl_int error =
        check_map(&transfer, origin, region, map_flags, image_row_pitch, image_slice_pitch);
    if (error == CL_SUCCESS) {
        map = new_map(mem, map_flags, origin, region);
        error = map == NULL ? CL_OUT_OF_HOST_MEMORY : error;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl_transfer_begin(&transfer, 0, CL_COMMAND_MAP_IMAGE, event != NULL, &created);
    }
    if (error == CL_SUCCESS) {
        transfer.element_bytes = mem->u.of_mem.image.element_bytes;
    }
    if (error == CL_SUCCESS && map->in_place) {
        transfer.event = created;
        error = wh_cl_map_in_place(&transfer, map, map_flags);
    } else if (error == CL_SUCCESS) {
        transfer.to = map->address;
        error = wh_cl_move_image(&transfer, origin, map->region, map->row_pitch, map->slice_pitch,
                                 created);
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
    *image_row_pitch = mem->u.of_mem.image.row_pitch;
    if (image_slice_pitch != NULL) {
        *image_slice_pitch = mem->u.of_mem.image.slice_pitch;
    }
    wh_cl_map_add(mem, map);
    return map->address;
}

cl_int wh_cl_unmap_image(const struct wh_cl_transfer *transfer, const struct wh_cl_map *map,
                         struct wh_cl_object *event)
{
    struct wh_cl_transfer write = *transfer;
    write.from = map->address;
    write.element_bytes = ((struct wh_cl_object *)transfer->mem)->u.of_mem.image.element_bytes;
    return wh_cl_move_image(&write, map->origin, map->region, map->row_pitch, map->slice_pitch,
                            event);
}
