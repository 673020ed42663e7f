/* See names.h. */
#define _GNU_SOURCE
#include "kit/names.h"
#include "kit/memory.h"

#define ENTRIES (1u << 15)

struct names_entry {
    uint64_t hash;
    uint32_t number;
};

bool names_make(struct names *names)
{
    names->entries = memory_map(ENTRIES * sizeof *names->entries);
    return names->entries != NULL;
}

uint32_t names_number(struct names *names, uint64_t hash, bool *is_new)
{
    uint32_t number = 0;
    *is_new = false;
    if (!lock_try(&names->lock))
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
    lock_release(&names->lock);
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
    lock_release(&names->lock);
}
