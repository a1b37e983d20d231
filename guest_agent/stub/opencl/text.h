/*
 * text.h - text that grows. It always ends with a NUL that is not counted; the first failure
 * sticks.
 */
#ifndef WH_TEXT_H
#define WH_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct wh_text {
    char *bytes; /* to be freed; NULL if nothing was added */
    size_t size;
    size_t capacity;
    bool failed;
};

void wh_text_add(struct wh_text *text, const char *bytes, size_t size);
void wh_text_add_string(struct wh_text *text, const char *string);

#endif
