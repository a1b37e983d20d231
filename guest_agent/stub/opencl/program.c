/*
 * program.c - programs and their kernels.
 */
#define _GNU_SOURCE /* memmem */

#include "object.h"
#include "output.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

/* Devices of the program: those given, or all of the context. */
void wh_cl_keep_program(struct wh_cl_object *object, cl_context context, cl_uint count,
                        const cl_device_id *devices)
{
    struct wh_cl_object *parent = (struct wh_cl_object *)context;
    const void *from = devices;
    if (count == 0) {
        count = parent->u.of_context.device_count;
        from = parent->u.of_context.devices;
    }
    wh_cl_set_parent(object, parent);
    object->u.of_program.devices = calloc(count, sizeof(void *));
    object->u.of_program.binary_bytes = calloc(count, sizeof(size_t));
    if (object->u.of_program.devices != NULL && object->u.of_program.binary_bytes != NULL) {
        memcpy(object->u.of_program.devices, from, count * sizeof(void *));
        object->u.of_program.device_count = count;
    }
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
    if (joined != NULL) {
        *end = '\0';
    }
    return joined;
}

static cl_int check_source(cl_context context, cl_uint count, const char *const *strings)
{
    if (!wh_cl_live(context, WH_KIND_CONTEXT)) {
        return CL_INVALID_CONTEXT;
    }
    for (cl_uint i = 0; i < count; i++) {
        if (strings == NULL || strings[i] == NULL) {
            return CL_INVALID_VALUE;
        }
    }
    return count == 0 || strings == NULL ? CL_INVALID_VALUE : CL_SUCCESS;
}

static cl_int send_source(cl_context context, const struct wh_cl_object *object, const char *source,
                          size_t size)
{
    struct wh_call call;
    uint64_t token = 0;
    wh_output_expect(source, size);
    if (wh_send_large(source, size, &token) != 0 ||
        wh_call_begin(&call, WH_OP_clCreateProgramWithSource) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(context));
    wh_put_large(&call, source, size, token);
    wh_put_u64(&call, object->handle);
    return wh_cl_call_error(&call);
}

/* Takes the source over, if it may be needed again. */
static void keep_source(struct wh_cl_object *object, char *source, size_t size, bool rewritten)
{
    bool includes = memmem(source, size, "include", strlen("include")) != NULL ||
                    memmem(source, size, "import", strlen("import")) != NULL;
    if (!includes) {
        free(source);
        return;
    }
    object->u.of_program.source = source;
    object->u.of_program.source_bytes = size;
    object->u.of_program.rewritten = rewritten;
    object->u.of_program.foreign = rewritten;
}

cl_program CL_API_CALL wh_stub_clCreateProgramWithSource(cl_context context, cl_uint count,
                                                         const char **strings,
                                                         const size_t *lengths, cl_int *errcode_ret)
{
    size_t size = 0;
    size_t rewritten_size = 0;
    WH_API_CALL();
    cl_int error = check_source(context, count, strings);
    if (error != CL_SUCCESS) {
        return wh_cl_created(NULL, error, errcode_ret);
    }
    struct wh_cl_object *object = wh_cl_object_new(WH_KIND_PROGRAM);
    char *joined = join(count, strings, lengths, &size);
    if (object == NULL || joined == NULL) {
        free(joined);
        return wh_cl_created(object, CL_OUT_OF_HOST_MEMORY, errcode_ret);
    }
    char *rewritten = wh_cl_rewrite_source(joined, size, &rewritten_size);
    error = rewritten == NULL ? send_source(context, object, joined, size)
                              : send_source(context, object, rewritten, rewritten_size);
    if (error == CL_SUCCESS) {
        wh_cl_keep_program(object, context, 0, NULL);
    }
    keep_source(object, joined, size, rewritten != NULL);
    free(rewritten);
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
    return CL_SUCCESS;
}

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "lengths cross as they are");

/* The binaries of all devices, one after the other, and the message about them. */
static cl_int send_binaries(cl_context context, const struct wh_cl_object *object,
                            const cl_device_id *devices, cl_uint count, const size_t *lengths,
                            const void *all, size_t all_bytes, cl_int *status)
{
    struct wh_call call;
    uint64_t token = 0;
    wh_output_expect(all, all_bytes);
    if (wh_send_large(all, all_bytes, &token) != 0 ||
        wh_call_begin(&call, WH_OP_clCreateProgramWithBinary) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(context));
    wh_cl_put_handles(&call, (const void *const *)devices, count);
    wh_put_blob(&call, lengths, count * sizeof(*lengths));
    wh_put_large(&call, all, all_bytes, token);
    wh_put_u64(&call, object->handle);
    wh_put_out(&call, count * sizeof(cl_int), status != NULL);
    cl_int error = wh_cl_call_sync(&call);
    (void)wh_get_out(&call, status, count * sizeof(cl_int));
    wh_call_end(&call);
    return error;
}

cl_program CL_API_CALL wh_stub_clCreateProgramWithBinary(cl_context context, cl_uint num_devices,
                                                         const cl_device_id *device_list,
                                                         const size_t *lengths,
                                                         const unsigned char **binaries,
                                                         cl_int *binary_status, cl_int *errcode_ret)
{
    struct wh_text all = {0};
    WH_API_CALL();
    cl_int error = check_binaries(context, num_devices, device_list, lengths, binaries);
    if (error != CL_SUCCESS) {
        return wh_cl_created(NULL, error, errcode_ret);
    }
    struct wh_cl_object *object = wh_cl_object_new(WH_KIND_PROGRAM);
    for (cl_uint i = 0; num_devices > 1 && i < num_devices; i++) {
        wh_text_add(&all, (const char *)binaries[i], lengths[i]);
    }
    if (object == NULL || all.failed) {
        free(all.bytes);
        return wh_cl_created(object, CL_OUT_OF_HOST_MEMORY, errcode_ret);
    }
    bool alone = num_devices == 1; /* needs no copy */
    error = send_binaries(context, object, device_list, num_devices, lengths,
                          alone ? (const void *)binaries[0] : all.bytes,
                          alone ? lengths[0] : all.size, binary_status);
    free(all.bytes);
    if (error == CL_SUCCESS) {
        wh_cl_keep_program(object, context, num_devices, device_list);
    }
    return wh_cl_created(object, error, errcode_ret);
}

typedef void(CL_CALLBACK *notify_function)(cl_program program, void *user_data);

/* What building, compiling and linking have in common. */
struct build {
    uint16_t opcode;
    cl_uint device_count;
    const cl_device_id *devices;
    const char *options;
    cl_uint input_count; /* headers */
    const cl_program *inputs;
    const char **input_names;
    notify_function notify;
    void *user_data;
};

static cl_int check_build(const struct build *build)
{
    if ((build->device_count == 0) != (build->devices == NULL) ||
        (build->notify == NULL && build->user_data != NULL) ||
        (build->input_count > 0 && build->inputs == NULL)) {
        return CL_INVALID_VALUE;
    }
    if (!wh_cl_all_live((const void *const *)build->devices, build->device_count, WH_KIND_DEVICE)) {
        return CL_INVALID_DEVICE;
    }
    for (cl_uint i = 0; i < build->input_count; i++) {
        if (!wh_cl_live(build->inputs[i], WH_KIND_PROGRAM)) {
            return CL_INVALID_PROGRAM;
        }
    }
    return CL_SUCCESS;
}

/* notified: the real library has called its callback, so the application's is due. */
static cl_int send_build(struct wh_cl_object *program, const struct build *build,
                         const char *options, bool *notified)
{
    struct wh_call call;
    if (wh_call_begin(&call, build->opcode) != 0) {
        return WH_CL_LOST;
    }
    wh_call_blocks(&call);
    wh_put_u64(&call, program->handle);
    wh_put_u64(&call, build->device_count);
    wh_cl_put_handles(&call, (const void *const *)build->devices, build->device_count);
    wh_put_blob(&call, options, options == NULL ? 0 : strlen(options) + 1);
    if (build->opcode == WH_OP_clCompileProgram) {
        wh_put_u64(&call, build->input_count);
        wh_cl_put_handles(&call, (const void *const *)build->inputs, build->input_count);
        wh_cl_put_strings(&call, build->input_names, build->input_count);
    }
    wh_put_u64(&call, build->notify != NULL);
    cl_int error = wh_cl_call_sync(&call);
    *notified = wh_get_u64(&call) != 0;
    wh_call_end(&call);
    memset(program->u.of_program.binary_bytes, 0,
           program->u.of_program.device_count * sizeof(size_t)); /* now of other binaries */
    return error;
}

/* Sends the headers that the build may need, from the program and from the headers that it is given
 * as programs. */
static cl_int ship(struct wh_cl_object *program, const struct build *build, char **options)
{
    const struct wh_cl_object *few[16];
    const struct wh_cl_object **sources = few;
    size_t count = 0;
    *options = NULL;
    if (build->input_count >= sizeof(few) / sizeof(few[0])) {
        sources = calloc(build->input_count + 1, sizeof(*sources));
    }
    if (sources == NULL) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    if (program->u.of_program.source != NULL) {
        sources[count++] = program;
    }
    for (cl_uint i = 0; i < build->input_count; i++) {
        const struct wh_cl_object *header = (const struct wh_cl_object *)build->inputs[i];
        if (header->u.of_program.source != NULL) {
            sources[count++] = header;
        }
    }
    cl_int error = CL_SUCCESS;
    if (count > 0 || (build->options != NULL && strstr(build->options, "-I") != NULL) ||
        (build->options != NULL && strstr(build->options, "-i") != NULL)) {
        error = wh_cl_ship_includes(sources, count, build->options, options);
    }
    program->u.of_program.foreign = program->u.of_program.rewritten || *options != NULL;
    if (sources != few) {
        free(sources);
    }
    return error;
}

/* The API allows a build to be over when the call returns, and its callback to be called within. */
static cl_int build_program(cl_program program, const struct build *build)
{
    WH_API_CALL();
    struct wh_cl_object *object = wh_cl_get(program, WH_KIND_PROGRAM);
    if (object == NULL) {
        return CL_INVALID_PROGRAM;
    }
    char *options = NULL;
    bool notified = false;
    cl_int error = check_build(build);
    if (error == CL_SUCCESS) {
        error = ship(object, build, &options);
    }
    if (error == CL_SUCCESS) {
        error = send_build(object, build, options == NULL ? build->options : options, &notified);
    }
    free(options);
    if (notified) {
        build->notify(program, build->user_data);
    }
    return error;
}

cl_int CL_API_CALL wh_stub_clBuildProgram(
    cl_program program, cl_uint num_devices, const cl_device_id *device_list, const char *options,
    void(CL_CALLBACK *pfn_notify)(cl_program program, void *user_data), void *user_data)
{
    const struct build build = {
        .opcode = WH_OP_clBuildProgram,
        .device_count = num_devices,
        .devices = device_list,
        .options = options,
        .notify = pfn_notify,
        .user_data = user_data,
    };
    return build_program(program, &build);
}

cl_int CL_API_CALL wh_stub_clCompileProgram(
    cl_program program, cl_uint num_devices, const cl_device_id *device_list, const char *options,
    cl_uint num_input_headers, const cl_program *input_headers, const char **header_include_names,
    void(CL_CALLBACK *pfn_notify)(cl_program program, void *user_data), void *user_data)
{
    const struct build build = {
        .opcode = WH_OP_clCompileProgram,
        .device_count = num_devices,
        .devices = device_list,
        .options = options,
        .input_count = num_input_headers,
        .inputs = input_headers,
        .input_names = header_include_names,
        .notify = pfn_notify,
        .user_data = user_data,
    };
    for (cl_uint i = 0; i < num_input_headers; i++) {
        if (header_include_names == NULL || header_include_names[i] == NULL) {
            WH_API_CALL();
            return CL_INVALID_VALUE;
        }
    }
    return build_program(program, &build);
}

static cl_int send_link(cl_context context, const struct build *build, struct wh_cl_object *object,
                        bool *made, bool *notified)
{
    struct wh_call call;
    if (wh_call_begin(&call, WH_OP_clLinkProgram) != 0) {
        return WH_CL_LOST;
    }
    wh_call_blocks(&call);
    wh_put_u64(&call, wh_cl_handle(context));
    wh_cl_put_handles(&call, (const void *const *)build->devices, build->device_count);
    wh_put_blob(&call, build->options, build->options == NULL ? 0 : strlen(build->options) + 1);
    wh_cl_put_handles(&call, (const void *const *)build->inputs, build->input_count);
    wh_put_u64(&call, build->notify != NULL);
    wh_put_u64(&call, object->handle);
    cl_int error = wh_cl_call_sync(&call);
    *made = wh_get_u64(&call) != 0;
    *notified = wh_get_u64(&call) != 0;
    wh_call_end(&call);
    return error;
}

cl_program CL_API_CALL wh_stub_clLinkProgram(
    cl_context context, cl_uint num_devices, const cl_device_id *device_list, const char *options,
    cl_uint num_input_programs, const cl_program *input_programs,
    void(CL_CALLBACK *pfn_notify)(cl_program program, void *user_data), void *user_data,
    cl_int *errcode_ret)
{
    const struct build build = {
        .device_count = num_devices,
        .devices = device_list,
        .options = options,
        .input_count = num_input_programs,
        .inputs = input_programs,
        .notify = pfn_notify,
        .user_data = user_data,
    };
    bool made = false;
    bool notified = false;
    WH_API_CALL();
    if (!wh_cl_live(context, WH_KIND_CONTEXT)) {
        return wh_cl_created(NULL, CL_INVALID_CONTEXT, errcode_ret);
    }
    cl_int error = num_input_programs == 0 ? CL_INVALID_VALUE : check_build(&build);
    struct wh_cl_object *object = error == CL_SUCCESS ? wh_cl_object_new(WH_KIND_PROGRAM) : NULL;
    if (error == CL_SUCCESS && object == NULL) {
        error = CL_OUT_OF_HOST_MEMORY;
    }
    if (error == CL_SUCCESS) {
        error = send_link(context, &build, object, &made, &notified);
    }
    if (made) {
        wh_cl_keep_program(object, context, num_devices, device_list);
    } else {
        wh_cl_discard(object);
        object = NULL;
    }
    if (errcode_ret != NULL) {
        *errcode_ret = error;
    }
    if (notified) {
        pfn_notify((cl_program)object, user_data);
    }
    return (cl_program)object;
}

static cl_int ask(struct wh_cl_object *program, cl_uint param, size_t size, void *value,
                  size_t *size_ret)
{
    struct wh_call call;
    size = wh_cl_answer_room(size);
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

/* One area for the binaries that the application has memory for, in the order of the devices. */
static cl_int fetch_binaries(struct wh_cl_object *program, unsigned char **to, unsigned char *all,
                             size_t all_bytes)
{
    struct wh_call call;
    struct wh_staging staging = {0};
    uint8_t wanted[WH_CL_DEVICES_MAX] = {0};
    const bool large = all_bytes > wh_bulk_limit();
    uint32_t count = program->u.of_program.device_count;
    const size_t *sizes = program->u.of_program.binary_bytes;
    for (uint32_t i = 0; i < count; i++) {
        wanted[i] = to[i] != NULL;
    }
    if (wh_call_begin(&call, WH_OP_clGetProgramInfo) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, program->handle);
    wh_put_u64(&call, CL_PROGRAM_BINARIES);
    wh_put_u64(&call, count);
    wh_put_blob(&call, sizes, count * sizeof(*sizes));
    wh_put_blob(&call, wanted, count);
    wh_put_u64(&call, large);
    if (large) {
        (void)wh_put_staging(&call, &staging, all_bytes);
    } else {
        wh_put_out(&call, all_bytes, true);
    }
    cl_int error = wh_cl_call_sync(&call);
    if (error == CL_SUCCESS && !large && wh_get_out(&call, all, all_bytes) != all_bytes) {
        error = CL_OUT_OF_RESOURCES;
    }
    wh_call_end(&call);
    if (error == CL_SUCCESS && large && wh_staging_copy(&staging, all, all_bytes) != 0) {
        error = WH_CL_LOST;
    }
    wh_staging_free(&staging);
    for (uint32_t i = 0; error == CL_SUCCESS && i < count; i++) {
        if (to[i] != NULL && to[i] != all) {
            memcpy(to[i], all, sizes[i]);
        }
        all += to[i] != NULL ? sizes[i] : 0;
    }
    return error;
}

static cl_int get_binaries(const struct wh_cl_query *query, struct wh_cl_object *program)
{
    uint32_t count = program->u.of_program.device_count;
    unsigned char **to = query->value;
    if (to == NULL) {
        return ask(program, CL_PROGRAM_BINARIES, 0, NULL, query->size_ret);
    }
    cl_int error = count > WH_CL_DEVICES_MAX ? CL_OUT_OF_RESOURCES : know_sizes(program);
    if (error == CL_SUCCESS && query->size < count * sizeof(void *)) {
        error = CL_INVALID_VALUE;
    }
    if (error != CL_SUCCESS) {
        return error;
    }
    size_t all_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        all_bytes += to[i] != NULL ? program->u.of_program.binary_bytes[i] : 0;
    }
    unsigned char *all = count == 1 && to[0] != NULL ? to[0] : malloc(all_bytes + 1);
    error = all == NULL ? CL_OUT_OF_HOST_MEMORY : fetch_binaries(program, to, all, all_bytes);
    if (all != to[0]) {
        free(all);
    }
    if (error == CL_SUCCESS && query->size_ret != NULL) {
        *query->size_ret = count * sizeof(void *);
    }
    return error;
}

cl_int CL_API_CALL wh_stub_clGetProgramInfo(cl_program program, cl_program_info param_name,
                                            size_t param_value_size, void *param_value,
                                            size_t *param_value_size_ret)
{
    WH_API_CALL();
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
    if (error == CL_SUCCESS) {
        wh_cl_count_own(&query);
    }
    return error;
}

/* An answer that names files, with the application's names for them. */
static cl_int answer_with_own_names(const struct wh_cl_query *query)
{
    void *answer = NULL;
    size_t size_bytes = 0;
    cl_int error = wh_cl_ask_whole(query, &answer, &size_bytes);
    if (error != CL_SUCCESS || size_bytes == 0) {
        free(answer);
        return error != CL_SUCCESS ? error : wh_cl_answer(query, "", 0);
    }
    ((char *)answer)[size_bytes - 1] = '\0';
    char *text = wh_cl_own_names(answer);
    error = text == NULL ? CL_OUT_OF_HOST_MEMORY : wh_cl_answer(query, text, strlen(text) + 1);
    free(text);
    free(answer);
    return error;
}

cl_int CL_API_CALL wh_stub_clGetProgramBuildInfo(cl_program program, cl_device_id device,
                                                 cl_program_build_info param_name,
                                                 size_t param_value_size, void *param_value,
                                                 size_t *param_value_size_ret)
{
    const struct wh_cl_query query = {
        .opcode = WH_OP_clGetProgramBuildInfo,
        .object = program,
        .kind = WH_KIND_PROGRAM,
        .has_second = true,
        .second_object = device,
        .second_kind = WH_KIND_DEVICE,
        .cache = WH_CL_CACHE_NONE,
        .param = param_name,
        .size = param_value_size,
        .value = param_value,
        .size_ret = param_value_size_ret,
    };
    WH_API_CALL();
    const struct wh_cl_object *object = wh_cl_get(program, WH_KIND_PROGRAM);
    bool names = param_name == CL_PROGRAM_BUILD_LOG || param_name == CL_PROGRAM_BUILD_OPTIONS;
    if (names && object != NULL && object->u.of_program.foreign &&
        wh_cl_live(device, WH_KIND_DEVICE)) {
        return answer_with_own_names(&query);
    }
    return wh_cl_info(&query);
}

cl_int CL_API_CALL wh_stub_clCreateKernelsInProgram(cl_program program, cl_uint num_kernels,
                                                    cl_kernel *kernels, cl_uint *num_kernels_ret)
{
    struct wh_call call;
    cl_uint made = 0;
    WH_API_CALL();
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
        wh_put_u64(&call, num_kernels);
        wh_put_u64(&call, kernels != NULL);
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
