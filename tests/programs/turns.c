// Behaviour: two functions call each other in turns, 200 deep; each allocates on the way down and on the way back
// (another size: functions that do the same are one to a compiler).
#include "check.h"

static void there(int levels);
static void back(int levels);

NOINLINE static void take(size_t size) {
    void *block = malloc(size);
    CHECK(block != NULL);
    KEEP(block);
    free(block);
    // Or the call would be a jump.
    __asm__ volatile("" ::: "memory");
}

NOINLINE static void there(int levels) {
    take(100);
    if (levels > 0) back(levels - 1);
    take(100);
}

NOINLINE static void back(int levels) {
    take(200);
    if (levels > 0) there(levels - 1);
    take(200);
}

int main(void) {
    there(200);
    puts("done");
    return 0;
}
