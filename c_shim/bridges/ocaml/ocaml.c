/* OCaml's heap as a heap of the hook ABI, in native programs of OCaml 4.12 to 4.14, and of 5.3 and later.
 *
 * Their runtime samples by itself (Gc.Memprof): it draws words, each with the same probability, and calls closures of the
 * program for a block that is drawn, promoted or found dead. Ours are closures whose code is C. The runtime collects a call
 * stack with each, whose names are in the program.
 *
 * It is switched on between the runtime's start and the program's first instruction, when the runtime installs the stack on
 * which it handles overflows. Hooks of the runtime tell of collections. */
#define _GNU_SOURCE
#include "ocaml.h"
#include "kit/resume.h"
#include "kit/symbols.h"
#include "kit/thread_pointer.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ocaml_runtime ocaml;
const allocsample_hooks *ocaml_hooks;
allocsample_heap *ocaml_heap;
static const char *main_thread;
static _Atomic(bool) is_ready;

static bool find_memprof(void)
{
    static const struct symbol symbols[] = {
        {&ocaml.start, "caml_memprof_start"},
        {&ocaml.stop, "caml_memprof_stop"},
        {&ocaml.names_of, "caml_debuginfo_extract"},
        {&ocaml.caller_of, "caml_debuginfo_next"},
        {&ocaml.place_of, "caml_debuginfo_location"},
        {&ocaml.minor_begin, "caml_minor_gc_begin_hook"},
        {&ocaml.minor_end, "caml_minor_gc_end_hook"},
        {&ocaml.slice_begin, "caml_major_slice_begin_hook"},
        {&ocaml.slice_end, "caml_major_slice_end_hook"},
    };
    return symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "ocaml");
}

static bool find_runtime_4(void)
{
    static const struct symbol symbols[] = {
        {&ocaml.start, "caml_memprof_start"},
        {&ocaml.state, "Caml_state"},
        {&ocaml.cycle, "caml_major_gc_hook"},
    };
    return symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "ocaml");
}

static bool find_runtime_5(void)
{
    static const struct symbol symbols[] = {
        {&ocaml.start, "caml_memprof_start"},
        {&ocaml.state, "caml_state"},
        {&ocaml.call, "caml_c_call"},
        {&ocaml.call_back, "caml_callback_exn"},
        {&ocaml.set_action_pending, "caml_set_action_pending"},
        {&ocaml.interrupt_hook, "caml_domain_external_interrupt_hook"},
        {&ocaml.interrupt, "caml_process_external_interrupt"},
        {&ocaml.keep_root, "caml_register_generational_global_root"},
        {&ocaml.change_root, "caml_modify_generational_global_root"},
        {&ocaml.domains, "caml_num_domains_running"},
        {&ocaml.minor_count, "caml_minor_collections_count"},
        {&ocaml.cycle_count, "caml_major_cycles_completed"},
    };
    if (dlsym(RTLD_DEFAULT, "caml_memprof_sample_young") == NULL) {
        shim_services.decline("ocaml", "OCaml 5.0 to 5.2", "has no sampler");
        return false;
    }
    ocaml.is_5_3 = dlsym(RTLD_DEFAULT, "caml_ml_gc_ramp_up") == NULL;
    return symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "ocaml");
}

static bool links_memtrace(void)
{
    return dlsym(RTLD_DEFAULT, "camlMemtrace__code_begin") != NULL || dlsym(RTLD_DEFAULT, "camlMemtrace.code_begin") != NULL;
}

/* Not for bytecode, whose closures are other; a program that samples by memtrace goes first. */
static bool find_runtime(void)
{
    if (!find_memprof())
        return false;
    if (dlsym(RTLD_DEFAULT, "caml_init_frame_descriptors") == NULL) {
        shim_services.decline("ocaml", "bytecode", "has no frames that can be read");
        return false;
    }
    if (links_memtrace()) {
        shim_services.decline("ocaml", "memtrace", "has OCaml's sampler for itself");
        return false;
    }
    ocaml.is_5 = dlsym(RTLD_DEFAULT, "caml_domain_spawn") != NULL;
    return ocaml.is_5 ? find_runtime_5() : find_runtime_4();
}

static bool make_heap(void)
{
    allocsample_heap_description description = {
        .size = sizeof description, .kind = ALLOCSAMPLE_COLLECTED, .name = "ocaml"};
    allocsample_counters counters = {.size = sizeof counters};
    ocaml_hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    ocaml_heap =
        ocaml_hooks == NULL || !ocaml_samples_prepare() ? NULL : ocaml_hooks->heap_register(&description);
    if (ocaml_heap == NULL || ocaml_hooks->counters(ocaml_heap, &counters) != ALLOCSAMPLE_OK || counters.interval == 0)
        return false;
    ocaml_drawn_at = counters.interval;
    return true;
}

static void join(void)
{
    if (!find_runtime() || !make_heap())
        return;
    main_thread = thread_pointer();
    atomic_store_explicit(&is_ready, true, memory_order_relaxed);
}

static void attach(void)
{
    static bool is_tried;
    if (ocaml_heap != NULL) {
        resume_heap(ocaml_hooks, ocaml_heap);
        return;
    }
    if (is_tried || dlsym(RTLD_DEFAULT, "caml_memprof_start") == NULL)
        return; /* most processes that are attached to end here */
    is_tried = true;
    if (!find_runtime() || !make_heap())
        return;
    ocaml.is_late = true;
    if (!ocaml.is_5)
        ocaml_4_start_late();
    else if (!ocaml_5_join_late())
        ocaml_note(OCAML_UNKNOWN_BUILD);
}

static void detach(void)
{
    if (ocaml_heap != NULL)
        ocaml_hooks->control(ocaml_heap, ALLOCSAMPLE_STOP, 0);
}

/* OCaml 5 has a state for each thread; ours is that of the thread that has joined. */
static void join_if_started(void)
{
    if (LIKELY(!atomic_load_explicit(&is_ready, memory_order_relaxed)) || thread_pointer() != main_thread ||
        *ocaml.state == NULL || !atomic_exchange_explicit(&is_ready, false, memory_order_relaxed))
        return;
    if (ocaml.is_5)
        ocaml_5_start();
    else
        ocaml_4_start();
}

static void after_fork_in_child(void)
{
    ocaml_samples_after_fork_in_child();
}

/* libc's, which OCaml's runtime calls at its start. */
EXPORT int sigaltstack(const stack_t *restrict stack, stack_t *restrict old)
{
    join_if_started();
    return (int)syscall(SYS_sigaltstack, stack, old);
}

const struct bridge bridge_ocaml = {
    .name = "ocaml",
    .runtime_symbol = "caml_memprof_start",
    .join = join,
    .attach = attach,
    .detach = detach,
    .after_fork_in_child = after_fork_in_child,
};
