/*
 * transport_unix.c - a session with a supervisor on the same host: a Unix socket hands out the
 * region and two eventfds.
 */
#define _GNU_SOURCE

#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ring.h"

#define WH_WELCOME_FDS 3 /* memfd, notify eventfd, wake eventfd */

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path); /* config.path is as long as sun_path */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

static int unix_open(struct wh_client *client)
{
    int fds[WH_WELCOME_FDS] = {-1, -1, -1};
    struct wh_welcome welcome;
    client->socket = connect_to(client->config->path);
    if (client->socket < 0) {
        int error = client->socket;
        fprintf(stderr, "wormhole: cannot reach the host server at unix:%s: %s; is it running?\n",
                client->config->path, strerror(-error));
        return error;
    }
    int error = wh_handshake(client, client->socket, 0, &welcome, fds, WH_WELCOME_FDS);
    client->notify_fd = fds[1];
    client->wake_fd = fds[2];
    if (error == 0) {
        error = wh_client_map(client, fds[0], welcome.session_bytes);
    }
    if (fds[0] >= 0) {
        close(fds[0]);
    }
    return error;
}

static int unix_notify(struct wh_client *client)
{
    const uint64_t one = 1;
    return write(client->notify_fd, &one, sizeof(one)) == (ssize_t)sizeof(one) ? 0 : -errno;
}

/*
 * Every thread looks at the wake eventfd through an epoll of its own, edge-triggered, and nobody
 * reads it: so one wake reaches all sleepers, and one that comes between two looks is not lost.
 */
static int prepare_epoll(struct wh_client *client, struct wh_thread *thread)
{
    if (thread->epoll_fd >= 0 && thread->epoll_serial == client->serial) {
        return 0;
    }
    if (thread->epoll_fd >= 0) {
        close(thread->epoll_fd);
    }
    thread->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    thread->epoll_serial = client->serial;
    struct epoll_event wake = {.events = EPOLLIN | EPOLLET, .data.fd = client->wake_fd};
    struct epoll_event gone = {.events = EPOLLRDHUP | EPOLLHUP, .data.fd = client->socket};
    if (thread->epoll_fd < 0 ||
        epoll_ctl(thread->epoll_fd, EPOLL_CTL_ADD, client->wake_fd, &wake) != 0 ||
        epoll_ctl(thread->epoll_fd, EPOLL_CTL_ADD, client->socket, &gone) != 0) {
        return -errno;
    }
    return 0;
}

static int unix_sleep(struct wh_client *client, struct wh_thread *thread, const uint32_t *word,
                      uint32_t value, int timeout_ms)
{
    (void)word;
    (void)value;
    struct epoll_event events[2];
    int error = prepare_epoll(client, thread);
    if (error != 0) {
        return error;
    }
    int count = epoll_wait(thread->epoll_fd, events, 2, timeout_ms);
    for (int i = 0; i < count; i++) {
        if ((events[i].events & (EPOLLRDHUP | EPOLLHUP)) != 0) {
            return -EPIPE;
        }
    }
    return count < 0 && errno != EINTR ? -errno : 0;
}

const struct wh_transport wh_transport_unix = {
    .open = unix_open,
    .send = wh_ring_send,
    .receive = wh_ring_receive,
    .notify = unix_notify,
    .sleep = unix_sleep,
};
