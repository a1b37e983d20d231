/*
 * context.c - devices and contexts.
 */
#include "callback.h"

#include <stdlib.h>
#include <string.h>

#include "fork_lock.h"
#include "wh_opencl_kinds.h"
#include "wh_wire.h"

#define TYPES_MAX 16u
#define SUB_DEVICES_MAX 1024u     /* made by one call */
#define PARTITION_ITEMS_MAX 1032u /* of a list of properties */

/* Answers to clGetDeviceIDs by type. Devices do not change while a server runs. */
static struct {
    cl_device_type type;
    uint32_t serial;
    cl_int error;
    cl_uint count;
    uint64_t handles[WH_CL_DEVICES_MAX];
} known[TYPES_MAX];
static uint32_t known_count;
WH_FORK_LOCK(known_lock);

/* capacity: handles wanted, 0 for none. */
static cl_int ask_devices(cl_device_type type, cl_uint capacity, uint64_t *handles, cl_uint *count)
{
    struct wh_call call;
    if (wh_call_begin(&call, WH_OP_clGetDeviceIDs) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, wh_cl_handle(wh_cl_platform()));
    wh_put_u64(&call, type);
    wh_put_u64(&call, capacity);
    wh_put_out(&call, capacity * sizeof(uint64_t), capacity > 0);
    cl_int error = wh_cl_call_sync(&call);
    *count = (cl_uint)wh_get_u64(&call);
    (void)wh_get_out(&call, handles, capacity * sizeof(uint64_t));
    wh_call_end(&call);
    return error;
}

static cl_int known_devices(cl_device_type type, uint64_t *handles, cl_uint *count)
{
    uint32_t serial = wh_session_serial();
    cl_int error = CL_SUCCESS;
    bool found = false;
    pthread_mutex_lock(&known_lock);
    for (uint32_t i = 0; i < known_count && !found; i++) {
        if (known[i].type == type && known[i].serial == serial && serial != 0) {
            found = true;
            error = known[i].error;
            *count = known[i].count;
            memcpy(handles, known[i].handles, sizeof(known[i].handles));
        }
    }
    pthread_mutex_unlock(&known_lock);
    if (found) {
        return error;
    }
    error = ask_devices(type, WH_CL_DEVICES_MAX, handles, count);
    *count = *count < WH_CL_DEVICES_MAX ? *count : WH_CL_DEVICES_MAX;
    if (error != CL_SUCCESS && error != CL_DEVICE_NOT_FOUND) {
        return error;
    }
    pthread_mutex_lock(&known_lock);
    uint32_t place = known_count < TYPES_MAX ? known_count++ : TYPES_MAX - 1;
    known[place].type = type;
    known[place].serial = wh_session_serial();
    known[place].error = error;
    known[place].count = *count;
    memcpy(known[place].handles, handles, sizeof(known[place].handles));
    pthread_mutex_unlock(&known_lock);
    return error;
}

cl_int CL_API_CALL wh_stub_clGetDeviceIDs(cl_platform_id platform, cl_device_type device_type,
                                          cl_uint num_entries, cl_device_id *devices,
                                          cl_uint *num_devices)
{
    uint64_t handles[WH_CL_DEVICES_MAX] = {0};
    cl_uint count = 0;
    cl_int error;
    WH_API_CALL();
    if (platform != NULL && !wh_cl_live(platform, WH_KIND_PLATFORM)) {
        return CL_INVALID_PLATFORM;
    }
    if ((devices == NULL && num_devices == NULL) || (devices != NULL && num_entries == 0)) {
        return CL_INVALID_VALUE;
    }
    if (wh_local_answers()) {
        error = known_devices(device_type, handles, &count);
    } else {
        cl_uint most = num_entries < WH_CL_DEVICES_MAX ? num_entries : WH_CL_DEVICES_MAX;
        error = ask_devices(device_type, devices != NULL ? most : 0, handles, &count);
    }
    if (error != CL_SUCCESS) {
        if (error == CL_DEVICE_NOT_FOUND && num_devices != NULL) {
            *num_devices = 0;
        }
        return error;
    }
    for (cl_uint i = 0; devices != NULL && i < num_entries && i < count; i++) {
        devices[i] = (cl_device_id)wh_cl_device(handles[i]);
        if (devices[i] == NULL) {
            return CL_OUT_OF_RESOURCES; /* the server broke the contract */
        }
    }
    if (num_devices != NULL) {
        *num_devices = count;
    }
    return CL_SUCCESS;
}

/* Items of a list of properties, its end included: a list of counts ends with a 0 of its own. */
static size_t count_properties(const cl_device_partition_property *properties)
{
    size_t count = 1;
    if (properties == NULL) {
        return 0;
    }
    while (properties[0] != 0 && properties[count] != 0 && count < PARTITION_ITEMS_MAX - 2) {
        count++;
        if (properties[0] != CL_DEVICE_PARTITION_BY_COUNTS) {
            break; /* a kind and its value */
        }
    }
    return count;
}

/* The server makes at most as many devices as there are objects for them. */
static cl_int ask_sub_devices(const struct wh_cl_object *whole,
                              const cl_device_partition_property *properties, cl_uint num_devices,
                              struct wh_cl_object *const *objects, cl_uint *count,
                              bool count_wanted)
{
    cl_device_partition_property list[PARTITION_ITEMS_MAX] = {0};
    struct wh_call call;
    size_t items = count_properties(properties);
    if (items > 0) {
        memcpy(list, properties, items * sizeof(list[0]));
        items += 2; /* the end of a list of counts, and of the list itself */
    }
    if (wh_call_begin(&call, WH_OP_clCreateSubDevices) != 0) {
        return WH_CL_LOST;
    }
    wh_put_u64(&call, whole->handle);
    wh_put_blob(&call, items > 0 ? list : NULL, items * sizeof(list[0]));
    wh_put_u64(&call, num_devices);
    wh_put_u64(&call, objects != NULL);
    wh_put_u64(&call, count_wanted);
    wh_cl_put_handles(&call, (const void *const *)objects, objects == NULL ? 0 : num_devices);
    cl_int error = wh_cl_call_sync(&call);
    *count = (cl_uint)wh_get_u64(&call);
    wh_call_end(&call);
    return error;
}

static cl_int make_sub_devices(struct wh_cl_object *whole,
                               const cl_device_partition_property *properties, cl_uint num_devices,
                               cl_device_id *devices, cl_uint *count, bool count_wanted)
{
    static struct wh_cl_object *none;
    cl_uint made = 0;
    cl_uint most = num_devices < SUB_DEVICES_MAX ? num_devices : SUB_DEVICES_MAX;
    struct wh_cl_object **objects = calloc(most + 1, sizeof(*objects));
    cl_int error = objects == NULL ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
    for (cl_uint i = 0; error == CL_SUCCESS && i < most; i++) {
        objects[i] = wh_cl_object_new(WH_KIND_DEVICE);
        error = objects[i] == NULL ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
    }
    if (error == CL_SUCCESS) {
        error = ask_sub_devices(whole, properties, most, most > 0 ? objects : &none, count,
                                count_wanted);
        made = error == CL_SUCCESS && *count < most ? *count : most;
    }
    for (cl_uint i = 0; objects != NULL && i < most; i++) {
        if (error == CL_SUCCESS && i < made) {
            wh_cl_set_parent(objects[i], whole);
            devices[i] = (cl_device_id)objects[i];
        } else {
            wh_cl_discard(objects[i]);
        }
    }
    free(objects);
    return error;
}

cl_int CL_API_CALL wh_stub_clCreateSubDevices(cl_device_id in_device,
                                              const cl_device_partition_property *properties,
                                              cl_uint num_devices, cl_device_id *out_devices,
                                              cl_uint *num_devices_ret)
{
    cl_uint count = 0;
    WH_API_CALL();
    struct wh_cl_object *whole = wh_cl_get(in_device, WH_KIND_DEVICE);
    if (whole == NULL) {
        return CL_INVALID_DEVICE;
    }
    bool count_wanted = num_devices_ret != NULL;
    cl_int error =
        out_devices == NULL
            ? ask_sub_devices(whole, properties, num_devices, NULL, &count, count_wanted)
            : make_sub_devices(whole, properties, num_devices, out_devices, &count, count_wanted);
    if (error == CL_SUCCESS && num_devices_ret != NULL) {
        *num_devices_ret = count;
    }
    return error;
}

/* Checks what the stub can tell of a context's properties. The platform must be ours. */
static cl_int check_properties(const cl_context_properties *properties)
{
    for (size_t i = 0; properties != NULL && properties[i] != 0; i += 2) {
        if (properties[i] == CL_CONTEXT_PLATFORM) {
            if (!wh_cl_live((const void *)properties[i + 1], WH_KIND_PLATFORM)) {
                return CL_INVALID_PLATFORM;
            }
        } else if (properties[i] != CL_CONTEXT_INTEROP_USER_SYNC) {
            return CL_INVALID_PROPERTY; /* sharing with graphics is not forwarded */
        }
    }
    return CL_SUCCESS;
}

/* The list with the server's platform in place of ours (0: the server knows which it is). */
static void put_properties(struct wh_call *call, const cl_context_properties *properties)
{
    cl_context_properties copy[16];
    size_t count = 0;
    if (properties == NULL) {
        wh_put_blob(call, NULL, 0);
        return;
    }
    while (properties[count] != 0 && count + 2 < sizeof(copy) / sizeof(copy[0])) {
        copy[count] = properties[count];
        copy[count + 1] = properties[count] == CL_CONTEXT_PLATFORM ? 0 : properties[count + 1];
        count += 2;
    }
    copy[count++] = 0;
    wh_put_blob(call, copy, count * sizeof(copy[0]));
}

static cl_int keep_context(struct wh_cl_object *object, const cl_context_properties *properties,
                           struct wh_cl_object *const *devices, cl_uint count)
{
    size_t bytes = wh_cl_properties_bytes(properties);
    object->context = object;
    object->u.of_context.devices = calloc(count > 0 ? count : 1, sizeof(void *));
    object->u.of_context.properties = malloc(bytes > 0 ? bytes : 1);
    if (object->u.of_context.devices == NULL || object->u.of_context.properties == NULL) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    if (bytes > 0) {
        memcpy(object->u.of_context.properties, properties, bytes);
    }
    object->u.of_context.properties_bytes = bytes;
    memcpy(object->u.of_context.devices, devices, count * sizeof(void *));
    object->u.of_context.device_count = count;
    wh_cl_hold_devices(object);
    return CL_SUCCESS;
}

/*
 * Sends the request of a new context and keeps what the reply says of its devices. Which they are
 * the real library decides: it may answer for the whole device where it was given parts.
 */
static cl_int make_context(struct wh_call *call, struct wh_cl_object *object,
                           const cl_context_properties *properties, cl_uint given_count,
                           const cl_device_id *given)
{
    uint64_t handles[WH_CL_DEVICES_MAX] = {0};
    struct wh_cl_object *devices[WH_CL_DEVICES_MAX];
    wh_put_u64(call, object->handle);
    wh_put_out(call, sizeof(handles), true);
    cl_int error = wh_cl_call_sync(call);
    cl_uint count = (cl_uint)wh_get_u64(call);
    (void)wh_get_out(call, handles, sizeof(handles));
    wh_call_end(call);
    if (error != CL_SUCCESS || count > WH_CL_DEVICES_MAX) {
        return error != CL_SUCCESS ? error : CL_OUT_OF_RESOURCES;
    }
    for (cl_uint i = 0; i < count; i++) {
        devices[i] = wh_cl_device(handles[i]);
        for (cl_uint k = 0; k < given_count; k++) {
            if (wh_cl_handle(given[k]) == handles[i]) {
                devices[i] = (struct wh_cl_object *)given[k];
            }
        }
        if (devices[i] == NULL) {
            return CL_OUT_OF_RESOURCES; /* the server broke the contract */
        }
    }
    return keep_context(object, properties, devices, count);
}

/* The function that is told of the context's errors; it ends with the object. */
static void put_notify(struct wh_call *call, struct wh_cl_object *object, wh_cl_notify function,
                       void *data)
{
    if (function != NULL) {
        object->u.of_context.notify = wh_cl_notify_add(function, data);
    }
    wh_put_u64(call, object->u.of_context.notify);
}

cl_context CL_API_CALL wh_stub_clCreateContext(const cl_context_properties *properties,
                                               cl_uint num_devices, const cl_device_id *devices,
                                               wh_cl_notify pfn_notify, void *user_data,
                                               cl_int *errcode_ret)
{
    struct wh_call call;
    WH_API_CALL();
    if (devices == NULL || num_devices == 0 || (pfn_notify == NULL && user_data != NULL)) {
        return wh_cl_created(NULL, CL_INVALID_VALUE, errcode_ret);
    }
    if (num_devices > WH_CL_DEVICES_MAX ||
        !wh_cl_all_live((const void *const *)devices, num_devices, WH_KIND_DEVICE)) {
        return wh_cl_created(NULL, CL_INVALID_DEVICE, errcode_ret);
    }
    cl_int error = check_properties(properties);
    if (error != CL_SUCCESS) {
        return wh_cl_created(NULL, error, errcode_ret);
    }
    if (wh_call_begin(&call, WH_OP_clCreateContext) != 0) {
        return wh_cl_created(NULL, WH_CL_LOST, errcode_ret);
    }
    struct wh_cl_object *object = wh_cl_object_new(WH_KIND_CONTEXT);
    if (object == NULL) {
        wh_call_end(&call);
        return wh_cl_created(NULL, CL_OUT_OF_HOST_MEMORY, errcode_ret);
    }
    put_properties(&call, properties);
    wh_cl_put_handles(&call, (const void *const *)devices, num_devices);
    put_notify(&call, object, pfn_notify, user_data);
    error = make_context(&call, object, properties, num_devices, devices);
    return wh_cl_created(object, error, errcode_ret);
}

cl_context CL_API_CALL wh_stub_clCreateContextFromType(const cl_context_properties *properties,
                                                       cl_device_type device_type,
                                                       wh_cl_notify pfn_notify, void *user_data,
                                                       cl_int *errcode_ret)
{
    struct wh_call call;
    WH_API_CALL();
    if (pfn_notify == NULL && user_data != NULL) {
        return wh_cl_created(NULL, CL_INVALID_VALUE, errcode_ret);
    }
    cl_int error = check_properties(properties);
    if (error != CL_SUCCESS) {
        return wh_cl_created(NULL, error, errcode_ret);
    }
    if (wh_call_begin(&call, WH_OP_clCreateContextFromType) != 0) {
        return wh_cl_created(NULL, WH_CL_LOST, errcode_ret);
    }
    struct wh_cl_object *object = wh_cl_object_new(WH_KIND_CONTEXT);
    if (object == NULL) {
        wh_call_end(&call);
        return wh_cl_created(NULL, CL_OUT_OF_HOST_MEMORY, errcode_ret);
    }
    put_properties(&call, properties);
    wh_put_u64(&call, device_type);
    put_notify(&call, object, pfn_notify, user_data);
    error = make_context(&call, object, properties, 0, NULL);
    return wh_cl_created(object, error, errcode_ret);
}
