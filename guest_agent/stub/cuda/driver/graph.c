/*
 * graph.c - graphs that programs make node by node: kernels and plain copies.
 *
 * Such a graph is the client's: a launch of it launches its nodes one after the other, in the order
 * in which they were added, which every dependency allows. Graphs that come from capturing a stream
 * are the server's, as the runtime's are.
 */
#include "driver.h"

#include <stdlib.h>

#define MAGIC 0x47524150u
#define NODES_MAX 65536u
#define MEMORY_HOST 1

enum kind { NODE_KERNEL, NODE_COPY };

/* CUDA_KERNEL_NODE_PARAMS, both forms: the later one has members behind these. */
struct kernel_params {
    CUfunction function;
    struct wh_dim3 grid;
    struct wh_dim3 block;
    unsigned shared_bytes;
    void **parameters;
    void **extra;
};

/* What one node does. */
struct work {
    enum kind kind;
    CUfunction function;
    struct wh_cuda_launch how;
    uint8_t *bytes;   /* the arguments, one behind the other */
    uint32_t *places; /* where each begins */
    uint32_t count;
    const void *from;
    void *to;
    size_t size_bytes;
};

struct CUgraphNode_st {
    uint32_t index;
    struct CUgraphNode_st *next;
    struct work work;
};

struct CUgraph_st {
    uint32_t magic;
    uint32_t count;
    struct CUgraphNode_st *first;
    struct CUgraphNode_st **last;
};

struct CUgraphExec_st {
    uint32_t magic;
    uint32_t count;
    struct work *works;
};

/* Numbers of the server's graphs are no addresses. */
static bool is_own_graph(CUgraph graph)
{
    return graph != NULL && (uint64_t)(uintptr_t)graph >> 56 == 0 && graph->magic == MAGIC;
}

static bool is_own_exec(CUgraphExec exec)
{
    return exec != NULL && (uint64_t)(uintptr_t)exec >> 56 == 0 && exec->magic == MAGIC;
}

static void drop_work(struct work *work)
{
    free(work->bytes);
    free(work->places);
}

/* Copies the arguments now: the program's own may change afterwards. */
static int set_kernel(struct work *work, const struct kernel_params *params)
{
    void *unpacked[WH_CUDA_PARAMETERS_MAX];
    void **from = params->parameters;
    size_t offset = 0;
    size_t bytes = 0;
    size_t used = 0;
    struct work made = {.kind = NODE_KERNEL,
                        .function = params->function,
                        .how = {.grid = params->grid,
                                .block = params->block,
                                .shared_bytes = params->shared_bytes}};
    if (from == NULL && params->extra != NULL) {
        int status = wh_driver_unpack(params->function, params->extra, unpacked);
        if (status != 0) {
            return status;
        }
        from = unpacked;
    }
    made.bytes = malloc(WH_CUDA_PARAMETER_BYTES_MAX);
    made.places = malloc(WH_CUDA_PARAMETERS_MAX * sizeof(*made.places));
    int status = made.bytes == NULL || made.places == NULL ? wh_driver_api.memory : 0;
    while (status == 0 && made.count < WH_CUDA_PARAMETERS_MAX &&
           WH_DRIVER(cudaFuncGetParamInfo(params->function, made.count, &offset, &bytes)) == 0) {
        if (from == NULL || bytes > WH_CUDA_PARAMETER_BYTES_MAX - used) {
            status = WH_DRIVER_INVALID_VALUE;
            break;
        }
        memcpy(made.bytes + used, from[made.count], bytes);
        made.places[made.count++] = (uint32_t)used;
        used += bytes;
    }
    if (status != 0) {
        drop_work(&made);
        return status;
    }
    drop_work(work);
    *work = made;
    return 0;
}

static int set_copy(struct work *work, const struct wh_driver_copy *params)
{
    if (params->height > 1 || params->depth > 1 || params->from_array != NULL ||
        params->to_array != NULL) {
        return WH_DRIVER_NOT_SUPPORTED;
    }
    const char *from = params->from_type == MEMORY_HOST
                           ? params->from_host
                           : (const char *)(uintptr_t)params->from_device;
    char *to =
        params->to_type == MEMORY_HOST ? params->to_host : (char *)(uintptr_t)params->to_device;
    drop_work(work);
    *work = (struct work){.kind = NODE_COPY,
                          .from = from + params->from_x,
                          .to = to + params->to_x,
                          .size_bytes = params->width};
    return 0;
}

static int add(CUgraph graph, CUgraphNode *node, const void *params, enum kind kind)
{
    int status = wh_driver_current();
    if (status != 0 || !is_own_graph(graph) || node == NULL || params == NULL) {
        /* Nodes of a captured graph have no names here. */
        return status != 0           ? status
               : is_own_graph(graph) ? WH_DRIVER_INVALID_VALUE
                                     : WH_DRIVER_NOT_SUPPORTED;
    }
    struct CUgraphNode_st *made = calloc(1, sizeof(*made));
    if (made == NULL || graph->count == NODES_MAX) {
        free(made);
        return wh_driver_api.memory;
    }
    status = kind == NODE_KERNEL ? set_kernel(&made->work, params) : set_copy(&made->work, params);
    if (status != 0) {
        free(made);
        return status;
    }
    made->index = graph->count++;
    *graph->last = made;
    graph->last = &made->next;
    *node = made;
    return 0;
}

WH_EXPORT CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    WH_API_CALL();
    if (phGraph == NULL || flags != 0) {
        return WH_DRIVER_INVALID_VALUE;
    }
    struct CUgraph_st *graph = calloc(1, sizeof(*graph));
    if (graph == NULL) {
        return wh_driver_api.memory;
    }
    graph->magic = MAGIC;
    graph->last = &graph->first;
    *phGraph = graph;
    return 0;
}

WH_EXPORT CUresult cuGraphDestroy(CUgraph hGraph)
{
    if (!is_own_graph(hGraph)) {
        return WH_DRIVER(cudaGraphDestroy(hGraph));
    }
    while (hGraph->first != NULL) {
        struct CUgraphNode_st *next = hGraph->first->next;
        drop_work(&hGraph->first->work);
        free(hGraph->first);
        hGraph->first = next;
    }
    hGraph->magic = 0;
    free(hGraph);
    return 0;
}

/* Dependencies are kept by the order. */
WH_EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        const void *nodeParams)
{
    WH_API_CALL();
    (void)dependencies;
    (void)numDependencies;
    return wh_driver_answered(add(hGraph, phGraphNode, nodeParams, NODE_KERNEL));
}

WH_EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                           const CUgraphNode *dependencies, size_t numDependencies,
                                           const void *nodeParams)
{
    return cuGraphAddKernelNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

WH_EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        const void *copyParams, CUcontext ctx)
{
    WH_API_CALL();
    (void)dependencies;
    (void)numDependencies;
    (void)ctx;
    return wh_driver_answered(add(hGraph, phGraphNode, copyParams, NODE_COPY));
}

/* A copy that changes apart from its original. */
static bool copy_work(struct work *to, const struct work *from)
{
    *to = *from;
    if (from->kind == NODE_COPY) {
        return true;
    }
    to->bytes = malloc(WH_CUDA_PARAMETER_BYTES_MAX);
    to->places = malloc(WH_CUDA_PARAMETERS_MAX * sizeof(*to->places));
    if (to->bytes == NULL || to->places == NULL) {
        return false;
    }
    memcpy(to->bytes, from->bytes, WH_CUDA_PARAMETER_BYTES_MAX);
    memcpy(to->places, from->places, from->count * sizeof(*to->places));
    return true;
}

WH_EXPORT CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    if (!is_own_exec(hGraphExec)) {
        return WH_DRIVER(cudaGraphExecDestroy(hGraphExec));
    }
    for (uint32_t i = 0; i < hGraphExec->count; i++) {
        drop_work(&hGraphExec->works[i]);
    }
    free(hGraphExec->works);
    hGraphExec->magic = 0;
    free(hGraphExec);
    return 0;
}

WH_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                               unsigned long long flags)
{
    if (!is_own_graph(hGraph)) {
        return WH_DRIVER(cudaGraphInstantiateWithFlags(phGraphExec, hGraph, flags));
    }
    struct CUgraphExec_st *exec = phGraphExec == NULL ? NULL : calloc(1, sizeof(*exec));
    if (exec == NULL) {
        return phGraphExec == NULL ? WH_DRIVER_INVALID_VALUE : wh_driver_api.memory;
    }
    exec->magic = MAGIC;
    exec->works = calloc(hGraph->count + 1, sizeof(*exec->works));
    bool whole = exec->works != NULL;
    for (const struct CUgraphNode_st *node = hGraph->first; whole && node != NULL;
         node = node->next) {
        whole = copy_work(&exec->works[exec->count++], &node->work);
    }
    if (!whole) {
        (void)cuGraphExecDestroy(exec);
        return wh_driver_api.memory;
    }
    *phGraphExec = exec;
    return 0;
}

WH_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
                                         CUgraphNode *phErrorNode, char *logBuffer,
                                         size_t bufferSize)
{
    if (phErrorNode != NULL) {
        *phErrorNode = NULL;
    }
    if (logBuffer != NULL && bufferSize > 0) {
        logBuffer[0] = '\0';
    }
    return cuGraphInstantiateWithFlags(phGraphExec, hGraph, 0);
}

WH_EXPORT CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

static struct work *work_of(CUgraphExec exec, CUgraphNode node, enum kind kind)
{
    return is_own_exec(exec) && node != NULL && node->index < exec->count &&
                   exec->works[node->index].kind == kind
               ? &exec->works[node->index]
               : NULL;
}

WH_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  const void *nodeParams)
{
    WH_API_CALL();
    struct work *work = work_of(hGraphExec, hNode, NODE_KERNEL);
    return work == NULL || nodeParams == NULL ? WH_DRIVER_INVALID_VALUE
                                              : wh_driver_answered(set_kernel(work, nodeParams));
}

WH_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                     const void *nodeParams)
{
    return cuGraphExecKernelNodeSetParams(hGraphExec, hNode, nodeParams);
}

WH_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  const void *copyParams, CUcontext ctx)
{
    WH_API_CALL();
    struct work *work = work_of(hGraphExec, hNode, NODE_COPY);
    (void)ctx;
    return work == NULL || copyParams == NULL ? WH_DRIVER_INVALID_VALUE
                                              : wh_driver_answered(set_copy(work, copyParams));
}

static int run(struct work *work, CUstream stream)
{
    void *arguments[WH_CUDA_PARAMETERS_MAX];
    if (work->kind == NODE_COPY) {
        return WH_DRIVER(cudaMemcpyAsync(work->to, work->from, work->size_bytes, 4, stream));
    }
    for (uint32_t i = 0; i < work->count; i++) {
        arguments[i] = work->bytes + work->places[i];
    }
    work->how.stream = stream;
    return wh_driver_launch(&work->how, work->function, arguments, NULL);
}

WH_EXPORT CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    if (!is_own_exec(hGraphExec)) {
        return WH_DRIVER(cudaGraphUpload(hGraphExec, hStream));
    }
    WH_API_CALL();
    return wh_driver_current(); /* there is nothing that could go ahead of its launch */
}

WH_EXPORT CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    if (!is_own_exec(hGraphExec)) {
        return WH_DRIVER(cudaGraphLaunch(hGraphExec, hStream));
    }
    int status = 0;
    for (uint32_t i = 0; i < hGraphExec->count && status == 0; i++) {
        status = run(&hGraphExec->works[i], hStream);
    }
    return status;
}
