/* What a tcmalloc counts itself: gperftools' by `MallocExtension_GetNumericProperty`, its public C interface, the same since 2.0, and
 * Google's own by the function behind `tcmalloc::MallocExtension::GetNumericProperty`. Both take the locks of the page heap and of the
 * central lists one after the other, so they are called as asking.h says. */
#ifndef ALLOCSAMPLE_BRIDGES_TCMALLOC_H
#define ALLOCSAMPLE_BRIDGES_TCMALLOC_H

#include "bridge.h"

#define GPERFTOOLS_GET_PROPERTY "MallocExtension_GetNumericProperty"
typedef int gperftools_get_property(const char *name, size_t *value);

#define GOOGLE_GET_PROPERTY "MallocExtension_Internal_GetNumericProperty"
typedef bool google_get_property(const char *name, size_t length, size_t *value);

/* Fills in the figures. False: it does not know how much is allocated. */
HIDDEN bool gperftools_count(gperftools_get_property *get_property, uint64_t bytes[OWN_FIGURES]);
HIDDEN bool google_count(google_get_property *get_property, uint64_t bytes[OWN_FIGURES]);

#endif
