// Behaviour: answers each line with NAME:OBJECT:SLOT of all functions in the interposition table that it finds. OBJECT is
// `allocator` if the function is defined where malloc is, SLOT is `moved` if the slot leads elsewhere than when the program started.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INTERPOSED(GROUP, NAME) extern void row_##NAME(void) __asm__(#NAME) __attribute__((weak));
#include "../../c_shim/interposed.def"

static struct row {
    const char *name;
    void (*volatile slot)(void);
    void (*start)(void);
} rows[] = {
#define INTERPOSED(GROUP, NAME) {#NAME, row_##NAME, NULL},
#include "../../c_shim/interposed.def"
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void *object_of(void (*function)(void)) {
    Dl_info info;
    return dladdr((void *)function, &info) != 0 ? info.dli_fbase : NULL;
}

int main(void) {
    for (unsigned i = 0; i < ROWS; i++) rows[i].start = rows[i].slot;
    puts("ready");
    fflush(stdout);
    char line[100];
    while (fgets(line, sizeof line, stdin) != NULL) {
        int status;
        if (sscanf(line, "end %d", &status) == 1) return status;
        for (unsigned i = 0; i < ROWS; i++) {
            if (rows[i].start == NULL) continue;
            bool is_of_allocator = object_of(rows[i].start) == object_of(rows[0].start);
            printf("%s:%s:%s ", rows[i].name, is_of_allocator ? "allocator" : "other",
                   rows[i].slot != rows[i].start ? "moved" : "same");
        }
        putchar('\n');
        fflush(stdout);
    }
    return 1;
}
