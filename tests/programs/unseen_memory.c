/* Holds 64 MiB, by mmap ("mmap") or by malloc ("malloc"), and prints how much anonymous memory the kernel counts then. With a
 * second argument it waits for the end of its input, else for a second. */
#include "anonymous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 1024, BLOCK_BYTES = 64 << 10 };

int main(int count, char **arguments)
{
    static void *blocks[BLOCKS];
    int is_malloc = count > 1 && strcmp(arguments[1], "malloc") == 0;
    char *memory = is_malloc ? NULL
                             : mmap(NULL, (size_t)BLOCKS * BLOCK_BYTES, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = is_malloc ? malloc(BLOCK_BYTES) : memory + (size_t)i * BLOCK_BYTES;
        memset(blocks[i], 1, BLOCK_BYTES);
    }
    printf("%ld\n", anonymous_kib());
    fflush(stdout);
    /* For somebody who looks every few milliseconds. */
    if (count > 2)
        getchar();
    else
        sleep(1);
    return 0;
}
