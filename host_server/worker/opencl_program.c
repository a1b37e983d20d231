/*
 * opencl_program.c - skeletons of programs.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "opencl_backend.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define KERNELS_MAX 65536u
#define NOTICE_LIMIT_S 600 /* for the callback of a build */

/* Shared by the call that waits and the backend that notifies: whoever is last frees it. */
struct wh_cl_notice {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool came;
    bool abandoned;
};

struct wh_cl_notice *wh_cl_notice_new(bool wanted, cl_int *error)
{
    if (!wanted || *error != CL_SUCCESS) {
        return NULL;
    }
    struct wh_cl_notice *notice = calloc(1, sizeof(*notice));
    if (notice == NULL) {
        *error = CL_OUT_OF_HOST_MEMORY;
        return NULL;
    }
    pthread_mutex_init(&notice->lock, NULL);
    pthread_cond_init(&notice->changed, NULL);
    return notice;
}

void CL_CALLBACK wh_cl_notify(cl_program program, void *data)
{
    struct wh_cl_notice *notice = data;
    (void)program;
    pthread_mutex_lock(&notice->lock);
    bool abandoned = notice->abandoned;
    notice->came = true;
    pthread_cond_signal(&notice->changed);
    pthread_mutex_unlock(&notice->lock);
    if (abandoned) {
        free(notice);
    }
}

/* A build that began ends with its callback; one that was refused has called it by now or never
 * will. */
void wh_cl_notice_wait(struct wh_cl_notice *notice, cl_int error)
{
    struct timespec until;
    if (notice == NULL || error != CL_SUCCESS) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += NOTICE_LIMIT_S;
    pthread_mutex_lock(&notice->lock);
    while (!notice->came &&
           pthread_cond_timedwait(&notice->changed, &notice->lock, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&notice->lock);
}

bool wh_cl_notice_end(struct wh_cl_notice *notice)
{
    if (notice == NULL) {
        return false;
    }
    pthread_mutex_lock(&notice->lock);
    bool came = notice->came;
    notice->abandoned = true;
    pthread_mutex_unlock(&notice->lock);
    if (came) {
        free(notice);
    }
    return came;
}

int wh_skeleton_clCreateProgramWithSource(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_program program = NULL;
    size_t size = 0;
    uint64_t handle = wh_take_u64(request);
    cl_context context = wh_cl_object(request, handle, WH_KIND_CONTEXT, &error);
    void *owned = NULL;
    const char *text = wh_take_large(request, &size, WH_CL_BLOB_BYTES_MAX, &owned);
    uint64_t created = wh_take_u64(request);
    if (wh_request_failed(request) || text == NULL) {
        free(owned);
        return -EBADMSG;
    }
    if (size == 0) {
        text = ""; /* a length of 0 would mean a text with an end of its own */
    }
    if (error == CL_SUCCESS) {
        program = wh_cl->clCreateProgramWithSource(context, 1, &text, &size, &error);
    }
    free(owned);
    error = wh_cl_register(request, created, WH_KIND_PROGRAM, program, error);
    wh_cl_reply_error(request, WH_OP_clCreateProgramWithSource, error);
    return 0;
}

/* Where each device's binary lies in the bytes of all; false if they are not all there. */
static bool find_binaries(const uint8_t *bytes, size_t size_bytes, const uint64_t *sizes,
                          cl_uint count, const unsigned char **binaries, size_t *lengths)
{
    for (cl_uint i = 0; i < count; i++) {
        if (sizes[i] > size_bytes) {
            return false;
        }
        binaries[i] = bytes;
        lengths[i] = sizes[i];
        bytes += sizes[i];
        size_bytes -= sizes[i];
    }
    return true;
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
    size_t sizes_bytes = 0;
    size_t bytes = 0;
    uint64_t handle = wh_take_u64(request);
    cl_context context = wh_cl_object(request, handle, WH_KIND_CONTEXT, &error);
    const cl_device_id *devices = (void *)wh_cl_objects(request, WH_KIND_DEVICE, &count, &error);
    const uint64_t *sizes = wh_take_blob(request, &sizes_bytes, sizeof(lengths));
    void *owned = NULL;
    const uint8_t *all = wh_take_large(request, &bytes, WH_CL_BLOB_BYTES_MAX, &owned);
    uint64_t created = wh_take_u64(request);
    cl_int *status = wh_take_out(request, &capacity);
    if (wh_request_failed(request) || count == 0 || count > WH_CL_DEVICES_MAX || sizes == NULL ||
        all == NULL || sizes_bytes != count * sizeof(*sizes) ||
        (status != NULL && capacity < count * sizeof(*status)) ||
        !find_binaries(all, bytes, sizes, count, binaries, lengths)) {
        free(owned);
        return -EBADMSG;
    }
    if (error == CL_SUCCESS) {
        program = wh_cl->clCreateProgramWithBinary(context, count, devices, lengths, binaries,
                                                   results, &error);
    }
    free(owned);
    error = wh_cl_register(request, created, WH_KIND_PROGRAM, program, error);
    if (status != NULL) {
        memcpy(status, results, count * sizeof(*status));
    }
    wh_cl_reply_error(request, WH_OP_clCreateProgramWithBinary, error);
    wh_reply_out(request, status == NULL ? 0 : count * sizeof(*status));
    return 0;
}

int wh_skeleton_clLinkProgram(struct wh_request *request)
{
    cl_int error = CL_SUCCESS;
    cl_uint devices_count = 0;
    cl_uint programs_count = 0;
    size_t options_bytes = 0;
    uint64_t handle = wh_take_u64(request);
    cl_context context = wh_cl_object(request, handle, WH_KIND_CONTEXT, &error);
    const cl_device_id *devices =
        (void *)wh_cl_objects(request, WH_KIND_DEVICE, &devices_count, &error);
    const char *options = wh_take_blob(request, &options_bytes, WH_CL_BLOB_BYTES_MAX);
    const cl_program *programs =
        (void *)wh_cl_objects(request, WH_KIND_PROGRAM, &programs_count, &error);
    bool notify = wh_take_u64(request) != 0;
    uint64_t created = wh_take_u64(request);
    if (wh_request_failed(request) || !wh_cl_string_ends(options, options_bytes)) {
        return -EBADMSG;
    }
    cl_program linked = NULL;
    struct wh_cl_notice *notice = wh_cl_notice_new(notify, &error);
    if (error == CL_SUCCESS) {
        wh_block_begin(request->session);
        linked = wh_cl->clLinkProgram(context, devices_count, devices, options, programs_count,
                                      programs, notify ? wh_cl_notify : NULL, notice, &error);
        wh_cl_notice_wait(notice, error);
        wh_block_end(request->session);
    }
    cl_int kept = wh_cl_register(request, created, WH_KIND_PROGRAM, linked, CL_SUCCESS);
    wh_cl_reply_error(request, WH_OP_clLinkProgram, error == CL_SUCCESS ? kept : error);
    wh_reply_u64(request, linked != NULL && kept == CL_SUCCESS);
    wh_reply_u64(request, wh_cl_notice_end(notice));
    return 0;
}

/* Binaries of the wanted devices, one after the other; their sizes must be those that the client
 * made room for. */
static cl_int get_binaries(cl_program program, size_t count, const uint64_t *known,
                           const uint8_t *wanted, uint8_t *all, size_t capacity)
{
    unsigned char *binaries[WH_CL_DEVICES_MAX] = {NULL};
    size_t sizes[WH_CL_DEVICES_MAX] = {0};
    size_t found_bytes = 0;
    cl_int error = wh_cl->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(sizes), sizes,
                                           &found_bytes);
    if (error != CL_SUCCESS) {
        return error;
    }
    if (found_bytes != count * sizeof(size_t)) {
        return CL_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        if (wanted[i] == 0) {
            continue;
        }
        if (sizes[i] != known[i] || sizes[i] > capacity) {
            return CL_INVALID_VALUE;
        }
        binaries[i] = all;
        all += sizes[i];
        capacity -= sizes[i];
    }
    return wh_cl->clGetProgramInfo(program, CL_PROGRAM_BINARIES, count * sizeof(binaries[0]),
                                   binaries, NULL);
}

static int reply_binaries(struct wh_request *request, cl_program program, cl_int error,
                          uint64_t count)
{
    size_t known_bytes = 0;
    size_t wanted_bytes = 0;
    size_t capacity = 0;
    const uint64_t *known =
        wh_take_blob(request, &known_bytes, WH_CL_DEVICES_MAX * sizeof(uint64_t));
    const uint8_t *wanted = wh_take_blob(request, &wanted_bytes, WH_CL_DEVICES_MAX);
    bool large = wh_take_u64(request) != 0;
    uint64_t token = 0; /* the client fetches and releases it */
    uint8_t *all =
        large ? wh_take_staging(request, &capacity, &token) : wh_take_out(request, &capacity);
    if (wh_request_failed(request) || count > WH_CL_DEVICES_MAX || known == NULL ||
        wanted == NULL || known_bytes != count * sizeof(*known) || wanted_bytes != count) {
        return -EBADMSG;
    }
    if (error == CL_SUCCESS && large && all == NULL) {
        error = CL_OUT_OF_HOST_MEMORY;
    }
    if (error == CL_SUCCESS) {
        error = get_binaries(program, count, known, wanted, all, capacity);
    }
    wh_staging_settled(request->session, token);
    wh_cl_reply_error(request, WH_OP_clGetProgramInfo, error);
    if (!large) {
        wh_reply_out(request, error == CL_SUCCESS ? capacity : 0);
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
    if (value != NULL) {
        memset(value, 0, size); /* some answers are shorter than they say */
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
    cl_uint said = (cl_uint)wh_take_u64(request);
    bool has_list = wh_take_u64(request) != 0;
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    cl_kernel *kernels = has_list ? calloc((size_t)wanted + 1, sizeof(*kernels)) : NULL;
    if (has_list && kernels == NULL) {
        error = CL_OUT_OF_HOST_MEMORY;
    }
    if (error == CL_SUCCESS) {
        /* What the client says counts only where there is no list for it. */
        error = wh_cl->clCreateKernelsInProgram(program, has_list ? wanted : said, kernels, &count);
    }
    for (cl_uint i = 0; has_list && i < wanted && i < count && error == CL_SUCCESS; i++) {
        error = wh_cl_register(request, handles[i], WH_KIND_KERNEL, kernels[i], error);
    }
    free(kernels);
    wh_cl_reply_error(request, WH_OP_clCreateKernelsInProgram, error);
    wh_reply_u64(request, error == CL_SUCCESS ? count : 0);
    return 0;
}
