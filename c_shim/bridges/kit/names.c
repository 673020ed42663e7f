/* See names.h. */
#define _GNU_SOURCE
#include "kit/names.h"

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

uint32_t names_function(struct names *names, const allocsample_hooks *hooks, allocsample_heap *heap, const char *name,
                        const char *file, uint32_t first_line)
{
    bool is_new;
    uint64_t hash = names_hash(names_hash(NAMES_SEED, name), file) + first_line;
    uint32_t number = names_number(names, hash + (hash == 0), &is_new);
    if (is_new)
        hooks->define_function(heap, number, name, file, first_line);
    return number;
}

void names_after_fork_in_child(struct names *names)
{
    atomic_store_explicit(&names->lock, false, memory_order_relaxed);
}
