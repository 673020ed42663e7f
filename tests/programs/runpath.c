// Behaviour: dlopen looks in the RUNPATH of whoever calls it, not of the program or of anybody in between.
// Usage: runpath NAME, with NAME in the RUNPATH of libcaller only
#include "check.h"

#include <dlfcn.h>

extern int load_by_name(const char *name);

int main(int count, char **words) {
    CHECK(count == 2);
    churn(2000, 2000, 1);
    CHECK(dlopen(words[1], RTLD_NOW) == NULL);
    printf("%s\n", dlerror());
    CHECK(load_by_name(words[1]));
    puts("found by the caller's RUNPATH");
    return 0;
}
