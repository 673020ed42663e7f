// Behaviour: a library allocates by every function of malloc's family, when it is loaded, when it is called and through another one
// that it depends on. It frees, forks and opens libraries, too.
#include "check.h"

#include <dlfcn.h>
#include <malloc.h>
#include <sys/wait.h>

extern void *dependency_allocates(size_t size);
#pragma weak dependency_allocates

static void *since_loading;

__attribute__((constructor)) static void loaded(void) {
    since_loading = malloc(700);
    CHECK(since_loading != NULL);
    // A constructor may open a library itself.
    const char *inner = getenv("DEEP_INNER");
    if (inner && !dlopen(inner, RTLD_LAZY | RTLD_NOLOAD)) CHECK(dlopen(inner, RTLD_LAZY | RTLD_DEEPBIND) != NULL);
}

__attribute__((destructor)) static void unloaded(void) { free(since_loading); }

enum { KINDS = 6 };

NOINLINE void *deep_allocates(unsigned kind, size_t size) {
    void *block = NULL;
    switch (kind % KINDS) {
    case 0:
        block = malloc(size);
        break;
    case 1:
        block = calloc(1, size);
        break;
    case 2:
        block = realloc(NULL, size);
        break;
    case 3:
        CHECK(posix_memalign(&block, 64, size) == 0);
        break;
    case 4:
        block = aligned_alloc(64, size);
        break;
    default:
        block = memalign(64, size);
        break;
    }
    KEEP(block);
    return block;
}

NOINLINE void *deep_resizes(void *block, size_t size) {
    block = realloc(block, size);
    KEEP(block);
    return block;
}

void *deep_depends(size_t size) { return dependency_allocates(size); }

void deep_frees(void *block) { free(block); }

// Only malloc and free.
void deep_churns(unsigned count) {
    for (unsigned turn = 0; turn < count; turn++) {
        char *block = malloc(1 + turn % 900);
        CHECK(block != NULL);
        block[0] = 1;
        free(block);
    }
}

void deep_forks(unsigned count) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (unsigned turn = 0; turn < count; turn++) free(deep_allocates(turn, 64));
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
