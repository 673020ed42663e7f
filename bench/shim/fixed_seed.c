/* Gives zeros to a program that seeds its hash tables from /dev/urandom: instructions of two runs can be compared then. With
 * other seeds redis runs up to half a per cent more, or less. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define REDIRECT(NAME)                                                                                                 \
    __attribute__((visibility("default"))) FILE *NAME(const char *path, const char *mode)                              \
    {                                                                                                                  \
        FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #NAME);  \
        return next(strcmp(path, "/dev/urandom") == 0 ? "/dev/zero" : path, mode);                                     \
    }

REDIRECT(fopen)
REDIRECT(fopen64)
