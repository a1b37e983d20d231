/*
 * wh_cublaslt_sizes.h - the plain bytes that cuBLASLt's descriptors are; for both sides.
 */
#ifndef WH_CUBLASLT_SIZES_H
#define WH_CUBLASLT_SIZES_H

#include <stddef.h>
#include <stdint.h>

#define WH_LT_DESCRIPTOR_BYTES_MAX ((size_t)256) /* the largest there is */
#define WH_LT_ATTRIBUTE_BYTES_MAX ((size_t)512)
#define WH_LT_ALGO_BYTES ((size_t)64)
#define WH_LT_HEURISTIC_BYTES ((size_t)96) /* cublasLtMatmulHeuristicResult_t */
#define WH_LT_ALGOS_MAX 1024

/* Attributes of a product of matrices that say where alpha and beta lie and what they are. */
#define WH_LT_SCALE_TYPE 1
#define WH_LT_POINTER_MODE 2

/* The same of a transformation. */
#define WH_LT_TRANSFORM_SCALE_TYPE 0
#define WH_LT_TRANSFORM_POINTER_MODE 1

enum wh_lt_mode {
    WH_LT_HOST = 0,
    WH_LT_DEVICE = 1,
    WH_LT_DEVICE_VECTOR = 2,
    WH_LT_ALPHA_VECTOR_BETA_ZERO = 3,
    WH_LT_ALPHA_VECTOR_BETA_HOST = 4,
};

#endif
