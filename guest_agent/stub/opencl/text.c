/*
 * text.c - text that grows.
 */
#include "text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void wh_text_add(struct wh_text *text, const char *bytes, size_t size)
{
    if (text->failed || size > SIZE_MAX / 4 - text->size) {
        text->failed = true;
        return;
    }
    if (text->size + size + 1 > text->capacity) {
        size_t capacity = (text->size + size + 1) * 2;
        char *grown = realloc(text->bytes, capacity);
        if (grown == NULL) {
            text->failed = true;
            return;
        }
        text->bytes = grown;
        text->capacity = capacity;
    }
    if (size > 0) {
        memcpy(text->bytes + text->size, bytes, size);
    }
    text->size += size;
    text->bytes[text->size] = '\0';
}

void wh_text_add_string(struct wh_text *text, const char *string)
{
    wh_text_add(text, string, strlen(string));
}
