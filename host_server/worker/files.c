/*
 * files.c - files that the client ships for the compiler: headers that lie where the application
 * runs. They go below one folder of the session's private directory, and nowhere else.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session.h"
#include "wh_core_backend.h"
#include "wh_files.h"

#define PATH_BYTES 1024
#define SHIPPED_BYTES_MAX ((uint64_t)256 << 20) /* of a session */
#define SHIPPED_FILES_MAX 65536u

static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t shipped_bytes;
static uint32_t shipped_files;

/* Only names below the folder: no empty part, no ".", no "..". A slash at the end is allowed. */
static bool path_is_safe(const char *path)
{
    size_t length = strlen(path);
    if (length == 0 || length > PATH_BYTES - sizeof(WH_GUEST_FILES) - 8) {
        return false;
    }
    while (*path != '\0') {
        size_t part = strcspn(path, "/");
        if (part == 0 || (part == 1 && path[0] == '.') ||
            (part == 2 && memcmp(path, "..", 2) == 0)) {
            return false;
        }
        path += part + (path[part] == '/' ? 1 : 0);
    }
    return true;
}

/* Every folder of a path; what follows the last slash is a file. */
static int make_folders(char *path)
{
    for (char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int result = mkdir(path, 0700);
        *slash = '/';
        if (result != 0 && errno != EEXIST) {
            return -errno;
        }
    }
    return 0;
}

static int write_all(int fd, const uint8_t *bytes, size_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t wrote = write(fd, bytes, size_bytes);
        if (wrote < 0 && errno != EINTR) {
            return -errno;
        }
        if (wrote > 0) {
            bytes += wrote;
            size_bytes -= (size_t)wrote;
        }
    }
    return 0;
}

/* A compiler that reads the older version at this moment keeps it. */
static int replace_file(const char *path, const void *data, size_t size_bytes)
{
    char fresh[PATH_BYTES];
    snprintf(fresh, sizeof(fresh), "%s/.new", WH_GUEST_FILES);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return -errno;
    }
    int error = write_all(fd, data, size_bytes);
    if (close(fd) != 0 && error == 0) {
        error = -errno;
    }
    if (error == 0 && rename(fresh, path) != 0) {
        error = -errno;
    }
    return error;
}

static int put_file(const char *name, const void *data, uint64_t size_bytes)
{
    char path[PATH_BYTES];
    if (size_bytes > SHIPPED_BYTES_MAX - shipped_bytes || shipped_files == SHIPPED_FILES_MAX) {
        return -ENOSPC;
    }
    shipped_bytes += size_bytes;
    shipped_files++;
    int length = snprintf(path, sizeof(path), "%s/%s", WH_GUEST_FILES, name);
    int error = make_folders(path);
    return error != 0 || path[length - 1] == '/' ? error : replace_file(path, data, size_bytes);
}

int wh_core_whPutFile(struct wh_session *session, const char *path, const void *data,
                      uint64_t size_bytes)
{
    (void)session;
    if (!path_is_safe(path)) {
        return -EBADMSG;
    }
    pthread_mutex_lock(&files_lock);
    int error = put_file(path, data, size_bytes);
    pthread_mutex_unlock(&files_lock);
    return error;
}
