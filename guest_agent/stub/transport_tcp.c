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
    const struct timeval none = {0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
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
    wh_record_request(thread->number, request, size_bytes);
    int error = wh_send_all(lane->socket, request, size_bytes);
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

/* Bytes received, 0 at the end of the stream, -errno; spins up to the bound, then sleeps. */
static ssize_t receive_some(struct wh_client *client, struct wh_thread *thread, int fd, void *to,
                            size_t size_bytes)
{
    const struct wh_config *config = client->config;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    uint64_t start_ticks = wh_ticks();
    bool asleep = false;
    for (;;) {
        ssize_t got = recv(fd, to, size_bytes, MSG_DONTWAIT);
        if (got >= 0) {
            return got;
        }
        if (errno != EAGAIN && errno != EINTR) {
            return -errno;
        }
        if (wh_client_check(client) != 0) {
            return -EPIPE;
        }
        if (!asleep && wh_ticks() - start_ticks < config->spin_ticks) {
            wh_pause(config->pause_is_cheap);
            continue;
        }
        if (!asleep) {
            wh_count(&thread->counters.sleeps, 1);
            asleep = true;
        }
        poll(&wait, 1, WH_LOOK_INTERVAL_MS);
    }
}

static int receive_all(struct wh_client *client, struct wh_thread *thread, int fd, uint8_t *to,
                       size_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t got = receive_some(client, thread, fd, to, size_bytes);
        if (got <= 0) {
            return lost(client, (int)got);
        }
        to += got;
        size_bytes -= (size_t)got;
    }
    return 0;
}

static int tcp_receive(struct wh_client *client, struct wh_thread *thread, struct wh_lane *lane,
                       struct wh_buffer *buffer, struct wh_reply_header *header)
{
    /* Header and short results come in one read. */
    const size_t header_bytes = sizeof(*header);
    size_t have_bytes = 0;
    while (have_bytes < header_bytes) {
        ssize_t got = receive_some(client, thread, lane->socket, buffer->bytes + have_bytes,
                                   buffer->capacity_bytes - have_bytes);
        if (got <= 0) {
            return lost(client, (int)got);
        }
        have_bytes += (size_t)got;
    }
    memcpy(header, buffer->bytes, header_bytes);
    if (header->ready != lane->sequence || header->size_bytes > WH_TCP_MESSAGE_BYTES_MAX ||
        have_bytes - header_bytes > header->size_bytes) {
        return wh_client_fail(client, "a malformed reply came over TCP");
    }
    have_bytes -= header_bytes;
    memmove(buffer->bytes, buffer->bytes + header_bytes, have_bytes);
    if (!wh_buffer_grow(buffer, header->size_bytes)) {
        return wh_client_fail(client, "no memory for a reply");
    }
    int error = receive_all(client, thread, lane->socket, buffer->bytes + have_bytes,
                            header->size_bytes - have_bytes);
    if (error == 0) {
        wh_record_reply(thread->number, header, buffer->bytes, header->size_bytes);
    }
    return error;
}

const struct wh_transport wh_transport_tcp = {
    .open = tcp_open,
    .send = tcp_send,
    .receive = tcp_receive,
};
