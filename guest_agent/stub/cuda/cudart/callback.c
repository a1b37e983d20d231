/*
 * callback.c - host functions in streams. The application's function stays here; the stream waits
 * in the worker until this side says that it has run.
 *
 * Both words of that - the stream has come to it, it has run - are in a cell of pinned memory, and
 * not in messages: a launch that finds the device's queue full waits in the worker for room, and
 * what it waits for may be this very function. Over TCP, where every thread has a connection of its
 * own, they are messages.
 *
 * A function in a graph runs at each launch. It stays, with its cell, until the worker says that
 * nothing can come to it any more.
 */
#include "cudart.h"

#include <stdlib.h>
#include <time.h>

#include "fork_lock.h"
#include "service.h"
#include "wh_codec.h"
#include "wh_core_stub.h"

#define TAKE_BYTES 2048u /* needs no room in the arena */
#define CELLS_BYTES 32768u
#define LOOK_LEAST_NS 20000
#define LOOK_MOST_NS 1000000
/* Where all that could come is of graphs, and none came for so many looks: */
#define LOOKS_OFTEN 1000u
#define LOOK_SELDOM_NS 20000000

typedef void (*host_function)(void *data);
typedef void (*stream_function)(void *stream, cudaError_t status, void *data);

struct registration {
    struct registration *next;
    uint64_t id;
    struct wh_cuda_cell *cell; /* NULL: by messages */
    host_function host;        /* one of the two */
    stream_function of_stream;
    void *stream;
    void *data;
    void (*ended)(void *data); /* of what a graph runs; may be NULL */
    bool stays;                /* it is known to be a graph's */
};

WH_FORK_LOCK(callback_lock);
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static struct registration *first; /* in the order in which they came */
static uint32_t passing_count;     /* of them that run once */
static bool expected;              /* a graph was launched */
static uint64_t last_id;
static struct wh_cuda_cell *cells;
static uint32_t cells_serial;  /* session that has them */
static uint32_t served_serial; /* session that has its thread */

/* The place of one: by number, or with id 0 the first one whose cell says that something is due. */
static struct registration **place_of(uint64_t id)
{
    struct registration **link = &first;
    while (*link != NULL) {
        const struct registration *this = *link;
        uint32_t state = this->cell == NULL ? 0 : wh_load_acquire32(&this->cell->state);
        bool due =
            state == WH_CUDA_CELL_DUE || state == WH_CUDA_CELL_AGAIN || state == WH_CUDA_CELL_ENDED;
        if (id != 0 ? this->id == id : due) {
            break;
        }
        link = &(*link)->next;
    }
    return link;
}

/* With the lock held. */
static struct registration *take_out(struct registration **place)
{
    struct registration *found = *place;
    if (found != NULL) {
        *place = found->next;
        passing_count -= !found->stays;
    }
    return found;
}

static void run(const struct registration *registration)
{
    if (registration->host != NULL) {
        registration->host(registration->data);
    } else {
        registration->of_stream(registration->stream, 0, registration->data);
    }
}

/* With the lock held. */
static void look_again_in(long pause_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += pause_ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&added, &callback_lock, &until);
}

/* Without the lock. Who has the registration: this thread alone, or, of a graph's, the worker,
 * which does not end it while it waits for us. */
static void serve(struct registration *due, uint32_t state)
{
    if (state == WH_CUDA_CELL_ENDED) {
        if (due->ended != NULL) {
            due->ended(due->data);
        }
        wh_store_release32(&due->cell->state, WH_CUDA_CELL_FREE);
        free(due);
        return;
    }
    run(due);
    /* Pairs with the worker's acquire load: what the function wrote is there. */
    wh_store_release32(&due->cell->state, WH_CUDA_CELL_RUN);
    if (state == WH_CUDA_CELL_DUE) {
        free(due);
    }
}

/* Looks at the cells while there are some to look at; else it sleeps. */
static void serve_cells(void)
{
    uint32_t serial = wh_cuda_session();
    long pause_ns = LOOK_LEAST_NS;
    uint32_t looks = 0;
    pthread_mutex_lock(&callback_lock);
    while (serial == wh_session_serial()) {
        if (expected || first == NULL) {
            pause_ns = LOOK_LEAST_NS;
            looks = 0;
            expected = false;
        }
        while (first == NULL) {
            pthread_cond_wait(&added, &callback_lock);
        }
        struct registration **place = place_of(0);
        struct registration *due = *place;
        if (due == NULL) {
            bool seldom = passing_count == 0 && looks++ >= LOOKS_OFTEN;
            look_again_in(seldom ? LOOK_SELDOM_NS : pause_ns);
            pause_ns = pause_ns * 2 < LOOK_MOST_NS ? pause_ns * 2 : LOOK_MOST_NS;
            continue;
        }
        uint32_t state = wh_load_acquire32(&due->cell->state);
        if (state == WH_CUDA_CELL_AGAIN) {
            passing_count -= !due->stays;
            due->stays = true;
        } else {
            (void)take_out(place);
        }
        pthread_mutex_unlock(&callback_lock);
        serve(due, state);
        pthread_mutex_lock(&callback_lock);
        pause_ns = LOOK_LEAST_NS;
        looks = 0;
    }
    pthread_mutex_unlock(&callback_lock);
}

void wh_host_functions_expected(void)
{
    if (__atomic_load_n(&first, __ATOMIC_RELAXED) != NULL) {
        pthread_mutex_lock(&callback_lock);
        expected = true;
        pthread_cond_signal(&added);
        pthread_mutex_unlock(&callback_lock);
    }
}

static void run_record(const struct wh_callback_record *record)
{
    struct wh_call call;
    pthread_mutex_lock(&callback_lock);
    struct registration *registration = take_out(place_of(record->id));
    pthread_mutex_unlock(&callback_lock);
    if (registration != NULL) {
        run(registration);
        free(registration);
    }
    if (wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcCallbackDone) == 0) {
        wh_put_u64(&call, record->id);
        (void)wh_cuda_send(&call, &wh_cudart_api);
    }
    wh_service_ran();
}

static void serve_messages(void)
{
    uint8_t few[TAKE_BYTES];
    while (wh_service_wait(WH_WAIT_FOR_CALLBACKS)) {
        uint64_t written = 0;
        uint64_t needed = 0;
        do {
            if (whTakeCallbacks(0, few, sizeof(few), &written, &needed) != 0) {
                return;
            }
            for (size_t at = 0; written - at >= sizeof(struct wh_callback_record);) {
                struct wh_callback_record record;
                memcpy(&record, few + at, sizeof(record));
                at += sizeof(record);
                run_record(&record);
            }
        } while (written > 0);
    }
}

/* With the lock held: the thread that runs them, and cells if there can be some. */
static bool prepare(void)
{
    bool shares = wh_cuda_shares_addresses(); /* opens the session, if nothing has */
    uint32_t serial = wh_cuda_session();
    int error = 0;
    if (cells_serial != serial && shares) {
        void *bytes = NULL;
        if (cudaHostAlloc(&bytes, CELLS_BYTES, 0) == 0 && wh_cuda_is_shared(bytes, CELLS_BYTES)) {
            memset(bytes, 0, CELLS_BYTES);
            cells = bytes;
            cells_serial = serial;
        }
    }
    if (served_serial != serial) {
        wh_service_begin();
        error = wh_service_start("wormhole-calls",
                                 cells_serial == serial ? serve_cells : serve_messages);
        served_serial = error == 0 ? serial : served_serial;
    }
    return error == 0;
}

/* With the lock held. NULL: all are in use. */
static struct wh_cuda_cell *take_cell(void)
{
    for (size_t i = 0; i < CELLS_BYTES / sizeof(*cells); i++) {
        if (wh_load_acquire32(&cells[i].state) == WH_CUDA_CELL_FREE) {
            wh_store32(&cells[i].state, WH_CUDA_CELL_TAKEN);
            return &cells[i];
        }
    }
    return NULL;
}

static int add(struct registration *registration)
{
    struct registration **link = &first;
    pthread_mutex_lock(&callback_lock);
    bool ready = prepare();
    bool by_cell = ready && cells_serial == wh_cuda_session();
    registration->cell = by_cell ? take_cell() : NULL;
    ready = ready && (!by_cell || registration->cell != NULL);
    if (ready) {
        registration->id = ++last_id;
        registration->next = NULL;
        while (*link != NULL) {
            link = &(*link)->next;
        }
        *link = registration;
        passing_count += !registration->stays;
        pthread_cond_signal(&added);
    }
    pthread_mutex_unlock(&callback_lock);
    return ready ? 0 : WH_CUDA_MEMORY_ALLOCATION;
}

/* The worker has not taken it. */
static void drop(uint64_t id)
{
    pthread_mutex_lock(&callback_lock);
    struct registration *registration = take_out(place_of(id));
    if (registration != NULL && registration->cell != NULL) {
        wh_store32(&registration->cell->state, WH_CUDA_CELL_FREE);
    }
    pthread_mutex_unlock(&callback_lock);
    free(registration);
}

/* A copy of it that is on the list; a result of the API's. */
static int keep(const struct registration *what, struct registration **kept)
{
    struct registration *registration = malloc(sizeof(*registration));
    if (registration == NULL) {
        return WH_CUDA_MEMORY_ALLOCATION;
    }
    *registration = *what;
    int status = add(registration);
    if (status != 0) {
        free(registration);
        return status;
    }
    *kept = registration;
    return 0;
}

/* Whether both sides have cells: without, a function cannot come more than once. */
static bool have_cells(void)
{
    static int said;
    bool have = wh_cuda_shares_addresses();
    if (!have) {
        (void)wh_cuda_unsupported(&wh_cudart_api,
                                  "a host function in a graph, without memory that "
                                  "both sides share,",
                                  &said);
    }
    return have;
}

static int enqueue(const struct registration *what)
{
    struct wh_call call;
    struct registration *registration = NULL;
    if (!wh_cuda_stream_live(what->stream)) {
        return WH_CUDA_INVALID_HANDLE;
    }
    if (what->host == NULL && what->of_stream == NULL) {
        return WH_CUDA_INVALID_VALUE;
    }
    /* Those with a status can be in no graph, natively either. */
    if (wh_stream_captures(what->stream) && (what->of_stream != NULL || !have_cells())) {
        return WH_CUDA_CAPTURE_UNSUPPORTED;
    }
    int status = keep(what, &registration);
    if (status != 0) {
        return status;
    }
    uint64_t id = registration->id;
    uint64_t cell = (uint64_t)(uintptr_t)registration->cell;
    status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_cudaLaunchHostFunc);
    if (status == 0) {
        wh_put_u64(&call, wh_cuda_stream(what->stream));
        wh_put_u64(&call, id);
        wh_put_u64(&call, cell);
        status = wh_cuda_call(&call, &wh_cudart_api);
        wh_call_end(&call);
    }
    if (status != 0) {
        drop(id);
    }
    return status;
}

int wh_host_function_enqueue(void *stream, void (*function)(void *data), void *data,
                             void (*ended)(void *data))
{
    const struct registration what = {
        .host = function, .stream = stream, .data = data, .ended = ended};
    return enqueue(&what);
}

int wh_host_function_new(void (*function)(void *data), void *data, void (*ended)(void *data),
                         uint64_t *id, uint64_t *cell)
{
    const struct registration what = {
        .host = function, .data = data, .ended = ended, .stays = true};
    struct registration *registration = NULL;
    int status = have_cells() ? keep(&what, &registration) : WH_CUDA_NOT_SUPPORTED;
    if (status == 0 && registration->cell == NULL) {
        drop(registration->id);
        return WH_CUDA_NOT_SUPPORTED;
    }
    if (status == 0) {
        *id = registration->id;
        *cell = (uint64_t)(uintptr_t)registration->cell;
    }
    return status;
}

void wh_host_function_drop(uint64_t id)
{
    drop(id);
}

WH_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void *function, void *data)
{
    WH_API_CALL();
    const struct registration what = {
        .host = (host_function)function, .stream = stream, .data = data};
    return wh_cuda_done(&wh_cudart_api, enqueue(&what));
}

WH_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, void *function, void *data,
                                            unsigned int flags)
{
    WH_API_CALL();
    const struct registration what = {
        .of_stream = (stream_function)function, .stream = stream, .data = data};
    if (flags != 0) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    return wh_cuda_done(&wh_cudart_api, enqueue(&what));
}
