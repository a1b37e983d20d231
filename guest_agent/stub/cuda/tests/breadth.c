/*
 * breadth.c - the parts of the CUDA runtime that programs take for granted beside the plain ones of
 * client.c: graphs by node, three dimensions, pools, attributes, occupancy, other launches. As
 * there, every result is printed, for a native run and a forwarded one to be compared.
 *
 *     breadth          all cases
 *     breadth CASE...  these
 *     breadth --list   their names
 */
#define _GNU_SOURCE

#include "cases.h"

#include <unistd.h>

enum { COUNT = 1000, BYTES = COUNT * sizeof(int) };

static struct wh_cuda_kernel_node scale_node(void **arguments)
{
    return (struct wh_cuda_kernel_node){
        .function = (void *)(uintptr_t)client_kernel("scale"),
        .grid = {(COUNT + 255) / 256, 1, 1},
        .block = {256, 1, 1},
        .arguments = arguments,
    };
}

static struct wh_cuda_fill fill_of(void *dst, unsigned value)
{
    return (struct wh_cuda_fill){dst, 0, value, 4, COUNT, 1};
}

/* x[i] = i * factor + shift, or shift alone */
static void check_values(const int *x, int factor, int shift, const char *what)
{
    static int values[COUNT];
    OK(cudaMemcpy(values, x, BYTES, TO_HOST));
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        wrong += values[i] != i * factor + shift;
    }
    if (wrong != 0) {
        say("%d wrong; %d %d ... %d", wrong, values[0], values[1], values[COUNT - 1]);
    }
    check(wrong == 0, what);
}

static void count_nodes(cudaGraph_t graph)
{
    size_t nodes = 0;
    size_t roots = 0;
    size_t edges = 0;
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    OK(cudaGraphGetRootNodes(graph, NULL, &roots));
    OK(cudaGraphGetEdges(graph, NULL, NULL, NULL, &edges));
    say("%zu nodes, %zu roots, %zu edges", nodes, roots, edges);
}

/* fill, scale, copy and an empty node, by dependencies of both forms; other parameters later. */
static void graph_nodes(void)
{
    int *a = NULL;
    int *b = NULL;
    int factor = 3;
    int shift = 1;
    int n = COUNT;
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaGraphNode_t empty = NULL;
    cudaGraphNode_t fill = NULL;
    cudaGraphNode_t scale = NULL;
    cudaGraphNode_t copy = NULL;
    cudaGraphNode_t listed[8];
    size_t count = 8;
    void *arguments[] = {&a, &factor, &shift, &n};
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&a, BYTES));
    OK(cudaMalloc((void **)&b, BYTES));
    OK(cudaGraphCreate(&graph, 0));
    struct wh_cuda_fill filled = fill_of(a, 5);
    struct wh_cuda_kernel_node scaled = scale_node(arguments);
    OK(cudaGraphAddEmptyNode(&empty, graph, NULL, 0));
    OK(cudaGraphAddMemsetNode(&fill, graph, &empty, 1, &filled));
    OK(cudaGraphAddKernelNode(&scale, graph, &fill, 1, &scaled));
    OK(cudaGraphAddMemcpyNode1D(&copy, graph, NULL, 0, b, a, BYTES, ON_DEVICE));
    OK(cudaGraphAddDependencies(graph, &scale, &copy, NULL, 1));
    count_nodes(graph);
    OK(cudaGraphGetNodes(graph, listed, &count));
    for (size_t i = 0; i < count; i++) {
        int kind = -1;
        OK(cudaGraphNodeGetType(listed[i], &kind));
        say("node %zu: type %d known %d", i, kind,
            listed[i] == empty   ? 0
            : listed[i] == fill  ? 1
            : listed[i] == scale ? 2
            : listed[i] == copy  ? 3
                                 : -1);
    }
    count = 8;
    OK(cudaGraphNodeGetDependencies(copy, listed, NULL, &count));
    check(count == 1 && listed[0] == scale, "what the copy depends on");
    count = 8;
    OK(cudaGraphNodeGetDependentNodes(fill, listed, NULL, &count));
    check(count == 1 && listed[0] == scale, "what depends on the fill");
    struct wh_cuda_fill got;
    OK(cudaGraphMemsetNodeGetParams(fill, &got));
    check(got.dst == a && got.value == 5 && got.width == COUNT, "parameters of a fill");
    struct wh_cuda_kernel_node got_kernel;
    OK(cudaGraphKernelNodeGetParams(scale, &got_kernel));
    say("kernel: %u x %u, factor %d", got_kernel.grid.x, got_kernel.block.x,
        *(int *)got_kernel.arguments[1]);
    IS(cudaGraphKernelNodeGetParams(fill, &got_kernel), 1);
    (void)cudaGetLastError();
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        OK(cudaGraphLaunch(exec, stream));
    }
    OK(cudaStreamSynchronize(stream));
    check_values(b, 0, 16, "fill, scale, copy");
    shift = 100;
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    check_values(b, 0, 16, "arguments are those that were there");
    OK(cudaGraphExecKernelNodeSetParams(exec, scale, &scaled));
    filled.value = 7;
    OK(cudaGraphExecMemsetNodeSetParams(exec, fill, &filled));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    check_values(b, 0, 121, "other parameters of what is executable");
    OK(cudaMemset(b, 0, BYTES));
    OK(cudaDeviceSynchronize());
    OK(cudaGraphExecMemcpyNodeSetParams1D(exec, copy, b + 1, a, 4, ON_DEVICE));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    int some[3];
    OK(cudaMemcpy(some, b, sizeof(some), TO_HOST));
    say("%d %d %d", some[0], some[1], some[2]);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaStreamDestroy(stream));
}

/* A graph within a graph, events, nodes that are switched off or taken out, a clone. */
static void graph_structure(void)
{
    int *x = NULL;
    int factor = 2;
    int shift = 1;
    int n = COUNT;
    void *arguments[] = {&x, &factor, &shift, &n};
    cudaStream_t stream = NULL;
    cudaEvent_t event = NULL;
    cudaGraph_t inner = NULL;
    cudaGraph_t graph = NULL;
    cudaGraph_t clone = NULL;
    cudaGraphExec_t exec = NULL;
    cudaGraphNode_t fill = NULL;
    cudaGraphNode_t child = NULL;
    cudaGraphNode_t scale = NULL;
    cudaGraphNode_t record = NULL;
    cudaGraphNode_t extra = NULL;
    struct wh_cuda_kernel_node scaled = scale_node(arguments);
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaEventCreate(&event));
    OK(cudaMalloc((void **)&x, BYTES));
    struct wh_cuda_fill filled = fill_of(x, 1);
    OK(cudaGraphCreate(&inner, 0));
    OK(cudaGraphAddKernelNode(&scale, inner, NULL, 0, &scaled));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &filled));
    OK(cudaGraphAddChildGraphNode(&child, graph, &fill, 1, inner));
    OK(cudaGraphDestroy(inner));
    OK(cudaGraphAddKernelNode(&scale, graph, &child, 1, &scaled));
    OK(cudaGraphAddEventRecordNode(&record, graph, &scale, 1, event));
    OK(cudaGraphAddEmptyNode(&extra, graph, &scale, 1));
    count_nodes(graph);
    OK(cudaGraphRemoveDependencies(graph, &scale, &extra, NULL, 1));
    count_nodes(graph);
    OK(cudaGraphDestroyNode(extra));
    count_nodes(graph);
    OK(cudaGraphClone(&clone, graph));
    OK(cudaGraphDestroy(graph));
    count_nodes(clone);
    OK(cudaGraphInstantiate(&exec, clone, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaEventSynchronize(event));
    OK(cudaStreamSynchronize(stream));
    check_values(x, 0, 7, "a graph within a graph");
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(clone));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &filled));
    OK(cudaGraphAddKernelNode(&scale, graph, &fill, 1, &scaled));
    struct wh_cuda_instantiation how = {.flags = 0};
    OK(cudaGraphInstantiateWithParams(&exec, graph, &how));
    unsigned enabled = 7;
    OK(cudaGraphNodeSetEnabled(exec, scale, 0));
    OK(cudaGraphNodeGetEnabled(exec, scale, &enabled));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    say("result %d, enabled %u", how.result, enabled);
    check_values(x, 0, 1, "a node that is switched off");
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaEventDestroy(event));
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
}

struct told {
    const int *from;
    int values[8];
    int count;
};

static void tell(void *data)
{
    struct told *told = data;
    usleep(1000);
    told->values[told->count++] = *told->from;
}

/* Copies from and to memory that nobody has pinned take and leave its bytes at each launch, and
 * host functions of the graph see them in order. */
static void graph_memory(void)
{
    int *x = NULL;
    int factor = 10;
    int shift = 3;
    int n = COUNT;
    int *in = malloc(BYTES);
    int *out = calloc(COUNT, sizeof(int));
    struct told told = {.from = &out[2]};
    void *arguments[] = {&x, &factor, &shift, &n};
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraph_t clone = NULL;
    cudaGraphExec_t exec = NULL;
    cudaGraphNode_t nodes[4] = {NULL};
    struct wh_cuda_kernel_node scaled = scale_node(arguments);
    const struct wh_cuda_host_node function = {(void *)tell, &told};
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&x, BYTES));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNode1D(&nodes[0], graph, NULL, 0, x, in, BYTES, TO_DEVICE));
    OK(cudaGraphAddKernelNode(&nodes[1], graph, &nodes[0], 1, &scaled));
    OK(cudaGraphAddMemcpyNode1D(&nodes[2], graph, &nodes[1], 1, out, x, BYTES, TO_HOST));
    OK(cudaGraphAddHostNode(&nodes[3], graph, &nodes[2], 1, &function));
    for (int i = 0; i < 4; i++) {
        int kind = -1;
        OK(cudaGraphNodeGetType(nodes[i], &kind));
        say("node %d: type %d", i, kind);
    }
    count_nodes(graph);
    struct wh_cuda_host_node got_function = {NULL, NULL};
    struct wh_cuda_copy got_copy;
    OK(cudaGraphHostNodeGetParams(nodes[3], &got_function));
    check(got_function.function == (void *)tell && got_function.data == &told, "a function");
    OK(cudaGraphMemcpyNodeGetParams(nodes[0], &got_copy));
    check(got_copy.src.pointer == in && got_copy.dst.pointer == x, "a copy");
    OK(cudaGraphClone(&clone, graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphInstantiate(&exec, clone, 0));
    OK(cudaGraphDestroy(clone));
    int wrong = 0;
    for (int launch = 1; launch <= 5; launch++) {
        for (int i = 0; i < COUNT; i++) {
            in[i] = i * launch;
        }
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < COUNT; i++) {
            wrong += out[i] != i * launch * 10 + 3;
        }
    }
    check(wrong == 0, "bytes of each launch");
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    say("%d calls: %d %d %d %d", told.count, told.values[0], told.values[1], told.values[4],
        told.values[6]);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
    free(in);
    free(out);
}

/* The same by capturing a stream, with a branch that leaves it and comes back. */
static void graph_captured(void)
{
    int *x = NULL;
    int *y = NULL;
    int factor = 10;
    int shift = 3;
    int n = COUNT;
    void *arguments[] = {&x, &factor, &shift, &n};
    void *others[] = {&y, &factor, &shift, &n};
    cudaStream_t stream = NULL;
    cudaStream_t branch = NULL;
    cudaEvent_t event = NULL;
    cudaEvent_t back = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int capturing = -1;
    const void *scale = client_kernel("scale");
    const struct wh_dim3 grid = {4, 1, 1};
    const struct wh_dim3 block = {256, 1, 1};
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaStreamCreateWithFlags(&branch, 1));
    OK(cudaEventCreateWithFlags(&event, 2));
    OK(cudaEventCreateWithFlags(&back, 2));
    OK(cudaMalloc((void **)&x, BYTES));
    OK(cudaMalloc((void **)&y, BYTES));
    OK(cudaStreamBeginCapture(stream, 0));
    OK(cudaStreamIsCapturing(stream, &capturing));
    OK(cudaMemsetAsync(x, 0, BYTES, stream));
    OK(cudaEventRecord(event, stream));
    OK(cudaStreamWaitEvent(branch, event, 0));
    OK(cudaMemsetAsync(y, 0, BYTES, branch));
    OK(cudaLaunchKernel(scale, grid, block, others, 0, branch));
    OK(cudaLaunchKernel(scale, grid, block, arguments, 0, stream));
    OK(cudaEventRecord(back, branch));
    OK(cudaStreamWaitEvent(stream, back, 0));
    OK(cudaLaunchKernel(scale, grid, block, others, 0, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    say("capturing %d", capturing);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    cudaGraphNode_t nodes[16];
    size_t count = 16;
    int kernels = 0;
    OK(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        int kind = -1;
        OK(cudaGraphNodeGetType(nodes[i], &kind));
        kernels += kind == 0;
    }
    say("%d kernels", kernels);
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    check_values(x, 0, 3, "the first branch");
    check_values(y, 0, 33, "the other one, and what comes after both");
    OK(cudaGraphExecDestroy(exec));
    OK(cudaEventDestroy(event));
    OK(cudaEventDestroy(back));
    OK(cudaFree(x));
    OK(cudaFree(y));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(branch));
}

static void capture_memory(void)
{
    int *x = NULL;
    int factor = 10;
    int shift = 3;
    int n = COUNT;
    int *in = malloc(BYTES);
    int *out = calloc(COUNT, sizeof(int));
    struct told told = {.from = &out[2]};
    void *arguments[] = {&x, &factor, &shift, &n};
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&x, BYTES));
    OK(cudaStreamBeginCapture(stream, 2));
    OK(cudaMemcpyAsync(x, in, BYTES, TO_DEVICE, stream));
    OK(cudaLaunchKernel(client_kernel("scale"), (struct wh_dim3){4, 1, 1},
                        (struct wh_dim3){256, 1, 1}, arguments, 0, stream));
    OK(cudaMemcpyAsync(out, x, BYTES, TO_HOST, stream));
    OK(cudaLaunchHostFunc(stream, (void *)tell, &told));
    OK(cudaStreamEndCapture(stream, &graph));
    check(told.count == 0 && out[1] == 0, "nothing runs at the capture");
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    int wrong = 0;
    for (int launch = 1; launch <= 5; launch++) {
        for (int i = 0; i < COUNT; i++) {
            in[i] = i * launch;
        }
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < COUNT; i++) {
            wrong += out[i] != i * launch * 10 + 3;
        }
    }
    check(wrong == 0, "bytes of each launch");
    say("%d calls: %d %d %d", told.count, told.values[0], told.values[1], told.values[4]);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
    free(in);
    free(out);
}

static cudaGraph_t fill_and_scale(int *x, unsigned value, void **arguments, bool more)
{
    cudaGraph_t graph = NULL;
    cudaGraphNode_t fill = NULL;
    cudaGraphNode_t scale = NULL;
    cudaGraphNode_t last = NULL;
    const struct wh_cuda_fill filled = fill_of(x, value);
    const struct wh_cuda_kernel_node scaled = scale_node(arguments);
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &filled));
    OK(cudaGraphAddKernelNode(&scale, graph, &fill, 1, &scaled));
    if (more) {
        OK(cudaGraphAddKernelNode(&last, graph, &scale, 1, &scaled));
    }
    return graph;
}

static void graph_update(void)
{
    int *x = NULL;
    int factor = 2;
    int shift = 1;
    int n = COUNT;
    void *arguments[] = {&x, &factor, &shift, &n};
    cudaStream_t stream = NULL;
    cudaGraphExec_t exec = NULL;
    struct wh_cuda_update result;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&x, BYTES));
    cudaGraph_t first = fill_and_scale(x, 4, arguments, false);
    shift = 5;
    cudaGraph_t second = fill_and_scale(x, 6, arguments, false);
    cudaGraph_t longer = fill_and_scale(x, 6, arguments, true);
    OK(cudaGraphInstantiate(&exec, first, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    check_values(x, 0, 9, "before");
    OK(cudaGraphExecUpdate(exec, second, &result));
    say("result %d", result.result);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    check_values(x, 0, 17, "after");
    IS(cudaGraphExecUpdate(exec, longer, &result), 910);
    IS(cudaGetLastError(), 910);
    say("result %d", result.result);
    OK(cudaGraphDestroy(first));
    OK(cudaGraphDestroy(second));
    OK(cudaGraphDestroy(longer));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
}

/* Many graphs that come and go: what belongs to their host functions does, too. */
static void graph_lives(void)
{
    enum { GRAPHS = 1500 };
    struct told told;
    int one = 1;
    cudaStream_t stream = NULL;
    const struct wh_cuda_host_node function = {(void *)tell, &told};
    int wrong = 0;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    for (int i = 0; i < GRAPHS; i++) {
        cudaGraph_t graph = NULL;
        cudaGraphExec_t exec = NULL;
        cudaGraphNode_t node = NULL;
        told = (struct told){.from = &one};
        wrong += cudaGraphCreate(&graph, 0) != 0;
        wrong += cudaGraphAddHostNode(&node, graph, NULL, 0, &function) != 0;
        if (i % 100 == 0) {
            wrong += cudaGraphInstantiate(&exec, graph, 0) != 0;
            wrong += cudaGraphLaunch(exec, stream) != 0;
            wrong += cudaStreamSynchronize(stream) != 0;
            wrong += told.count != 1;
            wrong += cudaGraphExecDestroy(exec) != 0;
        }
        wrong += cudaGraphDestroy(graph) != 0;
        if (i % 100 == 99) {
            usleep(50000); /* the library tells of their end when it likes */
        }
    }
    check(wrong == 0, "graphs that come and go");
    OK(cudaStreamDestroy(stream));
}

/* Wrong objects, by their number. */
static void graph_errors(void)
{
    cudaGraph_t graph = NULL;
    cudaGraphNode_t node = NULL;
    size_t count = 0;
    const struct wh_cuda_host_node nothing = {NULL, NULL};
    OK(cudaGraphCreate(&graph, 0));
    IS(cudaGraphCreate(NULL, 0), 1);
    OK(cudaGraphAddEmptyNode(&node, graph, NULL, 0));
    IS(cudaGraphAddEmptyNode(NULL, graph, NULL, 0), 1);
    IS(cudaGraphAddEmptyNode(&node, NULL, NULL, 0), 1);
    IS(cudaGraphAddDependencies(graph, &node, &node, NULL, 1), 1);
    IS(cudaGraphAddHostNode(&node, graph, NULL, 0, &nothing), 1);
    IS(cudaGraphAddKernelNode(&node, graph, NULL, 0, NULL), 1);
    IS(cudaGraphGetNodes(NULL, NULL, &count), 1);
    IS(cudaGraphLaunch(NULL, NULL), 1);
    IS(cudaGetLastError(), 1);
    OK(cudaGraphDestroy(graph));
}

enum { WIDTH = 60, HEIGHT = 20, DEPTH = 5, HOST_PITCH = 70, HOST_HEIGHT = 23 };

static unsigned char *host_box(void)
{
    unsigned char *box = malloc((size_t)HOST_PITCH * HOST_HEIGHT * DEPTH);
    for (size_t i = 0; i < (size_t)HOST_PITCH * HOST_HEIGHT * DEPTH; i++) {
        box[i] = (unsigned char)(i * 7 + i / 251);
    }
    return box;
}

static int differences(const unsigned char *a, const unsigned char *b, size_t width, size_t height)
{
    int wrong = 0;
    for (size_t z = 0; z < DEPTH; z++) {
        for (size_t y = 0; y < height; y++) {
            size_t at = (z * HOST_HEIGHT + y) * HOST_PITCH;
            wrong += memcmp(a + at, b + at, width) != 0;
        }
    }
    return wrong;
}

/* Boxes whose slices lie apart on one side, and one behind the other on another. */
static void boxes(void)
{
    unsigned char *from = host_box();
    unsigned char *to = calloc(1, (size_t)HOST_PITCH * HOST_HEIGHT * DEPTH);
    struct wh_cuda_pitched a;
    struct wh_cuda_pitched b;
    const struct wh_cuda_extent extent = {WIDTH, HEIGHT, DEPTH};
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc3D(&a, extent));
    OK(cudaMalloc3D(&b, extent));
    say("%zu x %zu", a.width, a.height);
    check(a.pitch >= WIDTH && a.pointer != NULL, "a box");
    struct wh_cuda_copy copy = {.src = {from, HOST_PITCH, WIDTH, HOST_HEIGHT},
                                .dst = a,
                                .extent = extent,
                                .kind = TO_DEVICE};
    OK(cudaMemcpy3D(&copy));
    OK(cudaDeviceSynchronize()); /* a copy of pageable memory may still be under way */
    copy = (struct wh_cuda_copy){.src = a, .dst = b, .extent = extent, .kind = ON_DEVICE};
    OK(cudaMemcpy3DAsync(&copy, stream));
    copy = (struct wh_cuda_copy){
        .src = b, .dst = {to, HOST_PITCH, WIDTH, HOST_HEIGHT}, .extent = extent, .kind = ANY};
    OK(cudaMemcpy3DAsync(&copy, stream));
    OK(cudaStreamSynchronize(stream));
    check(differences(from, to, WIDTH, HEIGHT) == 0, "there and back");
    check(to[WIDTH] == 0 && to[HOST_PITCH * HEIGHT] == 0, "what lies between stays");
    /* A part of it, from and to places inside. */
    unsigned char *part = calloc(1, (size_t)HOST_PITCH * HOST_HEIGHT * DEPTH);
    copy = (struct wh_cuda_copy){.src = a,
                                 .src_at = {3, 2, 1},
                                 .dst = {part, HOST_PITCH, WIDTH, HOST_HEIGHT},
                                 .dst_at = {1, 1, 0},
                                 .extent = {10, 5, 2},
                                 .kind = TO_HOST};
    OK(cudaMemcpy3D(&copy));
    int wrong = 0;
    for (size_t z = 0; z < 2; z++) {
        for (size_t y = 0; y < 5; y++) {
            wrong += memcmp(part + (z * HOST_HEIGHT + y + 1) * HOST_PITCH + 1,
                            from + ((z + 1) * HOST_HEIGHT + y + 2) * HOST_PITCH + 3, 10) != 0;
        }
    }
    check(wrong == 0, "a part of a box");
    OK(cudaMemset3D(a, 0x5a, extent));
    OK(cudaMemset3DAsync(b, 0xa5, (struct wh_cuda_extent){WIDTH, HEIGHT - 1, DEPTH}, stream));
    copy = (struct wh_cuda_copy){
        .src = a, .dst = {to, HOST_PITCH, WIDTH, HOST_HEIGHT}, .extent = extent, .kind = TO_HOST};
    OK(cudaMemcpy3D(&copy));
    say("%02x %02x %02x", to[0], to[WIDTH - 1], to[(HOST_HEIGHT + HEIGHT - 1) * HOST_PITCH]);
    copy.src = b;
    OK(cudaMemcpy3DAsync(&copy, stream));
    OK(cudaStreamSynchronize(stream));
    say("%02x %02x", to[(HOST_HEIGHT + HEIGHT - 2) * HOST_PITCH], to[0]);
    check(to[(HEIGHT - 1) * HOST_PITCH] == from[(HEIGHT - 1) * HOST_PITCH],
          "rows that are left out");
    OK(cudaMemset2DAsync(a.pointer, a.pitch, 0x11, WIDTH, 2, stream));
    OK(cudaMemcpy2DAsync(to, HOST_PITCH, a.pointer, a.pitch, WIDTH, 3, TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    say("%02x %02x %02x", to[0], to[HOST_PITCH], to[2 * HOST_PITCH]);
    OK(cudaFree(a.pointer));
    OK(cudaFree(b.pointer));
    OK(cudaStreamDestroy(stream));
    free(from);
    free(to);
    free(part);
}

static void pools(void)
{
    cudaMemPool_t usual = NULL;
    cudaMemPool_t again = NULL;
    cudaMemPool_t own = NULL;
    cudaStream_t stream = NULL;
    int *x = NULL;
    uint64_t threshold = 1 << 20;
    uint64_t got = 0;
    int reuse = 0;
    int access = -1;
    char properties[88] = {0};
    const int device_memory[] = {1, 0, 1, 0}; /* pinned, no handles, of a device, which */
    const int location[] = {1, 0};
    const int description[] = {1, 0, 3};
    memcpy(properties, device_memory, sizeof(device_memory));
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaDeviceGetDefaultMemPool(&usual, 0));
    OK(cudaDeviceGetMemPool(&again, 0));
    check(usual == again, "the device's pool");
    OK(cudaMemPoolSetAttribute(usual, 4, &threshold));
    OK(cudaMemPoolGetAttribute(usual, 4, &got));
    check(got == threshold, "a threshold");
    OK(cudaMemPoolSetAttribute(usual, 1, &reuse));
    reuse = 5;
    OK(cudaMemPoolGetAttribute(usual, 1, &reuse));
    say("reuse %d", reuse);
    OK(cudaMallocAsync((void **)&x, BYTES, stream));
    OK(cudaMemsetAsync(x, 0, BYTES, stream));
    OK(cudaStreamSynchronize(stream));
    check_values(x, 0, 0, "memory of the device's pool");
    OK(cudaFreeAsync(x, stream));
    OK(cudaMemPoolCreate(&own, properties));
    OK(cudaMemPoolSetAccess(own, description, 1));
    OK(cudaMemPoolGetAccess(&access, own, (void *)(uintptr_t)location));
    say("access %d", access);
    OK(cudaMallocFromPoolAsync((void **)&x, BYTES, own, stream));
    OK(cudaMemsetAsync(x, 0, BYTES, stream));
    OK(cudaStreamSynchronize(stream));
    check_values(x, 0, 0, "memory of a pool");
    OK(cudaFreeAsync(x, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaDeviceSetMemPool(0, own));
    OK(cudaDeviceGetMemPool(&again, 0));
    check(again == own, "the pool that was set");
    OK(cudaDeviceSetMemPool(0, usual));
    OK(cudaMemPoolTrimTo(own, 0));
    OK(cudaMemPoolDestroy(own));
    OK(cudaStreamDestroy(stream));
}

/* Memory that is told to be pinned is as good as any other for copies. */
static void registered(void)
{
    int *host = NULL;
    int *x = NULL;
    cudaStream_t stream = NULL;
    check(posix_memalign((void **)&host, 4096, 8192) == 0, "memory");
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&x, BYTES));
    IS(cudaHostRegister(host, 8192, 0x100), 1);
    IS(cudaHostRegister(NULL, 8192, 0), 1);
    (void)cudaGetLastError();
    OK(cudaHostRegister(host, 8192, 0));
    IS(cudaHostRegister(host, 4096, 0), 712);
    (void)cudaGetLastError();
    for (int i = 0; i < COUNT; i++) {
        host[i] = 4 * i + 1;
    }
    OK(cudaMemcpyAsync(x, host, BYTES, TO_DEVICE, stream));
    OK(cudaStreamSynchronize(stream));
    check_values(x, 4, 1, "what was registered");
    OK(cudaMemsetAsync(x, 0, BYTES, stream));
    OK(cudaMemcpyAsync(host, x, BYTES, TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    check(host[0] == 0 && host[COUNT - 1] == 0, "what came back");
    OK(cudaHostUnregister(host));
    IS(cudaHostUnregister(host), 713);
    (void)cudaGetLastError();
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
    free(host);
}

static void functions(void)
{
    enum { MAX_THREADS_AT = 24, DYNAMIC_AT = 44, DYNAMIC = 8 };
    char attributes[WH_CUDA_FUNCTION_BYTES];
    const void *scale = client_kernel("scale");
    int *x = NULL;
    int factor = 2;
    int shift = 1;
    int n = COUNT;
    void *arguments[] = {&x, &factor, &shift, &n};
    int most = 0;
    int dynamic = 0;
    int blocks = -1;
    size_t offset = 0;
    size_t size = 0;
    OK(cudaFuncGetAttributes(attributes, scale));
    memcpy(&most, attributes + MAX_THREADS_AT, sizeof(most));
    say("%d threads", most);
    OK(cudaMalloc((void **)&x, BYTES));
    OK(cudaMemset(x, 0, BYTES));
    const struct wh_dim3 grid = {4, 1, 1};
    const struct wh_dim3 block = {256, 1, 1};
    IS(cudaLaunchKernel(scale, grid, block, arguments, 60000, NULL), 1);
    (void)cudaGetLastError();
    int before = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 60000);
    say("before: %d, %d blocks", before, blocks);
    OK(cudaFuncSetAttribute(scale, DYNAMIC, 60000));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 60000));
    say("after: %d blocks", blocks);
    OK(cudaFuncGetAttributes(attributes, scale));
    memcpy(&dynamic, attributes + DYNAMIC_AT, sizeof(dynamic));
    say("dynamic %d", dynamic);
    OK(cudaLaunchKernel(scale, grid, block, arguments, 60000, NULL));
    check_values(x, 0, 1, "a launch with much shared memory");
    IS(cudaFuncSetAttribute(scale, 99, 1), 1);
    (void)cudaGetLastError();
    IS(cudaFuncSetAttribute(scale, DYNAMIC, 1 << 30), 1);
    (void)cudaGetLastError();
    OK(cudaFuncGetParamInfo(scale, 0, &offset, &size));
    say("parameter 0: %zu bytes at %zu", size, offset);
    OK(cudaFuncGetParamInfo(scale, 3, &offset, &size));
    say("parameter 3: %zu bytes at %zu", size, offset);
    IS(cudaFuncGetParamInfo(scale, 4, &offset, &size), 1);
    (void)cudaGetLastError();
    OK(cudaFree(x));
}

static void occupancy(void)
{
    const void *scale = client_kernel("scale");
    int blocks = 0;
    size_t shared = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 0));
    say("%d blocks", blocks);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, scale, 1024, 0, 0));
    say("%d blocks", blocks);
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, scale, 1, 256));
    check(shared >= 32768, "shared memory that is left");
    IS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 0, 0), 1);
    IS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(NULL, scale, 256, 0), 1);
    (void)cudaGetLastError();
}

static void launches(void)
{
    int *x = NULL;
    int factor = 2;
    int shift = 1;
    int n = COUNT;
    void *arguments[] = {&x, &factor, &shift, &n};
    const void *scale = client_kernel("scale");
    const struct wh_dim3 grid = {4, 1, 1};
    const struct wh_dim3 block = {256, 1, 1};
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&x, BYTES));
    OK(cudaMemset(x, 0, BYTES));
    OK(cudaDeviceSynchronize());
    OK(cudaLaunchCooperativeKernel(scale, grid, block, arguments, 0, stream));
    struct wh_cuda_attribute attributes[2] = {{.id = WH_CUDA_ATTRIBUTE_COOPERATIVE}, {.id = 8}};
    const int yes = 1;
    memcpy(attributes[0].value, &yes, sizeof(yes));
    struct wh_cuda_launch how = {.grid = grid, .block = block, .stream = stream};
    OK(cudaLaunchKernelExC(&how, scale, arguments));
    how.attributes = attributes;
    how.attribute_count = 2;
    for (int i = 0; i < 3; i++) {
        OK(cudaLaunchKernelExC(&how, scale, arguments));
    }
    OK(cudaStreamSynchronize(stream));
    check_values(x, 0, 31, "five launches");
    how.grid.x = 0;
    check(cudaLaunchKernelExC(&how, scale, arguments) != 0, "an empty grid");
    (void)cudaGetLastError();
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
}

static void priorities(void)
{
    int least = 9;
    int greatest = 9;
    int got = 9;
    unsigned flags = 9;
    cudaStream_t low = NULL;
    cudaStream_t high = NULL;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreateWithPriority(&low, 0, least));
    OK(cudaStreamCreateWithPriority(&high, 1, greatest));
    OK(cudaStreamGetPriority(low, &got));
    check(got == least, "the least priority");
    OK(cudaStreamGetPriority(high, &got));
    check(got == greatest, "the greatest priority");
    OK(cudaStreamGetFlags(high, &flags));
    say("%d to %d, flags %u", least, greatest, flags);
    /* Attributes of streams: a priority, a policy of waiting. */
    char value[64] = {0};
    const int policy = 2;
    OK(cudaStreamGetAttribute(high, 8, value));
    memcpy(&got, value, sizeof(got));
    check(got == greatest, "the priority as an attribute");
    memset(value, 0, sizeof(value));
    memcpy(value, &policy, sizeof(policy));
    OK(cudaStreamSetAttribute(high, 3, value));
    OK(cudaStreamCopyAttributes(low, high));
    memset(value, 0, sizeof(value));
    OK(cudaStreamGetAttribute(low, 3, value));
    memcpy(&got, value, sizeof(got));
    say("policy %d", got);
    OK(cudaStreamDestroy(low));
    OK(cudaStreamDestroy(high));
}

static int order[16];
static int order_count;

static void note(void *data)
{
    order[order_count++] = (int)(intptr_t)data;
}

static void note_of_stream(void *stream, int status, void *data)
{
    (void)stream;
    order[order_count++] = status == 0 ? (int)(intptr_t)data : -1;
}

static void callback_order(void)
{
    cudaStream_t stream = NULL;
    cudaStream_t other = NULL;
    cudaGraph_t graph = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaStreamCreateWithFlags(&other, 1));
    for (intptr_t i = 0; i < 12; i++) {
        if (i == 5) {
            /* What another stream captures is none of this one's business. */
            OK(cudaStreamBeginCapture(other, 2));
        }
        if (i % 3 == 0) {
            OK(cudaStreamAddCallback(stream, (void *)note_of_stream, (void *)i, 0));
        } else {
            OK(cudaLaunchHostFunc(stream, (void *)note, (void *)i));
        }
        if (i == 8) {
            OK(cudaStreamEndCapture(other, &graph));
        }
    }
    OK(cudaStreamSynchronize(stream));
    int wrong = order_count != 12;
    for (int i = 0; i < order_count; i++) {
        wrong += order[i] != i;
    }
    check(wrong == 0, "order");
    OK(cudaGraphDestroy(graph));
    IS(cudaStreamAddCallback(stream, NULL, NULL, 0), 1);
    (void)cudaGetLastError();
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
}

static void peers(void)
{
    int can = -1;
    OK(cudaDeviceCanAccessPeer(&can, 0, 0));
    say("itself %d", can);
    IS(cudaDeviceCanAccessPeer(&can, 0, 1000), 101);
    IS(cudaDeviceEnablePeerAccess(0, 0), 217);
    IS(cudaGetLastError(), 217);
}

static const struct test_case cases[] = {
    {"graph_nodes", graph_nodes, false},
    {"graph_structure", graph_structure, false},
    {"graph_memory", graph_memory, false},
    {"graph_captured", graph_captured, false},
    {"capture_memory", capture_memory, false},
    {"graph_update", graph_update, false},
    {"graph_lives", graph_lives, false},
    {"graph_errors", graph_errors, false},
    {"boxes", boxes, false},
    {"pools", pools, false},
    {"registered", registered, false},
    {"functions", functions, false},
    {"occupancy", occupancy, false},
    {"launches", launches, false},
    {"priorities", priorities, false},
    {"callback_order", callback_order, false},
    {"peers", peers, false},
};

int main(int argc, char **argv)
{
    return run_cases(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
