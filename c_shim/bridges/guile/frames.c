/* The calling thread's Scheme stack, from the stack of Guile's virtual machine, where Guile's public headers have its parts
 * (threads.h, vm.h, frames.h). They are the same in 3.0.8, 3.0.10 and 3.0.11.
 *
 *     scm_thread            of the calling thread
 *       vm.fp, vm.ip        the newest frame, and its position
 *         frame[1]          the position in the frame that has called it
 *         frame[2]          how far that frame is
 *       vm.stack_top        where the oldest frame ends
 *
 * Guile has the thread in a variable that nobody else can reach. All that runs Scheme has it on the C stack, though: it is
 * looked for from the stack's base. It is recognised by the pthread in it, and believed if the limits of its stack agree with
 * each other.
 *
 * Compiled code, by Guile's compiler or in turn by its JIT, stores its position before it calls anything that allocates. */
#define _GNU_SOURCE
#include "guile.h"
#include "kit/thread_pointer.h"
#include "kit/walkers.h"

/* Offsets in scm_thread. */
enum { VM_IP = 8, VM_SP = 16, VM_FP = 24, VM_STACK_SIZE = 48, VM_STACK_BOTTOM = 56, VM_STACK_TOP = 96, THREAD_PTHREAD = 416 };
/* Words of a frame. */
enum { FRAME_POSITION = 1, FRAME_LINK = 2, FRAME_WORDS = 3 };
#define LARGEST_STACK (UINT64_C(1) << 32)
#define MOST_FRAMES 262144
/* Words of the C stack that are looked at, and addresses among them that the kernel is asked about. */
#define MOST_WORDS 8192
#define MOST_PROBES 96
/* Walks on a thread that has none, after which only one in so many looks for it. */
#define FEW 32
#define SELDOM 64
/* Walks that find a thread of Guile's which is not what it should be. */
#define TRIES 40
/* Threads that walk at the same time. */
#define WALKERS 8

struct machine {
    uintptr_t ip, sp, fp, stack_bytes, bottom, top;
};

static struct walkers walkers;
static const struct guile *_Atomic current;
static _Atomic(unsigned) tries;
static _Atomic(bool) is_believed;
static _Thread_local uintptr_t own_thread __attribute__((tls_model("initial-exec")));
static _Thread_local unsigned fruitless __attribute__((tls_model("initial-exec")));

/* ---- threads ---- */

static bool read_machine(struct foreign_reader *reader, uintptr_t thread, struct machine *machine)
{
    *machine = (struct machine){
        .ip = foreign_word(reader, thread + VM_IP),
        .sp = foreign_word(reader, thread + VM_SP),
        .fp = foreign_word(reader, thread + VM_FP),
        .stack_bytes = foreign_word(reader, thread + VM_STACK_SIZE) * sizeof(uintptr_t),
        .bottom = foreign_word(reader, thread + VM_STACK_BOTTOM),
        .top = foreign_word(reader, thread + VM_STACK_TOP),
    };
    return machine->bottom != 0 && machine->stack_bytes < LARGEST_STACK && machine->top - machine->bottom == machine->stack_bytes &&
           machine->bottom <= machine->sp && machine->sp <= machine->fp && machine->fp <= machine->top &&
           (machine->fp | machine->sp) % sizeof(uintptr_t) == 0;
}

static bool is_of_this_thread(uintptr_t address)
{
    uintptr_t pthread;
    return foreign_copy(address + THREAD_PTHREAD, &pthread, sizeof pthread) && pthread == (uintptr_t)thread_pointer();
}

/* Looks for this thread's scm_thread on its C stack. */
static bool find_thread(struct foreign_reader *reader, struct machine *machine)
{
    const struct foreign_range *stack = &reader->owned[0];
    uintptr_t before = 0;
    size_t words = (stack->end - stack->start) / sizeof(uintptr_t), probes = 0;
    bool is_other = false;
    if (fruitless++ > FEW && fruitless % SELDOM != 0)
        return false;
    for (size_t i = 1; i <= words && i <= MOST_WORDS && probes < MOST_PROBES; i++) {
        uintptr_t word = ((const uintptr_t *)stack->end)[-(ptrdiff_t)i];
        if (word == before || word % 16 != 0 || word < 65536 || word >> 47 != 0 || foreign_is_within(stack, word, 1))
            continue;
        before = word;
        probes++;
        if (!is_of_this_thread(word))
            continue;
        if (read_machine(reader, word, machine)) {
            own_thread = word;
            fruitless = 0;
            return true;
        }
        is_other = true;
    }
    if (is_other && !atomic_load_explicit(&is_believed, memory_order_relaxed))
        atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed);
    return false;
}

static bool has_thread(struct foreign_reader *reader, struct machine *machine)
{
    uintptr_t thread = own_thread;
    if (thread != 0 && foreign_word(reader, thread + THREAD_PTHREAD) == (uintptr_t)thread_pointer() &&
        read_machine(reader, thread, machine))
        return true;
    own_thread = 0;
    return find_thread(reader, machine);
}

/* ---- frames ---- */

static size_t read_frames(const struct guile *guile, struct foreign_reader *reader, const struct machine *machine,
                          allocsample_frame *frames, size_t capacity)
{
    size_t count = 0;
    uintptr_t fp = machine->fp, ip = machine->ip;
    for (size_t i = 0; i < MOST_FRAMES && count < capacity && fp + FRAME_WORDS * sizeof(uintptr_t) <= machine->top; i++) {
        allocsample_frame frame = guile_code_frame(guile, ip);
        if (frame.function != 0)
            frames[count++] = frame;
        uintptr_t link = foreign_word(reader, fp + FRAME_LINK * sizeof(uintptr_t));
        /* The position is behind the call. */
        ip = foreign_word(reader, fp + FRAME_POSITION * sizeof(uintptr_t)) - 1;
        if (link == 0 || link > (machine->top - fp) / sizeof(uintptr_t))
            break;
        fp += link * sizeof(uintptr_t);
    }
    return count;
}

static void refuse_after_tries(const struct guile *guile)
{
    static _Atomic(bool) is_said;
    if (atomic_load_explicit(&tries, memory_order_relaxed) < TRIES || atomic_exchange(&is_said, true))
        return;
    uint64_t now = guile->hooks->now_ns();
    guile->hooks->marker(guile->heap, "note: procedures of Guile are not shown: its threads are not what known versions have", now, now);
}

size_t guile_frames_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    const struct guile *guile = atomic_load_explicit(&current, memory_order_acquire);
    if (guile == NULL || atomic_load_explicit(&tries, memory_order_relaxed) >= TRIES)
        return 0;
    struct foreign_reader reader;
    struct walker *walker = walkers_begin(&walkers, &reader);
    if (walker == NULL)
        return 0;
    size_t count = 0;
    struct machine machine;
    if (has_thread(&reader, &machine))
        count = read_frames(guile, &reader, &machine, frames, capacity);
    walkers_end(walker);
    if (count > 0)
        atomic_store_explicit(&is_believed, true, memory_order_relaxed);
    else
        refuse_after_tries(guile);
    return count;
}

/* ---- start ---- */

bool guile_frames_make(void)
{
    return walkers_make(&walkers, WALKERS, sizeof(struct walker)) && guile_code_make();
}

void guile_frames_are_of(const struct guile *guile)
{
    atomic_store_explicit(&current, guile, memory_order_release);
}

void guile_frames_after_fork_in_child(void)
{
    walkers_after_fork_in_child(&walkers);
    guile_code_after_fork_in_child();
}
