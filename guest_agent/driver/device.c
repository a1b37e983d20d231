// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * device.c - binds to the virtio device: shared memory region, the two queues, the character
 * device.
 */
#include <linux/eventfd.h>
#include <linux/idr.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/virtio_config.h>
#ifdef CONFIG_X86
#include <asm/pgtable.h>
#endif

#include "wormhole.h"

enum wh_queue { WH_QUEUE_CONTROL, WH_QUEUE_EVENT, WH_QUEUE_COUNT };

static DEFINE_IDA(wh_indices);

static void wh_device_free(struct kref *references)
{
    kfree(container_of(references, struct wh_device, references));
}

void wh_device_put(struct wh_device *device)
{
    kref_put(&device->references, wh_device_free);
}

/* The host only watches for the notification; there is never a buffer in the control queue. */
void wh_notify(struct wh_device *device)
{
    atomic64_inc(&device->notifications_sent);
    virtqueue_notify(device->control_queue);
}

/* ---- events ---- */

static int wh_event_post(struct wh_device *device, struct wh_event *event)
{
    struct scatterlist list;

    sg_init_one(&list, event, sizeof(*event));
    return virtqueue_add_inbuf(device->event_queue, &list, 1, event, GFP_ATOMIC);
}

static void wh_event_handle(struct wh_device *device, const struct wh_event *event)
{
    atomic64_inc(&device->events_received);
    switch (le32_to_cpu(event->type)) {
    case WH_EVENT_SERVER_GONE:
        WRITE_ONCE(device->server_gone, true);
        atomic_inc(&device->server_losses);
        break;
    case WH_EVENT_SERVER_CONNECTED:
        WRITE_ONCE(device->server_gone, false);
        break;
    case WH_EVENT_PEER_STOPPED:
    case WH_EVENT_PEER_STARTED:
        /* a stop and a start whose events became one are two changes, and end as one would */
        WRITE_ONCE(device->peer_changes,
                   (device->peer_changes | 1) +
                       (le32_to_cpu(event->type) == WH_EVENT_PEER_STARTED ? 2 : 1));
        break;
    default:
        break; /* a wake, or a type of a later device: waking is always right */
    }
}

/* With event_lock held. */
static void wh_signal_server(struct wh_device *device)
{
    if (device->serve_signal == NULL) {
        return;
    }
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
    eventfd_signal(device->serve_signal);
#else
    eventfd_signal(device->serve_signal, 1);
#endif
}

/*
 * Interrupt: gives every buffer back before anything else can run out of them, then wakes
 * everybody; each sleeper looks at its own word.
 */
static void wh_event_interrupt(struct virtqueue *queue)
{
    struct wh_device *device = queue->vdev->priv;
    struct wh_event *event;
    unsigned long flags;
    unsigned int size_bytes;

    spin_lock_irqsave(&device->event_lock, flags);
    do {
        virtqueue_disable_cb(queue);
        while ((event = virtqueue_get_buf(queue, &size_bytes)) != NULL) {
            if (size_bytes >= sizeof(*event)) {
                wh_event_handle(device, event);
            }
            if (wh_event_post(device, event) != 0) {
                dev_warn_ratelimited(&device->vdev->dev, "lost an event buffer\n");
            }
        }
    } while (!virtqueue_enable_cb(queue));
    virtqueue_kick(queue);
    wh_signal_server(device);
    spin_unlock_irqrestore(&device->event_lock, flags);
    wake_up_all(&device->waiters);
}

static void wh_events_start(struct wh_device *device)
{
    unsigned int count;
    unsigned int i;

    spin_lock_irq(&device->event_lock);
    count = min_t(unsigned int, WH_EVENT_BUFFER_COUNT, device->event_queue->num_free);
    for (i = 0; i < count; i++) {
        if (wh_event_post(device, &device->events[i]) != 0) {
            break;
        }
    }
    virtqueue_kick(device->event_queue);
    spin_unlock_irq(&device->event_lock);
}

static int wh_queues_init(struct wh_device *device)
{
    struct virtqueue *queues[WH_QUEUE_COUNT];
    int error;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
    struct virtqueue_info info[WH_QUEUE_COUNT] = {
        [WH_QUEUE_CONTROL] = {.name = "control"},
        [WH_QUEUE_EVENT] = {.name = "event", .callback = wh_event_interrupt},
    };

    error = virtio_find_vqs(device->vdev, WH_QUEUE_COUNT, queues, info, NULL);
#else
    vq_callback_t *callbacks[WH_QUEUE_COUNT] = {NULL, wh_event_interrupt};
    static const char *const names[WH_QUEUE_COUNT] = {"control", "event"};

    error = virtio_find_vqs(device->vdev, WH_QUEUE_COUNT, queues, callbacks, names, NULL);
#endif
    if (error != 0) {
        return error;
    }
    device->control_queue = queues[WH_QUEUE_CONTROL];
    device->event_queue = queues[WH_QUEUE_EVENT];
    return 0;
}

/* ---- the region ---- */

/*
 * Whether the kernel really maps the region write-back. memremap does not fail when the memory type
 * had to be downgraded, and the mappings of processes get the type that was reserved here, so the
 * page table is the one place that tells.
 */
static bool wh_region_is_write_back(const struct wh_device *device)
{
#ifdef CONFIG_X86
    unsigned int level;
    const pte_t *entry = lookup_address((unsigned long)device->region, &level);

    return entry != NULL && (pte_flags(*entry) & (_PAGE_PCD | _PAGE_PWT)) == 0;
#else
    return true;
#endif
}

/*
 * Maps the whole region, although the driver itself reads little of it: this reserves the memory
 * type that every process's mapping of a part of it gets.
 */
static int wh_region_init(struct wh_device *device)
{
    struct device *parent = &device->vdev->dev;
    struct virtio_shm_region shm;

    if (!virtio_get_shm_region(device->vdev, &shm, WH_SHM_ID)) {
        dev_err(parent, "the device has no shared memory region %d\n", WH_SHM_ID);
        return -ENXIO;
    }
    if (shm.len < 2 * WH_PAGE_BYTES || !PAGE_ALIGNED(shm.addr) || !PAGE_ALIGNED(shm.len)) {
        dev_err(parent, "bad shared memory region: address %#llx, %llu bytes\n", shm.addr, shm.len);
        return -EINVAL;
    }
    if (!devm_request_mem_region(parent, shm.addr, shm.len, "wormhole")) {
        dev_err(parent, "the shared memory region at %#llx is in use\n", shm.addr);
        return -EBUSY;
    }
    device->region_address = shm.addr;
    device->region_bytes = shm.len;
    device->region = memremap(shm.addr, shm.len, MEMREMAP_WB);
    if (device->region == NULL) {
        dev_err(parent, "cannot map the shared memory region: address %#llx, %llu bytes\n",
                shm.addr, shm.len);
        return -ENOMEM;
    }
    device->write_back = wh_region_is_write_back(device);
    if (!device->write_back) {
        dev_warn(parent,
                 "the region at %#llx is not mapped write-back and will be slow; "
                 "see /proc/mtrr and /sys/kernel/debug/x86/pat_memtype_list\n",
                 shm.addr);
    }
    if (shm.addr < WH_LOW_MEMORY_BYTES) {
        dev_warn(parent,
                 "the region lies below 4 GiB, at %#llx, where firmware may make it uncached\n",
                 shm.addr);
    }
    return 0;
}

/* ---- sysfs ---- */

static struct wh_device *wh_of(struct device *dev)
{
    return container_of((struct miscdevice *)dev_get_drvdata(dev), struct wh_device, misc);
}

static ssize_t region_address_show(struct device *dev, struct device_attribute *attribute,
                                   char *text)
{
    return sysfs_emit(text, "%#llx\n", wh_of(dev)->region_address);
}
static DEVICE_ATTR_RO(region_address);

static ssize_t region_bytes_show(struct device *dev, struct device_attribute *attribute, char *text)
{
    return sysfs_emit(text, "%llu\n", wh_of(dev)->region_bytes);
}
static DEVICE_ATTR_RO(region_bytes);

static ssize_t memory_type_show(struct device *dev, struct device_attribute *attribute, char *text)
{
    return sysfs_emit(text, "%s\n", wh_of(dev)->write_back ? "write-back" : "not write-back");
}
static DEVICE_ATTR_RO(memory_type);

static ssize_t notifications_sent_show(struct device *dev, struct device_attribute *attribute,
                                       char *text)
{
    return sysfs_emit(text, "%lld\n", atomic64_read(&wh_of(dev)->notifications_sent));
}
static DEVICE_ATTR_RO(notifications_sent);

static ssize_t events_received_show(struct device *dev, struct device_attribute *attribute,
                                    char *text)
{
    return sysfs_emit(text, "%lld\n", atomic64_read(&wh_of(dev)->events_received));
}
static DEVICE_ATTR_RO(events_received);

static ssize_t slots_held_show(struct device *dev, struct device_attribute *attribute, char *text)
{
    struct wh_device *device = wh_of(dev);
    unsigned int count = 0;
    unsigned int i;

    mutex_lock(&device->lock);
    for (i = 0; i < WH_SESSION_COUNT_MAX; i++) {
        count += device->slots[i].use == WH_SLOT_HELD;
    }
    mutex_unlock(&device->lock);
    return sysfs_emit(text, "%u\n", count);
}
static DEVICE_ATTR_RO(slots_held);

static struct attribute *wh_attrs[] = {
    &dev_attr_region_address.attr,
    &dev_attr_region_bytes.attr,
    &dev_attr_memory_type.attr,
    &dev_attr_notifications_sent.attr,
    &dev_attr_events_received.attr,
    &dev_attr_slots_held.attr,
    NULL,
};
ATTRIBUTE_GROUPS(wh);

/* ---- binding ---- */

static bool wh_serves(const struct wh_device *device)
{
    return (virtio_cread32(device->vdev, WH_CONFIG_FLAGS_OFFSET) & WH_CONFIG_F_SERVES) != 0;
}

static int wh_node_init(struct wh_device *device)
{
    bool serves = wh_serves(device);
    int error;

    device->index = ida_alloc(&wh_indices, GFP_KERNEL);
    if (device->index < 0) {
        return device->index;
    }
    snprintf(device->name, sizeof(device->name), "wormhole%s%d", serves ? "-serve" : "",
             device->index);
    device->misc.minor = MISC_DYNAMIC_MINOR;
    device->misc.name = device->name;
    device->misc.fops = serves ? &wh_serve_file_operations : &wh_file_operations;
    device->misc.parent = &device->vdev->dev;
    device->misc.groups = wh_groups;
    /* any process may open a session; the server decides who gets what */
    device->misc.mode = serves ? 0600 : 0666;
    error = misc_register(&device->misc);
    if (error != 0) {
        ida_free(&wh_indices, device->index);
    }
    return error;
}

static void wh_node_deinit(struct wh_device *device)
{
    misc_deregister(&device->misc);
    ida_free(&wh_indices, device->index);
}

static int wh_probe(struct virtio_device *vdev)
{
    struct wh_device *device = kzalloc(sizeof(*device), GFP_KERNEL);
    int error;

    if (device == NULL) {
        return -ENOMEM;
    }
    kref_init(&device->references);
    init_rwsem(&device->removal);
    mutex_init(&device->lock);
    init_waitqueue_head(&device->waiters);
    spin_lock_init(&device->event_lock);
    device->vdev = vdev;
    vdev->priv = device;

    error = wh_region_init(device);
    if (error != 0) {
        goto fail;
    }
    error = wh_queues_init(device);
    if (error != 0) {
        goto fail;
    }
    virtio_device_ready(vdev);
    wh_events_start(device);
    error = wh_node_init(device);
    if (error != 0) {
        goto fail_queues;
    }
    dev_info(&vdev->dev, "%s: %llu bytes at %#llx, %s\n", device->name, device->region_bytes,
             device->region_address, device->write_back ? "write-back" : "not write-back");
    return 0;

fail_queues:
    virtio_reset_device(vdev);
    vdev->config->del_vqs(vdev);
fail:
    if (device->region != NULL) {
        memunmap(device->region);
    }
    vdev->priv = NULL;
    wh_device_put(device);
    return error;
}

/* Open files outlive the device: they keep the memory of wh_device, and find `removed` in it. */
static void wh_remove(struct virtio_device *vdev)
{
    struct wh_device *device = vdev->priv;
    unsigned int i;

    wh_node_deinit(device);
    atomic_inc(&device->server_losses);
    WRITE_ONCE(device->removed, true);
    wake_up_all(&device->waiters); /* sleepers hold `removal` until they see it */
    down_write(&device->removal);
    mutex_lock(&device->lock);
    for (i = 0; i < WH_SESSION_COUNT_MAX; i++) {
        if (device->slots[i].use == WH_SLOT_HELD) {
            wh_session_end(device->slots[i].session);
        }
    }
    mutex_unlock(&device->lock);
    wh_serve_end(device);
    virtio_reset_device(vdev);
    vdev->config->del_vqs(vdev);
    memunmap(device->region);
    device->region = NULL;
    up_write(&device->removal);
    vdev->priv = NULL;
    wh_device_put(device);
}

#ifdef CONFIG_PM_SLEEP
/* The sessions' state lives in the host: it cannot be put to sleep and found again. */
static int wh_freeze(struct virtio_device *vdev)
{
    dev_err(&vdev->dev, "suspend is not supported; unload the module first\n");
    return -EBUSY;
}
#endif

static const struct virtio_device_id wh_ids[] = {
    {WH_VIRTIO_ID, VIRTIO_DEV_ANY_ID},
    {0},
};

static struct virtio_driver wh_driver = {
    .driver.name = "wormhole",
    .driver.owner = THIS_MODULE,
    .id_table = wh_ids,
    .probe = wh_probe,
    .remove = wh_remove,
#ifdef CONFIG_PM_SLEEP
    .freeze = wh_freeze,
#endif
};
module_virtio_driver(wh_driver);

MODULE_DEVICE_TABLE(virtio, wh_ids);
MODULE_DESCRIPTION("Sessions of the Wormhole testbed over a virtio shared memory region");
MODULE_LICENSE("GPL");
