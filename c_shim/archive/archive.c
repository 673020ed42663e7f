/* What takes the place of next.c and of most of the shim in liballocsample.a: the next functions are known to the linker. */
#include "attach.h"
#include "bridges/registry.h"

#include <errno.h>
#include <sys/syscall.h>

/* Every libc and every allocator has these. A weak reference would not have the linker take them out of an archive. */
#define REAL(NAME) extern __typeof__(NAME) real_##NAME __asm__("__real_" #NAME);
REAL(malloc)
REAL(free)
REAL(calloc)
REAL(realloc)
REAL(posix_memalign)
REAL(fork)
REAL(_exit)
REAL(_Exit)
REAL(quick_exit)
REAL(abort)
REAL(pthread_exit)
REAL(execve)
REAL(execvpe)
REAL(fexecve)
REAL(unshare)
REAL(setns)
REAL(chroot)
REAL(setuid)
REAL(seteuid)
REAL(setreuid)
REAL(setresuid)
REAL(capset)
REAL(prctl)
REAL(syscall)

/* If the linker finds no such function, it is composed of those above. */
#define REAL_IF_THERE(NAME) extern __typeof__(NAME) real_##NAME __asm__("__real_" #NAME) __attribute__((weak));
REAL_IF_THERE(memalign)
REAL_IF_THERE(aligned_alloc)
REAL_IF_THERE(valloc)
REAL_IF_THERE(pvalloc)

static void *next_memalign(size_t alignment, size_t size)
{
    if (real_memalign != NULL)
        return real_memalign(alignment, size);
    void *block = NULL;
    int error = real_posix_memalign(&block, alignment < sizeof(void *) ? sizeof(void *) : alignment, size);
    if (error == 0)
        return block;
    errno = error;
    return NULL;
}

static void *next_aligned_alloc(size_t alignment, size_t size)
{
    return real_aligned_alloc != NULL ? real_aligned_alloc(alignment, size) : next_memalign(alignment, size);
}

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *next_valloc(size_t size)
{
    return real_valloc != NULL ? real_valloc(size) : next_memalign(page_size(), size);
}

static void *next_pvalloc(size_t size)
{
    if (real_pvalloc != NULL)
        return real_pvalloc(size);
    size_t page = page_size();
    size_t rounded;
    if (__builtin_add_overflow(size, page - 1, &rounded)) {
        errno = ENOMEM;
        return NULL;
    }
    return next_memalign(page, rounded & ~(page - 1));
}

static void next_free_sized(void *block, size_t size)
{
    (void)size;
    real_free(block);
}

static void next_free_aligned_sized(void *block, size_t alignment, size_t size)
{
    (void)alignment;
    (void)size;
    real_free(block);
}

struct shim_next shim_next = {
    .malloc = real_malloc,
    .free = real_free,
    .calloc = real_calloc,
    .realloc = real_realloc,
    .posix_memalign = real_posix_memalign,
    .memalign = next_memalign,
    .aligned_alloc = next_aligned_alloc,
    .valloc = next_valloc,
    .pvalloc = next_pvalloc,
    .free_sized = next_free_sized,
    .free_aligned_sized = next_free_aligned_sized,
};

/* glibc has it since 2.34, musl not at all. */
static int real_execveat(int directory, const char *path, char *const argv[], char *const envp[], int flags)
{
    return (int)real_syscall(SYS_execveat, directory, path, argv, envp, flags);
}

/* While nothing was ever sampled, `free` need not ask. */
__attribute__((constructor)) static void begin(void)
{
    shim_pass_frees_on();
}

#define NEXT_IS(NAME) [SHIM_ROW_##NAME] = {.name = #NAME, .group = SHIM_PROCESS, .next = (void *)real_##NAME}
struct shim_function shim_functions[SHIM_ROWS] = {
    NEXT_IS(fork),    NEXT_IS(_exit),   NEXT_IS(_Exit),    NEXT_IS(quick_exit), NEXT_IS(abort),
    NEXT_IS(execve),  NEXT_IS(execvpe), NEXT_IS(fexecve),  NEXT_IS(execveat),  NEXT_IS(pthread_exit),
    NEXT_IS(unshare), NEXT_IS(setns),   NEXT_IS(chroot),   NEXT_IS(capset),    NEXT_IS(prctl),      NEXT_IS(syscall),
    NEXT_IS(setuid),  NEXT_IS(seteuid), NEXT_IS(setreuid), NEXT_IS(setresuid),
};

/* A dynamic loader's functions: a reference that is not weak would make the linker warn of them in a static program. */
extern void *dlsym(void *object, const char *name) __attribute__((weak));

void *shim_symbol(const char *name)
{
    return dlsym == NULL ? NULL : dlsym(NULL, name);
}

/* Everything was found by the linker. */
void *shim_find_symbol(const char *name)
{
    (void)name;
    return NULL;
}

/* Nothing is looked up, so there is no arena. */
bool shim_is_bootstrap_block(const void *block)
{
    (void)block;
    return false;
}

/* There are no bridges here, nothing is redirected, and no thread has ticks. */
void bridges_after_fork_in_child(void)
{
}

void bridges_before_dlclose(void)
{
}

void bridges_after_dlclose(void)
{
}

void shim_redirect_after_fork_in_child(void)
{
}

void shim_end_ticks(void)
{
}

bool shim_tells_pages_of_blocks;
