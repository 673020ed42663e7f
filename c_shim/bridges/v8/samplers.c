/* V8's samplers of one isolate, so that its heap follows the interval.
 *
 * A sampler of V8's keeps the interval that it began with, and one that is stopped forgets what it has drawn: nobody would
 * hear of those objects' deaths. So none is stopped. A longer interval is had by thinning what the sampler draws. For a
 * shorter one another sampler begins, whose gaps are all drawn at its interval; the former one tells deaths only, and what it goes
 * on drawing is ignored. Each begins at half the former's interval or less: all former ones together draw no more than the
 * one that counts.
 *
 * V8 has one sampler for a profiler, and one profiler for an isolate. Another profiler is made by its own constructor, which
 * Node.js exports and V8 calls in the same way; it wants the isolate's heap, whose place is read from V8's code and must be
 * known to the first profiler. Where it is not, the heap follows to longer intervals only. The program's use of the isolate's
 * own profiler, which ends the sampler in it, has nothing to do with those that we make. */
#define _GNU_SOURCE
#include "kit/memory.h"
#include "v8.h"

#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SAMPLERS (sizeof((struct v8_samplers *)0)->all / sizeof((struct v8_samplers *)0)->all[0])
/* More than any v8::internal::HeapProfiler: that of V8 11 has 152 bytes. */
#define PROFILER_BYTES 4096

/* ---- the isolate's heap ---- */

/* Copies words from where there may be no memory; what is not there is 0. */
static void read_words(uintptr_t from, uintptr_t *words, size_t count)
{
    struct iovec here = {words, count * sizeof *words}, there = {(void *)from, count * sizeof *words};
    for (size_t i = 0; i < count; i++)
        words[i] = 0;
    syscall(SYS_process_vm_readv, getpid(), &here, 1UL, &there, 1UL, 0UL);
}

/* Where in an isolate its heap is: what the public function that has the heap call us before a collection adds to the isolate
 * before it goes on in the heap, by
 *     add $distance, %rdi      or      lea distance(%rdi), %rdi.
 * 0: not known. */
static uintptr_t distance_of_heap(void)
{
#if defined(__x86_64__)
    enum { REACH = 24, ISOLATE_BYTES = 1 << 20 };
    const uint8_t *code;
    memcpy(&code, &v8.before_gc, sizeof code);
    for (const uint8_t *at = code; at < code + REACH; at++) {
        int32_t distance;
        memcpy(&distance, at + 3, sizeof distance);
        bool is_add = at[0] == 0x48 && ((at[1] == 0x81 && at[2] == 0xc7) || (at[1] == 0x8d && at[2] == 0xbf));
        if (is_add && distance > 0 && distance < ISOLATE_BYTES)
            return (uintptr_t)distance;
    }
#endif
    return 0;
}

/* The isolate's heap; NULL, unless the profiler's own words know it as well: it keeps it one step away. */
static void *heap_of(void *profiler, void *isolate)
{
    enum { POINTERS = 8, WORDS = 32 };
    uintptr_t pointers[POINTERS], words[WORDS], distance = distance_of_heap();
    uintptr_t heap = (uintptr_t)isolate + distance;
    if (distance == 0)
        return NULL;
    read_words((uintptr_t)profiler, pointers, POINTERS);
    for (size_t i = 0; i < POINTERS; i++) {
        read_words(pointers[i], words, WORDS);
        for (size_t j = 0; j < WORDS; j++)
            if (words[j] == heap)
                return (void *)heap;
    }
    return NULL;
}

/* ---- samplers ---- */

static uint64_t asked_interval(void)
{
    allocsample_counters counters = {.size = sizeof counters};
    return v8_hooks->counters(v8_heap, &counters) == ALLOCSAMPLE_OK ? counters.interval : 0;
}

static bool begin_at(struct v8_samplers *samplers, void *profiler, uint64_t interval)
{
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    bool has_begun = v8.start_sampling(profiler, interval, V8_DEPTH, 0);
    shim_quiet_end(before);
    if (has_begun)
        samplers->all[samplers->count++] = (struct v8_sampler){.profiler = profiler, .interval = interval};
    return has_begun;
}

/* A profiler of our own; NULL: it cannot be made. Its page is never given back: V8 may still know of it. */
static void *make_profiler(void *isolate)
{
    void *heap = v8.make_profiler == NULL ? NULL : heap_of(v8.profiler_of(isolate), isolate);
    if (heap == NULL)
        return NULL;
    void *memory = memory_map(PROFILER_BYTES);
    if (memory == NULL)
        return NULL;
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    v8.make_profiler(memory, heap);
    shim_quiet_end(before);
    return heap_of(memory, isolate) == heap ? memory : NULL;
}

bool v8_samplers_begin(struct v8_samplers *samplers, void *isolate)
{
    samplers->asked = asked_interval();
    /* V8 says no if the program samples by itself (`--heap-prof`, an inspector). It goes first. */
    return samplers->asked != 0 && begin_at(samplers, v8.profiler_of(isolate), samplers->asked);
}

void v8_samplers_tell(struct v8_samplers *samplers, void *isolate)
{
    for (size_t i = 0; i < samplers->count; i++)
        v8_tell_samples(&samplers->all[i], samplers->asked, isolate);
}

bool v8_samplers_are_behind(const struct v8_samplers *samplers)
{
    uint64_t asked = asked_interval();
    return asked != 0 && asked != samplers->asked;
}

void v8_samplers_follow(struct v8_samplers *samplers, void *isolate)
{
    uint64_t asked = asked_interval();
    if (asked == 0 || asked == samplers->asked)
        return;
    /* Until here the interval of before holds. */
    v8_samplers_tell(samplers, isolate);
    samplers->asked = asked;
    struct v8_sampler *last = &samplers->all[samplers->count - 1];
    if (asked >= last->interval || samplers->count == SAMPLERS)
        return;
    uint64_t half = last->interval / 2;
    void *profiler = make_profiler(isolate);
    if (profiler != NULL && begin_at(samplers, profiler, asked < half ? asked : half))
        last->is_retired = true;
}

void v8_samplers_end(struct v8_samplers *samplers, void *isolate)
{
    v8_samplers_tell(samplers, isolate);
    for (size_t i = 1; i < samplers->count; i++)
        v8.stop_sampling(samplers->all[i].profiler);
    samplers->count = 0;
}
