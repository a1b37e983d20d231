/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR Apache-2.0 */
/*
 * wormhole_uapi.h - what a process may ask of /dev/wormholeN.
 *
 * One open file is one session: WH_IOC_OPEN takes a session slot of the shared region, mmap shows
 * it, and the session ends when the process that opened it closes the file or dies.
 */
#ifndef WORMHOLE_UAPI_H
#define WORMHOLE_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * Opens the session of this file.
 *
 * Errors: EAGAIN all slots are taken; EBUSY this file has its session, or had one; ENODEV no host
 * server; EPROTO the server speaks another version or another spec (`version` and `spec_hash` then
 * hold the server's); EIO the server refused (`host_error` holds its errno) or its region is
 * malformed; ETIMEDOUT no answer in time; EINTR; EINVAL timeout_ms above WH_OPEN_TIMEOUT_MS_MAX.
 * After any of them but EBUSY the same file may be asked again.
 */
struct wh_ioc_open {
    __u32 version;       /* in: WH_PROTOCOL_VERSION; out on EPROTO: the server's */
    __u32 spin_us;       /* in: spin bound that the worker shall use */
    __u64 spec_hash;     /* in: WH_SPEC_HASH; out on EPROTO: the server's */
    __u32 switches;      /* in: WH_SWITCH_FLAG_* */
    __u32 timeout_ms;    /* in: limit of the wait for a worker; 0 is WH_OPEN_TIMEOUT_MS_DEFAULT */
    __u64 session_bytes; /* out: length that mmap must be given */
    __u32 session;       /* out: index of the session slot */
    __u32 host_error;    /* out: errno of a refusal, else 0 */
};

#define WH_OPEN_TIMEOUT_MS_DEFAULT 10000u
#define WH_OPEN_TIMEOUT_MS_MAX 120000u

/*
 * Sleeps until the 32-bit word at `offset` of the session is no longer `value`.
 *
 * Returns 0 when it differs. Errors: EPIPE the session is over (worker or server gone, file
 * closed); ETIMEDOUT; EINTR a signal came; EINVAL bad offset; ENOTCONN no session yet. The word is
 * looked at after the sleeper is in the wait queue, so a change followed by a wake is never missed.
 */
struct wh_ioc_wait {
    __u32 offset; /* bytes from the start of the session, a multiple of 4 */
    __u32 value;
    __u32 timeout_us;
    __u32 pad; /* 0 */
};

#define WH_IOC_OPEN _IOWR('w', 0x01, struct wh_ioc_open)
/* Sends one available-buffer notification to the host, unconditionally. */
#define WH_IOC_NOTIFY _IO('w', 0x02)
#define WH_IOC_WAIT _IOW('w', 0x03, struct wh_ioc_wait)

/*
 * In a guest that serves the region (`serves` of its device) the node is /dev/wormhole-serve0, for
 * root alone, one open file at a time. mmap shows any part of the region; a write of eight bytes
 * wakes the other guest, as a write to an eventfd would; a wake-up from there signals `eventfd`.
 *
 * Errors: EBADF, EINVAL no eventfd; ENODEV the device is gone; open: EBUSY it is served.
 */
struct wh_ioc_serve {
    __u64 region_bytes; /* out */
    __s32 eventfd;      /* in: replaces an earlier one */
    __u32 pad;
};

#define WH_IOC_SERVE _IOWR('w', 0x04, struct wh_ioc_serve)
/*
 * How often the other guest's driver has come or gone: twice a start and stop, so that an odd
 * number says that it is running. A change signals the eventfd.
 */
#define WH_IOC_PEER _IOR('w', 0x05, __u32)

#endif
