/* For all bridges: looking up functions of a runtime and the range of its native code. */
#ifndef ALLOCSAMPLE_BRIDGES_SYMBOLS_H
#define ALLOCSAMPLE_BRIDGES_SYMBOLS_H

#include "bridge.h"

/* `slot` is the address of a pointer, to a function or to data. */
struct symbol {
    void *slot;
    const char *name;
};

/* Fills the slots; false, with some of them filled, at the first that is missing. `find` is dlsym in the program's global
 * scope if it is NULL. */
HIDDEN bool symbols_find(const struct symbol *symbols, size_t count, void *(*find)(const char *name));

/* The same in the global scope. If the first symbol exists and a later one is missing, records that the bridge for this heap
 * declined. */
HIDDEN bool symbols_find_all(const struct symbol *symbols, size_t count, const char *heap);

/* Whether the function that `slot` points to is in the same object as the malloc behind ours. */
HIDDEN bool symbols_is_of_malloc(const void *slot);

/* The executable memory of the loaded object that `address` is in. */
HIDDEN bool symbols_code_of(const void *address, uintptr_t *start, uintptr_t *end);

/* Whether there are `length` bytes of writable memory of a loaded object at `address`. */
HIDDEN bool symbols_is_data(const void *address, size_t length);

/* The memory of the function or variable that begins at `address`, by its symbol's size. */
HIDDEN bool symbols_extent_of(const void *address, uintptr_t *start, uintptr_t *end);

/* The code of the function that contains `address`, by the table that unwinders search. Functions without a symbol are in it
 * as well. `end` is where the next function in the table starts. */
HIDDEN bool symbols_unwound_function_of(uintptr_t address, uintptr_t *start, uintptr_t *end);

/* How many dynamic symbols an object has, by its GNU hash table. */
HIDDEN size_t symbols_in_table(const uint32_t *gnu_hash);

#endif
