/* Memory in which a walker must find its way or end: random words, pointers that lead anywhere, pages that are gone, that are
 * forbidden, and that another thread unmaps and maps all the time. For programs that compile a walker of a bridge in. */
#ifndef WRECKED_MEMORY_H
#define WRECKED_MEMORY_H

#include "check.h"

#include "../../c_shim/bridges/kit/foreign.c"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, VOLATILE_PAGES = 8 };

/* From here on: pages that stay, pages that come and go, one that may not be read, one that is gone. */
static uint8_t *wreck;
static uintptr_t wreck_seed = 20261124;

/* ---- what the shim has of the agent ---- */

static size_t copy_foreign(void *to, size_t room, const struct iovec *from, size_t pieces)
{
    struct iovec local = {to, room};
    ssize_t copied = process_vm_readv(getpid(), &local, 1, from, pieces, 0);
    return copied < 0 ? 0 : (size_t)copied;
}

static void own_stack(uintptr_t *start, uintptr_t *end)
{
    *start = (uintptr_t)__builtin_frame_address(0);
    *end = *start + PAGE; /* less than `main` and its caller have */
}

static void *map_own(size_t bytes)
{
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

const struct shim_services shim_services = {.copy_foreign = copy_foreign, .own_stack = own_stack, .map_own = map_own};

/* ---- wrecks ---- */

static uintptr_t draw(void)
{
    wreck_seed ^= wreck_seed << 13;
    wreck_seed ^= wreck_seed >> 7;
    wreck_seed ^= wreck_seed << 17;
    return wreck_seed;
}

static void *volatile_pages(void)
{
    return wreck + PAGES * PAGE;
}

/* Somewhere in the wreck, mostly aligned, and mostly in pages that stay. */
static uintptr_t draw_place(void)
{
    size_t pages = draw() % 4 == 0 ? PAGES + VOLATILE_PAGES + 2 : PAGES;
    return (uintptr_t)wreck + (draw() % (pages * PAGE) & ~(draw() % 16 == 0 ? UINT64_C(0) : UINT64_C(7)));
}

/* `known`: words that the walker is after. */
static uintptr_t draw_word(const uintptr_t *known, size_t count)
{
    switch (draw() % 8) {
    case 0:
        return draw();
    case 1:
        return draw() % 65536;
    case 2:
        return UINTPTR_MAX - draw() % 4096;
    case 3:
    case 4:
        return known[draw() % count];
    default:
        return draw_place();
    }
}

static void wreck_again(const uintptr_t *known, size_t count)
{
    for (size_t i = 0; i < PAGES * PAGE / sizeof(uintptr_t); i++)
        ((uintptr_t *)wreck)[i] = draw_word(known, count);
}

static _Atomic(bool) is_over;

static void *unmap_and_map(void *unused)
{
    (void)unused;
    while (!atomic_load(&is_over)) {
        CHECK(munmap(volatile_pages(), VOLATILE_PAGES * PAGE) == 0);
        void *again = mmap(volatile_pages(), VOLATILE_PAGES * PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(again == volatile_pages());
        memcpy(again, wreck, VOLATILE_PAGES * PAGE);
    }
    return NULL;
}

static pthread_t wrecker;

static void wreck_begin(void)
{
    size_t pages = PAGES + VOLATILE_PAGES + 2;
    wreck = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(wreck != MAP_FAILED);
    CHECK(mprotect(wreck + (pages - 2) * PAGE, PAGE, PROT_NONE) == 0);
    CHECK(munmap(wreck + (pages - 1) * PAGE, PAGE) == 0);
    CHECK(pthread_create(&wrecker, NULL, unmap_and_map, NULL) == 0);
}

static void wreck_end(void)
{
    atomic_store(&is_over, true);
    CHECK(pthread_join(wrecker, NULL) == 0);
}

#endif
