/* Deaths of libgc's blocks: each sampled block has a disappearing link, a word that libgc clears when it finds the block
 * dead. A link stays where it is until its block is gone. */
#define _GNU_SOURCE
#include "libgc.h"

#include "kit/lock.h"
#include "kit/memory.h"

#include <string.h>

/* Sampled blocks that are alive at once; of more, libgc is not asked. */
#define LINKS (1 << 18)

struct link {
    void *hidden;  /* libgc clears it */
    uintptr_t key; /* the same, which it does not clear; 0: the link is free */
};

static struct {
    int (*add)(void **link, const void *block);
    int (*remove)(void **link);
} libgc;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;

/* `lock` guards all of it. Nobody calls libgc while holding it, and libgc calls us while threads run. */
static bridge_lock lock;
static struct link *links;
static size_t used;      /* links beyond have never been taken */
static size_t last_free; /* where the search for a free one begins */

static struct link *take(uintptr_t key)
{
    struct link *found = NULL;
    lock_take(&lock);
    for (; last_free < used && found == NULL; last_free++)
        if (links[last_free].key == 0)
            found = &links[last_free];
    if (found == NULL && used < LINKS)
        found = &links[used++];
    if (found != NULL)
        *found = (struct link){(void *)key, key};
    lock_release(&lock);
    return found;
}

static void give_back(struct link *link)
{
    size_t index = (size_t)(link - links);
    *link = (struct link){0};
    if (index < last_free)
        last_free = index;
}

void libgc_link(const void *block)
{
    struct link *link = take(libgc_hidden(block));
    if (link == NULL || libgc.add(&link->hidden, block) == 0)
        return;
    lock_take(&lock);
    give_back(link); /* libgc has no memory */
    lock_release(&lock);
}

void libgc_unlink(const void *block)
{
    struct link *found = NULL;
    lock_take(&lock);
    for (size_t i = 0; i < used && found == NULL; i++)
        if (links[i].key == libgc_hidden(block))
            found = &links[i];
    lock_release(&lock);
    if (found == NULL)
        return;
    libgc.remove(&found->hidden);
    lock_take(&lock);
    give_back(found);
    lock_release(&lock);
}

void libgc_tell_dead(void)
{
    lock_take(&lock);
    for (size_t i = 0; i < used; i++) {
        uintptr_t key = links[i].key;
        if (key == 0 || __atomic_load_n(&links[i].hidden, __ATOMIC_RELAXED) != NULL)
            continue;
        give_back(&links[i]);
        hooks->freed(heap, key);
    }
    lock_release(&lock);
}

bool libgc_links_prepare(libgc_finder *find_function)
{
    void *add = find_function("GC_general_register_disappearing_link");
    void *remove = find_function("GC_unregister_disappearing_link");
    /* Pages of their own, which libgc does not search for references. */
    if (links == NULL)
        links = memory_map(LINKS * sizeof *links);
    if (add == NULL || remove == NULL || links == NULL)
        return false;
    memcpy(&libgc.add, &add, sizeof add);
    memcpy(&libgc.remove, &remove, sizeof remove);
    return true;
}

void libgc_links_are_of(const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    hooks = the_hooks;
    heap = the_heap;
}

void libgc_links_after_fork_in_child(void)
{
    lock_release(&lock);
}
