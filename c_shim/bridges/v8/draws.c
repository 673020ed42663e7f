/* When V8's sampling profiler draws an object.
 *
 * It has no callback, but for each object that it draws it takes memory from `operator new`, at a place of its code that no public
 * name leads to. V8 calls that operator through a slot of the object file that it is in. The slot is made to lead here, and the
 * calls are counted by where they come from and by how many bytes they ask for. V8 numbers its samples: the place is the one
 * whose calls are, whenever the list of samples is read, as many as the highest number. From then on only its calls are
 * counted, and the count is compared with the number at every reading: if they differ, no place is trusted any more. */
#define _GNU_SOURCE
#include "kit/memory.h"
#include "v8.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

/* Places that are told apart, which an isolate's start does not use up: 600 in Node.js 24. */
#define PLACES 8192
/* How many samples it takes at least, and how many readings, until a place is trusted. */
enum { FEWEST_SAMPLES = 32, FEWEST_READINGS = 2 };
/* A reading may itself start a collection, in which the objects that were drawn last die. That does not happen so often in a row. */
enum { MOST_SHORT_READINGS = 3 };
/* On a thread where no profiler runs for us, one call in this many is reported. */
enum { CALLS_PER_REPORT = 128 };

static const char name_of_new[] = "_Znwm";

struct v8_caller {
    uintptr_t from; /* a return address; 0: empty */
    size_t size;
    uint64_t calls, calls_before; /* the latter when the last reading began */
    uint64_t calls_in_readings;
    bool is_excluded; /* its calls were too many or too few in some reading */
};

/* The object file that V8 is in, 0 while it is not watched, and the function that its slot led to. */
static _Atomic(uintptr_t) object;
static void *(*next_new)(size_t size);
/* The place that draws, in all isolates. `size` is written first; 0: not known. */
static _Atomic(size_t) drawing_size;
static _Atomic(uintptr_t) drawing_from;
static _Atomic(bool) was_wrong;
static _Thread_local struct v8_draws *draws_here;
static void (*report_calls)(const struct shim_caller *);
static _Thread_local uint32_t calls_unreported;

static struct v8_caller *find(struct v8_draws *draws, uintptr_t from, size_t size)
{
    size_t at = (from * UINT64_C(0x9e3779b97f4a7c15) >> 32 ^ size * 0x9e3779b1) & (PLACES - 1);
    while (draws->callers[at].from != 0 && (draws->callers[at].from != from || draws->callers[at].size != size))
        at = (at + 1) & (PLACES - 1);
    return &draws->callers[at];
}

static COLD void count_call(struct v8_draws *draws, uintptr_t from, size_t size)
{
    struct v8_caller *caller = find(draws, from, size);
    if (caller->from == 0) {
        if (draws->callers_used == PLACES / 2)
            return;
        draws->callers_used++;
        *caller = (struct v8_caller){.from = from, .size = size, .is_excluded = draws->readings > 0};
    }
    caller->calls++;
}

static bool is_power_of_four(uint64_t number)
{
    return (number & (number - 1)) == 0 && (number & UINT64_C(0x5555555555555555)) != 0;
}

static COLD void on_draw(struct v8_draws *draws)
{
    int error = errno;
    /* The callback may call `operator new` itself. */
    draws_here = NULL;
    draws->count++;
    if (draws->on_draw != NULL)
        draws->on_draw(draws->user);
    if (draws->on_progress != NULL && is_power_of_four(draws->count))
        draws->on_progress(draws->isolate);
    draws_here = draws;
    errno = error;
}

static COLD void report_call_from(uintptr_t from)
{
    int error = errno;
    struct shim_caller caller = {.pc = from, .sp = (uintptr_t)__builtin_frame_address(0)};
    /* The callback may call `operator new` itself. */
    calls_unreported = 0;
    report_calls(&caller);
    errno = error;
}

/* V8's `operator new`. */
static void *new_in_v8(size_t size)
{
    struct v8_draws *draws = draws_here;
    if (draws != NULL) {
        uintptr_t from = (uintptr_t)__builtin_return_address(0);
        if (UNLIKELY(draws->callers != NULL))
            count_call(draws, from, size);
        else if (UNLIKELY(from == atomic_load_explicit(&drawing_from, memory_order_relaxed) &&
                          size == atomic_load_explicit(&drawing_size, memory_order_relaxed)))
            on_draw(draws);
    } else if (UNLIKELY(++calls_unreported == CALLS_PER_REPORT)) {
        report_call_from((uintptr_t)__builtin_return_address(0));
    }
    return next_new(size);
}

static void *address_of_own(void)
{
    void *(*own)(size_t) = new_in_v8;
    void *address;
    _Static_assert(sizeof own == sizeof address, "function pointers are addresses");
    __builtin_memcpy(&address, &own, sizeof address);
    return address;
}

void v8_draws_watch(const void *address_in_v8, void (*on_calls)(const struct shim_caller *))
{
    Dl_info info;
    report_calls = on_calls;
    *(void **)&next_new = dlsym(RTLD_DEFAULT, name_of_new);
    if (next_new == NULL || dladdr(address_in_v8, &info) == 0)
        return;
    atomic_store_explicit(&object, (uintptr_t)info.dli_fbase, memory_order_relaxed);
    shim_services.redirect_in_object((uintptr_t)info.dli_fbase, name_of_new, NULL, address_of_own());
}

void v8_draws_unwatch(void)
{
    void *next;
    __builtin_memcpy(&next, &next_new, sizeof next);
    uintptr_t watched = atomic_exchange_explicit(&object, 0, memory_order_relaxed);
    if (watched != 0)
        shim_services.redirect_in_object(watched, name_of_new, address_of_own(), next);
}

void v8_draws_after_fork_in_child(void)
{
    draws_here = NULL; /* V8's thread, which names stacks, does not exist there */
}

void v8_draws_begin(struct v8_draws *draws)
{
    *draws = (struct v8_draws){0};
    if (atomic_load_explicit(&object, memory_order_relaxed) == 0 || atomic_load_explicit(&was_wrong, memory_order_relaxed))
        return;
    if (!v8_draws_are_known()) {
        draws->callers = memory_map(PLACES * sizeof *draws->callers);
        if (draws->callers == NULL)
            return;
    }
    draws_here = draws;
}

void v8_draws_end(struct v8_draws *draws)
{
    if (draws_here == draws)
        draws_here = NULL;
    if (draws->callers != NULL)
        munmap(draws->callers, PLACES * sizeof *draws->callers);
    *draws = (struct v8_draws){0};
}

bool v8_draws_are_known(void)
{
    return atomic_load_explicit(&drawing_from, memory_order_acquire) != 0;
}

/* ---- readings ---- */

/* Whether all calls from there ask for as many bytes: a vector that grows asks for more and more. */
static bool has_one_size(const struct v8_draws *draws, const struct v8_caller *caller)
{
    for (size_t i = 0; i < PLACES; i++)
        if (draws->callers[i].from == caller->from && draws->callers[i].size != caller->size)
            return false;
    return true;
}

static void exclude_callers(struct v8_draws *draws, uint64_t highest)
{
    for (size_t i = 0; i < PLACES; i++) {
        struct v8_caller *caller = &draws->callers[i];
        caller->calls_in_readings += caller->calls - caller->calls_before;
        if (highest < caller->calls_before || highest > caller->calls)
            caller->is_excluded = true;
    }
}

/* A reading makes copies of all samples: a place that is called for those may have had as many calls as there are samples in the middle
 * of it. The one that draws is called least during readings. Others may be called for each draw, too: which of them is taken does not
 * matter. */
static bool is_better(const struct v8_caller *caller, const struct v8_caller *than)
{
    return caller->calls_in_readings != than->calls_in_readings ? caller->calls_in_readings < than->calls_in_readings
                                                                : caller->from > than->from;
}

static void choose_caller(const struct v8_draws *draws)
{
    const struct v8_caller *chosen = NULL;
    for (size_t i = 0; i < PLACES; i++) {
        const struct v8_caller *caller = &draws->callers[i];
        if (caller->from != 0 && !caller->is_excluded && (chosen == NULL || is_better(caller, chosen)) &&
            has_one_size(draws, caller))
            chosen = caller;
    }
    if (chosen == NULL || v8_draws_are_known())
        return;
    atomic_store_explicit(&drawing_size, chosen->size, memory_order_relaxed);
    atomic_store_explicit(&drawing_from, chosen->from, memory_order_release);
}

/* The place is known, found in this isolate or in another one. */
static void stop_counting_callers(struct v8_draws *draws)
{
    draws->count = find(draws, atomic_load_explicit(&drawing_from, memory_order_relaxed),
                        atomic_load_explicit(&drawing_size, memory_order_relaxed))
                       ->calls;
    munmap(draws->callers, PLACES * sizeof *draws->callers);
    draws->callers = NULL;
}

void v8_draws_before_reading(struct v8_draws *draws)
{
    draws->count_before = draws->count;
    for (size_t i = 0; draws->callers != NULL && i < PLACES; i++)
        draws->callers[i].calls_before = draws->callers[i].calls;
}

enum v8_numbers v8_draws_after_reading(struct v8_draws *draws, uint64_t highest)
{
    /* Those that were drawn last may be dead, and in no list. */
    bool is_new = highest > draws->highest;
    draws->highest = is_new ? highest : draws->highest;
    if (draws->callers != NULL) {
        if (is_new)
            exclude_callers(draws, highest);
        draws->readings += is_new;
        if (!v8_draws_are_known() && !atomic_load_explicit(&was_wrong, memory_order_relaxed) &&
            draws->readings >= FEWEST_READINGS && highest >= FEWEST_SAMPLES)
            choose_caller(draws);
        if (v8_draws_are_known())
            stop_counting_callers(draws);
        return NUMBERS_RIGHT;
    }
    if (atomic_load_explicit(&was_wrong, memory_order_relaxed))
        return NUMBERS_WRONG;
    if (!is_new)
        return NUMBERS_RIGHT;
    bool is_short = highest < draws->count_before;
    draws->short_readings = is_short ? draws->short_readings + 1 : 0;
    if (highest <= draws->count && draws->short_readings < MOST_SHORT_READINGS)
        return is_short ? NUMBERS_DOUBTFUL : NUMBERS_RIGHT;
    atomic_store_explicit(&was_wrong, true, memory_order_relaxed);
    atomic_store_explicit(&drawing_from, 0, memory_order_release);
    draws_here = NULL;
    return NUMBERS_WRONG;
}
