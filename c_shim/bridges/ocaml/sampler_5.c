/* Runs the sampler of OCaml 5.3 and later: closures of the program, whose code is C here, are called for a block that is
 * drawn, promoted or found dead. They run on the threads of any domain, under its lock.
 *
 * A domain samples by what the runtime calls a profile, a block of its heap that a new domain takes over from its parent. So
 * the profile that is started before the program's first instruction is that of all domains. */
#define _GNU_SOURCE
#include "ocaml.h"
#include "kit/lock.h"
#include "kit/thinning.h"

#include <errno.h>
#include <sched.h>

/* Fields of a profile, and the states that it may have. */
enum { PROFILE_STATE = 0, PROFILE_DEPTH = 3, PROFILE_WORDS = 9 };
#define SAMPLING OCAML_INTEGER(0)
#define STOPPED OCAML_INTEGER(1)
#define FORBIDDEN "note: there are no samples, as the system forbids changing code"

static const value depth = OCAML_INTEGER(OCAML_DEPTH);
/* Ours: one, or after a late start one of each domain that was there. Roots of the collector's, which may move them. */
#define MOST_PROFILES 128
static value profiles[MOST_PROFILES];
static _Atomic(size_t) profile_count;
static _Atomic(bool) is_ours;      /* it runs, and the program has not started one */
static _Atomic(bool) is_given_way; /* the runtime is as if we had not been here */
static bool is_unhooked;           /* true with is_given_way: the program can start its own */
static bool can_follow;            /* another interval */

static void follow(uint64_t asked);
static void end(const char *note);

/* ---- callbacks ---- */

__attribute__((used)) static value on_alloc(value info)
{
    return ocaml_sampled((const value *)info, ocaml_asked_interval());
}

/* Of this and of the next two the runtime tells between two instructions of the program, never while it is about to allocate a
 * block that it has drawn. */
__attribute__((used)) static value on_promoted(value number)
{
    follow(ocaml_asked_interval());
    return ocaml_promoted(number);
}

__attribute__((used)) static value on_dead(value number)
{
    ocaml_5_report_slice();
    follow(ocaml_asked_interval());
    return ocaml_dead(number);
}

/* Of a block that was not promoted. OCaml 5.3 looks for those before other domains have promoted theirs (corrected in 5.4). */
__attribute__((used)) static value on_dead_young(value number)
{
    if (UNLIKELY(ocaml.is_5_3) && ocaml_5_had_domains()) {
        end("note: there are no samples from here on, as OCaml 5.3 takes blocks that several domains share for dead");
        return OCAML_NONE;
    }
    return on_dead(number);
}

__attribute__((used, visibility("hidden"))) void (*ocaml_5_call)(void);

/* Code of closures, which have their argument in rax or x0, and run on a stack of OCaml's, which is small. The runtime's
 * caml_c_call switches to the thread's own stack, and calls the function whose address is in rax or x8. */
#if defined(__x86_64__)
#define ENTRY_CODE(NAME) "movq %rax, %rdi\n\tleaq " #NAME "(%rip), %rax\n\tjmpq *ocaml_5_call(%rip)\n\t"
#else
#define ENTRY_CODE(NAME)                                                                                               \
    "hint #34 /* bti c */\n\tadrp x8, " #NAME "\n\tadd x8, x8, :lo12:" #NAME "\n\tadrp x16, ocaml_5_call\n\t"         \
    "ldr x16, [x16, :lo12:ocaml_5_call]\n\tbr x16\n\t"
#endif
#define ENTRY(NAME)                                                                                                    \
    void ocaml_5_##NAME(void);                                                                                         \
    __asm__(".pushsection .text,\"ax\",@progbits\n\t.balign 4\n\t.hidden ocaml_5_" #NAME "\n\t.globl ocaml_5_" #NAME    \
            "\n\t.type ocaml_5_" #NAME ", @function\nocaml_5_" #NAME ":\n\t.cfi_startproc\n\t" ENTRY_CODE(NAME)        \
            ".cfi_endproc\n\t.size ocaml_5_" #NAME ", .-ocaml_5_" #NAME "\n\t.popsection")
ENTRY(on_alloc);
ENTRY(on_promoted);
ENTRY(on_dead);
ENTRY(on_dead_young);

static struct ocaml_closure alloc_closure = OCAML_CLOSURE_OF(ocaml_5_on_alloc),
                            promoted_closure = OCAML_CLOSURE_OF(ocaml_5_on_promoted),
                            dead_closure = OCAML_CLOSURE_OF(ocaml_5_on_dead),
                            dead_young_closure = OCAML_CLOSURE_OF(ocaml_5_on_dead_young);
/* alloc_minor, alloc_major, promote, dealloc_minor, dealloc_major */
static struct {
    uintptr_t header;
    void *fields[5];
} tracker = {OCAML_HEADER(5, OCAML_PLAIN),
             {&alloc_closure.code, &alloc_closure.code, &promoted_closure.code, &dead_young_closure.code, &dead_closure.code}};
static struct {
    uintptr_t header;
    double number;
} rate = {OCAML_HEADER(1, OCAML_DOUBLE), 0};

/* ---- the profile ---- */

static _Atomic(value) *state_of(value profile)
{
    return (_Atomic(value) *)profile + PROFILE_STATE;
}

static bool is_sampling(value profile)
{
    return atomic_load_explicit(state_of(profile), memory_order_relaxed) == SAMPLING;
}

/* Whether it is made as in known versions. */
static bool is_known_profile(value made)
{
    const value *field = (const value *)made;
    return (made & 1) == 0 && (uintptr_t)field[-1] >> 10 == PROFILE_WORDS && field[PROFILE_STATE] == SAMPLING &&
           field[PROFILE_DEPTH] == depth && field[PROFILE_WORDS - 1] == (value)tracker.fields[4];
}

static value start_by(ocaml_start_function *function, uint64_t interval)
{
    ocaml_drawn_at = interval;
    rate.number = interval < 2 ? 1 : thinning_drawn_share(OCAML_WORD / (double)interval);
    return function((value)&rate.number, depth, (value)&tracker.fields[0]);
}

static void stop_all(void)
{
    size_t count = atomic_load(&profile_count);
    for (size_t i = 0; i < count; i++)
        atomic_store(state_of(profiles[i]), STOPPED);
}

/* Ends sampling in all domains; blocks that were drawn are still followed. Nothing happens if another domain has come first. */
static void end(const char *note)
{
    if (!atomic_exchange_explicit(&is_ours, false, memory_order_acq_rel))
        return;
    stop_all();
    is_unhooked = ocaml_unhook_start();
    ocaml_note(note);
    atomic_store_explicit(&is_given_way, true, memory_order_release);
}

/* In place of the program's first call of Gc.Memprof.start. Several domains may come here: none may wait for one that waits for
 * a collection, which `end` does not. */
static value give_way(value users_rate, value users_depth, value users_tracker)
{
    end(OCAML_GIVEN_WAY);
    while (!atomic_load_explicit(&is_given_way, memory_order_acquire))
        sched_yield();
    /* Where code can no longer be changed, this function would come here again. */
    return is_unhooked ? ocaml.start(users_rate, users_depth, users_tracker) : OCAML_NONE;
}

/* Has the runtime draw at the interval that is asked for, by a new profile. Only where there is one domain: a second one would go
 * on with the old profile, which is stopped. Blocks of that one are still followed; of those that C has just allocated the
 * few are lost that the runtime has not told of yet. */
static void follow(uint64_t asked)
{
    int error = errno;
    if (LIKELY(asked == ocaml_drawn_at) || !can_follow || atomic_load_explicit(ocaml.domains, memory_order_acquire) != 1 ||
        !atomic_load_explicit(&is_ours, memory_order_relaxed) || atomic_load_explicit(&profile_count, memory_order_relaxed) != 1 ||
        !is_sampling(profiles[0]))
        return;
    can_follow = ocaml_unhook_start();
    if (can_follow) {
        ocaml.stop(OCAML_NONE);
        ocaml.change_root(&profiles[0], start_by(ocaml.start, asked));
        if (!ocaml_hook_start(give_way)) {
            atomic_store_explicit(&is_ours, false, memory_order_relaxed); /* see ocaml_5_start */
            ocaml.stop(OCAML_NONE);
        }
    }
    errno = error;
}

/* Takes note of a profile that was started just now. */
static bool keep(value made)
{
    static bridge_lock lock;
    lock_take(&lock);
    size_t count = atomic_load(&profile_count);
    bool has_room = count < MOST_PROFILES;
    if (has_room) {
        profiles[count] = made;
        ocaml.keep_root(&profiles[count]);
        atomic_store(&profile_count, count + 1);
    }
    lock_release(&lock);
    return has_room;
}

void ocaml_5_start(void)
{
    ocaml_5_call = ocaml.call;
    value made = start_by(ocaml.start, ocaml_asked_interval());
    bool is_known = is_known_profile(made);
    /* Where code cannot be changed, a program that wants the sampler must find it free. */
    if (!is_known || !ocaml_hook_start(give_way)) {
        ocaml.stop(OCAML_NONE);
        ocaml_note(is_known ? FORBIDDEN : "note: there are no samples, as this version's Gc.Memprof is not known");
        return;
    }
    keep(made);
    can_follow = true;
    atomic_store_explicit(&is_ours, true, memory_order_release);
    ocaml_5_watch_collections();
}

/* ---- in a program that runs already ---- */

static _Atomic(bool) is_prepared;

void ocaml_5_prepare_late(void)
{
    if (LIKELY(atomic_load_explicit(&is_prepared, memory_order_relaxed)) || atomic_exchange(&is_prepared, true))
        return;
    ocaml_5_call = ocaml.call;
    if (!ocaml_hook_start(give_way)) {
        ocaml_note(FORBIDDEN);
    } else if (ocaml_original_start() == NULL) {
        ocaml_unhook_start();
        ocaml_note(OCAML_UNKNOWN_BUILD);
    } else {
        can_follow = true;
        atomic_store_explicit(&is_ours, true, memory_order_release);
    }
}

/* Raises an exception if the domain has a sampler: that of its parent, or one that the program has started. */
__attribute__((used)) static value start_domain(value unit)
{
    value made = start_by(ocaml_original_start(), ocaml_asked_interval());
    if (!is_known_profile(made) || !keep(made))
        ocaml.stop(OCAML_NONE);
    else if (!atomic_load(&is_ours))
        atomic_store(state_of(made), STOPPED); /* the program has started one meanwhile */
    return unit;
}

ENTRY(start_domain);
static struct ocaml_closure start_closure = OCAML_CLOSURE_OF(ocaml_5_start_domain);

void ocaml_5_start_here(void)
{
    if (!atomic_load(&is_ours))
        return;
    /* The last bits tell an exception, which ends there. */
    bool is_raised = (ocaml.call_back((value)&start_closure.code, OCAML_NONE) & 3) == 2;
    if (is_raised && atomic_load(&profile_count) == 0)
        end(OCAML_GIVEN_WAY);
}
