/*
 * cuda_cudnn.h - descriptors of cuDNN that come as values (cuda_content.c).
 */
#ifndef WH_CUDA_CUDNN_H
#define WH_CUDA_CUDNN_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_scalar.h"
#include "wh_cudnn.h"

struct wh_request;
struct wh_cudnn_table;

const struct wh_cudnn_table *wh_cudnn(void);

/* A descriptor with the values that came; NULL for NULL, or with *valid false. It is the request's
 * until wh_cudnn_end. */
void *wh_cudnn_take(struct wh_request *request, unsigned kind, uint64_t *status, bool *valid);

/* Gives back what the thread's request has taken. */
void wh_cudnn_end(void);

/* Answers whether the library accepts the values that came. */
int wh_cudnn_check(struct wh_request *request, uint16_t opcode, unsigned kind);

/* cuDNN reads scalars from the host's memory alone. */
bool wh_cudnn_placed(const struct wh_cudnn_table *real, cudnnHandle_t handle, unsigned places);

/* Dropout without memory for states, which is only a value. */
uint64_t wh_cudnn_apply_dropout(struct wh_request *request, void *descriptor);

/* Generated: applies one setter; makes and destroys a descriptor of a kind. */
uint64_t wh_cudnn_apply(unsigned kind, uint16_t opcode, struct wh_request *request,
                        void *descriptor);
uint64_t wh_cudnn_make(unsigned kind, void **descriptor);
void wh_cudnn_unmake(unsigned kind, void *descriptor);

#endif
