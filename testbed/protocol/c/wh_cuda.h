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

/* What a launch sends of its geometry. */
struct wh_cuda_geometry {
    struct wh_dim3 grid;
    struct wh_dim3 block;
    uint64_t shared_bytes;
};

/* Where both sides tell each other how far a host function in a stream is. */
struct wh_cuda_cell {
    uint32_t state;
    uint32_t pad;
};
#define WH_CUDA_CELL_FREE 0u
#define WH_CUDA_CELL_TAKEN 1u /* by the client */
#define WH_CUDA_CELL_DUE 2u   /* worker: the stream has come to it and waits */
#define WH_CUDA_CELL_RUN 3u   /* client: it has run; the worker frees the cell and goes on */

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

#endif
