/* PHP's own heap (zend_mm), which maps its memory by itself: blocks are told by its public handlers, and dropped with it at the end
 * of a request.
 *
 * While the handlers are in place PHP takes its heap for a foreign one: it neither collects free pages before it reports that
 * memory_limit is reached, nor drops the heap at the end of a request, but frees every object. So the heap is PHP's own again
 * during each allocation, and before a request ends. Both are done by the first word of the heap, which says whether handlers
 * are in place; that it does is tested when they are installed.
 *
 * PHP leaves an allocation by longjmp where memory_limit is reached. Then the handlers stay away for the rest of the request. */
#define _GNU_SOURCE
#include "kit/countdown.h"
#include "kit/memory.h"
#include "php.h"

#include <string.h>

/* The interpreter's loop keeps its frame and its instruction in these registers, in all builds by GCC. The allocator's entries do not
 * change them, and nor does this file. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
register uintptr_t frame_register __asm__("r14");
register uintptr_t instruction_register __asm__("r15");
#elif defined(__GNUC__) && !defined(__clang__) && defined(__aarch64__)
register uintptr_t frame_register __asm__("x27");
register uintptr_t instruction_register __asm__("x28");
#else
static const uintptr_t frame_register = 0, instruction_register = 0;
#endif

static struct php_symbols php; /* a copy, which each block reads */
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
/* A build without threads has one heap, used by one thread at a time. */
static struct countdown countdown;
static allocsample_nursery nursery;
/* The heap that got our handlers, its first word, and what that is with handlers. They stay set when the handlers go: somebody may
 * have put others in front of ours, which go on calling them. */
static zend_mm_heap *entered;
static volatile int *has_handlers;
static int with_handlers;
static bool is_entered;

/* ---- samples that are live: a table of addresses by open addressing, behind a filter that stays in the nearest cache ---- */

/* How many samples share a place of the filter; from MANY on it is not known any more. */
enum { MANY = 255, FILTER = 1 << 14 };
static uint8_t filter[FILTER];

static inline size_t place_in_filter(const void *block)
{
    return (uint32_t)((uintptr_t)block >> 3) * UINT32_C(0x9e3779b1) >> 18;
}

static inline bool may_be_sample(const void *block)
{
    return UNLIKELY(filter[place_in_filter(block)] != 0);
}

static struct {
    uintptr_t *places; /* 0: free */
    size_t size;       /* a power of two */
    size_t used;
    bool had_any; /* since it was emptied last */
} live;

static size_t place_of(uintptr_t address)
{
    return (address >> 3) * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (live.size - 1);
}

/* There is room. */
static void put(uintptr_t address)
{
    size_t place = place_of(address);
    while (live.places[place] != 0)
        place = (place + 1) & (live.size - 1);
    live.places[place] = address;
    live.used++;
}

static bool grow(void)
{
    uintptr_t *old = live.places;
    size_t old_size = live.size, size = old_size == 0 ? 4096 : 2 * old_size;
    uintptr_t *places = memory_map(size * sizeof *places);
    if (places == NULL)
        return false;
    live.places = places;
    live.size = size;
    live.used = 0;
    for (size_t i = 0; i < old_size; i++)
        if (old[i] != 0)
            put(old[i]);
    if (old != NULL)
        munmap(old, old_size * sizeof *old);
    return true;
}

static bool remember(uintptr_t address)
{
    if (live.used * 2 >= live.size && !grow())
        return false;
    put(address);
    live.had_any = true;
    uint8_t *samples = &filter[place_in_filter((const void *)address)];
    *samples += *samples != MANY;
    return true;
}

/* False: it is no sample. Those behind it in its row move up, where that is no place before their own. */
static bool forget(uintptr_t address)
{
    if (live.used == 0)
        return false;
    size_t mask = live.size - 1, place = place_of(address);
    while (live.places[place] != address) {
        if (live.places[place] == 0)
            return false;
        place = (place + 1) & mask;
    }
    live.used--;
    uint8_t *samples = &filter[place_in_filter((const void *)address)];
    *samples -= *samples != MANY;
    for (size_t next = place;;) {
        next = (next + 1) & mask;
        if (live.places[next] == 0)
            break;
        if (((next - place_of(live.places[next])) & mask) < ((next - place) & mask))
            continue;
        live.places[place] = live.places[next];
        place = next;
    }
    live.places[place] = 0;
    return true;
}

COLD static void tell_end(void *block)
{
    if (forget((uintptr_t)block))
        hooks->freed(heap, (uintptr_t)block);
}

static void tell_all_ends(void)
{
    for (size_t i = 0; i < live.size; i++) {
        if (live.places[i] == 0)
            continue;
        hooks->freed(heap, live.places[i]);
        live.places[i] = 0;
    }
    live.used = 0;
    memset(filter, 0, sizeof filter);
}

/* ---- handlers ---- */

static ALWAYS_INLINE void *allocate(size_t size)
{
    *has_handlers = 0;
    void *block = php.allocate(entered, size);
    *has_handlers = with_handlers;
    return block;
}

COLD static void *tell(void *block, size_t size, struct php_position position)
{
    if (block == NULL)
        return NULL;
    php_frames_at(position);
    allocsample_id sample = countdown_tell(&countdown, hooks, heap, (uintptr_t)block, size, 0);
    php_frames_at((struct php_position){0});
    if (sample != ALLOCSAMPLE_NO_SAMPLE && !remember((uintptr_t)block))
        hooks->freed(heap, (uintptr_t)block);
    return block;
}

static void *take(size_t size)
{
    if (LIKELY(countdown_take(&countdown, size)))
        return allocate(size);
    return tell(allocate(size), size, (struct php_position){frame_register, instruction_register});
}

/* A free and an allocation of the new size, unless the block stays what it is: a string that grows by some bytes keeps its block,
 * which has room for more than it was asked for. Nobody else can get the old block meanwhile. */
static void *take_again(void *old, size_t size)
{
    *has_handlers = 0;
    size_t room = old == NULL ? 0 : php.block_size(entered, old);
    void *block = php.reallocate(entered, old, size);
    bool stays = block == old && php.block_size(entered, block) == room;
    *has_handlers = with_handlers;
    if (stays)
        return block;
    if (may_be_sample(old))
        tell_end(old);
    if (LIKELY(countdown_take(&countdown, size)))
        return block;
    return tell(block, size, (struct php_position){frame_register, instruction_register});
}

static void give_back(void *block)
{
    if (may_be_sample(block))
        tell_end(block);
    php.free(entered, block);
}

/* ---- installing them ---- */

static bool has_our_handlers(zend_mm_heap *of)
{
    void *(*allocate_now)(size_t), (*free_now)(void *), *(*reallocate_now)(void *, size_t);
    php.get_handlers(of, &allocate_now, &free_now, &reallocate_now);
    return allocate_now == take;
}

bool php_heap_prepare(const struct php_symbols *symbols, const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    php = *symbols;
    hooks = the_hooks;
    heap = the_heap;
    return grow();
}

void php_heap_enter(void)
{
    zend_mm_heap *now = php.heap();
    int first_word = *(const int *)now;
    if (is_entered || first_word != 0)
        return;
    if (countdown.limit == 0)
        countdown_begin(&countdown, hooks, heap, &nursery);
    entered = now;
    has_handlers = (volatile int *)now;
    php.set_handlers(now, take, give_back, take_again);
    with_handlers = *has_handlers;
    is_entered = with_handlers != 0 && has_our_handlers(now);
    /* Another layout than we know: without its first word the heap cannot be left alone. */
    if (!is_entered)
        php.set_handlers(now, NULL, NULL, NULL);
}

bool php_heap_leave(bool is_end_of_process)
{
    bool had_any = live.had_any;
    if (is_entered && has_our_handlers(entered))
        php.set_handlers(entered, NULL, NULL, NULL);
    is_entered = false;
    if (!is_end_of_process)
        tell_all_ends();
    live.had_any = false;
    return had_any;
}

bool php_heap_pause(void)
{
    if (!is_entered || *has_handlers == 0)
        return false;
    *has_handlers = 0;
    return true;
}

void php_heap_go_on(void)
{
    *has_handlers = with_handlers;
}
