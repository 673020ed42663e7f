// Behaviour: a plugin bound straight to the C library frees what the program allocated, and the other way round.
// Usage: deepbind PLUGIN
#include "check.h"

#include <dlfcn.h>

NOINLINE void *allocated_for_the_plugin(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

extern void *__libc_malloc(size_t size);
extern void __libc_free(void *block);

int main(int count, char **words) {
    CHECK(count == 2);
    void *library = dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND);
    CHECK(library != NULL);
    void *(*plugin_entry)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_entry");
    void (*plugin_frees)(void *) = (void (*)(void *))dlsym(library, "plugin_frees");
    CHECK(plugin_entry && plugin_frees);
    for (int turn = 0; turn < 20000; turn++) {
        size_t size = 1 + (size_t)turn % 3000;
        void *mine = allocated_for_the_plugin(size), *its = plugin_entry(size);
        paint(mine, size, 1);
        paint(its, size, 2);
        CHECK(is_painted(mine, size, 1) && is_painted(its, size, 2));
        plugin_frees(mine);
        free(its);
        // The same past everybody, by the C library's private names.
        mine = allocated_for_the_plugin(size), its = __libc_malloc(size);
        its = realloc(its, size + 10);
        free(its);
        __libc_free(mine);
    }
    CHECK(dlclose(library) == 0);
    puts("both sides freed the other's blocks");
    return 0;
}
