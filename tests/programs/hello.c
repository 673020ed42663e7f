// Behaviour: nothing but a few allocations and a line of output.
#include "check.h"

NOINLINE void *allocate_and_greet(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

int main(void) {
    for (int turn = 0; turn < 1000; turn++) free(allocate_and_greet(4096));
    puts("hello");
    return 0;
}
