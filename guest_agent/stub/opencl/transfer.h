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
    void *to;             /* a read */
    const void *from;     /* a write */
    size_t element_bytes; /* of an image; 0: a buffer */
    cl_uint wait_count;
    const cl_event *wait_list;
    struct wh_cl_object *event; /* of a piece */
    uint64_t hold;              /* a piece of a held transfer, else 0 */
    bool counted;               /* among the calls that block: wh_blocking_begin */
    bool waits_apart;           /* blocks for the application, but not in its call */
};

/* From here on it is faster to copy in place, with a message more, than twice. */
#define WH_CL_HOLD_BYTES_MIN ((size_t)256 << 10)

#define WH_CL_FAILED_STATUS (-1) /* of an event, as PoCL has it */
#define WH_CL_NO_ROOM 1          /* not an API error: try a smaller piece */
#define WH_CL_ROOM_MS 100u       /* patience before that */
#define WH_CL_HOLD_MS 200u       /* patience before the server must copy what it writes later */

/*
 * A transfer in pieces is one command: a piece that does not block waits for the one before, in
 * queues without order, too, so that the last one's event stands for all.
 */
struct wh_cl_pieces {
    struct wh_cl_transfer transfer; /* of the current piece: what it waits for, its event */
    struct wh_cl_object *whole_event;
    cl_event before;
};

void wh_cl_pieces_begin(struct wh_cl_pieces *pieces, const struct wh_cl_transfer *transfer,
                        struct wh_cl_object *event);
cl_int wh_cl_piece_begin(struct wh_cl_pieces *pieces, bool last);
cl_int wh_cl_piece_end(struct wh_cl_pieces *pieces, cl_int error); /* gives the error back */
void wh_cl_piece_again(struct wh_cl_pieces *pieces); /* begins the piece anew instead */

/* Bytes that a piece may have at most; 0 without a session. */
size_t wh_cl_piece_limit(const struct wh_cl_transfer *transfer);

/* One of cl_mode of wire.yaml. */
uint32_t wh_cl_write_mode(const struct wh_cl_transfer *transfer, size_t size);
/* What every request for a part of a buffer begins with: the part's bytes from `done` on. */
void wh_cl_put_transfer(struct wh_call *call, const struct wh_cl_transfer *transfer, size_t done,
                        size_t piece, uint32_t mode);
uint64_t wh_cl_transfer_shape(const struct wh_cl_transfer *transfer);
void wh_cl_put_write(struct wh_call *call, uint32_t mode, const void *bytes, size_t size);

/*
 * A blocking transfer while a command of the server holds its place in the queue (hold.c): data in
 * memory that both sides see is copied here, other data in blocking pieces by move(). What other
 * threads enqueue comes before or after all of it.
 */
cl_int wh_cl_held_transfer(const struct wh_cl_transfer *transfer, struct wh_cl_object *event,
                           cl_int (*move)(const struct wh_cl_transfer *, struct wh_cl_object *));

/* Whether a transfer that blocks is worth that, for one copy instead of two. What the application
 * wants to time is worth the command itself: the holding one would tell no duration. */
bool wh_cl_worth_holding(const struct wh_cl_transfer *transfer, size_t size,
                         const struct wh_cl_object *event);

/* The same between rows where an object lies and the application's, whose region is the same.
 * Only where the device works in the host's memory. */
cl_int wh_cl_held_rows(const struct wh_cl_transfer *transfer, const struct wh_cl_rows *place,
                       const struct wh_cl_rows *host, struct wh_cl_object *event);

/*
 * Around a call that the real library may answer only when the whole queue is empty (PoCL does so
 * with clFinish and all blocking transfers): held transfers that begin meanwhile give way to it.
 */
void wh_cl_emptying_begin(cl_command_queue queue);
void wh_cl_emptying_end(cl_command_queue queue);

/* Queue, memory object (an image if it must be one), their context, the wait list. An API error. */
cl_int wh_cl_check_objects(const struct wh_cl_transfer *transfer, bool image);

/* What the stub can tell itself: those, and the bounds of a buffer. An API error. */
cl_int wh_cl_check_transfer(const struct wh_cl_transfer *transfer);

/*
 * What every entry point does around its transfer. One that blocks is counted among the calls that
 * block; if there are too many, or if pending reads bring part of what it writes (of the
 * extent_bytes from transfer->from on), it becomes one that does not, and its event is waited for
 * at the end.
 */
cl_int wh_cl_transfer_begin(struct wh_cl_transfer *transfer, size_t extent_bytes,
                            cl_command_type command, bool event_wanted,
                            struct wh_cl_object **created);
cl_int wh_cl_transfer_end(const struct wh_cl_transfer *transfer, struct wh_cl_object *created,
                          cl_int error, cl_event *event); /* gives the error back, or its own */

/* event: the object of the out event, NULL if none is wanted. */
cl_int wh_cl_read(const struct wh_cl_transfer *transfer, struct wh_cl_object *event);
cl_int wh_cl_write(const struct wh_cl_transfer *transfer, struct wh_cl_object *event);

/* What a request for a region of an image begins with. region: bytes, rows, slices. */
void wh_cl_put_image(struct wh_call *call, const struct wh_cl_transfer *transfer,
                     const size_t *origin, const size_t *region, uint32_t mode);

/* Moves a region between an image and rows in the application's memory, of which transfer.to or
 * transfer.from is the first (rectangle.c). region: bytes, rows, slices. */
cl_int wh_cl_move_image(const struct wh_cl_transfer *transfer, const size_t *origin,
                        const size_t *region, size_t row_pitch, size_t slice_pitch,
                        struct wh_cl_object *event);

#endif
