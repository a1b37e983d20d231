/*
 * includes.c - headers of the application's own file system, for a compiler that runs elsewhere.
 *
 * What `#include` and the options' directories name lies where the application runs. Before a
 * program is built, the files that its source can need are sent to a folder of the server
 * (wh_files.h) that mirrors the paths, and the options name that folder in place of the root or of
 * the current directory. The compiler thus finds the application's files or none, never the
 * server's.
 *
 * No conditional is evaluated: every name after `#include`, and every quoted name in a `#define` or
 * in the options, is looked for in all places that the compiler could look in. A file too many does
 * no harm. Each begins with a #line, so that messages and __FILE__ keep the application's names.
 */
#include "object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "output.h"
#include "text.h"
#include "wh_core_stub.h"
#include "wh_files.h"

#define DIRECTORIES_MAX 64
#define PATH_BYTES 1024
#define FILES_MAX 4096
#define HEADER_BYTES_MAX ((size_t)64 << 20)

/* Names of the application's files on the server: of absolute paths, and of relative ones. The dot
 * tells them apart when an answer of the compiler is turned back. */
#define ABSOLUTE WH_GUEST_FILES
#define RELATIVE WH_GUEST_FILES "/."

/* Where absolute names in sources are found: they begin with the name of the folder itself. */
#define SEARCH_ROOT "-I" WH_GUEST_FILES "/.. "

struct path {
    char text[PATH_BYTES];
};

struct file {
    struct path there; /* below the folder of the server */
    struct path name;  /* as the compiler would call it here; empty for a folder */
    char *bytes;
    size_t size;
};

struct shipment {
    struct path here; /* the current directory, as it is named on the server */
    struct path directories[DIRECTORIES_MAX];
    int directory_count;
    struct file *files;
    int count;
    bool failed;
};

/* ---- paths ---- */

static bool join_path(struct path *to, const char *first, const char *second)
{
    int length = first[0] == '\0' ? snprintf(to->text, PATH_BYTES, "%s", second)
                                  : snprintf(to->text, PATH_BYTES, "%s/%s", first, second);
    return length > 0 && length < PATH_BYTES;
}

/* The current directory without what separates options: such a name could not stand in them. */
static bool find_here(struct path *here)
{
    struct path raw;
    size_t used = 0;
    if (getcwd(raw.text, PATH_BYTES) == NULL) {
        return false;
    }
    for (const char *at = raw.text; *at != '\0'; at++) {
        bool odd = *at <= ' ' || strchr("\"'\\%", *at) != NULL;
        if (used + 4 > PATH_BYTES) {
            return false;
        }
        used += (size_t)snprintf(here->text + used, PATH_BYTES - used, odd ? "%%%02x" : "%c",
                                 (unsigned char)*at);
    }
    return true;
}

static struct file *find_file(const struct shipment *shipment, const char *there)
{
    for (int i = 0; i < shipment->count; i++) {
        if (strcmp(shipment->files[i].there.text, there) == 0) {
            return &shipment->files[i];
        }
    }
    return NULL;
}

static struct file *add_file(struct shipment *shipment, const char *there)
{
    if (shipment->count == FILES_MAX) {
        shipment->failed = true;
        return NULL;
    }
    if ((shipment->count & (shipment->count - 1)) == 0) {
        size_t capacity = shipment->count == 0 ? 1 : (size_t)shipment->count * 2;
        struct file *grown = realloc(shipment->files, capacity * sizeof(*grown));
        if (grown == NULL) {
            shipment->failed = true;
            return NULL;
        }
        shipment->files = grown;
    }
    struct file *file = &shipment->files[shipment->count++];
    memset(file, 0, sizeof(*file));
    snprintf(file->there.text, PATH_BYTES, "%s", there);
    return file;
}

/* A folder that a path goes through and leaves again by "..": it must exist for that. */
static void add_folder(struct shipment *shipment, const struct path *path, size_t length)
{
    struct path folder;
    int size = snprintf(folder.text, PATH_BYTES, "%.*s/", (int)length, path->text);
    if (size > 1 && size < PATH_BYTES && find_file(shipment, folder.text) == NULL) {
        (void)add_file(shipment, folder.text);
    }
}

/* The place of a path below the server's folder: without ".", "..", and empty parts. */
static bool place(struct shipment *shipment, const char *path, struct path *there)
{
    struct path whole;
    size_t used = 0;
    bool fits =
        path[0] == '/' ? join_path(&whole, "", path) : join_path(&whole, shipment->here.text, path);
    there->text[0] = '\0';
    for (const char *at = whole.text; fits && *at != '\0';) {
        size_t part = strcspn(at, "/");
        if (part == 2 && memcmp(at, "..", 2) == 0) {
            add_folder(shipment, there, used);
            while (used > 0 && there->text[--used] != '/') {
            }
            there->text[used] = '\0';
        } else if (part > 0 && !(part == 1 && *at == '.')) {
            used += (size_t)snprintf(there->text + used, PATH_BYTES - used, "%s%.*s",
                                     used > 0 ? "/" : "", (int)part, at);
        }
        at += part + (at[part] == '/' ? 1 : 0);
    }
    return fits && used > 0;
}

/* ---- files ---- */

/* A regular file's content; NULL if there is none. */
static char *read_file(const char *path, size_t *size)
{
    struct stat status;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return NULL;
    }
    char *bytes = NULL;
    if (fstat(fileno(file), &status) == 0 && S_ISREG(status.st_mode) &&
        (size_t)status.st_size <= HEADER_BYTES_MAX) {
        bytes = malloc((size_t)status.st_size + 1);
        *size = bytes == NULL ? 0 : fread(bytes, 1, (size_t)status.st_size, file);
    }
    fclose(file);
    return bytes;
}

static void consider_path(struct shipment *shipment, const char *path)
{
    struct path there;
    size_t size = 0;
    char *bytes = read_file(path, &size);
    if (bytes == NULL) {
        return;
    }
    bool wanted = place(shipment, path, &there) && find_file(shipment, there.text) == NULL;
    struct file *file = wanted ? add_file(shipment, there.text) : NULL;
    if (file == NULL) {
        free(bytes);
        return;
    }
    snprintf(file->name.text, PATH_BYTES, "%s", path);
    file->bytes = bytes;
    file->size = size;
}

/* A name that the source or the options may include, in every place where it may lie. `from` is
 * the folder of the file that names it, NULL for the program itself. */
static void consider(struct shipment *shipment, const char *name, const char *from)
{
    struct path path;
    if (name[0] == '/') {
        consider_path(shipment, name);
        return;
    }
    if (from != NULL && join_path(&path, from, name)) {
        consider_path(shipment, path.text);
    }
    if (join_path(&path, ".", name)) { /* as compilers call files of the current directory */
        consider_path(shipment, path.text);
    }
    for (int i = 0; i < shipment->directory_count && name[0] != '\0'; i++) {
        if (join_path(&path, shipment->directories[i].text, name)) {
            consider_path(shipment, path.text);
        }
    }
}

/* ---- sources ---- */

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t')) {
        at++;
    }
    return at;
}

/* The text behind a directive's word, NULL if the line is another one. */
static const char *after_directive(const char *line, const char *end, const char *word)
{
    const size_t length = strlen(word);
    const char *at = skip_blanks(line, end);
    if (at == end || *at != '#') {
        return NULL;
    }
    at = skip_blanks(at + 1, end);
    return (size_t)(end - at) > length && memcmp(at, word, length) == 0 ? at + length : NULL;
}

static const char *after_include(const char *line, const char *end)
{
    static const char *const words[] = {"include_next", "include", "import"};
    const char *at = NULL;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && at == NULL; i++) {
        at = after_directive(line, end, words[i]);
    }
    return at == NULL ? NULL : skip_blanks(at, end);
}

/* The next name in quotes or angles at or after `at`; the place behind it, NULL if there is none.
 */
static const char *next_name(const char *at, const char *end, struct path *name)
{
    for (; at < end; at++) {
        const char close = *at == '"' ? '"' : *at == '<' ? '>' : '\0';
        const char *stop = close == '\0' ? NULL : memchr(at + 1, close, (size_t)(end - at - 1));
        if (stop != NULL && stop - at > 1 && stop - at < PATH_BYTES) {
            memcpy(name->text, at + 1, (size_t)(stop - at - 1));
            name->text[stop - at - 1] = '\0';
            return stop + 1;
        }
    }
    return NULL;
}

static void scan_names(struct shipment *shipment, const char *at, const char *end, const char *from)
{
    struct path name;
    while (at != NULL && (at = next_name(at, end, &name)) != NULL) {
        consider(shipment, name.text, from);
    }
}

/* An #include of a macro, as in `#include M2S(INCLUDE_PATH/types.h)`: what stands behind the
 * macro's directory is looked for in the directories, and those that -D gives are among them. */
static void scan_computed(struct shipment *shipment, const char *at, const char *end,
                          const char *from)
{
    while (at < end && (at = memchr(at, '/', (size_t)(end - at))) != NULL) {
        struct path name;
        size_t used = 0;
        for (at++; at < end && strchr(" \t\r),\"", *at) == NULL && used + 1 < PATH_BYTES; at++) {
            name.text[used++] = *at;
        }
        name.text[used] = '\0';
        if (used > 0) {
            consider(shipment, name.text, from);
        }
    }
}

static void scan_source(struct shipment *shipment, const char *source, size_t size,
                        const char *from)
{
    const char *end = source + size;
    for (const char *line = source; line < end && !shipment->failed;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *stop = newline == NULL ? end : newline;
        const char *names = after_include(line, stop);
        if (names != NULL && names < stop && strchr("\"<", *names) == NULL) {
            scan_computed(shipment, names, stop, from);
        }
        names = names != NULL ? names : after_directive(line, stop, "define");
        scan_names(shipment, names, stop, from);
        line = newline == NULL ? end : newline + 1;
    }
}

/* Files that are found are sources themselves; the list grows while it is walked. */
static void scan_files(struct shipment *shipment)
{
    for (int i = 0; i < shipment->count && !shipment->failed; i++) {
        struct path from = shipment->files[i].name;
        char *slash = strrchr(from.text, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
        if (shipment->files[i].bytes != NULL) {
            scan_source(shipment, shipment->files[i].bytes, shipment->files[i].size,
                        slash == NULL ? "." : from.text);
        }
    }
}

/* An absolute name in an #include line: where it begins in the line, NULL if there is none. */
static const char *absolute_name(const char *line, const char *end)
{
    const char *at = after_include(line, end);
    bool opened = at != NULL && end - at > 1 && (*at == '"' || *at == '<');
    return opened && at[1] == '/' ? at + 1 : NULL;
}

static void append_source(struct wh_text *text, const char *source, size_t size)
{
    const char *end = source + size;
    for (const char *line = source; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *stop = newline == NULL ? end : newline + 1;
        const char *name = absolute_name(line, stop);
        if (name != NULL) {
            wh_text_add(text, line, (size_t)(name - line));
            wh_text_add_string(text, ABSOLUTE);
            line = name;
        }
        wh_text_add(text, line, (size_t)(stop - line));
        line = stop;
    }
}

char *wh_cl_rewrite_source(const char *source, size_t size, size_t *new_size)
{
    struct wh_text text = {0};
    append_source(&text, source, size);
    if (text.failed || text.size == size) {
        free(text.bytes);
        return NULL;
    }
    *new_size = text.size;
    return text.bytes;
}

/* ---- options ---- */

struct option {
    const char *word;
    bool directory;
};

static const struct option defines = {"-D", true};
static const struct option options_with_paths[] = {
    {"-I", true},         {"-isystem", true},  {"-iquote", true},
    {"-idirafter", true}, {"-include", false}, {"-imacros", false},
};

/* The end of a word of the options: the next blank outside quotes. */
static const char *end_of_word(const char *at, char quote)
{
    for (; *at != '\0' && (quote != '\0' || strchr(" \t\n", *at) == NULL); at++) {
        if (*at == '"' || *at == '\'') {
            quote = quote == '\0' ? *at : *at == quote ? '\0' : quote;
        }
    }
    return at;
}

/* `-D NAME=/directory`: where the directory begins, NULL if the value is none. Sources put such a
 * name before that of a header. */
static const char *defined_directory(const char *word)
{
    struct path path;
    struct stat status;
    if (strncmp(word, defines.word, 2) != 0) {
        return NULL;
    }
    word += 2;
    word += strspn(word, " \t\n");
    word += strcspn(word, "= \t\n");
    word += *word == '=' ? 1 : 0;
    word += *word == '"' || *word == '\'' ? 1 : 0;
    size_t size = strcspn(word, " \t\n\"'");
    if (*word != '/' || size >= PATH_BYTES) {
        return NULL;
    }
    memcpy(path.text, word, size);
    path.text[size] = '\0';
    return stat(path.text, &status) == 0 && S_ISDIR(status.st_mode) ? word : NULL;
}

/* Where the path of an option begins; NULL if the word is no such option or lacks its path. */
static const char *path_of(const char *word, const struct option **found)
{
    for (size_t i = 0; i < sizeof(options_with_paths) / sizeof(options_with_paths[0]); i++) {
        const struct option *option = &options_with_paths[i];
        size_t length = strlen(option->word);
        if (strncmp(word, option->word, length) == 0) {
            word += length;
            word += strspn(word, " \t\n");
            word += *word == '"' || *word == '\'' ? 1 : 0;
            *found = option;
            return *word == '\0' ? NULL : word;
        }
    }
    *found = &defines;
    return defined_directory(word);
}

static void keep_path(struct shipment *shipment, const struct option *option, const char *from,
                      const char *to)
{
    struct path path;
    size_t used = 0;
    for (; from < to && used + 1 < PATH_BYTES; from++) {
        if (*from != '"' && *from != '\'') {
            path.text[used++] = *from;
        }
    }
    path.text[used] = '\0';
    if (!option->directory) {
        consider(shipment, path.text, NULL);
    } else if (shipment->directory_count < DIRECTORIES_MAX) {
        shipment->directories[shipment->directory_count++] = path;
    }
}

/* The options with the server's names for paths; nothing else of them changes. A file to include
 * is looked for in the directories, so only an absolute one has another name. */
static void append_options(struct wh_text *text, struct shipment *shipment, const char *options)
{
    const char *done = options;
    const char *word = options + strspn(options, " \t\n");
    while (*word != '\0') {
        const struct option *option = NULL;
        const char *path = path_of(word, &option);
        const char *end =
            end_of_word(path == NULL ? word : path, path == NULL              ? '\0'
                                                    : strchr("\"'", path[-1]) ? path[-1]
                                                                              : '\0');
        if (path != NULL) {
            keep_path(shipment, option, path, end);
            wh_text_add(text, done, (size_t)(path - done));
            if (*path == '/') {
                wh_text_add_string(text, ABSOLUTE);
            } else if (option->directory) {
                wh_text_add_string(text, RELATIVE);
                wh_text_add_string(text, shipment->here.text);
                wh_text_add_string(text, "/");
            }
            done = path;
        }
        word = end + strspn(end, " \t\n");
    }
    wh_text_add_string(text, done);
}

/* ---- sending ---- */

static int send_file(const struct file *file)
{
    struct wh_text text = {0};
    if (file->bytes != NULL && memchr(file->bytes, '\0', file->size) == NULL) {
        wh_text_add_string(&text, "#line 1 \"");
        for (const char *at = file->name.text; *at != '\0'; at++) {
            wh_text_add(&text, "\\", *at == '"' || *at == '\\' ? 1 : 0);
            wh_text_add(&text, at, 1);
        }
        wh_text_add_string(&text, "\"\n");
    }
    append_source(&text, file->bytes, file->size);
    wh_output_expect(file->bytes, file->size);
    int error = text.failed
                    ? -1
                    : whPutFile(file->there.text, text.bytes == NULL ? "" : text.bytes, text.size);
    free(text.bytes);
    return error;
}

static cl_int send_files(const struct shipment *shipment)
{
    for (int i = 0; i < shipment->count; i++) {
        if (send_file(&shipment->files[i]) != 0) {
            return CL_OUT_OF_RESOURCES;
        }
    }
    return CL_SUCCESS;
}

static void release(struct shipment *shipment)
{
    for (int i = 0; i < shipment->count; i++) {
        free(shipment->files[i].bytes);
    }
    free(shipment->files);
    free(shipment);
}

cl_int wh_cl_ship_includes(const struct wh_cl_object *const *programs, size_t count,
                           const char *options, char **new_options)
{
    struct wh_text text = {0};
    struct wh_text changed = {0};
    struct shipment *shipment = calloc(1, sizeof(*shipment));
    *new_options = NULL;
    if (shipment == NULL || !find_here(&shipment->here)) {
        free(shipment);
        return shipment == NULL ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
    }
    if (options != NULL) {
        append_options(&changed, shipment, options);
        scan_names(shipment, options, options + strlen(options), NULL);
    }
    for (size_t i = 0; i < count; i++) {
        scan_source(shipment, programs[i]->u.of_program.source,
                    programs[i]->u.of_program.source_bytes, NULL);
    }
    scan_files(shipment);
    cl_int error = shipment->failed ? CL_OUT_OF_RESOURCES : send_files(shipment);
    if (shipment->count > 0) {
        /* Absolute names, and the current directory, which compilers search first. */
        wh_text_add_string(&text, SEARCH_ROOT "-I" RELATIVE);
        wh_text_add_string(&text, shipment->here.text);
        wh_text_add_string(&text, " ");
    }
    if (options != NULL) {
        wh_text_add_string(&text, changed.bytes);
    }
    free(changed.bytes);
    release(shipment);
    if (error == CL_SUCCESS && text.failed) {
        error = CL_OUT_OF_HOST_MEMORY;
    }
    if (error != CL_SUCCESS || text.size == (options == NULL ? 0 : strlen(options))) {
        free(text.bytes);
        return error;
    }
    *new_options = text.bytes;
    return CL_SUCCESS;
}

/* What begins at `at`: how much of it goes, and what stands there instead. */
static size_t foreign(const char *at, const struct path *here, const char **instead)
{
    const struct {
        const char *parts[3];
        const char *instead;
    } names[] = {
        {{SEARCH_ROOT "-I" RELATIVE, here->text, " "}, ""},
        {{SEARCH_ROOT "-I" RELATIVE, here->text, ""}, ""},
        {{RELATIVE, here->text, "/"}, ""},
        {{ABSOLUTE "/", "", ""}, "/"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t used = 0;
        for (size_t j = 0; j < 3; j++) {
            size_t length = strlen(names[i].parts[j]);
            if (strncmp(at + used, names[i].parts[j], length) != 0) {
                used = 0;
                break;
            }
            used += length;
        }
        if (used > 0) {
            *instead = names[i].instead;
            return used;
        }
    }
    return 0;
}

char *wh_cl_own_names(const char *answer)
{
    struct path here = {.text = ""};
    struct wh_text text = {0};
    (void)find_here(&here);
    wh_text_add_string(&text, "");
    while (*answer != '\0') {
        const char *instead = NULL;
        size_t used = foreign(answer, &here, &instead);
        if (used > 0) {
            wh_text_add_string(&text, instead);
        } else {
            wh_text_add(&text, answer, 1);
        }
        answer += used > 0 ? used : 1;
    }
    if (text.failed) {
        free(text.bytes);
        return NULL;
    }
    return text.bytes;
}
