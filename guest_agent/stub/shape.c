/*
 * shape.c - the shapes that a session has learnt, in a table of fixed size.
 */
#include "shape.h"

#include "call.h"

/*
 * Known shapes, each in one of the ways of its set. A full set gives a place away in turn, and the
 * shape that lost it is a round trip again. A training program of CUDA has some thousands.
 */
#define SHAPE_SETS 8192u
#define SHAPE_WAYS 4u

static uint64_t shapes[SHAPE_SETS][SHAPE_WAYS];
static uint32_t shapes_learnt;

uint64_t wh_shape(uint16_t opcode)
{
    return wh_shape_add(0x9e3779b97f4a7c15ull, opcode);
}

/* Two rounds of a multiplicative mix: 64 bits of shape make an accidental match hopeless. */
uint64_t wh_shape_add(uint64_t shape, uint64_t value)
{
    shape ^= value;
    shape *= 0xff51afd7ed558ccdull;
    shape ^= shape >> 32;
    shape *= 0xc4ceb9fe1a85ec53ull;
    return shape ^ shape >> 29;
}

uint64_t wh_shape_add_bytes(uint64_t shape, const void *bytes, size_t size_bytes)
{
    const uint8_t *from = bytes;
    for (size_t i = 0; from != NULL && i < size_bytes; i++) {
        shape = wh_shape_add(shape, from[i]);
    }
    return wh_shape_add(shape, from != NULL ? size_bytes : UINT64_MAX);
}

/* The serial takes part, so that nothing is known in a child or a new session. */
static uint64_t of_session(uint64_t shape)
{
    shape = wh_shape_add(shape, wh_session_serial());
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

bool wh_shape_known(uint64_t shape)
{
    return known(of_session(shape));
}

/* Two threads may take the same place: then one of their shapes is a round trip once more. */
void wh_shape_learn(uint64_t shape)
{
    shape = of_session(shape);
    if (known(shape)) {
        return;
    }
    uint64_t *set = shapes[shape % SHAPE_SETS];
    uint32_t place = __atomic_fetch_add(&shapes_learnt, 1, __ATOMIC_RELAXED) % SHAPE_WAYS;
    for (uint32_t way = 0; way < SHAPE_WAYS; way++) {
        if (__atomic_load_n(&set[way], __ATOMIC_RELAXED) == 0) {
            place = way;
            break;
        }
    }
    __atomic_store_n(&set[place], shape, __ATOMIC_RELAXED);
}
