/*
 * answers.h - replies that cannot change, kept by the request that they answer.
 */
#ifndef WH_ANSWERS_H
#define WH_ANSWERS_H

#include "call.h"

/*
 * As wh_call_sync, for a question that always has the same answer: the second time it is taken from
 * here, without a message, where local answers are on. The last `free_bytes` of the request do not
 * belong to the question. Only replies whose first item is `kept_status` are kept.
 */
int wh_call_pure(struct wh_call *call, size_t free_bytes, uint64_t kept_status);

#endif
