/*
 * opencl_transfer.h - bookkeeping of transfers that outlive their call.
 */
#ifndef WH_OPENCL_TRANSFER_H
#define WH_OPENCL_TRANSFER_H

#include "opencl_backend.h"

/* What every transfer request begins with. A rectangle has an origin, region and pitches instead of
 * the offset; its host side has no gaps. */
struct wh_cl_transfer {
    uint64_t mode; /* cl_mode of wire.yaml */
    cl_command_queue queue;
    cl_mem mem;
    bool blocking;
    bool copies;
    bool image;           /* origin and region count its elements, rows and slices */
    const size_t *origin; /* NULL: no rectangle */
    const size_t *region;
    size_t row_pitch;
    size_t slice_pitch;
    size_t offset;
    size_t size;
    cl_uint wait_count;
    cl_event *wait_list;
    uint64_t created;
    cl_int error;
};

/* What follows the transfer in a request of these modes, and the answer (opencl_place.c). */
int wh_cl_map_in_place(struct wh_request *request, uint16_t opcode,
                       struct wh_cl_transfer *transfer);
int wh_cl_unmap_in_place(struct wh_request *request, struct wh_cl_transfer *transfer);
int wh_cl_hold(struct wh_request *request, uint16_t opcode, struct wh_cl_transfer *transfer);
int wh_cl_let_go(struct wh_request *request, uint16_t opcode);

/* The queue in which the pieces of a held transfer run. */
cl_int wh_cl_side_queue(uint64_t id, cl_command_queue *queue);

/* Data of a read that the client has not seen yet, for a write from there; NULL if there is no
 * such. It stays until it was returned and forgotten. */
struct wh_cl_pending_read;
struct wh_cl_pending_read *wh_cl_borrow_read(struct wh_session *session, uint64_t id, size_t offset,
                                             size_t size_bytes, const void **bytes);
void wh_cl_return_read(struct wh_session *session, struct wh_cl_pending_read *read);

/* Keeps the event of a failed command a little longer: PoCL is still busy with it when it wakes
 * those who wait for it. */
void wh_cl_keep_failed(cl_event event);

/* Ends what writes that are done have kept. */
void wh_cl_sweep_writes(void);

/* A read whose event is given over; without one the queue is finished to find out. 0 or -ENOMEM. */
int wh_cl_add_read(uint64_t id, cl_command_queue queue, cl_event event, const void *address,
                   size_t size_bytes, uint64_t token);

#endif
