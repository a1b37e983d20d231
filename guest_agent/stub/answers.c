/*
 * answers.c - replies that cannot change, kept by the request that they answer.
 *
 * Questions are compared byte for byte. When the store is full it is emptied: programs that ask
 * ever new questions are served by the server, as without it.
 */
#include "answers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fork_lock.h"
#include "session.h"
#include "wh_codec.h"

#define BUCKETS 1024u
#define ANSWERS_MAX 8192u
#define STORE_BYTES_MAX ((size_t)16 << 20)
#define QUESTION_BYTES_MAX ((size_t)8192)

struct answer {
    struct answer *next;
    uint64_t hash;
    uint32_t serial; /* of the session that it came from */
    uint32_t question_bytes;
    uint32_t reply_bytes;
    uint8_t bytes[]; /* question, then reply */
};

WH_FORK_LOCK(lock);
static struct answer *buckets[BUCKETS];
static size_t store_bytes;
static uint32_t count;

/* FNV-1a over words; what is left over counts bytewise. */
static uint64_t hash_of(const uint8_t *bytes, size_t size_bytes)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    size_t at = 0;
    for (; at + sizeof(uint64_t) <= size_bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, sizeof(word));
        hash = (hash ^ word) * 0x100000001b3ull;
        hash ^= hash >> 29;
    }
    for (; at < size_bytes; at++) {
        hash = (hash ^ bytes[at]) * 0x100000001b3ull;
    }
    return hash ^ hash >> 32;
}

static void empty(void)
{
    for (uint32_t i = 0; i < BUCKETS; i++) {
        while (buckets[i] != NULL) {
            struct answer *next = buckets[i]->next;
            free(buckets[i]);
            buckets[i] = next;
        }
    }
    store_bytes = 0;
    count = 0;
}

static struct answer *find(uint64_t hash, uint32_t serial, const uint8_t *question, size_t bytes)
{
    struct answer *answer = buckets[hash % BUCKETS];
    while (answer != NULL &&
           (answer->hash != hash || answer->serial != serial || answer->question_bytes != bytes ||
            memcmp(answer->bytes, question, bytes) != 0)) {
        answer = answer->next;
    }
    return answer;
}

/* Puts a kept reply in the place of the request, as one that has come. */
static bool give(struct wh_call *call, uint64_t hash, const uint8_t *question, size_t bytes)
{
    bool given = false;
    pthread_mutex_lock(&lock);
    const struct answer *answer = find(hash, call->client->serial, question, bytes);
    if (answer != NULL && wh_buffer_grow(call->buffer, answer->reply_bytes)) {
        memcpy(call->buffer->bytes, answer->bytes + answer->question_bytes, answer->reply_bytes);
        call->reply_bytes = answer->reply_bytes;
        given = true;
    }
    pthread_mutex_unlock(&lock);
    return given;
}

static void keep(const struct wh_call *call, uint64_t hash, const uint8_t *question, size_t bytes)
{
    size_t size_bytes = sizeof(struct answer) + bytes + call->reply_bytes;
    struct answer *answer = malloc(size_bytes);
    if (answer == NULL) {
        return;
    }
    answer->hash = hash;
    answer->serial = call->client->serial;
    answer->question_bytes = (uint32_t)bytes;
    answer->reply_bytes = (uint32_t)call->reply_bytes;
    memcpy(answer->bytes, question, bytes);
    memcpy(answer->bytes + bytes, call->buffer->bytes, call->reply_bytes);
    pthread_mutex_lock(&lock);
    if (count == ANSWERS_MAX || store_bytes + size_bytes > STORE_BYTES_MAX) {
        empty();
    }
    answer->next = buckets[hash % BUCKETS];
    buckets[hash % BUCKETS] = answer;
    store_bytes += size_bytes;
    count++;
    pthread_mutex_unlock(&lock);
}

/* Whether the whole question and the whole answer are in the messages themselves. */
static bool is_plain(const struct wh_call *call)
{
    bool plain = call->block_count == 0;
    for (int i = 0; i < call->out_count; i++) {
        plain = plain && (call->outs[i].location == WH_INLINE || call->outs[i].location == WH_NULL);
    }
    return plain;
}

int wh_call_pure(struct wh_call *call, size_t free_bytes, uint64_t kept_status)
{
    uint8_t copy[QUESTION_BYTES_MAX];
    if (call->error != 0 || !wh_local_answers() || !is_plain(call) ||
        call->size_bytes - sizeof(struct wh_request_header) > sizeof(copy)) {
        return wh_call_sync(call);
    }
    /* The opcode stands in the place of the header, which is not filled in yet. */
    size_t bytes = call->size_bytes - free_bytes - sizeof(struct wh_request_header);
    uint64_t opcode = call->opcode;
    memcpy(copy, &opcode, sizeof(opcode));
    if (bytes + sizeof(opcode) > sizeof(copy)) {
        return wh_call_sync(call);
    }
    memcpy(copy + sizeof(opcode), call->buffer->bytes + sizeof(struct wh_request_header), bytes);
    bytes += sizeof(opcode);
    uint64_t hash = hash_of(copy, bytes);
    if (give(call, hash, copy, bytes)) {
        return 0;
    }
    int error = wh_call_sync(call);
    uint64_t status = 0;
    if (error == 0 && call->reply_bytes >= sizeof(status)) {
        memcpy(&status, call->buffer->bytes, sizeof(status));
        if (status == kept_status) {
            keep(call, hash, copy, bytes);
        }
    }
    return error;
}
