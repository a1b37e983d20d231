/*
 * transfer.h - one transfer between a buffer and the application's memory, whole or in pieces.
 */
#ifndef WH_CL_TRANSFER_H
#define WH_CL_TRANSFER_H

#include "object.h"

struct wh_cl_transfer {
    uint16_t opcode;
    cl_command_queue queue;
    cl_mem mem;
    cl_bool blocking;
    size_t offset;
    size_t size;
    void *to;         /* a read */
    const void *from; /* a write */
    cl_uint wait_count;
    const cl_event *wait_list;
};

/* What the stub can tell itself: objects, contexts, bounds. An API error. */
cl_int wh_cl_check_transfer(const struct wh_cl_transfer *transfer);

/* event: the object of the out event, NULL if none is wanted. */
cl_int wh_cl_read(const struct wh_cl_transfer *transfer, const struct wh_cl_object *event);
cl_int wh_cl_write(const struct wh_cl_transfer *transfer, const struct wh_cl_object *event);

#endif
