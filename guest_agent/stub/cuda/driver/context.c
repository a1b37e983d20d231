/*
 * context.c - initialisation, devices and contexts.
 *
 * A context is an object of the client's: which device it is for. Behind all contexts of a device
 * is one device context, the runtime's, so what one allocates another can reach. The runtime makes
 * a device's primary context current in a thread that has none, and where it sets another device.
 */
#include "driver.h"

#include <stdlib.h>

#define CONTEXT_MAGIC 0x43545853u
#define DEPTH_MAX 64u

/* Offsets in the runtime's properties. */
#define NAME_BYTES 256u
#define UUID_OFFSET 256u
#define UUID_BYTES 16u
#define MEMORY_OFFSET 288u

/* Attributes of a device. */
#define MAJOR 75
#define MINOR 76

struct CUctx_st {
    uint32_t magic;
    int device;
    bool primary;
    unsigned flags;
    uint64_t id;
};

static int initialized;
static struct CUctx_st primaries[WH_DRIVER_DEVICES_MAX];
static uint32_t retained[WH_DRIVER_DEVICES_MAX];
static uint64_t latest_id;
static __thread CUcontext stack[DEPTH_MAX]; /* as deep as the thread's state says */

WH_EXPORT CUresult cuInit(unsigned int Flags)
{
    WH_API_CALL();
    int count = 0;
    if (Flags != 0) {
        return WH_DRIVER_INVALID_VALUE;
    }
    int status = WH_DRIVER(cudaGetDeviceCount(&count));
    if (status == 0) {
        __atomic_store_n(&initialized, 1, __ATOMIC_RELEASE);
    }
    return status;
}

int wh_driver_ready(void)
{
    /* The runtime initializes the driver when it is first used. */
    bool ready = __atomic_load_n(&initialized, __ATOMIC_ACQUIRE) != 0 || wh_cuda_session() != 0;
    return ready ? 0 : WH_DRIVER_NOT_INITIALIZED;
}

/* Whether it is the number of a device. */
static int check_device(int device)
{
    int count = 0;
    int status = wh_driver_ready();
    if (status == 0) {
        status = WH_DRIVER(cudaGetDeviceCount(&count));
    }
    if (status == 0 && (device < 0 || device >= count || device >= WH_DRIVER_DEVICES_MAX)) {
        status = WH_DRIVER_INVALID_DEVICE;
    }
    return status;
}

CUcontext wh_driver_primary(int device)
{
    struct CUctx_st *context = &primaries[device];
    context->device = device;
    context->primary = true;
    context->id = (uint64_t)device + 1;
    __atomic_store_n(&context->magic, CONTEXT_MAGIC, __ATOMIC_RELEASE);
    return context;
}

/* The thread's: what it has set, or the runtime's. */
static CUcontext current(void)
{
    const struct wh_cuda_thread *thread = wh_cuda_thread();
    if (thread->context_depth == 0) {
        return thread->uses_primary ? wh_driver_primary(thread->device) : NULL;
    }
    CUcontext *top = &stack[thread->context_depth - 1];
    if ((*top)->device != thread->device) {
        *top = wh_driver_primary(thread->device); /* the runtime has set another device */
    }
    return *top;
}

static bool is_context(CUcontext context)
{
    return context != NULL && __atomic_load_n(&context->magic, __ATOMIC_ACQUIRE) == CONTEXT_MAGIC;
}

int wh_driver_current(void)
{
    int status = wh_driver_ready();
    CUcontext context = current();
    if (status != 0 || is_context(context)) {
        return status;
    }
    return context == NULL ? WH_DRIVER_INVALID_CONTEXT : WH_DRIVER_DESTROYED;
}

/* The thread's device is its context's, which may be none. */
static void enter(CUcontext context)
{
    if (context != NULL) {
        wh_cuda_thread()->device = context->device;
    }
}

WH_EXPORT CUresult cuDriverGetVersion(int *driverVersion)
{
    return WH_DRIVER(cudaDriverGetVersion(driverVersion));
}

WH_EXPORT CUresult cuDeviceGetCount(int *count)
{
    int status = wh_driver_ready();
    return status != 0 ? status : WH_DRIVER(cudaGetDeviceCount(count));
}

WH_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    WH_API_CALL();
    int status = check_device(ordinal);
    if (status == 0 && device == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        *device = ordinal;
    }
    return status;
}

/* The runtime's properties of a device. */
static int properties_of(int device, uint8_t *properties)
{
    int status = check_device(device);
    return status != 0 ? status : WH_DRIVER(cudaGetDeviceProperties(properties, device));
}

WH_EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    uint8_t properties[WH_CUDA_PROPERTIES_BYTES] = {0};
    int status = properties_of(dev, properties);
    if (status == 0 && (name == NULL || len < 1)) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        size_t bytes = (size_t)len < NAME_BYTES ? (size_t)len : NAME_BYTES;
        memcpy(name, properties, bytes);
        name[bytes - 1] = '\0';
    }
    return status;
}

WH_EXPORT CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice dev)
{
    uint8_t properties[WH_CUDA_PROPERTIES_BYTES] = {0};
    int status = properties_of(dev, properties);
    if (status == 0 && uuid == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        memcpy(uuid, properties + UUID_OFFSET, UUID_BYTES);
    }
    return status;
}

WH_EXPORT CUresult cuDeviceGetUuid(void *uuid, CUdevice dev)
{
    return cuDeviceGetUuid_v2(uuid, dev);
}

WH_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    uint8_t properties[WH_CUDA_PROPERTIES_BYTES] = {0};
    int status = properties_of(dev, properties);
    if (status == 0 && bytes == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        memcpy(bytes, properties + MEMORY_OFFSET, sizeof(*bytes));
    }
    return status;
}

WH_EXPORT CUresult cuDeviceGetAttribute(int *pi, int attrib, CUdevice dev)
{
    int status = check_device(dev);
    return status != 0 ? status : WH_DRIVER(cudaDeviceGetAttribute(pi, attrib, dev));
}

WH_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    int status = cuDeviceGetAttribute(major, MAJOR, dev);
    return status != 0 ? status : cuDeviceGetAttribute(minor, MINOR, dev);
}

WH_EXPORT CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    int status = check_device(dev);
    return status != 0 ? status : WH_DRIVER(cudaDeviceGetPCIBusId(pciBusId, len, dev));
}

WH_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    int status = wh_driver_ready();
    return status != 0 ? status : WH_DRIVER(cudaDeviceGetByPCIBusId(dev, pciBusId));
}

WH_EXPORT CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    int status = check_device(dev);
    return status != 0 ? status : WH_DRIVER(cudaDeviceCanAccessPeer(canAccessPeer, dev, peerDev));
}

WH_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attrib, CUdevice srcDevice,
                                           CUdevice dstDevice)
{
    int status = check_device(srcDevice);
    return status != 0 ? status
                       : WH_DRIVER(cudaDeviceGetP2PAttribute(value, attrib, srcDevice, dstDevice));
}

WH_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    WH_API_CALL();
    int status = check_device(dev);
    if (status == 0 && pctx == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        __atomic_add_fetch(&retained[dev], 1, __ATOMIC_RELAXED);
        *pctx = wh_driver_primary(dev);
    }
    return wh_driver_answered(status);
}

WH_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    WH_API_CALL();
    int status = check_device(dev);
    if (status == 0 && __atomic_load_n(&retained[dev], __ATOMIC_RELAXED) > 0) {
        __atomic_sub_fetch(&retained[dev], 1, __ATOMIC_RELAXED);
    } else if (status == 0 && wh_cuda_primary_is_active(dev)) {
        wh_cuda_primary_end(dev); /* the runtime has retained it, too */
    } else if (status == 0) {
        status = WH_DRIVER_INVALID_CONTEXT;
    }
    return status;
}

WH_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return cuDevicePrimaryCtxRelease_v2(dev);
}

WH_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    WH_API_CALL();
    int status = check_device(dev);
    if (status == 0) {
        wh_driver_primary(dev)->flags = flags;
    }
    return status;
}

WH_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

WH_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    WH_API_CALL();
    int status = check_device(dev);
    if (status == 0 && (flags == NULL || active == NULL)) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        *flags = primaries[dev].flags;
        *active = wh_cuda_primary_is_active(dev) || retained[dev] != 0;
    }
    return wh_driver_answered(status);
}

WH_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    int status = check_device(dev);
    int before = wh_cuda_thread()->device;
    if (status == 0) {
        wh_cuda_thread()->device = dev;
        status = WH_DRIVER(cudaDeviceReset());
        wh_cuda_thread()->device = before;
    }
    return status;
}

WH_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return cuDevicePrimaryCtxReset_v2(dev);
}

static int push(CUcontext context)
{
    struct wh_cuda_thread *thread = wh_cuda_thread();
    if (thread->context_depth == DEPTH_MAX) {
        return wh_driver_api.memory;
    }
    stack[thread->context_depth++] = context;
    enter(context);
    return 0;
}

/* The thread's context, which is no longer current then; NULL if there was none. */
static CUcontext pop(void)
{
    struct wh_cuda_thread *thread = wh_cuda_thread();
    CUcontext popped = current();
    if (thread->context_depth > 0) {
        thread->context_depth--;
    } else {
        thread->uses_primary = false;
    }
    enter(current());
    return popped;
}

WH_EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    WH_API_CALL();
    int status = check_device(dev);
    if (status != 0 || pctx == NULL) {
        return status != 0 ? status : WH_DRIVER_INVALID_VALUE;
    }
    CUcontext context = calloc(1, sizeof(*context));
    if (context == NULL) {
        return wh_driver_api.memory;
    }
    context->magic = CONTEXT_MAGIC;
    context->device = dev;
    context->flags = flags;
    context->id = WH_DRIVER_DEVICES_MAX + __atomic_add_fetch(&latest_id, 1, __ATOMIC_RELAXED);
    status = push(context);
    if (status != 0) {
        free(context);
        return status;
    }
    *pctx = context;
    return 0;
}

WH_EXPORT CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return cuCtxCreate_v2(pctx, flags, dev);
}

WH_EXPORT CUresult cuCtxCreate_v3(CUcontext *pctx, void *paramsArray, int numParams,
                                  unsigned int flags, CUdevice dev)
{
    bool plain = paramsArray == NULL || numParams == 0;
    return plain ? cuCtxCreate_v2(pctx, flags, dev) : WH_DRIVER_NOT_SUPPORTED;
}

WH_EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, void *ctxCreateParams, unsigned int flags,
                                  CUdevice dev)
{
    /* Parameters ask for a share of the device, which is the server's to give. */
    return ctxCreateParams != NULL ? WH_DRIVER_NOT_SUPPORTED : cuCtxCreate_v2(pctx, flags, dev);
}

WH_EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    WH_API_CALL();
    if (!is_context(ctx) || ctx->primary) {
        return WH_DRIVER_INVALID_CONTEXT;
    }
    /* What it made stays, as the device context does. */
    while (current() == ctx) {
        (void)pop();
    }
    /* It may be current in other threads, which learn that it is destroyed: it is not freed. */
    __atomic_store_n(&ctx->magic, 0, __ATOMIC_RELEASE);
    return 0;
}

WH_EXPORT CUresult cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}

WH_EXPORT CUresult cuCtxDetach(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}

WH_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    WH_API_CALL();
    return is_context(ctx) ? wh_driver_answered(push(ctx)) : WH_DRIVER_INVALID_CONTEXT;
}

WH_EXPORT CUresult cuCtxPushCurrent(CUcontext ctx)
{
    return cuCtxPushCurrent_v2(ctx);
}

WH_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    WH_API_CALL();
    CUcontext popped = pop();
    if (popped == NULL) {
        return WH_DRIVER_INVALID_CONTEXT;
    }
    if (pctx != NULL) {
        *pctx = popped;
    }
    return wh_driver_answered(0);
}

WH_EXPORT CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    return cuCtxPopCurrent_v2(pctx);
}

WH_EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
    WH_API_CALL();
    int status = wh_driver_ready();
    if (status != 0 || (ctx != NULL && !is_context(ctx))) {
        return status != 0 ? status : WH_DRIVER_INVALID_CONTEXT;
    }
    /* It takes the place of the one that is current. */
    struct wh_cuda_thread *thread = wh_cuda_thread();
    if (ctx == NULL) {
        (void)pop();
    } else if (ctx != current() && thread->context_depth > 0) {
        stack[thread->context_depth - 1] = ctx;
        enter(ctx);
    } else if (ctx != current()) {
        thread->uses_primary = false;
        status = push(ctx);
    }
    return wh_driver_answered(status);
}

WH_EXPORT CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    WH_API_CALL();
    int status = wh_driver_ready();
    if (status != 0 || pctx == NULL) {
        return status != 0 ? status : WH_DRIVER_INVALID_VALUE;
    }
    *pctx = current();
    return wh_driver_answered(0);
}

WH_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    WH_API_CALL();
    int status = wh_driver_current();
    if (status != 0 || device == NULL) {
        return status != 0 ? status : WH_DRIVER_INVALID_VALUE;
    }
    *device = current()->device;
    return wh_driver_answered(0);
}

WH_EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
    WH_API_CALL();
    int status = wh_driver_current();
    if (status != 0 || flags == NULL) {
        return status != 0 ? status : WH_DRIVER_INVALID_VALUE;
    }
    *flags = current()->flags;
    return 0;
}

WH_EXPORT CUresult cuCtxSetFlags(unsigned int flags)
{
    WH_API_CALL();
    int status = wh_driver_current();
    if (status == 0) {
        current()->flags = flags;
    }
    return status;
}

WH_EXPORT CUresult cuCtxSynchronize(void)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaDeviceSynchronize());
}

/* The later forms of these take any context; NULL is the thread's. */
WH_EXPORT CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    int status = wh_driver_ready();
    int before = wh_cuda_thread()->device;
    if (ctx == NULL || status != 0) {
        return status != 0 ? status : cuCtxSynchronize();
    }
    if (!is_context(ctx)) {
        return WH_DRIVER_INVALID_CONTEXT;
    }
    wh_cuda_thread()->device = ctx->device;
    status = WH_DRIVER(cudaDeviceSynchronize());
    wh_cuda_thread()->device = before;
    return status;
}

WH_EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    WH_API_CALL();
    if (ctx == NULL) {
        return cuCtxGetDevice(device);
    }
    if (device == NULL || !is_context(ctx)) {
        return device == NULL ? WH_DRIVER_INVALID_VALUE : WH_DRIVER_INVALID_CONTEXT;
    }
    *device = ctx->device;
    return wh_driver_answered(0);
}

WH_EXPORT CUresult cuCtxGetLimit(size_t *pvalue, int limit)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaDeviceGetLimit(pvalue, limit));
}

WH_EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaDeviceSetLimit(limit, value));
}

WH_EXPORT CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    WH_API_CALL();
    if (version == NULL || (ctx != NULL && !is_context(ctx))) {
        return version == NULL ? WH_DRIVER_INVALID_VALUE : WH_DRIVER_INVALID_CONTEXT;
    }
    *version = 3020; /* the interface that all drivers since CUDA 3.2 have */
    return 0;
}

WH_EXPORT CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    int status = wh_driver_current();
    return status != 0
               ? status
               : WH_DRIVER(cudaDeviceGetStreamPriorityRange(leastPriority, greatestPriority));
}

WH_EXPORT CUresult cuCtxGetCacheConfig(int *pconfig)
{
    WH_API_CALL();
    int status = wh_driver_current();
    if (status == 0 && pconfig == NULL) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        *pconfig = 0;
    }
    return status;
}

WH_EXPORT CUresult cuCtxSetCacheConfig(int config)
{
    WH_API_CALL();
    (void)config; /* a wish that devices of today do not follow */
    return wh_driver_current();
}

WH_EXPORT CUresult cuCtxResetPersistingL2Cache(void)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaCtxResetPersistingL2Cache());
}

WH_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    int status = wh_driver_current();
    if (status == 0 && !is_context(peerContext)) {
        status = WH_DRIVER_INVALID_CONTEXT;
    }
    return status != 0 ? status : WH_DRIVER(cudaDeviceEnablePeerAccess(peerContext->device, Flags));
}

WH_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    int status = wh_driver_current();
    if (status == 0 && !is_context(peerContext)) {
        status = WH_DRIVER_INVALID_CONTEXT;
    }
    return status != 0 ? status : WH_DRIVER(cudaDeviceDisablePeerAccess(peerContext->device));
}

WH_EXPORT CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    WH_API_CALL();
    ctx = ctx != NULL ? ctx : current();
    if (!is_context(ctx) || ctxId == NULL) {
        return ctxId == NULL ? WH_DRIVER_INVALID_VALUE : WH_DRIVER_INVALID_CONTEXT;
    }
    *ctxId = ctx->id;
    return 0;
}
