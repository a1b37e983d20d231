/*
 * opencl_programs.c - programs and kernels: making, building, compiling, linking, asking about
 * them. Prints what the library answers, line by line: the test compares that of the real library
 * with the forwarded one. `opencl_programs SCENARIO...`; without one it lists them. Headers are
 * made below the current directory.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS

#include "scenarios.h"

#include <sys/stat.h>

#define DEVICES_MAX 8
#define SAY(...) (printf(__VA_ARGS__), putchar('\n'))
#define SHOW(call) SAY("%s: %d", #call, (int)(call))

static cl_platform_id platform;
static cl_device_id devices[DEVICES_MAX];
static cl_uint device_count;
static cl_context context;
static cl_command_queue queue;

static const char *const plain = "__kernel void one(__global int *to) { to[0] = 1; }\n"
                                 "__kernel void two(__global int *to, const float by, __local "
                                 "char *l, uint4 v) { to[0] = 2; }\n";

static void open_all(void)
{
    cl_int error = CL_SUCCESS;
    SHOW(clGetPlatformIDs(1, &platform, NULL));
    SHOW(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, DEVICES_MAX, devices, &device_count));
    context = clCreateContext(NULL, device_count, devices, NULL, NULL, &error);
    queue = clCreateCommandQueueWithProperties(context, devices[0], NULL, &error);
    SAY("%u devices, error %d", device_count, error);
}

static cl_program source_program(const char *text)
{
    cl_int error = CL_SUCCESS;
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &error);
    if (error != CL_SUCCESS || program == NULL) {
        SAY("no program: %d", error);
        exit(1);
    }
    return program;
}

static uint32_t hash(const void *bytes, size_t size)
{
    uint32_t value = 2166136261u;
    for (size_t i = 0; i < size; i++) {
        value = (value ^ ((const uint8_t *)bytes)[i]) * 16777619u;
    }
    return value;
}

/* The build log but for the names of temporary files. */
static void show_log(cl_program program)
{
    static char log[1 << 20];
    size_t size = 0;
    cl_int error = clGetProgramBuildInfo(program, devices[0], CL_PROGRAM_BUILD_LOG, sizeof(log) - 1,
                                         log, &size);
    SAY("log: error %d, %s", error, size > 1 ? "some" : "none");
    log[error == CL_SUCCESS ? size : 0] = '\0';
    for (char *line = strtok(log, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char *temporary = strstr(line, "tempfile_");
        char *text = temporary == NULL ? line : strchr(temporary, ':');
        SAY("  %s", text == NULL ? line : text);
    }
}

static void show_build(cl_program program, const char *options)
{
    cl_int error = clBuildProgram(program, 0, NULL, options, NULL, NULL);
    SAY("build with '%s': %d", options == NULL ? "NULL" : options, error);
}

/* What the kernel leaves in its first argument; -1000 - error if it cannot run. */
static int run_kernel(cl_program program, const char *name)
{
    cl_int error = CL_SUCCESS;
    int value = -1;
    const size_t one = 1;
    cl_kernel kernel = clCreateKernel(program, name, &error);
    if (kernel == NULL) {
        return -1000 + error;
    }
    cl_mem to = clCreateBuffer(context, CL_MEM_READ_WRITE, 4096, NULL, &error);
    clSetKernelArg(kernel, 0, sizeof(to), &to);
    error = clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL);
    if (error == CL_SUCCESS) {
        error = clEnqueueReadBuffer(queue, to, CL_TRUE, 0, sizeof(value), &value, 0, NULL, NULL);
    }
    clReleaseMemObject(to);
    clReleaseKernel(kernel);
    return error == CL_SUCCESS ? value : -1000 + error;
}

static void show_program_infos(cl_program program)
{
    static const cl_program_info params[] = {CL_PROGRAM_NUM_DEVICES,
                                             CL_PROGRAM_SOURCE,
                                             CL_PROGRAM_NUM_KERNELS,
                                             CL_PROGRAM_KERNEL_NAMES,
                                             CL_PROGRAM_IL,
                                             CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT,
                                             CL_PROGRAM_CONTEXT,
                                             CL_PROGRAM_DEVICES,
                                             CL_PROGRAM_REFERENCE_COUNT,
                                             CL_PROGRAM_BINARIES,
                                             CL_PROGRAM_BINARY_SIZES,
                                             CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT,
                                             0x1234};
    static char value[1 << 16];
    for (size_t i = 0; i < LENGTH(params); i++) {
        size_t size = 0;
        cl_int error = clGetProgramInfo(program, params[i], 0, NULL, &size);
        SAY("info %x: %d, %s", params[i], error, size > 0 ? "some" : "empty");
        if (params[i] == CL_PROGRAM_BINARIES) {
            continue;
        }
        memset(value, 0, sizeof(value));
        size_t got = 0;
        error = clGetProgramInfo(program, params[i], sizeof(value), value, &got);
        bool pointers = params[i] == CL_PROGRAM_CONTEXT || params[i] == CL_PROGRAM_DEVICES ||
                        params[i] == CL_PROGRAM_BINARY_SIZES;
        SAY("  value: %d, %zu bytes, %x", error, got, pointers ? 0 : hash(value, got));
        SAY("  too small: %d",
            size == 0 ? 0 : clGetProgramInfo(program, params[i], 1, value, NULL));
        SAY("  nothing: %d", clGetProgramInfo(program, params[i], 0, NULL, NULL));
    }
}

static void show_build_infos(cl_program program)
{
    for (cl_program_build_info param = CL_PROGRAM_BUILD_STATUS; param <= 0x1186; param++) {
        char value[4096] = {0};
        size_t size = 0;
        cl_int error =
            clGetProgramBuildInfo(program, devices[0], param, sizeof(value), value, &size);
        bool log = param == CL_PROGRAM_BUILD_LOG;
        SAY("build info %x: %d, %zu bytes, %x", param, error, log ? size > 1 : size,
            log ? 0 : hash(value, size));
        SAY("  too small: %d", clGetProgramBuildInfo(program, devices[0], param, 0, value, NULL));
    }
    SHOW(clGetProgramBuildInfo(program, NULL, CL_PROGRAM_BUILD_STATUS, 0, NULL, NULL));
    SHOW(clGetProgramBuildInfo(NULL, devices[0], CL_PROGRAM_BUILD_STATUS, 0, NULL, NULL));
}

static void infos(void)
{
    cl_program program = source_program(plain);
    show_program_infos(program);
    show_build_infos(program);
    show_build(program, "-DX=1  -cl-mad-enable -g");
    show_program_infos(program);
    show_build_infos(program);
    SHOW(clGetProgramInfo(NULL, CL_PROGRAM_SOURCE, 0, NULL, NULL));
    SHOW(clReleaseProgram(program));
}

static void show_kernel_infos(cl_kernel kernel)
{
    char value[4096];
    size_t size = 0;
    for (cl_kernel_info param = CL_KERNEL_FUNCTION_NAME; param <= 0x1196; param++) {
        memset(value, 0, sizeof(value));
        cl_int error = clGetKernelInfo(kernel, param, sizeof(value), value, &size);
        bool pointer = param == CL_KERNEL_CONTEXT || param == CL_KERNEL_PROGRAM;
        SAY("kernel info %x: %d, %zu bytes, %x", param, error, size,
            pointer ? 0 : hash(value, size));
        SAY("  too small: %d", clGetKernelInfo(kernel, param, 0, value, NULL));
    }
    for (cl_uint index = 0; index < 6; index++) {
        for (cl_kernel_arg_info param = CL_KERNEL_ARG_ADDRESS_QUALIFIER; param <= 0x119b; param++) {
            memset(value, 0, sizeof(value));
            size = 0;
            cl_int error = clGetKernelArgInfo(kernel, index, param, sizeof(value), value, &size);
            SAY("argument %u info %x: %d, %zu bytes, %x", index, param, error, size,
                error == CL_SUCCESS ? hash(value, size) : 0);
        }
    }
    for (cl_kernel_work_group_info param = CL_KERNEL_WORK_GROUP_SIZE; param <= 0x11b6; param++) {
        memset(value, 0, sizeof(value));
        size = 0;
        cl_int error =
            clGetKernelWorkGroupInfo(kernel, devices[0], param, sizeof(value), value, &size);
        SAY("group info %x: %d, %zu bytes, %x", param, error, size,
            error == CL_SUCCESS ? hash(value, size) : 0);
        SAY("  no device: %d",
            device_count > 1
                ? 0
                : clGetKernelWorkGroupInfo(kernel, NULL, param, sizeof(value), value, NULL));
    }
    const size_t groups[3] = {4, 2, 1};
    static const cl_kernel_sub_group_info params[] = {
        CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE, CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE,
        CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT, CL_KERNEL_MAX_NUM_SUB_GROUPS,
        CL_KERNEL_COMPILE_NUM_SUB_GROUPS,         0x1234};
    for (size_t i = 0; i < LENGTH(params); i++) {
        memset(value, 0, sizeof(value));
        size = 0;
        SAY("sub group info %x: %d", params[i],
            clGetKernelSubGroupInfo(kernel, devices[0], params[i], sizeof(groups), groups,
                                    sizeof(value), value, &size));
        SAY("  no input: %d", clGetKernelSubGroupInfo(kernel, devices[0], params[i], 0, NULL,
                                                      sizeof(value), value, NULL));
    }
}

static void kernels(void)
{
    static const char *const options[] = {NULL, "-cl-kernel-arg-info"};
    for (size_t i = 0; i < LENGTH(options); i++) {
        cl_int error = CL_SUCCESS;
        cl_program program = source_program(plain);
        SAY("unbuilt: %d", clCreateKernel(program, "two", &error) == NULL ? error : 1);
        show_build(program, options[i]);
        cl_kernel kernel = clCreateKernel(program, "two", &error);
        SAY("kernel: %d", error);
        show_kernel_infos(kernel);
        SAY("no such kernel: %d", clCreateKernel(program, "three", &error) == NULL ? error : 1);
        SAY("empty name: %d", clCreateKernel(program, "", &error) == NULL ? error : 1);
        SAY("no name: %d", clCreateKernel(program, NULL, &error) == NULL ? error : 1);
        /* The kernel stands in the way of another build. */
        show_build(program, "-DAGAIN");
        SHOW(clReleaseKernel(kernel));
        show_build(program, "-DAGAIN");
        SAY("one leaves %d", run_kernel(program, "one"));
        SHOW(clReleaseProgram(program));
    }
}

static void many(void)
{
    enum { KERNELS = 500 };
    static cl_kernel made[KERNELS];
    char *text = malloc(KERNELS * 80);
    char *end = text;
    for (int i = 0; i < KERNELS; i++) {
        end += sprintf(end, "__kernel void k%d(__global int *to) { to[0] = %d; }\n", i, i);
    }
    cl_program program = source_program(text);
    cl_uint count = 0;
    SHOW(clCreateKernelsInProgram(program, 0, NULL, &count));
    show_build(program, NULL);
    SHOW(clCreateKernelsInProgram(program, 0, NULL, &count));
    SAY("%u kernels", count);
    SHOW(clCreateKernelsInProgram(program, KERNELS - 1, made, NULL));
    SHOW(clCreateKernelsInProgram(program, KERNELS, made, &count));
    SHOW(clCreateKernelsInProgram(NULL, KERNELS, made, &count));
    for (int i = 0; i < KERNELS; i++) {
        char name[32] = "";
        clGetKernelInfo(made[i], CL_KERNEL_FUNCTION_NAME, sizeof(name), name, NULL);
        if (i % 100 == 0) {
            SAY("%d is %s", i, name);
        }
        clReleaseKernel(made[i]);
    }
    SAY("k77 leaves %d", run_kernel(program, "k77"));
    show_program_infos(program);
    SHOW(clReleaseProgram(program));
    free(text);
}

static void show_source(const char *what, cl_uint count, const char **strings,
                        const size_t *lengths)
{
    cl_int error = CL_SUCCESS;
    cl_program program = clCreateProgramWithSource(context, count, strings, lengths, &error);
    SAY("%s: %d, %s", what, error, program == NULL ? "none" : "some");
    if (program != NULL) {
        size_t size = 0;
        SAY("  size: %d, %zu", clGetProgramInfo(program, CL_PROGRAM_SOURCE, 0, NULL, &size), size);
        show_build(program, NULL);
        SAY("  one leaves %d", run_kernel(program, "one"));
        clReleaseProgram(program);
    }
}

static void sources(void)
{
    const char *text[] = {"__kernel void one(", "__global int *to) {", " to[0] = 7; }\nrubbish"};
    const size_t whole[] = {0, 19, 13};
    const size_t zeros[] = {0, 0, 13};
    const char *missing[] = {text[0], NULL, text[2]};
    const char *empty[] = {""};
    const size_t five[] = {5};
    const char with_nul[] = "__kernel void one(__global int *to) { to[0] = 8; }\n\0 rubbish";
    const char *nul[] = {with_nul};
    const size_t nul_length[] = {sizeof(with_nul)};
    show_source("lengths", 3, text, whole);
    show_source("zero lengths", 3, text, zeros);
    show_source("NULL string", 3, missing, whole);
    show_source("no strings", 0, text, NULL);
    show_source("empty", 1, empty, NULL);
    show_source("cut", 1, text, five);
    show_source("with NUL", 1, nul, nul_length);
    cl_int error = CL_SUCCESS;
    SAY("no context: %d", clCreateProgramWithSource(NULL, 1, empty, NULL, &error) ? 1 : error);
    SAY("without error: %d", clCreateProgramWithSource(NULL, 1, empty, NULL, NULL) != NULL);
}

static int notified;

static void CL_CALLBACK notify(cl_program program, void *data)
{
    cl_build_status status = 99;
    clGetProgramBuildInfo(program, devices[0], CL_PROGRAM_BUILD_STATUS, sizeof(status), &status,
                          NULL);
    SAY("  notified: status %d, data %d", status, data == &notified);
    notified++;
}

static void wait_notified(int wanted)
{
    for (int i = 0; i < 1000 && notified < wanted; i++) {
        usleep(10000);
    }
    SAY("notified %d times", notified);
}

static void builds(void)
{
    cl_program program = source_program(plain);
    SHOW(clBuildProgram(NULL, 0, NULL, NULL, NULL, NULL));
    SHOW(clBuildProgram(program, 0, devices, NULL, NULL, NULL));
    SHOW(clBuildProgram(program, 1, NULL, NULL, NULL, NULL));
    SHOW(clBuildProgram(program, 0, NULL, NULL, NULL, &notified));
    static const char *const options[] = {"",
                                          "  ",
                                          "-cl-no-such-option",
                                          "-DA=\"x y\"",
                                          "-D A=3",
                                          "-w -Werror",
                                          "-cl-std=CL1.2",
                                          "-cl-std=CL9.9",
                                          "-x cl",
                                          "-create-library",
                                          "--version",
                                          "-o /tmp/x",
                                          "-Ifoo -DB"};
    for (size_t i = 0; i < LENGTH(options); i++) {
        show_build(program, options[i]);
        show_build_infos(program);
    }
    SHOW(clBuildProgram(program, 0, NULL, NULL, notify, &notified));
    wait_notified(1);
    SHOW(clReleaseProgram(program));
    program = source_program("__kernel void one(__global int *to) { to[0] = nothing; }\n");
    show_build(program, NULL);
    show_build_infos(program);
    show_log(program);
    cl_int error = CL_SUCCESS;
    SAY("kernel: %d", clCreateKernel(program, "one", &error) == NULL ? error : 1);
    SHOW(clBuildProgram(program, 0, NULL, NULL, notify, &notified));
    wait_notified(2);
    SHOW(clBuildProgram(program, 0, NULL, "-Dnothing=5", NULL, NULL));
    SAY("one leaves %d", run_kernel(program, "one"));
    SHOW(clReleaseProgram(program));
    SHOW(clUnloadCompiler());
    SHOW(clUnloadPlatformCompiler(platform));
    SHOW(clUnloadPlatformCompiler(NULL));
}

static const char *const user = "#include \"lib/value.h\"\n"
                                "int twice(int x);\n"
                                "__kernel void one(__global int *to) { to[0] = twice(VALUE); }\n";
static const char *const value_h = "#ifndef VALUE\n#define VALUE 21\n#endif\n";
static const char *const twice_c = "int twice(int x) { return 2 * x; }\n";

static void show_type(cl_program program)
{
    cl_program_binary_type type = 99;
    cl_int error = clGetProgramBuildInfo(program, devices[0], CL_PROGRAM_BINARY_TYPE, sizeof(type),
                                         &type, NULL);
    SAY("type %d: %u", error, type);
}

static void link_together(cl_program first, cl_program second)
{
    static const char *const options[] = {NULL, "", "-create-library", "-no-such",
                                          "-create-library -enable-link-options"};
    const cl_program inputs[] = {first, second};
    for (size_t i = 0; i < LENGTH(options); i++) {
        cl_int error = 77;
        cl_program linked =
            clLinkProgram(context, 0, NULL, options[i], 2, inputs, NULL, NULL, &error);
        SAY("link with '%s': %d, %s", options[i] == NULL ? "NULL" : options[i], error,
            linked == NULL ? "none" : "some");
        if (linked != NULL) {
            show_type(linked);
            show_build_infos(linked);
            show_program_infos(linked);
            SAY("one leaves %d", error == CL_SUCCESS && i < 2 ? run_kernel(linked, "one") : 0);
            SHOW(clReleaseProgram(linked));
        }
    }
    cl_int error = 77;
    cl_program linked = clLinkProgram(context, 0, NULL, NULL, 2, inputs, notify, &notified, &error);
    SAY("link with callback: %d, %s", error, linked == NULL ? "none" : "some");
    wait_notified(3);
    if (linked != NULL) {
        SAY("one leaves %d", run_kernel(linked, "one"));
        SHOW(clReleaseProgram(linked));
    }
}

static void wrong_links(cl_program compiled, cl_program uncompiled)
{
    cl_int error = 77;
#define LINK(...)                                                                                  \
    do {                                                                                           \
        error = 77;                                                                                \
        cl_program made = clLinkProgram(__VA_ARGS__, &error);                                      \
        SAY("link(%s): %d, %s", #__VA_ARGS__, error, made == NULL ? "none" : "some");              \
        if (made != NULL) {                                                                        \
            clReleaseProgram(made);                                                                \
        }                                                                                          \
    } while (0)
    LINK(NULL, 0, NULL, NULL, 1, &compiled, NULL, NULL);
    LINK(context, 0, NULL, NULL, 0, NULL, NULL, NULL);
    LINK(context, 0, NULL, NULL, 0, &compiled, NULL, NULL);
    LINK(context, 0, NULL, NULL, 1, NULL, NULL, NULL);
    LINK(context, 0, devices, NULL, 1, &compiled, NULL, NULL);
    LINK(context, 1, NULL, NULL, 1, &compiled, NULL, NULL);
    LINK(context, 1, devices, NULL, 1, &compiled, NULL, &notified);
    LINK(context, 0, NULL, NULL, 1, &uncompiled, NULL, NULL);
}

static void compiles(void)
{
    cl_program program = source_program(user);
    cl_program header = source_program(value_h);
    cl_program library = source_program(twice_c);
    const char *name = "lib/value.h";
    notified = 0;
    SHOW(clCompileProgram(NULL, 0, NULL, NULL, 1, &header, &name, NULL, NULL));
    SHOW(clCompileProgram(program, 0, NULL, NULL, 0, &header, &name, NULL, NULL));
    SHOW(clCompileProgram(program, 0, devices, NULL, 1, &header, &name, NULL, NULL));
    SHOW(clCompileProgram(program, 1, NULL, NULL, 1, &header, &name, NULL, NULL));
    SHOW(clCompileProgram(program, 0, NULL, NULL, 1, &header, &name, NULL, &notified));
    SHOW(clCompileProgram(program, 0, NULL, "-no-such", 1, &header, &name, NULL, NULL));
    show_build_infos(program);
    SHOW(clCompileProgram(program, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL));
    show_type(program);
    show_log(program);
    SHOW(clCompileProgram(program, 0, NULL, "-DVALUE=4", 1, &header, &name, notify, &notified));
    wait_notified(1);
    SHOW(clCompileProgram(program, 1, devices, "-DX", 1, &header, &name, NULL, NULL));
    show_type(program);
    show_build_infos(program);
    show_program_infos(program);
    cl_int error = CL_SUCCESS;
    SAY("kernel: %d", clCreateKernel(program, "one", &error) == NULL ? error : 1);
    SHOW(clCompileProgram(library, 0, NULL, NULL, 0, NULL, NULL, notify, &notified));
    wait_notified(2);
    link_together(program, library);
    wrong_links(program, header);
    cl_program alone = clLinkProgram(context, 0, NULL, NULL, 1, &program, NULL, NULL, &error);
    SAY("unresolved: %d, %s", error, alone == NULL ? "none" : "some");
    if (alone != NULL) {
        show_type(alone);
        clReleaseProgram(alone);
    }
    SHOW(clReleaseProgram(program));
    SHOW(clReleaseProgram(header));
    SHOW(clReleaseProgram(library));
}

static void intermediate(void)
{
    static const uint32_t words[8] = {0x07230203, 0x00010000, 0, 8, 0};
    cl_int error = 77;
    cl_program program = clCreateProgramWithIL(context, words, sizeof(words), &error);
    SAY("IL: %d, %s", error, program == NULL ? "none" : "some");
    if (program != NULL) {
        show_build(program, NULL);
        clReleaseProgram(program);
    }
    SAY("no IL: %d", clCreateProgramWithIL(context, NULL, 5, &error) == NULL ? error : 1);
    SAY("empty IL: %d", clCreateProgramWithIL(context, words, 0, &error) == NULL ? error : 1);
    SAY("no context: %d", clCreateProgramWithIL(NULL, words, 8, &error) == NULL ? error : 1);
    const int value = 3;
    SHOW(clSetProgramSpecializationConstant(NULL, 0, sizeof(value), &value));
}

static void show_built_in(const char *what, cl_uint count, const cl_device_id *list,
                          const char *names)
{
    cl_int error = 77;
    cl_program program = clCreateProgramWithBuiltInKernels(context, count, list, names, &error);
    SAY("%s: %d, %s", what, error, program == NULL ? "none" : "some");
    if (program == NULL) {
        return;
    }
    show_build(program, NULL);
    char text[256] = "";
    size_t size = 0;
    cl_int result = clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, sizeof(text), text, &size);
    SAY("  names: %d %s", result, text);
    cl_kernel kernel = clCreateKernel(program, names, &error);
    SAY("  kernel: %d", error);
    if (kernel != NULL) {
        cl_uint arguments = 99;
        result = clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof(arguments), &arguments, NULL);
        SAY("  arguments: %d, %u", result, arguments);
        clReleaseKernel(kernel);
    }
    SAY("  type: ");
    show_type(program);
    clReleaseProgram(program);
}

static void built_in(void)
{
    cl_int error = 77;
    char names[4096] = "";
    SHOW(clGetDeviceInfo(devices[0], CL_DEVICE_BUILT_IN_KERNELS, sizeof(names), names, NULL));
    SAY("%s", names);
    names[strcspn(names, ";")] = '\0';
    show_built_in("unknown", 1, devices, "no.such.kernel");
    if (names[0] != '\0') {
        show_built_in("first", 1, devices, names);
    }
    show_built_in("no devices", 0, devices, names);
    show_built_in("NULL devices", 1, NULL, names);
    show_built_in("no names", 1, devices, NULL);
    SAY("no context: %d",
        clCreateProgramWithBuiltInKernels(NULL, 1, devices, names, &error) == NULL ? error : 1);
}

static void show_binary(const char *what, const size_t *sizes, const unsigned char **binaries)
{
    cl_int error = 77;
    cl_int status[DEVICES_MAX] = {77, 77, 77, 77, 77, 77, 77, 77};
    cl_program program =
        clCreateProgramWithBinary(context, device_count, devices, sizes, binaries, status, &error);
    SAY("%s: %d, %s, status %d %d", what, error, program == NULL ? "none" : "some", status[0],
        status[1]);
    if (program == NULL) {
        return;
    }
    show_type(program);
    SAY("early kernel: %d", clCreateKernel(program, "one", &error) == NULL ? error : 1);
    show_build(program, NULL);
    show_type(program);
    SAY("one leaves %d", run_kernel(program, "one"));
    size_t again[DEVICES_MAX] = {0};
    SAY("sizes: %d, %s",
        clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(again), again, NULL),
        again[0] > 0 ? "some" : "none");
    clReleaseProgram(program);
}

static void rubbish(void)
{
    static const size_t sizes[] = {1, 1024, 65536, (size_t)1 << 20, ((size_t)64 << 20) + 1};
    unsigned char *bytes = malloc(((size_t)64 << 20) + 1);
    memset(bytes, 'x', ((size_t)64 << 20) + 1);
    for (size_t i = 0; i < LENGTH(sizes); i++) {
        const unsigned char *binaries[DEVICES_MAX];
        size_t lengths[DEVICES_MAX];
        for (cl_uint d = 0; d < device_count; d++) {
            binaries[d] = bytes;
            lengths[d] = sizes[i];
        }
        show_binary("rubbish", lengths, binaries);
    }
    free(bytes);
}

static void binaries(void)
{
    cl_program program = source_program(plain);
    size_t sizes[DEVICES_MAX] = {0};
    unsigned char *bytes[DEVICES_MAX] = {NULL};
    SHOW(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(sizes), sizes, NULL));
    SAY("unbuilt: %zu %zu", sizes[0], sizes[1]);
    show_build(program, NULL);
    SHOW(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(sizes), sizes, NULL));
    for (cl_uint d = 0; d < device_count; d++) {
        bytes[d] = calloc(1, sizes[d] + 1);
    }
    size_t got = 0;
    SHOW(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(bytes), bytes, &got));
    SAY("%zu bytes, guard %d", got / device_count, bytes[0][sizes[0]]);
    SHOW(clGetProgramInfo(program, CL_PROGRAM_BINARIES, 1, bytes, &got));
    SHOW(clReleaseProgram(program));
    const unsigned char *const_bytes[DEVICES_MAX];
    memcpy(const_bytes, bytes, sizeof(bytes));
    show_binary("own", sizes, const_bytes);
    cl_int error = 77;
#define BINARY(...)                                                                                \
    SAY("binary(%s): %d", #__VA_ARGS__,                                                            \
        clCreateProgramWithBinary(__VA_ARGS__, NULL, &error) == NULL ? error : 1)
    BINARY(NULL, device_count, devices, sizes, const_bytes);
    BINARY(context, 0, devices, sizes, const_bytes);
    BINARY(context, 1, NULL, sizes, const_bytes);
    BINARY(context, 1, devices, NULL, const_bytes);
    const size_t nothing[DEVICES_MAX] = {0};
    const unsigned char *missing[DEVICES_MAX] = {NULL};
    show_binary("empty", nothing, const_bytes);
    show_binary("missing", sizes, missing);
    rubbish();
    for (cl_uint d = 0; d < device_count; d++) {
        free(bytes[d]);
    }
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void try_include(const char *what, const char *text, const char *options)
{
    cl_program program = source_program(text);
    cl_int error = clBuildProgram(program, 0, NULL, options, NULL, NULL);
    SAY("%s: %d, leaves %d", what, error, error == CL_SUCCESS ? run_kernel(program, "one") : 0);
    if (error != CL_SUCCESS) {
        show_log(program);
    }
    show_build_infos(program);
    size_t size = 0;
    char source[4096] = "";
    clGetProgramInfo(program, CL_PROGRAM_SOURCE, sizeof(source), source, &size);
    SAY("  source %zu, %d", size, strcmp(source, text));
    clReleaseProgram(program);
}

/* The kernel of most: leaves X. */
#define LEAVE "__kernel void one(__global int *to) { to[0] = X; }\n"

static void make_headers(void)
{
    mkdir("inc", 0700);
    mkdir("inc/sub", 0700);
    mkdir("other", 0700);
    mkdir("with blank", 0700);
    write_text("here.h", "#define X 1\n");
    write_text("inc/x.h", "#define X 2\n");
    write_text("inc/chain.h", "#pragma once\n#include \"sub/deep.h\"\n");
    write_text("inc/sub/deep.h", "#pragma once\n#include \"../x.h\"\n#include <chain.h>\n");
    write_text("inc/line.h",
               "int at(void) { return __LINE__; }\n\n#define X (at() * 1000 + HERE)\n");
    write_text("inc/file.h",
               "__constant char name[] = __FILE__;\n#define X name[4] * 256 + sizeof(name)\n");
    write_text("other/x.h", "#include_next <x.h>\n#define Y X + 50\n");
    write_text("with blank/x.h", "#define X 3\n");
    write_text("inc/bad.h", "int f(void) {\n  return nothing;\n}\n");
    write_text("inc/guard.h",
               "#if !defined(A)\n#define A\n#include \"guard.h\"\n#include \"guard.h\"\n"
               "#define X 9\n#endif\n");
}

static void includes(void)
{
    char folder[512];
    char text[1024];
    char options[1024];
    if (mkdir("headers", 0700) != 0 || chdir("headers") != 0 ||
        getcwd(folder, sizeof(folder)) == NULL) {
        perror("headers");
        exit(1);
    }
    make_headers();
    try_include("current directory", "#include \"here.h\"\n" LEAVE, NULL);
    try_include("dot", "#include \"./inc/../here.h\"\n" LEAVE, "");
    try_include("below", "#include \"inc/x.h\"\n" LEAVE, NULL);
    try_include("relative", "#include \"x.h\"\n" LEAVE, "-Iinc");
    try_include("separate", "#include <x.h>\n" LEAVE, "-I inc");
    try_include("parent", "#include <x.h>\n" LEAVE, "-I inc/sub/..");
    snprintf(options, sizeof(options), "-DZ=1 -I%s/inc -DW", folder);
    try_include("chain", "#include <chain.h>\n" LEAVE, "-I inc");
    cl_program program = source_program("#include <x.h>\n" LEAVE);
    SAY("absolute: %d", clBuildProgram(program, 0, NULL, options, NULL, NULL));
    SAY("  leaves %d", run_kernel(program, "one"));
    clReleaseProgram(program);
    try_include("next", "#include <x.h>\n__kernel void one(__global int *to) { to[0] = Y; }\n",
                "-Iother -Iinc");
    try_include("macro", "#include NAME\n" LEAVE, "-Iinc -DNAME=<x.h>");
    try_include("defined", "#define NAME \"inc/x.h\"\n#include NAME\n" LEAVE, NULL);
    try_include("lines", "#include \"line.h\"\n#define HERE __LINE__\n\n" LEAVE, "-Iinc");
    try_include("file", "#include \"file.h\"\n" LEAVE, "-Iinc");
    try_include("recursion", "#include \"guard.h\"\n" LEAVE, "-Iinc");
    try_include("unused", "#if 0\n#include \"missing.h\"\n#endif\n#define X 6\n" LEAVE, "-Iinc");
    try_include("missing", "#include \"missing.h\"\n" LEAVE, "-Iinc");
    try_include("fault", "#include \"bad.h\"\n" LEAVE, "-Iinc");
    try_include("blank", "#include \"x.h\"\n" LEAVE, "-I\"with blank\"");
    try_include("spaces", "  #  include   \"x.h\" // comment\n" LEAVE, "-Iinc");
    try_include("option include", "#define X 1\n" LEAVE, "-include inc/x.h");
    try_include("option at", "#define X 1\n" LEAVE, "@inc/x.h");
    snprintf(text, sizeof(text), "#include \"%s/inc/chain.h\"\n%s", folder, LEAVE);
    program = source_program(text);
    SAY("absolute file: %d", clBuildProgram(program, 0, NULL, "-Iinc", NULL, NULL));
    size_t size = 0;
    SHOW(clGetProgramInfo(program, CL_PROGRAM_SOURCE, 0, NULL, &size));
    SAY("  leaves %d, %d", run_kernel(program, "one"), size == strlen(text) + 1);
    clReleaseProgram(program);
    /* A directory in a macro, put before the header's name. */
    snprintf(text, sizeof(text), "-D INC=%s/inc", folder);
    program = source_program("#define S_(x) #x\n#define S(x) S_(x)\n#include S(INC/x.h)\n" LEAVE);
    SAY("computed: %d", clBuildProgram(program, 0, NULL, text, NULL, NULL));
    SAY("  leaves %d", run_kernel(program, "one"));
    clReleaseProgram(program);
    /* A header that changes between two builds. */
    program = source_program("#include \"x.h\"\n" LEAVE);
    SAY("first: %d", clBuildProgram(program, 0, NULL, "-Iinc", NULL, NULL));
    SAY("  leaves %d", run_kernel(program, "one"));
    write_text("inc/x.h", "#define X 4\n");
    SAY("second: %d", clBuildProgram(program, 0, NULL, "-Iinc", NULL, NULL));
    SAY("  leaves %d", run_kernel(program, "one"));
    clReleaseProgram(program);
    program = source_program("#include \"chain.h\"\n" LEAVE);
    SAY("compile: %d", clCompileProgram(program, 0, NULL, "-Iinc", 0, NULL, NULL, NULL, NULL));
    cl_int error = 77;
    cl_program linked = clLinkProgram(context, 0, NULL, NULL, 1, &program, NULL, NULL, &error);
    SAY("link: %d, leaves %d", error, linked == NULL ? 0 : run_kernel(linked, "one"));
    clReleaseProgram(program);
    if (chdir("..") != 0) {
        perror("..");
    }
}

/* A header that exists elsewhere, where the application does not run: as if it did not exist. */
static void absent(void)
{
    const char *path = getenv("ABSENT");
    char text[2048];
    char options[2048];
    if (path == NULL) {
        SAY("ABSENT names no file");
        return;
    }
    snprintf(text, sizeof(text), "#include \"%s\"\n" LEAVE, path);
    snprintf(options, sizeof(options), "-I%.*s", (int)(strrchr(path, '/') - path), path);
    try_include("absolute", text, NULL);
    snprintf(text, sizeof(text), "#include <%s>\n" LEAVE, strrchr(path, '/') + 1);
    try_include("directory", text, options);
}

static const struct scenario scenarios[] = {{"infos", infos, false},
                                            {"kernels", kernels, false},
                                            {"many", many, false},
                                            {"sources", sources, false},
                                            {"builds", builds, false},
                                            {"compiles", compiles, false},
                                            {"intermediate", intermediate, false},
                                            {"built_in", built_in, false},
                                            {"binaries", binaries, false},
                                            {"includes", includes, false},
                                            {"absent", absent, false}};

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 1) {
        list_scenarios(scenarios, LENGTH(scenarios));
        return 0;
    }
    open_all();
    for (int i = 1; i < argc; i++) {
        SAY("== %s", argv[i]);
        find_scenario(scenarios, LENGTH(scenarios), argv[i])->run();
    }
    return 0;
}
