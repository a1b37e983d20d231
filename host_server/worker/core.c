/*
 * core.c - the runtime's own calls (core.yaml), the same under every backend.
 */
#include <errno.h>
#include <stdlib.h>

#include "callback.h"
#include "notice.h"
#include "output.h"
#include "session.h"
#include "times.h"
#include "wh_core_backend.h"

#define WH_ECHO_ITERATIONS_MAX 10000000u
#define WH_ECHO_LIMIT_NS 30000000000ull
#define WH_SLEEP_US_MAX 60000000u
#define WH_POLLS_PER_CLOCK 1024

int wh_core_whNop(struct wh_session *session, uint64_t value, uint64_t *result)
{
    (void)session;
    *result = value + 1;
    return 0;
}

int wh_core_whNopOneway(struct wh_session *session, uint64_t value)
{
    (void)value;
    /* Only the leader (or the turn's holder) is here, but without one-way calls TCP has several
     * threads. */
    __atomic_fetch_add(&session->oneway_nops, 1, __ATOMIC_RELAXED);
    return 0;
}

int wh_core_whCount(struct wh_session *session, uint64_t *result)
{
    *result = wh_load64(&session->oneway_nops);
    return 0;
}

/* False if the word did not become `value` before the deadline. */
static bool wait_for(const uint64_t *word, uint64_t value, bool pause_is_cheap, uint64_t limit_ns)
{
    for (;;) {
        for (int i = 0; i < WH_POLLS_PER_CLOCK; i++) {
            if (wh_load_acquire64(word) == value) {
                return true;
            }
            wh_pause(pause_is_cheap);
        }
        if (wh_now_ns() > limit_ns) {
            return false;
        }
    }
}

/* The client stores n to the first line, we store n to the second, for n = 1 .. iterations. */
int wh_core_whEcho(struct wh_session *session, uint64_t offset, uint64_t iterations)
{
    if (session->arena == NULL) {
        return -ENOTSUP;
    }
    if (offset % WH_LINE_BYTES != 0 || offset > session->arena_bytes ||
        session->arena_bytes - offset < 2 * WH_LINE_BYTES || iterations > WH_ECHO_ITERATIONS_MAX) {
        return -EINVAL;
    }
    uint64_t *ping = (uint64_t *)(void *)(session->arena + offset);
    uint64_t *pong = (uint64_t *)(void *)(session->arena + offset + WH_LINE_BYTES);
    uint64_t limit_ns = wh_now_ns() + WH_ECHO_LIMIT_NS;
    for (uint64_t n = 1; n <= iterations; n++) {
        if (!wait_for(ping, n, session->pause_is_cheap, limit_ns)) {
            return -ETIMEDOUT;
        }
        wh_store_release64(pong, n);
    }
    return 0;
}

int wh_core_whFetch(struct wh_session *session, uint64_t token, uint64_t offset, void *data,
                    uint64_t size_bytes)
{
    if (size_bytes == 0) {
        wh_staging_done(session, token);
        return 0;
    }
    return wh_staging_read(session, token, offset, data, size_bytes);
}

int wh_core_whPutStaging(struct wh_session *session, uint64_t token, uint64_t total_bytes,
                         uint64_t offset, const void *data, uint64_t size_bytes)
{
    return wh_staging_write(session, token, total_bytes, offset, data, size_bytes);
}

int wh_core_whSleep(struct wh_session *session, uint64_t duration_us)
{
    (void)session;
    if (duration_us > WH_SLEEP_US_MAX) {
        return -EINVAL;
    }
    struct timespec rest = {.tv_sec = (time_t)(duration_us / 1000000u),
                            .tv_nsec = (long)(duration_us % 1000000u) * 1000};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
    }
    return 0;
}

int wh_core_whCopy(struct wh_session *session, const void *data, void *result, uint64_t size_bytes)
{
    (void)session;
    if (size_bytes > 0) {
        /* Both may lie in the arena, wherever the client said. */
        memmove(result, data, size_bytes);
    }
    return 0;
}

int wh_core_whWait(struct wh_session *session, uint64_t wanted, uint64_t limit_ms, uint64_t *found)
{
    *found = wh_notice_wait(session, wanted, limit_ms);
    return 0;
}

int wh_core_whTakeCallbacks(struct wh_session *session, uint64_t batch, void *data,
                            uint64_t size_bytes, uint64_t *written, uint64_t *needed)
{
    wh_callbacks_take(session, batch, data, size_bytes, written, needed);
    return 0;
}

int wh_core_whWatchOutput(struct wh_session *session, uint64_t *direct)
{
    wh_output_watch(session);
    *direct = session->output_is_direct;
    return 0;
}

int wh_core_whTakeOutput(struct wh_session *session, void *data, uint64_t size_bytes,
                         uint64_t *written, uint64_t *lost)
{
    wh_output_take(session, data, size_bytes, written, lost);
    return 0;
}

int wh_core_whTimes(struct wh_session *session, void *data, uint64_t size_bytes, uint64_t *written)
{
    return wh_times_take(session, data, size_bytes, written);
}
