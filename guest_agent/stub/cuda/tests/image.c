/*
 * image.c - the test program's device code for the double: a shared library behind the header of a
 * fat binary, registered as the compiler's start-up code does it.
 */
#include <string.h>

#include "client.h"
#include "wh_cudart.h"

#ifndef KERNELS
#error "give the path of the kernels' library"
#endif

__asm__(".section .rodata\n"
        ".balign 16\n"
        "kernels_image:\n"
        ".long 0xba55ed50\n"
        ".short 1\n"
        ".short 16\n"
        ".quad kernels_end - kernels_begin\n"
        "kernels_begin:\n"
        ".incbin \"" KERNELS "\"\n"
        "kernels_end:\n"
        ".balign 16\n"
        ".previous\n");
extern const char kernels_image[];

static struct {
    int magic;
    int version;
    const void *data;
    void *filename;
} wrapper = {0x466243b1, 1, kernels_image, NULL};

static const char *const names[] = {"vector_add",   "scale", "slow_store",
                                    "layout_probe", "fault", "sum_table"};
static char functions[sizeof(names) / sizeof(names[0])]; /* their addresses are the kernels' */
static char table[256];
static void **image;

__attribute__((constructor)) static void register_all(void)
{
    image = __cudaRegisterFatBinary(&wrapper);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        __cudaRegisterFunction(image, &functions[i], (char *)names[i], names[i], -1, NULL, NULL,
                               NULL, NULL, NULL);
    }
    __cudaRegisterVar(image, table, (char *)"table", "table", 0, sizeof(table), 0, 0);
    __cudaRegisterFatBinaryEnd(image);
}

__attribute__((destructor)) static void unregister_all(void)
{
    __cudaUnregisterFatBinary(image);
}

const void *client_kernel(const char *name)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], name) == 0) {
            return &functions[i];
        }
    }
    return NULL;
}

const void *client_table(void)
{
    return table;
}
