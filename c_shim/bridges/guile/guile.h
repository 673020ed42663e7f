/* What the files of the bridge to Guile share: guile.c joins it, frames.c reads the stacks of its virtual machine, code.c finds
 * what code an address is in, lines.c finds its line. */
#ifndef ALLOCSAMPLE_BRIDGES_GUILE_H
#define ALLOCSAMPLE_BRIDGES_GUILE_H

#include "allocsample.h"
#include "bridge.h"

struct guile {
    const allocsample_hooks *hooks;
    allocsample_heap *heap;
};

/* ---- frames.c ---- */

/* Once. False: there is no memory. */
HIDDEN bool guile_frames_make(void);
/* Frames are read as `guile` says from now on; NULL: there are none. */
HIDDEN void guile_frames_are_of(const struct guile *guile);
HIDDEN size_t guile_frames_walk(void *user, allocsample_frame *frames, size_t capacity);
HIDDEN void guile_frames_after_fork_in_child(void);

/* ---- code.c ---- */

/* A file of compiled code in memory. Places are addresses. */
struct guile_image {
    uintptr_t base, end;
    uintptr_t text, text_end;
    uintptr_t symbols, symbols_end, strings, strings_end;
    uintptr_t lines, lines_end;
    struct guile_marks *_Atomic marks; /* of lines.c; NULL until the first search leaves one */
};

HIDDEN bool guile_code_make(void);
/* The frame of the code at `ip`. Its function is 0 if it is not Scheme's. */
HIDDEN allocsample_frame guile_code_frame(const struct guile *guile, uintptr_t ip);
HIDDEN void guile_code_after_fork_in_child(void);

/* ---- lines.c ---- */

/* The line of the code at `ip`, 0 if it is not known, and its file. */
HIDDEN uint32_t guile_lines_find(struct guile_image *image, uintptr_t ip, char *file, size_t room);
HIDDEN void guile_lines_after_fork_in_child(void);

#endif
