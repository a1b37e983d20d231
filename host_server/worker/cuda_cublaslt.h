/*
 * cuda_cublaslt.h - the table of cuBLASLt.
 */
#ifndef WH_CUDA_CUBLASLT_H
#define WH_CUDA_CUBLASLT_H

#include "wh_cublaslt.h"

const struct wh_cublaslt_table *wh_cublaslt(void);

#endif
