/* Ruby's objects in slots of its heap, on request: Ruby calls us for every new and every freed object, which makes programs slower.
 *
 * A new object costs the subtraction of its slot's size (kit/countdown.h). One that is a sample goes into a table by its address. A
 * freed object costs a look at a byte that stands for its KiB of addresses, and only where that has samples, one into the table.
 * Memory of an object outside of its slot comes from malloc, and is counted there.
 *
 * Callbacks of these events may not allocate, call methods or raise. Ruby calls those of new objects one at a time, with the lock
 * that protects its heap. The table has a lock of its own, in case a later Ruby sweeps on several threads.
 *
 * Compaction moves objects and reports nothing. But a hidden object of ours is told when references are to be updated, as all are,
 * and asks then where every sampled object is now.
 *
 * Up to Ruby 3.4 we get the events of one Ractor only. Where another one collects, deaths are not reported: once there are two, no new
 * object is sampled, and the profile says so.
 *
 * From 4.0 on we get the events of all Ractors. Their hooks are in one list. Removing one frees it while another Ractor may be reading
 * the list, and within a call of a hook it stops all Ractors, where two that do so wait for each other. So there hooks stay for good,
 * and do nothing while no objects are wanted.
 *
 * From 4.1 on, what ZJIT compiles makes most objects without reporting them, to nobody. Then no object is sampled, and the profile says
 * so. */
#define _GNU_SOURCE
#include "ruby.h"
#include "kit/countdown.h"
#include "kit/lock.h"
#include "kit/memory.h"
#include "kit/names.h"
#include "kit/symbols.h"

#include <string.h>

/* Internal events of ruby/internal/event.h, and flags of rb_add_event_hook2 in ruby/debug.h. */
enum { NEW_OBJECT = 0x100000, FREED_OBJECT = 0x200000, END_OF_SWEEP = 0x1000000 };
enum { IS_SAFE = 1, HAS_RAW_ARGUMENT = 4 };

/* Numbers of types, of ruby/internal/value_type.h. */
enum { TYPE_DATA = 0x0c, TYPE_ICLASS = 0x1c, TYPE_IMEMO = 0x1a, TYPE_NODE = 0x1b };

static const char *const type_names[RUBY_TYPE_MASK + 1] = {
    "T_NONE", "T_OBJECT", "T_CLASS", "T_MODULE", "T_FLOAT", "T_STRING", "T_REGEXP", "T_ARRAY",
    "T_HASH", "T_STRUCT", "T_BIGNUM", "T_FILE", "T_DATA", "T_MATCH", "T_COMPLEX", "T_RATIONAL",
    [TYPE_IMEMO] = "T_IMEMO", [TYPE_NODE] = "T_NODE", [TYPE_ICLASS] = "T_ICLASS",
};

typedef void on_event(ruby_value unused, void *argument);

static struct {
    void (*add_hook)(on_event *function, uint32_t events, ruby_value data, int flags);
    int (*remove_hook)(on_event *function, ruby_value data);
    ruby_value (*object)(void *argument);
    ruby_value (*location)(ruby_value object);
    ruby_value (*real_class)(ruby_value class);
    ruby_value (*class_name)(ruby_value class);
    ruby_value (*wrap)(ruby_value class, void *data, const struct ruby_data_type *type);
    void (*register_address)(ruby_value *);
    void *(*new_ractor_key)(const void *type);
    void *(*of_ractor)(void *key);
    void (*set_of_ractor)(void *key, void *data);
    const ruby_value *ractor_class;
    size_t (*memory_of)(ruby_value object);
    /* From 4.1 on, if it was built with ZJIT: where compiled code is entered, NULL until ZJIT is switched on. */
    void *const *zjit;
    /* Before Ruby 3.2 all slots have the same size. */
    size_t (*slot_size)(ruby_value object);
} ruby;

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static void (*request_switch)(void);
static struct names types;
static struct countdown countdown;
static allocsample_nursery nursery;
static size_t size_of_all; /* of all slots; 0: they differ */

static _Atomic(bool) is_on;       /* objects are sampled, and their deaths reported */
static _Atomic(bool) is_given_up; /* no new object is sampled any more */
static bool is_of_all_ractors; /* Ruby calls us for the objects of each */
static bool has_new_hook, has_other_hooks; /* Ruby calls us */
static _Atomic(bool) is_swept;
static void *ractor_key;
static ruby_value hidden;

/* ---- the sampled objects ---- */

struct sampled {
    ruby_value object; /* 0: none */
    allocsample_id sample;
};

#define LEAST_ROOM (1u << 12)
#define MOST_ROOM (1u << 23)
/* How many sampled objects are in a KiB of addresses, modulo 128 MiB. At the top it stays there. */
#define KIBS (1u << 17)

static struct {
    struct sampled *all;
    uint32_t room, used; /* the room is a power of two, more than a quarter of it free */
} live;
static uint8_t in_kib[KIBS];
static bridge_lock live_lock;

static inline uint8_t *filter_of(ruby_value object)
{
    return &in_kib[object >> 10 & (KIBS - 1)];
}

static uint32_t place_of(ruby_value object)
{
    return (uint32_t)((object >> 3) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (live.room - 1);
}

static uint32_t after(uint32_t place)
{
    return (place + 1) & (live.room - 1);
}

static void insert(struct sampled sampled)
{
    uint32_t place = place_of(sampled.object);
    while (live.all[place].object != 0)
        place = after(place);
    live.all[place] = sampled;
    live.used++;
    uint8_t *count = filter_of(sampled.object);
    *count += *count < UINT8_MAX;
}

/* Fills the hole at `hole`, so that every object can be reached from its place without passing an empty one. */
static void close_hole(uint32_t hole)
{
    for (uint32_t place = after(hole); live.all[place].object != 0; place = after(place)) {
        uint32_t from_its_own = (place - place_of(live.all[place].object)) & (live.room - 1);
        if (from_its_own >= ((place - hole) & (live.room - 1))) {
            live.all[hole] = live.all[place];
            hole = place;
        }
    }
    live.all[hole].object = 0;
}

/* Takes the object out of the table. False: it is no sample. */
static bool take_out(ruby_value object, allocsample_id *sample)
{
    if (live.used == 0)
        return false;
    uint32_t place = place_of(object);
    while (live.all[place].object != object) {
        if (live.all[place].object == 0)
            return false;
        place = after(place);
    }
    *sample = live.all[place].sample;
    close_hole(place);
    live.used--;
    uint8_t *count = filter_of(object);
    *count -= *count < UINT8_MAX;
    return true;
}

static ruby_value as_before(ruby_value object)
{
    return object;
}

/* Makes a table of another size, or of objects that are elsewhere. False: there is no memory for it. */
static bool rebuild(uint32_t room, ruby_value (*location)(ruby_value object))
{
    struct sampled *before = live.all, *all = memory_map(room * sizeof *all);
    uint32_t room_before = live.room;
    if (all == NULL)
        return false;
    memset(in_kib, 0, sizeof in_kib);
    live.all = all;
    live.room = room;
    live.used = 0;
    for (uint32_t place = 0; place < room_before; place++)
        if (before[place].object != 0)
            insert((struct sampled){location(before[place].object), before[place].sample});
    if (before != NULL)
        munmap(before, room_before * sizeof *before);
    return true;
}

static bool has_room(void)
{
    if (live.used < live.room / 4 * 3)
        return true;
    uint32_t room = live.room == 0 ? LEAST_ROOM : 2 * live.room;
    return room <= MOST_ROOM && rebuild(room, as_before);
}

static void forget_all(void)
{
    lock_take(&live_lock);
    if (live.used > 0)
        memset(live.all, 0, live.room * sizeof *live.all);
    live.used = 0;
    memset(in_kib, 0, sizeof in_kib);
    lock_release(&live_lock);
}

/* From now on, only deaths are reported. */
COLD static void give_up(const char *note)
{
    if (atomic_exchange_explicit(&is_given_up, true, memory_order_relaxed))
        return;
    uint64_t now = hooks->now_ns();
    hooks->marker(heap, note, now, now);
    if (!is_of_all_ractors)
        request_switch();
}

COLD static void give_up_for_ractors(void)
{
    give_up("note: Ruby's new objects are no longer sampled: the program uses Ractors, and Ruby reports the objects of one only; some "
            "that are shown as live may be dead");
}

static bool has_unreported_objects(void)
{
    return ruby.zjit != NULL && *ruby.zjit != NULL;
}

COLD static void give_up_for_zjit(void)
{
    give_up("note: Ruby's new objects are not sampled while ZJIT is on: what it compiles makes objects that Ruby does not report");
}

/* ---- events, in the middle of an allocation or of a collection ---- */

COLD static void end(ruby_value object)
{
    allocsample_id sample;
    lock_take(&live_lock);
    bool is_sampled = take_out(object, &sample);
    lock_release(&live_lock);
    if (is_sampled)
        hooks->died(heap, &sample, 1);
}

static inline ruby_value class_of(ruby_value object)
{
    return ((const ruby_value *)object)[1];
}

/* An object of the class Ractor. Hidden objects have no class, and methods something else in its place. */
COLD static bool is_ractor(ruby_value object)
{
    return class_of(object) != 0 && (*(const ruby_value *)object & RUBY_TYPE_MASK) == TYPE_DATA;
}

static allocsample_type type_of(ruby_value object)
{
    unsigned number = *(const ruby_value *)object & RUBY_TYPE_MASK;
    const char *name = NULL;
    /* The others hold something else in the place of a class. */
    bool has_class = number != TYPE_IMEMO && number != TYPE_NODE && number != TYPE_ICLASS && class_of(object) != 0;
    ruby_value class = has_class ? ruby.real_class(class_of(object)) : 0;
    if (class != 0)
        name = ruby_text(ruby.class_name(class));
    if (name == NULL)
        name = type_names[number];
    bool is_new = false;
    uint32_t type = name == NULL ? 0 : names_number(&types, names_hash(NAMES_SEED, name), &is_new);
    if (is_new)
        hooks->define_type(heap, type, name, NULL);
    return type;
}

COLD static void sample(ruby_value object, size_t size)
{
    lock_take(&live_lock);
    bool room = has_room();
    lock_release(&live_lock);
    if (!room) {
        give_up("note: Ruby's new objects are no longer sampled: too many samples are alive at the same time");
        return;
    }
    allocsample_id id = countdown_tell(&countdown, hooks, heap, object, size, type_of(object));
    if (id == ALLOCSAMPLE_NO_SAMPLE)
        return;
    lock_take(&live_lock);
    insert((struct sampled){object, id});
    lock_release(&live_lock);
}

static inline size_t size_of(ruby_value object)
{
    return size_of_all != 0 ? size_of_all : ruby.slot_size(object);
}

static inline bool is_wanted(void)
{
    return atomic_load_explicit(&is_on, memory_order_relaxed);
}

static void on_new(ruby_value unused, void *argument)
{
    (void)unused;
    if (UNLIKELY(!is_wanted() || atomic_load_explicit(&is_given_up, memory_order_relaxed))) {
        if (!is_of_all_ractors)
            request_switch();
        return;
    }
    ruby_value object = ruby.object(argument);
    if (!is_of_all_ractors && UNLIKELY(class_of(object) == *ruby.ractor_class) && is_ractor(object)) {
        give_up_for_ractors();
        return;
    }
    /* Ruby reports no deaths of a collection that a callback of this event has caused, somebody else's. */
    if (UNLIKELY(*filter_of(object) != 0))
        end(object);
    size_t size = size_of(object);
    if (UNLIKELY(!countdown_take(&countdown, size)))
        sample(object, size);
}

static void on_freed(ruby_value unused, void *argument)
{
    (void)unused;
    ruby_value object = ruby.object(argument);
    if (UNLIKELY(*filter_of(object) != 0) && is_wanted())
        end(object);
}

static void on_swept(ruby_value unused, void *argument)
{
    (void)unused;
    (void)argument;
    atomic_store_explicit(&is_swept, true, memory_order_relaxed);
}

/* References are to be updated. All objects have moved that do. */
static void on_compacted(void *unused)
{
    (void)unused;
    bool has_moved = false, is_followed = true;
    if (!is_wanted())
        return;
    lock_take(&live_lock);
    for (uint32_t place = 0; place < live.room && !has_moved; place++) {
        ruby_value object = live.all[place].object;
        has_moved = object != 0 && ruby.location(object) != object;
    }
    if (has_moved)
        is_followed = rebuild(live.room, ruby.location);
    lock_release(&live_lock);
    if (is_followed)
        return;
    atomic_store_explicit(&is_on, false, memory_order_relaxed);
    give_up("note: Ruby's objects are no longer sampled: there was no memory to follow those that compaction moved");
}

static const struct ruby_data_type type = {.name = "allocsample", .compact = on_compacted};

void ruby_objects_on_mark(void)
{
    atomic_store_explicit(&is_swept, false, memory_order_relaxed);
    ruby_objects_look_at_program();
}

void ruby_objects_look_at_program(void)
{
    if (UNLIKELY(has_unreported_objects()) && is_wanted())
        give_up_for_zjit();
    else if (!is_of_all_ractors && has_new_hook && is_wanted() && UNLIKELY(ruby.of_ractor(ractor_key) == NULL))
        give_up_for_ractors();
}

bool ruby_objects_are_on(void)
{
    return has_other_hooks && is_wanted();
}

bool ruby_objects_are_swept(void)
{
    return atomic_load_explicit(&is_swept, memory_order_relaxed);
}

/* ---- on and off ---- */

bool ruby_objects_find(void)
{
    static const struct symbol symbols[] = {
        {&ruby.add_hook, "rb_add_event_hook2"},
        {&ruby.remove_hook, "rb_remove_event_hook_with_data"},
        {&ruby.object, "rb_tracearg_object"},
        {&ruby.location, "rb_gc_location"},
        {&ruby.real_class, "rb_class_real"},
        {&ruby.class_name, "rb_mod_name"},
        {&ruby.wrap, "rb_data_typed_object_wrap"},
        {&ruby.register_address, "rb_gc_register_address"},
        {&ruby.new_ractor_key, "rb_ractor_local_storage_ptr_newkey"},
        {&ruby.of_ractor, "rb_ractor_local_storage_ptr"},
        {&ruby.set_of_ractor, "rb_ractor_local_storage_ptr_set"},
        {&ruby.ractor_class, "rb_cRactor"},
        {&ruby.memory_of, "rb_obj_memsize_of"},
    };
    static const struct symbol slots[] = {{&ruby.slot_size, "rb_gc_obj_slot_size"}};
    static const struct symbol zjit[] = {{&ruby.zjit, "rb_zjit_entry"}};
    is_of_all_ractors = ruby_is_since(4, 0);
    if (ruby_is_since(4, 1))
        symbols_find(zjit, 1, NULL);
    return symbols_find(symbols, sizeof symbols / sizeof symbols[0], NULL) && (symbols_find(slots, 1, NULL) || !ruby_is_since(3, 2));
}

bool ruby_objects_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap, void (*want_switch)(void))
{
    hooks = the_hooks;
    heap = the_heap;
    request_switch = want_switch;
    return names_make(&types);
}

void ruby_objects_pause(void)
{
    atomic_store_explicit(&is_on, false, memory_order_relaxed);
}

static void make_hidden_object(void)
{
    ruby.register_address(&hidden);
    hidden = ruby.wrap(0, &live, &type);
    /* Nothing belongs to it outside of its slot. */
    if (ruby.slot_size == NULL)
        size_of_all = ruby.memory_of(hidden);
    ractor_key = ruby.new_ractor_key(NULL);
    ruby.set_of_ractor(ractor_key, &live);
    countdown_begin(&countdown, hooks, heap, &nursery);
}

void ruby_objects_after_fork_in_child(void)
{
    lock_release(&live_lock);
    names_after_fork_in_child(&types);
}

/* On Ruby's main thread. */
static void add_hooks(void)
{
    if (!has_new_hook)
        ruby.add_hook(on_new, NEW_OBJECT, 0, IS_SAFE | HAS_RAW_ARGUMENT);
    has_new_hook = true;
    if (has_other_hooks)
        return;
    ruby.add_hook(on_freed, FREED_OBJECT, 0, IS_SAFE | HAS_RAW_ARGUMENT);
    ruby.add_hook(on_swept, END_OF_SWEEP, 0, IS_SAFE | HAS_RAW_ARGUMENT);
    has_other_hooks = true;
}

static void remove_hooks(bool all)
{
    if (has_new_hook)
        ruby.remove_hook(on_new, 0);
    has_new_hook = false;
    if (!all || !has_other_hooks)
        return;
    ruby.remove_hook(on_freed, 0);
    ruby.remove_hook(on_swept, 0);
    has_other_hooks = false;
}

static void begin(void)
{
    if (hidden == 0)
        make_hidden_object();
    forget_all();
    atomic_store_explicit(&is_on, true, memory_order_relaxed);
    if (has_unreported_objects())
        give_up_for_zjit();
    else if (!atomic_load_explicit(&is_given_up, memory_order_relaxed))
        add_hooks();
}

void ruby_objects_switch(bool wanted)
{
    bool is_over = atomic_load_explicit(&is_given_up, memory_order_relaxed);
    if (wanted && !is_over)
        begin();
    else if (!is_of_all_ractors)
        remove_hooks(!wanted || !is_wanted());
}
