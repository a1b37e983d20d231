/*
 * opencl_program.c - skeletons of programs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "opencl_backend.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define KERNELS_MAX 65536u

int wh_skeleton_clCreateProgramWithSource(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_program program = NULL;
    size_t size = 0;
    uint64_t handle = wh_take_u64(request);
    cl_context context = wh_cl_object(request, handle, WH_KIND_CONTEXT, &error);
    const char *text = wh_take_blob(request, &size, WH_CL_BLOB_BYTES_MAX);
    uint64_t created = wh_take_u64(request);
    if (wh_request_failed(request) || text == NULL) {
        return -EBADMSG;
    }
    if (size == 0) {
        text = ""; /* a length of 0 would mean a text with an end of its own */
    }
    if (error == CL_SUCCESS) {
        program = wh_cl->clCreateProgramWithSource(context, 1, &text, &size, &error);
    }
    error = wh_cl_register(request, created, WH_KIND_PROGRAM, program, error);
    wh_cl_reply_error(request, WH_OP_clCreateProgramWithSource, error);
    return 0;
}

int wh_skeleton_clCreateProgramWithBinary(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_program program = NULL;
    cl_uint count = 0;
    const unsigned char *binaries[WH_CL_DEVICES_MAX];
    size_t lengths[WH_CL_DEVICES_MAX];
    cl_int results[WH_CL_DEVICES_MAX] = {0};
    size_t capacity = 0;
    uint64_t handle = wh_take_u64(request);
    cl_context context = wh_cl_object(request, handle, WH_KIND_CONTEXT, &error);
    const cl_device_id *devices = (void *)wh_cl_objects(request, WH_KIND_DEVICE, &count, &error);
    if (wh_request_failed(request) || count == 0 || count > WH_CL_DEVICES_MAX) {
        return -EBADMSG;
    }
    for (cl_uint i = 0; i < count; i++) {
        binaries[i] = wh_take_blob(request, &lengths[i], WH_CL_BLOB_BYTES_MAX);
    }
    uint64_t created = wh_take_u64(request);
    cl_int *status = wh_take_out(request, &capacity);
    if (wh_request_failed(request) || (status != NULL && capacity < count * sizeof(*status))) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        program = wh_cl->clCreateProgramWithBinary(context, count, devices, lengths, binaries,
                                                   results, &error);
    }
    error = wh_cl_register(request, created, WH_KIND_PROGRAM, program, error);
    if (status != NULL) {
        memcpy(status, results, count * sizeof(*status));
    }
    wh_cl_reply_error(request, WH_OP_clCreateProgramWithBinary, error);
    wh_reply_out(request, status == NULL ? 0 : count * sizeof(*status));
    return 0;
}

/* The same program with the client's headers in its source, which it had to read itself. */
static cl_int replace_source(struct wh_request *request, uint64_t handle, cl_program *program,
                             const char *source, size_t source_bytes)
{
    cl_context context = NULL;
    cl_int error =
        wh_cl->clGetProgramInfo(*program, CL_PROGRAM_CONTEXT, sizeof(context), &context, NULL);
    if (error != CL_SUCCESS) {
        return error;
    }
    cl_program expanded =
        wh_cl->clCreateProgramWithSource(context, 1, &source, &source_bytes, &error);
    if (error != CL_SUCCESS) {
        return error;
    }
    (void)wh_handle_remove(request->session, handle, WH_KIND_PROGRAM);
    wh_cl->clReleaseProgram(*program);
    *program = expanded;
    return wh_cl_register(request, handle, WH_KIND_PROGRAM, expanded, CL_SUCCESS);
}

int wh_skeleton_clBuildProgram(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_uint count = 0;
    size_t options_bytes = 0;
    size_t source_bytes = 0;
    uint64_t handle = wh_take_u64(request);
    cl_program program = wh_cl_object(request, handle, WH_KIND_PROGRAM, &error);
    const cl_device_id *devices = (void *)wh_cl_objects(request, WH_KIND_DEVICE, &count, &error);
    const char *options = wh_take_blob(request, &options_bytes, WH_CL_BLOB_BYTES_MAX);
    const char *source = wh_take_blob(request, &source_bytes, WH_CL_BLOB_BYTES_MAX);
    if (wh_request_failed(request) || !wh_cl_string_ends(options, options_bytes)) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS && program != NULL && source != NULL && source_bytes > 0) {
        error = replace_source(request, handle, &program, source, source_bytes);
    }
    if (error == CL_SUCCESS) {
        wh_block_begin(request->session);
        error = wh_cl->clBuildProgram(program, count, devices, options, NULL, NULL);
        wh_block_end(request->session);
    }
    wh_cl_reply_error(request, WH_OP_clBuildProgram, error);
    return 0;
}

/* Binaries into the areas that the client made for them. */
static cl_int get_binaries(cl_program program, size_t count, void *const *areas,
                           const size_t *capacities, size_t *sizes)
{
    unsigned char *binaries[WH_CL_DEVICES_MAX] = {NULL};
    size_t found_bytes = 0;
    cl_int error = wh_cl->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES,
                                           WH_CL_DEVICES_MAX * sizeof(size_t), sizes, &found_bytes);
    if (error != CL_SUCCESS) {
        return error;
    }
    if (found_bytes != count * sizeof(size_t)) {
        return CL_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        if (areas[i] != NULL && capacities[i] < sizes[i]) {
            return CL_INVALID_VALUE;
        }
        binaries[i] = areas[i];
    }
    return wh_cl->clGetProgramInfo(program, CL_PROGRAM_BINARIES, count * sizeof(binaries[0]),
                                   binaries, NULL);
}

static int reply_binaries(struct wh_request *request, cl_program program, cl_int error,
                          uint64_t count)
{
    void *areas[WH_CL_DEVICES_MAX];
    size_t capacities[WH_CL_DEVICES_MAX];
    size_t sizes[WH_CL_DEVICES_MAX] = {0};
    if (count > WH_CL_DEVICES_MAX) {
        return -EBADMSG;
    }
    for (uint64_t i = 0; i < count; i++) {
        areas[i] = wh_take_out(request, &capacities[i]);
    }
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        error = get_binaries(program, count, areas, capacities, sizes);
    }
    wh_cl_reply_error(request, WH_OP_clGetProgramInfo, error);
    for (uint64_t i = 0; i < count; i++) {
        wh_reply_out(request, error == CL_SUCCESS && areas[i] != NULL ? sizes[i] : 0);
    }
    return 0;
}

int wh_skeleton_clGetProgramInfo(struct wh_request *request)
{
    static const cl_uint opaque[] = {CL_PROGRAM_CONTEXT, CL_PROGRAM_DEVICES, CL_PROGRAM_BINARIES};
    cl_int error = CL_SUCCESS;
    size_t value_bytes = 0;
    size_t size_ret_bytes = 0;
    size_t written = 0;
    uint64_t handle = wh_take_u64(request);
    cl_program program = wh_cl_object(request, handle, WH_KIND_PROGRAM, &error);
    cl_program_info param = (cl_program_info)wh_take_u64(request);
    uint64_t size = wh_take_u64(request);
    if (param == CL_PROGRAM_BINARIES && size > 0) {
        return reply_binaries(request, program, error, size);
    }
    void *value = wh_take_out(request, &value_bytes);
    size_t *size_ret = wh_take_out(request, &size_ret_bytes);
    if (wh_request_failed(request) || (value != NULL && value_bytes < size) ||
        (size_ret != NULL && size_ret_bytes < sizeof(*size_ret))) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl->clGetProgramInfo(program, param, size, value, &written);
    }
    if (error == CL_SUCCESS) {
        wh_cl_hide(param, opaque, sizeof(opaque) / sizeof(opaque[0]), value, written);
        if (size_ret != NULL) {
            *size_ret = written;
        }
    }
    wh_cl_reply_error(request, WH_OP_clGetProgramInfo, error);
    wh_reply_out(request, value == NULL || error != CL_SUCCESS ? 0 : written);
    wh_reply_out(request, size_ret == NULL || error != CL_SUCCESS ? 0 : sizeof(*size_ret));
    return 0;
}

int wh_skeleton_clCreateKernelsInProgram(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_uint count = 0;
    size_t handles_bytes = 0;
    uint64_t handle = wh_take_u64(request);
    cl_program program = wh_cl_object(request, handle, WH_KIND_PROGRAM, &error);
    const uint64_t *handles = wh_take_blob(request, &handles_bytes, KERNELS_MAX * sizeof(uint64_t));
    cl_uint wanted = (cl_uint)(handles_bytes / sizeof(uint64_t));
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    cl_kernel *kernels = wanted > 0 ? calloc(wanted, sizeof(*kernels)) : NULL;
    if (wanted > 0 && kernels == NULL) {
        error = CL_OUT_OF_HOST_MEMORY;
    }
    if (error == CL_SUCCESS) {
        error = wh_cl->clCreateKernelsInProgram(program, wanted, kernels, &count);
    }
    for (cl_uint i = 0; i < wanted && i < count && error == CL_SUCCESS; i++) {
        error = wh_cl_register(request, handles[i], WH_KIND_KERNEL, kernels[i], error);
    }
    free(kernels);
    wh_cl_reply_error(request, WH_OP_clCreateKernelsInProgram, error);
    wh_reply_u64(request, error == CL_SUCCESS ? count : 0);
    return 0;
}
