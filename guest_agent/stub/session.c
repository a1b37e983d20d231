/*
 * session.c - life of the session: opened by the first call, lost when the host dies, never shared
 * with a forked child.
 */
#define _GNU_SOURCE

#include "session.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "call.h"
#include "mark.h"
#include "record.h"

#define WH_BUFFER_KEEP_BYTES (1024u * 1024u) /* larger buffers are not kept for the next call */

static struct wh_client *current; /* NULL before the first call */
static uint32_t serial;           /* last one given */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static struct wh_thread *threads;
static struct wh_counters retired; /* of threads that ended */
static uint32_t thread_count;
static uint32_t blocking_count; /* threads between wh_blocking_begin and wh_blocking_end */
static pthread_key_t thread_key;
static pthread_once_t runtime_once = PTHREAD_ONCE_INIT;
static __thread struct wh_thread *this_thread __attribute__((tls_model("initial-exec")));

/* Threads. */

static void add_counters(struct wh_counters *to, const struct wh_counters *from)
{
    uint64_t *sums = (uint64_t *)(void *)to;
    const uint64_t *values = (const uint64_t *)(const void *)from;
    for (size_t i = 0; i < WH_COUNTER_COUNT; i++) {
        sums[i] += wh_load64(&values[i]);
    }
}

static void free_thread(void *argument)
{
    struct wh_thread *thread = argument;
    pthread_mutex_lock(&threads_lock);
    wh_settle_local_answer(thread);
    add_counters(&retired, &thread->counters);
    if (thread->previous != NULL) {
        thread->previous->next = thread->next;
    } else {
        threads = thread->next;
    }
    if (thread->next != NULL) {
        thread->next->previous = thread->previous;
    }
    pthread_mutex_unlock(&threads_lock);
    if (thread->epoll_fd >= 0) {
        close(thread->epoll_fd);
    }
    while (thread->buffers != NULL) {
        struct wh_buffer *buffer = thread->buffers;
        thread->buffers = buffer->next;
        free(buffer->bytes);
        free(buffer);
    }
    this_thread = NULL;
    free(thread);
}

/*
 * Forking. A child inherits nothing of the session's memory, but what the application sees of it -
 * mapped buffers - is the child's, too, as it was at the fork, and the child may write to it. So
 * the parent copies it before, and the child moves the copies to where the memory was. (A private
 * mapping of the session's memory would go on changing with it.)
 */
struct wh_snapshot {
    struct wh_snapshot *next;
    uint8_t *original;
    uint64_t size_bytes;
    void *copy;
};

static struct wh_snapshot *snapshots;

/* Without memory for it the child gets a signal when it touches the original. */
static void take_snapshot(uint8_t *original, uint64_t size_bytes)
{
    struct wh_snapshot *snapshot = malloc(sizeof(*snapshot));
    void *copy = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (snapshot == NULL || copy == MAP_FAILED) {
        free(snapshot);
        if (copy != MAP_FAILED) {
            munmap(copy, size_bytes);
        }
        return;
    }
    memcpy(copy, original, size_bytes);
    *snapshot = (struct wh_snapshot){snapshots, original, size_bytes, copy};
    snapshots = snapshot;
}

static void take_snapshots(struct wh_client *client)
{
    uint64_t size_bytes = 0;
    pthread_mutex_lock(&client->arena_lock);
    for (uint64_t location = wh_arena_next_shown(client->buffers, 0, &size_bytes); location != 0;
         location = wh_arena_next_shown(client->buffers, location, &size_bytes)) {
        /* Whole pages: from the block's header on. */
        take_snapshot(client->arena_base + location - WH_BLOCK_HEADER_BYTES,
                      size_bytes + WH_BLOCK_HEADER_BYTES);
    }
    pthread_mutex_unlock(&client->arena_lock);
}

static void drop_snapshot(const struct wh_snapshot *snapshot)
{
    munmap(snapshot->copy, snapshot->size_bytes);
}

/* Another library's handler may have mapped something there meanwhile; that stays. */
static void move_snapshot(const struct wh_snapshot *snapshot)
{
    void *place = mmap(snapshot->original, snapshot->size_bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (place == snapshot->original) {
        mremap(snapshot->copy, snapshot->size_bytes, snapshot->size_bytes,
               MREMAP_MAYMOVE | MREMAP_FIXED, place);
    }
}

static void end_snapshots(void (*end)(const struct wh_snapshot *snapshot))
{
    while (snapshots != NULL) {
        struct wh_snapshot *snapshot = snapshots;
        snapshots = snapshot->next;
        end(snapshot);
        free(snapshot);
    }
}

static void before_fork(void)
{
    pthread_mutex_lock(&open_lock);
    pthread_mutex_lock(&threads_lock);
    if (current != NULL && wh_client_uses_shm(current)) {
        take_snapshots(current);
    }
}

static void after_fork_in_parent(void)
{
    end_snapshots(drop_snapshot);
    pthread_mutex_unlock(&threads_lock);
    pthread_mutex_unlock(&open_lock);
}

static void close_descriptors(struct wh_client *client)
{
    int *descriptors[] = {&client->device_fd, &client->notify_fd, &client->wake_fd,
                          &client->socket};
    for (size_t i = 0; i < sizeof(descriptors) / sizeof(descriptors[0]); i++) {
        if (*descriptors[i] >= 0) {
            close(*descriptors[i]);
            *descriptors[i] = -1;
        }
    }
    for (size_t i = 0; i < WH_LANE_COUNT; i++) {
        if (client->lanes[i].socket >= 0) {
            close(client->lanes[i].socket);
            client->lanes[i].socket = -1;
        }
    }
}

/* The session stays the parent's: the child keeps no descriptor, its first call opens a session of
 * its own. */
static void after_fork_in_child(void)
{
    pthread_mutex_init(&threads_lock, NULL);
    pthread_mutex_init(&open_lock, NULL);
    end_snapshots(move_snapshot);
    if (current != NULL) {
        close_descriptors(current);
        /* No thread that used it exists here; the mapping was not inherited. */
        wh_arena_destroy(current->arena);
        wh_arena_destroy(current->buffers);
        free(current);
        current = NULL;
        serial++;
    }
    threads = this_thread;
    blocking_count = 0;
    memset(&retired, 0, sizeof(retired));
    if (this_thread != NULL) {
        this_thread->next = NULL;
        this_thread->previous = NULL;
        memset(&this_thread->counters, 0, sizeof(this_thread->counters));
        this_thread->owed_count = 0;
        if (this_thread->epoll_fd >= 0) {
            close(this_thread->epoll_fd);
            this_thread->epoll_fd = -1;
        }
    }
    wh_stats_forked();
    wh_times_forked();
    wh_record_forked();
}

static void set_up_runtime(void)
{
    pthread_key_create(&thread_key, free_thread);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

struct wh_thread *wh_thread_get(void)
{
    if (__builtin_expect(this_thread != NULL, 1)) {
        return this_thread;
    }
    pthread_once(&runtime_once, set_up_runtime);
    struct wh_thread *thread = calloc(1, sizeof(*thread));
    if (thread == NULL) {
        return NULL;
    }
    thread->epoll_fd = -1;
    pthread_mutex_lock(&threads_lock);
    thread->number = thread_count++;
    thread->lane = thread->number % WH_LANE_COUNT;
    thread->next = threads;
    if (threads != NULL) {
        threads->previous = thread;
    }
    threads = thread;
    pthread_mutex_unlock(&threads_lock);
    pthread_setspecific(thread_key, thread);
    this_thread = thread;
    return thread;
}

void wh_counters_total(struct wh_counters *totals)
{
    pthread_mutex_lock(&threads_lock);
    *totals = retired;
    for (const struct wh_thread *thread = threads; thread != NULL; thread = thread->next) {
        add_counters(totals, &thread->counters);
        totals->local_answers += wh_answered_locally(thread) ? 1 : 0;
    }
    pthread_mutex_unlock(&threads_lock);
    const struct wh_client *client = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (client != NULL && wh_client_uses_shm(client)) {
        totals->notifications_received = wh_load64(&client->header->wakes_sent);
    }
}

void wormhole_mark(const char *label)
{
    struct wh_counters totals;
    struct wh_thread *thread = wh_thread_get();
    const char *text = label != NULL ? label : "";
    wh_counters_total(&totals);
    wh_record_mark(thread != NULL ? thread->number : 0, text);
    wh_stats_write("mark", text, &totals);
    wh_times_mark(text);
}

__attribute__((destructor)) static void write_exit_line(void)
{
    struct wh_counters totals;
    wh_counters_total(&totals);
    wh_record_flush();
    if (totals.api_calls != 0 || totals.messages != 0) {
        wh_stats_write("exit", NULL, &totals);
    }
}

/* Buffers. */

bool wh_buffer_grow(struct wh_buffer *buffer, size_t capacity_bytes)
{
    if (capacity_bytes <= buffer->capacity_bytes) {
        return true;
    }
    size_t capacity = buffer->capacity_bytes * 2;
    if (capacity < capacity_bytes) {
        capacity = wh_align(capacity_bytes, WH_PAGE_BYTES);
    }
    uint8_t *bytes = realloc(buffer->bytes, capacity);
    if (bytes == NULL) {
        return false;
    }
    buffer->bytes = bytes;
    buffer->capacity_bytes = capacity;
    return true;
}

struct wh_buffer *wh_buffer_take(struct wh_thread *thread, size_t capacity_bytes)
{
    struct wh_buffer *buffer = thread->buffers;
    if (buffer != NULL) {
        thread->buffers = buffer->next;
    } else {
        buffer = calloc(1, sizeof(*buffer));
        if (buffer == NULL) {
            return NULL;
        }
    }
    if (!wh_buffer_grow(buffer, capacity_bytes)) {
        wh_buffer_give(thread, buffer);
        return NULL;
    }
    return buffer;
}

void wh_buffer_give(struct wh_thread *thread, struct wh_buffer *buffer)
{
    if (buffer->capacity_bytes > WH_BUFFER_KEEP_BYTES) {
        free(buffer->bytes);
        buffer->bytes = NULL;
        buffer->capacity_bytes = 0;
    }
    buffer->next = thread->buffers;
    thread->buffers = buffer;
}

/* Lanes. */

static bool take_lane(struct wh_lane *lane)
{
    return wh_load32(&lane->busy) == 0 &&
           __atomic_exchange_n(&lane->busy, 1, __ATOMIC_ACQUIRE) == 0;
}

struct wh_lane *wh_lane_acquire(struct wh_client *client, struct wh_thread *thread)
{
    const struct timespec pause = {.tv_nsec = 200000};
    for (;;) {
        for (uint32_t i = 0; i < WH_LANE_COUNT; i++) {
            uint32_t index = (thread->lane + i) % WH_LANE_COUNT;
            if (take_lane(&client->lanes[index])) {
                thread->lane = index;
                return &client->lanes[index];
            }
        }
        if (wh_client_check(client) != 0) {
            return NULL;
        }
        /* Every lane waits for a reply, and some of the replies come in any case; rare enough that
         * polling does. */
        nanosleep(&pause, NULL);
    }
}

void wh_lane_release(struct wh_lane *lane)
{
    /* Pairs with the acquiring exchange in take_lane: the next owner sees the sequence number. */
    __atomic_store_n(&lane->busy, 0, __ATOMIC_RELEASE);
}

bool wh_blocking_begin(void)
{
    if (__atomic_add_fetch(&blocking_count, 1, __ATOMIC_RELAXED) <= WH_BLOCKING_MAX) {
        return true;
    }
    wh_blocking_end();
    return false;
}

void wh_blocking_end(void)
{
    __atomic_sub_fetch(&blocking_count, 1, __ATOMIC_RELAXED);
}

uint32_t wh_lane_index(const struct wh_client *client, const struct wh_lane *lane)
{
    return (uint32_t)(lane - client->lanes);
}

/* The session. */

static const struct wh_transport *transport_of(const struct wh_config *config)
{
    switch (config->server) {
    case WH_SERVER_DEVICE:
        return &wh_transport_device;
    case WH_SERVER_UNIX:
        return &wh_transport_unix;
    case WH_SERVER_TCP:
        return &wh_transport_tcp;
    default:
        return NULL;
    }
}

static struct wh_client *create_client(const struct wh_config *config)
{
    struct wh_client *client = aligned_alloc(64, wh_align(sizeof(*client), 64));
    if (client == NULL) {
        return NULL;
    }
    memset(client, 0, sizeof(*client));
    client->config = config;
    client->transport = transport_of(config);
    client->device_fd = -1;
    client->notify_fd = -1;
    client->wake_fd = -1;
    client->socket = -1;
    for (size_t i = 0; i < WH_LANE_COUNT; i++) {
        client->lanes[i].socket = -1;
    }
    pthread_mutex_init(&client->publish_lock, NULL);
    pthread_mutex_init(&client->arena_lock, NULL);
    return client;
}

static void destroy_client(struct wh_client *client)
{
    close_descriptors(client);
    if (client->base != NULL) {
        munmap(client->base, client->size_bytes);
    }
    wh_arena_destroy(client->arena);
    wh_arena_destroy(client->buffers);
    free(client);
}

/* A failed attempt leaves nothing: no object of a session exists yet, so the next call may try
 * again. */
static struct wh_client *open_client(int *error)
{
    const struct wh_config *config = wh_config();
    if (transport_of(config) == NULL) {
        *error = -EINVAL;
        return NULL;
    }
    struct wh_client *client = create_client(config);
    if (client == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    *error = client->transport->open(client);
    if (*error != 0) {
        destroy_client(client);
        return NULL;
    }
    client->serial = ++serial;
    client->state = WH_SESSION_READY;
    return client;
}

struct wh_client *wh_client_get(int *error)
{
    struct wh_client *client = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (__builtin_expect(client == NULL, 0)) {
        pthread_once(&runtime_once, set_up_runtime);
        pthread_mutex_lock(&open_lock);
        client = current;
        if (client == NULL) {
            client = open_client(error);
            __atomic_store_n(&current, client, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&open_lock);
        if (client == NULL) {
            return NULL;
        }
    }
    *error = wh_client_check(client);
    return *error == 0 ? client : NULL;
}

uint32_t wh_session_serial(void)
{
    const struct wh_client *client = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (client == NULL) {
        return serial;
    }
    return wh_load32(&client->state) == WH_SESSION_READY ? client->serial : client->serial + 1;
}

int wh_client_fail(struct wh_client *client, const char *reason)
{
    uint32_t ready = WH_SESSION_READY;
    if (__atomic_compare_exchange_n(&client->state, &ready, WH_SESSION_DEAD, false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        fprintf(stderr, "wormhole: the session with the host server is lost: %s\n", reason);
    }
    return -EPIPE;
}

int wh_client_check(struct wh_client *client)
{
    if (__builtin_expect(wh_load32(&client->state) != WH_SESSION_READY, 0)) {
        return -EPIPE;
    }
    if (wh_client_uses_shm(client) &&
        __builtin_expect(wh_load_acquire32(&client->header->host_state) != WH_HOST_STATE_READY,
                         0)) {
        return wh_client_fail(client, "the host ended it");
    }
    return 0;
}

/* Shared by the transports. */

static bool header_is_sound(const struct wh_session_header *header, uint64_t size_bytes)
{
    return header->magic == WH_MAGIC && header->version == WH_PROTOCOL_VERSION &&
           header->spec_hash == WH_SPEC_HASH && header->session_bytes == size_bytes &&
           header->slot_count == WH_SLOT_COUNT && header->ring_offset % WH_PAGE_BYTES == 0 &&
           header->slots_offset % WH_PAGE_BYTES == 0 && header->arena_offset % WH_PAGE_BYTES == 0 &&
           header->ring_offset <= size_bytes && size_bytes - header->ring_offset >= WH_RING_BYTES &&
           header->slots_offset <= size_bytes &&
           size_bytes - header->slots_offset >= (uint64_t)WH_SLOT_COUNT * WH_SLOT_BYTES &&
           header->arena_offset <= size_bytes &&
           size_bytes - header->arena_offset >= header->arena_bytes;
}

/* Buffers get what transfers leave: three quarters where there is much, half where there is little.
 */
static int divide_arena(struct wh_client *client)
{
    uint64_t half_bytes = client->arena_bytes / 2;
    uint64_t least_bytes = half_bytes < WH_TRANSFERS_BYTES ? half_bytes : WH_TRANSFERS_BYTES;
    uint64_t quarter_bytes = client->arena_bytes / 4;
    uint64_t bytes = quarter_bytes > least_bytes ? quarter_bytes : least_bytes;
    client->transfers_bytes = bytes / WH_PAGE_BYTES * WH_PAGE_BYTES;
    client->arena = wh_arena_create(client->arena_base, 0, client->transfers_bytes);
    client->buffers = wh_arena_create(client->arena_base, client->transfers_bytes,
                                      client->arena_bytes - client->transfers_bytes);
    return client->arena != NULL && client->buffers != NULL ? 0 : -ENOMEM;
}

int wh_client_map(struct wh_client *client, int fd, uint64_t size_bytes)
{
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return -errno;
    }
    client->base = base;
    client->size_bytes = size_bytes;
    madvise(base, size_bytes, MADV_DONTFORK);
    madvise(base, size_bytes, MADV_DONTDUMP);
    client->header = base;
    struct wh_session_header header = *client->header;
    if (!header_is_sound(&header, size_bytes)) {
        fprintf(stderr,
                "wormhole: the session of %llu bytes has version %u and spec %016llx, this library "
                "version %u and spec %016llx; rebuild both sides from one checkout\n",
                (unsigned long long)size_bytes, header.version,
                (unsigned long long)header.spec_hash, WH_PROTOCOL_VERSION, WH_SPEC_HASH);
        return -EPROTO;
    }
    client->ring = client->base + header.ring_offset;
    client->slots = client->base + header.slots_offset;
    client->arena_base = client->base + header.arena_offset;
    client->arena_bytes = header.arena_bytes;
    client->head = header.head;
    client->tail_seen = header.head;
    return divide_arena(client);
}

int wh_send_all(int socket, const void *bytes, size_t size_bytes)
{
    const uint8_t *next = bytes;
    while (size_bytes > 0) {
        ssize_t sent = send(socket, next, size_bytes, MSG_NOSIGNAL);
        if (sent >= 0) {
            next += sent;
            size_bytes -= (size_t)sent;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

static int receive_welcome(int socket, struct wh_welcome *welcome, int *fds, int fd_count)
{
    char control[CMSG_SPACE(sizeof(int) * 8)];
    struct iovec part = {.iov_base = welcome, .iov_len = sizeof(*welcome)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
    }
    ssize_t size = 0;
    do {
        size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    } while (size < 0 && errno == EINTR);
    if (size < 0) {
        return errno == EAGAIN ? -ETIMEDOUT : -errno;
    }
    struct cmsghdr *header = fd_count > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    int received = 0;
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        received = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < received; i++) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(header) + (size_t)i * sizeof(int), sizeof(fd));
            if (i < fd_count) {
                fds[i] = fd;
            } else {
                close(fd);
            }
        }
    }
    if (size != (ssize_t)sizeof(*welcome)) {
        return size == 0 ? -ECONNRESET : -EPROTO;
    }
    return welcome->status == WH_HELLO_STATUS_OK && received < fd_count ? -EPROTO : 0;
}

static int refusal(const struct wh_welcome *welcome)
{
    static const char *const reasons[] = {
        "",
        "it does not speak this protocol",
        "another protocol version",
        "another spec",
        "the token is wrong",
        "it has no room for another session",
        "it does not know this session",
        "it could not start a worker",
    };
    const char *reason = welcome->status < sizeof(reasons) / sizeof(reasons[0])
                             ? reasons[welcome->status]
                             : "unknown reason";
    fprintf(stderr,
            "wormhole: the host server refused the session: %s (server: version %u, spec %016llx; "
            "this library: version %u, spec %016llx)\n",
            reason, welcome->version, (unsigned long long)welcome->spec_hash, WH_PROTOCOL_VERSION,
            WH_SPEC_HASH);
    return welcome->status == WH_HELLO_STATUS_LIMIT ? -EAGAIN : -EPROTO;
}

static void read_own_name(uint8_t *name, size_t capacity)
{
    extern char *program_invocation_short_name;
    size_t length = strnlen(program_invocation_short_name, capacity - 1);
    memcpy(name, program_invocation_short_name, length);
}

int wh_handshake(struct wh_client *client, int socket, uint64_t session, struct wh_welcome *welcome,
                 int *fds, int fd_count)
{
    const struct timeval limit = {.tv_sec = WH_OPEN_TIMEOUT_MS / 1000};
    struct wh_hello hello = {
        .magic = WH_MAGIC,
        .version = WH_PROTOCOL_VERSION,
        .spin_us = client->config->spin_us,
        .spec_hash = WH_SPEC_HASH,
        .session = session,
        .switches = client->config->notify_always ? WH_SWITCH_FLAG_NOTIFY_ALWAYS : 0,
        .pid = (uint32_t)getpid(),
    };
    memcpy(hello.token, client->config->token, sizeof(hello.token));
    read_own_name(hello.name, sizeof(hello.name));
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    memset(welcome, 0, sizeof(*welcome));
    int error = wh_send_all(socket, &hello, sizeof(hello));
    if (error == 0) {
        error = receive_welcome(socket, welcome, fds, fd_count);
    }
    if (error != 0) {
        fprintf(stderr, "wormhole: the host server did not answer the greeting: %s\n",
                strerror(-error));
        return error;
    }
    if (welcome->magic != WH_MAGIC) {
        fprintf(stderr, "wormhole: what answered is no Wormhole server; see WORMHOLE_SERVER\n");
        return -EPROTO;
    }
    return welcome->status == WH_HELLO_STATUS_OK ? 0 : refusal(welcome);
}
