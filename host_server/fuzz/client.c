/*
 * client.c - one hostile session: the worker's own threads serve it, and this file is its client.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "fuzz.h"
#include "grammar.h"
#include "output.h"
#include "ring.h"
#include "tcp.h"
#include "wh_core_backend.h"

#define BATCH_MAX 24u
#define CONSUME_LIMIT_NS 400000000ull
#define STUCK_LIMIT_S 30
#define CONNECTIONS 2
#define POLITE 1000000u

struct client {
    struct wh_plan *plan;
    struct wh_random random;
    struct wh_maker maker;
    struct wh_session_header *header; /* shared memory */
    uint8_t *ring;
    uint64_t head;
    uint32_t sequence;
    uint32_t damage_one_in; /* 0: never */
    bool polite;            /* says nothing that is malformed, so that it comes far */
    bool noise;
    bool odd_headers;
    int sockets[CONNECTIONS];
};

static struct wh_tally *tally;

/* The linker gives us these calls (--wrap), so that what a session executes is counted, and so that
 * no message makes the fuzzer wait for nothing. */
int __real_wh_execute(struct wh_executor *executor, const struct wh_request_header *header,
                      const uint8_t *bytes);
int __wrap_wh_execute(struct wh_executor *executor, const struct wh_request_header *header,
                      const uint8_t *bytes);
int __wrap_nanosleep(const struct timespec *duration, struct timespec *rest);
uint64_t __real_wh_notice_wait(struct wh_session *session, uint64_t wanted, uint64_t limit_ms);
uint64_t __wrap_wh_notice_wait(struct wh_session *session, uint64_t wanted, uint64_t limit_ms);
int __real_wh_core_whEcho(struct wh_session *session, uint64_t offset, uint64_t iterations);
int __wrap_wh_core_whEcho(struct wh_session *session, uint64_t offset, uint64_t iterations);

void __real__exit(int status) __attribute__((noreturn));
void __wrap__exit(int status) __attribute__((noreturn));
void __asan_on_error(void) __attribute__((visibility("default")));

static uint32_t reporting;

/* The sanitizer calls this before it reports, and ends the process itself afterwards. */
void __asan_on_error(void)
{
    __atomic_store_n(&reporting, 1, __ATOMIC_RELEASE);
}

/* A report that is cut short names no stack to judge by. */
void __wrap__exit(int status)
{
    while (__atomic_load_n(&reporting, __ATOMIC_ACQUIRE) != 0) {
        pause();
    }
    __real__exit(status);
}

static void add(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

int __wrap_wh_execute(struct wh_executor *executor, const struct wh_request_header *header,
                      const uint8_t *bytes)
{
    if (tally == NULL) {
        return __real_wh_execute(executor, header, bytes);
    }
    uint16_t opcode = header->opcode;
    add(&tally->executed);
    add(&tally->opcode_executed[opcode]);
    int status = __real_wh_execute(executor, header, bytes);
    uint64_t error = 0;
    if (opcode >= 0x100 && executor->reply.size_bytes >= sizeof(error)) {
        memcpy(&error, executor->reply.bytes, sizeof(error));
    }
    if (status == 0 && error == 0) {
        add(&tally->opcode_succeeded[opcode]);
    } else if (status == -EBADMSG) {
        add(&tally->opcode_malformed[opcode]);
    }
    return status;
}

int __wrap_nanosleep(const struct timespec *duration, struct timespec *rest)
{
    (void)duration;
    (void)rest;
    return 0;
}

uint64_t __wrap_wh_notice_wait(struct wh_session *session, uint64_t wanted, uint64_t limit_ms)
{
    (void)limit_ms;
    return __real_wh_notice_wait(session, wanted, 0);
}

/* The client's half of the echo, in advance: one round. */
int __wrap_wh_core_whEcho(struct wh_session *session, uint64_t offset, uint64_t iterations)
{
    bool inside = session->arena != NULL && offset % WH_LINE_BYTES == 0 &&
                  offset < session->arena_bytes && session->arena_bytes - offset >= 128;
    if (inside) {
        uint64_t *ping = (uint64_t *)(void *)(session->arena + offset);
        wh_store64(ping, 1);
        iterations = iterations > 0 && iterations < 1000 ? 1 : iterations;
    }
    if (inside && iterations > 1 && iterations <= 10000000) {
        iterations = 1;
    }
    return __real_wh_core_whEcho(session, offset, iterations);
}

/* Making the next message. */

static bool from_stream(struct client *client, struct wh_message *message)
{
    struct wh_plan *plan = client->plan;
    if (plan->stream == NULL || plan->stream_next >= wh_stream_count(plan->stream)) {
        return false;
    }
    const struct wh_request_header *request = wh_stream_request(plan->stream, plan->stream_next++);
    if (request->size_bytes > sizeof(message->bytes)) {
        return false;
    }
    memcpy(message->bytes, request, request->size_bytes);
    message->size_bytes = request->size_bytes;
    return true;
}

static uint32_t core_shapes(const struct wh_shapes *known)
{
    uint32_t count = 0;
    while (count < known->count && known->shapes[count].opcode < 0x100) {
        count++;
    }
    return count;
}

/* Without an accelerator only the runtime's own calls do anything; they come first in the table. */
static size_t next_shape(struct client *client)
{
    struct wh_random *random = &client->random;
    const struct wh_shapes *known = client->maker.shapes;
    bool core = !client->plan->opencl && !client->plan->cuda && !wh_one_in(random, 4);
    size_t shape = wh_below(random, core ? core_shapes(known) : (uint32_t)known->count);
    /* A release too many ends in the library, as it does natively: it would hide what comes later.
     * So would a stream that waits for a host function. */
    bool releases = strncmp(known->shapes[shape].name, "clRelease", 9) == 0 ||
                    strstr(known->shapes[shape].name, "Destroy") != NULL ||
                    strstr(known->shapes[shape].name, "Unload") != NULL ||
                    strstr(known->shapes[shape].name, "HostFunc") != NULL ||
                    strstr(known->shapes[shape].name, "HostNode") != NULL;
    return releases && !wh_one_in(random, 5) ? next_shape(client) : shape;
}

static void next_message(struct client *client, struct wh_message *message)
{
    struct wh_random *random = &client->random;
    if (client->noise) {
        wh_make_noise(&client->maker, message);
        return;
    }
    if (wh_one_in(random, 2) || !from_stream(client, message)) {
        wh_make_message(&client->maker, next_shape(client), message);
    }
    if (client->damage_one_in > 0 && wh_one_in(random, client->damage_one_in)) {
        wh_damage(random, message);
    }
}

/* Whole header; the size as it must be, unless this session likes odd ones. */
static void finish_header(struct client *client, struct wh_message *message)
{
    struct wh_random *random = &client->random;
    struct wh_request_header header;
    memcpy(&header, message->bytes, sizeof(header));
    size_t padded_bytes = wh_align(message->size_bytes, WH_REQUEST_ALIGN);
    if (padded_bytes > message->size_bytes && padded_bytes <= sizeof(message->bytes)) {
        memset(message->bytes + message->size_bytes, 0, padded_bytes - message->size_bytes);
    }
    message->size_bytes = padded_bytes;
    header.size_bytes = (uint32_t)padded_bytes;
    header.flags = wh_one_in(random, 4) ? 0 : WH_REQUEST_FLAG_REPLY;
    header.slot = wh_below(random, WH_SLOT_COUNT);
    header.sequence = ++client->sequence;
    if (client->odd_headers && wh_one_in(random, 100)) {
        switch (wh_below(random, 4)) {
        case 0:
            header.size_bytes = (uint32_t)wh_odd_number(random);
            break;
        case 1:
            header.flags = (uint16_t)wh_random(random);
            break;
        case 2:
            header.slot = (uint32_t)wh_odd_number(random);
            break;
        default:
            header.sequence = wh_below(random, 3);
            break;
        }
    }
    memcpy(message->bytes, &header, sizeof(header));
}

/* Shared memory. */

static void write_ring(struct client *client, const struct wh_message *message)
{
    uint64_t offset = client->head & (WH_RING_BYTES - 1);
    uint64_t to_end = WH_RING_BYTES - offset;
    if (to_end < message->size_bytes) {
        struct wh_request_header pad = {.size_bytes = (uint32_t)to_end,
                                        .flags = WH_REQUEST_FLAG_PAD};
        memcpy(client->ring + offset, &pad, sizeof(pad));
        client->head += to_end;
        offset = 0;
    }
    memcpy(client->ring + offset, message->bytes, message->size_bytes);
    client->head += message->size_bytes;
}

static void publish(struct client *client)
{
    const uint64_t one = 1;
    if (client->odd_headers && wh_one_in(&client->random, 300)) {
        client->head += wh_odd_number(&client->random);
    }
    wh_store_release64(&client->header->head, client->head);
    wh_fence();
    wh_take_flag(&client->header->host_idle);
    ssize_t written = write(client->plan->notify_fd, &one, sizeof(one));
    (void)written;
}

/* False if the worker does not take what is published: it is blocked, or its header is ruined. */
static bool wait_consumed(struct client *client)
{
    uint64_t limit_ns = wh_now_ns() + CONSUME_LIMIT_NS;
    for (unsigned look = 0; wh_load_acquire64(&client->header->tail) != client->head; look++) {
        wh_output_arrived(client->plan->session); /* as the worker's first thread does */
        if (look > 50) {
            usleep(50);
        } else {
            sched_yield();
        }
        if (wh_now_ns() > limit_ns) {
            return false;
        }
    }
    return true;
}

/* Rewrites shared words while the worker reads them. */
static void *scribble(void *argument)
{
    struct client *client = argument;
    struct wh_random random = {.state = client->plan->seed ^ 0x5c21bb1eull};
    uint8_t *base = client->plan->session->base;
    bool heads_too = wh_one_in(&random, 4);
    for (;;) {
        uint64_t odd = wh_odd_number(&random);
        uint64_t at = WH_PAGE_BYTES + wh_random(&random) % (WH_FUZZ_SESSION_BYTES - WH_PAGE_BYTES);
        uint32_t kind = wh_below(&random, 4);
        if (kind == 0) {
            at = 128 + wh_below(&random, 512); /* behind the head: flags and the worker's words */
        } else if (kind == 1) {
            at = WH_PAGE_BYTES + (client->head + wh_below(&random, 4096)) % WH_RING_BYTES;
        } else if (kind == 2 && heads_too) {
            at = wh_below(&random, 128);
        }
        uint64_t *word = (uint64_t *)(void *)(base + (at & ~7ull));
        wh_store64(word, wh_one_in(&random, 2) ? odd : wh_load64(word) ^ (1ull << (odd & 63)));
        usleep(wh_below(&random, 30));
    }
    return NULL;
}

static void start_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument) == 0) {
        pthread_detach(thread);
    }
}

static void ring_session(struct client *client)
{
    struct wh_plan *plan = client->plan;
    struct wh_session *session = plan->session;
    static struct wh_message message;
    session->header = (struct wh_session_header *)(void *)session->base;
    if (wh_ring_init(session, plan->notify_fd) != 0 || wh_ring_start(session) != 0) {
        _exit(1);
    }
    client->header = session->header;
    client->ring = session->base + WH_PAGE_BYTES;
    client->maker.arena = session->arena;
    client->maker.arena_bytes = session->arena_bytes;
    if (!client->polite && wh_one_in(&client->random, 3)) {
        start_thread(scribble, client);
    }
    for (uint32_t sent = 0; sent < plan->messages;) {
        uint32_t batch = 1 + wh_below(&client->random, BATCH_MAX);
        size_t published_bytes = 0;
        for (uint32_t i = 0; i < batch && published_bytes < WH_RING_BYTES / 4; i++, sent++) {
            next_message(client, &message);
            finish_header(client, &message);
            write_ring(client, &message);
            published_bytes += message.size_bytes;
            add(&tally->sent);
        }
        publish(client);
        if (!wait_consumed(client)) {
            _exit(WH_FUZZ_EXIT_BLOCKED);
        }
    }
}

/* TCP. */

static void *drain(void *argument)
{
    const struct client *client = argument;
    static uint8_t bytes[CONNECTIONS][65536];
    for (int open = 1; open != 0;) {
        open = 0;
        for (int i = 0; i < CONNECTIONS; i++) {
            open |= recv(client->sockets[i], bytes[i], sizeof(bytes[i]), MSG_DONTWAIT) != 0;
        }
        wh_output_arrived(client->plan->session);
        usleep(200);
    }
    return NULL;
}

static void tcp_session(struct client *client)
{
    struct wh_plan *plan = client->plan;
    static struct wh_message message;
    const struct timeval limit = {.tv_usec = CONSUME_LIMIT_NS / 1000};
    plan->session->ring = NULL;
    plan->session->arena = NULL;
    plan->session->header = NULL;
    for (int i = 0; i < CONNECTIONS; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 ||
            wh_tcp_start(plan->session, pair[0]) != 0) {
            _exit(1);
        }
        client->sockets[i] = pair[1];
        setsockopt(pair[1], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    }
    start_thread(drain, client);
    for (uint32_t sent = 0; sent < plan->messages; sent++) {
        next_message(client, &message);
        finish_header(client, &message);
        add(&tally->sent);
        int socket = client->sockets[wh_below(&client->random, CONNECTIONS)];
        size_t size_bytes = client->odd_headers && wh_one_in(&client->random, 500)
                                ? wh_below(&client->random, (uint32_t)message.size_bytes)
                                : message.size_bytes;
        if (send(socket, message.bytes, size_bytes, MSG_NOSIGNAL) < 0) {
            _exit(WH_FUZZ_EXIT_BLOCKED);
        }
        if (wh_one_in(&client->random, 50)) {
            wh_tcp_beat();
        }
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        shutdown(client->sockets[i], SHUT_WR);
    }
    uint64_t limit_ns = wh_now_ns() + CONSUME_LIMIT_NS;
    while (wh_tcp_connections() > 0) {
        usleep(100);
        if (wh_now_ns() > limit_ns) {
            _exit(WH_FUZZ_EXIT_BLOCKED);
        }
    }
}

void wh_hostile_session(struct wh_plan *plan)
{
    static const uint32_t rarities[] = {40, 200, 1000, 20000};
    static const uint32_t damages[] = {0, 0, 30, 300};
    static struct client client;
    client.plan = plan;
    client.random.state = plan->seed;
    tally = plan->tally;
    alarm(STUCK_LIMIT_S);
    client.maker.random = &client.random;
    client.maker.handles = &plan->handles;
    client.maker.binary = &plan->binary;
    client.polite = wh_one_in(&client.random, 2);
    client.maker.wrong_one_in = client.polite ? POLITE : rarities[wh_below(&client.random, 4)];
    client.damage_one_in = client.polite ? 0 : damages[wh_below(&client.random, 4)];
    client.noise = !client.polite && wh_one_in(&client.random, 6);
    client.odd_headers = !client.polite && wh_one_in(&client.random, 2);
    client.maker.shapes = plan->cuda ? &wh_cuda_shapes : &wh_opencl_shapes;
    if (wh_output_start(plan->session) != 0) {
        _exit(1);
    }
    if (plan->cuda) {
        wh_fuzz_cuda_objects(plan);
    }
    if (wh_one_in(&client.random, 4)) {
        tcp_session(&client);
    } else {
        ring_session(&client);
    }
    _exit(0);
}
