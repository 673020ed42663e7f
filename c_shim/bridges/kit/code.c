/* See code.h.
 *
 * Code is changed in a copy of its pages, which then takes their place in one step: mremap unmaps and maps while it holds
 * the lock that page faults take. The copy is a mapping of the same file, so that tools which look at the process go on
 * seeing the object there. */
#define _GNU_SOURCE
#include "kit/code.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)

enum { JUMP_NEAR = 5, JUMP_FAR = 14 };

/* The file, and the offset in it, that the page at `address` was mapped from. */
struct origin {
    uintptr_t address;
    const char *path;
    off_t offset;
};

static int look_at(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct origin *origin = argument;
    (void)size;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t into = origin->address - (object->dlpi_addr + segment->p_vaddr);
        if (segment->p_type == PT_LOAD && into < segment->p_filesz) {
            origin->path = object->dlpi_name[0] != 0 ? object->dlpi_name : "/proc/self/exe";
            origin->offset = (off_t)(segment->p_offset + into);
            return 1;
        }
    }
    return 0;
}

/* Writable memory of the file that `first` is from, or of none. */
static void *map_copy(uintptr_t first, size_t length)
{
    struct origin origin = {.address = first};
    void *copy = MAP_FAILED;
    int file = dl_iterate_phdr(look_at, &origin) == 0 ? -1 : open(origin.path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        /* A file that was truncated has no page here. */
        if (lseek(file, 0, SEEK_END) >= origin.offset + (off_t)length)
            copy = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, origin.offset);
        close(file);
    }
    if (copy == MAP_FAILED)
        copy = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return copy;
}

bool code_put(void *at, const void *bytes, size_t length)
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at;
    uintptr_t first = start & -page_bytes, end = (start + length + page_bytes - 1) & -page_bytes;
    uint8_t *copy = map_copy(first, end - first);
    if (copy == MAP_FAILED)
        return false;
    /* Copies the page as it is in memory: the file may have changed. */
    memcpy(copy, (const void *)first, end - first);
    memcpy(copy + (start - first), bytes, length);
    if (mprotect(copy, end - first, PROT_READ | PROT_EXEC) != 0 ||
        mremap(copy, end - first, end - first, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)first) == MAP_FAILED) {
        munmap(copy, end - first);
        return false;
    }
    return true;
}

bool code_room_open(struct code_room *room, uintptr_t object, size_t length)
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), step = UINT64_C(1) << 20;
    *room = (struct code_room){.length = (length + page_bytes - 1) & -page_bytes};
    for (uintptr_t at = (object & -page_bytes) - step; at > step && object - at < UINT64_C(1) << 30; at -= step) {
        /* Old kernels take the address for advice. */
        void *page = mmap((void *)at, room->length, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (page == (void *)at) {
            room->start = page;
            return true;
        }
        if (page != MAP_FAILED)
            munmap(page, room->length);
    }
    return false;
}

bool code_room_close(struct code_room *room)
{
    return mprotect(room->start, room->length, PROT_READ | PROT_EXEC) == 0;
}

static void add(struct code_room *room, const void *bytes, size_t length)
{
    memcpy(room->start + room->used, bytes, length);
    room->used += length;
}

/* jmp *0(%rip), and the address behind it: it needs no register. */
static void add_jump(struct code_room *room, uintptr_t to)
{
    static const uint8_t jump[JUMP_FAR - sizeof to] = {0xff, 0x25};
    add(room, jump, sizeof jump);
    add(room, &to, sizeof to);
}

void *code_room_original(struct code_room *room, const void *at, size_t length, size_t distance_at)
{
    uint8_t *start = room->start + room->used;
    add(room, at, length);
    if (distance_at != 0) {
        int32_t near;
        memcpy(&near, start + distance_at, sizeof near);
        int64_t distance = near + (int64_t)((uintptr_t)at - (uintptr_t)start);
        near = (int32_t)distance;
        if (near != distance)
            return NULL;
        memcpy(start + distance_at, &near, sizeof near);
    }
    add_jump(room, (uintptr_t)at + length);
    return start;
}

void *code_room_jump(struct code_room *room, void (*function)(void))
{
    void *start = room->start + room->used;
    add_jump(room, (uintptr_t)function);
    return start;
}

bool code_put_jump(void *at, const void *to)
{
    uint8_t jump[JUMP_NEAR] = {0xe9};
    int64_t distance = (int64_t)((uintptr_t)to - ((uintptr_t)at + JUMP_NEAR));
    int32_t near = (int32_t)distance;
    if (near != distance)
        return false;
    memcpy(jump + 1, &near, sizeof near);
    return code_put(at, jump, sizeof jump);
}

#endif
