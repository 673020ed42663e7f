/* Heaps of allocators that are part of the program, or of a library that it is linked to: mimalloc, tcmalloc and jemalloc.
 * Their functions are led to stubs of ours (stubs.c) before the first instruction of the program, while there is one thread and
 * nobody is in them. They are found by their names in the file (search.c).
 *
 * A trial comes first: each function that can be called is called, and must count its block once, with its size. Otherwise, as when
 * one of them reaches another one in a way that search.c does not know, the code is put back and the reason is in the profile. */
#define _GNU_SOURCE
#include "entries.h"

#include "kit/asking.h"

#include <string.h>

#if defined(__x86_64__)

/* Its number among the arguments, or ARGUMENTS. */
static uint8_t place_of(const struct entry_row *row, const char *letters)
{
    size_t place = strcspn(row->arguments, letters);
    return row->arguments[place] == 0 ? ARGUMENTS : (uint8_t)place;
}

static struct redirected {
    struct allocator allocator;
    struct entry entries[ENTRIES];
    size_t count;
    uintptr_t control; /* 0: it does not tell its counts */
    own_counts *own_counts;
} redirected[ALLOCATORS];
static size_t redirected_count;

/* Allocators that stay as they are. */
static struct refusal {
    char heap[128], what[64];
} refusals[ALLOCATORS];
static size_t refusal_count;

/* Where the next malloc is, which is sampled already whatever its names. */
static uintptr_t next_malloc;

/* What entry_due has seen of a call of our own. */
static struct {
    bool is_on;
    size_t allocated, freed;
    uintptr_t block, freed_block;
    size_t size;
    uint64_t from_malloc; /* bytes that it took from there meanwhile */
} trial;

static uintptr_t call(uintptr_t function, const uintptr_t arguments[ARGUMENTS])
{
    union {
        uintptr_t address;
        uintptr_t (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
    } called = {function};
    return called.function(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

static void end_block(struct redirected *of, uintptr_t block)
{
    if (trial.is_on) {
        trial.freed++;
        trial.freed_block = block;
    } else if (block != 0) {
        allocator_freed(&of->allocator, (void *)block);
    }
}

static void begin_block(struct redirected *of, uintptr_t block, size_t size)
{
    if (trial.is_on) {
        trial.allocated++;
        trial.block = block;
        trial.size = size;
    } else if (UNLIKELY(atomic_load_explicit(&of->allocator.heap, memory_order_relaxed) == NULL)) {
        allocator_pass(&of->allocator);
    } else if (block != 0) {
        allocator_allocated(&of->allocator, (void *)block, size);
    }
}

/* No size is so large, so that the block stays as it is. */
static uintptr_t size_of_block(const struct entry *entry, const uintptr_t arguments[ARGUMENTS])
{
    uintptr_t changed[ARGUMENTS];
    memcpy(changed, arguments, sizeof changed);
    changed[entry->size] = SIZE_MAX;
    changed[entry->offset] = 0;
    return call(entry->original, changed);
}

/* As with malloc, a block that changes in place ends, and another one begins. */
static uintptr_t change_in_place(const struct entry *entry, const uintptr_t arguments[ARGUMENTS])
{
    struct redirected *of = entry->of;
    uintptr_t before = size_of_block(entry, arguments), after = call(entry->original, arguments);
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

uintptr_t entry_due(const struct entry *entry, const uintptr_t arguments[ARGUMENTS])
{
    struct redirected *of = entry->of;
    enum entry_kind kind = entry->row->kind;
    if (kind == ENTRY_IN_PLACE)
        return change_in_place(entry, arguments);
    if (kind == ENTRY_FREES) {
        end_block(of, arguments[entry->block]);
        return call(entry->original, arguments);
    }
    /* As the stub has computed it: a product that overflows is no block's size. */
    size_t size = arguments[entry->size] * (entry->count == ARGUMENTS ? 1 : arguments[entry->count]);
    allocator_left[of->allocator.number] += shim_charged(size);
    /* The old block ends first: as soon as it is free, another thread may have its address. */
    if (kind == ENTRY_RESIZES)
        end_block(of, arguments[entry->block]);
    uintptr_t result = call(entry->original, arguments), block = result;
    if (kind == ENTRY_STORES)
        block = result == 0 ? *(const uintptr_t *)arguments[entry->block] : 0;
    begin_block(of, block, size);
    return result;
}

/* ---- the trial ---- */

enum { ALIGNMENT = 64 };

/* Fills in the arguments, with the letters of the row. */
static void fill_in(const struct entry_row *row, uintptr_t arguments[ARGUMENTS], uintptr_t block, size_t size, uintptr_t *slot)
{
    enum { COUNT = 4 };
    bool has_count = strchr(row->arguments, 'n') != NULL;
    for (size_t i = 0; row->arguments[i] != 0; i++) {
        switch (row->arguments[i]) {
        case 'b':
            arguments[i] = block;
            break;
        case 's':
        case 'S':
            arguments[i] = has_count ? size / COUNT : size;
            break;
        case 'n':
            arguments[i] = COUNT;
            break;
        case 'a':
            arguments[i] = ALIGNMENT;
            break;
        case 'o':
        case 'f':
            arguments[i] = 0;
            break;
        default:
            arguments[i] = (uintptr_t)slot;
        }
    }
}

static uintptr_t try_call(struct redirected *of, const struct entry *entry, uintptr_t block, size_t size)
{
    uintptr_t arguments[ARGUMENTS] = {0}, slot = 0;
    fill_in(entry->row, arguments, block, size, &slot);
    trial.allocated = trial.freed = 0;
    trial.block = trial.freed_block = 0;
    /* Every charge is more than that. */
    allocator_left[of->allocator.number] = 0;
    struct shim_counters *counters = shim_services.counters();
    struct shim_quiet quiet = shim_quiet_begin(counters);
    uintptr_t result = call(entry->start, arguments);
    trial.from_malloc = quiet.bytes_until_sample - counters->bytes_until_sample + counters->muted_bytes - quiet.muted_bytes;
    shim_quiet_end(quiet);
    return entry->row->kind == ENTRY_STORES ? slot : result;
}

/* A free function looks for a sample where the filter says so. */
static uintptr_t try_call_with_block(struct redirected *of, const struct entry *entry, uintptr_t block, size_t size)
{
    _Atomic(uint8_t) *mark = &shim_services.block_filter[shim_filter_granule((const void *)block)];
    atomic_fetch_add(mark, 1);
    uintptr_t result = try_call(of, entry, block, size);
    atomic_fetch_sub(mark, 1);
    return trial.freed >= 1 && trial.freed_block == block ? result : 0;
}

static bool is_counted_once(uintptr_t block, size_t size)
{
    return block != 0 && trial.allocated == 1 && trial.block == block && trial.size == size && trial.from_malloc < size;
}

/* The first of these lists of arguments for which there is a function. */
static const struct entry *find(const struct redirected *of, enum entry_kind kind, const char *const lists[4])
{
    for (size_t list = 0; list < 4 && lists[list] != NULL; list++)
        for (size_t i = 0; i < of->count; i++)
            if (of->entries[i].row->kind == kind && strcmp(of->entries[i].row->arguments, lists[list]) == 0)
                return &of->entries[i];
    return NULL;
}

/* An entry that makes blocks for this one to free or to change. */
static const struct entry *maker_for(const struct redirected *of, const struct entry *entry)
{
    static const char *const aligned[4] = {"sa", "as"}, *const any[4] = {"s", "sf", "sa", "as"};
    bool is_aligned = strchr(entry->row->arguments, 'a') != NULL;
    return find(of, ENTRY_ALLOCATES, is_aligned ? aligned : any);
}

/* One that frees blocks whose size is what was asked for. */
static const struct entry *freeing(const struct redirected *of)
{
    static const char *const lists[4] = {"b", "bf", "bs", "bsf"};
    return find(of, ENTRY_FREES, lists);
}

/* A block that is a page at least cannot be freed by its size. */
static bool can_be_tried(const struct entry *entry, const struct entry *frees)
{
    return strstr(entry->row->name, "valloc") == NULL || strchr(frees->row->arguments, 's') == NULL;
}

static bool passes(struct redirected *of, const struct entry *entry, size_t size)
{
    const struct entry *frees = freeing(of);
    enum entry_kind kind = entry->row->kind;
    uintptr_t block = 0;
    if (!can_be_tried(entry, frees))
        return true;
    if (kind == ENTRY_FREES || kind == ENTRY_RESIZES || kind == ENTRY_IN_PLACE) {
        const struct entry *maker = maker_for(of, entry);
        if (maker == NULL)
            return true; /* a program that cannot allocate so does not free so */
        block = try_call(of, maker, 0, 320);
        if (!is_counted_once(block, 320))
            return false;
        if (kind == ENTRY_FREES) {
            try_call_with_block(of, entry, block, 320);
            return trial.freed >= 1 && trial.freed_block == block && trial.allocated == 0;
        }
        if (kind == ENTRY_IN_PLACE) {
            bool stays = try_call(of, entry, block, 320) >= 320 && trial.allocated == 0 && trial.freed == 0;
            try_call_with_block(of, frees, block, 320);
            return stays && trial.freed_block == block;
        }
        block = try_call_with_block(of, entry, block, size);
    } else {
        block = try_call(of, entry, 0, size);
    }
    bool is_right = is_counted_once(block, size);
    if (!is_right || block == 0)
        return false; /* it stays allocated */
    try_call_with_block(of, frees, block, size);
    return trial.freed_block == block;
}

/* The function that fails, or NULL. */
static const struct entry *try_all(struct redirected *of)
{
    static const size_t sizes[] = {64, 320, 70016};
    const struct entry *failed = NULL;
    trial.is_on = true;
    for (size_t i = 0; i < of->count && failed == NULL; i++) {
        const struct entry *entry = &of->entries[i];
        size_t count = strchr(entry->row->arguments, 'S') != NULL ? 2 : 3;
        for (size_t j = 0; j < count && failed == NULL; j++)
            failed = passes(of, entry, sizes[j]) ? NULL : entry;
    }
    trial.is_on = false;
    allocator_left[of->allocator.number] = 0;
    return failed;
}

/* ---- joining ---- */

static void refuse(const struct entries_found *found, const char *what, const char *why)
{
    if (refusal_count == ALLOCATORS)
        return;
    struct refusal *refusal = &refusals[refusal_count++];
    const char *parts[] = {found->allocator->name, " in ", found->file};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        strncat(refusal->heap, parts[i], sizeof refusal->heap - 1 - strlen(refusal->heap));
    strncpy(refusal->what, what, sizeof refusal->what - 1);
    shim_services.decline(refusal->heap, refusal->what, why);
}

static void prepare(struct redirected *of, const struct entries_found *found)
{
    memset(of, 0, sizeof *of);
    of->count = found->count;
    of->control = found->control;
    of->own_counts = found->allocator->own_counts;
    of->allocator.number = allocator_next_number();
    of->allocator.key = found->control;
    for (size_t i = 0; i < found->count; i++) {
        const struct entry_row *row = found->entries[i].row;
        of->entries[i] = (struct entry){
            .of = of,
            .row = row,
            .start = found->entries[i].start,
            .block = place_of(row, "bp"),
            .size = place_of(row, "sS"),
            .count = place_of(row, "n"),
            .offset = place_of(row, "o"),
        };
    }
}

static void join_found(const struct entries_found *found)
{
    const allocsample_hooks *hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    struct shim_object of_next, of_found;
    bool is_next = shim_services.find_object((const void *)next_malloc, &of_next) &&
                   shim_services.find_object((const void *)found->start, &of_found) &&
                   of_next.headers == of_found.headers;
    if (is_next)
        return;
    if (found->refused != NULL) {
        refuse(found, found->what, found->refused);
        return;
    }
    if (redirected_count == ALLOCATORS || allocator_next_number() == ALLOCATORS) {
        refuse(found, "it", "is one allocator too many");
        return;
    }
    struct redirected *of = &redirected[redirected_count];
    prepare(of, found);
    if (freeing(of) == NULL) {
        refuse(found, "a function that frees", "is missing");
        return;
    }
    if (!stubs_put(found, of->entries, of->allocator.number)) {
        refuse(found, "its code", "cannot be changed here");
        return;
    }
    const struct entry *failed = try_all(of);
    const char *why = trial.from_malloc == 0 ? "did not pass its trial" : "takes its blocks from malloc, which is sampled";
    if (failed != NULL || !allocator_register(&of->allocator, hooks, found->allocator->name, found->file)) {
        stubs_take_back(found);
        refuse(found, failed != NULL ? failed->row->name : "it", failed != NULL ? why : "has no room");
        return;
    }
    /* libc may have allocated since: without a heap, the thread would look again after a mebibyte. */
    allocator_left[of->allocator.number] = 0;
    redirected_count++;
    allocator_start(&of->allocator);
}

static void join(void)
{
    next_malloc = (uintptr_t)shim_services.find_symbol("malloc");
    entries_search(join_found);
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
        if (redirected[i].control != 0 && redirected[i].own_counts(redirected[i].control, own->bytes))
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
    .after_fork_in_child = after_fork_in_child,
};

#else

/* Stubs are written for x86-64. */
static void join(void)
{
}

const struct bridge bridge_entries = {.name = "entries", .group = BRIDGE_EMBEDDED, .join = join};

#endif
