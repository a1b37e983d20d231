/*
 * cuda_graph.c - nodes of graphs, and lists of them.
 *
 * A copy between the client's own memory and the device's is a graph of two nodes in the place of
 * one: the copy, and the host function that moves the client's bytes before it or behind it.
 */
#include "cuda_graph.h"

#include <errno.h>
#include <stdlib.h>

#include "cuda_kernel.h"
#include "wh_wire.h"

enum { INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_FUNCTION = 98, NOT_SUPPORTED = 801 };

/* What a message of a new node begins with. */
struct new_node {
    uint64_t handle;
    cudaGraph_t graph;
    cudaGraphNode_t *dependencies;
    size_t count;
    bool valid;
};

/* A kernel, and how it is to be launched. */
struct launch {
    const struct wh_cuda_kernel *kernel;
    void *arguments[WH_CUDA_PARAMETERS_MAX];
    struct wh_cuda_kernel_node params;
};

int wh_skeleton_cudaGraphDestroy(struct wh_request *request);
int wh_skeleton_cudaGraphAddKernelNode(struct wh_request *request);
int wh_skeleton_cudaGraphKernelNodeSetParams(struct wh_request *request);
int wh_skeleton_cudaGraphExecKernelNodeSetParams(struct wh_request *request);
int wh_skeleton_cudaGraphAddMemcpyNode(struct wh_request *request);
int wh_skeleton_cudaGraphMemcpyNodeSetParams(struct wh_request *request);
int wh_skeleton_cudaGraphExecMemcpyNodeSetParams(struct wh_request *request);
int wh_skeleton_cudaGraphAddHostNode(struct wh_request *request);
int wh_skeleton_cudaGraphExecUpdate(struct wh_request *request);
int wh_skeleton_whcListNodes(struct wh_request *request);

int wh_skeleton_cudaGraphDestroy(struct wh_request *request)
{
    bool valid = true;
    size_t size_bytes = 0;
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t handle = wh_take_u64(request);
    const uint64_t *nodes = wh_take_blob(request, &size_bytes, WH_CUDA_BLOB_BYTES_MAX);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    cudaGraph_t graph = wh_cuda_object(request, handle, WH_KIND_GRAPH, &valid);
    for (size_t i = 0; nodes != NULL && i < size_bytes / sizeof(*nodes); i++) {
        (void)wh_handle_remove(request->session, nodes[i], WH_KIND_GRAPH_NODE);
    }
    if (real == NULL || real->cudaGraphDestroy == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && graph != NULL) {
        (void)wh_handle_remove(request->session, handle, WH_KIND_GRAPH);
        status = (uint64_t)real->cudaGraphDestroy(graph);
    }
    wh_cuda_reply(request, WH_OP_cudaGraphDestroy, status, 0);
    return 0;
}

static struct new_node take_new_node(struct wh_request *request)
{
    struct new_node new = {.valid = true};
    new.handle = wh_take_u64(request);
    new.graph = wh_cuda_object(request, wh_take_u64(request), WH_KIND_GRAPH, &new.valid);
    new.dependencies = (void *)wh_cuda_objects(request, WH_KIND_GRAPH_NODE, &new.count, &new.valid);
    new.count = new.dependencies == NULL ? 0 : new.count;
    new.valid = new.valid &&new.graph != NULL;
    return new;
}

static int reply_new_node(struct wh_request *request, uint16_t opcode, uint64_t status,
                          const struct new_node *new, cudaGraphNode_t node)
{
    if (status == 0 &&
        wh_handle_put(request->session, new->handle, WH_KIND_GRAPH_NODE, node) != 0) {
        status = NO_MEMORY;
    }
    wh_cuda_reply(request, opcode, status, 0);
    return 0;
}

/* Kernels. False: malformed. */
static bool take_launch(struct wh_request *request, struct launch *launch, bool *valid)
{
    size_t geometry_bytes = 0;
    size_t packed_bytes = 0;
    launch->kernel = wh_cuda_object(request, wh_take_u64(request), WH_KIND_KERNEL, valid);
    const struct wh_cuda_geometry *geometry =
        wh_take_blob(request, &geometry_bytes, sizeof(*geometry));
    const uint8_t *packed = wh_take_blob(request, &packed_bytes, WH_CUDA_PARAMETER_BYTES_MAX);
    if (wh_request_failed(request) || geometry == NULL || geometry_bytes != sizeof(*geometry) ||
        packed == NULL) {
        return false;
    }
    *valid = *valid && launch->kernel != NULL;
    if (*valid && packed_bytes != launch->kernel->parameter_bytes) {
        return false;
    }
    if (*valid) {
        wh_cuda_unpack(launch->kernel, packed, launch->arguments);
        launch->params = (struct wh_cuda_kernel_node){
            .function = (void *)launch->kernel->real,
            .grid = geometry->grid,
            .block = geometry->block,
            .shared_bytes = (unsigned)geometry->shared_bytes,
            .arguments = launch->arguments,
        };
    }
    return true;
}

int wh_skeleton_cudaGraphAddKernelNode(struct wh_request *request)
{
    struct launch launch;
    cudaGraphNode_t node = NULL;
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    struct new_node new = take_new_node(request);
    if (!take_launch(request, &launch, &new.valid)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaGraphAddKernelNode == NULL) {
        status = NOT_SUPPORTED;
    } else if (new.valid) {
        status = (uint64_t)real->cudaGraphAddKernelNode(&node, new.graph, new.dependencies,
                                                        new.count, &launch.params);
    }
    return reply_new_node(request, WH_OP_cudaGraphAddKernelNode, status, &new, node);
}

static int set_kernel(struct wh_request *request, uint16_t opcode, bool of_exec)
{
    struct launch launch;
    bool valid = true;
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    cudaGraphExec_t exec =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_GRAPH_EXEC, &valid);
    cudaGraphNode_t node =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_GRAPH_NODE, &valid);
    if (!take_launch(request, &launch, &valid)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaGraphKernelNodeSetParams == NULL ||
        real->cudaGraphExecKernelNodeSetParams == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && node != NULL && (exec != NULL) == of_exec) {
        status =
            (uint64_t)(of_exec ? real->cudaGraphExecKernelNodeSetParams(exec, node, &launch.params)
                               : real->cudaGraphKernelNodeSetParams(node, &launch.params));
    }
    wh_cuda_reply(request, opcode, status, 0);
    return 0;
}

int wh_skeleton_cudaGraphKernelNodeSetParams(struct wh_request *request)
{
    return set_kernel(request, WH_OP_cudaGraphKernelNodeSetParams, false);
}

int wh_skeleton_cudaGraphExecKernelNodeSetParams(struct wh_request *request)
{
    return set_kernel(request, WH_OP_cudaGraphExecKernelNodeSetParams, true);
}

/* Copies. */

/* NULL: malformed. Arrays would be objects, and have no handles. */
static const struct wh_cuda_copy *take_copy(struct wh_request *request)
{
    size_t size_bytes = 0;
    const struct wh_cuda_copy *copy = wh_take_blob(request, &size_bytes, sizeof(*copy));
    bool whole = copy != NULL && size_bytes == sizeof(*copy) && copy->src_array == NULL &&
                 copy->dst_array == NULL;
    return whole ? copy : NULL;
}

/* The two nodes, in a graph of their own. */
static uint64_t pair(const struct wh_cudart_table *real, cudaGraph_t graph,
                     const struct wh_cuda_copy *copy, struct wh_cuda_cell *cell, bool moved_in)
{
    const struct wh_cuda_host_node moves = {.function = (void *)wh_graph_reached, .data = cell};
    cudaGraphNode_t first = NULL;
    cudaGraphNode_t second = NULL;
    uint64_t status = 0;
    if (moved_in) {
        status = (uint64_t)real->cudaGraphAddHostNode(&first, graph, NULL, 0, &moves);
    } else {
        status = (uint64_t)real->cudaGraphAddMemcpyNode(&first, graph, NULL, 0, copy);
    }
    if (status != 0) {
        return status;
    }
    return (uint64_t)(moved_in ? real->cudaGraphAddMemcpyNode(&second, graph, &first, 1, copy)
                               : real->cudaGraphAddHostNode(&second, graph, &first, 1, &moves));
}

static uint64_t add_pair(const struct wh_cudart_table *real, const struct new_node *new,
                         const struct wh_cuda_copy *copy, struct wh_cuda_cell *cell, bool moved_in,
                         cudaGraphNode_t *node)
{
    cudaGraph_t inner = NULL;
    struct wh_graph_hold hold;
    uint64_t status = (uint64_t)real->cudaGraphCreate(&inner, 0);
    if (status != 0) {
        return status;
    }
    status = pair(real, inner, copy, cell, moved_in);
    status = status != 0 ? status
                         : (uint64_t)real->cudaGraphAddChildGraphNode(
                               node, new->graph, new->dependencies, new->count, inner);
    (void)real->cudaGraphDestroy(inner);
    if (status != 0) {
        return status;
    }
    /* The outer graph is what lasts: it holds the function. */
    status = wh_graph_hold(real, cell, &hold);
    status = status != 0 ? status : wh_graph_give(real, &hold, new->graph);
    if (status != 0) {
        (void)real->cudaGraphDestroyNode(*node);
    }
    return status;
}

int wh_skeleton_cudaGraphAddMemcpyNode(struct wh_request *request)
{
    cudaGraphNode_t node = NULL;
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    struct new_node new = take_new_node(request);
    const struct wh_cuda_copy *copy = take_copy(request);
    uint64_t moved = wh_take_u64(request);
    uint64_t cell = wh_take_u64(request);
    if (wh_request_failed(request) || copy == NULL || moved > WH_CUDA_COPY_MOVED_OUT ||
        (moved != WH_CUDA_COPY_ALONE && !wh_graph_cell(request->session, cell))) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaGraphAddMemcpyNode == NULL ||
        real->cudaGraphAddHostNode == NULL || real->cudaGraphAddChildGraphNode == NULL ||
        real->cudaGraphCreate == NULL || real->cudaGraphDestroy == NULL ||
        real->cudaGraphDestroyNode == NULL) {
        status = NOT_SUPPORTED;
    } else if (new.valid && moved == WH_CUDA_COPY_ALONE) {
        status = (uint64_t)real->cudaGraphAddMemcpyNode(&node, new.graph, new.dependencies,
                                                        new.count, copy);
    } else if (new.valid) {
        status = add_pair(real, &new, copy, (struct wh_cuda_cell *)(uintptr_t)cell,
                          moved == WH_CUDA_COPY_MOVED_IN, &node);
    }
    return reply_new_node(request, WH_OP_cudaGraphAddMemcpyNode, status, &new, node);
}

static int set_copy(struct wh_request *request, uint16_t opcode, bool of_exec)
{
    bool valid = true;
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    cudaGraphExec_t exec =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_GRAPH_EXEC, &valid);
    cudaGraphNode_t node =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_GRAPH_NODE, &valid);
    const struct wh_cuda_copy *copy = take_copy(request);
    if (wh_request_failed(request) || copy == NULL) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaGraphMemcpyNodeSetParams == NULL ||
        real->cudaGraphExecMemcpyNodeSetParams == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && node != NULL && (exec != NULL) == of_exec) {
        status = (uint64_t)(of_exec ? real->cudaGraphExecMemcpyNodeSetParams(exec, node, copy)
                                    : real->cudaGraphMemcpyNodeSetParams(node, copy));
    }
    wh_cuda_reply(request, opcode, status, 0);
    return 0;
}

int wh_skeleton_cudaGraphMemcpyNodeSetParams(struct wh_request *request)
{
    return set_copy(request, WH_OP_cudaGraphMemcpyNodeSetParams, false);
}

int wh_skeleton_cudaGraphExecMemcpyNodeSetParams(struct wh_request *request)
{
    return set_copy(request, WH_OP_cudaGraphExecMemcpyNodeSetParams, true);
}

/* Host functions. */

static uint64_t add_function(const struct wh_cudart_table *real, const struct new_node *new,
                             struct wh_cuda_cell *cell, cudaGraphNode_t *node)
{
    const struct wh_cuda_host_node params = {.function = (void *)wh_graph_reached, .data = cell};
    struct wh_graph_hold hold;
    uint64_t status = wh_graph_hold(real, cell, &hold);
    if (status != 0) {
        return status;
    }
    status = (uint64_t)real->cudaGraphAddHostNode(node, new->graph, new->dependencies, new->count,
                                                  &params);
    if (status != 0) {
        wh_graph_let_go(real, &hold);
        return status;
    }
    status = wh_graph_give(real, &hold, new->graph);
    if (status != 0) {
        (void)real->cudaGraphDestroyNode(*node);
    }
    return status;
}

int wh_skeleton_cudaGraphAddHostNode(struct wh_request *request)
{
    cudaGraphNode_t node = NULL;
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    struct new_node new = take_new_node(request);
    uint64_t cell = wh_take_u64(request);
    if (wh_request_failed(request) || !wh_graph_cell(request->session, cell)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaGraphAddHostNode == NULL || real->cudaGraphDestroyNode == NULL) {
        status = NOT_SUPPORTED;
    } else if (new.valid) {
        status = add_function(real, &new, (struct wh_cuda_cell *)(uintptr_t)cell, &node);
    }
    return reply_new_node(request, WH_OP_cudaGraphAddHostNode, status, &new, node);
}

/* Lists. */

/* How many there are, or (with room for them) the nodes themselves. */
static uint64_t ask(const struct wh_cudart_table *real, int what, void *of, cudaGraphNode_t *nodes,
                    size_t room, size_t *count)
{
    uint64_t status = INVALID_VALUE;
    *count = what == WH_CUDA_LIST_EDGES ? room / 2 : room;
    switch (what) {
    case WH_CUDA_LIST_NODES:
        status = (uint64_t)real->cudaGraphGetNodes(of, nodes, count);
        break;
    case WH_CUDA_LIST_ROOTS:
        status = (uint64_t)real->cudaGraphGetRootNodes(of, nodes, count);
        break;
    case WH_CUDA_LIST_DEPENDENCIES:
        status = (uint64_t)real->cudaGraphNodeGetDependencies(of, nodes, NULL, count);
        break;
    case WH_CUDA_LIST_DEPENDENTS:
        status = (uint64_t)real->cudaGraphNodeGetDependentNodes(of, nodes, NULL, count);
        break;
    default:
        status = (uint64_t)real->cudaGraphGetEdges(
            of, nodes, nodes == NULL ? NULL : nodes + room / 2, NULL, count);
        *count *= 2;
        break;
    }
    return status;
}

/* Handles of nodes: what they have, else one of the client's. Returns how many of those. */
static size_t name_nodes(struct wh_session *session, cudaGraphNode_t *nodes, size_t count,
                         const uint64_t *fresh, size_t fresh_count, uint64_t *found)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t handle = wh_handle_of(session, WH_KIND_GRAPH_NODE, nodes[i]);
        if (handle == 0 && used < fresh_count) {
            memcpy(&handle, &fresh[used], sizeof(handle));
            if (wh_handle_put(session, handle, WH_KIND_GRAPH_NODE, nodes[i]) != 0) {
                handle = 0;
            } else {
                used++;
            }
        }
        found[i] = handle;
    }
    return used;
}

int wh_skeleton_whcListNodes(struct wh_request *request)
{
    bool valid = true;
    size_t fresh_bytes = 0;
    size_t found_bytes = 0;
    size_t count_bytes = 0;
    size_t count = 0;
    size_t written = 0;
    uint64_t status = INVALID_VALUE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t what = wh_take_u64(request);
    bool of_node = what == WH_CUDA_LIST_DEPENDENCIES || what == WH_CUDA_LIST_DEPENDENTS;
    void *of = wh_cuda_object(request, wh_take_u64(request),
                              of_node ? WH_KIND_GRAPH_NODE : WH_KIND_GRAPH, &valid);
    const uint64_t *fresh = wh_take_blob(request, &fresh_bytes, WH_CUDA_LIST_MAX * sizeof(*fresh));
    uint64_t *found = wh_take_out(request, &found_bytes);
    uint64_t *counts = wh_take_out(request, &count_bytes);
    size_t room = fresh == NULL ? 0 : fresh_bytes / sizeof(*fresh);
    if (wh_request_failed(request) || what > WH_CUDA_LIST_EDGES || counts == NULL ||
        count_bytes < 2 * sizeof(*counts) ||
        (room > 0 && (found == NULL || found_bytes < room * sizeof(*found)))) {
        return -EBADMSG;
    }
    counts[0] = 0;
    counts[1] = 0;
    bool there = real != NULL && real->cudaGraphGetNodes != NULL &&
                 real->cudaGraphGetRootNodes != NULL && real->cudaGraphGetEdges != NULL &&
                 real->cudaGraphNodeGetDependencies != NULL &&
                 real->cudaGraphNodeGetDependentNodes != NULL;
    if (!there) {
        status = NOT_SUPPORTED;
    } else if (valid && of != NULL) {
        status = ask(real, (int)what, of, NULL, 0, &count);
        cudaGraphNode_t *nodes =
            status != 0 || room == 0 ? NULL : wh_scratch(request, room * sizeof(*nodes));
        if (nodes != NULL && count <= room) {
            status = ask(real, (int)what, of, nodes, count, &count);
            written = status == 0 && count <= room ? count : 0;
            counts[1] = name_nodes(request->session, nodes, written, fresh, room, found);
        }
        counts[0] = count;
    }
    wh_cuda_reply(request, WH_OP_whcListNodes, status, 0);
    wh_reply_out(request, written * sizeof(*found));
    wh_reply_out(request, status == 0 ? 2 * sizeof(*counts) : 0);
    return 0;
}

int wh_skeleton_cudaGraphExecUpdate(struct wh_request *request)
{
    bool valid = true;
    size_t size_bytes = 0;
    uint64_t status = INVALID_VALUE;
    struct wh_cuda_update result = {0, NULL, NULL};
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    cudaGraphExec_t exec =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_GRAPH_EXEC, &valid);
    cudaGraph_t graph = wh_cuda_object(request, wh_take_u64(request), WH_KIND_GRAPH, &valid);
    struct wh_cuda_update *answer = wh_take_out(request, &size_bytes);
    if (wh_request_failed(request) || answer == NULL || size_bytes < sizeof(*answer)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaGraphExecUpdate == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && exec != NULL && graph != NULL) {
        status = (uint64_t)real->cudaGraphExecUpdate(exec, graph, &result);
    }
    /* Nodes that the client has never seen have no names. */
    void *named[] = {result.node, result.from_node};
    for (size_t i = 0; i < 2; i++) {
        uint64_t handle =
            named[i] == NULL ? 0 : wh_handle_of(request->session, WH_KIND_GRAPH_NODE, named[i]);
        named[i] = (void *)(uintptr_t)handle;
    }
    *answer = (struct wh_cuda_update){result.result, named[0], named[1]};
    wh_cuda_reply(request, WH_OP_cudaGraphExecUpdate, status, 0);
    wh_reply_out(request, sizeof(*answer));
    return 0;
}
