/*
 * service.c - starting the stub's own threads, and their sleep.
 */
#define _GNU_SOURCE

#include "service.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "fork_lock.h"
#include "session.h"
#include "wh_core_stub.h"

#define WH_SERVICE_WAIT_MS 20000u
#define WH_AWAIT_S 1
#define WH_NUMBER_MASK (UINT32_MAX >> WH_BATCH_SHIFT)

WH_FORK_LOCK(ran_lock);
static pthread_cond_t ran_changed = PTHREAD_COND_INITIALIZER;
static uint32_t ran;    /* callbacks of the queue */
static uint32_t serial; /* session whose callbacks they are; 0 none */

struct service {
    char name[16];
    void (*run)(void);
};

static void *run_service(void *argument)
{
    struct service service = *(struct service *)argument;
    free(argument);
    pthread_setname_np(pthread_self(), service.name);
    struct wh_thread *thread = wh_thread_get();
    if (thread != NULL) {
        thread->serves = true;
        service.run();
    }
    return NULL;
}

/* The application's handlers run in its own threads; what a thread does wrong is its own. */
static void service_signals(sigset_t *blocked)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPIPE};
    sigfillset(blocked);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        sigdelset(blocked, own[i]);
    }
}

int wh_service_start(const char *name, void (*run)(void))
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t blocked;
    sigset_t before;
    struct service *service = calloc(1, sizeof(*service));
    if (service == NULL) {
        return -ENOMEM;
    }
    strncpy(service->name, name, sizeof(service->name) - 1);
    service->run = run;
    service_signals(&blocked);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(&thread, &attributes, run_service, service);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) {
        free(service);
    }
    return -error;
}

bool wh_service_wait(uint64_t wanted)
{
    struct wh_thread *thread = wh_thread_get();
    uint64_t found = 0;
    int error = thread == NULL ? -ENOMEM : 0;
    while (error == 0 && found == 0) {
        thread->idle = true;
        error = whWait(wanted, WH_SERVICE_WAIT_MS, &found);
        thread->idle = false;
    }
    return error == 0;
}

void wh_service_begin(void)
{
    pthread_mutex_lock(&ran_lock);
    ran = 0;
    __atomic_store_n(&serial, wh_session_serial(), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&ran_lock);
}

void wh_service_ran(void)
{
    pthread_mutex_lock(&ran_lock);
    ran++;
    pthread_cond_broadcast(&ran_changed);
    pthread_mutex_unlock(&ran_lock);
}

static bool is_behind(uint32_t queued)
{
    uint32_t missing = (queued - ran) & WH_NUMBER_MASK;
    return missing != 0 && missing <= WH_NUMBER_MASK / 2;
}

void wh_service_await(uint32_t queued)
{
    struct timespec limit;
    uint32_t serves = __atomic_load_n(&serial, __ATOMIC_ACQUIRE);
    if (serves == 0 || serves != wh_session_serial() || wh_thread_get()->serves) {
        return;
    }
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += WH_AWAIT_S;
    int error = 0;
    pthread_mutex_lock(&ran_lock);
    while (is_behind(queued) && error == 0) {
        error = pthread_cond_timedwait(&ran_changed, &ran_lock, &limit);
    }
    pthread_mutex_unlock(&ran_lock);
}
