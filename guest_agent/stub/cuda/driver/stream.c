/*
 * stream.c - streams and events: the runtime's, under the driver's names.
 */
#include "driver.h"

WH_EXPORT CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaStreamCreateWithFlags(phStream, Flags));
}

WH_EXPORT CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    int status = wh_driver_current();
    return status != 0 ? status
                       : WH_DRIVER(cudaStreamCreateWithPriority(phStream, flags, priority));
}

WH_EXPORT CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
    return WH_DRIVER(cudaStreamGetPriority(hStream, priority));
}

WH_EXPORT CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
    return WH_DRIVER(cudaStreamGetFlags(hStream, flags));
}

WH_EXPORT CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    int device = wh_cuda_thread()->device;
    int status = (uintptr_t)hStream <= 2 ? 0 : WH_DRIVER(cudaStreamGetDevice(hStream, &device));
    if (status == 0 && (pctx == NULL || device < 0 || device >= WH_DRIVER_DEVICES_MAX)) {
        return WH_DRIVER_INVALID_VALUE;
    }
    if (status == 0) {
        *pctx = wh_driver_primary(device);
    }
    return status;
}

/* There are no green contexts: streams belong to whole devices. */
WH_EXPORT CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, void **pGreenCtx)
{
    if (pGreenCtx != NULL) {
        *pGreenCtx = NULL;
    }
    return cuStreamGetCtx(hStream, pCtx);
}

WH_EXPORT CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaStreamGetId(hStream, streamId));
}

WH_EXPORT CUresult cuStreamGetAttribute(CUstream hStream, int attr, void *value_out)
{
    return WH_DRIVER(cudaStreamGetAttribute(hStream, attr, value_out));
}

WH_EXPORT CUresult cuStreamSetAttribute(CUstream hStream, int attr, const void *value)
{
    return WH_DRIVER(cudaStreamSetAttribute(hStream, attr, value));
}

WH_EXPORT CUresult cuStreamCopyAttributes(CUstream dst, CUstream src)
{
    return WH_DRIVER(cudaStreamCopyAttributes(dst, src));
}

WH_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    return WH_DRIVER(cudaThreadExchangeStreamCaptureMode(mode));
}

WH_EXPORT CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    return WH_DRIVER(cudaStreamWaitEvent(hStream, hEvent, Flags));
}

WH_EXPORT CUresult cuStreamAddCallback(CUstream hStream, wh_driver_callback callback,
                                       void *userData, unsigned int flags)
{
    return WH_DRIVER(cudaStreamAddCallback(hStream, (void *)callback, userData, flags));
}

WH_EXPORT CUresult cuLaunchHostFunc(CUstream hStream, wh_driver_host_function fn, void *userData)
{
    return WH_DRIVER(cudaLaunchHostFunc(hStream, (void *)fn, userData));
}

WH_EXPORT CUresult cuStreamQuery(CUstream hStream)
{
    return WH_DRIVER(cudaStreamQuery(hStream));
}

WH_EXPORT CUresult cuStreamSynchronize(CUstream hStream)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaStreamSynchronize(hStream));
}

WH_EXPORT CUresult cuStreamDestroy_v2(CUstream hStream)
{
    return WH_DRIVER(cudaStreamDestroy(hStream));
}

WH_EXPORT CUresult cuStreamDestroy(CUstream hStream)
{
    return cuStreamDestroy_v2(hStream);
}

WH_EXPORT CUresult cuStreamIsCapturing(CUstream hStream, int *captureStatus)
{
    return WH_DRIVER(cudaStreamIsCapturing(hStream, captureStatus));
}

WH_EXPORT CUresult cuStreamBeginCapture_v2(CUstream hStream, int mode)
{
    return WH_DRIVER(cudaStreamBeginCapture(hStream, mode));
}

WH_EXPORT CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    return WH_DRIVER(cudaStreamEndCapture(hStream, phGraph));
}

WH_EXPORT CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    int status = wh_driver_current();
    return status != 0 ? status : WH_DRIVER(cudaEventCreateWithFlags(phEvent, Flags));
}

WH_EXPORT CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    return WH_DRIVER(cudaEventRecord(hEvent, hStream));
}

WH_EXPORT CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
    return WH_DRIVER(cudaEventRecordWithFlags(hEvent, hStream, flags));
}

WH_EXPORT CUresult cuEventQuery(CUevent hEvent)
{
    return WH_DRIVER(cudaEventQuery(hEvent));
}

WH_EXPORT CUresult cuEventSynchronize(CUevent hEvent)
{
    return WH_DRIVER(cudaEventSynchronize(hEvent));
}

WH_EXPORT CUresult cuEventDestroy_v2(CUevent hEvent)
{
    return WH_DRIVER(cudaEventDestroy(hEvent));
}

WH_EXPORT CUresult cuEventDestroy(CUevent hEvent)
{
    return cuEventDestroy_v2(hEvent);
}

WH_EXPORT CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return WH_DRIVER(cudaEventElapsedTime(pMilliseconds, hStart, hEnd));
}

WH_EXPORT CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

WH_EXPORT CUresult cuProfilerStart(void)
{
    WH_API_CALL();
    return 0;
}

WH_EXPORT CUresult cuProfilerStop(void)
{
    WH_API_CALL();
    return 0;
}
