/* What gperftools' tcmalloc counts itself: by `MallocExtension_GetNumericProperty`, its public C interface, the same since 2.0. It
 * takes the locks of its page heap and of its central lists one after the other, so it is called as asking.h says. */
#ifndef ALLOCSAMPLE_BRIDGES_GPERFTOOLS_H
#define ALLOCSAMPLE_BRIDGES_GPERFTOOLS_H

#include "bridge.h"

#define GPERFTOOLS_GET_PROPERTY "MallocExtension_GetNumericProperty"
typedef int gperftools_get_property(const char *name, size_t *value);

/* Fills in the figures. False: it does not know how much is allocated. */
HIDDEN bool gperftools_count(gperftools_get_property *get_property, uint64_t bytes[OWN_FIGURES]);

#endif
