/* The calling thread's Perl stack, from its interpreter's contexts. Each context holds the statement that called it.
 *
 *     PL_curcop             the statement that is running
 *     PL_curstackinfo       stacks of contexts, newest first; perl starts a new one for each call that it makes itself
 *       context: sub        contains that statement, and holds the one that called the sub
 *       context: eval ...   the same; blocks and loops are not frames
 *     the last statement    is in the program's file
 *
 * malloc may be called while perl moves a stack, or takes an interpreter down. So all of it is foreign memory (foreign.h), and the
 * length of each chain is bounded.
 *
 * An interpreter runs on the thread if its newest jump buffer (PL_top_env) lies on the thread's stack. With threads, the interpreter
 * is the thread's own by pthread_getspecific; while it is being cloned, the one that clones is the one that ran here before.
 *
 * A layout is believed when statements of a stack have the function that perl's own table has for their op. */
#define _GNU_SOURCE
#include "kit/thread_pointer.h"
#include "kit/walkers.h"
#include "perl.h"

#include <string.h>

/* Bits of a context's type. */
enum { CONTEXT_TYPE = 0xf, SUB_IS_FAKE = 0x80, EVAL_OF_TEXT = 0x20, EVAL_OF_BLOCK = 0x40 };
#define OP_TYPE 0x1ff
/* Contexts of a walk, and stacks of contexts. */
#define MOST_CONTEXTS 65536
#define MOST_STACKS 4096
#define LARGEST_STACK (1 << 26)
/* Stacks whose statements are looked at until one is believed. */
#define TRIES 200
/* Threads that walk at the same time. */
#define WALKERS 16
/* Contexts that are read at once, where there are more than lines have room for. */
#define CHUNK 64
#define FEW 16
#define LARGEST_CONTEXT 128
/* A PERL_SI, up to its last field that is read. */
#define LARGEST_INFO 64

enum { NOT_KNOWN, BELIEVED, REFUSED };

/* What one walk uses. */
struct perl_walker {
    struct walker walker; /* first */
    uint8_t known[PERL_KNOWN_BYTES];
    uint8_t contexts[CHUNK * LARGEST_CONTEXT];
};

/* An interpreter's variables. */
struct interpreter {
    uintptr_t stack, cop, top_env, start_env, compiling;
};

struct walk {
    const struct perl *perl;
    struct foreign_reader reader;
    struct perl_walker *walker;
    struct interpreter interpreter;
    allocsample_frame *frames;
    size_t capacity, count;
    size_t contexts; /* that were read */
    size_t calls;    /* of them, subs and evals */
};

static struct walkers walkers;
static const struct perl *_Atomic current;
static _Atomic(int) belief;
static _Atomic(unsigned) tries;
/* The interpreter that a walk on this thread has read last. */
static _Thread_local uintptr_t last_interpreter __attribute__((tls_model("initial-exec")));
/* Without threads: the thread on which perl was seen to run. */
static _Atomic(uintptr_t) perl_thread;

/* ---- interpreters ---- */

static bool read_interpreter(struct walk *walk, uintptr_t address)
{
    const struct perl_layout *layout = walk->perl->layout;
    struct interpreter *it = &walk->interpreter;
    if (address == 0 || address % sizeof(uintptr_t) != 0)
        return false;
    it->start_env = address + layout->start_env;
    it->compiling = address + layout->compiling;
    return foreign_read(&walk->reader, address + layout->current_stack, &it->stack, sizeof it->stack) &&
           foreign_read(&walk->reader, address + layout->current_cop, &it->cop, sizeof it->cop) &&
           foreign_read(&walk->reader, address + layout->top_env, &it->top_env, sizeof it->top_env);
}

/* Without threads there is one. */
static bool read_only_interpreter(struct walk *walk)
{
    const struct perl_symbols *symbols = &walk->perl->symbols;
    struct interpreter *it = &walk->interpreter;
    it->start_env = symbols->start_env;
    it->compiling = symbols->compiling;
    return foreign_read(&walk->reader, symbols->current_stack, &it->stack, sizeof it->stack) &&
           foreign_read(&walk->reader, symbols->current_cop, &it->cop, sizeof it->cop) &&
           foreign_read(&walk->reader, symbols->top_env, &it->top_env, sizeof it->top_env);
}

static bool is_on_this_stack(const struct walk *walk)
{
    const struct interpreter *it = &walk->interpreter;
    return it->top_env != it->start_env && foreign_is_within(&walk->reader.owned[0], it->top_env, sizeof(uintptr_t));
}

/* The interpreter that the thread has set as its own, or 0. */
static uintptr_t interpreter_of_thread(struct walk *walk)
{
    const struct perl_symbols *symbols = &walk->perl->symbols;
    unsigned key;
    /* Before there is an interpreter the key is somebody else's. */
    if (foreign_word(&walk->reader, symbols->first_interpreter) == 0 ||
        !foreign_read(&walk->reader, symbols->thread_key, &key, sizeof key))
        return 0;
    return (uintptr_t)symbols->get_specific(key);
}

/* ---- contexts ---- */

/* A statement, by the function that runs it. */
static bool is_statement(struct walk *walk, uintptr_t cop)
{
    const struct perl_layout *layout = walk->perl->layout;
    uint16_t type;
    if (cop == walk->interpreter.compiling)
        return true;
    if (cop == 0 || cop % sizeof(uintptr_t) != 0 || !foreign_read(&walk->reader, cop + layout->op_type, &type, sizeof type))
        return false;
    type &= OP_TYPE;
    if (type != layout->next_statement && type != layout->debugged_statement)
        return false;
    uintptr_t code = foreign_word(&walk->reader, walk->perl->symbols.op_codes + type * sizeof(uintptr_t));
    return code != 0 && code == foreign_word(&walk->reader, cop + layout->op_code);
}

typedef bool visitor(struct walk *walk, unsigned type, uintptr_t sub, uintptr_t cop, uintptr_t calling_cop);

static bool visit_context(struct walk *walk, const uint8_t *context, uintptr_t *cop, visitor *visit)
{
    const struct perl_layout *layout = walk->perl->layout;
    uintptr_t sub, calling_cop;
    memcpy(&calling_cop, context + layout->context_cop, sizeof calling_cop);
    memcpy(&sub, context + layout->context_sub, sizeof sub);
    unsigned type = context[0] & CONTEXT_TYPE;
    bool is_sub = (type == layout->type_sub && (context[0] & SUB_IS_FAKE) == 0) || type == layout->type_format;
    bool is_eval = type == layout->type_eval && (context[0] & EVAL_OF_BLOCK) == 0;
    if (!is_sub && !is_eval)
        return true;
    walk->calls++;
    bool goes_on = visit(walk, context[0], is_sub ? sub : 0, *cop, calling_cop);
    *cop = calling_cop;
    return goes_on;
}

/* Visits the calls among the first `count` contexts, newest first. */
static bool visit_contexts(struct walk *walk, uintptr_t contexts, size_t count, uintptr_t *cop, visitor *visit)
{
    size_t bytes = walk->perl->layout->context_bytes;
    uint8_t *copies = walk->walker->contexts;
    while (count > 0 && walk->contexts < MOST_CONTEXTS) {
        size_t part = count < CHUNK ? count : CHUNK;
        uintptr_t from = contexts + (count - part) * bytes;
        if (part <= FEW ? !foreign_read(&walk->reader, from, copies, part * bytes) : !foreign_copy(from, copies, part * bytes))
            return false;
        for (size_t at = part; at-- > 0;)
            if (!visit_context(walk, copies + at * bytes, cop, visit))
                return false;
        walk->contexts += part;
        count -= part;
    }
    return true;
}

/* Visits calls, newest first; `cop` is then the oldest statement. False: this is not a stack of contexts. */
static bool each_call(struct walk *walk, uintptr_t *cop, visitor *visit)
{
    const struct perl_layout *layout = walk->perl->layout;
    struct foreign_chain chain = {0};
    uintptr_t stack = walk->interpreter.stack;
    *cop = walk->interpreter.cop;
    for (int stacks = 0; stack != 0; stacks++) {
        uint8_t bytes[LARGEST_INFO];
        uintptr_t contexts, previous;
        int32_t newest, most;
        if (stacks == MOST_STACKS || stack % sizeof(uintptr_t) != 0 || foreign_chain_repeats(&chain, stack) ||
            !foreign_read(&walk->reader, stack, bytes, layout->most_contexts + sizeof most))
            return false;
        memcpy(&contexts, bytes + layout->contexts, sizeof contexts);
        memcpy(&previous, bytes + layout->previous_stack, sizeof previous);
        memcpy(&newest, bytes + layout->newest_context, sizeof newest);
        memcpy(&most, bytes + layout->most_contexts, sizeof most);
        if (newest < -1 || newest > most || most > LARGEST_STACK || contexts == 0 || contexts % sizeof(uintptr_t) != 0)
            return false;
        if (!visit_contexts(walk, contexts, (size_t)(newest + 1), cop, visit))
            return false;
        stack = previous;
    }
    return true;
}

/* ---- belief ---- */

static bool look_at(struct walk *walk, unsigned type, uintptr_t sub, uintptr_t cop, uintptr_t calling_cop)
{
    (void)type, (void)sub, (void)cop;
    return is_statement(walk, calling_cop);
}

static void refuse(const struct perl *perl)
{
    int expected = NOT_KNOWN;
    if (!atomic_compare_exchange_strong(&belief, &expected, REFUSED))
        return;
    uint64_t now = perl->hooks->now_ns();
    perl->hooks->marker(perl->heap, "note: functions and lines of Perl are not shown: its stacks are not where this version has them", now,
                        now);
}

/* Whether stacks are what the layout says. Believed once, it is for the rest of the process. */
static bool is_believed(struct walk *walk)
{
    int now = atomic_load_explicit(&belief, memory_order_relaxed);
    if (now != NOT_KNOWN)
        return now == BELIEVED;
    uintptr_t cop;
    bool is_right = is_statement(walk, walk->interpreter.cop) && each_call(walk, &cop, look_at) && is_statement(walk, cop);
    walk->contexts = walk->calls = 0;
    if (is_right)
        atomic_store_explicit(&belief, BELIEVED, memory_order_relaxed);
    else if (atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed) + 1 == TRIES)
        refuse(walk->perl);
    return is_right;
}

/* ---- frames ---- */

static void put_frame(struct walk *walk, uintptr_t sub, const char *name, uintptr_t cop)
{
    bool is_compiling = cop == walk->interpreter.compiling;
    struct perl_known *known = is_compiling ? NULL : (struct perl_known *)walk->walker->known;
    allocsample_frame frame = perl_names_frame(walk->perl, &walk->reader, known, sub, name, cop);
    if (frame.function != 0)
        walk->frames[walk->count++] = frame;
}

/* Code outside of subs. A program that embeds perl calls subs from a statement that may be gone. */
static void put_code(struct walk *walk, const char *name, uintptr_t cop)
{
    if (is_statement(walk, cop))
        put_frame(walk, 0, name, cop);
}

static bool put(struct walk *walk, unsigned type, uintptr_t sub, uintptr_t cop, uintptr_t calling_cop)
{
    (void)calling_cop;
    if (walk->count == walk->capacity)
        return false;
    if (sub != 0)
        put_frame(walk, sub, NULL, cop);
    else
        put_code(walk, (type & EVAL_OF_TEXT) != 0 ? "(eval)" : "(require)", cop);
    return true;
}

/* From the statement that runs to the one of the program's file. */
static void read_frames(struct walk *walk)
{
    uintptr_t cop;
    if (each_call(walk, &cop, put) && walk->count < walk->capacity)
        put_code(walk, "(main)", cop);
}

static void read_with_threads(struct walk *walk)
{
    uintptr_t own = interpreter_of_thread(walk), before = last_interpreter;
    bool is_read = read_interpreter(walk, own);
    if (is_read && is_on_this_stack(walk)) {
        if (is_believed(walk)) {
            last_interpreter = own;
            read_frames(walk);
        }
        return;
    }
    /* A program that embeds perl may call it without a jump buffer, and a coroutine's lies on another stack. */
    if (is_read && atomic_load_explicit(&belief, memory_order_relaxed) == BELIEVED) {
        read_frames(walk);
        if (walk->calls != 0)
            return;
        walk->count = walk->contexts = 0;
    }
    /* `own` is being made, by the interpreter that ran here before. */
    if (before != own && read_interpreter(walk, before) && is_on_this_stack(walk) && is_believed(walk))
        read_frames(walk);
}

static void read_without_threads(struct walk *walk)
{
    uintptr_t thread = (uintptr_t)thread_pointer();
    if (!read_only_interpreter(walk))
        return;
    bool is_here = is_on_this_stack(walk);
    if (is_here)
        atomic_store_explicit(&perl_thread, thread, memory_order_relaxed);
    else if (atomic_load_explicit(&perl_thread, memory_order_relaxed) != thread)
        return;
    if (!is_believed(walk))
        return;
    read_frames(walk);
    /* As above. */
    if (!is_here && walk->calls == 0)
        walk->count = 0;
}

size_t perl_frames_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    const struct perl *perl = atomic_load_explicit(&current, memory_order_acquire);
    if (perl == NULL || atomic_load_explicit(&belief, memory_order_relaxed) == REFUSED)
        return 0;
    struct walk walk = {.perl = perl, .frames = frames, .capacity = capacity};
    struct walker *walker = walkers_begin(&walkers, &walk.reader);
    if (walker == NULL)
        return 0;
    walk.walker = (struct perl_walker *)walker;
    if (perl->layout->has_threads)
        read_with_threads(&walk);
    else
        read_without_threads(&walk);
    walkers_end(walker);
    return walk.count;
}

/* ---- start ---- */

bool perl_frames_make(void)
{
    return walkers_make(&walkers, WALKERS, sizeof(struct perl_walker)) && perl_names_make();
}

void perl_frames_are_of(const struct perl *perl)
{
    atomic_store_explicit(&current, perl, memory_order_release);
}

void perl_frames_after_fork_in_child(void)
{
    walkers_after_fork_in_child(&walkers);
    perl_names_after_fork_in_child();
}
