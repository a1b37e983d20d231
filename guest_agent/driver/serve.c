// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * serve.c - the other end of a region: what the supervisor of a server guest sees of it.
 *
 * The region's clients are the processes of another guest. One process at a time opens the node: it
 * maps the whole region, as a supervisor on a host maps the memfd, and hands its workers
 * descriptors of this file in the place of the memfd (to map a slot) and of the wake eventfd (to
 * write to). A wake-up from the other guest signals the eventfd that it registered.
 */
#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "wormhole.h"
#include "wormhole_uapi.h"

static int wh_serve_open(struct inode *inode, struct file *file)
{
    struct miscdevice *misc = file->private_data;
    struct wh_device *device = container_of(misc, struct wh_device, misc);
    int error = 0;

    mutex_lock(&device->lock);
    if (device->removed) {
        error = -ENODEV;
    } else if (device->serving != NULL) {
        error = -EBUSY;
    } else {
        device->serving = file->f_mapping;
    }
    mutex_unlock(&device->lock);
    if (error != 0) {
        return error;
    }
    kref_get(&device->references);
    file->private_data = device;
    return nonseekable_open(inode, file);
}

/* Takes over `context`; NULL for none. */
static void wh_serve_signal(struct wh_device *device, struct eventfd_ctx *context)
{
    struct eventfd_ctx *old;
    unsigned long flags;

    spin_lock_irqsave(&device->event_lock, flags);
    old = device->serve_signal;
    device->serve_signal = context;
    spin_unlock_irqrestore(&device->event_lock, flags);
    if (old != NULL) {
        eventfd_ctx_put(old);
    }
}

static int wh_serve_release(struct inode *inode, struct file *file)
{
    struct wh_device *device = file->private_data;

    wh_serve_signal(device, NULL);
    mutex_lock(&device->lock);
    device->serving = NULL;
    mutex_unlock(&device->lock);
    wh_device_put(device);
    return 0;
}

static long wh_serve_register(struct wh_device *device, struct wh_ioc_serve __user *place)
{
    struct wh_ioc_serve args;
    struct eventfd_ctx *context;

    if (copy_from_user(&args, place, sizeof(args)) != 0) {
        return -EFAULT;
    }
    context = eventfd_ctx_fdget(args.eventfd);
    if (IS_ERR(context)) {
        return PTR_ERR(context);
    }
    wh_serve_signal(device, context);
    args.region_bytes = device->region_bytes;
    return copy_to_user(place, &args, sizeof(args)) == 0 ? 0 : -EFAULT;
}

static long wh_serve_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
    struct wh_device *device = file->private_data;
    void __user *place = (void __user *)argument;
    long error;

    down_read(&device->removal);
    if (device->removed) {
        error = -ENODEV;
    } else if (command == WH_IOC_SERVE) {
        error = wh_serve_register(device, place);
    } else if (command == WH_IOC_PEER) {
        u32 changes = READ_ONCE(device->peer_changes);

        error = put_user(changes, (u32 __user *)place);
    } else {
        error = -ENOTTY;
    }
    up_read(&device->removal);
    return error;
}

/* As a write to an eventfd: eight bytes, whatever their value, are one wake-up. Never waits. */
static ssize_t wh_serve_write(struct file *file, const char __user *bytes, size_t count,
                              loff_t *position)
{
    struct wh_device *device = file->private_data;
    ssize_t result = sizeof(u64);

    if (count < sizeof(u64)) {
        return -EINVAL;
    }
    down_read(&device->removal);
    if (device->removed) {
        result = -ENODEV;
    } else {
        wh_notify(device);
    }
    up_read(&device->removal);
    return result;
}

static vm_fault_t wh_serve_fault(struct vm_fault *vmf)
{
    struct wh_device *device = vmf->vma->vm_private_data;
    vm_fault_t result = VM_FAULT_SIGBUS;

    down_read(&device->removal);
    if (!device->removed && vmf->pgoff < device->region_bytes >> PAGE_SHIFT) {
        result = wh_insert_pages(device, vmf);
    }
    up_read(&device->removal);
    return result;
}

static void wh_serve_vma_open(struct vm_area_struct *vma)
{
    struct wh_device *device = vma->vm_private_data;

    kref_get(&device->references);
}

static void wh_serve_vma_close(struct vm_area_struct *vma)
{
    wh_device_put(vma->vm_private_data);
}

static const struct vm_operations_struct wh_serve_vm_operations = {
    .open = wh_serve_vma_open,
    .close = wh_serve_vma_close,
    .fault = wh_serve_fault,
};

static int wh_serve_mmap(struct file *file, struct vm_area_struct *vma)
{
    struct wh_device *device = file->private_data;
    u64 pages = device->region_bytes >> PAGE_SHIFT;

    if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff > pages ||
        vma_pages(vma) > pages - vma->vm_pgoff) {
        return -EINVAL;
    }
    kref_get(&device->references);
    wh_vma_init(vma, &wh_serve_vm_operations, device);
    return 0;
}

/* After this no page of the region is mapped; `removed` is set, so none comes back. */
void wh_serve_end(struct wh_device *device)
{
    mutex_lock(&device->lock);
    if (device->serving != NULL) {
        unmap_mapping_range(device->serving, 0, 0, 1);
    }
    mutex_unlock(&device->lock);
}

const struct file_operations wh_serve_file_operations = {
    .owner = THIS_MODULE, /* an open file keeps the module loaded */
    .open = wh_serve_open,
    .release = wh_serve_release,
    .unlocked_ioctl = wh_serve_ioctl,
    .compat_ioctl = compat_ptr_ioctl,
    .write = wh_serve_write,
    .mmap = wh_serve_mmap,
    .llseek = noop_llseek,
};
