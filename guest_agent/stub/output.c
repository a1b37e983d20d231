/*
 * output.c - takes what kernels print from the server and writes it where the real library would.
 *
 * Nothing is asked for as long as no program is made that mentions printf. From then on each reply
 * says whether output waits, and whoever gets it takes the output before its call returns: a kernel
 * that is seen complete has its lines on the standard output, as natively. Between replies a thread
 * of the stub takes what comes, so that a kernel that prints much need not wait.
 */
#define _GNU_SOURCE /* memmem */

#include "output.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "call.h"
#include "fork_lock.h"
#include "service.h"
#include "session.h"
#include "wh_core_stub.h"

#define WH_PIECE_BYTES 65536u /* over TCP; over shared memory what needs no room in the arena */
#define WH_EXIT_PATIENCE_S 2

WH_FORK_LOCK(output_lock);      /* taking and writing, in order */
static uint32_t watched_serial; /* session that was told; 0 none */
static bool direct;             /* past the buffer of stdio */

bool wh_output_expected(void)
{
    uint32_t serial = __atomic_load_n(&watched_serial, __ATOMIC_ACQUIRE);
    return serial != 0 && serial == wh_session_serial();
}

static void write_all(const uint8_t *bytes, size_t size_bytes)
{
    struct pollfd ready = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (!direct) {
        (void)fwrite(bytes, 1, size_bytes, stdout);
        return;
    }
    while (size_bytes > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, size_bytes);
        if (written >= 0) {
            bytes += written;
            size_bytes -= (size_t)written;
        } else if (errno == EAGAIN) {
            poll(&ready, 1, -1);
        } else if (errno != EINTR) {
            return; /* a closed standard output: the real library's write fails as well */
        }
    }
}

/* Takes and writes all that there is. The lock is held. */
static void take_output(void)
{
    static uint8_t bytes[WH_PIECE_BYTES]; /* an application's thread may have a small stack */
    const uint64_t limit = wh_uses_shm() ? WH_INLINE_BYTES_MAX : sizeof(bytes);
    uint64_t written = 0;
    uint64_t lost = 0;
    do {
        if (whTakeOutput(bytes, limit, &written, &lost) != 0) {
            return;
        }
        write_all(bytes, written);
        if (lost > 0) {
            fprintf(stderr,
                    "wormhole: %llu bytes that kernels printed are lost: their programs did not "
                    "show that they print, and more came than the server keeps\n",
                    (unsigned long long)lost);
        }
    } while (written > 0);
}

static void run_output(void)
{
    while (wh_service_wait(WH_WAIT_FOR_OUTPUT)) {
        pthread_mutex_lock(&output_lock);
        take_output();
        pthread_mutex_unlock(&output_lock);
    }
}

static void watch(void)
{
    uint64_t is_direct = 0;
    if (wh_output_expected() || whWatchOutput(&is_direct) != 0) {
        return;
    }
    direct = is_direct != 0;
    __atomic_store_n(&watched_serial, wh_session_serial(), __ATOMIC_RELEASE);
    int error = wh_service_start("wormhole-output", run_output);
    if (error != 0) {
        fprintf(stderr, "wormhole: no thread for the output of kernels: %s\n", strerror(-error));
    }
}

void wh_output_expect(const void *program, size_t size_bytes)
{
    static const char word[] = "printf";
    if (program == NULL || wh_output_expected() ||
        memmem(program, size_bytes, word, sizeof(word) - 1) == NULL) {
        return;
    }
    pthread_mutex_lock(&output_lock);
    watch();
    pthread_mutex_unlock(&output_lock);
}

void wh_output_settle(uint16_t opcode, bool waits)
{
    /* Taking callbacks counts: what a kernel printed is there before its callback runs. */
    bool own =
        opcode == WH_OP_whTakeOutput || opcode == WH_OP_whWatchOutput || opcode == WH_OP_whWait;
    if (own || (!waits && !wh_output_expected())) {
        return;
    }
    /* Also for what another thread has taken and not written yet. */
    pthread_mutex_lock(&output_lock);
    if (waits) {
        take_output();
    }
    pthread_mutex_unlock(&output_lock);
}

/* What was printed after the last reply; a standard output that nobody reads must not keep us. */
__attribute__((destructor)) static void take_last(void)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += WH_EXIT_PATIENCE_S;
    if (wh_output_expected() && pthread_mutex_timedlock(&output_lock, &limit) == 0) {
        take_output();
        pthread_mutex_unlock(&output_lock);
    }
}
