/*
 * image_cache.h - device code that sessions of this VM have sent before, by its SHA-256.
 *
 * The folder belongs to the workers of one VM alone, and each of them may be a hostile guest's: so
 * what is read counts only if its bytes have the digest that the client has asked for.
 */
#ifndef WH_IMAGE_CACHE_H
#define WH_IMAGE_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "wh_sha256.h"

/* The supervisor's open folder, and how many bytes may lie in it. Without it nothing is kept. */
void wh_images_open(int folder_fd, uint64_t limit_bytes);

/* The bytes, in memory that is to be freed; NULL: they are not there. What lies there under the
 * digest and is something else goes. */
uint8_t *wh_images_find(const uint8_t digest[WH_SHA256_BYTES], size_t size_bytes);

/* Keeps bytes that have this digest, if there is room: what was used longest ago goes for them. */
void wh_images_keep(const uint8_t digest[WH_SHA256_BYTES], const uint8_t *bytes, size_t size_bytes);

#endif
