/*
 * setting.c - the objects that cases use: a context with one of everything.
 */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

#define PROFILING CL_QUEUE_PROFILING_ENABLE

static const char *const source =
    "__kernel void add(__global int *to, int value) { to[get_global_id(0)] += value; }\n"
    "__kernel __attribute__((reqd_work_group_size(4, 1, 1)))\n"
    "void fixed(__global int *to, __local int *l, float4 v)\n"
    "{ l[get_local_id(0)] = (int)v.x; to[get_global_id(0)] = l[get_local_id(0)]; }\n";

static cl_command_queue queue_of(cl_context context, cl_device_id device,
                                 cl_command_queue_properties properties)
{
    /* The newer functions for queues and samplers never return in some libraries of OpenCL 1.2. */
    return clCreateCommandQueue(context, device, properties, NULL);
}

static cl_mem image_of(cl_context context, cl_mem_flags flags)
{
    const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    const cl_image_desc desc = {
        .image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = IMAGE_SIDE, .image_height = IMAGE_SIDE};
    return clCreateImage(context, CL_MEM_READ_WRITE | flags, &format, &desc, NULL, NULL);
}

static cl_event user_event(cl_context context, cl_int status)
{
    cl_event event = clCreateUserEvent(context, NULL);
    if (event != NULL) {
        clSetUserEventStatus(event, status);
    }
    return event;
}

static void make_kernel(struct setting *setting)
{
    const int value = 3;
    setting->unbuilt =
        clCreateProgramWithSource(setting->context, 1, (const char **)&source, NULL, NULL);
    setting->program =
        clCreateProgramWithSource(setting->context, 1, (const char **)&source, NULL, NULL);
    clBuildProgram(setting->program, 0, NULL, "-cl-kernel-arg-info", NULL, NULL);
    setting->kernel = clCreateKernel(setting->program, "add", NULL);
    if (setting->kernel != NULL) {
        clSetKernelArg(setting->kernel, 0, sizeof(setting->mem), &setting->mem);
        clSetKernelArg(setting->kernel, 1, sizeof(value), &value);
    }
}

/* Another context has a queue and an event; it stays as long as these. */
static void make_foreign(struct setting *setting)
{
    cl_context context = fresh_context(setting);
    setting->foreign = queue_of(context, setting->device, 0);
    setting->abroad = clCreateBuffer(context, 0, DATA_BYTES, NULL, NULL);
    setting->elsewhere = user_event(context, CL_COMPLETE);
    clReleaseContext(context);
}

bool setting_open(struct setting *setting)
{
    const cl_buffer_region half = {DATA_BYTES / 2, DATA_BYTES / 2};
    memset(setting, 0, sizeof(*setting));
    if (clGetPlatformIDs(1, &setting->platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(setting->platform, CL_DEVICE_TYPE_ALL, 1, &setting->device, NULL) !=
            CL_SUCCESS) {
        return false;
    }
    setting->context = fresh_context(setting);
    if (setting->context == NULL) {
        return false;
    }
    setting->queue = queue_of(setting->context, setting->device, PROFILING);
    setting->mem = fresh_mem(setting);
    setting->other = fresh_mem(setting);
    setting->sub = clCreateSubBuffer(setting->mem, 0, CL_BUFFER_CREATE_TYPE_REGION, &half, NULL);
    setting->image = image_of(setting->context, CL_MEM_ALLOC_HOST_PTR);
    setting->other_image = image_of(setting->context, 0);
    make_kernel(setting);
    make_foreign(setting);
    setting->event = user_event(setting->context, CL_COMPLETE);
    setting->failed = user_event(setting->context, -5);
    setting->sampler = fresh_sampler(setting);
    setting->area = aligned_alloc(4096, AROUND_BYTES + DATA_BYTES + AROUND_BYTES);
    setting->host = setting->area + AROUND_BYTES;
    setting->answer = malloc(ANSWER_BYTES);
    setting_reset(setting);
    clEnqueueMarkerWithWaitList(setting->queue, 0, NULL, &setting->command);
    return setting->area != NULL && clFinish(setting->queue) == CL_SUCCESS;
}

static void release_mems(struct setting *setting)
{
    cl_mem mems[] = {setting->sub,   setting->mem,         setting->other,
                     setting->image, setting->other_image, setting->abroad};
    for (size_t i = 0; i < sizeof(mems) / sizeof(mems[0]); i++) {
        if (mems[i] != NULL) {
            clReleaseMemObject(mems[i]);
        }
    }
}

void setting_close(struct setting *setting)
{
    cl_event events[] = {setting->event, setting->failed, setting->command, setting->elsewhere};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        if (events[i] != NULL) {
            clReleaseEvent(events[i]);
        }
    }
    release_mems(setting);
    clReleaseSampler(setting->sampler);
    clReleaseKernel(setting->kernel);
    clReleaseProgram(setting->program);
    clReleaseProgram(setting->unbuilt);
    clReleaseCommandQueue(setting->queue);
    clReleaseCommandQueue(setting->foreign);
    clReleaseContext(setting->context);
    free(setting->area);
    free(setting->answer);
}

void setting_reset(struct setting *setting)
{
    const size_t origin[3] = {0, 0, 0};
    const size_t region[3] = {IMAGE_SIDE, IMAGE_SIDE, 1};
    memset(setting->area, 0, AROUND_BYTES + DATA_BYTES + AROUND_BYTES);
    for (size_t i = 0; i < DATA_BYTES; i++) {
        setting->host[i] = (uint8_t)(i * 7 + i / 256);
    }
    memset(setting->answer, UNTOUCHED, ANSWER_BYTES);
    clEnqueueWriteBuffer(setting->queue, setting->mem, CL_TRUE, 0, DATA_BYTES, setting->host, 0,
                         NULL, NULL);
    for (size_t i = 0; i < DATA_BYTES; i++) {
        setting->host[i] ^= 0x55;
    }
    clEnqueueWriteBuffer(setting->queue, setting->other, CL_TRUE, 0, DATA_BYTES, setting->host, 0,
                         NULL, NULL);
    if (setting->image != NULL && setting->other_image != NULL) {
        clEnqueueWriteImage(setting->queue, setting->image, CL_TRUE, origin, region, 0, 0,
                            setting->host, 0, NULL, NULL);
        clEnqueueWriteImage(setting->queue, setting->other_image, CL_TRUE, origin, region, 0, 0,
                            setting->host + DATA_BYTES / 2, 0, NULL, NULL);
    }
}

cl_context fresh_context(struct setting *setting)
{
    return clCreateContext(NULL, 1, &setting->device, NULL, NULL, NULL);
}

cl_command_queue fresh_queue(struct setting *setting)
{
    return queue_of(setting->context, setting->device, 0);
}

cl_mem fresh_mem(struct setting *setting)
{
    return clCreateBuffer(setting->context, CL_MEM_READ_WRITE, DATA_BYTES, NULL, NULL);
}

cl_program fresh_program(struct setting *setting)
{
    return clCreateProgramWithSource(setting->context, 1, (const char **)&source, NULL, NULL);
}

cl_kernel fresh_kernel(struct setting *setting)
{
    return clCreateKernel(setting->program, "fixed", NULL);
}

cl_event fresh_event(struct setting *setting)
{
    return clCreateUserEvent(setting->context, NULL);
}

cl_sampler fresh_sampler(struct setting *setting)
{
    return clCreateSampler(setting->context, CL_FALSE, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, NULL);
}

#define RELEASED(kind, type, release)                                                              \
    type released_##kind(struct setting *setting)                                                  \
    {                                                                                              \
        type object = fresh_##kind(setting);                                                       \
        if (object != NULL) {                                                                      \
            release(object);                                                                       \
        }                                                                                          \
        return object;                                                                             \
    }

RELEASED(context, cl_context, clReleaseContext)
RELEASED(queue, cl_command_queue, clReleaseCommandQueue)
RELEASED(mem, cl_mem, clReleaseMemObject)
RELEASED(program, cl_program, clReleaseProgram)
RELEASED(kernel, cl_kernel, clReleaseKernel)
RELEASED(event, cl_event, clReleaseEvent)
RELEASED(sampler, cl_sampler, clReleaseSampler)
