// Behaviour: a program that allocates by a collector with druntime's functions, drops blocks, keeps others and collects.
#ifdef LIBRARY
#include "own_druntime.h"
#else
#include <stdint.h>
#include <stdio.h>

void *gc_malloc(size_t size, uint32_t attributes, const void *type);
void gc_keep(const void *block);
void gc_collect(void);

__attribute__((noinline)) char *dropped(void)
{
    char *block = gc_malloc(3000, 0, NULL);
    block[0] = 1;
    return block;
}

__attribute__((noinline)) char *kept(void)
{
    char *block = gc_malloc(2000, 0, NULL);
    gc_keep(block);
    return block;
}

int main(void)
{
    for (int i = 0; i < 4000; i++) {
        dropped();
        kept();
        if (i % 500 == 499)
            gc_collect();
    }
    puts("done");
    return 0;
}
#endif
