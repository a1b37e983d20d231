/*
 * notice.c - waiting for callbacks and output.
 */
#include "notice.h"

#include <errno.h>
#include <time.h>

#define WH_WAIT_MS_MAX 60000u

void wh_notice_set(struct wh_session *session, uint64_t what)
{
    pthread_mutex_lock(&session->notice_lock);
    session->notices |= what;
    pthread_cond_broadcast(&session->notice_set);
    pthread_mutex_unlock(&session->notice_lock);
}

void wh_notice_clear(struct wh_session *session, uint64_t what)
{
    pthread_mutex_lock(&session->notice_lock);
    session->notices &= ~what;
    pthread_mutex_unlock(&session->notice_lock);
}

uint64_t wh_notice_wait(struct wh_session *session, uint64_t wanted, uint64_t limit_ms)
{
    struct timespec end;
    limit_ms = limit_ms < WH_WAIT_MS_MAX ? limit_ms : WH_WAIT_MS_MAX;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)(limit_ms / 1000u);
    end.tv_nsec += (long)(limit_ms % 1000u) * 1000000;
    if (end.tv_nsec >= 1000000000) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000;
    }
    int error = 0;
    pthread_mutex_lock(&session->notice_lock);
    while ((session->notices & wanted) == 0 && error == 0) {
        error = pthread_cond_timedwait(&session->notice_set, &session->notice_lock, &end);
    }
    uint64_t found = session->notices & wanted;
    pthread_mutex_unlock(&session->notice_lock);
    return found;
}
