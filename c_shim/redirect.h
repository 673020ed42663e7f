/* Slots through which the program itself calls functions. */
#ifndef ALLOCSAMPLE_REDIRECT_H
#define ALLOCSAMPLE_REDIRECT_H

#include "shim.h"

/* Has the program's own calls of a function (not those of libraries) come to `own`. In the constructor: nobody else loads
 * objects, or runs. */
HIDDEN void shim_redirect_in_program(const char *name, void *own);

#endif
