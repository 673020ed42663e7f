// Threads that use processors for known times in known functions, by each thread's own clock.
//
// usage: busy_functions [threads [milliseconds [fork | allocate | deep]]]: each thread spends half of its time in `half`, 3/8
// in `more` and 1/8 in `less`, in short turns whose lengths and order are random (with a fixed seed). Prints "name
// nanoseconds" for each function, summed over the threads, and "all" for all that they used. With "fork" all happens in a
// child; "allocate" calls malloc all the while, and with "deep" 200 more frames are on the first thread's stack.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool is_allocating;
static _Atomic(long) spent[3];
static _Atomic(long) all;
static volatile unsigned sink;

static long cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

// Most of the time passes here and not in the clock's system call.
#define BUSY(NAME, PLACE)                                                                                              \
    __attribute__((noinline)) static void NAME(long until)                                                             \
    {                                                                                                                  \
        long begin = cpu_ns(), now = begin;                                                                            \
        while (now < until) {                                                                                          \
            for (unsigned i = 0; i < 20000; i++)                                                                       \
                sink += i;                                                                                             \
            if (is_allocating)                                                                                         \
                for (int i = 0; i < 100; i++)                                                                          \
                    free(malloc(100));                                                                                 \
            now = cpu_ns();                                                                                            \
        }                                                                                                              \
        spent[PLACE] += now - begin;                                                                                   \
    }
BUSY(half, 0)
BUSY(more, 1)
BUSY(less, 2)

static _Atomic(unsigned) seed = 1;

static void *work(void *argument)
{
    long begin = cpu_ns();
    long end = begin + *(long *)argument * 1000000;
    unsigned random = seed++;
    for (long now = begin; now < end; now = cpu_ns()) {
        random = random * 1664525 + 1013904223;
        long until = now + 100000 + (random >> 8) % 1800000;
        unsigned which = random >> 29;
        (which < 4 ? half : which < 7 ? more : less)(until);
    }
    all += cpu_ns() - begin;
    return NULL;
}

static int depth;

__attribute__((noinline)) static void dive(long *ms, int frames)
{
    if (frames == 0)
        work(ms);
    else
        dive(ms, frames - 1);
    __asm__ volatile("" : : : "memory");
}

static int run(int threads, long ms)
{
    pthread_t ids[64];
    for (int i = 1; i < threads; i++)
        pthread_create(&ids[i], NULL, work, &ms);
    dive(&ms, depth);
    for (int i = 1; i < threads; i++)
        pthread_join(ids[i], NULL);
    printf("half %ld\nmore %ld\nless %ld\nall %ld\n", spent[0], spent[1], spent[2], all);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    long ms = argc > 2 ? atol(argv[2]) : 1000;
    is_allocating = argc > 3 && strcmp(argv[3], "allocate") == 0;
    depth = argc > 3 && strcmp(argv[3], "deep") == 0 ? 200 : 0;
    if (argc > 3 && strcmp(argv[3], "fork") == 0) {
        pid_t child = fork();
        if (child == 0)
            return run(threads, ms);
        int status;
        waitpid(child, &status, 0);
        return WEXITSTATUS(status);
    }
    return run(threads, ms);
}
