/* Declarations shared by the parts of the .NET bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_DOTNET_H
#define ALLOCSAMPLE_BRIDGES_DOTNET_H

#include "allocsample.h"
#include "bridge.h"
#include "dotnet/clr.h"
#include "kit/watches.h"

/* ---- profiler.c ---- */

/* The profiler's object, for the runtime. */
HIDDEN clr_object dotnet_profiler(void);

/* Resumes after a detach. Returns false if the runtime has not loaded us yet. */
HIDDEN bool dotnet_resume(void);

/* The runtime draws no more samples for us. */
HIDDEN void dotnet_detach(void);

HIDDEN void dotnet_after_fork_in_child(void);

/* ---- stacks.c ---- */

#define DOTNET_DEPTH 512

HIDDEN void dotnet_stacks_prepare(clr_object info);

/* The managed frames of the calling thread: how many, up to DOTNET_DEPTH. */
HIDDEN size_t dotnet_stack(allocsample_frame *frames);

/* ---- draws.c: objects that the runtime's events report ---- */

/* The mean gap of the runtime's own samples, and the bytes after which it reports an object otherwise. */
#define DOTNET_OWN_INTERVAL 102400

HIDDEN void dotnet_draws_prepare(const allocsample_hooks *hooks, allocsample_heap *heap, clr_object info);

/* The events AllocationSampled and AllocationTick. */
HIDDEN void dotnet_draw_sampled(const uint8_t *data, size_t bytes);
HIDDEN void dotnet_draw_tick(const uint8_t *data, size_t bytes);

/* Has the profile say what the figures of AllocationTick are worth. */
HIDDEN void dotnet_draws_note(void);

/* An object of the heap of large objects, which is reported without an event. */
HIDDEN void dotnet_draw_large(uintptr_t object, size_t size, uintptr_t class);

/* The collector gives out multiples of 8. */
static inline size_t dotnet_rounded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

/* ---- launch.c ---- */

/* The profiler's class, chosen once for this profiler. */
#define DOTNET_CLASS_TEXT "{5A1C0C5E-6B0E-4D0B-9B53-2F6E0C1D7A41}"
#define DOTNET_CLASS_ID                                                                                                \
    (clr_guid) { 0x5e, 0x0c, 0x1c, 0x5a, 0x0e, 0x6b, 0x0b, 0x4d, 0x9b, 0x53, 0x2f, 0x6e, 0x0c, 0x1d, 0x7a, 0x41 }

/* Takes back what made the runtime load us, before the program's own code can see it or hand it to its children. */
HIDDEN void dotnet_launched(clr_object info);

/* ---- attach.c ---- */

HIDDEN void dotnet_attach(void);

/* ---- names.c: inside callbacks of the runtime alone ---- */

/* False: there is no memory. */
HIDDEN bool dotnet_names_prepare(const allocsample_hooks *hooks, allocsample_heap *heap, clr_object info);

HIDDEN void dotnet_names_has_module(uintptr_t module);
HIDDEN void dotnet_names_lose_module(uintptr_t module);

/* The number of a class's type; 0 if it cannot be named now. */
HIDDEN uint32_t dotnet_type(uintptr_t class);

/* The frame of a method's code at an address. Its function is 0 if it cannot be named now. */
HIDDEN allocsample_frame dotnet_frame(uintptr_t function, uintptr_t address);

HIDDEN void dotnet_names_after_fork_in_child(void);

/* ---- lines.c ---- */

struct dotnet_symbols;

/* The PDB beside a module's file, if it is the module's; NULL: there is none. It stays for ever. */
HIDDEN const struct dotnet_symbols *dotnet_symbols_of(const char *module_path);

/* The line of a place in a method's code, by its offset in the intermediate language; 0: none is known. The path of its file is
 * written to `file`, cut to `size` bytes. */
HIDDEN uint32_t dotnet_line(const struct dotnet_symbols *symbols, uint32_t token, uint32_t il_offset, char *file, size_t size);

/* ---- watch.c: what became of sampled objects ---- */

/* False: there is no memory. */
HIDDEN bool dotnet_watch_prepare(const allocsample_hooks *hooks, allocsample_heap *heap, clr_object info);

/* See watches.h. */
HIDDEN struct watch *dotnet_watch_take(void);
HIDDEN uintptr_t dotnet_watch_key(const struct watch *watch);
HIDDEN void dotnet_watch_give_back(struct watch *watch);

/* The object is a sample. On the thread that allocates it, which no collection interrupts; a watch that is NULL does nothing. */
HIDDEN void dotnet_watch_begin(struct watch *watch, uintptr_t object);

/* A collection of the generations up to this one has ended: reports the dead. */
HIDDEN void dotnet_watch_after_collection(uint32_t oldest);

/* ---- ranges.c: where the heap is ---- */

HIDDEN void dotnet_ranges_prepare(const allocsample_hooks *hooks, allocsample_heap *heap, clr_object info);

/* The runtime has named this region of the heap. */
HIDDEN void dotnet_ranges_add(const struct clr_range *region);

/* An object was sampled: learns its region. On the thread that allocates it. */
HIDDEN void dotnet_ranges_find(uintptr_t object);

#endif
