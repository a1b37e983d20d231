/*
 * fuzz.c - sends hostile sessions at the worker's code, a process a session, and judges how each
 * ends.
 *
 *     wormhole-fuzz --backend opencl --messages 100000 --seed 1 [--session N] [--stream FILE]
 *     wormhole-fuzz --backend cuda --code FILE ...
 *
 * The backend is loaded once and has some objects; every session is a fork of that state (CUDA's
 * sessions make their own objects). A
 * well-behaved neighbour in the same region is asked after each session. One JSON object says what
 * happened; the exit status is 1 after a finding.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend.h"
#include "fuzz.h"
#include "grammar.h"
#include "jail.h"
#include "opencl_backend.h"
#include "ring.h"
#include "wh_opencl_kinds.h"
#include "wh_skeleton_parts.h"

#define REGION_PAGES 2u
#define SLOT_COUNT 3u /* the neighbour, the hostile session, and one that must stay untouched */
#define NEIGHBOUR_LIMIT_NS 20000000000ull
#define WORK_ITEMS_MAX 4096u
#define BUFFER_BYTES_MAX ((size_t)1 << 22)
#define REPORT_BYTES 32768u
#define FINDINGS_MAX 5u

struct options {
    const char *backend;
    const char *stream;
    const char *code; /* a file of device code */
    const char *jail;
    uint64_t messages;
    uint64_t seed;
    int64_t session; /* -1: all */
    uint32_t session_messages;
    bool verbose;
};

struct totals {
    uint64_t sessions;
    uint64_t clean;
    uint64_t refused;
    uint64_t blocked;
    uint64_t backend_crashes;
    uint64_t findings;
    uint64_t neighbour_answers;
};

static struct options options = {
    .backend = "null", .jail = "off", .messages = 100000, .seed = 1, .session = -1};
static struct totals totals;
static uint8_t *region;
static int region_fd;
static int notify_fd;
static int wake_fd;
static int report_fd;
static struct wh_session session;
static struct wh_plan plan;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "wormhole-fuzz: %s: %s\n", what, why);
    exit(2);
}

/* The region. */

static uint8_t *slot(uint32_t index)
{
    return region + REGION_PAGES * WH_PAGE_BYTES + index * WH_FUZZ_SESSION_BYTES;
}

static void write_header(uint32_t index)
{
    struct wh_session_header header = {
        .magic = WH_MAGIC,
        .version = WH_PROTOCOL_VERSION,
        .slot_count = WH_SLOT_COUNT,
        .spec_hash = WH_SPEC_HASH,
        .session_bytes = WH_FUZZ_SESSION_BYTES,
        .ring_offset = WH_PAGE_BYTES,
        .slots_offset = WH_PAGE_BYTES + WH_RING_BYTES,
        .arena_offset = WH_PAGE_BYTES + WH_RING_BYTES + WH_SLOT_COUNT * WH_SLOT_BYTES,
    };
    header.arena_bytes = WH_FUZZ_SESSION_BYTES - header.arena_offset;
    memcpy(slot(index), &header, sizeof(header));
}

static void make_region(void)
{
    size_t size_bytes = REGION_PAGES * WH_PAGE_BYTES + SLOT_COUNT * WH_FUZZ_SESSION_BYTES;
    region_fd = memfd_create("wormhole-fuzz", MFD_CLOEXEC);
    if (region_fd < 0 || ftruncate(region_fd, (off_t)size_bytes) != 0) {
        die("the region", strerror(errno));
    }
    region = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region_fd, 0);
    notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    report_fd = memfd_create("wormhole-report", MFD_CLOEXEC);
    /* Two threads that find faults at once both say so; neither over the other's words. */
    if (region == MAP_FAILED || notify_fd < 0 || wake_fd < 0 || report_fd < 0 ||
        fcntl(report_fd, F_SETFL, O_APPEND) != 0) {
        die("the region", strerror(errno));
    }
    memset(slot(2), 0xa5, WH_FUZZ_SESSION_BYTES);
}

/* Only the hostile slot is written anew: what a session left there must not help the next. */
static void clear_slot(uint32_t index)
{
    off_t offset = (off_t)(REGION_PAGES * WH_PAGE_BYTES + index * WH_FUZZ_SESSION_BYTES);
    if (fallocate(region_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                  (off_t)WH_FUZZ_SESSION_BYTES) != 0) {
        memset(slot(index), 0, WH_FUZZ_SESSION_BYTES);
    }
    write_header(index);
}

/* The neighbour: a session of its own that lives as long as we do. */

static void be_neighbour(void)
{
    static struct wh_session own;
    if (wh_session_init(&own) != 0) {
        _exit(1);
    }
    own.base = slot(0);
    own.size_bytes = WH_FUZZ_SESSION_BYTES;
    own.header = (struct wh_session_header *)(void *)own.base;
    own.wake_fd = wake_fd;
    own.backend = wh_backend_find("null");
    if (wh_ring_init(&own, notify_fd) != 0 || wh_ring_start(&own) != 0) {
        _exit(1);
    }
    for (;;) {
        pause();
    }
}

static pid_t start_neighbour(void)
{
    pid_t parent = getpid();
    clear_slot(0);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(0);
        if (getppid() != parent) {
            _exit(0);
        }
        be_neighbour();
    }
    return pid;
}

/* One whNop of the neighbour's client: published, notified, answered. */
static bool neighbour_answers(void)
{
    static uint64_t head;
    static uint32_t sequence;
    struct wh_session_header *header = (struct wh_session_header *)(void *)slot(0);
    struct {
        struct wh_request_header header;
        uint64_t value[2];
    } request = {{.size_bytes = sizeof(request),
                  .opcode = WH_OP_whNop,
                  .flags = WH_REQUEST_FLAG_REPLY,
                  .sequence = ++sequence},
                 {sequence, 0}};
    const struct wh_reply_header *reply =
        (const void *)(slot(0) + WH_PAGE_BYTES + WH_RING_BYTES + sizeof(struct wh_slot_header));
    const uint64_t one = 1;
    uint64_t limit_ns = wh_now_ns() + NEIGHBOUR_LIMIT_NS;
    memcpy(slot(0) + WH_PAGE_BYTES + (head & (WH_RING_BYTES - 1)), &request, sizeof(request));
    head += sizeof(request);
    wh_store_release64(&header->head, head);
    wh_fence();
    if (wh_take_flag(&header->host_idle) && write(notify_fd, &one, sizeof(one)) < 0) {
        return false;
    }
    while (wh_load_acquire32(&reply->ready) != sequence) {
        if (wh_now_ns() > limit_ns) {
            return false;
        }
        sched_yield();
    }
    uint64_t result = 0;
    memcpy(&result, reply + 1, sizeof(result));
    totals.neighbour_answers++;
    return reply->status == 0 && result == sequence + 1u;
}

static bool third_slot_untouched(void)
{
    const uint64_t *words = (const uint64_t *)(const void *)slot(2);
    for (size_t i = 0; i < WH_FUZZ_SESSION_BYTES / sizeof(*words); i++) {
        if (words[i] != 0xa5a5a5a5a5a5a5a5ull) {
            return false;
        }
    }
    return true;
}

/* The backend, with bounds that keep one message from taking minutes or gigabytes. */

static struct wh_opencl_table bounded;
static const struct wh_opencl_table *real;

static cl_int bounded_launch(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                             const size_t *offset, const size_t *global, const size_t *local,
                             cl_uint wait_count, const cl_event *wait_list, cl_event *event)
{
    size_t items = 1;
    for (cl_uint i = 0; global != NULL && i < dimensions && i < 3; i++) {
        if (__builtin_mul_overflow(items, global[i], &items) || items > WORK_ITEMS_MAX) {
            return CL_INVALID_GLOBAL_WORK_SIZE;
        }
    }
    return real->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local,
                                        wait_count, wait_list, event);
}

static cl_mem bounded_buffer(cl_context context, cl_mem_flags flags, size_t size, void *host,
                             cl_int *error)
{
    if (size > BUFFER_BYTES_MAX) {
        *error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
        return NULL;
    }
    return real->clCreateBuffer(context, flags, size, host, error);
}

/* PoCL ends the process here, in a native program too. */
static cl_int no_wait(cl_command_queue queue, cl_uint count, const cl_event *events)
{
    (void)queue;
    (void)count;
    (void)events;
    return CL_INVALID_OPERATION;
}

/* PoCL ends the process where a program has not been built for a device. */
static cl_int no_constant(cl_program program, cl_uint id, size_t size, const void *value)
{
    (void)program;
    (void)id;
    (void)size;
    (void)value;
    return CL_INVALID_OPERATION;
}

/* PoCL makes no queues on the device and ends the process, in a native program too. */
static cl_command_queue bounded_queue(cl_context context, cl_device_id device,
                                      const cl_queue_properties *properties, cl_int *error)
{
    for (size_t i = 0; properties != NULL && properties[i] != 0; i += 2) {
        if (properties[i] == CL_QUEUE_PROPERTIES && (properties[i + 1] & CL_QUEUE_ON_DEVICE) != 0) {
            *error = CL_INVALID_QUEUE_PROPERTIES;
            return NULL;
        }
    }
    return real->clCreateCommandQueueWithProperties(context, device, properties, error);
}

void wh_fuzz_keep(struct wh_plan *of, uint8_t kind, void *object)
{
    uint64_t handle = (uint64_t)kind << 56 | 1ull << 32 | (1000 + of->handles.next_index++);
    if (object != NULL && wh_handle_put(of->session, handle, kind, object) == 0) {
        wh_handles_add(&of->handles, handle);
    }
}

static void keep(uint8_t kind, void *object)
{
    wh_fuzz_keep(&plan, kind, object);
}

static void keep_binary(cl_program program)
{
    size_t size = 0;
    unsigned char *bytes = plan.binary.bytes;
    wh_cl->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, NULL);
    if (size > 0 && size <= sizeof(plan.binary.bytes) &&
        wh_cl->clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(bytes), &bytes, NULL) ==
            CL_SUCCESS) {
        plan.binary.size_bytes = size;
    }
}

/* One that can be built, without kernels; one that can be linked; one that is a header. */
static void keep_programs(cl_context context, cl_device_id device)
{
    static const char *const texts[] = {"kernel void more(global int *a) { a[0]++; }",
                                        "kernel void part(global int *a) { a[0]--; }",
                                        "int header(int a);"};
    cl_int error = CL_SUCCESS;
    for (size_t i = 0; i < 3; i++) {
        const char *text = texts[i];
        cl_program program = wh_cl->clCreateProgramWithSource(context, 1, &text, NULL, &error);
        if (i == 1 && wh_cl->clCompileProgram(program, 1, &device, "", 0, NULL, NULL, NULL, NULL) !=
                          CL_SUCCESS) {
            die("the program", "it does not compile");
        }
        keep(WH_KIND_PROGRAM, program);
    }
}

/* One that has happened. */
static cl_event profiled_event(cl_command_queue queue)
{
    cl_event event = NULL;
    if (wh_cl->clEnqueueMarkerWithWaitList(queue, 0, NULL, &event) != CL_SUCCESS ||
        wh_cl->clFinish(queue) != CL_SUCCESS) {
        die("the event", "the queue does not run");
    }
    return event;
}

/* Objects that every session begins with. */
static void make_objects(void)
{
    static const char *source =
        "kernel void add(global int *a, int b) { a[get_global_id(0)] += b; }\n"
        "kernel void copy(global int *a, global int *b, local int *c, long d) {\n"
        "  c[get_local_id(0)] = a[0]; b[0] = c[get_local_id(0)] + d; }\n"
        "kernel void say(int n) { printf(\"%d\\n\", n); }\n";
    cl_int error = CL_SUCCESS;
    cl_device_id device = wh_cl_devices.devices[0];
    cl_context context = wh_cl->clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    if (error != CL_SUCCESS) {
        die("the context", "the device gives none");
    }
    keep(WH_KIND_CONTEXT, context);
    const cl_command_queue_properties kinds[] = {0, CL_QUEUE_PROFILING_ENABLE,
                                                 CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE};
    cl_command_queue queues[3];
    for (size_t i = 0; i < 3; i++) {
        queues[i] = wh_cl->clCreateCommandQueue(context, device, kinds[i], &error);
        keep(WH_KIND_QUEUE, queues[i]);
    }
    for (size_t i = 0; i < 6; i++) {
        keep(WH_KIND_MEM, wh_cl->clCreateBuffer(context, 0, 4096, NULL, &error));
    }
    const cl_image_format format = {CL_RGBA, CL_UNORM_INT8};
    const cl_image_desc desc = {
        .image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, .image_height = 16};
    static uint32_t pixels[3][16 * 16]; /* so that they can be mapped in place */
    for (size_t i = 0; i < 3; i++) {
        keep(WH_KIND_MEM,
             wh_cl->clCreateImage(context, CL_MEM_USE_HOST_PTR, &format, &desc, pixels[i], &error));
    }
    cl_program program = wh_cl->clCreateProgramWithSource(context, 1, &source, NULL, &error);
    if (wh_cl->clBuildProgram(program, 1, &device, "-cl-kernel-arg-info", NULL, NULL) !=
        CL_SUCCESS) {
        die("the program", "it does not build");
    }
    keep(WH_KIND_PROGRAM, program);
    keep_binary(program);
    keep_programs(context, device);
    const char *const names[] = {"add", "copy", "add"};
    for (size_t i = 0; i < 3; i++) {
        cl_kernel kernel = wh_cl->clCreateKernel(program, names[i], &error);
        cl_mem mem = wh_cl->clCreateBuffer(context, 0, 4096, NULL, &error);
        cl_int value = 1;
        wh_cl->clSetKernelArg(kernel, 0, sizeof(mem), &mem);
        wh_cl->clSetKernelArg(kernel, 1, i == 1 ? sizeof(mem) : sizeof(value),
                              i == 1 ? (void *)&mem : (void *)&value);
        keep(WH_KIND_KERNEL, kernel);
    }
    cl_kernel say = wh_cl->clCreateKernel(program, "say", &error);
    wh_cl->clSetKernelArg(say, 0, sizeof(cl_int), &(cl_int){7});
    keep(WH_KIND_KERNEL, say);
    keep(WH_KIND_EVENT, profiled_event(queues[1]));
    keep(WH_KIND_EVENT, wh_cl->clCreateUserEvent(context, &error));
    keep(WH_KIND_SAMPLER,
         wh_cl->clCreateSampler(context, CL_FALSE, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &error));
}

static void load_backend(void)
{
    char reason[512] = "no reason";
    if (wh_session_init(&session) != 0) {
        die("the session", "no memory");
    }
    session.base = slot(1);
    session.size_bytes = WH_FUZZ_SESSION_BYTES;
    session.wake_fd = wake_fd;
    session.backend = wh_backend_find(options.backend);
    if (session.backend == NULL || session.backend->init(&session, reason, sizeof(reason)) != 0) {
        die(options.backend, reason);
    }
    plan.opencl = strcmp(options.backend, "opencl") == 0;
    plan.cuda = strcmp(options.backend, "cuda") == 0;
    if (plan.cuda && (options.code == NULL || !wh_fuzz_read_code(options.code, &plan.binary))) {
        die("the device code", "--code names no file of it");
    }
    if (!plan.opencl) {
        return;
    }
    real = wh_cl;
    bounded = *wh_cl;
    bounded.clEnqueueNDRangeKernel = bounded_launch;
    bounded.clCreateBuffer = bounded_buffer;
    bounded.clEnqueueWaitForEvents = no_wait;
    bounded.clSetProgramSpecializationConstant = no_constant;
    bounded.clCreateCommandQueueWithProperties = bounded_queue;
    wh_cl = &bounded;
    wh_handles_add(&plan.handles, (uint64_t)WH_KIND_PLATFORM << 56 | 1ull << 32);
    wh_handles_add(&plan.handles, wh_cl_device_handle(wh_cl_devices.devices[0]));
    make_objects();
}

/* Recorded messages up to here are executed by the parent, so that sessions begin in the middle of
 * a real program's life. */
static void advance_stream(size_t count)
{
    struct wh_executor *executor = wh_this_executor;
    if (executor == NULL) {
        executor = wh_executor_create(&session, WH_REQUEST_BYTES_MAX, WH_TCP_MESSAGE_BYTES_MAX);
        wh_this_executor = executor;
    }
    for (; count > 0 && plan.stream_next < wh_stream_count(plan.stream); count--) {
        const struct wh_request_header *request =
            wh_stream_request(plan.stream, plan.stream_next++);
        (void)wh_execute(executor, request, (const uint8_t *)request);
    }
}

/* Judging a session's end. */

static char report[REPORT_BYTES];

static void read_report(void)
{
    ssize_t size = pread(report_fd, report, sizeof(report) - 1, 0);
    report[size > 0 ? size : 0] = '\0';
}

/* A line of a stack, by what the sanitizer says where its code is. */
static bool line_has(const char *line, const char *words)
{
    size_t size = strcspn(line, "\n");
    return memmem(line, size, words, strlen(words)) != NULL;
}

static bool line_is_ours(const char *line)
{
    return !line_has(line, "/refcuda/") &&
           (line_has(line, " host_server/") || line_has(line, "/host_server/") ||
            line_has(line, "/generated/") || line_has(line, "/wormhole-fuzz+"));
}

/* Whether one of the report's stacks - of the access, of the allocation, of its end - begins in our
 * code; the sanitizer's own functions (malloc, free, memcpy) stand before whoever called them. Who
 * made the thread does not matter. */
static bool stack_is_ours(void)
{
    bool first = false;
    for (const char *line = report; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *word = line + strspn(line, " ");
        if (strncmp(word, "Thread T", 8) == 0) {
            return false;
        }
        first = first || strncmp(word, "#0 ", 3) == 0;
        if (!first || *word != '#' || line_has(line, "sanitizer") || line_has(line, "libasan")) {
            continue;
        }
        first = false;
        if (line_is_ours(line)) {
            return true;
        }
    }
    return false;
}

/* A crash inside the real library: a native program with the same calls would crash alike. Where
 * it reads beyond memory we may have given it too little, but for a damaged binary: the library
 * believes the sizes that are written in it. */
static bool crashed_in_backend(void)
{
    bool beyond = strstr(report, "heap-") != NULL || strstr(report, "overflow") != NULL ||
                  strstr(report, "overlap") != NULL;
    bool binary = strstr(report, "wh_skeleton_clCreateProgramWithBinary") != NULL;
    return (plan.opencl || plan.cuda) && strstr(report, "runtime error") == NULL &&
           (!beyond || binary) && !stack_is_ours();
}

static void say_finding(uint64_t number, const char *what)
{
    totals.findings++;
    fprintf(stderr, "FINDING in session %llu (--seed %llu --session %llu): %s\n%s\n",
            (unsigned long long)number, (unsigned long long)options.seed,
            (unsigned long long)number, what, report);
}

static void judge_crash(uint64_t number, const char *what)
{
    static uint64_t shown;
    if (!crashed_in_backend()) {
        say_finding(number, what);
        return;
    }
    totals.backend_crashes++;
    if (options.verbose || shown++ < 3) {
        fprintf(stderr, "session %llu: %s inside the library:\n%.1500s\n",
                (unsigned long long)number, what, report);
    }
}

/* The library may have said something before; the worker says one line, and it is the last. */
static bool one_clear_line(void)
{
    static const char words[] = "wormhole-worker: the session ends: ";
    const char *line = strstr(report, words);
    const char *end = line != NULL ? strchr(line, '\n') : NULL;
    return line != NULL && end != NULL && end[1] == '\0';
}

static void judge(uint64_t number, int status)
{
    char what[64];
    read_report();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        totals.clean++;
    } else if (strstr(report, "Sanitizer") != NULL || strstr(report, "runtime error") != NULL) {
        judge_crash(number, "the sanitizer"); /* whatever another thread said afterwards */
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == 3) {
        totals.refused++;
        if (!one_clear_line()) {
            say_finding(number, "the worker's last words are not one clear line");
        }
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == WH_FUZZ_EXIT_BLOCKED) {
        totals.blocked++;
    } else if (WIFSIGNALED(status)) {
        snprintf(what, sizeof(what), "signal %d", WTERMSIG(status));
        if (WTERMSIG(status) == SIGALRM) {
            say_finding(number, "the session never ended");
        } else {
            judge_crash(number, what);
        }
    } else {
        snprintf(what, sizeof(what), "exit status %d", WEXITSTATUS(status));
        judge_crash(number, what);
    }
}

static void run_session(uint64_t number)
{
    int status = 0;
    struct wh_random seeds = {.state = options.seed * 0x100000001b3ull + number};
    plan.seed = wh_random(&seeds);
    plan.messages =
        options.session_messages > 0 ? options.session_messages : 50 + wh_below(&seeds, 1500);
    clear_slot(1);
    if (ftruncate(report_fd, 0) != 0) {
        die("the report", strerror(errno));
    }
    pid_t pid = fork();
    if (pid == 0) {
        if (options.session < 0 || !options.verbose) {
            dup2(report_fd, 2);
            lseek(2, 0, SEEK_SET);
        }
        wh_hostile_session(&plan);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        die("a session", strerror(errno));
    }
    totals.sessions++;
    judge(number, status);
    report[0] = '\0';
    if (!neighbour_answers()) {
        say_finding(number, "the neighbour did not answer");
    }
    if (number % 256 == 0 && !third_slot_untouched()) {
        say_finding(number, "a session that was not its own was written");
    }
}

/* Command line and result. */

/* Asked to end, the fuzzer says what it has done so far. */
static volatile sig_atomic_t ending;

static void end(int number)
{
    (void)number;
    ending = 1;
}

static void parse(int argc, char **argv)
{
    static const struct option names[] = {{"backend", required_argument, NULL, 'b'},
                                          {"messages", required_argument, NULL, 'm'},
                                          {"seed", required_argument, NULL, 's'},
                                          {"session", required_argument, NULL, 'n'},
                                          {"session-messages", required_argument, NULL, 'l'},
                                          {"stream", required_argument, NULL, 't'},
                                          {"code", required_argument, NULL, 'c'},
                                          {"jail", required_argument, NULL, 'j'},
                                          {"verbose", no_argument, NULL, 'v'},
                                          {NULL, 0, NULL, 0}};
    int letter = 0;
    while ((letter = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (letter) {
        case 'b':
            options.backend = optarg;
            break;
        case 'm':
            options.messages = strtoull(optarg, NULL, 10);
            break;
        case 's':
            options.seed = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            options.session = strtoll(optarg, NULL, 10);
            break;
        case 'l':
            options.session_messages = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 't':
            options.stream = optarg;
            break;
        case 'c':
            options.code = optarg;
            break;
        case 'j':
            options.jail = optarg;
            break;
        case 'v':
            options.verbose = true;
            break;
        default:
            exit(2);
        }
    }
}

static void enter_jail(void)
{
    struct wh_jail_config config;
    struct wh_jail_report reached;
    int error = wh_jail_parse(options.jail, &config);
    error = error != 0 ? error : wh_jail_enter(&config, &reached);
    if (error != 0) {
        die("the jail", strerror(-error));
    }
}

static void print_result(void)
{
    const struct wh_tally *tally = plan.tally;
    printf("{\"backend\":\"%s\",\"seed\":%llu,\"messages\":%llu,\"sent\":%llu,\"sessions\":%llu,",
           options.backend, (unsigned long long)options.seed, (unsigned long long)tally->executed,
           (unsigned long long)tally->sent, (unsigned long long)totals.sessions);
    printf("\"clean\":%llu,\"refused\":%llu,\"blocked\":%llu,\"backend_crashes\":%llu,",
           (unsigned long long)totals.clean, (unsigned long long)totals.refused,
           (unsigned long long)totals.blocked, (unsigned long long)totals.backend_crashes);
    printf("\"findings\":%llu,\"neighbour_answers\":%llu,\"opcodes\":{",
           (unsigned long long)totals.findings, (unsigned long long)totals.neighbour_answers);
    const struct wh_shapes *known = plan.cuda ? &wh_cuda_shapes : &wh_opencl_shapes;
    for (size_t i = 0; i < known->count; i++) {
        uint16_t opcode = known->shapes[i].opcode;
        printf("%s\"%s\":[%llu,%llu,%llu]", i > 0 ? "," : "", known->shapes[i].name,
               (unsigned long long)tally->opcode_executed[opcode],
               (unsigned long long)tally->opcode_succeeded[opcode],
               (unsigned long long)tally->opcode_malformed[opcode]);
    }
    printf("}}\n");
}

int main(int argc, char **argv)
{
    char reason[128] = "";
    parse(argc, argv);
    make_region();
    plan.tally =
        mmap(NULL, sizeof(*plan.tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plan.tally == MAP_FAILED) {
        die("the tally", strerror(errno));
    }
    if (options.stream != NULL &&
        (plan.stream = wh_stream_open(options.stream, reason, sizeof(reason))) == NULL) {
        die(options.stream, reason);
    }
    plan.session = &session;
    plan.notify_fd = notify_fd;
    plan.wake_fd = wake_fd;
    signal(SIGPIPE, SIG_IGN);
    const struct sigaction action = {.sa_handler = end, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    enter_jail();
    pid_t neighbour = start_neighbour();
    load_backend();
    uint64_t number = options.session >= 0 ? (uint64_t)options.session : 0;
    do {
        if (plan.stream != NULL && number % 8 == 7 && options.session < 0) {
            advance_stream(1);
        }
        run_session(number++);
    } while (options.session < 0 && plan.tally->executed < options.messages &&
             totals.findings < FINDINGS_MAX && !ending);
    kill(neighbour, SIGKILL);
    print_result();
    return totals.findings > 0;
}
