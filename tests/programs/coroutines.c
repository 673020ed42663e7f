// Behaviour: coroutines on stacks from mmap allocate, migrate their blocks, and leave; their stacks are unmapped.
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK_BYTES = 64 << 10, COROUTINES = 200, SWITCHES = 20, THREADS = 3 };

struct coroutine {
    ucontext_t here, caller;
    void *block;
    size_t size;
    int is_over;
};

NOINLINE void *allocated_in_a_coroutine(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void run(unsigned low, unsigned high) {
    struct coroutine *self = (struct coroutine *)((size_t)low | (size_t)high << 32);
    for (int turn = 0; turn < SWITCHES; turn++) {
        self->size = 100 + (size_t)turn * 300;
        self->block = allocated_in_a_coroutine(self->size);
        paint(self->block, self->size, 3);
        CHECK(swapcontext(&self->here, &self->caller) == 0);
    }
    self->is_over = 1;
    CHECK(swapcontext(&self->here, &self->caller) == 0);
}

static void *schedule(void *unused) {
    for (int at = 0; at < COROUTINES; at++) {
        struct coroutine *routine = calloc(1, sizeof *routine);
        char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(stack != MAP_FAILED && mprotect(stack, 4096, PROT_NONE) == 0);
        CHECK(getcontext(&routine->here) == 0);
        routine->here.uc_stack.ss_sp = stack;
        routine->here.uc_stack.ss_size = STACK_BYTES;
        makecontext(&routine->here, (void (*)(void))run, 2, (unsigned)(size_t)routine, (unsigned)((size_t)routine >> 32));
        while (!routine->is_over) {
            CHECK(swapcontext(&routine->caller, &routine->here) == 0);
            if (routine->is_over) break;
            CHECK(is_painted(routine->block, routine->size, 3));
            free(routine->block);
        }
        CHECK(munmap(stack, STACK_BYTES) == 0);
        free(routine);
    }
    return unused;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, schedule, NULL) == 0);
    for (int at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    printf("%d coroutines\n", THREADS * COROUTINES);
    return 0;
}
