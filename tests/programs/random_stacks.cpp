// Behaviour: wanders between random stacks and allocates on each: recursion of several shapes (alloca, large frames, tail
// calls), leaves by return, exception and longjmp, coroutines, handlers on a signal stack.
// Usage: random_stacks ALLOCATIONS SEED
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <alloca.h>
#include <ucontext.h>

#include "check.h"

static long left;
static unsigned seed;
static jmp_buf back;
static int handlers;

static unsigned draw(unsigned below) { return next_random(&seed) % below; }

NOINLINE static void allocate_here() {
    void *block = malloc(16 + draw(64));
    KEEP(block);
    free(block);
    left--;
}

static void step(int depth);

NOINLINE static void plain(int depth) {
    step(depth + 1);
    KEEP(&depth);
}

NOINLINE static void with_alloca(int depth) {
    char *bytes = static_cast<char *>(alloca(16 + draw(400)));
    bytes[0] = 1;
    KEEP(bytes);
    step(depth + 1);
    KEEP(bytes);
}

NOINLINE static void with_large_frame(int depth) {
    volatile char bytes[3000];
    bytes[draw(3000)] = 1;
    step(depth + 1);
    KEEP(bytes);
}

// Saves and restores registers around several calls at different places.
NOINLINE static void several_calls(int depth) {
    unsigned a = draw(10), b = draw(10);
    step(depth + 1);
    if (a > 5) step(depth + 2);
    if (b > 5) plain(depth + 2);
    KEEP(a + b);
}

// No frame of its own remains.
NOINLINE static void by_tail_call(int depth) { return step(depth + 1); }

struct Thrown {
    int levels;
};

NOINLINE static void catches(int depth) {
    try {
        step(depth + 1);
    } catch (Thrown &thrown) {
        if (thrown.levels-- > 0 && depth > 2) throw;
    }
}

NOINLINE static void on_a_signal_stack(int depth) {
    if (handlers < 2) raise(SIGUSR1);
    step(depth + 1);
}

static void on_signal(int) {
    handlers++;
    for (unsigned count = draw(4); count > 0; count--) allocate_here();
    plain(58);
    handlers--;
}

static ucontext_t caller, coroutine;

static void run_coroutine() {
    for (;;) {
        for (unsigned count = draw(6); count > 0; count--) allocate_here();
        swapcontext(&coroutine, &caller);
    }
}

NOINLINE static void in_a_coroutine() {
    if (handlers == 0) swapcontext(&caller, &coroutine);
}

static int catchers;

static void step(int depth) {
    for (;;) {
        if (left <= 0 || depth > 60) return;
        unsigned choice = draw(100);
        if (choice < 45) allocate_here();
        else if (choice < 55) return;
        else if (choice < 62) plain(depth);
        else if (choice < 69) with_alloca(depth);
        else if (choice < 75) with_large_frame(depth);
        else if (choice < 81) several_calls(depth);
        else if (choice < 87) return by_tail_call(depth);
        else if (choice < 93 && handlers == 0) {
            catchers++;
            catches(depth);
            catchers--;
        } else if (choice < 94 && catchers > 0 && handlers == 0) {
            catchers = 0;
            throw Thrown{static_cast<int>(draw(5))};
        } else if (choice < 95 && handlers == 0) {
            catchers = 0;
            longjmp(back, 1);
        } else if (choice < 97) on_a_signal_stack(depth);
        else in_a_coroutine();
    }
}

int main(int count, char **words) {
    CHECK(count == 3);
    left = atol(words[1]);
    seed = static_cast<unsigned>(atol(words[2]));
    static char signal_stack[1 << 17], coroutine_stack[1 << 17];
    stack_t alternate = {};
    alternate.ss_sp = signal_stack;
    alternate.ss_size = sizeof signal_stack;
    CHECK(sigaltstack(&alternate, nullptr) == 0);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
    CHECK(getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = coroutine_stack;
    coroutine.uc_stack.ss_size = sizeof coroutine_stack;
    makecontext(&coroutine, run_coroutine, 0);
    while (left > 0) {
        try {
            if (setjmp(back) == 0) step(0);
        } catch (Thrown &) {
        }
        catchers = 0;
    }
    puts("wandered");
    return 0;
}
