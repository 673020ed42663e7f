/* OCaml's heap as a heap of the hook ABI, in native programs of OCaml 4.12 to 4.14.
 *
 * Their runtime samples by itself (Gc.Memprof): it draws words, each with the same probability, and calls closures of the
 * program for a block that is drawn, promoted or found dead. Ours are closures whose code is C. With the probability
 * 1 - exp(-8 / interval) for a word, a block of S bytes with its header is drawn with 1 - exp(-S / interval), which is the
 * law of the hook ABI. The runtime collects a call stack with each, whose names are in the program.
 *
 * It is switched on between the runtime's start and the program's first instruction, when the runtime installs the stack on
 * which it handles overflows. Hooks of the runtime tell of collections. */
#define _GNU_SOURCE
#include "allocsample.h"
#include "bridge.h"
#include "kit/code.h"
#include "kit/names.h"
#include "kit/symbols.h"
#include "kit/thinning.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)

typedef intptr_t value;

#define DEPTH 512
#define WORD 8
/* An integer n is 2n + 1; a header has the number of words, a color (3: outside of the heap), a tag. */
#define INTEGER(N) ((value)(((uintptr_t)(N) << 1) + 1))
#define HEADER(WORDS, TAG) ((uintptr_t)(WORDS) << 10 | 3 << 8 | (TAG))
enum { TAG_PLAIN = 0, TAG_CLOSURE = 247, TAG_DOUBLE = 253 };
#define NONE INTEGER(0)
/* Fields of Gc.Memprof.allocation. */
enum { INFO_SIZE = 1, INFO_SOURCE = 2, INFO_CALLSTACK = 3 };
enum { SOURCE_CUSTOM = 2 };

/* caml_loc_info */
struct place {
    int is_known, is_raise;
    const char *file, *function;
    int line, start, end, is_inlined;
};

static struct {
    void *const *state; /* Caml_state: NULL until the runtime starts */
    value (*start)(value rate, value depth, value tracker);
    value (*stop)(value unit);
    void *(*names_of)(value slot);
    void *(*caller_of)(void *names);
    void (*place_of)(void *names, struct place *place);
    void (**minor_begin)(void), (**minor_end)(void), (**slice_begin)(void), (**slice_end)(void), (**cycle)(void);
} ocaml;

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct names functions;
static _Atomic(uint64_t) blocks;
static _Atomic(bool) is_ready;

/* The runtime's sampler. All of it is under OCaml's master lock. */
static struct {
    uint64_t interval;
    bool is_ours;          /* it runs, and not for the program */
    int *is_started;       /* the runtime's own note of it; NULL: not found, the sampler keeps its interval */
    unsigned collections;  /* since another interval was asked for */
} sampler;

/* ---- stacks ---- */

static uint32_t number_of(const struct place *place)
{
    const char *name = place->function != NULL && place->function[0] != 0 ? place->function : "(unnamed)";
    return names_function(&functions, hooks, heap, name, place->file, 0);
}

/* Cache of names of code locations. Callbacks run under OCaml's master lock. */
static struct known {
    const void *names;
    uint32_t number, line;
} known[1 << 13];

static allocsample_frame frame_of(void *names)
{
    struct known *entry = &known[((uintptr_t)names >> 3) % (sizeof known / sizeof known[0])];
    if (entry->names != names) {
        struct place place = {0};
        ocaml.place_of(names, &place);
        *entry = (struct known){names, place.is_known == 0 ? 0 : number_of(&place), (uint32_t)place.line};
    }
    return (allocsample_frame){.function = entry->number, .line = entry->line};
}

/* The call stack of a sample, leaf first, with what was inlined. */
static size_t read_stack(value stack, allocsample_frame *frames)
{
    size_t count = 0;
    size_t slots = ((const uintptr_t *)stack)[-1] >> 10;
    for (size_t i = 0; i < slots; i++) {
        value slot = ((const value *)stack)[i] & ~(value)1;
        for (void *names = ocaml.names_of(slot); names != NULL && count < DEPTH; names = ocaml.caller_of(names)) {
            frames[count] = frame_of(names);
            count += frames[count].function != 0;
        }
    }
    return count;
}

/* ---- samples ---- */

static void follow(uint64_t asked);

static uint64_t asked_interval(void)
{
    allocsample_counters counters = {.size = sizeof counters};
    uint64_t asked = hooks->counters(heap, &counters) == ALLOCSAMPLE_OK ? counters.interval : 0;
    return asked == 0 ? sampler.interval : asked;
}

/* `Some number` for the runtime, which takes the number out at once. */
static value some(uint64_t number)
{
    static _Thread_local uintptr_t block[2];
    block[0] = HEADER(1, TAG_PLAIN);
    block[1] = (uintptr_t)INTEGER(number);
    return (value)&block[1];
}

/* A number for the block's address, which may change: multiples of 128, each in a byte of its own of the filter that
 * `freed` asks first. */
static uintptr_t address_of(value number)
{
    return (uintptr_t)number >> 1 << 7;
}

/* Whether the runtime calls before it has allocated the block, from code of OCaml. It tells of blocks that C allocated later,
 * one after the other, but has told of all of them before it comes to such a one: none is left then that was drawn already.
 * The stack of such a block is made just before `info`, above it in the minor heap; that of any other is outside. */
static bool is_prompt(const value *info)
{
    enum { INFO_WORDS = 4 };
    return info[INFO_CALLSTACK] == (value)(info + INFO_WORDS + 1);
}

static value tell_sample(const value *field, uint64_t asked)
{
    allocsample_frame frames[DEPTH];
    uint64_t bytes = ((uint64_t)(field[INFO_SIZE] >> 1) + 1) * WORD;
    uint64_t number = atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed) + 1;
    if (!thinning_keeps(number, bytes, sampler.interval, asked))
        return NONE;
    size_t count = read_stack(field[INFO_CALLSTACK], frames);
    uint64_t interval = asked > sampler.interval ? asked : sampler.interval;
    if (hooks->sampled_at(heap, address_of(INTEGER(number)), bytes, 0, frames, count, interval) == ALLOCSAMPLE_NO_SAMPLE)
        return NONE;
    return some(number);
}

__attribute__((used)) static value on_alloc(value info)
{
    const value *field = (const value *)info;
    uint64_t asked = asked_interval();
    /* Memory outside of the heap comes from malloc, and is counted there. */
    value answer = field[INFO_SOURCE] == INTEGER(SOURCE_CUSTOM) ? NONE : tell_sample(field, asked);
    if (UNLIKELY(asked != sampler.interval) && is_prompt(field))
        follow(asked);
    return answer;
}

__attribute__((used)) static value on_promoted(value number)
{
    return some((uint64_t)number >> 1);
}

__attribute__((used)) static value on_dead(value number)
{
    hooks->freed(heap, address_of(number));
    return NONE;
}

/* Code of closures, which have their argument in rax and keep r14 and r15, as C does. */
#define ENTRY(NAME)                                                                                                    \
    void ocaml_##NAME(void);                                                                                           \
    __asm__(".pushsection .text,\"ax\",@progbits\n\t.hidden ocaml_" #NAME "\n\t.globl ocaml_" #NAME "\n\t"             \
            ".type ocaml_" #NAME ", @function\nocaml_" #NAME ":\n\t.cfi_startproc\n\tsubq $8, %rsp\n\t"                \
            ".cfi_adjust_cfa_offset 8\n\tmovq %rax, %rdi\n\tcall " #NAME "\n\taddq $8, %rsp\n\t"                       \
            ".cfi_adjust_cfa_offset -8\n\tret\n\t.cfi_endproc\n\t.size ocaml_" #NAME ", .-ocaml_" #NAME                \
            "\n\t.popsection")
ENTRY(on_alloc);
ENTRY(on_promoted);
ENTRY(on_dead);

/* Blocks outside of the heap: header first. A closure of one argument has its code, and where its environment would begin. */
struct closure {
    uintptr_t header;
    void (*code)(void);
    uintptr_t info;
};
#define CLOSURE(CODE) {HEADER(2, TAG_CLOSURE), CODE, UINT64_C(1) << 56 | 2 << 1 | 1}
static struct closure alloc_closure = CLOSURE(ocaml_on_alloc), promoted_closure = CLOSURE(ocaml_on_promoted),
                      dead_closure = CLOSURE(ocaml_on_dead);
/* alloc_minor, alloc_major, promote, dealloc_minor, dealloc_major */
static struct {
    uintptr_t header;
    void *fields[5];
} tracker = {HEADER(5, TAG_PLAIN),
             {&alloc_closure.code, &alloc_closure.code, &promoted_closure.code, &dead_closure.code, &dead_closure.code}};
static struct {
    uintptr_t header;
    double number;
} rate = {HEADER(1, TAG_DOUBLE), 0};

/* ---- collections ---- */

static struct {
    uint64_t minor_ns, slice_ns, count;
    bool is_cycle_done;
} collection;

static void tell(uint32_t kind, uint64_t begin_ns)
{
    uint64_t now = hooks->now_ns();
    allocsample_gc gc = {
        .size = sizeof gc, .kind = kind, .id = ++collection.count, .begin_ns = begin_ns == 0 ? now : begin_ns, .end_ns = now};
    hooks->gc(heap, &gc);
}

static void on_minor_begin(void)
{
    collection.minor_ns = hooks->now_ns();
}

static void on_minor_end(void)
{
    tell(ALLOCSAMPLE_MINOR, collection.minor_ns);
    uint64_t asked = asked_interval();
    if (asked == sampler.interval)
        sampler.collections = 0;
    else if (++sampler.collections == 2)
        follow(asked); /* no sample has come to do it: the interval is long, or every stack is too deep for the minor heap */
}

static void on_slice_begin(void)
{
    collection.slice_ns = hooks->now_ns();
    collection.is_cycle_done = false;
}

static void on_slice_end(void)
{
    tell(collection.is_cycle_done ? ALLOCSAMPLE_MAJOR : ALLOCSAMPLE_MAJOR_STEP, collection.slice_ns);
    collection.slice_ns = 0;
}

/* Once in each cycle, when all is marked: in a slice, or in a collection that the program asked for. */
static void on_cycle(void)
{
    if (collection.slice_ns != 0)
        collection.is_cycle_done = true;
    else
        tell(ALLOCSAMPLE_MAJOR, 0);
}

/* ---- a program that starts Gc.Memprof itself goes first ---- */

/* mov rax, address; jmp rax: no argument of a function of C is in rax. */
static struct __attribute__((packed)) detour {
    uint8_t load[2];
    value (*to)(value, value, value);
    uint8_t jump[2];
} original;

/* Puts bytes where `ocaml.start` begins. Threads may run in its page, but none in the function: its callers hold OCaml's
 * master lock, or there is one thread. */
static bool put_at_start(const struct detour *bytes)
{
    void *at;
    memcpy(&at, &ocaml.start, sizeof at);
    return code_put(at, bytes, sizeof *bytes);
}

/* In place of the program's first call of Gc.Memprof.start, under OCaml's master lock. The runtime can run one sampler:
 * ours ends, and the program's begins as if we had not been here. */
static value give_way(value users_rate, value users_depth, value users_tracker)
{
    uint64_t now = hooks->now_ns();
    put_at_start(&original);
    sampler.is_ours = false;
    ocaml.stop(NONE);
    hooks->marker(heap, "the program started Gc.Memprof: samples of OCaml's heap end here", now, now);
    return ocaml.start(users_rate, users_depth, users_tracker);
}

static bool watch_start(void)
{
    struct detour detour = {{0x48, 0xb8}, give_way, {0xff, 0xe0}};
    memcpy(&original, *(void *const *)&ocaml.start, sizeof original);
    return put_at_start(&detour);
}

/* ---- start, and another interval ---- */

static void start(uint64_t interval)
{
    static const value depth = INTEGER(DEPTH);
    sampler.interval = interval;
    rate.number = interval < 2 ? 1 : thinning_drawn_share(WORD / (double)interval);
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
    if (!put_at_start(&original)) {
        sampler.is_started = NULL; /* not for the next sample to try again */
    } else {
        *sampler.is_started = 0;
        start(asked);
        sampler.collections = 0;
        if (!watch_start()) {
            sampler.is_ours = false; /* see start_sampling */
            ocaml.stop(NONE);
        }
    }
    errno = error;
}

/* Where the runtime notes that it is started: what `stop` reads first. NULL: it does not begin as compilers have it do, by
 *     mov place(%rip), %r32      or      cmpl $0, place(%rip). */
static int *started_place(void)
{
    enum { REACH = 32 };
    const uint8_t *code;
    memcpy(&code, &ocaml.stop, sizeof code);
    for (const uint8_t *at = code; at < code + REACH; at++) {
        int32_t distance;
        memcpy(&distance, at + 2, sizeof distance);
        const uint8_t *next = NULL;
        if (at[0] == 0x8b && (at[1] & 0xc7) == 0x05)
            next = at + 6;
        else if (at[0] == 0x83 && at[1] == 0x3d && at[6] == 0)
            next = at + 7;
        if (next != NULL)
            return symbols_is_data(next + distance, sizeof(int)) ? (int *)(uintptr_t)(next + distance) : NULL;
    }
    return NULL;
}

/* Starts, and finds the note: it alone is 0 before, 1 after, 0 after a stop, and 1 again. */
static void start_first(uint64_t interval)
{
    int *place = started_place();
    bool is_it = place != NULL && *place == 0;
    start(interval);
    if (is_it && *place == 1) {
        ocaml.stop(NONE);
        is_it = *place == 0;
        start(interval);
        if (is_it && *place == 1)
            sampler.is_started = place;
    }
}

static void start_sampling(void)
{
    start_first(asked_interval());
    if (!watch_start()) {
        ocaml.stop(NONE); /* where code cannot be changed, a program that wants the sampler must find it free */
        return;
    }
    sampler.is_ours = true;
    *ocaml.minor_begin = on_minor_begin;
    *ocaml.minor_end = on_minor_end;
    *ocaml.slice_begin = on_slice_begin;
    *ocaml.slice_end = on_slice_end;
    *ocaml.cycle = on_cycle;
}

static bool find_runtime(void)
{
    static const struct symbol symbols[] = {
        {&ocaml.start, "caml_memprof_start"},
        {&ocaml.stop, "caml_memprof_stop"},
        {&ocaml.state, "Caml_state"},
        {&ocaml.names_of, "caml_debuginfo_extract"},
        {&ocaml.caller_of, "caml_debuginfo_next"},
        {&ocaml.place_of, "caml_debuginfo_location"},
        {&ocaml.minor_begin, "caml_minor_gc_begin_hook"},
        {&ocaml.minor_end, "caml_minor_gc_end_hook"},
        {&ocaml.slice_begin, "caml_major_slice_begin_hook"},
        {&ocaml.slice_end, "caml_major_slice_end_hook"},
        {&ocaml.cycle, "caml_major_gc_hook"},
    };
    if (!symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "ocaml"))
        return false;
    /* Not for bytecode, whose closures are other; OCaml 5 is another runtime; a program that samples by memtrace goes
     * first. */
    bool is_native = dlsym(RTLD_DEFAULT, "caml_init_frame_descriptors") != NULL;
    bool is_traced = dlsym(RTLD_DEFAULT, "camlMemtrace__code_begin") != NULL;
    if (!is_native)
        shim_services.decline("ocaml", "bytecode", "has no frames that can be read");
    else if (is_traced)
        shim_services.decline("ocaml", "memtrace", "has OCaml's sampler for itself");
    return is_native && !is_traced && dlsym(RTLD_DEFAULT, "caml_domain_spawn") == NULL;
}

static void join(void)
{
    if (!find_runtime())
        return;
    allocsample_heap_description description = {
        .size = sizeof description, .kind = ALLOCSAMPLE_COLLECTED, .name = "ocaml"};
    allocsample_counters counters = {.size = sizeof counters};
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    heap = hooks == NULL || !names_make(&functions) ? NULL : hooks->heap_register(&description);
    if (heap == NULL || hooks->counters(heap, &counters) != ALLOCSAMPLE_OK || counters.interval == 0)
        return;
    sampler.interval = counters.interval;
    atomic_store_explicit(&is_ready, true, memory_order_relaxed);
}

static void join_if_started(void)
{
    if (UNLIKELY(atomic_load_explicit(&is_ready, memory_order_relaxed)) && *ocaml.state != NULL &&
        atomic_exchange_explicit(&is_ready, false, memory_order_relaxed))
        start_sampling();
}

#else

/* The entry of a closure is written for x86-64. */
static void join(void)
{
}

static void join_if_started(void)
{
}

#endif

/* libc's, which OCaml's runtime calls at its start. */
EXPORT int sigaltstack(const stack_t *restrict stack, stack_t *restrict old)
{
    join_if_started();
    return (int)syscall(SYS_sigaltstack, stack, old);
}

static void after_fork_in_child(void)
{
#if defined(__x86_64__)
    names_after_fork_in_child(&functions);
#endif
}

const struct bridge bridge_ocaml = {
    .name = "ocaml",
    .runtime_symbol = "caml_memprof_start",
    .join = join,
    .after_fork_in_child = after_fork_in_child,
};
