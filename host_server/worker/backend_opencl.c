/*
 * backend_opencl.c - loads the machine's own OpenCL and names its first platform and devices.
 */
#define _GNU_SOURCE /* dl_iterate_phdr */

#include "backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "opencl_backend.h"
#include "session.h"
#include "wh_opencl_kinds.h"

#define LIBRARY "libOpenCL.so.1"
#define OWN_LIBRARY "libwormhole_opencl"
#define POCL "Portable Computing Language"

static struct wh_opencl_table table;
const struct wh_opencl_table *wh_cl = &table;
const struct wh_opencl_table *const wh_cl_own = &table;
struct wh_cl_devices wh_cl_devices;
bool wh_cl_requests_stay;

static int find_functions(char *error, size_t error_bytes)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(error, error_bytes, "cannot load %s: %s", LIBRARY, dlerror());
        return -ENOENT;
    }
#define FIND(name)                                                                                 \
    *(void **)&table.name = dlsym(library, #name);                                                 \
    if (table.name == NULL) {                                                                      \
        snprintf(error, error_bytes, "%s has no %s: install a loader for OpenCL 3.0", LIBRARY,     \
                 #name);                                                                           \
        return -ENOSYS;                                                                            \
    }
    WH_OPENCL_FUNCTIONS(FIND)
#undef FIND
    return 0;
}

static int is_own(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    (void)data;
    return info->dlpi_name != NULL && strstr(info->dlpi_name, OWN_LIBRARY) != NULL;
}

int wh_cl_refuse_own(char *error, size_t error_bytes)
{
    if (dl_iterate_phdr(is_own, NULL) == 0) {
        return 0;
    }
    snprintf(error, error_bytes,
             "the OpenCL loader found %s, which would forward to itself: set %s", OWN_LIBRARY,
             "OCL_ICD_VENDORS to the real driver's vendor file");
    return -ELOOP;
}

uint64_t wh_cl_device_handle(cl_device_id device)
{
    for (cl_uint i = 0; i < wh_cl_devices.count; i++) {
        if (wh_cl_devices.devices[i] == device) {
            return (uint64_t)WH_KIND_DEVICE << 56 | 1ull << 32 | (i + 1);
        }
    }
    return 0;
}

static int name_devices(struct wh_session *session, char *error, size_t error_bytes)
{
    cl_uint platforms = 0;
    cl_int status = wh_cl->clGetPlatformIDs(1, &wh_cl_devices.platform, &platforms);
    if (status != CL_SUCCESS || platforms == 0) {
        snprintf(error, error_bytes, "no OpenCL platform (error %d): %s", status,
                 "install a driver, for example pocl-opencl-icd");
        return -ENODEV;
    }
    status = wh_cl->clGetDeviceIDs(wh_cl_devices.platform, CL_DEVICE_TYPE_ALL, WH_CL_DEVICES_MAX,
                                   wh_cl_devices.devices, &wh_cl_devices.count);
    if (status != CL_SUCCESS || wh_cl_devices.count == 0) {
        snprintf(error, error_bytes, "the OpenCL platform has no device (error %d)", status);
        return -ENODEV;
    }
    if (wh_cl_devices.count > WH_CL_DEVICES_MAX) {
        wh_cl_devices.count = WH_CL_DEVICES_MAX;
    }
    int result = wh_handle_put(session, (uint64_t)WH_KIND_PLATFORM << 56 | 1ull << 32,
                               WH_KIND_PLATFORM, wh_cl_devices.platform);
    for (cl_uint i = 0; i < wh_cl_devices.count && result == 0; i++) {
        cl_device_id device = wh_cl_devices.devices[i];
        result = wh_handle_put(session, wh_cl_device_handle(device), WH_KIND_DEVICE, device);
    }
    if (result != 0) {
        snprintf(error, error_bytes, "no room for the devices: %s", strerror(-result));
    }
    return result;
}

/* PoCL writes what kernels print to descriptor 1 itself, past the buffer of stdio. */
static bool writes_directly(void)
{
    char name[256] = "";
    return wh_cl->clGetPlatformInfo(wh_cl_devices.platform, CL_PLATFORM_NAME, sizeof(name), name,
                                    NULL) == CL_SUCCESS &&
           strcmp(name, POCL) == 0;
}

int wh_cl_load(struct wh_session *session, char *error, size_t error_bytes)
{
    int result = find_functions(error, error_bytes);
    return result != 0 ? result : name_devices(session, error, error_bytes);
}

static int opencl_init(struct wh_session *session, char *error, size_t error_bytes)
{
    int result = wh_cl_load(session, error, error_bytes);
    session->output_is_direct = result == 0 && writes_directly();
    return result != 0 ? result : wh_cl_refuse_own(error, error_bytes);
}

static void time_calls(void)
{
    wh_cl = wh_cl_timed(wh_cl);
}

const struct wh_backend wh_backend_opencl = {
    .name = "opencl", .init = opencl_init, .time_calls = time_calls};
