// Behaviour: a library that another one depends on allocates for it.
#include "check.h"

NOINLINE void *dependency_allocates(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}
