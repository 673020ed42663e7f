/* Reports OCaml's collections, by the hooks that its runtime has for them. */
#define _GNU_SOURCE
#include "ocaml.h"

static _Atomic(uint64_t) count;

static void report(uint32_t kind, uint64_t begin_ns, uint64_t end_ns, uint64_t looked_until_ns)
{
    uint64_t looked_until[] = {ALLOCSAMPLE_LOOKED_UNTIL, looked_until_ns};
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = kind,
        .id = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed) + 1,
        .begin_ns = begin_ns,
        .end_ns = end_ns,
        .statistics = looked_until_ns != 0,
        .values = looked_until,
    };
    ocaml_hooks->gc(ocaml_heap, &gc);
}

static void set(_Atomic(ocaml_timing_hook) *hook, ocaml_timing_hook function)
{
    atomic_store_explicit(hook, function, memory_order_release);
}

/* ---- OCaml 4: all of it is under the master lock ---- */

static struct {
    uint64_t minor_ns, slice_ns;
    bool is_cycle_done;
} collection;

static void on_minor_begin_4(void)
{
    collection.minor_ns = ocaml_hooks->now_ns();
}

static void on_minor_end_4(void)
{
    report(ALLOCSAMPLE_MINOR, collection.minor_ns, ocaml_hooks->now_ns(), 0);
    ocaml_4_follow_late();
}

static void on_slice_begin_4(void)
{
    collection.slice_ns = ocaml_hooks->now_ns();
    collection.is_cycle_done = false;
}

static void on_slice_end_4(void)
{
    report(collection.is_cycle_done ? ALLOCSAMPLE_MAJOR : ALLOCSAMPLE_MAJOR_STEP, collection.slice_ns, ocaml_hooks->now_ns(), 0);
    collection.slice_ns = 0;
}

/* Once in each cycle, when all is marked: in a slice, or in a collection that the program asked for. */
static void on_cycle_4(void)
{
    uint64_t now = ocaml_hooks->now_ns();
    if (collection.slice_ns != 0)
        collection.is_cycle_done = true;
    else
        report(ALLOCSAMPLE_MAJOR, now, now, 0);
}

void ocaml_4_watch_collections(void)
{
    set(ocaml.minor_begin, on_minor_begin_4);
    set(ocaml.minor_end, on_minor_end_4);
    set(ocaml.slice_begin, on_slice_begin_4);
    set(ocaml.slice_end, on_slice_end_4);
    set(ocaml.cycle, on_cycle_4);
}

static void on_late_minor_end_4(void)
{
    set(ocaml.minor_end, NULL);
    ocaml_4_start();
}

void ocaml_4_start_late(void)
{
    set(ocaml.minor_end, on_late_minor_end_4);
}

/* ---- OCaml 5: all domains take part in a minor collection, and each has slices of its own ---- */

static struct {
    _Atomic(uintptr_t) begun, ended; /* the runtime's count of the last minor collection that has */
    _Atomic(uint64_t) minor_ns;
    _Atomic(uintptr_t) cycles;    /* that have ended */
    _Atomic(uint64_t) marking_ns; /* when the current cycle began */
    _Atomic(bool) had_domains;
} shared;
/* The domain's last slice, until it is reported. */
static _Thread_local uint64_t slice_begin_ns, slice_end_ns;

/* No domain comes or goes during a minor collection. */
static void on_minor_begin_5(void)
{
    if (atomic_load_explicit(ocaml.domains, memory_order_relaxed) != 1)
        atomic_store_explicit(&shared.had_domains, true, memory_order_relaxed);
    uintptr_t number = atomic_load_explicit(ocaml.minor_count, memory_order_relaxed);
    if (atomic_exchange_explicit(&shared.begun, number, memory_order_relaxed) != number)
        atomic_store_explicit(&shared.minor_ns, ocaml_hooks->now_ns(), memory_order_relaxed);
    ocaml_5_late_minor_begin();
}

static void on_minor_end_5(void)
{
    uintptr_t number = atomic_load_explicit(ocaml.minor_count, memory_order_relaxed);
    uint64_t begin_ns = atomic_load_explicit(&shared.minor_ns, memory_order_relaxed);
    if (atomic_exchange_explicit(&shared.ended, number, memory_order_relaxed) != number)
        report(ALLOCSAMPLE_MINOR, begin_ns, ocaml_hooks->now_ns(), 0);
    ocaml_5_late_minor_end();
}

/* The runtime has no hook for the end of a cycle, but counts them, after the slice that was the last. A cycle marks what was there
 * when it began, and takes what was allocated since for alive. */
void ocaml_5_report_slice(void)
{
    if (slice_end_ns == 0)
        return;
    uintptr_t cycles = atomic_load_explicit(ocaml.cycle_count, memory_order_relaxed);
    if (atomic_exchange_explicit(&shared.cycles, cycles, memory_order_relaxed) == cycles) {
        report(ALLOCSAMPLE_MAJOR_STEP, slice_begin_ns, slice_end_ns, 0);
    } else {
        uint64_t began = atomic_exchange_explicit(&shared.marking_ns, slice_end_ns, memory_order_relaxed);
        report(ALLOCSAMPLE_MAJOR, slice_begin_ns, slice_end_ns, began);
    }
    slice_end_ns = 0;
}

static void on_slice_begin_5(void)
{
    ocaml_5_report_slice();
    slice_begin_ns = ocaml_hooks->now_ns();
}

static void on_slice_end_5(void)
{
    slice_end_ns = ocaml_hooks->now_ns();
}

bool ocaml_5_had_domains(void)
{
    return atomic_load_explicit(&shared.had_domains, memory_order_relaxed);
}

void ocaml_5_watch_collections(void)
{
    atomic_store_explicit(&shared.marking_ns, ocaml_hooks->now_ns(), memory_order_relaxed);
    set(ocaml.minor_begin, on_minor_begin_5);
    set(ocaml.minor_end, on_minor_end_5);
    set(ocaml.slice_begin, on_slice_begin_5);
    set(ocaml.slice_end, on_slice_end_5);
}
