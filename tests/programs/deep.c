// Behaviour: a program opens libraries with RTLD_DEEPBIND, and exchanges blocks with them.
// Usage: deep HOW LIBRARY..., where HOW is
//   rounds   open and close the library three times, with the same work each time
//   named    open it through the library that this program is linked with, which knows where it is
//   threads  a thread for each library opens, uses and closes it, all at the same time
//   own      use a library with a malloc of its own
//   ordinary open the first one, and the second one without RTLD_DEEPBIND; the second one frees what the program allocated
//   inner    open the first one, whose constructor opens the second one; use the second one
//   fork     have it fork
//   filter   open it behind a filter of system calls
//   attached do what `threads` does at every line of its input, until one says with which status to end
#include "check.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { BLOCKS = 600, KEPT_OF = 10, BYTES = 256, OPENED = 40 };

struct library {
    void *handle;
    void *(*allocates)(unsigned kind, size_t size);
    void *(*resizes)(void *block, size_t size);
    void *(*depends)(size_t size);
    void (*frees)(void *block);
    void (*churns)(unsigned count);
    void (*forks)(unsigned count);
};

static struct library known(void *handle) {
    if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
    CHECK(handle != NULL);
    struct library library = {.handle = handle};
#define LOOK_UP(NAME) CHECK((*(void **)&library.NAME = dlsym(handle, "deep_" #NAME)) != NULL)
    LOOK_UP(allocates);
    LOOK_UP(resizes);
    LOOK_UP(depends);
    LOOK_UP(frees);
    LOOK_UP(churns);
    LOOK_UP(forks);
    return library;
}

static struct library opened(const char *path) { return known(dlopen(path, RTLD_LAZY | RTLD_DEEPBIND)); }

static NOINLINE void *program_allocates(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

// A tenth of the blocks stays; of the others, both sides free those of both.
static void exchange(const struct library *library, bool has_dependency) {
    for (unsigned turn = 0; turn < BLOCKS; turn++) {
        void *mine = program_allocates(BYTES), *its = library->allocates(turn, BYTES);
        void *deeper = has_dependency ? library->depends(BYTES) : NULL;
        CHECK(mine && its);
        paint(mine, BYTES, 1);
        paint(its, BYTES, 2);
        CHECK(is_painted(mine, BYTES, 1) && is_painted(its, BYTES, 2));
        if (turn % KEPT_OF == 0) continue;
        if (turn % 3 == 0) {
            mine = library->resizes(mine, 2 * BYTES);
            CHECK(is_painted(mine, BYTES, 1));
        }
        if (turn % 2 == 0) {
            library->frees(mine);
            free(its);
            free(deeper);
        } else {
            free(mine);
            library->frees(its);
            library->frees(deeper);
        }
    }
}

static pthread_barrier_t together;

static void *open_use_and_close(void *path) {
    pthread_barrier_wait(&together);
    for (int turn = 0; turn < OPENED; turn++) {
        struct library library = opened(path);
        for (unsigned kind = 0; kind < 12; kind++) library.frees(library.allocates(kind, BYTES));
        CHECK(dlclose(library.handle) == 0);
    }
    return NULL;
}

static void in_threads(char **paths, size_t count) {
    pthread_t threads[16];
    CHECK(count <= 16 && pthread_barrier_init(&together, NULL, (unsigned)count) == 0);
    for (size_t i = 0; i < count; i++) CHECK(pthread_create(&threads[i], NULL, open_use_and_close, paths[i]) == 0);
    for (size_t i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

// Dies of a call by which one asks whether memory can be written to.
static void forbid_some_calls(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof rules[0], rules};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

#ifdef BY_NAME
extern void *open_deep_by_name(const char *name);
#else
static void *open_deep_by_name(const char *name) { return dlopen(name, RTLD_NOW | RTLD_DEEPBIND); }
#endif

int main(int count, char **words) {
    CHECK(count >= 3);
    const char *how = words[1];
    if (strcmp(how, "rounds") == 0) {
        for (int round = 0; round < 3; round++) {
            struct library library = opened(words[2]);
            exchange(&library, true);
            // It is loaded already.
            struct library again = opened(words[2]);
            CHECK(again.handle == library.handle && dlclose(again.handle) == 0);
            CHECK(dlclose(library.handle) == 0);
        }
    } else if (strcmp(how, "named") == 0) {
        struct library library = known(open_deep_by_name(words[2]));
        exchange(&library, false);
    } else if (strcmp(how, "threads") == 0) {
        in_threads(words + 2, (size_t)count - 2);
    } else if (strcmp(how, "own") == 0) {
        struct library library = opened(words[2]);
        library.churns(5000);
        size_t (*given)(void) = (size_t (*)(void))dlsym(library.handle, "deep_allocator_given");
        size_t (*taken_back)(void) = (size_t (*)(void))dlsym(library.handle, "deep_allocator_taken_back");
        CHECK(given && taken_back);
        printf("%zu given, %zu taken back\n", given(), taken_back());
    } else if (strcmp(how, "ordinary") == 0) {
        struct library ordinary = known(dlopen(words[3], RTLD_LAZY));
        struct library library = opened(words[2]);
        for (unsigned turn = 0; turn < BLOCKS; turn++) {
            library.churns(3);
            ordinary.churns(3);
            ordinary.frees(program_allocates(BYTES));
        }
    } else if (strcmp(how, "inner") == 0) {
        struct library outer = opened(words[2]);
        struct library inner = known(dlopen(words[3], RTLD_LAZY | RTLD_NOLOAD));
        CHECK(outer.allocates != inner.allocates);
        exchange(&inner, true);
    } else if (strcmp(how, "attached") == 0) {
        char line[64];
        int status = 0;
        puts("ready");
        while (fflush(stdout) == 0 && fgets(line, sizeof line, stdin) && sscanf(line, "end %d", &status) != 1) {
            in_threads(words + 2, (size_t)count - 2);
            puts("done");
        }
        return status;
    } else if (strcmp(how, "fork") == 0) {
        opened(words[2]).forks(BLOCKS);
    } else if (strcmp(how, "filter") == 0) {
        forbid_some_calls();
        struct library library = opened(words[2]);
        exchange(&library, true);
    } else {
        CHECK(!"a way that is known");
    }
    puts("done");
    return 0;
}
