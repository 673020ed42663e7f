// Behaviour: a program allocates from .preinit_array, before any constructor ran and before environ is set.
#include "check.h"

enum { BLOCKS = 3000, BYTES = 1000 };

static void *early[BLOCKS];

NOINLINE void *allocated_before_constructors(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void before_everything(int count, char **words, char **environment) {
    (void)count, (void)words, (void)environment;
    for (int at = 0; at < BLOCKS; at++) {
        early[at] = allocated_before_constructors(BYTES);
        paint(early[at], BYTES, (unsigned)at);
    }
    churn(2000, 3000, 1);
}

__attribute__((section(".preinit_array"), used)) static void (*const at_first)(int, char **, char **) = before_everything;

int main(void) {
    for (int at = 0; at < BLOCKS; at++) {
        CHECK(is_painted(early[at], BYTES, (unsigned)at));
        free(early[at]);
    }
    churn(2000, 3000, 2);
    puts("blocks from before the constructors are whole");
    return 0;
}
