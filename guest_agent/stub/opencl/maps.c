/*
 * maps.c - the list of what is mapped of a mem object (maps.h).
 */
#include "maps.h"

#include <stdlib.h>

#include "fork_lock.h"

#define MAP_ALIGNMENT 128u /* the largest OpenCL type */

WH_FORK_LOCK(map_lock);

/* A map in place shows the application the memory of the object, or of the buffer that it is a part
 * of. */
static void show(const struct wh_cl_object *mem, const struct wh_cl_map *map, bool shown)
{
    if (!map->in_place) {
        return;
    }
    while (mem->u.of_mem.backing.location == 0 && mem->parent->kind == WH_KIND_MEM) {
        mem = mem->parent;
    }
    wh_backing_show(&mem->u.of_mem.backing, shown);
}

struct wh_cl_map *wh_cl_map_new(void *address, size_t size, cl_map_flags flags)
{
    struct wh_cl_map *map = calloc(1, sizeof(*map));
    if (map == NULL) {
        return NULL;
    }
    map->address = address;
    map->size = size;
    map->writes = (flags & (CL_MAP_WRITE | CL_MAP_WRITE_INVALIDATE_REGION)) != 0;
    map->own = address == NULL;
    if (map->own) {
        size_t padded = (size + MAP_ALIGNMENT - 1) & ~(size_t)(MAP_ALIGNMENT - 1);
        map->address = padded < size ? NULL : aligned_alloc(MAP_ALIGNMENT, padded);
    }
    if (map->address == NULL) {
        free(map);
        return NULL;
    }
    return map;
}

void wh_cl_map_free(struct wh_cl_map *map)
{
    if (map != NULL && map->own) {
        (void)wh_cl_reads_abandon(map->address, map->size, 0);
        free(map->address);
    }
    free(map);
}

void wh_cl_maps_free(struct wh_cl_object *mem)
{
    while (mem->u.of_mem.maps != NULL) {
        struct wh_cl_map *map = mem->u.of_mem.maps;
        mem->u.of_mem.maps = map->next;
        show(mem, map, false);
        wh_cl_map_free(map);
    }
}

cl_uint wh_cl_map_count(const struct wh_cl_object *mem)
{
    cl_uint count = 0;
    pthread_mutex_lock(&map_lock);
    for (const struct wh_cl_map *map = mem->u.of_mem.maps; map != NULL; map = map->next) {
        count++;
    }
    pthread_mutex_unlock(&map_lock);
    return count;
}

void wh_cl_map_add(struct wh_cl_object *mem, struct wh_cl_map *map)
{
    pthread_mutex_lock(&map_lock);
    map->next = mem->u.of_mem.maps;
    mem->u.of_mem.maps = map;
    pthread_mutex_unlock(&map_lock);
    show(mem, map, true);
}

struct wh_cl_map *wh_cl_map_take(struct wh_cl_object *mem, const void *address)
{
    pthread_mutex_lock(&map_lock);
    struct wh_cl_map **link = &mem->u.of_mem.maps;
    while (*link != NULL && (*link)->address != address) {
        link = &(*link)->next;
    }
    struct wh_cl_map *map = *link;
    if (map != NULL) {
        *link = map->next;
    }
    pthread_mutex_unlock(&map_lock);
    if (map != NULL) {
        show(mem, map, false);
    }
    return map;
}
