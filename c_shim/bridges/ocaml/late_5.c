/* Starts the sampler of OCaml 5 in a program that runs already.
 *
 * Only a domain itself can start its sampler, and only where code of OCaml may run. The runtime has such places: there it calls
 * a hook that gives way to other threads, if the domain's state asks for it. So at the end of a minor collection, in which all
 * domains take part, every domain asks itself to call the hook, which is ours, and starts its sampler there. A domain that is
 * spawned later has the sampler of its parent. */
#define _GNU_SOURCE
#include "ocaml.h"
#include "kit/thread_pointer.h"

#include <errno.h>

#define DOMAINS 256 /* a power of two */
enum { ASKED = 1, STARTED = 2 };

static struct {
    _Atomic(bool) is_wanted;
    ptrdiff_t state_offset;  /* from a thread's thread pointer to the pointer to the state of its domain */
    size_t interrupt_offset; /* in a domain's state: whether the hook is to be called */
    void (*next)(void);      /* the hook that was there */
    struct {
        _Atomic(uintptr_t) state; /* 0: free */
        _Atomic(int) phase;
    } domains[DOMAINS];
} late;

/* The phase of a domain, which gets a place at first; NULL: there are too many. */
static _Atomic(int) *phase_of(uintptr_t state)
{
    size_t first = (size_t)((state >> 12) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
    for (size_t i = 0; i < DOMAINS; i++) {
        size_t at = (first + i) % DOMAINS;
        uintptr_t found = 0;
        if (atomic_compare_exchange_strong(&late.domains[at].state, &found, state) || found == state)
            return &late.domains[at].phase;
    }
    return NULL;
}

static char *own_state(void)
{
    return *(char *const *)(thread_pointer() + late.state_offset);
}

static _Atomic(uintptr_t) *interrupt_of(char *state)
{
    return (_Atomic(uintptr_t) *)(state + late.interrupt_offset);
}

void ocaml_5_late_minor_begin(void)
{
    if (UNLIKELY(atomic_load_explicit(&late.is_wanted, memory_order_relaxed)))
        ocaml_5_prepare_late();
}

void ocaml_5_late_minor_end(void)
{
    if (LIKELY(!atomic_load_explicit(&late.is_wanted, memory_order_relaxed)))
        return;
    char *state = own_state();
    _Atomic(int) *phase = phase_of((uintptr_t)state);
    int none = 0;
    if (phase != NULL && atomic_compare_exchange_strong(phase, &none, ASKED)) {
        atomic_store(interrupt_of(state), 1);
        ocaml.set_action_pending(state);
    }
}

/* In place of the runtime's hook, where any code may run. */
static void on_interrupt(void)
{
    char *state = own_state();
    _Atomic(int) *phase = phase_of((uintptr_t)state);
    int asked = ASKED;
    if (LIKELY(phase == NULL || !atomic_compare_exchange_strong(phase, &asked, STARTED))) {
        late.next();
        return;
    }
    int error = errno;
    atomic_store(interrupt_of(state), 0);
    ocaml_5_start_here();
    errno = error;
}

bool ocaml_5_join_late(void)
{
    late.state_offset = (const char *)ocaml.state - thread_pointer();
    late.interrupt_offset = ocaml_5_interrupt_offset(late.state_offset);
    if (late.interrupt_offset == 0)
        return false;
    late.next = *ocaml.interrupt_hook;
    __atomic_store_n(ocaml.interrupt_hook, on_interrupt, __ATOMIC_RELEASE);
    atomic_store(&late.is_wanted, true);
    ocaml_5_watch_collections();
    return true;
}
