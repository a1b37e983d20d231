/*
 * cuda_kernel.c - images, kernels and variables, and launches by the layout that the driver tells.
 */
#include <elf.h>
#include <errno.h>
#include <stdlib.h>

#include "cuda_kernel.h"
#include "image_cache.h"
#include "times.h"
#include "wh_wire.h"

enum {
    INVALID_VALUE = 1,
    NO_MEMORY = 2,
    INVALID_FUNCTION = 98,
    INVALID_HANDLE = 400,
    NOT_SUPPORTED = 801
};

/* Device code, in memory of ours; images of the same code share it. */
struct code {
    uint8_t digest[WH_SHA256_BYTES];
    bool named; /* it came with its digest, which was found right */
    uint32_t users;
    uint8_t *bytes;
    size_t size_bytes;
    struct code *next;
};

/* What an image's handle names. */
struct image {
    cudaLibrary_t library;
    struct code *code;
};

static pthread_mutex_t codes_lock = PTHREAD_MUTEX_INITIALIZER;
static struct code *codes; /* those with users */

int wh_skeleton_whcLoadImage(struct wh_request *request);
int wh_skeleton_whcUnloadImage(struct wh_request *request);
int wh_skeleton_whcGetKernel(struct wh_request *request);
int wh_skeleton_whcGetVariable(struct wh_request *request);
int wh_skeleton_cudaLaunchKernelExC(struct wh_request *request);
int wh_skeleton_cudaFuncGetAttributes(struct wh_request *request);
int wh_skeleton_cudaFuncSetAttribute(struct wh_request *request);
int wh_skeleton_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(struct wh_request *request);
int wh_skeleton_cudaOccupancyAvailableDynamicSMemPerBlock(struct wh_request *request);
int wh_skeleton_cudaOccupancyMaxActiveClusters(struct wh_request *request);
int wh_skeleton_cudaOccupancyMaxPotentialClusterSize(struct wh_request *request);

/*
 * The driver is not told how large an image is: it may parse only what came. Machine code says it
 * in tables that only the driver understands in full; their ends are checked, and what it reads
 * beyond is memory of this session's worker.
 */
static bool is_whole(const uint8_t *bytes, size_t size_bytes)
{
    struct {
        uint32_t magic;
        uint16_t version;
        uint16_t header_bytes;
        uint64_t size_bytes;
    } header;
    Elf64_Ehdr elf;
    if (size_bytes > sizeof(elf) && memcmp(bytes, ELFMAG, SELFMAG) == 0) {
        memcpy(&elf, bytes, sizeof(elf));
        return elf.e_shoff <= size_bytes && elf.e_phoff <= size_bytes &&
               (uint64_t)elf.e_shnum * elf.e_shentsize <= size_bytes - elf.e_shoff &&
               (uint64_t)elf.e_phnum * elf.e_phentsize <= size_bytes - elf.e_phoff;
    }
    if (size_bytes < sizeof(header)) {
        return false;
    }
    memcpy(&header, bytes, sizeof(header));
    if (header.magic != 0xba55ed50u) {
        /* Text, which ends where the bytes do and nowhere before: another form that is not machine
         * code, a wrapper of it, names it by an address. */
        return memcmp(bytes, ELFMAG, SELFMAG) != 0 &&
               memchr(bytes, '\0', size_bytes) == bytes + size_bytes - 1;
    }
    return header.size_bytes <= size_bytes && header.header_bytes <= size_bytes - header.size_bytes;
}

/* One user more of code that an image of this session has; NULL: none has. */
static struct code *code_in_use(const uint8_t *digest, size_t size_bytes)
{
    pthread_mutex_lock(&codes_lock);
    struct code *code = codes;
    while (code != NULL && !(code->named && code->size_bytes == size_bytes &&
                             memcmp(code->digest, digest, WH_SHA256_BYTES) == 0)) {
        code = code->next;
    }
    if (code != NULL) {
        code->users++;
    }
    pthread_mutex_unlock(&codes_lock);
    return code;
}

/* Takes over the bytes; digest NULL: it has no name. NULL without memory. */
static struct code *code_new(const uint8_t *digest, uint8_t *bytes, size_t size_bytes)
{
    struct code *code = bytes == NULL ? NULL : calloc(1, sizeof(*code));
    if (code == NULL) {
        free(bytes);
        return NULL;
    }
    if (digest != NULL) {
        memcpy(code->digest, digest, WH_SHA256_BYTES);
    }
    code->named = digest != NULL;
    code->users = 1;
    code->bytes = bytes;
    code->size_bytes = size_bytes;
    pthread_mutex_lock(&codes_lock);
    code->next = codes;
    codes = code;
    pthread_mutex_unlock(&codes_lock);
    return code;
}

static void code_end(struct code *code)
{
    pthread_mutex_lock(&codes_lock);
    bool last = --code->users == 0;
    if (last) {
        struct code **link = &codes;
        while (*link != code) {
            link = &(*link)->next;
        }
        *link = code->next;
    }
    pthread_mutex_unlock(&codes_lock);
    if (last) {
        free(code->bytes);
        free(code);
    }
}

/* The code that the client names: this session has it, or an earlier one had. */
static struct code *code_by_digest(const uint8_t *digest, size_t size_bytes)
{
    struct code *code = code_in_use(digest, size_bytes);
    if (code != NULL) {
        return code;
    }
    uint8_t *bytes = wh_images_find(digest, size_bytes);
    return bytes == NULL ? NULL : code_new(digest, bytes, size_bytes);
}

/* The driver reads code from it later, too, unless it is told to keep none: it stays as long as its
 * image. Takes over one user of the code. */
static uint64_t load_code(struct wh_request *request, const struct wh_cudart_table *real,
                          uint64_t handle, struct code *code)
{
    struct image *image = calloc(1, sizeof(*image));
    uint64_t status = image == NULL ? NO_MEMORY : INVALID_VALUE;
    if (image != NULL && is_whole(code->bytes, code->size_bytes)) {
        uint64_t begin_ticks = wh_times_enter();
        image->code = code;
        status = (uint64_t)real->cudaLibraryLoadData(&image->library, code->bytes, NULL, NULL, 0,
                                                     NULL, NULL, 0);
        wh_times_leave(begin_ticks, WH_TIMES_COMPILE);
    }
    if (status != 0) {
        free(image);
        code_end(code);
        return status;
    }
    if (wh_handle_put(request->session, handle, WH_KIND_IMAGE, image) != 0) {
        (void)real->cudaLibraryUnload(image->library);
        free(image);
        code_end(code);
        return INVALID_HANDLE;
    }
    return 0;
}

/* Of code that came whole. owned: its memory is ours already. */
static struct code *code_that_came(const uint8_t *digest, const uint8_t *bytes, size_t size_bytes,
                                   void **owned)
{
    uint8_t *kept = *owned != NULL ? *owned : malloc(size_bytes);
    if (kept != NULL && *owned == NULL) {
        memcpy(kept, bytes, size_bytes);
    }
    *owned = NULL;
    if (kept != NULL && digest != NULL) {
        wh_images_keep(digest, kept, size_bytes);
    }
    return code_new(digest, kept, size_bytes);
}

/* Whether the bytes are what they are said to be. Nothing is kept or used under a wrong name. */
static bool has_digest(const uint8_t *bytes, size_t size_bytes, const uint8_t *digest)
{
    uint8_t found[WH_SHA256_BYTES];
    wh_sha256(bytes, size_bytes, found);
    return memcmp(found, digest, sizeof(found)) == 0;
}

/* A digest without bytes asks whether they must come. */
int wh_skeleton_whcLoadImage(struct wh_request *request)
{
    void *owned = NULL;
    size_t digest_bytes = 0;
    size_t came_bytes = 0;
    size_t missing_bytes = 0;
    uint64_t status = INVALID_VALUE;
    struct code *code = NULL;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t handle = wh_take_u64(request);
    const uint8_t *digest = wh_take_blob(request, &digest_bytes, WH_SHA256_BYTES);
    uint64_t size_bytes = wh_take_u64(request);
    uint64_t *missing = wh_take_out(request, &missing_bytes);
    const uint8_t *bytes = wh_take_large(request, &came_bytes, WH_CUDA_IMAGE_BYTES_MAX, &owned);
    bool asks = bytes == NULL;
    if (wh_request_failed(request) || missing == NULL || missing_bytes < sizeof(*missing) ||
        (digest != NULL && digest_bytes != WH_SHA256_BYTES) || (asks && digest == NULL) ||
        size_bytes > WH_CUDA_IMAGE_BYTES_MAX || (!asks && size_bytes != came_bytes) ||
        (!asks && digest != NULL && !has_digest(bytes, came_bytes, digest))) {
        free(owned);
        return -EBADMSG;
    }
    *missing = 0;
    if (real == NULL || real->cudaLibraryLoadData == NULL || real->cudaLibraryUnload == NULL) {
        status = NOT_SUPPORTED;
    } else if (asks) {
        code = code_by_digest(digest, size_bytes);
        *missing = code == NULL;
        status = 0;
    } else if (is_whole(bytes, came_bytes)) {
        code = code_that_came(digest, bytes, came_bytes, &owned);
        status = code == NULL ? NO_MEMORY : 0;
    }
    free(owned);
    if (code != NULL) {
        status = load_code(request, real, handle, code);
    }
    wh_cuda_reply(request, WH_OP_whcLoadImage, status, 0);
    wh_reply_out(request, sizeof(*missing));
    return 0;
}

cudaLibrary_t wh_cuda_image_library(struct wh_request *request, uint64_t handle, bool *valid)
{
    const struct image *image = wh_cuda_object(request, handle, WH_KIND_IMAGE, valid);
    return image == NULL ? NULL : image->library;
}

int wh_skeleton_whcUnloadImage(struct wh_request *request)
{
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    size_t size_bytes = 0;
    uint64_t handle = wh_take_u64(request);
    const uint64_t *kernels = wh_take_blob(request, &size_bytes, WH_CUDA_BLOB_BYTES_MAX);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    /* Over TCP another connection's thread may be using them at this moment: they stay, but for the
     * code, which is the most of it. */
    bool alone = request->session->ring != NULL;
    for (size_t i = 0; i < size_bytes / sizeof(*kernels); i++) {
        struct wh_cuda_kernel *kernel =
            wh_handle_remove(request->session, kernels[i], WH_KIND_KERNEL);
        free(alone ? kernel : NULL);
    }
    struct image *image = wh_handle_remove(request->session, handle, WH_KIND_IMAGE);
    if (image != NULL) {
        (void)real->cudaLibraryUnload(image->library);
        code_end(image->code);
        free(alone ? image : NULL);
    }
    wh_cuda_reply(request, WH_OP_whcUnloadImage, 0, 0);
    return 0;
}

/* The kernel's parameters, until the library says that there is no such one. */
static struct wh_cuda_kernel *layout_of(const struct wh_cudart_table *real, cudaKernel_t function)
{
    struct wh_cuda_kernel *kernel =
        calloc(1, sizeof(*kernel) + WH_CUDA_PARAMETERS_MAX * sizeof(kernel->parameters[0]));
    if (kernel == NULL) {
        return NULL;
    }
    kernel->real = function;
    for (uint32_t i = 0;; i++) {
        size_t offset = 0;
        size_t size_bytes = 0;
        int status = (int)real->cudaFuncGetParamInfo(function, i, &offset, &size_bytes);
        uint64_t end = (uint64_t)offset + size_bytes;
        if (status == INVALID_VALUE) {
            (void)real->cudaGetLastError();
            break; /* there are no more */
        }
        /* With a part of its parameters the driver would read beyond those that launches bring. */
        if (status != 0 || i == WH_CUDA_PARAMETERS_MAX || end > WH_CUDA_PARAMETER_BYTES_MAX) {
            (void)real->cudaGetLastError();
            free(kernel);
            return NULL;
        }
        kernel->parameters[i] = (struct wh_cuda_parameter){(uint32_t)offset, (uint32_t)size_bytes};
        kernel->parameter_count = i + 1;
        kernel->parameter_bytes =
            end > kernel->parameter_bytes ? (uint32_t)end : kernel->parameter_bytes;
    }
    struct wh_cuda_kernel *smaller =
        realloc(kernel, sizeof(*kernel) + kernel->parameter_count * sizeof(kernel->parameters[0]));
    return smaller != NULL ? smaller : kernel;
}

static uint64_t find_kernel(struct wh_request *request, const struct wh_cudart_table *real,
                            cudaLibrary_t library, const char *name, uint64_t handle,
                            struct wh_cuda_kernel **found)
{
    cudaKernel_t function = NULL;
    uint64_t begin_ticks = wh_times_enter();
    uint64_t status = (uint64_t)real->cudaLibraryGetKernel(&function, library, name);
    *found = status == 0 ? layout_of(real, function) : NULL;
    wh_times_leave(begin_ticks, WH_TIMES_COMPILE);
    if (status == 0 && *found == NULL) {
        status = NO_MEMORY;
    }
    if (status == 0 && wh_handle_put(request->session, handle, WH_KIND_KERNEL, *found) != 0) {
        free(*found);
        *found = NULL;
        status = INVALID_HANDLE;
    }
    return status;
}

int wh_skeleton_whcGetKernel(struct wh_request *request)
{
    bool valid = true;
    size_t name_bytes = 0;
    size_t layout_bytes = 0;
    size_t attribute_bytes = 0;
    struct wh_cuda_kernel *kernel = NULL;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t image = wh_take_u64(request);
    const struct image *loaded = wh_cuda_object(request, image, WH_KIND_IMAGE, &valid);
    const char *name = wh_take_blob(request, &name_bytes, WH_CUDA_NAME_BYTES_MAX);
    uint64_t handle = wh_take_u64(request);
    void *layout = wh_take_out(request, &layout_bytes);
    void *attributes = wh_take_out(request, &attribute_bytes);
    if (wh_request_failed(request) || name == NULL || !wh_cuda_string_ends(name, name_bytes) ||
        layout == NULL || attributes == NULL || attribute_bytes < WH_CUDA_FUNCTION_BYTES) {
        return -EBADMSG;
    }
    uint64_t status = INVALID_HANDLE;
    if (real == NULL || real->cudaLibraryGetKernel == NULL || real->cudaFuncGetParamInfo == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && loaded != NULL) {
        status = find_kernel(request, real, loaded->library, name, handle, &kernel);
    }
    size_t written = kernel == NULL ? 0 : kernel->parameter_count * sizeof(kernel->parameters[0]);
    written = written <= layout_bytes ? written : 0;
    bool known = false;
    if (kernel != NULL) {
        memcpy(layout, kernel->parameters, written);
        known = real->cudaFuncGetAttributes(attributes, kernel->real) == 0;
    }
    wh_cuda_reply(request, WH_OP_whcGetKernel, status, 0);
    wh_reply_out(request, written);
    wh_reply_out(request, known ? WH_CUDA_FUNCTION_BYTES : 0);
    return 0;
}

int wh_skeleton_whcGetVariable(struct wh_request *request)
{
    bool valid = true;
    size_t name_bytes = 0;
    size_t address_bytes = 0;
    size_t size_bytes = 0;
    void *address = NULL;
    size_t size = 0;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    uint64_t image = wh_take_u64(request);
    const struct image *loaded = wh_cuda_object(request, image, WH_KIND_IMAGE, &valid);
    const char *name = wh_take_blob(request, &name_bytes, WH_CUDA_NAME_BYTES_MAX);
    uint64_t *address_out = wh_take_out(request, &address_bytes);
    uint64_t *size_out = wh_take_out(request, &size_bytes);
    if (wh_request_failed(request) || name == NULL || !wh_cuda_string_ends(name, name_bytes) ||
        address_out == NULL || size_out == NULL || address_bytes < sizeof(*address_out) ||
        size_bytes < sizeof(*size_out)) {
        return -EBADMSG;
    }
    uint64_t status = INVALID_HANDLE;
    if (real == NULL || real->cudaLibraryGetGlobal == NULL) {
        status = NOT_SUPPORTED;
    } else if (valid && loaded != NULL) {
        status = (uint64_t)real->cudaLibraryGetGlobal(&address, &size, loaded->library, name);
    }
    *address_out = (uint64_t)(uintptr_t)address;
    *size_out = size;
    wh_cuda_reply(request, WH_OP_whcGetVariable, status, 0);
    wh_reply_out(request, status == 0 ? sizeof(*address_out) : 0);
    wh_reply_out(request, status == 0 ? sizeof(*size_out) : 0);
    return 0;
}

static uint64_t launch(const struct wh_cudart_table *real, const struct wh_cuda_kernel *kernel,
                       const struct wh_cuda_geometry *geometry, void *stream,
                       struct wh_cuda_attribute *attributes, size_t attribute_count,
                       const uint8_t *packed)
{
    void *arguments[WH_CUDA_PARAMETERS_MAX];
    wh_cuda_unpack(kernel, packed, arguments);
    if (attribute_count == 0) {
        return (uint64_t)real->cudaLaunchKernel(kernel->real, geometry->grid, geometry->block,
                                                arguments, geometry->shared_bytes, stream);
    }
    const struct wh_cuda_launch how = {
        .grid = geometry->grid,
        .block = geometry->block,
        .shared_bytes = geometry->shared_bytes,
        .stream = stream,
        .attributes = attributes,
        .attribute_count = (unsigned)attribute_count,
    };
    return (uint64_t)real->cudaLaunchKernelExC(&how, kernel->real, arguments);
}

/* Some attributes name objects; those are never sent by our stub. */
static bool has_objects(const struct wh_cuda_attribute *attributes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int id = attributes[i].id;
        if (id == 7 || id == 12 || id == 13) {
            return true;
        }
    }
    return false;
}

int wh_skeleton_cudaLaunchKernelExC(struct wh_request *request)
{
    bool valid = true;
    size_t geometry_bytes = 0;
    size_t attribute_bytes = 0;
    size_t packed_bytes = 0;
    uint64_t status = INVALID_HANDLE;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    const struct wh_cuda_kernel *kernel =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_KERNEL, &valid);
    void *stream = wh_cuda_stream_object(request, wh_take_u64(request), &valid);
    const struct wh_cuda_geometry *geometry =
        wh_take_blob(request, &geometry_bytes, sizeof(*geometry));
    const struct wh_cuda_attribute *attributes =
        wh_take_blob(request, &attribute_bytes, WH_CUDA_ATTRIBUTES_MAX * sizeof(*attributes));
    const uint8_t *packed = wh_take_blob(request, &packed_bytes, WH_CUDA_PARAMETER_BYTES_MAX);
    size_t count = attribute_bytes / sizeof(*attributes);
    if (wh_request_failed(request) || geometry == NULL || geometry_bytes != sizeof(*geometry) ||
        packed == NULL || has_objects(attributes, count)) {
        return -EBADMSG;
    }
    if (valid && kernel != NULL && packed_bytes != kernel->parameter_bytes) {
        return -EBADMSG;
    }
    if (real == NULL || real->cudaLaunchKernel == NULL ||
        (count > 0 && real->cudaLaunchKernelExC == NULL)) {
        status = NOT_SUPPORTED;
    } else if (valid && kernel != NULL) {
        uint64_t begin_ticks = wh_times_enter();
        status = launch(real, kernel, geometry, stream,
                        (struct wh_cuda_attribute *)(uintptr_t)attributes, count, packed);
        wh_times_leave(begin_ticks, WH_TIMES_BACKEND);
    } else if (kernel == NULL) {
        status = INVALID_FUNCTION;
    }
    wh_cuda_reply(request, WH_OP_cudaLaunchKernelExC, status, 0);
    return 0;
}

int wh_skeleton_cudaFuncGetAttributes(struct wh_request *request)
{
    bool valid = true;
    size_t size_bytes = 0;
    uint64_t status = INVALID_FUNCTION;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    const struct wh_cuda_kernel *kernel =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_KERNEL, &valid);
    void *attributes = wh_take_out(request, &size_bytes);
    if (wh_request_failed(request) || attributes == NULL || size_bytes < WH_CUDA_FUNCTION_BYTES) {
        return -EBADMSG;
    }
    if (real != NULL && real->cudaFuncGetAttributes != NULL && kernel != NULL) {
        status = (uint64_t)real->cudaFuncGetAttributes(attributes, kernel->real);
    }
    wh_cuda_reply(request, WH_OP_cudaFuncGetAttributes, status, 0);
    wh_reply_out(request, status == 0 ? WH_CUDA_FUNCTION_BYTES : 0);
    return 0;
}

int wh_skeleton_cudaFuncSetAttribute(struct wh_request *request)
{
    bool valid = true;
    uint64_t status = INVALID_FUNCTION;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    const struct wh_cuda_kernel *kernel =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_KERNEL, &valid);
    int attribute = (int)wh_take_u64(request);
    int value = (int)wh_take_u64(request);
    if (wh_request_failed(request)) {
        return -EBADMSG;
    }
    if (real != NULL && real->cudaFuncSetAttribute != NULL && kernel != NULL) {
        status = (uint64_t)real->cudaFuncSetAttribute(kernel->real, attribute, value);
    }
    wh_cuda_reply(request, WH_OP_cudaFuncSetAttribute, status, 0);
    return 0;
}

int wh_skeleton_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(struct wh_request *request)
{
    bool valid = true;
    size_t size_bytes = 0;
    uint64_t status = INVALID_FUNCTION;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    const struct wh_cuda_kernel *kernel =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_KERNEL, &valid);
    int block_size = (int)wh_take_u64(request);
    size_t shared_bytes = wh_take_u64(request);
    unsigned flags = (unsigned)wh_take_u64(request);
    int *blocks = wh_take_out(request, &size_bytes);
    if (wh_request_failed(request) || blocks == NULL || size_bytes < sizeof(*blocks)) {
        return -EBADMSG;
    }
    if (real != NULL && real->cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags != NULL &&
        kernel != NULL) {
        status = (uint64_t)real->cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks, kernel->real, block_size, shared_bytes, flags);
    }
    wh_cuda_reply(request, WH_OP_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, status, 0);
    wh_reply_out(request, status == 0 ? sizeof(*blocks) : 0);
    return 0;
}

int wh_skeleton_cudaOccupancyAvailableDynamicSMemPerBlock(struct wh_request *request)
{
    bool valid = true;
    size_t size_bytes = 0;
    uint64_t status = INVALID_FUNCTION;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    const struct wh_cuda_kernel *kernel =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_KERNEL, &valid);
    int blocks = (int)wh_take_u64(request);
    int block_size = (int)wh_take_u64(request);
    size_t *available = wh_take_out(request, &size_bytes);
    if (wh_request_failed(request) || available == NULL || size_bytes < sizeof(*available)) {
        return -EBADMSG;
    }
    if (real != NULL && real->cudaOccupancyAvailableDynamicSMemPerBlock != NULL && kernel != NULL) {
        status = (uint64_t)real->cudaOccupancyAvailableDynamicSMemPerBlock(available, kernel->real,
                                                                           blocks, block_size);
    }
    wh_cuda_reply(request, WH_OP_cudaOccupancyAvailableDynamicSMemPerBlock, status, 0);
    wh_reply_out(request, status == 0 ? sizeof(*available) : 0);
    return 0;
}

static int ask_clusters(struct wh_request *request, uint16_t opcode, bool size)
{
    bool valid = true;
    size_t geometry_bytes = 0;
    size_t attribute_bytes = 0;
    size_t size_bytes = 0;
    uint64_t status = INVALID_FUNCTION;
    wh_cuda_enter(request);
    const struct wh_cudart_table *real = wh_cudart();
    const struct wh_cuda_kernel *kernel =
        wh_cuda_object(request, wh_take_u64(request), WH_KIND_KERNEL, &valid);
    void *stream = wh_cuda_stream_object(request, wh_take_u64(request), &valid);
    const struct wh_cuda_geometry *geometry =
        wh_take_blob(request, &geometry_bytes, sizeof(*geometry));
    const struct wh_cuda_attribute *attributes =
        wh_take_blob(request, &attribute_bytes, WH_CUDA_ATTRIBUTES_MAX * sizeof(*attributes));
    int *answer = wh_take_out(request, &size_bytes);
    size_t count = attribute_bytes / sizeof(*attributes);
    if (wh_request_failed(request) || geometry == NULL || geometry_bytes != sizeof(*geometry) ||
        answer == NULL || size_bytes < sizeof(*answer) || has_objects(attributes, count)) {
        return -EBADMSG;
    }
    bool there = real != NULL && real->cudaOccupancyMaxActiveClusters != NULL &&
                 real->cudaOccupancyMaxPotentialClusterSize != NULL;
    if (there && valid && kernel != NULL) {
        const struct wh_cuda_launch how = {
            .grid = geometry->grid,
            .block = geometry->block,
            .shared_bytes = geometry->shared_bytes,
            .stream = stream,
            .attributes = (struct wh_cuda_attribute *)(uintptr_t)attributes,
            .attribute_count = (unsigned)count,
        };
        status =
            (uint64_t)(size ? real->cudaOccupancyMaxPotentialClusterSize(answer, kernel->real, &how)
                            : real->cudaOccupancyMaxActiveClusters(answer, kernel->real, &how));
    }
    wh_cuda_reply(request, opcode, status, 0);
    wh_reply_out(request, status == 0 ? sizeof(*answer) : 0);
    return 0;
}

int wh_skeleton_cudaOccupancyMaxActiveClusters(struct wh_request *request)
{
    return ask_clusters(request, WH_OP_cudaOccupancyMaxActiveClusters, false);
}

int wh_skeleton_cudaOccupancyMaxPotentialClusterSize(struct wh_request *request)
{
    return ask_clusters(request, WH_OP_cudaOccupancyMaxPotentialClusterSize, true);
}
