/*
 * registration.c - what the compiler's start-up code registers is only remembered; an image crosses
 * when a kernel or variable of it is first used.
 */
#include "cudart.h"

#include <elf.h>
#include <stdlib.h>

#include "fork_lock.h"
#include "wh_sha256.h"

#define WRAPPER_MAGIC 0x466243b1
#define FATBIN_MAGIC 0xba55ed50u
#define FIRST_BUCKETS 1024u

/* What the compiler makes. */
struct wrapper {
    int magic;
    int version;
    const void *data;
    void *filename;
};

struct fatbin {
    uint32_t magic;
    uint16_t version;
    uint16_t header_bytes;
    uint64_t size_bytes;
};

struct variable {
    const void *shadow;
    const char *name;
    struct wh_image *image;
    struct variable *next;
    uint32_t loaded;
    void *address;
    size_t size_bytes;
};

struct wh_image {
    const void *bytes;
    void *own_bytes; /* of an image that the program has loaded itself */
    struct wh_image *next_own;
    size_t size_bytes;
    uint64_t handle;
    uint32_t loaded; /* serial */
    struct wh_kernel *kernels;
    struct variable *variables;
};

/* Open addressing by a pointer. */
struct map {
    struct slot {
        const void *key;
        void *value;
    } *slots;
    size_t capacity;
    size_t used; /* removed ones, too */
};

/* Protects everything that is registered; loading has a lock of its own, as it waits. */
WH_FORK_LOCK(register_lock);
WH_FORK_LOCK(load_lock);
static struct map kernels;
static struct map variables;
static struct wh_image *own_images; /* that programs have loaded */

static size_t hash_of(const void *key, size_t capacity)
{
    uint64_t value = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15ull;
    return (value >> 20) & (capacity - 1);
}

static struct slot *slot_of(const struct map *map, const void *key)
{
    for (size_t i = hash_of(key, map->capacity);; i = (i + 1) & (map->capacity - 1)) {
        if (map->slots[i].key == key || map->slots[i].key == NULL) {
            return &map->slots[i];
        }
    }
}

static bool grow(struct map *map)
{
    struct map larger = {.capacity = map->capacity == 0 ? FIRST_BUCKETS : map->capacity * 2};
    larger.slots = calloc(larger.capacity, sizeof(*larger.slots));
    if (larger.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->slots[i].key != NULL && map->slots[i].value != NULL) {
            *slot_of(&larger, map->slots[i].key) = map->slots[i];
            larger.used++;
        }
    }
    free(map->slots);
    *map = larger;
    return true;
}

static void map_put(struct map *map, const void *key, void *value)
{
    if (map->used * 2 >= map->capacity && !grow(map)) {
        return;
    }
    struct slot *slot = slot_of(map, key);
    map->used += slot->key == NULL;
    *slot = (struct slot){key, value};
}

static void *map_get(const struct map *map, const void *key)
{
    return map->capacity == 0 || key == NULL ? NULL : slot_of(map, key)->value;
}

static void map_remove(struct map *map, const void *key, const void *value)
{
    if (map_get(map, key) == value) {
        slot_of(map, key)->value = NULL;
    }
}

/* The binary itself tells how long it is. */
static size_t fatbin_bytes(const void *data)
{
    struct fatbin header;
    memcpy(&header, data, sizeof(header));
    if (header.magic != FATBIN_MAGIC || header.header_bytes < sizeof(header) ||
        header.size_bytes > WH_CUDA_IMAGE_BYTES_MAX) {
        return 0;
    }
    return header.header_bytes + header.size_bytes;
}

/* Machine code for one device: as far as its tables of sections and segments reach. */
static size_t elf_bytes(const void *data)
{
    Elf64_Ehdr header;
    memcpy(&header, data, sizeof(header));
    uint64_t end = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
    uint64_t segments = header.e_phoff + (uint64_t)header.e_phnum * header.e_phentsize;
    end = segments > end ? segments : end;
    if (header.e_shentsize != sizeof(Elf64_Shdr) || end > WH_CUDA_IMAGE_BYTES_MAX) {
        return 0;
    }
    for (uint32_t i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, (const uint8_t *)data + header.e_shoff + i * sizeof(section),
               sizeof(section));
        uint64_t last = section.sh_offset + section.sh_size;
        if (section.sh_type != SHT_NOBITS && last > end && last <= WH_CUDA_IMAGE_BYTES_MAX) {
            end = last;
        }
    }
    return end;
}

/* A fat binary with or without its wrapper, machine code, or text with its final NUL. */
static size_t code_bytes(const void **code)
{
    struct wrapper wrapper;
    uint32_t magic = 0;
    memcpy(&magic, *code, sizeof(magic));
    if (magic == WRAPPER_MAGIC) {
        memcpy(&wrapper, *code, sizeof(wrapper));
        *code = wrapper.data;
        return fatbin_bytes(wrapper.data);
    }
    if (magic == FATBIN_MAGIC) {
        return fatbin_bytes(*code);
    }
    if (memcmp(*code, ELFMAG, SELFMAG) == 0) {
        return elf_bytes(*code);
    }
    return strlen(*code) + 1;
}

WH_EXPORT void **__cudaRegisterFatBinary(void *wrapper)
{
    struct wrapper what;
    struct wh_image *image = calloc(1, sizeof(*image));
    if (image == NULL) {
        return NULL;
    }
    memcpy(&what, wrapper, sizeof(what));
    if (what.magic == WRAPPER_MAGIC && what.data != NULL) {
        image->bytes = what.data;
        image->size_bytes = fatbin_bytes(what.data);
    }
    if (image->size_bytes == 0) {
        wh_cuda_say("a program's device code has an unknown form (magic 0x%x): its kernels cannot "
                    "be used",
                    (unsigned)what.magic);
    }
    return (void **)image;
}

WH_EXPORT void __cudaRegisterFatBinaryEnd(void **image)
{
    (void)image;
}

WH_EXPORT char __cudaInitModule(void **image)
{
    (void)image;
    return 1;
}

WH_EXPORT void __cudaRegisterFunction(void **handle, const char *function, char *device_function,
                                      const char *device_name, int thread_limit, void *thread,
                                      void *block, void *block_size, void *grid_size,
                                      int *warp_size)
{
    struct wh_image *image = (struct wh_image *)handle;
    struct wh_kernel *kernel = image == NULL ? NULL : calloc(1, sizeof(*kernel));
    (void)device_function;
    (void)thread_limit;
    (void)thread;
    (void)block;
    (void)block_size;
    (void)grid_size;
    (void)warp_size;
    if (kernel == NULL) {
        return;
    }
    kernel->magic = WH_KERNEL_MAGIC;
    kernel->function = function;
    kernel->name = device_name;
    kernel->image = image;
    pthread_mutex_lock(&register_lock);
    kernel->next = image->kernels;
    image->kernels = kernel;
    map_put(&kernels, function, kernel);
    map_put(&kernels, kernel, kernel);
    pthread_mutex_unlock(&register_lock);
}

WH_EXPORT void __cudaRegisterVar(void **handle, char *shadow, char *device_address,
                                 const char *device_name, int external, size_t size_bytes,
                                 int constant, int global)
{
    struct wh_image *image = (struct wh_image *)handle;
    struct variable *variable = image == NULL ? NULL : calloc(1, sizeof(*variable));
    (void)device_address;
    (void)external;
    (void)constant;
    (void)global;
    if (variable == NULL) {
        return;
    }
    variable->shadow = shadow;
    variable->name = device_name;
    variable->image = image;
    variable->size_bytes = size_bytes;
    pthread_mutex_lock(&register_lock);
    variable->next = image->variables;
    image->variables = variable;
    map_put(&variables, shadow, variable);
    pthread_mutex_unlock(&register_lock);
}

/* The server forgets the image with the kernels that it was asked for. */
static void unload(const struct wh_image *image)
{
    struct wh_call call;
    size_t count = 0;
    if (image->loaded == 0 || image->loaded != wh_cuda_session()) {
        return;
    }
    for (const struct wh_kernel *kernel = image->kernels; kernel != NULL; kernel = kernel->next) {
        count += kernel->loaded == image->loaded;
    }
    uint64_t *handles = malloc((count + 1) * sizeof(*handles));
    if (handles == NULL || wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcUnloadImage) != 0) {
        free(handles);
        return;
    }
    size_t found = 0;
    for (const struct wh_kernel *kernel = image->kernels; kernel != NULL; kernel = kernel->next) {
        if (kernel->loaded == image->loaded && found < count) {
            handles[found++] = kernel->handle;
        }
    }
    wh_put_u64(&call, image->handle);
    wh_put_blob(&call, handles, found * sizeof(*handles));
    (void)wh_cuda_send(&call, &wh_cudart_api);
    free(handles);
}

static void forget(struct wh_image *image)
{
    unload(image);
    pthread_mutex_lock(&register_lock);
    while (image->kernels != NULL) {
        struct wh_kernel *kernel = image->kernels;
        image->kernels = kernel->next;
        map_remove(&kernels, kernel->function, kernel);
        map_remove(&kernels, kernel, kernel);
        wh_cuda_handle_end(kernel->handle);
        kernel->magic = 0;
        if (image->own_bytes != NULL) {
            free((void *)(uintptr_t)kernel->function); /* its name */
        }
        free(kernel->parameters);
        free(kernel);
    }
    while (image->variables != NULL) {
        struct variable *variable = image->variables;
        image->variables = variable->next;
        map_remove(&variables, variable->shadow, variable);
        free(variable);
    }
    pthread_mutex_unlock(&register_lock);
    wh_cuda_handle_end(image->handle);
    free(image->own_bytes);
    free(image);
}

WH_EXPORT void __cudaUnregisterFatBinary(void **handle)
{
    if (handle != NULL) {
        forget((struct wh_image *)handle);
    }
}

struct wh_kernel *wh_kernel_find(const void *function)
{
    pthread_mutex_lock(&register_lock);
    struct wh_kernel *kernel = map_get(&kernels, function);
    pthread_mutex_unlock(&register_lock);
    return kernel;
}

/* With the load lock held. bytes NULL asks by the digest, NULL for code that has no name. */
static int send_image(const struct wh_image *image, uint64_t handle, const uint8_t *digest,
                      const void *bytes, bool *missing)
{
    struct wh_call call;
    uint64_t token = 0;
    uint64_t answer = 0;
    if (bytes != NULL && wh_send_large(bytes, image->size_bytes, &token) != 0) {
        return wh_cudart_api.lost;
    }
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcLoadImage);
    if (status != 0) {
        return status;
    }
    wh_put_u64(&call, handle);
    wh_put_blob(&call, digest, digest == NULL ? 0 : WH_SHA256_BYTES);
    wh_put_u64(&call, image->size_bytes);
    wh_put_out(&call, sizeof(answer), true);
    wh_put_large(&call, bytes, bytes == NULL ? 0 : image->size_bytes, token);
    status = wh_cuda_call(&call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(&call, &answer, sizeof(answer));
    }
    wh_call_end(&call);
    *missing = answer != 0;
    return status;
}

/* With the load lock held. The server may have the code of an earlier session: then its name is
 * enough. */
static int load_image(struct wh_image *image)
{
    uint8_t digest[WH_SHA256_BYTES];
    bool missing = true;
    int status = 0;
    if (image->loaded == wh_cuda_session() && image->loaded != 0) {
        return 0;
    }
    if (image->size_bytes == 0) {
        return WH_CUDA_INVALID_FUNCTION;
    }
    uint64_t handle = wh_cuda_handle_new(WH_KIND_IMAGE);
    if (handle == 0) {
        return wh_cudart_api.lost;
    }
    bool named = image->size_bytes >= WH_CUDA_NAMED_BYTES_MIN;
    if (named) {
        wh_sha256(image->bytes, image->size_bytes, digest);
        status = send_image(image, handle, digest, NULL, &missing);
    }
    if (status == 0 && missing) {
        status = send_image(image, handle, named ? digest : NULL, image->bytes, &missing);
    }
    if (status == 0) {
        image->handle = handle;
        image->loaded = wh_cuda_session();
    } else {
        wh_cuda_handle_end(handle);
    }
    return status;
}

/* The layout is the server's word, so it is checked before anything is packed by it. */
static int take_layout(struct wh_kernel *kernel, const struct wh_cuda_parameter *parameters,
                       size_t size_bytes)
{
    size_t count = size_bytes / sizeof(*parameters);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t last = (uint64_t)parameters[i].offset + parameters[i].size_bytes;
        end = last > end ? last : end;
    }
    struct wh_cuda_parameter *copy = malloc(size_bytes + sizeof(*copy));
    if (copy == NULL || end > WH_CUDA_PARAMETER_BYTES_MAX) {
        free(copy);
        return WH_CUDA_INVALID_FUNCTION;
    }
    memcpy(copy, parameters, size_bytes);
    free(kernel->parameters);
    kernel->parameters = copy;
    kernel->parameter_count = (uint32_t)count;
    kernel->parameter_bytes = (uint32_t)end;
    return 0;
}

/* With the load lock held: the kernel's handle, layout and attributes. */
static int load_kernel(struct wh_kernel *kernel)
{
    struct wh_call call;
    struct wh_cuda_parameter parameters[WH_CUDA_PARAMETERS_MAX];
    int status = load_image(kernel->image);
    if (status != 0) {
        return status;
    }
    uint64_t handle = wh_cuda_handle_new(WH_KIND_KERNEL);
    if (handle == 0) {
        return WH_CUDA_MEMORY_ALLOCATION;
    }
    status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcGetKernel);
    if (status == 0) {
        wh_put_u64(&call, kernel->image->handle);
        wh_put_blob(&call, kernel->name, strlen(kernel->name) + 1);
        wh_put_u64(&call, handle);
        wh_put_out(&call, sizeof(parameters), true);
        wh_put_out(&call, sizeof(kernel->attributes), true);
        status = wh_cuda_call(&call, &wh_cudart_api);
        if (status == 0) {
            size_t size_bytes = wh_get_out(&call, parameters, sizeof(parameters));
            size_t known = wh_get_out(&call, kernel->attributes, sizeof(kernel->attributes));
            kernel->attributes_known = known == sizeof(kernel->attributes);
            status = take_layout(kernel, parameters, size_bytes);
        }
        wh_call_end(&call);
    }
    if (status != 0) {
        wh_cuda_handle_end(handle);
        return status;
    }
    kernel->handle = handle;
    __atomic_store_n(&kernel->loaded, wh_cuda_session(), __ATOMIC_RELEASE);
    return 0;
}

int wh_kernel_get(const void *function, struct wh_kernel **kernel)
{
    int status = 0;
    *kernel = wh_kernel_find(function);
    if (*kernel == NULL) {
        return WH_CUDA_INVALID_FUNCTION;
    }
    uint32_t loaded = __atomic_load_n(&(*kernel)->loaded, __ATOMIC_ACQUIRE);
    if (__builtin_expect(loaded != 0 && loaded == wh_cuda_session(), 1)) {
        return 0;
    }
    pthread_mutex_lock(&load_lock);
    loaded = (*kernel)->loaded;
    if (loaded == 0 || loaded != wh_cuda_session()) {
        status = load_kernel(*kernel);
    }
    pthread_mutex_unlock(&load_lock);
    return status;
}

/* With the load lock held. */
static int load_variable(struct variable *variable)
{
    struct wh_call call;
    uint64_t address = 0;
    uint64_t size_bytes = 0;
    int status = load_image(variable->image);
    if (status == 0) {
        status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcGetVariable);
    }
    if (status != 0) {
        return status;
    }
    wh_put_u64(&call, variable->image->handle);
    wh_put_blob(&call, variable->name, strlen(variable->name) + 1);
    wh_put_out(&call, sizeof(address), true);
    wh_put_out(&call, sizeof(size_bytes), true);
    status = wh_cuda_call(&call, &wh_cudart_api);
    if (status == 0) {
        (void)wh_get_out(&call, &address, sizeof(address));
        (void)wh_get_out(&call, &size_bytes, sizeof(size_bytes));
    }
    wh_call_end(&call);
    if (status == 0) {
        struct wh_cuda_range range = {.base = address,
                                      .size_bytes = size_bytes,
                                      .memory = WH_CUDA_DEVICE,
                                      .flags = 1, /* not of cudaMalloc */
                                      .device = wh_cuda_thread()->device};
        variable->address = (void *)(uintptr_t)address;
        variable->size_bytes = size_bytes;
        variable->loaded = wh_cuda_session();
        (void)wh_cuda_range_add(&range);
    }
    return status;
}

int wh_variable_get(const void *symbol, void **address, size_t *size_bytes)
{
    pthread_mutex_lock(&register_lock);
    struct variable *variable = map_get(&variables, symbol);
    pthread_mutex_unlock(&register_lock);
    if (variable == NULL) {
        return WH_CUDA_INVALID_SYMBOL;
    }
    pthread_mutex_lock(&load_lock);
    int status = variable->loaded != 0 && variable->loaded == wh_cuda_session()
                     ? 0
                     : load_variable(variable);
    pthread_mutex_unlock(&load_lock);
    if (status == 0) {
        *address = variable->address;
        *size_bytes = variable->size_bytes;
    }
    return status;
}

/* With the load lock held: has the code compiled, which the server otherwise does at first use. */
static int load_module(struct wh_image *image)
{
    struct wh_call call;
    int status = wh_cuda_begin(&call, &wh_cudart_api, WH_OP_whcLoadModule);
    if (status == 0) {
        wh_put_u64(&call, image->handle);
        status = wh_cuda_call(&call, &wh_cudart_api);
        wh_call_end(&call);
    }
    if (status != 0) {
        unload(image);
        wh_cuda_handle_end(image->handle);
    }
    return status;
}

int wh_image_new(const void *code, struct wh_image **image)
{
    size_t size_bytes = code == NULL ? 0 : code_bytes(&code);
    if (size_bytes == 0) {
        return code == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_IMAGE;
    }
    struct wh_image *made = calloc(1, sizeof(*made));
    void *copy = malloc(size_bytes);
    if (made == NULL || copy == NULL) {
        free(made);
        free(copy);
        return WH_CUDA_MEMORY_ALLOCATION;
    }
    memcpy(copy, code, size_bytes);
    made->bytes = copy;
    made->own_bytes = copy;
    made->size_bytes = size_bytes;
    /* What is wrong with the code is to be known at once. */
    pthread_mutex_lock(&load_lock);
    int status = load_image(made);
    if (status == 0 && wh_cuda_thread()->loads_modules) {
        status = load_module(made);
    }
    pthread_mutex_unlock(&load_lock);
    if (status != 0) {
        free(copy);
        free(made);
        return status;
    }
    pthread_mutex_lock(&register_lock);
    made->next_own = own_images;
    own_images = made;
    pthread_mutex_unlock(&register_lock);
    *image = made;
    return 0;
}

/* Whether it is one; taken out of the list if it is to end. */
static bool is_own(const struct wh_image *image, bool ends)
{
    bool found = false;
    pthread_mutex_lock(&register_lock);
    for (struct wh_image **link = &own_images; *link != NULL; link = &(*link)->next_own) {
        if (*link == image) {
            found = true;
            *link = ends ? (*link)->next_own : *link;
            break;
        }
    }
    pthread_mutex_unlock(&register_lock);
    return found;
}

int wh_image_end(struct wh_image *image)
{
    if (!is_own(image, true)) {
        return WH_CUDA_INVALID_HANDLE;
    }
    forget(image);
    return 0;
}

static struct wh_kernel *kernel_named(const struct wh_image *image, const char *name)
{
    pthread_mutex_lock(&register_lock);
    struct wh_kernel *kernel = image->kernels;
    while (kernel != NULL && strcmp(kernel->name, name) != 0) {
        kernel = kernel->next;
    }
    pthread_mutex_unlock(&register_lock);
    return kernel;
}

/* Takes a kernel back that the image turned out not to have. */
static void drop_kernel(struct wh_kernel *kernel)
{
    pthread_mutex_lock(&register_lock);
    struct wh_kernel **link = &kernel->image->kernels;
    while (*link != NULL && *link != kernel) {
        link = &(*link)->next;
    }
    if (*link == kernel) {
        *link = kernel->next;
    }
    map_remove(&kernels, kernel, kernel);
    map_remove(&kernels, kernel->function, kernel);
    pthread_mutex_unlock(&register_lock);
    kernel->magic = 0;
    free(kernel->parameters);
    free((void *)(uintptr_t)kernel->function);
    free(kernel);
}

int wh_image_kernel(struct wh_image *image, const char *name, struct wh_kernel **kernel)
{
    if (name == NULL || !is_own(image, false)) {
        return name == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_HANDLE;
    }
    struct wh_kernel *known = kernel_named(image, name);
    if (known == NULL) {
        /* Its name, in memory of our own, is what it is registered under, too. */
        char *copy = strdup(name);
        if (copy == NULL) {
            return WH_CUDA_MEMORY_ALLOCATION;
        }
        __cudaRegisterFunction((void **)image, copy, copy, copy, -1, NULL, NULL, NULL, NULL, NULL);
        known = wh_kernel_find(copy);
        if (known == NULL) {
            free(copy);
            return WH_CUDA_MEMORY_ALLOCATION;
        }
    }
    int status = wh_kernel_get(known, kernel);
    if (status != 0) {
        drop_kernel(known);
    }
    return status;
}

int wh_image_variable(struct wh_image *image, const char *name, void **address, size_t *size_bytes)
{
    if (name == NULL || !is_own(image, false)) {
        return name == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_HANDLE;
    }
    struct variable what = {.name = name, .image = image};
    pthread_mutex_lock(&load_lock);
    int status = load_variable(&what);
    pthread_mutex_unlock(&load_lock);
    if (status == 0) {
        *address = what.address;
        *size_bytes = what.size_bytes;
    }
    return status;
}

WH_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    WH_API_CALL();
    struct wh_kernel *found = wh_kernel_find(function);
    if (found == NULL || kernel == NULL) {
        return wh_cuda_done(&wh_cudart_api,
                            found == NULL ? WH_CUDA_INVALID_FUNCTION : WH_CUDA_INVALID_VALUE);
    }
    *kernel = (cudaKernel_t)(void *)found;
    return 0;
}

WH_EXPORT cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    return __cudaGetKernel(kernel, function);
}

WH_EXPORT cudaError_t cudaGetFuncBySymbol(void **function, const void *symbol)
{
    return __cudaGetKernel((cudaKernel_t *)function, symbol);
}

WH_EXPORT cudaError_t cudaFuncGetName(const char **name, const void *function)
{
    WH_API_CALL();
    const struct wh_kernel *found = wh_kernel_find(function);
    if (found == NULL || name == NULL) {
        return wh_cuda_done(&wh_cudart_api,
                            name == NULL ? WH_CUDA_INVALID_VALUE : WH_CUDA_INVALID_FUNCTION);
    }
    *name = found->name;
    return 0;
}

WH_EXPORT cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol)
{
    WH_API_CALL();
    size_t size_bytes = 0;
    if (pointer == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    return wh_cuda_done(&wh_cudart_api, wh_variable_get(symbol, pointer, &size_bytes));
}

WH_EXPORT cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol)
{
    WH_API_CALL();
    void *address = NULL;
    if (size == NULL) {
        return wh_cuda_done(&wh_cudart_api, WH_CUDA_INVALID_VALUE);
    }
    return wh_cuda_done(&wh_cudart_api, wh_variable_get(symbol, &address, size));
}
