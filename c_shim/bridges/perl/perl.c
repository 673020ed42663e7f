/* Perl's subs, files and lines in the stacks of malloc's blocks.
 *
 * No function of perl's gives a stack without allocating, and none may be called from within malloc. So the interpreter's stack of
 * contexts is read where perl's headers have it (frames.c). They are the same for all releases of a stable version, say 5.36; libperl
 * has its version and the size of an interpreter as variables, and a version or size that layouts.def has not is left alone.
 *
 * Nothing of perl is changed or called. Its library may be loaded late, as a plugin of another program is. */
#define _GNU_SOURCE
#include "perl.h"
#include "kit/memory.h"
#include "kit/objects.h"
#include "kit/resume.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <string.h>

static const struct perl_layout layouts[] = {
#include "layouts.def"
};

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
/* The one that frames are read of, or NULL. */
static const struct perl *joined;
static _Atomic(bool) is_left; /* the process was detached from */
static _Atomic(bool) is_unknown; /* it is perl, of a version or a build that nobody knows */

/* `interpreter_bytes` is NULL where perl has no threads. */
static const struct perl_layout *layout_of(const uint8_t *revision, const uint8_t *minor, const uint16_t *interpreter_bytes)
{
    bool has_threads = interpreter_bytes != NULL;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct perl_layout *layout = &layouts[i];
        if (*revision == 5 && layout->minor == *minor && layout->has_threads == has_threads &&
            (!has_threads || layout->interpreter_bytes == *interpreter_bytes))
            return layout;
    }
    return NULL;
}

static bool find_variables(bool has_threads, struct perl_symbols *found)
{
    const struct symbol with[] = {
        {&found->thread_key, "PL_thr_key"},
        {&found->first_interpreter, "PL_curinterp"},
        {&found->get_specific, "pthread_getspecific"},
        {&found->op_codes, "PL_ppaddr"},
    };
    const struct symbol without[] = {
        {&found->current_stack, "PL_curstackinfo"}, {&found->current_cop, "PL_curcop"}, {&found->top_env, "PL_top_env"},
        {&found->start_env, "PL_start_env"},        {&found->compiling, "PL_compiling"}, {&found->op_codes, "PL_ppaddr"},
    };
    return has_threads ? symbols_find(with, sizeof with / sizeof with[0], NULL)
                       : symbols_find(without, sizeof without / sizeof without[0], NULL);
}

/* Why perl cannot be joined; NULL: it can, and is described. */
static const char *describe(struct perl *perl)
{
    const uint8_t *revision, *minor;
    const struct symbol version[] = {{&revision, "PL_revision"}, {&minor, "PL_version"}};
    if (!symbols_find(version, 2, NULL))
        return "tells no version";
    bool has_threads = dlsym(RTLD_DEFAULT, "PL_thr_key") != NULL;
    const uint16_t *interpreter_bytes = dlsym(RTLD_DEFAULT, "PL_interp_size");
    /* Numbers of 16 bytes are parts of other structures. */
    const char *options = dlsym(RTLD_DEFAULT, "PL_bincompat_options");
    if (options != NULL && (strstr(options, "LONG_DOUBLE") != NULL || strstr(options, "QUADMATH") != NULL))
        return "has numbers of 16 bytes, which are not supported";
    if (has_threads && interpreter_bytes == NULL)
        return "lacks a variable that others have";
    perl->layout = layout_of(revision, minor, has_threads ? interpreter_bytes : NULL);
    if (perl->layout == NULL)
        return "is of a version or a build that is not known";
    return find_variables(has_threads, &perl->symbols) ? NULL : "lacks a variable that others have";
}

static bool make_heap(void)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !perl_frames_make())
        return false;
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_TRACED,
        .name = "perl",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE | ALLOCSAMPLE_WALK_IN_FREE,
        .walk = perl_frames_walk,
    };
    heap = hooks->heap_register(&description);
    return heap != NULL;
}

/* Returns why not, or NULL. */
static const char *enter(void *construct)
{
    uintptr_t start, end;
    struct perl *perl = memory_map(sizeof *perl);
    if (perl == NULL)
        return "finds no memory for its bridge";
    const char *why = describe(perl);
    if (why != NULL)
        return why;
    if (heap == NULL && !make_heap())
        return "finds no memory for its bridge";
    perl->hooks = hooks;
    perl->heap = heap;
    if (symbols_code_of(construct, &start, &end))
        hooks->interpreter_range(heap, start, end);
    joined = perl;
    perl_frames_are_of(perl);
    return NULL;
}

static void *find_perl(void)
{
    return dlsym(RTLD_DEFAULT, "perl_construct");
}

static void join(void)
{
    const char *why = enter(find_perl());
    if (why == NULL)
        return;
    atomic_store(&is_unknown, true);
    shim_services.decline("perl", "Perl", why);
}

/* Perl that was not there at the start. */
static void enter_late(void)
{
    void *construct = joined != NULL || atomic_load(&is_unknown) ? NULL : find_perl();
    if (construct != NULL && enter(construct) != NULL)
        atomic_store(&is_unknown, true);
}

static bool is_library(const char *file)
{
    static const char library[] = "libperl.so";
    return strncmp(file, library, strlen(library)) == 0;
}

static bool awaits(const char *file)
{
    return joined == NULL && !atomic_load(&is_unknown) && is_library(file);
}

static void visit(void *argument, const struct object_file *file)
{
    const char *slash = strrchr(file->path, '/');
    if (is_library(slash == NULL ? file->path : slash + 1))
        *(bool *)argument = true;
}

/* By its name in the list of mappings: an object that a stack has met may be gone, so nothing of it is read. Only where it is does
 * anybody wait for the loader. */
static bool look(uintptr_t object)
{
    bool is_perl = false;
    objects_each(object, visit, &is_perl);
    if (is_perl)
        enter_late();
    return true;
}

static void attach(void)
{
    enter_late();
    if (joined == NULL)
        return;
    resume_heap(hooks, heap);
    if (atomic_exchange(&is_left, false))
        perl_frames_are_of(joined);
}

static void detach(void)
{
    if (joined == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    atomic_store(&is_left, true);
    perl_frames_are_of(NULL);
}

/* Its variables are read as foreign memory, so that a walk may still be there. */
static void after_dlclose(void)
{
    if (joined == NULL || find_perl() != NULL)
        return;
    joined = NULL;
    perl_frames_are_of(NULL);
}

const struct bridge bridge_perl = {
    .name = "perl",
    .runtime_symbol = "perl_construct",
    .join = join,
    .attach = attach,
    .detach = detach,
    .look = look,
    .awaits = awaits,
    .after_dlclose = after_dlclose,
    .after_fork_in_child = perl_frames_after_fork_in_child,
};
