/*
 * main.c - runs cases and prints a line for each: `differential [--native] [--loud] [--alone FILE]
 * [GROUP...]` prints group, case and what came of it, with tabs between.
 *
 * Cases run in child processes, so that one which kills its process or hangs is an outcome like any
 * other; the next child goes on behind it. --alone names a file of cases ("group<tab>case") that
 * get a process of their own: those that kill the native process, after which nothing can be
 * compared. With --native, cases that are undefined natively print what the specification demands.
 */
#define _GNU_SOURCE
#include "cases.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CASE_LIMIT_MS 30000
#define LINE_BYTES_MAX ((size_t)8192)
#define STATUS_NO_SETTING 90
#define STATUS_LOST 91

struct one {
    const struct group *group;
    size_t number;
    char name[160];
    bool alone;
};

static struct one *cases;
static size_t case_count;
static bool native;
static bool loud;

void *find_function(const struct setting *setting, const char *name)
{
    void *function = dlsym(RTLD_DEFAULT, name);
    return function != NULL ? function
                            : clGetExtensionFunctionAddressForPlatform(setting->platform, name);
}

/* Runs one case in the child; false if the setting is of no use any more. */
static bool run_case(struct setting *setting, const struct one *one, int to, size_t index)
{
    struct outcome outcome = {.length = 0};
    cl_int undefined = one->group->undefined == NULL ? 0 : one->group->undefined(one->number);
    dprintf(to, "%zu begin\n", index);
    if (native && undefined != 0) {
        say(&outcome, "%d", undefined);
    } else {
        one->group->run(setting, one->number, &outcome);
    }
    bool works = clFlush(setting->queue) == CL_SUCCESS;
    dprintf(to, "%zu %s%s\n", index, outcome.text, works ? "" : " and nothing works any more");
    return works;
}

static int run_child(size_t first, size_t end, int to)
{
    struct setting setting;
    const struct group *open = NULL;
    for (size_t i = first; i < end; i++) {
        if (cases[i].group != open) {
            if (open != NULL) {
                setting_close(&setting);
            }
            open = cases[i].group;
            if (!setting_open(&setting)) {
                return STATUS_NO_SETTING;
            }
        }
        if (!run_case(&setting, &cases[i], to, i)) {
            return STATUS_LOST;
        }
    }
    dprintf(to, "%zu end\n", end);
    /* The objects of the last group stay: leaving with live objects must do no harm either. */
    return 0;
}

static void print_outcome(size_t index, const char *outcome)
{
    printf("%s\t%s\t%s\n", cases[index].group->name, cases[index].name, outcome);
    fflush(stdout);
}

/* What a child has said so far. */
struct talk {
    char text[2 * LINE_BYTES_MAX];
    size_t length;
    size_t next; /* first case without an outcome */
};

/* Prints the outcomes among the whole lines and keeps the rest. */
static void take_lines(struct talk *talk)
{
    char *line = talk->text;
    char *newline = NULL;
    while ((newline = memchr(line, '\n', talk->length - (size_t)(line - talk->text))) != NULL) {
        char *text = NULL;
        *newline = 0;
        size_t index = strtoul(line, &text, 10);
        if (text[0] == ' ' && index == talk->next && strcmp(text, " begin") != 0 &&
            strcmp(text, " end") != 0) {
            print_outcome(talk->next++, text + 1);
        }
        line = newline + 1;
    }
    talk->length -= (size_t)(line - talk->text);
    memmove(talk->text, line, talk->length);
}

/* Follows a child until it ends (true) or hangs (false). */
static bool follow(struct talk *talk, int from)
{
    for (;;) {
        struct pollfd wait = {.fd = from, .events = POLLIN};
        int ready = poll(&wait, 1, CASE_LIMIT_MS);
        if (ready < 0 && errno == EINTR) {
            continue;
        }
        if (ready <= 0) {
            return ready < 0;
        }
        if (talk->length == sizeof(talk->text)) {
            talk->length = 0; /* no line of ours is that long */
        }
        ssize_t got = read(from, talk->text + talk->length, sizeof(talk->text) - talk->length);
        if (got <= 0) {
            return true;
        }
        talk->length += (size_t)got;
        take_lines(talk);
    }
}

/* Behind a case that killed its process: a function whose baseline does is not there at all. */
static size_t behind_dead(size_t index)
{
    const struct group *group = cases[index].group;
    bool all = native && cases[index].number == 0 && group->undefined != NULL;
    size_t next = index + 1;
    while (all && next < case_count && cases[next].group == group) {
        next++;
    }
    return next;
}

/* A child for some cases; returns where to go on. */
static size_t run_some(size_t first, size_t end)
{
    int ends[2];
    int status = 0;
    if (pipe(ends) != 0) {
        perror("pipe");
        exit(1);
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        if (!loud) {
            (void)!freopen("/dev/null", "w", stderr);
        }
        exit(run_child(first, end, ends[1]));
    }
    close(ends[1]);
    static struct talk talk;
    talk.length = 0;
    talk.next = first;
    bool ended = child > 0 && follow(&talk, ends[0]);
    close(ends[0]);
    if (child > 0 && !ended) {
        kill(child, SIGKILL);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("fork");
        exit(1);
    }
    size_t next = talk.next;
    if (next >= end) {
        return next;
    }
    if (!ended) {
        print_outcome(next, "hang");
        return next + 1;
    }
    if (WIFSIGNALED(status)) {
        char outcome[32];
        snprintf(outcome, sizeof(outcome), "killed by signal %d", WTERMSIG(status));
        print_outcome(next, outcome);
        return behind_dead(next);
    }
    if (WEXITSTATUS(status) == STATUS_NO_SETTING && next == first) {
        print_outcome(next, "no setting");
        return next + 1;
    }
    if (WEXITSTATUS(status) != STATUS_LOST || next == first) {
        print_outcome(next, "ended the process");
        return behind_dead(next);
    }
    return next;
}

static bool listed(const char *text, const struct one *one)
{
    char line[400];
    snprintf(line, sizeof(line), "\n%s\t%s\n", one->group->name, one->name);
    return text != NULL && strstr(text, line) != NULL;
}

static bool wanted(const char *name, int count, char **names)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return count == 0;
}

static void collect(const struct group *groups, size_t count, const char *alone, int name_count,
                    char **names)
{
    for (size_t i = 0; i < count; i++) {
        if (!wanted(groups[i].name, name_count, names)) {
            continue;
        }
        cases = realloc(cases, (case_count + groups[i].case_count) * sizeof(*cases));
        if (cases == NULL) {
            perror("realloc");
            exit(1);
        }
        for (size_t k = 0; k < groups[i].case_count; k++) {
            struct one *one = &cases[case_count++];
            *one = (struct one){.group = &groups[i], .number = k};
            groups[i].name_case(k, one->name, sizeof(one->name));
            one->alone = listed(alone, one);
        }
    }
}

/* A file's text behind a newline. */
static char *text_of(const char *path)
{
    FILE *file = fopen(path, "r");
    size_t capacity = (size_t)4 << 20;
    char *text = calloc(1, capacity + 2);
    if (file == NULL || text == NULL) {
        perror(path);
        exit(1);
    }
    text[0] = '\n';
    (void)!fread(text + 1, 1, capacity, file);
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    const struct rlimit no_core = {0, 0};
    char *alone = NULL;
    int at = 1;
    setrlimit(RLIMIT_CORE, &no_core);
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "--native") == 0) {
            native = true;
        } else if (strcmp(argv[at], "--loud") == 0) {
            loud = true;
        } else if (strcmp(argv[at], "--alone") == 0 && at + 1 < argc) {
            alone = text_of(argv[++at]);
        } else {
            fprintf(stderr, "usage: differential [--native] [--loud] [--alone FILE] [GROUP...]\n");
            return 2;
        }
    }
    collect(generated_groups, generated_group_count, alone, argc - at, argv + at);
    collect(written_groups, written_group_count, alone, argc - at, argv + at);
    for (size_t first = 0; first < case_count;) {
        size_t end = first + 1;
        while (!cases[first].alone && end < case_count && !cases[end].alone) {
            end++;
        }
        first = run_some(first, end);
    }
    free(cases);
    free(alone);
    return 0;
}
