// For programs that have the symbols of a runtime and no runtime behind them: what they allocate, and print.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 2000

// Between two blocks the program changes what a bridge takes for its runtime.
static void change(size_t round);

static int allocate(void)
{
    size_t sum = 0;
    for (size_t i = 0; i < ROUNDS; i++) {
        char *block = malloc(5000);
        memset(block, (int)i, 5000);
        sum += (uint8_t)block[i];
        free(block);
        change(i);
    }
    printf("%zu\n", sum);
    return 0;
}

// Where a chain may lead to: its end, back into itself, and out of memory.
static inline uintptr_t a_link(size_t round, const void *itself)
{
    return round % 3 == 0 ? 0 : round % 3 == 1 ? (uintptr_t)itself : (uintptr_t)round * 8;
}
