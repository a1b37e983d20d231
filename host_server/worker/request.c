/*
 * request.c - takes requests apart and puts replies together. Every value of the client is checked
 * here, from a private copy.
 */
#include <errno.h>
#include <stdlib.h>

#include "backend.h"
#include "callback.h"
#include "output.h"
#include "session.h"
#include "times.h"

#define WH_FIRST_REPLY_BYTES 8192u
#define CLEARED_BYTES_MAX 1024u /* of results that a library may fill in part */

struct wh_staging_area {
    struct wh_staging_area *next;
    uint64_t token;
    size_t size_bytes;
    void *bytes;
    bool busy;     /* the device may still write into it */
    bool released; /* by the client, while it was busy */
    bool uploaded; /* the client's data for a call to come */
};

__thread struct wh_executor *wh_this_executor;

int wh_session_init(struct wh_session *session)
{
    pthread_mutex_init(&session->turn_lock, NULL);
    pthread_cond_init(&session->turn_changed, NULL);
    pthread_mutex_init(&session->staging_lock, NULL);
    pthread_mutex_init(&session->notice_lock, NULL);
    pthread_cond_init(&session->notice_set, NULL);
    session->turn = 1;
    session->wake_fd = -1;
    session->handles = wh_handle_table_create();
    session->callbacks = wh_callbacks_create();
    return session->handles != NULL && session->callbacks != NULL ? 0 : -ENOMEM;
}

struct wh_executor *wh_executor_create(struct wh_session *session, size_t buffer_bytes,
                                       size_t reply_limit_bytes)
{
    struct wh_executor *executor = calloc(1, sizeof(*executor));
    if (executor == NULL) {
        return NULL;
    }
    executor->session = session;
    executor->buffer = malloc(buffer_bytes);
    executor->buffer_bytes = buffer_bytes;
    executor->scratch = malloc(WH_SCRATCH_BYTES);
    executor->reply.bytes = malloc(WH_FIRST_REPLY_BYTES);
    executor->reply.capacity_bytes = WH_FIRST_REPLY_BYTES;
    executor->reply.limit_bytes = reply_limit_bytes;
    if (executor->buffer == NULL || executor->scratch == NULL || executor->reply.bytes == NULL) {
        wh_executor_destroy(executor);
        return NULL;
    }
    return executor;
}

static void free_large(struct wh_executor *executor)
{
    while (executor->large != NULL) {
        void *next = *(void **)executor->large;
        free(executor->large);
        executor->large = next;
    }
}

void wh_executor_destroy(struct wh_executor *executor)
{
    free_large(executor);
    free(executor->buffer);
    free(executor->scratch);
    free(executor->reply.bytes);
    free(executor);
}

/* Memory until the call ends, 16-byte aligned; NULL without memory. */
static void *scratch(size_t size_bytes)
{
    struct wh_executor *executor = wh_this_executor;
    size_t rounded_bytes = wh_align(size_bytes, 16);
    if (rounded_bytes >= size_bytes &&
        rounded_bytes <= WH_SCRATCH_BYTES - executor->scratch_used_bytes) {
        void *area = executor->scratch + executor->scratch_used_bytes;
        executor->scratch_used_bytes += rounded_bytes;
        return area;
    }
    void **area = rounded_bytes < size_bytes ? NULL : malloc(rounded_bytes + 16);
    if (area == NULL) {
        return NULL;
    }
    *area = executor->large;
    executor->large = area;
    return area + 2;
}

uint64_t wh_take_u64(struct wh_request *request)
{
    uint64_t value = 0;
    if (request->failed || request->size_bytes - request->used_bytes < sizeof(value)) {
        request->failed = true;
        return 0;
    }
    memcpy(&value, request->bytes + request->used_bytes, sizeof(value));
    request->used_bytes += sizeof(value);
    return value;
}

static const void *fail(struct wh_request *request)
{
    request->failed = true;
    return NULL;
}

/* size_bytes of the request itself, NULL and a failed request if they are not there. */
static const uint8_t *take_inline(struct wh_request *request, uint64_t size_bytes)
{
    uint64_t room_bytes = request->size_bytes - request->used_bytes;
    if (size_bytes > room_bytes || wh_align(size_bytes, WH_ITEM_BYTES) > room_bytes) {
        return fail(request);
    }
    const uint8_t *bytes = request->bytes + request->used_bytes;
    request->used_bytes += wh_align(size_bytes, WH_ITEM_BYTES);
    return bytes;
}

/* Address of an arena block's data, NULL and a failed request if the range is not in the arena. */
static uint8_t *arena_range(struct wh_request *request, uint64_t location, uint64_t size_bytes)
{
    const struct wh_session *session = request->session;
    if (session->arena == NULL || location < WH_BLOCK_HEADER_BYTES ||
        location % WH_LINE_BYTES != 0 || location > session->arena_bytes ||
        size_bytes > session->arena_bytes - location) {
        request->failed = true;
        return NULL;
    }
    return session->arena + location;
}

void wh_bulk_done(struct wh_session *session, uint64_t block)
{
    if (block == 0) {
        return;
    }
    struct wh_block_header *header =
        (struct wh_block_header *)(void *)(session->arena + block - WH_BLOCK_HEADER_BYTES);
    /* Pairs with the client's acquire load in wh_arena_reap: we have read the block for the last
     * time. */
    wh_store_release32(&header->busy, 0);
    wh_wake_if_space_wanted(session);
}

/* What travels through the arena is in no message. */
static void count_bulk(uint64_t *counter, const void *bytes, uint64_t size_bytes)
{
    if (bytes != NULL) {
        wh_count(counter, size_bytes);
    }
}

const void *wh_take_bulk(struct wh_request *request, size_t *size_bytes, uint64_t *block)
{
    uint64_t size = wh_take_u64(request);
    uint64_t location = wh_take_u64(request);
    *size_bytes = 0;
    *block = 0;
    if (request->failed || location == WH_NULL) {
        return NULL;
    }
    const void *bytes = NULL;
    if (location == WH_INLINE) {
        bytes = take_inline(request, size);
    } else {
        bytes = arena_range(request, location, size);
        *block = bytes != NULL ? location : 0;
        count_bulk(&wh_this_executor->counters.bytes_received, bytes, size);
    }
    *size_bytes = bytes != NULL ? size : 0;
    return bytes;
}

uint64_t wh_block_at(const struct wh_session *session, const void *address)
{
    return (uint64_t)((const uint8_t *)address - session->arena);
}

void *wh_take_backing(struct wh_request *request, size_t size_bytes, uint64_t *block)
{
    const size_t gap_bytes = WH_PAGE_BYTES - WH_BLOCK_HEADER_BYTES; /* data begins with a page */
    uint64_t location = wh_take_u64(request);
    *block = 0;
    if (request->failed || location == 0) {
        return NULL;
    }
    uint8_t *bytes = size_bytes > SIZE_MAX - gap_bytes
                         ? NULL
                         : arena_range(request, location, size_bytes + gap_bytes);
    if (bytes == NULL || location % WH_PAGE_BYTES != WH_BLOCK_HEADER_BYTES) {
        request->failed = true;
        return NULL;
    }
    *block = location;
    return bytes + gap_bytes;
}

const void *wh_take_blob(struct wh_request *request, size_t *size_bytes, size_t limit_bytes)
{
    uint64_t block = 0;
    const void *bytes = wh_take_bulk(request, size_bytes, &block);
    if (bytes == NULL) {
        return NULL;
    }
    if (*size_bytes > limit_bytes) {
        *size_bytes = 0;
        return fail(request);
    }
    if (block == 0) {
        return bytes;
    }
    void *copy = scratch(*size_bytes);
    if (copy == NULL) {
        *size_bytes = 0;
        return fail(request);
    }
    uint64_t begin_ticks = wh_times_enter();
    memcpy(copy, bytes, *size_bytes);
    wh_times_leave(begin_ticks, WH_TIMES_COPY);
    wh_bulk_done(request->session, block);
    return copy;
}

void *wh_take_out(struct wh_request *request, size_t *capacity_bytes)
{
    struct wh_reply *reply = request->reply;
    uint64_t capacity = wh_take_u64(request);
    uint64_t location = wh_take_u64(request);
    *capacity_bytes = 0;
    if (!request->failed && reply->out_count == WH_OUTS_MAX) {
        request->failed = true;
    }
    if (request->failed) {
        return NULL;
    }
    uint8_t *address = NULL;
    if (location == WH_NULL) {
        capacity = 0;
    } else if (location == WH_INLINE) {
        address = capacity <= reply->limit_bytes ? scratch(capacity) : NULL;
        request->failed = address == NULL;
        if (address != NULL && capacity <= CLEARED_BYTES_MAX) {
            memset(address, 0, capacity);
        }
    } else {
        address = arena_range(request, location, capacity);
        count_bulk(&wh_this_executor->counters.bytes_sent, address, capacity);
    }
    if (request->failed) {
        return NULL;
    }
    reply->outs[reply->out_count].address = address;
    reply->outs[reply->out_count].location = location;
    reply->outs[reply->out_count].capacity_bytes = capacity;
    reply->out_count++;
    *capacity_bytes = capacity;
    return address;
}

static void append(struct wh_reply *reply, const void *bytes, size_t size_bytes)
{
    static const uint8_t zeros[WH_ITEM_BYTES];
    size_t padded_bytes = wh_align(size_bytes, WH_ITEM_BYTES);
    size_t needed_bytes = reply->size_bytes + padded_bytes;
    if (reply->failed || needed_bytes > reply->limit_bytes) {
        reply->failed = true;
        return;
    }
    if (needed_bytes > reply->capacity_bytes) {
        uint8_t *larger = realloc(reply->bytes, needed_bytes * 2);
        if (larger == NULL) {
            reply->failed = true;
            return;
        }
        reply->bytes = larger;
        reply->capacity_bytes = needed_bytes * 2;
    }
    if (size_bytes > 0) {
        memcpy(reply->bytes + reply->size_bytes, bytes, size_bytes);
    }
    memcpy(reply->bytes + reply->size_bytes + size_bytes, zeros, padded_bytes - size_bytes);
    reply->size_bytes = needed_bytes;
}

void wh_reply_u64(struct wh_request *request, uint64_t value)
{
    append(request->reply, &value, sizeof(value));
}

void wh_reply_out(struct wh_request *request, size_t written_bytes)
{
    struct wh_reply *reply = request->reply;
    if (reply->out_next == reply->out_count) {
        reply->failed = true;
        return;
    }
    uint64_t location = reply->outs[reply->out_next].location;
    uint64_t capacity_bytes = reply->outs[reply->out_next].capacity_bytes;
    const uint8_t *address = reply->outs[reply->out_next].address;
    reply->out_next++;
    if (written_bytes > capacity_bytes) {
        written_bytes = capacity_bytes;
    }
    wh_reply_u64(request, written_bytes);
    if (location == WH_INLINE) {
        append(reply, address, written_bytes);
    }
}

/* Where the area of a token is linked; *link is NULL without one. With the lock held. */
static struct wh_staging_area **find_staging(struct wh_session *session, uint64_t token)
{
    struct wh_staging_area **link = &session->staging;
    while (*link != NULL && (*link)->token != token) {
        link = &(*link)->next;
    }
    return link;
}

/* -EINVAL for what no client asks; -ENOMEM beyond what there is for a session. */
static int register_staging(struct wh_session *session, uint64_t token, uint64_t size_bytes,
                            void **bytes)
{
    int error = 0;
    if (token == 0 || size_bytes > WH_TCP_MESSAGE_BYTES_MAX) {
        return -EINVAL;
    }
    struct wh_staging_area *area = calloc(1, sizeof(*area));
    if (area == NULL) {
        return -ENOMEM;
    }
    area->bytes = calloc(1, size_bytes > 0 ? size_bytes : 1);
    if (area->bytes == NULL) {
        free(area);
        return -ENOMEM;
    }
    area->token = token;
    area->size_bytes = size_bytes;
    area->busy = true;
    pthread_mutex_lock(&session->staging_lock);
    if (*find_staging(session, token) != NULL) {
        error = -EINVAL;
    } else if (size_bytes > WH_STAGING_BYTES_MAX - session->staging_bytes) {
        error = -ENOMEM;
    } else {
        area->next = session->staging;
        session->staging = area;
        session->staging_bytes += size_bytes;
    }
    pthread_mutex_unlock(&session->staging_lock);
    if (error != 0) {
        free(area->bytes);
        free(area);
        return error;
    }
    *bytes = area->bytes;
    return 0;
}

int wh_staging_write(struct wh_session *session, uint64_t token, uint64_t total_bytes,
                     uint64_t offset, const void *from, uint64_t size_bytes)
{
    void *bytes = NULL;
    bool made = offset == 0;
    int error = made ? register_staging(session, token, total_bytes, &bytes) : 0;
    if (error != 0) {
        return error;
    }
    error = -ENOENT;
    pthread_mutex_lock(&session->staging_lock);
    struct wh_staging_area *area = *find_staging(session, token);
    if (area != NULL && made) {
        area->busy = false;
        area->uploaded = true;
    }
    if (area != NULL && area->uploaded) {
        bool inside = offset <= area->size_bytes && size_bytes <= area->size_bytes - offset;
        error = inside ? 0 : -EINVAL;
    }
    if (error == 0) {
        uint64_t begin_ticks = wh_times_enter();
        memcpy((uint8_t *)area->bytes + offset, from, size_bytes);
        wh_times_leave(begin_ticks, WH_TIMES_COPY);
    }
    pthread_mutex_unlock(&session->staging_lock);
    return error;
}

/* Takes uploaded data out of the list; NULL if there is none under the token. */
static void *take_uploaded(struct wh_session *session, uint64_t token, size_t *size_bytes)
{
    void *bytes = NULL;
    *size_bytes = 0;
    pthread_mutex_lock(&session->staging_lock);
    struct wh_staging_area **link = find_staging(session, token);
    struct wh_staging_area *area = *link;
    if (area != NULL && area->uploaded) {
        *link = area->next;
        session->staging_bytes -= area->size_bytes;
        *size_bytes = area->size_bytes;
        bytes = area->bytes;
        free(area);
    }
    pthread_mutex_unlock(&session->staging_lock);
    return bytes;
}

const void *wh_take_large(struct wh_request *request, size_t *size_bytes, size_t limit_bytes,
                          void **owned)
{
    uint64_t token = wh_take_u64(request);
    *owned = NULL;
    if (token == 0) {
        return wh_take_blob(request, size_bytes, limit_bytes);
    }
    void *bytes = take_uploaded(request->session, token, size_bytes);
    if (bytes == NULL || *size_bytes > limit_bytes) {
        free(bytes);
        return fail(request);
    }
    *owned = bytes;
    return bytes;
}

void *wh_take_staging(struct wh_request *request, size_t *size_bytes, uint64_t *token)
{
    uint64_t size = wh_take_u64(request);
    uint64_t location = wh_take_u64(request);
    *token = wh_take_u64(request);
    *size_bytes = 0;
    if (request->failed) {
        return NULL;
    }
    void *address = NULL;
    if (location != WH_INLINE) {
        address = arena_range(request, location, size);
        count_bulk(&wh_this_executor->counters.bytes_sent, address, size);
    } else if (register_staging(request->session, *token, size, &address) == -EINVAL) {
        request->failed = true;
    }
    *token = address != NULL ? *token : 0;
    *size_bytes = address != NULL ? size : 0;
    return address;
}

int wh_staging_read(struct wh_session *session, uint64_t token, uint64_t offset, void *to,
                    uint64_t size_bytes)
{
    int error = -ENOENT;
    pthread_mutex_lock(&session->staging_lock);
    const struct wh_staging_area *area = *find_staging(session, token);
    if (area != NULL && !area->released) {
        bool inside = offset <= area->size_bytes && size_bytes <= area->size_bytes - offset;
        error = inside && to != NULL ? 0 : -EINVAL;
    }
    if (error == 0) {
        uint64_t begin_ticks = wh_times_enter();
        memcpy(to, (const uint8_t *)area->bytes + offset, size_bytes);
        wh_times_leave(begin_ticks, WH_TIMES_COPY);
    }
    pthread_mutex_unlock(&session->staging_lock);
    return error;
}

/* Changes an area's state; frees it once it is released and no device writes into it. */
static void change_staging(struct wh_session *session, uint64_t token, bool settled, bool released)
{
    struct wh_staging_area *over = NULL;
    pthread_mutex_lock(&session->staging_lock);
    struct wh_staging_area **link = find_staging(session, token);
    struct wh_staging_area *area = *link;
    if (area != NULL) {
        area->busy = area->busy && !settled;
        area->released = area->released || released;
        if (area->released && !area->busy) {
            *link = area->next;
            session->staging_bytes -= area->size_bytes;
            over = area;
        }
    }
    pthread_mutex_unlock(&session->staging_lock);
    if (over != NULL) {
        free(over->bytes);
        free(over);
    }
}

bool wh_staging_keep(struct wh_session *session, uint64_t token)
{
    if (token == 0) {
        return true;
    }
    pthread_mutex_lock(&session->staging_lock);
    struct wh_staging_area *area = *find_staging(session, token);
    bool kept = area != NULL && !area->released;
    if (kept) {
        area->busy = true;
    }
    pthread_mutex_unlock(&session->staging_lock);
    return kept;
}

void wh_staging_settled(struct wh_session *session, uint64_t token)
{
    if (token != 0) {
        change_staging(session, token, true, false);
    }
}

void wh_staging_done(struct wh_session *session, uint64_t token)
{
    if (token != 0) {
        change_staging(session, token, false, true);
    }
}

void *wh_scratch(struct wh_request *request, size_t size_bytes)
{
    void *memory = scratch(size_bytes);
    request->failed = request->failed || memory == NULL;
    return memory;
}

bool wh_request_failed(const struct wh_request *request)
{
    return request->failed;
}

void wh_async_error(struct wh_session *session, int32_t error, uint16_t opcode)
{
    uint64_t none = 0;
    uint64_t value = (uint64_t)opcode << 32 | (uint32_t)error;
    /* The first error is the one to report. */
    __atomic_compare_exchange_n(&session->async_error, &none, value, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_RELAXED);
}

int wh_execute(struct wh_executor *executor, const struct wh_request_header *header,
               const uint8_t *bytes)
{
    struct wh_reply *reply = &executor->reply;
    struct wh_request request = {
        .bytes = bytes + sizeof(*header),
        .size_bytes = header->size_bytes - sizeof(*header),
        .oneway = (header->flags & WH_REQUEST_FLAG_REPLY) == 0,
        .session = executor->session,
        .reply = reply,
    };
    reply->size_bytes = 0;
    reply->failed = false;
    reply->out_count = 0;
    reply->out_next = 0;
    executor->scratch_used_bytes = 0;
    executor->settles = !request.oneway && (header->flags & WH_REQUEST_FLAG_SETTLES) != 0;
    executor->batch = 0;
    wh_count(&executor->counters.messages, 1);
    wh_count(&executor->counters.bytes_received, header->size_bytes);
    const struct wh_backend *backend = executor->session->backend;
    int status = backend != NULL && backend->dispatch != NULL
                     ? backend->dispatch(header->opcode, &request)
                     : wh_dispatch(header->opcode, &request);
    if (executor->large != NULL) {
        free_large(executor);
    }
    if (request.failed) {
        return -EBADMSG;
    }
    return status == 0 && reply->failed ? -EMSGSIZE : status;
}

void wh_fill_reply_header(struct wh_executor *executor, struct wh_reply_header *header,
                          uint32_t sequence, int status)
{
    struct wh_session *session = executor->session;
    uint64_t async = 0;
    if (wh_load64(&session->async_error) != 0) {
        async = __atomic_exchange_n(&session->async_error, 0, __ATOMIC_ACQ_REL);
    }
    header->ready = sequence;
    header->size_bytes = status == 0 ? (uint32_t)executor->reply.size_bytes : 0;
    header->status = status;
    header->async_error = (int32_t)(uint32_t)async;
    header->async_opcode = (uint32_t)(async >> 32);
    uint32_t number = executor->settles ? executor->batch : wh_callbacks_queued(session);
    header->notices = wh_output_notice(session) | number << WH_BATCH_SHIFT;
    wh_count(&executor->counters.replies, 1);
    wh_count(&executor->counters.bytes_sent, sizeof(*header) + header->size_bytes);
}
