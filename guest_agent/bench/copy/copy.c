/*
 * copy.c - how fast data gets to a buffer of the device and back: `wormhole-bench-copy [--repeats
 * N] SIZE_BYTES...`, one JSON object.
 *
 * Five kinds take turns: memcpy between two blocks of pageable memory; a blocking write and a
 * blocking read of such a block; and the same with the buffer mapped, all its bytes being set or
 * summed up. A figure is the median time of one transfer. Whatever OpenCL the loader finds does it.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES_MAX 1000u
#define BYTES_OF_A_SIZE (1u << 30) /* moved by each kind, if repeats allow */
#define REPEATS_MIN 3u

enum kind { KIND_MEMCPY, KIND_WRITE, KIND_READ, KIND_MAP_WRITE, KIND_MAP_READ, KIND_COUNT };

static const char *const kind_names[KIND_COUNT] = {"memcpy", "write", "read", "map_write",
                                                   "map_read"};

#define FUNCTIONS(X)                                                                               \
    X(clGetPlatformIDs)                                                                            \
    X(clGetDeviceIDs)                                                                              \
    X(clCreateContext)                                                                             \
    X(clCreateCommandQueue)                                                                        \
    X(clCreateBuffer)                                                                              \
    X(clEnqueueWriteBuffer)                                                                        \
    X(clEnqueueReadBuffer)                                                                         \
    X(clEnqueueMapBuffer)                                                                          \
    X(clEnqueueUnmapMemObject)                                                                     \
    X(clFinish)                                                                                    \
    X(clReleaseMemObject)

static struct {
#define MEMBER(name) __typeof__(name) *name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} cl;

struct setting {
    cl_context context;
    cl_command_queue queue;
    cl_mem buffer;
    uint8_t *from;
    uint8_t *to;
    size_t size_bytes;
    uint64_t sum; /* of bytes that were looked at, so that looking is not left out */
};

static double samples[KIND_COUNT][SAMPLES_MAX];

static void fail(const char *what, int error)
{
    fprintf(stderr, "wormhole-bench-copy: %s failed: %d\n", what, error);
    exit(1);
}

static void check(cl_int error, const char *what)
{
    if (error != CL_SUCCESS) {
        fail(what, error);
    }
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void load(void)
{
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW);
    if (library == NULL) {
        fail(dlerror(), 0);
    }
#define FIND(name)                                                                                 \
    *(void **)&cl.name = dlsym(library, #name);                                                    \
    if (cl.name == NULL) {                                                                         \
        fail("finding " #name, 0);                                                                 \
    }
    FUNCTIONS(FIND)
#undef FIND
}

static void open_device(struct setting *setting)
{
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    check(cl.clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    setting->context = cl.clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    check(error, "clCreateContext");
    setting->queue = cl.clCreateCommandQueue(setting->context, device, 0, &error);
    check(error, "clCreateCommandQueue");
}

static void *map(const struct setting *setting, cl_map_flags flags)
{
    cl_int error;
    void *address = cl.clEnqueueMapBuffer(setting->queue, setting->buffer, CL_TRUE, flags, 0,
                                          setting->size_bytes, 0, NULL, NULL, &error);
    check(error, "clEnqueueMapBuffer");
    return address;
}

static void unmap(const struct setting *setting, void *address)
{
    check(cl.clEnqueueUnmapMemObject(setting->queue, setting->buffer, address, 0, NULL, NULL),
          "clEnqueueUnmapMemObject");
    check(cl.clFinish(setting->queue), "clFinish");
}

/* All bytes; the size need not be a multiple of a word. */
static uint64_t sum_of(const uint8_t *bytes, size_t size_bytes)
{
    uint64_t sum = 0;
    size_t words_bytes = size_bytes / sizeof(uint64_t) * sizeof(uint64_t);
    for (size_t i = 0; i < words_bytes; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, bytes + i, sizeof(word));
        sum += word;
    }
    for (size_t i = words_bytes; i < size_bytes; i++) {
        sum += bytes[i];
    }
    return sum;
}

static void move(struct setting *setting, enum kind kind, int value)
{
    void *address;
    size_t size = setting->size_bytes;
    switch (kind) {
    case KIND_MEMCPY:
        memcpy(setting->to, setting->from, size);
        __asm__ volatile("" : : "r"(setting->to) : "memory"); /* nobody reads it */
        break;
    case KIND_WRITE:
        check(cl.clEnqueueWriteBuffer(setting->queue, setting->buffer, CL_TRUE, 0, size,
                                      setting->from, 0, NULL, NULL),
              "clEnqueueWriteBuffer");
        check(cl.clFinish(setting->queue), "clFinish");
        break;
    case KIND_READ:
        check(cl.clEnqueueReadBuffer(setting->queue, setting->buffer, CL_TRUE, 0, size, setting->to,
                                     0, NULL, NULL),
              "clEnqueueReadBuffer");
        break;
    case KIND_MAP_WRITE:
        address = map(setting, CL_MAP_WRITE_INVALIDATE_REGION);
        memset(address, value, size);
        unmap(setting, address);
        break;
    default:
        address = map(setting, CL_MAP_READ);
        setting->sum += sum_of(address, size);
        unmap(setting, address);
        break;
    }
}

/* Outside of the time: what was read is what was written, by copying and by mapping. */
static void verify(struct setting *setting, int value)
{
    size_t size = setting->size_bytes;
    memset(setting->from, value, size);
    setting->from[size - 1] = (uint8_t)(value + 1);
    move(setting, KIND_WRITE, value);
    uint8_t *address = map(setting, CL_MAP_READ);
    int differs = memcmp(address, setting->from, size);
    unmap(setting, address);
    move(setting, KIND_MAP_WRITE, value + 2);
    memset(setting->from, value + 2, size);
    move(setting, KIND_READ, value);
    if (differs != 0 || memcmp(setting->to, setting->from, size) != 0) {
        fail("comparing what came back", (int)size);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct setting *setting, uint32_t repeats, int last)
{
    cl_int error;
    size_t size = setting->size_bytes;
    setting->from = malloc(size);
    setting->to = malloc(size);
    setting->buffer = cl.clCreateBuffer(setting->context, CL_MEM_READ_WRITE, size, NULL, &error);
    check(error, "clCreateBuffer");
    if (setting->from == NULL || setting->to == NULL) {
        fail("allocating", (int)size);
    }
    verify(setting, 1); /* also the first touch of all pages */
    for (uint32_t i = 0; i < repeats; i++) {
        for (enum kind kind = 0; kind < KIND_COUNT; kind++) {
            double start_s = now_s();
            move(setting, kind, (int)i);
            samples[kind][i] = now_s() - start_s;
        }
    }
    verify(setting, 7);
    printf("\"%zu\":{\"repeats\":%u", size, repeats);
    for (enum kind kind = 0; kind < KIND_COUNT; kind++) {
        qsort(samples[kind], repeats, sizeof(double), compare);
        printf(",\"%s_s\":%.9f", kind_names[kind], samples[kind][repeats / 2]);
    }
    printf("}%s", last ? "" : ",");
    check(cl.clReleaseMemObject(setting->buffer), "clReleaseMemObject");
    free(setting->from);
    free(setting->to);
}

static uint32_t repeats_of(size_t size_bytes, uint32_t limit)
{
    size_t repeats = BYTES_OF_A_SIZE / size_bytes;
    repeats = repeats < REPEATS_MIN ? REPEATS_MIN : repeats;
    return repeats < limit ? (uint32_t)repeats : limit;
}

int main(int argc, char **argv)
{
    struct setting setting = {0};
    uint32_t limit = 100;
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--repeats") == 0) {
        limit = (uint32_t)strtoul(argv[2], NULL, 10);
        first = 3;
    }
    if (first == argc || limit == 0 || limit > SAMPLES_MAX) {
        fprintf(stderr, "usage: wormhole-bench-copy [--repeats 1..%u] SIZE_BYTES...\n",
                SAMPLES_MAX);
        return 2;
    }
    load();
    open_device(&setting);
    printf("{");
    for (int i = first; i < argc; i++) {
        setting.size_bytes = strtoull(argv[i], NULL, 10);
        if (setting.size_bytes == 0) {
            fail("reading a size", i);
        }
        measure(&setting, repeats_of(setting.size_bytes, limit), i + 1 == argc);
    }
    printf("}\n");
    return setting.sum == 1; /* used, and never 1 */
}
