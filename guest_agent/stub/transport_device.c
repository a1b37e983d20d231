/*
 * transport_device.c - a session through the guest driver: /dev/wormholeN maps the slot, notifies
 * and sleeps.
 */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ring.h"
#include "../driver/wormhole_uapi.h"

static int report(const char *path, const struct wh_ioc_open *request, int error)
{
    if (error == -EPROTO) {
        fprintf(stderr,
                "wormhole: the host server behind %s has version %u and spec %016llx, this library "
                "version %u and spec %016llx; rebuild both from one checkout\n",
                path, request->version, (unsigned long long)request->spec_hash, WH_PROTOCOL_VERSION,
                WH_SPEC_HASH);
    } else if (error == -EIO) {
        fprintf(stderr, "wormhole: the host server behind %s refused the session: %s\n", path,
                strerror((int)request->host_error));
    } else {
        fprintf(stderr, "wormhole: cannot open a session on %s: %s\n", path, strerror(-error));
    }
    return error;
}

static int device_open(struct wh_client *client)
{
    const char *path = client->config->path;
    struct wh_ioc_open request = {
        .version = WH_PROTOCOL_VERSION,
        .spin_us = client->config->spin_us,
        .spec_hash = WH_SPEC_HASH,
        .switches = client->config->notify_always ? WH_SWITCH_FLAG_NOTIFY_ALWAYS : 0,
        .timeout_ms = WH_OPEN_TIMEOUT_MS,
    };
    client->device_fd = open(path, O_RDWR | O_CLOEXEC);
    if (client->device_fd < 0) {
        return report(path, &request, -errno);
    }
    int result = 0;
    do {
        result = ioctl(client->device_fd, WH_IOC_OPEN, &request);
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        return report(path, &request, -errno);
    }
    return wh_client_map(client, client->device_fd, request.session_bytes);
}

static int device_notify(struct wh_client *client)
{
    return ioctl(client->device_fd, WH_IOC_NOTIFY) == 0 ? 0 : -errno;
}

static int device_sleep(struct wh_client *client, struct wh_thread *thread, const uint32_t *word,
                        uint32_t value, int timeout_ms)
{
    (void)thread;
    struct wh_ioc_wait wait = {
        .offset = (uint32_t)((const uint8_t *)word - client->base),
        .value = value,
        .timeout_us = (uint32_t)timeout_ms * 1000u,
    };
    if (ioctl(client->device_fd, WH_IOC_WAIT, &wait) == 0) {
        return 0;
    }
    return errno == EINTR || errno == ETIMEDOUT ? 0 : -errno;
}

const struct wh_transport wh_transport_device = {
    .open = device_open,
    .send = wh_ring_send,
    .receive = wh_ring_receive,
    .notify = device_notify,
    .sleep = device_sleep,
};
