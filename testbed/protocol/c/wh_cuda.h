/*
 * wh_cuda.h - structures of CUDA's that are passed by value or taken apart here, as the binary
 * interface has them. No header of the vendor's is needed to build.
 */
#ifndef WH_CUDA_H
#define WH_CUDA_H

#include <stddef.h>
#include <stdint.h>

struct wh_dim3 {
    unsigned x, y, z;
};

/* cudaLaunchAttribute: what kind, and its value. */
struct wh_cuda_attribute {
    int id;
    char pad[4];
    char value[64];
};
#define WH_CUDA_ATTRIBUTE_COOPERATIVE 2
#define WH_CUDA_ATTRIBUTES_MAX 16u

/* cudaLaunchConfig_t */
struct wh_cuda_launch {
    struct wh_dim3 grid;
    struct wh_dim3 block;
    size_t shared_bytes;
    void *stream;
    struct wh_cuda_attribute *attributes;
    unsigned attribute_count;
};

/* cudaPointerAttributes */
struct wh_cuda_pointer {
    int type; /* 0 unknown, 1 host, 2 device */
    int device;
    void *device_pointer;
    void *host_pointer;
    long reserved[8];
};

/* cudaPitchedPtr, cudaExtent, cudaPos */
struct wh_cuda_pitched {
    void *pointer;
    size_t pitch;
    size_t width;
    size_t height; /* rows of a slice */
};
struct wh_cuda_extent {
    size_t width, height, depth;
};
struct wh_cuda_position {
    size_t x, y, z;
};

/* cudaMemcpy3DParms; arrays are not forwarded. */
struct wh_cuda_copy {
    void *src_array;
    struct wh_cuda_position src_at;
    struct wh_cuda_pitched src;
    void *dst_array;
    struct wh_cuda_position dst_at;
    struct wh_cuda_pitched dst;
    struct wh_cuda_extent extent;
    int kind;
    char pad[4];
};

/* cudaMemsetParams */
struct wh_cuda_fill {
    void *dst;
    size_t pitch;
    unsigned value;
    unsigned element_bytes;
    size_t width; /* elements */
    size_t height;
};

/* cudaHostNodeParams */
struct wh_cuda_host_node {
    void *function;
    void *data;
};

/* cudaKernelNodeParams */
struct wh_cuda_kernel_node {
    void *function;
    struct wh_dim3 grid;
    struct wh_dim3 block;
    unsigned shared_bytes;
    void **arguments;
    void **extra;
};

/* cudaGraphExecUpdateResultInfo */
struct wh_cuda_update {
    int result;
    void *node;
    void *from_node;
};

/* cudaGraphInstantiateParams */
struct wh_cuda_instantiation {
    unsigned long long flags;
    void *upload_stream;
    void *error_node;
    int result;
};

/* What whcListNodes lists. */
enum {
    WH_CUDA_LIST_NODES,
    WH_CUDA_LIST_ROOTS,
    WH_CUDA_LIST_DEPENDENCIES,
    WH_CUDA_LIST_DEPENDENTS,
    WH_CUDA_LIST_EDGES, /* where they begin, then where they end */
};
#define WH_CUDA_LIST_MAX 65536u

/* Whether a copy in a graph has a host function beside it that moves the client's bytes: before it
 * to where it copies from, or behind it from where it copies to. */
enum { WH_CUDA_COPY_ALONE, WH_CUDA_COPY_MOVED_IN, WH_CUDA_COPY_MOVED_OUT };

/* What a launch sends of its geometry. */
struct wh_cuda_geometry {
    struct wh_dim3 grid;
    struct wh_dim3 block;
    uint64_t shared_bytes;
};

/* What a tensor map is made of: the arguments of cuTensorMapEncodeTiled or -Im2col. */
#define WH_CUDA_TENSOR_MAP_BYTES 128u
#define WH_CUDA_TENSOR_RANK_MAX 5u
#define WH_CUDA_TENSOR_TILED 0u
#define WH_CUDA_TENSOR_IM2COL 1u
struct wh_cuda_tensor_map {
    uint64_t address;
    uint64_t sizes[WH_CUDA_TENSOR_RANK_MAX];
    uint64_t strides[WH_CUDA_TENSOR_RANK_MAX]; /* one less than there are sizes */
    uint32_t box[WH_CUDA_TENSOR_RANK_MAX];     /* tiled */
    uint32_t steps[WH_CUDA_TENSOR_RANK_MAX];
    int32_t lower[WH_CUDA_TENSOR_RANK_MAX - 2]; /* im2col */
    int32_t upper[WH_CUDA_TENSOR_RANK_MAX - 2];
    uint32_t channels;
    uint32_t columns;
    uint32_t form;
    uint32_t type;
    uint32_t rank;
    uint32_t interleave;
    uint32_t swizzle;
    uint32_t promotion;
    uint32_t fill;
    uint32_t pad;
};
_Static_assert(sizeof(struct wh_cuda_tensor_map) == 192, "wh_cuda_tensor_map");

/* Where both sides tell each other how far a host function in a stream is. */
struct wh_cuda_cell {
    uint32_t state;
    uint32_t pad;
};
#define WH_CUDA_CELL_FREE 0u
#define WH_CUDA_CELL_TAKEN 1u /* by the client */
#define WH_CUDA_CELL_DUE 2u   /* worker: the stream has come to it and waits */
#define WH_CUDA_CELL_RUN 3u   /* client: it has run; the worker frees the cell and goes on */
/* Of a function in a graph, which runs at each launch of it: */
#define WH_CUDA_CELL_AGAIN 4u /* worker: as due; once it has run the cell is the client's again */
#define WH_CUDA_CELL_ENDED 5u /* worker: nothing can come to it any more; the client frees it */

#define WH_CUDA_FUNCTION_BYTES 144u /* cudaFuncAttributes */
#define WH_CUDA_PROPERTIES_BYTES 1008u
#define WH_CUDA_PARAMETERS_MAX 1024u
#define WH_CUDA_PARAMETER_BYTES_MAX 32764u
#define WH_CUDA_IMAGE_BYTES_MAX (1ull << 30)
/* Smaller code is sent at once: asking for it takes longer than its bytes. */
#define WH_CUDA_NAMED_BYTES_MIN (16u << 10)
#define WH_CUDA_NAME_BYTES_MAX 16384u
#define WH_CUDA_BLOB_BYTES_MAX (16u << 20)

/* Where one parameter of a kernel lies. */
struct wh_cuda_parameter {
    uint32_t offset;
    uint32_t size_bytes;
};

_Static_assert(sizeof(struct wh_cuda_attribute) == 72, "cudaLaunchAttribute");
_Static_assert(sizeof(struct wh_cuda_launch) == 56, "cudaLaunchConfig_t");
_Static_assert(sizeof(struct wh_cuda_pointer) == 88, "cudaPointerAttributes");
_Static_assert(sizeof(struct wh_cuda_geometry) == 32, "wh_cuda_geometry");
_Static_assert(sizeof(struct wh_cuda_copy) == 160, "cudaMemcpy3DParms");
_Static_assert(sizeof(struct wh_cuda_fill) == 40, "cudaMemsetParams");
_Static_assert(sizeof(struct wh_cuda_kernel_node) == 56, "cudaKernelNodeParams");
_Static_assert(sizeof(struct wh_cuda_update) == 24, "cudaGraphExecUpdateResultInfo");
_Static_assert(sizeof(struct wh_cuda_instantiation) == 32, "cudaGraphInstantiateParams");

#endif
