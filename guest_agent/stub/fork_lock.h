/*
 * fork_lock.h - locks that a fork may not split: a child must not find one held by a thread that it
 * does not have.
 */
#ifndef WH_FORK_LOCK_H
#define WH_FORK_LOCK_H

#include <pthread.h>

/* Defines a lock of this name that whoever forks takes first. In which order it takes several is
 * not defined. */
#define WH_FORK_LOCK(name)                                                                         \
    static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                                       \
    static void take_##name(void)                                                                  \
    {                                                                                              \
        pthread_mutex_lock(&name);                                                                 \
    }                                                                                              \
    static void give_##name(void)                                                                  \
    {                                                                                              \
        pthread_mutex_unlock(&name);                                                               \
    }                                                                                              \
    __attribute__((constructor)) static void protect_##name(void)                                  \
    {                                                                                              \
        pthread_atfork(take_##name, give_##name, give_##name);                                     \
    }                                                                                              \
    _Static_assert(1, "for the semicolon")

#endif
