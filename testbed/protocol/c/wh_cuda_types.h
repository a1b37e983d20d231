/*
 * wh_cuda_types.h - sizes of numbers by cudaDataType.
 */
#ifndef WH_CUDA_TYPES_H
#define WH_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of one number, two of them for the complex ones; 0 if it is smaller than a byte or unknown.
 */
static inline size_t wh_cuda_type_bytes(int type)
{
    static const uint8_t bytes[] = {
        [0] = 4,  [1] = 8,  [2] = 2,  [3] = 1,   [4] = 8,  [5] = 16,  [6] = 4,  [7] = 2,  [8] = 1,
        [9] = 2,  [10] = 4, [11] = 8, [12] = 4,  [13] = 8, [14] = 2,  [15] = 4, [20] = 2, [21] = 4,
        [22] = 2, [23] = 4, [24] = 8, [25] = 16, [26] = 8, [27] = 16, [28] = 1, [29] = 1, [30] = 1,
    };
    return type >= 0 && (size_t)type < sizeof(bytes) ? bytes[type] : 0;
}

#endif
