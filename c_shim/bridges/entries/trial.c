/* The trial of an allocator: each function that can be called is called, and must count its block once, with its size. On one thread,
 * while others may call the allocator, too. */
#define _GNU_SOURCE
#include "entries.h"

#include <string.h>

/* What entry_due has seen of a call of our own. */
static struct {
    size_t allocated, freed;
    uintptr_t block, freed_block;
    size_t size;
    uint64_t from_malloc; /* bytes that it took from there meanwhile */
} trial;

_Thread_local bool trial_is_on __attribute__((tls_model("initial-exec")));

void trial_freed(uintptr_t block)
{
    trial.freed++;
    trial.freed_block = block;
}

void trial_allocated(uintptr_t block, size_t size)
{
    trial.allocated++;
    trial.block = block;
    trial.size = size;
}

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
        case 'P':
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
    uintptr_t result = entry_call(entry->start, arguments);
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

static bool is_aligned(const struct entry *entry)
{
    return strchr(entry->row->arguments, 'a') != NULL;
}

/* An entry that makes blocks for this one to free or to change. */
static const struct entry *maker_for(const struct redirected *of, const struct entry *entry)
{
    static const char *const aligned[4] = {"sa", "as"}, *const any[4] = {"s", "sf", "sa", "as"}, *const sized[4] = {"s", "sf"};
    bool is_sized = entry->row->kind == ENTRY_FREES && strchr(entry->row->arguments, 's') != NULL;
    return find(of, ENTRY_ALLOCATES, is_aligned(entry) ? aligned : is_sized ? sized : any);
}

/* One that frees the blocks of this one. An allocator may end the program if a block is freed with another size or alignment than it
 * was asked for. */
static const struct entry *freer_for(const struct redirected *of, const struct entry *entry)
{
    static const char *const any[4] = {"b", "bf", "bs", "bsf"}, *const aligned[4] = {"b", "bf", "ba", "bsa"},
                                *const by_pages[4] = {"b", "bf"};
    bool is_by_pages = strchr(entry->row->arguments, 'P') != NULL;
    return find(of, ENTRY_FREES, is_by_pages ? by_pages : is_aligned(entry) ? aligned : any);
}

static bool passes(struct redirected *of, const struct entry *entry, size_t size)
{
    const struct entry *frees = freer_for(of, entry);
    enum entry_kind kind = entry->row->kind;
    uintptr_t block = 0;
    if (frees == NULL && kind != ENTRY_FREES)
        return true; /* a program that cannot free so does not allocate so */
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
    trial_is_on = true;
    for (size_t i = 0; i < of->count && failed == NULL; i++) {
        const struct entry *entry = &of->entries[i];
        size_t count = strchr(entry->row->arguments, 'S') != NULL ? 2 : 3;
        for (size_t j = 0; j < count && failed == NULL; j++)
            failed = passes(of, entry, sizes[j]) ? NULL : entry;
    }
    trial_is_on = false;
    allocator_left[of->allocator.number] = 0;
    return failed;
}

bool trial_can_be_run(const struct redirected *of)
{
    for (size_t i = 0; i < of->count; i++)
        if (of->entries[i].row->kind == ENTRY_ALLOCATES && freer_for(of, &of->entries[i]) != NULL)
            return true;
    return false;
}

bool trial_passes(struct redirected *of, const char **what, const char **why)
{
    const struct entry *failed = try_all(of);
    if (failed == NULL)
        return true;
    *what = failed->row->name;
    *why = trial.from_malloc == 0 ? "did not pass its trial" : "takes its blocks from malloc, which is sampled";
    return false;
}
