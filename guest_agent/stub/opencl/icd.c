/*
 * icd.c - what the OpenCL loader looks up by name: the platform, and functions by name.
 */
#include "object.h"

#include <string.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define EXPORTED __attribute__((visibility("default")))

static uint32_t answered_serial; /* session that has said how many platforms there are */
static cl_uint answered_count;

/* Number of platforms: one, or none without a server. Asked once a session unless every call is a
 * message. */
static cl_int count_platforms(bool may_keep, cl_uint *count)
{
    struct wh_call call;
    uint32_t serial = __atomic_load_n(&answered_serial, __ATOMIC_ACQUIRE);
    *count = 0;
    if (may_keep && serial != 0 && serial == wh_session_serial()) {
        *count = answered_count;
        return CL_SUCCESS;
    }
    if (wh_call_begin(&call, WH_OP_clGetPlatformIDs) != 0) {
        return WH_CL_LOST;
    }
    cl_int error = wh_cl_call_sync(&call);
    *count = (cl_uint)wh_get_u64(&call);
    wh_call_end(&call);
    if (error == CL_SUCCESS && *count > 0) {
        *count = 1;
        answered_count = 1;
        __atomic_store_n(&answered_serial, wh_session_serial(), __ATOMIC_RELEASE);
    }
    return error;
}

static cl_int give_platform(bool may_keep, cl_uint num_entries, cl_platform_id *platforms,
                            cl_uint *num_platforms)
{
    cl_uint count;
    if ((platforms == NULL && num_platforms == NULL) || (platforms != NULL && num_entries == 0)) {
        return CL_INVALID_VALUE;
    }
    cl_int error = count_platforms(may_keep, &count);
    if (num_platforms != NULL) {
        *num_platforms = count;
    }
    if (error != CL_SUCCESS || count == 0 || wh_cl_platform() == NULL) {
        return CL_PLATFORM_NOT_FOUND_KHR;
    }
    if (platforms != NULL) {
        platforms[0] = (cl_platform_id)wh_cl_platform();
    }
    return CL_SUCCESS;
}

cl_int CL_API_CALL wh_stub_clGetPlatformIDs(cl_uint num_entries, cl_platform_id *platforms,
                                            cl_uint *num_platforms)
{
    WH_API_CALL();
    return give_platform(wh_local_answers(), num_entries, platforms, num_platforms);
}

/* The loader's own question, no call of the application. */
EXPORTED cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint num_entries, cl_platform_id *platforms,
                                                   cl_uint *num_platforms)
{
    return give_platform(true, num_entries, platforms, num_platforms);
}

/* ocl-icd looks this one up by name, before it uses the dispatch table. */
EXPORTED cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id platform, cl_platform_info param_name,
                                              size_t param_value_size, void *param_value,
                                              size_t *param_value_size_ret)
{
    return wh_cl_dispatch.clGetPlatformInfo(platform, param_name, param_value_size, param_value,
                                            param_value_size_ret);
}

static void *find_function(const char *name)
{
    if (name == NULL) {
        return NULL;
    }
    if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) {
        return (void *)clIcdGetPlatformIDsKHR;
    }
    if (strcmp(name, "clGetPlatformInfo") == 0) {
        return (void *)clGetPlatformInfo;
    }
    const struct wh_cl_named *named = wh_cl_by_name;
    while (named->name != NULL && strcmp(named->name, name) != 0) {
        named++;
    }
    return named->function;
}

void *CL_API_CALL wh_stub_clGetExtensionFunctionAddress(const char *func_name)
{
    WH_API_CALL();
    return find_function(func_name);
}

void *CL_API_CALL wh_stub_clGetExtensionFunctionAddressForPlatform(cl_platform_id platform,
                                                                   const char *func_name)
{
    WH_API_CALL();
    return wh_cl_live(platform, WH_KIND_PLATFORM) ? find_function(func_name) : NULL;
}

EXPORTED void *CL_API_CALL clGetExtensionFunctionAddress(const char *func_name)
{
    return find_function(func_name);
}
