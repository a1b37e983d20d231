/*
 * config.h - the stub's settings, read once from the environment.
 */
#ifndef WH_CONFIG_H
#define WH_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "wh_codec.h"

enum wh_server_kind {
    WH_SERVER_NONE,
    WH_SERVER_DEVICE, /* device:/dev/wormhole0 */
    WH_SERVER_UNIX,   /* unix:PATH */
    WH_SERVER_TCP,    /* tcp:HOST:PORT */
};

struct wh_config {
    enum wh_server_kind server;
    char path[108]; /* device or socket, as long as sockaddr_un.sun_path */
    char host[256];
    char port[8];
    uint8_t token[WH_TOKEN_BYTES];
    bool oneway;
    bool local;
    bool notify_always;
    bool instrument; /* times.h */
    uint32_t spin_us;
    uint64_t spin_ticks;
    uint64_t ticks_per_us;
    bool pause_is_cheap;
    char stats_path[1024];  /* empty: none */
    char record_path[1024]; /* empty: none */
};

/* The settings; the first call reads them, and says on stderr which variable it cannot use. */
const struct wh_config *wh_config(void);

#endif
