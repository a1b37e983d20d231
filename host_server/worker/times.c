/*
 * times.c - sums of where requests spend their time, by opcode (times.h).
 */
#include "times.h"

#include <errno.h>
#include <stdlib.h>

#include "backend.h"

struct wh_times {
    uint64_t ticks_per_us;
    uint64_t busy_ticks;
    struct wh_times_row rows[WH_TIMES_OPCODES];
};

static pthread_mutex_t begin_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t ns(const struct wh_times *times, uint64_t ticks)
{
    return ticks * 1000u / times->ticks_per_us;
}

void wh_times_begin_now(struct wh_executor *executor)
{
    executor->span = (struct wh_span){.begin_ticks = wh_ticks()};
}

void wh_times_executed_now(struct wh_executor *executor)
{
    struct wh_session *session = executor->session;
    struct wh_times *times = session->times;
    executor->span.executed_ticks = wh_ticks();
    uint64_t own_ticks = executor->span.executed_ticks - executor->span.begin_ticks;
    uint64_t ticks = __atomic_add_fetch(&times->busy_ticks, own_ticks, __ATOMIC_RELAXED);
    if (session->header != NULL) {
        /* Before the reply, so that the client sees the time of what it has waited for. */
        wh_store64(&session->header->busy_ns, ns(times, ticks));
    }
}

static void add(uint64_t *sum, uint64_t amount)
{
    __atomic_fetch_add(sum, amount, __ATOMIC_RELAXED);
}

void wh_times_end_now(struct wh_executor *executor, const struct wh_request_header *header)
{
    const struct wh_span *span = &executor->span;
    struct wh_times *times = executor->session->times;
    struct wh_times_row *row = &times->rows[header->opcode % WH_TIMES_OPCODES];
    uint64_t total = span->executed_ticks - span->begin_ticks;
    uint64_t encode = span->leave_ticks != 0 ? span->executed_ticks - span->leave_ticks : 0;
    uint64_t measured = encode;
    for (int part = 0; part < WH_TIMES_PARTS; part++) {
        measured += span->part_ticks[part];
    }
    bool answered = (header->flags & WH_REQUEST_FLAG_REPLY) != 0;
    add(&row->messages, 1);
    add(&row->answered, answered ? 1 : 0);
    add(&row->answered_ns, answered ? ns(times, total) : 0);
    add(&row->take_ns, total > measured ? ns(times, total - measured) : 0);
    add(&row->backend_ns, ns(times, span->part_ticks[WH_TIMES_BACKEND]));
    add(&row->compile_ns, ns(times, span->part_ticks[WH_TIMES_COMPILE]));
    add(&row->kernel_ns, ns(times, span->part_ticks[WH_TIMES_KERNEL]));
    add(&row->copy_ns, ns(times, span->part_ticks[WH_TIMES_COPY]));
    add(&row->encode_ns, ns(times, encode));
    add(&row->send_ns, ns(times, wh_ticks() - span->executed_ticks));
    executor->span.begin_ticks = 0;
}

uint64_t wh_times_enter(void)
{
    struct wh_executor *executor = wh_this_executor;
    if (executor == NULL || executor->span.begin_ticks == 0 || executor->span.inside) {
        return 0;
    }
    executor->span.inside = true;
    return wh_ticks();
}

void wh_times_leave(uint64_t begin_ticks, enum wh_times_part part)
{
    struct wh_executor *executor = wh_this_executor;
    if (begin_ticks == 0 || executor == NULL) {
        return;
    }
    struct wh_span *span = &executor->span;
    span->leave_ticks = wh_ticks();
    span->part_ticks[part] += span->leave_ticks - begin_ticks;
    span->inside = false;
}

/* Requests that other threads are executing meanwhile are not measured: they began before. */
static int begin(struct wh_session *session)
{
    int error = 0;
    pthread_mutex_lock(&begin_lock);
    if (session->times == NULL) {
        struct wh_times *times = calloc(1, sizeof(*times));
        error = times == NULL ? -ENOMEM : 0;
        if (times != NULL) {
            times->ticks_per_us = wh_measure_ticks_per_us();
            if (session->backend != NULL && session->backend->time_calls != NULL) {
                session->backend->time_calls();
            }
            __atomic_store_n(&session->times, times, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&begin_lock);
    return error;
}

int wh_times_take(struct wh_session *session, void *to, size_t size_bytes, uint64_t *written)
{
    int error = begin(session);
    *written = 0;
    for (uint32_t opcode = 0; opcode < WH_TIMES_OPCODES && error == 0; opcode++) {
        struct wh_times_row row = {.opcode = opcode};
        const uint64_t *from = &session->times->rows[opcode].messages;
        for (size_t i = 0; i < sizeof(row) / sizeof(*from) - 1; i++) {
            (&row.messages)[i] = wh_load64(from + i);
        }
        if (row.messages == 0) {
            continue;
        }
        if (size_bytes - *written < sizeof(row)) {
            return -ENOSPC;
        }
        memcpy((uint8_t *)to + *written, &row, sizeof(row));
        *written += sizeof(row);
    }
    return error;
}
