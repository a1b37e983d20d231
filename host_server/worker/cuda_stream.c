/*
 * cuda_stream.c - host functions in streams and in graphs, and captures.
 *
 * The library calls us when a stream comes to a host function. We make a record of it, which the
 * client takes, and hold the stream until the client says that its function has returned. One in a
 * graph comes at each launch; the library tells us when the last graph that has it is gone.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "callback.h"
#include "cuda_graph.h"
#include "wh_wire.h"

enum { NO_MEMORY = 2, INVALID_HANDLE = 400, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900 };

#define LOOK_LEAST_NS 20000
#define LOOK_MOST_NS 1000000

struct held {
    struct held *next;
    uint64_t id;
    bool done;
    struct wh_callback *callback; /* by messages */
    struct wh_cuda_cell *cell;    /* by memory that both sides see; NULL: by messages */
};

static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t held_changed = PTHREAD_COND_INITIALIZER;
static struct held *held_list;

int wh_skeleton_cudaLaunchHostFunc(struct wh_request *request);
int wh_skeleton_whcCallbackDone(struct wh_request *request);
int wh_skeleton_cudaStreamBeginCapture(struct wh_request *request);
int wh_skeleton_cudaStreamGetCaptureInfo(struct wh_request *request);

/* The client's thread looks at the cell about as often. */
static void await_cell(struct wh_cuda_cell *cell)
{
    struct timespec pause = {.tv_nsec = LOOK_LEAST_NS};
    wh_store_release32(&cell->state, WH_CUDA_CELL_DUE);
    /* Pairs with the client's release store behind its function. */
    while (wh_load_acquire32(&cell->state) == WH_CUDA_CELL_DUE) {
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 < LOOK_MOST_NS ? pause.tv_nsec * 2 : LOOK_MOST_NS;
    }
    wh_store_release32(&cell->state, WH_CUDA_CELL_FREE);
}

/* The cell is the client's until it is due, and again when its function has run. Two launches of
 * graphs that share the function take turns. */
static bool take_turn(struct wh_cuda_cell *cell)
{
    uint32_t taken = WH_CUDA_CELL_TAKEN;
    /* Pairs with the client's acquire load: what came before in the graph is there. */
    return __atomic_compare_exchange_n(&cell->state, &taken, WH_CUDA_CELL_AGAIN, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

void wh_graph_reached(void *argument)
{
    struct wh_cuda_cell *cell = argument;
    struct timespec pause = {.tv_nsec = LOOK_LEAST_NS};
    while (!take_turn(cell)) {
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 < LOOK_MOST_NS ? pause.tv_nsec * 2 : LOOK_MOST_NS;
    }
    pause.tv_nsec = LOOK_LEAST_NS;
    /* Pairs with the client's release store behind its function. */
    while (wh_load_acquire32(&cell->state) == WH_CUDA_CELL_AGAIN) {
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 < LOOK_MOST_NS ? pause.tv_nsec * 2 : LOOK_MOST_NS;
    }
    wh_store_release32(&cell->state, WH_CUDA_CELL_TAKEN);
}

/* In a thread of the library's, which may not be called here. */
static void graph_ended(void *argument)
{
    struct wh_cuda_cell **cell = argument;
    if (*cell != NULL) {
        wh_store_release32(&(*cell)->state, WH_CUDA_CELL_ENDED);
    }
    free(cell);
}

bool wh_graph_cell(const struct wh_session *session, uint64_t address)
{
    return address % sizeof(struct wh_cuda_cell) == 0 &&
           wh_cuda_in_arena(session, address, sizeof(struct wh_cuda_cell));
}

uint64_t wh_graph_hold(const struct wh_cudart_table *real, struct wh_cuda_cell *cell,
                       struct wh_graph_hold *hold)
{
    enum { NO_SYNC = 1 };
    struct wh_cuda_cell **kept = malloc(sizeof(*kept));
    if (kept == NULL) {
        return NO_MEMORY;
    }
    *kept = cell;
    if (real->cudaUserObjectCreate == NULL || real->cudaUserObjectRelease == NULL ||
        real->cudaGraphRetainUserObject == NULL) {
        free(kept);
        return NOT_SUPPORTED;
    }
    uint64_t status =
        (uint64_t)real->cudaUserObjectCreate(&hold->object, kept, (void *)graph_ended, 1, NO_SYNC);
    if (status != 0) {
        free(kept);
        return status;
    }
    hold->cell = kept;
    return 0;
}

uint64_t wh_graph_give(const struct wh_cudart_table *real, struct wh_graph_hold *hold,
                       cudaGraph_t graph)
{
    enum { MOVE = 1 };
    uint64_t status = (uint64_t)real->cudaGraphRetainUserObject(graph, hold->object, 1, MOVE);
    if (status != 0) {
        wh_graph_let_go(real, hold);
    }
    return status;
}

void wh_graph_let_go(const struct wh_cudart_table *real, struct wh_graph_hold *hold)
{
    *hold->cell = NULL; /* the client hears of it by the result */
    (void)real->cudaUserObjectRelease(hold->object, 1);
}

/* A function in a stream that is captured; the graph has it from now on. */
static uint64_t capture_function(const struct wh_cudart_table *real, cudaStream_t stream,
                                 struct wh_cuda_cell *cell)
{
    int state = 0;
    unsigned long long number = 0;
    cudaGraph_t graph = NULL;
    struct wh_graph_hold hold;
    if (cell == NULL || real->cudaStreamGetCaptureInfo == NULL) {
        return CAPTURE_UNSUPPORTED; /* by messages it could come but once */
    }
    uint64_t status =
        (uint64_t)real->cudaStreamGetCaptureInfo(stream, &state, &number, &graph, NULL, NULL, NULL);
    if (status != 0 || graph == NULL) {
        return status != 0 ? status : CAPTURE_UNSUPPORTED;
    }
    status = wh_graph_hold(real, cell, &hold);
    if (status != 0) {
        return status;
    }
    status = (uint64_t)real->cudaLaunchHostFunc(stream, (void *)wh_graph_reached, cell);
    if (status != 0) {
        wh_graph_let_go(real, &hold);
        return status;
    }
    return wh_graph_give(real, &hold, graph);
}

/* In a thread of the library's. Ends with the client's word, or with this process. */
static void reached(void *argument)
{
    struct held *held = argument;
    if (held->cell != NULL) {
        await_cell(held->cell);
        free(held);
        return;
    }
    wh_callback_due(held->callback, 0);
    pthread_mutex_lock(&held_lock);
    while (!held->done) {
        pthread_cond_wait(&held_changed, &held_lock);
    }
    struct held **link = &held_list;
    while (*link != NULL && *link != held) {
        link = &(*link)->next;
    }
    if (*link == held) {
        *link = held->next;
    }
    pthread_mutex_unlock(&held_lock);
    free(held);
}

static void forget(struct held *held)
{
    pthread_mutex_lock(&held_lock);
    struct held **link = &held_list;
    while (*link != NULL && *link != held) {
        link = &(*link)->next;
    }
    if (*link == held) {
        *link = held->next;
    }
    pthread_mutex_unlock(&held_lock);
    if (held->callback != NULL) {
        wh_callback_cancel(held->callback);
    }
    free(held);
}

static struct held *hold(struct wh_session *session, uint64_t id, uint64_t stream, uint64_t cell)
{
    struct held *held = calloc(1, sizeof(*held));
    if (held == NULL) {
        return NULL;
    }
    held->id = id;
    held->cell = (struct wh_cuda_cell *)(uintptr_t)cell;
    if (cell != 0) {
        return held;
    }
    held->callback = wh_callback_new(session, id, stream);
    if (held->callback == NULL) {
        free(held);
        return NULL;
    }
    pthread_mutex_lock(&held_lock);
    held->next = held_list;
    held_list = held;
    pthread_mutex_unlock(&held_lock);
    return held;
}

int wh_skeleton_cudaLaunchHostFunc(struct wh_request *request)
{
    bool valid = true;
    uint64_t status = INVALID_HANDLE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t handle = wh_take_u64(request);
    cudaStream_t stream = wh_cuda_stream_object(request, handle, &valid);
    uint64_t id = wh_take_u64(request);
    uint64_t cell = wh_take_u64(request);
    int capturing = 0;
    if (wh_request_failed(request) || (cell != 0 && !wh_graph_cell(request->session, cell))) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaLaunchHostFunc == NULL || real->cudaStreamIsCapturing == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && real->cudaStreamIsCapturing(stream, &capturing) != 0) {
        status = CAPTURE_UNSUPPORTED;
    } else if (valid && capturing != 0) {
        status = capture_function(real, stream, (struct wh_cuda_cell *)(uintptr_t)cell);
    } else if (valid) {
        struct held *held = hold(request->session, id, handle, cell);
        status = held == NULL ? NO_MEMORY
                              : (uint64_t)real->cudaLaunchHostFunc(stream, (void *)reached, held);
        if (held != NULL && status != 0) {
            forget(held);
        }
    }
    wh_cuda_reply(request, WH_OP_cudaLaunchHostFunc, status, 0);
    return 0;
}

int wh_skeleton_whcCallbackDone(struct wh_request *request)
{
    wh_cuda_enter(request);
    uint64_t id = wh_take_u64(request);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    pthread_mutex_lock(&held_lock);
    for (struct held *held = held_list; held != NULL; held = held->next) {
        held->done = held->done || held->id == id;
    }
    pthread_cond_broadcast(&held_changed);
    pthread_mutex_unlock(&held_lock);
    wh_cuda_reply(request, WH_OP_whcCallbackDone, 0, 0);
    return 0;
}

/* The threads that execute a client's calls are not its own: a capture that forbids calls to other
 * threads could be broken by any of ours, so what is captured is always the stream alone. */
int wh_skeleton_cudaStreamBeginCapture(struct wh_request *request)
{
    enum { RELAXED = 2 };
    bool valid = true;
    uint64_t status = INVALID_HANDLE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    cudaStream_t stream = wh_cuda_stream_object(request, wh_take_u64(request), &valid);
    int mode = (int)wh_take_u64(request);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaStreamBeginCapture == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        bool known = mode >= 0 && mode <= RELAXED;
        status = (uint64_t)real->cudaStreamBeginCapture(stream, known ? RELAXED : mode);
    }
    wh_cuda_reply(request, WH_OP_cudaStreamBeginCapture, status, 0);
    return 0;
}

int wh_skeleton_cudaStreamGetCaptureInfo(struct wh_request *request)
{
    bool valid = true;
    size_t state_bytes = 0;
    size_t number_bytes = 0;
    uint64_t status = INVALID_HANDLE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    cudaStream_t stream = wh_cuda_stream_object(request, wh_take_u64(request), &valid);
    int *state = wh_take_out(request, &state_bytes);
    unsigned long long *number = wh_take_out(request, &number_bytes);
    if (wh_request_failed(request) || state == NULL || number == NULL ||
        state_bytes < sizeof(*state) || number_bytes < sizeof(*number)) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaStreamGetCaptureInfo == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid) {
        status =
            (uint64_t)real->cudaStreamGetCaptureInfo(stream, state, number, NULL, NULL, NULL, NULL);
    }
    wh_cuda_reply(request, WH_OP_cudaStreamGetCaptureInfo, status, 0);
    wh_reply_out(request, status == 0 ? sizeof(*state) : 0);
    wh_reply_out(request, status == 0 ? sizeof(*number) : 0);
    return 0;
}
