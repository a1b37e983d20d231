/*
 * stats.c - writes counters as JSON lines, each with the time and the CPU time of the process.
 */
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config.h"
#include "wh_codec.h"

#define WH_LINE_CAPACITY 2048
#define WH_LABEL_CAPACITY 200
#define WH_HEAD_CAPACITY 512

static const char *const counter_names[WH_COUNTER_COUNT] = {
    "api_calls",
    "local_answers",
    "messages",
    "round_trips",
    "oneway",
    "bytes_sent",
    "bytes_received",
    "notifications_sent",
    "sleeps",
    "ring_full",
    "notifications_received",
};

static int stats_fd = -1;
static bool stats_failed;
static pthread_mutex_t stats_lock = PTHREAD_MUTEX_INITIALIZER;

void wh_stats_forked(void)
{
    pthread_mutex_init(&stats_lock, NULL);
}

/* Letters that would end the JSON string or the line become '_'. */
static void copy_label(char *to, const char *label)
{
    size_t i = 0;
    for (; label[i] != '\0' && i < WH_LABEL_CAPACITY - 1; i++) {
        char letter = label[i];
        bool plain = (unsigned char)letter >= 0x20 && letter != '"' && letter != '\\';
        to[i] = plain ? letter : '_';
    }
    to[i] = '\0';
}

static uint64_t microseconds(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_usec;
}

size_t wh_stats_begin(char *line, const char *event, const char *label)
{
    char safe_label[WH_LABEL_CAPACITY] = "";
    if (label != NULL) {
        copy_label(safe_label, label);
    }
    return (size_t)snprintf(line, WH_HEAD_CAPACITY,
                            "{\"event\":\"%s\",\"label\":\"%s\",\"pid\":%ld,\"t_ns\":%llu,"
                            "\"transport\":\"%s\"",
                            event, safe_label, (long)getpid(), (unsigned long long)wh_now_ns(),
                            wh_config()->server == WH_SERVER_TCP ? "tcp" : "shm");
}

static size_t format(char *line, const char *event, const char *label,
                     const struct wh_counters *totals)
{
    struct rusage usage = {0};
    const struct wh_config *config = wh_config();
    uint64_t values[WH_COUNTER_COUNT];
    getrusage(RUSAGE_SELF, &usage);
    memcpy(values, totals, sizeof(values));
    int used = (int)wh_stats_begin(line, event, label);
    used += snprintf(line + used, WH_LINE_CAPACITY - (size_t)used,
                     ",\"user_us\":%llu,\"system_us\":%llu,\"spin_us\":%u,\"oneway_on\":%s,"
                     "\"local_on\":%s,\"notify_always\":%s",
                     (unsigned long long)microseconds(usage.ru_utime),
                     (unsigned long long)microseconds(usage.ru_stime), config->spin_us,
                     config->oneway ? "true" : "false", config->local ? "true" : "false",
                     config->notify_always ? "true" : "false");
    for (size_t i = 0; i < WH_COUNTER_COUNT; i++) {
        used += snprintf(line + used, WH_LINE_CAPACITY - (size_t)used, ",\"%s\":%llu",
                         counter_names[i], (unsigned long long)values[i]);
    }
    used += snprintf(line + used, WH_LINE_CAPACITY - (size_t)used, "}\n");
    return (size_t)used;
}

void wh_stats_append(const char *line, size_t size_bytes)
{
    const struct wh_config *config = wh_config();
    pthread_mutex_lock(&stats_lock);
    if (stats_fd < 0 && !stats_failed) {
        stats_fd = open(config->stats_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    /* One write per line, so that several processes can append to one file. */
    if (!stats_failed &&
        (stats_fd < 0 || write(stats_fd, line, size_bytes) != (ssize_t)size_bytes)) {
        stats_failed = true;
        fprintf(stderr, "wormhole: writing WORMHOLE_STATS=%s failed: %s\n", config->stats_path,
                strerror(errno));
    }
    pthread_mutex_unlock(&stats_lock);
}

void wh_stats_write(const char *event, const char *label, const struct wh_counters *totals)
{
    char line[WH_LINE_CAPACITY];
    if (wh_config()->stats_path[0] != '\0') {
        wh_stats_append(line, format(line, event, label, totals));
    }
}
