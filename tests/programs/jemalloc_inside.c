// Behaviour: holds 64 MiB from mmap, and defines a function that only jemalloc has.
#include <sys/mman.h>
#include <string.h>
#include <unistd.h>
int _rjem_mallctl(void) { return 0; }
int main(void) {
    char *all = mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(all, 1, 64 << 20);
    usleep(1000000);
    return _rjem_mallctl();
}
