/* What the files of the bridge to R share: r.c joins it, frames.c reads its contexts, places.c finds files and lines, names.c names
 * functions, objects.c reads R's objects. */
#ifndef ALLOCSAMPLE_BRIDGES_R_H
#define ALLOCSAMPLE_BRIDGES_R_H

#include "allocsample.h"
#include "bridge.h"
#include "kit/foreign.h"

/* Offsets in a context (struct RCNTXT), in bytes. A row of layouts.def. The context's first word is the next context. */
struct r_layout {
    uint16_t flags;
    uint16_t function, call, environment; /* objects: what was called, by which call, and the environment of its variables */
    uint16_t body, pc;                    /* the byte code that ran when the context began, and the address of its position */
    uint16_t offset;                      /* that position in the code, from R 4.4 on; 0: there is none */
    uint16_t values;                      /* the top of the stack of values then */
    uint16_t place;                       /* the source reference that was in effect then */
};

/* Variables of R's. Only addresses: libR may be unloaded at any time. */
struct r_symbols {
    uintptr_t global_context, current_place;
    uintptr_t nil, in_byte_code, base_environment, base_namespace, global_environment;  /* of pointers to objects */
    uintptr_t source_file, source_reference, class, double_colon, triple_colon, dollar; /* the same, to symbols */
    uintptr_t values_end, stack_start, protected_count;
    uintptr_t is_main_program; /* 0: this R has no such variable */
};

/* Objects that never change once R has started. */
struct r_constants {
    uintptr_t nil, in_byte_code, base_environment, base_namespace, global_environment;
    uintptr_t source_file, source_reference, class, double_colon, triple_colon, dollar;
};

struct r {
    struct r_symbols symbols;
    const allocsample_hooks *hooks;
    allocsample_heap *heap;
};

/* ---- frames.c ---- */

/* Once. False: there is no memory. */
HIDDEN bool r_frames_make(void);
/* Frames are read as `r` says from now on; NULL: there are none. Another one than before stays where it is for ever. */
HIDDEN void r_frames_are_of(const struct r *r);
HIDDEN size_t r_frames_walk(void *user, allocsample_frame *frames, size_t capacity);
HIDDEN void r_frames_after_fork_in_child(void);

/* ---- objects.c ---- */

enum r_type {
    R_TYPE_SYMBOL = 1,
    R_TYPE_LIST = 2,
    R_TYPE_CLOSURE = 3,
    R_TYPE_ENVIRONMENT = 4,
    R_TYPE_PROMISE = 5,
    R_TYPE_CALL = 6,
    R_TYPE_CHARACTERS = 9,
    R_TYPE_INTEGERS = 13,
    R_TYPE_STRINGS = 16,
    R_TYPE_VECTOR = 19,
    R_TYPE_BYTE_CODE = 21,
    R_TYPE_UNKNOWN = 255,
};

/* All objects have a head of four words, of which the second one is the list of attributes, and three words more. */
struct r_object {
    uint8_t type; /* R_TYPE_UNKNOWN: it could not be read */
    uintptr_t attributes;
    union {
        struct {
            uintptr_t value, next, tag; /* a list, a call, a promise; and byte code: its code, and its constants */
        };
        struct {
            uintptr_t name; /* a symbol */
        };
        struct {
            uintptr_t arguments, body, environment; /* a closure */
        };
        struct {
            uintptr_t variables, enclosing, table; /* an environment */
        };
        struct {
            intptr_t length; /* a vector, whose elements follow after another word */
        };
    };
};
/* Of a vector. */
#define R_ELEMENTS 48

/* One walk's view of R. */
struct r_view {
    const struct r *r;
    struct r_constants constants;
    struct foreign_reader reader;
};

HIDDEN struct r_object r_object_at(struct r_view *view, uintptr_t address);
HIDDEN uint8_t r_type_of(struct r_view *view, uintptr_t address);
/* The object at this position in a vector of objects; 0: there is none. */
HIDDEN uintptr_t r_element(struct r_view *view, uintptr_t vector, intptr_t at);
/* The attribute that has this symbol as its name, or 0. */
HIDDEN uintptr_t r_attribute(struct r_view *view, uintptr_t attributes, uintptr_t symbol);
/* The variable of an environment, or 0. */
HIDDEN uintptr_t r_variable(struct r_view *view, uintptr_t environment, const char *name);
/* Whether the environment has the value as the variable of this name. */
HIDDEN bool r_is_variable(struct r_view *view, uintptr_t environment, const char *name, uintptr_t value);
/* The name of a variable of the environment that has this value; false: there is none. */
HIDDEN bool r_copy_name_of(struct r_view *view, uintptr_t environment, uintptr_t value, char *to, size_t room);
/* The text of a symbol, or of the first string of a vector; "" if it has none. */
HIDDEN void r_copy_text(struct r_view *view, uintptr_t object, char *to, size_t room);

/* ---- places.c ---- */

/* Where code is that runs: a line of a file, which is an environment of R's. 0: not known. */
struct r_place {
    uintptr_t file;
    uint32_t line;
};

struct r_known_places;
#define R_KNOWN_PLACES_BYTES (4096 * 40)

/* Of the source reference `reference`, or of byte code at `pc`, if that is what it stands for. */
struct r_position {
    uintptr_t reference, body;
    intptr_t offset; /* in the code */
};
/* The position in the code of `body` that `pc` points to; -1: it is in other code. */
HIDDEN intptr_t r_places_offset(struct r_view *view, uintptr_t body, uintptr_t pc);
HIDDEN struct r_place r_places_of(struct r_view *view, struct r_known_places *known, const struct r_position *position);
/* Of a source reference. */
HIDDEN struct r_place r_places_of_reference(struct r_view *view, uintptr_t reference);
HIDDEN void r_places_copy_file(struct r_view *view, uintptr_t file, char *to, size_t room);

/* ---- names.c ---- */

struct r_known_names;
#define R_KNOWN_NAMES_BYTES (4096 * 56)

HIDDEN bool r_names_make(void);
/* The frame of a closure that `call` called, where it is at `place`. Its function is 0 if it cannot be told. */
HIDDEN allocsample_frame r_names_frame(struct r_view *view, struct r_known_names *known, uintptr_t address,
                                       const struct r_object *closure, uintptr_t call, const struct r_place *place);
/* The frame of code outside of functions. */
HIDDEN allocsample_frame r_names_top_level(struct r_view *view, const struct r_place *place);
HIDDEN void r_names_after_fork_in_child(void);

#endif
