// Behaviour: brings a malloc of its own, which reserves its memory at the first call and makes parts of it accessible. Fills
// 24 MiB, and 4 MiB of a mapping of 20 MiB; then a child fills 16 MiB more and 4 MiB of another mapping, and both end a while
// later.
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, RESERVED = 256 * MIB };

static char *pool;
static size_t used, accessible;

__attribute__((noinline)) static void reserve(void)
{
    pool = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

void *malloc(size_t bytes)
{
    if (pool == NULL)
        reserve();
    size_t at = used, taken = (bytes + 31) / 16 * 16;
    if (pool == MAP_FAILED || at + taken > RESERVED)
        return NULL;
    used += taken;
    if (used > accessible) {
        accessible = (used + MIB - 1) / MIB * MIB;
        mprotect(pool, accessible, PROT_READ | PROT_WRITE);
    }
    memcpy(pool + at, &bytes, sizeof bytes);
    return pool + at + 16;
}

void free(void *block) { (void)block; }

void *calloc(size_t count, size_t bytes)
{
    void *block = malloc(count * bytes);
    return block ? memset(block, 0, count * bytes) : NULL;
}

void *realloc(void *old, size_t bytes)
{
    size_t before = 0;
    void *block = malloc(bytes);
    if (old != NULL)
        memcpy(&before, (char *)old - 16, sizeof before);
    return block && old ? memcpy(block, old, before < bytes ? before : bytes) : block;
}

static void map(size_t mib)
{
    memset(mmap(NULL, mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 4 * MIB);
}

static void fill(size_t mib)
{
    char *block = memset(malloc(mib * MIB), 1, mib * MIB);
    /* Otherwise the compiler sees that nobody reads it. */
    __asm__ volatile("" : : "r"(block) : "memory");
}

int main(void)
{
    fill(24);
    map(20);
    pid_t child = fork();
    if (child == 0) {
        fill(16);
        map(5);
        usleep(500000);
        return 0;
    }
    waitpid(child, NULL, 0);
    return child < 0;
}
