/* Shared by the parts of Ruby's bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_RUBY_H
#define ALLOCSAMPLE_BRIDGES_RUBY_H

#include "allocsample.h"
#include "bridge.h"

typedef uintptr_t ruby_value; /* VALUE */

/* Types of objects, in the flags that each begins with. */
enum { RUBY_TYPE_MASK = 0x1f };

/* What an object of ours is to Ruby: rb_data_type_t (ruby/internal/core/rtypeddata.h). The rest has other functions, a parent, data and
 * flags, elsewhere from 4.1 on, where it has 11 words instead of 4. Zeros mean none of them, also in words that are added later. */
struct ruby_data_type {
    const char *name;
    void (*mark)(void *), (*release)(void *);
    size_t (*size)(const void *);
    void (*compact)(void *);
    ruby_value rest[32];
};

/* The text of a String that the interpreter keeps, or NULL. */
HIDDEN const char *ruby_text(volatile ruby_value string);

/* Whether Ruby's version is at least this one. */
HIDDEN bool ruby_is_since(int major, int minor);

/* ---- objects.c: the objects in slots, on request ---- */

/* Looks for functions of libruby. False: this version lacks some. */
HIDDEN bool ruby_objects_find(void);
/* Once. `want_switch` is called on a thread of Ruby's, in the middle of an allocation: ruby_objects_switch should be called soon. */
HIDDEN bool ruby_objects_prepare(const allocsample_hooks *hooks, allocsample_heap *heap, void (*want_switch)(void));
/* Any thread. Objects are no longer sampled from now on. */
HIDDEN void ruby_objects_pause(void);
/* On Ruby's main thread, where any code may run: with `is_wanted` objects are sampled from now on; otherwise Ruby no longer calls us
 * for them. */
HIDDEN void ruby_objects_switch(bool is_wanted);
/* Whether Ruby reports new and freed objects. */
HIDDEN bool ruby_objects_are_on(void);
/* Whether the last sweep has ended, if `ruby_objects_are_on`. */
HIDDEN bool ruby_objects_are_swept(void);
/* In the collector: it marks. */
HIDDEN void ruby_objects_on_mark(void);
/* On a thread that runs Ruby: its Ractor may be another one than the one whose objects are sampled, and ZJIT may be on. */
HIDDEN void ruby_objects_look_at_program(void);
HIDDEN void ruby_objects_after_fork_in_child(void);

#endif
