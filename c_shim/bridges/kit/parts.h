/* The part of a function that the compiler has put elsewhere, because it expects it to run rarely (GCC's `.cold`). */
#ifndef ALLOCSAMPLE_BRIDGES_PARTS_H
#define ALLOCSAMPLE_BRIDGES_PARTS_H

#include "bridge.h"

/* Finds that part of the function whose other part is known, by the jumps that lead there. False: there is none, or it cannot be
 * told. Not in a signal handler. */
HIDDEN bool parts_elsewhere(uintptr_t start, uintptr_t end, uintptr_t *other_start, uintptr_t *other_end);

#endif
