// Behaviour: signal handlers interrupt an allocation at chosen instructions, and do there what POSIX lets them, and worse.
//
// Usage: reentry step COUNT SEED MEAN ACTIONS ENDING [COMMAND]
//   Starts itself with LD_PRELOAD=$REENTRY_PRELOAD and follows it by ptrace through allocations and frees. At random
//   instructions it has a signal handler run one of ACTIONS (letters, below), COUNT times in all. The process then ends by
//   ENDING: return, _exit or exec, the last two in a handler.
//   Every fourth of these instructions is found by single steps, MEAN of them on average. They also tell which instructions
//   there are. The others are drawn from those, and reached by a breakpoint of the processor where it has any.
//   MEAN 0: the first of ACTIONS at once, and then, one after the other, the others at every turn of a loop that touches
//   the pages of a large frame. There the call-frame information gives the frame's address by %r11, which no unwinder of
//   ours follows. (x86-64 only.) From then on the last of ACTIONS, at every third instruction or so.
//   MEAN exchanges: right after compare-and-exchange instructions of the agent, drawn from all in its code. (x86-64 only.)
//   COMMAND is run before the first step, with the pid in place of "PID".
//   $REENTRY_FILE_BYTES limits its files, and so its rings, of which every child makes one.
// The allocator under it must be one that handlers may call: bump_allocator.c.
#include "check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { SHARED = 200, AFTERWARDS = 1000 };
// A file that may be executed, and is nothing that the kernel can run.
#define NO_PROGRAM "/proc/self/fd/200"

// Where the traced process is, as it says itself. It is followed by single steps in the window.
enum place { STARTING, BEFORE_WINDOW, IN_WINDOW, AFTER_WINDOW };

struct shared {
    volatile enum place place;
    volatile bool may_begin, is_last;
    volatile char action;
    volatile unsigned long failures, returned, left;
};
static struct shared *shared;

#ifdef __x86_64__
#define BREAKPOINT() __asm__ volatile("int3" ::: "memory")
#else
#define BREAKPOINT() raise(SIGTRAP)
#endif

// ---- the traced process ----

static sigjmp_buf out;
static volatile bool is_child;
static void *kept;

NOINLINE static void *allocated_in_a_window(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE static void *allocated_afterwards(void) {
    // Nothing else is of these sizes.
    void *block = malloc(1001);
    KEEP(block);
    return block;
}

NOINLINE static void *allocated_after_a_fork(void) {
    void *block = malloc(1201);
    KEEP(block);
    return block;
}

static void *allocate(void *unused) {
    for (int turn = 0; turn < 4; turn++) {
        void *block = realloc(malloc(40 + (size_t)turn), 80);
        KEEP(block);
        free(block);
    }
    return unused;
}

static void expect_success(pid_t child) {
    int status;
    pid_t found = child < 0 ? -1 : waitpid(child, &status, 0);
    if (found == child && child > 0 && status == 0) return;
    char text[128];
    int length = snprintf(text, sizeof text, "action %c: child %d has status %x\n", shared->action, child,
                          found > 0 ? (unsigned)status : 0xffff);
    CHECK(write(2, text, (size_t)length) == length);
    shared->failures++;
}

static pid_t fork_in_handler(void) {
    pid_t child = fork();
    if (child == 0) {
        is_child = true;
        // A child that hangs is one that failed.
        alarm(60);
    }
    return child;
}

static void do_in_handler(char action) {
    switch (action) {
    case 'a': // allocates, and frees a block that is sampled
        allocate(NULL);
        free(kept);
        kept = malloc(24);
        break;
    case 'f': { // forks, and the child returns into what was interrupted
        pid_t child = fork_in_handler();
        if (child != 0) expect_success(child);
        break;
    }
    case 'F': { // the same, and both allocate before
        pid_t child = fork_in_handler();
        allocate(NULL);
        if (child != 0) expect_success(child);
        break;
    }
    case 'e': { // forks, and the child leaves at once
        pid_t child = fork_in_handler();
        if (child == 0) _exit(0);
        expect_success(child);
        break;
    }
    case 'x': { // forks, and the child becomes another program
        pid_t child = fork_in_handler();
        if (child == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        expect_success(child);
        break;
    }
    case 'j': // leaves by a jump
        siglongjmp(out, 1);
    case 'b': // aborts, and the handler of that leaves by a jump
        abort();
    case 'n': // an exec of nothing
        CHECK(execlp("no-such-program", "none", (char *)NULL) == -1 && errno == ENOENT);
        CHECK(execl("/", "none", (char *)NULL) == -1 && errno == EACCES);
        break;
    case 'N': // an exec that only the kernel knows to fail
        CHECK(execl(NO_PROGRAM, "none", (char *)NULL) == -1 && errno == ENOEXEC);
        break;
    case 'd': { // loads and unloads code
        void *library = dlopen("libutil.so.1", RTLD_NOW);
        if (library == NULL) library = dlopen("libm.so.6", RTLD_NOW);
        CHECK(library != NULL && dlclose(library) == 0);
        break;
    }
    case 't': { // starts a thread
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, allocate, NULL) == 0 && pthread_join(thread, NULL) == 0);
        break;
    }
    case '_':
        _exit(0);
    case 'E':
        execl("/bin/true", "true", (char *)NULL);
        break;
    default:
        CHECK(!"a known action");
    }
}

static void on_signal(int number) {
    (void)number;
    int saved_errno = errno;
    do_in_handler(shared->action);
    errno = saved_errno;
    if (is_child) return;
    shared->returned++;
    shared->place = IN_WINDOW;
    BREAKPOINT();
}

static void on_abort(int number) {
    (void)number;
    siglongjmp(out, 1);
}

NOINLINE static void window(unsigned turn) {
    shared->place = IN_WINDOW;
    BREAKPOINT();
    void *block = allocated_in_a_window(30 + turn % 100);
    block = realloc(block, 200);
    KEEP(block);
    void *other = calloc(1, 50);
    free(block);
    KEEP(other);
    free(other);
    if (!is_child) shared->place = AFTER_WINDOW;
}

static void handle(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(number, &action, NULL) == 0);
}

static int traced(void) {
    handle(SIGUSR1, on_signal);
    handle(SIGABRT, on_abort);
    // What libc does at the first call of each it has done.
    kept = malloc(24);
    shared->action = 'e';
    for (const char *action = "aedtx"; *action; action++) do_in_handler(*action);
    shared->place = BEFORE_WINDOW;
    while (!shared->may_begin) usleep(1000);
    volatile unsigned turn = 0;
    if (sigsetjmp(out, 1) != 0) shared->left++;
    while (!shared->is_last) {
        window(turn++);
        if (is_child) {
            // As the parent goes on.
            for (int i = 0; i < 20; i++) free(allocated_in_a_window(100));
            _exit(0);
        }
    }
    // A jump out of the agent is noticed after so much at the latest; one out of the first two instructions of malloc, where a
    // sampled block ends, or at a fork. (A handler may have put a block that is not sampled in the place of this one.)
    free(kept);
    for (int i = 0; i < 100; i++) free(malloc(2000));
    for (int i = 0; i < AFTERWARDS; i++) free(allocated_afterwards());
    do_in_handler('e');
    for (int i = 0; i < AFTERWARDS; i++) free(allocated_after_a_fork());
    return 0;
}

// ---- the one that follows it ----

static pid_t target;
static unsigned seed;

static int resumed(int request, int signal_number) {
    int status;
    CHECK(ptrace(request, target, NULL, (void *)(intptr_t)signal_number) == 0);
    CHECK(waitpid(target, &status, __WALL) == target);
    return status;
}

// Until it stops at a breakpoint; what signals it gets otherwise are its own. False: it has ended.
static bool goes_to_breakpoint(int request, int signal_number, int *status) {
    *status = resumed(request, signal_number);
    while (WIFSTOPPED(*status) && WSTOPSIG(*status) != SIGTRAP) *status = resumed(PTRACE_CONT, WSTOPSIG(*status));
    return WIFSTOPPED(*status);
}

static unsigned gap(unsigned mean) { return 1 + next_random(&seed) % (2 * mean); }

// Instructions of windows, in a hash table by address.
enum { PLACES = 1 << 15 };
static uint64_t places[PLACES];
static unsigned found_places;

static void note_place(uint64_t pc) {
    if (found_places >= PLACES / 2) return;
    unsigned at = (unsigned)(pc * 0x9E3779B97F4A7C15u >> 40) % PLACES;
    while (places[at] && places[at] != pc) at = (at + 1) % PLACES;
    if (places[at]) return;
    places[at] = pc;
    found_places++;
}

#ifdef __x86_64__
static uint64_t program_counter(void) {
    return (uint64_t)ptrace(PTRACE_PEEKUSER, target, offsetof(struct user, regs.rip), NULL);
}

// cmp %r11, %rsp; jne
static bool is_at_probe(void) {
    errno = 0;
    long code = ptrace(PTRACE_PEEKTEXT, target, program_counter(), NULL);
    return errno == 0 && (code & 0xffffffff) == 0x75dc394c;
}

// Those of the agent's code, as places.
static void note_exchanges(void) {
    char path[32], line[PATH_MAX + 128];
    snprintf(path, sizeof path, "/proc/%d/maps", target);
    FILE *maps = fopen(path, "r");
    snprintf(path, sizeof path, "/proc/%d/mem", target);
    int memory = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(maps && memory >= 0);
    while (fgets(line, sizeof line, maps)) {
        uint64_t start, end;
        bool is_code = strstr(line, "liballocsample") && strstr(line, " r-x");
        if (!is_code || sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) != 2) continue;
        size_t bytes = end - start;
        unsigned char *code = malloc(bytes);
        CHECK(code && pread(memory, code, bytes, (off_t)start) == (ssize_t)bytes);
        // lock, any REX.W, cmpxchg of 64 bits
        for (size_t i = 0; i + 4 <= bytes; i++)
            if (code[i] == 0xf0 && (code[i + 1] & 0xf8) == 0x48 && code[i + 2] == 0x0f && code[i + 3] == 0xb1)
                note_place(start + i);
        free(code);
    }
    fclose(maps);
    close(memory);
    CHECK(found_places > 0);
}

static bool set_breakpoint(uint64_t pc) {
    return ptrace(PTRACE_POKEUSER, target, offsetof(struct user, u_debugreg[0]), pc) == 0 &&
           ptrace(PTRACE_POKEUSER, target, offsetof(struct user, u_debugreg[7]), pc ? 1 : 0) == 0;
}
#else
static uint64_t program_counter(void) { return 0; }
static bool is_at_probe(void) { return false; }
static void note_exchanges(void) { CHECK(false); }
static bool set_breakpoint(uint64_t pc) { return pc == 0; }
#endif

static uint64_t random_place(void) {
    unsigned at = next_random(&seed) % PLACES;
    while (!places[at]) at = (at + 1) % PLACES;
    return places[at];
}

// Goes on to one of the known instructions. False: it has ended; `*is_there` tells whether it has come there.
static bool goes_to_place(bool *is_there, int *status) {
    enum { WINDOWS = 3 };
    uint64_t place = random_place();
    *is_there = false;
    if (!set_breakpoint(place)) return true;
    bool is_alive = true;
    for (int i = 0; is_alive && !*is_there && i < WINDOWS; i++) {
        is_alive = goes_to_breakpoint(PTRACE_CONT, 0, status);
        *is_there = is_alive && shared->place == IN_WINDOW && program_counter() == place;
    }
    if (is_alive) CHECK(set_breakpoint(0));
    return is_alive;
}

static void run_command(char **words) {
    char pid[16];
    snprintf(pid, sizeof pid, "%d", target);
    for (char **word = words; *word; word++)
        if (!strcmp(*word, "PID")) *word = pid;
    pid_t child = fork();
    if (child == 0) {
        execv(words[0], words);
        _exit(127);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int follow(unsigned long count, unsigned mean, bool at_exchanges, const char *actions, char last, char **command) {
    while (shared->place != BEFORE_WINDOW) {
        CHECK(waitpid(target, NULL, WNOHANG) == 0);
        usleep(1000);
    }
    if (*command) run_command(command);
    CHECK(ptrace(PTRACE_SEIZE, target, NULL, (void *)PTRACE_O_EXITKILL) == 0);
    shared->may_begin = true;
    int status;
    CHECK(waitpid(target, &status, __WALL) == target && WIFSTOPPED(status));
    enum { ENOUGH_PLACES = 500, STEPPED = 4 };
    unsigned long injected = 0;
    unsigned left = mean ? gap(mean) : 0;
    bool is_alive = true, is_there = !at_exchanges;
    if (at_exchanges) note_exchanges();
    while (is_alive && injected < count) {
        if (shared->place != IN_WINDOW) {
            // To the next window.
            is_alive = goes_to_breakpoint(PTRACE_CONT, 0, &status);
        } else if (at_exchanges && !is_there) {
            is_alive = goes_to_place(&is_there, &status);
            if (is_alive && is_there) is_alive = goes_to_breakpoint(PTRACE_SINGLESTEP, 0, &status);
        } else if (left > 0 || !is_there) {
            left -= left > 0;
            is_alive = goes_to_breakpoint(PTRACE_SINGLESTEP, 0, &status);
            if (is_alive && shared->place == IN_WINDOW) note_place(program_counter());
            if (!is_there) is_there = is_alive && is_at_probe();
        } else {
            size_t known = strlen(actions);
            size_t next = injected < known ? injected : known - 1;
            shared->action = actions[mean ? next_random(&seed) % known : next];
            injected++;
            if (injected == count && last) shared->action = last;
            is_alive = goes_to_breakpoint(PTRACE_CONT, SIGUSR1, &status);
            if (mean == 0) {
                is_there = injected >= known && !at_exchanges;
                left = is_there ? gap(3) : 0;
                continue;
            }
            left = gap(mean);
            bool is_drawn = found_places >= ENOUGH_PLACES && next_random(&seed) % STEPPED != 0;
            if (is_alive && is_drawn && injected < count) {
                bool has_come;
                is_alive = goes_to_place(&has_come, &status);
                // A little beyond; or, after a jump that has left the thread muted, from here.
                left = has_come ? next_random(&seed) % 4 : left / 4;
            }
        }
    }
    shared->is_last = true;
    while (is_alive) is_alive = goes_to_breakpoint(PTRACE_CONT, 0, &status);
    printf("interruptions %lu, returned %lu, left by a jump %lu, failures %lu, status %x\n", injected,
           shared->returned, shared->left, shared->failures, status);
    bool is_well = status == 0 && injected == count && shared->failures == 0;
    if (!is_well) printf("after action %c\n", shared->action);
    return is_well ? 0 : 1;
}

int main(int count, char **words) {
    int flags = MAP_SHARED;
    if (count == 2 && !strcmp(words[1], "traced")) {
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, flags, SHARED, 0);
        CHECK(shared != MAP_FAILED);
        return traced();
    }
    CHECK(count >= 7 && !strcmp(words[1], "step"));
    int memory = memfd_create("shared", 0);
    CHECK(memory >= 0 && ftruncate(memory, sizeof *shared) == 0 && dup2(memory, SHARED) == SHARED);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, flags, SHARED, 0);
    CHECK(shared != MAP_FAILED);
    seed = (unsigned)atoi(words[3]);
    target = fork();
    CHECK(target >= 0);
    if (target == 0) {
        const char *preload = getenv("REENTRY_PRELOAD");
        if (preload) setenv("LD_PRELOAD", preload, 1);
        const char *file_bytes = getenv("REENTRY_FILE_BYTES");
        if (file_bytes) {
            rlim_t most = (rlim_t)atol(file_bytes);
            CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){most, most}) == 0);
        }
        execl("/proc/self/exe", "reentry", "traced", (char *)NULL);
        _exit(127);
    }
    char last = !strcmp(words[6], "_exit") ? '_' : !strcmp(words[6], "exec") ? 'E' : 0;
    bool at_exchanges = !strcmp(words[4], "exchanges");
    return follow((unsigned long)atol(words[2]), (unsigned)atoi(words[4]), at_exchanges, words[5], last, words + 7);
}
