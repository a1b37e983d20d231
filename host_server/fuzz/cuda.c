/*
 * cuda.c - CUDA in the fuzzer: the objects that a session begins with, and the items of its
 * messages.
 *
 * Device pointers are checked by nobody but the device: so a message has them in memory of which a
 * session has plenty, unless it is wrong on purpose. The library is the tests' double of a device.
 */
#include <stdio.h>
#include <string.h>

#include "cuda_backend.h"
#include "fuzz.h"
#include "grammar.h"
#include "wh_cublas.h"
#include "wh_cublaslt.h"
#include "wh_cudart.h"
#include "wh_cudnn.h"
#include "wh_sha256.h"
#include "wh_skeleton_parts.h"

#define MEMORIES 4u
#define MEMORY_BYTES ((size_t)16 << 20) /* far more than any call of small sizes reaches */
#define PART_BYTES 4096u                /* of which addresses are taken */
#define KERNEL "scale"
#define KERNEL_BYTES 20u /* of its parameters: a pointer and three numbers */
#define ENTRIES_MAX 2u
#define DEPTH_MAX 3u

const struct wh_cublas_table *wh_cublas(void);
const struct wh_cublaslt_table *wh_cublaslt(void);
const struct wh_cudnn_table *wh_cudnn(void);
int wh_skeleton_whcLoadImage(struct wh_request *request);
int wh_skeleton_whcGetKernel(struct wh_request *request);

static void *memories[MEMORIES];

bool wh_fuzz_read_code(const char *path, struct wh_binary *code)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return false;
    }
    code->size_bytes = fread(code->bytes, 1, sizeof(code->bytes), file);
    bool whole = code->size_bytes > 0 && feof(file) != 0;
    fclose(file);
    return whole;
}

/* Objects. */

/* What a message does, by the skeleton itself: images and kernels are the worker's own objects. */
static void execute(struct wh_plan *plan, int (*skeleton)(struct wh_request *request),
                    const struct wh_message *message)
{
    struct wh_executor *executor =
        wh_executor_create(plan->session, WH_FUZZ_MESSAGE_BYTES, WH_TCP_MESSAGE_BYTES_MAX);
    struct wh_executor *before = wh_this_executor;
    wh_this_executor = executor;
    struct wh_request request = {.bytes = message->bytes,
                                 .size_bytes = message->size_bytes,
                                 .session = plan->session,
                                 .reply = &executor->reply};
    (void)skeleton(&request);
    wh_this_executor = before;
    wh_executor_destroy(executor);
}

static uint64_t new_handle(struct wh_plan *plan, uint8_t kind)
{
    uint64_t handle = (uint64_t)kind << 56 | 1ull << 32 | (1000 + plan->handles.next_index++);
    wh_handles_add(&plan->handles, handle);
    return handle;
}

static void load_code(struct wh_plan *plan)
{
    static struct wh_message message;
    if (plan->binary.size_bytes > WH_FUZZ_MESSAGE_BYTES / 2) {
        return;
    }
    uint64_t image = new_handle(plan, WH_KIND_IMAGE);
    const uint64_t head[] = {0, image, 0, WH_NULL, plan->binary.size_bytes, 8, WH_INLINE, 0};
    message.size_bytes = 0;
    wh_message_bytes(&message, head, sizeof(head));
    wh_message_u64(&message, plan->binary.size_bytes);
    wh_message_u64(&message, WH_INLINE);
    wh_message_bytes(&message, plan->binary.bytes, plan->binary.size_bytes);
    execute(plan, wh_skeleton_whcLoadImage, &message);
    for (int i = 0; i < 2; i++) {
        const uint64_t name[] = {0, image, sizeof(KERNEL), WH_INLINE};
        message.size_bytes = 0;
        wh_message_bytes(&message, name, sizeof(name));
        wh_message_bytes(&message, KERNEL, sizeof(KERNEL));
        const uint64_t rest[] = {new_handle(plan, WH_KIND_KERNEL), 1024, WH_INLINE, 1024,
                                 WH_INLINE};
        wh_message_bytes(&message, rest, sizeof(rest));
        execute(plan, wh_skeleton_whcGetKernel, &message);
    }
}

/* Graphs of two nodes, one of them instantiated; and the device's pool. */
static void make_graphs(struct wh_plan *plan, const struct wh_cudart_table *real)
{
    cudaMemPool_t pool = NULL;
    if (real->cudaDeviceGetDefaultMemPool != NULL &&
        real->cudaDeviceGetDefaultMemPool(&pool, 0) == 0) {
        wh_fuzz_keep(plan, WH_KIND_MEM_POOL, pool);
    }
    for (int i = 0; i < 2 && real->cudaGraphCreate != NULL; i++) {
        cudaGraph_t graph = NULL;
        cudaGraphExec_t exec = NULL;
        cudaGraphNode_t nodes[2] = {NULL, NULL};
        if (real->cudaGraphCreate(&graph, 0) != 0 ||
            real->cudaGraphAddEmptyNode(&nodes[0], graph, NULL, 0) != 0 ||
            real->cudaGraphAddEmptyNode(&nodes[1], graph, nodes, 1) != 0) {
            return;
        }
        wh_fuzz_keep(plan, WH_KIND_GRAPH, graph);
        wh_fuzz_keep(plan, WH_KIND_GRAPH_NODE, nodes[0]);
        wh_fuzz_keep(plan, WH_KIND_GRAPH_NODE, nodes[1]);
        if (real->cudaGraphInstantiateWithFlags(&exec, graph, 0) == 0) {
            wh_fuzz_keep(plan, WH_KIND_GRAPH_EXEC, exec);
        }
    }
}

static void make_runtime_objects(struct wh_plan *plan, const struct wh_cudart_table *real)
{
    for (size_t i = 0; i < MEMORIES; i++) {
        (void)real->cudaMalloc(&memories[i], MEMORY_BYTES);
    }
    for (unsigned i = 0; i < 3; i++) {
        cudaStream_t stream = NULL;
        cudaEvent_t event = NULL;
        if (real->cudaStreamCreateWithFlags(&stream, i % 2) == 0) {
            wh_fuzz_keep(plan, WH_KIND_STREAM, stream);
        }
        if (real->cudaEventCreateWithFlags(&event, i % 2 * 2) == 0 &&
            real->cudaEventRecord(event, stream) == 0) {
            wh_fuzz_keep(plan, WH_KIND_EVENT, event);
        }
    }
    make_graphs(plan, real);
    load_code(plan);
}

void wh_fuzz_cuda_objects(struct wh_plan *plan)
{
    const struct wh_cublas_table *blas = wh_cublas();
    const struct wh_cublaslt_table *lt = wh_cublaslt();
    const struct wh_cudnn_table *dnn = wh_cudnn();
    make_runtime_objects(plan, wh_cudart());
    for (int i = 0; i < 2; i++) {
        cublasHandle_t blas_handle = NULL;
        cublasLtHandle_t lt_handle = NULL;
        cudnnHandle_t dnn_handle = NULL;
        if (blas != NULL && blas->cublasCreate_v2(&blas_handle) == 0) {
            wh_fuzz_keep(plan, WH_KIND_CUBLAS, blas_handle);
        }
        if (lt != NULL && lt->cublasLtCreate(&lt_handle) == 0) {
            wh_fuzz_keep(plan, WH_KIND_CUBLASLT, lt_handle);
        }
        if (dnn != NULL && dnn->cudnnCreate(&dnn_handle) == 0) {
            wh_fuzz_keep(plan, WH_KIND_CUDNN, dnn_handle);
        }
    }
    static const int types[] = {WH_CUDNN_BACKEND_HEURISTICS, WH_CUDNN_BACKEND_PLAN,
                                WH_CUDNN_BACKEND_TENSOR, WH_CUDNN_BACKEND_VARIANT_PACK};
    for (size_t i = 0; dnn != NULL && i < sizeof(types) / sizeof(types[0]); i++) {
        cudnnBackendDescriptor_t descriptor = NULL;
        if (dnn->cudnnBackendCreateDescriptor(types[i], &descriptor) == 0) {
            wh_fuzz_keep(plan, WH_KIND_BACKEND, descriptor);
        }
    }
}

/* Items. */

static uint64_t wrong_or(struct wh_maker *maker, uint64_t good)
{
    return wh_one_in(maker->random, maker->wrong_one_in) ? wh_odd_number(maker->random) : good;
}

static uint64_t address(struct wh_maker *maker)
{
    struct wh_random *random = maker->random;
    uint64_t base = (uint64_t)(uintptr_t)memories[wh_below(random, MEMORIES)];
    uint64_t offset = (uint64_t)8 * wh_below(random, PART_BYTES / 8);
    return wh_one_in(random, maker->wrong_one_in) ? 0 : wrong_or(maker, base + offset);
}

static void put_none(struct wh_message *message)
{
    wh_message_u64(message, 0);
    wh_message_u64(message, WH_NULL);
}

static void put_stream(struct wh_maker *maker, struct wh_message *message, uint8_t kind)
{
    bool own = wh_one_in(maker->random, 3);
    wh_message_u64(message, own ? wh_below(maker->random, 2) : wh_message_handle(maker, kind));
}

static void put_scalar(struct wh_maker *maker, struct wh_message *message)
{
    const double values[10] = {0.5 * wh_below(maker->random, 8)};
    bool device = wh_one_in(maker->random, 4);
    wh_message_u64(message, device ? address(maker) : 0);
    if (device) {
        put_none(message);
    } else {
        wh_message_blob(maker, message, values,
                        sizeof(values) >> (wh_one_in(maker->random, maker->wrong_one_in) ? 0 : 3));
    }
}

static void put_result(struct wh_maker *maker, struct wh_message *message)
{
    bool host = !wh_one_in(maker->random, 3);
    wh_message_u64(message, wrong_or(maker, host ? 16 : 0));
    if (host) {
        wh_message_out(maker, message, 16);
    } else {
        wh_message_u64(message, address(maker));
    }
}

/* Numbers, of which the first says what kind of data it is. */
static void put_words(struct wh_maker *maker, struct wh_message *message, size_t size_bytes)
{
    uint32_t words[64];
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        words[i] = wh_one_in(maker->random, 8) ? (uint32_t)wh_odd_number(maker->random)
                                               : wh_below(maker->random, 5);
    }
    wh_message_blob(maker, message, words, size_bytes < sizeof(words) ? size_bytes : sizeof(words));
}

/* Entries of setters, each as an opcode, its size, and what it was given. */
static void put_content(struct wh_maker *maker, struct wh_message *message, uint8_t kind)
{
    static struct wh_message parts[DEPTH_MAX];
    static struct wh_message entries[DEPTH_MAX];
    static uint32_t depth;
    struct wh_random *random = maker->random;
    if (depth == DEPTH_MAX || wh_one_in(random, 20)) {
        put_none(message);
        return;
    }
    struct wh_message *part = &parts[depth];
    struct wh_message *whole = &entries[depth++];
    whole->size_bytes = 0;
    for (uint32_t count = wh_below(random, ENTRIES_MAX + 1); count > 0;) {
        const struct wh_entry_shape *entry =
            &wh_entry_shapes[wh_below(random, (uint32_t)wh_entry_shape_count)];
        if (entry->kind != kind && !wh_one_in(random, maker->wrong_one_in)) {
            continue;
        }
        part->size_bytes = 0;
        wh_message_items(maker, &entry->shape, part);
        const uint32_t header[2] = {entry->shape.opcode,
                                    (uint32_t)wrong_or(maker, part->size_bytes)};
        wh_message_bytes(whole, header, sizeof(header));
        wh_message_bytes(whole, part->bytes, part->size_bytes);
        count--;
    }
    depth--;
    wh_message_blob(maker, message, whole->bytes, whole->size_bytes);
}

/* A descriptor of cuBLASLt's: nothing but bytes. */
static void put_lt(struct wh_maker *maker, struct wh_message *message)
{
    static const uint16_t sizes[] = {24, 32, 64, 256};
    if (wh_one_in(maker->random, 200)) {
        put_none(message);
        return;
    }
    put_words(maker, message, wrong_or(maker, sizes[wh_below(maker->random, 4)]) % (sizes[3] + 1u));
}

/* The digest alone, the bytes alone, or both. */
static void put_code(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    const struct wh_binary *code = maker->binary;
    uint8_t digest[WH_SHA256_BYTES];
    bool wrong = wh_one_in(random, maker->wrong_one_in);
    bool fits = maker->arena != NULL || code->size_bytes < WH_FUZZ_MESSAGE_BYTES / 2;
    bool asks = !fits || wh_one_in(random, 2);
    size_t size_bytes = wrong ? wh_below(random, (uint32_t)code->size_bytes) : code->size_bytes;
    wh_sha256(code->bytes, size_bytes, digest);
    digest[0] ^= wh_one_in(random, maker->wrong_one_in) || (asks && wh_one_in(random, 2));
    if (!asks && wh_one_in(random, 2)) {
        put_none(message);
    } else {
        wh_message_blob(maker, message, digest, sizeof(digest));
    }
    wh_message_u64(message, wrong_or(maker, size_bytes));
    wh_message_out(maker, message, 8);
    wh_message_u64(message, wh_one_in(random, maker->wrong_one_in) ? wh_below(random, 20) : 0);
    if (asks) {
        put_none(message);
    } else {
        wh_message_blob(maker, message, code->bytes, size_bytes);
    }
}

static void put_name(struct wh_maker *maker, struct wh_message *message)
{
    static const char *const names[] = {KERNEL, "table", "none", ""};
    const char *name = names[wh_one_in(maker->random, 4) ? wh_below(maker->random, 4) : 0];
    wh_message_blob(maker, message, name,
                    strlen(name) + !wh_one_in(maker->random, maker->wrong_one_in));
}

enum { ALL_OF_A_LAUNCH, WITHOUT_PARAMETERS, WITHOUT_ATTRIBUTES };

static void put_launch(struct wh_maker *maker, struct wh_message *message, unsigned form)
{
    struct wh_random *random = maker->random;
    struct wh_cuda_geometry geometry = {.grid = {wh_below(random, 3), 1, 1},
                                        .block = {wh_below(random, 65), 1, 1}};
    struct wh_cuda_attribute attributes[2] = {{.id = (int)wh_below(random, 5)},
                                              {.id = (int)wh_below(random, 16)}};
    uint8_t packed[KERNEL_BYTES] = {0};
    const uint64_t at = address(maker);
    const uint32_t numbers[3] = {2, 1, (uint32_t)wrong_or(maker, wh_below(random, 65))};
    memcpy(packed, &at, sizeof(at));
    memcpy(packed + sizeof(at), numbers, sizeof(numbers));
    bool wrong = wh_one_in(random, maker->wrong_one_in);
    wh_message_blob(maker, message, &geometry, sizeof(geometry) - (wrong ? 4 : 0));
    if (form != WITHOUT_ATTRIBUTES && wh_one_in(random, 3)) {
        bool odd = wh_one_in(random, maker->wrong_one_in);
        wh_message_blob(maker, message, attributes, odd ? 100 : sizeof(attributes[0]));
    } else if (form != WITHOUT_ATTRIBUTES) {
        put_none(message);
    }
    if (form == WITHOUT_PARAMETERS) {
        return;
    }
    wh_message_blob(maker, message, packed,
                    wh_one_in(random, maker->wrong_one_in) ? wh_below(random, KERNEL_BYTES)
                                                           : KERNEL_BYTES);
}

/* A box between two places on the device. */
static void put_copy(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_cuda_copy copy = {.kind = 3};
    copy.src.pointer = (void *)(uintptr_t)address(maker);
    copy.dst.pointer = (void *)(uintptr_t)address(maker);
    copy.src.pitch = copy.src.width = copy.dst.pitch = copy.dst.width = 64;
    copy.src.height = copy.dst.height = 4;
    copy.extent.width = wrong_or(maker, 1 + wh_below(maker->random, 64));
    copy.extent.height = wrong_or(maker, 1 + wh_below(maker->random, 4));
    copy.extent.depth = wrong_or(maker, 1);
    copy.src_array = wh_one_in(maker->random, maker->wrong_one_in) ? &copy : NULL;
    wh_message_blob(maker, message, &copy,
                    sizeof(copy) - (wh_one_in(maker->random, maker->wrong_one_in) ? 8 : 0));
}

/* Pitch, width, height, stream, and the bytes or the room for them. */
static void put_area(struct wh_maker *maker, struct wh_message *message, bool out)
{
    static uint8_t bytes[PART_BYTES];
    uint64_t width = 1 + wh_below(maker->random, 64);
    uint64_t height = 1 + wh_below(maker->random, 8);
    wh_message_u64(message, wrong_or(maker, 64));
    wh_message_u64(message, wrong_or(maker, width));
    wh_message_u64(message, wrong_or(maker, height));
    put_stream(maker, message, WH_KIND_STREAM);
    if (out) {
        wh_message_out(maker, message, width * height);
    } else {
        wh_message_blob(maker, message, bytes, width * height);
    }
}

static void put_pinned(struct wh_maker *maker, struct wh_message *message)
{
    uint64_t arena = (uint64_t)(uintptr_t)maker->arena;
    wh_message_u64(message, wrong_or(maker, arena + 4096ull * wh_below(maker->random, 16)));
}

/* Name, type and count, then the elements, or those that are to be filled and two output areas. */
static void put_elements(struct wh_maker *maker, struct wh_message *message, bool asked)
{
    static const uint16_t names[] = {100, 200, 300, 400, 500, 600, 700, 900, 1000};
    struct wh_random *random = maker->random;
    uint64_t elements[8];
    bool objects = wh_one_in(random, 4);
    int type = objects ? WH_CUDNN_TYPE_DESCRIPTOR : 1 + (int)wh_below(random, WH_CUDNN_TYPE_LAST);
    size_t count = wh_below(random, 5);
    for (size_t i = 0; i < 8; i++) {
        elements[i] = type == WH_CUDNN_TYPE_DESCRIPTOR ? wh_message_handle(maker, WH_KIND_BACKEND)
                                                       : wh_below(random, 5);
    }
    wh_message_u64(message, names[wh_below(random, 9)] + wh_below(random, 10));
    wh_message_u64(message, wrong_or(maker, (uint64_t)type));
    wh_message_u64(message, wrong_or(maker, count));
    if (!asked) {
        wh_message_blob(maker, message, elements, count * wh_cudnn_element_bytes(type));
        return;
    }
    if (type == WH_CUDNN_TYPE_DESCRIPTOR) {
        wh_message_blob(maker, message, elements, count * sizeof(elements[0]));
    } else {
        put_none(message);
    }
    wh_message_out(maker, message, sizeof(int64_t));
    if (type == WH_CUDNN_TYPE_DESCRIPTOR && !wh_one_in(random, maker->wrong_one_in)) {
        put_none(message);
    } else {
        wh_message_out(maker, message, 128);
    }
}

/* Which tensor lies where, and those that are given by value. */
static void put_pack(struct wh_maker *maker, struct wh_message *message)
{
    struct wh_random *random = maker->random;
    uint64_t ids[4];
    uint64_t places[4];
    struct wh_cudnn_value value = {.size_bytes = 4};
    size_t count = wh_below(random, 5);
    for (size_t i = 0; i < 4; i++) {
        ids[i] = i;
        places[i] = address(maker);
    }
    value.place = (uint32_t)wrong_or(maker, count > 0 ? wh_below(random, (uint32_t)count) : 0);
    wh_message_blob(maker, message, ids, count * sizeof(ids[0]));
    wh_message_blob(maker, message, places, (size_t)wrong_or(maker, count) % 5 * sizeof(places[0]));
    wh_message_u64(message, address(maker));
    if (count > 0 && wh_one_in(random, 2)) {
        wh_message_blob(maker, message, &value, sizeof(value));
    } else {
        put_none(message);
    }
}

void wh_message_cuda(struct wh_maker *maker, struct wh_message *message, const struct wh_item *item)
{
    struct wh_random *random = maker->random;
    switch (item->kind) {
    case WH_FUZZ_CONTEXT:
        wh_message_u64(message, wrong_or(maker, wh_one_in(random, 50)));
        break;
    case WH_FUZZ_ADDRESS:
        wh_message_u64(message, address(maker));
        break;
    case WH_FUZZ_STREAM:
        put_stream(maker, message, (uint8_t)item->argument);
        break;
    case WH_FUZZ_SCALAR:
        put_scalar(maker, message);
        break;
    case WH_FUZZ_RESULT:
        put_result(maker, message);
        break;
    case WH_FUZZ_INOUT:
        put_words(maker, message, 32);
        wh_message_out(maker, message, 32);
        break;
    case WH_FUZZ_FLOAT:
        wh_message_u64(message, wrong_or(maker, 0x3ff0000000000000ull | wh_below(random, 2)));
        break;
    case WH_FUZZ_CONTENT:
        put_content(maker, message, (uint8_t)item->argument);
        break;
    case WH_FUZZ_LT:
        put_lt(maker, message);
        break;
    case WH_FUZZ_CODE:
        put_code(maker, message);
        break;
    case WH_FUZZ_NAME:
        put_name(maker, message);
        break;
    case WH_FUZZ_LAUNCH:
        put_launch(maker, message, item->argument);
        break;
    case WH_FUZZ_COPY:
        put_copy(maker, message);
        break;
    case WH_FUZZ_AREA:
        put_area(maker, message, item->argument != 0);
        break;
    case WH_FUZZ_PINNED:
        put_pinned(maker, message);
        break;
    case WH_FUZZ_ELEMENTS:
        put_elements(maker, message, item->argument != 0);
        break;
    default:
        put_pack(maker, message);
        break;
    }
}
