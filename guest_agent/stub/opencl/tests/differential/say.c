/*
 * say.c - how outputs become text that is the same in every run: bytes, objects by their names,
 * contents of memory by their hashes.
 */
#include "cases.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_BYTES_MAX ((size_t)48)
#define SHOWN_TEXT_MAX ((size_t)1200)
/* Addresses of a Linux process differ from run to run; what lies between these is taken for one. */
#define ADDRESS_MIN 0x500000000000ull
#define ADDRESS_MAX 0x800000000000ull
#define ADDRESS_MARK 0xaddeaddeadde0000ull

void say(struct outcome *outcome, const char *format, ...)
{
    va_list arguments;
    size_t room = sizeof(outcome->text) - outcome->length;
    va_start(arguments, format);
    int length = vsnprintf(outcome->text + outcome->length, room, format, arguments);
    va_end(arguments);
    if (length > 0) {
        outcome->length += (size_t)length < room ? (size_t)length : room - 1;
    }
}

uint64_t hash_of(const void *bytes, size_t size)
{
    const uint8_t *from = bytes;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ from[i]) * 0x100000001b3ull;
    }
    return hash;
}

struct known {
    const char *name;
    size_t offset;
};

#define KNOWN(member) {#member, offsetof(struct setting, member)}

static const struct known known[] = {
    KNOWN(platform),  KNOWN(device),  KNOWN(context), KNOWN(queue), KNOWN(foreign),
    KNOWN(mem),       KNOWN(other),   KNOWN(sub),     KNOWN(image), KNOWN(other_image),
    KNOWN(program),   KNOWN(unbuilt), KNOWN(kernel),  KNOWN(event), KNOWN(failed),
    KNOWN(elsewhere), KNOWN(sampler), KNOWN(command), KNOWN(host),  KNOWN(answer),
    KNOWN(abroad)};

static size_t known_index(const struct setting *setting, uint64_t word)
{
    for (size_t i = 0; word != 0 && i < sizeof(known) / sizeof(known[0]); i++) {
        uint64_t object = 0;
        memcpy(&object, (const uint8_t *)setting + known[i].offset, sizeof(object));
        if (object == word) {
            return i;
        }
    }
    return sizeof(known) / sizeof(known[0]);
}

void name_addresses(const struct setting *setting, void *bytes, size_t size)
{
    uint8_t *at = bytes;
    for (size_t offset = 0; offset + 8 <= size; offset += 8) {
        uint64_t word = 0;
        memcpy(&word, at + offset, sizeof(word));
        if (word >= ADDRESS_MIN && word < ADDRESS_MAX) {
            word = ADDRESS_MARK + known_index(setting, word);
            memcpy(at + offset, &word, sizeof(word));
        }
    }
}

static bool is_text(const uint8_t *bytes, size_t size)
{
    if (size < 2 || bytes[size - 1] != 0 || size > SHOWN_TEXT_MAX) {
        return false;
    }
    for (size_t i = 0; i + 1 < size; i++) {
        if (!isprint(bytes[i]) && bytes[i] != '\n') {
            return false;
        }
    }
    return true;
}

static void say_text(struct outcome *outcome, const uint8_t *bytes, size_t size)
{
    say(outcome, "\"");
    for (size_t i = 0; i + 1 < size; i++) {
        say(outcome, "%c", bytes[i] == '\n' ? '|' : bytes[i]);
    }
    say(outcome, "\"");
}

static void say_words(const struct setting *setting, struct outcome *outcome, const uint8_t *bytes,
                      size_t size)
{
    for (size_t offset = 0; offset < size;) {
        uint64_t word = 0;
        size_t part = size - offset >= 8 ? 8 : size - offset;
        memcpy(&word, bytes + offset, part);
        size_t index = part == 8 ? known_index(setting, word) : sizeof(known) / sizeof(known[0]);
        say(outcome, "%s", offset == 0 ? "" : ",");
        if (index < sizeof(known) / sizeof(known[0])) {
            say(outcome, "%s", known[index].name);
        } else if (part == 8 && word >= ADDRESS_MIN && word < ADDRESS_MAX) {
            say(outcome, "address");
        } else {
            say(outcome, "%llx", (unsigned long long)word);
        }
        offset += part;
    }
}

void say_bytes(const struct setting *setting, struct outcome *outcome, const char *name,
               const void *bytes, size_t size)
{
    say(outcome, " %s=", name);
    if (is_text(bytes, size)) {
        say_text(outcome, bytes, size);
    } else if (size <= SHOWN_BYTES_MAX) {
        say_words(setting, outcome, bytes, size);
    } else {
        uint8_t copy[ANSWER_BYTES];
        size_t part = size < sizeof(copy) ? size : sizeof(copy);
        memcpy(copy, bytes, part);
        name_addresses(setting, copy, part);
        say(outcome, "#%016llx:%zu", (unsigned long long)hash_of(copy, part), size);
    }
}

void say_array(const struct setting *setting, struct outcome *outcome, const char *name,
               const void *elements, size_t element_size)
{
    const uint8_t *bytes = elements;
    size_t used = 0;
    for (size_t i = 0; i < OUTPUTS; i++) {
        for (size_t k = 0; k < element_size; k++) {
            used = bytes[i * element_size + k] != 0 ? i + 1 : used;
        }
    }
    say_bytes(setting, outcome, name, elements, (used == 0 ? 1 : used) * element_size);
}

void say_object(const struct setting *setting, struct outcome *outcome, const char *name,
                const void *object)
{
    size_t index = known_index(setting, (uint64_t)(uintptr_t)object);
    const char *is = object == NULL                             ? "NULL"
                     : index < sizeof(known) / sizeof(known[0]) ? known[index].name
                                                                : "object";
    say(outcome, " %s=%s", name, is);
}

void say_event(struct outcome *outcome, const char *name, cl_event event)
{
    cl_command_type type = 0;
    cl_int status = 99;
    if (event == NULL) {
        say(outcome, " %s=NULL", name);
        return;
    }
    cl_int waited = clWaitForEvents(1, &event);
    clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL);
    clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL);
    say(outcome, " %s=%x:%d:%d", name, type, waited, status);
    clReleaseEvent(event);
}

void say_memory(struct setting *setting, struct outcome *outcome)
{
    uint8_t copy[DATA_BYTES];
    cl_mem mems[] = {setting->mem, setting->other};
    clFinish(setting->queue);
    for (size_t i = 0; i < 2; i++) {
        memset(copy, 0, sizeof(copy));
        cl_int error = clEnqueueReadBuffer(setting->queue, mems[i], CL_TRUE, 0, sizeof(copy), copy,
                                           0, NULL, NULL);
        say(outcome, " %s=%d#%08x", i == 0 ? "mem" : "other", error,
            (unsigned)hash_of(copy, sizeof(copy)));
    }
    say(outcome, " host=#%08x", (unsigned)hash_of(setting->host, DATA_BYTES));
}

void say_images(struct setting *setting, struct outcome *outcome)
{
    const size_t origin[3] = {0, 0, 0};
    const size_t region[3] = {IMAGE_SIDE, IMAGE_SIDE, 1};
    uint8_t copy[IMAGE_SIDE * IMAGE_SIDE * 4];
    cl_mem images[] = {setting->image, setting->other_image};
    clFinish(setting->queue);
    for (size_t i = 0; i < 2; i++) {
        memset(copy, 0, sizeof(copy));
        cl_int error = images[i] == NULL
                           ? CL_INVALID_MEM_OBJECT
                           : clEnqueueReadImage(setting->queue, images[i], CL_TRUE, origin, region,
                                                0, 0, copy, 0, NULL, NULL);
        say(outcome, " %s=%d#%08x", i == 0 ? "image" : "other_image", error,
            (unsigned)hash_of(copy, sizeof(copy)));
    }
}
