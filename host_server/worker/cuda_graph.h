/*
 * cuda_graph.h - host functions in graphs: held for as long as a graph has them.
 */
#ifndef WH_CUDA_GRAPH_H
#define WH_CUDA_GRAPH_H

#include "cuda_backend.h"
#include "wh_cudart.h"

/* What ends with the last graph that has it: the client is told in the cell. */
struct wh_graph_hold {
    void *object;
    struct wh_cuda_cell **cell;
};

/* Whether it can be the address of a cell. */
bool wh_graph_cell(const struct wh_session *session, uint64_t address);

/* All return 0 or a result of the runtime's. give: to a graph; ends the hold either way. */
uint64_t wh_graph_hold(const struct wh_cudart_table *real, struct wh_cuda_cell *cell,
                       struct wh_graph_hold *hold);
uint64_t wh_graph_give(const struct wh_cudart_table *real, struct wh_graph_hold *hold,
                       cudaGraph_t graph);
void wh_graph_let_go(const struct wh_cudart_table *real, struct wh_graph_hold *hold);

/* The library calls it, with the cell, when a graph comes to the function. */
void wh_graph_reached(void *cell);

#endif
