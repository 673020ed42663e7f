/* Heaps of allocators that are part of the program, or of a library: mimalloc, tcmalloc and jemalloc.
 * Their functions are led to stubs of ours (stubs.c) while nobody can be in them: before the first instruction of the program, and
 * when the loader has mapped a library, but not run any of its code (kit/loader.h). They are found by their names in the file
 * (search.c).
 *
 * A trial (trial.c) comes before a heap is registered. If it fails, as when a function reaches another one in a way that plan.c does
 * not know, the code is put back and the reason is in the profile. In a library that was opened later, the first call of one of the
 * functions is preceded by the trial. If that fails, the stubs pass all calls: other threads may be in them. */
#define _GNU_SOURCE
#include "entries.h"

#include "kit/asking.h"
#include "kit/loader.h"
#include "kit/lock.h"

#include <errno.h>
#include <string.h>

/* Its number among the arguments, or ARGUMENTS. */
static uint8_t place_of(const struct entry_row *row, const char *letters)
{
    size_t place = strcspn(row->arguments, letters);
    return row->arguments[place] == 0 ? ARGUMENTS : (uint8_t)place;
}

static struct redirected redirected[ALLOCATORS];
static _Atomic(size_t) redirected_count;

/* One thread runs a trial. */
static bridge_lock trial_lock;

/* Allocators that stay as they are, each with its reason. */
#define REFUSALS 16
static struct refusal {
    char heap[FILE_NAME + 16], what[64];
    const char *why;
} refusals[REFUSALS];
static size_t refusal_count;
/* Whoever cannot have it says nothing. */
static bridge_lock refusing;

/* Where the next malloc is, which is sampled already whatever its names. */
static uintptr_t next_malloc;

uintptr_t entry_call(uintptr_t function, const uintptr_t arguments[ARGUMENTS])
{
    union {
        uintptr_t address;
        uintptr_t (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
    } called = {function};
    return called.function(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

static bool is_waiting(struct redirected *of)
{
    return UNLIKELY(atomic_load_explicit(&of->is_waiting, memory_order_acquire));
}

static void end_block(struct redirected *of, uintptr_t block)
{
    if (UNLIKELY(trial_is_on))
        trial_freed(block);
    else if (block != 0)
        allocator_freed(&of->allocator, (void *)block);
}

static void begin_block(struct redirected *of, uintptr_t block, size_t size)
{
    if (UNLIKELY(trial_is_on))
        trial_allocated(block, size);
    else if (is_waiting(of))
        ; /* all calls come here, so that the thread counts once the trial is over */
    else if (UNLIKELY(atomic_load_explicit(&of->allocator.heap, memory_order_acquire) == NULL))
        allocator_pass(&of->allocator);
    else if (block != 0)
        allocator_allocated(&of->allocator, (void *)block, size);
}

/* No size is so large, so that the block stays as it is. */
static uintptr_t size_of_block(const struct entry *entry, const uintptr_t arguments[ARGUMENTS])
{
    uintptr_t changed[ARGUMENTS];
    memcpy(changed, arguments, sizeof changed);
    changed[entry->size] = SIZE_MAX;
    changed[entry->offset] = 0;
    return entry_call(entry->original, changed);
}

/* As with malloc, a block that changes in place ends, and another one begins. */
static uintptr_t change_in_place(const struct entry *entry, const uintptr_t arguments[ARGUMENTS])
{
    struct redirected *of = entry->of;
    uintptr_t before = size_of_block(entry, arguments), after = entry_call(entry->original, arguments);
    if (after == before)
        return after;
    uint64_t *left = &allocator_left[of->allocator.number];
    bool is_due = shim_charge_to(left, after);
    if (is_due)
        *left += shim_charged(after);
    end_block(of, arguments[entry->block]);
    if (is_due)
        begin_block(of, arguments[entry->block], after);
    return after;
}

/* ---- refusals ---- */

static bool is_same(const struct refusal *one, const struct refusal *other)
{
    return one->why == other->why && strcmp(one->heap, other->heap) == 0 && strcmp(one->what, other->what) == 0;
}

/* A library may be opened again and again. */
static void keep_refusal(const struct refusal *refusal)
{
    for (size_t i = 0; i < refusal_count; i++)
        if (is_same(&refusals[i], refusal))
            return;
    if (refusal_count == REFUSALS)
        return;
    struct refusal *kept = &refusals[refusal_count++];
    *kept = *refusal;
    shim_services.decline(kept->heap, kept->what, kept->why);
}

static void refuse(const char *allocator, const char *file, const char *what, const char *why)
{
    struct refusal refusal = {.why = why};
    const char *parts[] = {allocator, " in ", file};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        strncat(refusal.heap, parts[i], sizeof refusal.heap - 1 - strlen(refusal.heap));
    strncpy(refusal.what, what, sizeof refusal.what - 1);
    if (!lock_try_longer(&refusing))
        return;
    keep_refusal(&refusal);
    lock_release(&refusing);
}

static void refuse_found(const struct entries_found *found, const char *what, const char *why)
{
    refuse(found->allocator->name, found->file, what, why);
}

static bool register_heap(struct redirected *of)
{
    return allocator_register(&of->allocator, allocsample_get_hooks(ALLOCSAMPLE_VERSION), of->file);
}

/* The thread is about to call the allocator: it holds none of its locks. While another one runs a trial, blocks are not counted. */
COLD static void try_waiting(struct redirected *of)
{
    const char *what = "it", *why = "has no room";
    int saved_errno = errno;
    if (!lock_try(&trial_lock))
        return;
    if (is_waiting(of)) {
        if (trial_passes(of, &what, &why) && register_heap(of)) {
            allocator_start(&of->allocator);
        } else {
            refuse(of->allocator.what, of->file, what, why);
            allocator_return_number(&of->allocator, true);
        }
        atomic_store_explicit(&of->is_waiting, false, memory_order_release);
    }
    lock_release(&trial_lock);
    errno = saved_errno;
}

uintptr_t entry_due(const struct entry *entry, const uintptr_t arguments[ARGUMENTS])
{
    struct redirected *of = entry->of;
    enum entry_kind kind = entry->row->kind;
    if (kind == ENTRY_IN_PLACE)
        return change_in_place(entry, arguments);
    if (kind == ENTRY_FREES) {
        end_block(of, arguments[entry->block]);
        return entry_call(entry->original, arguments);
    }
    /* As the stub has computed it: a product that overflows is no block's size. */
    size_t size = arguments[entry->size] * (entry->count == ARGUMENTS ? 1 : arguments[entry->count]);
    allocator_left[of->allocator.number] += shim_charged(size);
    if (is_waiting(of) && !trial_is_on)
        try_waiting(of);
    /* The old block ends first: as soon as it is free, another thread may have its address. */
    if (kind == ENTRY_RESIZES)
        end_block(of, arguments[entry->block]);
    uintptr_t result = entry_call(entry->original, arguments), block = result;
    if (kind == ENTRY_STORES)
        block = result == 0 ? *(const uintptr_t *)arguments[entry->block] : 0;
    begin_block(of, block, size);
    return result;
}

/* ---- joining ---- */

static void prepare(struct redirected *of, const struct entries_found *found)
{
    of->count = found->count;
    of->object = found->object;
    memcpy(of->file, found->file, sizeof of->file);
    of->control = found->control;
    of->own_counts = found->allocator->own_counts;
    of->allocator.what = found->allocator->name;
    of->allocator.key = found->key;
    for (size_t i = 0; i < found->count; i++) {
        const struct entry_row *row = found->entries[i].row;
        of->entries[i] = (struct entry){
            .of = of,
            .row = row,
            .start = found->entries[i].start,
            .block = place_of(row, "bp"),
            .size = place_of(row, "sSP"),
            .count = place_of(row, "n"),
            .offset = place_of(row, "o"),
        };
    }
}

/* NULL: it is refused, and its code is as it was. */
static struct redirected *put_stubs(const struct entries_found *found)
{
    size_t index = atomic_load_explicit(&redirected_count, memory_order_relaxed);
    if (found->refused != NULL) {
        refuse_found(found, found->what, found->refused);
        return NULL;
    }
    struct redirected *of = index == ALLOCATORS ? NULL : &redirected[index];
    if (of != NULL)
        prepare(of, found);
    if (of == NULL || !allocator_take_number(&of->allocator)) {
        refuse_found(found, "it", "is one allocator too many");
        return NULL;
    }
    bool can_be_tried = trial_can_be_run(of);
    if (can_be_tried && stubs_put(found, of->entries, of->allocator.number))
        return of;
    refuse_found(found, can_be_tried ? "its code" : "a function that frees", can_be_tried ? "cannot be changed here" : "is missing");
    allocator_return_number(&of->allocator, false);
    return NULL;
}

static void add_redirected(void)
{
    /* Release: whoever sees the number sees the fields. */
    atomic_fetch_add_explicit(&redirected_count, 1, memory_order_release);
}

static bool is_next(const struct entries_found *found)
{
    struct shim_object of_next, of_found;
    return shim_services.find_object((const void *)next_malloc, &of_next) &&
           shim_services.find_object((const void *)found->start, &of_found) && of_next.headers == of_found.headers;
}

/* Before the first instruction of the program. */
static void join_found(const struct entries_found *found)
{
    struct redirected *of = is_next(found) ? NULL : put_stubs(found);
    if (of == NULL)
        return;
    const char *what = "it", *why = "has no room";
    if (!trial_passes(of, &what, &why) || !register_heap(of)) {
        stubs_take_back(found);
        refuse_found(found, what, why);
        allocator_return_number(&of->allocator, false);
        return;
    }
    /* libc may have allocated since: without a heap, the thread would look again after a mebibyte. */
    allocator_left[of->allocator.number] = 0;
    add_redirected();
    allocator_start(&of->allocator);
}

/* ---- libraries that are opened later ---- */

/* It is not relocated yet, so its functions cannot be called. */
static void join_mapped(const struct entries_found *found)
{
    struct redirected *of = put_stubs(found);
    if (of == NULL)
        return;
    atomic_store_explicit(&of->is_waiting, true, memory_order_relaxed);
    add_redirected();
}

static void mapped(uintptr_t object)
{
    if (shim_services.is_asked_for(BRIDGE_EMBEDDED))
        entries_search(object, join_mapped);
}

/* Which allocators these have, nobody looks. */
static void missed(const char *why)
{
    shim_services.decline("embedded", "libraries", why);
}

/* An unloaded library leaves its blocks mapped, but their ends can no longer be seen. */
static void after_dlclose(void)
{
    size_t count = atomic_load_explicit(&redirected_count, memory_order_acquire);
    for (size_t i = 0; i < count && shim_services.is_on(); i++) {
        struct redirected *of = &redirected[i];
        if (of->object == 0 || stubs_are_there(of))
            continue;
        of->object = of->control = 0;
        if (of->allocator.registered == NULL)
            allocator_return_number(&of->allocator, true);
        allocator_unregister(&of->allocator);
    }
}

static void join(void)
{
    next_malloc = (uintptr_t)shim_services.find_symbol("malloc");
    entries_search(0, join_found);
    if (!loader_watch(mapped, missed))
        missed("that are opened later are not seen (a debugger is there, or another loader than glibc's)");
}

/* The stubs stay, and pass all calls. */
static void detach(void)
{
    for (size_t i = 0; i < redirected_count; i++)
        allocator_stop(&redirected[i].allocator);
}

static void attach(void)
{
    for (size_t i = 0; i < redirected_count; i++)
        if (redirected[i].object != 0 && redirected[i].allocator.registered != NULL)
            allocator_resume(&redirected[i].allocator);
}

/* ---- what they count themselves ---- */

static struct {
    struct bridge_own own[ALLOCATORS];
    size_t count;
} counted;

static void count_all(void)
{
    counted.count = 0;
    for (size_t i = 0; i < redirected_count; i++) {
        struct bridge_own *own = &counted.own[counted.count];
        own->heap = redirected[i].allocator.registered;
        if (own->heap != NULL && redirected[i].control != 0 && redirected[i].own_counts(redirected[i].control, own->bytes))
            counted.count++;
    }
}

static size_t count(struct bridge_own *own, size_t room)
{
    bool is_any = false;
    for (size_t i = 0; i < redirected_count; i++)
        is_any |= redirected[i].control != 0;
    if (!is_any || !asking_run(count_all))
        return 0;
    size_t used = counted.count < room ? counted.count : room;
    memcpy(own, counted.own, used * sizeof *own);
    return used;
}

static void after_fork_in_child(void)
{
    lock_release(&trial_lock);
    lock_release(&refusing);
    allocators_after_fork_in_child();
    asking_after_fork_in_child();
}

const struct bridge bridge_entries = {
    .name = "entries",
    .group = BRIDGE_EMBEDDED,
    .join = join,
    .attach = attach,
    .detach = detach,
    .count = count,
    .after_dlclose = after_dlclose,
    .after_fork_in_child = after_fork_in_child,
};
