/*
 * wh_files.h - where the client's own files lie on the server: a folder below the worker's current
 * directory. Relative, so that options and sources that name it are the same in every session, and
 * a kernel cache knows them again.
 */
#ifndef WH_FILES_H
#define WH_FILES_H

#define WH_GUEST_FILES "wormhole-guest-files"

#endif
