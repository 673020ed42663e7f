/* Names of the code that V8 compiles, so that native stacks show functions of JavaScript.
 *
 * V8 tells of each piece of code as it is made, on the thread that makes it, and keeps frame pointers. While a function is
 * interpreted it has no code of its own, unless V8 was asked for a native frame for each: `v8.c` asks. */
#define _GNU_SOURCE
#include "v8.h"

#include <string.h>

/* v8::JitCodeEvent: what is used of it. */
struct event {
    int32_t type, code_type;
    uintptr_t start;
    size_t size;
    const void *script;
    void *user;
    void *wasm;
    union {
        struct {
            const char *text;
            size_t length;
        } name;
        uintptr_t new_start;
    };
};
enum { CODE_ADDED = 0, CODE_MOVED = 1, CODE_REMOVED = 2 };
enum { JIT_CODE = 1, WASM_CODE = 2 };
enum { NEW_ONLY = 0, ENUMERATE_EXISTING = 1 };

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Cuts a number off the end of `text`, with the colon before it. */
static bool cut_number(char *text, uint32_t *number)
{
    char *colon = strrchr(text, ':');
    if (colon == NULL || colon[1] < '0' || colon[1] > '9')
        return false;
    *number = 0;
    for (const char *digit = colon + 1; *digit >= '0' && *digit <= '9'; digit++)
        *number = *number * 10 + (uint32_t)(*digit - '0');
    *colon = 0;
    return true;
}

/* A function of JavaScript, as V8 names it. */
struct described {
    const char *name, *file;
    uint32_t line, column;
    bool is_optimized;
};

/* `JS:*load /srv/app.js:10:5`: a mark of the compiler's tier, a name that may be missing, and where it is. The mark of code that
 * replaced a running loop (on-stack replacement) has an `o` before it. False: other code. */
static bool describe(char *text, struct described *described)
{
    static const char *const kinds[] = {"JS:", "LazyCompile:", "Function:", "Eval:", "Script:"};
    size_t kind = 0, kinds_count = sizeof kinds / sizeof kinds[0];
    while (kind < kinds_count && !begins_with(text, kinds[kind]))
        kind++;
    if (kind == kinds_count)
        return false;
    static const char marks[] = "~^+*'";
    char *mark = text + strlen(kinds[kind]);
    if (mark[0] == 'o' && mark[1] != 0 && strchr(marks, mark[1]) != NULL)
        mark++;
    char *name = mark + strspn(mark, marks), *file = strchr(name, ' ');
    if (file == NULL || !cut_number(file, &described->column) || !cut_number(file, &described->line))
        return false;
    *file++ = 0;
    described->name = name;
    described->file = file;
    described->is_optimized = mark[0] == '*' || mark[0] == '+';
    return true;
}

/* Functions that have been compiled before an attach, in the isolate of this thread; NULL: it was not attached to. */
static _Thread_local struct v8_older *older_here;
static _Thread_local bool is_enumerating;
/* The same function for all isolates. */
static void (*report_optimized)(void *isolate);

static void note_age(const struct event *event, const struct described *described, void *isolate)
{
    if (event->script == NULL)
        return;
    uint64_t place = v8_place_hash(isolate, v8.script_id(event->script), (int)described->line, (int)described->column);
    if (is_enumerating)
        v8_older_add(older_here, place);
    else if (described->is_optimized)
        v8_older_is_compiled(older_here, place, v8_now_us());
}

static void on_code_added(const struct event *event)
{
    char text[2048];
    size_t length = event->name.length < sizeof text - 1 ? event->name.length : sizeof text - 1;
    memcpy(text, event->name.text, length);
    text[length] = 0;
    uint64_t hash = names_hash(names_hash(NAMES_SEED, "code"), text);
    struct described described;
    uintptr_t end = event->start + event->size;
    if (!describe(text, &described)) {
        v8_hooks->code_add(v8_heap, event->start, end, 0);
        /* What was at its place is gone. */
        v8_hooks->code_remove(v8_heap, event->start);
        return;
    }
    bool is_new;
    uint32_t function = names_number(&v8_names, hash, &is_new);
    if (is_new)
        v8_define_function(function, described.name, described.file, (int)described.line, (int)described.column);
    v8_hooks->code_add(v8_heap, event->start, end, function);
    if (older_here != NULL)
        note_age(event, &described, v8.current_isolate());
    if (described.is_optimized)
        report_optimized(v8.current_isolate());
}

static void on_event(const void *data)
{
    const struct event *event = data;
    if (event->code_type != JIT_CODE && event->code_type != WASM_CODE)
        return;
    if (event->type == CODE_ADDED)
        on_code_added(event);
    else if (event->type == CODE_MOVED)
        v8_hooks->code_move(v8_heap, event->start, event->new_start);
    else if (event->type == CODE_REMOVED)
        v8_hooks->code_remove(v8_heap, event->start);
}

void v8_watch_code(void *isolate, struct v8_older *older, void (*on_optimized)(void *isolate))
{
    older_here = older;
    report_optimized = on_optimized;
    is_enumerating = true;
    v8.watch_code(isolate, ENUMERATE_EXISTING, on_event);
    is_enumerating = false;
}

void v8_pause_watching(void *isolate)
{
    v8.watch_code(isolate, NEW_ONLY, NULL);
}

void v8_resume_watching(void *isolate)
{
    v8.watch_code(isolate, NEW_ONLY, on_event);
}
