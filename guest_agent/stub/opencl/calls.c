/*
 * calls.c - how a stub's call ends: API errors, shapes that may go one way.
 */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

/*
 * Known shapes, each in one of the ways of its set. A full set gives a place away in turn, and the
 * shape that lost it is a round trip again.
 */
#define SHAPE_SETS 2048u
#define SHAPE_WAYS 4u

static uint64_t shapes[SHAPE_SETS][SHAPE_WAYS];
static uint32_t shapes_learnt;

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

uint64_t wh_cl_shape(uint16_t opcode)
{
    return wh_cl_shape_add(0x9e3779b97f4a7c15ull, opcode);
}

/* Two rounds of a multiplicative mix: 64 bits of shape make an accidental match hopeless. */
uint64_t wh_cl_shape_add(uint64_t shape, uint64_t value)
{
    shape ^= value;
    shape *= 0xff51afd7ed558ccdull;
    shape ^= shape >> 32;
    shape *= 0xc4ceb9fe1a85ec53ull;
    return shape ^ shape >> 29;
}

uint64_t wh_cl_shape_add_bytes(uint64_t shape, const void *bytes, size_t size_bytes)
{
    const uint8_t *from = bytes;
    for (size_t i = 0; from != NULL && i < size_bytes; i++) {
        shape = wh_cl_shape_add(shape, from[i]);
    }
    return wh_cl_shape_add(shape, from != NULL ? size_bytes : UINT64_MAX);
}

uint64_t wh_cl_shape_add_handles(uint64_t shape, const void *const *pointers, cl_uint count)
{
    for (cl_uint i = 0; i < count; i++) {
        shape = wh_cl_shape_add(shape, wh_cl_handle(pointers[i]));
    }
    return wh_cl_shape_add(shape, count);
}

/* The serial takes part, so that nothing is known in a child or a new session. */
static uint64_t of_session(uint64_t shape)
{
    shape = wh_cl_shape_add(shape, wh_session_serial());
    return shape == 0 ? 1 : shape;
}

static bool known(uint64_t shape)
{
    const uint64_t *set = shapes[shape % SHAPE_SETS];
    for (uint32_t way = 0; way < SHAPE_WAYS; way++) {
        if (__atomic_load_n(&set[way], __ATOMIC_RELAXED) == shape) {
            return true;
        }
    }
    return false;
}

bool wh_cl_shape_known(uint64_t shape)
{
    return known(of_session(shape));
}

/* Two threads may take the same place: then one of their shapes is a round trip once more. */
void wh_cl_shape_learn(uint64_t shape)
{
    shape = of_session(shape);
    uint64_t *set = shapes[shape % SHAPE_SETS];
    uint32_t place = __atomic_fetch_add(&shapes_learnt, 1, __ATOMIC_RELAXED) % SHAPE_WAYS;
    if (known(shape)) {
        return;
    }
    for (uint32_t way = 0; way < SHAPE_WAYS; way++) {
        if (__atomic_load_n(&set[way], __ATOMIC_RELAXED) == 0) {
            place = way;
            break;
        }
    }
    __atomic_store_n(&set[place], shape, __ATOMIC_RELAXED);
}

cl_int wh_cl_call_shape(struct wh_call *call, uint64_t shape)
{
    if (wh_cl_take_foreign_waits()) {
        return wh_cl_call_error(call); /* no other list says how this one ends */
    }
    if (wh_oneway_calls() && wh_cl_shape_known(shape)) {
        return wh_call_oneway(call) == 0 ? CL_SUCCESS : WH_CL_LOST;
    }
    cl_int error = wh_cl_call_error(call);
    if (error == CL_SUCCESS) {
        wh_cl_shape_learn(shape);
    }
    return error;
}
