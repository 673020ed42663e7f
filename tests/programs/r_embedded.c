// Loads the libR of the R whose directory the first argument names, has it run the code of the second one, and allocates itself in between.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    (void)argc;
    char path[4096];
    snprintf(path, sizeof path, "%s/lib/libR.so", argv[1]);
    setenv("R_HOME", argv[1], 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*init)(int, char **);
    void *(*evaluate)(const char *, void *);
    void **environment = dlsym(library, "R_GlobalEnv");
    *(void **)&init = dlsym(library, "Rf_initEmbeddedR");
    *(void **)&evaluate = dlsym(library, "R_ParseEvalString");
    char *arguments[] = {"R", "--vanilla", "--no-echo"};
    init(3, arguments);
    evaluate(argv[2], *environment);
    size_t sum = 0;
    for (size_t i = 0; i < 2000; i++) {
        char *block = malloc(5000);
        memset(block, (int)i, 5000);
        sum += (unsigned char)block[i];
        free(block);
    }
    printf("%zu\n", sum);
    return 0;
}
