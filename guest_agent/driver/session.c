// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * session.c - what a process sees: one open file is one session, see wormhole_uapi.h.
 *
 * The session belongs to the process that opened it. A forked child inherits neither its memory
 * (mappings are not copied) nor its life: the owner's close or death ends it, whoever else still
 * holds the descriptor. Ending never waits; the host clears the slot in its own time.
 */
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "wormhole.h"
#include "wormhole_uapi.h"

/* How often an open that waits for a slot or a server looks again. */
#define WH_POLL_MS 5
/*
 * How long an open looks for a server before it says ENODEV: one that has just been started, or
 * told of a driver that has, needs a moment to publish its header.
 */
#define WH_SERVER_GRACE_MS 500
/* Pages that one fault maps: a bulk copy into a fresh session would otherwise fault once a page. */
#define WH_FAULT_AROUND_BYTES (2UL << 20)

/* ---- open and close ---- */

static int wh_open(struct inode *inode, struct file *file)
{
    struct miscdevice *misc =
        file->private_data; /* set by misc_open, which excludes deregistering */
    struct wh_device *device = container_of(misc, struct wh_device, misc);
    struct wh_session *session = kzalloc(sizeof(*session), GFP_KERNEL_ACCOUNT);

    if (session == NULL) {
        return -ENOMEM;
    }
    kref_get(&device->references);
    session->device = device;
    session->mapping = file->f_mapping;
    file->private_data = session;
    return nonseekable_open(inode, file);
}

static void wh_end(struct wh_session *session)
{
    struct wh_device *device = session->device;

    down_read(&device->removal);
    mutex_lock(&device->lock);
    if (!device->removed) {
        wh_session_end(session);
    }
    mutex_unlock(&device->lock);
    up_read(&device->removal);
}

/*
 * Called for every close of a descriptor of this file, by whatever process. Unlike release it comes
 * at the owner's close or death even if a forked child keeps the file open.
 */
static int wh_flush(struct file *file, fl_owner_t id)
{
    struct wh_session *session = file->private_data;

    /* owner is set once, before the first session state that flush could end */
    if (smp_load_acquire(&session->owner) == task_tgid(current)) {
        wh_end(session);
    }
    return 0;
}

static int wh_release(struct inode *inode, struct file *file)
{
    struct wh_session *session = file->private_data;

    wh_end(session);
    if (session->dead_page != NULL) {
        __free_page(session->dead_page);
    }
    if (session->mm != NULL) {
        mmdrop(session->mm);
    }
    put_pid(session->owner);
    wh_device_put(session->device);
    kfree(session);
    return 0;
}

/* ---- WH_IOC_OPEN ---- */

/* Sleeps until `condition`, a signal or the deadline. Returns 0, -EINTR or -ETIMEDOUT. */
#define wh_sleep_until(device, condition, deadline)                                                \
    ({                                                                                             \
        s64 left_ns = ktime_to_ns(ktime_sub((deadline), ktime_get()));                             \
        int slept = (condition) ? 0 : -ETIME;                                                      \
                                                                                                   \
        if (slept != 0 && left_ns > 0) {                                                           \
            slept = wait_event_interruptible_hrtimeout((device)->waiters, (condition),             \
                                                       ns_to_ktime(left_ns));                      \
        }                                                                                          \
        slept == -ETIME ? -ETIMEDOUT : slept == 0 ? 0 : -EINTR;                                    \
    })

/* Claims the file for the calling process. */
static int wh_session_claim(struct wh_session *session)
{
    if (session->state != WH_SESSION_NEW) {
        return -EBUSY;
    }
    mmgrab(current->mm);
    session->mm = current->mm;
    session->state = WH_SESSION_OPENING;
    smp_store_release(&session->owner, get_pid(task_tgid(current)));
    return 0;
}

/* One attempt at a slot; errors of wh_table_refresh and wh_table_take, EPIPE if the file was
 * closed. */
static int wh_session_try(struct wh_session *session, struct wh_ioc_open *args)
{
    struct wh_device *device = session->device;
    const struct wh_region_header *header = device->region;
    const u32 version = args->version;
    const u64 spec_hash = args->spec_hash;
    int error;

    mutex_lock(&device->lock);
    error = session->state == WH_SESSION_OPENING ? wh_table_refresh(device) : -EPIPE;
    if (error == 0 || error == -EPROTO) {
        args->version = READ_ONCE(header->version);
        args->spec_hash = READ_ONCE(header->spec_hash);
        if (args->version != version || args->spec_hash != spec_hash) {
            error = -EPROTO;
        }
    }
    if (error == 0) {
        error = wh_table_take(session, args->spin_us, args->switches);
    }
    mutex_unlock(&device->lock);
    if (error == -EPROTO) {
        dev_warn_ratelimited(&device->vdev->dev,
                             "process %d speaks version %u, spec %#llx; the server version %u, "
                             "spec %#llx; this driver version %u\n",
                             task_tgid_nr(current), version, spec_hash, args->version,
                             args->spec_hash, WH_PROTOCOL_VERSION);
    }
    return error;
}

/* After an open that failed: the file is as if nothing had been asked of it. */
static void wh_session_unclaim(struct wh_session *session)
{
    wh_session_end(session);
    mmdrop(session->mm);
    session->mm = NULL;
    put_pid(session->owner);
    WRITE_ONCE(session->owner, NULL); /* flush only compares it */
    WRITE_ONCE(session->state, WH_SESSION_NEW);
}

/* Finds a slot, waiting for the host to clear one, or for a server that is just coming, if need be.
 */
static int wh_session_take(struct wh_session *session, struct wh_ioc_open *args, ktime_t deadline)
{
    struct wh_device *device = session->device;
    ktime_t server_deadline = ktime_add_ms(ktime_get(), WH_SERVER_GRACE_MS);

    for (;;) {
        ktime_t next = ktime_add_ms(ktime_get(), WH_POLL_MS);
        int error = wh_session_try(session, args);
        int slept;

        if (error == -EBUSY && ktime_after(next, deadline)) {
            return -EAGAIN;
        }
        if (error != -EBUSY && (error != -ENODEV || ktime_after(next, deadline) ||
                                ktime_after(next, server_deadline))) {
            return error;
        }
        slept = wh_sleep_until(device, READ_ONCE(device->removed), next);
        if (slept != -ETIMEDOUT) {
            return slept == 0 ? -ENODEV : slept;
        }
    }
}

/* Waits for the host's answer about the slot. */
static int wh_session_await(struct wh_session *session, struct wh_ioc_open *args, ktime_t deadline)
{
    struct wh_device *device = session->device;
    int error;

    error =
        wh_sleep_until(device, wh_table_answered(session) || wh_session_dead(session), deadline);
    mutex_lock(&device->lock);
    if (wh_session_dead(session)) {
        error = -EPIPE; /* the server left, or another thread closed the file */
    } else if (error == 0) {
        error = wh_table_answer(session, &args->host_error);
    }
    if (error == 0) {
        args->session_bytes = session->bytes;
        args->session = session->slot;
        WRITE_ONCE(session->state, WH_SESSION_OPEN);
    }
    mutex_unlock(&device->lock);
    return error;
}

/* A server that leaves in the middle of this, or another thread's close, gives ENODEV. */
static int wh_session_open(struct wh_session *session, struct wh_ioc_open *args)
{
    struct wh_device *device = session->device;
    ktime_t deadline = ktime_add_ms(ktime_get(), args->timeout_ms);
    int error;

    mutex_lock(&device->lock);
    error = wh_session_claim(session);
    mutex_unlock(&device->lock);
    if (error != 0) {
        return error;
    }
    error = wh_session_take(session, args, deadline);
    if (error == 0) {
        error = wh_session_await(session, args, deadline);
    }
    if (error != 0) {
        mutex_lock(&device->lock);
        wh_session_unclaim(session);
        mutex_unlock(&device->lock);
    }
    return error == -EPIPE ? -ENODEV : error;
}

/* ---- WH_IOC_WAIT ---- */

static bool wh_word_differs(const struct wh_session *session, const struct wh_ioc_wait *args)
{
    const u32 *word = session->device->region + session->offset + args->offset;

    /* acquire: what the host wrote before it changed the word is visible after this */
    return smp_load_acquire(word) != args->value;
}

static int wh_session_wait(struct wh_session *session, const struct wh_ioc_wait *args)
{
    ktime_t deadline = ktime_add_us(ktime_get(), args->timeout_us);
    int error;

    if (READ_ONCE(session->state) == WH_SESSION_NEW ||
        READ_ONCE(session->state) == WH_SESSION_OPENING) {
        return -ENOTCONN;
    }
    if (READ_ONCE(session->state) == WH_SESSION_ENDED) {
        return -EPIPE; /* it may never have had memory */
    }
    if (args->pad != 0 || args->offset % sizeof(u32) != 0 ||
        args->offset > session->bytes - sizeof(u32)) {
        return -EINVAL;
    }
    error = wh_sleep_until(session->device,
                           wh_word_differs(session, args) || wh_session_dead(session), deadline);
    if (error != 0) {
        return error;
    }
    /* a last reply of a worker that has gone since is still a reply */
    return wh_word_differs(session, args) && READ_ONCE(session->state) == WH_SESSION_OPEN ? 0
                                                                                          : -EPIPE;
}

/* ---- ioctl ---- */

static int wh_ioctl_open(struct wh_session *session, struct wh_ioc_open *args)
{
    args->session_bytes = 0;
    args->session = 0;
    args->host_error = 0;
    if (args->timeout_ms > WH_OPEN_TIMEOUT_MS_MAX) {
        return -EINVAL;
    }
    if (args->timeout_ms == 0) {
        args->timeout_ms = WH_OPEN_TIMEOUT_MS_DEFAULT;
    }
    return wh_session_open(session, args);
}

static int wh_ioctl_notify(struct wh_session *session)
{
    if (READ_ONCE(session->state) != WH_SESSION_OPEN) {
        return READ_ONCE(session->state) == WH_SESSION_ENDED ? -EPIPE : -ENOTCONN;
    }
    wh_notify(session->device);
    return 0;
}

static long wh_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
    struct wh_session *session = file->private_data;
    struct wh_device *device = session->device;
    void __user *place = (void __user *)argument;
    union {
        struct wh_ioc_open open;
        struct wh_ioc_wait wait;
    } args;
    size_t size_bytes = 0;
    long error;

    if (command == WH_IOC_OPEN || command == WH_IOC_WAIT) {
        size_bytes = _IOC_SIZE(command);
        if (copy_from_user(&args, place, size_bytes) != 0) {
            return -EFAULT;
        }
    }
    down_read(&device->removal);
    if (device->removed) {
        error = command == WH_IOC_OPEN ? -ENODEV : -EPIPE;
    } else if (command == WH_IOC_OPEN) {
        error = wh_ioctl_open(session, &args.open);
    } else if (command == WH_IOC_WAIT) {
        error = wh_session_wait(session, &args.wait);
    } else if (command == WH_IOC_NOTIFY) {
        error = wh_ioctl_notify(session);
    } else {
        error = -ENOTTY;
    }
    up_read(&device->removal);
    if (command == WH_IOC_OPEN && copy_to_user(place, &args, size_bytes) != 0) {
        return -EFAULT;
    }
    return error;
}

/* ---- the mapping ---- */

/* After the end a mapping shows one private page everywhere: the owner reads rubbish, not a signal.
 */
static vm_fault_t wh_fault_dead(struct wh_session *session, struct vm_fault *vmf)
{
    if (session->dead_page == NULL) {
        session->dead_page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
    }
    if (session->dead_page == NULL) {
        return VM_FAULT_OOM;
    }
    return vmf_insert_pfn(vmf->vma, vmf->address, page_to_pfn(session->dead_page));
}

/* The page of the region that `vmf` asks for, and some around it. */
vm_fault_t wh_insert_pages(const struct wh_device *device, struct vm_fault *vmf)
{
    struct vm_area_struct *vma = vmf->vma;
    unsigned long block = vmf->address & ~(WH_FAULT_AROUND_BYTES - 1);
    unsigned long start = max(block, vma->vm_start);
    unsigned long end = min(block + WH_FAULT_AROUND_BYTES, vma->vm_end);
    unsigned long first_pfn = device->region_address >> PAGE_SHIFT;
    unsigned long address;
    vm_fault_t result;

    /* the page that is needed first: its failure is the fault's, the others are a favour */
    result = vmf_insert_pfn(vma, vmf->address, first_pfn + vmf->pgoff);
    for (address = start; address < end && result == VM_FAULT_NOPAGE; address += PAGE_SIZE) {
        unsigned long page = vma->vm_pgoff + ((address - vma->vm_start) >> PAGE_SHIFT);

        if (vmf_insert_pfn(vma, address, first_pfn + page) != VM_FAULT_NOPAGE) {
            break;
        }
    }
    return result;
}

/*
 * Pages come by fault and not at mmap, because only a mapping that is already in the file's list
 * can be found and emptied when the session ends in that very moment.
 */
static vm_fault_t wh_fault(struct vm_fault *vmf)
{
    struct wh_session *session = vmf->vma->vm_private_data;
    struct wh_device *device = session->device;
    u64 offset = (u64)vmf->pgoff << PAGE_SHIFT;
    vm_fault_t result;

    down_read(&device->removal);
    mutex_lock(&device->lock);
    if (session->state != WH_SESSION_OPEN || device->removed) {
        result = wh_fault_dead(session, vmf);
    } else if (offset < session->offset || offset - session->offset >= session->bytes) {
        result = VM_FAULT_SIGBUS;
    } else {
        result = wh_insert_pages(device, vmf);
    }
    mutex_unlock(&device->lock);
    up_read(&device->removal);
    return result;
}

static void wh_vma_open(struct vm_area_struct *vma)
{
    struct wh_session *session = vma->vm_private_data;

    mutex_lock(&session->device->lock);
    session->mapping_count++;
    mutex_unlock(&session->device->lock);
}

/* The last mapping gone means that the owner is done, or dead with its descriptor in other hands.
 */
static void wh_vma_close(struct vm_area_struct *vma)
{
    struct wh_session *session = vma->vm_private_data;
    bool last;

    mutex_lock(&session->device->lock);
    last = --session->mapping_count == 0;
    mutex_unlock(&session->device->lock);
    if (last) {
        wh_end(session);
    }
}

static const struct vm_operations_struct wh_vm_operations = {
    .open = wh_vma_open,
    .close = wh_vma_close,
    .fault = wh_fault,
};

/* Of a mapping of the region: by page number, never copied to a child, not in a core file. */
void wh_vma_init(struct vm_area_struct *vma, const struct vm_operations_struct *operations,
                 void *owner)
{
    const unsigned long flags = VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP | VM_PFNMAP;

    vma->vm_private_data = owner;
    vma->vm_ops = operations;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
    vm_flags_set(vma, flags);
#else
    vma->vm_flags |= flags;
#endif
}

static int wh_mmap(struct file *file, struct vm_area_struct *vma)
{
    struct wh_session *session = file->private_data;
    struct wh_device *device = session->device;
    int error = 0;

    mutex_lock(&device->lock);
    if (session->state != WH_SESSION_OPEN) {
        error = session->state == WH_SESSION_ENDED ? -EPIPE : -ENOTCONN;
    } else if (current->mm != session->mm) {
        error = -EPERM;
    } else if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff != 0 ||
               vma->vm_end - vma->vm_start != session->bytes) {
        error = -EINVAL;
    } else {
        session->mapping_count++;
        /* the place in the region, by which wh_session_end finds this session's mappings */
        vma->vm_pgoff = session->offset >> PAGE_SHIFT;
    }
    mutex_unlock(&device->lock);
    if (error != 0) {
        return error;
    }
    wh_vma_init(vma, &wh_vm_operations, session);
    return 0;
}

const struct file_operations wh_file_operations = {
    .owner = THIS_MODULE, /* an open file keeps the module loaded */
    .open = wh_open,
    .flush = wh_flush,
    .release = wh_release,
    .unlocked_ioctl = wh_ioctl,
    .compat_ioctl = compat_ptr_ioctl,
    .mmap = wh_mmap,
    .llseek = noop_llseek,
};
