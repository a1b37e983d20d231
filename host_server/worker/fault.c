/*
 * fault.c - the end of a session whose client broke the protocol: one line, and nothing else
 * notices.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "session.h"

#define WH_EXIT_PROTOCOL 3
#define WH_TEXT_BYTES 512

void wh_protocol_fault(struct wh_session *session, const char *format, ...)
{
    static uint32_t spoken;
    char text[WH_TEXT_BYTES];
    va_list arguments;
    /* Of several threads that find a fault at once one says so; it ends the others. */
    while (__atomic_exchange_n(&spoken, 1, __ATOMIC_ACQ_REL) != 0) {
        pause();
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    fprintf(stderr, "wormhole-worker: the session ends: its client sent %s\n", text);
    if (session->header != NULL) {
        session->header->host_error = -EBADMSG;
        /* Pairs with the client's look at host_state, which it takes while it waits. */
        wh_store_release32(&session->header->host_state, WH_HOST_STATE_DEAD);
        wh_wake_client(session);
    }
    _exit(WH_EXIT_PROTOCOL);
}
