// Behaviour: a plugin that allocates when loaded, when called and when unloaded, by functions with names of their own.
#include "check.h"

static void *since_loading;

__attribute__((constructor)) static void plugin_loaded(void) {
    since_loading = malloc(3000);
    paint(since_loading, 3000, 1);
    churn(100, 2000, 1);
}

__attribute__((destructor)) static void plugin_unloaded(void) {
    CHECK(is_painted(since_loading, 3000, 1));
    free(since_loading);
    churn(100, 2000, 2);
}

NOINLINE void *plugin_allocates(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *plugin_entry(size_t size) {
    void *block = plugin_allocates(size);
    KEEP(block);
    return block;
}

void plugin_frees(void *block) { free(block); }
