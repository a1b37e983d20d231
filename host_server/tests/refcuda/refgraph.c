/*
 * refgraph.c - the double's graphs: made node by node or by capturing a stream. A launch puts a
 * copy of every node's operation into the stream, in an order that all dependencies allow.
 */
#define _GNU_SOURCE

#include "refinner.h"

#include <stdlib.h>
#include <string.h>

enum kind { KERNEL, COPY, FILL, FUNCTION_NODE, CHILD, EMPTY, WAIT_EVENT, RECORD_EVENT };

#define DEPENDENCIES_MAX 16
#define OBJECTS_MAX 16

/* What is told when nothing has it any more. */
struct object {
    void *pointer;
    void (*destroy)(void *pointer);
    unsigned count;
};

struct ref_node {
    struct ref_node *next;
    struct ref_graph *graph;
    enum kind kind;
    struct operation *operation; /* NULL: does nothing */
    struct wh_cuda_fill fill;
    struct wh_cuda_kernel_node kernel; /* its arguments are in the operation */
    struct wh_cuda_copy copy;
    const void *function; /* KERNEL */
    cudaEvent_t event;
    struct ref_graph *child;
    struct ref_node *from[DEPENDENCIES_MAX];
    size_t from_count;
    struct ref_node *clone; /* while its graph is cloned */
    bool placed;            /* while it is ordered */
};

struct ref_graph {
    struct ref_node *first, *last;
    size_t count;
    struct object *objects[OBJECTS_MAX];
    size_t object_count;
};

struct item {
    struct ref_node *node; /* as the program names it; it may be gone */
    enum kind kind;
    const void *function;
    struct operation *operation;
    cudaEvent_t event;
    bool enabled;
};

struct exec {
    struct item *items;
    size_t count;
    unsigned long long flags;
    struct object *objects[4 * OBJECTS_MAX];
    size_t object_count;
};

static struct ref_graph *graph_at(cudaGraph_t graph)
{
    return (struct ref_graph *)(void *)graph;
}

static struct ref_node *node_at(cudaGraphNode_t node)
{
    return (struct ref_node *)(void *)node;
}

static struct exec *exec_at(cudaGraphExec_t exec)
{
    return (struct exec *)(void *)exec;
}

static void let_go(struct object *object)
{
    if (--object->count == 0) {
        object->destroy(object->pointer);
        free(object);
    }
}

/* Graphs and nodes. */

static struct ref_node *new_node(struct ref_graph *graph, enum kind kind,
                                 struct operation *operation)
{
    struct ref_node *node = calloc(1, sizeof(*node));
    node->graph = graph;
    node->kind = kind;
    node->operation = operation;
    if (graph->first == NULL) {
        graph->first = node;
    } else {
        graph->last->next = node;
    }
    graph->last = node;
    graph->count++;
    return node;
}

static void add_from(struct ref_node *node, struct ref_node *from)
{
    if (from != NULL && node->from_count < DEPENDENCIES_MAX) {
        node->from[node->from_count++] = from;
    }
}

static int add(cudaGraphNode_t *made, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
               size_t count, enum kind kind, struct operation *operation)
{
    for (size_t i = 0; i < count; i++) {
        if (dependencies[i] == NULL || node_at(dependencies[i])->graph != graph_at(graph)) {
            ref_drop(operation);
            return VALUE;
        }
    }
    if (made == NULL || graph == NULL || count > DEPENDENCIES_MAX) {
        ref_drop(operation);
        return VALUE;
    }
    struct ref_node *node = new_node(graph_at(graph), kind, operation);
    for (size_t i = 0; i < count; i++) {
        add_from(node, node_at(dependencies[i]));
    }
    *made = (cudaGraphNode_t)(void *)node;
    return 0;
}

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags)
{
    if (graph == NULL || flags != 0) {
        return ref_done(VALUE);
    }
    *graph = calloc(1, sizeof(struct ref_graph));
    return ref_done(0);
}

static void destroy_graph(struct ref_graph *graph)
{
    while (graph->first != NULL) {
        struct ref_node *next = graph->first->next;
        ref_drop(graph->first->operation);
        if (graph->first->child != NULL) {
            destroy_graph(graph->first->child);
        }
        free(graph->first);
        graph->first = next;
    }
    for (size_t i = 0; i < graph->object_count; i++) {
        let_go(graph->objects[i]);
    }
    free(graph);
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (graph == NULL) {
        return ref_done(VALUE);
    }
    destroy_graph(graph_at(graph));
    return ref_done(0);
}

static struct ref_graph *clone_of(const struct ref_graph *graph)
{
    struct ref_graph *made = calloc(1, sizeof(*made));
    for (struct ref_node *node = graph->first; node != NULL; node = node->next) {
        struct operation *operation = node->operation == NULL ? NULL : ref_copy_of(node->operation);
        node->clone = new_node(made, node->kind, operation);
        node->clone->fill = node->fill;
        node->clone->function = node->function;
        node->clone->event = node->event;
        node->clone->child = node->child == NULL ? NULL : clone_of(node->child);
    }
    for (const struct ref_node *node = graph->first; node != NULL; node = node->next) {
        for (size_t i = 0; i < node->from_count; i++) {
            add_from(node->clone, node->from[i]->clone);
        }
    }
    for (size_t i = 0; i < graph->object_count; i++) {
        made->objects[made->object_count++] = graph->objects[i];
        graph->objects[i]->count++;
    }
    return made;
}

EXPORT cudaError_t cudaGraphClone(cudaGraph_t *clone, cudaGraph_t graph)
{
    *clone = (cudaGraph_t)(void *)clone_of(graph_at(graph));
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                         const cudaGraphNode_t *dependencies, size_t count)
{
    return ref_done(add(node, graph, dependencies, count, EMPTY, NULL));
}

static int kernel_operation(const struct wh_cuda_kernel_node *params, struct operation **operation)
{
    const struct wh_cuda_launch how = {
        .grid = params->grid, .block = params->block, .shared_bytes = params->shared_bytes};
    int error = ref_launch_operation(params->function, &how, params->arguments, operation);
    return error == HANDLE ? FUNCTION : error;
}

EXPORT cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *dependencies, size_t count,
                                          const struct wh_cuda_kernel_node *params)
{
    struct operation *operation = NULL;
    int error = params == NULL ? VALUE : kernel_operation(params, &operation);
    error = error != 0 ? error : add(node, graph, dependencies, count, KERNEL, operation);
    if (error == 0) {
        node_at(*node)->function = params->function;
        node_at(*node)->kernel = *params;
    }
    return ref_done(error);
}

EXPORT cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                                struct wh_cuda_kernel_node *params)
{
    if (node_at(node)->kind != KERNEL) {
        return ref_done(VALUE);
    }
    *params = node_at(node)->kernel;
    params->arguments = node_at(node)->operation->parameters;
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *dependencies, size_t count,
                                          const struct wh_cuda_copy *copy)
{
    struct operation *operation = NULL;
    int error = copy == NULL ? VALUE : ref_copy_operation(copy, &operation);
    error = error != 0 ? error : add(node, graph, dependencies, count, COPY, operation);
    if (error == 0) {
        node_at(*node)->copy = *copy;
    }
    return ref_done(error);
}

EXPORT cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, struct wh_cuda_copy *copy)
{
    *copy = node_at(node)->copy;
    return ref_done(node_at(node)->kind == COPY ? 0 : VALUE);
}

EXPORT cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node,
                                              struct wh_cuda_host_node *params)
{
    const struct operation *operation = node_at(node)->operation;
    if (node_at(node)->kind != FUNCTION_NODE) {
        return ref_done(VALUE);
    }
    *params = (struct wh_cuda_host_node){(void *)operation->function, operation->data};
    return ref_done(0);
}

static struct wh_cuda_copy line(void *dst, const void *src, size_t bytes, int kind)
{
    return (struct wh_cuda_copy){.src = {(void *)(uintptr_t)src, bytes, bytes, 1},
                                 .dst = {dst, bytes, bytes, 1},
                                 .extent = {bytes, 1, 1},
                                 .kind = kind};
}

EXPORT cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph,
                                            const cudaGraphNode_t *dependencies, size_t count,
                                            void *dst, const void *src, size_t bytes, int kind)
{
    const struct wh_cuda_copy copy = line(dst, src, bytes, kind);
    return cudaGraphAddMemcpyNode(node, graph, dependencies, count, &copy);
}

EXPORT cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *dependencies, size_t count,
                                          const struct wh_cuda_fill *fill)
{
    struct operation *operation = NULL;
    int error = fill == NULL ? VALUE : ref_fill_operation(fill, &operation);
    error = error != 0 ? error : add(node, graph, dependencies, count, FILL, operation);
    if (error == 0) {
        node_at(*node)->fill = *fill;
    }
    return ref_done(error);
}

EXPORT cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                        const cudaGraphNode_t *dependencies, size_t count,
                                        const struct wh_cuda_host_node *params)
{
    if (params == NULL || params->function == NULL) {
        return ref_done(VALUE);
    }
    return ref_done(add(node, graph, dependencies, count, FUNCTION_NODE,
                        ref_function_operation(params->function, params->data)));
}

EXPORT cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                               const cudaGraphNode_t *dependencies, size_t count,
                                               cudaEvent_t event)
{
    int error = add(node, graph, dependencies, count, RECORD_EVENT, NULL);
    if (error == 0) {
        node_at(*node)->event = event;
    }
    return ref_done(error);
}

EXPORT cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                             const cudaGraphNode_t *dependencies, size_t count,
                                             cudaEvent_t event)
{
    int error = add(node, graph, dependencies, count, WAIT_EVENT, NULL);
    if (error == 0) {
        node_at(*node)->event = event;
    }
    return ref_done(error);
}

EXPORT cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                              const cudaGraphNode_t *dependencies, size_t count,
                                              cudaGraph_t child)
{
    int error = child == NULL ? VALUE : add(node, graph, dependencies, count, CHILD, NULL);
    if (error == 0) {
        node_at(*node)->child = clone_of(graph_at(child));
    }
    return ref_done(error);
}

EXPORT cudaError_t cudaGraphDestroyNode(cudaGraphNode_t handle)
{
    struct ref_node *node = node_at(handle);
    struct ref_graph *graph = node->graph;
    struct ref_node *before = NULL;
    for (struct ref_node *each = graph->first; each != NULL; each = each->next) {
        before = each->next == node ? each : before;
        size_t kept = 0;
        for (size_t i = 0; i < each->from_count; i++) {
            if (each->from[i] != node) {
                each->from[kept++] = each->from[i];
            }
        }
        each->from_count = kept;
    }
    if (before == NULL) {
        graph->first = node->next;
    } else {
        before->next = node->next;
    }
    graph->last = graph->last == node ? before : graph->last;
    graph->count--;
    ref_drop(node->operation);
    free(node);
    return ref_done(0);
}

/* Dependencies. */

static bool depends(const struct ref_node *node, const struct ref_node *from)
{
    bool found = false;
    for (size_t i = 0; i < node->from_count; i++) {
        found = found || node->from[i] == from;
    }
    return found;
}

EXPORT cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                            const cudaGraphNode_t *to, const void *edges,
                                            size_t count)
{
    (void)edges;
    for (size_t i = 0; i < count; i++) {
        if (node_at(from[i])->graph != graph_at(graph) || from[i] == to[i] ||
            depends(node_at(to[i]), node_at(from[i]))) {
            return ref_done(VALUE);
        }
    }
    for (size_t i = 0; i < count; i++) {
        add_from(node_at(to[i]), node_at(from[i]));
    }
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                               const cudaGraphNode_t *to, const void *edges,
                                               size_t count)
{
    (void)graph;
    (void)edges;
    for (size_t i = 0; i < count; i++) {
        struct ref_node *node = node_at(to[i]);
        size_t kept = 0;
        for (size_t j = 0; j < node->from_count; j++) {
            if (node->from[j] != node_at(from[i])) {
                node->from[kept++] = node->from[j];
            }
        }
        node->from_count = kept;
    }
    return ref_done(0);
}

/* Gives node by node; *room: what there is room for, then how many there are. */
struct giving {
    cudaGraphNode_t *to;
    size_t room;
    size_t count;
};

static void give(struct giving *giving, const struct ref_node *node)
{
    if (giving->to != NULL && giving->count < giving->room) {
        giving->to[giving->count] = (cudaGraphNode_t)(void *)(uintptr_t)node;
    }
    giving->count++;
}

static int given(const struct giving *giving, size_t *count)
{
    *count = giving->to != NULL && giving->count > giving->room ? giving->room : giving->count;
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    if (graph == NULL) {
        return ref_done(VALUE);
    }
    struct giving giving = {nodes, *count, 0};
    for (const struct ref_node *node = graph_at(graph)->first; node != NULL; node = node->next) {
        give(&giving, node);
    }
    return given(&giving, count);
}

EXPORT cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    struct giving giving = {nodes, *count, 0};
    for (const struct ref_node *node = graph_at(graph)->first; node != NULL; node = node->next) {
        if (node->from_count == 0) {
            give(&giving, node);
        }
    }
    return given(&giving, count);
}

EXPORT cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                                     void *edges, size_t *count)
{
    struct giving begins = {from, *count, 0};
    struct giving ends = {to, *count, 0};
    (void)edges;
    for (const struct ref_node *node = graph_at(graph)->first; node != NULL; node = node->next) {
        for (size_t i = 0; i < node->from_count; i++) {
            give(&begins, node->from[i]);
            give(&ends, node);
        }
    }
    return given(&begins, count);
}

EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                                void *edges, size_t *count)
{
    struct giving giving = {nodes, *count, 0};
    (void)edges;
    for (size_t i = 0; i < node_at(node)->from_count; i++) {
        give(&giving, node_at(node)->from[i]);
    }
    return given(&giving, count);
}

EXPORT cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *nodes,
                                                  void *edges, size_t *count)
{
    struct giving giving = {nodes, *count, 0};
    (void)edges;
    for (const struct ref_node *each = node_at(node)->graph->first; each != NULL;
         each = each->next) {
        if (depends(each, node_at(node))) {
            give(&giving, each);
        }
    }
    return given(&giving, count);
}

EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, int *kind)
{
    *kind = (int)node_at(node)->kind;
    return ref_done(0);
}

/* Parameters of nodes that are there. */

static int set_operation(struct ref_node *node, enum kind kind, int error,
                         struct operation *operation)
{
    error = error == 0 && node->kind != kind ? VALUE : error;
    if (error != 0) {
        ref_drop(operation);
        return ref_done(error);
    }
    ref_drop(node->operation);
    node->operation = operation;
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                const struct wh_cuda_kernel_node *params)
{
    struct operation *operation = NULL;
    int error = kernel_operation(params, &operation);
    if (error == 0) {
        node_at(node)->kernel = *params;
    }
    return set_operation(node_at(node), KERNEL, error, operation);
}

EXPORT cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node,
                                                const struct wh_cuda_copy *copy)
{
    struct operation *operation = NULL;
    int error = ref_copy_operation(copy, &operation);
    return set_operation(node_at(node), COPY, error, operation);
}

EXPORT cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void *dst, const void *src,
                                                  size_t bytes, int kind)
{
    const struct wh_cuda_copy copy = line(dst, src, bytes, kind);
    return cudaGraphMemcpyNodeSetParams(node, &copy);
}

EXPORT cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node,
                                                const struct wh_cuda_fill *fill)
{
    struct operation *operation = NULL;
    int error = ref_fill_operation(fill, &operation);
    if (error == 0) {
        node_at(node)->fill = *fill;
    }
    return set_operation(node_at(node), FILL, error, operation);
}

EXPORT cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, struct wh_cuda_fill *fill)
{
    *fill = node_at(node)->fill;
    return ref_done(node_at(node)->kind == FILL ? 0 : VALUE);
}

/* Executable graphs. */

static void put_items(struct exec *exec, struct ref_graph *graph, struct ref_node *as);

static void put_node(struct exec *exec, struct ref_node *node, struct ref_node *as)
{
    if (node->placed) {
        return;
    }
    node->placed = true;
    for (size_t i = 0; i < node->from_count; i++) {
        put_node(exec, node->from[i], as);
    }
    if (node->child != NULL) {
        put_items(exec, node->child, as != NULL ? as : node);
        return;
    }
    exec->items = realloc(exec->items, (exec->count + 1) * sizeof(*exec->items));
    exec->items[exec->count++] = (struct item){
        .node = as != NULL ? as : node,
        .kind = node->kind,
        .function = node->function,
        .operation = node->operation == NULL ? NULL : ref_copy_of(node->operation),
        .event = node->event,
        .enabled = true,
    };
}

static void put_items(struct exec *exec, struct ref_graph *graph, struct ref_node *as)
{
    for (struct ref_node *node = graph->first; node != NULL; node = node->next) {
        node->placed = false;
    }
    for (struct ref_node *node = graph->first; node != NULL; node = node->next) {
        put_node(exec, node, as);
    }
    for (size_t i = 0; i < graph->object_count; i++) {
        graph->objects[i]->count++;
        exec->objects[exec->object_count++] = graph->objects[i];
    }
}

static void drop_exec(struct exec *exec)
{
    for (size_t i = 0; i < exec->count; i++) {
        ref_drop(exec->items[i].operation);
    }
    for (size_t i = 0; i < exec->object_count; i++) {
        let_go(exec->objects[i]);
    }
    free(exec->items);
    free(exec);
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                                 unsigned long long flags)
{
    struct exec *exec = calloc(1, sizeof(*exec));
    put_items(exec, graph_at(graph), NULL);
    exec->flags = flags;
    *made = (cudaGraphExec_t)(void *)exec;
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                        unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                  struct wh_cuda_instantiation *params)
{
    params->error_node = NULL;
    params->result = 0;
    return cudaGraphInstantiateWithFlags(exec, graph, params->flags);
}

EXPORT cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long *flags)
{
    *flags = exec_at(exec)->flags;
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec;
    (void)stream;
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    (void)cudaDeviceSynchronize(); /* what is under way may still use what it holds */
    drop_exec(exec_at(exec));
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    int error = exec == NULL ? VALUE : ref_stream(stream) == NULL ? HANDLE : 0;
    for (size_t i = 0; error == 0 && i < exec_at(exec)->count; i++) {
        const struct item *item = &exec_at(exec)->items[i];
        if (item->enabled && item->kind == RECORD_EVENT) {
            error = cudaEventRecord(item->event, stream);
        } else if (item->enabled && item->kind == WAIT_EVENT) {
            error = cudaStreamWaitEvent(stream, item->event, 0);
        } else if (item->enabled && item->operation != NULL) {
            error = ref_enqueue(stream, ref_copy_of(item->operation), NULL);
        }
    }
    return ref_done(error);
}

static struct item *item_of(cudaGraphExec_t exec, cudaGraphNode_t node)
{
    for (size_t i = 0; i < exec_at(exec)->count; i++) {
        if (exec_at(exec)->items[i].node == node_at(node)) {
            return &exec_at(exec)->items[i];
        }
    }
    return NULL;
}

static int set_item(cudaGraphExec_t exec, cudaGraphNode_t node, enum kind kind, int error,
                    struct operation *operation)
{
    struct item *item = item_of(exec, node);
    error = error == 0 && (item == NULL || item->kind != kind) ? VALUE : error;
    if (error != 0) {
        ref_drop(operation);
        return ref_done(error);
    }
    ref_drop(item->operation);
    item->operation = operation;
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const struct wh_cuda_kernel_node *params)
{
    struct operation *operation = NULL;
    int error = kernel_operation(params, &operation);
    return set_item(exec, node, KERNEL, error, operation);
}

EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const struct wh_cuda_copy *copy)
{
    struct operation *operation = NULL;
    int error = ref_copy_operation(copy, &operation);
    return set_item(exec, node, COPY, error, operation);
}

EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                      void *dst, const void *src, size_t bytes,
                                                      int kind)
{
    const struct wh_cuda_copy copy = line(dst, src, bytes, kind);
    return cudaGraphExecMemcpyNodeSetParams(exec, node, &copy);
}

EXPORT cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const struct wh_cuda_fill *fill)
{
    struct operation *operation = NULL;
    int error = ref_fill_operation(fill, &operation);
    return set_item(exec, node, FILL, error, operation);
}

EXPORT cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node,
                                           unsigned enabled)
{
    struct item *item = item_of(exec, node);
    if (item != NULL) {
        item->enabled = enabled != 0;
    }
    return ref_done(item == NULL ? VALUE : 0);
}

EXPORT cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node,
                                           unsigned *enabled)
{
    const struct item *item = item_of(exec, node);
    *enabled = item != NULL && item->enabled;
    return ref_done(item == NULL ? VALUE : 0);
}

/* Why one graph cannot take the place of another: 0, or as cudaGraphExecUpdateResult. */
static int differs(const struct exec *old, const struct exec *new, struct ref_node **node)
{
    enum { TOPOLOGY = 2, KIND = 3 };
    *node = NULL;
    if (old->count != new->count) {
        return TOPOLOGY;
    }
    for (size_t i = 0; i < old->count; i++) {
        if (old->items[i].kind != new->items[i].kind) {
            *node = new->items[i].node;
            return KIND;
        }
    }
    return 0;
}

EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t handle, cudaGraph_t graph,
                                       struct wh_cuda_update *result)
{
    struct exec *exec = exec_at(handle);
    struct exec *new = calloc(1, sizeof(*new));
    struct ref_node *node = NULL;
    put_items(new, graph_at(graph), NULL);
    int why = differs(exec, new, &node);
    *result = (struct wh_cuda_update){why, node, NULL};
    if (why == 0) {
        struct exec old = *exec;
        for (size_t i = 0; i < new->count; i++) {
            new->items[i].node = old.items[i].node;
        }
        new->flags = old.flags;
        *exec = *new;
        *new = old;
    }
    drop_exec(new);
    return ref_done(why == 0 ? 0 : UPDATE_FAILURE);
}

/* Objects that end with graphs. */

EXPORT cudaError_t cudaUserObjectCreate(void **object, void *pointer, void *destroy, unsigned count,
                                        unsigned flags)
{
    struct object *made = malloc(sizeof(*made));
    (void)flags;
    *made = (struct object){pointer, (void (*)(void *))destroy, count};
    *object = made;
    return ref_done(0);
}

EXPORT cudaError_t cudaUserObjectRelease(void *object, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        let_go(object);
    }
    return ref_done(0);
}

EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, void *object, unsigned count,
                                             unsigned flags)
{
    struct ref_graph *graph = graph_at(handle);
    if (count != 1 || flags != 1 || graph->object_count == OBJECTS_MAX) {
        return ref_done(VALUE);
    }
    graph->objects[graph->object_count++] = object;
    return ref_done(0);
}

/* Capture. */

int ref_capture(struct stream *stream, struct operation *operation)
{
    enum kind kind = operation->function != NULL ? FUNCTION_NODE
                     : operation->kernel != NULL ? KERNEL
                     : operation->src != NULL    ? COPY
                                                 : FILL;
    struct ref_node *node = new_node(stream->graph, kind, operation);
    add_from(node, stream->tail);
    stream->tail = node;
    return 0;
}

void ref_join(struct stream *stream, struct ref_node *other)
{
    if (stream->graph == NULL || stream->tail == NULL) {
        stream->tail = other;
        return;
    }
    struct ref_node *both = new_node(stream->graph, EMPTY, NULL);
    add_from(both, stream->tail);
    add_from(both, other);
    stream->tail = both;
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t handle, int mode)
{
    struct stream *stream = ref_stream(handle);
    if (stream == NULL || mode < 0 || mode > 2 || (uintptr_t)handle <= 1) {
        return ref_done(stream == NULL         ? HANDLE
                        : mode < 0 || mode > 2 ? VALUE
                                               : CAPTURE_UNSUPPORTED);
    }
    if (stream->graph != NULL) {
        return ref_done(401);
    }
    stream->graph = calloc(1, sizeof(struct ref_graph));
    stream->tail = NULL;
    return ref_done(0);
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    struct stream *stream = ref_stream(handle);
    *graph = NULL;
    if (stream == NULL || stream->graph == NULL) {
        return ref_done(stream == NULL ? HANDLE : 401);
    }
    *graph = (cudaGraph_t)(void *)stream->graph;
    ref_end_capture(stream->graph);
    return ref_done(0);
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t handle, int *status)
{
    const struct stream *stream = ref_stream(handle);
    *status = stream != NULL && stream->graph != NULL;
    return ref_done(stream == NULL ? HANDLE : 0);
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, int *status,
                                            unsigned long long *id, cudaGraph_t *graph,
                                            const void **nodes, const void **edges, size_t *count)
{
    const struct stream *stream = ref_stream(handle);
    (void)nodes;
    (void)edges;
    (void)count;
    *status = stream != NULL && stream->graph != NULL;
    if (id != NULL) {
        *id = *status;
    }
    if (graph != NULL) {
        *graph = stream == NULL ? NULL : (cudaGraph_t)(void *)stream->graph;
    }
    return ref_done(stream == NULL ? HANDLE : 0);
}
