/* Names of R's functions: "package::function", as the call names it, with the file and the line that it is at.
 *
 * A function of R's has no name of its own. It is called what it is as a variable where it was defined, so that `lapply` is seen to call
 * `parse_row` and not `FUN`. If it is none there, it is what the call says, `f`, `pkg::f` or `object$f`. The package is the namespace
 * that the function's environment is in. */
#define _GNU_SOURCE
#include "kit/names.h"
#include "r.h"

#include <stdio.h>

/* Environments between that of a closure and its namespace. */
#define MOST_ENCLOSING 64

#define KNOWN 4096
/* By the closure, its code, what the call calls, and the file. Closures that calls make all the time are known by their code alone. Code
 * has the same parts at the same address only if it is the same. */
struct r_known_names {
    struct {
        uintptr_t closure, body, first_part, other_parts, called, file;
        uint32_t number; /* 0: none */
        uint32_t has_file;
    } entries[KNOWN];
};
_Static_assert(sizeof(struct r_known_names) == R_KNOWN_NAMES_BYTES, "the size that r.h tells");

static const char anonymous[] = "<anonymous>";
static struct names functions;

bool r_names_make(void)
{
    return names_make(&functions);
}

void r_names_after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
}

/* ---- packages ---- */

static bool is_namespace(struct r_view *view, uintptr_t environment, char *package, size_t room)
{
    const struct r_constants *constants = &view->constants;
    if (environment == constants->base_namespace || environment == constants->base_environment) {
        snprintf(package, room, "base");
        return true;
    }
    uintptr_t about = r_variable(view, environment, ".__NAMESPACE__.");
    uintptr_t spec = about == 0 ? 0 : r_variable(view, about, "spec");
    if (spec == 0)
        return false;
    r_copy_text(view, spec, package, room);
    return true;
}

/* "package::" of the namespace that the environment is in; "" if it is in none. */
static void copy_package(struct r_view *view, uintptr_t environment, char *to, size_t room)
{
    to[0] = 0;
    for (int i = 0; i < MOST_ENCLOSING && environment != view->constants.global_environment; i++) {
        struct r_object object = r_object_at(view, environment);
        if (object.type != R_TYPE_ENVIRONMENT)
            return;
        if (is_namespace(view, environment, to, room - 2)) {
            if (to[0] != 0)
                memcpy(to + strlen(to), "::", sizeof "::");
            return;
        }
        environment = object.enclosing;
    }
}

/* ---- calls ---- */

/* The arguments of `a::b` and its like, if both are symbols or strings. */
static bool copy_operands(struct r_view *view, const struct r_object *call, char *first, char *second, size_t room)
{
    struct r_object left = r_object_at(view, call->next);
    struct r_object right = left.type == R_TYPE_LIST ? r_object_at(view, left.next) : left;
    if (right.type != R_TYPE_LIST)
        return false;
    r_copy_text(view, left.value, first, room);
    r_copy_text(view, right.value, second, room);
    return first[0] != 0 && second[0] != 0;
}

/* The name of what is called; `is_whole` if it needs no package. */
static void copy_called(struct r_view *view, uintptr_t called, char *to, size_t room, bool *is_whole)
{
    const struct r_constants *constants = &view->constants;
    char first[256], second[256];
    struct r_object object = r_object_at(view, called);
    *is_whole = false;
    snprintf(to, room, "%s", anonymous);
    if (object.type == R_TYPE_SYMBOL) {
        r_copy_text(view, called, to, room);
        if (to[0] == 0)
            snprintf(to, room, "%s", anonymous);
        return;
    }
    if (object.type != R_TYPE_CALL || !copy_operands(view, &object, first, second, sizeof first))
        return;
    if (object.value == constants->double_colon || object.value == constants->triple_colon) {
        snprintf(to, room, "%s", second);
    } else if (object.value == constants->dollar) {
        snprintf(to, room, "%s$%s", first, second);
        *is_whole = true;
    }
}

/* ---- frames ---- */

/* Names that say nothing get the place where the function is defined: `FUN` is what lapply and its like call theirs. */
static void add_place(char *name, size_t room, const char *file, uint32_t first_line)
{
    size_t length = strlen(name);
    const char *slash = strrchr(file, '/');
    bool says_nothing = strcmp(name, anonymous) == 0 || strcmp(name, "FUN") == 0;
    if (says_nothing && first_line != 0)
        snprintf(name + length, room - length, "[%.200s:%u]", slash == NULL ? file : slash + 1, first_line);
}

/* What the function is called, without its package. */
static void copy_name(struct r_view *view, uintptr_t address, const struct r_object *closure, uintptr_t called, char *to, size_t room,
                      bool *is_whole)
{
    char defined[256];
    copy_called(view, called, to, room, is_whole);
    if (*is_whole || r_is_variable(view, closure->environment, to, address))
        return;
    if (r_copy_name_of(view, closure->environment, address, defined, sizeof defined))
        snprintf(to, room, "%s", defined);
}

static uint32_t define(struct r_view *view, uintptr_t address, const struct r_object *closure, uintptr_t called, uintptr_t file,
                       bool *has_file)
{
    char name[1024], text[1024], package[256] = "";
    bool is_whole;
    copy_name(view, address, closure, called, name, sizeof name / 2, &is_whole);
    struct r_place defined = {0};
    r_places_copy_file(view, file, text, sizeof text);
    *has_file = text[0] != 0;
    uintptr_t reference = r_attribute(view, closure->attributes, view->constants.source_reference);
    if (*has_file && reference != 0)
        defined = r_places_of_reference(view, reference);
    uint32_t first_line = defined.file == file ? defined.line : 0;
    add_place(name, sizeof name - sizeof package, text, first_line);
    if (!is_whole)
        copy_package(view, closure->environment, package, sizeof package);
    memmove(name + strlen(package), name, strlen(name) + 1);
    memcpy(name, package, strlen(package));
    return names_function(&functions, view->r->hooks, view->r->heap, name, text, first_line);
}

/* The file that a function is in, if the line that it is at is not known: where it is defined. */
static struct r_place of_definition(struct r_view *view, const struct r_object *closure)
{
    uintptr_t reference = r_attribute(view, closure->attributes, view->constants.source_reference);
    struct r_place place = reference == 0 ? (struct r_place){0} : r_places_of_reference(view, reference);
    place.line = 0;
    return place;
}

/* The environment of a call has no table: that of a package or the program has one. */
static bool is_made_by_call(struct r_view *view, const struct r_object *closure)
{
    struct r_object environment = r_object_at(view, closure->environment);
    return closure->environment != view->constants.base_namespace && r_type_of(view, environment.table) != R_TYPE_VECTOR;
}

allocsample_frame r_names_frame(struct r_view *view, struct r_known_names *known, uintptr_t address, const struct r_object *closure,
                                uintptr_t call, const struct r_place *at)
{
    struct r_object calling = r_object_at(view, call), body = r_object_at(view, closure->body);
    if (calling.type != R_TYPE_CALL)
        return (allocsample_frame){0};
    struct r_place place = at->file != 0 ? *at : of_definition(view, closure);
    uintptr_t called = calling.value;
    size_t hash = ((closure->body >> 3) ^ (called >> 3) * 31 ^ (place.file >> 3) * 17) * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    __auto_type entry = &known->entries[hash % KNOWN];
    if ((entry->closure != 0 && entry->closure != address) || entry->body != closure->body || entry->first_part != body.value ||
        entry->other_parts != body.next || entry->called != called || entry->file != place.file || entry->number == 0) {
        bool has_file;
        uint32_t number = define(view, address, closure, called, place.file, &has_file);
        uintptr_t only = is_made_by_call(view, closure) ? 0 : address;
        *entry = (__typeof__(*entry)){only, closure->body, body.value, body.next, called, place.file, number, has_file};
    }
    return (allocsample_frame){.function = entry->number, .line = entry->has_file ? place.line : 0};
}

allocsample_frame r_names_top_level(struct r_view *view, const struct r_place *place)
{
    char file[1024];
    r_places_copy_file(view, place->file, file, sizeof file);
    uint32_t number = names_function(&functions, view->r->hooks, view->r->heap, "(top level)", file, 0);
    return (allocsample_frame){.function = number, .line = file[0] == 0 ? 0 : place->line};
}
