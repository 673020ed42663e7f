/* Runs the sampler of OCaml 4.12 to 4.14: closures of the program, whose code is C here, are called for a block that is
 * drawn, promoted or found dead. All of it is under OCaml's master lock. */
#define _GNU_SOURCE
#include "ocaml.h"
#include "kit/thinning.h"

#include <errno.h>

static struct {
    bool is_ours;         /* it runs, and not for the program */
    int *is_started;      /* the runtime's own note of it; NULL: not found, the sampler keeps its interval */
    unsigned collections; /* since another interval was asked for */
} sampler;

static void follow(uint64_t asked);

/* ---- callbacks ---- */

/* Whether the runtime calls before it has allocated the block, from code of OCaml. It tells of blocks that C allocated later,
 * one after the other, but has told of all of them before it comes to such a one: none is left then that was drawn already.
 * The stack of such a block is made just before `info`, above it in the minor heap; that of any other is outside. */
static bool is_prompt(const value *info)
{
    return info[OCAML_INFO_CALLSTACK] == (value)(info + OCAML_INFO_WORDS + 1);
}

__attribute__((used)) static value on_alloc(value info)
{
    uint64_t asked = ocaml_asked_interval();
    value answer = ocaml_sampled((const value *)info, asked);
    if (UNLIKELY(asked != ocaml_drawn_at) && is_prompt((const value *)info))
        follow(asked);
    return answer;
}

__attribute__((used)) static value on_promoted(value number)
{
    return ocaml_promoted(number);
}

__attribute__((used)) static value on_dead(value number)
{
    return ocaml_dead(number);
}

/* Code of closures. On x86-64 they have their argument in rax and keep r14 and r15, as C does; on aarch64 they have it in x0 and
 * keep x26 to x28, as C does. */
#if defined(__x86_64__)
#define ENTRY_CODE(NAME)                                                                                               \
    "subq $8, %rsp\n\t.cfi_adjust_cfa_offset 8\n\tmovq %rax, %rdi\n\tcall " #NAME "\n\taddq $8, %rsp\n\t"                \
    ".cfi_adjust_cfa_offset -8\n\tret\n\t"
#else
#define ENTRY_CODE(NAME) "hint #34 /* bti c */\n\tb " #NAME "\n\t"
#endif
#define ENTRY(NAME)                                                                                                    \
    void ocaml_4_##NAME(void);                                                                                         \
    __asm__(".pushsection .text,\"ax\",@progbits\n\t.balign 4\n\t.hidden ocaml_4_" #NAME "\n\t.globl ocaml_4_" #NAME    \
            "\n\t.type ocaml_4_" #NAME ", @function\nocaml_4_" #NAME ":\n\t.cfi_startproc\n\t" ENTRY_CODE(NAME)        \
            ".cfi_endproc\n\t.size ocaml_4_" #NAME ", .-ocaml_4_" #NAME "\n\t.popsection")
ENTRY(on_alloc);
ENTRY(on_promoted);
ENTRY(on_dead);

static struct ocaml_closure alloc_closure = OCAML_CLOSURE_OF(ocaml_4_on_alloc),
                            promoted_closure = OCAML_CLOSURE_OF(ocaml_4_on_promoted),
                            dead_closure = OCAML_CLOSURE_OF(ocaml_4_on_dead);
/* alloc_minor, alloc_major, promote, dealloc_minor, dealloc_major */
static struct {
    uintptr_t header;
    void *fields[5];
} tracker = {OCAML_HEADER(5, OCAML_PLAIN),
             {&alloc_closure.code, &alloc_closure.code, &promoted_closure.code, &dead_closure.code, &dead_closure.code}};
static struct {
    uintptr_t header;
    double number;
} rate = {OCAML_HEADER(1, OCAML_DOUBLE), 0};

/* ---- start, and another interval ---- */

/* In place of the program's first call of Gc.Memprof.start: ours ends, and the program's begins as if we had not been here. */
static value give_way(value users_rate, value users_depth, value users_tracker)
{
    if (!ocaml_unhook_start())
        return OCAML_NONE; /* this function would come here again */
    sampler.is_ours = false;
    ocaml.stop(OCAML_NONE);
    ocaml_note(OCAML_GIVEN_WAY);
    return ocaml.start(users_rate, users_depth, users_tracker);
}

static void start(uint64_t interval)
{
    static const value depth = OCAML_INTEGER(OCAML_DEPTH);
    ocaml_drawn_at = interval;
    rate.number = interval < 2 ? 1 : thinning_drawn_share(OCAML_WORD / (double)interval);
    ocaml.start((value)&rate.number, depth, (value)&tracker.fields[0]);
}

/* The runtime takes another rate while it is started only if it believes that it is not: `stop` forgets which blocks it has
 * drawn, `start` alone leaves them as they are, sets the rate and draws the gap anew, which has no memory. That is where
 * nothing of the old rate is left but what the compiler allocates together with the block that the runtime is telling of,
 * 2 KB at most, and what C code of another thread has allocated just now. */
static void follow(uint64_t asked)
{
    int error = errno;
    if (!sampler.is_ours || sampler.is_started == NULL)
        return;
    if (!ocaml_unhook_start()) {
        sampler.is_started = NULL; /* not for the next sample to try again */
    } else {
        *sampler.is_started = 0;
        start(asked);
        sampler.collections = 0;
        if (!ocaml_hook_start(give_way)) {
            sampler.is_ours = false; /* see ocaml_4_start */
            ocaml.stop(OCAML_NONE);
        }
    }
    errno = error;
}

void ocaml_4_follow_late(void)
{
    uint64_t asked = ocaml_asked_interval();
    if (asked == ocaml_drawn_at)
        sampler.collections = 0;
    else if (++sampler.collections == 2)
        follow(asked); /* no sample has come to do it: the interval is long, or every stack is too deep for the minor heap */
}

/* In a program that runs already. In doubt it has. */
static bool is_started_by_program(void)
{
    int *place = ocaml_4_started_place();
    return ocaml.is_late && (place == NULL || *place != 0);
}

/* Starts, and finds the note: it alone is 0 before, 1 after, 0 after a stop, and 1 again. */
static void start_first(uint64_t interval)
{
    int *place = ocaml_4_started_place();
    bool is_it = place != NULL && *place == 0;
    start(interval);
    if (is_it && *place == 1) {
        ocaml.stop(OCAML_NONE);
        is_it = *place == 0;
        start(interval);
        if (is_it && *place == 1)
            sampler.is_started = place;
    }
}

void ocaml_4_start(void)
{
    if (is_started_by_program()) {
        ocaml_note(OCAML_GIVEN_WAY);
        return;
    }
    start_first(ocaml_asked_interval());
    if (!ocaml_hook_start(give_way)) {
        ocaml.stop(OCAML_NONE); /* where code cannot be changed, a program that wants the sampler must find it free */
        return;
    }
    sampler.is_ours = true;
    ocaml_4_watch_collections();
}
