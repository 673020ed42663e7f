/* Maps and unmaps a page, as often as it is told, beside a block of 16 MiB. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    char *block = malloc(16 << 20);
    memset(block, 1, 16 << 20);
    for (int i = 0; i < atoi(arguments[1]); i++) {
        char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(at, 4096);
    }
    usleep(300000);
    return block[7] - 1;
}
