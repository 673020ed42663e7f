/* What the bridges share: numbers for names, and where a machine's native code is. */
#define _GNU_SOURCE
#include "names.h"

#include <link.h>
#include <sys/mman.h>

#define ENTRIES (1u << 15)

struct names_entry {
    uint64_t hash;
    uint32_t number;
};

bool names_make(struct names *names)
{
    void *memory = mmap(NULL, ENTRIES * sizeof *names->entries, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    names->entries = memory == MAP_FAILED ? NULL : memory;
    return names->entries != NULL;
}

/* False after some microseconds: whoever holds it was stopped, or is what a signal handler on this thread interrupted. */
static bool take_lock(struct names *names)
{
    for (int patience = 0; patience < 1000; patience++) {
        if (!atomic_exchange_explicit(&names->lock, true, memory_order_acquire))
            return true;
    }
    return false;
}

uint32_t names_number(struct names *names, uint64_t hash, bool *is_new)
{
    uint32_t number = 0;
    *is_new = false;
    if (!take_lock(names))
        return 0;
    for (uint32_t i = 0; i < 64 && number == 0; i++) {
        struct names_entry *entry = &names->entries[(hash + i) % ENTRIES];
        if (entry->hash == 0) {
            *entry = (struct names_entry){hash, ++names->used};
            *is_new = true;
        }
        if (entry->hash == hash)
            number = entry->number;
    }
    atomic_store_explicit(&names->lock, false, memory_order_release);
    return number;
}

void names_after_fork_in_child(struct names *names)
{
    atomic_store_explicit(&names->lock, false, memory_order_relaxed);
}

struct search {
    uintptr_t address, start, end;
};

static int look_at(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct search *search = argument;
    (void)size;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr, end = start + segment->p_memsz;
        if (segment->p_type != PT_LOAD || (segment->p_flags & PF_X) == 0 || search->address < start ||
            search->address >= end)
            continue;
        search->start = start;
        search->end = end;
        return 1;
    }
    return 0;
}

bool names_code_of(const void *address, uintptr_t *start, uintptr_t *end)
{
    struct search search = {.address = (uintptr_t)address};
    if (dl_iterate_phdr(look_at, &search) == 0)
        return false;
    *start = search.start;
    *end = search.end;
    return true;
}
