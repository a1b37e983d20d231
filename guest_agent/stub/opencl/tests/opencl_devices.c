/*
 * opencl_devices.c - sub-devices, limits and rarely used functions: prints what the implementation
 * does, to be compared between the machine's own OpenCL and the forwarded one. `opencl_devices
 * SCENARIO...`; without any it names those that may be compared. `rules` is ours alone: what is not
 * forwarded is answered as by a device that does not have it.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS

#include "scenarios.h"

#include <CL/cl_gl.h>

#define DEVICES_MAX 8u

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;

static const char *const source = "__kernel void count(__global int *to)\n"
                                  "{ to[get_global_id(0)] = (int)get_global_id(0) * 3; }\n";

static cl_kernel build(cl_context where)
{
    cl_int error = CL_SUCCESS;
    cl_program program = clCreateProgramWithSource(where, 1, (const char **)&source, NULL, &error);
    OK(error);
    OK(clBuildProgram(program, 0, NULL, NULL, NULL, NULL));
    cl_kernel kernel = clCreateKernel(program, "count", &error);
    OK(error);
    OK(clReleaseProgram(program));
    return kernel;
}

static void show_device(cl_device_id sub, cl_device_id whole)
{
    cl_device_id parent = NULL;
    cl_platform_id found = NULL;
    cl_uint units = 0;
    cl_uint references = 0;
    cl_uint most = 0;
    cl_device_type type = 0;
    cl_device_partition_property partition[8] = {0};
    size_t partition_bytes = 0;
    OK(clGetDeviceInfo(sub, CL_DEVICE_PARENT_DEVICE, sizeof(parent), &parent, NULL));
    OK(clGetDeviceInfo(sub, CL_DEVICE_PLATFORM, sizeof(found), &found, NULL));
    OK(clGetDeviceInfo(sub, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(units), &units, NULL));
    OK(clGetDeviceInfo(sub, CL_DEVICE_REFERENCE_COUNT, sizeof(references), &references, NULL));
    OK(clGetDeviceInfo(sub, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof(most), &most, NULL));
    OK(clGetDeviceInfo(sub, CL_DEVICE_TYPE, sizeof(type), &type, NULL));
    OK(clGetDeviceInfo(sub, CL_DEVICE_PARTITION_TYPE, sizeof(partition), partition,
                       &partition_bytes));
    printf("  parent %d platform %d units %u references %u most %u type %llx partition %zu %lx %lx "
           "%lx\n",
           parent == whole, found == platform, units, references, most, (unsigned long long)type,
           partition_bytes, (long)partition[0], (long)partition[1], (long)partition[2]);
}

static void run_on(cl_context where, cl_device_id sub)
{
    int values[64] = {0};
    const size_t global = 64;
    cl_int error = CL_SUCCESS;
    cl_device_id found = NULL;
    cl_command_queue own = clCreateCommandQueue(where, sub, 0, &error);
    OK(error);
    OK(clGetCommandQueueInfo(own, CL_QUEUE_DEVICE, sizeof(found), &found, NULL));
    cl_kernel kernel = build(where);
    cl_mem buffer = clCreateBuffer(where, CL_MEM_READ_WRITE, sizeof(values), NULL, &error);
    OK(error);
    OK(clSetKernelArg(kernel, 0, sizeof(buffer), &buffer));
    OK(clEnqueueNDRangeKernel(own, kernel, 1, NULL, &global, NULL, 0, NULL, NULL));
    OK(clEnqueueReadBuffer(own, buffer, CL_TRUE, 0, sizeof(values), values, 0, NULL, NULL));
    int right = 0;
    for (int i = 0; i < 64; i++) {
        right += values[i] == 3 * i;
    }
    printf("  queue on it %d, right %d\n", found == sub, right);
    OK(clReleaseKernel(kernel));
    OK(clReleaseMemObject(buffer));
    OK(clReleaseCommandQueue(own));
}

static void try(const char *name, const cl_device_partition_property *properties, cl_uint room,
                int with_devices, int with_count)
{
    cl_device_id devices[DEVICES_MAX] = {NULL};
    cl_uint count = 77;
    cl_int error = clCreateSubDevices(device, properties, room, with_devices ? devices : NULL,
                                      with_count ? &count : NULL);
    printf("%s: %d count %u\n", name, error, count);
    for (cl_uint i = 0; error == CL_SUCCESS && with_devices && i < DEVICES_MAX; i++) {
        if (devices[i] != NULL) {
            show_device(devices[i], device);
            OK(clReleaseDevice(devices[i]));
        }
    }
}

static void scenario_partitions(void)
{
    const cl_device_partition_property equally[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    const cl_device_partition_property counts[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1, 1,
                                                   CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    const cl_device_partition_property one[] = {CL_DEVICE_PARTITION_BY_COUNTS, 1,
                                                CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    const cl_device_partition_property many[] = {CL_DEVICE_PARTITION_BY_COUNTS, 4096,
                                                 CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    const cl_device_partition_property large[] = {CL_DEVICE_PARTITION_EQUALLY, 4096, 0};
    const cl_device_partition_property zero[] = {CL_DEVICE_PARTITION_EQUALLY, 0, 0};
    const cl_device_partition_property affinity[] = {CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN,
                                                     CL_DEVICE_AFFINITY_DOMAIN_NUMA, 0};
    const cl_device_partition_property unknown[] = {0x7777, 1, 0};
    try("equally", equally, DEVICES_MAX, 1, 1);
    try("equally, no count", equally, DEVICES_MAX, 1, 0);
    try("equally, count only", equally, 0, 0, 1);
    try("equally, room for none", equally, 0, 1, 1);
    try("by counts", counts, DEVICES_MAX, 1, 1);
    try("by counts, too little room", counts, 1, 1, 1);
    try("by one count", one, 1, 1, 1);
    try("by too many", many, DEVICES_MAX, 1, 1);
    try("too large", large, DEVICES_MAX, 1, 1);
    try("of nothing", zero, DEVICES_MAX, 1, 1);
    try("by affinity", affinity, DEVICES_MAX, 1, 1);
    try("unknown", unknown, DEVICES_MAX, 1, 1);
    try("no properties", NULL, DEVICES_MAX, 1, 1);
    printf("no device: %d\n", clCreateSubDevices(NULL, equally, 0, NULL, NULL));
}

static void scenario_contexts(void)
{
    const cl_device_partition_property equally[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_device_id devices[DEVICES_MAX] = {NULL};
    cl_device_id found[DEVICES_MAX] = {NULL};
    cl_uint count = 0;
    size_t found_bytes = 0;
    cl_int error = CL_SUCCESS;
    OK(clCreateSubDevices(device, equally, DEVICES_MAX, devices, &count));
    OK(clRetainDevice(devices[0]));
    show_device(devices[0], device);
    OK(clReleaseDevice(devices[0]));
    cl_context own = clCreateContext(NULL, count, devices, NULL, NULL, &error);
    OK(error);
    OK(clGetContextInfo(own, CL_CONTEXT_DEVICES, sizeof(found), found, &found_bytes));
    printf("context of %zu, the same %d\n", found_bytes / sizeof(found[0]),
           memcmp(found, devices, count * sizeof(found[0])) == 0);
    show_device(devices[0], device);
    for (cl_uint i = 0; i < count; i++) {
        run_on(own, devices[i]);
    }
    (void)clCreateCommandQueue(own, device, 0, &error);
    printf("queue on the whole device: %d\n", error);
    (void)clCreateCommandQueue(context, devices[0], 0, &error);
    printf("queue in another context: %d\n", error);
    OK(clReleaseContext(own));
    for (cl_uint i = 0; i < count; i++) {
        show_device(devices[i], device);
        OK(clReleaseDevice(devices[i]));
    }
    /* The whole device is not counted. */
    printf("whole: %d %d\n", clRetainDevice(device), clReleaseDevice(device));
    OK(clReleaseDevice(device));
    run_on(context, device);
}

/* As much as the device says that it can hold; only the ends are touched. */
static void scenario_largest(void)
{
    cl_ulong most = 0;
    cl_int error = CL_SUCCESS;
    int value = 0;
    const int written = 0x1234567;
    OK(clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(most), &most, NULL));
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, most, NULL, &error);
    printf("largest: %d\n", error);
    if (error == CL_SUCCESS) {
        OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, 4, &written, 0, NULL, NULL));
        OK(clEnqueueWriteBuffer(queue, buffer, CL_TRUE, most - 4, 4, &written, 0, NULL, NULL));
        OK(clEnqueueReadBuffer(queue, buffer, CL_TRUE, most - 4, 4, &value, 0, NULL, NULL));
        printf("end %x\n", value);
        OK(clReleaseMemObject(buffer));
    }
    (void)clCreateBuffer(context, CL_MEM_READ_WRITE, most * 64, NULL, &error);
    printf("far too large: %d\n", error);
}

static void scenario_rare(void)
{
    cl_int error = CL_SUCCESS;
    size_t value = 0;
    const size_t local = 8;
    cl_kernel kernel = build(context);
    cl_mem buffer = clCreateBuffer(context, 0, 64, NULL, &error);
    OK(error);
    cl_mem pipe = clCreatePipe(context, 0, 4, 4, NULL, &error);
    printf("pipe %d\n", error);
    if (pipe != NULL) {
        OK(clReleaseMemObject(pipe));
    }
    printf("pipe info of a buffer %d\n",
           clGetPipeInfo(buffer, CL_PIPE_PACKET_SIZE, sizeof(value), &value, NULL));
    printf("default queue %d\n", clSetDefaultDeviceCommandQueue(context, device, queue));
    printf("default queue of nothing %d\n", clSetDefaultDeviceCommandQueue(context, device, NULL));
    printf("sub-groups %d\n",
           clGetKernelSubGroupInfo(kernel, device, CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE,
                                   sizeof(local), &local, sizeof(value), &value, NULL));
    printf("unload %d %d\n", clUnloadCompiler(), clUnloadPlatformCompiler(platform));
    static const char *const names[] = {
        "clIcdGetPlatformIDsKHR",
        "clGetPlatformInfo",
        "clCreateBuffer",
        "clSVMAllocARM",
        "clNoSuchFunction",
        "clCreateProgramWithILKHR",
        "clGetKernelSubGroupInfoKHR",
        "",
        "clTerminateContextKHR",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        printf("%s %d\n", names[i],
               clGetExtensionFunctionAddressForPlatform(platform, names[i]) != NULL);
    }
    OK(clReleaseMemObject(buffer));
    OK(clReleaseKernel(kernel));
}

static void CL_CALLBACK never(void *arguments)
{
    (void)arguments;
    printf("a native kernel ran\n");
}

static void scenario_rules(void)
{
    char bytes[16] = {0};
    cl_int error = CL_SUCCESS;
    cl_device_svm_capabilities svm = 7;
    cl_device_exec_capabilities execution = 0;
    cl_bitfield unknown = 0;
    cl_kernel kernel = build(context);
    cl_mem buffer = clCreateBuffer(context, 0, 64, NULL, &error);
    OK(error);
    OK(clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof(svm), &svm, NULL));
    OK(clGetDeviceInfo(device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof(execution), &execution,
                       NULL));
    printf("svm %llx execution %llx too small %d\n", (unsigned long long)svm,
           (unsigned long long)execution,
           clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, 1, &svm, NULL));
    printf("command buffers %d\n",
           clGetDeviceInfo(device, 0x12A9, sizeof(unknown), &unknown, NULL));
    printf("svm alloc %d\n", clSVMAlloc(context, 0, 64, 0) != NULL);
    clSVMFree(context, NULL);
    printf("svm %d %d %d %d %d %d\n",
           clEnqueueSVMMemcpy(queue, CL_TRUE, bytes, bytes + 8, 8, 0, NULL, NULL),
           clEnqueueSVMMemFill(queue, bytes, bytes, 1, 8, 0, NULL, NULL),
           clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, bytes, 8, 0, NULL, NULL),
           clEnqueueSVMUnmap(queue, bytes, 0, NULL, NULL),
           clEnqueueSVMFree(queue, 0, NULL, NULL, NULL, 0, NULL, NULL),
           clSetKernelArgSVMPointer(kernel, 0, bytes));
    printf("svm of no queue %d of no kernel %d\n", clEnqueueSVMUnmap(NULL, bytes, 0, NULL, NULL),
           clSetKernelArgSVMPointer(NULL, 0, bytes));
    printf("exec info %d\n",
           clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof(bytes), bytes));
    printf("native kernel %d\n",
           clEnqueueNativeKernel(queue, never, NULL, 0, 0, NULL, NULL, 0, NULL, NULL));
    printf("queue property %d\n", clSetCommandQueueProperty(queue, 0, CL_TRUE, NULL));
    (void)clCreateFromGLBuffer(context, 0, 1, &error);
    printf("gl %d %d\n", error, clEnqueueAcquireGLObjects(queue, 1, &buffer, 0, NULL, NULL));
    static const char *const names[] = {"clCreateCommandBufferKHR", "clSetContentSizeBufferPoCL"};
    for (size_t i = 0; i < 2; i++) {
        printf("%s %d\n", names[i],
               clGetExtensionFunctionAddressForPlatform(platform, names[i]) != NULL);
    }
    OK(clReleaseMemObject(buffer));
    OK(clReleaseKernel(kernel));
}

static const struct scenario scenarios[] = {
    {"partitions", scenario_partitions, false},
    {"contexts", scenario_contexts, false},
    {"largest", scenario_largest, false},
    {"rare", scenario_rare, false},
    {"rules", scenario_rules, true},
};

int main(int argc, char **argv)
{
    cl_int error = CL_SUCCESS;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 1) {
        list_scenarios(scenarios, LENGTH(scenarios));
        return 0;
    }
    OK(clGetPlatformIDs(1, &platform, NULL));
    OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    OK(error);
    queue = clCreateCommandQueue(context, device, 0, &error);
    OK(error);
    for (int i = 1; i < argc; i++) {
        find_scenario(scenarios, LENGTH(scenarios), argv[i])->run();
    }
    OK(clReleaseCommandQueue(queue));
    OK(clReleaseContext(context));
    return 0;
}
