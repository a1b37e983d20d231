/*
 * jail.c - enters the jail: own user, no privileges, no network, few files, few system calls,
 * limits.
 *
 * The order matters. What needs privileges comes first (network namespace, opening the paths that
 * stay reachable), then the change of user, then what binds even an unprivileged process
 * (Landlock), and the system-call filter last, because it forbids the rest.
 */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#if !defined(__x86_64__)
#error "the system-call filter is written for x86_64"
#endif

/* Where device files are; a test has nodes of its own. */
#ifndef DEVICES
#define DEVICES "/dev"
#endif

#define FILE_BYTES_MAX (1ULL << 30)
#define NUMBER_MAX 0x7fffffffUL

/* ---- reporting ---- */

__attribute__((format(printf, 4, 5))) static void
say(struct wh_jail_report *report, enum wh_jail_part part, bool reached, const char *format, ...)
{
    struct wh_jail_part_report *entry = &report->parts[part];
    va_list arguments;

    entry->reached = reached;
    va_start(arguments, format);
    vsnprintf(entry->how, sizeof(entry->how), format, arguments);
    va_end(arguments);
}

static const char *const part_names[WH_JAIL_PART_COUNT] = {
    [WH_JAIL_USER] = "user",   [WH_JAIL_PRIVILEGES] = "privileges", [WH_JAIL_NETWORK] = "network",
    [WH_JAIL_FILES] = "files", [WH_JAIL_SYSCALLS] = "syscalls",     [WH_JAIL_LIMITS] = "limits",
};

const char *wh_jail_level(const struct wh_jail_report *report)
{
    const struct wh_jail_part_report *parts = report->parts;
    bool filtered = parts[WH_JAIL_PRIVILEGES].reached && parts[WH_JAIL_SYSCALLS].reached;
    bool confined = filtered && parts[WH_JAIL_NETWORK].reached && parts[WH_JAIL_FILES].reached;

    if (confined && parts[WH_JAIL_USER].reached && parts[WH_JAIL_LIMITS].reached) {
        return "full";
    }
    return confined ? "confined" : filtered ? "filtered" : "none";
}

int wh_jail_report_json(const struct wh_jail_report *report, char *text, size_t text_bytes)
{
    size_t used = 0;
    int wrote = snprintf(text, text_bytes, "{\"level\":\"%s\",\"parts\":{", wh_jail_level(report));

    for (int i = 0; i < WH_JAIL_PART_COUNT; i++) {
        if (wrote < 0 || (size_t)wrote >= text_bytes - used) {
            return -ENOSPC;
        }
        used += (size_t)wrote;
        /* The texts are our own and the C library's: no quotes, no backslashes. */
        wrote = snprintf(text + used, text_bytes - used, "%s\"%s\":{\"reached\":%s,\"how\":\"%s\"}",
                         i > 0 ? "," : "", part_names[i],
                         report->parts[i].reached ? "true" : "false", report->parts[i].how);
    }
    if (wrote < 0 || (size_t)wrote >= text_bytes - used) {
        return -ENOSPC;
    }
    used += (size_t)wrote;
    wrote = report->devices[0] == '\0' ? snprintf(text + used, text_bytes - used, "}}")
                                       : snprintf(text + used, text_bytes - used,
                                                  "},\"devices\":\"%s\"}", report->devices);
    if (wrote < 0 || (size_t)wrote >= text_bytes - used) {
        return -ENOSPC;
    }
    return (int)used + wrote;
}

/* ---- configuration ---- */

static int parse_number(const char *text, unsigned long *value)
{
    char *end = NULL;

    errno = 0;
    *value = strtoul(text, &end, 10);
    return errno != 0 || end == text || *end != '\0' || *text == '-' || *value > NUMBER_MAX
               ? -EINVAL
               : 0;
}

static int copy_path(char *to, const char *from)
{
    if (from[0] != '/' || strlen(from) >= WH_JAIL_PATH_BYTES) {
        return -EINVAL;
    }
    strcpy(to, from);
    return 0;
}

static int parse_pair(struct wh_jail_config *config, const char *key, const char *value)
{
    unsigned long number = 0;

    if (strcmp(key, "home") == 0) {
        return copy_path(config->home, value);
    }
    if (strcmp(key, "read") == 0) {
        return config->read_count == WH_JAIL_READ_MAX
                   ? -EINVAL
                   : copy_path(config->read[config->read_count++], value);
    }
    if (parse_number(value, &number) != 0) {
        return -EINVAL;
    }
    if (strcmp(key, "uid") == 0) {
        config->uid = (uid_t)number;
    } else if (strcmp(key, "gid") == 0) {
        config->gid = (gid_t)number;
    } else if (strcmp(key, "gpu") == 0) {
        config->gpu = number != 0;
    } else if (strcmp(key, "report") == 0) {
        config->report_refused = number != 0;
    } else if (strcmp(key, "processes") == 0) {
        config->processes_max = (unsigned)number;
    } else if (strcmp(key, "files") == 0) {
        config->files_max = (unsigned)number;
    } else {
        return -EINVAL;
    }
    return 0;
}

int wh_jail_parse(const char *text, struct wh_jail_config *config)
{
    char copy[(WH_JAIL_READ_MAX + 2) * WH_JAIL_PATH_BYTES];
    char *rest = NULL;

    memset(config, 0, sizeof(*config));
    config->notify_fd = -1;
    config->wake_fd = -1;
    config->images_fd = -1;
    if (strcmp(text, "off") == 0) {
        return 0;
    }
    if (strlen(text) >= sizeof(copy)) {
        return -EINVAL;
    }
    strcpy(copy, text);
    for (char *pair = strtok_r(copy, ",", &rest); pair != NULL; pair = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(pair, '=');

        if (equals == NULL) {
            return -EINVAL;
        }
        *equals = '\0';
        if (parse_pair(config, pair, equals + 1) != 0) {
            return -EINVAL;
        }
    }
    config->enabled = true;
    return 0;
}

/* ---- limits ---- */

static int lower_limit(int resource, rlim_t value)
{
    struct rlimit limit;

    if (getrlimit(resource, &limit) != 0) {
        return -errno;
    }
    if (limit.rlim_max < value) {
        value = limit.rlim_max;
    }
    limit.rlim_cur = limit.rlim_max = value;
    return setrlimit(resource, &limit) != 0 ? -errno : 0;
}

/* No limit on address space: compilers and accelerator libraries reserve far more than they touch.
 */
static void enter_limits(const struct wh_jail_config *config, struct wh_jail_report *report)
{
    int error = lower_limit(RLIMIT_CORE, 0);

    if (error == 0 && config->enabled) {
        error = lower_limit(RLIMIT_FSIZE, FILE_BYTES_MAX);
    }
    if (error == 0 && config->files_max != 0) {
        error = lower_limit(RLIMIT_NOFILE, config->files_max);
    }
    /* The kernel counts processes by user, so without an own one the limit would hit strangers. */
    if (error == 0 && config->processes_max != 0 && config->uid != 0) {
        error = lower_limit(RLIMIT_NPROC, config->processes_max);
    }
    if (error != 0) {
        say(report, WH_JAIL_LIMITS, false, "setrlimit: %s", strerror(-error));
    } else if (config->uid == 0) {
        say(report, WH_JAIL_LIMITS, false, "no limit on processes without an own user");
    } else {
        say(report, WH_JAIL_LIMITS, true, "%u processes, %u files", config->processes_max,
            config->files_max);
    }
}

/* ---- network ---- */

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0) {
        close(fd);
    }
    return done;
}

/* Without privileges a user namespace that maps only ourselves gives the right to leave the
 * network. */
static int leave_network(void)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    char map[64];

    if (unshare(CLONE_NEWNET) == 0) {
        return 0;
    }
    if (uid == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        return -errno;
    }
    write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof(map), "%u %u 1", uid, uid);
    write_file("/proc/self/uid_map", map);
    snprintf(map, sizeof(map), "%u %u 1", gid, gid);
    write_file("/proc/self/gid_map", map);
    return 0;
}

static void enter_network(struct wh_jail_report *report)
{
    int error = leave_network();

    if (error == 0) {
        say(report, WH_JAIL_NETWORK, true, "own network namespace");
    } else {
        say(report, WH_JAIL_NETWORK, false, "own namespace: %s", strerror(-error));
    }
}

/* ---- files: Landlock ---- */

/* The kernel's numbers; written out because the headers of Debian 12 know only the first of them.
 */
#define SYS_LANDLOCK_CREATE_RULESET 444
#define SYS_LANDLOCK_ADD_RULE 445
#define SYS_LANDLOCK_RESTRICT_SELF 446
#define LANDLOCK_VERSION 1
#define LANDLOCK_PATH_BENEATH 1
#define FS_EXECUTE (1ULL << 0)
#define FS_WRITE_FILE (1ULL << 1)
#define FS_READ_FILE (1ULL << 2)
#define FS_READ_DIR (1ULL << 3)
#define FS_REMOVE_FILE (1ULL << 5)
#define FS_MAKE_FILE (1ULL << 8)
#define FS_ABI_1 ((1ULL << 13) - 1)
#define FS_REFER (1ULL << 13)     /* from version 2 on */
#define FS_TRUNCATE (1ULL << 14)  /* 3 */
#define FS_IOCTL_DEV (1ULL << 15) /* 5 */
#define NET_ALL 3ULL              /* bind and connect, 4 */
#define SCOPE_ALL 3ULL            /* abstract sockets and signals, 6 */
#define FS_FILE (FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV)
#define FS_READ (FS_READ_FILE | FS_READ_DIR)

struct landlock_ruleset {
    uint64_t fs;
    uint64_t net;
    uint64_t scoped;
};

struct landlock_path {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

struct files {
    int ruleset_fd;
    uint64_t handled;
};

static int allow_open(const struct files *files, int fd, uint64_t rights)
{
    struct landlock_path rule = {.allowed = rights & files->handled, .parent_fd = fd};
    struct stat status;

    if (fstat(fd, &status) != 0) {
        return -errno;
    }
    if (!S_ISDIR(status.st_mode)) {
        rule.allowed &= FS_FILE;
    }
    return syscall(SYS_LANDLOCK_ADD_RULE, files->ruleset_fd, LANDLOCK_PATH_BENEATH, &rule, 0) != 0
               ? -errno
               : 0;
}

/* Adds one path; what does not exist on this machine needs no rule. */
static int allow_path(const struct files *files, const char *path, uint64_t rights)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    int result = 0;

    if (fd < 0) {
        return errno == ENOENT || errno == EACCES ? 0 : -errno;
    }
    result = allow_open(files, fd, rights);
    close(fd);
    return result;
}

static int allow_all(const struct files *files, const char *const *patterns, uint64_t rights)
{
    for (; *patterns != NULL; patterns++) {
        glob_t found;
        int result = 0;

        if (glob(*patterns, GLOB_NOSORT, NULL, &found) != 0) {
            continue;
        }
        for (size_t i = 0; i < found.gl_pathc && result == 0; i++) {
            result = allow_path(files, found.gl_pathv[i], rights);
        }
        globfree(&found);
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

/* What PoCL, its compiler and the linker it runs were seen to need (strace), by kind of access. */
static const char *const readable[] = {
    "/usr/lib*",
    "/usr/libexec",
    "/usr/local/lib*",
    "/usr/share/pocl*",
    "/usr/share/OpenCL",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/OpenCL",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/filesystems",
    "/proc/version",
    "/proc/sys/vm",
    "/proc/sys/kernel",
    "/sys/devices/system",
    "/sys/devices/virtual/dmi",
    "/sys/bus/pci/devices/0000:00:00.0/vendor", /* PoCL's answer to CL_DEVICE_VENDOR_ID */
    "/sys/kernel/mm",
    "/sys/fs/cgroup",
    "/dev/urandom",
    "/dev/random",
    "/dev/zero",
    NULL,
};
static const char *const executable[] = {
    "/lib64/ld-linux-x86-64.so.2",
    "/usr/bin/ld",
    "/usr/bin/ld.*",
    "/usr/bin/x86_64-linux-gnu-ld*",
    "/usr/bin/lld*",
    "/usr/lib/llvm-*/bin/lld",
    "/usr/lib/llvm-*/bin/ld.lld",
    NULL,
};
static const char *const writable_devices[] = {"/dev/null", NULL};
/* NVIDIA's nodes (GPUs, control, unified memory, mode setting; capabilities in a folder), and those
 * of the kernel's own graphics and compute drivers. */
static const char *const gpu_devices[] = {
    DEVICES "/nvidia[0-9]*",
    DEVICES "/nvidiactl",
    DEVICES "/nvidia-uvm",
    DEVICES "/nvidia-uvm-tools",
    DEVICES "/nvidia-modeset",
    DEVICES "/nvidia-caps",
    DEVICES "/nvidia-caps-imex-channels",
    DEVICES "/dri",
    DEVICES "/kfd",
    NULL,
};
/* How user-mode drivers learn what the GPUs are and how the machine is built. */
static const char *const gpu_readable[] = {
    "/proc/driver/nvidia",
    "/proc/driver/nvidia-caps",
    "/proc/driver/nvidia-uvm",
    "/proc/modules",
    "/proc/devices",
    "/sys/module/nvidia*",
    "/sys/module/amdgpu",
    "/sys/bus/pci",
    "/sys/class/drm",
    "/sys/class/kfd",
    "/sys/devices",
    "/sys/dev/char",
    "/etc/nvidia",
    "/usr/local/cuda*",
    "/usr/share/nvidia",
    NULL,
};

/*
 * A folder of this process in procfs. Its entry is left open on purpose: procfs forgets unused ones
 * and makes new ones, which no rule would know.
 */
static int allow_own(const struct files *files, const char *path, uint64_t rights)
{
    return open(path, O_PATH | O_CLOEXEC) < 0 ? -errno : allow_path(files, path, rights);
}

static int fill_ruleset(const struct files *files, const struct wh_jail_config *config)
{
    uint64_t device = FS_READ_FILE | FS_WRITE_FILE | FS_IOCTL_DEV;
    uint64_t everything_but_execute = (FS_ABI_1 | FS_REFER | FS_TRUNCATE) & ~FS_EXECUTE;
    int error = allow_all(files, readable, FS_READ);

    error = error != 0 ? error : allow_all(files, executable, FS_EXECUTE | FS_READ_FILE);
    error = error != 0 ? error : allow_all(files, writable_devices, device);
    error = error != 0 ? error : allow_own(files, "/proc/self", FS_READ);
    if (config->gpu) {
        /* libcuda names its threads, from others than themselves: by `comm` beneath here, which it
         * truncates. The other files are root's, as this process is not dumpable. */
        error =
            error != 0 ? error : allow_own(files, "/proc/self/task", FS_WRITE_FILE | FS_TRUNCATE);
        error = error != 0 ? error : allow_all(files, gpu_devices, device | FS_READ_DIR);
        error = error != 0 ? error : allow_all(files, gpu_readable, FS_READ);
    }
    for (size_t i = 0; i < config->read_count && error == 0; i++) {
        error = allow_path(files, config->read[i], FS_READ);
    }
    if (error == 0 && config->home[0] != '\0') {
        error = allow_path(files, config->home, everything_but_execute);
    }
    if (error == 0 && config->images_fd >= 0) {
        error = allow_open(files, config->images_fd,
                           FS_READ | FS_WRITE_FILE | FS_TRUNCATE | FS_REMOVE_FILE | FS_MAKE_FILE);
    }
    return error;
}

/* Opens every path that stays reachable. Returns a ruleset or -errno; `version` is Landlock's. */
static int prepare_files(const struct wh_jail_config *config, int *version)
{
    struct landlock_ruleset ruleset = {.fs = FS_ABI_1};
    struct files files;
    size_t size = sizeof(ruleset.fs);
    long found = syscall(SYS_LANDLOCK_CREATE_RULESET, NULL, 0, LANDLOCK_VERSION);
    int error;

    if (found < 0) {
        return -errno;
    }
    *version = (int)found;
    ruleset.fs |= found >= 2 ? FS_REFER : 0;
    ruleset.fs |= found >= 3 ? FS_TRUNCATE : 0;
    ruleset.fs |= found >= 5 ? FS_IOCTL_DEV : 0;
    if (found >= 4) {
        ruleset.net = NET_ALL;
        size = offsetof(struct landlock_ruleset, scoped);
    }
    if (found >= 6) {
        ruleset.scoped = SCOPE_ALL;
        size = sizeof(ruleset);
    }
    files.handled = ruleset.fs;
    files.ruleset_fd = (int)syscall(SYS_LANDLOCK_CREATE_RULESET, &ruleset, size, 0);
    if (files.ruleset_fd < 0) {
        return -errno;
    }
    error = fill_ruleset(&files, config);
    if (error != 0) {
        close(files.ruleset_fd);
        return error;
    }
    return files.ruleset_fd;
}

static void enter_files(int ruleset_fd, int version, struct wh_jail_report *report)
{
    if (ruleset_fd < 0) {
        say(report, WH_JAIL_FILES, false, "Landlock: %s", strerror(-ruleset_fd));
        return;
    }
    if (syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset_fd, 0) != 0) {
        say(report, WH_JAIL_FILES, false, "Landlock: %s", strerror(errno));
    } else {
        say(report, WH_JAIL_FILES, true, "Landlock version %d", version);
    }
    close(ruleset_fd);
}

/* ---- device files of GPUs ---- */

#define GROUPS_MAX 8
#define NODES_BYTES 224

struct groups {
    gid_t ids[GROUPS_MAX];
    int count;
};

static void add_text(char *text, size_t text_bytes, const char *more)
{
    size_t used = strlen(text);

    if (strlen(more) + 2 < text_bytes - used) {
        snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? " " : "", more);
    }
}

/* A node that its group alone may use needs that group; one that not even a group may use is said
 * to be closed. */
static void judge_device(const char *path, const struct stat *status, struct groups *groups,
                         char *open_ones, char *closed_ones)
{
    if ((status->st_mode & 0006) == 0006) {
        add_text(open_ones, NODES_BYTES, path);
    } else if ((status->st_mode & 0060) == 0060 && status->st_gid != 0) {
        bool known = false;

        for (int i = 0; i < groups->count; i++) {
            known = known || groups->ids[i] == status->st_gid;
        }
        if (!known && groups->count < GROUPS_MAX) {
            groups->ids[groups->count++] = status->st_gid;
            known = true;
        }
        add_text(known ? open_ones : closed_ones, NODES_BYTES, path);
    } else {
        add_text(closed_ones, NODES_BYTES, path);
    }
}

/* Looks at the device nodes that the file rules open: which there are, and which groups it takes to
 * use them with a user of our own. */
static void find_devices(const struct wh_jail_config *config, struct groups *groups,
                         struct wh_jail_report *report)
{
    char open_ones[NODES_BYTES] = "";
    char closed_ones[NODES_BYTES] = "";

    groups->count = 0;
    if (!config->gpu) {
        return;
    }
    for (const char *const *pattern = gpu_devices; *pattern != NULL; pattern++) {
        char inside[128];
        glob_t found;

        snprintf(inside, sizeof(inside), "%s/*", *pattern);
        if (glob(*pattern, GLOB_NOSORT, NULL, &found) != 0) {
            continue;
        }
        glob(inside, GLOB_NOSORT | GLOB_APPEND, NULL, &found);
        for (size_t i = 0; i < found.gl_pathc; i++) {
            struct stat status;

            if (stat(found.gl_pathv[i], &status) == 0 && S_ISCHR(status.st_mode)) {
                judge_device(found.gl_pathv[i], &status, groups, open_ones, closed_ones);
            }
        }
        globfree(&found);
    }
    snprintf(report->devices, sizeof(report->devices), "%s%s%s",
             open_ones[0] != '\0' ? open_ones : "no device file of a GPU that may be used",
             closed_ones[0] != '\0' ? "; no right to use " : "", closed_ones);
}

/* ---- user and privileges ---- */

/* Returns 0 or, when only half of the change could be made, -errno. */
static int enter_user(const struct wh_jail_config *config, const struct groups *groups,
                      struct wh_jail_report *report)
{
    if (config->uid == 0) {
        say(report, WH_JAIL_USER, false, "not root: the session runs as uid %u",
            (unsigned)geteuid());
        return 0;
    }
    if (setgroups((size_t)groups->count, groups->ids) != 0) {
        say(report, WH_JAIL_USER, false, "setgroups: %s", strerror(errno));
        return 0;
    }
    if (setresgid(config->gid, config->gid, config->gid) != 0) {
        say(report, WH_JAIL_USER, false, "setresgid: %s", strerror(errno));
        return -errno;
    }
    if (setresuid(config->uid, config->uid, config->uid) != 0) {
        say(report, WH_JAIL_USER, false, "setresuid: %s", strerror(errno));
        return -errno;
    }
    if (setresuid(0, 0, 0) == 0) {
        return -EPERM;
    }
    say(report, WH_JAIL_USER, true, "uid %u", (unsigned)config->uid);
    return 0;
}

/* While there still are privileges: none of them may come back through a program that is executed.
 */
static void drop_bounding_set(void)
{
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++) {
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    }
}

/* When the machine has no memory left, a worker ends and not what serves the others. */
static void be_first_to_go(void)
{
    (void)write_file("/proc/self/oom_score_adj", "1000");
}

static void enter_privileges(struct wh_jail_report *report)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &header, none) != 0) {
        say(report, WH_JAIL_PRIVILEGES, false, "capset: %s", strerror(errno));
    } else if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        say(report, WH_JAIL_PRIVILEGES, false, "no_new_privs: %s", strerror(errno));
    } else {
        /* Other sessions may have the same user where there is no root: no tracing between them. */
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        say(report, WH_JAIL_PRIVILEGES, true, "no capabilities, no new privileges");
    }
}

/* ---- system calls ---- */

/* Calls that were not known when this was written do not exist for a worker. */
#define SYSCALL_LAST 450
#define X32_BIT 0x40000000U
#define NAMESPACE_FLAGS                                                                            \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET | 0x80U)

/* Not needed to compile or run kernels, and each of them reaches beyond the session. */
static const uint16_t forbidden[] = {
    /* other processes */
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    /* what lies beside our slot in the VM's region: a mapping may grow or move without a
     * descriptor */
    SYS_mremap,
    SYS_remap_file_pages,
    SYS_kcmp,
    424 /* pidfd_send_signal */,
    434 /* pidfd_open */,
    438 /* pidfd_getfd */,
    440 /* process_madvise */,
    448 /* process_mrelease */,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    /* namespaces, mounts, file handles */
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    428 /* open_tree */,
    429 /* move_mount */,
    430 /* fsopen */,
    431 /* fsconfig */,
    432 /* fsmount */,
    433 /* fspick */,
    442 /* mount_setattr */,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_mknod,
    SYS_mknodat,
    SYS_quotactl,
    443 /* quotactl_fd */,
    SYS_fanotify_init,
    SYS_fanotify_mark,
    /* kernel interfaces with a history of holes */
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    425 /* io_uring_setup */,
    426 /* io_uring_enter */,
    427 /* io_uring_register */,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_vmsplice,
    SYS_splice,
    SYS_tee,
    SYS_io_setup,
    SYS_io_submit,
    SYS_personality,
    SYS_modify_ldt,
    SYS_iopl,
    SYS_ioperm,
    SYS_lookup_dcookie,
    447 /* memfd_secret */,
    /* the machine */
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_syslog,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_vhangup,
    /* what outlives the session */
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_msgctl,
    SYS_semget,
    SYS_semop,
    SYS_semtimedop,
    SYS_semctl,
    SYS_mq_open,
    SYS_mq_unlink,
    SYS_mq_timedsend,
    SYS_mq_timedreceive,
    SYS_mq_notify,
    SYS_mq_getsetattr,
    /* the user is decided */
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_setgroups,
};

#define FORBIDDEN_COUNT (sizeof(forbidden) / sizeof(forbidden[0]))
#define PROGRAM_MAX (2 * FORBIDDEN_COUNT + 192)

struct program {
    struct sock_filter steps[PROGRAM_MAX];
    unsigned short length;
};

static void step(struct program *program, struct sock_filter filter)
{
    if (program->length < PROGRAM_MAX) {
        program->steps[program->length] = filter;
    }
    program->length++;
}

static void load(struct program *program, size_t offset)
{
    step(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void give(struct program *program, uint32_t action)
{
    step(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

/* With the number loaded: `action` for this call. */
static void refuse_call(struct program *program, uint32_t number, uint32_t action)
{
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    give(program, action);
}

/* Offset of the low half of an argument. */
#define ARGUMENT(i) (offsetof(struct seccomp_data, args) + 8 * (i))

/* With the number loaded: this call only when an argument equals `value` (`allow_equal`) or only
 * when it does not. */
static void judge_argument(struct program *program, uint32_t number, int argument, uint32_t value,
                           bool allow_equal, uint32_t action)
{
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4));
    load(program, ARGUMENT(argument));
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value,
                                               allow_equal ? 1 : 0, allow_equal ? 0 : 1));
    give(program, action);
    load(program, offsetof(struct seccomp_data, nr));
}

/*
 * The notification descriptors belong to all sessions of a VM. Whoever reads them takes another's
 * wake-up, whoever fills the counter or makes it block stops the others: they can be waited on, the
 * wake can be written, and nothing else. No second number for them either, by whatever way.
 */
static void seal_notifications(struct program *program, const struct wh_jail_config *config)
{
    static const uint16_t reads[] = {SYS_read, SYS_readv, SYS_pread64, SYS_preadv, SYS_preadv2};
    static const uint16_t writes[] = {SYS_write, SYS_writev, SYS_pwrite64, SYS_pwritev,
                                      SYS_pwritev2};
    static const uint16_t handling[] = {SYS_dup, SYS_dup2, SYS_dup3, SYS_fcntl, SYS_ioctl};
    const int fds[] = {config->notify_fd, config->wake_fd};
    uint32_t denied = SECCOMP_RET_ERRNO | EPERM;

    if (config->notify_fd < 0 && config->wake_fd < 0) {
        return;
    }
    for (size_t fd = 0; fd < 2; fd++) {
        for (size_t i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
            judge_argument(program, reads[i], 0, (uint32_t)fds[fd], false, denied);
            judge_argument(program, handling[i], 0, (uint32_t)fds[fd], false, denied);
            if (fd == 0) {
                judge_argument(program, writes[i], 0, (uint32_t)fds[fd], false, denied);
            }
        }
    }
    refuse_call(program, SYS_sendmsg, denied);
    refuse_call(program, SYS_sendmmsg, denied);
}

/*
 * No new sockets. NVIDIA's driver alone gets one kind: its library listens on an abstract name, for
 * processes that would share memory with it, and does not start where it cannot. It connects to
 * nothing, and a socket of this kind sends nothing before it has; so that is refused.
 */
static void judge_sockets(struct program *program, const struct wh_jail_config *config,
                          uint32_t refusal)
{
    if (!config->gpu) {
        refuse_call(program, SYS_socket, refusal | EAFNOSUPPORT);
        return;
    }
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 7));
    load(program, ARGUMENT(0));
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 3));
    load(program, ARGUMENT(1));
    step(program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf));
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOCK_SEQPACKET, 1, 0));
    give(program, refusal | EAFNOSUPPORT);
    load(program, offsetof(struct seccomp_data, nr));
    refuse_call(program, SYS_connect, refusal | EPERM);
}

/*
 * With `report_refused` a refused call raises SIGSYS, whose handler names it once and lets it fail
 * as it would have. For finding out what a driver needs, and for nothing else: a program that is
 * executed (PoCL's linker) has no such handler and ends with its first refused call.
 */
static void say_refused(int signal_number, siginfo_t *info, void *context)
{
    static volatile unsigned char said[SYSCALL_LAST + 1];
    ucontext_t *machine = context;
    int number = info->si_syscall;
    char line[64] = "refused system call ";
    size_t used = strlen(line);

    (void)signal_number;
    machine->uc_mcontext.gregs[REG_RAX] = -(greg_t)info->si_errno;
    if (number < 0 || number > SYSCALL_LAST || said[number] != 0) {
        return;
    }
    said[number] = 1;
    for (int power = 100; power > 0; power /= 10) {
        if (number >= power || power == 1) {
            line[used++] = (char)('0' + number / power % 10);
        }
    }
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, used) < 0) {
        return; /* nobody listens */
    }
}

static void watch_refused(void)
{
    struct sigaction action = {.sa_sigaction = say_refused, .sa_flags = SA_SIGINFO | SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaction(SIGSYS, &action, NULL);
}

static void build_program(struct program *program, const struct wh_jail_config *config)
{
    uint32_t refusal = config->report_refused ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO;
    uint32_t denied = refusal | EPERM;
    uint32_t missing = SECCOMP_RET_ERRNO | ENOSYS;
    uint32_t self = (uint32_t)getpid();

    load(program, offsetof(struct seccomp_data, arch));
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
    give(program, SECCOMP_RET_KILL_PROCESS);
    load(program, offsetof(struct seccomp_data, nr));
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1));
    give(program, SECCOMP_RET_KILL_PROCESS);
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYSCALL_LAST, 0, 1));
    give(program, missing);
    /* The C library falls back to clone, whose flags a filter can see. */
    refuse_call(program, 435 /* clone3 */, missing);
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
    load(program, ARGUMENT(0));
    step(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACE_FLAGS, 0, 1));
    give(program, denied);
    load(program, offsetof(struct seccomp_data, nr));
    judge_sockets(program, config, refusal);
    judge_argument(program, SYS_kill, 0, self, true, denied);
    judge_argument(program, SYS_tgkill, 0, self, true, denied);
    judge_argument(program, SYS_ioctl, 1, TIOCSTI, false, denied);
    judge_argument(program, SYS_ioctl, 1, 0x541c /* TIOCLINUX */, false, denied);
    seal_notifications(program, config);
    for (size_t i = 0; i < FORBIDDEN_COUNT; i++) {
        refuse_call(program, forbidden[i], denied);
    }
    if (!config->gpu) {
        /* Memory without an owner that could be counted; drivers of GPUs may need it. */
        refuse_call(program, SYS_memfd_create, denied);
    }
    give(program, SECCOMP_RET_ALLOW);
}

static void enter_syscalls(const struct wh_jail_config *config, struct wh_jail_report *report)
{
    struct program program = {.length = 0};
    struct sock_fprog filter = {.filter = program.steps};

    if (config->report_refused) {
        watch_refused();
    }
    build_program(&program, config);
    if (program.length > PROGRAM_MAX) {
        say(report, WH_JAIL_SYSCALLS, false, "filter of %u steps, room for %zu", program.length,
            PROGRAM_MAX);
        return;
    }
    filter.len = program.length;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) {
        say(report, WH_JAIL_SYSCALLS, false, "seccomp: %s", strerror(errno));
        return;
    }
    say(report, WH_JAIL_SYSCALLS, true, "%zu calls refused", FORBIDDEN_COUNT + 2);
    if (!report->parts[WH_JAIL_NETWORK].reached) {
        char reason[WH_JAIL_REASON_BYTES];

        /* A process that holds no socket and cannot make one has no network either. */
        memcpy(reason, report->parts[WH_JAIL_NETWORK].how, sizeof(reason));
        say(report, WH_JAIL_NETWORK, true, "%s (%.60s)",
            config->gpu ? "no socket that connects" : "no new sockets", reason);
    }
}

/* ---- all of it ---- */

int wh_jail_enter(const struct wh_jail_config *config, struct wh_jail_report *report)
{
    int parent_death_signal = 0;
    struct groups groups;
    int ruleset_fd;
    int version = 0;
    int error;

    memset(report, 0, sizeof(*report));
    enter_limits(config, report);
    if (!config->enabled) {
        for (int i = 0; i < WH_JAIL_PART_COUNT; i++) {
            say(report, (enum wh_jail_part)i, false, "switched off");
        }
        return 0;
    }
    prctl(PR_GET_PDEATHSIG, &parent_death_signal, 0, 0, 0);
    be_first_to_go();
    enter_network(report);
    ruleset_fd = prepare_files(config, &version);
    drop_bounding_set();
    find_devices(config, &groups, report);
    error = enter_user(config, &groups, report);
    if (error != 0) {
        return error;
    }
    enter_privileges(report);
    /* The kernel forgets it when the user changes. */
    if (prctl(PR_SET_PDEATHSIG, parent_death_signal, 0, 0, 0) != 0) {
        return -errno;
    }
    enter_files(ruleset_fd, version, report);
    enter_syscalls(config, report);
    return 0;
}
