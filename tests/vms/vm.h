/* A small virtual machine that hosts the hook ABI: bytecode interpreter, copying nursery and copying old space for each
 * thread, large objects, pinned objects, native extensions. Everything that concerns allocsample is in hooks.c, and in
 * the four places of gc.c that call it; compiled with -DWITHOUT_ALLOCSAMPLE the machine knows nothing of it. */
#ifndef VM_H
#define VM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef WITHOUT_ALLOCSAMPLE
#include "../../c_shim/include/allocsample.h"
#endif

enum type { TYPE_NODE = 1, TYPE_STRING, TYPE_ARRAY, TYPE_BLOB, TYPE_PINNED, TYPES };

/* An object: this header, `references` values, then bytes. */
struct object {
    uint32_t type;
    uint32_t references;
    uint64_t size;         /* with the header, a multiple of 16 */
    struct object *moved;  /* during a collection: where it is now */
    uint64_t remembered;   /* old, and may point into the nursery; large: marked */
};

/* A number (lowest bit set) or a reference. */
typedef uintptr_t value;
static inline value number(int64_t n) { return (value)(n << 1 | 1); }
static inline int64_t as_number(value v) { return (int64_t)v >> 1; }
static inline bool is_object(value v) { return v != 0 && (v & 1) == 0; }
static inline value *references_of(struct object *o) { return (value *)(o + 1); }

enum { STACK_VALUES = 1 << 17, FRAMES = 1 << 14, LARGE = 32 << 10, REMEMBERED = 1 << 16 };

struct frame {
    uint32_t function;
    uint32_t line;
    uint32_t is_entry; /* the interpreter loop was entered for it */
};

struct large {
    struct large *next;
    struct object *object;
    bool is_young;
};

/* A thread with its heap. The first three words are all that the fast path uses. */
struct thread {
    char *free, *limit, *top;
    char *nursery;
    size_t nursery_bytes;
    char *old, *old_free, *old_end;
    size_t old_bytes;
    struct large *large;
    size_t large_bytes_since_major;
    struct object **remembered;
    size_t remembered_count;
    value *stack;
    size_t sp;
    struct frame *frames;
    size_t depth;
    uint64_t minor_collections, major_collections;
    /* What is exactly known, for tests. */
    uint64_t allocated[TYPES], survived[TYPES], objects[TYPES];
#ifndef WITHOUT_ALLOCSAMPLE
    allocsample_nursery agent;
#endif
};

/* gc.c */
struct thread *vm_thread_new(size_t nursery_bytes);
void vm_thread_end(struct thread *);
struct object *vm_allocate(struct thread *, uint64_t size, uint32_t type);
struct object *vm_allocate_slow(struct thread *, uint64_t size, uint32_t type);
void vm_collect_minor(struct thread *);
void vm_collect_major(struct thread *);
struct object *gc_old_now(struct thread *, struct object *, struct object *(*now)(struct object *), int *is_ours);
void vm_store(struct thread *, struct object *, size_t at, value);
struct object *vm_new(struct thread *, enum type, uint32_t references, uint64_t bytes);

/* interpreter.c */
value vm_run(struct thread *, uint32_t function, const value *arguments, int count);
extern const char *const vm_functions[];
extern const char __start_vm_loop[], __stop_vm_loop[]; /* the interpreter loop, by the linker */
enum {
    MAKE_TREE, BOTTOM_UP, CHURN, DESCEND, OUTER, INNER, ALLOCATE_NODES, ALLOCATE_STRINGS, ALLOCATE_KEPT, ALLOCATE_BLOBS, RELAY
};
void vm_assemble(void);
void vm_push(struct thread *, value);
value vm_pop(struct thread *);

/* hooks.c: no-ops without the ABI */
void hooks_start(void);
void hooks_thread_begin(struct thread *);
void hooks_thread_end(struct thread *);
bool hooks_point(struct thread *, uint64_t size, uint32_t type);
void hooks_large(struct thread *, struct object *);
void hooks_minor_begin(struct thread *);
void hooks_minor_end(struct thread *, char *old_free);
void hooks_major(struct thread *, struct object *(*now)(struct object *));
void hooks_collected(struct thread *, int kind, uint64_t begin_ns, uint64_t id, uint64_t survived_bytes);
uint64_t hooks_now(void);
void hooks_toggle(struct thread *, bool on);
void hooks_control(unsigned random); /* the whole heap: stop, go on, another interval */

#endif
