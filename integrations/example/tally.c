#define _GNU_SOURCE
#include "tally.h"

#include <sys/mman.h>

enum { CHUNK_BYTES = 1 << 20, CLASS_BYTES = 64, CLASSES = 64 };

struct free_object {
    struct free_object *next;
};

static _Thread_local const struct tally_call *calls;
static _Thread_local char *chunk;
static _Thread_local size_t left;
static _Thread_local struct free_object *free_objects[CLASSES];

const struct tally_call *tally_calls(void)
{
    return calls;
}

void tally_enter(struct tally_call *call)
{
    call->caller = calls;
    calls = call;
}

void tally_leave(void)
{
    calls = calls->caller;
}

/* The number of its class is in front of each object. */
void *tally_new(size_t bytes)
{
    size_t class = (bytes + sizeof(size_t) - 1) / CLASS_BYTES, rounded = (class + 1) * CLASS_BYTES;
    if (class >= CLASSES)
        return NULL;
    struct free_object *again = free_objects[class];
    if (again != NULL) {
        free_objects[class] = again->next;
        return again;
    }
    if (left < rounded) {
        void *more = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED)
            return NULL;
        chunk = more;
        left = CHUNK_BYTES;
    }
    size_t *object = (size_t *)chunk;
    chunk += rounded;
    left -= rounded;
    *object = class;
    return object + 1;
}

void tally_delete(void *object)
{
    struct free_object *freed = object;
    size_t class = ((size_t *)object)[-1];
    freed->next = free_objects[class];
    free_objects[class] = freed;
}
