/* The calling thread's R stack, from R's chain of contexts. Each context holds the source reference of the code that began it.
 *
 *     R_Srcref              the reference of the code that runs
 *     R_GlobalContext       the newest context
 *       context: function   is at that reference, and holds the one of the code that called the function
 *       context: builtin    holds the reference of the function that called it; R has these for calls of native code
 *       other contexts      loops, promises, tries: not frames
 *     the last context      is R's own, whose content is known: a layout is believed if this one has it
 *
 * A context of R's is on the C stack, or (from R 4.4 on, where byte code calls byte code) on R's stack of values. R runs on one thread:
 * the one that has contexts on its stack.
 *
 * malloc may be called anywhere in R. So all of it is foreign memory (foreign.h), and the length of the chain is bounded. */
#define _GNU_SOURCE
#include "kit/thread_pointer.h"
#include "kit/walkers.h"
#include "r.h"

#include <setjmp.h>

/* Bits of a context's flags. */
enum { IS_FUNCTION = 4, IS_BUILTIN = 64 };
#define MOST_CONTEXTS 262144
#define LARGEST_CONTEXT 1024
#define LARGEST_VALUES (UINT64_C(1) << 34)
/* Chains that are looked at until one is believed. */
#define TRIES 200
/* Threads that walk at the same time. */
#define WALKERS 4
/* Words behind R_PPStackTop among which R has the state of its byte code. */
#define WORDS_TO_STATE 12

#define AFTER_JUMP(BYTES) (2 * sizeof(uintptr_t) + sizeof(sigjmp_buf) + (BYTES))
static const struct r_layout layouts[] = {
#include "layouts.def"
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

/* What one walk uses. */
struct r_walker {
    struct walker walker; /* first */
    uint8_t names[R_KNOWN_NAMES_BYTES];
    uint8_t places[R_KNOWN_PLACES_BYTES];
};

struct walk {
    struct r_view view;
    struct r_walker *walker;
    const struct r_layout *layout;
    allocsample_frame *frames;
    size_t capacity, count;
    bool is_here; /* R runs on this thread */
};

struct context {
    uintptr_t next, function, call, environment, body, pc, offset, values, place;
    uint32_t flags;
};

static struct walkers walkers;
static const struct r *_Atomic current;
static const struct r_layout *_Atomic believed;
static _Atomic(unsigned) tries;
/* The thread that R was seen to run on, and the beginning of its stack of values. */
static _Atomic(uintptr_t) r_thread, values_start;
/* The address of the byte code that runs; that of its position follows. 0: not found yet. */
static _Atomic(uintptr_t) byte_code_state;

/* ---- contexts ---- */

static uintptr_t word_of(const uint8_t *bytes, uint16_t offset)
{
    uintptr_t word;
    memcpy(&word, bytes + offset, sizeof word);
    return word;
}

static bool read_context(struct walk *walk, const struct r_layout *layout, uintptr_t address, struct context *context)
{
    uint8_t bytes[LARGEST_CONTEXT];
    if (address == 0 || address % sizeof(uintptr_t) != 0 ||
        !foreign_read(&walk->view.reader, address, bytes, layout->place + sizeof(uintptr_t)))
        return false;
    *context = (struct context){
        .next = word_of(bytes, 0),
        .function = word_of(bytes, layout->function),
        .call = word_of(bytes, layout->call),
        .environment = word_of(bytes, layout->environment),
        .body = word_of(bytes, layout->body),
        .pc = word_of(bytes, layout->pc),
        .offset = layout->offset == 0 ? 0 : word_of(bytes, layout->offset),
        .values = word_of(bytes, layout->values),
        .place = word_of(bytes, layout->place),
    };
    memcpy(&context->flags, bytes + layout->flags, sizeof context->flags);
    return true;
}

/* ---- belief ---- */

/* What R puts into its first context when it starts. */
static bool is_first_context(struct walk *walk, const struct r_layout *layout, uintptr_t address)
{
    struct context context;
    const struct r_constants *constants = &walk->view.constants;
    return read_context(walk, layout, address, &context) && context.next == 0 && context.flags == 0 &&
           context.function == constants->nil && context.call == constants->nil &&
           context.environment == constants->base_environment && context.place == constants->nil && context.values != 0;
}

static const struct r_layout *layout_of(struct walk *walk)
{
    struct foreign_chain chain = {0};
    uintptr_t context = foreign_word(&walk->view.reader, walk->view.r->symbols.global_context), last = 0;
    for (size_t i = 0; context != 0 && i < MOST_CONTEXTS; i++) {
        if (context % sizeof(uintptr_t) != 0 || foreign_chain_repeats(&chain, context))
            return NULL;
        last = context;
        context = foreign_word(&walk->view.reader, context);
    }
    for (size_t i = 0; i < LAYOUTS; i++) {
        if (is_first_context(walk, &layouts[i], last))
            return &layouts[i];
    }
    return NULL;
}

static void refuse(const struct r *r)
{
    uint64_t now = r->hooks->now_ns();
    r->hooks->marker(r->heap, "note: functions of R are not shown: its contexts are not where known versions have them", now, now);
}

/* Whether contexts are what a layout says. Believed once, it is for the rest of the process. */
static bool is_believed(struct walk *walk)
{
    walk->layout = atomic_load_explicit(&believed, memory_order_acquire);
    if (walk->layout != NULL)
        return true;
    walk->layout = layout_of(walk);
    if (walk->layout != NULL)
        atomic_store_explicit(&believed, walk->layout, memory_order_release);
    else if (atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed) + 1 == TRIES)
        refuse(walk->view.r);
    return walk->layout != NULL;
}

/* ---- places ---- */

static struct r_place place_of(struct walk *walk, const struct r_position *position)
{
    return r_places_of(&walk->view, (struct r_known_places *)walk->walker->places, position);
}

/* Of the code that began the context. */
static struct r_position position_of(struct walk *walk, const struct context *context)
{
    struct r_position position = {context->place, context->body, (intptr_t)context->offset};
    if (context->place == walk->view.constants.in_byte_code && (walk->layout->offset == 0 || position.offset <= 0))
        position.offset = r_places_offset(&walk->view, context->body, context->pc);
    return position;
}

/* R does not export the variables with the byte code that runs and its position. They are behind one that it does, and what they lead
 * to tells whether it is them: the position is a variable on the stack that points into the code. */
static bool is_state(struct walk *walk, uintptr_t address, struct r_position *position)
{
    uintptr_t body = foreign_word(&walk->view.reader, address);
    uintptr_t pc = foreign_word(&walk->view.reader, address + sizeof(uintptr_t));
    if (body == 0 || !foreign_is_within(&walk->view.reader.owned[0], pc, sizeof(uintptr_t)))
        return false;
    position->body = body;
    position->offset = r_places_offset(&walk->view, body, pc);
    return position->offset >= 0;
}

static struct r_position current_position(struct walk *walk)
{
    const struct r_symbols *symbols = &walk->view.r->symbols;
    struct r_position position = {.reference = foreign_word(&walk->view.reader, symbols->current_place), .offset = -1};
    if (position.reference != walk->view.constants.in_byte_code)
        return position;
    uintptr_t state = atomic_load_explicit(&byte_code_state, memory_order_relaxed);
    if (state != 0) {
        is_state(walk, state, &position);
        return position;
    }
    uintptr_t first = (symbols->protected_count + sizeof(uintptr_t)) & ~(sizeof(uintptr_t) - 1);
    for (int i = 0; i < WORDS_TO_STATE; i++) {
        uintptr_t address = first + (uintptr_t)i * sizeof(uintptr_t);
        if (!is_state(walk, address, &position))
            continue;
        atomic_store_explicit(&byte_code_state, address, memory_order_relaxed);
        break;
    }
    return position;
}

/* ---- frames ---- */

static void put(struct walk *walk, allocsample_frame frame)
{
    if (frame.function != 0)
        walk->frames[walk->count++] = frame;
}

static void visit(struct walk *walk, const struct context *context, struct r_position *at)
{
    struct r_object function = {.type = R_TYPE_UNKNOWN};
    if ((context->flags & IS_FUNCTION) != 0)
        function = r_object_at(&walk->view, context->function);
    /* The others evaluate code in the name of the function below them. */
    if (function.type != R_TYPE_CLOSURE && (context->flags & IS_BUILTIN) == 0)
        return;
    if (function.type == R_TYPE_CLOSURE) {
        struct r_place place = place_of(walk, at);
        struct r_known_names *known = (struct r_known_names *)walk->walker->names;
        put(walk, r_names_frame(&walk->view, known, context->function, &function, context->call, &place));
    }
    *at = position_of(walk, context);
}

/* The stack of values from where it begins, on the thread that R uses it on. */
static void own_values(struct walk *walk)
{
    uintptr_t start = atomic_load_explicit(&values_start, memory_order_relaxed);
    uintptr_t end = foreign_word(&walk->view.reader, walk->view.r->symbols.values_end);
    /* Owned: R never gives it back, and only this thread uses it. */
    if (start != 0 && start < end && end - start < LARGEST_VALUES &&
        atomic_load_explicit(&r_thread, memory_order_relaxed) == (uintptr_t)thread_pointer())
        walk->view.reader.owned[1] = (struct foreign_range){start, end};
}

static bool is_on_this_stack(const struct walk *walk, uintptr_t address)
{
    return foreign_is_within(&walk->view.reader.owned[0], address, sizeof(uintptr_t));
}

/* Whether code outside of functions runs here: in R itself, and not in a program that embeds it, which is its own code. */
static bool is_top_level(struct walk *walk)
{
    int is_main = 0;
    const struct r_symbols *symbols = &walk->view.r->symbols;
    const struct foreign_range *stack = &walk->view.reader.owned[0];
    if (symbols->is_main_program == 0 ||
        !foreign_read(&walk->view.reader, symbols->is_main_program, &is_main, sizeof is_main) || is_main == 0)
        return false;
    /* It may be the stack's very end. */
    uintptr_t start = foreign_word(&walk->view.reader, symbols->stack_start);
    return walk->is_here || (start > stack->start && start <= stack->end);
}

/* False: another thread's. */
static bool read_frames(struct walk *walk)
{
    struct foreign_chain chain = {0};
    struct context context = {0};
    struct r_position at = current_position(walk);
    uintptr_t address = foreign_word(&walk->view.reader, walk->view.r->symbols.global_context);
    for (size_t i = 0; address != 0 && walk->count < walk->capacity; i++) {
        if (i == MOST_CONTEXTS || foreign_chain_repeats(&chain, address) ||
            !read_context(walk, walk->layout, address, &context))
            return walk->is_here;
        walk->is_here |= is_on_this_stack(walk, address);
        if (context.next == 0)
            atomic_store_explicit(&values_start, context.values, memory_order_relaxed);
        else
            visit(walk, &context, &at);
        address = context.next;
    }
    if (walk->count < walk->capacity && is_top_level(walk)) {
        struct r_place place = place_of(walk, &at);
        put(walk, r_names_top_level(&walk->view, &place));
        walk->is_here = true;
    }
    if (walk->is_here)
        atomic_store_explicit(&r_thread, (uintptr_t)thread_pointer(), memory_order_relaxed);
    return walk->is_here;
}

/* False: R has not started. */
static bool read_constants(struct r_view *view)
{
    const struct r_symbols *symbols = &view->r->symbols;
    struct r_constants *constants = &view->constants;
    const struct {
        uintptr_t *to, from;
    } all[] = {
        {&constants->nil, symbols->nil},
        {&constants->in_byte_code, symbols->in_byte_code},
        {&constants->base_environment, symbols->base_environment},
        {&constants->base_namespace, symbols->base_namespace},
        {&constants->global_environment, symbols->global_environment},
        {&constants->source_file, symbols->source_file},
        {&constants->source_reference, symbols->source_reference},
        {&constants->class, symbols->class},
        {&constants->double_colon, symbols->double_colon},
        {&constants->triple_colon, symbols->triple_colon},
        {&constants->dollar, symbols->dollar},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *all[i].to = foreign_word(&view->reader, all[i].from);
        if (*all[i].to == 0)
            return false;
    }
    return foreign_word(&view->reader, symbols->global_context) != 0;
}

size_t r_frames_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    const struct r *r = atomic_load_explicit(&current, memory_order_acquire);
    if (r == NULL || atomic_load_explicit(&tries, memory_order_relaxed) >= TRIES)
        return 0;
    struct walk walk = {.view = {.r = r}, .frames = frames, .capacity = capacity};
    struct walker *walker = walkers_begin(&walkers, &walk.view.reader);
    if (walker == NULL)
        return 0;
    walk.walker = (struct r_walker *)walker;
    if (read_constants(&walk.view) && is_believed(&walk)) {
        own_values(&walk);
        if (!read_frames(&walk))
            walk.count = 0;
    }
    walkers_end(walker);
    return walk.count;
}

/* ---- start ---- */

bool r_frames_make(void)
{
    return walkers_make(&walkers, WALKERS, sizeof(struct r_walker)) && r_names_make();
}

void r_frames_are_of(const struct r *r)
{
    atomic_store_explicit(&current, r, memory_order_release);
}

void r_frames_after_fork_in_child(void)
{
    walkers_after_fork_in_child(&walkers);
    r_names_after_fork_in_child();
}
