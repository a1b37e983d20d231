/*
 * opencl_unload.c - an application that loads the OpenCL library itself and unloads it again: any
 * number of times, and with objects and commands that still live. Holds natively, too.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS

#include "scenarios.h"

#include <dirent.h>
#include <dlfcn.h>

#define WARM_ROUNDS 20
#define ROUNDS 1000

static void *library;

static void load(void)
{
    library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
}

/* The function of the library as it is loaded now. */
static void *function(const char *name)
{
    void *address = dlsym(library, name);
    if (address == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return address;
}

#define CL(name) ((__typeof__(&name))function(#name))

static void unload(void)
{
    EXPECT(dlclose(library), 0);
    library = NULL;
}

struct live {
    cl_context context;
    cl_command_queue queue;
    cl_mem buffer;
    int *mapped;
    cl_event gate;
    cl_event last;
};

static struct live make_live(void)
{
    struct live live;
    cl_platform_id platform;
    cl_device_id device;
    cl_int error = CL_SUCCESS;
    const int pattern = 7;
    OK(CL(clGetPlatformIDs)(1, &platform, NULL));
    OK(CL(clGetDeviceIDs)(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    live.context = CL(clCreateContext)(NULL, 1, &device, NULL, NULL, &error);
    OK(error);
    live.queue = CL(clCreateCommandQueue)(live.context, device, 0, &error);
    OK(error);
    live.buffer = CL(clCreateBuffer)(live.context, CL_MEM_READ_WRITE, 65536, NULL, &error);
    OK(error);
    OK(CL(clEnqueueFillBuffer)(live.queue, live.buffer, &pattern, sizeof(pattern), 0, 65536, 0,
                               NULL, NULL));
    live.mapped = CL(clEnqueueMapBuffer)(live.queue, live.buffer, CL_TRUE, CL_MAP_READ, 0, 65536, 0,
                                         NULL, NULL, &error);
    OK(error);
    live.gate = CL(clCreateUserEvent)(live.context, &error);
    OK(error);
    OK(CL(clEnqueueMarkerWithWaitList)(live.queue, 1, &live.gate, &live.last));
    OK(CL(clFlush)(live.queue));
    return live;
}

static void CL_CALLBACK ignore(cl_event event, cl_int status, void *data)
{
    (void)event;
    (void)status;
    (void)data;
}

/* Unloading takes nothing away; what lives can be used by the library loaded again. */
static void live_objects(void)
{
    load();
    struct live live = make_live();
    OK(CL(clSetEventCallback)(live.last, CL_COMPLETE, ignore, NULL));
    unload();
    EXPECT(live.mapped[16383], 7);
    load();
    OK(CL(clSetUserEventStatus)(live.gate, CL_COMPLETE));
    OK(CL(clWaitForEvents)(1, &live.last));
    OK(CL(clEnqueueUnmapMemObject)(live.queue, live.buffer, live.mapped, 0, NULL, NULL));
    OK(CL(clReleaseEvent)(live.last));
    OK(CL(clReleaseEvent)(live.gate));
    OK(CL(clReleaseMemObject)(live.buffer));
    OK(CL(clReleaseCommandQueue)(live.queue));
    OK(CL(clReleaseContext)(live.context));
    unload();
}

/* The last scenario of a process: it ends while a command waits and nothing is released. */
static void ends_unloaded(void)
{
    load();
    struct live live = make_live();
    OK(CL(clSetEventCallback)(live.last, CL_COMPLETE, ignore, NULL));
    unload();
}

static size_t count_descriptors(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

static size_t count_mappings(void)
{
    size_t count = 0;
    int c;
    FILE *file = fopen("/proc/self/maps", "r");
    while ((c = getc(file)) != EOF) {
        count += c == '\n' ? 1 : 0;
    }
    fclose(file);
    return count;
}

static void load_and_ask(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        cl_platform_id platform;
        cl_uint count = 0;
        load();
        OK(CL(clGetPlatformIDs)(1, &platform, &count));
        EXPECT(count, 1);
        unload();
    }
}

/* Whoever looks from outside does so at each line, and then sends one. */
static void pause_for(const char *label)
{
    char line[8];
    printf("%s\n", label);
    fflush(stdout);
    EXPECT(fgets(line, sizeof(line), stdin) != NULL, 1);
}

static void reload(void)
{
    load_and_ask(WARM_ROUNDS);
    size_t descriptors = count_descriptors();
    size_t mappings = count_mappings();
    pause_for("warm");
    load_and_ask(ROUNDS);
    EXPECT(count_descriptors(), descriptors);
    EXPECT(count_mappings() <= mappings + 8, 1); /* of malloc */
    pause_for("done");
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        {"live_objects", live_objects, false},
        {"ends_unloaded", ends_unloaded, false},
        {"reload", reload, true},
    };
    return run_scenarios(scenarios, LENGTH(scenarios), argc, argv);
}
