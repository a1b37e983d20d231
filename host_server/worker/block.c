/*
 * block.c - around backend calls that may block: other requests go on meanwhile.
 */
#include "ring.h"
#include "tcp.h"

void wh_block_begin(struct wh_session *session)
{
    struct wh_executor *executor = wh_this_executor;
    if (executor == NULL || !executor->leads) {
        return;
    }
    if (session->ring != NULL) {
        wh_ring_yield(executor);
    } else {
        wh_tcp_yield(executor);
    }
}

void wh_block_end(struct wh_session *session)
{
    struct wh_executor *executor = wh_this_executor;
    /* Before the reply is published, so that the client's next request finds a leader and sends no
     * notification. */
    if (executor != NULL && session->ring != NULL && !executor->leads) {
        wh_ring_return(executor);
    }
}
