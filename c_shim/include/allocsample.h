/* allocsample.h: the hook ABI. A virtual machine tells the agent of its heaps, and gets allocation profiles with types,
 * survival, collections and mixed stacks, in one file with malloc's, on one clock.
 *
 * There is nothing to link with. The agent is found at run time (`allocsample_find`); where there is none, the machine
 * runs as it always did. docs/hook-abi.md goes from an unmodified bump allocator to everything below, step by step.
 *
 * Rules for all functions of the table, unless one says otherwise:
 *  - Any thread may call them, also while the world is stopped. Those that take an `allocsample_nursery` are for the thread
 *    that owns it, or for whoever has stopped that thread.
 *  - They neither allocate from the machine's memory nor take a lock that it could hold, and they keep errno.
 *  - Those marked [any] below are async-signal-safe: they wait for nobody.
 *  - Nothing they return asks for a collection: sampling never changes when the machine collects. Only a person does, through
 *    the callback `collect`.
 *  - Where there is no agent there is no table, and none of them is called: each costs the test of a pointer (a load and a
 *    branch) where it would have been called, which is never in an allocation's fast path. `nursery_point` costs not even
 *    that: nothing gets there. With an agent that is not sampling each returns after a look at the heap's state.
 *  - Bytes are bytes, times are nanoseconds of CLOCK_MONOTONIC.
 *  - A NULL heap, and a heap that was unregistered, are legal and do nothing. Errors are negative and never fatal. */
#ifndef ALLOCSAMPLE_H
#define ALLOCSAMPLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Functions and fields are only ever added, at the end. A new version stands beside the old one. */
#define ALLOCSAMPLE_VERSION 1u

/* A heap that was registered. */
typedef struct allocsample_heap allocsample_heap;

/* A sample, never used again within a process; ALLOCSAMPLE_NO_SAMPLE for an allocation that is none. */
typedef uint64_t allocsample_id;
#define ALLOCSAMPLE_NO_SAMPLE UINT64_MAX

/* Numbers that the machine chooses. A type or function may be defined after its first use; 0 is "not known". */
typedef uint32_t allocsample_type;
typedef uint32_t allocsample_function;
typedef uint32_t allocsample_statistic;

enum {
    ALLOCSAMPLE_OK = 0,
    ALLOCSAMPLE_INVALID = -1, /* an argument makes no sense */
    ALLOCSAMPLE_LIMIT = -2,   /* too many heaps, too many ranges, no memory */
    ALLOCSAMPLE_OFF = -3      /* the agent is switched off */
};

enum {
    ALLOCSAMPLE_MALLOC = 1,  /* blocks are freed one by one: alloc, freed, moved */
    ALLOCSAMPLE_NURSERY = 2, /* a bump pointer, and a collector: nursery_*, alloc for large objects, pending, resolve */
    ALLOCSAMPLE_TRACED = 3,  /* a collector, no bump pointer: alloc, pending, resolve */
    ALLOCSAMPLE_EXTERNAL = 4, /* memory outside that objects own: alloc, freed */
    ALLOCSAMPLE_COLLECTED = 5, /* a collector frees dead blocks one by one: alloc, freed, moved, gc */
    /* As ALLOCSAMPLE_MALLOC, for an allocator that code of any language calls: samples get the frames that those of malloc get,
     * of whatever machine runs on the thread, and the heap's own walker is not asked. The interpreter ranges hold the
     * allocator's own functions, which are left out where a stack ends in them. */
    ALLOCSAMPLE_ALLOCATOR = 6
};

/* The state of one thread's allocations in one heap. The machine keeps one for each thread (a nursery of several
 * threads has one), all zero at first, and only passes it on. It must not move while it is in use. */
typedef struct allocsample_nursery {
    uint64_t agent[40];
} allocsample_nursery;

/* A frame of the machine's own language. */
typedef struct allocsample_frame {
    allocsample_function function;
    uint32_t line;  /* 0: the function's first line */
    uint32_t flags; /* ALLOCSAMPLE_ENTRY, ALLOCSAMPLE_NO_FRAME */
    uint32_t reserved;
} allocsample_frame;

/* The native code that runs this frame was entered for it: frames above it (nearer to the leaf) without this flag were
 * run by the same native activation of the interpreter loop. */
#define ALLOCSAMPLE_ENTRY 1u

/* With ALLOCSAMPLE_ENTRY, and in no shadow stack: the loop was entered, and runs no function yet or any more. It is no frame;
 * the native one stays. */
#define ALLOCSAMPLE_NO_FRAME 2u

/* Fills `frames`, leaf first, with the stack of the calling thread; returns how many there are, at most `capacity`. It
 * runs on the thread that allocates, on a stack of 128 KiB, inside one of the calls marked [walk]; for a heap with
 * ALLOCSAMPLE_WALK_IN_MALLOC also inside malloc, and with ALLOCSAMPLE_WALK_IN_FREE inside free, wherever the machine calls
 * it. It must not allocate from this heap, and must return. */
typedef size_t (*allocsample_walk)(void *user, allocsample_frame *frames, size_t capacity);

/* Called after a sample was recorded, inside the calls marked [walk]. What it allocates is not sampled. */
typedef void (*allocsample_on_sample)(void *user, allocsample_id sample, uintptr_t address, uint64_t size,
                                      allocsample_type type);

/* Called after sampling of the heap was switched on or off, or got another interval; `counters` tells which. It may come
 * more often than that, and on any thread: the one that calls `control`, one that is inside malloc, or the agent's own. So
 * it sets a flag, say that the machine should call `nursery_sync` soon, and returns. Nobody has to listen: the nurseries
 * hear of it by the next limit that they are given. */
typedef void (*allocsample_on_change)(void *user);

/* Somebody wants a full collection of the heap, to see what lives (`allocsample ctl PID gc`). It is called as `on_change` is, on
 * any thread and in the middle of anything, so it takes note, and returns ALLOCSAMPLE_OK, or ALLOCSAMPLE_OFF if there will be
 * no collection. The machine collects at its next safe point, resolves the heap's samples, tells of the collection by `gc` as
 * of any other of kind ALLOCSAMPLE_MAJOR, and then calls `collected`. Asked again before that, one collection is enough. */
typedef int32_t (*allocsample_collect)(void *user);

/* Where a machine keeps its frames on one thread, so that nobody has to ask it. They are a row of frames that ends at
 * `*top`, or a chain from `*top` by pointers to callers. A store of the newest frame comes before that of `*top`: the
 * stack may be read by a signal handler of the same thread at any instruction. `size` is
 * sizeof(allocsample_shadow_stack). */
typedef struct allocsample_shadow_stack {
    uint32_t size;
    uint32_t frame_bytes;     /* of a frame in a row, a multiple of 4; 0: a chain */
    const void *const *top;   /* row: the machine's pointer behind the newest frame; chain: to the newest frame, or NULL */
    const void *base;         /* row: the oldest frame */
    uint32_t function_offset; /* in a frame: of an allocsample_function */
    uint32_t line_offset;     /* of a uint32_t, or ALLOCSAMPLE_NOWHERE */
    uint32_t entry_offset;    /* of a uint32_t that is not 0 in an ALLOCSAMPLE_ENTRY, or ALLOCSAMPLE_NOWHERE */
    uint32_t caller_offset;   /* chain: of the address of the caller's frame (a multiple of 8), NULL in the oldest */
} allocsample_shadow_stack;

#define ALLOCSAMPLE_NOWHERE UINT32_MAX

/* What a heap is. `size` is sizeof(allocsample_heap_description). */
typedef struct allocsample_heap_description {
    uint32_t size;
    uint32_t kind;    /* ALLOCSAMPLE_NURSERY, ... */
    const char *name; /* "org.example.vm": copied, at most 1,024 bytes */
    uint64_t interval; /* mean bytes between two samples, until another is asked for; 0: as malloc's */
    uint32_t flags;
    uint32_t reserved;
    void *user; /* for the callbacks */
    allocsample_walk walk; /* or NULL: the frames that malloc gets: native ones, and those of a heap with ALLOCSAMPLE_WALK_EVERYWHERE */
    allocsample_on_sample on_sample; /* or NULL */
    allocsample_on_change on_change; /* or NULL; heeded by an agent that has ALLOCSAMPLE_CAN_TELL_CHANGES */
    allocsample_collect collect; /* or NULL; heeded by an agent that has ALLOCSAMPLE_CAN_ASK_TO_COLLECT */
} allocsample_heap_description;

/* Samples of malloc on a thread that owns a nursery of this heap get frames too. */
#define ALLOCSAMPLE_WALK_IN_MALLOC 1u
/* Those on every other thread too: the walker finds out whether it runs the machine. */
#define ALLOCSAMPLE_WALK_EVERYWHERE 2u
/* The interpreter ranges hold all of the machine's native code: all its frames stand in for it. */
#define ALLOCSAMPLE_WHOLE_CODE 4u
/* The walker is async-signal-safe: samples of time on these threads get frames too. */
#define ALLOCSAMPLE_WALK_IN_TICKS 8u
/* Threads are stopped by signals, and scanned from their stack pointer to their stack's base: samples stay on that stack. */
#define ALLOCSAMPLE_SCANS_STACKS 16u
/* In samples of this heap what the walker gives is the whole stack: native frames are looked for only where it gives none. */
#define ALLOCSAMPLE_WALK_IS_WHOLE 32u
/* Code outside of all modules that called the interpreter loop did nothing else: it is left out, and so is the machine's
 * function that called it. */
#define ALLOCSAMPLE_LOOP_HAS_THUNKS 64u
/* Code outside of all modules is the machine's: where the native stack comes to it, the machine's frames stand in for all
 * that follows. With ALLOCSAMPLE_WHOLE_CODE they stand in from the machine's first native frame on, and native frames between
 * that frame and such code are kept. The walker then finds the native return address into such code in frames[0] when it is
 * called: the lower half in `function`, the upper one in `line`, 0 for none. */
#define ALLOCSAMPLE_CODE_IS_NO_MODULE 128u
/* ALLOCSAMPLE_MALLOC: sampled objects, and only they, are blocks of malloc: `free` and `realloc` tell of their end. */
#define ALLOCSAMPLE_FREED_BY_MALLOC 256u
/* Where the walker is asked inside malloc, it is also asked inside free: in destructors, in the collector, and while the
 * machine takes itself down, when functions and frames may be gone in part. */
#define ALLOCSAMPLE_WALK_IN_FREE 512u
/* ALLOCSAMPLE_MALLOC, _EXTERNAL, _COLLECTED and _ALLOCATOR: the machine keeps the ids of samples and reports their end by `died`.
 * The agent then keeps no table of their addresses: `freed` and `moved` do nothing, and addresses need not differ. Only with an
 * agent that has `died`. */
#define ALLOCSAMPLE_ENDS_BY_ID 1024u

/* Which samples are asked for, and which collection has looked at them. */
enum { ALLOCSAMPLE_MINOR = 1, ALLOCSAMPLE_MAJOR = 2, ALLOCSAMPLE_MAJOR_STEP = 3 };

/* A sample whose object the machine is to look at. */
typedef struct allocsample_pending {
    allocsample_id id;
    uint64_t slot; /* comes back in the resolution */
    uintptr_t address;
    uint64_t size;
    allocsample_type type;
    uint32_t reserved;
} allocsample_pending;

enum {
    ALLOCSAMPLE_DEAD = 0,
    ALLOCSAMPLE_ALIVE = 1,    /* stays where the machine says that it is now, and in its generation */
    ALLOCSAMPLE_PROMOTED = 2, /* the same, in the old generation */
    ALLOCSAMPLE_UNKNOWN = 3   /* the machine gives it up */
};

/* What became of it. */
typedef struct allocsample_resolution {
    allocsample_id id;
    uint64_t slot;
    uintptr_t address;     /* where the object is now; of one that lives */
    uint64_t content_hash; /* 0, or a hash of what it holds: equal hashes are redundant objects */
    allocsample_type type; /* 0: as before */
    uint32_t fate;
} allocsample_resolution;

/* One collection. `size` is sizeof(allocsample_gc). */
typedef struct allocsample_gc {
    uint32_t size;
    uint32_t kind; /* ALLOCSAMPLE_MINOR, ... */
    uint64_t id;   /* the machine's count; resolutions refer to the number that the next record will have */
    uint64_t begin_ns, end_ns;
    uint32_t statistics; /* number of pairs below, at most 16 */
    uint32_t reserved;
    const uint64_t *values; /* pairs of an allocsample_statistic and its value */
} allocsample_gc;

/* Passed in place of a statistic's number with ALLOCSAMPLE_MAJOR, by concurrent collectors. The value is a time of `now_ns`: the
 * collection has examined the objects that were allocated before it, and treats later ones as live. Default: `begin_ns`. */
#define ALLOCSAMPLE_LOOKED_UNTIL UINT32_C(0xffffffff)

enum {
    ALLOCSAMPLE_START = 1,        /* sampling goes on, from the next call with each nursery */
    ALLOCSAMPLE_STOP = 2,         /* no more samples; those that are pending stay so */
    ALLOCSAMPLE_SET_INTERVAL = 3, /* `value` bytes from the next call with each nursery; 0 is refused */
    ALLOCSAMPLE_DISCARD = 4,      /* pending samples get the fate "unknown", young ones at the next call with their nursery */
    /* For `process_control` only: */
    ALLOCSAMPLE_FLUSH = 5,        /* what is in memory is in the profile's file */
    ALLOCSAMPLE_SNAPSHOT = 6,     /* so is it, and there is a copy of the file: PROFILE.snapshot-N.allocsample */
    ALLOCSAMPLE_ROTATE = 7,       /* the profile goes on in another file, and this one is PROFILE.part-N.allocsample */
    ALLOCSAMPLE_RESET = 8         /* the profile begins anew, with what is alive */
};

typedef struct allocsample_counters {
    uint32_t size;
    uint32_t is_on;
    uint64_t interval;
    uint64_t exact_bytes; /* allocated while sampling was on, up to the last call with each nursery */
    uint64_t samples;
    uint64_t pending; /* survivors of a minor collection that no major one has found dead */
} allocsample_counters;

/* How the agent of this process is. `size` is sizeof(allocsample_status). What is counted is since the profile began. */
typedef struct allocsample_status {
    uint32_t size;
    uint32_t is_on;
    uint64_t interval; /* mean bytes between two samples of malloc; 0 while sampling is stopped */
    uint64_t lost_samples, lost_bytes;         /* samples that were due, and the bytes that they stood for */
    uint64_t left_out_samples, left_out_bytes; /* those that a filter of sizes does not want */
    uint64_t profile_bytes; /* of the profile's files, as of the last writing */
    uint64_t memory_bytes;  /* address space that the agent has taken */
    uint64_t ring_used_bytes, ring_bytes;
    uint64_t sample_ns; /* mean time of a sample on the thread that allocates */
    uint64_t drain_ns;  /* processor time of the agent's own thread */
    char profile[4096]; /* path of the profile; empty before the first sample */
} allocsample_status;

/* What malloc's samples are wanted of. `size` is sizeof(allocsample_filter). */
typedef struct allocsample_filter {
    uint32_t size;
    uint32_t reserved;
    uint64_t least_bytes, most_bytes; /* sizes of blocks, both included; most_bytes 0: of any */
    const char *threads; /* a thread's name, or the beginning of one and `*`, at most 15 bytes; NULL: of all */
} allocsample_filter;

/* The table. `size` grows with each function that is added: see ALLOCSAMPLE_HAS. Who calls a function, and where:
 *   [calm]  any thread, but in no signal handler, and in no callback of this header
 *   [owner] the thread that owns the nursery, or whoever has stopped that thread: in an allocation's slow path, or in a
 *           collection
 *   [gc]    whoever collects, while objects and threads stay where they are
 *   [any]   any thread at any time: also in a collection, or in a signal handler
 *   [walk]  may call the heap's `walk` and `on_sample`, so only where these may run */
typedef struct allocsample_hooks {
    uint32_t size;
    uint32_t version;

    /* [calm] NULL if there are too many heaps (255 in the life of a process), there is no memory, or the description makes
     * no sense. Not during a collection. */
    allocsample_heap *(*heap_register)(const allocsample_heap_description *description);
    /* [calm] No call for the heap may be under way. Its pending samples are discarded, and none of its callbacks is
     * called again, also where a nursery was not ended and comes to a point. */
    int32_t (*heap_unregister)(allocsample_heap *heap);
    /* [any] Names the calling thread in the profile. */
    int32_t (*thread_name)(const char *name);

    /* -- the nursery: all return the limit that `free + size` is to be compared with from now on -- */

    /* [owner] The nursery's next object goes to `free`, its end is `top`. Also for a new chunk, and for a thread
     * without one of its own (with free = top). First call for a zeroed state. */
    uintptr_t (*nursery_begin)(allocsample_heap *heap, allocsample_nursery *nursery, uintptr_t free, uintptr_t top);
    /* [owner] [walk] An object of `size` bytes, 1 or more, at `object` (where `free` was before it) failed the limit
     * and fits below `top`: it is allocated there. */
    uintptr_t (*nursery_point)(allocsample_heap *heap, allocsample_nursery *nursery, uintptr_t object, uint64_t size,
                               uintptr_t top, allocsample_type type);
    /* [owner] `free` stood at `old_free`, and goes on from `free` up to `top`: after a minor collection, or a change of
     * chunks. */
    uintptr_t (*nursery_sync)(allocsample_heap *heap, allocsample_nursery *nursery, uintptr_t old_free, uintptr_t free,
                              uintptr_t top);
    /* [owner] Sampling of this thread on (1) or off (0); the bytes in between are in no figure. */
    uintptr_t (*nursery_enable)(allocsample_heap *heap, allocsample_nursery *nursery, uintptr_t free, uintptr_t top,
                                uint32_t on);
    /* [owner] The thread leaves: its pending samples go over to the heap, where the next minor collection finds them by
     * a NULL nursery, or the next major one. The state is zero again. */
    void (*nursery_end)(allocsample_heap *heap, allocsample_nursery *nursery, uintptr_t free);

    /* -- other allocations -- */

    /* [owner] [walk] `size` bytes at `address`, not in the nursery, whose own next object goes to `free`; `*limit` is
     * set, unless NULL; it stays as it is for a NULL heap and for a nursery that was not begun, so it should hold the
     * present limit. A sample of a collected heap is pending for the next minor collection of this nursery. */
    allocsample_id (*alloc)(allocsample_heap *heap, allocsample_nursery *nursery, uintptr_t address, uint64_t size,
                            allocsample_type type, uintptr_t free, uintptr_t *limit);
    /* [any] The block at `address` is about to be freed (all kinds but ALLOCSAMPLE_NURSERY and ALLOCSAMPLE_TRACED). */
    void (*freed)(allocsample_heap *heap, uintptr_t address);
    /* [any] The block is about to move: `to` belongs to it from now on, `from` to whoever gets it. */
    void (*moved)(allocsample_heap *heap, uintptr_t from, uintptr_t to);

    /* -- what became of samples -- */

    /* [gc] Samples that a collection of this kind must look at: for ALLOCSAMPLE_MINOR the young ones of `nursery`, or,
     * if that is NULL, those of threads that have left; for ALLOCSAMPLE_MAJOR all others of the heap. Call until it
     * returns 0, with `*cursor` 0 at first. Objects must stay where they are meanwhile, and calls for the old samples
     * of one heap must not overlap. */
    size_t (*pending)(allocsample_heap *heap, allocsample_nursery *nursery, uint32_t kind, allocsample_pending *samples,
                      size_t capacity, uint64_t *cursor);
    /* [gc] Answers, in any order, also in part: what is left out stays pending. Returns how many were taken. */
    size_t (*resolve)(allocsample_heap *heap, allocsample_nursery *nursery, uint32_t kind,
                      const allocsample_resolution *resolutions, size_t count, uint64_t gc_id);

    /* -- names, all [calm]; a later definition of the same number replaces an earlier one; strings are copied -- */

    int32_t (*define_type)(allocsample_heap *heap, allocsample_type type, const char *name, const char *detail);
    int32_t (*define_function)(allocsample_heap *heap, allocsample_function function, const char *name,
                               const char *file, uint32_t line);
    int32_t (*define_statistic)(allocsample_heap *heap, allocsample_statistic statistic, const char *name,
                                const char *unit);

    /* -- code -- */

    /* [any] Native code of the interpreter loop: a frame in it is shown as the machine's frames that it runs. At most
     * 16. */
    int32_t (*interpreter_range)(allocsample_heap *heap, uintptr_t start, uintptr_t end);
    /* [any], these three, not two at once for the same code. Compiled code. It should keep frame pointers, or the stack
     * ends there. */
    int32_t (*code_add)(allocsample_heap *heap, uintptr_t start, uintptr_t end, allocsample_function function);
    int32_t (*code_move)(allocsample_heap *heap, uintptr_t from, uintptr_t to);
    int32_t (*code_remove)(allocsample_heap *heap, uintptr_t start);

    /* -- the time line, all [any] -- */

    uint64_t (*now_ns)(void);
    /* A collection that has ended, whether or not it saw a sample. */
    int32_t (*gc)(allocsample_heap *heap, const allocsample_gc *gc);
    /* The machine is in this state until the next phase. */
    int32_t (*phase)(allocsample_heap *heap, const char *name);
    /* Something of interest: a section of the machine's log, a request. `end_ns` is `begin_ns` for a moment. A name that begins
     * with "note: " is a note of the reports as well: say so what the heap's figures lack from then on. */
    int32_t (*marker)(allocsample_heap *heap, const char *name, uint64_t begin_ns, uint64_t end_ns);
    /* A reading of a statistic outside of collections. */
    int32_t (*value)(allocsample_heap *heap, allocsample_statistic statistic, uint64_t value);

    /* -- control -- */

    /* [calm] For one heap. */
    int32_t (*control)(allocsample_heap *heap, uint32_t operation, uint64_t value);
    /* [any] */
    int32_t (*counters)(allocsample_heap *heap, allocsample_counters *counters);

    /* -- machines that sample by themselves -- */

    /* [any] An object of `size` bytes is a sample: the machine drew it, by gaps without memory whose mean is the
     * interval that `counters` tells, so that an object of S bytes is drawn with probability 1 - exp(-S/interval).
     * `frames`, leaf first, is its whole stack; native frames are not looked for. Only for ALLOCSAMPLE_MALLOC,
     * ALLOCSAMPLE_EXTERNAL and ALLOCSAMPLE_COLLECTED. `address` may be any number that `freed` is called with later. No thread needs a
     * nursery. */
    allocsample_id (*sampled)(allocsample_heap *heap, uintptr_t address, uint64_t size, allocsample_type type,
                              const allocsample_frame *frames, size_t count);

    /* What this agent can do: ALLOCSAMPLE_CAN_... */
    uint64_t capabilities;

    /* -- more on stacks and threads -- */

    /* [any] The calling thread, which owns a nursery of the heap, keeps its frames there from now on; they are read
     * wherever the walker would be asked, and in samples of time. NULL: no longer. The description must stay where it
     * is, and so must the frames while they are on the stack. Memory that is not what it should be loses the rest of a
     * stack. */
    int32_t (*shadow_stack)(allocsample_heap *heap, const allocsample_shadow_stack *stack);
    /* [calm] The function `number` stands for these, innermost first: what a compiler made one of. 1 to 128; pass the
     * number to `code_add` for the part of the code to which that applies, or use it in frames. */
    int32_t (*define_inlined)(allocsample_heap *heap, allocsample_function number, const allocsample_frame *frames,
                              size_t count);
    /* [any] Samples of malloc and of time on the calling thread, on (1) or off (0); the bytes in between are in no
     * figure. For nurseries there is nursery_enable. */
    int32_t (*thread_enable)(uint32_t on);

    /* -- the process, all [calm]: for any program, with or without heaps of its own --
     * Not in constructors of libraries either, nor in a child of vfork. Where there is no profile yet, they begin it,
     * but for `process_status`. ALLOCSAMPLE_OFF: the agent is switched off, or behind a filter of system calls. What
     * they ask has the same effect as `allocsample ctl PID`. */

    /* ALLOCSAMPLE_START with the interval, or 0 for the one of before; ALLOCSAMPLE_STOP with 0;
     * ALLOCSAMPLE_SET_INTERVAL, not 0, which starts too: for malloc and all heaps; those whose machine tells of its
     * samples by `sampled` keep their interval. Other threads hear of it when they have allocated up to 1 MiB.
     * ALLOCSAMPLE_FLUSH, _SNAPSHOT, _ROTATE and _RESET, with 0, are done by the agent's thread before the call returns;
     * ALLOCSAMPLE_LIMIT if that takes more than ten seconds: it is done then as soon as the disk lets it. */
    int32_t (*process_control)(uint32_t operation, uint64_t value);
    int32_t (*process_status)(allocsample_status *status);
    /* malloc and time on the thread with this number (gettid; 0: the calling one), on (1) or off (0), from when it next
     * looks at the agent, at once for the calling one. Its bytes in between are counted as muted. What machines that
     * sample by themselves tell of the thread is left out, too. At most 64 threads. */
    int32_t (*thread_select)(uint32_t tid, uint32_t on);
    /* Only such blocks from now on, and only such threads; NULL: all again. What is left out is counted, and in no
     * estimate. As `allocsample ctl PID filter`. */
    int32_t (*process_filter)(const allocsample_filter *filter);

    /* [any] As `sampled`, by a machine that can be told of another interval while it runs: `interval` is the one under which
     * this object was drawn, not 0, which may be that of before. A heap whose samples all come by this function gets
     * another interval when malloc does: `counters` tells it. A process remembers 512 intervals; under others each
     * sample takes one of 65,000 numbers, and when those are used up samples are lost, and counted. With an `interval` of
     * 0 it tells of no object, and only obeys what was asked of the process since (`ctl`), as every sample does: for a
     * machine that goes on drawing while its heap is off, and then need not walk its stack. */
    allocsample_id (*sampled_at)(allocsample_heap *heap, uintptr_t address, uint64_t size, allocsample_type type,
                                 const allocsample_frame *frames, size_t count, uint64_t interval);

    /* [any] The sample `sample`, whose type was not known when it was allocated, is of this one. While it is there: before it
     * is freed or resolved as dead. ALLOCSAMPLE_LIMIT: it could not be said, and the type stays unknown. */
    int32_t (*typed)(allocsample_heap *heap, allocsample_id sample, allocsample_type type);

    /* [any] The collection that `collect` asked for is over, ALLOCSAMPLE_OK; ALLOCSAMPLE_OFF: there will be none. Whoever asked
     * waits for this. ALLOCSAMPLE_INVALID: nobody has asked. */
    int32_t (*collected)(allocsample_heap *heap, int32_t status);

    /* [calm] The addresses from `start` to `end` are the heap's alone: resident memory there that holds no live object is the
     * collector's, garbage or free. For a heap whose objects are told by keys, or one that keeps much free memory. A later
     * call with the same `number` replaces the range; an empty range removes it. Copied into profiles that begin later. */
    int32_t (*heap_range)(allocsample_heap *heap, uint32_t number, uintptr_t start, uintptr_t end);

    /* [any] The objects of these samples are dead, all from now on: as `freed` for each, in one call. For a heap with
     * ALLOCSAMPLE_ENDS_BY_ID, by the ids that `alloc`, `sampled` or `sampled_at` returned. Each id once. */
    void (*died)(allocsample_heap *heap, const allocsample_id *samples, size_t count);

    /* [any] As `sampled_at` and `freed`, for a machine that learns of a sample's stack, or of a death, later than it happened:
     * `time_ns` is when that was, by `now_ns`. No later than now, and no longer ago than a few seconds: a profile that is cut into
     * parts has it in the part that is being written. `interval` is not 0. Also accepted while the
     * heap is off, for objects that were drawn while it was on. */
    allocsample_id (*sampled_earlier)(allocsample_heap *heap, uintptr_t address, uint64_t size, allocsample_type type,
                                      const allocsample_frame *frames, size_t count, uint64_t interval,
                                      uint64_t time_ns);
    void (*freed_earlier)(allocsample_heap *heap, uintptr_t address, uint64_t time_ns);
} allocsample_hooks;

/* Defined by the agent; NULL without it, and for a version that it does not know. */
#if defined(__GNUC__)
extern const allocsample_hooks *allocsample_get_hooks(uint32_t version) __attribute__((weak));
#else
extern const allocsample_hooks *allocsample_get_hooks(uint32_t version);
#endif

/* The table, or NULL: the machine then runs alone. Once, at start. A program that is not linked dynamically, or whose
 * linker drops weak symbols, may ask `dlsym(RTLD_DEFAULT, "allocsample_get_hooks")` instead. */
static inline const allocsample_hooks *allocsample_find(void)
{
#if defined(__GNUC__)
    return allocsample_get_hooks ? allocsample_get_hooks(ALLOCSAMPLE_VERSION) : (const allocsample_hooks *)0;
#else
    return allocsample_get_hooks(ALLOCSAMPLE_VERSION);
#endif
}

/* Bits of `capabilities`. */
#define ALLOCSAMPLE_CAN_SHADOW_STACK UINT64_C(1)  /* shadow_stack */
#define ALLOCSAMPLE_CAN_INLINE UINT64_C(2)        /* define_inlined */
#define ALLOCSAMPLE_CAN_ENABLE_THREAD UINT64_C(4) /* thread_enable */
#define ALLOCSAMPLE_CAN_ASK_FOR_LATE UINT64_C(8)  /* pending and resolve for a NULL nursery */
#define ALLOCSAMPLE_CAN_WALK_IN_TICKS UINT64_C(16) /* ALLOCSAMPLE_WALK_IN_TICKS is heeded */

#define ALLOCSAMPLE_CAN_CONTROL_PROCESS UINT64_C(32) /* process_control, process_status, thread_select */
#define ALLOCSAMPLE_CAN_TELL_CHANGES UINT64_C(64) /* on_change is called */
#define ALLOCSAMPLE_CAN_ASK_TO_COLLECT UINT64_C(128) /* collect is called, and there is collected */

/* Whether an agent, which may be older than this header, can do something. */
#define ALLOCSAMPLE_CAN(hooks, bit)                                                                                    \
    ((hooks) && (hooks)->size >= offsetof(allocsample_hooks, capabilities) + sizeof(uint64_t) &&                       \
     ((hooks)->capabilities & (bit)) != 0)

/* Whether an agent's table has a function that was added after the first release. */
#define ALLOCSAMPLE_HAS(hooks, function)                                                                               \
    ((hooks) && (hooks)->size >= offsetof(allocsample_hooks, function) + sizeof((hooks)->function) && (hooks)->function)

#ifdef __cplusplus
}
#endif
#endif
