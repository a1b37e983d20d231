/*
 * opencl_images.c - images of every kind: prints what the implementation does, to be compared
 * between the machine's own OpenCL and the forwarded one. `opencl_images SCENARIO...`; without any
 * it names them all.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS

#include "scenarios.h"

#define WIDTH 7u
#define HEIGHT 5u
#define DEPTH 3u
#define HOST_BYTES 8192u

static cl_device_id device;
static cl_context context;
static cl_command_queue queue;

static const struct {
    const char *name;
    cl_mem_object_type type;
    size_t size[3]; /* pixels, rows, slices */
} shapes[] = {
    {"1d", CL_MEM_OBJECT_IMAGE1D, {WIDTH, 1, 1}},
    {"1d-array", CL_MEM_OBJECT_IMAGE1D_ARRAY, {WIDTH, DEPTH, 1}},
    {"2d", CL_MEM_OBJECT_IMAGE2D, {WIDTH, HEIGHT, 1}},
    {"2d-array", CL_MEM_OBJECT_IMAGE2D_ARRAY, {WIDTH, HEIGHT, DEPTH}},
    {"3d", CL_MEM_OBJECT_IMAGE3D, {WIDTH, HEIGHT, DEPTH}},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static const struct {
    const char *name;
    cl_image_format format;
    size_t bytes;
} formats[] = {
    {"rgba8", {CL_RGBA, CL_UNSIGNED_INT8}, 4},
    {"r32f", {CL_R, CL_FLOAT}, 4},
    {"rgba32f", {CL_RGBA, CL_FLOAT}, 16},
    {"a8", {CL_A, CL_UNORM_INT8}, 1},
};
#define FORMATS (sizeof(formats) / sizeof(formats[0]))

static uint64_t hash(const void *bytes, size_t size)
{
    const uint8_t *from = bytes;
    uint64_t value = 14695981039346656037ull;
    for (size_t i = 0; i < size; i++) {
        value = (value ^ from[i]) * 1099511628211ull;
    }
    return value;
}

static void fill(uint8_t *bytes, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++) {
        seed = seed * 1103515245u + 12345u;
        bytes[i] = (uint8_t)(seed >> 16) & 0x3f; /* no NaN among the floats */
    }
}

static cl_image_desc describe(size_t shape)
{
    cl_image_desc desc = {.image_type = shapes[shape].type, .image_width = WIDTH};
    switch (shapes[shape].type) {
    case CL_MEM_OBJECT_IMAGE1D_ARRAY:
        desc.image_array_size = DEPTH;
        break;
    case CL_MEM_OBJECT_IMAGE2D_ARRAY:
        desc.image_height = HEIGHT;
        desc.image_array_size = DEPTH;
        break;
    case CL_MEM_OBJECT_IMAGE3D:
        desc.image_height = HEIGHT;
        desc.image_depth = DEPTH;
        break;
    case CL_MEM_OBJECT_IMAGE2D:
        desc.image_height = HEIGHT;
        break;
    default:
        break;
    }
    return desc;
}

static void show_size(const char *what, cl_mem image, cl_image_info param)
{
    size_t value = 0;
    size_t size = 0;
    cl_int error = clGetImageInfo(image, param, sizeof(value), &value, &size);
    printf(" %s %d %zu %zu", what, error, size, value);
}

static void show(cl_mem image, const void *host)
{
    cl_image_format format = {0};
    cl_mem_object_type type = 0;
    cl_mem_flags flags = 0;
    size_t bytes = 0;
    void *pointer = NULL;
    cl_mem associated = NULL;
    cl_mem buffer = NULL;
    cl_uint count = 0;
    cl_context found = NULL;
    show_size("element", image, CL_IMAGE_ELEMENT_SIZE);
    show_size("row", image, CL_IMAGE_ROW_PITCH);
    show_size("slice", image, CL_IMAGE_SLICE_PITCH);
    show_size("width", image, CL_IMAGE_WIDTH);
    show_size("height", image, CL_IMAGE_HEIGHT);
    show_size("depth", image, CL_IMAGE_DEPTH);
    show_size("array", image, CL_IMAGE_ARRAY_SIZE);
    OK(clGetImageInfo(image, CL_IMAGE_FORMAT, sizeof(format), &format, NULL));
    OK(clGetImageInfo(image, CL_IMAGE_BUFFER, sizeof(buffer), &buffer, NULL));
    OK(clGetMemObjectInfo(image, CL_MEM_TYPE, sizeof(type), &type, NULL));
    OK(clGetMemObjectInfo(image, CL_MEM_FLAGS, sizeof(flags), &flags, NULL));
    OK(clGetMemObjectInfo(image, CL_MEM_SIZE, sizeof(bytes), &bytes, NULL));
    OK(clGetMemObjectInfo(image, CL_MEM_HOST_PTR, sizeof(pointer), &pointer, NULL));
    OK(clGetMemObjectInfo(image, CL_MEM_CONTEXT, sizeof(found), &found, NULL));
    OK(clGetMemObjectInfo(image, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof(associated), &associated,
                          NULL));
    OK(clGetMemObjectInfo(image, CL_MEM_REFERENCE_COUNT, sizeof(count), &count, NULL));
    printf(" format %x %x type %x flags %llx size %zu host %s associated %s buffer %s context %d "
           "references %u\n",
           format.image_channel_order, format.image_channel_data_type, type,
           (unsigned long long)flags, bytes,
           pointer == NULL   ? "none"
           : pointer == host ? "given"
                             : "other",
           associated == NULL ? "none" : "one", buffer == NULL ? "none" : "one", found == context,
           count);
}

/* The whole image, without gaps. */
static void show_content(const char *what, cl_mem image, const size_t *size, size_t bytes)
{
    const size_t zero[3] = {0, 0, 0};
    size_t whole = size[0] * size[1] * size[2] * bytes;
    uint8_t *content = malloc(whole);
    cl_int error =
        clEnqueueReadImage(queue, image, CL_TRUE, zero, size, 0, 0, content, 0, NULL, NULL);
    printf("  %s %d %016llx\n", what, error, (unsigned long long)hash(content, whole));
    free(content);
}

static void transfers(cl_mem image, const size_t *size, size_t bytes, cl_mem_object_type type)
{
    static uint8_t host[HOST_BYTES];
    const size_t origin[3] = {1, size[1] > 1, size[2] > 1};
    const size_t region[3] = {3, size[1] > 1 ? 2 : 1, size[2] > 1 ? 2 : 1};
    bool planes = type == CL_MEM_OBJECT_IMAGE3D || type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    size_t row = 5 * bytes;
    size_t slice = planes ? 4 * row : 0;
    cl_event event = NULL;
    cl_command_type command = 0;
    fill(host, sizeof(host), 7);
    printf("  write %d", clEnqueueWriteImage(queue, image, CL_FALSE, origin, region, row, slice,
                                             host, 0, NULL, &event));
    OK(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof(command), &command, NULL));
    printf(" %x", command);
    OK(clWaitForEvents(1, &event)); /* until then the memory belongs to the command */
    clReleaseEvent(event);
    memset(host, 0xee, sizeof(host));
    event = NULL;
    cl_int error = clEnqueueReadImage(queue, image, CL_FALSE, origin, region, row, slice, host, 0,
                                      NULL, &event);
    printf(" read %d", error);
    OK(clWaitForEvents(1, &event));
    OK(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof(command), &command, NULL));
    printf(" %x %016llx\n", command, (unsigned long long)hash(host, sizeof(host)));
    clReleaseEvent(event);
    show_content("content", image, size, bytes);
}

static void copies(cl_mem image, const cl_image_desc *desc, size_t format, const size_t *size)
{
    static uint8_t host[HOST_BYTES];
    size_t bytes = formats[format].bytes;
    const size_t zero[3] = {0, 0, 0};
    const size_t origin[3] = {2, size[1] > 1, size[2] > 1};
    const size_t region[3] = {3, size[1] > 1 ? 2 : 1, size[2] > 1 ? 2 : 1};
    const union {
        cl_float f[4];
        cl_uint u[4];
    } color = {.u = {0x3f000000, 0x3e000000, 0x3d000000, 0x3f000000}};
    cl_int error = CL_SUCCESS;
    cl_mem other =
        clCreateImage(context, CL_MEM_READ_WRITE, &formats[format].format, desc, NULL, &error);
    OK(error);
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, HOST_BYTES, NULL, &error);
    OK(error);
    memset(host, 0x11, sizeof(host));
    OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, HOST_BYTES, host, 0, NULL, NULL));
    for (int round = 0; round < 2; round++) { /* the second time it may go one way */
        printf("  fill %d", clEnqueueFillImage(queue, other, &color, zero, size, 0, NULL, NULL));
        printf(" copy %d",
               clEnqueueCopyImage(queue, image, other, zero, origin, region, 0, NULL, NULL));
        printf(" to buffer %d",
               clEnqueueCopyImageToBuffer(queue, other, buffer, zero, size, 32, 0, NULL, NULL));
        printf(" from buffer %d\n", clEnqueueCopyBufferToImage(queue, buffer, image, 32 + bytes,
                                                               zero, region, 0, NULL, NULL));
    }
    OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, HOST_BYTES, host, 0, NULL, NULL));
    printf("  buffer %016llx\n", (unsigned long long)hash(host, sizeof(host)));
    show_content("other", other, size, bytes);
    show_content("image", image, size, bytes);
    clReleaseMemObject(other);
    clReleaseMemObject(buffer);
}

static void maps(cl_mem image, const size_t *size, size_t bytes, const uint8_t *host)
{
    const size_t origin[3] = {1, size[1] > 1, size[2] > 1};
    const size_t region[3] = {3, size[1] > 1 ? 2 : 1, size[2] > 1 ? 2 : 1};
    const cl_map_flags flags[] = {CL_MAP_READ, CL_MAP_READ | CL_MAP_WRITE, CL_MAP_READ};
    for (size_t i = 0; i < 3; i++) {
        size_t row = 1;
        size_t slice = 1;
        cl_uint count = 0;
        cl_event event = NULL;
        cl_command_type command = 0;
        cl_int error = CL_SUCCESS;
        uint8_t *address = clEnqueueMapImage(queue, image, i != 1, flags[i], origin, region, &row,
                                             &slice, 0, NULL, &event, &error);
        OK(error);
        OK(clWaitForEvents(1, &event));
        OK(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof(command), &command, NULL));
        clReleaseEvent(event);
        OK(clGetMemObjectInfo(image, CL_MEM_MAP_COUNT, sizeof(count), &count, NULL));
        printf("  map %x row %zu slice %zu count %u", command, row, slice, count);
        if (host != NULL) {
            printf(" at %td", address - host);
        }
        uint64_t value = 0;
        for (size_t z = 0; z < region[2]; z++) {
            for (size_t y = 0; y < region[1]; y++) {
                size_t rows = size[2] == 1 && slice != 0 ? slice : row; /* an array of rows */
                uint8_t *at = address + y * rows + z * slice;
                value += hash(at, region[0] * bytes);
                if ((flags[i] & CL_MAP_WRITE) != 0) {
                    memset(at, (int)(0x21 + y), region[0] * bytes);
                }
            }
        }
        printf(" %016llx unmap %d", (unsigned long long)value,
               clEnqueueUnmapMemObject(queue, image, address, 0, NULL, NULL));
        OK(clFinish(queue));
        OK(clGetMemObjectInfo(image, CL_MEM_MAP_COUNT, sizeof(count), &count, NULL));
        printf(" %u again %d\n", count,
               clEnqueueUnmapMemObject(queue, image, (uint8_t *)address + 1, 0, NULL, NULL));
        show_content("content", image, size, bytes);
    }
}

static void scenario_shapes(void)
{
    static uint8_t host[HOST_BYTES];
    static const cl_mem_flags kinds[] = {CL_MEM_READ_WRITE, CL_MEM_COPY_HOST_PTR,
                                         CL_MEM_USE_HOST_PTR | CL_MEM_READ_ONLY,
                                         CL_MEM_ALLOC_HOST_PTR, 0};
    for (size_t i = 0; i < SHAPES * FORMATS * 5; i++) {
        size_t shape = i % SHAPES;
        size_t format = i / SHAPES % FORMATS;
        cl_mem_flags flags = kinds[i / SHAPES / FORMATS];
        size_t bytes = formats[format].bytes;
        bool with_host = (flags & (CL_MEM_COPY_HOST_PTR | CL_MEM_USE_HOST_PTR)) != 0;
        cl_image_desc desc = describe(shape);
        cl_int error = CL_SUCCESS;
        fill(host, sizeof(host), (unsigned)i);
        if (with_host && format % 2 == 0) {
            bool planes = desc.image_depth != 0 || desc.image_array_size != 0;
            desc.image_row_pitch = 9 * bytes;
            desc.image_slice_pitch = planes ? 9 * bytes * (desc.image_height != 0 ? 6 : 1) : 0;
        }
        cl_mem image = clCreateImage(context, flags, &formats[format].format, &desc,
                                     with_host ? host : NULL, &error);
        printf("%s %s %llx: %d\n ", shapes[shape].name, formats[format].name,
               (unsigned long long)flags, error);
        if (error != CL_SUCCESS) {
            continue;
        }
        show(image, host);
        if ((flags & CL_MEM_COPY_HOST_PTR) != 0) {
            memset(host, 0, sizeof(host));
        }
        if (!with_host) {
            const size_t zero[3] = {0, 0, 0};
            OK(clEnqueueWriteImage(queue, image, CL_TRUE, zero, shapes[shape].size, 0, 0, host, 0,
                                   NULL, NULL));
        }
        show_content("initial", image, shapes[shape].size, bytes);
        transfers(image, shapes[shape].size, bytes, desc.image_type);
        desc.image_row_pitch = 0;
        desc.image_slice_pitch = 0;
        copies(image, &desc, format, shapes[shape].size);
        maps(image, shapes[shape].size, bytes, flags & CL_MEM_USE_HOST_PTR ? host : NULL);
        OK(clReleaseMemObject(image));
    }
}

/* Pieces: more than one message carries, in planes, rows and single rows. */
static void scenario_large(void)
{
    static const size_t sizes[][3] = {{1024, 1100, 1}, {1024, 128, 9}, {300, 7, 2}};
    const size_t zero[3] = {0, 0, 0};
    const cl_image_format format = {CL_RGBA, CL_FLOAT};
    for (size_t i = 0; i < 3; i++) {
        const size_t *size = sizes[i];
        size_t pitch = size[0] * 16 + 64;
        cl_image_desc desc = {.image_type =
                                  size[2] > 1 ? CL_MEM_OBJECT_IMAGE3D : CL_MEM_OBJECT_IMAGE2D,
                              .image_width = size[0],
                              .image_height = size[1],
                              .image_depth = size[2] > 1 ? size[2] : 0,
                              .image_row_pitch = pitch};
        cl_int error = CL_SUCCESS;
        size_t bytes = pitch * size[1] * size[2];
        uint8_t *host = malloc(bytes);
        fill(host, bytes, (unsigned)i);
        cl_mem image = clCreateImage(context, CL_MEM_COPY_HOST_PTR, &format, &desc, host, &error);
        printf("large %zu: %d\n", i, error);
        OK(error);
        show_content("initial", image, size, 16);
        fill(host, bytes, (unsigned)i + 100);
        OK(clEnqueueWriteImage(queue, image, CL_FALSE, zero, size, pitch, 0, host, 0, NULL, NULL));
        OK(clFinish(queue));
        memset(host, 0xee, bytes);
        cl_event event = NULL;
        OK(clEnqueueReadImage(queue, image, CL_FALSE, zero, size, pitch, 0, host, 0, NULL, &event));
        OK(clWaitForEvents(1, &event));
        printf("  %016llx\n", (unsigned long long)hash(host, bytes));
        clReleaseEvent(event);
        clReleaseMemObject(image);
        free(host);
    }
}

/* Images over the memory of a buffer. */
static void scenario_buffers(void)
{
    static uint8_t host[HOST_BYTES];
    static const cl_mem_flags kinds[] = {CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                         CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR};
    const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    for (size_t i = 0; i < 2; i++) {
        cl_int error = CL_SUCCESS;
        cl_uint count = 0;
        fill(host, sizeof(host), 3);
        cl_mem buffer = clCreateBuffer(context, kinds[i], sizeof(host), host, &error);
        OK(error);
        cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 64};
        desc.mem_object = buffer;
        cl_mem image = clCreateImage(context, 0, &format, &desc, NULL, &error);
        printf("1d-buffer: %d\n ", error);
        OK(error);
        show(image, host);
        OK(clGetMemObjectInfo(buffer, CL_MEM_REFERENCE_COUNT, sizeof(count), &count, NULL));
        const size_t size[3] = {64, 1, 1};
        show_content("initial", image, size, 4);
        OK(clReleaseMemObject(buffer)); /* the image holds it */
        const size_t origin[3] = {1, 0, 0};
        const size_t region[3] = {5, 1, 1};
        printf("  write %d\n", clEnqueueWriteImage(queue, image, CL_TRUE, origin, region, 0, 0,
                                                   "abcdefghijklmnopqrstuvwxyz", 0, NULL, NULL));
        show_content("written", image, size, 4);
        OK(clReleaseMemObject(image));
    }
}

static cl_int made(cl_mem_flags flags, const cl_image_format *format, const cl_image_desc *desc,
                   void *host)
{
    cl_int error = CL_SUCCESS;
    cl_mem image = clCreateImage(context, flags, format, desc, host, &error);
    if ((image != NULL) != (error == CL_SUCCESS)) {
        printf("image and error disagree\n");
    }
    if (image != NULL) {
        clReleaseMemObject(image);
    }
    return error;
}

static void scenario_errors(void)
{
    static uint8_t host[HOST_BYTES];
    const cl_image_format good = {CL_RGBA, CL_UNSIGNED_INT8};
    const cl_image_format odd = {CL_RGB, CL_FLOAT};
    const cl_image_format wrong = {0x1234, 0x5678};
    cl_image_desc desc = describe(2);
    cl_image_desc broken = desc;
    cl_int error = CL_SUCCESS;
    printf("no format %d\n", made(0, NULL, &desc, NULL));
    printf("no descriptor %d\n", made(0, &good, NULL, NULL));
    printf("odd format %d\n", made(0, &odd, &desc, NULL));
    printf("wrong format %d\n", made(0, &wrong, &desc, NULL));
    printf("pointer without flag %d\n", made(0, &good, &desc, host));
    printf("flag without pointer %d\n", made(CL_MEM_COPY_HOST_PTR, &good, &desc, NULL));
    printf("both access flags %d\n",
           made(CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY, &good, &desc, NULL));
    printf("use and copy %d\n",
           made(CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR, &good, &desc, host));
    broken.image_width = 0;
    printf("no width %d\n", made(0, &good, &broken, NULL));
    broken.image_width = 100000;
    printf("too wide %d\n", made(0, &good, &broken, NULL));
    printf("too wide with data %d\n", made(CL_MEM_COPY_HOST_PTR, &good, &broken, host));
    broken = desc;
    broken.image_row_pitch = 1;
    printf("pitch of one %d\n", made(CL_MEM_COPY_HOST_PTR, &good, &broken, host));
    broken.image_row_pitch = 41;
    printf("odd pitch %d\n", made(CL_MEM_COPY_HOST_PTR, &good, &broken, host));
    broken.image_row_pitch = 40;
    printf("pitch without pointer %d\n", made(0, &good, &broken, NULL));
    broken = desc;
    broken.image_type = CL_MEM_OBJECT_BUFFER;
    printf("type of a buffer %d\n", made(0, &good, &broken, NULL));
    cl_mem image = clCreateImage(context, 0, &good, &desc, NULL, &error);
    OK(error);
    cl_mem buffer = clCreateBuffer(context, 0, HOST_BYTES, NULL, &error);
    OK(error);
    const size_t zero[3] = {0, 0, 0};
    const size_t one[3] = {1, 1, 1};
    const size_t far[3] = {WIDTH, 0, 0};
    const size_t large[3] = {WIDTH + 1, 1, 1};
#define READ(what, ...)                                                                            \
    printf("read " what " %d\n", clEnqueueReadImage(queue, __VA_ARGS__, 0, NULL, NULL))
    READ("far", image, CL_TRUE, far, one, 0, 0, host);
    READ("too much", image, CL_TRUE, zero, large, 0, 0, host);
    READ("without origin", image, CL_TRUE, NULL, one, 0, 0, host);
    READ("without region", image, CL_TRUE, zero, NULL, 0, 0, host);
    READ("without memory", image, CL_TRUE, zero, one, 0, 0, NULL);
    READ("a buffer", buffer, CL_TRUE, zero, one, 0, 0, host);
    printf("read an image as a buffer %d\n",
           clEnqueueReadBuffer(queue, image, CL_TRUE, 0, 4, host, 0, NULL, NULL));
    printf("copy far %d\n", clEnqueueCopyImage(queue, image, image, zero, far, one, 0, NULL, NULL));
    printf("copy a buffer %d\n",
           clEnqueueCopyImage(queue, buffer, image, zero, zero, one, 0, NULL, NULL));
    printf("copy without origin %d\n",
           clEnqueueCopyImage(queue, image, image, NULL, zero, one, 0, NULL, NULL));
    printf("to a small buffer %d\n",
           clEnqueueCopyImageToBuffer(queue, image, buffer, zero, one, HOST_BYTES, 0, NULL, NULL));
    printf("fill without color %d\n",
           clEnqueueFillImage(queue, image, NULL, zero, one, 0, NULL, NULL));
    printf("fill a buffer %d\n", clEnqueueFillImage(queue, buffer, host, zero, one, 0, NULL, NULL));
    size_t pitch = 0;
    (void)clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, zero, large, &pitch, NULL, 0, NULL,
                            NULL, &error);
    printf("map too much %d\n", error);
    (void)clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, zero, one, NULL, NULL, 0, NULL,
                            NULL, &error);
    printf("map without pitch %d\n", error);
    printf("unmap nothing %d\n", clEnqueueUnmapMemObject(queue, image, host, 0, NULL, NULL));
    size_t value = 0;
    printf("info of a buffer %d\n",
           clGetImageInfo(buffer, CL_IMAGE_WIDTH, sizeof(value), &value, NULL));
    printf("info too small %d\n", clGetImageInfo(image, CL_IMAGE_WIDTH, 1, &value, NULL));
    printf("info unknown %d\n", clGetImageInfo(image, 0x7777, sizeof(value), &value, NULL));
    OK(clReleaseMemObject(buffer));
    OK(clReleaseMemObject(image));
    static const cl_mem_flags access[] = {CL_MEM_HOST_NO_ACCESS, CL_MEM_HOST_READ_ONLY,
                                          CL_MEM_HOST_WRITE_ONLY};
    for (size_t i = 0; i < 3; i++) {
        image =
            clCreateImage(context, access[i] | CL_MEM_COPY_HOST_PTR, &good, &desc, host, &error);
        OK(error);
        READ("limited", image, CL_TRUE, zero, one, 0, 0, host);
        printf("write limited %d\n",
               clEnqueueWriteImage(queue, image, CL_TRUE, zero, one, 0, 0, host, 0, NULL, NULL));
        for (cl_map_flags flags = CL_MAP_READ; flags <= CL_MAP_WRITE; flags++) {
            void *address = clEnqueueMapImage(queue, image, CL_TRUE, flags, zero, one, &pitch, NULL,
                                              0, NULL, NULL, &error);
            printf("map limited %llx %d\n", (unsigned long long)flags, error);
            if (address != NULL) {
                OK(clEnqueueUnmapMemObject(queue, image, address, 0, NULL, NULL));
                OK(clFinish(queue));
            }
        }
        OK(clReleaseMemObject(image));
    }
}

/* What the older functions make. */
static void scenario_older(void)
{
    static uint8_t host[HOST_BYTES];
    const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    const cl_mem_properties none[] = {0};
    const size_t size2[3] = {WIDTH, HEIGHT, 1};
    const size_t size3[3] = {WIDTH, HEIGHT, DEPTH};
    cl_image_desc desc = describe(4);
    cl_int error = CL_SUCCESS;
    fill(host, sizeof(host), 11);
    cl_mem image =
        clCreateImage2D(context, CL_MEM_COPY_HOST_PTR, &format, WIDTH, HEIGHT, 40, host, &error);
    printf("2d: %d\n ", error);
    OK(error);
    show(image, host);
    show_content("content", image, size2, 4);
    clReleaseMemObject(image);
    image = clCreateImage3D(context, CL_MEM_USE_HOST_PTR, &format, WIDTH, HEIGHT, DEPTH, 40, 240,
                            host, &error);
    printf("3d: %d\n ", error);
    OK(error);
    show(image, host);
    show_content("content", image, size3, 4);
    clReleaseMemObject(image);
    (void)clCreateImage2D(context, 0, &format, 0, 1, 0, NULL, &error);
    printf("empty 2d: %d\n", error);
    image =
        clCreateImageWithProperties(context, none, CL_MEM_READ_ONLY, &format, &desc, NULL, &error);
    printf("with properties: %d\n ", error);
    if (error == CL_SUCCESS) {
        show(image, NULL);
        clReleaseMemObject(image);
    }
}

static const char *const source =
    "__kernel void turn(__read_only image2d_t from, __write_only image2d_t to, sampler_t how)\n"
    "{ int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
    "  uint4 value = read_imageui(from, how, (int2)(at.x - 1, at.y - 1));\n"
    "  write_imageui(to, at, value.wzyx); }\n"
    "__kernel void fixed(__read_only image3d_t from, __global uint4 *to)\n"
    "{ const sampler_t how = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | "
    "CLK_FILTER_NEAREST;\n"
    "  int i = get_global_id(0);\n"
    "  to[i] = read_imageui(from, how, (int4)(i % 7, i / 7 % 5, i / 35, 0)); }\n"
    "__kernel void plain(__global int *to) { to[0] = 1; }\n";

static cl_program build(void)
{
    cl_int error = CL_SUCCESS;
    cl_program program =
        clCreateProgramWithSource(context, 1, (const char **)&source, NULL, &error);
    OK(error);
    OK(clBuildProgram(program, 0, NULL, NULL, NULL, NULL));
    return program;
}

static void scenario_kernels(void)
{
    static uint8_t host[HOST_BYTES];
    const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    const size_t global[2] = {WIDTH, HEIGHT};
    const size_t size[3] = {WIDTH, HEIGHT, 1};
    cl_image_desc desc = describe(2);
    cl_image_desc deep = describe(4);
    cl_int error = CL_SUCCESS;
    fill(host, sizeof(host), 21);
    cl_program program = build();
    cl_kernel turn = clCreateKernel(program, "turn", &error);
    OK(error);
    cl_kernel fixed = clCreateKernel(program, "fixed", &error);
    OK(error);
    cl_mem from = clCreateImage(context, CL_MEM_COPY_HOST_PTR, &format, &desc, host, &error);
    OK(error);
    cl_mem to = clCreateImage(context, CL_MEM_WRITE_ONLY, &format, &desc, NULL, &error);
    OK(error);
    cl_mem cube = clCreateImage(context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, &format, &deep,
                                host, &error);
    OK(error);
    cl_mem buffer =
        clCreateBuffer(context, CL_MEM_READ_WRITE, 16 * WIDTH * HEIGHT * DEPTH, NULL, &error);
    OK(error);
    static const cl_addressing_mode modes[] = {CL_ADDRESS_NONE, CL_ADDRESS_CLAMP,
                                               CL_ADDRESS_CLAMP_TO_EDGE};
    for (size_t i = 0; i < 3; i++) {
        cl_addressing_mode mode = 0;
        cl_filter_mode filter = 0;
        cl_bool normalized = 7;
        cl_context found = NULL;
        const cl_sampler_properties properties[] = {CL_SAMPLER_NORMALIZED_COORDS,
                                                    CL_FALSE,
                                                    CL_SAMPLER_ADDRESSING_MODE,
                                                    modes[i],
                                                    CL_SAMPLER_FILTER_MODE,
                                                    CL_FILTER_NEAREST,
                                                    0};
        cl_sampler sampler =
            i == 1 ? clCreateSampler(context, CL_FALSE, modes[i], CL_FILTER_NEAREST, &error)
                   : clCreateSamplerWithProperties(context, properties, &error);
        OK(error);
        OK(clGetSamplerInfo(sampler, CL_SAMPLER_ADDRESSING_MODE, sizeof(mode), &mode, NULL));
        OK(clGetSamplerInfo(sampler, CL_SAMPLER_FILTER_MODE, sizeof(filter), &filter, NULL));
        OK(clGetSamplerInfo(sampler, CL_SAMPLER_NORMALIZED_COORDS, sizeof(normalized), &normalized,
                            NULL));
        OK(clGetSamplerInfo(sampler, CL_SAMPLER_CONTEXT, sizeof(found), &found, NULL));
        printf("sampler %x %x %u %d\n", mode, filter, normalized, found == context);
        OK(clSetKernelArg(turn, 0, sizeof(from), &from));
        OK(clSetKernelArg(turn, 1, sizeof(to), &to));
        OK(clSetKernelArg(turn, 2, sizeof(sampler), &sampler));
        OK(clEnqueueNDRangeKernel(queue, turn, 2, NULL, global, NULL, 0, NULL, NULL));
        show_content("turned", to, size, 4);
        OK(clReleaseSampler(sampler));
    }
    const size_t all = WIDTH * HEIGHT * DEPTH;
    OK(clSetKernelArg(fixed, 0, sizeof(cube), &cube));
    OK(clSetKernelArg(fixed, 1, sizeof(buffer), &buffer));
    OK(clEnqueueNDRangeKernel(queue, fixed, 1, NULL, &all, NULL, 0, NULL, NULL));
    OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, 16 * all, host, 0, NULL, NULL));
    printf("fixed %016llx\n", (unsigned long long)hash(host, 16 * all));
    cl_sampler wrong = clCreateSampler(context, CL_TRUE, 0x7777, CL_FILTER_NEAREST, &error);
    printf("wrong sampler %d %d\n", wrong == NULL, error);
    printf("number for an image %d\n", clSetKernelArg(turn, 0, sizeof(int), &error));
    printf("nothing for an image %d\n", clSetKernelArg(turn, 0, sizeof(from), NULL));
    /* An argument that was an image takes nothing else, and no image of another kind. */
    printf("a buffer for an image %d\n", clSetKernelArg(turn, 0, sizeof(buffer), &buffer));
    printf("a cube for an image %d\n", clSetKernelArg(turn, 0, sizeof(cube), &cube));
    printf("an image for a buffer %d\n", clSetKernelArg(fixed, 1, sizeof(from), &from));
    clReleaseMemObject(from);
    clReleaseMemObject(to);
    clReleaseMemObject(cube);
    clReleaseMemObject(buffer);
    clReleaseKernel(turn);
    clReleaseKernel(fixed);
    clReleaseProgram(program);
}

static const struct scenario scenarios[] = {
    {"shapes", scenario_shapes, false},   {"large", scenario_large, false},
    {"buffers", scenario_buffers, false}, {"errors", scenario_errors, false},
    {"older", scenario_older, false},     {"kernels", scenario_kernels, false},
};

int main(int argc, char **argv)
{
    cl_platform_id platform = NULL;
    cl_int error = CL_SUCCESS;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 1) {
        list_scenarios(scenarios, LENGTH(scenarios));
        return 0;
    }
    OK(clGetPlatformIDs(1, &platform, NULL));
    OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    OK(error);
    queue = clCreateCommandQueue(context, device, 0, &error);
    OK(error);
    for (int i = 1; i < argc; i++) {
        find_scenario(scenarios, LENGTH(scenarios), argv[i])->run();
    }
    OK(clReleaseCommandQueue(queue));
    OK(clReleaseContext(context));
    return 0;
}
