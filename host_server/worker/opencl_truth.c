/*
 * opencl_truth.c - answers of the real library, without what would promise more than is forwarded.
 * Which answers those are, and why, stands in the spec (truth, extensions).
 */
#include <stdlib.h>
#include <string.h>

#include "opencl_backend.h"

static bool is_forwarded(const char *name, size_t length)
{
    for (const char *const *known = wh_cl_extensions; *known != NULL; known++) {
        if (strlen(*known) == length && memcmp(*known, name, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Takes the names out, each with the blanks behind it. Returns the new size with the end. */
static size_t reduce_names(char *text, size_t size_bytes)
{
    char *to = text;
    const char *from = text;
    const char *end = text + strnlen(text, size_bytes);
    while (from < end) {
        size_t length = strcspn(from, " ");
        size_t blanks = strspn(from + length, " ");
        if (is_forwarded(from, length)) {
            memmove(to, from, length + blanks);
            to += length + blanks;
        }
        from += length + blanks;
    }
    *to = '\0';
    return (size_t)(to - text) + 1;
}

static size_t reduce_versions(cl_name_version *versions, size_t size_bytes)
{
    size_t kept = 0;
    for (size_t i = 0; i < size_bytes / sizeof(*versions); i++) {
        if (is_forwarded(versions[i].name, strnlen(versions[i].name, sizeof(versions[i].name)))) {
            versions[kept++] = versions[i];
        }
    }
    return kept * sizeof(*versions);
}

/* A number of 4 or 8 bytes, little endian as everything here. */
static size_t clear(void *value, size_t size_bytes, uint64_t bits)
{
    uint64_t number = 0;
    size_t used_bytes = size_bytes < sizeof(number) ? size_bytes : sizeof(number);
    memcpy(&number, value, used_bytes);
    number &= ~bits;
    memcpy(value, &number, used_bytes);
    return size_bytes;
}

static size_t apply(const struct wh_cl_truth *truth, void *value, size_t size_bytes)
{
    switch (truth->rule) {
    case WH_CL_TRUTH_EXTENSIONS:
        return reduce_names(value, size_bytes);
    case WH_CL_TRUTH_VERSIONS:
        return reduce_versions(value, size_bytes);
    default:
        return clear(value, size_bytes, truth->bits);
    }
}

/* The whole answer, as it is told; *size_bytes fits the client's memory or is refused. */
static cl_int tell(wh_cl_ask ask, void *object, const struct wh_cl_truth *truth, size_t size,
                   void *value, size_t *written)
{
    size_t whole_bytes = 0;
    cl_int error = ask(object, truth->param, 0, NULL, &whole_bytes);
    if (error != CL_SUCCESS) {
        return error;
    }
    void *whole = calloc(1, whole_bytes + 1); /* a text without its end gets one */
    if (whole == NULL) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    error = ask(object, truth->param, whole_bytes, whole, NULL);
    if (error == CL_SUCCESS) {
        *written = apply(truth, whole, whole_bytes);
        if (value != NULL && size < *written) {
            error = CL_INVALID_VALUE;
        } else if (value != NULL) {
            memcpy(value, whole, *written);
        }
    }
    free(whole);
    return error;
}

cl_int wh_cl_tell(wh_cl_ask ask, void *object, const struct wh_cl_truth *truths, size_t count,
                  cl_uint param, size_t size, void *value, size_t *written)
{
    for (size_t i = 0; i < count; i++) {
        if (truths[i].param == param) {
            return truths[i].rule == WH_CL_TRUTH_HIDDEN
                       ? CL_INVALID_VALUE
                       : tell(ask, object, &truths[i], size, value, written);
        }
    }
    return ask(object, param, size, value, written);
}
