/*
 * service.h - threads of the stub's own, which wait for what only the server can know: callbacks
 * that are due, output of kernels. Started by the first use, never joined: they sleep in a call
 * until the process ends, and end themselves when the session does.
 */
#ifndef WH_SERVICE_H
#define WH_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

/* Starts one, with all signals blocked but those that a thread causes itself. 0 or -errno. */
int wh_service_start(const char *name, void (*run)(void));

/* Sleeps, without any spinning, until something of `wanted` (enum wh_wait_for) is there. False: the
 * session has ended. */
bool wh_service_wait(uint64_t wanted);

/*
 * Where the real library runs the callbacks of a command before it shows the command complete, a
 * program may count on that. So a call that has blocked waits until the callback thread has run
 * what was queued before its reply; for a second at most, since a callback may be waiting for
 * whoever made the call. queued: as the reply says.
 */
void wh_service_await(uint32_t queued);

/* A callback that was queued has run; before the thread is started that runs them. */
void wh_service_ran(void);
void wh_service_begin(void);

#endif
