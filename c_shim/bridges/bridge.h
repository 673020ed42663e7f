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
    BRIDGE_APART = 3,    /* no bridge has it: compiled functions are to be kept apart, which makes the program slower */
};

struct bridge {
    const char *name;
    /* A symbol in the program's global scope by which the runtime is recognised. NULL: `join` finds out by itself. */
    const char *runtime_symbol;
    /* A symbol that identifies a conservative collector: one that stops threads with signals and scans their stacks. It is looked
     * up even if the bridge does not join. NULL: the runtime has no such collector. */
    const char *scanning_collector_symbol;
    enum bridge_group group;
    /* Joins the runtime. Once, before `main`: all objects of the program are loaded, none of its code has run. */
    void (*join)(void);
    /* Joins and leaves the runtime while the program's threads run. May be called repeatedly, by one thread at a time, and while no
     * object is unloaded. NULL: the bridge does not support attach. */
    void (*attach)(void);
    void (*detach)(void);
    /* On the agent's own thread, while the program's threads run and no object is unloaded: code of the object that starts at this
     * address has run. Not while a thread attaches or detaches. NULL: the bridge joins nothing that is loaded later. */
    void (*look)(uintptr_t object);
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
