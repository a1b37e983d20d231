/*
 * callback.h - the application's callbacks: kept here under a number, run when the server says that
 * they are due.
 *
 * Those that the real library makes inside a call run in the calling thread before that call
 * returns, all others in one thread of the stub. In either, callbacks of one object run one after
 * the other in the order in which the real library made them, and no lock of the stub is held: a
 * callback may call the API again, also calls that block.
 */
#ifndef WH_CL_CALLBACK_H
#define WH_CL_CALLBACK_H

#include "object.h"

typedef void(CL_CALLBACK *wh_cl_notify)(const char *, const void *, size_t, void *);

/* A context's own function: its number for the server, 0 without memory. Its end. */
uint64_t wh_cl_notify_add(wh_cl_notify function, void *data);
void wh_cl_notify_end(uint64_t id);

/* Whether this session has had callbacks. */
bool wh_cl_has_callbacks(void);

/* Runs what the calls of this thread have made due. At the end of an API call, without locks. */
void wh_cl_run_owed(void);

#endif
