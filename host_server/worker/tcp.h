/*
 * tcp.h - requests from connections, one thread each.
 */
#ifndef WH_WORKER_TCP_H
#define WH_WORKER_TCP_H

#include "session.h"

/* Serves a connection that has been greeted. 0 or -errno; the socket is closed in either case when
 * done. */
int wh_tcp_start(struct wh_session *session, int socket);

/* Connections being served, without those that the client has closed while a call of it waits: it
 * may wait for something that never comes. The session ends when none is left. The main thread's.
 */
uint32_t wh_tcp_connections(void);

/* Sends a heartbeat on every connection whose request was already pending at the call before. To be
 * called twice a second; never waits for a client. */
void wh_tcp_beat(void);

void wh_tcp_counters(struct wh_worker_counters *totals);

/* The turn of ordered requests while a call blocks. */
void wh_tcp_yield(struct wh_executor *executor);

#endif
