/*
 * opencl_launch.c - skeletons of kernel arguments and launches.
 */
#include <errno.h>
#include <string.h>

#include "opencl_backend.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define DIMENSIONS_MAX 3u
#define ARGUMENTS_BYTES_MAX ((size_t)1 << 20)

/* How an argument crosses; the stub has the same list (launch.c). */
enum sort {
    SORT_BYTES = 1,
    SORT_HANDLE = 2,
    SORT_LOCAL = 3,
};

/* An argument that is a handle: whatever kind of object may be one. */
static cl_int set_handle(struct wh_request *request, cl_kernel kernel, cl_uint index,
                         uint64_t handle)
{
    cl_int error = CL_SUCCESS;
    uint8_t kind = (uint8_t)(handle >> 56);
    if (kind != WH_KIND_MEM && kind != WH_KIND_SAMPLER && kind != WH_KIND_QUEUE) {
        return CL_INVALID_ARG_VALUE;
    }
    void *object = wh_cl_object(request, handle, kind, &error);
    return error != CL_SUCCESS ? error
                               : wh_cl->clSetKernelArg(kernel, index, sizeof(object), &object);
}

static cl_int set_argument(struct wh_request *request, cl_kernel kernel, cl_uint index,
                           uint64_t sort, size_t size, const void *bytes)
{
    uint64_t handle = 0;
    if (sort == SORT_LOCAL) {
        return wh_cl->clSetKernelArg(kernel, index, size, NULL);
    }
    if (sort == SORT_BYTES) {
        return wh_cl->clSetKernelArg(kernel, index, size, bytes);
    }
    memcpy(&handle, bytes, sizeof(handle));
    return set_handle(request, kernel, index, handle);
}

int wh_skeleton_clSetKernelArg(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    size_t bytes_size = 0;
    uint64_t handle = wh_take_u64(request);
    cl_kernel kernel = wh_cl_object(request, handle, WH_KIND_KERNEL, &error);
    cl_uint index = (cl_uint)wh_take_u64(request);
    uint64_t sort = wh_take_u64(request);
    size_t size = wh_take_u64(request);
    const void *bytes = wh_take_blob(request, &bytes_size, ARGUMENTS_BYTES_MAX);
    size_t needed = sort == SORT_BYTES ? size : sort == SORT_HANDLE ? sizeof(uint64_t) : 0;
    if (wh_request_failed(request) || sort < SORT_BYTES || sort > SORT_LOCAL ||
        bytes_size < needed || (sort != SORT_LOCAL && bytes == NULL)) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        error = set_argument(request, kernel, index, sort, size, bytes);
    }
    wh_cl_reply_error(request, WH_OP_clSetKernelArg, error);
    return 0;
}

/* One item of a packed list: this header, then the bytes, padded to 8. */
struct packed_argument {
    uint32_t index;
    uint32_t sort;
    uint64_t size;
};

/* Walks a packed list; with a kernel it sets the arguments, without it only checks. False:
 * malformed. */
static bool walk_arguments(struct wh_request *request, cl_kernel kernel, const uint8_t *bytes,
                           size_t size_bytes, cl_int *error)
{
    size_t used = 0;
    while (used < size_bytes) {
        struct packed_argument header;
        if (size_bytes - used < sizeof(header)) {
            return false;
        }
        memcpy(&header, bytes + used, sizeof(header));
        used += sizeof(header);
        uint64_t needed = header.sort == SORT_BYTES ? header.size : sizeof(uint64_t);
        if (header.sort < SORT_BYTES || header.sort > SORT_LOCAL || needed > size_bytes - used ||
            ((needed + 7) & ~(uint64_t)7) > size_bytes - used) {
            return false;
        }
        if (kernel != NULL && *error == CL_SUCCESS) {
            *error =
                set_argument(request, kernel, header.index, header.sort, header.size, bytes + used);
        }
        used += (needed + 7) & ~(uint64_t)7;
    }
    return true;
}

struct launch {
    cl_command_queue queue;
    cl_kernel kernel;
    const uint8_t *arguments;
    size_t arguments_bytes;
    cl_uint dimensions;
    uint64_t given;
    size_t offset[DIMENSIONS_MAX];
    size_t global[DIMENSIONS_MAX];
    size_t local[DIMENSIONS_MAX];
    cl_uint wait_count;
    cl_event *wait_list;
    uint64_t created;
    cl_int error;
};

static void take_sizes(struct wh_request *request, size_t *sizes, cl_uint count)
{
    for (cl_uint i = 0; i < count; i++) {
        sizes[i] = wh_take_u64(request);
    }
}

static void take_launch(struct wh_request *request, struct launch *launch)
{
    memset(launch, 0, sizeof(*launch));
    uint64_t queue = wh_take_u64(request);
    uint64_t kernel = wh_take_u64(request);
    launch->queue = wh_cl_object(request, queue, WH_KIND_QUEUE, &launch->error);
    launch->kernel = wh_cl_object(request, kernel, WH_KIND_KERNEL, &launch->error);
    launch->arguments = wh_take_blob(request, &launch->arguments_bytes, ARGUMENTS_BYTES_MAX);
    launch->dimensions = (cl_uint)wh_take_u64(request);
    launch->given = wh_take_u64(request);
    cl_uint sent = launch->dimensions <= DIMENSIONS_MAX ? launch->dimensions : 0;
    take_sizes(request, launch->offset, sent);
    take_sizes(request, launch->global, sent);
    take_sizes(request, launch->local, sent);
    launch->wait_list =
        (void *)wh_cl_objects(request, WH_KIND_EVENT, &launch->wait_count, &launch->error);
    launch->created = wh_take_u64(request);
}

static cl_int run(struct wh_request *request, struct launch *launch, uint16_t opcode)
{
    cl_event event = NULL;
    cl_event *wanted = launch->created == 0 ? NULL : &event;
    cl_int error = launch->error;
    if (error == CL_SUCCESS) {
        (void)walk_arguments(request, launch->kernel, launch->arguments, launch->arguments_bytes,
                             &error);
    }
    if (error == CL_SUCCESS && opcode == WH_OP_clEnqueueTask) {
        error = wh_cl->clEnqueueTask(launch->queue, launch->kernel, launch->wait_count,
                                     launch->wait_list, wanted);
    } else if (error == CL_SUCCESS) {
        error = wh_cl->clEnqueueNDRangeKernel(launch->queue, launch->kernel, launch->dimensions,
                                              (launch->given & 1u) != 0 ? launch->offset : NULL,
                                              (launch->given & 2u) != 0 ? launch->global : NULL,
                                              (launch->given & 4u) != 0 ? launch->local : NULL,
                                              launch->wait_count, launch->wait_list, wanted);
    }
    return wh_cl_register(request, launch->created, WH_KIND_EVENT, event, error);
}

static int launch_kernel(struct wh_request *request, uint16_t opcode)
{
    struct launch launch;
    cl_int unused = CL_SUCCESS;
    take_launch(request, &launch);
    if (wh_request_failed(request) ||
        !walk_arguments(request, NULL, launch.arguments, launch.arguments_bytes, &unused)) {
        return -EBADMSG;
    }
    wh_cl_reply_error(request, opcode, run(request, &launch, opcode));
    return 0;
}

int wh_skeleton_clEnqueueNDRangeKernel(struct wh_request *request)
{
    return launch_kernel(request, WH_OP_clEnqueueNDRangeKernel);
}

int wh_skeleton_clEnqueueTask(struct wh_request *request)
{
    return launch_kernel(request, WH_OP_clEnqueueTask);
}
