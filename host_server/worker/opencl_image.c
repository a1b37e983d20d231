/*
 * opencl_image.c - skeletons that make images.
 *
 * How much memory an image takes, the client learns from the image itself. So where it has initial
 * data, or may have memory for the image to lie in, the first request only shows whether there may
 * be such an image: it is made, with data from memory of zeros laid out as the client's is, and
 * released. Then the client names the memory in which the image is made again, or the data follows
 * in pieces and the image is made when it is complete. Pitches and errors are thus those of the
 * real library.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "opencl_backend.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define PROPERTIES_MAX 64u    /* 8-byte items of a property list */
#define ELEMENT_BYTES_MAX 16u /* four 32-bit channels */
#define UNFINISHED_MAX 1024u  /* more than a client has threads that create at once */
#define HOST_BYTES_MAX (1ull << 40)
#define HOST_ACCESS (CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS)

/* What the client keeps of an image. */
struct facts {
    cl_mem_flags flags;
    size_t size_bytes;
    size_t element_bytes;
    size_t row_pitch;
    size_t slice_pitch;
    size_t
        place_bytes; /* what it takes in memory that both sides see; 0: it has to lie elsewhere */
};

struct creation {
    struct creation *next; /* of those that are not complete */
    uint16_t opcode;
    cl_context context;
    const cl_mem_properties *properties;
    cl_mem_flags flags;
    const cl_image_format *format;
    const cl_image_desc *desc;
    uint64_t created;
    uint8_t *host; /* laid out as the client's memory */
    size_t host_bytes;
    size_t done_bytes;
    struct facts facts;
    /* What outlives the first request. */
    cl_mem_properties kept_properties[PROPERTIES_MAX];
    cl_image_format kept_format;
    cl_image_desc kept_desc;
};

static struct creation *unfinished;
static size_t unfinished_count;
static pthread_mutex_t unfinished_lock = PTHREAD_MUTEX_INITIALIZER;

static cl_mem make(const struct creation *creation, cl_mem_flags flags, cl_int *error)
{
    const cl_image_desc *desc = creation->desc;
    switch (creation->opcode) {
    case WH_OP_clCreateImage2D:
        return wh_cl->clCreateImage2D(creation->context, flags, creation->format, desc->image_width,
                                      desc->image_height, desc->image_row_pitch, creation->host,
                                      error);
    case WH_OP_clCreateImage3D:
        return wh_cl->clCreateImage3D(creation->context, flags, creation->format, desc->image_width,
                                      desc->image_height, desc->image_depth, desc->image_row_pitch,
                                      desc->image_slice_pitch, creation->host, error);
    case WH_OP_clCreateImageWithProperties:
        return wh_cl->clCreateImageWithProperties(creation->context, creation->properties, flags,
                                                  creation->format, desc, creation->host, error);
    default:
        return wh_cl->clCreateImage(creation->context, flags, creation->format, desc,
                                    creation->host, error);
    }
}

/* The client's pointer means nothing here: what it points to is copied. A combination that the API
 * refuses stays as it is. */
static cl_mem_flags copying(cl_mem_flags flags)
{
    const cl_mem_flags others = CL_MEM_COPY_HOST_PTR | CL_MEM_ALLOC_HOST_PTR;
    if ((flags & CL_MEM_USE_HOST_PTR) != 0 && (flags & others) == 0) {
        flags = (flags & ~(cl_mem_flags)CL_MEM_USE_HOST_PTR) | CL_MEM_COPY_HOST_PTR;
    }
    return flags;
}

static size_t rows_of(const cl_image_desc *desc)
{
    bool flat = desc->image_type == CL_MEM_OBJECT_IMAGE1D ||
                desc->image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY ||
                desc->image_type == CL_MEM_OBJECT_IMAGE1D_BUFFER;
    return flat ? 1 : desc->image_height;
}

static size_t slices_of(const cl_image_desc *desc)
{
    if (desc->image_type == CL_MEM_OBJECT_IMAGE3D) {
        return desc->image_depth;
    }
    bool array = desc->image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY ||
                 desc->image_type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    return array ? desc->image_array_size : 1;
}

/* Memory for the client's data, untouched as long as nobody writes. At least as much as the image
 * takes: its elements may be smaller. False if no image is so large. */
static bool map_host(struct creation *creation)
{
    const cl_image_desc *desc = creation->desc;
    size_t row = 0;
    size_t slice = 0;
    size_t whole = 0;
    if (__builtin_mul_overflow(desc->image_width, ELEMENT_BYTES_MAX, &row)) {
        return false;
    }
    row = row < desc->image_row_pitch ? desc->image_row_pitch : row;
    if (__builtin_mul_overflow(row, rows_of(desc), &slice)) {
        return false;
    }
    slice = slice < desc->image_slice_pitch ? desc->image_slice_pitch : slice;
    if (__builtin_mul_overflow(slice, slices_of(desc), &whole) || whole > HOST_BYTES_MAX) {
        return false;
    }
    whole = whole == 0 ? 1 : whole;
    void *address = mmap(NULL, whole, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        return false;
    }
    creation->host = address;
    creation->host_bytes = whole;
    return true;
}

static void unmap_host(struct creation *creation)
{
    if (creation->host != NULL) {
        munmap(creation->host, creation->host_bytes);
    }
}

static cl_int ask(cl_mem image, struct facts *facts)
{
    const struct {
        cl_uint param;
        size_t *value;
    } queries[] = {
        {CL_IMAGE_ELEMENT_SIZE, &facts->element_bytes},
        {CL_IMAGE_ROW_PITCH, &facts->row_pitch},
        {CL_IMAGE_SLICE_PITCH, &facts->slice_pitch},
    };
    cl_int error =
        wh_cl->clGetMemObjectInfo(image, CL_MEM_FLAGS, sizeof(facts->flags), &facts->flags, NULL);
    if (error == CL_SUCCESS) {
        error = wh_cl->clGetMemObjectInfo(image, CL_MEM_SIZE, sizeof(facts->size_bytes),
                                          &facts->size_bytes, NULL);
    }
    for (size_t i = 0; i < sizeof(queries) / sizeof(queries[0]) && error == CL_SUCCESS; i++) {
        error =
            wh_cl->clGetImageInfo(image, queries[i].param, sizeof(size_t), queries[i].value, NULL);
    }
    return error;
}

/* Bytes of memory laid out with the image's own pitches; 0 if it cannot lie there. Libraries map
 * one-dimensional images of an array by the row pitch, whatever the slice pitch is. */
static size_t place_bytes(const cl_image_desc *desc, const struct facts *facts)
{
    size_t plane = 0;
    size_t whole = 0;
    bool array = desc->image_type == CL_MEM_OBJECT_IMAGE1D_ARRAY;
    if (desc->mem_object != NULL || (array && facts->slice_pitch != facts->row_pitch) ||
        __builtin_mul_overflow(facts->row_pitch, rows_of(desc), &plane)) {
        return 0;
    }
    plane = plane < facts->slice_pitch ? facts->slice_pitch : plane;
    if (__builtin_mul_overflow(plane, slices_of(desc), &whole)) {
        return 0;
    }
    return whole < facts->size_bytes ? facts->size_bytes : whole;
}

/* Makes an image only to hear what the library says of it. */
static cl_int try(const struct creation *creation, struct facts *facts)
{
    cl_int error = CL_SUCCESS;
    cl_mem image = make(creation, copying(creation->flags), &error);
    if (error == CL_SUCCESS) {
        error = ask(image, facts);
        wh_cl->clReleaseMemObject(image);
    }
    return error;
}

/* The image in the client's memory, which has the initial data; NULL if the library does not make
 * it so, or as another image than the one that the client knows. */
static cl_mem make_in_place(const struct creation *creation, void *place)
{
    const cl_mem_flags pointers = CL_MEM_COPY_HOST_PTR | CL_MEM_ALLOC_HOST_PTR;
    struct facts facts = {0};
    cl_int error = CL_SUCCESS;
    struct creation placed = *creation;
    placed.kept_desc.image_row_pitch = creation->facts.row_pitch;
    placed.kept_desc.image_slice_pitch =
        slices_of(creation->desc) > 1 ? creation->facts.slice_pitch : 0;
    placed.desc = &placed.kept_desc;
    placed.host = place;
    cl_mem image =
        make(&placed, (creation->flags & ~(pointers | HOST_ACCESS)) | CL_MEM_USE_HOST_PTR, &error);
    if (error != CL_SUCCESS) {
        return NULL;
    }
    if (ask(image, &facts) != CL_SUCCESS || facts.size_bytes != creation->facts.size_bytes ||
        facts.row_pitch != creation->facts.row_pitch ||
        facts.slice_pitch != creation->facts.slice_pitch) {
        wh_cl->clReleaseMemObject(image);
        return NULL;
    }
    return image;
}

/* What the client may do with its own memory it knows itself; here its maps are reads and writes.
 * facts: NULL if they are known. */
static cl_int make_for_good(struct wh_request *request, const struct creation *creation,
                            struct facts *facts)
{
    cl_int error = CL_SUCCESS;
    cl_mem image = make(creation, copying(creation->flags) & ~(cl_mem_flags)HOST_ACCESS, &error);
    if (error == CL_SUCCESS && facts != NULL) {
        error = ask(image, facts);
        if (error != CL_SUCCESS) {
            wh_cl->clReleaseMemObject(image);
        }
    }
    return wh_cl_register(request, creation->created, WH_KIND_MEM, image, error);
}

/* Keeps what is to be completed. */
static cl_int keep(const struct creation *creation, size_t properties_bytes)
{
    struct creation *kept = malloc(sizeof(*kept));
    if (kept == NULL) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    *kept = *creation;
    if (creation->properties != NULL) {
        memcpy(kept->kept_properties, creation->properties, properties_bytes);
        kept->properties = kept->kept_properties;
    }
    kept->kept_format = *creation->format;
    kept->format = &kept->kept_format;
    kept->kept_desc = *creation->desc;
    kept->desc = &kept->kept_desc;
    pthread_mutex_lock(&unfinished_lock);
    bool room = unfinished_count < UNFINISHED_MAX;
    if (room) {
        wh_cl->clRetainContext(kept->context);
        kept->next = unfinished;
        unfinished = kept;
        unfinished_count++;
    }
    pthread_mutex_unlock(&unfinished_lock);
    if (!room) {
        free(kept);
    }
    return room ? CL_SUCCESS : CL_OUT_OF_RESOURCES;
}

/* The creation that a part belongs to, out of the list; NULL if there is none. */
static struct creation *take_unfinished(uint64_t created)
{
    pthread_mutex_lock(&unfinished_lock);
    struct creation **link = &unfinished;
    while (*link != NULL && (*link)->created != created) {
        link = &(*link)->next;
    }
    struct creation *creation = *link;
    if (creation != NULL) {
        *link = creation->next;
        unfinished_count--;
    }
    pthread_mutex_unlock(&unfinished_lock);
    return creation;
}

static void give_back(struct creation *creation)
{
    pthread_mutex_lock(&unfinished_lock);
    creation->next = unfinished;
    unfinished = creation;
    unfinished_count++;
    pthread_mutex_unlock(&unfinished_lock);
}

static cl_int create(struct wh_request *request, struct creation *creation, bool completed_later,
                     size_t properties_bytes, struct facts *facts)
{
    if (!completed_later) {
        bool limited = (creation->flags & HOST_ACCESS) != 0;
        cl_int error = limited ? try(creation, facts) : CL_SUCCESS;
        return error == CL_SUCCESS ? make_for_good(request, creation, limited ? NULL : facts)
                                   : error;
    }
    cl_int error = try(creation, facts);
    if (error == CL_SUCCESS) {
        facts->place_bytes = place_bytes(creation->desc, facts);
        creation->facts = *facts;
        error = keep(creation, properties_bytes);
    }
    if (error != CL_SUCCESS) {
        unmap_host(creation);
    }
    return error;
}

static int create_image(struct wh_request *request, struct creation *creation, cl_int error)
{
    struct facts facts = {0};
    cl_image_desc desc;
    size_t properties_bytes = 0;
    size_t format_bytes = 0;
    size_t desc_bytes = 0;
    creation->properties =
        wh_take_blob(request, &properties_bytes, sizeof(creation->kept_properties));
    creation->flags = wh_take_u64(request);
    creation->format = wh_take_blob(request, &format_bytes, WH_CL_BLOB_BYTES_MAX);
    creation->desc = wh_take_blob(request, &desc_bytes, WH_CL_BLOB_BYTES_MAX);
    uint64_t whole = wh_take_u64(request);
    bool has_data = wh_take_u64(request) != 0;
    bool completed_later = wh_take_u64(request) != 0;
    bool old =
        creation->opcode == WH_OP_clCreateImage2D || creation->opcode == WH_OP_clCreateImage3D;
    if (wh_request_failed(request) ||
        !wh_cl_properties_end(creation->properties, properties_bytes) ||
        (creation->format != NULL && format_bytes != sizeof(cl_image_format)) ||
        (creation->desc != NULL && desc_bytes != sizeof(desc)) || (creation->desc == NULL && old)) {
        return -EBADMSG;
    }
    if (creation->desc != NULL) {
        desc = *creation->desc;
        desc.mem_object = wh_cl_object(request, whole, WH_KIND_MEM, &error);
        creation->desc = &desc;
    }
    bool complete = creation->format != NULL && creation->desc != NULL; /* else it is refused */
    if (error == CL_SUCCESS && has_data && complete) {
        error = map_host(creation) ? CL_SUCCESS : CL_INVALID_IMAGE_SIZE;
    }
    if (error == CL_SUCCESS) {
        bool later = complete && (has_data || completed_later);
        error = create(request, creation, later, properties_bytes, &facts);
    }
    wh_cl_reply_error(request, creation->opcode, error);
    wh_reply_u64(request, facts.flags);
    wh_reply_u64(request, facts.size_bytes);
    wh_reply_u64(request, facts.element_bytes);
    wh_reply_u64(request, facts.row_pitch);
    wh_reply_u64(request, facts.slice_pitch);
    wh_reply_u64(request, facts.place_bytes);
    return 0;
}

/* Ends what is complete. */
static void end_creation(struct creation *creation)
{
    wh_cl->clReleaseContext(creation->context);
    unmap_host(creation);
    free(creation);
}

/* A part of the data; the last one makes the image. Parts come one after the other. */
static int take_data(struct wh_request *request, uint16_t opcode, uint64_t created, cl_int error)
{
    size_t size = 0;
    uint64_t block = 0;
    uint64_t offset = wh_take_u64(request);
    bool last = wh_take_u64(request) != 0;
    const void *bytes = wh_take_bulk(request, &size, &block);
    struct creation *creation = wh_request_failed(request) ? NULL : take_unfinished(created);
    if (creation == NULL || bytes == NULL || offset != creation->done_bytes ||
        size > creation->host_bytes - offset) {
        return -EBADMSG; /* which ends the session, and this memory with it */
    }
    memcpy(creation->host + offset, bytes, size);
    wh_bulk_done(request->session, block);
    creation->done_bytes += size;
    if (!last && error == CL_SUCCESS) {
        give_back(creation);
    } else {
        error = error == CL_SUCCESS ? make_for_good(request, creation, NULL) : error;
        end_creation(creation);
    }
    wh_cl_reply_error(request, opcode, error);
    return 0;
}

/* Where the image lies: in the client's memory, which the reply says, or else, without initial
 * data, anywhere. Data for an image that cannot lie in the client's memory follows. */
static int place(struct wh_request *request, uint16_t opcode, uint64_t created, cl_int error)
{
    uint64_t block = 0;
    cl_mem image = NULL;
    struct creation *creation = wh_request_failed(request) ? NULL : take_unfinished(created);
    if (creation == NULL) {
        return -EBADMSG;
    }
    void *memory = wh_take_backing(request, creation->facts.place_bytes, &block);
    if (wh_request_failed(request) || creation->done_bytes != 0 ||
        (memory == NULL && creation->host != NULL) ||
        (memory != NULL && creation->facts.place_bytes == 0)) {
        return -EBADMSG; /* which ends the session, and this memory with it */
    }
    if (error == CL_SUCCESS && memory != NULL) {
        image = make_in_place(creation, memory);
    }
    if (image != NULL) {
        error = wh_cl_register_placed(request, created, image, block, CL_SUCCESS);
    } else {
        wh_bulk_done(request->session, block);
    }
    bool data_follows = error == CL_SUCCESS && image == NULL && creation->host != NULL;
    if (error == CL_SUCCESS && image == NULL && !data_follows) {
        error = make_for_good(request, creation, NULL);
    }
    if (data_follows) {
        give_back(creation);
    } else {
        end_creation(creation);
    }
    wh_cl_reply_error(request, opcode, error);
    wh_reply_u64(request, image != NULL);
    return 0;
}

static int image_request(struct wh_request *request, uint16_t opcode)
{
    struct creation creation = {.opcode = opcode};
    cl_int error = CL_SUCCESS;
    uint64_t phase = wh_take_u64(request);
    uint64_t context = wh_take_u64(request);
    creation.context = wh_cl_object(request, context, WH_KIND_CONTEXT, &error);
    creation.created = wh_take_u64(request);
    if (phase == WH_CL_PHASE_DATA) {
        return take_data(request, opcode, creation.created, error);
    }
    if (phase == WH_CL_PHASE_PLACE) {
        return place(request, opcode, creation.created, error);
    }
    return phase == WH_CL_PHASE_CREATE ? create_image(request, &creation, error) : -EBADMSG;
}

int wh_skeleton_clCreateImage(struct wh_request *request)
{
    return image_request(request, WH_OP_clCreateImage);
}

int wh_skeleton_clCreateImageWithProperties(struct wh_request *request)
{
    return image_request(request, WH_OP_clCreateImageWithProperties);
}

int wh_skeleton_clCreateImage2D(struct wh_request *request)
{
    return image_request(request, WH_OP_clCreateImage2D);
}

int wh_skeleton_clCreateImage3D(struct wh_request *request)
{
    return image_request(request, WH_OP_clCreateImage3D);
}
