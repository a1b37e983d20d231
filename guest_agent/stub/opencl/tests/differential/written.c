/*
 * written.c - cases written by hand, where a call alone says nothing: see the files beside it.
 */
#include "cases.h"

const struct group written_groups[1];
const size_t written_group_count = 0;
