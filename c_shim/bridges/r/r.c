/* R's functions, files and lines in the stacks of malloc's blocks.
 *
 * No function of R's gives a stack without allocating, and none may be called from within malloc. So R's chain of contexts is read
 * (frames.c), from a variable that libR exports, where R's header has their parts. The header is none that R installs, and libR does not
 * say its version: the first context, whose content is the same in all of them, shows which layout it is. Another one is left alone.
 *
 * Nothing of R is changed or called. Its library may be loaded late, by a program that embeds it. */
#define _GNU_SOURCE
#include "r.h"
#include "kit/memory.h"
#include "kit/objects.h"
#include "kit/resume.h"
#include "kit/symbols.h"

#include <dlfcn.h>

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
/* The one that frames are read of, or NULL. */
static const struct r *joined;
/* The object it was found in, if it is not in the program's global scope. */
static uintptr_t joined_object;
static _Atomic(bool) is_left;    /* the process was detached from */
static _Atomic(bool) is_unknown; /* it is R, of a build that nobody knows */

/* ---- symbols ---- */

/* Where symbols are looked up: an object, or the program's global scope if it is 0. */
static uintptr_t scope;

static void *find(const char *name)
{
    return scope == 0 ? dlsym(RTLD_DEFAULT, name) : shim_services.symbol_of_object(scope, name);
}

static bool find_variables(struct r_symbols *found)
{
    const struct symbol all[] = {
        {&found->global_context, "R_GlobalContext"},
        {&found->current_place, "R_Srcref"},
        {&found->nil, "R_NilValue"},
        {&found->in_byte_code, "R_InBCInterpreter"},
        {&found->base_environment, "R_BaseEnv"},
        {&found->base_namespace, "R_BaseNamespace"},
        {&found->global_environment, "R_GlobalEnv"},
        {&found->source_file, "R_SrcfileSymbol"},
        {&found->source_reference, "R_SrcrefSymbol"},
        {&found->class, "R_ClassSymbol"},
        {&found->double_colon, "R_DoubleColonSymbol"},
        {&found->triple_colon, "R_TripleColonSymbol"},
        {&found->dollar, "R_DollarSymbol"},
        {&found->values_end, "R_BCNodeStackEnd"},
        {&found->stack_start, "R_CStackStart"},
        {&found->protected_count, "R_PPStackTop"},
    };
    found->is_main_program = (uintptr_t)find("R_running_as_main_program");
    return symbols_find(all, sizeof all / sizeof all[0], find);
}

static bool make_heap(void)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !r_frames_make())
        return false;
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_TRACED,
        .name = "r",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE | ALLOCSAMPLE_WALK_IN_FREE,
        .walk = r_frames_walk,
    };
    heap = hooks->heap_register(&description);
    return heap != NULL;
}

/* Returns why not, or NULL. R is in `object`, or in the global scope if that is 0. */
static const char *enter(uintptr_t object)
{
    uintptr_t start, end;
    struct r *r = memory_map(sizeof *r);
    if (r == NULL)
        return "finds no memory for its bridge";
    scope = object;
    if (!find_variables(&r->symbols))
        return "lacks a variable that known versions have";
    if (heap == NULL && !make_heap())
        return "finds no memory for its bridge";
    r->hooks = hooks;
    r->heap = heap;
    /* R's functions stand in where the evaluator is first met. What it calls, and what native code of packages calls, is native code of
     * its own. */
    if (symbols_unwound_function_of((uintptr_t)find("Rf_eval"), &start, &end))
        hooks->interpreter_range(heap, start, end);
    joined = r;
    joined_object = object;
    r_frames_are_of(r);
    return NULL;
}

/* ---- the bridge ---- */

static void join(void)
{
    const char *why = enter(0);
    if (why == NULL)
        return;
    atomic_store(&is_unknown, true);
    shim_services.decline("r", "R", why);
}

/* R that was not there at the start. */
static void enter_late(uintptr_t object)
{
    if (joined != NULL || atomic_load(&is_unknown))
        return;
    if (enter(object) != NULL)
        atomic_store(&is_unknown, true);
}

/* By its name in the list of mappings: an object that a stack has met may be gone, so nothing of it is read before. */
static bool is_library(const char *file)
{
    return strcmp(file, "libR.so") == 0;
}

static bool awaits(const char *file)
{
    return joined == NULL && !atomic_load(&is_unknown) && is_library(file);
}

static void visit(void *argument, const struct object_file *file)
{
    const char *slash = strrchr(file->path, '/');
    if (is_library(slash == NULL ? file->path : slash + 1))
        *(uintptr_t *)argument = file->start;
}

static bool look(uintptr_t object)
{
    uintptr_t library = 0;
    if (joined != NULL)
        return true;
    objects_each(object, visit, &library);
    if (library != 0 && objects_is_loaded(library))
        enter_late(library);
    return true;
}

static void attach(void)
{
    if (joined == NULL && dlsym(RTLD_DEFAULT, "Rf_eval") != NULL)
        enter_late(0);
    else if (joined == NULL)
        look(0);
    if (joined == NULL)
        return;
    resume_heap(hooks, heap);
    if (atomic_exchange(&is_left, false))
        r_frames_are_of(joined);
}

static void detach(void)
{
    if (joined == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    atomic_store(&is_left, true);
    r_frames_are_of(NULL);
}

/* Its variables are read as foreign memory, so that a walk may still be there. */
static void after_dlclose(void)
{
    if (joined == NULL || (joined_object == 0 ? dlsym(RTLD_DEFAULT, "Rf_eval") != NULL : objects_is_loaded(joined_object)))
        return;
    joined = NULL;
    r_frames_are_of(NULL);
}

const struct bridge bridge_r = {
    .name = "r",
    .runtime_symbol = "Rf_eval",
    .join = join,
    .attach = attach,
    .detach = detach,
    .look = look,
    .awaits = awaits,
    .after_dlclose = after_dlclose,
    .after_fork_in_child = r_frames_after_fork_in_child,
};
