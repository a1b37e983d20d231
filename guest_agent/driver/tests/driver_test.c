/*
 * driver_test.c - the guest side of the driver's tests: each case does something with
 * /dev/wormhole0 and checks what it sees. testbed/tests/test_driver_vm.py is the other side, which
 * plays the host server.
 *
 * Usage: driver_test CASE [NUMBER]. Prints "ok CASE" and exits 0, or says what was wrong and
 * exits 1. Built statically, so that it runs in any guest.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "wh_wire.h"
#include "wormhole_uapi.h"

#define DEVICE_PATH "/dev/wormhole0"
#define SLOTS_HELD_PATH "/sys/class/misc/wormhole0/slots_held"
#define SESSIONS_MAX ((int)WH_SESSION_COUNT_MAX + 1)
/* The host double answers a word at REQUEST_OFFSET by copying it to REPLY_OFFSET and waking. */
#define REQUEST_OFFSET 4096u
#define REPLY_OFFSET 4160u
#define DATA_OFFSET 8192u
#define WAIT_US 20000000u
#define SETTLE_TRIES 20

struct session {
    int fd;
    uint8_t *base;
    struct wh_ioc_open args;
};

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(" (errno %d: %s)\n", errno, strerror(errno));
    exit(1);
}

static void say(const char *text)
{
    puts(text);
    fflush(stdout);
}

static void sleep_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

/* ---- sessions ---- */

static int device_open(void)
{
    int fd = open(DEVICE_PATH, O_RDWR | O_CLOEXEC);

    if (fd < 0) {
        fail("open %s", DEVICE_PATH);
    }
    return fd;
}

/* Returns 0 or the errno of the open. */
static int session_try(struct session *session, uint32_t timeout_ms)
{
    session->base = NULL;
    session->fd = open(DEVICE_PATH, O_RDWR | O_CLOEXEC);
    if (session->fd < 0) {
        return errno;
    }
    session->args = (struct wh_ioc_open){
        .version = WH_PROTOCOL_VERSION,
        .spin_us = 7,
        .spec_hash = WH_SPEC_HASH,
        .timeout_ms = timeout_ms,
    };
    if (ioctl(session->fd, WH_IOC_OPEN, &session->args) != 0) {
        int error = errno;

        close(session->fd);
        return error;
    }
    return 0;
}

static void *session_map(const struct session *session)
{
    return mmap(NULL, session->args.session_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, session->fd,
                0);
}

static struct session session_open(void)
{
    struct session session;
    int error = session_try(&session, 0);

    if (error != 0) {
        errno = error;
        fail("WH_IOC_OPEN, host error %u", session.args.host_error);
    }
    session.base = session_map(&session);
    if (session.base == MAP_FAILED) {
        fail("mmap of %llu bytes", (unsigned long long)session.args.session_bytes);
    }
    return session;
}

static volatile uint32_t *word_at(const struct session *session, uint32_t offset)
{
    return (volatile uint32_t *)(session->base + offset);
}

static int session_wait(const struct session *session, uint32_t offset, uint32_t value,
                        uint32_t timeout_us)
{
    struct wh_ioc_wait args = {.offset = offset, .value = value, .timeout_us = timeout_us};

    return ioctl(session->fd, WH_IOC_WAIT, &args) == 0 ? 0 : errno;
}

static void round_trip(const struct session *session, uint32_t value)
{
    uint32_t old = *word_at(session, REPLY_OFFSET);
    int error;

    __atomic_store_n(word_at(session, REQUEST_OFFSET), value, __ATOMIC_SEQ_CST);
    if (ioctl(session->fd, WH_IOC_NOTIFY) != 0) {
        fail("WH_IOC_NOTIFY");
    }
    error = session_wait(session, REPLY_OFFSET, old, WAIT_US);
    if (error != 0) {
        errno = error;
        fail("no reply to %u", value);
    }
    if (*word_at(session, REPLY_OFFSET) != value) {
        fail("reply %u to %u", *word_at(session, REPLY_OFFSET), value);
    }
}

static int slots_held(void)
{
    FILE *file = fopen(SLOTS_HELD_PATH, "r");
    int count = -1;

    if (file == NULL || fscanf(file, "%d", &count) != 1) {
        fail("reading %s", SLOTS_HELD_PATH);
    }
    fclose(file);
    return count;
}

static void expect(const char *what, int got, int wanted)
{
    if (got != wanted) {
        errno = got;
        fail("%s: got %d, wanted %d", what, got, wanted);
    }
}

/* ---- cases ---- */

static void case_round_trip(long count)
{
    struct session session = session_open();

    for (long i = 1; i <= count; i++) {
        round_trip(&session, (uint32_t)i);
    }
}

/* Every session must find zeroes where the one before it in the slot wrote. */
static void case_churn(long count)
{
    for (long i = 0; i < count; i++) {
        struct session session = session_open();

        for (uint32_t offset = DATA_OFFSET; offset < session.args.session_bytes;
             offset += 1u << 20) {
            if (*word_at(&session, offset) != 0) {
                fail("session %ld finds %#x of its predecessor", i, *word_at(&session, offset));
            }
            *word_at(&session, offset) = (uint32_t)i + 1;
        }
        munmap(session.base, session.args.session_bytes);
        close(session.fd);
    }
    expect("slots held afterwards", slots_held(), 0);
}

/* All of the memory, to its last byte. */
static void case_whole(long unused)
{
    struct session session = session_open();
    uint64_t count = session.args.session_bytes / 8;
    volatile uint64_t *words = (volatile uint64_t *)session.base;

    (void)unused;
    for (uint64_t i = DATA_OFFSET / 8; i < count; i++) {
        words[i] = i * 0x9e3779b97f4a7c15u;
    }
    for (uint64_t i = DATA_OFFSET / 8; i < count; i++) {
        if (words[i] != i * 0x9e3779b97f4a7c15u) {
            fail("word %llu differs", (unsigned long long)i);
        }
    }
}

static void case_hold(long unused)
{
    struct session session = session_open();

    (void)unused;
    round_trip(&session, 1);
    say("holding");
    sleep_ms(600000);
}

/* Opens, copies and calls until it is killed. */
static void case_busy(long unused)
{
    struct session session = session_open();

    (void)unused;
    for (uint32_t i = 1;; i++) {
        memset(session.base + DATA_OFFSET, (int)i, session.args.session_bytes - DATA_OFFSET);
        round_trip(&session, i);
    }
}

/* The owner dies, its child lives on with the descriptor. */
static void case_fork(long unused)
{
    struct session session = session_open();
    int status;
    pid_t owner;

    (void)unused;
    round_trip(&session, 1);
    close(session.fd); /* what follows needs an owner of its own */
    owner = fork();
    if (owner == 0) {
        struct session inner = session_open();
        pid_t child = fork();

        if (child == 0) {
            unsigned char resident;

            if (mincore(inner.base, 4096, &resident) == 0 || errno != ENOMEM) {
                fail("a forked child has the mapping");
            }
            if (session_map(&inner) != MAP_FAILED) {
                fail("a forked child may map the session");
            }
            expect("mmap in the child", errno, EPERM);
            sleep_ms(600000); /* keeps the descriptor until it is killed */
            _exit(0);
        }
        sleep_ms(300);
        if (waitpid(child, &status, WNOHANG) != 0) {
            exit(1); /* it has said why */
        }
        round_trip(&inner, 2); /* the child's life changes nothing */
        printf("child %d\n", child);
        fflush(stdout);
        kill(getpid(), SIGKILL);
    }
    waitpid(owner, &status, 0);
    if (!WIFSIGNALED(status)) {
        exit(1);
    }
    expect("slots held after the owner's death", slots_held(), 0);
}

static void case_child_close(long unused)
{
    struct session session = session_open();
    pid_t child = fork();
    int status;

    (void)unused;
    if (child == 0) {
        close(session.fd);
        _exit(0);
    }
    waitpid(child, &status, 0);
    round_trip(&session, 3); /* a child's close and exit end nothing */
    child = vfork();
    if (child == 0) {
        _exit(0);
    }
    waitpid(child, &status, 0);
    round_trip(&session, 4);
}

/* After the close the memory may be another's: what is still mapped must not show it. */
static void case_close_mapped(long unused)
{
    struct session first = session_open();
    struct session others[SESSIONS_MAX];
    int count = 0;

    (void)unused;
    *word_at(&first, DATA_OFFSET) = 0x11111111;
    close(first.fd);
    if (*word_at(&first, DATA_OFFSET) == 0x11111111) {
        fail("the memory is still there after close");
    }
    while (count < SESSIONS_MAX && session_try(&others[count], 2000) == 0) {
        others[count].base = session_map(&others[count]);
        *word_at(&others[count], DATA_OFFSET) = 0x22222222;
        count++;
    }
    for (uint32_t offset = 0; offset < first.args.session_bytes; offset += 4096) {
        if (*word_at(&first, offset) == 0x22222222) {
            fail("another session's memory shows at %#x", offset);
        }
        *word_at(&first, offset) = 0x33333333;
    }
    for (int i = 0; i < count; i++) {
        if (*word_at(&others[i], DATA_OFFSET) != 0x22222222) {
            fail("session %u was overwritten", others[i].args.session);
        }
    }
}

static void case_unmap_ends(long unused)
{
    struct session session = session_open();

    (void)unused;
    munmap(session.base, session.args.session_bytes / 2);
    expect("slots held with half a mapping", slots_held(), 1);
    munmap(session.base + session.args.session_bytes / 2, session.args.session_bytes / 2);
    expect("slots held without a mapping", slots_held(), 0);
    expect("wait after the end", session_wait(&session, 0, 0, 1000), EPIPE);
    expect("notify after the end", ioctl(session.fd, WH_IOC_NOTIFY) == 0 ? 0 : errno, EPIPE);
}

static volatile bool stop_copying;

static void *copy_forever(void *argument)
{
    const struct session *session = argument;

    while (!stop_copying) {
        memset(session->base + DATA_OFFSET, 0x44, session->args.session_bytes - DATA_OFFSET);
    }
    return NULL;
}

/* A thread in the middle of a copy while another one closes: no signal, and nothing of it arrives
 * later. */
static void case_close_race(long count)
{
    for (long i = 0; i < count; i++) {
        struct session session = session_open();
        struct session next;
        pthread_t thread;

        stop_copying = false;
        if (*word_at(&session, DATA_OFFSET) != 0) {
            fail("round %ld: the slot is not clear", i);
        }
        pthread_create(&thread, NULL, copy_forever, &session);
        sleep_ms(i % 5);
        close(session.fd);
        next = session_open();
        sleep_ms(2);
        if (*word_at(&next, DATA_OFFSET) != 0) {
            fail("round %ld: a copy arrived in the next session", i);
        }
        stop_copying = true;
        pthread_join(thread, NULL);
        munmap(session.base, session.args.session_bytes);
        munmap(next.base, next.args.session_bytes);
        close(next.fd);
    }
}

static void on_alarm(int number)
{
    (void)number;
}

static void case_wait_limits(long unused)
{
    struct session session = session_open();
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct timespec before;
    struct timespec after;

    (void)unused;
    expect("a word that differs", session_wait(&session, REPLY_OFFSET, 1, WAIT_US), 0);
    clock_gettime(CLOCK_MONOTONIC, &before);
    expect("time-out", session_wait(&session, REPLY_OFFSET, 0, 50000), ETIMEDOUT);
    clock_gettime(CLOCK_MONOTONIC, &after);
    if ((after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000 <
        50000) {
        fail("a wait of 50 ms ended early");
    }
    expect("no time at all", session_wait(&session, REPLY_OFFSET, 0, 0), ETIMEDOUT);
    sigaction(SIGALRM, &action, NULL);
    ualarm(50000, 0);
    expect("a signal", session_wait(&session, REPLY_OFFSET, 0, WAIT_US), EINTR);
    expect("unaligned", session_wait(&session, 2, 0, 0), EINVAL);
    expect("last word", session_wait(&session, (uint32_t)session.args.session_bytes - 4, 1, 0), 0);
    expect("outside", session_wait(&session, (uint32_t)session.args.session_bytes, 1, 0), EINVAL);
    expect("far outside", session_wait(&session, 0xfffffffc, 1, 0), EINVAL);
}

static void case_errors(long unused)
{
    struct session session = session_open();
    struct session other = {.fd = device_open()};
    struct wh_ioc_open args = session.args;
    uint64_t bytes = session.args.session_bytes;

    (void)unused;
    expect("second open of a file", ioctl(session.fd, WH_IOC_OPEN, &args) == 0 ? 0 : errno, EBUSY);
    expect("unknown request", ioctl(session.fd, _IO('w', 0x7f)) == 0 ? 0 : errno, ENOTTY);
    expect("bad pointer", ioctl(other.fd, WH_IOC_OPEN, NULL) == 0 ? 0 : errno, EFAULT);
    expect("wait before open", session_wait(&other, 0, 0, 0), ENOTCONN);
    expect("notify before open", ioctl(other.fd, WH_IOC_NOTIFY) == 0 ? 0 : errno, ENOTCONN);
    if (mmap(NULL, bytes, PROT_READ, MAP_SHARED, other.fd, 0) != MAP_FAILED) {
        fail("mmap before open");
    }
    expect("mmap before open", errno, ENOTCONN);
    if (mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, session.fd, 0) != MAP_FAILED ||
        mmap(NULL, bytes / 2, PROT_READ, MAP_SHARED, session.fd, 0) != MAP_FAILED ||
        mmap(NULL, bytes * 2, PROT_READ, MAP_SHARED, session.fd, 0) != MAP_FAILED ||
        mmap(NULL, bytes, PROT_READ, MAP_SHARED, session.fd, 4096) != MAP_FAILED) {
        fail("mmap of other than the whole session, shared, is allowed");
    }
    if (mremap(session.base, bytes, bytes * 2, MREMAP_MAYMOVE) != MAP_FAILED) {
        fail("the mapping may grow");
    }
    args = session.args;
    args.version = WH_PROTOCOL_VERSION + 1;
    args.spec_hash = WH_SPEC_HASH;
    expect("another version", ioctl(other.fd, WH_IOC_OPEN, &args) == 0 ? 0 : errno, EPROTO);
    expect("the server's version", (int)args.version, (int)WH_PROTOCOL_VERSION);
    args.version = WH_PROTOCOL_VERSION;
    args.spec_hash = WH_SPEC_HASH + 1;
    expect("another spec", ioctl(other.fd, WH_IOC_OPEN, &args) == 0 ? 0 : errno, EPROTO);
    if (args.spec_hash != WH_SPEC_HASH) {
        fail("the server's spec is not told: %llx", (unsigned long long)args.spec_hash);
    }
    args.timeout_ms = WH_OPEN_TIMEOUT_MS_MAX + 1;
    expect("endless time-out", ioctl(other.fd, WH_IOC_OPEN, &args) == 0 ? 0 : errno, EINVAL);
    args = session.args;
    expect("open after failures", ioctl(other.fd, WH_IOC_OPEN, &args) == 0 ? 0 : errno, 0);
    other.args = args;
    other.base = session_map(&other);
    round_trip(&other, 4);
    round_trip(&session, 5);
}

/* NUMBER is how many sessions the host allows. */
static void case_exhaust(long wanted)
{
    struct session sessions[SESSIONS_MAX];
    int count = 0;
    int error = 0;

    while (count < SESSIONS_MAX && (error = session_try(&sessions[count], 3000)) == 0) {
        sessions[count].base = session_map(&sessions[count]);
        count++;
    }
    expect("open with all slots taken", error, EAGAIN);
    expect("sessions", count, (int)wanted);
    for (int i = 0; i < count; i++) {
        *word_at(&sessions[i], DATA_OFFSET) = (uint32_t)i;
    }
    for (int i = 0; i < count; i++) {
        expect("own memory", (int)*word_at(&sessions[i], DATA_OFFSET), i);
        round_trip(&sessions[i], (uint32_t)i + 1);
    }
}

/* NUMBER is the errno that opening must give. */
static void case_open_fails(long wanted)
{
    struct session session;

    expect("WH_IOC_OPEN", session_try(&session, 500), (int)wanted);
    expect("the host's errno", (int)session.args.host_error, 0);
    expect("slots held", slots_held(), 0);
}

static void case_refused(long unused)
{
    struct session session;

    (void)unused;
    expect("WH_IOC_OPEN", session_try(&session, 500), EIO);
    expect("the host's errno", (int)session.args.host_error, ENOSPC);
    expect("slots held", slots_held(), 0);
}

/* Waits for a word that nobody changes, until the server is gone. */
static void *wait_for_end(void *argument)
{
    const struct session *session = argument;

    expect("wait in a dying session", session_wait(session, REPLY_OFFSET, 0, WAIT_US), EPIPE);
    return NULL;
}

static void case_server_dies(long thread_count)
{
    struct session session = session_open();
    pthread_t threads[16];
    struct session next;
    int error = ENODEV;

    for (long i = 0; i < thread_count && i < 16; i++) {
        pthread_create(&threads[i], NULL, wait_for_end, &session);
    }
    sleep_ms(100);
    say("waiting");
    for (long i = 0; i < thread_count && i < 16; i++) {
        pthread_join(threads[i], NULL);
    }
    say("ended");
    *word_at(&session, DATA_OFFSET) = 0x55555555; /* no signal */
    for (int i = 0; i < SETTLE_TRIES && (error = session_try(&next, 1000)) != 0; i++) {
        sleep_ms(50);
    }
    expect("open at the next server", error, 0);
    next.base = session_map(&next);
    round_trip(&next, 6);
    expect("the old session stays dead", session_wait(&session, REPLY_OFFSET, 0, 1000), EPIPE);
    *word_at(&session, DATA_OFFSET) = 0x66666666;
    if (*word_at(&next, DATA_OFFSET) != 0) {
        fail("the old session writes into the new one");
    }
}

/* Only this session's worker dies. */
static void case_worker_dies(long unused)
{
    struct session session = session_open();
    struct session other = session_open();

    (void)unused;
    say("waiting");
    expect("wait in a dead session", session_wait(&session, REPLY_OFFSET, 0, WAIT_US), EPIPE);
    round_trip(&other, 7);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(long number);
    } cases[] = {
        {"round-trip", case_round_trip},
        {"churn", case_churn},
        {"whole", case_whole},
        {"hold", case_hold},
        {"busy", case_busy},
        {"fork", case_fork},
        {"child-close", case_child_close},
        {"close-mapped", case_close_mapped},
        {"unmap-ends", case_unmap_ends},
        {"close-race", case_close_race},
        {"wait-limits", case_wait_limits},
        {"errors", case_errors},
        {"exhaust", case_exhaust},
        {"open-fails", case_open_fails},
        {"refused", case_refused},
        {"server-dies", case_server_dies},
        {"worker-dies", case_worker_dies},
    };
    long number = argc > 2 ? atol(argv[2]) : 0;

    for (size_t i = 0; argc > 1 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run(number);
            printf("ok %s\n", cases[i].name);
            return 0;
        }
    }
    printf("usage: driver_test CASE [NUMBER]\n");
    return 2;
}
