/*
 * image_cache.c - keeps device code in the VM's folder, a file a digest.
 *
 * Nothing here is an error of a call: what cannot be kept or found crosses once more.
 */
#define _GNU_SOURCE
#include "image_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME_BYTES (2 * WH_SHA256_BYTES + 1)
#define LOCK_NAME "lock"
#define FRESH_PREFIX "new-" /* a file that is being written */
#define FRESH_NAME_BYTES 64
#define SLACK_BYTES 65536u /* what a file system may keep for a file beyond its end */
#define FRESH_LIMIT_S 600  /* older ones are of workers that have died */
#define FILES_MAX 4096u
#define LOCK_TRIES 100
#define LOCK_PAUSE_NS 1000000

struct entry {
    char name[NAME_BYTES];
    uint64_t size_bytes;
    struct timespec used; /* its time of change, which every use sets */
};

static int folder = -1;
static uint64_t bytes_max;

void wh_images_open(int folder_fd, uint64_t limit_bytes)
{
    folder = folder_fd;
    bytes_max = limit_bytes;
}

static void name_of(const uint8_t digest[WH_SHA256_BYTES], char name[NAME_BYTES])
{
    for (size_t i = 0; i < WH_SHA256_BYTES; i++) {
        snprintf(name + 2 * i, 3, "%02x", digest[i]);
    }
}

static bool is_name(const char *text)
{
    return strlen(text) == NAME_BYTES - 1 && strspn(text, "0123456789abcdef") == NAME_BYTES - 1;
}

static bool read_all(int fd, uint8_t *bytes, size_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t got = read(fd, bytes, size_bytes);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        bytes += got > 0 ? got : 0;
        size_bytes -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

static bool write_all(int fd, const uint8_t *bytes, size_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t wrote = write(fd, bytes, size_bytes);
        if (wrote < 0 && errno != EINTR) {
            return false;
        }
        bytes += wrote > 0 ? wrote : 0;
        size_bytes -= wrote > 0 ? (size_t)wrote : 0;
    }
    return true;
}

/* A private copy first, then the check, so that no other worker can change what was checked. */
static uint8_t *read_checked(int fd, const uint8_t digest[WH_SHA256_BYTES], size_t size_bytes)
{
    struct stat status;
    uint8_t found[WH_SHA256_BYTES];
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        (uint64_t)status.st_size != size_bytes) {
        return NULL;
    }
    uint8_t *bytes = malloc(size_bytes > 0 ? size_bytes : 1);
    if (bytes == NULL) {
        return NULL;
    }
    if (read_all(fd, bytes, size_bytes)) {
        wh_sha256(bytes, size_bytes, found);
        if (memcmp(found, digest, sizeof(found)) == 0) {
            return bytes;
        }
    }
    free(bytes);
    return NULL;
}

uint8_t *wh_images_find(const uint8_t digest[WH_SHA256_BYTES], size_t size_bytes)
{
    char name[NAME_BYTES];
    const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    if (folder < 0) {
        return NULL;
    }
    name_of(digest, name);
    /* Another worker may have put anything here: no links, no waiting for a pipe's other end. */
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return NULL;
    }
    uint8_t *bytes = read_checked(fd, digest, size_bytes);
    if (bytes == NULL) {
        fprintf(stderr, "wormhole-worker: kept device code %.12s is damaged: removed\n", name);
        (void)unlinkat(folder, name, 0);
    } else {
        (void)futimens(fd, now);
    }
    close(fd);
    return bytes;
}

static bool is_older(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

static void drop_oldest(struct entry *entries, size_t *count, uint64_t *sum_bytes)
{
    size_t oldest = 0;
    for (size_t i = 1; i < *count; i++) {
        oldest = is_older(&entries[i].used, &entries[oldest].used) ? i : oldest;
    }
    (void)unlinkat(folder, entries[oldest].name, 0);
    *sum_bytes -= entries[oldest].size_bytes;
    entries[oldest] = entries[--*count];
}

/* Blocks may lie beyond a file's end: more than those that it takes anyway count, too. */
static uint64_t taken_bytes(const struct stat *status)
{
    uint64_t size_bytes = (uint64_t)status->st_size;
    uint64_t blocks_bytes = (uint64_t)status->st_blocks * 512;
    return blocks_bytes > size_bytes + SLACK_BYTES ? blocks_bytes : size_bytes;
}

/* What is neither kept code nor a young file of another worker's goes. */
static size_t list(DIR *files, struct entry *entries, uint64_t *sum_bytes)
{
    size_t count = 0;
    time_t now = time(NULL);
    const struct dirent *file = NULL;
    *sum_bytes = 0;
    while ((file = readdir(files)) != NULL) {
        struct stat status;
        if (file->d_name[0] == '.' || strcmp(file->d_name, LOCK_NAME) == 0 ||
            fstatat(folder, file->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        if (is_name(file->d_name) && S_ISREG(status.st_mode) && count < FILES_MAX) {
            struct entry *entry = &entries[count++];
            memcpy(entry->name, file->d_name, NAME_BYTES);
            entry->size_bytes = taken_bytes(&status);
            entry->used = status.st_mtim;
            *sum_bytes += entry->size_bytes;
        } else if (strncmp(file->d_name, FRESH_PREFIX, strlen(FRESH_PREFIX)) != 0 ||
                   status.st_mtim.tv_sec < now - FRESH_LIMIT_S || status.st_mtim.tv_sec > now) {
            (void)unlinkat(folder, file->d_name, 0);
        }
    }
    return count;
}

/* With the lock held. */
static bool make_room(size_t size_bytes)
{
    uint64_t sum_bytes = 0;
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct entry *entries = malloc(FILES_MAX * sizeof(*entries));
    DIR *files = fd < 0 ? NULL : fdopendir(fd);
    if (files == NULL || entries == NULL) {
        if (files != NULL) {
            closedir(files);
        } else if (fd >= 0) {
            close(fd);
        }
        free(entries);
        return false;
    }
    size_t count = list(files, entries, &sum_bytes);
    while (count > 0 && (count >= FILES_MAX || sum_bytes > bytes_max - size_bytes)) {
        drop_oldest(entries, &count, &sum_bytes);
    }
    closedir(files);
    free(entries);
    return true;
}

/* The lock of all workers of the VM; -1: another one keeps it, for longer than it needs. */
static int take_lock(void)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};
    int fd =
        openat(folder, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) {
        return -1;
    }
    (void)fchmod(fd, 0666); /* whatever the mask is */
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            return fd;
        }
        nanosleep(&pause, NULL);
    }
    close(fd);
    return -1;
}

static bool write_fresh(const char *name, const uint8_t *bytes, size_t size_bytes)
{
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
        return false;
    }
    /* The VM's workers have users of their own: all of them may note a use. */
    bool done = fchmod(fd, 0666) == 0 && write_all(fd, bytes, size_bytes);
    return close(fd) == 0 && done;
}

void wh_images_keep(const uint8_t digest[WH_SHA256_BYTES], const uint8_t *bytes, size_t size_bytes)
{
    static uint32_t made;
    char name[NAME_BYTES];
    char fresh[FRESH_NAME_BYTES];
    if (folder < 0 || size_bytes > bytes_max) {
        return;
    }
    name_of(digest, name);
    if (faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        return; /* another session was faster */
    }
    snprintf(fresh, sizeof(fresh), FRESH_PREFIX "%d-%u", (int)getpid(),
             __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED));
    bool written = write_fresh(fresh, bytes, size_bytes);
    int lock = written ? take_lock() : -1;
    bool kept = lock >= 0 && make_room(size_bytes) && renameat(folder, fresh, folder, name) == 0;
    if (!kept) {
        (void)unlinkat(folder, fresh, 0);
    }
    if (lock >= 0) {
        close(lock);
    }
}
