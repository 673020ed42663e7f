/* Reports OCaml's samples: size, call stack, promotion and death, as the runtime's sampler reports them.
 *
 * The sampler (Gc.Memprof) draws words, each with the same probability. With the probability 1 - exp(-8 / interval) for a word,
 * a block of S bytes with its header is drawn with 1 - exp(-S / interval), which is the law of the hook ABI. How often the
 * runtime has drawn the block does not matter then.
 *
 * All of this runs on threads that hold OCaml's lock: the master lock of OCaml 4, the lock of a domain of OCaml 5. It allocates
 * nothing, and never lets OCaml's code run. */
#define _GNU_SOURCE
#include "ocaml.h"
#include "kit/lock.h"
#include "kit/names.h"
#include "kit/thinning.h"

/* From here on, memory is outside of the heap: custom blocks' own, mapped files. */
enum { SOURCE_CUSTOM = 2 };

uint64_t ocaml_drawn_at;
static struct names functions;
static _Atomic(uint64_t) blocks;

/* ---- stacks ---- */

static uint32_t number_of(const struct ocaml_place *place)
{
    const char *name = place->function != NULL && place->function[0] != 0 ? place->function : "(unnamed)";
    return names_function(&functions, ocaml_hooks, ocaml_heap, name, place->file, 0);
}

/* Cache of names of code locations. Several domains may be here. */
static bridge_lock known_lock;
static struct known {
    const void *names;
    uint32_t number, line;
} known[1 << 13];

static allocsample_frame frame_of(void *names)
{
    struct known *entry = &known[((uintptr_t)names >> 3) % (sizeof known / sizeof known[0])];
    if (entry->names != names) {
        struct ocaml_place place = {0};
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
    lock_take(&known_lock);
    for (size_t i = 0; i < slots; i++) {
        value slot = ((const value *)stack)[i] & ~(value)1;
        for (void *names = ocaml.names_of(slot); names != NULL && count < OCAML_DEPTH; names = ocaml.caller_of(names)) {
            frames[count] = frame_of(names);
            count += frames[count].function != 0;
        }
    }
    lock_release(&known_lock);
    return count;
}

/* ---- samples ---- */

uint64_t ocaml_asked_interval(void)
{
    allocsample_counters counters = {.size = sizeof counters};
    uint64_t asked = ocaml_hooks->counters(ocaml_heap, &counters) == ALLOCSAMPLE_OK ? counters.interval : 0;
    return asked == 0 ? ocaml_drawn_at : asked;
}

/* `Some number` for the runtime, which takes the number out at once. */
static value some(uint64_t number)
{
    static _Thread_local uintptr_t block[2];
    block[0] = OCAML_HEADER(1, OCAML_PLAIN);
    block[1] = (uintptr_t)OCAML_INTEGER(number);
    return (value)&block[1];
}

/* A number for the block's address, which may change: multiples of 128, each in a byte of its own of the filter that
 * `freed` asks first. */
static uintptr_t address_of(value number)
{
    return (uintptr_t)number >> 1 << 7;
}

value ocaml_sampled(const value *info, uint64_t asked)
{
    allocsample_frame frames[OCAML_DEPTH];
    if (info[OCAML_INFO_SOURCE] >= OCAML_INTEGER(SOURCE_CUSTOM))
        return OCAML_NONE; /* it comes from malloc or mmap, and is counted there */
    uint64_t bytes = ((uint64_t)(info[OCAML_INFO_SIZE] >> 1) + 1) * OCAML_WORD;
    uint64_t number = atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed) + 1;
    if (!thinning_keeps(number, bytes, ocaml_drawn_at, asked))
        return OCAML_NONE;
    size_t count = read_stack(info[OCAML_INFO_CALLSTACK], frames);
    uint64_t interval = asked > ocaml_drawn_at ? asked : ocaml_drawn_at;
    if (ocaml_hooks->sampled_at(ocaml_heap, address_of(OCAML_INTEGER(number)), bytes, 0, frames, count, interval) ==
        ALLOCSAMPLE_NO_SAMPLE)
        return OCAML_NONE;
    return some(number);
}

value ocaml_promoted(value number)
{
    return some((uint64_t)number >> 1);
}

value ocaml_dead(value number)
{
    ocaml_hooks->freed(ocaml_heap, address_of(number));
    return OCAML_NONE;
}

void ocaml_note(const char *note)
{
    uint64_t now = ocaml_hooks->now_ns();
    ocaml_hooks->marker(ocaml_heap, note, now, now);
}

bool ocaml_samples_prepare(void)
{
    return names_make(&functions);
}

void ocaml_samples_after_fork_in_child(void)
{
    lock_release(&known_lock);
    names_after_fork_in_child(&functions);
}
