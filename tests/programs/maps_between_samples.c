/* Maps and allocates by turns, from stacks that share their lower frames. What is mapped is a page for each frame of `descend`,
 * and one more. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, DEEPEST = 12, ROUNDS = 50 };

__attribute__((noinline)) static void map_at_depth(int depth)
{
    size_t bytes = (size_t)(depth + 1) * PAGE;
    volatile char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at[0] = 1;
}

__attribute__((noinline)) static void allocate(void)
{
    for (int i = 0; i < 4; i++) {
        char *volatile block = malloc(2000);
        block[0] = 1;
        free(block);
    }
}

__attribute__((noinline)) static int descend(int left, int depth)
{
    allocate();
    int sum = left == 1 ? 0 : descend(left - 1, depth);
    if (left == 1) {
        map_at_depth(depth);
        allocate();
        sum = depth;
    }
    /* Not a tail call. */
    allocate();
    return sum + 1;
}

int main(void)
{
    int sum = 0;
    /* The recording begins with a sample, whatever is mapped first. */
    for (int i = 0; i < 100; i++)
        allocate();
    for (int round = 0; round < ROUNDS; round++) {
        for (int depth = 1; depth <= DEEPEST; depth++)
            sum += descend(depth, depth);
    }
    return sum < 0;
}
