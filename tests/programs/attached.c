// Behaviour: a program that does what it is told line by line, and watches whether anybody can be noticed.
// Lines (each is answered by one line):
//   allocate FUNCTION COUNT SIZE   first, second or third allocates blocks, which are kept and painted
//   resize                         all kept blocks grow by a third
//   free                           all kept blocks are checked and freed
//   churn COUNT                    allocates and frees, and keeps nothing
//   threads COUNT                  that many threads allocate, check and free for ever
//   compute                        a thread computes with vector registers for ever, and never enters the kernel
//   wait                           threads wait in system calls that a passing signal would end
//   open PATH | use COUNT SIZE     a library is opened, and allocates; blocks are kept
//   slots                          a hash of all slots through which objects call others
//   fork                           a child allocates, and ends
//   well                           whether all threads are content
//   end STATUS
#include "check.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>

enum { MOST = 200000 };
static struct { void *block; size_t size; } kept[MOST];
static unsigned count;

static void keep(void *block, size_t size) {
    CHECK(block != NULL && count < MOST);
    paint(block, size, count);
    kept[count].block = block;
    kept[count++].size = size;
}

NOINLINE void first(unsigned times, size_t size) {
    while (times--) keep(malloc(size), size);
}
NOINLINE void second(unsigned times, size_t size) {
    while (times--) keep(calloc(1, size), size);
}
NOINLINE void third(unsigned times, size_t size) {
    while (times--) {
        void *block = NULL;
        CHECK(posix_memalign(&block, 64, size) == 0);
        keep(block, size);
    }
}

static unsigned long turns;

static void *churner(void *argument) {
    unsigned seed = (unsigned)(size_t)argument;
    for (;;) {
        churn(200, 3000, seed++);
        __atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

typedef double vector __attribute__((vector_size(32)));

// Every register is used, and a wrong bit in one of them stays wrong.
__attribute__((target("avx2"))) NOINLINE void *computer(void *argument) {
    vector v[12];
    for (int i = 0; i < 12; i++) v[i] = (vector){i, i + 1, i + 2, i + 3};
    for (unsigned long long turn = 0;; turn++) {
        vector sum = {0};
        for (int i = 0; i < 12; i++) {
            __asm__ volatile("" : "+x"(v[i]));
            sum += v[i];
        }
        CHECK(sum[0] == 66 && sum[1] == 78 && sum[2] == 90 && sum[3] == 102);
        if (turn % 1024 == 0) __atomic_fetch_add((unsigned long *)argument, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}
static unsigned long computed;

static void *waits_in_epoll(void *argument) {
    (void)argument;
    int descriptor = epoll_create1(0);
    struct epoll_event event;
    int result = epoll_wait(descriptor, &event, 1, -1);
    CHECK(result == -2);
    return NULL;
}
static void *waits_for_a_signal(void *argument) {
    (void)argument;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(sigwaitinfo(&set, NULL) == -2);
    return NULL;
}
static void *sleeps(void *argument) {
    (void)argument;
    struct timespec time = {.tv_sec = 1000};
    CHECK(nanosleep(&time, NULL) == -2);
    return NULL;
}

static void start(void *(*work)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, argument) == 0);
}

// What a GOT holds is in the RELRO part, where all is bound at start, or behind DT_PLTGOT.
static unsigned long long hash_bytes(unsigned long long hash, const unsigned char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return hash;
}
struct slots { unsigned long long hash; };
static int add_object(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    if (strstr(info->dlpi_name, "linux-vdso") || strstr(info->dlpi_name, "/proc/self/fd/./")) return 0;
    struct slots *slots = argument;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        const unsigned char *start = (const unsigned char *)(info->dlpi_addr + segment->p_vaddr);
        // The loader's own notes change with every library.
        if (segment->p_type == PT_GNU_RELRO && !strstr(info->dlpi_name, "/ld-linux"))
            slots->hash = hash_bytes(slots->hash, start, segment->p_memsz);
    }
    return 0;
}

static void *library;

static void obey(char *line) {
    char word[4096] = "";
    unsigned times = 0;
    size_t size = 0;
    int status = 0;
    if (sscanf(line, "allocate %4095s %u %zu", word, &times, &size) == 3) {
        (!strcmp(word, "first") ? first : !strcmp(word, "second") ? second : third)(times, size);
    } else if (!strcmp(line, "resize")) {
        for (unsigned at = 0; at < count; at++) {
            CHECK(is_painted(kept[at].block, kept[at].size, at));
            kept[at].size += kept[at].size / 3;
            kept[at].block = realloc(kept[at].block, kept[at].size);
            paint(kept[at].block, kept[at].size, at);
        }
    } else if (!strcmp(line, "free")) {
        while (count > 0) {
            count--;
            CHECK(is_painted(kept[count].block, kept[count].size, count));
            free(kept[count].block);
        }
    } else if (sscanf(line, "churn %u", &times) == 1) {
        churn(times, 3000, times);
    } else if (sscanf(line, "threads %u", &times) == 1) {
        while (times--) start(churner, (void *)(size_t)times);
    } else if (!strcmp(line, "compute")) {
        start(computer, &computed);
    } else if (!strcmp(line, "wait")) {
        start(waits_in_epoll, NULL);
        start(waits_for_a_signal, NULL);
        start(sleeps, NULL);
    } else if (sscanf(line, "open %4095s", word) == 1) {
        library = dlopen(word, RTLD_NOW | RTLD_LOCAL);
        if (!library) fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
    } else if (sscanf(line, "use %u %zu", &times, &size) == 2) {
        void *(*entry)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_entry");
        CHECK(entry != NULL);
        while (times--) keep(entry(size), size);
    } else if (!strcmp(line, "slots")) {
        struct slots slots = {0xcbf29ce484222325ull};
        dl_iterate_phdr(add_object, &slots);
        printf("%llx\n", slots.hash);
        return;
    } else if (!strcmp(line, "fork")) {
        pid_t child = fork();
        if (child == 0) {
            churn(2000, 3000, 7);
            exit(7);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    } else if (!strcmp(line, "well")) {
        unsigned long churned = turns, before = computed;
        struct timespec time = {.tv_nsec = 1000000};
        while (churned == __atomic_load_n(&turns, __ATOMIC_RELAXED) &&
               before == __atomic_load_n(&computed, __ATOMIC_RELAXED))
            nanosleep(&time, NULL);
    } else if (sscanf(line, "end %d", &status) == 1) {
        exit(status);
    } else {
        CHECK(!"a line that is understood");
    }
    puts("done");
}

int main(void) {
    static char line[8192];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        obey(line);
    }
    return 0;
}
