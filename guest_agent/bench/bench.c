/*
 * bench.c - what one call costs over whatever WORMHOLE_SERVER names: `wormhole-bench [--calls N]
 * [--blocks N] [--measure all|sync]`, one JSON object.  `sync` leaves out all but calls that wait.
 *
 * floor_ns   a round trip of two cache lines between this process and the worker, no call in it
 * (shared memory only) sync_ns    a call that waits for its reply oneway_ns  what a one-way call
 * costs its caller, in a burst that ends before the worker is known to be done
 *
 * The three are measured in interleaved blocks; a figure is the median of the blocks' means, and
 * the means stand beside it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "session.h"
#include "wh_core_stub.h"

#define WH_BLOCKS_MAX 1000u
#define WH_BURST_CALLS 10000u /* one-way calls in a row */
#define WH_COUNTED_CALLS 1000u
#define WH_COUNTERS_SHOWN_US 1200000u /* the worker shows its counters every 500 ms */
#define WH_ECHO_LIMIT_NS 20000000000ull

enum series { SERIES_FLOOR, SERIES_SYNC, SERIES_ONEWAY, SERIES_COUNT };

static const char *const series_names[SERIES_COUNT] = {"floor", "sync", "oneway"};

static double samples[SERIES_COUNT][WH_BLOCKS_MAX];

struct echo {
    uint64_t location;
    uint64_t iterations;
    int error;
};

static void check(int error, const char *what)
{
    if (error != 0) {
        fprintf(stderr, "wormhole-bench: %s failed: %s\n", what, strerror(-error));
        exit(1);
    }
}

static struct wh_client *session(void)
{
    int error = 0;
    struct wh_client *client = wh_client_get(&error);
    check(client == NULL ? error : 0, "opening the session");
    return client;
}

static void *call_echo(void *argument)
{
    struct echo *echo = argument;
    echo->error = whEcho(echo->location, echo->iterations);
    return NULL;
}

static double floor_block(uint64_t location, uint64_t iterations)
{
    struct wh_client *client = session();
    uint64_t *ping = (uint64_t *)(void *)(client->arena_base + location);
    uint64_t *pong = (uint64_t *)(void *)(client->arena_base + location + WH_LINE_BYTES);
    bool pause_is_cheap = client->config->pause_is_cheap;
    struct echo echo = {.location = location, .iterations = iterations};
    pthread_t thread;
    wh_store64(ping, 0);
    wh_store64(pong, 0);
    check(-pthread_create(&thread, NULL, call_echo, &echo), "starting a thread");
    uint64_t start_ns = 0;
    uint64_t limit_ns = wh_now_ns() + WH_ECHO_LIMIT_NS;
    for (uint64_t n = 1; n <= iterations; n++) {
        wh_store_release64(ping, n);
        for (uint32_t polls = 1; wh_load_acquire64(pong) != n; polls++) {
            wh_pause(pause_is_cheap);
            if (polls % 65536 == 0 && wh_now_ns() > limit_ns) {
                check(-ETIMEDOUT, "the echo");
            }
        }
        if (n == iterations / 10) {
            start_ns = wh_now_ns(); /* the first tenth lets the worker arrive */
        }
    }
    uint64_t end_ns = wh_now_ns();
    pthread_join(thread, NULL);
    check(echo.error, "whEcho");
    return (double)(end_ns - start_ns) / (double)(iterations - iterations / 10);
}

static double sync_block(uint64_t calls)
{
    uint64_t result = 0;
    for (uint64_t i = 0; i < calls / 10; i++) {
        check(whNop(i, &result), "whNop");
    }
    uint64_t start_ns = wh_now_ns();
    for (uint64_t i = 0; i < calls; i++) {
        check(whNop(i, &result), "whNop");
        if (result != i + 1) {
            check(-EIO, "the result of whNop");
        }
    }
    return (double)(wh_now_ns() - start_ns) / (double)calls;
}

static double oneway_block(uint64_t burst)
{
    uint64_t result = 0;
    check(whCount(&result), "whCount");
    uint64_t start_ns = wh_now_ns();
    for (uint64_t i = 0; i < burst; i++) {
        check(whNopOneway(i), "whNopOneway");
    }
    uint64_t end_ns = wh_now_ns();
    uint64_t after = 0;
    check(whCount(&after), "whCount");
    check(after - result == burst ? 0 : -EIO, "the count of one-way calls");
    return (double)(end_ns - start_ns) / (double)burst;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_series(enum series series, uint32_t blocks)
{
    double *values = samples[series];
    printf("\"%s_samples_ns\":[", series_names[series]);
    for (uint32_t i = 0; i < blocks; i++) {
        printf("%s%.1f", i > 0 ? "," : "", values[i]);
    }
    qsort(values, blocks, sizeof(*values), compare);
    printf("],\"%s_ns\":%.1f,", series_names[series], values[blocks / 2]);
}

static uint64_t wakes(const struct wh_client *client)
{
    if (!wh_client_uses_shm(client)) {
        return 0;
    }
    usleep(WH_COUNTERS_SHOWN_US);
    return wh_load64(&client->header->wakes_sent);
}

/* Notifications per synchronous call, each way, and waits that slept; and one-way ones of a burst.
 */
static void print_counts(void)
{
    const struct wh_client *client = session();
    struct wh_counters before, after;
    uint64_t wakes_before = wakes(client);
    uint64_t result = 0;
    check(whNop(0, &result), "whNop"); /* wakes the worker, which has slept meanwhile */
    wh_counters_total(&before);
    for (uint64_t i = 0; i < WH_COUNTED_CALLS; i++) {
        check(whNop(i, &result), "whNop");
    }
    wh_counters_total(&after);
    uint64_t wakes_after = wakes(client);
    double calls = WH_COUNTED_CALLS;
    printf("\"notifications_per_call\":%.4f,\"wakes_per_call\":%.4f,\"sleeps_per_call\":%.4f,",
           (double)(after.notifications_sent - before.notifications_sent) / calls,
           (double)(wakes_after - wakes_before) / (calls + 1),
           (double)(after.sleeps - before.sleeps) / calls);
    check(whNop(0, &result), "whNop");
    const uint64_t burst = client->config->oneway ? WH_BURST_CALLS : WH_COUNTED_CALLS;
    wh_counters_total(&before);
    for (uint64_t i = 0; i < burst; i++) {
        check(whNopOneway(i), "whNopOneway");
    }
    wh_counters_total(&after);
    printf("\"notifications_per_oneway\":%.4f,\"ring_full_per_oneway\":%.4f,",
           (double)(after.notifications_sent - before.notifications_sent) / (double)burst,
           (double)(after.ring_full - before.ring_full) / (double)burst);
}

static uint64_t number(const char *text, uint64_t limit)
{
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 10);
    if (*end != '\0' || value < 1 || value > limit) {
        fprintf(stderr, "wormhole-bench: %s is not a number from 1 to %llu\n", text,
                (unsigned long long)limit);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    uint64_t calls = 20000;
    uint32_t blocks = 15;
    bool all = true;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--calls") == 0) {
            calls = number(argv[i + 1], 10000000);
        } else if (strcmp(argv[i], "--blocks") == 0) {
            blocks = (uint32_t)number(argv[i + 1], WH_BLOCKS_MAX);
        } else if (strcmp(argv[i], "--measure") == 0) {
            all = strcmp(argv[i + 1], "sync") != 0;
        }
    }
    struct wh_client *client = session();
    bool shm = wh_client_uses_shm(client);
    bool with_floor = shm && all;
    uint64_t location = with_floor ? wh_arena_alloc(client->arena, WH_PAGE_BYTES / 2) : 0;
    sync_block(calls / 10); /* warm-up */
    for (uint32_t block = 0; block < blocks; block++) {
        samples[SERIES_FLOOR][block] = with_floor ? floor_block(location, calls) : 0;
        samples[SERIES_SYNC][block] = sync_block(calls);
        samples[SERIES_ONEWAY][block] =
            all ? oneway_block(client->config->oneway ? WH_BURST_CALLS : calls) : 0;
    }
    printf("{\"transport\":\"%s\",\"spin_us\":%u,\"oneway_on\":%s,\"notify_always\":%s,"
           "\"calls\":%llu,\"blocks\":%u,",
           shm ? "shm" : "tcp", client->config->spin_us, client->config->oneway ? "true" : "false",
           client->config->notify_always ? "true" : "false", (unsigned long long)calls, blocks);
    for (int series = with_floor ? SERIES_FLOOR : SERIES_SYNC;
         series < (all ? SERIES_COUNT : SERIES_ONEWAY); series++) {
        print_series((enum series)series, blocks);
    }
    if (all) {
        print_counts();
    }
    struct wh_counters totals;
    wh_counters_total(&totals);
    printf("\"messages\":%llu,\"round_trips\":%llu,\"notifications\":%llu,\"pid\":%ld}\n",
           (unsigned long long)totals.messages, (unsigned long long)totals.round_trips,
           (unsigned long long)totals.notifications_sent, (long)getpid());
    return 0;
}
