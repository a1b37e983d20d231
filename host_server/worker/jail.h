/*
 * jail.h - the wall around one worker: what a guest's kernel code can still do when it runs as
 * native code in here.
 *
 * A worker enters the jail while it is still single-threaded, after it has mapped its session and
 * before it loads a backend. Each part is tried on its own; what this machine does not allow is
 * reported with its reason and the rest still applies.
 */
#ifndef WH_JAIL_H
#define WH_JAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define WH_JAIL_PATH_BYTES 256
#define WH_JAIL_REASON_BYTES 96
#define WH_JAIL_READ_MAX 32
#define WH_JAIL_DEVICES_BYTES 512

/* What the supervisor asks for. `wh_jail_parse` fills it from the text of `--jail`. */
struct wh_jail_config {
    bool enabled; /* false: only the limits and the parent-death signal */
    uid_t uid;    /* own user of the session; 0: keep the current one (no root) */
    gid_t gid;
    char home[WH_JAIL_PATH_BYTES]; /* the only directory that may be written; "" for none */
    char read[WH_JAIL_READ_MAX]
             [WH_JAIL_PATH_BYTES]; /* further directories of libraries that the backend loads */
    size_t read_count;
    bool gpu;               /* keep the device files of GPU drivers reachable */
    bool report_refused;    /* name each refused system call once, on standard error */
    unsigned processes_max; /* RLIMIT_NPROC, only with an own uid; 0: as it is */
    unsigned files_max;     /* RLIMIT_NOFILE; 0: as it is */
    int notify_fd;          /* eventfds of the session's transport, set after parsing; -1: none */
    int wake_fd;
    int images_fd; /* open folder of files that are kept for the VM, set after parsing; -1: none */
};

enum wh_jail_part {
    WH_JAIL_USER,       /* own user id, no supplementary groups */
    WH_JAIL_PRIVILEGES, /* no capabilities, no new privileges, not dumpable */
    WH_JAIL_NETWORK,    /* no network: own namespace, or at least no new sockets */
    WH_JAIL_FILES,      /* only the libraries, the linker and the private directory */
    WH_JAIL_SYSCALLS,   /* system-call filter */
    WH_JAIL_LIMITS,     /* processes, files, core dumps */
    WH_JAIL_PART_COUNT
};

struct wh_jail_part_report {
    bool reached;
    char how[WH_JAIL_REASON_BYTES]; /* reached: the means; else: the reason */
};

/* `devices` names the device files of GPUs that stay open to the worker, or says that there are
 * none; it is empty where none were asked for. */
struct wh_jail_report {
    struct wh_jail_part_report parts[WH_JAIL_PART_COUNT];
    char devices[WH_JAIL_DEVICES_BYTES];
};

/*
 * Reads "uid=61184,gid=61184,home=/tmp/x,read=/opt/lib,gpu=0,report=0,processes=512,files=1024" or
 * "off". A key that is missing stays zero; `read` may be repeated. Returns 0, or -EINVAL for an
 * unknown key or a value out of range.
 */
int wh_jail_parse(const char *text, struct wh_jail_config *config);

/*
 * Enters the jail for good. Returns 0 whenever the worker may go on (the report says how far it
 * came), and -errno when half of an irrevocable step was done, so that going on would be worse than
 * ending.
 */
int wh_jail_enter(const struct wh_jail_config *config, struct wh_jail_report *report);

/* "full", "confined" (files, network and system calls walled, no own user), "filtered" (system
 * calls only) or "none". */
const char *wh_jail_level(const struct wh_jail_report *report);

/* Writes the report as one JSON object; returns the bytes written without the final NUL, or
 * -ENOSPC. */
int wh_jail_report_json(const struct wh_jail_report *report, char *text, size_t text_bytes);

#endif
