/*
 * transport_tcp.c - the baseline: every message is one write on a connection of the calling thread,
 * every reply one back.
 *
 * With one-way calls on, requests carry the session's ticket as their sequence and the worker
 * executes them in that order, so that the ordering rule of the ring holds over several connections
 * too.
 */
#include "session.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "record.h"

static void set_options(int fd)
{
    const int on = 1, idle_s = 5, interval_s = 2, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    /* A machine that vanished is noticed after 11 s; a busy one answers the probes. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

static int connect_address(const struct addrinfo *address)
{
    const struct timeval limit = {.tv_sec = WH_OPEN_TIMEOUT_MS / 1000};
    const struct timeval look = {.tv_usec = WH_LOOK_INTERVAL_MS * 1000};
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)); /* bounds connect */
    if (connect(fd, address->ai_addr, address->ai_addrlen) != 0) {
        int error = errno == EINPROGRESS ? -ETIMEDOUT : -errno;
        close(fd);
        return error;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &look, sizeof(look)); /* see send_all */
    set_options(fd);
    return fd;
}

static int connect_to(const struct wh_config *config)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    int fd = -EHOSTUNREACH;
    int failure = getaddrinfo(config->host, config->port, &hints, &addresses);
    if (failure != 0) {
        fprintf(stderr, "wormhole: cannot resolve tcp:%s:%s: %s\n", config->host, config->port,
                gai_strerror(failure));
        return -EHOSTUNREACH;
    }
    for (const struct addrinfo *next = addresses; next != NULL && fd < 0; next = next->ai_next) {
        fd = connect_address(next);
    }
    freeaddrinfo(addresses);
    if (fd < 0) {
        fprintf(stderr, "wormhole: cannot reach the host server at tcp:%s:%s: %s; is it running?\n",
                config->host, config->port, strerror(-fd));
    }
    return fd;
}

static int open_lane(struct wh_client *client, struct wh_lane *lane)
{
    struct wh_welcome welcome;
    int fd = connect_to(client->config);
    if (fd < 0) {
        return fd;
    }
    int error = wh_handshake(client, fd, client->tcp_session, &welcome, NULL, 0);
    if (error != 0) {
        close(fd);
        return error;
    }
    if (client->tcp_session == 0) {
        client->tcp_session =
            welcome.session; /* the first connection: no other thread is here yet */
    }
    lane->socket = fd;
    return 0;
}

static int tcp_open(struct wh_client *client)
{
    struct wh_thread *thread = wh_thread_get();
    return thread == NULL ? -ENOMEM : open_lane(client, &client->lanes[thread->lane]);
}

static int lost(struct wh_client *client, int error)
{
    if (error == -ENOMEM) {
        return error;
    }
    return wh_client_fail(client,
                          error == 0 ? "the host server closed the connection" : strerror(-error));
}

/* Between two waits for a worker that was last heard at since_ns: 0, or -EPIPE. */
static int check_silence(struct wh_client *client, uint64_t since_ns)
{
    if (wh_client_check(client) != 0) {
        return -EPIPE;
    }
    if (wh_now_ns() - since_ns < WH_HEARTBEAT_LIMIT_NS) {
        return 0;
    }
    return wh_client_fail(client, "the worker has sent nothing for 10 s, not even a heartbeat");
}

/*
 * Sends all; 0 or -errno. The socket's send timeout ends each wait for a look. A worker that takes
 * nothing may be busy with one-way calls sent before; then its heartbeats pile up here, unread.
 */
static int send_all(struct wh_client *client, int fd, const uint8_t *bytes, size_t size_bytes)
{
    uint64_t since_ns = 0;
    int unread_bytes = 0;
    while (size_bytes > 0) {
        ssize_t sent = send(fd, bytes, size_bytes, MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes += sent;
            size_bytes -= (size_t)sent;
            since_ns = 0;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR) {
            return -errno;
        }
        int heard_bytes = 0;
        ioctl(fd, FIONREAD, &heard_bytes);
        if (since_ns == 0 || heard_bytes != unread_bytes) {
            since_ns = wh_now_ns();
            unread_bytes = heard_bytes;
        }
        if (check_silence(client, since_ns) != 0) {
            return -EPIPE;
        }
    }
    return 0;
}

/* Calls of the stub's own that depend on time: no part of the program's call stream. */
static bool is_service(uint16_t opcode)
{
    return opcode >= WH_OP_whWait && opcode <= WH_OP_whTakeOutput;
}

static int send_in_turn(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                        uint8_t *request, size_t size_bytes, bool ordered)
{
    struct wh_request_header *header = (struct wh_request_header *)(void *)request;
    if (ordered) {
        pthread_mutex_lock(&client->publish_lock);
    }
    wh_record_lock();
    uint32_t ticket = 0;
    do {
        ticket = __atomic_add_fetch(&client->ticket, 1, __ATOMIC_RELAXED);
    } while (ticket == 0);
    header->sequence = ticket;
    header->flags |= ordered ? WH_REQUEST_FLAG_ORDERED : 0;
    lane->sequence = ticket;
    lane->recorded = !is_service(header->opcode);
    if (lane->recorded) {
        wh_record_request(thread->number, request, size_bytes);
    }
    int error = send_all(client, lane->socket, request, size_bytes);
    wh_record_unlock();
    if (ordered) {
        pthread_mutex_unlock(&client->publish_lock);
    }
    return error == 0 ? 0 : lost(client, error);
}

static int tcp_send(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                    uint8_t *request, size_t size_bytes)
{
    if (size_bytes > WH_TCP_MESSAGE_BYTES_MAX) {
        return -EMSGSIZE;
    }
    int error = wh_client_check(client);
    if (error == 0 && lane->socket < 0) {
        error = open_lane(client, lane);
    }
    if (error != 0) {
        return error;
    }
    return send_in_turn(client, thread, lane, request, size_bytes, client->config->oneway);
}

/* Bytes received, 0 at the end of the stream, -errno; spins up to the bound, then sleeps. *asleep:
 * whether this wait has come to sleeping, also before. */
static ssize_t receive_some(struct wh_client *client, struct wh_thread *thread, int fd, void *to,
                            size_t size_bytes, bool *asleep)
{
    const struct wh_config *config = client->config;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    struct wh_spin_habit *habit = wh_thread_habit(thread);
    const uint64_t spin_ticks = thread->idle ? 0 : wh_spin_bound(habit, config->spin_ticks);
    uint64_t start_ticks = wh_ticks();
    uint64_t since_ns = 0;
    for (;;) {
        ssize_t got = recv(fd, to, size_bytes, MSG_DONTWAIT);
        if (got >= 0) {
            if (!*asleep) {
                wh_spin_ended(habit, true);
            }
            return got;
        }
        if (errno != EAGAIN && errno != EINTR) {
            return -errno;
        }
        if (wh_client_check(client) != 0) {
            return -EPIPE;
        }
        if (!*asleep && wh_ticks() - start_ticks < spin_ticks) {
            wh_pause(config->pause_is_cheap);
            continue;
        }
        if (!*asleep) {
            wh_count(&thread->counters.sleeps, 1);
            wh_spin_ended(habit, false);
            *asleep = true;
        }
        if (since_ns != 0 && check_silence(client, since_ns) != 0) {
            return -EPIPE;
        }
        /* The clock counts from the first look on: a call that is quicker reads none. */
        if (poll(&wait, 1, wh_look_interval_ms(thread)) <= 0 && since_ns == 0) {
            since_ns = wh_now_ns();
        }
    }
}

static int receive_all(struct wh_client *client, struct wh_thread *thread, int fd, uint8_t *to,
                       size_t size_bytes)
{
    while (size_bytes > 0) {
        bool asleep = false;
        ssize_t got = receive_some(client, thread, fd, to, size_bytes, &asleep);
        if (got <= 0) {
            return lost(client, (int)got);
        }
        to += got;
        size_bytes -= (size_t)got;
    }
    return 0;
}

static bool is_heartbeat(const struct wh_reply_header *header)
{
    return header->ready == 0 && header->size_bytes == 0;
}

/* The reply's header, after any heartbeats. The first *have_bytes of its results are then in the
 * buffer. */
static int receive_header(struct wh_client *client, struct wh_thread *thread, int fd,
                          struct wh_buffer *buffer, struct wh_reply_header *header,
                          size_t *have_bytes)
{
    const size_t header_bytes = sizeof(*header);
    bool asleep = false;
    *have_bytes = 0;
    do {
        /* Header and short results come in one read. */
        while (*have_bytes < header_bytes) {
            ssize_t got = receive_some(client, thread, fd, buffer->bytes + *have_bytes,
                                       buffer->capacity_bytes - *have_bytes, &asleep);
            if (got <= 0) {
                return lost(client, (int)got);
            }
            *have_bytes += (size_t)got;
        }
        memcpy(header, buffer->bytes, header_bytes);
        *have_bytes -= header_bytes;
        memmove(buffer->bytes, buffer->bytes + header_bytes, *have_bytes);
    } while (is_heartbeat(header));
    return 0;
}

static int tcp_receive(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                       struct wh_buffer *buffer, struct wh_reply_header *header)
{
    size_t have_bytes = 0;
    int error = receive_header(client, thread, lane->socket, buffer, header, &have_bytes);
    if (error != 0) {
        return error;
    }
    if (header->ready != lane->sequence || header->size_bytes > WH_TCP_MESSAGE_BYTES_MAX ||
        have_bytes > header->size_bytes) {
        return wh_client_fail(client, "a malformed reply came over TCP");
    }
    if (!wh_buffer_grow(buffer, header->size_bytes)) {
        return wh_client_fail(client, "no memory for a reply");
    }
    error = receive_all(client, thread, lane->socket, buffer->bytes + have_bytes,
                        header->size_bytes - have_bytes);
    if (error == 0 && lane->recorded) {
        wh_record_reply(thread->number, header, buffer->bytes, header->size_bytes);
    }
    return error;
}

const struct wh_transport wh_transport_tcp = {
    .open = tcp_open,
    .send = tcp_send,
    .receive = tcp_receive,
};
