/* The stack of the Erlang process that the calling scheduler runs.
 *
 * A scheduler's thread has its data, and in it the process. Compiled code runs on the process's own stack, and goes over to the
 * scheduler's stack to call a function of BEAM. So the native stack ends in the function that runs, or in code that all functions
 * share; those that called it have their return addresses on the process's stack, among Erlang terms, which are told from addresses
 * by their lowest bits.
 *
 * No version exports where these things are. The layout is found at the first sample of a process, and each walk checks it: the
 * process begins with its identifier, its heap and its stack lie in one block (start, top of the heap, top of the stack, end, in
 * this order), and its size agrees with a third field. A process for which that does not hold has no frames. */
#define _GNU_SOURCE
#include "beam.h"
#include "kit/foreign.h"
#include "kit/lock.h"
#include "kit/thread_pointer.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum {
    WORD = sizeof(uintptr_t),
    SCHEDULER_WORDS = 256,
    PROCESS_WORDS = 64,
    /* In a process, words from the heap's end to its size: other fields may be between. */
    SIZE_WITHIN = 5,
    KEYS = 64,
    /* How much of a stack is read; callers beyond that are left out. */
    STACK_BYTES = 256 << 10,
    PIECE_WORDS = 512,
    TERM_BITS = 3,
};

static void *(*scheduler_data)(void); /* NULL: not exported */
/* The thread that starts BEAM, runs no Erlang, and would use up the attempts. NULL: the process was attached to. */
static const char *first_thread;
static bridge_lock lock;
/* In words. */
static struct layout {
    size_t process;   /* in a scheduler's data; 0: not known yet */
    size_t top, heap; /* in a process: the top of its heap, and the start of it */
} layout;
static unsigned attempts; /* to find it */
static pthread_key_t scheduler_key;

/* ---- the layout ---- */

struct stack {
    uintptr_t top, end;
};

static bool is_process_identifier(uintptr_t term)
{
    return (term & 0xf) == 0x3 && term >> 4 != 0;
}

/* Whether the heap and the stack are where `top` and `heap` say, in words. */
static bool fits(const uintptr_t *process, size_t top, size_t heap, struct stack *stack)
{
    uintptr_t start = process[heap], end = process[heap + 1], heap_top = process[top], stack_top = process[top + 1];
    if (start == 0 || ((start | end | heap_top | stack_top) & (WORD - 1)) != 0 || start > heap_top || heap_top > stack_top ||
        stack_top > end)
        return false;
    *stack = (struct stack){stack_top, end};
    for (size_t at = heap + 2; at < heap + 2 + SIZE_WITHIN && at < PROCESS_WORDS; at++)
        if (process[at] == (end - start) / WORD)
            return end > start;
    return false;
}

static bool read_process(uintptr_t process, uintptr_t words[PROCESS_WORDS])
{
    return process != 0 && process % WORD == 0 && foreign_copy(process, words, PROCESS_WORDS * WORD) &&
           is_process_identifier(words[0]);
}

/* Looks for the process in what may be a scheduler's data. */
static bool find_layout(uintptr_t scheduler, struct layout *is)
{
    uintptr_t data[SCHEDULER_WORDS], process[PROCESS_WORDS];
    size_t found = 0;
    struct stack stack;
    if (scheduler == 0 || scheduler % WORD != 0)
        return false;
    /* The memory may end earlier if it is not a scheduler's. */
    struct iovec piece = {(void *)scheduler, sizeof data};
    size_t words = shim_services.copy_foreign(data, sizeof data, &piece, 1) / WORD;
    for (size_t i = 1; i < words; i++) {
        if (!read_process(data[i], process))
            continue;
        for (size_t top = 1; top + 1 < PROCESS_WORDS; top++)
            for (size_t heap = top + 2; heap + 2 < PROCESS_WORDS; heap++) {
                if (!fits(process, top, heap, &stack) || stack.top == stack.end)
                    continue;
                /* The same process may stand in two places: the first is the one that runs. */
                if (found != 0 && data[is->process] == data[i])
                    continue;
                *is = (struct layout){i, top, heap};
                found++;
            }
    }
    return found == 1;
}

/* Other data of a thread may lie within that of its scheduler, which begins first. */
static void find_key(void)
{
    uintptr_t first = UINTPTR_MAX;
    struct layout found;
    for (unsigned key = 0; key < KEYS; key++) {
        uintptr_t data = (uintptr_t)pthread_getspecific(key);
        if (data >= first || !find_layout(data, &found))
            continue;
        first = data;
        layout = found;
        scheduler_key = key;
    }
}

/* The data of the calling thread's scheduler, or 0: it has none, or the layout is not known. */
static uintptr_t scheduler_of_thread(void)
{
    struct layout found;
    if (thread_pointer() == first_thread)
        return 0;
    /* Before BEAM has made the key of its schedulers' data, this is somebody else's, or nothing. */
    if (layout.process == 0 && beam_is_due(&attempts)) {
        if (scheduler_data == NULL)
            find_key();
        else if (find_layout((uintptr_t)scheduler_data(), &found))
            layout = found;
    }
    if (layout.process == 0)
        return 0;
    return (uintptr_t)(scheduler_data == NULL ? pthread_getspecific(scheduler_key) : scheduler_data());
}

/* The stack of the process that runs on it. */
static bool find_stack(uintptr_t scheduler, struct stack *stack)
{
    uintptr_t process, words[PROCESS_WORDS];
    return foreign_copy(scheduler + layout.process * WORD, &process, sizeof process) && read_process(process, words) &&
           fits(words, layout.top, layout.heap, stack);
}

/* ---- frames ---- */

static size_t walk_stack(const struct stack *stack, allocsample_frame *frames, size_t count, size_t capacity)
{
    uintptr_t words[PIECE_WORDS];
    uintptr_t end = stack->end - stack->top > STACK_BYTES ? stack->top + STACK_BYTES : stack->end;
    for (uintptr_t at = stack->top; at < end && count < capacity;) {
        size_t bytes = end - at < sizeof words ? end - at : sizeof words;
        if (!foreign_copy(at, words, bytes))
            break;
        for (size_t i = 0; i < bytes / WORD && count < capacity; i++) {
            uint32_t function = (words[i] & TERM_BITS) == 0 ? beam_code_function(words[i]) : 0;
            if (function != 0)
                frames[count++] = (allocsample_frame){.function = function};
        }
        at += bytes;
    }
    return count;
}

/* At an attach the program's threads walk as soon as the heap is registered. */
static _Atomic(bool) is_prepared;

size_t beam_frames_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    struct stack stack;
    size_t count = 0;
    uintptr_t called_from = capacity == 0 ? 0 : frames[0].function | (uintptr_t)frames[0].line << 32;
    if (!atomic_load_explicit(&is_prepared, memory_order_acquire) || capacity == 0 || !lock_try_longer(&lock))
        return 0;
    uintptr_t scheduler = scheduler_of_thread();
    if (scheduler != 0 && find_stack(scheduler, &stack)) {
        if (beam_code_begin()) {
            uint32_t function = beam_code_function(called_from);
            if (function != 0)
                frames[count++] = (allocsample_frame){.function = function};
            count = walk_stack(&stack, frames, count, capacity);
        }
        beam_code_end();
    }
    lock_release(&lock);
    return count;
}

void beam_frames_prepare(bool is_start)
{
    first_thread = is_start ? thread_pointer() : NULL;
    void *function = dlsym(RTLD_DEFAULT, "erts_get_scheduler_data");
    memcpy(&scheduler_data, &function, sizeof function);
    atomic_store_explicit(&is_prepared, true, memory_order_release);
}

void beam_frames_after_fork_in_child(void)
{
    lock_release(&lock);
}
