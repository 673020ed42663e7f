/* Slots of loaded objects: relocations that hold addresses of functions. redirect.c decides what is put there. */
#ifndef ALLOCSAMPLE_SLOTS_H
#define ALLOCSAMPLE_SLOTS_H

#include "dynamic.h"

#if defined(__x86_64__)
#define RELOCATION_SLOT R_X86_64_JUMP_SLOT
#define RELOCATION_ADDRESS R_X86_64_GLOB_DAT
#define IS_ADDRESS(type) ((type) == RELOCATION_ADDRESS || (type) == R_X86_64_64)
#elif defined(__aarch64__)
#define RELOCATION_SLOT R_AARCH64_JUMP_SLOT
#define RELOCATION_ADDRESS R_AARCH64_GLOB_DAT
#define IS_ADDRESS(type) ((type) == RELOCATION_ADDRESS || (type) == R_AARCH64_ABS64)
#endif

enum slot_outcome { STORED, NOT_NOW, NOT_OURS };

/* Pages of RELRO memory that can be written to while slots in them are stored to; none: no bytes. */
struct shim_window {
    uintptr_t start;
    size_t bytes;
};
/* One store, which other threads see whole. Opens a window for it, and closes another one. */
HIDDEN enum slot_outcome shim_slot_store(uintptr_t page_bytes, struct shim_window *window, const struct shim_dynamic *object,
                                         uintptr_t *slot, const void *value);
/* After the last slot of an object. */
HIDDEN void shim_close_window(struct shim_window *window);
/* Whether the slot is still as the linker left it: its first call goes to the loader, which binds it. The address is then
 * that of the slot's own stub, never that of a function: a program that has put a hook of its own there keeps it. */
HIDDEN bool shim_slot_is_unbound(const struct shim_dynamic *object, const ElfW(Rela) *relocation, uintptr_t held);
/* Whether the slot is as its file has it, before the loader relocates it: the object is being loaded. Of slots in tables of the
 * linker's only: a pointer in data may be cleared by the program. */
HIDDEN bool shim_slot_is_untouched(const struct shim_dynamic *object, const ElfW(Rela) *relocation, uintptr_t held);

#endif
