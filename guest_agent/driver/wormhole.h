/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * wormhole.h - the driver's own state; what the parts of the driver know of each other.
 *
 * device.c finds the region and the queues, table.c keeps the session table with the host,
 * session.c is what a process sees; serve.c is what the supervisor of a server guest sees.
 *
 * Locks, outermost first: mmap_lock, wh_device.removal (read), wh_device.lock, the page cache's
 * i_mmap lock. User memory is never touched under removal or lock, because a fault takes both.
 */
#ifndef WORMHOLE_H
#define WORMHOLE_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>
#include <linux/wait.h>

#include "wh_wire.h"

#define WH_VIRTIO_ID 63
#define WH_SHM_ID 0
#define WH_EVENT_BUFFER_COUNT 64
#define WH_DEVICE_NAME_BYTES 24
/* A region below this address may lie in an MTRR range that firmware made uncached. */
#define WH_LOW_MEMORY_BYTES (4ULL << 30)

/* Types of events, see ARCHITECTURE section 6. */
#define WH_EVENT_WAKE 0
#define WH_EVENT_SERVER_GONE 1
#define WH_EVENT_SERVER_CONNECTED 2
#define WH_EVENT_PEER_STOPPED 3
#define WH_EVENT_PEER_STARTED 4
/* Of the device's configuration: this guest serves the region. */
#define WH_CONFIG_FLAGS_OFFSET 4
#define WH_CONFIG_F_SERVES 1u

struct wh_event {
    __le32 type;
    __le32 sequence;
};

/* A checked copy of the region header: the driver never goes back to the shared one for sizes. */
struct wh_layout {
    u64 table_offset;
    u64 sessions_offset;
    u64 session_bytes;
    u64 spec_hash;
    u32 session_count;
    u32 epoch;
};

enum wh_slot_use {
    WH_SLOT_FREE,   /* nobody's, if the host agrees */
    WH_SLOT_HELD,   /* belongs to `session` */
    WH_SLOT_CLOSED, /* ours no more; waits for the host's FREE of this generation */
};

struct wh_session;

/* The driver's own copy of its line in the session table; what stands in shared memory is only
 * written. */
struct wh_slot {
    enum wh_slot_use use;
    u32 generation;
    struct wh_session *session;
};

struct wh_device {
    struct kref references;
    struct virtio_device *vdev;
    struct virtqueue *control_queue;
    struct virtqueue *event_queue;
    struct miscdevice misc;
    char name[WH_DEVICE_NAME_BYTES];
    int index;

    u64 region_address; /* guest-physical */
    u64 region_bytes;
    void *region;
    bool write_back;

    struct rw_semaphore removal; /* write: the device is going away */
    bool removed;                /* under removal */

    struct mutex lock; /* layout, slots, state of every session */
    bool adopted;      /* a layout has been read since the driver started */
    struct wh_layout layout;
    struct wh_slot slots[WH_SESSION_COUNT_MAX];

    wait_queue_head_t waiters;
    atomic_t server_losses; /* a session that began under another count is dead */
    bool server_gone;       /* written by the event handler only */

    /* Of a guest that serves the region, else unused. */
    struct address_space *serving;    /* under lock: of the one open file, or NULL */
    struct eventfd_ctx *serve_signal; /* under event_lock */
    u32 peer_changes;                 /* written by the event handler only; odd: it is running */

    spinlock_t event_lock; /* the event queue */
    struct wh_event events[WH_EVENT_BUFFER_COUNT];

    atomic64_t notifications_sent;
    atomic64_t events_received;
};

enum wh_session_state {
    WH_SESSION_NEW,     /* WH_IOC_OPEN not called yet */
    WH_SESSION_OPENING, /* a slot may be held; waiting for the host */
    WH_SESSION_OPEN,
    WH_SESSION_ENDED, /* its memory is no longer ours */
};

/* One open file. */
struct wh_session {
    struct wh_device *device;
    struct address_space *mapping; /* of the file: finds our mappings */
    enum wh_session_state state;   /* under device->lock; read without it only to wake up */
    struct pid *owner;             /* thread group that opened the session */
    struct mm_struct *mm;          /* the only one that may map it; compared, never used */
    u32 slot;
    u32 generation;
    u32 epoch;
    int server_losses;
    u64 offset; /* of the session in the region */
    u64 bytes;
    u64 table_offset;
    int mapping_count;
    struct page *dead_page; /* shown in place of the session's memory after its end */
};

/* device.c */
void wh_device_put(struct wh_device *device);
void wh_notify(struct wh_device *device);

/* table.c; all with device->lock held, except where said */
int wh_table_refresh(struct wh_device *device);
int wh_table_take(struct wh_session *session, u32 spin_us, u32 switches);
bool wh_table_answered(const struct wh_session *session); /* no lock */
int wh_table_answer(const struct wh_session *session, u32 *host_error);
bool wh_session_dead(const struct wh_session *session); /* no lock */
void wh_session_end(struct wh_session *session);

/* session.c */
void wh_vma_init(struct vm_area_struct *vma, const struct vm_operations_struct *operations,
                 void *owner);
vm_fault_t wh_insert_pages(const struct wh_device *device, struct vm_fault *vmf);
extern const struct file_operations wh_file_operations;

/* serve.c */
void wh_serve_end(struct wh_device *device);
extern const struct file_operations wh_serve_file_operations;

#endif
