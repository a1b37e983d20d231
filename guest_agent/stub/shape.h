/*
 * shape.h - the shapes of calls: what succeeded once in full may go one way from then on. A shape
 * is a hash of everything that decides whether such a call can fail at once.
 */
#ifndef WH_STUB_SHAPE_H
#define WH_STUB_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t wh_shape(uint16_t opcode);
uint64_t wh_shape_add(uint64_t shape, uint64_t value);
uint64_t wh_shape_add_bytes(uint64_t shape, const void *bytes, size_t size_bytes);

/* In this session: a child's and a new one know nothing. */
bool wh_shape_known(uint64_t shape);
void wh_shape_learn(uint64_t shape);

#endif
