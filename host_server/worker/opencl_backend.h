/*
 * opencl_backend.h - what the OpenCL skeletons share: the real library's functions, handles of
 * requests, pending transfers.
 */
#ifndef WH_OPENCL_BACKEND_H
#define WH_OPENCL_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "skeleton.h"
#include "wh_opencl_table.h"
#include "wh_wire.h"

#define WH_CL_BLOB_BYTES_MAX ((size_t)1 << 30)
#define WH_CL_DEVICES_MAX 62u /* handles 1 to 62 */

/* The real library; filled by wh_cl_load. */
extern const struct wh_opencl_table *wh_cl;

/* The same, never measured: for calls that native does not make, which are no backend's time. */
extern const struct wh_opencl_table *const wh_cl_own;

/* Generated: the same functions, each measured (times.h). */
const struct wh_opencl_table *wh_cl_timed(const struct wh_opencl_table *real);

/* The first platform and its devices, in the library's order. */
struct wh_cl_devices {
    cl_platform_id platform;
    cl_device_id devices[WH_CL_DEVICES_MAX];
    cl_uint count;
};
extern struct wh_cl_devices wh_cl_devices;

/* Whether bytes of a request stay after the call (a replayed file); a worker copies what the device
 * reads later. */
extern bool wh_cl_requests_stay;

/* Finds the functions and the platform, and gives the devices their handles. 0, or -errno with a
 * line of text. */
int wh_cl_load(struct wh_session *session, char *error, size_t error_bytes);

/* Refuses to go on with our own library behind the loader: it would forward to itself. 0 or -ELOOP
 * with text. */
int wh_cl_refuse_own(char *error, size_t error_bytes);

uint64_t wh_cl_device_handle(cl_device_id device); /* 0: none of ours */

/* Object behind a handle; *error becomes the API's error for a wrong one, unless it is already set.
 */
void *wh_cl_object(struct wh_request *request, uint64_t handle, uint8_t kind, cl_int *error);

/* A list of handles as objects, in memory that ends with the call. NULL and 0 for an empty one. */
void **wh_cl_objects(struct wh_request *request, uint8_t kind, cl_uint *count, cl_int *error);

/* A list of strings, in memory that ends with the call. NULL and 0 for none. */
const char **wh_cl_strings(struct wh_request *request, cl_uint *count);

/* A callback of the backend about a program, awaited in place of the client (NULL: not wanted). */
struct wh_cl_notice;
struct wh_cl_notice *wh_cl_notice_new(bool wanted, cl_int *error);
void CL_CALLBACK wh_cl_notify(cl_program program, void *notice);
void wh_cl_notice_wait(struct wh_cl_notice *notice, cl_int error);
bool wh_cl_notice_end(struct wh_cl_notice *notice); /* whether it came */

/* Gives a new object its handle. Without success it passes the error on; a handle in use ends the
 * session. */
cl_int wh_cl_register(struct wh_request *request, uint64_t handle, uint8_t kind, void *object,
                      cl_int error);

/* The same for a memory object that lies in this block of the client's (opencl_place.c). The block
 * is the client's again when nothing uses the object any more: not when its handle ends, for
 * commands may still run. */
cl_int wh_cl_register_placed(struct wh_request *request, uint64_t handle, cl_mem mem,
                             uint64_t block, cl_int error);

/* After a retain that the library has done. */
void wh_cl_count_retain(struct wh_request *request, uint64_t handle, uint8_t kind, cl_int error);

/* Before a release: whether the library shall do it. False with CL_SUCCESS keeps the object for its
 * children; a release too many sets the API's error. */
bool wh_cl_count_release(struct wh_request *request, uint64_t handle, uint8_t kind,
                         const void *object, bool last, cl_int *error);

/* Handles that end because their last child did. */
void wh_cl_forget(struct wh_request *request, const uint64_t *handles, size_t size_bytes);

void wh_cl_reply_error(struct wh_request *request, uint16_t opcode, cl_int error);

/* Zeros in place of an answer that is a pointer of this process. */
void wh_cl_hide(cl_uint param, const cl_uint *opaque, size_t count, void *value, size_t size_bytes);

/* Answers that would promise too much (opencl_truth.c); the list comes from the spec. */
enum wh_cl_truth_rule {
    WH_CL_TRUTH_HIDDEN,
    WH_CL_TRUTH_CLEARED,
    WH_CL_TRUTH_EXTENSIONS,
    WH_CL_TRUTH_VERSIONS,
};
struct wh_cl_truth {
    cl_uint param;
    enum wh_cl_truth_rule rule;
    uint64_t bits;
};
typedef cl_int (*wh_cl_ask)(void *object, cl_uint param, size_t size, void *value, size_t *written);
cl_int wh_cl_tell(wh_cl_ask ask, void *object, const struct wh_cl_truth *truths, size_t count,
                  cl_uint param, size_t size, void *value, size_t *written);
extern const char *const wh_cl_extensions[]; /* NULL at the end */

bool wh_cl_properties_end(const void *properties, size_t size_bytes);
bool wh_cl_string_ends(const char *text, size_t size_bytes);

/* At least least_bytes of bytes of a request, zeros behind those that came; NULL for NULL. */
const void *wh_cl_padded(struct wh_request *request, const void *bytes, size_t size_bytes,
                         size_t least_bytes);
/* What a context reports goes to the client under its number for it (opencl_callback.c), which is
 * also the function's data; NULL for 0: it does not want to know. */
typedef void(CL_CALLBACK *wh_cl_notify_function)(const char *, const void *, size_t, void *);
wh_cl_notify_function wh_cl_context_notify(struct wh_request *request, uint64_t id);

/* What a query of image formats wrote. */
size_t wh_cl_image_format_bytes(cl_uint num_entries, const cl_uint *num_image_formats);

/* The reads that a call asks about, see reads.c of the stub. */
struct wh_cl_reads {
    struct wh_session *session;
    cl_uint count;
    struct {
        uint64_t id;
        bool carried;
        void *to;
        size_t capacity_bytes;
        uint64_t flag;
        size_t written_bytes;
    } items[WH_CL_READS_ASKED_MAX];
};

void wh_cl_take_reads(struct wh_request *request, struct wh_cl_reads *reads);

/* What the last call of this thread asked; a replay resets it and compares what it says with care.
 */
struct wh_cl_asked {
    cl_uint count;
    cl_uint carried;
};
extern __thread struct wh_cl_asked wh_cl_asked;

/* Finds out which are complete; all of `finished` (NULL: no queue) are. Then the reply: flags, own
 * outs, data. */
void wh_cl_look(struct wh_cl_reads *reads, cl_command_queue finished);
void wh_cl_reply_flags(struct wh_request *request, const struct wh_cl_reads *reads);
void wh_cl_reply_reads(struct wh_request *request, const struct wh_cl_reads *reads);

/* Whether a reply is different in every run, so that a replay must not compare it. items: the
 * request's first words. */
bool wh_cl_reply_volatile(uint16_t opcode, const uint64_t *items, size_t count);

#endif
