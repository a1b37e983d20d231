/*
 * main.c - one session's process: maps its slot, enters the jail, loads the backend, serves until
 * the supervisor lets go.
 *
 * The main thread only watches: the control socket, the heartbeat, the counters in the session
 * header, what kernels print.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend.h"
#include "image_cache.h"
#include "jail.h"
#include "output.h"
#include "ring.h"
#include "tcp.h"

#define WH_HEARTBEAT_NS 500000000ull
#define WH_EXIT_STARTUP 1
#define WH_EXIT_USAGE 2
#define WH_TEXT_BYTES 4096
#define WH_HIGH_FD 960 /* below the limit of 1024 */

struct options {
    bool tcp;
    int region_fd;
    uint64_t offset;
    uint64_t size_bytes;
    int notify_fd;
    int wake_fd;
    int control_fd;
    int stats_fd;
    int status_fd;
    int socket_fd;
    int images_fd;
    uint64_t images_bytes;
    uint64_t spin_us;
    bool notify_always;
    const char *backend;
    const char *jail;
};

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...)
{
    char line[WH_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    fprintf(stderr, "wormhole-worker: %s\n", used > 0 ? line : "?");
}

static uint64_t number(const char *name, const char *text)
{
    char *end = NULL;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-') {
        say("--%s %s is no number", name, text);
        exit(WH_EXIT_USAGE);
    }
    return value;
}

static struct options parse(int argc, char **argv)
{
    static const struct option names[] = {
        {"transport", required_argument, NULL, 't'},
        {"region-fd", required_argument, NULL, 'r'},
        {"offset", required_argument, NULL, 'o'},
        {"size", required_argument, NULL, 's'},
        {"notify-fd", required_argument, NULL, 'n'},
        {"wake-fd", required_argument, NULL, 'w'},
        {"control-fd", required_argument, NULL, 'c'},
        {"backend", required_argument, NULL, 'b'},
        {"spin-us", required_argument, NULL, 'u'},
        {"notify-always", required_argument, NULL, 'a'},
        {"stats-fd", required_argument, NULL, 'f'},
        {"status-fd", required_argument, NULL, 'p'},
        {"jail", required_argument, NULL, 'j'},
        {"socket-fd", required_argument, NULL, 'k'},
        {"images-fd", required_argument, NULL, 'i'},
        {"images-bytes", required_argument, NULL, 'm'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {.region_fd = -1,
                              .notify_fd = -1,
                              .wake_fd = -1,
                              .control_fd = -1,
                              .stats_fd = -1,
                              .status_fd = -1,
                              .socket_fd = -1,
                              .images_fd = -1,
                              .backend = "null",
                              .jail = "off"};
    int letter = 0;
    int index = 0;
    while ((letter = getopt_long(argc, argv, "", names, &index)) != -1) {
        if (letter == '?') {
            exit(WH_EXIT_USAGE);
        } else if (letter == 't') {
            options.tcp = strcmp(optarg, "tcp") == 0;
        } else if (letter == 'b') {
            options.backend = optarg;
        } else if (letter == 'j') {
            options.jail = optarg;
        } else {
            uint64_t value = number(names[index].name, optarg);
            options.region_fd = letter == 'r' ? (int)value : options.region_fd;
            options.offset = letter == 'o' ? value : options.offset;
            options.size_bytes = letter == 's' ? value : options.size_bytes;
            options.notify_fd = letter == 'n' ? (int)value : options.notify_fd;
            options.wake_fd = letter == 'w' ? (int)value : options.wake_fd;
            options.control_fd = letter == 'c' ? (int)value : options.control_fd;
            options.spin_us = letter == 'u' ? value : options.spin_us;
            options.notify_always = letter == 'a' ? value != 0 : options.notify_always;
            options.stats_fd = letter == 'f' ? (int)value : options.stats_fd;
            options.status_fd = letter == 'p' ? (int)value : options.status_fd;
            options.socket_fd = letter == 'k' ? (int)value : options.socket_fd;
            options.images_fd = letter == 'i' ? (int)value : options.images_fd;
            options.images_bytes = letter == 'm' ? value : options.images_bytes;
        }
    }
    bool complete = options.tcp ? options.socket_fd >= 0
                                : options.region_fd >= 0 && options.notify_fd >= 0 &&
                                      options.wake_fd >= 0 && options.size_bytes > 0;
    if (!complete || options.control_fd < 0 || optind != argc) {
        say("descriptors are missing; it is the supervisor that starts this program");
        exit(WH_EXIT_USAGE);
    }
    return options;
}

static void send_line(int control_fd, const char *line)
{
    ssize_t sent = send(control_fd, line, strlen(line), MSG_NOSIGNAL);
    (void)sent; /* a supervisor that is gone shows as the end of the control socket */
}

/* Tells the supervisor, and ends. Quotes in the text would break the line and become apostrophes.
 */
static void refuse(int control_fd, const char *what, const char *reason)
{
    char text[WH_TEXT_BYTES / 2];
    char line[WH_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s: %s", what, reason);
    for (char *letter = text; *letter != '\0'; letter++) {
        if (*letter == '"' || *letter == '\\' || (unsigned char)*letter < 0x20) {
            *letter = '\'';
        }
    }
    snprintf(line, sizeof(line), "{\"ready\":false,\"error\":\"%s\"}\n", text);
    send_line(control_fd, line);
    say("%s", text);
    exit(WH_EXIT_STARTUP);
}

static void map_session(struct wh_session *session, const struct options *options)
{
    void *base = mmap(NULL, options->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      options->region_fd, (off_t)options->offset);
    if (base == MAP_FAILED) {
        refuse(options->control_fd, "mapping the session", strerror(errno));
    }
    /* What lies outside the slot is other sessions': out of reach from here on. */
    close(options->region_fd);
    madvise(base, options->size_bytes, MADV_DONTDUMP);
    session->base = base;
    session->size_bytes = options->size_bytes;
    session->header = base;
    session->wake_fd = options->wake_fd;
    fcntl(options->wake_fd, F_SETFL, fcntl(options->wake_fd, F_GETFL) | O_NONBLOCK);
    int error = wh_ring_init(session, options->notify_fd);
    if (error != 0) {
        refuse(options->control_fd, "the session header", strerror(-error));
    }
}

/* The counters as the host sees them while we run: the order of host_server/status_page.py. */
struct status_page {
    uint64_t at_ns;
    uint64_t messages;
    uint64_t replies;
    uint64_t sleeps;
    uint64_t wakes_sent;
    uint64_t bytes_received;
    uint64_t bytes_sent;
};

static struct status_page *map_status(const struct options *options)
{
    static struct status_page unseen;
    if (options->status_fd < 0) {
        return &unseen;
    }
    void *page = mmap(NULL, sizeof(struct status_page), PROT_READ | PROT_WRITE, MAP_SHARED,
                      options->status_fd, 0);
    if (page == MAP_FAILED) {
        refuse(options->control_fd, "mapping the status page", strerror(errno));
    }
    close(options->status_fd);
    return page;
}

/* The jail seals the notification descriptors by their numbers, in the programs that the backend
 * starts too (a linker): so they get numbers that nobody else comes to. */
static int out_of_the_way(int fd)
{
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, WH_HIGH_FD);
    if (high < 0) {
        return fd;
    }
    close(fd);
    return high;
}

static void close_on_exec(int fd)
{
    if (fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
}

static void enter_jail(const struct options *options, struct wh_jail_report *report)
{
    struct wh_jail_config config;
    memset(&config, 0, sizeof(config));
    int error = wh_jail_parse(options->jail, &config);
    config.notify_fd = options->notify_fd;
    config.wake_fd = options->wake_fd;
    config.images_fd = options->images_fd;
    if (error == 0) {
        error = wh_jail_enter(&config, report);
    }
    if (error != 0) {
        refuse(options->control_fd, "entering the jail", strerror(-error));
    }
    /* Setting another user id clears it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void load_backend(struct wh_session *session, const struct options *options)
{
    char reason[512] = "no reason given";
    session->backend = wh_backend_find(options->backend);
    if (session->backend == NULL) {
        refuse(options->control_fd, "the backend", "this worker has none of that name");
    }
    if (session->backend->init(session, reason, sizeof(reason)) != 0) {
        refuse(options->control_fd, options->backend, reason);
    }
}

static void say_ready(const struct options *options, const struct wh_jail_report *report)
{
    char jail[WH_TEXT_BYTES / 2];
    char line[WH_TEXT_BYTES];
    int used = wh_jail_report_json(report, jail, sizeof(jail));
    snprintf(line, sizeof(line), "{\"ready\":true,\"jail\":%s}\n", used > 0 ? jail : "null");
    send_line(options->control_fd, line);
}

static struct wh_worker_counters count(struct wh_session *session)
{
    struct wh_worker_counters totals = {0};
    if (session->ring != NULL) {
        wh_ring_counters(session, &totals);
    } else {
        wh_tcp_counters(&totals);
    }
    return totals;
}

static void show_counters(struct wh_session *session, struct status_page *page)
{
    struct wh_worker_counters totals = count(session);
    wh_store64(&page->messages, totals.messages);
    wh_store64(&page->replies, totals.replies);
    wh_store64(&page->sleeps, totals.sleeps);
    wh_store64(&page->wakes_sent, wh_load64(&session->wakes_sent));
    wh_store64(&page->bytes_received, totals.bytes_received);
    wh_store64(&page->bytes_sent, totals.bytes_sent);
    wh_store64(&page->at_ns, wh_now_ns());
    if (session->header == NULL) {
        return;
    }
    wh_store64(&session->header->messages, totals.messages);
    wh_store64(&session->header->replies, totals.replies);
    wh_store64(&session->header->worker_sleeps, totals.sleeps);
    wh_store64(&session->header->wakes_sent, wh_load64(&session->wakes_sent));
    wh_store64(&session->header->heartbeat, wh_load64(&session->header->heartbeat) + 1);
}

static void write_stats(struct wh_session *session, int stats_fd)
{
    char line[512];
    struct rusage usage = {0};
    struct wh_worker_counters totals = count(session);
    if (stats_fd < 0) {
        return;
    }
    getrusage(RUSAGE_SELF, &usage);
    int used = snprintf(line, sizeof(line),
                        "{\"messages\":%llu,\"replies\":%llu,\"sleeps\":%llu,\"wakes_sent\":%llu,"
                        "\"user_us\":%lld,\"system_us\":%lld}\n",
                        (unsigned long long)totals.messages, (unsigned long long)totals.replies,
                        (unsigned long long)totals.sleeps,
                        (unsigned long long)wh_load64(&session->wakes_sent),
                        (long long)usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec,
                        (long long)usage.ru_stime.tv_sec * 1000000 + usage.ru_stime.tv_usec);
    ssize_t written = write(stats_fd, line, (size_t)used);
    (void)written;
}

/* A connection passed by the supervisor; -1 if none came, -2 at the end of the control socket. */
static int receive_socket(int control_fd)
{
    char byte = 0;
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    ssize_t size = recvmsg(control_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) {
        return -2;
    }
    const struct cmsghdr *header = size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header == NULL || header->cmsg_type != SCM_RIGHTS) {
        return -1;
    }
    int fd = -1;
    memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

/* Milliseconds until then, rounded up; 0 if it is past. */
static int milliseconds_until(uint64_t time_ns)
{
    uint64_t now_ns = wh_now_ns();
    return now_ns < time_ns ? (int)((time_ns - now_ns + 999999u) / 1000000u) : 0;
}

/* Returns when the supervisor has closed the control socket, or the last connection has gone. */
static void watch(struct wh_session *session, const struct options *options,
                  struct status_page *page)
{
    struct pollfd sources[] = {
        {.fd = options->control_fd, .events = POLLIN},
        {.fd = -1, .events = POLLIN},
        {.fd = wh_output_room(session), .events = POLLIN},
    };
    uint64_t beat_ns = wh_now_ns() + WH_HEARTBEAT_NS;
    show_counters(session, page); /* so that the page takes its memory at once, and not later */
    for (;;) {
        sources[1].fd = wh_output_source(session);
        int ready =
            poll(sources, sizeof(sources) / sizeof(sources[0]), milliseconds_until(beat_ns));
        bool beats = wh_now_ns() >= beat_ns;
        if (beats) {
            beat_ns = wh_now_ns() + WH_HEARTBEAT_NS;
        }
        show_counters(session, page);
        if (session->header == NULL && wh_tcp_connections() == 0) {
            return;
        }
        if (session->header == NULL && beats) {
            wh_tcp_beat();
        }
        if (ready > 0 && (sources[1].revents | sources[2].revents) != 0) {
            wh_output_arrived(session);
        }
        if (ready <= 0 || sources[0].revents == 0) {
            continue;
        }
        int socket = receive_socket(options->control_fd);
        if (socket == -2) {
            return;
        }
        if (socket >= 0 && options->tcp) {
            int error = wh_tcp_start(session, socket);
            if (error != 0) {
                say("a connection could not be served: %s", strerror(-error));
            }
        } else if (socket >= 0) {
            close(socket);
        }
    }
}

int main(int argc, char **argv)
{
    static struct wh_session session;
    static struct wh_jail_report report;
    struct options options = parse(argc, argv);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    options.notify_fd = out_of_the_way(options.notify_fd);
    options.wake_fd = out_of_the_way(options.wake_fd);
    const int fds[] = {options.notify_fd, options.wake_fd,   options.control_fd,
                       options.stats_fd,  options.socket_fd, options.images_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        close_on_exec(fds[i]);
    }
    wh_images_open(options.images_fd, options.images_bytes);
    if (wh_session_init(&session) != 0) {
        refuse(options.control_fd, "the session", "no memory");
    }
    uint64_t ticks_per_us = wh_measure_ticks_per_us();
    session.spin_ticks = options.spin_us * ticks_per_us;
    session.burst_ticks = session.spin_ticks > 0 ? ticks_per_us / 2 : 0;
    session.pause_is_cheap = wh_pause_is_cheap();
    session.notify_always = options.notify_always;
    if (wh_output_start(&session) != 0) {
        refuse(options.control_fd, "the kernels' output", "no descriptors or memory");
    }
    if (!options.tcp) {
        map_session(&session, &options);
    }
    struct status_page *page = map_status(&options);
    enter_jail(&options, &report);
    load_backend(&session, &options);
    int error = options.tcp ? wh_tcp_start(&session, options.socket_fd) : wh_ring_start(&session);
    if (error != 0) {
        refuse(options.control_fd, "starting the first thread", strerror(-error));
    }
    if (session.header != NULL) {
        wh_store_release32(&session.header->host_state, WH_HOST_STATE_READY);
    }
    say_ready(&options, &report);
    watch(&session, &options, page);
    write_stats(&session, options.stats_fd);
    /* Backend threads may still run kernels of a client that is gone: no destructors. */
    _exit(0);
}
