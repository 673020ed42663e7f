/* Objects of V8's heap, from its own sampling profiler.
 *
 * It draws gaps without memory, as the agent does, so that an object of S bytes is drawn with probability
 * 1 - exp(-S / interval), and notes the functions on the stack. It has no callback: it keeps a list of the drawn objects that
 * the collector has not found dead. We read that list before each collection, when everything that was allocated since the
 * last one is still in it. A number that is new is a sample, one that is missing has died in the collection before.
 *
 * V8 has one such profiler for an isolate. It keeps the interval with which it was started, and forgets its objects when it is
 * stopped, so their deaths would be lost. It is therefore never restarted: a longer interval is had by thinning, and when a
 * shorter one is asked for, this heap keeps that of the start. */
#define _GNU_SOURCE
#include "kit/memory.h"
#include "kit/thinning.h"
#include "v8.h"

#include <string.h>

/* v8::String::NO_NULL_TERMINATION | REPLACE_INVALID_UTF8, and v8::String::WriteFlags::kReplaceInvalidUtf8 */
enum { UTF8_OPTIONS = 2 | 8, UTF8_V2_FLAGS = 2 };

/* v8::AllocationProfile::Node */
struct node {
    const void *name, *script;
    int32_t script_id, position, line, column;
    uint32_t id;
    struct node **children, **children_end, **children_room;
};
/* The beginning of v8::AllocationProfile::Sample. V8 14 has added a field at its end. */
struct drawn {
    uint32_t node;
    uint64_t size;
    uint32_t count;
    uint64_t id;
};
struct profile;
/* v8::AllocationProfile: what its table of functions begins with. `samples` returns a std::vector. */
struct profile_functions {
    struct node *(*root)(struct profile *);
    const uintptr_t *(*samples)(struct profile *); /* where the vector begins and ends */
    void (*end)(struct profile *);
    void (*end_and_free)(struct profile *);
};
struct profile {
    const struct profile_functions *functions;
};

/* A sample of V8's, and the number under which we told it: 0 if it was none, WAITING if it waits for names. Empty: id 0. */
struct v8_live {
    uint64_t id, block;
};
#define WAITING UINT64_MAX
/* A node, with its function; `parent` is a node's id, or 0. Empty: id 0. */
struct v8_place {
    uint32_t id, parent;
    struct v8_frame frame;
};

static _Atomic(uint64_t) blocks;

/* A number for `freed`: multiples of 128, each in a byte of its own of the filter that it asks first. */
static uintptr_t address_of(uint64_t block)
{
    return (uintptr_t)block << 7;
}

/* ---- tables: open addressing, at most half full ---- */

/* Makes an empty table with room for `count` entries; false if there is no memory. */
static bool empty_table(void **table, size_t *capacity, size_t entry_bytes, size_t count)
{
    if (*capacity / 2 >= count && *table != NULL) {
        memset(*table, 0, *capacity * entry_bytes);
        return true;
    }
    size_t wanted = 1024;
    while (wanted / 2 < count)
        wanted *= 2;
    void *memory = memory_map(wanted * entry_bytes);
    if (memory == NULL)
        return false;
    if (*table != NULL)
        munmap(*table, *capacity * entry_bytes);
    *table = memory;
    *capacity = wanted;
    return true;
}

/* Numbers are given one after the other: their low bits are as good as a hash. */
static struct v8_live *find_live(struct v8_live *table, size_t capacity, uint64_t id)
{
    size_t at = id & (capacity - 1);
    while (table[at].id != 0 && table[at].id != id)
        at = (at + 1) & (capacity - 1);
    return &table[at];
}

static struct v8_place *find_place(const struct v8_sampler *sampler, uint32_t id)
{
    size_t at = id & (sampler->places_capacity - 1);
    while (sampler->places[at].id != 0 && sampler->places[at].id != id)
        at = (at + 1) & (sampler->places_capacity - 1);
    return &sampler->places[at];
}

/* ---- stacks ---- */

static const char *text_of(const void *string, void *isolate, char *buffer, size_t size)
{
    size_t written = 0;
    if (string != NULL && v8.write_utf8_v2 != NULL) {
        written = v8.write_utf8_v2(string, isolate, buffer, size - 1, UTF8_V2_FLAGS, NULL);
    } else if (string != NULL) {
        int count = v8.write_utf8(string, isolate, buffer, (int)size - 1, NULL, UTF8_OPTIONS);
        written = count > 0 ? (size_t)count : 0;
    }
    buffer[written] = 0;
    return buffer;
}

/* The root stands for no function. */
static struct v8_frame frame_of(const struct v8_sampler *sampler, const struct node *node, uint32_t parent, void *isolate)
{
    if (parent == 0)
        return (struct v8_frame){0};
    char name[1024] = "", file[1024] = "";
    bool is_new, is_of_script = node->script_id > 0 && node->line > 0;
    uint64_t hash = is_of_script ? v8_place_hash(isolate, node->script_id, node->line, node->column)
                                 : names_hash(NAMES_SEED, text_of(node->name, isolate, name, sizeof name)) | 1;
    uint32_t number = names_number(&v8_names, hash, &is_new);
    if (is_new) {
        text_of(node->name, isolate, name, sizeof name);
        text_of(node->script, isolate, file, sizeof file);
        v8_define_function(number, name, file, node->line, node->column);
    }
    int64_t old_until_us = is_of_script && sampler->older != NULL ? v8_older_until_us(sampler->older, hash) : 0;
    return (struct v8_frame){number, is_of_script ? node->script_id : 0, old_until_us};
}

static size_t count_nodes(const struct node *node)
{
    size_t count = 1;
    for (struct node **child = node->children; child != node->children_end; child++)
        count += count_nodes(*child);
    return count;
}

/* V8's tree is as deep as the stacks that it notes. */
static void add_places(struct v8_sampler *sampler, const struct node *node, uint32_t parent, void *isolate)
{
    struct v8_place *place = find_place(sampler, node->id);
    *place = (struct v8_place){node->id, parent, frame_of(sampler, node, parent, isolate)};
    for (struct node **child = node->children; child != node->children_end; child++)
        add_places(sampler, *child, node->id, isolate);
}

/* The functions from the callee on. */
static size_t walk(const struct v8_sampler *sampler, uint32_t node, struct v8_frame *frames)
{
    size_t depth = 0;
    const struct v8_place *place = find_place(sampler, node);
    for (; place->id != 0 && depth < V8_DEPTH; place = find_place(sampler, place->parent)) {
        if (place->frame.function != 0)
            frames[depth++] = place->frame;
        if (place->parent == 0)
            break;
    }
    return depth;
}

/* The number under which it is told; 0: it is no sample. */
static uint64_t tell(const struct v8_sampler *sampler, const struct v8_late *late, const allocsample_frame *frames,
                     size_t depth)
{
    uint64_t block = atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed) + 1;
    if (!thinning_keeps(block, late->size, sampler->interval, late->interval))
        return 0;
    uint64_t interval = late->interval > sampler->interval ? late->interval : sampler->interval;
    allocsample_id id = late->drawn_ns == 0
                            ? v8_hooks->sampled_at(v8_heap, address_of(block), late->size, 0, frames, depth, interval)
                            : v8_hooks->sampled_earlier(v8_heap, address_of(block), late->size, 0, frames, depth,
                                                        interval, late->drawn_ns);
    return id == ALLOCSAMPLE_NO_SAMPLE ? 0 : block;
}

/* The same for a sample that is new in the list, or WAITING. */
static uint64_t tell_or_defer(struct v8_sampler *sampler, const struct drawn *drawn, bool may_wait)
{
    struct v8_frame frames[V8_DEPTH] = {0};
    size_t depth = walk(sampler, drawn->node, frames);
    if (may_wait && v8_inlined_defer(sampler->inlined, drawn->id, drawn->size, frames, depth))
        return WAITING;
    allocsample_frame told[V8_DEPTH];
    for (size_t i = 0; i < depth; i++)
        told[i] = (allocsample_frame){.function = frames[i].function};
    struct v8_late now = {.size = drawn->size, .interval = sampler->asked};
    return tell(sampler, &now, told, depth);
}

void v8_sampler_tell_late(struct v8_sampler *sampler, const struct v8_late *late, const allocsample_frame *frames,
                          size_t depth)
{
    uint64_t block = tell(sampler, late, frames, depth);
    if (late->died_ns == 0)
        find_live(sampler->live, sampler->live_capacity, late->number)->block = block;
    else if (block != 0)
        v8_hooks->freed_earlier(v8_heap, address_of(block), late->died_ns);
}

static bool is_on(void)
{
    allocsample_counters counters = {.size = sizeof counters};
    return v8_hooks->counters(v8_heap, &counters) == ALLOCSAMPLE_OK && counters.is_on != 0;
}

static uint64_t asked_interval(void)
{
    allocsample_counters counters = {.size = sizeof counters};
    return v8_hooks->counters(v8_heap, &counters) == ALLOCSAMPLE_OK ? counters.interval : 0;
}

/* ---- the list ---- */

/* The size of a v8::AllocationProfile::Sample in this V8; 0: not known yet. */
static _Atomic(size_t) drawn_bytes;

/* Whether this can be a sample: V8's estimate of how many objects it stands for follows from its size. */
static bool is_plausible(const struct v8_sampler *sampler, const struct drawn *drawn)
{
    if (drawn->id == 0 || drawn->size == 0 || drawn->node == 0)
        return false;
    double expected = 1 / thinning_share(drawn->size, sampler->interval), difference = drawn->count - expected;
    return difference * difference <= 1 + expected * expected * 1e-6;
}

static bool are_plausible(const struct v8_sampler *sampler, uintptr_t start, uintptr_t end, size_t bytes)
{
    if ((end - start) % bytes != 0)
        return false;
    for (uintptr_t at = start; at != end; at += bytes)
        if (!is_plausible(sampler, (const struct drawn *)at))
            return false;
    return true;
}

/* Finds out how large a sample is. False: these are none. */
static bool find_drawn_bytes(const struct v8_sampler *sampler, uintptr_t start, uintptr_t end)
{
    if (atomic_load_explicit(&drawn_bytes, memory_order_relaxed) != 0 || start == end)
        return true;
    for (size_t bytes = sizeof(struct drawn); bytes <= 2 * sizeof(struct drawn); bytes += sizeof(uint64_t))
        if (are_plausible(sampler, start, end, bytes)) {
            atomic_store_explicit(&drawn_bytes, bytes, memory_order_relaxed);
            return true;
        }
    return false;
}

static uint64_t highest_number(uintptr_t start, size_t count, size_t bytes)
{
    uint64_t highest = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t id = ((const struct drawn *)(start + i * bytes))->id;
        highest = id > highest ? id : highest;
    }
    return highest;
}

/* Whether the tree's root looks as it does in known versions: it has no script, and a vector of children. */
static bool is_root(const struct node *root)
{
    return root->script_id == 0 && root->children <= root->children_end && root->children_end <= root->children_room;
}

/* False: V8's samples do not look as they do in known versions. */
static bool tell_changes(struct v8_sampler *sampler, struct profile *profile, void *isolate)
{
    struct node *root = profile->functions->root(profile);
    const uintptr_t *samples = profile->functions->samples(profile);
    if (!is_root(root) || samples[0] > samples[1])
        return false;
    if (!empty_table((void **)&sampler->places, &sampler->places_capacity, sizeof *sampler->places,
                     count_nodes(root)))
        return true;
    add_places(sampler, root, 0, isolate);
    if (!find_drawn_bytes(sampler, samples[0], samples[1]))
        return false;
    size_t bytes = atomic_load_explicit(&drawn_bytes, memory_order_relaxed);
    size_t count = bytes == 0 ? 0 : (samples[1] - samples[0]) / bytes;
    uint64_t highest = highest_number(samples[0], count, bytes);
    if (!empty_table((void **)&sampler->former, &sampler->former_capacity, sizeof *sampler->former, count))
        return true;
    /* While the heap is off, samples are reported at once and refused: they must not wait until it is on again. */
    v8_hooks->sampled_at(v8_heap, 0, 0, 0, NULL, 0, 0); /* obeys what was asked since the last reading */
    bool may_wait = sampler->inlined != NULL && is_on();
    enum v8_numbers numbers = v8_draws_after_reading(&sampler->draws, highest);
    if (sampler->inlined != NULL)
        v8_inlined_check(sampler->inlined, numbers);
    for (size_t i = 0; i < count; i++) {
        const struct drawn *next = (const struct drawn *)(samples[0] + i * bytes);
        struct v8_live none = {0}, *known = &none;
        if (sampler->live != NULL)
            known = find_live(sampler->live, sampler->live_capacity, next->id);
        bool is_known = known->id != 0;
        uint64_t block = is_known ? known->block : tell_or_defer(sampler, next, may_wait);
        *find_live(sampler->former, sampler->former_capacity, next->id) = (struct v8_live){next->id, block};
        known->block = 0;
    }
    v8_sampler_free_all(sampler);
    struct v8_sampler before = *sampler;
    sampler->live = before.former;
    sampler->live_capacity = before.former_capacity;
    sampler->former = before.live;
    sampler->former_capacity = before.live_capacity;
    return true;
}

/* A reading can start a collection: the first time that V8 needs the line ends of a script, it stores them in its heap. V8 then drops
 * samples of dead objects from its list before we see them. So the first draws are read early, a few at a time. */
bool v8_sampler_read(struct v8_sampler *sampler, void *isolate)
{
    /* V8 does not allow a reading within another one: the inner one would unpin nodes that the outer one still needs. */
    if (sampler->is_being_read)
        return true;
    sampler->is_being_read = true;
    v8_draws_before_reading(&sampler->draws);
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    struct profile *profile = v8.profile_of(sampler->profiler);
    shim_quiet_end(before);
    sampler->is_being_read = false;
    if (profile == NULL) {
        sampler->is_running = false;
        return false;
    }
    bool is_known = tell_changes(sampler, profile, isolate);
    profile->functions->end_and_free(profile);
    if (!is_known) {
        uint64_t now_ns = v8_hooks->now_ns();
        v8_hooks->marker(v8_heap, "V8's samples have an unknown layout", now_ns, now_ns);
    } else if (sampler->inlined != NULL) {
        v8_inlined_turn(sampler->inlined, false);
    }
    return is_known;
}

void v8_sampler_free_all(struct v8_sampler *sampler)
{
    uint64_t now_ns = v8_hooks->now_ns();
    for (size_t i = 0; i < sampler->live_capacity; i++) {
        const struct v8_live *live = &sampler->live[i];
        if (live->block == WAITING)
            v8_inlined_died(sampler->inlined, live->id, now_ns);
        else if (live->id != 0 && live->block != 0)
            v8_hooks->freed(v8_heap, address_of(live->block));
    }
}

/* ---- the profiler ---- */

static bool are_names_wanted(void)
{
    return v8.collect_sample != NULL;
}

bool v8_sampler_lacks_names(const struct v8_sampler *sampler)
{
    /* V8's CPU profiler takes 20 ms to start, which is longer than some programs run. But it must run before V8 inlines anything into a
     * running loop (on-stack replacement), because it cannot find that out later. */
    enum { FEWEST_DRAWS = 4 };
    bool is_worth_it = sampler->older != NULL || sampler->is_busy || sampler->draws.count >= FEWEST_DRAWS;
    return sampler->inlined == NULL && sampler->is_running && are_names_wanted() && v8_draws_are_known() && is_worth_it &&
           v8_scope_is_found();
}

void v8_sampler_name_inlined(struct v8_sampler *sampler, void *isolate)
{
    /* What was drawn so far is read first. */
    if (sampler->draws.callers == NULL || (v8_sampler_read(sampler, isolate) && sampler->draws.callers == NULL))
        sampler->inlined = v8_inlined_begin(sampler, isolate);
}

void v8_sampler_tell_waiting(struct v8_sampler *sampler)
{
    if (sampler->inlined != NULL)
        v8_inlined_turn(sampler->inlined, true);
}

void v8_sampler_end_names(struct v8_sampler *sampler)
{
    if (sampler->inlined != NULL)
        v8_inlined_end(sampler->inlined);
    sampler->inlined = NULL;
}

/* Has V8's profiler read, for no more than the search. */
static void search_in_list(struct v8_sampler *sampler)
{
    v8_draws_before_reading(&sampler->draws);
    struct profile *profile = v8.profile_of(sampler->profiler);
    if (profile == NULL)
        return;
    const uintptr_t *samples = profile->functions->samples(profile);
    if (samples[0] <= samples[1] && find_drawn_bytes(sampler, samples[0], samples[1])) {
        size_t bytes = atomic_load_explicit(&drawn_bytes, memory_order_relaxed);
        size_t count = bytes == 0 ? 0 : (samples[1] - samples[0]) / bytes;
        v8_draws_after_reading(&sampler->draws, highest_number(samples[0], count, bytes));
    }
    profile->functions->end_and_free(profile);
}

/* Finds out where V8 draws, before its profiler runs for us: strings are made while it draws almost all of them. If that shows nothing,
 * the program's own objects will. */
static void search_draws(struct v8_sampler *sampler, void *isolate)
{
    enum { INTERVAL = 512, STRING_BYTES = 1024, STRINGS = 64, ROUNDS = 4, NORMAL_STRING = 0, DEPTH = 1 };
    static const char text[STRING_BYTES];
    struct v8_sampler search = {.profiler = sampler->profiler, .interval = INTERVAL};
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    v8_draws_begin(&search.draws);
    if (search.draws.callers != NULL && v8.start_sampling(search.profiler, INTERVAL, DEPTH, 0)) {
        for (int round = 0; round < ROUNDS && !v8_draws_are_known(); round++) {
            for (int i = 0; i < STRINGS; i++)
                v8.new_string(isolate, text, NORMAL_STRING, STRING_BYTES);
            search_in_list(&search);
        }
        v8.stop_sampling(search.profiler);
    }
    v8_draws_end(&search.draws);
    shim_quiet_end(before);
}

bool v8_sampler_begin(struct v8_sampler *sampler, void *isolate, const struct v8_older *older)
{
    uint64_t asked = asked_interval();
    void *profiler = v8.profiler_of(isolate);
    *sampler = (struct v8_sampler){.profiler = profiler, .interval = asked, .asked = asked, .older = older};
    if (asked == 0)
        return false;
    if (are_names_wanted()) {
        if (!v8_draws_are_known())
            search_draws(sampler, isolate);
        v8_draws_begin(&sampler->draws);
    }
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    sampler->is_running = v8.start_sampling(profiler, asked, V8_DEPTH, 0);
    shim_quiet_end(before);
    return sampler->is_running;
}

bool v8_sampler_is_behind(const struct v8_sampler *sampler)
{
    uint64_t asked = asked_interval();
    return asked != 0 && asked != sampler->asked;
}

bool v8_sampler_follow(struct v8_sampler *sampler, void *isolate)
{
    uint64_t asked = asked_interval();
    if (asked == 0 || asked == sampler->asked)
        return true;
    /* Until here the interval of before holds. */
    bool is_there = v8_sampler_read(sampler, isolate);
    sampler->asked = asked;
    return is_there;
}

static void give_back(void *table, size_t bytes)
{
    if (table != NULL)
        munmap(table, bytes);
}

void v8_sampler_end(struct v8_sampler *sampler)
{
    if (sampler->is_running) {
        struct shim_quiet before = shim_quiet_begin(shim_services.counters());
        v8.stop_sampling(sampler->profiler);
        shim_quiet_end(before);
    }
    v8_draws_end(&sampler->draws);
    give_back(sampler->live, sampler->live_capacity * sizeof *sampler->live);
    give_back(sampler->former, sampler->former_capacity * sizeof *sampler->former);
    give_back(sampler->places, sampler->places_capacity * sizeof *sampler->places);
    *sampler = (struct v8_sampler){0};
}
