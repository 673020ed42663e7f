/* The CPython bridge: the interpreter's small objects as a heap of the hook ABI, and its frames in every stack. */
#ifndef ALLOCSAMPLE_BRIDGES_PYTHON_H
#define ALLOCSAMPLE_BRIDGES_PYTHON_H

#include "allocsample.h"
#include "bridge.h"

struct python_layout;

/* PyMemAllocatorEx: CPython's public interface. */
struct python_allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

/* Functions and variables of the interpreter, looked up by name: nothing of Python is linked. */
struct python_symbols {
    void (*get_allocator)(int domain, struct python_allocator *); /* PyMem_GetAllocator */
    void (*set_allocator)(int domain, struct python_allocator *);
    const char *(*version)(void);
    void *(*thread_state)(void); /* PyGILState_GetThisThreadState: NULL before and after the interpreter's life */
    void *(*running_state)(void); /* _PyThreadState_UncheckedGet: that of the thread with the lock, any thread's; or NULL */
    int (*line_of)(void *code, int offset); /* PyCode_Addr2Line */
    const void *code_type, *str_type;
    const void *eval_loop; /* _PyEval_EvalFrameDefault */
    const struct python_layout *layout; /* NULL: not known */
};

/* Domains of allocators: PyMemAllocatorDomain. */
enum { PYTHON_RAW = 0, PYTHON_MEMORY = 1, PYTHON_OBJECTS = 2 };
/* Bytes in which an object has its header, wherever that is in its block. */
enum { PYTHON_HEADERS = 48 };

/* Sets the hooks and the heap that the allocator wrappers use; false if they cannot work. */
HIDDEN bool python_objects_prepare(const struct python_symbols *symbols, const allocsample_hooks *hooks, allocsample_heap *heap);

/* Wraps the allocators of small objects, if they are the interpreter's own and are not wrapped yet; and lets go of them. */
HIDDEN void python_objects_wrap(const struct python_symbols *symbols);
HIDDEN void python_objects_unwrap(const struct python_symbols *symbols);

/* The same for an allocator whose blocks stay where they are. To wrap what is wrapped changes nothing. */
HIDDEN bool python_in_place_prepare(const allocsample_hooks *hooks, allocsample_heap *heap);
HIDDEN void python_in_place_wrap(const struct python_symbols *symbols);
HIDDEN void python_in_place_unwrap(const struct python_symbols *symbols);

/* Prepares the walker; false if the frames of this interpreter cannot be read. */
HIDDEN bool python_frames_prepare(const struct python_symbols *symbols, const allocsample_hooks *hooks);

/* Forgets all code objects, which may have ended, and from now on notices when one ends. */
HIDDEN void python_frames_begin(void);
/* The same for types. */
HIDDEN void python_types_watch(void);

/* Releases the locks of frames and types in a forked child: their holders do not exist there. */
HIDDEN void python_frames_after_fork_in_child(void);

/* Sets the heap in which functions are defined. */
HIDDEN void python_frames_belong_to(allocsample_heap *heap);

/* Whether the calling thread is importing a module. */
HIDDEN bool python_frames_are_importing(void);

/* The walker of the hook ABI. */
HIDDEN size_t python_frames_walk(void *user, allocsample_frame *frames, size_t capacity);

/* Finds what is needed to tell types of objects. */
HIDDEN void python_types_prepare(const struct python_symbols *symbols, const allocsample_hooks *hooks,
                                 allocsample_heap *heap);

/* The interpreter is up: classes can be named with their modules. With its lock, where it may allocate. */
HIDDEN void python_types_begin(void);

/* A block of the domain of objects, or of memory, which is a sample of Python's heap or of malloc's. */
struct python_block {
    allocsample_id sample;
    uintptr_t address;
    size_t size;
    bool is_object, is_of_malloc;
};

/* This one will be an object with a type soon, or part of one. Where it would have its header it is zero, or is what it was made
 * to be. */
HIDDEN void python_types_await(const struct python_block *block);

/* A block is about to be freed: tells what it is, if it waits for that. On any thread; keeps errno. */
HIDDEN void python_types_end(const void *block);

/* Tells of those that have one by now. With the interpreter's lock, if there is one. */
HIDDEN void python_types_look(void);

/* Nothing is awaited: what was is not heard of any more when it is freed, or is the parent's. */
HIDDEN void python_types_forget(void);
HIDDEN void python_types_after_fork_in_child(void);

/* Finds what is needed to hear of collections. */
HIDDEN void python_gc_prepare(const allocsample_hooks *hooks, allocsample_heap *heap);

/* Asks the interpreter, whose lock is held, to tell of its collections, once it is ready for that. */
HIDDEN void python_gc_watch(void);

/* The `collect` of the hook ABI: the next sample of an object asks the interpreter for it. */
HIDDEN int32_t python_gc_want(void *user);

#endif
