// Behaviour: a program that does what it is told line by line, and watches whether anybody can be noticed.
// Lines (each is answered by one line):
//   allocate FUNCTION COUNT SIZE   first, second or third allocates blocks, which are kept and painted
//   resize                         all kept blocks grow by a third
//   free                           all kept blocks are checked and freed
//   bypass COUNT SIZE              allocates and frees, by a pointer to free that was taken before any attach
//   churn COUNT                    allocates and frees, and keeps nothing
//   threads COUNT                  that many threads allocate, check and free for ever
//   compute                        a thread computes with vector registers for ever, and never enters the kernel
//   wait HOW                       says `waiting`, and waits in a system call that a passing signal would end:
//                                  epoll until the next line, sleep, or signal until SIGUSR2 comes; or does not wait
//                                  but, until SIGUSR2 is caught, computes as above or churns
//   pointers COUNT SIZE            through pointers to functions that were set when the program was linked
//   seccomp                        from now on a filter of system calls is in force, which permits all
//   forbid WAY                     from now on a filter kills for all calls but those that this program makes; see filter.h
//   chroot PATH | chroot_by_number PATH   is the root directory from now on
//   open PATH | use COUNT SIZE     a library is opened, and allocates; blocks are kept
//   try PATH                       as open; the answer says if it cannot be
//   hook                           from now on this program's own calls of malloc pass a hook of its own
//   hooked                         how many did
//   slots                          a hash of all slots through which objects call others
//   fork                           a child allocates, and ends
//   well                           whether all threads are content
//   end STATUS
#include "check.h"
#include "filter.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

static void (*free_of_before)(void *);

NOINLINE void bypassing(unsigned times, size_t size) {
    CHECK(free_of_before != NULL);
    while (times--) {
        void *block = malloc(size);
        CHECK(block != NULL);
        paint(block, size, times);
        CHECK(is_painted(block, size, times));
        free_of_before(block);
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

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2")))
#define REGISTER "+x"
typedef double vector __attribute__((vector_size(32)));
static unsigned long wrong_in_long_vectors(unsigned long turn) {
    (void)turn;
    return 0;
}
#else
#include <sys/auxv.h>
#define WIDE
#define REGISTER "+w"
typedef float vector __attribute__((vector_size(16)));
// Where the processor has them (SVE), vectors hold numbers for a while, and are compared with the same numbers. How many differ.
static unsigned long wrong_in_long_vectors(unsigned long turn) {
    unsigned long wrong = 0;
    if (!(getauxval(AT_HWCAP) & HWCAP_SVE)) return 0;
    __asm__ volatile(".arch_extension sve\n\t"
                     "ptrue p0.d\n\t"
                     "index z16.d, %1, #3\n\t"
                     "mov x9, #2000\n"
                     "1:\n\t"
                     "subs x9, x9, #1\n\t"
                     "b.ne 1b\n\t"
                     "index z17.d, %1, #3\n\t"
                     "cmpne p1.d, p0/z, z16.d, z17.d\n\t"
                     "cntp %0, p0, p1.d"
                     : "=r"(wrong)
                     : "r"(turn)
                     : "x9", "v16", "v17", "cc");
    return wrong;
}
#endif

static volatile sig_atomic_t is_enough;
static void enough(int signal) {
    (void)signal;
    is_enough = 1;
}

// Every register is used, and a wrong bit in one of them stays wrong.
WIDE NOINLINE void *computer(void *argument) {
    vector v[12];
    for (int i = 0; i < 12; i++) v[i] = (vector){i, i + 1, i + 2, i + 3};
    for (unsigned long long turn = 0; !is_enough; turn++) {
        vector sum = {0};
        for (int i = 0; i < 12; i++) {
            __asm__ volatile("" : REGISTER(v[i]));
            sum += v[i];
        }
        CHECK(sum[0] == 66 && sum[1] == 78 && sum[2] == 90 && sum[3] == 102);
        if (turn % 64 == 0) CHECK(wrong_in_long_vectors(turn) == 0);
        if (turn % 1024 == 0) __atomic_fetch_add((unsigned long *)argument, 1, __ATOMIC_RELAXED);
    }
    is_enough = 0;
    return NULL;
}
static unsigned long computed;

static void wait_as_told(const char *how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    if (!strcmp(how, "compute") || !strcmp(how, "churn")) {
        struct sigaction action = {.sa_handler = enough};
        CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
        CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
        puts("waiting");
        if (!strcmp(how, "compute")) computer(&computed);
        for (unsigned seed = 1; !strcmp(how, "churn") && !is_enough; seed++) churn(200, 3000, seed);
        is_enough = 0;
        CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
        return;
    }
    puts("waiting");
    if (!strcmp(how, "epoll")) {
        int descriptor = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = {.events = EPOLLIN};
        CHECK(epoll_ctl(descriptor, EPOLL_CTL_ADD, 0, &event) == 0);
        CHECK(epoll_wait(descriptor, &event, 1, -1) == 1);
        CHECK(close(descriptor) == 0);
    } else if (!strcmp(how, "sleep")) {
        struct timespec time = {.tv_sec = 2};
        CHECK(nanosleep(&time, NULL) == 0);
    } else {
        CHECK(sigwaitinfo(&set, NULL) == SIGUSR2);
    }
}

static void filter_system_calls(void) {
    struct sock_filter rule = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &rule};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static void forbid_system_calls(const char *way) {
    struct sock_filter rules[] = {
        LOAD_NUMBER,
        ALLOW(read),
        ALLOW(write),
        ALLOW(exit_group),
        ALLOW(brk),
        ALLOW(mmap),
        ALLOW(munmap),
        ALLOW(mremap),
        KILL_OTHERS,
    };
    install_filter(way, rules, sizeof rules / sizeof rules[0]);
}

// In a program that is linked to a fixed address these are the addresses of its own stubs.
static void *(*volatile by_malloc)(size_t) = malloc;
static void (*volatile by_free)(void *) = free;
static pid_t (*volatile by_fork)(void) = fork;
static void *(*volatile by_dlsym)(void *, const char *) = dlsym;

NOINLINE void *pointed(size_t size) {
    void *block = by_malloc(size);
    KEEP(block);
    return block;
}

static void use_pointers(unsigned times, size_t size) {
    while (times--) {
        by_free(pointed(size));
        keep(pointed(size), size);
    }
    CHECK(by_dlsym(RTLD_NEXT, "malloc") != NULL && by_dlsym(RTLD_DEFAULT, "no_such_function") == NULL);
    int status = 0;
    pid_t child = by_fork();
    if (child == 0) _exit(9);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
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
    // The agent, and what came with it: libraries that are empty since glibc 2.34, and part of every program before.
    if (strstr(info->dlpi_name, "/././") || strstr(info->dlpi_name, "/libpthread.so") || strstr(info->dlpi_name, "/libdl.so")) return 0;
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

// A hook of this program's own, in its own slot of malloc, as plugins and tracers put them there.
static unsigned long hooked;
static void *(*beyond_the_hook)(size_t);
static void *hook(size_t size) {
    hooked++;
    return beyond_the_hook(size);
}

// A static program has none.
#pragma weak _DYNAMIC

static const void *dynamic_value(ElfW(Sxword) tag) {
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == tag) return (const void *)entry->d_un.d_val;
    return NULL;
}

// The program is linked to a fixed address: what its dynamic section says are addresses as they are.
static void put_hook(void) {
    const ElfW(Sym) *symbols = dynamic_value(DT_SYMTAB);
    const char *names = dynamic_value(DT_STRTAB);
    const ElfW(Rela) *relocations = dynamic_value(DT_JMPREL);
    size_t bytes = (size_t)dynamic_value(DT_PLTRELSZ);
    unsigned slots = 0;
    beyond_the_hook = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    CHECK(beyond_the_hook != NULL);
    for (size_t i = 0; i < bytes / sizeof *relocations; i++) {
        if (strcmp(names + symbols[ELF64_R_SYM(relocations[i].r_info)].st_name, "malloc") != 0) continue;
        *(void **)relocations[i].r_offset = (void *)hook;
        slots++;
    }
    CHECK(slots == 1);
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
    } else if (sscanf(line, "bypass %u %zu", &times, &size) == 2) {
        bypassing(times, size);
    } else if (sscanf(line, "churn %u", &times) == 1) {
        churn(times, 3000, times);
    } else if (sscanf(line, "threads %u", &times) == 1) {
        while (times--) start(churner, (void *)(size_t)times);
    } else if (!strcmp(line, "compute")) {
        start(computer, &computed);
    } else if (sscanf(line, "wait %4095s", word) == 1) {
        wait_as_told(word);
    } else if (sscanf(line, "pointers %u %zu", &times, &size) == 2) {
        use_pointers(times, size);
    } else if (!strcmp(line, "seccomp")) {
        filter_system_calls();
    } else if (sscanf(line, "forbid %4095s", word) == 1) {
        forbid_system_calls(word);
    } else if (sscanf(line, "chroot_by_number %4095s", word) == 1) {
        CHECK(syscall(SYS_chroot, word) == 0 && chdir("/") == 0);
    } else if (sscanf(line, "chroot %4095s", word) == 1) {
        CHECK(chroot(word) == 0 && chdir("/") == 0);
    } else if (sscanf(line, "open %4095s", word) == 1) {
        library = dlopen(word, RTLD_NOW | RTLD_LOCAL);
        if (!library) fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
    } else if (sscanf(line, "try %4095s", word) == 1) {
        if (!dlopen(word, RTLD_NOW | RTLD_LOCAL)) {
            puts(dlerror());
            return;
        }
    } else if (sscanf(line, "use %u %zu", &times, &size) == 2) {
        void *(*entry)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_entry");
        CHECK(entry != NULL);
        while (times--) keep(entry(size), size);
    } else if (!strcmp(line, "hook")) {
        put_hook();
    } else if (!strcmp(line, "hooked")) {
        printf("%lu\n", hooked);
        return;
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
    } else if (!strcmp(line, "worker")) {
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
        printf("%d\n", (int)child);
        return;
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
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    // A line is read when it is there, and not earlier: epoll must see it.
    setvbuf(stdin, NULL, _IONBF, 0);
    // None in a program that is linked statically.
    free_of_before = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        obey(line);
    }
    return 0;
}
