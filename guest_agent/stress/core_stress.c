/*
 * core_stress.c - mixed calls of the runtime itself, every result checked: wormhole-stress CALLS
 * THREADS SEED PAUSE_US PAUSE_EVERY.
 *
 * Calls that wait, that do not, that block a worker thread, and that carry data inline and through
 * the arena. Every PAUSE_EVERY calls, about, a thread pauses for PAUSE_US and a half either way, so
 * that both sides are caught on the way to sleep. With one thread and a pause after every call it
 * is a ping-pong around the spin bound.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "session.h"
#include "wh_core_stub.h"

#define THREADS_MAX 64
#define SMALL_BYTES 512u
#define LARGE_BYTES 65536u
#define BLOCK_US_MAX 200u

static uint64_t calls_wanted;
static uint32_t pause_us;
static uint32_t pause_every;

struct caller {
    pthread_t thread;
    uint64_t random;
    uint64_t calls;
    uint64_t oneway;
    uint8_t sent[LARGE_BYTES];
    uint8_t received[LARGE_BYTES];
};

static void check(int error, const char *what)
{
    if (error != 0) {
        fprintf(stderr, "wormhole-stress: %s: %s\n", what, strerror(-error));
        exit(1);
    }
}

static uint32_t draw(struct caller *caller, uint32_t limit)
{
    caller->random ^= caller->random << 13;
    caller->random ^= caller->random >> 7;
    caller->random ^= caller->random << 17;
    return (uint32_t)(caller->random >> 32) % limit;
}

static void copy(struct caller *caller, uint32_t size_bytes)
{
    for (uint32_t i = 0; i < size_bytes; i += SMALL_BYTES / 8) {
        caller->sent[i] = (uint8_t)caller->random;
        caller->received[i] = 0;
        caller->random = caller->random * 6364136223846793005u + 1;
    }
    check(whCopy(caller->sent, caller->received, size_bytes), "whCopy");
    check(memcmp(caller->sent, caller->received, size_bytes) == 0 ? 0 : -EIO, "a copy's bytes");
}

static void call_once(struct caller *caller)
{
    uint64_t result = 0;
    uint64_t value = caller->random;
    uint32_t kind = draw(caller, 1000);
    caller->calls++;
    if (kind < 450) {
        check(whNop(value, &result), "whNop");
        check(result == value + 1 ? 0 : -EIO, "the result of whNop");
    } else if (kind < 850) {
        check(whNopOneway(value), "whNopOneway");
        caller->oneway++;
    } else if (kind < 990) {
        copy(caller, 1 + draw(caller, SMALL_BYTES));
    } else if (kind < 998) {
        copy(caller, 1 + draw(caller, LARGE_BYTES));
    } else {
        check(whSleep(draw(caller, BLOCK_US_MAX)), "whSleep");
    }
}

static void *call_many(void *argument)
{
    struct caller *caller = argument;
    while (caller->calls < calls_wanted) {
        call_once(caller);
        if (pause_every > 0 && draw(caller, pause_every) == 0) {
            usleep(pause_us / 2 + draw(caller, pause_us + 1));
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static struct caller callers[THREADS_MAX];
    unsigned threads = argc == 6 ? (unsigned)atoi(argv[2]) : 0;
    if (threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: wormhole-stress CALLS THREADS SEED PAUSE_US PAUSE_EVERY\n");
        return 2;
    }
    calls_wanted = strtoull(argv[1], NULL, 10) / threads;
    pause_us = (uint32_t)atoi(argv[4]);
    pause_every = (uint32_t)atoi(argv[5]);
    uint64_t calls = 0;
    uint64_t oneway = 0;
    uint64_t counted = 0;
    for (unsigned i = 0; i < threads; i++) {
        callers[i].random = (strtoull(argv[3], NULL, 10) * THREADS_MAX + i) * 2654435761u + 1;
        check(-pthread_create(&callers[i].thread, NULL, call_many, &callers[i]), "a thread");
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(callers[i].thread, NULL);
        calls += callers[i].calls;
        oneway += callers[i].oneway;
    }
    check(whCount(&counted), "whCount");
    check(counted == oneway ? 0 : -EIO, "the number of one-way calls that arrived");
    printf("%llu calls, every result right\n", (unsigned long long)calls);
    return 0;
}
