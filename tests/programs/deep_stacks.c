// Behaviour: allocations below 100,000 frames, beside big allocas, and after longjmps out of deep stacks.
#include "check.h"

#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>

enum { DEPTH = 100000, STACK_BYTES = 256 << 20 };

static jmp_buf surface;

NOINLINE void *allocated_at_the_bottom(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE static int dive(int depth, int is_jumping) {
    char pad[32];
    KEEP(pad);
    if (depth == 0) {
        for (int turn = 0; turn < 1000; turn++) free(allocated_at_the_bottom(4096));
        if (is_jumping) longjmp(surface, 1);
        return 1;
    }
    int below = dive(depth - 1, is_jumping);
    KEEP(pad);
    return below + 1;
}

NOINLINE static int with_alloca(int depth) {
    size_t size = 10 + (size_t)depth * 977 % 60000;
    char *pad = alloca(size);
    memset(pad, 1, size);
    void *block = allocated_at_the_bottom(size);
    KEEP(block);
    int below = depth ? with_alloca(depth - 1) : 0;
    CHECK(pad[size - 1] == 1);
    free(block);
    return below + 1;
}

static void *dives(void *unused) {
    CHECK(dive(DEPTH, 0) == DEPTH + 1);
    for (int turn = 0; turn < 20; turn++) {
        if (setjmp(surface) == 0) dive(1 + turn * 50, 1);
        free(allocated_at_the_bottom(5000));
    }
    CHECK(with_alloca(1000) == 1001);
    return unused;
}

int main(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0);
    CHECK(pthread_create(&thread, &attributes, dives, NULL) == 0 && pthread_join(thread, NULL) == 0);
    puts("surfaced");
    return 0;
}
