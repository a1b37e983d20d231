/*
 * backend_null.c - no accelerator: only the runtime's own calls (core.yaml) do something. Measures
 * forwarding alone.
 */
#include "backend.h"

#include <string.h>

#include "wh_skeleton_parts.h"

static int null_init(struct wh_session *session, char *error, size_t error_bytes)
{
    (void)session;
    (void)error;
    (void)error_bytes;
    return 0;
}

const struct wh_backend wh_backend_null = {
    .name = "null", .init = null_init, .dispatch = wh_dispatch_core};

const struct wh_backend *wh_backend_find(const char *name)
{
    const struct wh_backend *const backends[] = {&wh_backend_null, &wh_backend_opencl,
                                                 &wh_backend_cuda};
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (backends[i] != NULL && strcmp(backends[i]->name, name) == 0) {
            return backends[i];
        }
    }
    return NULL;
}
