/*
 * calls.c - one CUDA call: the session, the context word, results, errors that come later.
 */
#define _GNU_SOURCE

#include "cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include "answers.h"
#include "fork_lock.h"
#include "session.h"
#include "wh_core_stub.h"
#include "wh_wire.h"

#define RUNTIME_OPCODE 0x200u /* first one of the CUDA runtime */
#define PENDING_COUNT 16u     /* by the high byte of an opcode */

WH_FORK_LOCK(open_lock);
static uint32_t opened;       /* serial of the session; 0 before */
static int refused;           /* why there is none, and will be none */
static bool forked;           /* the parent had one */
static bool shares_addresses; /* see wh_cuda_shares_addresses */
static ptrdiff_t shift;       /* from our view of the session's memory to the worker's */
static int pending[PENDING_COUNT];
static int dead;                  /* the error that has ended the device context, for good */
static uint64_t active_primaries; /* bits by device */
static __thread struct wh_cuda_thread this_thread __attribute__((tls_model("initial-exec")));

struct wh_cuda_thread *wh_cuda_thread(void)
{
    return &this_thread;
}

void wh_cuda_say(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    fprintf(stderr, "wormhole: %s\n", line);
}

/* A device context does not survive a fork; natively every call in the child says so. */
static void after_fork(void)
{
    forked = forked || opened != 0;
    opened = 0;
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

/*
 * Maps the session's memory a second time, where the worker has it. 0: something of ours is there,
 * or there is no such memory. (The worker could not do it the other way round: its jail lets no
 * mapping grow or move, as that would reach other sessions' memory.)
 */
static uint8_t *show_at(const struct wh_client *client, uint64_t base)
{
    void *wanted = (void *)(uintptr_t)base;
    if (client->base == NULL || base == 0 || base % WH_PAGE_BYTES != 0) {
        return NULL;
    }
    void *place = mmap(wanted, client->size_bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (place != wanted) {
        if (place != MAP_FAILED) {
            munmap(place, client->size_bytes);
        }
        return NULL;
    }
    /* An old size of 0 maps the same shared pages again; memory of a device is mapped by it. */
    void *again = client->device_fd >= 0 ? mmap(wanted, client->size_bytes, PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_FIXED, client->device_fd, 0)
                                         : mremap(client->base, 0, client->size_bytes,
                                                  MREMAP_MAYMOVE | MREMAP_FIXED, wanted);
    if (again != wanted) {
        munmap(place, client->size_bytes);
        return NULL;
    }
    madvise(again, client->size_bytes, MADV_DONTFORK);
    madvise(again, client->size_bytes, MADV_DONTDUMP);
    return again;
}

/* The first message: where the worker has the memory that both sides see. */
static int open_session(void)
{
    struct wh_call call;
    uint64_t base = 0;
    int error = wh_call_begin(&call, WH_OP_whcOpen);
    if (error != 0) {
        return error;
    }
    struct wh_client *client = call.client;
    wh_put_u64(&call, (uint64_t)this_thread.device);
    wh_put_out(&call, sizeof(base), true);
    error = wh_call_sync(&call);
    if (error == 0) {
        error = (int)wh_get_u64(&call);
        (void)wh_get_out(&call, &base, sizeof(base));
    }
    wh_call_end(&call);
    if (error == 0) {
        const uint8_t *view = show_at(client, base);
        shares_addresses = view != NULL;
        shift = view == NULL ? 0 : view - client->base;
        __atomic_store_n(&opened, wh_session_serial(), __ATOMIC_RELEASE);
    }
    return error;
}

static int ensure_open(void)
{
    int error = 0;
    if (__builtin_expect(__atomic_load_n(&opened, __ATOMIC_ACQUIRE) != 0, 1)) {
        return 0;
    }
    pthread_mutex_lock(&open_lock);
    if (opened == 0 && refused == 0) {
        error = open_session();
        /* Natively, too, a process that found no device never finds one. */
        refused = error == -EAGAIN ? 0 : error;
    }
    error = opened == 0 && error == 0 ? refused : error;
    pthread_mutex_unlock(&open_lock);
    return error;
}

uint32_t wh_cuda_session(void)
{
    return __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
}

bool wh_cuda_shares_addresses(void)
{
    return ensure_open() == 0 && shares_addresses;
}

void *wh_cuda_shared_address(void *address)
{
    return (char *)address + shift;
}

static bool is_runtime(const struct wh_cuda_api *api)
{
    return api->first_opcode == RUNTIME_OPCODE;
}

static uint64_t device_bit(int device)
{
    return 1ull << ((unsigned)device % 64u);
}

void wh_cuda_use_primary(void)
{
    if (this_thread.context_depth == 0) {
        this_thread.uses_primary = true;
        __atomic_fetch_or(&active_primaries, device_bit(this_thread.device), __ATOMIC_RELAXED);
    }
}

bool wh_cuda_primary_is_active(int device)
{
    return (__atomic_load_n(&active_primaries, __ATOMIC_RELAXED) & device_bit(device)) != 0;
}

void wh_cuda_primary_end(int device)
{
    __atomic_fetch_and(&active_primaries, ~device_bit(device), __ATOMIC_RELAXED);
}

/* What is asked about devices and versions needs no context. */
static bool needs_context(uint16_t opcode)
{
    switch (opcode) {
    case WH_OP_cudaGetDeviceCount:
    case WH_OP_cudaGetDeviceProperties:
    case WH_OP_cudaDeviceGetAttribute:
    case WH_OP_cudaDeviceCanAccessPeer:
    case WH_OP_cudaDeviceGetByPCIBusId:
    case WH_OP_cudaDeviceGetPCIBusId:
    case WH_OP_cudaDriverGetVersion:
    case WH_OP_cudaRuntimeGetVersion:
    case WH_OP_whcErrorText:
        return false;
    default:
        return true;
    }
}

static inline int begin(struct wh_call *call, const struct wh_cuda_api *api, uint16_t opcode,
                        bool is_question)
{
    if (__builtin_expect(forked, 0)) {
        return is_runtime(api) ? WH_CUDA_INITIALIZATION : api->lost;
    }
    int error = ensure_open();
    if (error > 0) {
        return is_runtime(api) ? error : api->lost;
    }
    if (error != 0 || wh_cuda_session() != wh_session_serial() ||
        wh_call_begin(call, opcode) != 0) {
        return api->lost;
    }
    int ended = __atomic_load_n(&dead, __ATOMIC_RELAXED);
    if (__builtin_expect(ended != 0 && is_runtime(api) && !is_question, 0)) {
        wh_call_end(call);
        return ended;
    }
    if (__builtin_expect(!this_thread.uses_primary, 0) && needs_context(opcode)) {
        wh_cuda_use_primary();
    }
    wh_put_u64(call, (uint64_t)this_thread.device);
    return 0;
}

int wh_cuda_begin(struct wh_call *call, const struct wh_cuda_api *api, uint16_t opcode)
{
    return begin(call, api, opcode, false);
}

int wh_cuda_begin_question(struct wh_call *call, const struct wh_cuda_api *api, uint16_t opcode)
{
    return begin(call, api, opcode, true);
}

/* Errors after which nothing of the process's device context works any more. */
static bool ends_context(int status)
{
    return status == 214 || status == 220 || status == 700 || status == 702 || status == 710 ||
           (status >= 714 && status <= 719) || status == 721;
}

static const char *opcode_library(uint16_t opcode)
{
    static const char *const names[PENDING_COUNT] = {
        [2] = "cudart", [3] = "cudart", [4] = "cuBLAS", [5] = "cuBLAS", [6] = "cuBLASLt",
        [7] = "cuDNN",  [8] = "cuDNN",  [9] = "CUDA",   [10] = "CUDA",  [11] = "CUDA"};
    const char *name = names[(opcode >> 8) % PENDING_COUNT];
    return name != NULL ? name : "?";
}

/* First of the high bytes that a library's opcodes have. */
static uint32_t place_of(uint16_t opcode)
{
    static const uint8_t first[PENDING_COUNT] = {
        [2] = 2, [3] = 2, [4] = 4, [5] = 4, [6] = 6, [7] = 7, [8] = 7, [9] = 9, [10] = 9, [11] = 9};
    return first[(opcode >> 8) % PENDING_COUNT];
}

/* Puts away what the latest reply told of earlier one-way calls. */
static void keep_late_error(void)
{
    uint16_t opcode = 0;
    int32_t status = wh_take_async(&opcode);
    if (__builtin_expect(status == 0, 1)) {
        return;
    }
    uint32_t place = place_of(opcode);
    __atomic_store_n(&pending[place], status, __ATOMIC_RELAXED);
    if (place != RUNTIME_OPCODE >> 8) {
        wh_cuda_say("a call of %s (opcode 0x%x) that nobody waited for failed with status %d",
                    opcode_library(opcode), opcode, status);
        __atomic_store_n(&pending[RUNTIME_OPCODE >> 8], WH_CUDA_UNKNOWN, __ATOMIC_RELAXED);
    }
}

static int take_late_error(const struct wh_cuda_api *api, int status)
{
    int *place = &pending[place_of(api->first_opcode)];
    if (is_runtime(api) && ends_context(status)) {
        __atomic_store_n(&dead, status, __ATOMIC_RELAXED);
    }
    if (__builtin_expect(__atomic_load_n(place, __ATOMIC_RELAXED) == 0, 1)) {
        return status;
    }
    int late = __atomic_exchange_n(place, 0, __ATOMIC_RELAXED);
    if (is_runtime(api) && ends_context(late)) {
        __atomic_store_n(&dead, late, __ATOMIC_RELAXED);
    }
    bool own = status != api->success && !(is_runtime(api) && status == WH_CUDA_NOT_READY);
    return own || late == 0 ? status : late;
}

/* The result of a call that has its reply, or could not get one. */
static int result_of(struct wh_call *call, const struct wh_cuda_api *api, int error)
{
    keep_late_error();
    if (error != 0) {
        return error == -ENOMEM || error == -EMSGSIZE ? api->memory : api->lost;
    }
    int status = (int)wh_get_u64(call);
    if (call->error != 0) {
        return api->lost;
    }
    return take_late_error(api, status);
}

int wh_cuda_call(struct wh_call *call, const struct wh_cuda_api *api)
{
    return result_of(call, api, wh_call_sync(call));
}

int wh_cuda_call_question(struct wh_call *call, const struct wh_cuda_api *api)
{
    int error = wh_call_sync(call);
    if (error != 0) {
        return error == -ENOMEM || error == -EMSGSIZE ? api->memory : api->lost;
    }
    int status = (int)wh_get_u64(call);
    return call->error != 0 ? api->lost : status;
}

int wh_cuda_call_pure(struct wh_call *call, const struct wh_cuda_api *api)
{
    return wh_cuda_call_pure_but(call, api, 0);
}

int wh_cuda_call_pure_but(struct wh_call *call, const struct wh_cuda_api *api, size_t free_bytes)
{
    return result_of(call, api, wh_call_pure(call, free_bytes, (uint64_t)api->success));
}

int wh_cuda_send(struct wh_call *call, const struct wh_cuda_api *api)
{
    if (!wh_oneway_calls()) {
        int status = wh_cuda_call(call, api);
        wh_call_end(call);
        return status;
    }
    int error = wh_call_oneway(call);
    if (error != 0) {
        return error == -ENOMEM || error == -EMSGSIZE ? api->memory : api->lost;
    }
    return take_late_error(api, api->success);
}

/* Shapes. */

int wh_cuda_send_shape(struct wh_call *call, const struct wh_cuda_api *api, uint64_t shape)
{
    if (wh_oneway_calls() && wh_shape_known(shape)) {
        return wh_cuda_send(call, api);
    }
    int status = wh_cuda_call(call, api);
    wh_call_end(call);
    if (status == api->success) {
        wh_shape_learn(shape);
    }
    return status;
}

/* Results. */

int wh_cuda_done(const struct wh_cuda_api *api, int status)
{
    if (__builtin_expect(status != api->success, 0) && is_runtime(api) &&
        status != WH_CUDA_NOT_READY) {
        this_thread.last_error = status;
    }
    return status;
}

int wh_cuda_answered(const struct wh_cuda_api *api, int status)
{
    uint64_t result = 0;
    if (__builtin_expect(!wh_local_answers(), 0) && whNop(0, &result) != 0) {
        status = api->lost;
    }
    return wh_cuda_done(api, status);
}

int wh_cuda_unsupported(const struct wh_cuda_api *api, const char *name, int *said)
{
    if (__atomic_exchange_n(said, 1, __ATOMIC_RELAXED) == 0) {
        wh_cuda_say("%s of %s is not forwarded yet: it returns %d", name, api->name,
                    api->unsupported);
    }
    return wh_cuda_done(api, api->unsupported);
}

void wh_cuda_put_scalar(struct wh_call *call, const void *pointer, size_t host_bytes)
{
    wh_put_u64(call, host_bytes == 0 ? (uint64_t)(uintptr_t)pointer : 0);
    wh_put_blob(call, host_bytes == 0 ? NULL : pointer, host_bytes);
}

void wh_cuda_put_result(struct wh_call *call, void *pointer, size_t host_bytes)
{
    wh_put_u64(call, host_bytes);
    if (host_bytes == 0) {
        wh_put_u64(call, (uint64_t)(uintptr_t)pointer);
    } else {
        wh_put_out(call, host_bytes, pointer != NULL);
    }
}

/* The thread's own stream behaves as one that the thread has made. */
static uint64_t thread_stream(void)
{
    struct wh_call call;
    uint32_t serial = wh_cuda_session();
    if (this_thread.stream != 0 && this_thread.stream_serial == serial) {
        return this_thread.stream;
    }
    uint64_t handle = wh_cuda_handle_new(16);
    if (handle == 0 || wh_call_begin(&call, WH_OP_cudaStreamCreate) != 0) {
        return 0;
    }
    wh_put_u64(&call, (uint64_t)this_thread.device);
    wh_put_u64(&call, handle);
    if (wh_call_oneway(&call) != 0) {
        return 0;
    }
    this_thread.stream = handle;
    this_thread.stream_serial = serial;
    return handle;
}

bool wh_cuda_stream_live(const void *stream)
{
    return (uintptr_t)stream <= 2 || wh_cuda_handle_live(stream, 16);
}

uint64_t wh_cuda_stream(const void *stream)
{
    return stream == WH_CUDA_PER_THREAD ? thread_stream() : (uint64_t)(uintptr_t)stream;
}
