/* Declarations shared by the parts of the libgc bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_LIBGC_H
#define ALLOCSAMPLE_BRIDGES_LIBGC_H

#include "allocsample.h"
#include "bridge.h"

/* A block's address as we keep it: libgc takes every word of ours that looks like one for a reference. */
static inline uintptr_t libgc_hidden(const void *block)
{
    return ~(uintptr_t)block;
}

/* Finds a function of libgc's, or NULL. */
typedef void *libgc_finder(const char *name);

/* ---- collections.c ---- */

typedef void (*libgc_on_event)(int event);

/* Functions of libgc. */
struct libgc_events {
    void (*set_callback)(libgc_on_event callback);
    libgc_on_event (*get_callback)(void);
    size_t (*heap_size)(void);
};

/* From now on collections may be watched. */
HIDDEN void libgc_collections_begin(const allocsample_hooks *hooks, allocsample_heap *heap, const struct libgc_events *events);
/* Nor any more. On any thread. */
HIDDEN void libgc_collections_end(void);
HIDDEN bool libgc_is_watched(void);
/* Has libgc report collections. libgc is initialised, and the caller does not hold its lock. */
HIDDEN void libgc_watch(void);
/* Reports the size of libgc's heap. */
HIDDEN void libgc_tell_heap(void);
/* The program's own callback, which ours calls. */
HIDDEN void libgc_set_users_callback(libgc_on_event callback);
HIDDEN libgc_on_event libgc_users_callback(void);
HIDDEN void libgc_collections_after_fork_in_child(void);

/* ---- roots.c ---- */

/* Takes what it needs from libgc, if libgc has it. */
HIDDEN void libgc_roots_prepare(libgc_finder *find_function);
/* Has libgc leave our own data out. On a thread of the program's that does not hold libgc's lock, as libgc may take none. */
HIDDEN void libgc_exclude_own_data(void);

/* ---- links.c ---- */

/* Takes what the links need from libgc. False: it lacks that, or there is no memory. */
HIDDEN bool libgc_links_prepare(libgc_finder *find_function);
/* Blocks are of this heap. Before any is linked. */
HIDDEN void libgc_links_are_of(const allocsample_hooks *hooks, allocsample_heap *heap);
/* Has libgc say when it finds the sampled block dead. The caller holds no lock of libgc's. */
HIDDEN void libgc_link(const void *block);
/* The sampled block is freed by the program. */
HIDDEN void libgc_unlink(const void *block);
/* Tells of the blocks that libgc has found dead. At the end of a collection, when threads run. */
HIDDEN void libgc_tell_dead(void);
HIDDEN void libgc_links_after_fork_in_child(void);

#endif
