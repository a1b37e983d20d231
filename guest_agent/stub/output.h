/*
 * output.h - what kernels print, on the application's own standard output.
 */
#ifndef WH_STUB_OUTPUT_H
#define WH_STUB_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A program that may print if its text or binary says so: from then on the server is asked. */
void wh_output_expect(const void *program, size_t size_bytes);

/* Whether such a program was made in this session. */
bool wh_output_expected(void);

/* After each reply; waits: the server has output. All that was printed before the reply is on the
 * standard output when this returns. */
void wh_output_settle(uint16_t opcode, bool waits);

#endif
