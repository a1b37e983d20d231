/*
 * tcp.c - one thread a connection: reads a request, runs it, writes the reply, spinning up to the
 * bound before it sleeps. Meanwhile the main thread tells clients of long requests that we live.
 */
#define _GNU_SOURCE

#include "tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "times.h"
#include "wh_spin.h"

#define WH_FIRST_BUFFER_BYTES 65536u
#define WH_KEPT_BUFFER_BYTES (1024u * 1024u) /* a larger buffer is given back after its message */

struct connection {
    int socket;
    struct wh_executor *executor;
    size_t start_bytes; /* what lies in the executor's buffer: [start, end) */
    size_t end_bytes;
    struct wh_spin_habit habit; /* of the waits for its next bytes */

    uint32_t pending;          /* sequence of the request being read or executed; 0 none */
    uint32_t pending_at_beat;  /* what it was at the latest beat; the main thread's */
    bool abandoned;            /* a request is pending that nobody waits for; the main thread's */
    pthread_mutex_t send_lock; /* what goes out: replies and heartbeats */
    size_t owed_bytes;         /* of a heartbeat that did not go out as a whole; send_lock */
};

/* A reply header with ready = 0; all of it is zero, so every part of it is too. */
static const struct wh_reply_header heartbeat;

static pthread_mutex_t connections_lock = PTHREAD_MUTEX_INITIALIZER;
static struct connection *connections[WH_EXECUTOR_MAX];
static uint32_t connection_count;
static struct wh_worker_counters ended; /* of connections that closed */

/* Bytes received, 0 at the end, -errno. */
static ssize_t receive_some(struct connection *connection, void *to, size_t size_bytes)
{
    struct wh_executor *executor = connection->executor;
    const struct wh_session *session = executor->session;
    struct pollfd wait = {.fd = connection->socket, .events = POLLIN};
    const uint64_t spin_ticks = wh_spin_bound(&connection->habit, session->spin_ticks);
    uint64_t start_ticks = wh_ticks();
    bool asleep = false;
    for (;;) {
        ssize_t got = recv(connection->socket, to, size_bytes, MSG_DONTWAIT);
        if (got >= 0) {
            if (!asleep) {
                wh_spin_ended(&connection->habit, true);
            }
            return got;
        }
        if (errno != EAGAIN && errno != EINTR) {
            return -errno;
        }
        if (!asleep && wh_ticks() - start_ticks < spin_ticks) {
            wh_pause(session->pause_is_cheap);
            continue;
        }
        if (!asleep) {
            wh_count(&executor->counters.sleeps, 1);
            wh_spin_ended(&connection->habit, false);
            asleep = true;
        }
        poll(&wait, 1, -1);
    }
}

static bool make_room(struct connection *connection, size_t needed_bytes)
{
    struct wh_executor *executor = connection->executor;
    size_t have_bytes = connection->end_bytes - connection->start_bytes;
    if (connection->start_bytes > 0) {
        memmove(executor->buffer, executor->buffer + connection->start_bytes, have_bytes);
        connection->start_bytes = 0;
        connection->end_bytes = have_bytes;
    }
    if (needed_bytes <= executor->buffer_bytes) {
        return true;
    }
    uint8_t *larger = realloc(executor->buffer, needed_bytes);
    if (larger == NULL) {
        return false;
    }
    executor->buffer = larger;
    executor->buffer_bytes = needed_bytes;
    return true;
}

/* Makes the buffer hold needed_bytes from start on. False at the end of the connection. */
static bool fill(struct connection *connection, size_t needed_bytes)
{
    struct wh_executor *executor = connection->executor;
    if (connection->start_bytes + needed_bytes > executor->buffer_bytes &&
        !make_room(connection, needed_bytes)) {
        return false;
    }
    while (connection->end_bytes - connection->start_bytes < needed_bytes) {
        ssize_t got = receive_some(connection, executor->buffer + connection->end_bytes,
                                   executor->buffer_bytes - connection->end_bytes);
        if (got <= 0) {
            return false;
        }
        connection->end_bytes += (size_t)got;
    }
    return true;
}

static void forget_request(struct connection *connection, size_t size_bytes)
{
    struct wh_executor *executor = connection->executor;
    connection->start_bytes += size_bytes;
    if (connection->start_bytes != connection->end_bytes) {
        return;
    }
    connection->start_bytes = 0;
    connection->end_bytes = 0;
    if (executor->buffer_bytes > WH_KEPT_BUFFER_BYTES) {
        uint8_t *smaller = realloc(executor->buffer, WH_FIRST_BUFFER_BYTES);
        if (smaller != NULL) {
            executor->buffer = smaller;
            executor->buffer_bytes = WH_FIRST_BUFFER_BYTES;
        }
    }
}

static bool send_parts(int socket, struct iovec *parts, size_t count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    size_t left_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        left_bytes += parts[i].iov_len;
    }
    while (left_bytes > 0) {
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            return false;
        }
        left_bytes -= (size_t)sent;
        for (size_t i = 0; i < count; i++) {
            size_t taken = (size_t)sent < parts[i].iov_len ? (size_t)sent : parts[i].iov_len;
            parts[i].iov_base = (uint8_t *)parts[i].iov_base + taken;
            parts[i].iov_len -= taken;
            sent -= (ssize_t)taken;
        }
    }
    return true;
}

static bool send_reply(struct connection *connection, uint32_t sequence, int status)
{
    struct wh_executor *executor = connection->executor;
    struct wh_reply_header header;
    wh_fill_reply_header(executor, &header, sequence, status);
    pthread_mutex_lock(&connection->send_lock);
    /* Nothing may follow a reply: the client reads up to its end and no further. */
    wh_store32(&connection->pending, 0);
    struct iovec parts[] = {
        {.iov_base = (void *)&heartbeat, .iov_len = connection->owed_bytes},
        {.iov_base = &header, .iov_len = sizeof(header)},
        {.iov_base = executor->reply.bytes, .iov_len = header.size_bytes},
    };
    connection->owed_bytes = 0;
    bool sent = send_parts(connection->socket, parts, sizeof(parts) / sizeof(parts[0]));
    pthread_mutex_unlock(&connection->send_lock);
    return sent;
}

/* Never waits: a client that does not read has no use for it. */
static void send_heartbeat(struct connection *connection)
{
    if (pthread_mutex_trylock(&connection->send_lock) != 0) {
        return; /* a reply is on its way, which says as much */
    }
    if (wh_load32(&connection->pending) != 0) {
        size_t owed_bytes = connection->owed_bytes;
        size_t size_bytes = owed_bytes != 0 ? owed_bytes : sizeof(heartbeat);
        ssize_t sent =
            send(connection->socket, &heartbeat, size_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            connection->owed_bytes = size_bytes - (size_t)sent;
        }
    }
    pthread_mutex_unlock(&connection->send_lock);
}

/* Whether the client has closed its end, with a call of it still waiting here. */
static bool is_hung_up(const struct connection *connection)
{
    struct pollfd peer = {.fd = connection->socket, .events = POLLRDHUP};
    return poll(&peer, 1, 0) > 0 && (peer.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void wh_tcp_beat(void)
{
    pthread_mutex_lock(&connections_lock);
    for (uint32_t i = 0; i < connection_count; i++) {
        struct connection *connection = connections[i];
        uint32_t pending = wh_load32(&connection->pending);
        bool waits = pending != 0 && pending == connection->pending_at_beat;
        connection->abandoned = waits && is_hung_up(connection);
        if (waits && !connection->abandoned) {
            send_heartbeat(connection);
        }
        connection->pending_at_beat = pending;
    }
    pthread_mutex_unlock(&connections_lock);
}

/* The turn. */

static void wait_for_turn(struct wh_executor *executor, uint32_t sequence)
{
    struct wh_session *session = executor->session;
    pthread_mutex_lock(&session->turn_lock);
    while (session->turn != sequence) {
        pthread_cond_wait(&session->turn_changed, &session->turn_lock);
    }
    pthread_mutex_unlock(&session->turn_lock);
    executor->turn = sequence;
    executor->leads = true;
}

void wh_tcp_yield(struct wh_executor *executor)
{
    struct wh_session *session = executor->session;
    executor->leads = false;
    pthread_mutex_lock(&session->turn_lock);
    session->turn = wh_next_sequence(executor->turn);
    pthread_cond_broadcast(&session->turn_changed);
    pthread_mutex_unlock(&session->turn_lock);
}

static bool serve_one(struct connection *connection)
{
    struct wh_executor *executor = connection->executor;
    struct wh_request_header header;
    if (!fill(connection, sizeof(header))) {
        return false;
    }
    memcpy(&header, executor->buffer + connection->start_bytes, sizeof(header));
    if (header.size_bytes < sizeof(header) || header.size_bytes % WH_REQUEST_ALIGN != 0 ||
        header.size_bytes > WH_TCP_MESSAGE_BYTES_MAX || header.sequence == 0) {
        wh_protocol_fault(executor->session, "a request of %u bytes, sequence %u over TCP",
                          header.size_bytes, header.sequence);
    }
    wh_store32(&connection->pending, header.sequence);
    if (!fill(connection, header.size_bytes)) {
        return false;
    }
    if ((header.flags & WH_REQUEST_FLAG_ORDERED) != 0) {
        wait_for_turn(executor, header.sequence);
    }
    wh_times_begin(executor);
    int status = wh_execute(executor, &header, executor->buffer + connection->start_bytes);
    wh_times_executed(executor);
    if (executor->leads) {
        wh_tcp_yield(executor);
    }
    if (status == -EBADMSG) {
        wh_protocol_fault(executor->session, "malformed arguments of opcode %u", header.opcode);
    }
    forget_request(connection, header.size_bytes);
    bool sent = true;
    if ((header.flags & WH_REQUEST_FLAG_REPLY) != 0) {
        sent = send_reply(connection, header.sequence, status);
    } else {
        wh_store32(&connection->pending, 0);
    }
    wh_times_end(executor, &header);
    return sent;
}

static void add_counters(struct wh_worker_counters *to, const struct wh_worker_counters *from)
{
    to->messages += wh_load64(&from->messages);
    to->replies += wh_load64(&from->replies);
    to->sleeps += wh_load64(&from->sleeps);
    to->bytes_received += wh_load64(&from->bytes_received);
    to->bytes_sent += wh_load64(&from->bytes_sent);
}

static void forget_connection(struct connection *connection)
{
    pthread_mutex_lock(&connections_lock);
    for (uint32_t i = 0; i < connection_count; i++) {
        if (connections[i] == connection) {
            connections[i] = connections[connection_count - 1];
            break;
        }
    }
    connection_count--;
    add_counters(&ended, &connection->executor->counters);
    pthread_mutex_unlock(&connections_lock);
}

static void destroy(struct connection *connection)
{
    close(connection->socket);
    pthread_mutex_destroy(&connection->send_lock);
    if (connection->executor != NULL) {
        wh_executor_destroy(connection->executor);
    }
    free(connection);
}

static void *run_connection(void *argument)
{
    struct connection *connection = argument;
    wh_this_executor = connection->executor;
    while (serve_one(connection)) {
    }
    forget_connection(connection);
    destroy(connection);
    return NULL;
}

static int start_thread(struct connection *connection)
{
    pthread_t thread;
    int error = EMFILE;
    pthread_mutex_lock(&connections_lock);
    if (connection_count < WH_EXECUTOR_MAX) {
        error = pthread_create(&thread, NULL, run_connection, connection);
        if (error == 0) {
            pthread_detach(thread);
            connections[connection_count++] = connection;
        }
    }
    pthread_mutex_unlock(&connections_lock);
    return -error;
}

int wh_tcp_start(struct wh_session *session, int socket)
{
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    struct connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL) {
        close(socket);
        return -ENOMEM;
    }
    connection->socket = socket;
    pthread_mutex_init(&connection->send_lock, NULL);
    connection->executor =
        wh_executor_create(session, WH_FIRST_BUFFER_BYTES, WH_TCP_MESSAGE_BYTES_MAX);
    int error = connection->executor == NULL ? -ENOMEM : start_thread(connection);
    if (error != 0) {
        destroy(connection);
    }
    return error;
}

uint32_t wh_tcp_connections(void)
{
    uint32_t count = 0;
    pthread_mutex_lock(&connections_lock);
    for (uint32_t i = 0; i < connection_count; i++) {
        count += !connections[i]->abandoned;
    }
    pthread_mutex_unlock(&connections_lock);
    return count;
}

void wh_tcp_counters(struct wh_worker_counters *totals)
{
    pthread_mutex_lock(&connections_lock);
    add_counters(totals, &ended);
    for (uint32_t i = 0; i < connection_count; i++) {
        add_counters(totals, &connections[i]->executor->counters);
    }
    pthread_mutex_unlock(&connections_lock);
}
