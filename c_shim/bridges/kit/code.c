/* See code.h.
 *
 * Code is changed in a copy of its pages, which then takes their place in one step: mremap unmaps and maps while it holds
 * the lock that page faults take. The copy is a mapping of the same file, so that tools which look at the process go on
 * seeing the object there. */
#define _GNU_SOURCE
#include "kit/code.h"
#include "kit/aarch64.h"
#include "kit/instructions.h"

#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* Makes all processors read the code that was just written. */
static void make_seen(const void *start, size_t length)
{
#if defined(__aarch64__)
    uint64_t type;
    uintptr_t first = (uintptr_t)start, end = first + length;
    __asm__ volatile("mrs %0, ctr_el0" : "=r"(type));
    uintptr_t data_line = UINT64_C(4) << (type >> 16 & 15), code_line = UINT64_C(4) << (type & 15);
    for (uintptr_t at = first & -data_line; at < end; at += data_line)
        __asm__ volatile("dc cvau, %0" : : "r"(at) : "memory");
    __asm__ volatile("dsb ish" : : : "memory");
    for (uintptr_t at = first & -code_line; at < end; at += code_line)
        __asm__ volatile("ic ivau, %0" : : "r"(at) : "memory");
    __asm__ volatile("dsb ish\n\tisb" : : : "memory");
#else
    (void)start;
    (void)length;
#endif
}

/* A copy of code as it is in memory (its file may have changed), or MAP_FAILED. */
static uint8_t *copy_pages(uintptr_t first, size_t length)
{
    uint8_t *copy = map_copy(first, length);
    if (copy != MAP_FAILED)
        memcpy(copy, (const void *)first, length);
    return copy;
}

static bool close_copy(uint8_t *copy, size_t length)
{
    make_seen(copy, length);
    return mprotect(copy, length, PROT_READ | PROT_EXEC) == 0;
}

static bool take_place(uint8_t *copy, size_t length, uintptr_t first)
{
    return mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)first) != MAP_FAILED;
}

bool code_put(void *at, const void *bytes, size_t length)
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at;
    uintptr_t first = start & -page_bytes, end = (start + length + page_bytes - 1) & -page_bytes;
    uint8_t *copy = copy_pages(first, end - first);
    if (copy == MAP_FAILED)
        return false;
    memcpy(copy + (start - first), bytes, length);
    if (!close_copy(copy, end - first) || !take_place(copy, end - first, first)) {
        munmap(copy, end - first);
        return false;
    }
    return true;
}

/* ---- changes that are prepared ---- */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The copy of a page; NULL: there is no room or no memory. */
static uint8_t *copy_of(struct code_changes *changes, uintptr_t page)
{
    for (size_t i = 0; i < changes->count; i++)
        if (changes->pages[i] == page)
            return changes->copies[i];
    uint8_t *copy = changes->count == CODE_PAGES ? MAP_FAILED : copy_pages(page, page_size());
    if (copy == MAP_FAILED)
        return NULL;
    changes->pages[changes->count] = page;
    changes->copies[changes->count++] = copy;
    return copy;
}

bool code_changes_add(struct code_changes *changes, void *at, const void *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        uintptr_t address = (uintptr_t)at + i, page = address & -(uintptr_t)page_size();
        uint8_t *copy = copy_of(changes, page);
        if (copy == NULL)
            return false;
        copy[address - page] = ((const uint8_t *)bytes)[i];
    }
    return true;
}

bool code_changes_close(struct code_changes *changes)
{
    bool is_closed = true;
    for (size_t i = 0; i < changes->count; i++)
        is_closed = close_copy(changes->copies[i], page_size()) && is_closed;
    return is_closed;
}

bool code_changes_make(struct code_changes *changes)
{
    for (size_t i = 0; i < changes->count; i++) {
        if (!take_place(changes->copies[i], page_size(), changes->pages[i]))
            return false;
        changes->copies[i] = NULL;
    }
    return true;
}

void code_changes_drop(struct code_changes *changes)
{
    for (size_t i = 0; i < changes->count; i++)
        if (changes->copies[i] != NULL)
            munmap(changes->copies[i], page_size());
    changes->count = 0;
}

/* Old kernels take the address for advice. */
static bool map_at(struct code_room *room, uintptr_t at)
{
    void *page =
        mmap((void *)at, room->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (page == (void *)at)
        room->start = page;
    else if (page != MAP_FAILED)
        munmap(page, room->length);
    return room->start != NULL;
}

/* Below the object if possible: the heap of an executable grows above it. */
bool code_room_open(struct code_room *room, uintptr_t object, size_t length)
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), first = object & -page_bytes, step = UINT64_C(1) << 20;
    *room = (struct code_room){.length = (length + page_bytes - 1) & -page_bytes};
    for (uintptr_t away = step; away < CODE_ROOM_REACH; away += step) {
        if (first > away + step && map_at(room, first - away))
            return true;
    }
    for (uintptr_t away = step; away < CODE_ROOM_REACH; away += step) {
        if (map_at(room, first + away))
            return true;
    }
    return false;
}

bool code_room_close(struct code_room *room)
{
    make_seen(room->start, room->used);
    return mprotect(room->start, room->length, PROT_READ | PROT_EXEC) == 0;
}

static void add(struct code_room *room, const void *bytes, size_t length)
{
    memcpy(room->start + room->used, bytes, length);
    room->used += length;
}

#if defined(__x86_64__)

/* jmp *0(%rip), and the address behind it: it needs no register. */
static void add_jump(struct code_room *room, uintptr_t to)
{
    static const uint8_t jump[] = {0xff, 0x25, 0, 0, 0, 0};
    add(room, jump, sizeof jump);
    add(room, &to, sizeof to);
}

size_t code_beginning(const uint8_t *at, size_t room, size_t *distance_at)
{
    return instructions_of_start(at, room, CODE_JUMP_BYTES, distance_at);
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

/* jmp */
static bool make_near_jump(uint8_t jump[CODE_JUMP_BYTES], uintptr_t at, uintptr_t to)
{
    int64_t distance = (int64_t)(to - (at + CODE_JUMP_BYTES));
    int32_t near = (int32_t)distance;
    jump[0] = 0xe9;
    memcpy(jump + 1, &near, sizeof near);
    return near == distance;
}

#else

/* ldr x16, 8; br x16; and the address behind them. Functions may change x16 where they begin. */
static void add_jump(struct code_room *room, uintptr_t to)
{
    static const uint32_t jump[] = {0x58000050, 0xd61f0200};
    add(room, jump, sizeof jump);
    add(room, &to, sizeof to);
}

/* b */
static bool make_near_jump(uint8_t jump[CODE_JUMP_BYTES], uintptr_t at, uintptr_t to)
{
    int64_t distance = (int64_t)(to - at) / AARCH64_BYTES;
    uint32_t code = 0x14000000 | ((uint32_t)distance & 0x3ffffff);
    memcpy(jump, &code, sizeof code);
    return distance >= -(1 << 25) && distance < 1 << 25;
}

size_t code_beginning(const uint8_t *at, size_t room, size_t *distance_at)
{
    uint32_t first;
    *distance_at = 0;
    if (room < sizeof first)
        return 0;
    memcpy(&first, at, sizeof first);
    return aarch64_may_move(first) ? sizeof first : 0;
}

/* The jump back is a direct one: it may go where indirect ones may not (bti). */
void *code_room_original(struct code_room *room, const void *at, size_t length, size_t distance_at)
{
    uint8_t *start = room->start + room->used, jump[CODE_JUMP_BYTES];
    (void)distance_at;
    add(room, at, length);
    if (!make_near_jump(jump, (uintptr_t)room->start + room->used, (uintptr_t)at + length))
        return NULL;
    add(room, jump, sizeof jump);
    return start;
}

#endif

void *code_room_jump(struct code_room *room, void (*function)(void))
{
    void *start = room->start + room->used;
    add_jump(room, (uintptr_t)function);
    return start;
}

bool code_changes_add_jump(struct code_changes *changes, void *at, const void *to)
{
    uint8_t jump[CODE_JUMP_BYTES];
    return make_near_jump(jump, (uintptr_t)at, (uintptr_t)to) && code_changes_add(changes, at, jump, sizeof jump);
}

bool code_put_jump(void *at, const void *to)
{
    uint8_t jump[CODE_JUMP_BYTES];
    return make_near_jump(jump, (uintptr_t)at, (uintptr_t)to) && code_put(at, jump, sizeof jump);
}
