/*
 * devices.c - which devices there are, and how much memory they have.
 */
#include "nvml.h"

#include <stdio.h>

#define DEVICES_MAX 64u
#define NAME_BYTES 256u
#define UUID_OFFSET 256u
#define UUID_BYTES 16u
#define UUID_TEXT_BYTES 41u
#define MAJOR 75
#define MINOR 76

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    UNKNOWN = 999,
};

struct nvmlDevice_st {
    int number;
};

static struct nvmlDevice_st devices[DEVICES_MAX];
static uint32_t initialized;

/* What the runtime remembers as the thread's last error is none of this library's business. */
#define RUNTIME(call)                                                                              \
    ({                                                                                             \
        int last_error = wh_cuda_thread()->last_error;                                             \
        int runtime_status = (call);                                                               \
        wh_cuda_thread()->last_error = last_error;                                                 \
        runtime_status;                                                                            \
    })

/* How many there are; more than can be named are left out. */
static int count_devices(unsigned *count)
{
    int found = 0;
    int status = RUNTIME(cudaGetDeviceCount(&found));
    if (status != 0) {
        return status == WH_CUDA_NO_DEVICE ? DRIVER_NOT_LOADED : UNKNOWN;
    }
    *count = (unsigned)found < DEVICES_MAX ? (unsigned)found : DEVICES_MAX;
    return SUCCESS;
}

WH_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    unsigned count = 0;
    int status = count_devices(&count);
    if (status == SUCCESS) {
        __atomic_add_fetch(&initialized, 1, __ATOMIC_RELAXED);
    }
    return status;
}

WH_EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInit_v2();
}

WH_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return nvmlInit_v2();
}

static int ready(void)
{
    return __atomic_load_n(&initialized, __ATOMIC_RELAXED) > 0 ? SUCCESS : UNINITIALIZED;
}

WH_EXPORT nvmlReturn_t nvmlShutdown(void)
{
    WH_API_CALL();
    int status = ready();
    if (status == SUCCESS) {
        __atomic_sub_fetch(&initialized, 1, __ATOMIC_RELAXED);
    }
    return status;
}

WH_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    int status = version == NULL ? INVALID_ARGUMENT : ready();
    return status != SUCCESS ? status : RUNTIME(cudaDriverGetVersion(version)) == 0 ? 0 : UNKNOWN;
}

WH_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    int status = count == NULL ? INVALID_ARGUMENT : ready();
    return status != SUCCESS ? status : count_devices(count);
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    unsigned count = 0;
    int status = device == NULL ? INVALID_ARGUMENT : ready();
    if (status == SUCCESS) {
        status = count_devices(&count);
    }
    if (status == SUCCESS && index >= count) {
        status = INVALID_ARGUMENT;
    }
    if (status == SUCCESS) {
        devices[index].number = (int)index;
        *device = &devices[index];
    }
    return status;
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static bool is_device(nvmlDevice_t device)
{
    return device >= devices && device < devices + DEVICES_MAX;
}

static int properties_of(nvmlDevice_t device, uint8_t *properties)
{
    int status = is_device(device) ? ready() : INVALID_ARGUMENT;
    if (status == SUCCESS && RUNTIME(cudaGetDeviceProperties(properties, device->number)) != 0) {
        status = UNKNOWN;
    }
    return status;
}

static int give_text(const char *text, char *to, unsigned length)
{
    size_t bytes = strlen(text) + 1;
    if (to == NULL || bytes > length) {
        return to == NULL ? INVALID_ARGUMENT : INSUFFICIENT_SIZE;
    }
    memcpy(to, text, bytes);
    return SUCCESS;
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    uint8_t properties[WH_CUDA_PROPERTIES_BYTES] = {0};
    int status = properties_of(device, properties);
    properties[NAME_BYTES - 1] = '\0';
    return status != SUCCESS ? status : give_text((const char *)properties, name, length);
}

/* "GPU-" and the identifier as it is always written. */
static int uuid_of(nvmlDevice_t device, char *text)
{
    uint8_t properties[WH_CUDA_PROPERTIES_BYTES] = {0};
    const uint8_t *u = properties + UUID_OFFSET;
    int status = properties_of(device, properties);
    snprintf(text, UUID_TEXT_BYTES,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    return status;
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    char text[UUID_TEXT_BYTES];
    int status = uuid_of(device, text);
    return status != SUCCESS ? status : give_text(text, uuid, length);
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char text[UUID_TEXT_BYTES];
    unsigned count = 0;
    nvmlDevice_t found = NULL;
    int status = uuid == NULL ? INVALID_ARGUMENT : nvmlDeviceGetCount_v2(&count);
    for (unsigned i = 0; i < count && status == SUCCESS; i++) {
        status = nvmlDeviceGetHandleByIndex_v2(i, &found);
        if (status == SUCCESS && uuid_of(found, text) == SUCCESS && strcmp(text, uuid) == 0) {
            return nvmlDeviceGetHandleByIndex_v2(i, device);
        }
    }
    return status != SUCCESS ? status : NOT_FOUND;
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    WH_API_CALL();
    if (!is_device(device) || index == NULL) {
        return INVALID_ARGUMENT;
    }
    *index = (unsigned)device->number;
    return ready();
}

/* Free and total bytes of a device, whichever is the thread's. */
static int memory_of(nvmlDevice_t device, size_t *available, size_t *total)
{
    int status = is_device(device) ? ready() : INVALID_ARGUMENT;
    int before = wh_cuda_thread()->device;
    if (status != SUCCESS) {
        return status;
    }
    if (RUNTIME(cudaSetDevice(device->number)) != 0 ||
        RUNTIME(cudaMemGetInfo(available, total)) != 0) {
        status = UNKNOWN;
    }
    (void)RUNTIME(cudaSetDevice(before));
    return status;
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, void *memory)
{
    size_t available = 0;
    size_t total = 0;
    int status = memory == NULL ? INVALID_ARGUMENT : memory_of(device, &available, &total);
    if (status == SUCCESS) {
        const unsigned long long values[] = {total, available, total - available};
        memcpy(memory, values, sizeof(values));
    }
    return status;
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, void *memory)
{
    size_t available = 0;
    size_t total = 0;
    int status = memory == NULL ? INVALID_ARGUMENT : memory_of(device, &available, &total);
    if (status == SUCCESS) {
        /* Behind the version: total, reserved, free, used. */
        const unsigned long long values[] = {total, 0, available, total - available};
        memcpy((char *)memory + sizeof(unsigned long long), values, sizeof(values));
    }
    return status;
}

WH_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
                                                          int *minor)
{
    int status = is_device(device) && major != NULL && minor != NULL ? ready() : INVALID_ARGUMENT;
    if (status == SUCCESS && (RUNTIME(cudaDeviceGetAttribute(major, MAJOR, device->number)) != 0 ||
                              RUNTIME(cudaDeviceGetAttribute(minor, MINOR, device->number)) != 0)) {
        status = UNKNOWN;
    }
    return status;
}

WH_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    WH_API_CALL();
    switch (result) {
    case SUCCESS:
        return "Success";
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID_ARGUMENT:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NOT_FOUND:
        return "Not Found";
    case INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    default:
        return "Unknown Error";
    }
}
