/* Joins a process that is CPython: its small objects as a heap of the hook ABI (objects.c), its frames in all stacks
 * (frames.c), its collections (gc.c). Before `main`, at an attach, or where a program loads the library late, as a plugin of
 * PostgreSQL or Apache does. */
#define _GNU_SOURCE
#include "bridge.h"
#include "python.h"
#include "deaths.h"
#include "layout.h"
#include "kit/objects.h"
#include "kit/parts.h"
#include "kit/resume.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <string.h>

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct python_symbols symbols;
static bool has_frames; /* they can be read */
static _Atomic(bool) is_left; /* by a detach */

static void *symbol(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* Converts pointers to objects and functions through memory, as POSIX allows for dlsym. */
#define FIND(SLOT, NAME) (*(void **)&(SLOT) = symbol(NAME))

static void find_layout(void)
{
    struct python_identity identity = {symbols.version(), symbol("_PyRuntime"), 0, symbols.code_type, symbols.str_type};
    /* It is far larger. */
    enum { WORDS = 128 };
    if (identity.self_description != NULL && symbols_is_data(identity.self_description, WORDS * sizeof(uint64_t)))
        identity.words = WORDS;
    symbols.layout = python_layout_of(&identity);
}

/* False: this process is no CPython, or one that we know nothing of. */
static bool find_interpreter(void)
{
    FIND(symbols.set_allocator, "PyMem_SetAllocator");
    if (symbols.set_allocator == NULL)
        return false; /* most processes that are attached to end here */
    FIND(symbols.get_allocator, "PyMem_GetAllocator");
    FIND(symbols.version, "Py_GetVersion");
    FIND(symbols.thread_state, "PyGILState_GetThisThreadState");
    FIND(symbols.running_state, "_PyThreadState_UncheckedGet");
    FIND(symbols.line_of, "PyCode_Addr2Line");
    symbols.code_type = symbol("PyCode_Type");
    symbols.str_type = symbol("PyUnicode_Type");
    symbols.eval_loop = symbol("_PyEval_EvalFrameDefault");
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (symbols.get_allocator == NULL || symbols.version == NULL || hooks == NULL)
        return false;
    find_layout();
    return true;
}

static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    return atomic_load_explicit(&is_left, memory_order_relaxed) ? 0 : python_frames_walk(user, frames, capacity);
}

static bool is_sampled(void)
{
    allocsample_counters counters = {.size = sizeof counters};
    return hooks->counters(heap, &counters) == ALLOCSAMPLE_OK && counters.is_on != 0;
}

/* A process that waits to be told allocates as if we were not there. From then on it is as after an attach: any thread may
 * be the one that hears of it, in malloc or elsewhere, while others allocate. */
static void on_change(void *user)
{
    (void)user;
    if (heap != NULL && is_sampled() && !atomic_load_explicit(&is_left, memory_order_relaxed))
        python_objects_wrap(&symbols);
}

/* The native code of the interpreter's loop, most of which may be in the part for what the compiler took to be rare. */
static void tell_loop(void)
{
    uintptr_t start, end, other_start, other_end;
    if (!symbols_extent_of(symbols.eval_loop, &start, &end))
        return;
    hooks->interpreter_range(heap, start, end);
    if (parts_elsewhere(start, end, &other_start, &other_end))
        hooks->interpreter_range(heap, other_start, other_end);
}

/* The heap with its frames and collections; false: there can be none. */
static bool make_heap(void)
{
    has_frames = python_frames_prepare(&symbols, hooks);
    bool is_free_threaded = symbols.layout != NULL && symbols.layout->is_free_threaded;
    /* A frame of no module that called the loop is a trampoline of -X perf. */
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_MALLOC,
        .name = "python",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WALK_IN_FREE | ALLOCSAMPLE_LOOP_HAS_THUNKS |
                 (is_free_threaded ? 0 : ALLOCSAMPLE_FREED_BY_MALLOC),
        .walk = has_frames ? walk : NULL,
        .on_change = on_change,
        .collect = python_gc_want,
    };
    heap = hooks->heap_register(&description);
    if (heap == NULL || !python_objects_prepare(&symbols, hooks, heap))
        return false;
    python_frames_belong_to(heap);
    python_types_prepare(&symbols, hooks, heap);
    python_types_watch();
    if (has_frames) {
        python_gc_prepare(hooks, heap);
        python_frames_begin();
    }
    if (has_frames)
        tell_loop();
    return true;
}

/* Without the interpreter's lock a program may never call malloc, where a process that waits is told to begin. It looks for that
 * where it allocates objects. */
static bool looks_by_itself(void)
{
    return symbols.layout != NULL && symbols.layout->is_free_threaded;
}

static void join(void)
{
    if (find_interpreter() && make_heap() && (is_sampled() || looks_by_itself()))
        python_objects_wrap(&symbols);
}

/* ---- a library that was not there at the start ---- */

static bool is_library(const char *file)
{
    static const char library[] = "libpython3.";
    return strncmp(file, library, strlen(library)) == 0;
}

static bool awaits(const char *file)
{
    return heap == NULL && is_library(file);
}

/* By its name in the list of mappings: an object that a stack has met may be gone, so nothing of it is read before. */
static void visit(void *argument, const struct object_file *file)
{
    const char *slash = strrchr(file->path, '/');
    if (is_library(slash == NULL ? file->path : slash + 1))
        *(bool *)argument = true;
}

/* While the interpreter starts, it replaces its allocators and puts them back. The look-ups in the program's global scope keep the
 * library loaded from here on, so that a walk finds its functions. */
static bool look(uintptr_t object)
{
    bool is_python = false;
    int (*is_initialized)(void);
    if (heap != NULL)
        return true;
    objects_each(object, visit, &is_python);
    if (!is_python)
        return true;
    FIND(is_initialized, "Py_IsInitialized");
    if (is_initialized == NULL)
        return true;
    if (is_initialized() == 0)
        return false;
    join();
    return true;
}

/* ---- attach ---- */

static void attach(void)
{
    if (heap == NULL && (!find_interpreter() || !make_heap()))
        return;
    /* After a detach the heap is that of before, and nobody has told of what was freed since. */
    python_types_forget();
    python_types_watch();
    if (has_frames)
        python_frames_begin();
    resume_heap(hooks, heap);
    atomic_store_explicit(&is_left, false, memory_order_relaxed);
    python_objects_wrap(&symbols);
}

static void detach(void)
{
    if (heap == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    atomic_store_explicit(&is_left, true, memory_order_relaxed);
    python_objects_unwrap(&symbols);
    python_deaths_unwatch();
    python_types_forget();
}

const struct bridge bridge_python = {
    .name = "python",
    .runtime_symbol = "PyMem_SetAllocator",
    .join = join,
    .attach = attach,
    .detach = detach,
    .look = look,
    .awaits = awaits,
    .after_fork_in_child = python_frames_after_fork_in_child,
};
