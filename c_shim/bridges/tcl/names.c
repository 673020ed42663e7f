/* Names of procedures and methods: "namespace::procedure" and "Class.method", with the file and the line that they are at.
 *
 * A procedure is called what its command is called now, in its own namespace. A lambda has no name: it is called by the place of
 * its first command. */
#define _GNU_SOURCE
#include "kit/names.h"
#include "tcl.h"

#include <stdio.h>

/* Bits of a call frame. */
enum { IS_LAMBDA = 2, IS_METHOD = 4 };
/* Bits of a chain of method calls. */
enum { IS_CONSTRUCTOR = 8, IS_DESTRUCTOR = 16 };

#define MOST_METHODS 64

#define KNOWN 4096
/* By what the name is made of, and the file. */
struct tcl_known_names {
    struct {
        uintptr_t procedure, body, entry, namespace, file;
        uint64_t text; /* a hash of the name */
        uint32_t number; /* 0: none */
        uint32_t has_file;
    } entries[KNOWN];
};
_Static_assert(sizeof(struct tcl_known_names) == TCL_KNOWN_NAMES_BYTES, "the size that tcl.h tells");

static struct names functions;

bool tcl_names_make(void)
{
    return names_make(&functions);
}

void tcl_names_after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
}

/* ---- texts ---- */

/* "a::b" of the namespace; "" for the global one. */
static void copy_namespace(struct tcl_view *view, uintptr_t namespace, char *to, size_t room)
{
    char full[256];
    uintptr_t name = namespace == 0 ? 0 : foreign_word(&view->reader, namespace + view->tcl->layout->namespace_name);
    foreign_text(&view->reader, name, full, sizeof full);
    snprintf(to, room, "%s", strncmp(full, "::", 2) == 0 ? full + 2 : full);
}

struct command {
    uintptr_t entry, namespace;
    char name[256]; /* without the namespace */
};

static void read_command(struct tcl_view *view, uintptr_t address, struct command *command)
{
    const struct tcl_layout *layout = view->tcl->layout;
    command->entry = address == 0 ? 0 : foreign_word(&view->reader, address + layout->command_entry);
    command->namespace = address == 0 ? 0 : foreign_word(&view->reader, address + layout->command_namespace);
    foreign_text(&view->reader, command->entry == 0 ? 0 : command->entry + layout->entry_key, command->name, sizeof command->name);
}

static void copy_command(struct tcl_view *view, const struct command *command, char *to, size_t room)
{
    copy_namespace(view, command->namespace, to, room / 2);
    size_t length = strlen(to);
    snprintf(to + length, room - length, "%s%s", length == 0 ? "" : "::", command->name);
}

/* Whether the name was read where it is: it is in a namespace of the interpreter's, whose own name begins as all do. */
static bool is_of_interpreter(struct tcl_view *view, const struct command *command)
{
    const struct tcl_layout *layout = view->tcl->layout;
    char full[3];
    if (command->name[0] == 0 || command->namespace == 0)
        return false;
    uintptr_t name = foreign_word(&view->reader, command->namespace + layout->namespace_name);
    foreign_text(&view->reader, name, full, sizeof full);
    uintptr_t interpreter = foreign_word(&view->reader, command->namespace + layout->namespace_interpreter);
    return interpreter == view->interpreter && strcmp(full, "::") == 0;
}

/* ---- methods ---- */

/* The method of a chain that this procedure is the body of, or 0. The chain does not tell which one a call frame runs: all that
 * call each other by `next` share it, and its position. */
static uintptr_t find_method(struct tcl_view *view, uintptr_t chain, uintptr_t procedure)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct foreign_reader *reader = &view->reader;
    uintptr_t calls = foreign_word(reader, chain + layout->chain_calls);
    int64_t count = tcl_count(view, chain + layout->chain_count);
    for (int64_t i = 0; i < count && i < MOST_METHODS; i++) {
        uintptr_t method = foreign_word(reader, calls + (uint64_t)i * layout->chain_call_bytes);
        uintptr_t body = method == 0 ? 0 : foreign_word(reader, method + layout->method_body);
        if (body != 0 && foreign_word(reader, body + layout->body_procedure) == procedure)
            return method;
    }
    return 0;
}

/* "Class.method" of the method that the call frame runs; "" if it cannot be told. */
static void copy_method(struct tcl_view *view, uintptr_t frame, uintptr_t procedure, char *to, size_t room)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct foreign_reader *reader = &view->reader;
    uintptr_t context = foreign_word(reader, frame + layout->frame_context);
    uintptr_t chain = context == 0 ? 0 : foreign_word(reader, context + layout->call_chain);
    uintptr_t method = chain == 0 ? 0 : find_method(view, chain, procedure);
    int32_t flags;
    to[0] = 0;
    if (method == 0 || !foreign_read(reader, chain + layout->chain_flags, &flags, sizeof flags))
        return;
    uintptr_t class = foreign_word(reader, method + layout->method_class);
    uintptr_t object = foreign_word(reader, class != 0 ? class + layout->class_object : method + layout->method_object);
    struct command owner;
    char name[256];
    read_command(view, object == 0 ? 0 : foreign_word(reader, object + layout->object_command), &owner);
    tcl_places_copy_file(view, foreign_word(reader, method + layout->method_name), name, sizeof name);
    if ((flags & (IS_CONSTRUCTOR | IS_DESTRUCTOR)) != 0)
        snprintf(name, sizeof name, "%s", (flags & IS_CONSTRUCTOR) != 0 ? "constructor" : "destructor");
    if (owner.name[0] == 0 || name[0] == 0 || (!view->tcl->is_known && !is_of_interpreter(view, &owner)))
        return;
    copy_command(view, &owner, to, room / 2);
    size_t length = strlen(to);
    snprintf(to + length, room - length, ".%s", name);
}

/* ---- frames ---- */

struct called {
    uintptr_t frame, procedure, body;
    int32_t flags;
    struct command command;
};

static uint32_t define(struct tcl_view *view, struct tcl_known_places *places, const struct called *called, uintptr_t file, bool *has_file)
{
    char name[1024] = "", text[1024];
    struct tcl_place body = tcl_places_of_body(view, places, called->procedure);
    uint32_t first_line = body.file == file ? body.line : 0;
    tcl_places_copy_file(view, file, text, sizeof text);
    *has_file = text[0] != 0;
    const char *slash = strrchr(text, '/');
    if ((called->flags & IS_METHOD) != 0)
        copy_method(view, called->frame, called->procedure, name, sizeof name);
    else if ((called->flags & IS_LAMBDA) == 0 && called->command.name[0] != 0)
        copy_command(view, &called->command, name, sizeof name);
    if (name[0] == 0 && *has_file && first_line != 0)
        snprintf(name, sizeof name, "lambda[%.200s:%u]", slash == NULL ? text : slash + 1, first_line);
    else if (name[0] == 0)
        snprintf(name, sizeof name, "%s", (called->flags & IS_LAMBDA) != 0 ? "lambda" : "(deleted procedure)");
    return names_function(&functions, view->tcl->hooks, view->tcl->heap, name, text, first_line);
}

/* False: it is no procedure of this interpreter. */
static bool read_called(struct tcl_view *view, uintptr_t frame, struct called *called)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct foreign_reader *reader = &view->reader;
    called->frame = frame;
    called->procedure = foreign_word(reader, frame + layout->frame_procedure);
    if (!foreign_read(reader, frame + layout->frame_flags, &called->flags, sizeof called->flags) || called->procedure == 0 ||
        foreign_word(reader, called->procedure + layout->procedure_interpreter) != view->interpreter)
        return false;
    called->body = foreign_word(reader, called->procedure + layout->procedure_body);
    read_command(view, foreign_word(reader, called->procedure + layout->procedure_command), &called->command);
    return true;
}

static void check(struct tcl_view *view, uintptr_t frame)
{
    struct called called;
    if (!read_called(view, frame, &called))
        tcl_trial_found_other(view);
    else if (is_of_interpreter(view, &called.command))
        tcl_trial_found_procedure(view);
    else if (called.command.entry != 0 && (called.flags & (IS_METHOD | IS_LAMBDA)) == 0)
        tcl_trial_found_other(view);
}

allocsample_frame tcl_names_frame(struct tcl_view *view, struct tcl_known_names *known, struct tcl_known_places *places, uintptr_t frame,
                                  const struct tcl_place *at)
{
    struct called called;
    if (view->is_trial) {
        check(view, frame);
        return (allocsample_frame){0};
    }
    if (!read_called(view, frame, &called))
        return (allocsample_frame){0};
    struct tcl_place place = at->file != 0 ? *at : tcl_places_of_body(view, places, called.procedure);
    if (at->file == 0)
        place.line = 0;
    uint64_t text = names_hash(NAMES_SEED, called.command.name);
    size_t hash = ((called.procedure >> 3) ^ (place.file >> 3) * 17 ^ text) * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    __auto_type entry = &known->entries[hash % KNOWN];
    const struct command *command = &called.command;
    if (entry->procedure != called.procedure || entry->body != called.body || entry->entry != command->entry ||
        entry->namespace != command->namespace || entry->file != place.file || entry->text != text || entry->number == 0) {
        bool has_file;
        uint32_t number = define(view, places, &called, place.file, &has_file);
        *entry = (__typeof__(*entry)){called.procedure, called.body, command->entry, command->namespace, place.file, text, number, has_file};
    }
    return (allocsample_frame){.function = entry->number, .line = entry->has_file ? place.line : 0};
}

allocsample_frame tcl_names_top_level(struct tcl_view *view, const struct tcl_place *place)
{
    char file[1024];
    if (view->is_trial)
        return (allocsample_frame){0};
    tcl_places_copy_file(view, place->file, file, sizeof file);
    uint32_t number = names_function(&functions, view->tcl->hooks, view->tcl->heap, "(top level)", file, 0);
    return (allocsample_frame){.function = number, .line = file[0] == 0 ? 0 : place->line};
}

allocsample_frame tcl_names_pool(const struct tcl *tcl)
{
    return (allocsample_frame){.function = names_function(&functions, tcl->hooks, tcl->heap, "(pool of values)", "", 0)};
}
