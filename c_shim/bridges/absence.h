/* Which symbols no loaded object defines, for the core. A look-up by the loader that fails costs it some thousand instructions, and
 * most processes have none of the runtimes. */
#ifndef ALLOCSAMPLE_BRIDGES_ABSENCE_H
#define ALLOCSAMPLE_BRIDGES_ABSENCE_H

#include "services.h"

#include <link.h>

/* Objects beyond these are not known, and then nothing is known to be absent. */
#define ABSENCE_OBJECTS 64

/* The filters (Bloom) of the loaded objects' hash tables, as DT_GNU_HASH has them. */
struct absence {
    struct absence_filter {
        const ElfW(Addr) *words;
        uint32_t count, shift;
    } filters[ABSENCE_OBJECTS];
    size_t count;
    bool is_complete;
};

/* Reads the filters, which are valid until an object is unloaded. Takes the loader's lock. */
HIDDEN void absence_read(struct absence *absence);

/* True: no object defines the symbol. False: one may. */
HIDDEN bool absence_of(const struct absence *absence, const char *symbol);

#endif
