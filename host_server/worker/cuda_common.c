/*
 * cuda_common.c - loads the machine's own CUDA libraries; objects and results of their calls.
 *
 * Pointers of a message are used as they come: a device pointer is checked by nobody but the
 * device. One of the worker's own memory harms the session that sent it, and the jail is the wall.
 */
#define _GNU_SOURCE /* dladdr */

#include "cuda_backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "wh_cudart.h"
#include "wh_skeleton_parts.h"

#define DIRECTORIES "WORMHOLE_CUDA_LIBRARIES" /* see the supervisor's --cuda-libraries */
#define TEST_DOUBLE "WORMHOLE_TEST_DOUBLE"
#define LOG_RESULTS "WORMHOLE_CUDA_LOG"

/* A thread's device is the first one until it sets another: setting it would make a device context,
 * which questions do not need. */
static __thread int this_device;

/* Our own stubs would forward to this worker; the test double must not pass for a device. */
static bool is_acceptable(void *handle, const char *soname)
{
    if (dlsym(handle, "wormhole_mark") != NULL) {
        fprintf(stderr, "wormhole-worker: %s is the testbed's own library: set %s\n", soname,
                DIRECTORIES);
        return false;
    }
    const char *allowed = getenv(TEST_DOUBLE);
    if (dlsym(handle, "wormhole_test_double") != NULL &&
        (allowed == NULL || strcmp(allowed, "1") != 0)) {
        fprintf(stderr, "wormhole-worker: %s is the tests' double of a device\n", soname);
        return false;
    }
    return true;
}

static void *open_in(const char *directory, size_t length, const char *soname)
{
    char path[PATH_MAX];
    int used = snprintf(path, sizeof(path), "%.*s/%s", (int)length, directory, soname);
    if (used < 0 || (size_t)used >= sizeof(path)) {
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (handle == NULL && access(path, F_OK) == 0) {
        fprintf(stderr, "wormhole-worker: %s\n", dlerror());
    }
    return handle;
}

static void *open_library(const char *soname)
{
    const char *directories = getenv(DIRECTORIES);
    void *handle = NULL;
    while (handle == NULL && directories != NULL && *directories != '\0') {
        size_t length = strcspn(directories, ":");
        if (length > 0) {
            handle = open_in(directories, length, soname);
        }
        directories += length + (directories[length] == ':');
    }
    return handle != NULL ? handle : dlopen(soname, RTLD_NOW | RTLD_GLOBAL);
}

/* What a library loads by name when it first needs it, and would not look for where we do: cuDNN
 * compiles kernels at run time. Without it, it takes other kernels than natively. */
static void open_helpers(const char *soname)
{
    if (strcmp(soname, "libcudnn.so.9") == 0) {
        (void)open_library("libnvrtc.so.13");
    }
}

bool wh_cuda_open(struct wh_cuda_library *library)
{
    if (__builtin_expect(__atomic_load_n(&library->tried, __ATOMIC_ACQUIRE), 1)) {
        return library->handle != NULL;
    }
    pthread_mutex_lock(&library->lock);
    if (!library->tried) {
        open_helpers(library->soname);
        void *handle = open_library(library->soname);
        if (handle == NULL) {
            fprintf(stderr, "wormhole-worker: cannot load %s: %s\n", library->soname, dlerror());
        } else if (is_acceptable(handle, library->soname)) {
            for (const struct wh_cuda_entry *entry = library->entries; entry->name != NULL;
                 entry++) {
                *(void **)((char *)library->table + entry->offset) = dlsym(handle, entry->name);
            }
            library->handle = handle;
        }
        __atomic_store_n(&library->tried, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&library->lock);
    return library->handle != NULL;
}

void wh_cuda_enter(struct wh_request *request)
{
    int device = (int)(uint32_t)wh_take_u64(request);
    if (__builtin_expect(device == this_device, 1) || request->failed) {
        return;
    }
    const struct wh_cudart_table *real = wh_cudart();
    if (real != NULL && real->cudaSetDevice != NULL && real->cudaSetDevice(device) == 0) {
        this_device = device;
    }
}

void *wh_cuda_object(struct wh_request *request, uint64_t handle, uint8_t kind, bool *valid)
{
    bool known = true;
    void *object = wh_handle_get(request->session, handle, kind, &known);
    *valid = *valid && known;
    return object;
}

void *wh_cuda_stream_object(struct wh_request *request, uint64_t handle, bool *valid)
{
    return handle <= 1 ? (void *)(uintptr_t)handle
                       : wh_cuda_object(request, handle, WH_KIND_STREAM, valid);
}

void **wh_cuda_objects(struct wh_request *request, uint8_t kind, size_t *count, bool *valid)
{
    size_t size_bytes = 0;
    const uint64_t *handles = wh_take_blob(request, &size_bytes, WH_CUDA_BLOB_BYTES_MAX);
    *count = size_bytes / sizeof(*handles);
    if (handles == NULL || request->failed) {
        return NULL;
    }
    void **objects = wh_scratch(request, size_bytes + sizeof(*objects));
    for (size_t i = 0; objects != NULL && i < *count; i++) {
        uint64_t handle = 0;
        memcpy(&handle, &handles[i], sizeof(handle));
        objects[i] = wh_cuda_object(request, handle, kind, valid);
    }
    return objects;
}

void *wh_cuda_take_inout(struct wh_request *request, size_t *size_bytes)
{
    size_t in_bytes = 0;
    const void *in = wh_take_blob(request, &in_bytes, WH_CUDA_BLOB_BYTES_MAX);
    void *out = wh_take_out(request, size_bytes);
    if (in != NULL && out != NULL && in_bytes <= *size_bytes) {
        memcpy(out, in, in_bytes);
    }
    return out;
}

bool wh_cuda_string_ends(const char *text, size_t size_bytes)
{
    return size_bytes > 0 && text[size_bytes - 1] == '\0';
}

/* For whoever looks for a fault: every result that is none of success (1), or all of them (2). */
static void log_result(uint16_t opcode, uint64_t status, bool failed)
{
    static int wanted = -1;
    if (wanted < 0) {
        const char *text = getenv(LOG_RESULTS);
        wanted = text != NULL ? atoi(text) : 0;
    }
    if (wanted > 1 || (wanted == 1 && failed)) {
        fprintf(stderr, "wormhole-worker: %s answered %d\n", wh_opcode_name(opcode), (int)status);
    }
}

void wh_cuda_reply(struct wh_request *request, uint16_t opcode, uint64_t status, uint64_t success)
{
    log_result(opcode, status, status != success);
    if (!request->oneway) {
        wh_reply_u64(request, status);
    } else if (status != success) {
        wh_async_error(request->session, (int32_t)status, opcode);
    }
}
