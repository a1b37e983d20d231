/*
 * test_jail.c - enters the jail and tries to get out. Usage: test_jail HOME SECRET
 *
 * HOME is the private directory, SECRET a file outside it that anybody may read. Prints the report;
 * exit status 1 if a wall that the report calls standing lets something through.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "jail.h"

#define SLOT_BYTES 65536

static int failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("FAILED line %d: %s (errno %s)\n", __LINE__, #condition, strerror(errno));      \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

/* The expression must fail with this errno. */
#define REFUSED(expression, number)                                                                \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long result_ = (long)(expression);                                                         \
        if (result_ >= 0 || errno != (number)) {                                                   \
            printf("FAILED line %d: %s gave %ld, errno %s\n", __LINE__, #expression, result_,      \
                   strerror(errno));                                                               \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

extern char **environ;

static void check_parser(void)
{
    struct wh_jail_config config;
    CHECK(wh_jail_parse("off", &config) == 0 && !config.enabled);
    CHECK(wh_jail_parse("uid=7,gid=8,home=/h,read=/a,read=/b,gpu=1,processes=5,files=6", &config) ==
          0);
    CHECK(config.enabled && config.uid == 7 && config.gid == 8 && config.gpu);
    CHECK(strcmp(config.home, "/h") == 0 && config.read_count == 2 &&
          strcmp(config.read[1], "/b") == 0);
    CHECK(config.processes_max == 5 && config.files_max == 6);
    const char *const wrong[] = {"uid",    "uid=",    "uid=-1", "uid=99999999999",
                                 "uid=1x", "color=3", "home=x", "home=/a,uid"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK(wh_jail_parse(wrong[i], &config) == -EINVAL);
    }
    char text[2048] = "home=/";
    memset(text + 6, 'x', WH_JAIL_PATH_BYTES);
    CHECK(wh_jail_parse(text, &config) == -EINVAL);
}

static void *run_thread(void *argument)
{
    return argument;
}

static void *wait_in_thread(void *end_fd)
{
    char byte;
    return read(*(int *)end_fd, &byte, 1) == 1 ? end_fd : NULL;
}

/*
 * The name of another thread, which is a file of procfs, may be set with a GPU and not without one;
 * no other file there may be written.
 */
static void check_thread_names(bool gpu)
{
    static const char *const others[] = {
        "/proc/self/comm",
        "/proc/self/mem",
        "/proc/self/oom_score_adj",
        "/proc/self/coredump_filter",
        "/proc/self/timerslack_ns",
        "/proc/self/clear_refs",
        "/proc/thread-self/mem",
        "/proc/thread-self/oom_score_adj",
        "/proc/thread-self/clear_refs",
        "/proc/thread-self/uid_map",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/1/comm",
        "/proc/1/task/1/comm",
        "/proc/meminfo",
    };
    char name[16] = "";
    char path[64];
    pthread_t thread;
    int end[2];
    int file;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, end) == 0);
    CHECK(pthread_create(&thread, NULL, wait_in_thread, &end[0]) == 0);
    if (gpu) {
        CHECK(pthread_setname_np(thread, "cuda-named") == 0);
        CHECK(pthread_getname_np(thread, name, sizeof(name)) == 0);
        CHECK(strcmp(name, "cuda-named") == 0);
        snprintf(path, sizeof(path), "/proc/self/task/%d/comm", (int)syscall(SYS_gettid));
        CHECK((file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666)) >= 0 && close(file) == 0);
    } else {
        CHECK(pthread_setname_np(thread, "cuda-named") == EACCES);
    }
    CHECK(write(end[1], "x", 1) == 1 && pthread_join(thread, NULL) == 0);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        errno = 0;
        if (access(others[i], F_OK) == 0 && open(others[i], O_WRONLY) >= 0) {
            printf("FAILED line %d: %s may be written\n", __LINE__, others[i]);
            failures++;
        }
    }
}

static int run_program(const char *path)
{
    char *const argv[] = {(char *)path, "--version", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid = 0;
    int status = -1;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    int error = posix_spawn(&pid, path, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        return -error;
    }
    waitpid(pid, &status, 0);
    return status;
}

/* How a child ends that makes a system call which the filter answers with death. */
static int status_of_call(long number)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        syscall(number);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return status;
}

static void check_system_calls(void)
{
    pthread_t thread;
    int pair[2];

    REFUSED(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL), EPERM);
    REFUSED(unshare(CLONE_NEWUSER), EPERM);
    REFUSED(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, 0), EPERM);
    REFUSED(syscall(435 /* clone3 */, NULL, 0), ENOSYS);
    REFUSED(mount("none", "/tmp", "tmpfs", 0, NULL), EPERM);
    REFUSED(setuid(0), EPERM);
    REFUSED(syscall(425 /* io_uring_setup */, 1, NULL), EPERM);
    REFUSED(syscall(SYS_bpf, 0, NULL, 0), EPERM);
    REFUSED(syscall(SYS_keyctl, 0), EPERM);
    REFUSED(syscall(5000), ENOSYS);
    REFUSED(kill(getppid(), 0), EPERM);
    REFUSED(kill(-1, 0), EPERM);
    REFUSED(syscall(SYS_tgkill, getppid(), getppid(), 0), EPERM);
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EAFNOSUPPORT);
    REFUSED(socket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    REFUSED(socket(AF_NETLINK, SOCK_RAW, 0), EAFNOSUPPORT);
    CHECK(status_of_call(0x40000000L | SYS_getpid) == SIGSYS);
    /* What a worker and a compiler need. */
    CHECK(kill(getpid(), 0) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(pthread_create(&thread, NULL, run_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(status_of_call(SYS_getpid) == 0);
}

/* Two sessions of a VM lie side by side in one memfd, of which a worker maps its own. */
static uint8_t *map_own_slot(void)
{
    int fd = memfd_create("region", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, 2 * SLOT_BYTES) == 0);
    CHECK(pwrite(fd, "neighbour", 9, SLOT_BYTES) == 9);
    uint8_t *slot = mmap(NULL, SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return slot;
}

static void check_region(uint8_t *slot)
{
    char path[64];
    REFUSED(mremap(slot, SLOT_BYTES, 2 * SLOT_BYTES, MREMAP_MAYMOVE), EPERM);
    REFUSED(syscall(SYS_remap_file_pages, slot, SLOT_BYTES, 0, SLOT_BYTES / 4096, 0), EPERM);
    snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)slot,
             (unsigned long)slot + SLOT_BYTES);
    CHECK(open(path, O_RDWR) < 0);
}

/* The eventfds of a VM are all its sessions'. */
static void check_notifications(int notify_fd, int wake_fd)
{
    uint64_t value = 0;
    struct iovec part = {.iov_base = &value, .iov_len = sizeof(value)};
    const int fds[] = {notify_fd, wake_fd};
    for (size_t i = 0; i < 2; i++) {
        REFUSED(read(fds[i], &value, sizeof(value)), EPERM);
        REFUSED(readv(fds[i], &part, 1), EPERM);
        REFUSED(syscall(SYS_preadv2, fds[i], &part, 1, -1, -1, 0), EPERM);
        REFUSED(dup(fds[i]), EPERM);
        REFUSED(dup2(fds[i], 100), EPERM);
        REFUSED(fcntl(fds[i], F_DUPFD, 0), EPERM);
        REFUSED(fcntl(fds[i], F_SETFL, 0), EPERM);
        REFUSED(ioctl(fds[i], FIONBIO, &value), EPERM);
    }
    REFUSED(write(notify_fd, &value, sizeof(value)), EPERM);
    REFUSED(writev(notify_fd, &part, 1), EPERM);
    value = 1;
    CHECK(write(wake_fd, &value, sizeof(value)) == sizeof(value));
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    REFUSED(sendmsg(wake_fd, &message, 0), EPERM);
    REFUSED(syscall(SYS_io_setup, 1, &value), EPERM);
    REFUSED(memfd_create("more", 0), EPERM);
}

static void check_files(const char *home, const char *secret)
{
    char path[WH_JAIL_PATH_BYTES + 16];
    struct stat status;

    REFUSED(open(secret, O_RDONLY), EACCES);
    REFUSED(open(secret, O_WRONLY), EACCES);
    REFUSED(open("/etc/passwd", O_RDONLY), EACCES);
    REFUSED(open("/proc/1/status", O_RDONLY), EACCES);
    REFUSED(open("/tmp/wormhole-jail-test", O_WRONLY | O_CREAT, 0600), EACCES);
    REFUSED(open("/dev/shm/wormhole-jail-test", O_WRONLY | O_CREAT, 0600), EACCES);
    REFUSED(open("/usr/include", O_RDONLY | O_DIRECTORY), EACCES);
    REFUSED(open("/usr/share", O_RDONLY | O_DIRECTORY), EACCES);
    CHECK(run_program("/bin/sh") == -EACCES);
    snprintf(path, sizeof(path), "%s/file", home);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && ftruncate(fd, 100) == 0);
    CHECK(stat("/usr/lib", &status) == 0);
    CHECK(open("/usr/lib", O_RDONLY | O_DIRECTORY) >= 0);
    CHECK(open("/proc/self/maps", O_RDONLY) >= 0);
    CHECK(open("/proc/cpuinfo", O_RDONLY) >= 0);
    CHECK(open("/dev/null", O_RDWR) >= 0);
    if (access("/usr/bin/ld", F_OK) == 0) {
        CHECK(run_program("/usr/bin/ld") == 0);
    }
}

/* Kept device code, as the supervisor has it: a folder for all workers of the VM in one that nobody
 * else may enter. As another user made it: where there is no root, it is ours, in HOME. */
static int open_kept_code(const char *home)
{
    char path[WH_JAIL_PATH_BYTES];

    snprintf(path, sizeof(path), "%s/../kept", home);
    if (geteuid() != 0) {
        snprintf(path, sizeof(path), "%s/kept", home);
    }
    CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
    int around = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(around >= 0 && (mkdirat(around, "code", 0700) == 0 || errno == EEXIST));
    int folder = openat(around, "code", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(folder >= 0 && fchmod(folder, 0777) == 0);
    close(around);
    return folder;
}

/* Files in it can be made, read, replaced and removed, and nothing else can be made; what lies
 * around it is out of reach for a user of our own. */
static void check_kept_code(int folder, bool own_user, bool walled)
{
    char byte = 0;
    int fd = openat(folder, "new", O_RDWR | O_CREAT | O_EXCL, 0600);

    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0);
    CHECK(renameat(folder, "new", folder, "kept") == 0);
    fd = openat(folder, "kept", O_RDONLY);
    CHECK(fd >= 0 && read(fd, &byte, 1) == 1 && byte == 'x' && close(fd) == 0);
    CHECK(openat(folder, ".", O_RDONLY | O_DIRECTORY) >= 0);
    CHECK(unlinkat(folder, "kept", 0) == 0);
    if (own_user) {
        REFUSED(openat(folder, "..", O_RDONLY | O_DIRECTORY), EACCES);
        REFUSED(openat(folder, "../more", O_WRONLY | O_CREAT, 0600), EACCES);
        REFUSED(mkdirat(folder, "../folder", 0700), EACCES);
    }
    if (walled && own_user) {
        REFUSED(mkdirat(folder, "folder", 0700), EACCES);
        REFUSED(symlinkat("/etc/passwd", folder, "link"), EACCES);
        REFUSED(mkfifoat(folder, "pipe", 0600), EPERM);
    }
}

static void check_user(uid_t uid)
{
    struct rlimit limit;
    CHECK(geteuid() == uid && getuid() == uid && getegid() == (gid_t)uid);
    CHECK(getgroups(0, NULL) == 0);
    CHECK(getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_max == 100);
}

/*
 * With a GPU: nodes for all or for a group are open, with their requests, one for root alone is
 * not, and nothing else has changed. Refused calls are named, and fail as ever.
 */
static int check_gpu(const char *home, const char *secret, const char *devices)
{
    struct wh_jail_config config;
    struct wh_jail_report report;
    struct termios terminal;
    char text[2048];
    char path[WH_JAIL_PATH_BYTES];

    snprintf(text, sizeof(text), "uid=61999,gid=61999,home=%s,gpu=1,report=1,processes=100", home);
    CHECK(wh_jail_parse(text, &config) == 0 && config.gpu && config.report_refused);
    CHECK(chown(home, 61999, 61999) == 0);
    CHECK(wh_jail_enter(&config, &report) == 0);
    CHECK(wh_jail_report_json(&report, text, sizeof(text)) == (int)strlen(text));
    printf("%s\n", text);
    const char *const usable[] = {"nvidia0", "nvidiactl", "nvidia-caps/nvidia-cap1"};
    for (size_t i = 0; i < sizeof(usable) / sizeof(usable[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", devices, usable[i]);
        int fd = open(path, O_RDWR);
        CHECK(fd >= 0);
        REFUSED(ioctl(fd, TCGETS, &terminal), ENOTTY);
    }
    snprintf(path, sizeof(path), "%s/nvidia-uvm", devices);
    REFUSED(open(path, O_RDWR), EACCES);
    snprintf(path, sizeof(path), "%s/other", devices);
    REFUSED(open(path, O_RDWR), EACCES);
    REFUSED(open(secret, O_RDONLY), EACCES);
    check_thread_names(true);
    CHECK(memfd_create("driver", 0) >= 0);
    REFUSED(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL), EPERM);
    REFUSED(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL), EPERM);
    REFUSED(socket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EAFNOSUPPORT);
    REFUSED(socket(AF_UNIX, SOCK_DGRAM, 0), EAFNOSUPPORT);
    /* What libcuda does. */
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0cuda-uvmfd-test"};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&name, sizeof(name)) == 0);
    CHECK(listen(listener, 1) == 0);
    REFUSED(connect(socket(AF_UNIX, SOCK_SEQPACKET, 0), (struct sockaddr *)&name, sizeof(name)),
            EPERM);
    fflush(stdout);
    return failures != 0;
}

int main(int argc, char **argv)
{
    struct wh_jail_config config;
    struct wh_jail_report report;
    char text[2048];
    int signal_number = 0;

    if (argc == 4) {
        return check_gpu(argv[1], argv[2], argv[3]);
    }
    if (argc != 3) {
        fprintf(stderr, "usage: test_jail HOME SECRET [DEVICES]\n");
        return 2;
    }
    check_parser();
    uid_t uid = geteuid() == 0 ? 61999 : 0;
    snprintf(text, sizeof(text), "uid=%u,gid=%u,home=%s,processes=100,files=64", uid, uid, argv[1]);
    CHECK(wh_jail_parse(text, &config) == 0);
    if (uid != 0) {
        CHECK(chown(argv[1], uid, uid) == 0);
    }
    CHECK(open(argv[2], O_RDONLY | O_CLOEXEC) >= 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint8_t *slot = map_own_slot();
    config.notify_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    config.wake_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    config.images_fd = open_kept_code(argv[1]);
    CHECK(wh_jail_enter(&config, &report) == 0);
    CHECK(wh_jail_report_json(&report, text, sizeof(text)) == (int)strlen(text));
    CHECK(wh_jail_report_json(&report, text + 1024, 100) == -ENOSPC);
    printf("%s\n", text);
    CHECK(prctl(PR_GET_PDEATHSIG, &signal_number) == 0 && signal_number == SIGKILL);
    CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    CHECK(report.parts[WH_JAIL_PRIVILEGES].reached && report.parts[WH_JAIL_SYSCALLS].reached);
    check_system_calls();
    check_region(slot);
    check_notifications(config.notify_fd, config.wake_fd);
    if (report.parts[WH_JAIL_FILES].reached) {
        check_files(argv[1], argv[2]);
        check_thread_names(false);
    }
    check_kept_code(config.images_fd, report.parts[WH_JAIL_USER].reached,
                    report.parts[WH_JAIL_FILES].reached);
    if (report.parts[WH_JAIL_USER].reached) {
        check_user(uid);
    }
    fflush(stdout);
    return failures != 0;
}
