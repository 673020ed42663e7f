// Behaviour: prints which of jemalloc's functions there are, as programs do that use them if they can.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

void *mallocx(size_t, int) __attribute__((weak));
void *rallocx(void *, size_t, int) __attribute__((weak));
void dallocx(void *, int) __attribute__((weak));
void sdallocx(void *, size_t, int) __attribute__((weak));

int main(void) {
    int is_any = mallocx != NULL || rallocx != NULL || dallocx != NULL || sdallocx != NULL ||
                 dlsym(RTLD_DEFAULT, "mallocx") != NULL || dlsym(RTLD_DEFAULT, "sdallocx") != NULL;
    puts(is_any ? "some" : "none");
    return 0;
}
