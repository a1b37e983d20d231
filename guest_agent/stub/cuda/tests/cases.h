/*
 * cases.h - what the CUDA test programs share: cases by name that print their results, and count
 * what is not as it must be.
 */
#ifndef CUDA_CASES_H
#define CUDA_CASES_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "wh_cudart.h"

enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3, ANY = 4 };

struct test_case {
    const char *name;
    void (*run)(void);
    bool alone; /* only where it is asked for */
};

static int failures;
static const char *case_name;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("%s: ", case_name);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    fflush(stdout);
}

static void check(bool good, const char *what)
{
    if (!good) {
        say("WRONG %s", what);
        failures++;
    }
}

static void expect(int got, int wanted, const char *what)
{
    if (got != wanted) {
        say("WRONG %s: %d (%s) instead of %d", what, got, cudaGetErrorName(got), wanted);
        failures++;
    }
}

#define OK(call) expect((call), 0, #call)
#define IS(call, wanted) expect((call), (wanted), #call)

static int run_cases(int argc, char **argv, const struct test_case *cases, size_t count)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) {
            printf("%s\n", cases[i].name);
        }
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        bool wanted = argc == 1 && !cases[i].alone;
        for (int j = 1; j < argc; j++) {
            wanted = wanted || strcmp(argv[j], cases[i].name) == 0;
        }
        if (wanted) {
            case_name = cases[i].name;
            int before = failures;
            cases[i].run();
            say("%s", failures == before ? "passed" : "FAILED");
        }
    }
    return failures == 0 ? 0 : 1;
}

#endif
