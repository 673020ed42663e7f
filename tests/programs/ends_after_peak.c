/* Waits for as many milliseconds as its first argument says, takes 64 MiB by mmap in steps for as many as the second says,
 * and ends 200 ms later. Prints how much anonymous memory the kernel counts then. */
#include "anonymous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STEPS = 64, STEP_BYTES = 1 << 20 };

int main(int count, char **arguments)
{
    int wait_ms = count > 1 ? atoi(arguments[1]) : 0;
    int growth_ms = count > 2 ? atoi(arguments[2]) : 0;
    void *block = malloc(8 << 20);
    memset(block, 1, 8 << 20);
    usleep(wait_ms * 1000);
    char *memory = mmap(NULL, (size_t)STEPS * STEP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < STEPS; i++) {
        memset(memory + (size_t)i * STEP_BYTES, 1, STEP_BYTES);
        usleep(growth_ms * 1000 / STEPS);
    }
    printf("%ld\n", anonymous_kib());
    fflush(stdout);
    usleep(200 * 1000);
    return 0;
}
