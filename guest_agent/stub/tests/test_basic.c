/*
 * test_basic.c - every kind of call once, over whatever WORMHOLE_SERVER names.
 */
#include <stdio.h>

#include "wh_core_stub.h"

int main(void)
{
    uint64_t result = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        int error = whNop(i, &result);
        if (error != 0 || result != i + 1) {
            fprintf(stderr, "whNop(%llu): error %d, result %llu\n", (unsigned long long)i, error,
                    (unsigned long long)result);
            return 1;
        }
        error = whNopOneway(i);
        if (error != 0) {
            fprintf(stderr, "whNopOneway: error %d\n", error);
            return 1;
        }
    }
    int error = whCount(&result);
    if (error != 0 || result != 1000) {
        fprintf(stderr, "whCount: error %d, result %llu\n", error, (unsigned long long)result);
        return 1;
    }
    error = whSleep(1000);
    if (error != 0) {
        fprintf(stderr, "whSleep: error %d\n", error);
        return 1;
    }
    puts("ok");
    return 0;
}
