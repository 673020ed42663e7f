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

/* Takes what the links need from libgc; false if it lacks it. */
HIDDEN bool libgc_links_prepare(const allocsample_hooks *hooks, allocsample_heap *heap);
/* Has libgc say when it finds the sampled block dead. The caller holds no lock of libgc's. */
HIDDEN void libgc_link(const void *block);
/* The sampled block is freed by the program. */
HIDDEN void libgc_unlink(const void *block);
/* Tells of the blocks that libgc has found dead. At the end of a collection, when threads run. */
HIDDEN void libgc_tell_dead(void);
HIDDEN void libgc_links_after_fork_in_child(void);

#endif
