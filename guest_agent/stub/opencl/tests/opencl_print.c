/*
 * opencl_print.c - kernels that print, between lines of the program itself: `opencl_print SCENARIO`
 * writes the same natively and forwarded.
 */
#define CL_TARGET_OPENCL_VERSION 120

#include "scenarios.h"

static const char *const source = "__kernel void speak(int value)\n"
                                  "{ printf(\"kernel %d %s\\n\", value, \"speaks\"); }\n"
                                  "__kernel void rave(int lines)\n"
                                  "{ for (int i = 0; i < lines; i++) {\n"
                                  "    printf(\"kernel %d %08d %08d %08d %08d\\n\", i, i, i, i, i);"
                                  " } }\n";
/* The word that shows it is made by the preprocessor. */
static const char *const hidden = "#define JOIN(a, b) a##b\n"
                                  "__kernel void rave(int lines)\n"
                                  "{ for (int i = 0; i < lines; i++) {\n"
                                  "    JOIN(pri, ntf)(\"kernel %d %08d\\n\", i, i); } }\n";

static cl_context context;
static cl_device_id device;
static cl_command_queue queue;
static cl_program program;

static void open_all(const char *text)
{
    cl_int error = CL_SUCCESS;
    cl_platform_id platform;
    OK(clGetPlatformIDs(1, &platform, NULL));
    OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    OK(error);
    queue = clCreateCommandQueue(context, device, 0, &error);
    OK(error);
    program = clCreateProgramWithSource(context, 1, &text, NULL, &error);
    OK(error);
    OK(clBuildProgram(program, 1, &device, NULL, NULL, NULL));
}

static void launch(const char *name, int value, cl_event *event)
{
    const size_t one = 1;
    cl_int error = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program, name, &error);
    OK(error);
    OK(clSetKernelArg(kernel, 0, sizeof(value), &value));
    OK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, &one, 0, NULL, event));
    OK(clReleaseKernel(kernel));
}

/* Complete when the program knows that the kernel is, in each way to know it. */
static void lines(void)
{
    for (int i = 0; i < 30; i++) {
        cl_event event;
        cl_int status = CL_QUEUED;
        printf("before %d\n", i);
        fflush(stdout);
        launch("speak", i, &event);
        if (i % 3 == 0) {
            OK(clFinish(queue));
        } else if (i % 3 == 1) {
            OK(clWaitForEvents(1, &event));
        }
        while (i % 3 == 2 && status != CL_COMPLETE) {
            OK(clFlush(queue));
            OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status,
                              NULL));
        }
        OK(clReleaseEvent(event));
        printf("after %d\n", i);
        fflush(stdout);
    }
}

/* The program's own lines stay in its buffer, as long as they do natively. */
static void unbuffered(void)
{
    puts("before");
    launch("speak", 1, NULL);
    OK(clFinish(queue));
    puts("after");
}

/* More than lies anywhere on the way. */
static void much(void)
{
    launch("rave", 100000, NULL);
    OK(clFinish(queue));
    printf("after\n");
}

/* A program from a binary prints as well. */
static void from_binary(void)
{
    size_t size = 0;
    cl_int error = CL_SUCCESS;
    OK(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, NULL));
    unsigned char *binary = malloc(size);
    OK(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL));
    OK(clReleaseProgram(program));
    program = clCreateProgramWithBinary(context, 1, &device, &size, (const unsigned char **)&binary,
                                        NULL, &error);
    OK(error);
    OK(clBuildProgram(program, 1, &device, NULL, NULL, NULL));
    free(binary);
    launch("speak", 2, NULL);
    OK(clFinish(queue));
    puts("after");
}

static void CL_CALLBACK speak_too(cl_event event, cl_int status, void *data)
{
    (void)event;
    (void)status;
    (void)data;
    printf("callback\n");
    fflush(stdout);
}

/* What the kernel printed is there when its callback runs. */
static void with_callback(void)
{
    cl_event event;
    launch("speak", 3, &event);
    OK(clSetEventCallback(event, CL_COMPLETE, speak_too, NULL));
    OK(clFinish(queue));
    OK(clReleaseEvent(event));
}

/* The program ends as soon as it has seen the end of the kernel. */
static void at_the_end(void)
{
    cl_event event;
    launch("rave", 1000, &event);
    OK(clWaitForEvents(1, &event));
    _exit(0);
}

static void without_the_word(void)
{
    launch("rave", 200000, NULL);
    OK(clFinish(queue));
}

static const struct scenario scenarios[] = {
    {"lines", lines, false},
    {"unbuffered", unbuffered, false},
    {"much", much, false},
    {"binary", from_binary, false},
    {"callback", with_callback, false},
    {"end", at_the_end, false},
    {"hidden", without_the_word, true},
};

int main(int argc, char **argv)
{
    if (argc != 2) {
        list_scenarios(scenarios, LENGTH(scenarios));
        return 0;
    }
    const struct scenario *scenario = find_scenario(scenarios, LENGTH(scenarios), argv[1]);
    open_all(scenario->run == without_the_word ? hidden : source);
    scenario->run();
    return 0;
}
