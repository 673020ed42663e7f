/* Whether memory is being taken for an isolate's queue of interrupts.
 *
 * V8 keeps requested interrupts in a queue, and takes memory for it from `operator new` or malloc. A request from inside these would
 * change the queue in the middle of a change. The stack shows it: a return address into the code that appends to the queue.
 *
 * The public function `v8::Isolate::RequestInterrupt` is no more than a jump to that code, whose name only some builds export.
 * So the public function's own instructions lead to it: every function that it calls or jumps to counts. Counting too many
 * of them does no harm, because the request is repeated. */
#define _GNU_SOURCE
#include "kit/foreign.h"
#include "kit/symbols.h"
#include "v8.h"

#include <dlfcn.h>
#include <string.h>

#define RANGES 16

static struct range {
    uintptr_t start, end;
} ranges[RANGES];
static size_t ranges_count;

static void add(uintptr_t start, uintptr_t end)
{
    if (ranges_count < RANGES)
        ranges[ranges_count++] = (struct range){start, end};
}

/* ---- direct calls and jumps ---- */

#if defined(__x86_64__)
enum { STEP = 1, BRANCH_BYTES = 5 };

/* Where the instruction at `code` leads to if it is `call` or `jmp` with a distance of 32 bits; 0 otherwise. Bytes in the middle
 * of an instruction may look like one. */
static uintptr_t target_of(const uint8_t *code)
{
    int32_t distance;
    if (code[0] != 0xe8 && code[0] != 0xe9)
        return 0;
    memcpy(&distance, code + 1, sizeof distance);
    return (uintptr_t)code + BRANCH_BYTES + (uintptr_t)(intptr_t)distance;
}
#elif defined(__aarch64__)
enum { STEP = 4, BRANCH_BYTES = 4 };

/* The same for `b` and `bl`. */
static uintptr_t target_of(const uint8_t *code)
{
    uint32_t word;
    memcpy(&word, code, sizeof word);
    if ((word & UINT32_C(0x7c000000)) != UINT32_C(0x14000000))
        return 0;
    intptr_t distance = (intptr_t)(int32_t)(word << 6) >> 4;
    return (uintptr_t)code + (uintptr_t)distance;
}
#endif

static void add_callees(uintptr_t start, uintptr_t end)
{
    for (uintptr_t at = start; at + BRANCH_BYTES <= end; at += STEP) {
        uintptr_t target = target_of((const uint8_t *)at), first, last;
        bool is_inside = target >= start && target < end;
        if (target != 0 && !is_inside && symbols_unwound_function_of(target, &first, &last) && first == target)
            add(first, last);
    }
}

bool v8_queue_find(void)
{
    uintptr_t start, end;
    const void *public_function;
    memcpy(&public_function, &v8.request_interrupt, sizeof public_function);
    ranges_count = 0;
    if (!symbols_extent_of(public_function, &start, &end))
        return false;
    add(start, end);
    add_callees(start, end);
    /* A shared library may reach it through its table of imports instead; then it is exported. */
    const void *exported = dlsym(RTLD_DEFAULT, "_ZN2v88internal7Isolate16RequestInterruptEPFvPNS_7IsolateEPvES4_");
    if (exported != NULL && symbols_extent_of(exported, &start, &end))
        add(start, end);
    return ranges_count > 1;
}

bool v8_queue_is_changing(const struct shim_caller *caller)
{
    /* How much of the stack is searched: more than the frames of what appends an entry. */
    enum { WORDS = 64 };
    uintptr_t words[WORDS + 1];
    struct foreign_reader reader;
    if (caller == NULL)
        return true; /* nothing is known */
    foreign_reader_begin(&reader, NULL);
    words[WORDS] = caller->pc;
    if (!foreign_read(&reader, caller->sp, words, WORDS * sizeof words[0]))
        return true; /* the stack ends there, or cannot be read */
    for (size_t i = 0; i <= WORDS; i++)
        for (size_t j = 0; j < ranges_count; j++)
            if (words[i] - ranges[j].start < ranges[j].end - ranges[j].start)
                return true;
    return false;
}
