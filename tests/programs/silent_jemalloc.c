// Behaviour: has what the agent takes for a jemalloc, named `app_`, which never answers when it is asked for its counts: as if a
// thread that is gone held its lock. Fills 16 MiB by it, and says how often it was asked.
#include "check.h"

#include <stdatomic.h>
#include <stdint.h>

struct hooks {
    void (*alloc)(void *extra, int type, void *result, uintptr_t raw_result, uintptr_t arguments[3]);
    void (*dalloc)(void *extra, int type, void *block, uintptr_t arguments[3]);
    void (*expand)(void *extra, int type, void *block, size_t old_size, size_t new_size, uintptr_t raw_result,
                   uintptr_t arguments[4]);
    void *extra;
};

static struct hooks hooks;
static atomic_int asked;

NOINLINE int app_mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes) {
    (void)old_bytes, (void)new_bytes;
    if (strcmp(name, "experimental.hooks.install") == 0) {
        memcpy(&hooks, new, sizeof hooks);
        *(void **)old = &hooks;
        return 0;
    }
    if (strcmp(name, "experimental.hooks.remove") == 0) {
        memset(&hooks, 0, sizeof hooks);
        return 0;
    }
    if (strcmp(name, "epoch") != 0) return 2;
    atomic_fetch_add(&asked, 1);
    for (;;) pause();
}

NOINLINE void *app_malloc(size_t size) {
    void *block = malloc(size);
    uintptr_t arguments[3] = {size};
    if (hooks.alloc != NULL) hooks.alloc(hooks.extra, 0, block, (uintptr_t)block, arguments);
    return block;
}

NOINLINE void app_free(void *block) {
    uintptr_t arguments[3] = {(uintptr_t)block};
    if (hooks.dalloc != NULL) hooks.dalloc(hooks.extra, 0, block, arguments);
    free(block);
}

int main(void) {
    CHECK(hooks.alloc != NULL);
    for (int i = 0; i < 4096; i++) {
        char *block = app_malloc(4096);
        memset(block, 1, 4096);
        if (i % 4 == 0) app_free(block);
        if (i % 64 == 0) usleep(5000);
    }
    printf("%d\n", atomic_load(&asked));
    return 0;
}
