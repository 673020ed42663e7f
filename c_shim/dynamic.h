/* What the dynamic section of a loaded object says of its relocations and symbols. */
#ifndef ALLOCSAMPLE_DYNAMIC_H
#define ALLOCSAMPLE_DYNAMIC_H

#include <link.h>

#include "shim.h"

struct shim_dynamic {
    uintptr_t bias;
    const ElfW(Sym) *symbols;
    const char *names;
    uintptr_t relro_start, relro_end;
    const ElfW(Phdr) *segments;
    size_t segment_count;
    const ElfW(Rela) *tables[2];
    size_t counts[2];
};

/* False: the object has no symbols. `page_bytes` is the size of a page, or 1 if relro_start and relro_end do not matter. */
HIDDEN bool shim_read_dynamic(const struct dl_phdr_info *info, uintptr_t page_bytes, struct shim_dynamic *object);
/* The value of the dynamic section's last entry with this tag; 0 if there is none. */
HIDDEN uintptr_t shim_dynamic_value(const struct dl_phdr_info *info, ElfW(Sxword) tag);
/* The symbol `name` that the object defines, or NULL. */
HIDDEN const ElfW(Sym) *shim_look_up(const struct dl_phdr_info *info, const struct shim_dynamic *object, const char *name);
/* Whether a part of the object that is mapped from its file holds the address. */
HIDDEN bool shim_holds(const struct dl_phdr_info *info, uintptr_t address);

#endif
