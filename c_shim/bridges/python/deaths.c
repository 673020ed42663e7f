/* A type's tp_dealloc is what ends its objects. Ours stands before it: classes whose tp_dealloc was copied from there while it
 * did call ours for good, which passes on as before. */
#define _GNU_SOURCE
#include "deaths.h"
#include "kit/memory.h"


typedef void (*destructor)(void *object);

static struct {
    _Atomic(destructor) *slot; /* the type's */
    destructor original;
    void (*on_death)(uintptr_t object);
} mortals[PYTHON_MORTALS];

static void end_code(void *object)
{
    mortals[PYTHON_CODE].on_death((uintptr_t)object);
    mortals[PYTHON_CODE].original(object);
}

static void end_class(void *object)
{
    mortals[PYTHON_CLASS].on_death((uintptr_t)object);
    mortals[PYTHON_CLASS].original(object);
}

static const destructor ours[PYTHON_MORTALS] = {end_code, end_class};

void python_deaths_watch(enum python_mortal mortal, const struct python_layout *layout, const void *type,
                         void (*on_death)(uintptr_t object))
{
    _Atomic(destructor) *slot = (_Atomic(destructor) *)((uintptr_t)type + python_in_object(layout, PYTHON_TYPE_DEALLOC));
    destructor now = atomic_load_explicit(slot, memory_order_acquire);
    if (now == ours[mortal])
        return;
    mortals[mortal].slot = slot;
    mortals[mortal].original = now;
    mortals[mortal].on_death = on_death;
    /* Release: pairs with the dependent load of whoever calls it. */
    atomic_store_explicit(slot, ours[mortal], memory_order_release);
}

void python_deaths_unwatch(void)
{
    for (size_t i = 0; i < PYTHON_MORTALS; i++) {
        destructor expected = ours[i];
        /* A hook that was installed after ours calls ours, which then stays. */
        if (mortals[i].slot != NULL)
            atomic_compare_exchange_strong_explicit(mortals[i].slot, &expected, mortals[i].original, memory_order_release,
                                                    memory_order_relaxed);
    }
}

bool python_alive_make(struct python_alive *alive, uint32_t sets)
{
    alive->objects = memory_map(4 * sets * sizeof *alive->objects);
    alive->sets = sets;
    return alive->objects != NULL;
}

void python_alive_add(struct python_alive *alive, uintptr_t object, uint32_t number)
{
    struct python_living *set = python_alive_set(alive, object), *place = &set[alive->next++ % 4];
    for (size_t i = 0; i < 4; i++) {
        uintptr_t other = atomic_load_explicit(&set[i].object, memory_order_relaxed);
        if (other == 0 || other == object)
            place = &set[i];
    }
    atomic_store_explicit(&place->object, 0, memory_order_relaxed);
    /* Release: whoever reads this number finds that the entry is no longer that of another object. */
    atomic_store_explicit(&place->number, number, memory_order_release);
    atomic_store_explicit(&place->object, object, memory_order_release);
}

void python_alive_remove(struct python_alive *alive, uintptr_t object)
{
    if (alive->objects == NULL)
        return;
    struct python_living *set = python_alive_set(alive, object);
    for (size_t i = 0; i < 4; i++) {
        uintptr_t expected = object;
        atomic_compare_exchange_strong_explicit(&set[i].object, &expected, 0, memory_order_relaxed, memory_order_relaxed);
    }
}

void python_alive_clear(struct python_alive *alive)
{
    for (size_t i = 0; alive->objects != NULL && i < 4 * (size_t)alive->sets; i++)
        atomic_store_explicit(&alive->objects[i].object, 0, memory_order_relaxed);
}
