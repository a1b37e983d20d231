/*
 * cases.h - what the differential program's cases are made of: the objects they use, and the line
 * that says what came of a case. Nothing here expects anything: the same program runs natively and
 * forwarded, and the lines are compared.
 */
#ifndef WH_DIFFERENTIAL_CASES_H
#define WH_DIFFERENTIAL_CASES_H

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_egl.h>
#include <CL/cl_ext.h>
#include <CL/cl_gl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DATA_BYTES ((size_t)4096)
/* Around the host memory: what wrong origins and pitches reach without harm. */
#define AROUND_BYTES ((size_t)32768)
#define IMAGE_SIDE ((size_t)16)
#define ANSWER_BYTES ((size_t)16384)
#define OUTPUTS 256    /* elements of an output array */
#define UNTOUCHED 0xa5 /* what outputs hold before the call */

/* Objects of one group of cases. */
struct setting {
    cl_platform_id platform;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;   /* in order, with profiling */
    cl_command_queue foreign; /* of another context, as are its buffer and its event */
    cl_mem mem;               /* DATA_BYTES */
    cl_mem other;
    cl_mem sub; /* the second half of mem */
    cl_mem image;
    cl_mem other_image;
    cl_mem abroad;      /* DATA_BYTES in the other context */
    cl_program program; /* built */
    cl_program unbuilt;
    cl_kernel kernel;   /* its arguments are set */
    cl_event event;     /* a user's, complete */
    cl_event failed;    /* a user's, ended with an error */
    cl_event command;   /* of a command, complete */
    cl_event elsewhere; /* complete, of the other context */
    cl_sampler sampler;
    uint8_t *area; /* DATA_BYTES with AROUND_BYTES on either side */
    uint8_t *host; /* DATA_BYTES in the middle of it */
    uint8_t *answer;
};

/* What came of a case, as text. */
struct outcome {
    char text[6000];
    size_t length;
};

/* One function of the API or one matter written by hand. */
struct group {
    const char *name;
    size_t case_count;
    void (*name_case)(size_t number, char *name, size_t size);
    /* Natively undefined: the error that the API's specification demands; 0 for all others. */
    cl_int (*undefined)(size_t number);
    void (*run)(struct setting *setting, size_t number, struct outcome *outcome);
};

extern const struct group generated_groups[];
extern const size_t generated_group_count;
extern const struct group written_groups[];
extern const size_t written_group_count;

/* The loader's function of this name, or the platform's; NULL if there is none. */
void *find_function(const struct setting *setting, const char *name);

/* Adds to what came of a case. */
__attribute__((format(printf, 2, 3))) void say(struct outcome *outcome, const char *format, ...);
void say_bytes(const struct setting *setting, struct outcome *outcome, const char *name,
               const void *bytes, size_t size);
void say_array(const struct setting *setting, struct outcome *outcome, const char *name,
               const void *elements, size_t element_size); /* of OUTPUTS */
void say_object(const struct setting *setting, struct outcome *outcome, const char *name,
                const void *object);
void say_event(struct outcome *outcome, const char *name, cl_event event); /* releases it */

/* Waits for the queue and says what the buffers and the host memory hold. */
void say_memory(struct setting *setting, struct outcome *outcome);
void say_images(struct setting *setting, struct outcome *outcome);

uint64_t hash_of(const void *bytes, size_t size);

/* Another value for each word that may be an address: a name, or that it is one. */
void name_addresses(const struct setting *setting, void *bytes, size_t size);

bool setting_open(struct setting *setting);
void setting_close(struct setting *setting);
void setting_reset(struct setting *setting); /* the data as at the beginning */

/* New objects, for calls that use one up. */
cl_context fresh_context(struct setting *setting);
cl_command_queue fresh_queue(struct setting *setting);
cl_mem fresh_mem(struct setting *setting);
cl_program fresh_program(struct setting *setting);
cl_kernel fresh_kernel(struct setting *setting);
cl_event fresh_event(struct setting *setting);
cl_sampler fresh_sampler(struct setting *setting);

/* Pointers to objects that have just gone. */
cl_context released_context(struct setting *setting);
cl_command_queue released_queue(struct setting *setting);
cl_mem released_mem(struct setting *setting);
cl_program released_program(struct setting *setting);
cl_kernel released_kernel(struct setting *setting);
cl_event released_event(struct setting *setting);
cl_sampler released_sampler(struct setting *setting);

#endif
