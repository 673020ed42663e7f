/* Included before the files of the shim that liballocsample.a is made of: they define libc's functions under the names that the
 * linker's option --wrap wants. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Those that some headers lack. */
void *reallocarray(void *block, size_t count, size_t size);
void *pvalloc(size_t size);
void free_sized(void *block, size_t size);
void free_aligned_sized(void *block, size_t alignment, size_t size);
int capset(void *header, const void *data);
int execveat(int directory, const char *path, char *const argv[], char *const envp[], int flags);

#define WRAP(NAME) extern __typeof__(NAME) NAME __asm__("__wrap_" #NAME);
#define INNER(NAME) WRAP(NAME)
#include "archive/wrapped.def"
#define SHIM_SYSCALL "__wrap_syscall"
