/* Asks the loader for errors before it has made any, then makes one. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    const char *error = dlerror();
    puts(error ? error : "none");
    dlsym(RTLD_DEFAULT, "no_such_function");
    error = dlerror();
    puts(error ? "one" : "none");
    return 0;
}
