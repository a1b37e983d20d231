/*
 * cells.h - what the client remembers of a few objects by their handles: settings of the libraries'
 * contexts.
 */
#ifndef WH_STUB_CELLS_H
#define WH_STUB_CELLS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* Begins each cell; what follows is its owner's, zero at first. */
struct wh_cell {
    struct wh_cell *next;
    uint64_t handle; /* 0: free */
};

struct wh_cells {
    pthread_mutex_t lock;
    struct wh_cell *first;
    size_t cell_bytes;
};
#define WH_CELLS(type) {PTHREAD_MUTEX_INITIALIZER, NULL, sizeof(type)}

/* The cell of a handle, NULL if it has none. *latest is the calling thread's last answer. */
void *wh_cell_find(const struct wh_cells *cells, const void *handle, void **latest);

/* A new one; NULL without memory. */
void *wh_cell_add(struct wh_cells *cells, uint64_t handle);
void wh_cell_end(void *cell);

#endif
