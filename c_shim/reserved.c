/* Reservations, and which of their pages are committed.
 *
 * V8, PartitionAlloc, the JVM and mimalloc map gigabytes without rights and make parts of them usable by mprotect. The memory
 * belongs to the call that does that. Compilers of machine code and write barriers call mprotect for other reasons, thousands of
 * times a second, on pages that are usable before and after: they change nothing here.
 *
 * Everything is lock-free, since a signal handler may map memory too. Reservations are a table of ranges. Committed pages are
 * bits in leaves. Each leaf stands for 1 GiB of addresses; it is mapped when its first page is committed, and stays.
 * The thread that sets a bit reports the page, so that a page that two threads commit is reported once. */
#define _GNU_SOURCE
#include "reserved.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- reservations ---- */

#define RESERVATIONS 256
/* A place that is being filled. */
#define CLAIMED 1

static struct {
    _Atomic(uintptr_t) start; /* 0: free */
    _Atomic(uintptr_t) end;
} reservations[RESERVATIONS];
/* No place from here on was ever used. */
static _Atomic(size_t) used_places;

static size_t places(void)
{
    return atomic_load_explicit(&used_places, memory_order_acquire);
}

/* The addresses of a place; false if it is free. Torn by another thread that changes it, the range is wrong for this one call,
 * which then belongs to another mapping. */
static bool read_place(size_t place, uintptr_t *start, uintptr_t *end)
{
    *start = atomic_load_explicit(&reservations[place].start, memory_order_acquire);
    *end = atomic_load_explicit(&reservations[place].end, memory_order_relaxed);
    return *start > CLAIMED && *start < *end;
}

/* If the table is full, the range is not added. Memory committed in it then belongs to the call that reserved it. */
static void add(uintptr_t start, uintptr_t end)
{
    for (size_t place = 0; place < RESERVATIONS; place++) {
        uintptr_t expected = 0;
        if (!atomic_compare_exchange_strong_explicit(&reservations[place].start, &expected, CLAIMED, memory_order_relaxed,
                                                     memory_order_relaxed))
            continue;
        atomic_store_explicit(&reservations[place].end, end, memory_order_relaxed);
        /* Release: a reader that sees the start also sees the end. */
        atomic_store_explicit(&reservations[place].start, start, memory_order_release);
        size_t used = places();
        while (used <= place && !atomic_compare_exchange_weak_explicit(&used_places, &used, place + 1, memory_order_release,
                                                                       memory_order_relaxed))
            continue;
        return;
    }
}

static bool is_reserved(uintptr_t start, uintptr_t end)
{
    for (size_t place = 0, count = places(); place < count; place++) {
        uintptr_t from, to;
        if (read_place(place, &from, &to) && from < end && start < to)
            return true;
    }
    return false;
}

/* Calls `work` with each part of the range that is reserved. */
static void for_reserved(uintptr_t start, uintptr_t end, void (*work)(uintptr_t, uintptr_t, void *), void *argument)
{
    for (size_t place = 0, count = places(); place < count; place++) {
        uintptr_t from, to;
        if (!read_place(place, &from, &to) || from >= end || start >= to)
            continue;
        work(from > start ? from : start, to < end ? to : end, argument);
    }
}

static void remove_range(uintptr_t start, uintptr_t end)
{
    for (size_t place = 0, count = places(); place < count; place++) {
        uintptr_t from, to;
        if (!read_place(place, &from, &to) || from >= end || start >= to)
            continue;
        if (from < start) {
            atomic_store_explicit(&reservations[place].end, start, memory_order_relaxed);
            if (end < to)
                add(end, to);
        } else {
            atomic_store_explicit(&reservations[place].start, end < to ? end : 0, memory_order_release);
        }
    }
}

/* ---- committed pages ---- */

#define PAGE_SHIFT 12
#define LEAF_SHIFT 30
#define LEAF_PAGES ((size_t)1 << (LEAF_SHIFT - PAGE_SHIFT))
#define WORD_PAGES ((size_t)64)
#define ADDRESS_BITS 48
#define LEAVES ((size_t)1 << (ADDRESS_BITS - LEAF_SHIFT))

/* 2 MiB, untouched but for the pages that name a leaf. */
static _Atomic(_Atomic(uint64_t) *) leaves[LEAVES];

static _Atomic(uint64_t) *leaf_at(uintptr_t page, bool makes)
{
    size_t number = page >> (LEAF_SHIFT - PAGE_SHIFT);
    if (number >= LEAVES)
        return NULL;
    _Atomic(uint64_t) *leaf = atomic_load_explicit(&leaves[number], memory_order_acquire);
    if (leaf != NULL || !makes)
        return leaf;
    size_t bytes = LEAF_PAGES / 8;
    int saved_errno = errno;
    void *made = shim_map_own(bytes);
    errno = saved_errno;
    if (made == NULL)
        return NULL;
    /* Acquire and release: its zeros are seen before it is. */
    if (atomic_compare_exchange_strong_explicit(&leaves[number], &leaf, made, memory_order_acq_rel, memory_order_acquire))
        return made;
    munmap(made, bytes);
    return leaf;
}

/* A run of changed pages that may go on in the next word. */
struct run {
    uintptr_t start, end; /* addresses; empty: none so far */
    shim_on_run *on_run;
    void *context;
};

static void end_run(struct run *run)
{
    if (run->start < run->end && run->on_run != NULL)
        run->on_run(run->context, run->start, run->end - run->start);
    run->start = run->end = 0;
}

static void add_to_run(struct run *run, uintptr_t page, size_t pages)
{
    uintptr_t start = page << PAGE_SHIFT, bytes = pages << PAGE_SHIFT;
    if (run->end != start) {
        end_run(run);
        run->start = start;
    }
    run->end = start + bytes;
}

static void add_changed(struct run *run, uintptr_t first_page, uint64_t changed)
{
    while (changed != 0) {
        size_t at = (size_t)__builtin_ctzll(changed);
        uint64_t rest = ~(changed >> at);
        size_t length = rest == 0 ? WORD_PAGES - at : (size_t)__builtin_ctzll(rest);
        if (at + length > WORD_PAGES)
            length = WORD_PAGES - at;
        add_to_run(run, first_page + at, length);
        changed &= length == WORD_PAGES ? 0 : ~((((uint64_t)1 << length) - 1) << at);
    }
}

/* Sets or clears the pages' bits. */
static void change_bits(uintptr_t start, uintptr_t end, bool to, struct run *run)
{
    uintptr_t page = start >> PAGE_SHIFT, last = end >> PAGE_SHIFT;
    while (page < last) {
        uintptr_t in_word = page % WORD_PAGES;
        size_t count = WORD_PAGES - in_word < last - page ? WORD_PAGES - in_word : last - page;
        _Atomic(uint64_t) *leaf = leaf_at(page, to);
        if (leaf == NULL) {
            page = (page / LEAF_PAGES + 1) * LEAF_PAGES;
            continue;
        }
        uint64_t mask = (count == WORD_PAGES ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1) << in_word;
        _Atomic(uint64_t) *word = &leaf[page % LEAF_PAGES / WORD_PAGES];
        uint64_t before = to ? atomic_fetch_or_explicit(word, mask, memory_order_relaxed)
                             : atomic_fetch_and_explicit(word, ~mask, memory_order_relaxed);
        add_changed(run, page - in_word, mask & (to ? ~before : before));
        page += count;
    }
}

struct change {
    struct run run;
    bool to;
};

static void change_part(uintptr_t start, uintptr_t end, void *argument)
{
    struct change *change = argument;
    change_bits(start, end, change->to, &change->run);
    end_run(&change->run);
}

static void change_reserved(uintptr_t start, size_t bytes, bool to, shim_on_run *on_run, void *context)
{
    struct change change = {.run = {.on_run = on_run, .context = context}, .to = to};
    for_reserved(start, start + bytes, change_part, &change);
}

/* ---- calls ---- */

void shim_reserved_commit(uintptr_t start, size_t bytes, shim_on_run *on_run, void *context)
{
    change_reserved(start, bytes, true, on_run, context);
}

void shim_reserved_uncommit(uintptr_t start, size_t bytes, shim_on_run *on_run, void *context)
{
    change_reserved(start, bytes, false, on_run, context);
}

void shim_reserved_forget(void)
{
    for (size_t place = 0, count = places(); place < count; place++)
        atomic_store_explicit(&reservations[place].start, 0, memory_order_release);
}

void shim_reserved_map(uintptr_t start, size_t bytes, int protection, int flags)
{
    bool is_private_and_anonymous = (flags & MAP_TYPE) == MAP_PRIVATE && (flags & MAP_ANONYMOUS) != 0;
    bool is_reservation = is_private_and_anonymous && protection == PROT_NONE;
    if (!is_reservation && places() == 0)
        return;
    uintptr_t end = start + bytes;
    if (is_reserved(start, end)) {
        /* Of a fixed mapping, whose call has its memory. */
        change_reserved(start, bytes, is_private_and_anonymous && (protection & PROT_WRITE) != 0, NULL, NULL);
        if (!is_private_and_anonymous)
            remove_range(start, end);
        return;
    }
    if (is_reservation) {
        /* Bits of a reservation that was unmapped by the system call itself. */
        struct run none = {0};
        change_bits(start, end, false, &none);
        add(start, end);
    }
}

void shim_reserved_unmap(uintptr_t start, size_t bytes)
{
    if (places() == 0 || !is_reserved(start, start + bytes))
        return;
    change_reserved(start, bytes, false, NULL, NULL);
    remove_range(start, start + bytes);
}
