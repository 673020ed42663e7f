// Behaviour: a program that allocates by a collector with druntime's functions, drops blocks, keeps others and collects.
#ifdef LIBRARY
#include "own_druntime.h"
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct slice {
    size_t length;
    void *start;
};

bool gc_expandArrayUsed(struct slice array, size_t used, bool is_shared);
size_t gc_reserveArrayCapacity(struct slice array, size_t wanted, bool is_shared);
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

// An array of one page that grows by 1,000 bytes at a time to 4 MB, and is reserved another 4 MB.
__attribute__((noinline)) char *grown(void)
{
    struct slice array = {4000, gc_malloc(4096, 0, NULL)};
    for (; array.length < 4000000; array.length += 1000)
        gc_expandArrayUsed(array, array.length + 1000, false);
    gc_reserveArrayCapacity(array, 8000000, false);
    gc_keep(array.start);
    return array.start;
}

int main(void)
{
    grown();
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
