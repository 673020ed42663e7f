/* Grows in a way that malloc knows nothing of, beside mappings that come and go. Ends after SECONDS.
 *
 * usage: leaks_past_malloc mmap|commits|threads|file|fragments|jemalloc|nothing SECONDS SEED DIRECTORY
 *
 * With -DJEMALLOC it is linked with a jemalloc whose names begin with `app_`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t seed;

static uint64_t next(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static char *map(size_t bytes)
{
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        abort();
    memset(at, 1, bytes);
    return at;
}

__attribute__((noinline)) static void leak_a_mapping(void)
{
    volatile char *leaked = map((1 + next() % 4) << 16);
    leaked[0] = 2;
}

static char *reserve(void)
{
    char *at = mmap(NULL, (size_t)4 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

static void commit(char *at, size_t bytes)
{
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0)
        abort();
    memset(at, 1, bytes);
}

__attribute__((noinline)) static void leak_a_commit(void)
{
    static char *reserved;
    static size_t used;
    if (reserved == NULL)
        reserved = reserve();
    size_t bytes = (1 + next() % 4) << 16;
    commit(reserved + used, bytes);
    used += bytes;
}

__attribute__((noinline)) static void commit_for_a_while(void)
{
    static char *reserved;
    static size_t committed[16];
    if (reserved == NULL)
        reserved = reserve();
    unsigned place = next() % 16;
    char *at = reserved + ((size_t)place << 20);
    if (committed[place] != 0) {
        madvise(at, committed[place], MADV_DONTNEED);
        mprotect(at, committed[place], PROT_NONE);
    }
    committed[place] = (1 + next() % 4) << 16;
    commit(at, committed[place]);
}

__attribute__((noinline)) static void use_a_mapping_for_a_while(void)
{
    static struct {
        char *at;
        size_t bytes;
    } used[16];
    unsigned place = next() % 16;
    if (used[place].at != NULL)
        munmap(used[place].at, used[place].bytes);
    used[place].bytes = (1 + next() % 4) << 16;
    used[place].at = map(used[place].bytes);
}

static void *end_at_once(void *argument)
{
    volatile char touched[40 << 10];
    for (size_t i = 0; i < sizeof touched; i += 4096)
        touched[i] = 1;
    return argument;
}

__attribute__((noinline)) static void forget_a_thread(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    if (pthread_create(&thread, &attributes, end_at_once, NULL) != 0)
        abort();
    pthread_attr_destroy(&attributes);
}

__attribute__((noinline)) static void join_a_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_at_once, NULL) != 0)
        abort();
    pthread_join(thread, NULL);
}

/* Pages of a file that are read: the kernel takes them away when it needs memory. */
__attribute__((noinline)) static void read_more_of_a_file(const char *directory)
{
    enum { FILE_BYTES = 256 << 20 };
    static char *file;
    static size_t at;
    if (file == NULL) {
        char path[4096];
        snprintf(path, sizeof path, "%s/file", directory);
        int fd = open(path, O_RDWR | O_CREAT, 0600);
        if (fd < 0 || ftruncate(fd, FILE_BYTES) != 0)
            abort();
        file = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    }
    for (size_t end = at + (128 << 10); at < end && at < FILE_BYTES; at += 4096)
        seed += (unsigned char)file[at];
}

/* Of large blocks small ones stay, and the next large ones do not fit into the holes between them. */
__attribute__((noinline)) static void leave_holes(void)
{
    enum { BLOCKS = 20, SMALL = 24, LARGE = 4000, LARGER = 64 };
    static size_t bytes = LARGE;
    char *large[BLOCKS];
    bytes += LARGER;
    for (int i = 0; i < BLOCKS; i++) {
        large[i] = malloc(bytes);
        memset(large[i], 1, bytes);
    }
    for (int i = 0; i < BLOCKS; i++) {
        volatile char *stays = realloc(large[i], SMALL);
        stays[0] = 2;
    }
}

#ifdef JEMALLOC
void *app_malloc(size_t bytes);
void app_free(void *block);

static char *allocate(void)
{
    size_t bytes = 500 + next() % 4000;
    char *block = app_malloc(bytes);
    memset(block, 1, bytes);
    return block;
}

__attribute__((noinline)) static void leak_blocks(void)
{
    for (int i = 0; i < 20; i++) {
        volatile char *leaked = allocate();
        leaked[0] = 2;
    }
}

__attribute__((noinline)) static void use_blocks_for_a_while(void)
{
    static char *used[256];
    for (int i = 0; i < 40; i++) {
        unsigned place = next() % 256;
        app_free(used[place]);
        used[place] = allocate();
    }
}
#endif

int main(int count, char **arguments)
{
    if (count < 5)
        return 2;
    const char *how = arguments[1];
    double end = now() + atof(arguments[2]);
    seed = strtoull(arguments[3], NULL, 10) * 2654435761u + 1;
    for (int i = 0; i < 50; i++)
        next();
    char *block = malloc(2 << 20);
    memset(block, 1, 2 << 20);
    while (now() < end) {
        use_a_mapping_for_a_while();
        commit_for_a_while();
        join_a_thread();
        if (strcmp(how, "mmap") == 0)
            leak_a_mapping();
        else if (strcmp(how, "commits") == 0)
            leak_a_commit();
        else if (strcmp(how, "threads") == 0)
            forget_a_thread();
        else if (strcmp(how, "file") == 0)
            read_more_of_a_file(arguments[4]);
        else if (strcmp(how, "fragments") == 0)
            leave_holes();
#ifdef JEMALLOC
        use_blocks_for_a_while();
        if (strcmp(how, "jemalloc") == 0)
            leak_blocks();
#endif
        usleep(5000 + next() % 15000);
    }
    return block[7] - 1;
}
