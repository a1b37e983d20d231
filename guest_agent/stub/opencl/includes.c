/*
 * includes.c - headers of the application's own file system, put into a program's source.
 *
 * `-I` names directories where the application runs; the compiler runs elsewhere. So `#include`
 * lines whose file is found in one of them are replaced by the file before the program is built.
 * Lines of files not found stay: the server may have them.
 */
#include "object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DIRECTORIES_MAX 32
#define PATH_BYTES 1024
#define DEPTH_MAX 16 /* headers that include headers */
#define SOURCE_BYTES_MAX ((size_t)64 << 20)

struct directories {
    char paths[DIRECTORIES_MAX][PATH_BYTES];
    int count;
};

struct text {
    char *bytes;
    size_t size;
    size_t capacity;
    bool failed;
};

static void append(struct text *text, const char *bytes, size_t size)
{
    if (text->failed || size > SOURCE_BYTES_MAX - text->size) {
        text->failed = true;
        return;
    }
    if (text->size + size > text->capacity) {
        size_t capacity = (text->size + size) * 2;
        char *grown = realloc(text->bytes, capacity);
        if (grown == NULL) {
            text->failed = true;
            return;
        }
        text->bytes = grown;
        text->capacity = capacity;
    }
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
}

/* One word of the options, without its quotes; the place behind it, NULL at the end. */
static const char *next_word(const char *at, char *word)
{
    size_t used = 0;
    char quote = '\0';
    at += strspn(at, " \t\n");
    if (*at == '\0') {
        return NULL;
    }
    for (; *at != '\0' && (quote != '\0' || strchr(" \t\n", *at) == NULL); at++) {
        if (*at == '"' || *at == '\'') {
            quote = quote == '\0' ? *at : *at == quote ? '\0' : quote;
        } else if (used + 1 < PATH_BYTES) {
            word[used++] = *at;
        }
    }
    word[used] = '\0';
    return at;
}

static void find_directories(const char *options, struct directories *directories)
{
    char word[PATH_BYTES];
    bool path_follows = false;
    directories->count = 0;
    while (directories->count < DIRECTORIES_MAX && (options = next_word(options, word)) != NULL) {
        const char *path = path_follows ? word : strncmp(word, "-I", 2) == 0 ? word + 2 : "";
        path_follows = !path_follows && strcmp(word, "-I") == 0;
        if (*path != '\0') {
            snprintf(directories->paths[directories->count++], PATH_BYTES, "%s", path);
        }
    }
}

/* A regular file's content; NULL if there is none. */
static char *read_file(const char *path, size_t *size)
{
    struct stat status;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return NULL;
    }
    char *bytes = NULL;
    if (fstat(fileno(file), &status) == 0 && S_ISREG(status.st_mode) &&
        (size_t)status.st_size <= SOURCE_BYTES_MAX) {
        bytes = malloc((size_t)status.st_size + 1);
        *size = bytes == NULL ? 0 : fread(bytes, 1, (size_t)status.st_size, file);
    }
    fclose(file);
    return bytes;
}

/* The name in an `#include` line; false for any other line. */
static bool included_name(const char *line, size_t size, char *name)
{
    const char *end = line + size;
    const char *at = line;
    while (at < end && (*at == ' ' || *at == '\t')) {
        at++;
    }
    if (at == end || *at++ != '#') {
        return false;
    }
    while (at < end && (*at == ' ' || *at == '\t')) {
        at++;
    }
    if ((size_t)(end - at) < 7 || memcmp(at, "include", 7) != 0) {
        return false;
    }
    at += 7;
    while (at < end && (*at == ' ' || *at == '\t')) {
        at++;
    }
    if (at == end || (*at != '"' && *at != '<')) {
        return false;
    }
    const char close = *at == '"' ? '"' : '>';
    const char *stop = memchr(at + 1, close, (size_t)(end - at - 1));
    if (stop == NULL || (size_t)(stop - at) > PATH_BYTES / 2) {
        return false;
    }
    memcpy(name, at + 1, (size_t)(stop - at - 1));
    name[stop - at - 1] = '\0';
    return true;
}

static char *find_header(const struct directories *directories, const char *name, char *path,
                         size_t *size)
{
    for (int i = 0; i < directories->count; i++) {
        int length = snprintf(path, PATH_BYTES, "%s/%s", directories->paths[i], name);
        char *bytes = length > 0 && length < PATH_BYTES ? read_file(path, size) : NULL;
        if (bytes != NULL) {
            return bytes;
        }
    }
    return NULL;
}

/* Copies a source line by line; `found` counts the headers that were put in. */
static void expand(struct text *text, const char *source, size_t size, const char *name,
                   const struct directories *directories, int depth, int *found)
{
    char header[PATH_BYTES];
    char path[PATH_BYTES];
    char mark[PATH_BYTES + 64];
    unsigned long number = 1;
    for (size_t at = 0; at < size && !text->failed; number++) {
        const char *line = source + at;
        const char *newline = memchr(line, '\n', size - at);
        size_t length = newline == NULL ? size - at : (size_t)(newline - line) + 1;
        size_t header_bytes = 0;
        char *bytes = depth < DEPTH_MAX && included_name(line, length, header)
                          ? find_header(directories, header, path, &header_bytes)
                          : NULL;
        at += length;
        if (bytes == NULL) {
            append(text, line, length);
            continue;
        }
        /* Messages of the compiler keep naming the application's files and lines. */
        (*found)++;
        append(text, mark, (size_t)snprintf(mark, sizeof(mark), "#line 1 \"%s\"\n", path));
        expand(text, bytes, header_bytes, path, directories, depth + 1, found);
        append(text, mark,
               (size_t)snprintf(mark, sizeof(mark), "\n#line %lu \"%s\"\n", number + 1, name));
        free(bytes);
    }
}

char *wh_cl_expand_includes(const char *source, size_t size, const char *options,
                            size_t *expanded_size)
{
    struct directories *directories = malloc(sizeof(*directories));
    struct text text = {0};
    int found = 0;
    if (directories == NULL) {
        return NULL;
    }
    find_directories(options, directories);
    if (directories->count > 0) {
        expand(&text, source, size, "program.cl", directories, 0, &found);
    }
    free(directories);
    if (found == 0 || text.failed) {
        free(text.bytes);
        return NULL;
    }
    *expanded_size = text.size;
    return text.bytes;
}
