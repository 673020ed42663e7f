/* What the files of the bridge to Erlang's BEAM share: beam.c joins it, allocators.c samples its blocks, image.c searches its
 * executable, code.c names its functions, frames.c walks the stack of the process that a scheduler runs. */
#ifndef ALLOCSAMPLE_BRIDGES_BEAM_H
#define ALLOCSAMPLE_BRIDGES_BEAM_H

#include "allocsample.h"
#include "bridge.h"

/* For searches that may come too early: whether to search at this attempt. The first thousand count, and then ever fewer. */
static inline bool beam_is_due(unsigned *attempts)
{
    unsigned attempt = (*attempts)++;
    return attempt < 1000 || (attempt & (attempt - 1)) == 0;
}

/* ---- image.c: words in the data of the executable ---- */

/* Return true to end the search. `place` is a word, with `words` words from it to the end of its segment. */
typedef bool beam_visitor(void *argument, const uintptr_t *place, size_t words);

/* Looks up where the executable that holds this function is. */
HIDDEN bool beam_image_find(const void *function);
/* Visits every aligned word of its writable segments; true if a visit ended the search. */
HIDDEN bool beam_image_search(beam_visitor *visit, void *argument);
HIDDEN bool beam_image_is_code(uintptr_t address);
HIDDEN void beam_image_code(uintptr_t *start, uintptr_t *end);
/* A text in it that is shorter than this and ends; NULL: the address is none's. */
#define BEAM_MOST_TEXT 64
HIDDEN const char *beam_image_text(uintptr_t address);

/* ---- allocators.c ---- */

HIDDEN bool beam_allocators_prepare(const allocsample_hooks *hooks, allocsample_heap *heap);
/* Puts our functions in front of the allocators'. Any thread, at any time; true once they are there. False: BEAM has not set up its
 * allocators yet, or they all go to malloc. */
HIDDEN bool beam_allocators_enter(void);
HIDDEN void beam_allocators_leave(void);

/* ---- code.c: which function an address belongs to ---- */

HIDDEN bool beam_code_prepare(const allocsample_hooks *hooks, allocsample_heap *heap);
/* Around a walk, with the lock of the walk held: false if the table of loaded modules is not known. */
HIDDEN bool beam_code_begin(void);
HIDDEN void beam_code_end(void);
/* The number of the function with this return address; 0: it is in no loaded module. */
HIDDEN uint32_t beam_code_function(uintptr_t return_address);
HIDDEN void beam_code_after_fork_in_child(void);

/* ---- frames.c ---- */

/* `is_start`: before `main`, on its thread. */
HIDDEN void beam_frames_prepare(bool is_start);
HIDDEN size_t beam_frames_walk(void *user, allocsample_frame *frames, size_t capacity);
HIDDEN void beam_frames_after_fork_in_child(void);

#endif
