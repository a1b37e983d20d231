/*
 * test_units.c - handle table and request decoding of the worker, without a client.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "session.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct wh_session session;

static uint64_t handle(uint8_t kind, uint32_t generation, uint32_t index)
{
    return (uint64_t)kind << 56 | (uint64_t)generation << 32 | index;
}

static void test_handles(void)
{
    int objects[2];
    bool valid = false;
    uint64_t first = handle(3, 1, 5);
    CHECK(wh_handle_get(&session, 0, 3, &valid) == NULL && valid);
    CHECK(wh_handle_get(&session, first, 3, &valid) == NULL && !valid);
    CHECK(wh_handle_put(&session, first, 3, &objects[0]) == 0);
    CHECK(wh_handle_get(&session, first, 3, &valid) == &objects[0] && valid);
    CHECK(wh_handle_put(&session, first, 3, &objects[1]) == -EEXIST);
    CHECK(wh_handle_put(&session, handle(3, 2, 5), 3, &objects[1]) == -EEXIST);
    CHECK(wh_handle_get(&session, handle(3, 2, 5), 3, &valid) == NULL && !valid);
    CHECK(wh_handle_get(&session, first, 4, &valid) == NULL && !valid);
    CHECK(wh_handle_remove(&session, handle(3, 2, 5), 3) == NULL);
    CHECK(wh_handle_remove(&session, first, 4) == NULL);
    CHECK(wh_handle_remove(&session, first, 3) == &objects[0]);
    CHECK(wh_handle_remove(&session, first, 3) == NULL);
    CHECK(wh_handle_get(&session, first, 3, &valid) == NULL && !valid);
    CHECK(wh_handle_put(&session, handle(3, 2, 5), 3, &objects[1]) == 0);
    CHECK(wh_handle_get(&session, first, 3, &valid) == NULL && !valid);
    uint32_t last = WH_HANDLE_INDEX_MAX - 1;
    CHECK(wh_handle_put(&session, handle(1, 0, last), 1, &objects[0]) == 0);
    CHECK(wh_handle_put(&session, handle(1, 0, WH_HANDLE_INDEX_MAX), 1, &objects[0]) == -EINVAL);
    CHECK(wh_handle_put(&session, handle(1, 0, UINT32_MAX), 1, &objects[0]) == -EINVAL);
    CHECK(wh_handle_put(&session, handle(0, 0, 1), 0, &objects[0]) == -EINVAL);
    CHECK(wh_handle_put(&session, handle(2, 0, 1), 1, &objects[0]) == -EINVAL);
    CHECK(wh_handle_get(&session, UINT64_MAX, 255, &valid) == NULL && !valid);
}

static struct wh_request request_of(const void *bytes, size_t size_bytes)
{
    struct wh_executor *executor = wh_this_executor;
    executor->scratch_used_bytes = 0;
    executor->reply.size_bytes = 0;
    executor->reply.failed = false;
    executor->reply.out_count = 0;
    executor->reply.out_next = 0;
    return (struct wh_request){
        .bytes = bytes, .size_bytes = size_bytes, .session = &session, .reply = &executor->reply};
}

static void test_scalars(void)
{
    const uint64_t words[] = {1, 2};
    struct wh_request request = request_of(words, 15);
    CHECK(wh_take_u64(&request) == 1 && !wh_request_failed(&request));
    CHECK(wh_take_u64(&request) == 0 && wh_request_failed(&request));
    request = request_of(words, 16);
    CHECK(wh_take_u64(&request) == 1 && wh_take_u64(&request) == 2);
    CHECK(!wh_request_failed(&request));
    CHECK(wh_take_u64(&request) == 0 && wh_request_failed(&request));
}

static void test_blobs(void)
{
    const uint64_t words[] = {3, WH_INLINE, 0x0000000000636261, 0, WH_NULL, 7};
    size_t size_bytes = 99;
    struct wh_request request = request_of(words, sizeof(words));
    const char *bytes = wh_take_blob(&request, &size_bytes, 3);
    CHECK(bytes != NULL && size_bytes == 3 && memcmp(bytes, "abc", 3) == 0);
    CHECK(wh_take_blob(&request, &size_bytes, 3) == NULL && size_bytes == 0);
    CHECK(!wh_request_failed(&request) && wh_take_u64(&request) == 7);
    request = request_of(words, sizeof(words));
    CHECK(wh_take_blob(&request, &size_bytes, 2) == NULL && wh_request_failed(&request));
    const uint64_t in_arena[] = {3, 64};
    request = request_of(in_arena, sizeof(in_arena));
    CHECK(wh_take_blob(&request, &size_bytes, 100) == NULL && wh_request_failed(&request));
}

static void test_outs(void)
{
    const uint64_t words[] = {5, WH_INLINE, 0, WH_NULL, 100000, WH_INLINE};
    size_t capacity_bytes = 0;
    uint64_t written = 0;
    struct wh_request request = request_of(words, sizeof(words));
    char *first = wh_take_out(&request, &capacity_bytes);
    CHECK(first != NULL && capacity_bytes == 5);
    CHECK(wh_take_out(&request, &capacity_bytes) == NULL && !wh_request_failed(&request));
    char *third = wh_take_out(&request, &capacity_bytes);
    CHECK(third != NULL && capacity_bytes == 100000);
    memcpy(first, "hello", 5);
    memset(third, 'x', 100000);
    wh_reply_u64(&request, 42);
    wh_reply_out(&request, 5);
    wh_reply_out(&request, 9); /* not wanted: nothing is written */
    wh_reply_out(&request, 100000);
    const struct wh_reply *reply = request.reply;
    CHECK(!reply->failed && reply->size_bytes == 8 + 16 + 8 + 8 + 100000);
    memcpy(&written, reply->bytes + 8, 8);
    CHECK(written == 5 && memcmp(reply->bytes + 16, "hello\0\0\0", 8) == 0);
    memcpy(&written, reply->bytes + 24, 8);
    CHECK(written == 0);
    wh_reply_out(&request, 1);
    CHECK(reply->failed);
    for (int i = 0; i <= WH_OUTS_MAX; i++) {
        static const uint64_t none[] = {0, WH_NULL};
        request.bytes = (const uint8_t *)none;
        request.size_bytes = sizeof(none);
        request.used_bytes = 0;
        wh_take_out(&request, &capacity_bytes);
    }
    CHECK(wh_request_failed(&request));
}

static void test_staging(void)
{
    const uint64_t words[] = {1000, WH_INLINE, 77};
    uint64_t token = 0;
    size_t size_bytes = 0;
    struct wh_request request = request_of(words, sizeof(words));
    char *area = wh_take_staging(&request, &size_bytes, &token);
    CHECK(area != NULL && size_bytes == 1000 && token == 77);
    area[999] = 'z';
    char last = 0;
    CHECK(wh_staging_read(&session, 78, 999, &last, 1) == -ENOENT);
    CHECK(wh_staging_read(&session, 77, 1000, &last, 1) == -EINVAL);
    CHECK(wh_staging_read(&session, 77, 999, &last, 1) == 0 && last == 'z');
    /* A token in use is no one else's. */
    request = request_of(words, sizeof(words));
    CHECK(wh_take_staging(&request, &size_bytes, &token) == NULL && wh_request_failed(&request));
    /* Released while the device may write: it stays until the device is done, and is not shown. */
    wh_staging_done(&session, 77);
    CHECK(wh_staging_read(&session, 77, 999, &last, 1) == -ENOENT);
    area[0] = 'a';
    wh_staging_settled(&session, 77);
    request = request_of(words, sizeof(words));
    CHECK(wh_take_staging(&request, &size_bytes, &token) != NULL);
    wh_staging_settled(&session, 77);
    wh_staging_done(&session, 77);
    CHECK(wh_staging_read(&session, 77, 0, &last, 1) == -ENOENT);

    /* A client that asks for more and more is refused, and may go on. */
    struct wh_session greedy = {.staging_lock = PTHREAD_MUTEX_INITIALIZER};
    for (uint64_t token = 1; token <= WH_STAGING_BYTES_MAX / WH_TCP_MESSAGE_BYTES_MAX + 1;
         token++) {
        const uint64_t large[] = {WH_TCP_MESSAGE_BYTES_MAX, WH_INLINE, token};
        bool fits = token * WH_TCP_MESSAGE_BYTES_MAX <= WH_STAGING_BYTES_MAX;
        uint64_t taken = 0;
        request = request_of(large, sizeof(large));
        request.session = &greedy;
        CHECK((wh_take_staging(&request, &size_bytes, &taken) != NULL) == fits);
        CHECK(!wh_request_failed(&request) && taken == (fits ? token : 0));
    }
    wh_staging_settled(&greedy, 1);
    wh_staging_done(&greedy, 1);
    request = request_of(words, sizeof(words));
    request.session = &greedy;
    CHECK(wh_take_staging(&request, &size_bytes, &token) != NULL);
    for (uint64_t left = 2; left <= 77; left++) {
        wh_staging_settled(&greedy, left);
        wh_staging_done(&greedy, left);
    }
    CHECK(greedy.staging == NULL && greedy.staging_bytes == 0);
}

static void test_async_errors(void)
{
    struct wh_reply_header header;
    struct wh_executor *executor = wh_this_executor;
    wh_async_error(&session, -5, 300);
    wh_async_error(&session, -6, 301);
    wh_fill_reply_header(executor, &header, 9, 0);
    CHECK(header.ready == 9 && header.async_error == -5 && header.async_opcode == 300);
    wh_fill_reply_header(executor, &header, 10, -ENOSYS);
    CHECK(header.async_error == 0 && header.status == -ENOSYS && header.size_bytes == 0);
}

int main(void)
{
    CHECK(wh_session_init(&session) == 0);
    wh_this_executor = wh_executor_create(&session, 4096, WH_TCP_MESSAGE_BYTES_MAX);
    CHECK(wh_this_executor != NULL);
    test_handles();
    test_scalars();
    test_blobs();
    test_outs();
    test_staging();
    test_async_errors();
    CHECK(wh_this_executor->large != NULL);
    wh_executor_destroy(wh_this_executor);
    wh_handle_table_destroy(session.handles);
    puts("ok");
    return 0;
}
