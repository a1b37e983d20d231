/*
 * device.c - devices, versions, errors: what cannot change is asked for once.
 */
#define _GNU_SOURCE

#include "cudart.h"

#include <stdio.h>
#include <stdlib.h>

#include "fork_lock.h"

#define DEVICES_MAX 16
#define ATTRIBUTES_MAX 256
#define ERRORS_MAX 1024
#define TEXT_BYTES 256u
#define OWN_VERSION 13000 /* of the library that this one stands in for */

/* What the device can do and the forwarding cannot: a program that asks is told so, by attribute
 * and by where the properties have it. The program's own memory is not the device's, whether it is
 * registered or not; no memory and no event is shared with another process or device. */
static const struct {
    int attribute;
    uint16_t offset;
} hidden[] = {
    {83, 636},  /* managed memory */
    {88, 652},  /* kernels that reach pageable memory */
    {89, 656},  /* managed memory from both sides at a time */
    {91, 664},  /* registered memory by the host's pointer */
    {100, 680}, /* pageable memory by the host's page tables */
    {101, 684}, /* managed memory from the host without migration */
    {116, 724}, /* other devices that reach its memory */
    {119, 736}, /* handles of pools for other processes: kinds */
    {121, 740}, /* arrays that are mapped later */
    {125, 744}, /* events of other processes */
};
#define HIDDEN_COUNT (sizeof(hidden) / sizeof(hidden[0]))

WH_FORK_LOCK(device_lock);
static int device_count = -1;
static uint8_t *properties[DEVICES_MAX];
static struct {
    bool known;
    int value;
} attributes[DEVICES_MAX][ATTRIBUTES_MAX];
static int priorities[2];
static bool priorities_known;
static int versions[2];
static char *error_texts[ERRORS_MAX][2];

/* A question whose answer is `count` ints of *values, for one or no device. */
static int ask(uint16_t opcode, int *const *values, int count, const uint64_t *arguments,
               int argument_count)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cudart_api, opcode);
    if (status != 0) {
        return status;
    }
    for (int i = 0; i < count; i++) {
        wh_put_out(&call, sizeof(int), true);
    }
    for (int i = 0; i < argument_count; i++) {
        wh_put_u64(&call, arguments[i]);
    }
    status = wh_cuda_call(&call, &wh_cudart_api);
    for (int i = 0; i < count && status == 0; i++) {
        (void)wh_get_out(&call, values[i], sizeof(int));
    }
    wh_call_end(&call);
    return status;
}

static int count_devices(int *count)
{
    int found = __atomic_load_n(&device_count, __ATOMIC_ACQUIRE);
    if (found < 0 || !wh_local_answers()) {
        int *values[] = {&found};
        found = 0;
        int status = ask(WH_OP_cudaGetDeviceCount, values, 1, NULL, 0);
        if (status != 0) {
            return status;
        }
        __atomic_store_n(&device_count, found, __ATOMIC_RELEASE);
    }
    *count = found;
    return 0;
}

WH_EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    WH_API_CALL();
    if (count == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    *count = 0;
    return wh_cuda_done(&wh_cudart_api, count_devices(count));
}

WH_EXPORT cudaError_t cudaGetDevice(int *device)
{
    WH_API_CALL();
    if (device == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    *device = wh_cuda_thread()->device;
    return wh_cuda_answered(&wh_cudart_api, 0);
}

WH_EXPORT cudaError_t cudaSetDevice(int device)
{
    WH_API_CALL();
    int count = 0;
    int status = count_devices(&count);
    if (status == 0 && (device < 0 || device >= count)) {
        status = WH_CUDA_INVALID_DEVICE;
    }
    if (status == 0) {
        wh_cuda_thread()->device = device;
        wh_cuda_use_primary();
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

static void hide_properties(uint8_t *of_device)
{
    for (size_t i = 0; i < HIDDEN_COUNT; i++) {
        memset(of_device + hidden[i].offset, 0, sizeof(int));
    }
}

static bool is_hidden(int attribute)
{
    bool found = false;
    for (size_t i = 0; i < HIDDEN_COUNT; i++) {
        found = found || hidden[i].attribute == attribute;
    }
    return found;
}

WH_EXPORT cudaError_t cudaGetDeviceProperties(void *result, int device)
{
    WH_API_CALL();
    struct wh_call call;
    if (result == NULL || device < 0 || device >= DEVICES_MAX) {
        return wh_cuda_done(&wh_cudart_api,
                            result == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_DEVICE);
    }
    const uint8_t *known = __atomic_load_n(&properties[device], __ATOMIC_ACQUIRE);
    if (known != NULL && wh_local_answers()) {
        memcpy(result, known, WH_CUDA_PROPERTIES_BYTES);
        return 0;
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaGetDeviceProperties);
    if (status != 0) {
        return wh_cuda_done(&wh_cudart_api, status);
    }
    wh_put_out(&call, WH_CUDA_PROPERTIES_BYTES, true);
    wh_put_u64(&call, (uint64_t)device);
    status = wh_cuda_call(&call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(&call, result, WH_CUDA_PROPERTIES_BYTES);
        hide_properties(result);
        uint8_t *copy = malloc(WH_CUDA_PROPERTIES_BYTES);
        uint8_t *none = NULL;
        if (copy != NULL) {
            memcpy(copy, result, WH_CUDA_PROPERTIES_BYTES);
        }
        if (!__atomic_compare_exchange_n(&properties[device], &none, copy, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED)) {
            free(copy);
        }
    }
    wh_call_end(&call);
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    WH_API_CALL();
    if (value == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    bool can_keep =
        device >= 0 && device < DEVICES_MAX && attribute >= 0 && attribute < ATTRIBUTES_MAX;
    if (can_keep && wh_local_answers() &&
        __atomic_load_n(&attributes[device][attribute].known, __ATOMIC_ACQUIRE)) {
        *value = attributes[device][attribute].value;
        return 0;
    }
    int *values[] = {value};
    const uint64_t arguments[] = {(uint64_t)attribute, (uint64_t)device};
    int status = ask(WH_OP_cudaDeviceGetAttribute, values, 1, arguments, 2);
    if (status == 0 && is_hidden(attribute)) {
        *value = 0;
    }
    if (status == 0 && can_keep) {
        attributes[device][attribute].value = *value;
        __atomic_store_n(&attributes[device][attribute].known, true, __ATOMIC_RELEASE);
    }
    return wh_cuda_done(&wh_cudart_api, status);
}

WH_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    WH_API_CALL();
    int status = 0;
    pthread_mutex_lock(&device_lock);
    if (!priorities_known || !wh_local_answers()) {
        int *values[] = {&priorities[0], &priorities[1]};
        status = ask(WH_OP_cudaDeviceGetStreamPriorityRange, values, 2, NULL, 0);
        priorities_known = status == 0;
    }
    if (status == 0 && least != NULL) {
        *least = priorities[0];
    }
    if (status == 0 && greatest != NULL) {
        *greatest = priorities[1];
    }
    pthread_mutex_unlock(&device_lock);
    return wh_cuda_done(&wh_cudart_api, status);
}

static int version(int which, uint16_t opcode, int *result)
{
    int known = __atomic_load_n(&versions[which], __ATOMIC_RELAXED);
    int status = 0;
    if (known == 0 || !wh_local_answers()) {
        int *values[] = {&known};
        status = ask(opcode, values, 1, NULL, 0);
        if (status == 0) {
            __atomic_store_n(&versions[which], known, __ATOMIC_RELAXED);
        }
    }
    *result = known;
    return status;
}

/* As natively these two work without a device. */
WH_EXPORT cudaError_t cudaRuntimeGetVersion(int *result)
{
    WH_API_CALL();
    if (result == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    if (version(0, WH_OP_cudaRuntimeGetVersion, result) != 0) {
        *result = OWN_VERSION;
    }
    return 0;
}

WH_EXPORT cudaError_t cudaDriverGetVersion(int *result)
{
    WH_API_CALL();
    if (result == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    if (version(1, WH_OP_cudaDriverGetVersion, result) != 0) {
        *result = 0;
    }
    return 0;
}

WH_EXPORT cudaError_t cudaGetLastError(void)
{
    WH_API_CALL();
    struct wh_cuda_thread *thread = wh_cuda_thread();
    (void)wh_cuda_answered(&wh_cudart_api, 0);
    int error = thread->last_error;
    thread->last_error = 0;
    return error;
}

WH_EXPORT cudaError_t cudaPeekAtLastError(void)
{
    WH_API_CALL();
    (void)wh_cuda_answered(&wh_cudart_api, 0);
    return wh_cuda_thread()->last_error;
}

/* Name (0) or text (1) of an error: the real library's, kept; it stays valid for good. */
static const char *error_text(int error, int which)
{
    struct wh_call call;
    char texts[2][TEXT_BYTES] = {"", ""};
    if (error < 0 || error >= ERRORS_MAX) {
        return which == 0 ? "unrecognized error code" : "unrecognized error code";
    }
    if (error == 0) {
        return which == 0 ? "cudaSuccess" : "no error";
    }
    char *known = __atomic_load_n(&error_texts[error][which], __ATOMIC_ACQUIRE);
    if (known != NULL) {
        return known;
    }
    if (error == wh_cudart_api.lost) {
        return which == 0 ? "cudaErrorDevicesUnavailable"
                          : "CUDA-capable device(s) is/are busy or unavailable";
    }
    if (wh_cuda_begin_question(&call, &wh_cudart_api, WH_OP_whcErrorText) != 0) {
        return which == 0 ? "cudaErrorUnknown" : "unknown error";
    }
    wh_put_u64(&call, (uint64_t)error);
    wh_put_out(&call, sizeof(texts[0]), true);
    wh_put_out(&call, sizeof(texts[1]), true);
    if (wh_cuda_call_question(&call, &wh_cudart_api) == 0) {
        (void)wh_get_out(&call, texts[0], sizeof(texts[0]));
        (void)wh_get_out(&call, texts[1], sizeof(texts[1]));
    }
    wh_call_end(&call);
    for (int i = 0; i < 2; i++) {
        texts[i][TEXT_BYTES - 1] = '\0';
        char *copy = strdup(texts[i]);
        char *none = NULL;
        if (copy != NULL && !__atomic_compare_exchange_n(&error_texts[error][i], &none, copy, false,
                                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            free(copy);
        }
    }
    known = __atomic_load_n(&error_texts[error][which], __ATOMIC_ACQUIRE);
    return known != NULL ? known : "unknown error";
}

WH_EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    WH_API_CALL();
    return error_text(error, 0);
}

WH_EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    WH_API_CALL();
    return error_text(error, 1);
}
