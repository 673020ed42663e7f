/* What the files of the bridge to Perl share: perl.c joins it, frames.c reads its stacks, names.c names its subs. */
#ifndef ALLOCSAMPLE_BRIDGES_PERL_H
#define ALLOCSAMPLE_BRIDGES_PERL_H

#include "allocsample.h"
#include "bridge.h"
#include "kit/foreign.h"

/* Offsets in perl's structures, in bytes, and numbers of its types, as its headers have them. A row of layouts.def. */
struct perl_layout {
    uint8_t minor; /* 36: perl 5.36 */
    bool has_threads;
    /* The interpreter, where perl has threads; without them these are global variables. */
    uint16_t interpreter_bytes, current_stack, current_cop, top_env, start_env, compiling;
    /* PERL_SI: one for the program, and one for each call that perl itself makes (a sort, a destructor, a tie). */
    uint16_t contexts, previous_stack, newest_context, most_contexts;
    /* PERL_CONTEXT: a sub, an eval or a block that runs. Its type is the first byte. */
    uint16_t context_bytes, context_cop, context_sub, type_sub, type_format, type_eval;
    /* COP: a statement, which is an OP. */
    uint16_t op_code, op_type, next_statement, debugged_statement, cop_line, cop_file, cop_sequence;
    /* SV: what follows are types, and offsets in the bodies of CV (a sub), GV (a glob) and HV (a stash, which is a package). */
    uint16_t sv_type_sub, sv_type_format, sv_type_hash, sub_stash, sub_start, sub_name, sub_flags;
    uint16_t glob_stash, glob_name, stash_max, aux_name, aux_names;
    uint16_t stash_aux; /* 0: behind the stash's array */
};

/* Variables of perl's. Only addresses: libperl may be unloaded at any time. */
struct perl_symbols {
    /* With threads. */
    uintptr_t thread_key, first_interpreter;
    void *(*get_specific)(unsigned key);
    /* Without. */
    uintptr_t current_stack, current_cop, top_env, start_env, compiling;
    /* The functions of all ops, by their types. */
    uintptr_t op_codes;
};

struct perl {
    const struct perl_layout *layout;
    struct perl_symbols symbols;
    const allocsample_hooks *hooks;
    allocsample_heap *heap;
};

/* ---- frames.c ---- */

/* Once. False: there is no memory. */
HIDDEN bool perl_frames_make(void);
/* Frames are read as `perl` says from now on; NULL: there are none. Another one than before stays where it is for ever. */
HIDDEN void perl_frames_are_of(const struct perl *perl);
HIDDEN size_t perl_frames_walk(void *user, allocsample_frame *frames, size_t capacity);
HIDDEN void perl_frames_after_fork_in_child(void);

/* ---- names.c ---- */

/* Frames that were named before. */
struct perl_known;
#define PERL_KNOWN_BYTES (4096 * 40)

HIDDEN bool perl_names_make(void);
/* The frame of a sub, or of other code that has this name, which is a literal, at the statement `cop`. Its function is 0 if it
 * cannot be told. `known` is NULL for the statement that compiles, which is another one each time. */
HIDDEN allocsample_frame perl_names_frame(const struct perl *perl, struct foreign_reader *reader, struct perl_known *known,
                                          uintptr_t sub, const char *name, uintptr_t cop);
HIDDEN void perl_names_after_fork_in_child(void);

#endif
