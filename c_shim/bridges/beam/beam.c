/* Joins a process that is Erlang's BEAM: its blocks (allocators.c), and the stacks of its processes (frames.c).
 *
 * BEAM sets up its allocators soon after `main` begins, before it has threads, and then asks the system for limits by `sysconf`: this
 * call of its own is redirected, so that nearly nothing is allocated before its blocks are seen. At an attach they are seen from
 * then on. */
#define _GNU_SOURCE
#include "beam.h"
#include "kit/resume.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static _Atomic(bool) is_entered;

static long sysconf_of_beam(int name)
{
    if (UNLIKELY(!atomic_load_explicit(&is_entered, memory_order_relaxed))) {
        int saved_errno = errno;
        atomic_store_explicit(&is_entered, beam_allocators_enter(), memory_order_relaxed);
        errno = saved_errno;
    }
    return sysconf(name);
}

static bool make_heap(const void *function, bool is_start)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !beam_image_find(function))
        return false;
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_MALLOC,
        .name = "erlang",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE | ALLOCSAMPLE_CODE_IS_NO_MODULE,
        .walk = beam_frames_walk,
    };
    heap = hooks->heap_register(&description);
    if (heap == NULL || !beam_allocators_prepare(hooks, heap) || !beam_code_prepare(hooks, heap))
        return false;
    beam_frames_prepare(is_start);
    uintptr_t start, end;
    beam_image_code(&start, &end);
    hooks->interpreter_range(heap, start, end);
    return true;
}

static void join(void)
{
    void *function = dlsym(RTLD_DEFAULT, "enif_get_atom");
    if (function != NULL && make_heap(function, true))
        shim_services.redirect_in_program("sysconf", sysconf_of_beam);
}

static void attach(void)
{
    void *function = dlsym(RTLD_DEFAULT, "enif_get_atom");
    if (function == NULL || (heap == NULL && !make_heap(function, false)))
        return;
    resume_heap(hooks, heap);
    beam_allocators_enter();
}

static void detach(void)
{
    if (heap == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    beam_allocators_leave();
}

static void after_fork_in_child(void)
{
    beam_frames_after_fork_in_child();
    beam_code_after_fork_in_child();
}

const struct bridge bridge_beam = {
    .name = "beam",
    .runtime_symbol = "enif_get_atom",
    .join = join,
    .attach = attach,
    .detach = detach,
    .after_fork_in_child = after_fork_in_child,
};
