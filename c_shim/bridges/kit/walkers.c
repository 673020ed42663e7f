/* See walkers.h. */
#define _GNU_SOURCE
#include "kit/walkers.h"

#include "kit/memory.h"
#include "kit/thread_pointer.h"

bool walkers_make(struct walkers *walkers, size_t count, size_t bytes)
{
    void *first = memory_map(count * bytes);
    if (first != NULL)
        *walkers = (struct walkers){first, count, bytes};
    return first != NULL;
}

static struct walker *walker_at(const struct walkers *walkers, size_t index)
{
    return (struct walker *)(void *)((char *)walkers->first + index % walkers->count * walkers->bytes);
}

struct walker *walkers_begin(struct walkers *walkers, struct foreign_reader *reader)
{
    uintptr_t thread = (uintptr_t)thread_pointer();
    size_t own = (thread >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    for (size_t i = 0; i < walkers->count; i++) {
        struct walker *walker = walker_at(walkers, own + i);
        if (atomic_exchange_explicit(&walker->lock, true, memory_order_acquire))
            continue;
        foreign_lines_begin(&walker->lines, thread);
        foreign_reader_begin(reader, &walker->lines);
        return walker;
    }
    return NULL;
}

void walkers_end(struct walker *walker)
{
    foreign_lines_end(&walker->lines, (uintptr_t)thread_pointer());
    lock_release(&walker->lock);
}

void walkers_after_fork_in_child(struct walkers *walkers)
{
    for (size_t i = 0; i < walkers->count; i++)
        lock_release(&walker_at(walkers, i)->lock);
}
