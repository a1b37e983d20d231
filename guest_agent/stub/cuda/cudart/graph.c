/*
 * graph.c - graphs that are made node by node, and what graphs consist of.
 *
 * Graphs and nodes are the real library's. A node of a graph that was captured gets its handle when
 * the program lists it. Nodes end with their graph: the client says which ones it knows of it.
 */
#include "cudart.h"

#include <stdlib.h>

#include "fork_lock.h"

/* Of nodes, as the runtime has them. */
enum { KIND_KERNEL = 0, KIND_MEMCPY = 1, KIND_HOST = 3 };
enum { ANY_DIRECTION = 4 };
#define INSTANTIATE_UPLOAD 2u /* before the first launch */
#define EDGE_BYTES 8u
#define ARGUMENT_ALIGN ((size_t)16)

/* What the program gave for a node. */
struct given {
    enum { GIVEN_KERNEL, GIVEN_COPY, GIVEN_FUNCTION } kind;
    union {
        struct wh_cuda_kernel_node kernel; /* its arguments lie behind */
        struct wh_cuda_copy copy;
        struct wh_cuda_host_node function;
    };
};

struct node {
    uint64_t handle;
    /* Copies memory of the client's: the real library has a graph of two nodes in its place. */
    bool moves;
    struct given *given; /* NULL: captured, cloned, or of another kind */
};

struct graph {
    struct graph *next;
    uint64_t handle;
    struct node *nodes;
    size_t count;
    size_t capacity;
};

WH_FORK_LOCK(graph_lock);
static struct graph *graphs; /* of which nodes are known */

static int done(int status)
{
    return wh_cuda_done(&wh_cudart_api, status);
}

static uint64_t number_of(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

/* With the lock held; NULL without memory. */
static struct graph *graph_of(uint64_t handle)
{
    struct graph *graph = graphs;
    while (graph != NULL && graph->handle != handle) {
        graph = graph->next;
    }
    if (graph == NULL) {
        graph = calloc(1, sizeof(*graph));
        if (graph != NULL) {
            graph->handle = handle;
            graph->next = graphs;
            graphs = graph;
        }
    }
    return graph;
}

/* Takes what was given. */
static void keep_node(uint64_t handle, cudaGraph_t of, bool moves, struct given *given)
{
    pthread_mutex_lock(&graph_lock);
    struct graph *graph = graph_of(number_of(of));
    if (graph != NULL && graph->count == graph->capacity) {
        size_t larger = graph->capacity == 0 ? 16 : graph->capacity * 2;
        struct node *grown = realloc(graph->nodes, larger * sizeof(*grown));
        if (grown != NULL) {
            graph->nodes = grown;
            graph->capacity = larger;
        }
    }
    if (graph != NULL && graph->count < graph->capacity) {
        graph->nodes[graph->count++] = (struct node){handle, moves, given};
        given = NULL;
    }
    pthread_mutex_unlock(&graph_lock);
    free(given);
}

void wh_graph_keeps(uint64_t node, cudaGraph_t graph)
{
    keep_node(node, graph, false, NULL);
}

/* With the lock held. NULL: not known. *owner: its graph. */
static struct node *node_of(cudaGraphNode_t handle, uint64_t *owner)
{
    struct node *found = NULL;
    for (const struct graph *graph = graphs; graph != NULL && found == NULL; graph = graph->next) {
        for (size_t i = 0; i < graph->count && found == NULL; i++) {
            if (graph->nodes[i].handle == number_of(handle)) {
                found = &graph->nodes[i];
                *owner = graph->handle;
            }
        }
    }
    return found;
}

/* The graph that a node is known to be of (0: none), and whether it moves the client's bytes. */
static uint64_t owner_of(cudaGraphNode_t handle, bool *moves)
{
    uint64_t owner = 0;
    pthread_mutex_lock(&graph_lock);
    const struct node *node = node_of(handle, &owner);
    *moves = node != NULL && node->moves;
    pthread_mutex_unlock(&graph_lock);
    return owner;
}

/* Takes what was given in the place of what was. */
static void give_anew(cudaGraphNode_t handle, struct given *given)
{
    uint64_t owner = 0;
    pthread_mutex_lock(&graph_lock);
    struct node *node = node_of(handle, &owner);
    if (node != NULL && node->given != NULL) {
        struct given *before = node->given;
        node->given = given;
        given = before;
    }
    pthread_mutex_unlock(&graph_lock);
    free(given);
}

static int find_given(cudaGraphNode_t handle, int kind, struct given *found)
{
    static int said;
    uint64_t owner = 0;
    if (!wh_cuda_handle_live(handle, WH_KIND_GRAPH_NODE)) {
        return WH_CUDA_INVALID_VALUE;
    }
    pthread_mutex_lock(&graph_lock);
    const struct node *node = node_of(handle, &owner);
    bool known = node != NULL && node->given != NULL;
    bool right = known && (int)node->given->kind == kind;
    if (right) {
        *found = *node->given;
    }
    pthread_mutex_unlock(&graph_lock);
    if (!known) {
        static const int types[] = {KIND_KERNEL, KIND_MEMCPY, KIND_HOST};
        int type = -1;
        int status = cudaGraphNodeGetType(handle, &type);
        if (status != 0 || type != types[kind]) {
            return status != 0 ? status : WH_CUDA_INVALID_VALUE;
        }
        return wh_cuda_unsupported(&wh_cudart_api, "what a node that was captured or cloned does",
                                   &said);
    }
    return right ? 0 : WH_CUDA_INVALID_VALUE;
}

/* Takes its record out; NULL: no nodes of it are known. */
static struct graph *forget(uint64_t handle)
{
    struct graph *found = NULL;
    pthread_mutex_lock(&graph_lock);
    for (struct graph **link = &graphs; *link != NULL && found == NULL; link = &(*link)->next) {
        if ((*link)->handle == handle) {
            found = *link;
            *link = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&graph_lock);
    return found;
}

WH_EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    WH_API_CALL();
    struct wh_call call;
    if (!wh_cuda_handle_live(graph, WH_KIND_GRAPH)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    struct graph *known = forget(number_of(graph));
    size_t count = known == NULL ? 0 : known->count;
    uint64_t *handles = malloc((count + 1) * sizeof(*handles));
    for (size_t i = 0; handles != NULL && i < count; i++) {
        handles[i] = known->nodes[i].handle;
    }
    int status = handles == NULL ? WH_CUDA_MEMORY_ALLOCATION
                                 : wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaGraphDestroy);
    if (status == 0) {
        wh_put_u64(&call, number_of(graph));
        wh_put_blob(&call, handles, count * sizeof(*handles));
        status = wh_cuda_call(&call, &wh_cudart_api);
        wh_call_end(&call);
    }
    for (size_t i = 0; handles != NULL && i < count; i++) {
        wh_cuda_handle_end(handles[i]);
    }
    wh_cuda_handle_end(number_of(graph));
    free(handles);
    for (size_t i = 0; i < count; i++) {
        free(known->nodes[i].given);
    }
    if (known != NULL) {
        free(known->nodes);
        free(known);
    }
    return done(status);
}

WH_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    WH_API_CALL();
    struct wh_call call;
    if (!wh_cuda_handle_live(exec, WH_KIND_GRAPH_EXEC)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    if (!wh_cuda_stream_live(stream)) {
        return done(WH_CUDA_INVALID_HANDLE);
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaGraphLaunch);
    if (status != 0) {
        return done(status);
    }
    wh_put_u64(&call, number_of(exec));
    wh_put_u64(&call, wh_cuda_stream(stream));
    uint64_t shape = wh_shape(WH_OP_cudaGraphLaunch);
    shape = wh_shape_add(shape, number_of(exec));
    shape = wh_shape_add(shape, number_of(stream));
    wh_host_functions_expected();
    return done(wh_cuda_send_shape(&call, &wh_cudart_api, shape));
}

WH_EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                     struct wh_cuda_instantiation *params)
{
    WH_API_CALL();
    if (exec == NULL || params == NULL) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    bool upload = (params->flags & INSTANTIATE_UPLOAD) != 0;
    int status = cudaGraphInstantiateWithFlags(exec, graph, params->flags & ~INSTANTIATE_UPLOAD);
    params->error_node = NULL;
    params->result = status == 0 ? 0 : 1;
    return status == 0 && upload ? cudaGraphUpload(*exec, params->upload_stream) : status;
}

/* What a message of a new node begins with. */
static int begin_node(struct wh_call *call, uint16_t opcode, cudaGraphNode_t *new_node,
                      cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count,
                      uint64_t *handle)
{
    if (new_node == NULL || !wh_cuda_handle_live(graph, WH_KIND_GRAPH) ||
        (dependencies == NULL && count > 0)) {
        return WH_CUDA_INVALID_VALUE;
    }
    *handle = wh_cuda_handle_new(WH_KIND_GRAPH_NODE);
    if (*handle == 0) {
        return WH_CUDA_MEMORY_ALLOCATION;
    }
    int status = wh_cuda_begin(call, &wh_cudart_api, opcode);
    if (status != 0) {
        wh_cuda_handle_end(*handle);
        return status;
    }
    wh_put_u64(call, *handle);
    wh_put_u64(call, number_of(graph));
    wh_put_blob(call, dependencies, count * sizeof(*dependencies));
    return 0;
}

/* Takes what was given. */
static int end_node(struct wh_call *call, uint64_t handle, cudaGraphNode_t *new_node,
                    cudaGraph_t graph, bool moves, struct given *given)
{
    int status = wh_cuda_call(call, &wh_cudart_api);
    wh_call_end(call);
    if (status == 0) {
        *new_node = (cudaGraphNode_t)(void *)(uintptr_t)handle;
        keep_node(handle, graph, moves, given);
    } else {
        wh_cuda_handle_end(handle);
        free(given);
    }
    return status;
}

/* Kernels. */

static int kernel_of(const struct wh_cuda_kernel_node *params, struct wh_kernel **kernel)
{
    static int said;
    if (params == NULL) {
        return WH_CUDA_INVALID_VALUE;
    }
    int status = wh_kernel_get(params->function, kernel);
    if (status == 0 && params->arguments == NULL && params->extra != NULL) {
        return wh_cuda_unsupported(&wh_cudart_api, "a kernel node with packed arguments", &said);
    }
    if (status == 0 && params->arguments == NULL && (*kernel)->parameter_count > 0) {
        status = WH_CUDA_INVALID_VALUE;
    }
    return status;
}

static size_t aligned(size_t size_bytes)
{
    return (size_bytes + ARGUMENT_ALIGN - 1) & ~(ARGUMENT_ALIGN - 1);
}

/* The arguments' values with it: the program's own may change. NULL without memory. */
static struct given *give_kernel(const struct wh_cuda_kernel_node *params,
                                 const struct wh_kernel *kernel)
{
    size_t count = kernel->parameter_count;
    size_t begin = aligned(sizeof(struct given) + count * sizeof(void *));
    size_t end = begin;
    for (size_t i = 0; i < count; i++) {
        end += aligned(kernel->parameters[i].size_bytes);
    }
    struct given *given = calloc(1, end);
    if (given == NULL) {
        return NULL;
    }
    void **arguments = (void **)(void *)(given + 1);
    char *value = (char *)given + begin;
    for (size_t i = 0; i < count; i++) {
        arguments[i] = value;
        memcpy(value, params->arguments[i], kernel->parameters[i].size_bytes);
        value += aligned(kernel->parameters[i].size_bytes);
    }
    given->kind = GIVEN_KERNEL;
    given->kernel = *params;
    given->kernel.arguments = arguments;
    return given;
}

static struct given *give_copy(const struct wh_cuda_copy *copy)
{
    struct given *given = calloc(1, sizeof(*given));
    if (given != NULL) {
        given->kind = GIVEN_COPY;
        given->copy = *copy;
    }
    return given;
}

static struct given *give_function(const struct wh_cuda_host_node *params)
{
    struct given *given = calloc(1, sizeof(*given));
    if (given != NULL) {
        given->kind = GIVEN_FUNCTION;
        given->function = *params;
    }
    return given;
}

static void put_kernel(struct wh_call *call, const struct wh_cuda_kernel_node *params,
                       const struct wh_kernel *kernel)
{
    const struct wh_cuda_geometry geometry = {params->grid, params->block, params->shared_bytes};
    wh_put_u64(call, kernel->handle);
    wh_put_blob(call, &geometry, sizeof(geometry));
    wh_put_parameters(call, kernel, params->arguments);
}

WH_EXPORT cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *new_node, cudaGraph_t graph,
                                             const cudaGraphNode_t *dependencies, size_t count,
                                             const struct wh_cuda_kernel_node *params)
{
    WH_API_CALL();
    struct wh_call call;
    struct wh_kernel *kernel = NULL;
    uint64_t handle = 0;
    int status = kernel_of(params, &kernel);
    if (status == 0) {
        status = begin_node(&call, WH_OP_cudaGraphAddKernelNode, new_node, graph, dependencies,
                            count, &handle);
    }
    if (status == 0) {
        put_kernel(&call, params, kernel);
        status = end_node(&call, handle, new_node, graph, false, give_kernel(params, kernel));
    }
    return done(status);
}

/* exec: NULL for the graph's own node. */
static int set_kernel(uint16_t opcode, cudaGraphExec_t exec, cudaGraphNode_t node,
                      const struct wh_cuda_kernel_node *params)
{
    struct wh_call call;
    struct wh_kernel *kernel = NULL;
    if (!wh_cuda_handle_live(node, WH_KIND_GRAPH_NODE)) {
        return WH_CUDA_INVALID_VALUE;
    }
    int status = kernel_of(params, &kernel);
    status = status != 0 ? status : wh_cuda_begin(&call, &wh_cudart_api, opcode);
    if (status == 0) {
        wh_put_u64(&call, number_of(exec));
        wh_put_u64(&call, number_of(node));
        put_kernel(&call, params, kernel);
        status = wh_cuda_call(&call, &wh_cudart_api);
        wh_call_end(&call);
    }
    if (status == 0 && exec == NULL) {
        give_anew(node, give_kernel(params, kernel));
    }
    return status;
}

WH_EXPORT cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                   const struct wh_cuda_kernel_node *params)
{
    WH_API_CALL();
    return done(set_kernel(WH_OP_cudaGraphKernelNodeSetParams, NULL, node, params));
}

WH_EXPORT cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                       const struct wh_cuda_kernel_node *params)
{
    WH_API_CALL();
    if (!wh_cuda_handle_live(exec, WH_KIND_GRAPH_EXEC)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    return done(set_kernel(WH_OP_cudaGraphExecKernelNodeSetParams, exec, node, params));
}

WH_EXPORT cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                                   struct wh_cuda_kernel_node *params)
{
    WH_API_CALL();
    struct given given;
    int status = params == NULL ? WH_CUDA_INVALID_VALUE : find_given(node, GIVEN_KERNEL, &given);
    if (status == 0) {
        *params = given.kernel;
    }
    return done(status);
}

/* Copies. */

static int check_copy(const struct wh_cuda_copy *copy, bool *from_client, bool *to_client)
{
    static int said;
    if (copy == NULL) {
        return WH_CUDA_INVALID_VALUE;
    }
    if (copy->src_array != NULL || copy->dst_array != NULL) {
        return wh_cuda_unsupported(&wh_cudart_api, "a copy of an array", &said);
    }
    if (copy->extent.width == 0 || copy->extent.height == 0 || copy->extent.depth == 0) {
        return WH_CUDA_INVALID_VALUE;
    }
    *from_client = wh_is_client_memory(wh_cuda_first_byte(&copy->src, &copy->src_at));
    *to_client = wh_is_client_memory(wh_cuda_first_byte(&copy->dst, &copy->dst_at));
    if (copy->kind < 0 || copy->kind > ANY_DIRECTION) {
        return WH_CUDA_INVALID_DIRECTION;
    }
    /* 1 and 3 go to the device, 2 and 3 come from it. */
    bool right = copy->kind == ANY_DIRECTION || (!(*to_client && (copy->kind & 1) != 0) &&
                                                 !(*from_client && (copy->kind & 2) != 0));
    return right ? 0 : WH_CUDA_INVALID_VALUE;
}

/* The copy as the real library is to have it, and what moves the client's bytes. */
static struct wh_mover *place_copy(struct wh_cuda_copy *copy, bool from_client)
{
    struct wh_mover *mover = wh_mover_new(copy, !from_client);
    if (mover == NULL) {
        return NULL;
    }
    const struct wh_cuda_pitched pinned = {wh_mover_bytes(mover), copy->extent.width,
                                           copy->extent.width, copy->extent.height};
    const struct wh_cuda_position origin = {0, 0, 0};
    if (from_client) {
        copy->src = pinned;
        copy->src_at = origin;
    } else {
        copy->dst = pinned;
        copy->dst_at = origin;
    }
    return mover;
}

static int add_copy(cudaGraphNode_t *new_node, cudaGraph_t graph,
                    const cudaGraphNode_t *dependencies, size_t count,
                    const struct wh_cuda_copy *wanted)
{
    static int said;
    static int said_alone;
    struct wh_call call;
    bool from_client = false;
    bool to_client = false;
    uint64_t handle = 0;
    uint64_t id = 0;
    uint64_t cell = 0;
    struct wh_mover *mover = NULL;
    int status = check_copy(wanted, &from_client, &to_client);
    if (status == 0 && from_client && to_client) {
        status = wh_cuda_unsupported(
            &wh_cudart_api, "a copy between two places of the program's in a graph", &said);
    }
    if (status != 0) {
        return status;
    }
    struct wh_cuda_copy copy = *wanted;
    bool moves = from_client || to_client;
    if (moves) {
        mover = place_copy(&copy, from_client);
        if (mover == NULL && !wh_cuda_shares_addresses()) {
            return wh_cuda_unsupported(&wh_cudart_api,
                                       "a copy of the program's memory in a graph, without memory "
                                       "that both sides share,",
                                       &said_alone);
        }
        status = mover == NULL
                     ? WH_CUDA_MEMORY_ALLOCATION
                     : wh_host_function_new(wh_mover_run, mover, wh_mover_end, &id, &cell);
        if (mover != NULL && status != 0) {
            wh_mover_end(mover);
        }
    }
    if (status != 0) {
        return status;
    }
    status = begin_node(&call, WH_OP_cudaGraphAddMemcpyNode, new_node, graph, dependencies, count,
                        &handle);
    if (status == 0) {
        wh_put_blob(&call, &copy, sizeof(copy));
        wh_put_u64(&call, !moves        ? WH_CUDA_COPY_ALONE
                          : from_client ? WH_CUDA_COPY_MOVED_IN
                                        : WH_CUDA_COPY_MOVED_OUT);
        wh_put_u64(&call, cell);
        status = end_node(&call, handle, new_node, graph, moves, give_copy(wanted));
    }
    if (status != 0 && moves) {
        wh_host_function_drop(id);
        wh_mover_end(mover);
    }
    return status;
}

/* A line of bytes as the form for three dimensions has it. */
static struct wh_cuda_copy line(void *dst, const void *src, size_t size_bytes, int kind)
{
    return (struct wh_cuda_copy){
        .src = {(void *)(uintptr_t)src, size_bytes, size_bytes, 1},
        .dst = {dst, size_bytes, size_bytes, 1},
        .extent = {size_bytes, 1, 1},
        .kind = kind,
    };
}

WH_EXPORT cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *new_node, cudaGraph_t graph,
                                             const cudaGraphNode_t *dependencies, size_t count,
                                             const struct wh_cuda_copy *copy)
{
    WH_API_CALL();
    return done(add_copy(new_node, graph, dependencies, count, copy));
}

WH_EXPORT cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *new_node, cudaGraph_t graph,
                                               const cudaGraphNode_t *dependencies, size_t count,
                                               void *dst, const void *src, size_t bytes, int kind)
{
    WH_API_CALL();
    const struct wh_cuda_copy copy = line(dst, src, bytes, kind);
    return done(add_copy(new_node, graph, dependencies, count, &copy));
}

/* exec: NULL for the graph's own node. */
static int set_copy(uint16_t opcode, cudaGraphExec_t exec, cudaGraphNode_t node,
                    const struct wh_cuda_copy *copy)
{
    static int said;
    struct wh_call call;
    bool from_client = false;
    bool to_client = false;
    bool moves = false;
    if (!wh_cuda_handle_live(node, WH_KIND_GRAPH_NODE)) {
        return WH_CUDA_INVALID_VALUE;
    }
    int status = check_copy(copy, &from_client, &to_client);
    (void)owner_of(node, &moves);
    if (status == 0 && (from_client || to_client || moves)) {
        status = wh_cuda_unsupported(
            &wh_cudart_api, "another copy of memory that is not pinned, in a node that is there,",
            &said);
    }
    status = status != 0 ? status : wh_cuda_begin(&call, &wh_cudart_api, opcode);
    if (status == 0) {
        wh_put_u64(&call, number_of(exec));
        wh_put_u64(&call, number_of(node));
        wh_put_blob(&call, copy, sizeof(*copy));
        status = wh_cuda_call(&call, &wh_cudart_api);
        wh_call_end(&call);
    }
    if (status == 0 && exec == NULL) {
        give_anew(node, give_copy(copy));
    }
    return status;
}

WH_EXPORT cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, struct wh_cuda_copy *copy)
{
    WH_API_CALL();
    struct given given;
    int status = copy == NULL ? WH_CUDA_INVALID_VALUE : find_given(node, GIVEN_COPY, &given);
    if (status == 0) {
        *copy = given.copy;
    }
    return done(status);
}

WH_EXPORT cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node,
                                                   const struct wh_cuda_copy *copy)
{
    WH_API_CALL();
    return done(set_copy(WH_OP_cudaGraphMemcpyNodeSetParams, NULL, node, copy));
}

WH_EXPORT cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void *dst,
                                                     const void *src, size_t bytes, int kind)
{
    WH_API_CALL();
    const struct wh_cuda_copy copy = line(dst, src, bytes, kind);
    return done(set_copy(WH_OP_cudaGraphMemcpyNodeSetParams, NULL, node, &copy));
}

WH_EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                       const struct wh_cuda_copy *copy)
{
    WH_API_CALL();
    if (!wh_cuda_handle_live(exec, WH_KIND_GRAPH_EXEC)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    return done(set_copy(WH_OP_cudaGraphExecMemcpyNodeSetParams, exec, node, copy));
}

WH_EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                         void *dst, const void *src, size_t bytes,
                                                         int kind)
{
    const struct wh_cuda_copy copy = line(dst, src, bytes, kind);
    return cudaGraphExecMemcpyNodeSetParams(exec, node, &copy);
}

/* Host functions. */

WH_EXPORT cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *new_node, cudaGraph_t graph,
                                           const cudaGraphNode_t *dependencies, size_t count,
                                           const struct wh_cuda_host_node *params)
{
    WH_API_CALL();
    struct wh_call call;
    uint64_t handle = 0;
    uint64_t id = 0;
    uint64_t cell = 0;
    if (params == NULL || params->function == NULL) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    int status =
        wh_host_function_new((void (*)(void *))params->function, params->data, NULL, &id, &cell);
    if (status != 0) {
        return done(status);
    }
    status = begin_node(&call, WH_OP_cudaGraphAddHostNode, new_node, graph, dependencies, count,
                        &handle);
    if (status == 0) {
        wh_put_u64(&call, cell);
        status = end_node(&call, handle, new_node, graph, false, give_function(params));
    }
    if (status != 0) {
        wh_host_function_drop(id);
    }
    return done(status);
}

WH_EXPORT cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node,
                                                 struct wh_cuda_host_node *params)
{
    WH_API_CALL();
    struct given given;
    int status = params == NULL ? WH_CUDA_INVALID_VALUE : find_given(node, GIVEN_FUNCTION, &given);
    if (status == 0) {
        *params = given.function;
    }
    return done(status);
}

/* Lists. */

static int ask_nodes(int what, const void *of, const uint64_t *fresh, uint64_t fresh_count,
                     uint64_t *found, uint64_t counts[2])
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcListNodes);
    if (status != 0) {
        return status;
    }
    wh_put_u64(&call, (uint64_t)what);
    wh_put_u64(&call, number_of(of));
    wh_put_blob(&call, fresh, fresh_count * sizeof(*fresh));
    wh_put_out(&call, fresh_count * sizeof(*found), found != NULL);
    wh_put_out(&call, 2 * sizeof(counts[0]), true);
    status = wh_cuda_call(&call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(&call, found, fresh_count * sizeof(*found));
        (void)wh_get_out(&call, counts, 2 * sizeof(counts[0]));
    }
    wh_call_end(&call);
    return status;
}

/*
 * How many nodes something has, and (wanted) all of them, to be freed; owner: the graph that the
 * new ones of them end with. The handles for nodes that had none are chosen here, as all are.
 */
static int list(int what, const void *of, uint64_t owner, bool wanted, uint64_t **found,
                size_t *count)
{
    uint64_t counts[2] = {0, 0}; /* nodes, fresh handles that were taken for some */
    int status = ask_nodes(what, of, NULL, 0, NULL, counts);
    uint64_t room = counts[0];
    *found = NULL;
    *count = status == 0 ? room : 0;
    if (status == 0 && wanted && room > WH_CUDA_LIST_MAX) {
        static int said;
        status = wh_cuda_unsupported(&wh_cudart_api, "a list of so many nodes", &said);
    }
    if (status != 0 || room == 0 || !wanted) {
        return status;
    }
    uint64_t *fresh = calloc(room, sizeof(*fresh));
    uint64_t *handles = calloc(room, sizeof(*handles));
    for (uint64_t i = 0; fresh != NULL && i < room; i++) {
        fresh[i] = wh_cuda_handle_new(WH_KIND_GRAPH_NODE);
    }
    counts[1] = 0;
    status = fresh == NULL || handles == NULL ? WH_CUDA_MEMORY_ALLOCATION
                                              : ask_nodes(what, of, fresh, room, handles, counts);
    for (uint64_t i = 0; fresh != NULL && i < room; i++) {
        if (status == 0 && i < counts[1]) {
            keep_node(fresh[i], (cudaGraph_t)(void *)(uintptr_t)owner, false, NULL);
        } else {
            wh_cuda_handle_end(fresh[i]);
        }
    }
    free(fresh);
    if (status != 0) {
        free(handles);
        return status;
    }
    *found = handles;
    *count = counts[0] < room ? counts[0] : room;
    return 0;
}

/* To where the program wants them, as many as it has room for; NULL where there are no more. */
static void give(cudaGraphNode_t *to, size_t room, const uint64_t *handles, size_t count)
{
    for (size_t i = 0; to != NULL && i < room; i++) {
        to[i] = i < count ? (cudaGraphNode_t)(void *)(uintptr_t)handles[i] : NULL;
    }
}

static int list_to(int what, const void *of, uint64_t owner, cudaGraphNode_t *nodes, void *edges,
                   size_t *count_of)
{
    uint64_t *handles = NULL;
    size_t count = 0;
    if (count_of == NULL) {
        return WH_CUDA_INVALID_VALUE;
    }
    int status = list(what, of, owner, nodes != NULL, &handles, &count);
    if (status == 0) {
        give(nodes, *count_of, handles, count);
        if (nodes != NULL && edges != NULL) {
            memset(edges, 0, *count_of * EDGE_BYTES); /* others than plain ones are an error */
        }
        *count_of = nodes == NULL || count < *count_of ? count : *count_of;
    }
    free(handles);
    return status;
}

WH_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count_of)
{
    WH_API_CALL();
    if (!wh_cuda_handle_live(graph, WH_KIND_GRAPH)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    return done(list_to(WH_CUDA_LIST_NODES, graph, number_of(graph), nodes, NULL, count_of));
}

WH_EXPORT cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *nodes,
                                            size_t *count_of)
{
    WH_API_CALL();
    if (!wh_cuda_handle_live(graph, WH_KIND_GRAPH)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    return done(list_to(WH_CUDA_LIST_ROOTS, graph, number_of(graph), nodes, NULL, count_of));
}

static int list_beside(int what, cudaGraphNode_t node, cudaGraphNode_t *nodes, void *edges,
                       size_t *count_of)
{
    bool moves = false;
    if (!wh_cuda_handle_live(node, WH_KIND_GRAPH_NODE)) {
        return WH_CUDA_INVALID_VALUE;
    }
    return list_to(what, node, owner_of(node, &moves), nodes, edges, count_of);
}

WH_EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                                   void *edges, size_t *count_of)
{
    WH_API_CALL();
    return done(list_beside(WH_CUDA_LIST_DEPENDENCIES, node, nodes, edges, count_of));
}

WH_EXPORT cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                                     void *edges, size_t *count_of)
{
    WH_API_CALL();
    return done(list_beside(WH_CUDA_LIST_DEPENDENTS, node, nodes, edges, count_of));
}

WH_EXPORT cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from,
                                        cudaGraphNode_t *to, void *edges, size_t *count_of)
{
    WH_API_CALL();
    uint64_t *handles = NULL;
    size_t count = 0;
    if (count_of == NULL || (from == NULL) != (to == NULL) ||
        !wh_cuda_handle_live(graph, WH_KIND_GRAPH)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    int status = list(WH_CUDA_LIST_EDGES, graph, number_of(graph), from != NULL, &handles, &count);
    if (status == 0) {
        count /= 2;
        give(from, *count_of, handles, count);
        give(to, *count_of, handles == NULL ? NULL : handles + count, count);
        if (from != NULL && edges != NULL) {
            memset(edges, 0, *count_of * EDGE_BYTES);
        }
        *count_of = from == NULL || count < *count_of ? count : *count_of;
    }
    free(handles);
    return done(status);
}

WH_EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, int *kind)
{
    WH_API_CALL();
    struct wh_call call;
    bool moves = false;
    if (kind == NULL || !wh_cuda_handle_live(node, WH_KIND_GRAPH_NODE)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    (void)owner_of(node, &moves);
    if (moves) {
        *kind = KIND_MEMCPY;
        return wh_cuda_answered(&wh_cudart_api, 0);
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaGraphNodeGetType);
    if (status == 0) {
        wh_put_u64(&call, number_of(node));
        wh_put_out(&call, sizeof(*kind), true);
        status = wh_cuda_call(&call, &wh_cudart_api);
        if (status == 0) {
            (void)wh_get_out(&call, kind, sizeof(*kind));
        }
        wh_call_end(&call);
    }
    return done(status);
}

WH_EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                          struct wh_cuda_update *result)
{
    WH_API_CALL();
    struct wh_call call;
    struct wh_cuda_update answer = {0, NULL, NULL};
    if (result == NULL || !wh_cuda_handle_live(exec, WH_KIND_GRAPH_EXEC) ||
        !wh_cuda_handle_live(graph, WH_KIND_GRAPH)) {
        return done(WH_CUDA_INVALID_VALUE);
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaGraphExecUpdate);
    if (status != 0) {
        return done(status);
    }
    wh_put_u64(&call, number_of(exec));
    wh_put_u64(&call, number_of(graph));
    wh_put_out(&call, sizeof(answer), true);
    status = wh_cuda_call(&call, &wh_cudart_api);
    /* Why it cannot be updated comes with the failure. */
    if (wh_get_out(&call, &answer, sizeof(answer)) == sizeof(answer)) {
        *result = answer;
    }
    wh_call_end(&call);
    return done(status);
}
