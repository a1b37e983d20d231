/*
 * cells.c - what the client remembers of a few objects. Cells are used again, never freed, so that
 * a look takes no lock.
 */
#include "cells.h"

#include <stdlib.h>
#include <string.h>

static uint64_t handle_of(const struct wh_cell *cell)
{
    /* Pairs with the release stores below: a cell is seen zeroed. */
    return __atomic_load_n(&cell->handle, __ATOMIC_ACQUIRE);
}

void *wh_cell_find(const struct wh_cells *cells, const void *handle, void **latest)
{
    uint64_t number = (uint64_t)(uintptr_t)handle;
    struct wh_cell *cell = *latest;
    if (number == 0) {
        return NULL;
    }
    if (cell != NULL && handle_of(cell) == number) {
        return cell;
    }
    cell = __atomic_load_n(&cells->first, __ATOMIC_ACQUIRE);
    while (cell != NULL && handle_of(cell) != number) {
        cell = cell->next;
    }
    *latest = cell;
    return cell;
}

void *wh_cell_add(struct wh_cells *cells, uint64_t handle)
{
    pthread_mutex_lock(&cells->lock);
    struct wh_cell *cell = cells->first;
    while (cell != NULL && cell->handle != 0) {
        cell = cell->next;
    }
    if (cell == NULL) {
        cell = calloc(1, cells->cell_bytes);
        if (cell != NULL) {
            cell->next = cells->first;
            __atomic_store_n(&cells->first, cell, __ATOMIC_RELEASE);
        }
    }
    if (cell != NULL) {
        memset(cell + 1, 0, cells->cell_bytes - sizeof(*cell));
        __atomic_store_n(&cell->handle, handle, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&cells->lock);
    return cell;
}

void wh_cell_end(void *cell)
{
    struct wh_cell *ended = cell;
    __atomic_store_n(&ended->handle, 0, __ATOMIC_RELEASE);
}
