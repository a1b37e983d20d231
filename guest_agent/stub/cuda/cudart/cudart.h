/*
 * cudart.h - what the hand-written stubs of the CUDA runtime share: images, kernels, variables.
 */
#ifndef WH_STUB_CUDART_H
#define WH_STUB_CUDART_H

#include "cuda.h"
#include "wh_cudart.h"
#include "wh_wire.h"

extern const struct wh_cuda_api wh_cudart_api;

/* A binary that the compiler put into the program. It crosses when something of it is first used.
 */
struct wh_image;

#define WH_KERNEL_MAGIC 0x4b4e524cu

struct wh_kernel {
    uint32_t magic;
    uint32_t loaded; /* serial of the session that knows it; the rest is valid then */
    const void *function;
    const char *name;
    struct wh_image *image;
    struct wh_kernel *next; /* of its image */
    uint64_t handle;
    uint32_t parameter_count;
    uint32_t parameter_bytes;
    struct wh_cuda_parameter *parameters;
    uint8_t attributes[WH_CUDA_FUNCTION_BYTES];
    bool attributes_known;
    uint32_t settings_known; /* bits: attributes that were set */
    int settings[16];
};

/* The kernel that a host function, or a cudaKernel_t of ours, stands for; NULL if none. */
struct wh_kernel *wh_kernel_find(const void *function);

/* The same, known to the server; a result of the API's if that fails. */
int wh_kernel_get(const void *function, struct wh_kernel **kernel);

/* An image that the program has loaded itself, from a copy of its bytes: code of any form that the
 * driver takes. 0, or a result of the API's. */
int wh_image_new(const void *code, struct wh_image **image);
int wh_image_end(struct wh_image *image);

/* A kernel or a variable of it by its own name; known to the server. */
int wh_image_kernel(struct wh_image *image, const char *name, struct wh_kernel **kernel);
int wh_image_variable(struct wh_image *image, const char *name, void **address, size_t *size_bytes);

/* Address and size of a device variable by its host shadow. */
int wh_variable_get(const void *symbol, void **address, size_t *size_bytes);

/* Whether this process has begun captures and not ended them. */
bool wh_capturing(void);

/* Whether what this stream is given becomes part of a graph. */
bool wh_stream_captures(void *stream);

/* The node is one of the graph's and ends with it. */
void wh_graph_keeps(uint64_t node, cudaGraph_t graph);

/*
 * Host functions. In a stream that is captured, and in a graph, a function runs at each launch;
 * once nothing can come to it any more, ended(data) is called in the thread that runs them, which
 * must not make calls that wait for the device.
 */
int wh_host_function_enqueue(void *stream, void (*function)(void *data), void *data,
                             void (*ended)(void *data));
/* One for a graph: its number and where both sides tell of it. drop: the worker has not taken it.
 */
int wh_host_function_new(void (*function)(void *data), void *data, void (*ended)(void *data),
                         uint64_t *id, uint64_t *cell);
void wh_host_function_drop(uint64_t id);
/* A graph was launched: whoever runs them looks more often. */
void wh_host_functions_expected(void);

/* Whether the address is the client's alone: copies of it are the stub's work. */
bool wh_is_client_memory(const void *pointer);

/* A copy of the client's memory that a graph makes at each launch, by way of pinned memory. */
struct wh_mover;
/* out: from the pinned memory to the client's, which is at dst in the copy, else at src. NULL: no
 * memory, or none that both sides know by one address. */
struct wh_mover *wh_mover_new(const struct wh_cuda_copy *copy, bool out);
void *wh_mover_bytes(const struct wh_mover *mover);
void wh_mover_run(void *mover);
void wh_mover_end(void *mover);

/* The parameters of a launch, by the kernel's layout. */
void wh_put_parameters(struct wh_call *call, const struct wh_kernel *kernel, void **arguments);

/* The stream was waited for, in the calling thread, and nothing has been sent since. */
void wh_stream_settled(const void *stream);

/* memcpy; streams: past the caches, for what is much larger than they are. */
void wh_copy_bytes(void *dst, const void *src, size_t size_bytes, bool streams);

/* Copies with two threads, between which one caller at a time stands. begin: false, there are none
 * to spare; it stays ready for a few milliseconds after the last copy. */
bool wh_halves_begin(void);
void wh_halves_copy(void *dst, const void *src, size_t size_bytes, bool streams);

/* A copy by where its ends lie; stream as in messages. sync: complete when it returns. */
int wh_copy(void *dst, const void *src, size_t count, int kind, void *stream, bool sync);

/* Where a copy in three dimensions begins on one of its sides. */
static inline char *wh_cuda_first_byte(const struct wh_cuda_pitched *of,
                                       const struct wh_cuda_position *at)
{
    return (char *)of->pointer + (at->z * of->height + at->y) * of->pitch + at->x;
}

#endif
