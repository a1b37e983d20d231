/*
 * test_runtime.c - the stub's runtime against a real worker: `test_runtime CASE`, over whatever
 * WORMHOLE_SERVER names.
 *
 * Each case checks every result and prints "ok"; the first wrong one ends it with a line that says
 * which.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "call.h"
#include "mark.h"
#include "session.h"
#include "wh_core_stub.h"

#define THREADS 8
#define CALLS_PER_THREAD 10000u
#define BLOCKED_THREADS 70 /* more than there are reply slots */
#define BULK_BYTES (16u * 1024u * 1024u)
#define PINGPONGS 100000u
#define BUSY_US 13000000u /* longer than a silent worker is given */
#define LIMIT_S 300       /* of a whole case; a stall ends it */

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void nop(uint64_t value)
{
    uint64_t result = 0;
    int error = whNop(value, &result);
    CHECK(error == 0 && result == value + 1, "value %llu, error %d, result %llu",
          (unsigned long long)value, error, (unsigned long long)result);
}

static void oneway(void)
{
    int error = whNopOneway(1);
    CHECK(error == 0, "error %d", error);
}

static uint64_t count(void)
{
    uint64_t result = 0;
    int error = whCount(&result);
    CHECK(error == 0, "error %d", error);
    return result;
}

static struct wh_client *client(void)
{
    int error = 0;
    struct wh_client *found = wh_client_get(&error);
    CHECK(found != NULL, "error %d", error);
    return found;
}

static void start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    int error = pthread_create(thread, NULL, function, argument);
    CHECK(error == 0, "error %d", error);
}

static void fill(uint8_t *bytes, size_t size_bytes, uint32_t seed)
{
    for (size_t i = 0; i < size_bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(seed >> 24);
    }
}

static void copy(size_t size_bytes)
{
    uint8_t *data = calloc(1, size_bytes + 1);
    uint8_t *result = malloc(size_bytes + 1);
    CHECK(data != NULL && result != NULL, "%zu bytes", size_bytes);
    fill(data, size_bytes, (uint32_t)size_bytes + 1);
    memset(result, 0xa5, size_bytes + 1);
    int error = whCopy(data, result, size_bytes);
    CHECK(error == 0, "%zu bytes: error %d", size_bytes, error);
    CHECK(memcmp(data, result, size_bytes) == 0, "%zu bytes differ", size_bytes);
    CHECK(result[size_bytes] == 0xa5, "%zu bytes: written beyond", size_bytes);
    free(data);
    free(result);
}

/* Cases. */

static void case_basic(void)
{
    CHECK(wh_session_serial() == 0, "serial %u before the first call", wh_session_serial());
    for (uint64_t i = 0; i < 1000; i++) {
        nop(i);
        oneway();
    }
    CHECK(count() == 1000, "count");
    CHECK(whSleep(1000) == 0, "whSleep");
    CHECK(wh_session_serial() == 1, "serial %u", wh_session_serial());
    nop(UINT64_MAX);
}

static void case_sizes(void)
{
    static const size_t edges[] = {0,      1,    8,     63,    64,     65,      WH_INLINE_BYTES_MAX,
                                   4096,   8192, 16384, 65536, 262144, 1048576, 2097152,
                                   4194304};
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        for (size_t size_bytes = edges[i] > 0 ? edges[i] - 1 : 0; size_bytes <= edges[i] + 1;
             size_bytes++) {
            copy(size_bytes);
        }
    }
    copy(wh_bulk_limit() < BULK_BYTES ? wh_bulk_limit() : BULK_BYTES);
}

/* Data that does not fit is refused by this side, and the session goes on. */
static void case_too_large(void)
{
    size_t size_bytes = wh_client_uses_shm(client()) ? client()->transfers_bytes
                                                     : (size_t)WH_TCP_MESSAGE_BYTES_MAX + 1;
    uint8_t *data = calloc(1, size_bytes);
    CHECK(data != NULL, "%zu bytes", size_bytes);
    int error = whCopy(data, data, size_bytes);
    CHECK(error == -EMSGSIZE || error == -ENOMEM, "error %d", error);
    free(data);
    nop(1);
    copy(100000);
}

static void *mixed(void *argument)
{
    uint32_t seed = (uint32_t)(uintptr_t)argument + 1;
    uint8_t data[5000];
    uint8_t result[5000];
    for (uint32_t i = 0; i < CALLS_PER_THREAD; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t choice = seed >> 24;
        if (choice < 128) {
            oneway();
        } else if (choice < 240) {
            nop(seed);
        } else if (choice < 254) {
            size_t size_bytes = (seed >> 8) % sizeof(data);
            fill(data, size_bytes, seed);
            CHECK(whCopy(data, result, size_bytes) == 0, "%zu bytes", size_bytes);
            CHECK(memcmp(data, result, size_bytes) == 0, "%zu bytes differ", size_bytes);
        } else {
            CHECK(whSleep(100) == 0, "whSleep");
        }
    }
    uint32_t oneways = 0;
    seed = (uint32_t)(uintptr_t)argument + 1;
    for (uint32_t i = 0; i < CALLS_PER_THREAD; i++) {
        seed = seed * 1664525u + 1013904223u;
        oneways += seed >> 24 < 128;
    }
    return (void *)(uintptr_t)oneways;
}

static void case_threads(void)
{
    pthread_t threads[THREADS];
    uint64_t expected = 0;
    for (uintptr_t i = 0; i < THREADS; i++) {
        start(&threads[i], mixed, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) {
        void *oneways = NULL;
        pthread_join(threads[i], &oneways);
        expected += (uintptr_t)oneways;
    }
    uint64_t found = count();
    CHECK(found == expected, "%llu one-way calls of %llu arrived", (unsigned long long)found,
          (unsigned long long)expected);
}

/* A one-way call of one thread, then a word to another: the other's call must come after it. */
struct relay {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t sent;
    uint64_t seen;
};

static void *relay_sender(void *argument)
{
    struct relay *relay = argument;
    for (uint64_t i = 1; i <= 2000; i++) {
        oneway();
        pthread_mutex_lock(&relay->lock);
        relay->sent = i;
        pthread_cond_broadcast(&relay->changed);
        while (relay->seen != i) {
            pthread_cond_wait(&relay->changed, &relay->lock);
        }
        pthread_mutex_unlock(&relay->lock);
    }
    return NULL;
}

static void case_order(void)
{
    struct relay relay = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t sender;
    start(&sender, relay_sender, &relay);
    for (uint64_t i = 1; i <= 2000; i++) {
        pthread_mutex_lock(&relay.lock);
        while (relay.sent != i) {
            pthread_cond_wait(&relay.changed, &relay.lock);
        }
        pthread_mutex_unlock(&relay.lock);
        uint64_t found = count();
        CHECK(found == i, "after %llu one-way calls the count was %llu", (unsigned long long)i,
              (unsigned long long)found);
        pthread_mutex_lock(&relay.lock);
        relay.seen = i;
        pthread_cond_broadcast(&relay.changed);
        pthread_mutex_unlock(&relay.lock);
    }
    pthread_join(sender, NULL);
}

static uint32_t sleepers_back;

static void *sleep_long(void *argument)
{
    int error = whSleep((uintptr_t)argument);
    CHECK(error == 0, "error %d", error);
    __atomic_add_fetch(&sleepers_back, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Calls that block hold up no other thread, however many there are. */
static void case_blocked(void)
{
    pthread_t threads[4];
    nop(1);
    for (int i = 0; i < 4; i++) {
        start(&threads[i], sleep_long, (void *)5000000);
    }
    usleep(100000);
    for (uint64_t i = 0; i < 1000; i++) {
        nop(i);
        oneway();
    }
    CHECK(count() == 1000, "count");
    CHECK(__atomic_load_n(&sleepers_back, __ATOMIC_SEQ_CST) == 0, "the calls waited for whSleep");
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void case_many_blocked(void)
{
    pthread_t threads[BLOCKED_THREADS];
    for (int i = 0; i < BLOCKED_THREADS; i++) {
        start(&threads[i], sleep_long, (void *)50000);
    }
    for (int i = 0; i < BLOCKED_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(sleepers_back == BLOCKED_THREADS, "%u came back", sleepers_back);
}

/* The test that runs us stops the worker after the first line and lets it go on after a while. */
static void case_ring_full(void)
{
    struct wh_counters totals;
    nop(1);
    puts("stop");
    fflush(stdout);
    CHECK(getchar() == '\n', "no word from the test");
    for (uint32_t i = 0; i < 50000; i++) {
        oneway();
    }
    CHECK(count() == 50000, "count");
    wh_counters_total(&totals);
    CHECK(totals.ring_full > 0, "the ring was never full");
}

static void wait_for_child(pid_t child)
{
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "errno %d", errno);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
}

static void case_fork(void)
{
    oneway();
    CHECK(count() == 1, "count");
    for (int i = 0; i < 3; i++) {
        fflush(stdout);
        pid_t child = fork();
        CHECK(child >= 0, "errno %d", errno);
        if (child == 0) {
            CHECK(wh_session_serial() == 2, "serial %u", wh_session_serial());
            CHECK(count() == 0, "the child has the parent's session");
            nop(7);
            copy(100000);
            if (i == 0) {
                exit(0);
            }
            if (i == 1) {
                _exit(0);
            }
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        nop(3);
        wait_for_child(child);
        copy(100000);
    }
    CHECK(count() == 1 && wh_session_serial() == 1, "the parent's session changed");
}

/* Pauses around both sides' spin bound: every way of just falling asleep. */
static void case_pingpong(void)
{
    uint64_t spin_ticks = client()->config->spin_ticks;
    uint32_t seed = 1;
    for (uint64_t i = 0; i < PINGPONGS; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint64_t pause_ticks = spin_ticks * (900 + (seed >> 16) % 200) / 1000;
        uint64_t start_ticks = wh_ticks();
        while (wh_ticks() - start_ticks < pause_ticks) {
        }
        nop(i);
    }
}

/* How many of the waits that never end in time spin for their whole bound. */
static void case_habit(void)
{
    struct wh_spin_habit habit = {0};
    unsigned int whole = 0;
    for (int i = 0; i < 160; i++) {
        whole += wh_spin_bound(&habit, 1600) == 1600 ? 1 : 0;
        wh_spin_ended(&habit, false);
    }
    CHECK(whole == 13, "%u of 160 waits in vain", whole); /* after 1, 3, 7 and ten times 15 */
    wh_spin_ended(&habit, true);
    CHECK(wh_spin_bound(&habit, 1600) == 1600, "one in time is not taken %s", "up");
    wh_spin_ended(&habit, false);
    CHECK(wh_spin_bound(&habit, 1600) == 100, "the next one is not %s", "short");
}

/* Exactly one notification a call each way. */
static void case_always(void)
{
    struct wh_counters totals;
    for (uint64_t i = 0; i < 1000; i++) {
        nop(i);
    }
    wh_counters_total(&totals);
    CHECK(totals.notifications_sent == totals.messages && totals.messages == 1000,
          "%llu notifications for %llu messages", (unsigned long long)totals.notifications_sent,
          (unsigned long long)totals.messages);
    usleep(1500000);
    uint64_t wakes = wh_load64(&client()->header->wakes_sent);
    CHECK(wakes == 1000, "%llu wakes for 1000 replies", (unsigned long long)wakes);
}

/* The test kills or stops the worker once we have said that we wait. */
static void *wait_to_be_killed(void *argument)
{
    uint64_t start_ns = wh_now_ns();
    int error = whSleep(50000000);
    CHECK(error == -EPIPE, "error %d", error);
    *(uint64_t *)argument = wh_now_ns() - start_ns;
    return NULL;
}

static void case_killed_worker(void)
{
    uint64_t waited_ns = 0;
    pthread_t thread;
    nop(1);
    uint32_t serial = wh_session_serial();
    start(&thread, wait_to_be_killed, &waited_ns);
    usleep(200000);
    puts("kill");
    fflush(stdout);
    pthread_join(thread, NULL);
    uint64_t result = 0;
    for (int i = 0; i < 10; i++) {
        CHECK(whNop(1, &result) == -EPIPE && whNopOneway(1) == -EPIPE, "a call on a dead session");
    }
    CHECK(wh_session_serial() != serial, "objects of the dead session look alive");
    /* whSleep would have come back by itself only after 50 s. */
    CHECK(waited_ns < 40000000000ull, "waited %llu ns", (unsigned long long)waited_ns);
}

/* The test stops the worker before we send more than the connection holds. */
static void case_stopped_before_bulk(void)
{
    uint8_t *data = calloc(1, BULK_BYTES);
    CHECK(data != NULL, "%u bytes", BULK_BYTES);
    nop(1);
    puts("kill");
    fflush(stdout);
    CHECK(getchar() == '\n', "no word from the test");
    int error = whCopy(data, data, BULK_BYTES);
    CHECK(error == -EPIPE, "error %d", error);
    CHECK(whNopOneway(1) == -EPIPE, "a call on a dead session");
    free(data);
}

/* whSleep without waiting for it: what is sent next waits in the connection. */
static void sleep_oneway(uint64_t duration_us)
{
    struct wh_call call;
    CHECK(wh_call_begin(&call, WH_OP_whSleep) == 0, "begin");
    wh_put_u64(&call, duration_us);
    int error = wh_call_oneway(&call);
    CHECK(error == 0, "error %d", error);
}

static void *send_to_busy(void *argument)
{
    (void)argument;
    sleep_oneway(BUSY_US);
    copy(BULK_BYTES);
    return NULL;
}

/* A worker that is busy for longer than a silent one is given is no dead one. */
static void case_busy(void)
{
    pthread_t threads[2];
    nop(1);
    start(&threads[0], sleep_long, (void *)(uintptr_t)BUSY_US);
    start(&threads[1], send_to_busy, NULL);
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        pthread_join(threads[i], NULL);
    }
    nop(2);
}

/* Long enough for a few heartbeats. */
static void case_slow(void)
{
    for (uint64_t i = 0; i < 2; i++) {
        nop(i);
        CHECK(whSleep(2000000) == 0, "whSleep");
    }
    nop(2);
}

/* The test kills us. */
static void case_victim(void)
{
    copy(3000000);
    oneway();
    puts("kill");
    fflush(stdout);
    for (;;) {
        copy(1000000);
    }
}

/* Bulk data: the block stays until the worker has let go of it, and the arena is never exhausted by
 * that. */
static void case_bulk(void)
{
    size_t size_bytes = wh_bulk_limit() < BULK_BYTES ? wh_bulk_limit() : BULK_BYTES;
    uint8_t *data = calloc(1, size_bytes);
    CHECK(data != NULL, "%zu bytes", size_bytes);
    for (int i = 0; i < 50; i++) {
        struct wh_call call;
        uint8_t nothing = 0;
        CHECK(wh_call_begin(&call, WH_OP_whCopy) == 0, "begin");
        wh_put_bulk(&call, data, size_bytes);
        wh_put_out(&call, 0, true);
        wh_put_u64(&call, 0);
        CHECK(wh_call_sync(&call) == 0, "round %d", i);
        CHECK(wh_get_out(&call, &nothing, 0) == 0, "round %d", i);
        wh_call_end(&call);
    }
    free(data);
    pthread_mutex_lock(&client()->arena_lock);
    uint32_t busy = wh_client_uses_shm(client()) ? wh_arena_reap(client()->arena, UINT32_MAX) : 0;
    pthread_mutex_unlock(&client()->arena_lock);
    CHECK(busy == 0, "%u blocks still busy", busy);
    if (wh_client_uses_shm(client())) {
        CHECK(wh_arena_free_bytes(client()->arena) == client()->transfers_bytes,
              "blocks were lost");
    }
}

static void case_marks(void)
{
    wormhole_mark("step 1");
    for (int i = 0; i < 5; i++) {
        wh_count_api_call();
        nop(1);
        wh_count_api_call(); /* one that is answered locally */
    }
    wormhole_mark("step \"2\"\n");
}

static void case_connect_refused(void)
{
    uint64_t result = 0;
    int error = whNop(1, &result);
    CHECK(error < 0, "a call without a server");
    CHECK(wh_session_serial() == 0, "serial %u", wh_session_serial());
}

/* Malformed requests: what a hostile client could put into its ring. */

static void put_raw(const struct wh_request_header *header, const uint64_t *words,
                    size_t word_count, uint64_t published_bytes)
{
    struct wh_client *target = client();
    uint8_t *to = target->ring + (target->head & (WH_RING_BYTES - 1));
    memcpy(to, header, sizeof(*header));
    if (word_count > 0) {
        memcpy(to + sizeof(*header), words, word_count * sizeof(*words));
    }
    target->head += published_bytes;
    wh_store_release64(&target->header->head, target->head);
    CHECK(target->transport->notify(target) == 0, "notify");
}

static void case_malformed(const char *kind)
{
    struct wh_request_header header = {.size_bytes = 32,
                                       .opcode = WH_OP_whNop,
                                       .flags = WH_REQUEST_FLAG_REPLY,
                                       .slot = 0,
                                       .sequence = 9};
    uint64_t words[8] = {0};
    size_t word_count = 2;
    uint64_t published_bytes = 32;
    nop(1);
    if (strcmp(kind, "size_zero") == 0) {
        header.size_bytes = 0;
    } else if (strcmp(kind, "size_unaligned") == 0) {
        header.size_bytes = 24;
    } else if (strcmp(kind, "size_beyond_head") == 0) {
        header.size_bytes = 64;
    } else if (strcmp(kind, "size_huge") == 0) {
        header.size_bytes = 0xfffffff0u;
    } else if (strcmp(kind, "head_jump") == 0) {
        published_bytes = (uint64_t)WH_RING_BYTES * 3;
    } else if (strcmp(kind, "head_back") == 0) {
        published_bytes = (uint64_t)-64;
    } else if (strcmp(kind, "head_unaligned") == 0) {
        published_bytes = 33;
    } else if (strcmp(kind, "slot") == 0) {
        header.slot = WH_SLOT_COUNT;
    } else if (strcmp(kind, "sequence_zero") == 0) {
        header.sequence = 0;
    } else if (strcmp(kind, "no_arguments") == 0) {
        header.size_bytes = 16;
        published_bytes = 16;
    } else {
        header.opcode = WH_OP_whCopy;
        header.size_bytes = 64;
        published_bytes = 64;
        word_count = 6;
        words[0] = 16; /* data: size, location */
        words[1] = WH_BLOCK_HEADER_BYTES;
        words[2] = 16; /* result: capacity, location */
        words[3] = WH_INLINE;
        words[4] = 16;
        if (strcmp(kind, "location_outside") == 0) {
            words[1] = client()->arena_bytes + WH_LINE_BYTES;
        } else if (strcmp(kind, "location_wraps") == 0) {
            words[1] = WH_NULL - 62; /* 64-aligned, close to the end of the number range */
        } else if (strcmp(kind, "location_header") == 0) {
            words[1] = 0;
        } else if (strcmp(kind, "location_unaligned") == 0) {
            words[1] = WH_BLOCK_HEADER_BYTES + 8;
        } else if (strcmp(kind, "blob_longer") == 0) {
            words[0] = client()->arena_bytes;
        } else if (strcmp(kind, "inline_longer") == 0) {
            words[0] = 4096;
            words[1] = WH_INLINE;
        } else if (strcmp(kind, "inline_wraps") == 0) {
            words[0] = UINT64_MAX - 3;
            words[1] = WH_INLINE;
        } else if (strcmp(kind, "out_huge") == 0) {
            words[2] = UINT64_MAX;
        } else if (strcmp(kind, "out_outside") == 0) {
            words[2] = client()->arena_bytes;
            words[3] = WH_BLOCK_HEADER_BYTES;
        } else if (strcmp(kind, "count_longer") == 0) {
            words[4] = 17;
        } else {
            CHECK(false, "no malformed request of kind %s", kind);
        }
    }
    const struct wh_client *ended = client();
    put_raw(&header, words, word_count, published_bytes);
    uint64_t result = 0;
    uint64_t limit_ns = wh_now_ns() + 20000000000ull;
    while (wh_load_acquire32(&ended->header->host_state) == WH_HOST_STATE_READY) {
        CHECK(wh_now_ns() < limit_ns, "the worker did not notice");
        usleep(1000);
    }
    CHECK(whNop(1, &result) == -EPIPE, "a call after a malformed one");
}

/* An unknown opcode is answered, not fatal. */
static void case_unknown_opcode(void)
{
    struct wh_call call;
    CHECK(wh_call_begin(&call, 0xfff0) == 0, "begin");
    CHECK(wh_call_sync(&call) == -ENOSYS, "error %d", call.error);
    wh_call_end(&call);
    nop(1);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"basic", case_basic},
        {"sizes", case_sizes},
        {"too_large", case_too_large},
        {"threads", case_threads},
        {"order", case_order},
        {"blocked", case_blocked},
        {"many_blocked", case_many_blocked},
        {"ring_full", case_ring_full},
        {"fork", case_fork},
        {"pingpong", case_pingpong},
        {"habit", case_habit},
        {"always", case_always},
        {"killed_worker", case_killed_worker},
        {"stopped_before_bulk", case_stopped_before_bulk},
        {"busy", case_busy},
        {"slow", case_slow},
        {"victim", case_victim},
        {"bulk", case_bulk},
        {"marks", case_marks},
        {"connect_refused", case_connect_refused},
        {"unknown_opcode", case_unknown_opcode},
    };
    const char *name = argc > 1 ? argv[1] : "";
    alarm(LIMIT_S);
    if (strcmp(name, "malformed") == 0 && argc > 2) {
        case_malformed(argv[2]);
        puts("ok");
        return 0;
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(name, cases[i].name) == 0) {
            cases[i].run();
            puts("ok");
            return 0;
        }
    }
    fprintf(stderr, "test_runtime: no case %s\n", name);
    return 2;
}
