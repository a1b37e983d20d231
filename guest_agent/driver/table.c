// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * table.c - the session table: how driver and host server hand session slots to each other.
 *
 * A slot's line in the table has two halves, one written by the driver and one by the host server.
 * Each begins with {state, generation}, which this side reads and writes as one 64-bit word, so
 * that a state is never taken for one of another generation:
 *
 *     driver                       host server
 *     OPEN, g    (g is new)   ->
 *                             <-   READY, g   or   REFUSED, g
 *     CLOSED, g               ->
 *                             <-   FREE, g    nothing of the host touches the slot any more
 *
 * What the host writes is believed only within bounds: it may break its guests' sessions, not the
 * guest's kernel.
 */
#include <linux/device.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/uidgid.h>

#include "wormhole.h"

/* One slot of the session table: both halves, each on a cache line of its own. */
struct wh_line {
    struct wh_table_guest guest;
    struct wh_table_host host;
};

struct wh_state {
    u32 state;
    u32 generation;
};

static struct wh_line *wh_line_at(const struct wh_device *device, u64 table_offset, u32 slot)
{
    return (struct wh_line *)((u8 *)device->region + table_offset) + slot;
}

/* Pairs with the host's store of its state: what the host wrote before is visible after. */
static struct wh_state wh_load_host(const struct wh_line *line)
{
    u64 word = smp_load_acquire((const u64 *)&line->host.host_state);

    return (struct wh_state){.state = (u32)word, .generation = (u32)(word >> 32)};
}

static struct wh_state wh_load_guest(const struct wh_line *line)
{
    u64 word = READ_ONCE(*(const u64 *)&line->guest.guest_state);

    return (struct wh_state){.state = (u32)word, .generation = (u32)(word >> 32)};
}

/* Pairs with the host's scan of the table: the rest of the line is visible before the state. */
static void wh_store_guest(struct wh_line *line, u32 state, u32 generation)
{
    smp_store_release((u64 *)&line->guest.guest_state, (u64)generation << 32 | state);
}

static_assert(offsetof(struct wh_table_guest, guest_state) == 0);
static_assert(offsetof(struct wh_table_guest, generation) == 4);
static_assert(offsetof(struct wh_table_host, host_state) == 0);
static_assert(offsetof(struct wh_table_host, generation) == 4);

/* ---- the region header ---- */

static bool wh_layout_is_sane(const struct wh_device *device, const struct wh_layout *layout)
{
    u64 table_bytes = (u64)layout->session_count * sizeof(struct wh_line);
    u64 room;

    if (layout->session_count == 0 || layout->session_count > WH_SESSION_COUNT_MAX ||
        !PAGE_ALIGNED(layout->table_offset) || !PAGE_ALIGNED(layout->sessions_offset) ||
        !PAGE_ALIGNED(layout->session_bytes) ||
        layout->session_bytes < sizeof(struct wh_session_header)) {
        return false;
    }
    if (layout->table_offset < sizeof(struct wh_region_header) ||
        layout->table_offset > device->region_bytes ||
        layout->sessions_offset > device->region_bytes ||
        layout->sessions_offset < layout->table_offset ||
        layout->sessions_offset - layout->table_offset < table_bytes) {
        return false;
    }
    room = device->region_bytes - layout->sessions_offset;
    return layout->session_bytes <= room / layout->session_count;
}

/*
 * A server took the region over: all sessions of its predecessor are over, and their memory must
 * not be seen by their owners any more before a slot is given out again. A freshly loaded driver
 * finds what its predecessor left and closes it.
 */
static void wh_layout_adopt(struct wh_device *device, const struct wh_layout *layout)
{
    bool changed = false;
    u32 i;

    for (i = 0; i < WH_SESSION_COUNT_MAX; i++) {
        if (device->slots[i].use == WH_SLOT_HELD) {
            wh_session_end(device->slots[i].session);
        }
    }
    device->layout = *layout;
    for (i = 0; i < layout->session_count; i++) {
        struct wh_line *line = wh_line_at(device, layout->table_offset, i);
        struct wh_slot *slot = &device->slots[i];
        struct wh_state guest = wh_load_guest(line);
        struct wh_state host = wh_load_host(line);
        bool left_over = !device->adopted && guest.state != WH_GUEST_STATE_FREE &&
                         READ_ONCE(line->guest.epoch) == layout->epoch;

        changed |= guest.state != WH_GUEST_STATE_FREE;
        if (left_over) {
            slot->use = WH_SLOT_CLOSED;
            slot->generation = guest.generation;
            wh_store_guest(line, WH_GUEST_STATE_CLOSED, slot->generation);
            continue;
        }
        if (!device->adopted) {
            slot->generation = guest.generation;
        }
        if ((s32)(host.generation - slot->generation) > 0) {
            slot->generation = host.generation; /* the next one must be new to the host */
        }
        slot->use = WH_SLOT_FREE;
        wh_store_guest(line, WH_GUEST_STATE_FREE, slot->generation);
    }
    device->adopted = true;
    if (changed) {
        wh_notify(device);
    }
}

/*
 * Brings device->layout up to date. Returns 0, -ENODEV (no server), -EPROTO (device->layout is not
 * changed; the header's version differs from ours) or -EIO (malformed header).
 */
int wh_table_refresh(struct wh_device *device)
{
    const struct wh_region_header *header = device->region;
    struct wh_layout layout;
    u32 version;

    if (READ_ONCE(device->server_gone) ||
        smp_load_acquire(&header->state) != WH_REGION_STATE_READY) {
        return -ENODEV;
    }
    layout.epoch = READ_ONCE(header->epoch);
    if (device->adopted && layout.epoch == device->layout.epoch) {
        return 0;
    }
    version = READ_ONCE(header->version);
    layout.table_offset = READ_ONCE(header->table_offset);
    layout.sessions_offset = READ_ONCE(header->sessions_offset);
    layout.session_bytes = READ_ONCE(header->session_bytes);
    layout.session_count = READ_ONCE(header->session_count);
    layout.spec_hash = READ_ONCE(header->spec_hash);
    if (READ_ONCE(header->magic) != WH_MAGIC) {
        dev_warn_ratelimited(&device->vdev->dev, "the region header has no magic\n");
        return -EIO;
    }
    smp_rmb(); /* all of the above before the recheck: a server may be rewriting the header */
    if (READ_ONCE(header->state) != WH_REGION_STATE_READY ||
        READ_ONCE(header->epoch) != layout.epoch) {
        return -ENODEV;
    }
    if (version != WH_PROTOCOL_VERSION) {
        dev_warn_ratelimited(&device->vdev->dev,
                             "the server speaks protocol version %u, this driver %u\n", version,
                             WH_PROTOCOL_VERSION);
        return -EPROTO;
    }
    if (!wh_layout_is_sane(device, &layout)) {
        dev_warn_ratelimited(
            &device->vdev->dev,
            "malformed region header: table at %#llx, %u sessions of %llu bytes at "
            "%#llx, region of %llu bytes\n",
            layout.table_offset, layout.session_count, layout.session_bytes, layout.sessions_offset,
            device->region_bytes);
        return -EIO;
    }
    wh_layout_adopt(device, &layout);
    return 0;
}

/* ---- slots ---- */

/* A closed slot is free when the host says so of this very generation. */
static bool wh_slot_is_free(struct wh_device *device, u32 index)
{
    const struct wh_slot *slot = &device->slots[index];
    struct wh_state host = wh_load_host(wh_line_at(device, device->layout.table_offset, index));

    if (host.state != WH_HOST_STATE_FREE) {
        return false;
    }
    return slot->use == WH_SLOT_FREE ||
           (slot->use == WH_SLOT_CLOSED && host.generation == slot->generation);
}

static void wh_slot_open(struct wh_session *session, u32 index, u32 spin_us, u32 switches)
{
    struct wh_device *device = session->device;
    const struct wh_layout *layout = &device->layout;
    struct wh_line *line = wh_line_at(device, layout->table_offset, index);
    struct wh_slot *slot = &device->slots[index];
    char name[TASK_COMM_LEN] = "";

    get_task_comm(name, current->group_leader);
    slot->use = WH_SLOT_HELD;
    slot->session = session;
    slot->generation++;
    session->slot = index;
    session->generation = slot->generation;
    session->epoch = layout->epoch;
    session->offset = layout->sessions_offset + index * layout->session_bytes;
    session->bytes = layout->session_bytes;
    session->table_offset = layout->table_offset;
    session->server_losses = atomic_read(&device->server_losses);

    line->guest.pid = task_tgid_nr(current);
    line->guest.uid = from_kuid(&init_user_ns, current_uid());
    line->guest.spin_us = spin_us;
    line->guest.switches = switches;
    line->guest.epoch = layout->epoch;
    BUILD_BUG_ON(sizeof(line->guest.name) != sizeof(name));
    memcpy(line->guest.name, name, sizeof(name));
    wh_store_guest(line, WH_GUEST_STATE_OPEN, slot->generation);
    wh_notify(device);
}

/*
 * Takes a slot for `session` and tells the host. Returns 0, -EAGAIN (all taken), or -EBUSY: all
 * taken, but the host is still clearing one that was closed, so asking again soon is worth while.
 */
int wh_table_take(struct wh_session *session, u32 spin_us, u32 switches)
{
    struct wh_device *device = session->device;
    bool clearing = false;
    u32 i;

    for (i = 0; i < device->layout.session_count; i++) {
        if (wh_slot_is_free(device, i)) {
            wh_slot_open(session, i, spin_us, switches);
            return 0;
        }
        clearing |= device->slots[i].use != WH_SLOT_HELD;
    }
    return clearing ? -EBUSY : -EAGAIN;
}

/* The host's answer to wh_table_take: 0 (ready), -EINPROGRESS, -EIO (refused, or dead at once). */
int wh_table_answer(const struct wh_session *session, u32 *host_error)
{
    const struct wh_line *line = wh_line_at(session->device, session->table_offset, session->slot);
    struct wh_state host = wh_load_host(line);

    if (host.generation != session->generation) {
        return -EINPROGRESS;
    }
    switch (host.state) {
    case WH_HOST_STATE_READY:
        return 0;
    case WH_HOST_STATE_REFUSED:
    case WH_HOST_STATE_DEAD:
        *host_error = READ_ONCE(line->host.error);
        return -EIO;
    default:
        return -EINPROGRESS;
    }
}

bool wh_table_answered(const struct wh_session *session)
{
    u32 host_error;

    return wh_table_answer(session, &host_error) != -EINPROGRESS;
}

/* ---- the end ---- */

/* Whether the server that this session belongs to is gone, whatever the session's line says. */
static bool wh_server_changed(const struct wh_session *session)
{
    const struct wh_device *device = session->device;
    const struct wh_region_header *header = device->region;

    return READ_ONCE(device->removed) ||
           atomic_read(&device->server_losses) != session->server_losses ||
           READ_ONCE(header->state) != WH_REGION_STATE_READY ||
           READ_ONCE(header->epoch) != session->epoch;
}

bool wh_session_dead(const struct wh_session *session)
{
    const struct wh_device *device = session->device;
    const struct wh_session_header *header = device->region + session->offset;
    enum wh_session_state state = READ_ONCE(session->state);

    if (wh_server_changed(session) || state == WH_SESSION_ENDED) {
        return true;
    }
    return state == WH_SESSION_OPEN && (wh_table_answer(session, &(u32){0}) != 0 ||
                                        READ_ONCE(header->host_state) != WH_HOST_STATE_READY);
}

/*
 * Gives the slot back. Takes the memory from the owner's mappings first: once the host has answered
 * with FREE, the slot may be another process's.
 */
void wh_session_end(struct wh_session *session)
{
    struct wh_device *device = session->device;
    struct wh_slot *slot = &device->slots[session->slot];

    lockdep_assert_held(&device->lock);
    if (session->state != WH_SESSION_OPENING && session->state != WH_SESSION_OPEN) {
        WRITE_ONCE(session->state, WH_SESSION_ENDED);
        return;
    }
    WRITE_ONCE(session->state, WH_SESSION_ENDED);
    if (slot->session != session) {
        return; /* still looking for a slot */
    }
    unmap_mapping_range(session->mapping, session->offset, session->bytes, 1);
    slot->session = NULL;
    slot->use = WH_SLOT_CLOSED;
    wh_store_guest(wh_line_at(device, session->table_offset, session->slot), WH_GUEST_STATE_CLOSED,
                   session->generation);
    wh_notify(device);
    wake_up_all(&device->waiters);
}
