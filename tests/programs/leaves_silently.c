// Behaviour: holds 8 MiB from malloc and 64 MiB from mmap, and ends by a system call of its own, as Go's programs do.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    memset(malloc(8 << 20), 1, 8 << 20);
    char *all = mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(all, 1, 64 << 20);
    usleep(1000000);
    syscall(SYS_exit_group, 0);
}
