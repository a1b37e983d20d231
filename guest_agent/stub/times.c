/*
 * times.c - sums of where calls spend their time, by opcode (times.h).
 */
#include "times.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "config.h"
#include "stats.h"
#include "wh_core_stub.h"

#define WH_COLUMNS (sizeof(struct wh_client_times) / sizeof(uint64_t))
#define WH_WORKER_COLUMNS (sizeof(struct wh_times_row) / sizeof(uint64_t))
#define WH_NUMBER_CHARS 21u /* of a 64-bit number and a comma */
#define WH_LINE_BYTES_MAX                                                                          \
    (512u + WH_TIMES_OPCODES * WH_NUMBER_CHARS * (WH_COLUMNS + 1 + WH_WORKER_COLUMNS))

bool wh_times_on;
static struct wh_client_times rows[WH_TIMES_OPCODES];
static struct wh_times_row worker_rows[WH_TIMES_OPCODES];
static pthread_mutex_t mark_lock = PTHREAD_MUTEX_INITIALIZER;

static struct wh_client_times *row_of(uint16_t opcode)
{
    return &rows[opcode % WH_TIMES_OPCODES];
}

static void add(uint64_t *sum, uint64_t amount)
{
    __atomic_fetch_add(sum, amount, __ATOMIC_RELAXED);
}

static uint64_t ns(uint64_t ticks)
{
    return ticks * 1000u / wh_config()->ticks_per_us;
}

/* Time of an API call that is counted elsewhere. */
static uint64_t apart(struct wh_span *span, uint16_t opcode, uint64_t begin_ticks)
{
    uint64_t ticks = wh_ticks() - begin_ticks;
    span->apart_ticks += ticks;
    span->opcode = span->opcode == 0 ? opcode : span->opcode;
    return ns(ticks);
}

void wh_times_sent(struct wh_span *span, uint16_t opcode, uint64_t begin_ticks)
{
    if (begin_ticks != 0) {
        add(&row_of(opcode)->send_ns, apart(span, opcode, begin_ticks));
        add(&row_of(opcode)->sends, 1);
    }
}

void wh_times_waited(struct wh_span *span, uint16_t opcode, uint64_t begin_ticks, uint64_t busy_ns)
{
    if (begin_ticks != 0) {
        add(&row_of(opcode)->wait_ns, apart(span, opcode, begin_ticks));
        add(&row_of(opcode)->busy_ns, busy_ns);
        add(&row_of(opcode)->waits, 1);
    }
}

void wh_times_copied(struct wh_span *span, uint16_t opcode, uint64_t begin_ticks)
{
    if (begin_ticks != 0) {
        add(&row_of(opcode)->copy_ns, apart(span, opcode, begin_ticks));
    }
}

void wh_times_api_begin(struct wh_span *span, uint64_t begin_ticks)
{
    if (span->depth++ == 0) {
        span->begin_ticks = begin_ticks;
        span->apart_ticks = 0;
        span->opcode = 0;
    }
}

void wh_times_api_end(struct wh_span *span)
{
    if (span->depth == 0) {
        return; /* a fork in the middle: the child's record is new */
    }
    if (--span->depth == 0) {
        uint64_t ticks = wh_ticks() - span->begin_ticks;
        struct wh_client_times *row = row_of(span->opcode);
        add(&row->calls, 1);
        add(&row->stub_ns, ticks > span->apart_ticks ? ns(ticks - span->apart_ticks) : 0);
    }
}

static size_t put_row(char *line, const uint64_t *numbers, size_t count)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(line + used, WH_NUMBER_CHARS + 1, "%s%llu", i == 0 ? "[" : ",",
                                 (unsigned long long)numbers[i]);
    }
    line[used] = ']';
    return used + 1;
}

static void write_line(const char *label, size_t worker_count)
{
    char *line = malloc(WH_LINE_BYTES_MAX);
    if (line == NULL) {
        return;
    }
    size_t used = wh_stats_begin(line, "times", label);
    used += (size_t)sprintf(line + used, ",\"client\":[");
    bool first = true;
    for (uint32_t opcode = 0; opcode < WH_TIMES_OPCODES; opcode++) {
        uint64_t numbers[1 + WH_COLUMNS] = {opcode};
        memcpy(numbers + 1, &rows[opcode], sizeof(rows[opcode]));
        if (numbers[1] + numbers[4] + numbers[7] != 0) {
            used += first ? 0 : (size_t)sprintf(line + used, ",");
            used += put_row(line + used, numbers, 1 + WH_COLUMNS);
            first = false;
        }
    }
    used += (size_t)sprintf(line + used, "],\"worker\":[");
    for (size_t i = 0; i < worker_count; i++) {
        used += i == 0 ? 0 : (size_t)sprintf(line + used, ",");
        used += put_row(line + used, &worker_rows[i].opcode, WH_WORKER_COLUMNS);
    }
    used += (size_t)sprintf(line + used, "]}\n");
    wh_stats_append(line, used);
    free(line);
}

void wh_times_forked(void)
{
    pthread_mutex_init(&mark_lock, NULL);
}

void wh_times_mark(const char *label)
{
    uint64_t written = 0;
    if (!wh_config()->instrument) {
        return;
    }
    pthread_mutex_lock(&mark_lock);
    int error = whTimes(worker_rows, sizeof(worker_rows), &written);
    if (error == 0) {
        write_line(label, written / sizeof(worker_rows[0]));
        __atomic_store_n(&wh_times_on, true, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&mark_lock);
}
