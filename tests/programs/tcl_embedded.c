// Loads libtcl8.6, has it run a procedure, and allocates itself in between. Ends with 77 where there is no such library.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    void *library = dlopen("libtcl8.6.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 77;
    void *(*create)(void);
    int (*evaluate)(void *, const char *);
    *(void **)&create = dlsym(library, "Tcl_CreateInterp");
    *(void **)&evaluate = dlsym(library, "Tcl_Eval");
    void *interpreter = create();
    evaluate(interpreter, "proc made {} { for {set i 0} {$i < 1000} {incr i} { string repeat m 2999 } }");
    size_t sum = 0;
    for (int i = 0; i < 40; i++) {
        if (evaluate(interpreter, "made") != 0)
            return 1;
        for (size_t j = 0; j < 500; j++) {
            char *block = malloc(5000);
            memset(block, (int)j, 5000);
            sum += (unsigned char)block[j];
            free(block);
        }
        usleep(10000);
    }
    printf("%zu\n", sum);
    return 0;
}
