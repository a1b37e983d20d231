/*
 * replay.c - wormhole-replay FILE [--json] [--repeat N]: sends a recorded call stream again and
 * checks every byte.
 *
 * It is the worker's skeleton run by a file: each recorded request is decoded and carried out by
 * the worker's own code against whatever OpenCL the loader finds - the machine's own, or our stub -
 * and the reply that comes of it must equal the recorded one. Answers that differ from run to run
 * (spec: volatile) are not compared.
 *
 * Exit status: 0 all equal, 1 something differed, 2 could not be carried out.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opencl_backend.h"
#include "recording.h"
#include "session.h"
#include "wh_skeleton_parts.h"

#define TEXT_BYTES 512
#define OUTPUT_BYTES (1u << 20)
#define REPEAT_MAX 100000

enum exit_status {
    EXIT_EQUAL = 0,
    EXIT_DIFFERENT = 1,
    EXIT_FAILED = 2,
};

struct options {
    const char *path;
    bool json;
    long repeat;
};

struct totals {
    uint64_t calls;
    uint64_t compared_bytes;
    uint64_t not_compared;
    uint64_t mismatches;
    char first[TEXT_BYTES];
};

static void usage(void)
{
    fprintf(stderr, "usage: wormhole-replay FILE [--json] [--repeat N]\n");
    exit(EXIT_FAILED);
}

static struct options parse(int argc, char **argv)
{
    struct options options = {.repeat = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options.json = true;
        } else if (strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) {
            char *end = NULL;
            options.repeat = strtol(argv[++i], &end, 10);
            if (*end != '\0' || options.repeat < 1 || options.repeat > REPEAT_MAX) {
                usage();
            }
        } else if (argv[i][0] != '-' && options.path == NULL) {
            options.path = argv[i];
        } else {
            usage();
        }
    }
    if (options.path == NULL) {
        usage();
    }
    return options;
}

static uint64_t microseconds(const struct timeval *time)
{
    return (uint64_t)time->tv_sec * 1000000u + (uint64_t)time->tv_usec;
}

/* A JSON text: a label or message without what would need escapes. */
static void clean(char *to, size_t capacity, const char *text, size_t text_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < text_bytes && used + 1 < capacity; i++) {
        unsigned char letter = (unsigned char)text[i];
        to[used++] = letter < 0x20 || letter == '"' || letter == '\\' ? '\'' : (char)letter;
    }
    to[used] = '\0';
}

typedef void (*mark_function)(const char *label);

/* The stub's own mark, so that its counters have the same boundaries; NULL under the machine's own
 * OpenCL. */
static mark_function find_mark(void)
{
    const char *path = getenv("WORMHOLE_MARK_LIB");
    void *library = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    mark_function mark = NULL;
    if (path != NULL && library == NULL) {
        fprintf(stderr, "wormhole-replay: WORMHOLE_MARK_LIB=%s: %s\n", path, dlerror());
        exit(EXIT_FAILED);
    }
    if (library != NULL) {
        *(void **)&mark = dlsym(library, "wormhole_mark");
    }
    return mark;
}

static void pass_mark(const struct wh_recorded *item, mark_function mark, bool json)
{
    char label[TEXT_BYTES];
    struct rusage usage = {0};
    unsigned long step = 0;
    clean(label, sizeof(label), item->label, item->label_bytes);
    if (mark != NULL) {
        mark(label);
    }
    if (!json) {
        return;
    }
    getrusage(RUSAGE_SELF, &usage);
    bool is_step = sscanf(label, "step %lu", &step) == 1;
    printf("{\"event\":\"%s\",\"label\":\"%s\",", is_step ? "step" : "mark", label);
    if (is_step) {
        printf("\"step\":%lu,", step);
    }
    printf("\"t_ns\":%llu,\"user_us\":%llu,\"system_us\":%llu}\n", (unsigned long long)wh_now_ns(),
           (unsigned long long)microseconds(&usage.ru_utime),
           (unsigned long long)microseconds(&usage.ru_stime));
}

static void note(struct totals *totals, const struct wh_recorded *item, const char *what,
                 uint64_t recorded, uint64_t replayed)
{
    totals->mismatches++;
    if (totals->mismatches > 1) {
        return;
    }
    snprintf(totals->first, sizeof(totals->first),
             "entry %llu, %s: %s was %#llx when recorded, is %#llx now",
             (unsigned long long)item->entry, wh_opcode_name(item->request->opcode), what,
             (unsigned long long)recorded, (unsigned long long)replayed);
}

static bool is_volatile(const struct wh_request_header *request)
{
    uint64_t items[8];
    size_t bytes = request->size_bytes - sizeof(*request);
    bytes = bytes < sizeof(items) ? bytes & ~(size_t)7 : sizeof(items);
    memcpy(items, request + 1, bytes);
    return wh_cl_reply_volatile(request->opcode, items, bytes / sizeof(uint64_t));
}

/* The eight bytes at a place of a reply, fewer at its end. */
static uint64_t word_at(const uint8_t *bytes, size_t at, size_t size_bytes)
{
    uint64_t word = 0;
    size_t left_bytes = at < size_bytes ? size_bytes - at : 0;
    memcpy(&word, bytes + at, left_bytes < sizeof(word) ? left_bytes : sizeof(word));
    return word;
}

/* A reply that is being compared, both forms of it. */
struct pair {
    const uint8_t *before;
    const uint8_t *now;
    size_t before_bytes;
    size_t now_bytes;
};

/* Compares a part; places are those of the whole reply. */
static void compare_part(struct totals *totals, const struct wh_recorded *item,
                         const struct pair *part, size_t place)
{
    char what[64];
    totals->compared_bytes += part->now_bytes;
    if (part->before_bytes == part->now_bytes &&
        memcmp(part->before, part->now, part->now_bytes) == 0) {
        return;
    }
    size_t common_bytes =
        part->before_bytes < part->now_bytes ? part->before_bytes : part->now_bytes;
    for (size_t at = 0; at < common_bytes; at += sizeof(uint64_t)) {
        uint64_t before = word_at(part->before, at, common_bytes);
        uint64_t now = word_at(part->now, at, common_bytes);
        if (before != now) {
            snprintf(what, sizeof(what), "the result at byte %zu", place + at);
            note(totals, item, what, before, now);
            return;
        }
    }
    note(totals, item, "the size of the results", part->before_bytes, part->now_bytes);
}

/* Bytes of an output area in a reply: its size, then its content. */
static size_t area_bytes(const uint8_t *bytes, size_t at, size_t size_bytes)
{
    size_t left_bytes = size_bytes - at;
    uint64_t content_bytes = word_at(bytes, at, size_bytes);
    if (left_bytes < sizeof(uint64_t) || content_bytes > left_bytes - sizeof(uint64_t)) {
        return left_bytes;
    }
    return sizeof(uint64_t) + wh_align(content_bytes, WH_ITEM_BYTES);
}

/*
 * A reply that says which reads are complete. With several threads that may come with the reply to
 * one thread or to another, so a read is compared where both times its data came.
 */
static void compare_with_reads(struct totals *totals, const struct wh_recorded *item,
                               const struct pair *whole, int own_areas)
{
    const size_t flags_bytes = (size_t)wh_cl_asked.count * sizeof(uint64_t);
    size_t before_at = sizeof(uint64_t) + flags_bytes;
    size_t now_at = before_at;
    struct pair part = {whole->before, whole->now, sizeof(uint64_t), sizeof(uint64_t)};
    if (whole->before_bytes < before_at || whole->now_bytes < now_at) {
        compare_part(totals, item, whole, 0);
        return;
    }
    compare_part(totals, item, &part, 0); /* the error */
    size_t areas = (size_t)own_areas + wh_cl_asked.carried;
    for (size_t i = 0; i < areas; i++) {
        size_t flag_at = sizeof(uint64_t) * (i - (size_t)own_areas + 1);
        part.before = whole->before + before_at;
        part.now = whole->now + now_at;
        part.before_bytes = area_bytes(whole->before, before_at, whole->before_bytes);
        part.now_bytes = area_bytes(whole->now, now_at, whole->now_bytes);
        bool came = i < (size_t)own_areas ||
                    (word_at(whole->before, flag_at, whole->before_bytes) == WH_CL_READ_DONE &&
                     word_at(whole->now, flag_at, whole->now_bytes) == WH_CL_READ_DONE);
        if (came) {
            compare_part(totals, item, &part, now_at);
        }
        before_at += part.before_bytes;
        now_at += part.now_bytes;
    }
}

static void compare(struct totals *totals, const struct wh_recorded *item, int status,
                    const struct wh_reply *reply)
{
    const struct wh_reply_header *recorded = item->reply;
    const struct pair whole = {
        .before = (const uint8_t *)(recorded + 1),
        .now = reply->bytes,
        .before_bytes = recorded->size_bytes,
        .now_bytes = status == 0 ? reply->size_bytes : 0,
    };
    if (recorded->status != status) {
        note(totals, item, "the status", (uint64_t)(int64_t)recorded->status,
             (uint64_t)(int64_t)status);
    } else if (is_volatile(item->request)) {
        totals->not_compared++;
    } else if (status == 0 && wh_cl_asked.count > 0) {
        compare_with_reads(totals, item, &whole, reply->out_count - (int)wh_cl_asked.carried);
    } else {
        compare_part(totals, item, &whole, 0);
    }
}

/* One call: false if the recording is not what this program can carry out. */
static bool replay_call(struct wh_executor *executor, const struct wh_recorded *item,
                        struct totals *totals)
{
    memset(&wh_cl_asked, 0, sizeof(wh_cl_asked));
    int status = wh_execute(executor, item->request, (const uint8_t *)item->request);
    if (status == -EBADMSG) {
        fprintf(stderr, "wormhole-replay: entry %llu, %s: malformed request, record again\n",
                (unsigned long long)item->entry, wh_opcode_name(item->request->opcode));
        return false;
    }
    totals->calls++;
    compare(totals, item, status, &executor->reply);
    return true;
}

static void report(const struct options *options, const struct totals *totals, uint64_t wall_ns)
{
    struct rusage usage = {0};
    char first[TEXT_BYTES];
    getrusage(RUSAGE_SELF, &usage);
    clean(first, sizeof(first), totals->first, strlen(totals->first));
    if (options->json) {
        printf("{\"event\":\"result\",\"calls\":%llu,\"compared_bytes\":%llu,\"not_compared\":%llu,"
               "\"mismatches\":%llu,\"first_mismatch\":\"%s\",\"wall_ns\":%llu,\"user_us\":%llu,"
               "\"system_us\":%llu}\n",
               (unsigned long long)totals->calls, (unsigned long long)totals->compared_bytes,
               (unsigned long long)totals->not_compared, (unsigned long long)totals->mismatches,
               first, (unsigned long long)wall_ns,
               (unsigned long long)microseconds(&usage.ru_utime),
               (unsigned long long)microseconds(&usage.ru_stime));
    } else {
        printf(
            "%llu calls in %.3f s, %llu bytes compared, %llu replies not compared, %llu differ\n",
            (unsigned long long)totals->calls, (double)wall_ns * 1e-9,
            (unsigned long long)totals->compared_bytes, (unsigned long long)totals->not_compared,
            (unsigned long long)totals->mismatches);
    }
    if (totals->mismatches > 0) {
        fprintf(stderr, "wormhole-replay: %s\n", totals->first);
    }
}

static int replay(const struct options *options, const struct wh_recording *recording)
{
    static struct wh_session session;
    static struct totals totals;
    char reason[TEXT_BYTES] = "";
    wh_cl_requests_stay = true;
    int error = wh_session_init(&session);
    if (error == 0) {
        error = wh_cl_load(&session, reason, sizeof(reason));
    }
    struct wh_executor *executor =
        error == 0 ? wh_executor_create(&session, sizeof(struct wh_request_header),
                                        WH_TCP_MESSAGE_BYTES_MAX)
                   : NULL;
    if (executor == NULL) {
        fprintf(stderr, "wormhole-replay: %s\n", reason[0] != '\0' ? reason : "no memory");
        return EXIT_FAILED;
    }
    wh_this_executor = executor;
    mark_function mark = find_mark();
    uint64_t start_ns = wh_now_ns();
    for (size_t i = 0; i < recording->count; i++) {
        const struct wh_recorded *item = &recording->items[i];
        if (item->request == NULL) {
            pass_mark(item, mark, options->json);
        } else if (!replay_call(executor, item, &totals)) {
            return EXIT_FAILED;
        }
    }
    report(options, &totals, wh_now_ns() - start_ns);
    return totals.mismatches == 0 ? EXIT_EQUAL : EXIT_DIFFERENT;
}

/* Each repetition is a process of its own: the recorded program's objects have one life. */
static int replay_in_child(const struct options *options, const struct wh_recording *recording)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int result = replay(options, recording);
        fflush(stdout);
        exit(result); /* with destructors: the stub writes its counters there */
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        fprintf(stderr, "wormhole-replay: cannot start a process: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "wormhole-replay: the replay ended by signal %d\n", WTERMSIG(status));
        return EXIT_FAILED;
    }
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    char reason[TEXT_BYTES] = "";
    struct options options = parse(argc, argv);
    struct wh_recording recording;
    /* Lines are kept until the end, so that writing them is not part of a step. */
    setvbuf(stdout, NULL, _IOFBF, OUTPUT_BYTES);
    if (wh_recording_open(&recording, options.path, reason, sizeof(reason)) != 0) {
        fprintf(stderr, "wormhole-replay: %s: %s\n", options.path, reason);
        return EXIT_FAILED;
    }
    int worst = EXIT_EQUAL;
    if (options.repeat == 1) {
        worst = replay(&options, &recording);
    }
    for (long i = 0; options.repeat > 1 && i < options.repeat; i++) {
        int result = replay_in_child(&options, &recording);
        worst = result > worst ? result : worst;
    }
    wh_recording_close(&recording);
    return worst;
}
