/*
 * maps.h - what the application has mapped of a buffer or an image: a list of the object, guarded
 * by a lock of its own.
 */
#ifndef WH_CL_MAPS_H
#define WH_CL_MAPS_H

#include "object.h"

struct wh_cl_map {
    struct wh_cl_map *next;
    void *address;    /* what the application got */
    size_t size;      /* bytes from there that it may touch */
    size_t offset;    /* from the object's first byte */
    size_t origin[3]; /* of an image */
    size_t region[3];
    size_t row_pitch; /* in the mapped memory */
    size_t slice_pitch;
    bool in_place; /* the memory of the object itself, mapped by the server, too */
    bool own;      /* memory that ends with the map */
    bool writes;
};

/* A map at this address of the application's; at memory of its own, aligned for every OpenCL type,
 * if it is NULL. NULL without memory. */
struct wh_cl_map *wh_cl_map_new(void *address, size_t size, cl_map_flags flags);

/* Ends a map that is in no list, and its own memory. NULL is fine. */
void wh_cl_map_free(struct wh_cl_map *map);

/* Puts the map into the object's list. */
void wh_cl_map_add(struct wh_cl_object *mem, struct wh_cl_map *map);

/* Takes the latest map with this address out of the list; NULL if the object has none. */
struct wh_cl_map *wh_cl_map_take(struct wh_cl_object *mem, const void *address);

/* Maps what lies in memory that both sides see, at the map's address (map.c). */
struct wh_cl_transfer;
cl_int wh_cl_map_in_place(const struct wh_cl_transfer *transfer, const struct wh_cl_map *map,
                          cl_map_flags flags);

/* Writes what was mapped of an image back (image.c). */
cl_int wh_cl_unmap_image(const struct wh_cl_transfer *transfer, const struct wh_cl_map *map,
                         struct wh_cl_object *event);

#endif
