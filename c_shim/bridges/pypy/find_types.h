/* The part of the search that is about data: see find_types.c. */
#ifndef ALLOCSAMPLE_BRIDGES_PYPY_FIND_TYPES_H
#define ALLOCSAMPLE_BRIDGES_PYPY_FIND_TYPES_H

#include "find.h"
#include "image.h"

/* The table of types; their names are in the search's room then, if it can inflate them. */
__attribute__((visibility("hidden"))) bool pypy_find_types(const struct image *image, const struct pypy_search *search,
                                                           struct pypy_build *found, struct pypy_votes *votes);

/* Finds the list of all code objects, and the offsets of the fields in one. */
__attribute__((visibility("hidden"))) void pypy_find_codes(const struct image *image, struct pypy_build *found,
                                                           const char *names, struct pypy_votes *votes);

static inline bool pypy_is_unanimous(struct pypy_votes votes)
{
    return votes.winner > 0 && votes.winner == votes.all;
}

#endif
