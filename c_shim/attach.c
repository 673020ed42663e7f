/* Which functions are redirected in a process that is attached to, and where their next ones are. */
#define _GNU_SOURCE
#include "attach.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

void *shim_attached_dlopen(const char *path, int mode);
void *shim_attached_dlsym(void *handle, const char *name);

/* Those of the allocator. reallocarray is not among them: it calls realloc by its name, and so is seen. */
#define FOREACH_OF_ALLOCATOR(X)                                                                                        \
    X(malloc)                                                                                                          \
    X(free)                                                                                                            \
    X(calloc)                                                                                                          \
    X(realloc)                                                                                                         \
    X(posix_memalign)                                                                                                  \
    X(aligned_alloc)                                                                                                   \
    X(memalign)                                                                                                        \
    X(valloc)                                                                                                          \
    X(pvalloc)                                                                                                         \
    X(free_sized)                                                                                                      \
    X(free_aligned_sized)                                                                                              \
    X(_Znwm)                                                                                                           \
    X(_Znam)                                                                                                           \
    X(_ZnwmRKSt9nothrow_t)                                                                                             \
    X(_ZnamRKSt9nothrow_t)                                                                                             \
    X(_ZnwmSt11align_val_t)                                                                                            \
    X(_ZnamSt11align_val_t)                                                                                            \
    X(_ZnwmSt11align_val_tRKSt9nothrow_t)                                                                              \
    X(_ZnamSt11align_val_tRKSt9nothrow_t)                                                                              \
    X(_ZdlPv)                                                                                                          \
    X(_ZdaPv)                                                                                                          \
    X(_ZdlPvm)                                                                                                         \
    X(_ZdaPvm)                                                                                                         \
    X(_ZdlPvRKSt9nothrow_t)                                                                                            \
    X(_ZdaPvRKSt9nothrow_t)                                                                                            \
    X(_ZdlPvSt11align_val_t)                                                                                           \
    X(_ZdaPvSt11align_val_t)                                                                                           \
    X(_ZdlPvmSt11align_val_t)                                                                                          \
    X(_ZdaPvmSt11align_val_t)                                                                                          \
    X(_ZdlPvSt11align_val_tRKSt9nothrow_t)                                                                             \
    X(_ZdaPvSt11align_val_tRKSt9nothrow_t)

/* What the process does to itself: all of c_shim/lifecycle.c, which tests/shared_object.rs holds against the exports. */
#define FOREACH_OF_LIFECYCLE(X)                                                                                        \
    X(fork)                                                                                                            \
    X(_Fork)                                                                                                           \
    X(_exit)                                                                                                           \
    X(_Exit)                                                                                                           \
    X(quick_exit)                                                                                                      \
    X(abort)                                                                                                           \
    X(pthread_exit)                                                                                                    \
    X(execve)                                                                                                          \
    X(execv)                                                                                                           \
    X(execvp)                                                                                                          \
    X(execvpe)                                                                                                         \
    X(execl)                                                                                                           \
    X(execlp)                                                                                                          \
    X(execle)                                                                                                          \
    X(fexecve)                                                                                                         \
    X(execveat)                                                                                                        \
    X(unshare)                                                                                                         \
    X(setns)                                                                                                           \
    X(chroot)                                                                                                          \
    X(setuid)                                                                                                          \
    X(seteuid)                                                                                                         \
    X(setreuid)                                                                                                        \
    X(setresuid)                                                                                                       \
    X(prctl)                                                                                                           \
    X(seccomp_load)                                                                                                    \
    X(capset)                                                                                                          \
    X(cap_set_proc)                                                                                                    \
    X(dlclose)

#define NAMED(NAME) {.name = #NAME},
struct shim_redirection shim_redirections[] = {FOREACH_OF_ALLOCATOR(NAMED) FOREACH_OF_LIFECYCLE(NAMED)
                                               {.name = "dlopen", .own = shim_attached_dlopen},
                                               {.name = "dlsym", .own = shim_attached_dlsym},
                                               {.name = NULL}};

#define ONE(NAME) +1
#define OF_ALLOCATOR (0 FOREACH_OF_ALLOCATOR(ONE))

static _Atomic(bool) is_late;

bool shim_is_late(void)
{
    return atomic_load_explicit(&is_late, memory_order_acquire);
}

void *shim_late_symbol(const char *name)
{
    for (const struct shim_redirection *entry = shim_redirections; entry->name != NULL; entry++) {
        if (strcmp(entry->name, name) == 0)
            return entry->next;
    }
    return NULL;
}

/* Whether an address that the loader gave for a symbol is that of its code. In a program that is linked to a fixed
 * address it may be that of the program's own stub, which jumps through a slot: ours, once that is redirected. */
static bool is_definition(const void *address)
{
    Dl_info info;
    void *symbol = NULL;
    return dladdr1(address, &info, &symbol, RTLD_DL_SYMENT) != 0 &&
           (symbol == NULL || ((const ElfW(Sym) *)symbol)->st_shndx != SHN_UNDEF);
}

/* What the calls of most objects reach: the first definition in the order of the program's global scope. */
static void *find_definition(const char *name)
{
    void *first = dlsym(RTLD_DEFAULT, name);
    if (first == NULL || is_definition(first))
        return first;
    for (const struct link_map *object = _r_debug.r_map; object != NULL; object = object->l_next) {
        if (object->l_name == NULL || object->l_name[0] == '\0')
            continue;
        void *handle = dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle == NULL)
            continue;
        /* Found in what the object depends on as well, hence the comparison. */
        void *found = dlsym(handle, name);
        bool is_its_own = found != NULL && shim_same_object(found, object->l_ld);
        dlclose(handle);
        if (is_its_own)
            return found;
    }
    return NULL;
}

bool shim_prepare_late(void)
{
    struct shim_object own;
    if (!shim_find_object(&is_late, &own))
        return false;
    /* By our own name: a reference to `malloc` from this very file would be bound to the program's. */
    void *handle = dlopen(own.path, RTLD_LAZY | RTLD_NOLOAD);
    void *next_malloc = find_definition("malloc");
    if (handle == NULL || next_malloc == NULL)
        return false;
    for (size_t i = 0; shim_redirections[i].name != NULL; i++) {
        struct shim_redirection *entry = &shim_redirections[i];
        if (entry->own == NULL)
            entry->own = dlsym(handle, entry->name);
        entry->next = find_definition(entry->name);
        bool is_of_another = i < OF_ALLOCATOR && entry->next != NULL && !shim_same_object(entry->next, next_malloc);
        /* Blocks of two allocators must not be mixed; and operators that call malloc are seen there. */
        if (is_of_another || entry->own == NULL || entry->own == entry->next)
            entry->next = NULL;
    }
    dlclose(handle);
    /* Without these shim_find_next would end the program. */
    static const char *const needed[] = {"malloc", "free", "calloc", "realloc", "posix_memalign"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (shim_late_symbol(needed[i]) == NULL)
            return false;
    }
    atomic_store_explicit(&is_late, true, memory_order_release);
    return true;
}
