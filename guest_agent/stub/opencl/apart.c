/*
 * apart.c - waiting for events in no call that blocks, where too many threads are in such calls
 * (wh_blocking_begin). One of the threads that wait so looks for all of them, one event after the
 * other; whoever's own event is over leaves that to the next.
 */
#include "object.h"

#include <time.h>

#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define PAUSE_MS_MAX 4u    /* between two looks that find nothing: their number is bounded, ... */
#define LOOKS_A_PAUSE 256u /* ... and after so many of them they become one millisecond rarer */

struct waiter {
    struct waiter *next;
    const struct wh_cl_object *event;
    bool over;
    cl_int error;
    pthread_cond_t changed; /* over, or nobody looks */
};

static pthread_mutex_t waiters_lock = PTHREAD_MUTEX_INITIALIZER;
static struct waiter *waiters; /* who is looked at next comes first; on their threads' stacks */
static bool looking;
static uint32_t looks_in_vain; /* since something was over */

static void lock_waiters(void)
{
    pthread_mutex_lock(&waiters_lock);
}

static void unlock_waiters(void)
{
    pthread_mutex_unlock(&waiters_lock);
}

static void forget_waiters(void)
{
    waiters = NULL; /* of threads that only the parent has */
    looking = false;
    pthread_mutex_unlock(&waiters_lock);
}

__attribute__((constructor)) static void protect_fork(void)
{
    pthread_atfork(lock_waiters, unlock_waiters, forget_waiters);
}

/* The lock is held. */
static void add_last(struct waiter *waiter)
{
    struct waiter **link = &waiters;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    waiter->next = NULL;
    *link = waiter;
}

/* Lets all go that wait for the event; the lock is held. */
static void end_waits(const struct wh_cl_object *event, cl_int error)
{
    for (struct waiter **link = &waiters; *link != NULL;) {
        struct waiter *waiter = *link;
        if (waiter->event == event) {
            *link = waiter->next;
            waiter->over = true;
            waiter->error = error;
            pthread_cond_signal(&waiter->changed);
        } else {
            link = &waiter->next;
        }
    }
}

/* The lock is held, and given up meanwhile: only who looks takes a waiter out of the list. */
static void look_at_first(void)
{
    const struct wh_cl_object *event = waiters->event;
    uint32_t pause_ms = looks_in_vain == 0 ? 0 : 1 + looks_in_vain / LOOKS_A_PAUSE;
    pause_ms = pause_ms < PAUSE_MS_MAX ? pause_ms : PAUSE_MS_MAX;
    const struct timespec pause = {.tv_nsec = (long)pause_ms * 1000000};
    cl_int status = CL_QUEUED;
    pthread_mutex_unlock(&waiters_lock);
    nanosleep(&pause, NULL);
    cl_int error = wh_cl_event_ask(event, &status);
    pthread_mutex_lock(&waiters_lock);
    if (error != CL_SUCCESS || status <= CL_COMPLETE) {
        looks_in_vain = 0;
        end_waits(event, error);
        return;
    }
    looks_in_vain++;
    struct waiter *first = waiters;
    waiters = first->next;
    add_last(first);
}

static cl_int wait_for_one(const struct wh_cl_object *event)
{
    struct waiter own = {.event = event};
    pthread_cond_init(&own.changed, NULL);
    pthread_mutex_lock(&waiters_lock);
    add_last(&own);
    while (!own.over) {
        if (looking) {
            pthread_cond_wait(&own.changed, &waiters_lock);
            continue;
        }
        looking = true;
        while (!own.over) {
            look_at_first();
        }
        looking = false;
        if (waiters != NULL) {
            pthread_cond_signal(&waiters->changed);
        }
    }
    pthread_mutex_unlock(&waiters_lock);
    pthread_cond_destroy(&own.changed);
    return own.error;
}

/* As a wait would. */
static cl_int flush_queue_of(const struct wh_cl_object *event)
{
    struct wh_call call;
    if (event->u.of_event.user) {
        return CL_SUCCESS;
    }
    if (wh_call_begin(&call, WH_OP_clFlush) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(event->parent));
    return wh_cl_call_error(&call);
}

cl_int wh_cl_wait_apart(cl_uint count, const cl_event *events)
{
    const struct wh_cl_object *first = (const struct wh_cl_object *)events[0];
    cl_int error = CL_SUCCESS;
    for (cl_uint i = 1; i < count; i++) {
        if (((const struct wh_cl_object *)events[i])->context != first->context) {
            return CL_SUCCESS; /* an error, of which the call that follows tells at once */
        }
    }
    for (cl_uint i = 0; error == CL_SUCCESS && i < count; i++) {
        error = flush_queue_of((const struct wh_cl_object *)events[i]);
    }
    for (cl_uint i = 0; error == CL_SUCCESS && i < count; i++) {
        if (wh_cl_event_status((const struct wh_cl_object *)events[i]) > CL_COMPLETE) {
            error = wait_for_one((const struct wh_cl_object *)events[i]);
        }
    }
    return error;
}
