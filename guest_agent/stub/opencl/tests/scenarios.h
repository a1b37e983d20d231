/*
 * scenarios.h - what the clients of the tests share: expectations, and scenarios by their names.
 */
#ifndef WH_TEST_SCENARIOS_H
#define WH_TEST_SCENARIOS_H

#include <CL/cl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ends at once: what is expected in a callback or in a thread may not wait for the others. */
#define EXPECT(got, wanted)                                                                        \
    do {                                                                                           \
        long long got_ = (long long)(got);                                                         \
        long long wanted_ = (long long)(wanted);                                                   \
        if (got_ != wanted_) {                                                                     \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __func__, __LINE__, #got, got_,       \
                    wanted_);                                                                      \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) EXPECT(call, CL_SUCCESS)

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

struct scenario {
    const char *name;
    void (*run)(void);
    bool unlisted; /* it holds forwarded alone, or needs something of the test */
};

static inline void list_scenarios(const struct scenario *scenarios, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!scenarios[i].unlisted) {
            puts(scenarios[i].name);
        }
    }
}

static inline const struct scenario *find_scenario(const struct scenario *scenarios, size_t count,
                                                   const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(scenarios[i].name, name) == 0) {
            return &scenarios[i];
        }
    }
    fprintf(stderr, "there is no scenario '%s'\n", name);
    exit(2);
}

static inline void say_ok(const char *name)
{
    printf("%s ok\n", name);
    fflush(stdout);
}

/* The same for the same seed; to be freed. */
static inline void *random_bytes(size_t size, uint32_t seed)
{
    uint32_t *bytes = malloc(size + 8);
    for (size_t i = 0; i < size / 4 + 1; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = seed;
    }
    return bytes;
}

/* The main program of clients that need nothing before their scenarios: runs those that are named,
 * lists all if none is. */
static inline int run_scenarios(const struct scenario *scenarios, size_t count, int argc,
                                char **argv)
{
    if (argc == 1) {
        list_scenarios(scenarios, count);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        find_scenario(scenarios, count, argv[i])->run();
        say_ok(argv[i]);
    }
    return 0;
}

#endif
