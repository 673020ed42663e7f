/* Functions that glibc got after 2.17, for code that calls them without asking whether they exist. Hidden: nothing else in
 * the process uses these. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 2.33: older versions have functions of other names, with the version of the structure as an argument. The kernel fills
 * the same structure. */

int fstatat64(int directory, const char *path, struct stat64 *status, int flags)
{
    return (int)syscall(SYS_newfstatat, directory, path, status, flags);
}

int stat64(const char *path, struct stat64 *status)
{
    return fstatat64(AT_FDCWD, path, status, 0);
}

int lstat64(const char *path, struct stat64 *status)
{
    return fstatat64(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

int fstat64(int file, struct stat64 *status)
{
    return (int)syscall(SYS_fstat, file, status);
}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one structure");

int fstatat(int directory, const char *path, struct stat *status, int flags)
{
    return (int)syscall(SYS_newfstatat, directory, path, status, flags);
}

int stat(const char *path, struct stat *status)
{
    return fstatat(AT_FDCWD, path, status, 0);
}

int lstat(const char *path, struct stat *status)
{
    return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

int fstat(int file, struct stat *status)
{
    return (int)syscall(SYS_fstat, file, status);
}

/* 2.28: with 64-bit machines, another name for the same. */
int fcntl64(int file, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return fcntl(file, command, argument);
}

/* 2.35: the unwinder of gcc 12 and later finds modules by it. It takes the loader's lock here, so only panics of our own
 * threads may come this way. */

struct found_object {
    unsigned long long flags;
    void *start;
    void *end;
    struct link_map *link_map;
    void *eh_frame_hdr;
    unsigned long long reserved[8];
};

struct search {
    uintptr_t address;
    struct found_object *found;
};

static int look_into_object(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)size;
    struct search *search = argument;
    void *unwind_table = NULL;
    int is_here = 0;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && search->address - start < segment->p_memsz) {
            is_here = 1;
            *search->found = (struct found_object){.start = (void *)start, .end = (void *)(start + segment->p_memsz)};
        } else if (segment->p_type == PT_GNU_EH_FRAME) {
            unwind_table = (void *)start;
        }
    }
    if (is_here)
        search->found->eh_frame_hdr = unwind_table;
    return is_here && unwind_table != NULL;
}

/* Older headers do not know it. */
struct dl_find_object;

int _dl_find_object(void *address, struct dl_find_object *result)
{
    struct search search = {.address = (uintptr_t)address, .found = (struct found_object *)(void *)result};
    return dl_iterate_phdr(look_into_object, &search) ? 0 : -1;
}
