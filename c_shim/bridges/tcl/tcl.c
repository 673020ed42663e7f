/* Tcl's procedures, methods, files and lines in the stacks of malloc's blocks and of those of Tcl's own allocator.
 *
 * Tcl's own functions that tell its stack (`info frame`) allocate, and none may be called from within malloc. So the
 * interpreters that run on the thread are found on its stack (interpreters.c), and their call frames are read where Tcl's
 * private headers have their parts (frames.c). These are the same for all patch levels of a version, and Tcl tells its version. A later one
 * than layouts.def has is read like the newest of the same major version, once it was seen to be like that (trial.c); others are left
 * alone.
 *
 * No code of Tcl is changed, and nothing is called but Tcl_GetVersion, which only stores constants. Its library may be loaded
 * late, as by Python's tkinter. */
#define _GNU_SOURCE
#include "tcl.h"
#include "kit/memory.h"
#include "kit/objects.h"
#include "kit/resume.h"
#include "kit/symbols.h"

#include <dlfcn.h>

#define GET_VERSION "Tcl_GetVersion"
typedef void get_version(int *major, int *minor, int *patch_level, int *type);

static const struct tcl_layout layouts[] = {
#include "layouts.def"
};

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
/* The one that frames are read of, or NULL. */
static const struct tcl *joined;
static _Atomic(bool) is_left;    /* the process was detached from */
static _Atomic(bool) is_unknown; /* it is Tcl, of a version that nobody knows */

/* The newest layout that is not newer than the version, or NULL. */
static const struct tcl_layout *layout_of(get_version *ask, bool *is_known)
{
    int major, minor, patch_level, type;
    const struct tcl_layout *found = NULL;
    ask(&major, &minor, &patch_level, &type);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].major == major && layouts[i].minor <= minor)
            found = &layouts[i];
    *is_known = found != NULL && found->minor == minor;
    return found;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static bool make_heap(void)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !tcl_frames_make())
        return false;
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_TRACED,
        .name = "tcl",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE | ALLOCSAMPLE_WALK_IN_FREE,
        .walk = tcl_frames_walk,
    };
    heap = hooks->heap_register(&description);
    return heap != NULL;
}

/* Returns why not, or NULL. */
static const char *enter(const struct object_file *library, get_version *ask)
{
    uintptr_t start, end;
    struct tcl *tcl = memory_map(sizeof *tcl);
    if (tcl == NULL)
        return "finds no memory for its bridge";
    tcl->layout = layout_of(ask, &tcl->is_known);
    if (tcl->layout == NULL)
        return "is of a version that is not known";
    if (heap == NULL && !make_heap())
        return "finds no memory for its bridge";
    tcl->start = library->start;
    tcl->end = library->end;
    strncpy(tcl->file, name_of(library->path), sizeof tcl->file - 1);
    tcl->hooks = hooks;
    tcl->heap = heap;
    if (symbols_code_of((const void *)ask, &start, &end))
        hooks->interpreter_range(heap, start, end);
    joined = tcl;
    tcl_frames_are_of(tcl);
    tcl_blocks_join(tcl);
    return NULL;
}

/* ---- libraries ---- */

/* The library that has this address, or, if that is 0, the one with Tcl's name. */
struct search {
    uintptr_t address;
    struct object_file found;
    char path[4096];
};

static bool is_named_tcl(const char *path)
{
    static const char library[] = "libtcl";
    return strncmp(name_of(path), library, strlen(library)) == 0;
}

static void visit(void *argument, const struct object_file *file)
{
    struct search *search = argument;
    bool is_it = search->address == 0 ? is_named_tcl(file->path) : search->address >= file->start && search->address < file->end;
    if (!is_it)
        return;
    strncpy(search->path, file->path, sizeof search->path - 1);
    search->found = (struct object_file){.start = file->start, .end = file->end, .path = search->path};
}

/* Tcl in the program's global scope. */
static bool find_global(struct search *search)
{
    search->address = (uintptr_t)dlsym(RTLD_DEFAULT, GET_VERSION);
    if (search->address != 0)
        objects_each(0, visit, search);
    return search->found.start != 0;
}

/* By its name in the list of mappings: an object that a stack has met may be gone, so nothing of it is read before. */
static bool find_library(uintptr_t object, struct search *search)
{
    objects_each(object, visit, search);
    if (search->found.start == 0 || !objects_is_loaded(search->found.start))
        return false;
    search->address = (uintptr_t)shim_services.symbol_of_object(search->found.start, GET_VERSION);
    return search->address != 0;
}

static get_version *function_at(uintptr_t address)
{
    union {
        uintptr_t address;
        get_version *function;
    } found = {address};
    return found.function;
}

/* ---- the bridge ---- */

static void join(void)
{
    struct search search = {0};
    const char *why = find_global(&search) ? enter(&search.found, function_at(search.address)) : "is not where its functions are";
    if (why == NULL)
        return;
    atomic_store(&is_unknown, true);
    shim_services.decline("tcl", "Tcl", why);
}

/* Tcl that was not there at the start. */
static void enter_late(const struct search *search)
{
    if (enter(&search->found, function_at(search->address)) != NULL)
        atomic_store(&is_unknown, true);
}

static bool look(uintptr_t object)
{
    struct search search = {0};
    if (joined == NULL && !atomic_load(&is_unknown) && find_library(object, &search))
        enter_late(&search);
    return true;
}

static bool awaits(const char *file)
{
    return joined == NULL && !atomic_load(&is_unknown) && is_named_tcl(file);
}

static void attach(void)
{
    struct search search = {0};
    if (joined == NULL && !atomic_load(&is_unknown) && (find_global(&search) || find_library(0, &search)))
        enter_late(&search);
    if (joined == NULL)
        return;
    resume_heap(hooks, heap);
    if (!atomic_exchange(&is_left, false))
        return;
    tcl_frames_are_of(joined);
    tcl_blocks_resume();
}

static void detach(void)
{
    if (joined == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    atomic_store(&is_left, true);
    tcl_blocks_leave();
    tcl_frames_are_of(NULL);
}

/* Its interpreters are read as foreign memory, so that a walk may still be there. */
static void after_dlclose(void)
{
    if (joined == NULL || objects_is_loaded(joined->start))
        return;
    joined = NULL;
    tcl_blocks_are_gone();
    tcl_frames_are_of(NULL);
}

static void after_fork_in_child(void)
{
    tcl_frames_after_fork_in_child();
    tcl_blocks_after_fork_in_child();
}

const struct bridge bridge_tcl = {
    .name = "tcl",
    .runtime_symbol = "Tcl_CreateInterp",
    .join = join,
    .attach = attach,
    .detach = detach,
    .look = look,
    .awaits = awaits,
    .after_dlclose = after_dlclose,
    .after_fork_in_child = after_fork_in_child,
};
