/*
 * calls.c - how a stub's call ends: API errors, and what goes one way.
 */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

cl_int wh_cl_call_sync(struct wh_call *call)
{
    if (wh_call_sync(call) != 0) {
        return WH_CL_LOST;
    }
    cl_int error = (cl_int)wh_get_u64(call);
    return call->error == 0 ? error : WH_CL_LOST;
}

cl_int wh_cl_call_error(struct wh_call *call)
{
    cl_int error = wh_cl_call_sync(call);
    wh_call_end(call);
    return error;
}

cl_int wh_cl_take_async(void)
{
    return wh_take_async_error();
}

void wh_cl_put_handles(struct wh_call *call, const void *const *pointers, cl_uint count)
{
    uint64_t few[16];
    uint64_t *handles = few;
    if (count == 0) {
        wh_put_blob(call, NULL, 0);
        return;
    }
    if (count > sizeof(few) / sizeof(few[0])) {
        handles = malloc(count * sizeof(uint64_t));
        if (handles == NULL) {
            wh_put_blob(call, NULL, 0); /* the server then refuses the list for its count */
            return;
        }
    }
    for (cl_uint i = 0; i < count; i++) {
        handles[i] = wh_cl_handle(pointers[i]);
    }
    wh_put_blob(call, handles, count * sizeof(uint64_t));
    if (handles != few) {
        free(handles);
    }
}

void wh_cl_put_strings(struct wh_call *call, const char *const *strings, cl_uint count)
{
    struct wh_text text = {0};
    for (cl_uint i = 0; i < count; i++) {
        wh_text_add(&text, strings[i], strlen(strings[i]) + 1);
    }
    /* Without memory the server refuses the list for its count. */
    wh_put_blob(call, text.failed ? NULL : text.bytes, text.failed ? 0 : text.size);
    free(text.bytes);
}

uint64_t wh_cl_shape_add_handles(uint64_t shape, const void *const *pointers, cl_uint count)
{
    for (cl_uint i = 0; i < count; i++) {
        shape = wh_shape_add(shape, wh_cl_handle(pointers[i]));
    }
    return wh_shape_add(shape, count);
}

cl_int wh_cl_call_shape(struct wh_call *call, uint64_t shape)
{
    if (wh_cl_take_foreign_waits()) {
        return wh_cl_call_error(call); /* no other list says how this one ends */
    }
    if (wh_oneway_calls() && wh_shape_known(shape)) {
        return wh_call_oneway(call) == 0 ? CL_SUCCESS : WH_CL_LOST;
    }
    cl_int error = wh_cl_call_error(call);
    if (error == CL_SUCCESS) {
        wh_shape_learn(shape);
    }
    return error;
}
