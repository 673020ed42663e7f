/* A bridge joins one language runtime: this is all that the core knows of it.
 *
 * A bridge is a folder here and a row in list.def. It defines `const struct bridge bridge_NAME`, uses the hook ABI
 * (allocsample.h), `shim_services`, and what kit/ has; names that it exports to the program or its runtime stand in a file
 * `exports` in its folder, one a line. Nothing else names it. */
#ifndef ALLOCSAMPLE_BRIDGES_BRIDGE_H
#define ALLOCSAMPLE_BRIDGES_BRIDGE_H

#include "allocsample.h"
#include "services.h"

/* What the user asks for: numbers of bits. src/preload/start.rs has the same. */
enum bridge_group {
    BRIDGE_RUNTIME = 0,  /* language runtimes */
    BRIDGE_PYPY = 1,     /* only on request: the bridge changes code of the runtime */
    BRIDGE_EMBEDDED = 2, /* only on request: the allocator becomes slower */
    BRIDGE_APART = 3,    /* no bridge is in it: asks runtimes to compile without inlining, which makes the program slower */
    BRIDGE_NAMED = 4,    /* nor in this: has runtimes that inline functions name them */
    BRIDGE_RECOMPILED = 5, /* nor in this: after an attach they compile everything again for it, whatever the size of the heap */
    BRIDGE_OBJECTS = 6, /* nor in this: has runtimes report objects that they report at a high cost only */
};

/* Figures that an allocator counts itself, in bytes; src/record/own.rs has the same numbers. */
enum bridge_own_figure {
    OWN_ALLOCATED = 0, /* blocks in use, with what their sizes were rounded up by and what its caches keep */
    OWN_ACTIVE = 1,    /* pages with such blocks */
    OWN_METADATA = 2,
    OWN_RESIDENT = 3, /* all of it that may be resident, free pages included */
    OWN_RETAINED = 4, /* mapped, and given back to the kernel */
    OWN_FIGURES,
};
#define OWN_UNKNOWN UINT64_MAX

/* What one allocator says of itself. */
struct bridge_own {
    const allocsample_heap *heap; /* NULL: malloc's */
    uint64_t bytes[OWN_FIGURES];  /* or OWN_UNKNOWN */
};

struct bridge {
    const char *name;
    /* A symbol in the program's global scope by which the runtime is recognised. NULL: `join` finds out by itself. */
    const char *runtime_symbol;
    /* A symbol that identifies a conservative collector: one that stops threads with signals and scans their stacks. It is looked
     * up even if the bridge does not join. NULL: the runtime has no such collector. */
    const char *scanning_collector_symbol;
    enum bridge_group group;
    /* Joins the runtime. Once, before `main`: all objects of the program are loaded, none of its code has run. It may register, define
     * and decline, but not record: a marker would begin the recording too early, and what its thread allocates would count twice. */
    void (*join)(void);
    /* Joins and leaves the runtime while the program's threads run: they may call a heap's walker from heap_register on, so what it reads
     * must be there before. May be called repeatedly, by one thread at a time, and while no
     * object is unloaded. NULL: the bridge does not support attach. */
    void (*attach)(void);
    void (*detach)(void);
    /* On the agent's own thread, while the program's threads run and no object is unloaded: code of the object that starts at this
     * address has run. Not while a thread attaches or detaches. False: the runtime is not ready, ask again later. NULL: the bridge
     * joins nothing that is loaded later. */
    bool (*look)(uintptr_t object);
    /* Whether `look` would join a library of this file name. On a thread of the program that allocates: it reads its own variables
     * only. The first stack through such a library starts the agent's own thread, which otherwise looks when the ring has filled
     * up. NULL: no library is worth that. */
    bool (*awaits)(const char *file);
    /* Under the conditions of `look`: what the allocators count themselves. Returns how many it wrote to `own`. It must come back
     * soon, whatever locks the program holds. NULL: they are not asked. */
    size_t (*count)(struct bridge_own *own, size_t room);
    /* The program has called `dlclose`: objects may be gone. NULL: the bridge does not mind. */
    void (*after_dlclose)(void);
    /* In a forked child: releases locks that other threads of the parent held. NULL: there are none. */
    void (*after_fork_in_child)(void);
};

/* The bridges, from list.def. */
#define BRIDGE(NAME) extern HIDDEN const struct bridge bridge_##NAME;
#include "list.def"
#undef BRIDGE

#endif
