/* Tells when objects of two of Python's types end, so that what is known of such an object need not be read again: a code
 * object or a class at an address is the one that was looked at there as long as no end of it was told. */
#ifndef ALLOCSAMPLE_BRIDGES_PYTHON_DEATHS_H
#define ALLOCSAMPLE_BRIDGES_PYTHON_DEATHS_H

#include "bridge.h"
#include "layout.h"

enum python_mortal { PYTHON_CODE, PYTHON_CLASS, PYTHON_MORTALS };

/* From now on, and until python_deaths_unwatch, `on_death` is called with each object of `type` that is about to end, on the
 * thread that ends it, which holds the interpreter's lock if there is one. `type` is PyCode_Type or PyType_Type. */
HIDDEN void python_deaths_watch(enum python_mortal mortal, const struct python_layout *layout, const void *type,
                                void (*on_death)(uintptr_t object));
HIDDEN void python_deaths_unwatch(void);

/* Addresses of objects that are known to be alive, each with a number. Filled by one thread at a time; any may remove an address,
 * or look for one. `sets` is a power of two. */
struct python_alive {
    struct python_living {
        _Atomic(uintptr_t) object; /* 0: none */
        _Atomic(uint32_t) number;
    } *objects; /* four for each set */
    uint32_t sets, next;
};
/* The number of no object. */
#define PYTHON_UNKNOWN UINT32_MAX

/* Takes memory, which is touched as it is needed. False: there is none. */
HIDDEN bool python_alive_make(struct python_alive *alive, uint32_t sets);
HIDDEN void python_alive_add(struct python_alive *alive, uintptr_t object, uint32_t number);
HIDDEN void python_alive_remove(struct python_alive *alive, uintptr_t object);
HIDDEN void python_alive_clear(struct python_alive *alive);

static inline struct python_living *python_alive_set(const struct python_alive *alive, uintptr_t object)
{
    return &alive->objects[4 * ((object >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (alive->sets - 1))];
}

/* The object's number, or PYTHON_UNKNOWN. The object is alive meanwhile, so its number does not change. */
static inline uint32_t python_alive_number(const struct python_alive *alive, uintptr_t object)
{
    struct python_living *set = python_alive_set(alive, object);
    for (size_t i = 0; i < 4 && object != 0; i++) {
        if (atomic_load_explicit(&set[i].object, memory_order_acquire) != object)
            continue;
        /* Acquire: pairs with the store in python_alive_add. A number of another object is read after that object's address. */
        uint32_t number = atomic_load_explicit(&set[i].number, memory_order_acquire);
        return atomic_load_explicit(&set[i].object, memory_order_relaxed) == object ? number : PYTHON_UNKNOWN;
    }
    return PYTHON_UNKNOWN;
}

#endif
