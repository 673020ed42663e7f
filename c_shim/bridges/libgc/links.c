/* Deaths of libgc's blocks: each sampled block has a disappearing link, a word that libgc clears when it finds the block
 * dead. A link stays where it is until its block is gone. */
#define _GNU_SOURCE
#include "libgc.h"

#include <string.h>
#include <sys/mman.h>

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
static _Atomic(bool) lock;
static struct link *links;
static size_t used;      /* links beyond have never been taken */
static size_t last_free; /* where the search for a free one begins */

static void take_lock(void)
{
    while (atomic_exchange_explicit(&lock, true, memory_order_acquire))
        ;
}

static void release_lock(void)
{
    atomic_store_explicit(&lock, false, memory_order_release);
}

static struct link *take(uintptr_t key)
{
    struct link *found = NULL;
    take_lock();
    for (; last_free < used && found == NULL; last_free++)
        if (links[last_free].key == 0)
            found = &links[last_free];
    if (found == NULL && used < LINKS)
        found = &links[used++];
    if (found != NULL)
        *found = (struct link){(void *)key, key};
    release_lock();
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
    take_lock();
    give_back(link); /* libgc has no memory */
    release_lock();
}

void libgc_unlink(const void *block)
{
    struct link *found = NULL;
    take_lock();
    for (size_t i = 0; i < used && found == NULL; i++)
        if (links[i].key == libgc_hidden(block))
            found = &links[i];
    release_lock();
    if (found == NULL)
        return;
    libgc.remove(&found->hidden);
    take_lock();
    give_back(found);
    release_lock();
}

void libgc_tell_dead(void)
{
    take_lock();
    for (size_t i = 0; i < used; i++) {
        uintptr_t key = links[i].key;
        if (key == 0 || __atomic_load_n(&links[i].hidden, __ATOMIC_RELAXED) != NULL)
            continue;
        give_back(&links[i]);
        hooks->freed(heap, key);
    }
    release_lock();
}

bool libgc_links_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    void *add = shim_services.find_symbol("GC_general_register_disappearing_link");
    void *remove = shim_services.find_symbol("GC_unregister_disappearing_link");
    /* Pages of their own, which libgc does not search for references. */
    void *memory = mmap(NULL, LINKS * sizeof *links, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (add == NULL || remove == NULL || memory == MAP_FAILED)
        return false;
    memcpy(&libgc.add, &add, sizeof add);
    memcpy(&libgc.remove, &remove, sizeof remove);
    links = memory;
    hooks = the_hooks;
    heap = the_heap;
    return true;
}

void libgc_links_after_fork_in_child(void)
{
    release_lock();
}
