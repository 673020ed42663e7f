/* What the files of the bridge to OCaml share: ocaml.c joins the runtime, samples.c reports its samples, sampler_4.c and
 * sampler_5.c run the samplers of OCaml 4 and 5, late_5.c starts that of 5 in a running program, places.c finds variables without a
 * symbol, collections.c reports collections, and hook.c notices that the program starts the sampler itself. */
#ifndef ALLOCSAMPLE_BRIDGES_OCAML_H
#define ALLOCSAMPLE_BRIDGES_OCAML_H

#include "allocsample.h"
#include "bridge.h"

typedef intptr_t value;

#define OCAML_DEPTH 512
#define OCAML_WORD 8
/* An integer n is 2n + 1; a header has the number of words, a color (3: outside of the heap), a tag. */
#define OCAML_INTEGER(N) ((value)(((uintptr_t)(N) << 1) + 1))
#define OCAML_HEADER(WORDS, TAG) ((uintptr_t)(WORDS) << 10 | 3 << 8 | (TAG))
enum { OCAML_PLAIN = 0, OCAML_CLOSURE = 247, OCAML_DOUBLE = 253 };
#define OCAML_NONE OCAML_INTEGER(0)
/* Fields of Gc.Memprof.allocation. */
enum { OCAML_INFO_SIZE = 1, OCAML_INFO_SOURCE = 2, OCAML_INFO_CALLSTACK = 3, OCAML_INFO_WORDS = 4 };

/* The beginning of caml_loc_info, with room for what later versions have added. */
struct ocaml_place {
    int is_known, is_raise;
    const char *file, *function;
    int line;
    int more[15];
};

typedef void (*ocaml_timing_hook)(void);

struct ocaml_runtime {
    void *const *state; /* Caml_state of the main thread: NULL until the runtime starts */
    value (*start)(value rate, value depth, value tracker);
    value (*stop)(value unit);
    void *(*names_of)(value slot);
    void *(*caller_of)(void *names);
    void (*place_of)(void *names, struct ocaml_place *place);
    _Atomic(ocaml_timing_hook) *minor_begin, *minor_end, *slice_begin, *slice_end;
    /* OCaml 4 only. */
    _Atomic(ocaml_timing_hook) *cycle;
    /* OCaml 5 only. */
    void (*call)(void);
    value (*call_back)(value closure, value argument);
    void (*set_action_pending)(void *state);
    void (**interrupt_hook)(void);
    const uint8_t *interrupt;
    void (*keep_root)(value *root);
    void (*change_root)(value *root, value changed);
    _Atomic(uintptr_t) *domains, *minor_count, *cycle_count;
    bool is_5, is_5_3;
    bool is_late; /* joined while the program runs */
};
extern HIDDEN struct ocaml_runtime ocaml;

/* ---- ocaml.c ---- */

extern HIDDEN const allocsample_hooks *ocaml_hooks;
extern HIDDEN allocsample_heap *ocaml_heap;

#define OCAML_GIVEN_WAY "note: there are no samples from here on, as the program has started Gc.Memprof itself"
#define OCAML_UNKNOWN_BUILD "note: there are no samples, as the agent does not know how to join a running program of this build"

/* ---- samples.c ---- */

/* The runtime's sampler draws one of so many bytes on average. Changed by whoever changes its rate. */
extern HIDDEN uint64_t ocaml_drawn_at;

HIDDEN bool ocaml_samples_prepare(void);
/* The interval that is asked for; that of the sampler while the agent does not say. */
HIDDEN uint64_t ocaml_asked_interval(void);
/* Reports a block that the runtime has drawn. Returns what the runtime expects of a callback: `Some number` to follow the
 * block, or `None`. */
HIDDEN value ocaml_sampled(const value *info, uint64_t asked);
/* Says in the profile why there are no samples from now on: a marker that reports show as a note. */
HIDDEN void ocaml_note(const char *note);
HIDDEN value ocaml_promoted(value number);
HIDDEN value ocaml_dead(value number);
HIDDEN void ocaml_samples_after_fork_in_child(void);

/* ---- sampler_4.c, sampler_5.c ---- */

/* An OCaml closure of one argument. Blocks outside of the heap: header first; `info` has where its environment would begin. */
struct ocaml_closure {
    uintptr_t header;
    void (*code)(void);
    uintptr_t info;
};
#define OCAML_CLOSURE_OF(CODE) {OCAML_HEADER(2, OCAML_CLOSURE), CODE, UINT64_C(1) << 56 | 2 << 1 | 1}

/* Starts the runtime's sampler for us. OCaml 4: before the program's first instruction, or at the end of a minor collection. OCaml
 * 5: before the first instruction; only the second function may be called later. */
HIDDEN void ocaml_4_start(void);
HIDDEN void ocaml_5_start(void);
/* At the beginning of a minor collection, while no domain runs the program: makes ready for ocaml_5_start_here. */
HIDDEN void ocaml_5_prepare_late(void);
/* Starts the sampler of the calling thread's domain, where code of OCaml may run. */
HIDDEN void ocaml_5_start_here(void);
/* OCaml 4: at the end of a minor collection. */
HIDDEN void ocaml_4_follow_late(void);

/* ---- late_5.c ---- */

/* Has every domain start its sampler at its next safe point after a minor collection. False: this build is not known. */
HIDDEN bool ocaml_5_join_late(void);
/* At the beginning and at the end of a minor collection, on every domain's thread. */
HIDDEN void ocaml_5_late_minor_begin(void);
HIDDEN void ocaml_5_late_minor_end(void);

/* ---- places.c ---- */

/* OCaml 4: the variable that says whether the runtime's sampler is started. NULL: not found. */
HIDDEN int *ocaml_4_started_place(void);
/* OCaml 5: the offset, in a domain's state, of the flag that asks for its interrupt hook. 0: not found. `state_offset` is the distance
 * from the thread pointer to the pointer to that state. */
HIDDEN size_t ocaml_5_interrupt_offset(ptrdiff_t state_offset);

/* ---- hook.c ---- */

typedef value ocaml_start_function(value rate, value depth, value tracker);

/* Has `caml_memprof_start` call `instead`, until ocaml_unhook_start. False: nothing has changed. */
HIDDEN bool ocaml_hook_start(ocaml_start_function *instead);
HIDDEN bool ocaml_unhook_start(void);
/* What `caml_memprof_start` was before it was hooked; NULL: its first instructions are not known. */
HIDDEN ocaml_start_function *ocaml_original_start(void);

/* ---- collections.c ---- */

HIDDEN void ocaml_4_watch_collections(void);
/* Starts the sampler at the end of the next minor collection. */
HIDDEN void ocaml_4_start_late(void);
HIDDEN void ocaml_5_watch_collections(void);
/* Whether a minor collection has seen more than one domain. */
HIDDEN bool ocaml_5_had_domains(void);
/* Reports the domain's last slice: as the end of a cycle if the runtime has begun another one. */
HIDDEN void ocaml_5_report_slice(void);

#endif
