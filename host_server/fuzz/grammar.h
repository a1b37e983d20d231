/*
 * grammar.h - what a message of each function consists of, as the fuzzer needs to know it.
 */
#ifndef WH_FUZZ_GRAMMAR_H
#define WH_FUZZ_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

/* One item of a message. */
enum wh_item_kind {
    WH_FUZZ_NUMBER,       /* a scalar; `hint` says which numbers mean something */
    WH_FUZZ_COUNT,        /* the number of handles in the next list */
    WH_FUZZ_HANDLE,       /* of kind `argument` */
    WH_FUZZ_HANDLES,      /* a list of handles of that kind; `hint` 1: exactly one */
    WH_FUZZ_BYTES,        /* a blob */
    WH_FUZZ_DATA,         /* a blob of as many bytes as the length before says */
    WH_FUZZ_TRIPLE,       /* a blob of three sizes; `hint` says of what */
    WH_FUZZ_LIST,         /* a property list; `argument` is the first name of its family */
    WH_FUZZ_STRING,       /* a blob that ends in NUL; `hint` says what for */
    WH_FUZZ_SOURCE,       /* a program's text */
    WH_FUZZ_OUT,          /* an output area */
    WH_FUZZ_OUT_SIZE,     /* an output area of the size that the number before named */
    WH_FUZZ_CREATED,      /* the handle of a new object of kind `argument` */
    WH_FUZZ_CREATED_LIST, /* handles of several new objects */
    WH_FUZZ_EVENT,        /* a new event or 0 */
    WH_FUZZ_READS,        /* questions about reads that are under way */
    WH_FUZZ_ANSWER,       /* what follows a transfer: its mode and direction decide the form */
    WH_FUZZ_IMAGE,        /* what follows the handle of a new image */
    WH_FUZZ_BUFFER,       /* what follows a new buffer's context and properties */
    WH_FUZZ_BINARY,       /* a program's binary: its size, then its bytes */
    WH_FUZZ_ARGUMENT,     /* an argument of a kernel: index, sort, size, bytes */
    WH_FUZZ_HEADERS,      /* programs that are headers, and their names */
    WH_FUZZ_PART,         /* of a buffer: the kind of description, origin and size */
    WH_FUZZ_PARTITION,    /* how a device is divided, what is wanted, the parts' handles */
    WH_FUZZ_PACKED,       /* kernel arguments that travel with a launch */
    WH_FUZZ_GEOMETRY,     /* dimensions, which sizes are given, the sizes */
    WH_FUZZ_CONTEXT,      /* from here on CUDA's: the calling thread's device */
    WH_FUZZ_ADDRESS,      /* a pointer of the device's */
    WH_FUZZ_STREAM,       /* a stream, or the number of one of the device's own */
    WH_FUZZ_SCALAR,       /* a pointer, or bytes */
    WH_FUZZ_RESULT,       /* how many bytes of the host's, then an output area; or a pointer */
    WH_FUZZ_INOUT,        /* bytes, and an output area of as many */
    WH_FUZZ_FLOAT,        /* bits of a number */
    WH_FUZZ_CONTENT,      /* a descriptor as a value, of kind `argument` */
    WH_FUZZ_LT,           /* a descriptor that is plain bytes */
    WH_FUZZ_CODE,         /* device code: digest, size, an output area, the bytes */
    WH_FUZZ_NAME,         /* of a kernel or variable in it */
    WH_FUZZ_LAUNCH,       /* geometry, attributes, packed parameters; `argument` 1: without the
                             last, 2: without the second */
    WH_FUZZ_COPY,         /* of a graph */
    WH_FUZZ_AREA,         /* what follows a copy's address; `argument` 1: it goes out */
    WH_FUZZ_PINNED,       /* an address in the arena */
    WH_FUZZ_ELEMENTS,     /* of an attribute; `argument` 1: it is asked for */
    WH_FUZZ_PACK,         /* what an execution of a graph is given */
};

/* Numbers that mean something. */
enum wh_hint {
    WH_HINT_ANY,
    WH_HINT_SIZE,
    WH_HINT_LENGTH, /* a size that is not 0, of the data behind it */
    WH_HINT_SMALL,
    WH_HINT_ZERO, /* usually */
    WH_HINT_ROOM, /* no more than an output area has */
    WH_HINT_ID,   /* of a callback, not 0 */
    WH_HINT_FLAGS,
    WH_HINT_BOOLEAN,
    WH_HINT_QUERY, /* `argument` is the first number of the family */
    WH_HINT_MODE,  /* of a transfer, below `argument`: cl_mode of wire.yaml */
    WH_HINT_PHASE, /* of a new image: cl_phase of wire.yaml */
    WH_HINT_TIME,
    WH_HINT_ORIGIN, /* of triples */
    WH_HINT_REGION,
    WH_HINT_PATH, /* of strings */
    WH_HINT_OPTIONS,
};

struct wh_item {
    uint8_t kind;
    uint8_t hint;
    uint16_t argument;
};

#define WH_ITEMS_MAX 40

struct wh_shape {
    uint16_t opcode;
    uint8_t count;
    const char *name;
    struct wh_item items[WH_ITEMS_MAX];
};

/* What a descriptor that comes as a value consists of. */
struct wh_entry_shape {
    uint8_t kind; /* of the descriptor */
    struct wh_shape shape;
};

struct wh_shapes {
    const struct wh_shape *shapes;
    size_t count;
};

/* Generated; functions of the runtime itself come first in both. */
extern const struct wh_shapes wh_opencl_shapes;
extern const struct wh_shapes wh_cuda_shapes;
extern const struct wh_entry_shape wh_entry_shapes[];
extern const size_t wh_entry_shape_count;

#endif
