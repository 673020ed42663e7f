// Embeds perl: loads the library that the first argument names, and has it run the text of the second one.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

extern char **environ;
static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

#define CALL(TYPE, NAME, ARGUMENTS, ...) ((TYPE(*) ARGUMENTS)function(#NAME))(__VA_ARGS__)

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    char *words[] = {arguments[0], "-e", arguments[2], NULL};
    int words_count = 3;
    char **all_words = words;
    CALL(void, Perl_sys_init3, (int *, char ***, char ***), &words_count, &all_words, &environ);
    void *perl = CALL(void *, perl_alloc, (void));
    CALL(void, perl_construct, (void *), perl);
    int status = CALL(int, perl_parse, (void *, void *, int, char **, char **), perl, NULL, words_count, words, NULL);
    if (status == 0)
        status = CALL(int, perl_run, (void *), perl);
    // Outside of perl's functions, on the thread that has called them.
    for (int i = 0; i < 2000; i++) {
        volatile char *block = malloc(5000);
        block[i] = 1;
        free((void *)block);
    }
    CALL(int, perl_destruct, (void *), perl);
    CALL(void, perl_free, (void *), perl);
    return status;
}
