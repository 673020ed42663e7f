/* Maps a mebibyte in small parts, and allocates nothing. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
    enum { PART = 16 << 10 };
    char *at = NULL;
    for (size_t mapped = 0; mapped < 1 << 20; mapped += PART) {
        at = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        at[5] = 1;
    }
    usleep(1000);
    return at[5] - 1;
}
