/*
 * test_images.c - kept device code: the digest, what is found, what is refused, how much is kept.
 * Its argument is an empty folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image_cache.h"
#include "session.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define CODE_BYTES 1000u
#define CODES 5u
#define ROOM_BYTES (3 * CODE_BYTES + 1)

int wh_skeleton_whcLoadImage(struct wh_request *request);

static int folder;
static uint8_t codes[CODES][CODE_BYTES];
static uint8_t digests[CODES][WH_SHA256_BYTES];

static const char *name_of(const uint8_t *digest)
{
    static char name[2 * WH_SHA256_BYTES + 1];
    for (size_t i = 0; i < WH_SHA256_BYTES; i++) {
        snprintf(name + 2 * i, 3, "%02x", digest[i]);
    }
    return name;
}

/* Examples of FIPS 180-4, and both ways to compute agree at every length around a block's. */
static void test_digests(void)
{
    static const char text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    uint8_t digest[WH_SHA256_BYTES];
    uint8_t plain[WH_SHA256_BYTES];
    wh_sha256("", 0, digest);
    CHECK(strcmp(name_of(digest),
                 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855") == 0);
    wh_sha256("abc", 3, digest);
    CHECK(strcmp(name_of(digest),
                 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") == 0);
    wh_sha256(text, strlen(text), digest);
    CHECK(strcmp(name_of(digest),
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1") == 0);
    for (size_t size_bytes = 0; size_bytes <= 300; size_bytes++) {
        wh_sha256(codes[1], size_bytes, digest);
        wh_sha256_by(codes[1], size_bytes, true, plain);
        CHECK(memcmp(digest, plain, sizeof(digest)) == 0);
    }
}

static bool finds(size_t index)
{
    uint8_t *bytes = wh_images_find(digests[index], CODE_BYTES);
    bool found = bytes != NULL;
    CHECK(!found || memcmp(bytes, codes[index], CODE_BYTES) == 0);
    free(bytes);
    return found;
}

static bool is_there(size_t index)
{
    return faccessat(folder, name_of(digests[index]), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void keep(size_t index)
{
    wh_images_keep(digests[index], codes[index], CODE_BYTES);
}

/* As if it had been used so long ago. */
static void age(size_t index, time_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    CHECK(utimensat(folder, name_of(digests[index]), times, 0) == 0);
}

static void test_without_a_folder(void)
{
    wh_images_open(-1, ROOM_BYTES);
    keep(0);
    CHECK(!finds(0));
}

static void test_damaged(void)
{
    const char *name = NULL;
    keep(0);
    CHECK(finds(0));
    /* one bit */
    int fd = openat(folder, name_of(digests[0]), O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, "\xff", 1, 500) == 1 && close(fd) == 0);
    CHECK(!finds(0) && !is_there(0));
    /* shorter than it should be */
    keep(0);
    fd = openat(folder, name_of(digests[0]), O_WRONLY);
    CHECK(fd >= 0 && ftruncate(fd, 10) == 0 && close(fd) == 0);
    CHECK(!finds(0) && !is_there(0));
    /* what only has the name: other code, a link to the right bytes, a pipe */
    wh_images_keep(digests[0], codes[1], CODE_BYTES);
    CHECK(is_there(0) && !finds(0) && !is_there(0));
    keep(1);
    CHECK(symlinkat(name_of(digests[1]), folder, "link") == 0);
    name = name_of(digests[0]);
    CHECK(renameat(folder, "link", folder, name) == 0);
    CHECK(!finds(0));
    CHECK(unlinkat(folder, name_of(digests[0]), 0) == 0);
    CHECK(mkfifoat(folder, name_of(digests[0]), 0666) == 0);
    CHECK(!finds(0) && !is_there(0));
    CHECK(finds(1));
}

static void test_bound(void)
{
    for (size_t i = 0; i < 3; i++) {
        keep(i);
        age(i, 1000 + (time_t)i);
    }
    CHECK(finds(0)); /* now 1 is the one that was used longest ago */
    keep(3);
    CHECK(is_there(0) && !is_there(1) && is_there(2) && is_there(3));
    static uint8_t large[ROOM_BYTES + 1];
    uint8_t digest[WH_SHA256_BYTES];
    wh_sha256(large, sizeof(large), digest);
    wh_images_keep(digest, large, sizeof(large));
    CHECK(is_there(0) && is_there(2) && is_there(3));
    wh_sha256(large, ROOM_BYTES, digest);
    wh_images_keep(digest, large, ROOM_BYTES);
    CHECK(!is_there(0) && !is_there(2) && !is_there(3));
    uint8_t *bytes = wh_images_find(digest, ROOM_BYTES);
    CHECK(bytes != NULL);
    free(bytes);
}

/* Files that workers left when they died go, young ones stay. */
static void test_leftovers(void)
{
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    const struct timespec ahead[2] = {{.tv_sec = 9000000000}, {.tv_sec = 9000000000}};
    CHECK(close(openat(folder, "new-1-1", O_CREAT | O_WRONLY, 0600)) == 0);
    CHECK(close(openat(folder, "new-2-1", O_CREAT | O_WRONLY, 0600)) == 0);
    CHECK(close(openat(folder, "new-3-1", O_CREAT | O_WRONLY, 0600)) == 0);
    CHECK(close(openat(folder, "anything", O_CREAT | O_WRONLY, 0600)) == 0);
    CHECK(utimensat(folder, "new-1-1", old, 0) == 0);
    CHECK(utimensat(folder, "new-3-1", ahead, 0) == 0);
    keep(4);
    CHECK(is_there(4) && faccessat(folder, "new-1-1", F_OK, 0) != 0 &&
          faccessat(folder, "new-3-1", F_OK, 0) != 0);
    CHECK(faccessat(folder, "new-2-1", F_OK, 0) == 0 &&
          faccessat(folder, "anything", F_OK, 0) != 0);
}

/* Bytes that come under another's digest end the session, and nothing of them is kept. */
static void test_lying_client(void)
{
    static struct wh_session session;
    static struct {
        uint64_t head[4]; /* the context word, the image's handle, a blob's size and place */
        uint8_t digest[WH_SHA256_BYTES];
        uint64_t more[6]; /* the size, an output area, no token, a blob's size and place */
        uint8_t bytes[CODE_BYTES];
    } message;
    CHECK(wh_session_init(&session) == 0);
    wh_this_executor = wh_executor_create(&session, 4096, WH_TCP_MESSAGE_BYTES_MAX);
    CHECK(wh_this_executor != NULL);
    const uint64_t head[4] = {0, 0, WH_SHA256_BYTES, WH_INLINE};
    const uint64_t more[6] = {CODE_BYTES, 8, WH_INLINE, 0, CODE_BYTES, WH_INLINE};
    memcpy(message.head, head, sizeof(head));
    memcpy(message.digest, digests[0], sizeof(message.digest));
    memcpy(message.more, more, sizeof(more));
    memcpy(message.bytes, codes[1], CODE_BYTES);
    struct wh_request request = {.bytes = (const uint8_t *)&message,
                                 .size_bytes = sizeof(message),
                                 .session = &session,
                                 .reply = &wh_this_executor->reply};
    CHECK(wh_skeleton_whcLoadImage(&request) == -EBADMSG);
    CHECK(request.used_bytes == sizeof(message) && !is_there(0));
    wh_executor_destroy(wh_this_executor);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    folder = open(argv[1], O_RDONLY | O_DIRECTORY);
    CHECK(folder >= 0);
    for (size_t i = 0; i < CODES; i++) {
        for (size_t j = 0; j < CODE_BYTES; j++) {
            codes[i][j] = (uint8_t)(j * 31 + i);
        }
        wh_sha256(codes[i], CODE_BYTES, digests[i]);
    }
    test_digests();
    test_without_a_folder();
    wh_images_open(folder, ROOM_BYTES);
    test_damaged();
    test_bound();
    test_leftovers();
    test_lying_client();
    puts("ok");
    return 0;
}
