/* The agent in a process that did not start with it: calls of the allocator are redirected in the loaded objects.
 *
 * An object calls malloc through a slot of its own (in its global offset table, or a pointer in its data), which the
 * loader has filled with the address of the allocator's function. We put ours there, and the allocator's back when we
 * leave. No table of changes is kept: a slot is known by its relocation, and by what is in it. */
#ifndef ALLOCSAMPLE_ATTACH_H
#define ALLOCSAMPLE_ATTACH_H

#include "interposed.h"

/* How a pass over all objects went. */
struct shim_pass {
    /* Slots that hold our address now, or that of the next function after a pass back. */
    uint64_t slots;
    /* Slots that were to be changed and could not be yet: an object is being loaded. */
    uint64_t pending;
    /* Slots that were left alone: memory cannot be written to, or nobody knows which function they would come to hold. */
    uint64_t unsure;
};
_Static_assert(sizeof(struct shim_pass) == 24 && offsetof(struct shim_pass, pending) == 8 &&
                   offsetof(struct shim_pass, unsure) == 16,
               "src/preload/attach.rs mirrors this layout");

/* Finds the next functions from an object that was opened late. Inside of its constructor, when the loader's lock is
 * held: nobody loads or unloads objects meanwhile. False: there is no allocator that could be the next. */
HIDDEN bool shim_prepare_late(void);
/* Whether that was done. */
HIDDEN bool shim_is_late(void);
/* The next function `name`, or NULL if it is not redirected. */
HIDDEN void *shim_late_symbol(const char *name);

/* Finds our own functions and their next ones in a process that started with us, for objects that are bound past us. Any thread. */
HIDDEN void shim_prepare_early(void);

/* See services.h. */
HIDDEN void shim_find_definitions(struct shim_redirection *rows, size_t count);

/* Puts our functions into all slots. Any thread that holds no lock of the loader. */
HIDDEN void shim_redirect(struct shim_pass *pass);
/* Puts the next functions back. Blocks that we counted are freed by the next allocator, which they came from. */
HIDDEN void shim_restore(struct shim_pass *pass);
/* Has our functions besides malloc's kin redirected. */
HIDDEN void shim_enable_extensions(void);
/* Redirects them now, and in objects that are loaded later, if malloc's object has them. In the constructor. */
HIDDEN void shim_redirect_extensions(void);

/* How many objects the loader has added and removed so far, in all namespaces, and how many are on its list of ours. */
struct shim_loaded {
    uint64_t adds, subs;
    size_t objects;
};
HIDDEN void shim_count_loaded(struct shim_loaded *loaded);
/* Whether calls are redirected in all objects, those that come later too: between shim_redirect and shim_restore. */
HIDDEN bool shim_is_redirecting(void);
/* Puts our functions into the slots of objects that came after `before` was counted, by the calling thread, which holds no lock
 * but the loader's. */
HIDDEN void shim_redirect_loaded_since(const struct shim_loaded *before);
/* Likewise of objects that no pass has seen, if calls are redirected in all. */
HIDDEN void shim_redirect_what_is_new(void);
/* Calls of dlsym come to us where calls are redirected in all objects. */
HIDDEN void shim_enable_look_ups(void);
/* A forked child has no other thread that could be in a pass. */
HIDDEN void shim_redirect_after_fork_in_child(void);

#endif
