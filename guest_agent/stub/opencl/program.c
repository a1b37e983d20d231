/*
 * program.c - programs and their kernels.
 */
#define _GNU_SOURCE /* memmem */

#include "object.h"
#include "output.h"

#include <stdlib.h>
#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define BINARIES_MAX 8u /* devices of a program whose binaries one message carries */

/* Devices of the program: those given, or all of the context. */
static cl_int keep_program(struct wh_cl_object *object, struct wh_cl_object *context, cl_uint count,
                           const cl_device_id *devices)
{
    const void *from = devices;
    if (devices == NULL) {
        count = context->u.of_context.device_count;
        from = context->u.of_context.devices;
    }
    object->u.of_program.devices = calloc(count, sizeof(void *));
    object->u.of_program.binary_bytes = calloc(count, sizeof(size_t));
    if (object->u.of_program.devices == NULL || object->u.of_program.binary_bytes == NULL) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    memcpy(object->u.of_program.devices, from, count * sizeof(void *));
    object->u.of_program.device_count = count;
    wh_cl_set_parent(object, context);
    return CL_SUCCESS;
}

/* The strings one after the other: that is what the API makes of them. NULL without memory. */
static char *join(cl_uint count, const char **strings, const size_t *lengths, size_t *size)
{
    *size = 0;
    for (cl_uint i = 0; i < count; i++) {
        *size += lengths != NULL && lengths[i] != 0 ? lengths[i] : strlen(strings[i]);
    }
    char *joined = malloc(*size + 1);
    char *end = joined;
    for (cl_uint i = 0; joined != NULL && i < count; i++) {
        size_t length = lengths != NULL && lengths[i] != 0 ? lengths[i] : strlen(strings[i]);
        memcpy(end, strings[i], length);
        end += length;
    }
    return joined;
}

cl_program CL_API_CALL wh_stub_clCreateProgramWithSource(cl_context context, cl_uint count,
                                                         const char **strings,
                                                         const size_t *lengths, cl_int *errcode_ret)
{
    size_t size = 0;
    struct wh_call call;
    wh_count_api_call(WH_OP_clCreateProgramWithSource);
    if (!wh_cl_live(context, WH_KIND_CONTEXT)) {
        return wh_cl_created(NULL, CL_INVALID_CONTEXT, errcode_ret);
    }
    for (cl_uint i = 0; i < count; i++) {
        if (strings == NULL || strings[i] == NULL) {
            return wh_cl_created(NULL, CL_INVALID_VALUE, errcode_ret);
        }
    }
    if (count == 0 || strings == NULL) {
        return wh_cl_created(NULL, CL_INVALID_VALUE, errcode_ret);
    }
    struct wh_cl_object *object = wh_cl_object_new(WH_KIND_PROGRAM);
    char *joined = join(count, strings, lengths, &size);
    if (object == NULL || joined == NULL) {
        free(joined);
        return wh_cl_created(object, CL_OUT_OF_HOST_MEMORY, errcode_ret);
    }
    cl_int error = WH_CL_LOST;
    if (wh_call_begin(&call, WH_OP_clCreateProgramWithSource) == 0) {
        wh_put_u64(&call, wh_cl_handle(context));
        wh_put_blob(&call, joined, size);
        wh_output_expect(joined, size);
        wh_put_u64(&call, object->handle);
        error = wh_cl_call_error(&call);
    }
    if (error == CL_SUCCESS) {
        error = keep_program(object, (struct wh_cl_object *)context, 0, NULL);
    }
    if (error == CL_SUCCESS && memmem(joined, size, "include", strlen("include")) != NULL) {
        object->u.of_program.source = joined;
        object->u.of_program.source_bytes = size;
        joined = NULL;
    }
    free(joined);
    return wh_cl_created(object, error, errcode_ret);
}

static cl_int check_binaries(cl_context context, cl_uint count, const cl_device_id *devices,
                             const size_t *lengths, const unsigned char **binaries)
{
    if (!wh_cl_live(context, WH_KIND_CONTEXT)) {
        return CL_INVALID_CONTEXT;
    }
    if (count == 0 || devices == NULL || lengths == NULL || binaries == NULL) {
        return CL_INVALID_VALUE;
    }
    if (!wh_cl_all_live((const void *const *)devices, count, WH_KIND_DEVICE)) {
        return CL_INVALID_DEVICE;
    }
    for (cl_uint i = 0; i < count; i++) {
        if (lengths[i] == 0 || binaries[i] == NULL) {
            return CL_INVALID_VALUE;
        }
    }
    return count > BINARIES_MAX ? CL_OUT_OF_RESOURCES : CL_SUCCESS;
}

cl_program CL_API_CALL wh_stub_clCreateProgramWithBinary(cl_context context, cl_uint num_devices,
                                                         const cl_device_id *device_list,
                                                         const size_t *lengths,
                                                         const unsigned char **binaries,
                                                         cl_int *binary_status, cl_int *errcode_ret)
{
    struct wh_call call;
    wh_count_api_call(WH_OP_clCreateProgramWithBinary);
    cl_int error = check_binaries(context, num_devices, device_list, lengths, binaries);
    if (error != CL_SUCCESS) {
        return wh_cl_created(NULL, error, errcode_ret);
    }
    struct wh_cl_object *object = wh_cl_object_new(WH_KIND_PROGRAM);
    if (object == NULL) {
        return wh_cl_created(NULL, CL_OUT_OF_HOST_MEMORY, errcode_ret);
    }
    if (wh_call_begin(&call, WH_OP_clCreateProgramWithBinary) != 0) {
        return wh_cl_created(object, WH_CL_LOST, errcode_ret);
    }
    wh_put_u64(&call, wh_cl_handle(context));
    wh_cl_put_handles(&call, (const void *const *)device_list, num_devices);
    for (cl_uint i = 0; i < num_devices; i++) {
        wh_put_blob(&call, binaries[i], lengths[i]);
        wh_output_expect(binaries[i], lengths[i]);
    }
    wh_put_u64(&call, object->handle);
    wh_put_out(&call, num_devices * sizeof(cl_int), binary_status != NULL);
    error = wh_cl_call_sync(&call);
    (void)wh_get_out(&call, binary_status, num_devices * sizeof(cl_int));
    wh_call_end(&call);
    if (error == CL_SUCCESS) {
        error = keep_program(object, (struct wh_cl_object *)context, num_devices, device_list);
    }
    return wh_cl_created(object, error, errcode_ret);
}

cl_int CL_API_CALL wh_stub_clBuildProgram(
    cl_program program, cl_uint num_devices, const cl_device_id *device_list, const char *options,
    void(CL_CALLBACK *pfn_notify)(cl_program program, void *user_data), void *user_data)
{
    struct wh_call call;
    wh_count_api_call(WH_OP_clBuildProgram);
    if (!wh_cl_live(program, WH_KIND_PROGRAM)) {
        return CL_INVALID_PROGRAM;
    }
    if ((num_devices == 0) != (device_list == NULL) || (pfn_notify == NULL && user_data != NULL)) {
        return CL_INVALID_VALUE;
    }
    if (!wh_cl_all_live((const void *const *)device_list, num_devices, WH_KIND_DEVICE)) {
        return CL_INVALID_DEVICE;
    }
    if (wh_call_begin(&call, WH_OP_clBuildProgram) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(program));
    wh_cl_put_handles(&call, (const void *const *)device_list, num_devices);
    wh_put_blob(&call, options, options == NULL ? 0 : strlen(options) + 1);
    struct wh_cl_object *object = (struct wh_cl_object *)program;
    size_t expanded_bytes = 0;
    char *expanded =
        object->u.of_program.source == NULL || options == NULL
            ? NULL
            : wh_cl_expand_includes(object->u.of_program.source, object->u.of_program.source_bytes,
                                    options, &expanded_bytes);
    wh_put_blob(&call, expanded, expanded_bytes);
    wh_output_expect(expanded, expanded_bytes);
    cl_int error = wh_cl_call_error(&call);
    free(expanded);
    memset(object->u.of_program.binary_bytes, 0,
           object->u.of_program.device_count * sizeof(size_t)); /* now of other binaries */
    if (pfn_notify == NULL) {
        return error;
    }
    /* The API allows the build to be over when the call returns; a build that began reports by the
     * callback. */
    bool began = error == CL_SUCCESS || error == CL_BUILD_PROGRAM_FAILURE;
    if (began) {
        pfn_notify(program, user_data);
    }
    return began ? CL_SUCCESS : error;
}

static cl_int ask(struct wh_cl_object *program, cl_uint param, size_t size, void *value,
                  size_t *size_ret)
{
    struct wh_call call;
    if (wh_call_begin(&call, WH_OP_clGetProgramInfo) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, program->handle);
    wh_put_u64(&call, param);
    wh_put_u64(&call, size);
    wh_put_out(&call, size, value != NULL);
    wh_put_out(&call, sizeof(size_t), size_ret != NULL);
    cl_int error = wh_cl_call_sync(&call);
    if (error == CL_SUCCESS) {
        size_t got = wh_get_out(&call, value, size);
        (void)wh_get_out(&call, size_ret, size_ret == NULL ? 0 : sizeof(size_t));
        size_t wanted = program->u.of_program.device_count * sizeof(size_t);
        if (param == CL_PROGRAM_BINARY_SIZES && value != NULL && got >= wanted) {
            memcpy(program->u.of_program.binary_bytes, value, wanted);
        }
    }
    wh_call_end(&call);
    return error;
}

/* The sizes of the binaries must be known to make room for them; most applications have just asked.
 */
static cl_int know_sizes(struct wh_cl_object *program)
{
    size_t known = 0;
    for (cl_uint i = 0; i < program->u.of_program.device_count; i++) {
        known += program->u.of_program.binary_bytes[i];
    }
    if (known > 0) {
        return CL_SUCCESS;
    }
    size_t sizes[WH_CL_DEVICES_MAX] = {0};
    return ask(program, CL_PROGRAM_BINARY_SIZES,
               program->u.of_program.device_count * sizeof(size_t), sizes, NULL);
}

static cl_int get_binaries(const struct wh_cl_query *query, struct wh_cl_object *program)
{
    cl_uint count = program->u.of_program.device_count;
    const size_t *sizes = program->u.of_program.binary_bytes;
    unsigned char **to = query->value;
    struct wh_call call;
    if (to != NULL && query->size < count * sizeof(void *)) {
        return CL_INVALID_VALUE;
    }
    if (count > BINARIES_MAX) {
        return CL_OUT_OF_RESOURCES;
    }
    if (to == NULL) {
        return ask(program, CL_PROGRAM_BINARIES, 0, NULL, query->size_ret);
    }
    cl_int error = know_sizes(program);
    if (error != CL_SUCCESS) {
        return error;
    }
    if (wh_call_begin(&call, WH_OP_clGetProgramInfo) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, program->handle);
    wh_put_u64(&call, CL_PROGRAM_BINARIES);
    wh_put_u64(&call, count);
    for (cl_uint i = 0; i < count; i++) {
        wh_put_out(&call, sizes[i], to[i] != NULL);
    }
    error = wh_cl_call_sync(&call);
    for (cl_uint i = 0; error == CL_SUCCESS && i < count; i++) {
        (void)wh_get_out(&call, to[i], sizes[i]);
    }
    wh_call_end(&call);
    if (error == CL_SUCCESS && query->size_ret != NULL) {
        *query->size_ret = count * sizeof(void *);
    }
    return error;
}

cl_int CL_API_CALL wh_stub_clGetProgramInfo(cl_program program, cl_program_info param_name,
                                            size_t param_value_size, void *param_value,
                                            size_t *param_value_size_ret)
{
    wh_count_api_call(WH_OP_clGetProgramInfo);
    struct wh_cl_object *object = wh_cl_get(program, WH_KIND_PROGRAM);
    const struct wh_cl_query query = {
        .opcode = WH_OP_clGetProgramInfo,
        .kind = WH_KIND_PROGRAM,
        .object = object,
        .param = param_name,
        .size = param_value_size,
        .value = param_value,
        .size_ret = param_value_size_ret,
    };
    cl_int error = CL_SUCCESS;
    if (object == NULL) {
        return CL_INVALID_PROGRAM;
    }
    if (wh_local_answers() && wh_cl_own_answer(&query, &error)) {
        return error;
    }
    if (param_name == CL_PROGRAM_BINARIES) {
        return get_binaries(&query, object);
    }
    error = ask(object, param_name, param_value_size, param_value, param_value_size_ret);
    if (error == CL_SUCCESS && !wh_local_answers()) {
        (void)wh_cl_own_answer(&query, &error);
    }
    return error;
}

cl_int CL_API_CALL wh_stub_clCreateKernelsInProgram(cl_program program, cl_uint num_kernels,
                                                    cl_kernel *kernels, cl_uint *num_kernels_ret)
{
    struct wh_call call;
    cl_uint made = 0;
    wh_count_api_call(WH_OP_clCreateKernelsInProgram);
    if (!wh_cl_live(program, WH_KIND_PROGRAM)) {
        return CL_INVALID_PROGRAM;
    }
    if (wh_call_begin(&call, WH_OP_clCreateKernelsInProgram) != 0) {
        return WH_CL_LOST;
    }
    cl_uint wanted = kernels == NULL ? 0 : num_kernels;
    struct wh_cl_object **objects = calloc(wanted + 1, sizeof(void *));
    while (objects != NULL && made < wanted) {
        objects[made] = wh_cl_object_new(WH_KIND_KERNEL);
        if (objects[made] == NULL) {
            break;
        }
        made++;
    }
    cl_int error = CL_OUT_OF_HOST_MEMORY;
    cl_uint count = 0;
    if (objects != NULL && made == wanted) {
        wh_put_u64(&call, wh_cl_handle(program));
        wh_cl_put_handles(&call, (const void *const *)objects, wanted);
        error = wh_cl_call_sync(&call);
        count = (cl_uint)wh_get_u64(&call);
    }
    wh_call_end(&call);
    for (cl_uint i = 0; i < made; i++) {
        if (error == CL_SUCCESS && i < count) {
            wh_cl_keep_kernel(objects[i], program);
            kernels[i] = (cl_kernel)objects[i];
        } else {
            wh_cl_discard(objects[i]);
        }
    }
    free(objects);
    if (error == CL_SUCCESS && num_kernels_ret != NULL) {
        *num_kernels_ret = count;
    }
    return error;
}
