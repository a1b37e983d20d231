/*
 * refinner.h - what the double's streams (refcuda.c) and graphs (refgraph.c) share.
 */
#ifndef REFINNER_H
#define REFINNER_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "refcuda.h"
#include "wh_cudart.h"

#define EXPORT __attribute__((visibility("default")))

enum {
    VALUE = 1,
    MEMORY = 2,
    SYMBOL = 13,
    FUNCTION = 98,
    DEVICE = 101,
    PEER_UNSUPPORTED = 217,
    HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    UPDATE_FAILURE = 910
};

struct ref_graph;
struct ref_node;

struct operation {
    struct operation *next;
    void (*run)(struct operation *operation);
    uint64_t number;
    struct stream *after; /* waits for its operations up to after_number */
    uint64_t after_number;
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, dst_slice, src_slice, width, height, depth;
    unsigned element_bytes;
    int value;
    void *owned; /* freed afterwards; what points into it does so in a copy, too */
    size_t owned_bytes;
    ref_kernel *kernel;
    struct ref_launch launch;
    uint32_t parameter_count;
    void *parameters[256];
    void (*function)(void *data);
    void (*callback)(void *stream, int status, void *data);
    void *data;
    struct event *event;
};

struct stream {
    pthread_t thread;
    bool blocking; /* ordered with the default stream */
    bool ending;
    int priority;
    unsigned flags;
    char attributes[16][64];
    struct ref_graph *graph; /* under capture: what comes next is a node of it */
    struct ref_node *tail;
    struct operation *first, *last;
    uint64_t enqueued, completed;
};

struct event {
    bool timing;
    struct stream *stream; /* NULL: never recorded */
    uint64_t number;
    struct timespec time;
    uint64_t timed;          /* number whose time it is */
    struct ref_graph *graph; /* recorded while it was captured */
    struct ref_node *node;
};

/* What an API function returns, as the thread's last error has it. */
int ref_done(int error);

/* A stream by its handle, NULL if there is none. */
struct stream *ref_stream(cudaStream_t handle);

/* Puts an operation, which it takes, behind all others of a stream; of one that is captured, into
 * the graph. */
int ref_enqueue(cudaStream_t handle, struct operation *operation, struct stream **in);

/* Operations, checked as at a call; 0 or a result. graph: they take no bytes now. */
int ref_copy_operation(const struct wh_cuda_copy *copy, struct operation **operation);
int ref_fill_operation(const struct wh_cuda_fill *fill, struct operation **operation);
int ref_launch_operation(const void *function, const struct wh_cuda_launch *how, void **arguments,
                         struct operation **operation);
struct operation *ref_function_operation(void *function, void *data);

struct operation *ref_copy_of(const struct operation *operation);
void ref_drop(struct operation *operation);

/* A new node behind the latest one of what is captured. */
int ref_capture(struct stream *stream, struct operation *operation);
/* Two branches of what is captured come together in a stream. */
void ref_join(struct stream *stream, struct ref_node *other);
/* No stream is captured into the graph any more. */
void ref_end_capture(const struct ref_graph *graph);

#endif
