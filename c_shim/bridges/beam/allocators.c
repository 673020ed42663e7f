/* BEAM allocates everything through a table of allocators: process heaps, binaries, ETS tables and so on. Each entry has three
 * functions. We replace them by our own, which count the bytes, report the blocks that are due, and call BEAM's. A free looks the
 * block up in the filter of sampled blocks, as `free` does, so blocks from before or after our time there do no harm.
 *
 * The table is the exported variable `erts_allctrs`. Where it is not exported, we search the data of the executable for an empty
 * entry that is followed by one with three addresses of code for each of BEAM's allocators. If there is not exactly one such place,
 * the bridge does nothing. */
#define _GNU_SOURCE
#include "beam.h"
#include "kit/countdown_threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_ALLOCATORS = 16,
    LEAST_ALLOCATORS = 8,
    /* A type's number, from this bit on, follows that of its allocator and of its class. */
    TYPE_SHIFT = 7,
    ALLOCATOR_MASK = 15,
    TYPES = 1 << 10,
    SYSTEM = 1, /* the allocator that calls malloc */
};

/* An entry of BEAM's table. */
struct entry {
    void *(*allocate)(uintptr_t type, void *extra, size_t size);
    void *(*reallocate)(uintptr_t type, void *extra, void *block, size_t size);
    void (*free)(uintptr_t type, void *extra, void *block);
    void *extra;
};

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct entry *table;                    /* BEAM's; NULL: not found yet */
static struct entry next[MOST_ALLOCATORS];     /* as BEAM filled it */
static const uintptr_t *allocator_names, *type_names; /* tables of texts; NULL: not found */
static size_t allocators;                      /* entries in the table, the invalid one at its begin included */
static _Atomic(uint8_t) is_named[TYPES];
static struct countdown_threads threads;
static _Thread_local struct countdown countdown __attribute__((tls_model("initial-exec")));

/* ---- names ---- */

struct names_search {
    const char *first;
    const uintptr_t *found;
};

static bool look_for_names(void *argument, const uintptr_t *place, size_t words)
{
    struct names_search *search = argument;
    const char *text = beam_image_text(*place);
    (void)words;
    if (text == NULL || strcmp(text, search->first) != 0)
        return false;
    search->found = place;
    return true;
}

/* The table of texts that begins with this one. */
static const uintptr_t *find_names(const char *exported, const char *first)
{
    struct names_search search = {.first = first, .found = dlsym(RTLD_DEFAULT, exported)};
    const char *text = search.found == NULL ? NULL : beam_image_text(*search.found);
    if (text != NULL && strcmp(text, first) == 0)
        return search.found;
    search.found = NULL;
    beam_image_search(look_for_names, &search);
    return search.found;
}

static size_t count_allocators(void)
{
    static const char end[] = "_alloc";
    size_t count = 1;
    for (; count < MOST_ALLOCATORS; count++) {
        const char *text = beam_image_text(allocator_names[count]);
        size_t length = text == NULL ? 0 : strlen(text);
        if (length < sizeof end || strcmp(text + length - (sizeof end - 1), end) != 0)
            break;
    }
    return count;
}

/* "eheap_alloc: old_heap". A number that is no type's stays without a name. */
static allocsample_type type_number(size_t allocator, uintptr_t type)
{
    /* Versions before OTP 22 passed the number alone. */
    uintptr_t number = (type & ALLOCATOR_MASK) == allocator && type >> TYPE_SHIFT != 0 ? type >> TYPE_SHIFT : type;
    if (type_names == NULL || number == 0 || number >= TYPES)
        return 0;
    if (atomic_exchange_explicit(&is_named[number], 1, memory_order_relaxed) == 0) {
        char name[2 * BEAM_MOST_TEXT + 2];
        const char *text = beam_image_text(type_names[number]);
        snprintf(name, sizeof name, "%s: %s", (const char *)allocator_names[allocator], text == NULL ? "other" : text);
        hooks->define_type(heap, (allocsample_type)number, name, "");
    }
    return (allocsample_type)number;
}

/* ---- blocks ---- */

COLD static void tell(size_t allocator, uintptr_t type, void *block, size_t size)
{
    int saved_errno = errno;
    if (countdown.limit == 0)
        countdown_join(&threads, &countdown);
    if (block != NULL && !countdown_take(&countdown, size))
        countdown_tell(&countdown, hooks, heap, (uintptr_t)block, size, type_number(allocator, type));
    errno = saved_errno;
}

COLD static void tell_end(void *block)
{
    hooks->freed(heap, (uintptr_t)block);
}

static ALWAYS_INLINE void *allocate(size_t allocator, uintptr_t type, void *extra, size_t size)
{
    void *block = next[allocator].allocate(type, extra, size);
    if (UNLIKELY(!countdown_take(&countdown, size)))
        tell(allocator, type, block, size);
    return block;
}

/* A free and an allocation. Nobody else can get the old block before it is told to have ended. */
static ALWAYS_INLINE void *reallocate(size_t allocator, uintptr_t type, void *extra, void *old, size_t size)
{
    if (shim_is_marked(shim_services.block_filter, old))
        tell_end(old);
    void *block = next[allocator].reallocate(type, extra, old, size);
    if (UNLIKELY(!countdown_take(&countdown, size)))
        tell(allocator, type, block, size);
    return block;
}

static ALWAYS_INLINE void give_back(size_t allocator, uintptr_t type, void *extra, void *block)
{
    if (shim_is_marked(shim_services.block_filter, block))
        tell_end(block);
    next[allocator].free(type, extra, block);
}

/* Every entry of the table has functions of its own, because not all versions pass them the number of their entry. */
#define PLACES(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define DEFINE(N)                                                                                                      \
    static void *allocate_##N(uintptr_t type, void *extra, size_t size)                                                \
    {                                                                                                                  \
        return allocate(N, type, extra, size);                                                                         \
    }                                                                                                                  \
    static void *reallocate_##N(uintptr_t type, void *extra, void *block, size_t size)                                 \
    {                                                                                                                  \
        return reallocate(N, type, extra, block, size);                                                                \
    }                                                                                                                  \
    static void give_back_##N(uintptr_t type, void *extra, void *block)                                                \
    {                                                                                                                  \
        give_back(N, type, extra, block);                                                                              \
    }
PLACES(DEFINE)
#undef DEFINE
#define ROW(N) [N] = {allocate_##N, reallocate_##N, give_back_##N, NULL},
static const struct entry ours[MOST_ALLOCATORS] = {PLACES(ROW)};
#undef ROW

/* ---- the table ---- */

static bool is_filled(const struct entry *entry)
{
    return beam_image_is_code((uintptr_t)entry->allocate) && beam_image_is_code((uintptr_t)entry->reallocate) &&
           beam_image_is_code((uintptr_t)entry->free);
}

/* Before BEAM has set up its allocators, all of it is zero. */
static bool is_table(const struct entry *candidate)
{
    static const struct entry empty;
    if (memcmp(candidate, &empty, sizeof empty) != 0 || candidate[SYSTEM].extra != NULL)
        return false;
    for (size_t i = SYSTEM; i < allocators; i++)
        if (!is_filled(&candidate[i]))
            return false;
    return true;
}

struct table_search {
    struct entry *found;
    size_t count;
};

static bool look_for_table(void *argument, const uintptr_t *place, size_t words)
{
    struct table_search *search = argument;
    if (words * sizeof *place < allocators * sizeof(struct entry) || *place != 0 || !is_table((const struct entry *)place))
        return false;
    search->found = (struct entry *)place;
    return ++search->count > 1;
}

static struct entry *find_table(void)
{
    struct entry *exported = dlsym(RTLD_DEFAULT, "erts_allctrs");
    struct table_search search = {0};
    if (exported != NULL)
        return is_table(exported) ? exported : NULL;
    beam_image_search(look_for_table, &search);
    return search.count == 1 ? search.found : NULL;
}

/* Other threads call through the entry meanwhile: each of its functions is right with the others of before and of after. */
static void put(struct entry *to, const struct entry *functions)
{
    __atomic_store_n(&to->free, functions->free, __ATOMIC_RELEASE);
    __atomic_store_n(&to->reallocate, functions->reallocate, __ATOMIC_RELEASE);
    __atomic_store_n(&to->allocate, functions->allocate, __ATOMIC_RELEASE);
}

bool beam_allocators_enter(void)
{
    if (table == NULL) {
        table = find_table();
        if (table == NULL)
            return false;
        memcpy(next, table, allocators * sizeof *next);
    }
    bool has_any = false;
    for (size_t i = SYSTEM + 1; i < allocators; i++) {
        /* What goes to malloc is sampled there. */
        if (next[i].allocate == next[SYSTEM].allocate)
            continue;
        put(&table[i], &ours[i]);
        has_any = true;
    }
    return has_any;
}

void beam_allocators_leave(void)
{
    for (size_t i = SYSTEM + 1; table != NULL && i < allocators; i++)
        if (table[i].allocate == ours[i].allocate)
            put(&table[i], &next[i]);
}

bool beam_allocators_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    hooks = the_hooks;
    heap = the_heap;
    allocator_names = find_names("erts_alc_a2ad", "invalid_allocator");
    type_names = find_names("erts_alc_n2td", "invalid_type");
    if (allocator_names == NULL)
        return false;
    allocators = count_allocators();
    return allocators >= LEAST_ALLOCATORS && countdown_threads_prepare(&threads, hooks, heap);
}
