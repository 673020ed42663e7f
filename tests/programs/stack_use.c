// Behaviour: measures how much of the caller's stack one call of each allocation function takes; prints the worst.
#include "check.h"

#include <sys/mman.h>
#include <ucontext.h>

enum { STACK_BYTES = 256 << 10, CANARY = 0xa5 };

static ucontext_t outside, inside;
static int which;

NOINLINE static void call_it(void) {
    void *block = NULL;
    switch (which) {
    case 0: block = malloc(1000); break;
    case 1: block = calloc(10, 100); break;
    case 2: block = realloc(malloc(10), 1000); break;
    case 3: CHECK(posix_memalign(&block, 64, 1000) == 0); break;
    case 4: block = aligned_alloc(64, 1024); break;
    }
    KEEP(block);
    free(block);
}

int main(void) {
    unsigned char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    size_t worst = 0;
    // The first calls are for what is done once: lazy binding, the thread's cache, the agent's first sample.
    for (int turn = 0; turn < 50; turn++) {
        which = turn % 5;
        memset(stack, CANARY, STACK_BYTES);
        CHECK(getcontext(&inside) == 0);
        inside.uc_stack.ss_sp = stack;
        inside.uc_stack.ss_size = STACK_BYTES;
        inside.uc_link = &outside;
        makecontext(&inside, call_it, 0);
        CHECK(swapcontext(&outside, &inside) == 0);
        size_t untouched = 0;
        while (untouched < STACK_BYTES && stack[untouched] == CANARY) untouched++;
        if (turn >= 5 && STACK_BYTES - untouched > worst) worst = STACK_BYTES - untouched;
    }
    printf("%zu\n", worst);
    return 0;
}
