/* The bridges to language runtimes that find their runtime by themselves: what each has for `bridges.c` to call. */
#ifndef ALLOCSAMPLE_BRIDGES_H
#define ALLOCSAMPLE_BRIDGES_H

#include "shim.h"

/* Joins the runtime if this process is one of it. Once, before `main`. */
HIDDEN void python_install(void);
HIDDEN void ruby_install(void);
HIDDEN void ocaml_install(void);
HIDDEN void v8_install(void);
HIDDEN void libgc_install(void);
HIDDEN void mono_install(void);
HIDDEN void jvm_install(void);
HIDDEN void lua_install(void);
HIDDEN void pypy_install(void); /* only if asked for: it changes code */

/* Records why a bridge does not join the runtime in this process: the heap it would have registered, then `what`, a space and
 * `why`. The strings must be literals. Call only from `..._install`. */
HIDDEN void bridges_decline(const char *heap, const char *what, const char *why);

/* The same in a process that runs, while its threads do, and the way back. As often as one likes, by one thread at a time. */
HIDDEN void python_attach(void);
HIDDEN void python_detach(void);

/* Sets free what another thread of the parent held. */
HIDDEN void python_after_fork_in_child(void);
HIDDEN void ruby_after_fork_in_child(void);
HIDDEN void lua_after_fork_in_child(void);
HIDDEN void ocaml_after_fork_in_child(void);
HIDDEN void v8_after_fork_in_child(void);
HIDDEN void libgc_after_fork_in_child(void);
HIDDEN void mono_after_fork_in_child(void);

#endif
