/* What the files of the bridge to Tcl share: tcl.c joins it, interpreters.c finds those that run, frames.c reads their stacks,
 * places.c finds files and lines, names.c names procedures and methods, trial.c decides whether an unknown version is like a known
 * one, blocks.c counts what Tcl's own allocator serves. */
#ifndef ALLOCSAMPLE_BRIDGES_TCL_H
#define ALLOCSAMPLE_BRIDGES_TCL_H

#include "allocsample.h"
#include "bridge.h"
#include "kit/foreign.h"

/* Offsets in Tcl's structures, in bytes, as its private headers have them. A row of layouts.def. */
struct tcl_layout {
    uint8_t major, minor;
    uint8_t count_bytes; /* of most numbers: int in Tcl 8, Tcl_Size in Tcl 9 */
    /* Interp */
    uint16_t stubs, handle, global_namespace, levels, frame, root_frame, environment, thread, command_frame, lines;
    /* CallFrame: a procedure, method or namespace that runs. */
    uint16_t frame_namespace, frame_flags, frame_caller, frame_procedure, frame_context;
    /* Proc, Command, Namespace */
    uint16_t procedure_interpreter, procedure_command, procedure_body, command_entry, command_namespace, namespace_name,
        namespace_interpreter;
    /* Tcl_Obj, Tcl_HashTable, Tcl_HashEntry */
    uint16_t object_text, object_length, object_value, table_buckets, table_shift, table_mask, entry_next, entry_value, entry_key;
    /* CmdFrame: a command that runs, with its place. */
    uint16_t at_frame, at_next, at_line, at_path, at_code, at_pc;
    /* ByteCode */
    uint16_t code_handle, code_commands, code_bytes, code_start, code_offsets, code_lengths, code_sources;
    /* ExtCmdLoc: lines of the commands of a byte code. */
    uint16_t places_type, places_path, places_commands, places_used, place_bytes, place_source, place_line, line_bytes;
    /* ExecEnv, ExecStack, CoroutineData */
    uint16_t environment_stack, environment_coroutine, stack_marker, stack_words, stack_end, stack_previous, coroutine_environment,
        coroutine_frame, coroutine_command_frame;
    /* TclOO: CallContext, CallChain, MInvoke, Method, ProcedureMethod, Class, Object */
    uint16_t call_chain, chain_flags, chain_calls, chain_count, chain_call_bytes, method_body, body_procedure, method_name,
        method_object, method_class, class_object, object_command;
};

struct tcl {
    const struct tcl_layout *layout;
    bool is_known; /* the layout is that of its version, and of no older one */
    uintptr_t start, end; /* its library. It may be unloaded at any time */
    char file[64];        /* and the name of that */
    const allocsample_hooks *hooks;
    allocsample_heap *heap;
};

/* One walk's view of an interpreter. */
struct tcl_view {
    const struct tcl *tcl;
    struct foreign_reader reader;
    uintptr_t interpreter;
    uintptr_t handle; /* that its byte codes have */
    bool is_trial;    /* values are read only to be checked */
};

/* The number at `from`, of four or eight bytes; 0 if it cannot be read. */
static inline int64_t tcl_number(struct tcl_view *view, uintptr_t from, size_t bytes)
{
    int64_t wide;
    int32_t narrow;
    if (bytes == sizeof wide)
        return foreign_read(&view->reader, from, &wide, sizeof wide) ? wide : 0;
    return foreign_read(&view->reader, from, &narrow, sizeof narrow) ? narrow : 0;
}

/* The number at `from`, of as many bytes as most numbers have in this version; 0 if it cannot be read. */
static inline int64_t tcl_count(struct tcl_view *view, uintptr_t from)
{
    return tcl_number(view, from, view->tcl->layout->count_bytes);
}

/* ---- interpreters.c ---- */

/* Interpreters that run on a thread, innermost first. */
#define TCL_NESTED 4

struct tcl_interpreters {
    uintptr_t found[TCL_NESTED];
    size_t count;
    bool is_other_layout; /* there is one, and it is not what the layout says */
};

/* What earlier walks have found out. */
struct tcl_looked {
    uint32_t walks, next_known;
    uintptr_t known[16];      /* interpreters */
    uintptr_t others[1024]; /* addresses of something else, by their hash */
};

/* Those that the calling thread's stack refers to. */
HIDDEN void tcl_interpreters_find(struct tcl_view *view, struct tcl_looked *looked, struct tcl_interpreters *interpreters);

/* The lowest address of the part of the thread's stack that the program uses; its end, if that is not known. */
HIDDEN uintptr_t tcl_interpreters_top_of_stack(const struct foreign_range *stack);

/* ---- trial.c ---- */

enum tcl_verdict { TCL_UNDECIDED, TCL_ACCEPTED, TCL_REFUSED };

/* What a walk has found to be as the layout says, or not. They do nothing outside of a trial. */
HIDDEN void tcl_trial_found_procedure(const struct tcl_view *view);
HIDDEN void tcl_trial_found_place(const struct tcl_view *view);
HIDDEN void tcl_trial_found_other(const struct tcl_view *view);
/* A walk has ended; true for the one that decides against the layout. */
HIDDEN bool tcl_trial_ends_walk(void);
HIDDEN enum tcl_verdict tcl_trial_verdict(void);

/* ---- blocks.c ---- */

/* The same while a block of Tcl's own allocator is counted; 0 otherwise. */
extern HIDDEN _Thread_local uintptr_t tcl_blocks_top_of_stack __attribute__((tls_model("initial-exec")));

/* False: Tcl has no allocator of its own, or there is no memory. */
HIDDEN bool tcl_blocks_join(const struct tcl *tcl);
/* Whether what Tcl takes from malloc now is for its pool of values. */
HIDDEN bool tcl_blocks_is_pool(const struct tcl *tcl);
/* After a detach. */
HIDDEN void tcl_blocks_resume(void);
HIDDEN void tcl_blocks_leave(void);
/* Tcl was unloaded. */
HIDDEN void tcl_blocks_are_gone(void);
HIDDEN void tcl_blocks_after_fork_in_child(void);

/* ---- frames.c ---- */

/* Once. False: there is no memory. */
HIDDEN bool tcl_frames_make(void);
/* Frames are read as `tcl` says from now on; NULL: there are none. Another one than before stays where it is for ever. */
HIDDEN void tcl_frames_are_of(const struct tcl *tcl);
HIDDEN size_t tcl_frames_walk(void *user, allocsample_frame *frames, size_t capacity);
HIDDEN void tcl_frames_after_fork_in_child(void);

/* ---- places.c ---- */

/* Where code is that runs: a line of a file, which is an object of Tcl's. 0: not known. */
struct tcl_place {
    uintptr_t file;
    uint32_t line;
};

struct tcl_known_places;
#define TCL_KNOWN_PLACES_BYTES (4096 * 40)

/* Of the command that the CmdFrame at `at` is about. */
HIDDEN struct tcl_place tcl_places_of_command(struct tcl_view *view, struct tcl_known_places *known, uintptr_t at);
/* Of the byte code that runs in the call frame `frame`, and has called no command: the code whose CmdFrame would be the next of
 * `at`. False: there is none. */
HIDDEN bool tcl_places_of_running(struct tcl_view *view, struct tcl_known_places *known, uintptr_t frame, uintptr_t at,
                                  struct tcl_place *place);
/* The line that a procedure's body begins at. */
HIDDEN struct tcl_place tcl_places_of_body(struct tcl_view *view, struct tcl_known_places *known, uintptr_t procedure);
HIDDEN void tcl_places_copy_file(struct tcl_view *view, uintptr_t file, char *to, size_t room);

/* ---- names.c ---- */

struct tcl_known_names;
#define TCL_KNOWN_NAMES_BYTES (4096 * 56)

HIDDEN bool tcl_names_make(void);
/* The frame of the call frame `frame` of a procedure, where it is at `place`. Its function is 0 if it cannot be told. */
HIDDEN allocsample_frame tcl_names_frame(struct tcl_view *view, struct tcl_known_names *known,
                                         struct tcl_known_places *places, uintptr_t frame, const struct tcl_place *place);
/* The frame of code outside of procedures. */
HIDDEN allocsample_frame tcl_names_top_level(struct tcl_view *view, const struct tcl_place *place);
/* The frame that stands for the pool of values. */
HIDDEN allocsample_frame tcl_names_pool(const struct tcl *tcl);
HIDDEN void tcl_names_after_fork_in_child(void);

#endif
