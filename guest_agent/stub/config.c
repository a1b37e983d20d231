/*
 * config.c - reads the stub's settings from the environment (ARCHITECTURE.md, section 5).
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct wh_config config;
static pthread_once_t config_once = PTHREAD_ONCE_INIT;

static void complain(const char *name, const char *value, const char *remedy)
{
    fprintf(stderr, "wormhole: %s=%s cannot be used: %s\n", name, value, remedy);
}

static bool read_switch(const char *name, const char *off, const char *on, bool fallback)
{
    const char *value = getenv(name);
    if (value == NULL || value[0] == '\0') {
        return fallback;
    }
    if (strcmp(value, on) == 0) {
        return true;
    }
    if (strcmp(value, off) != 0) {
        complain(name, value, "see ARCHITECTURE.md, section 5, for its values");
        return fallback;
    }
    return false;
}

static void read_path(const char *name, char *to, size_t capacity)
{
    const char *value = getenv(name);
    if (value == NULL) {
        return;
    }
    if (strlen(value) >= capacity) {
        complain(name, value, "the path is too long");
        return;
    }
    strcpy(to, value);
}

static void read_spin(void)
{
    config.spin_us = WH_SPIN_US_DEFAULT;
    const char *value = getenv("WORMHOLE_SPIN_US");
    if (value == NULL || value[0] == '\0') {
        return;
    }
    char *end = NULL;
    errno = 0;
    unsigned long number = strtoul(value, &end, 10);
    if (errno != 0 || *end != '\0' || !isdigit((unsigned char)value[0]) ||
        number > WH_SPIN_US_MAX) {
        complain("WORMHOLE_SPIN_US", value, "give whole microseconds, at most 10000000");
        return;
    }
    config.spin_us = (uint32_t)number;
}

static void read_token(void)
{
    const char *value = getenv("WORMHOLE_TOKEN");
    if (value == NULL || value[0] == '\0') {
        return;
    }
    bool good = strlen(value) == 2 * WH_TOKEN_BYTES;
    for (size_t i = 0; good && i < WH_TOKEN_BYTES; i++) {
        unsigned int byte = 0;
        good = isxdigit((unsigned char)value[2 * i]) && sscanf(value + 2 * i, "%2x", &byte) == 1;
        config.token[i] = (uint8_t)byte;
    }
    if (!good) {
        /* The value is a secret and stays out of the message. */
        complain("WORMHOLE_TOKEN", "...", "give 64 hexadecimal digits");
    }
}

static void read_tcp_server(const char *value, const char *address)
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon == address || (size_t)(colon - address) >= sizeof(config.host) ||
        strlen(colon + 1) >= sizeof(config.port) || colon[1] == '\0') {
        complain("WORMHOLE_SERVER", value, "give tcp:HOST:PORT");
        return;
    }
    memcpy(config.host, address, (size_t)(colon - address));
    strcpy(config.port, colon + 1);
    config.server = WH_SERVER_TCP;
}

static void read_server(void)
{
    const char *value = getenv("WORMHOLE_SERVER");
    if (value == NULL || value[0] == '\0') {
        value = "device:/dev/wormhole0";
    }
    const char *rest = strchr(value, ':');
    if (rest == NULL) {
        complain("WORMHOLE_SERVER", value, "give device:PATH, unix:PATH or tcp:HOST:PORT");
        return;
    }
    rest++;
    if (strncmp(value, "tcp:", 4) == 0) {
        read_tcp_server(value, rest);
        return;
    }
    bool device = strncmp(value, "device:", 7) == 0;
    if (!device && strncmp(value, "unix:", 5) != 0) {
        complain("WORMHOLE_SERVER", value, "give device:PATH, unix:PATH or tcp:HOST:PORT");
        return;
    }
    if (rest[0] == '\0' || strlen(rest) >= sizeof(config.path)) {
        complain("WORMHOLE_SERVER", value, "the path is empty or longer than 107 bytes");
        return;
    }
    strcpy(config.path, rest);
    config.server = device ? WH_SERVER_DEVICE : WH_SERVER_UNIX;
}

static void read_all(void)
{
    read_server();
    read_token();
    read_spin();
    config.oneway = read_switch("WORMHOLE_ONEWAY", "0", "1", true);
    config.local = read_switch("WORMHOLE_LOCAL", "0", "1", true);
    config.notify_always = read_switch("WORMHOLE_NOTIFICATIONS", "adaptive", "always", false);
    config.instrument = read_switch("WORMHOLE_INSTRUMENT", "0", "1", false);
    read_path("WORMHOLE_STATS", config.stats_path, sizeof(config.stats_path));
    read_path("WORMHOLE_RECORD", config.record_path, sizeof(config.record_path));
    config.ticks_per_us = wh_measure_ticks_per_us();
    config.spin_ticks = config.ticks_per_us * config.spin_us;
    config.pause_is_cheap = wh_pause_is_cheap();
    if (config.instrument && config.stats_path[0] == '\0') {
        complain("WORMHOLE_INSTRUMENT", "1", "set WORMHOLE_STATS to a file for what is measured");
        config.instrument = false;
    }
    if (config.record_path[0] != '\0' &&
        (config.server != WH_SERVER_TCP || config.oneway || config.local)) {
        complain("WORMHOLE_RECORD", config.record_path,
                 "a record needs tcp:HOST:PORT, WORMHOLE_ONEWAY=0 and WORMHOLE_LOCAL=0");
        config.record_path[0] = '\0';
    }
}

const struct wh_config *wh_config(void)
{
    pthread_once(&config_once, read_all);
    return &config;
}
