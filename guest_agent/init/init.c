/*
 * The guest's first and only init: from the kernel's entry to a listening sshd in one process.
 *
 * It runs from the initramfs, loads the few virtio modules, moves to the root disk, configures the
 * network and then stays as process 1, which reaps orphans and keeps sshd alive.  A general init
 * with udev spends most of a guest's start on things that this guest does not have, and under
 * software emulation that is the difference between seconds and half a minute.
 *
 * What differs between VMs comes as a second cpio archive behind the first
 * (testbed/machine/image.py): /seed/sshd_config, /seed/ssh_host_key, /seed/authorized_keys and
 * /seed/settings, whose lines are hostname=NAME, address=A.B.C.D, netmask=A.B.C.D, gateway=A.B.C.D
 * and nameserver=A.B.C.D.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WH_ROOT_DEVICE "/dev/vda"
#define WH_SEED_TARGET "/run/wormhole"
#define WH_LINE_BYTES 256
#define WH_DEVICE_WAIT_MS 10000
#define WH_POLL_MS 5
#define WH_SSHD_STARTS_MAX 5

struct wh_settings {
    char hostname[WH_LINE_BYTES];
    char address[WH_LINE_BYTES];
    char netmask[WH_LINE_BYTES];
    char gateway[WH_LINE_BYTES];
    char nameserver[WH_LINE_BYTES];
};

/* Say one line on the console; the host reads it there when a boot fails. */
static void wh_say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fputs("wormhole-init: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

/* Give up: the host sees the line and the end of QEMU (it runs with -no-reboot). */
static _Noreturn void wh_die(const char *what)
{
    wh_say("FAILED: %s: %s", what, strerror(errno));
    sync();
    reboot(RB_POWER_OFF);
    _exit(1);
}

static void wh_sleep_ms(int ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&pause, NULL);
}

static void wh_mount(const char *source, const char *target, const char *type, unsigned long flags,
                     const char *data)
{
    mkdir(target, 0755);
    if (mount(source, target, type, flags, data) != 0) {
        wh_die(target);
    }
}

/* Load the modules that /modules/order names, in that order. */
static void wh_load_modules(void)
{
    char name[WH_LINE_BYTES];
    FILE *order = fopen("/modules/order", "re");

    if (order == NULL) {
        wh_die("/modules/order");
    }
    while (fgets(name, sizeof(name), order) != NULL) {
        char path[WH_LINE_BYTES + 16];
        int fd;

        name[strcspn(name, "\n")] = '\0';
        snprintf(path, sizeof(path), "/modules/%s", name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || syscall(SYS_finit_module, fd, "", 0) != 0) {
            wh_die(path);
        }
        close(fd);
        unlink(path); /* the initramfs is memory: give it back */
    }
    fclose(order);
}

/* Mount the root disk, which appears asynchronously after its module. */
static void wh_mount_root(void)
{
    int waited_ms;

    for (waited_ms = 0; access(WH_ROOT_DEVICE, F_OK) != 0; waited_ms += WH_POLL_MS) {
        if (waited_ms > WH_DEVICE_WAIT_MS) {
            wh_die(WH_ROOT_DEVICE " did not appear");
        }
        wh_sleep_ms(WH_POLL_MS);
    }
    wh_mount(WH_ROOT_DEVICE, "/root", "ext4", MS_NOATIME, NULL);
}

static void wh_copy_file(const char *from, const char *to)
{
    char buffer[4096];
    struct stat status;
    ssize_t size;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (in < 0 || out < 0 || fstat(in, &status) != 0 || fchmod(out, status.st_mode & 07777) != 0) {
        wh_die(from);
    }
    while ((size = read(in, buffer, sizeof(buffer))) > 0) {
        if (write(out, buffer, (size_t)size) != size) {
            wh_die(to);
        }
    }
    close(in);
    close(out);
}

/* Bring what this VM alone gets to where the root's programs find it. */
static void wh_copy_seed(void)
{
    struct dirent *entry;
    DIR *seed = opendir("/seed");

    if (seed == NULL) {
        wh_die("/seed");
    }
    mkdir("/root" WH_SEED_TARGET, 0755);
    while ((entry = readdir(seed)) != NULL) {
        char from[WH_LINE_BYTES * 2];
        char to[WH_LINE_BYTES * 2];

        if (entry->d_type != DT_REG) {
            continue;
        }
        snprintf(from, sizeof(from), "/seed/%s", entry->d_name);
        snprintf(to, sizeof(to), "/root" WH_SEED_TARGET "/%s", entry->d_name);
        wh_copy_file(from, to);
        unlink(from);
    }
    closedir(seed);
}

/* Make the disk the root of this process and of all that it starts. */
static void wh_switch_root(void)
{
    static const char *const moved[] = {"/dev", "/proc", "/sys"};
    size_t i;

    for (i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        char target[WH_LINE_BYTES];

        snprintf(target, sizeof(target), "/root%s", moved[i]);
        mkdir(target, 0755);
        if (mount(moved[i], target, NULL, MS_MOVE, NULL) != 0) {
            wh_die(target);
        }
    }
    if (chdir("/root") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 ||
        chdir("/") != 0) {
        wh_die("changing the root");
    }
}

static void wh_mount_rest(void)
{
    wh_mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    wh_mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666");
    wh_mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    /* Not fatal: only the check of the mapping's memory type reads it. */
    if (mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL) != 0) {
        wh_say("no debugfs: %s", strerror(errno));
    }
    /* The kernel does not make these; bash's process substitution and others need them. */
    if (symlink("/proc/self/fd", "/dev/fd") != 0 || symlink("fd/0", "/dev/stdin") != 0 ||
        symlink("fd/1", "/dev/stdout") != 0 || symlink("fd/2", "/dev/stderr") != 0) {
        wh_say("no /dev/fd links: %s", strerror(errno));
    }
    mkdir("/run/sshd", 0755);
}

static void wh_read_settings(struct wh_settings *settings)
{
    char line[WH_LINE_BYTES];
    FILE *file = fopen(WH_SEED_TARGET "/settings", "re");

    memset(settings, 0, sizeof(*settings));
    if (file == NULL) {
        wh_die(WH_SEED_TARGET "/settings");
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        /* %255s matches WH_LINE_BYTES; a line matches at most one of these */
        if (sscanf(line, "hostname=%255s", settings->hostname) != 1 &&
            sscanf(line, "address=%255s", settings->address) != 1 &&
            sscanf(line, "netmask=%255s", settings->netmask) != 1 &&
            sscanf(line, "gateway=%255s", settings->gateway) != 1 &&
            sscanf(line, "nameserver=%255s", settings->nameserver) != 1) {
            wh_say("unknown setting: %s", line);
        }
    }
    fclose(file);
}

static struct sockaddr wh_ipv4(const char *text)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct sockaddr generic;

    if (inet_pton(AF_INET, text, &address.sin_addr) != 1) {
        errno = EINVAL;
        wh_die(text);
    }
    memcpy(&generic, &address, sizeof(generic));
    return generic;
}

static void wh_interface_up(int fd, const char *name)
{
    struct ifreq request = {0};

    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    if (ioctl(fd, SIOCGIFFLAGS, &request) != 0) {
        wh_die(name);
    }
    request.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &request) != 0) {
        wh_die(name);
    }
}

static void wh_set_address(int fd, unsigned long operation, const char *address)
{
    struct ifreq request = {0};

    snprintf(request.ifr_name, IFNAMSIZ, "eth0");
    request.ifr_addr = wh_ipv4(address);
    if (ioctl(fd, operation, &request) != 0) {
        wh_die(address);
    }
}

static void wh_write_text(const char *path, const char *prefix, const char *text)
{
    FILE *file = fopen(path, "we");

    if (file == NULL || fprintf(file, "%s%s\n", prefix, text) < 0 || fclose(file) != 0) {
        wh_die(path);
    }
}

static void wh_configure_network(const struct wh_settings *settings)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        wh_die("socket");
    }
    if (sethostname(settings->hostname, strlen(settings->hostname)) != 0) {
        wh_die("hostname");
    }
    wh_interface_up(fd, "lo");
    if (settings->address[0] != '\0') {
        wh_set_address(fd, SIOCSIFADDR, settings->address);
        wh_set_address(fd, SIOCSIFNETMASK, settings->netmask);
        wh_interface_up(fd, "eth0");
    }
    if (settings->gateway[0] != '\0') {
        struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};

        route.rt_gateway = wh_ipv4(settings->gateway);
        route.rt_dst = wh_ipv4("0.0.0.0");
        route.rt_genmask = wh_ipv4("0.0.0.0");
        if (ioctl(fd, SIOCADDRT, &route) != 0) {
            wh_die("default route");
        }
    }
    if (settings->nameserver[0] != '\0') {
        wh_write_text("/etc/resolv.conf", "nameserver ", settings->nameserver);
    }
    close(fd);
}

static pid_t wh_start_sshd(void)
{
    static char *const argv[] = {
        "/usr/sbin/sshd", "-D", "-e", "-f", WH_SEED_TARGET "/sshd_config", NULL};
    static char *const envp[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    pid_t pid = fork();

    if (pid == 0) {
        sigset_t none;

        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        setsid();
        execve(argv[0], argv, envp);
        wh_say("%s: %s", argv[0], strerror(errno));
        _exit(127);
    }
    if (pid < 0) {
        wh_die("fork");
    }
    return pid;
}

/*
 * Reap whatever dies; start sshd again a few times; return when asked to stop.  The signals are
 * blocked and taken one by one, so that none is lost between a look and a wait.
 */
static void wh_supervise(void)
{
    sigset_t signals;
    pid_t sshd;
    int starts = 1;

    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    sshd = wh_start_sshd();
    for (;;) {
        int number = sigwaitinfo(&signals, NULL);
        pid_t ended;

        if (number == SIGTERM || number == SIGINT) {
            return;
        }
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0) {
            if (ended != sshd) {
                continue;
            }
            if (starts++ >= WH_SSHD_STARTS_MAX) {
                errno = ECHILD;
                wh_die("sshd ends at once");
            }
            wh_say("sshd ended; start %d", starts);
            sshd = wh_start_sshd();
        }
    }
}

int main(void)
{
    struct wh_settings settings;

    umask(022);
    wh_mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755");
    wh_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    wh_mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    wh_load_modules();
    wh_mount_root();
    wh_mount("tmpfs", "/root/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
    wh_copy_seed();
    wh_switch_root();
    wh_mount_rest();
    wh_read_settings(&settings);
    wh_configure_network(&settings);
    wh_say("up");
    wh_supervise();
    sync();
    reboot(RB_POWER_OFF);
    return 1;
}
