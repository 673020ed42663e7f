/* Brings a malloc of its own, which takes its memory by sbrk and never gives any back, and holds 64 MiB of it for a second. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

void *malloc(size_t bytes)
{
    size_t taken = (bytes + 31) / 16 * 16;
    char *block = sbrk((intptr_t)taken);
    if (block == (void *)-1)
        return NULL;
    block = (char *)(((uintptr_t)block + 15) / 16 * 16);
    return block;
}

void free(void *block) { (void)block; }

void *calloc(size_t count, size_t bytes)
{
    void *block = malloc(count * bytes);
    return block ? memset(block, 0, count * bytes) : NULL;
}

void *realloc(void *old, size_t bytes)
{
    char *block = malloc(bytes);
    /* What lies behind the old block is ours as well. */
    return block && old ? memmove(block, old, bytes) : block;
}

int main(void)
{
    for (int i = 0; i < 64; i++)
        memset(malloc(1 << 20), 1, 1 << 20);
    sleep(1);
    return 0;
}
