/*
 * backend_cuda.c - a worker for CUDA alone: its libraries are loaded when they are first called.
 */
#include "backend.h"

#include <errno.h>
#include <stdio.h>

#include "cuda_backend.h"
#include "wh_skeleton_parts.h"

#define FIRST_OPCODE 0x200u /* of CUDA's libraries */

static int cuda_init(struct wh_session *session, char *error, size_t error_bytes)
{
    (void)session;
    if (wh_cudart() == NULL) {
        snprintf(error, error_bytes, "no CUDA runtime (libcudart.so.13): %s",
                 "give its directory with --cuda-libraries");
        return -ENOENT;
    }
    return 0;
}

static int cuda_dispatch(uint16_t opcode, struct wh_request *request)
{
    return opcode < FIRST_OPCODE ? wh_dispatch_core(opcode, request)
                                 : wh_dispatch_cuda_all(opcode, request);
}

const struct wh_backend wh_backend_cuda = {
    .name = "cuda", .init = cuda_init, .dispatch = cuda_dispatch};
