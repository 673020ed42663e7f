// Behaviour: has the kit of the bridges say where its own functions and variables end, and checks that against the compiler.
#include "check.h"

#include <dlfcn.h>
// The kit is compiled with glibc's headers. Those of musl lack this.
#ifndef RTLD_DL_SYMENT
#define RTLD_DL_SYMENT 1
int dladdr1(const void *address, Dl_info *info, void **extra, int flags);
#endif

#include "kit/symbols.c"

const struct shim_services shim_services;

int variable[250] = {1};
char zeroed[3000];
const char constant[77] = "constant";
__thread long of_a_thread[4];

NOINLINE int function(int number) {
    KEEP(NULL);
    return number + 1;
}

static void check_variable(const char *name, const void *address, size_t bytes) {
    uintptr_t start = 0, end = 0;
    CHECK(dlsym(RTLD_DEFAULT, name) == address);
    CHECK(symbols_extent_of(address, &start, &end));
    CHECK(start == (uintptr_t)address && end - start == bytes);
}

int main(void) {
    uintptr_t start = 0, end = 0;
    check_variable("variable", variable, sizeof variable);
    check_variable("zeroed", zeroed, sizeof zeroed);
    check_variable("constant", constant, sizeof constant);
    CHECK(symbols_extent_of((const void *)function, &start, &end));
    CHECK(start == (uintptr_t)function && end > start && end - start < 64);
    // Nothing begins in a function's second byte: glibc names the function there, musl nothing.
    CHECK(!symbols_extent_of((const char *)function + 1, &start, &end) || start == (uintptr_t)function);
    CHECK(!symbols_extent_of(&start, &start, &end));
    of_a_thread[0] = 1;
    KEEP(of_a_thread);
    puts("done");
    return 0;
}
