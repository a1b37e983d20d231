/*
 * opencl_transfer.h - bookkeeping of transfers that outlive their call.
 */
#ifndef WH_OPENCL_TRANSFER_H
#define WH_OPENCL_TRANSFER_H

#include "opencl_backend.h"

/* A read whose event is given over; without one the queue is finished to find out. 0 or -ENOMEM. */
int wh_cl_add_read(uint64_t id, cl_command_queue queue, cl_event event, const void *address,
                   size_t size_bytes, uint64_t token);

#endif
