/* Rights and system calls that the process has given up. */
#ifndef ALLOCSAMPLE_CONFINEMENT_H
#define ALLOCSAMPLE_CONFINEMENT_H

#include "shim.h"

/* A filter of system calls is in force, or is just being installed. */
HIDDEN bool shim_is_filtered(void);

#endif
