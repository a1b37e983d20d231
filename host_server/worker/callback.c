/*
 * callback.c - the queue and the batches of callbacks.
 */
#include "callback.h"

#include <stdlib.h>

#include "notice.h"

#define WH_CALLBACKS_MAX 65536u /* registered, or due and not yet taken */
#define WH_MESSAGES_MAX 256u
#define WH_GROUP_LISTS 1024u

/* Registrations of one object of the client, for their order. */
struct group {
    struct group *next;
    uint64_t handle;
    uint64_t latest; /* that came due */
    uint32_t registered;
};

struct wh_callback {
    struct wh_callback *next;
    struct wh_session *session;
    struct group *group; /* NULL: a message */
    struct wh_callback_record record;
    uint8_t *payload; /* text and info of a message, padded */
    size_t payload_bytes;
};

struct list {
    struct wh_callback *first;
    struct wh_callback **end;
};

struct batch {
    struct batch *next;
    uint32_t number;
    struct list due;
};

struct wh_callbacks {
    pthread_mutex_t lock;
    uint32_t count;
    uint32_t message_count;
    uint32_t last_batch;
    uint32_t queued; /* so far; read without the lock */
    struct list queue;
    struct batch *batches;
    struct group *groups[WH_GROUP_LISTS];
};

static void list_init(struct list *list)
{
    list->first = NULL;
    list->end = &list->first;
}

static void list_add(struct list *list, struct wh_callback *callback)
{
    callback->next = NULL;
    *list->end = callback;
    list->end = &callback->next;
}

struct wh_callbacks *wh_callbacks_create(void)
{
    struct wh_callbacks *callbacks = calloc(1, sizeof(*callbacks));
    if (callbacks != NULL) {
        pthread_mutex_init(&callbacks->lock, NULL);
        list_init(&callbacks->queue);
    }
    return callbacks;
}

static struct group **find_group(struct wh_callbacks *callbacks, uint64_t handle)
{
    struct group **link = &callbacks->groups[handle % WH_GROUP_LISTS];
    while (*link != NULL && (*link)->handle != handle) {
        link = &(*link)->next;
    }
    return link;
}

/* The group with one registration more; NULL without memory. The lock is held. */
static struct group *join_group(struct wh_callbacks *callbacks, uint64_t handle)
{
    struct group **link = find_group(callbacks, handle);
    if (*link == NULL) {
        *link = calloc(1, sizeof(**link));
        if (*link == NULL) {
            return NULL;
        }
        (*link)->handle = handle;
    }
    (*link)->registered++;
    return *link;
}

static void leave_group(struct wh_callbacks *callbacks, struct group *group)
{
    if (--group->registered == 0) {
        *find_group(callbacks, group->handle) = group->next;
        free(group);
    }
}

struct wh_callback *wh_callback_new(struct wh_session *session, uint64_t id, uint64_t handle)
{
    struct wh_callbacks *callbacks = session->callbacks;
    struct wh_callback *callback = calloc(1, sizeof(*callback));
    if (callback == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&callbacks->lock);
    if (callbacks->count < WH_CALLBACKS_MAX) {
        callback->group = join_group(callbacks, handle);
    }
    callbacks->count += callback->group != NULL ? 1 : 0;
    pthread_mutex_unlock(&callbacks->lock);
    if (callback->group == NULL) {
        free(callback);
        return NULL;
    }
    callback->session = session;
    callback->record.id = id;
    return callback;
}

void wh_callback_cancel(struct wh_callback *callback)
{
    struct wh_callbacks *callbacks = callback->session->callbacks;
    pthread_mutex_lock(&callbacks->lock);
    leave_group(callbacks, callback->group);
    callbacks->count--;
    pthread_mutex_unlock(&callbacks->lock);
    free(callback);
}

/* Where a callback that comes now belongs. The lock is held. */
static struct list *destination(struct wh_callbacks *callbacks)
{
    struct wh_executor *executor = wh_this_executor;
    if (executor == NULL || !executor->settles) {
        return &callbacks->queue;
    }
    struct batch *batch = callbacks->batches;
    while (batch != NULL && batch->number != executor->batch) {
        batch = batch->next;
    }
    if (batch != NULL) {
        return &batch->due;
    }
    batch = calloc(1, sizeof(*batch));
    if (batch == NULL) {
        return &callbacks->queue;
    }
    uint32_t numbers = UINT32_MAX >> WH_BATCH_SHIFT;
    callbacks->last_batch = callbacks->last_batch % numbers + 1;
    batch->number = callbacks->last_batch;
    list_init(&batch->due);
    batch->next = callbacks->batches;
    callbacks->batches = batch;
    executor->batch = batch->number;
    return &batch->due;
}

uint32_t wh_callbacks_queued(const struct wh_session *session)
{
    return wh_load_acquire32(&session->callbacks->queued);
}

/* Passes a record on. The lock is held. */
static void pass(struct wh_session *session, struct wh_callback *callback)
{
    struct list *list = destination(session->callbacks);
    callback->record.queued = wh_callbacks_queued(session);
    list_add(list, callback);
    if (list == &session->callbacks->queue) {
        __atomic_fetch_add(&session->callbacks->queued, 1, __ATOMIC_RELEASE);
        wh_notice_set(session, WH_WAIT_FOR_CALLBACKS);
    }
}

void wh_callback_due(struct wh_callback *callback, int32_t status)
{
    struct wh_callbacks *callbacks = callback->session->callbacks;
    pthread_mutex_lock(&callbacks->lock);
    callback->record.status = status;
    callback->record.after = callback->group->latest;
    callback->group->latest = callback->record.id;
    leave_group(callbacks, callback->group);
    callback->group = NULL;
    pass(callback->session, callback);
    pthread_mutex_unlock(&callbacks->lock);
}

static struct wh_callback *new_message(struct wh_session *session, uint64_t id, const char *text,
                                       const void *info, size_t info_bytes)
{
    struct wh_callback *message = calloc(1, sizeof(*message));
    size_t length = text == NULL ? 0 : strnlen(text, WH_CALLBACK_TEXT_BYTES_MAX - 1);
    size_t text_room = wh_align(length + 1, WH_ITEM_BYTES);
    info_bytes = info == NULL ? 0 : info_bytes;
    info_bytes = info_bytes < WH_CALLBACK_TEXT_BYTES_MAX ? info_bytes : WH_CALLBACK_TEXT_BYTES_MAX;
    size_t payload_bytes = text_room + wh_align(info_bytes, WH_ITEM_BYTES);
    uint8_t *payload = message == NULL ? NULL : calloc(1, payload_bytes);
    if (payload == NULL) {
        free(message);
        return NULL;
    }
    if (length > 0) {
        memcpy(payload, text, length);
    }
    if (info_bytes > 0) {
        memcpy(payload + text_room, info, info_bytes);
    }
    message->session = session;
    message->record.id = id;
    message->record.text_bytes = (uint32_t)length + 1;
    message->record.info_bytes = (uint32_t)info_bytes;
    message->payload = payload;
    message->payload_bytes = payload_bytes;
    return message;
}

static void free_callback(struct wh_callback *callback)
{
    free(callback->payload);
    free(callback);
}

void wh_callback_message(struct wh_session *session, uint64_t id, const char *text,
                         const void *info, size_t info_bytes)
{
    struct wh_callbacks *callbacks = session->callbacks;
    struct wh_callback *message = new_message(session, id, text, info, info_bytes);
    if (message == NULL) {
        return;
    }
    pthread_mutex_lock(&callbacks->lock);
    bool fits = callbacks->message_count < WH_MESSAGES_MAX;
    if (fits) {
        callbacks->message_count++;
        pass(session, message);
    }
    pthread_mutex_unlock(&callbacks->lock);
    if (!fits) {
        free_callback(message);
    }
}

/* As many as fit; the lock is held. */
static void take(struct wh_callbacks *callbacks, struct list *list, uint8_t *data,
                 size_t size_bytes, uint64_t *written, uint64_t *needed)
{
    while (list->first != NULL) {
        struct wh_callback *callback = list->first;
        size_t record_bytes = sizeof(callback->record) + callback->payload_bytes;
        if (record_bytes > size_bytes - *written) {
            *needed = record_bytes;
            return;
        }
        memcpy(data + *written, &callback->record, sizeof(callback->record));
        if (callback->payload_bytes > 0) {
            memcpy(data + *written + sizeof(callback->record), callback->payload,
                   callback->payload_bytes);
            callbacks->message_count--;
        } else {
            callbacks->count--;
        }
        *written += record_bytes;
        list->first = callback->next;
        free_callback(callback);
    }
    list->end = &list->first;
}

void wh_callbacks_take(struct wh_session *session, uint64_t number, void *data, size_t size_bytes,
                       uint64_t *written, uint64_t *needed)
{
    struct wh_callbacks *callbacks = session->callbacks;
    *written = 0;
    *needed = 0;
    pthread_mutex_lock(&callbacks->lock);
    if (number == 0) {
        take(callbacks, &callbacks->queue, data, size_bytes, written, needed);
        if (callbacks->queue.first == NULL) {
            wh_notice_clear(session, WH_WAIT_FOR_CALLBACKS);
        }
    }
    struct batch **link = &callbacks->batches;
    while (number != 0 && *link != NULL && (*link)->number != number) {
        link = &(*link)->next;
    }
    struct batch *batch = number == 0 ? NULL : *link;
    if (batch != NULL) {
        take(callbacks, &batch->due, data, size_bytes, written, needed);
        if (batch->due.first == NULL) {
            *link = batch->next;
            free(batch);
        }
    }
    pthread_mutex_unlock(&callbacks->lock);
}
