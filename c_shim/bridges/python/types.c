/* Of which types sampled objects of Python are.
 *
 * When an object is allocated it has no type: Python writes it there a moment later. So the object waits until its thread, or
 * another with the interpreter's lock, comes to the next sample, or until it is freed, whichever is first: a type outlives its
 * objects, and an object has its header until its memory is given back.
 *
 * Not all that comes from the allocator of objects is one: the bytes of a bytearray do, and before 3.13 the tables of
 * dictionaries, which are told by their sizes and named for what they are. So what lies where the header would be is taken for a
 * type only if it is a type all the way up to `type`, and if by its flags its objects have their header just there: after
 * nothing, the collector's two words, or those and two more. The memory was zeroed there when it was allocated, so that it is
 * not that of an object that was there before. That it is a type is found out by copies (foreign.h); from then on, until it ends,
 * it is read at once: all this runs with the interpreter's lock, which whoever ends a type holds. */
#define _GNU_SOURCE
#include "bridge.h"
#include "kit/lock.h"
#include "kit/names.h"
#include "python.h"
#include "deaths.h"
#include "layout.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Py_TPFLAGS_HEAPTYPE, _READY, _HAVE_GC, _UNICODE_SUBCLASS, _TYPE_SUBCLASS. */
enum { IS_ON_HEAP = 1 << 9, IS_READY = 1 << 12, HAS_COLLECTOR = 1 << 14, IS_STR = 1 << 28 };
#define IS_TYPE_OF_TYPES (UINT64_C(1) << 31)
/* PyGC_Head; and `__dict__` or its values with `__weakref__`, or its keys. */
#define TWO_WORDS (2 * sizeof(uintptr_t))
/* References to a table of a dictionary are fewer. */
#define MOST_REFERENCES (UINT64_C(1) << 32)

/* A block that waits. */
struct awaited {
    struct python_block block;
    uint32_t looks;
};
#define AWAITED 64
/* Maximum number of looks for the type of an object. */
#define LOOKS 32

/* A type that was met among the blocks of a heap. */
struct met {
    uintptr_t type;
    uint64_t name; /* a hash: another type may come to lie where one was */
    uint32_t number;
    bool is_of_malloc;
};
#define MET 1024

/* Logarithms: what a table of a dictionary has at least, and more than any. */
enum { FEWEST_SLOTS = 3, MOST_SLOTS = 40 };

static struct {
    void *(*item)(void *, void *);
    void *(*intern)(const char *);
    void (*release)(void *);
    void *(*qualified_name)(void *); /* PyType_GetQualName, 3.11 on */
} api;
static const struct python_layout *layout;
static uintptr_t type_of_types;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
/* Numbers of types in Python's heap, and in malloc's. */
static struct names names, names_of_malloc;
/* The str "__module__", once there is an interpreter that can make it. */
static _Atomic(uintptr_t) module_key;

/* Guards all below. What waits cannot be freed while it is held: whoever frees it waits. It is held by threads with an
 * interpreter's lock, and by whoever frees a sampled block, which a signal handler may do on a thread that holds it: such a block
 * is none of Python's. */
static bridge_lock lock;
static _Thread_local bool holds_lock;
static struct awaited awaited[AWAITED];
static _Atomic(uint32_t) awaited_count;
static struct met met[MET];

static bool take_lock(void)
{
    if (holds_lock)
        return false;
    holds_lock = true;
    lock_take(&lock);
    return true;
}

static void release_lock(void)
{
    lock_release(&lock);
    holds_lock = false;
}

/* ---- what a type is ---- */

/* Types that are known to be alive. */
static struct python_alive alive;
#define ALIVE_SETS 512

/* PyTypeObject's fields up to its flags. */
enum { TYPE_BYTES = PYTHON_LARGER_HEADER + PYTHON_TYPE_FLAGS + sizeof(uintptr_t) };

/* Copies them; false if there is no object that is alive. */
static bool copy_type(uintptr_t type, uint8_t *bytes)
{
    return type >= 4096 && type % sizeof(uintptr_t) == 0 && type >> 47 == 0 && foreign_copy(type, bytes, TYPE_BYTES) &&
           python_may_be_alive(layout, bytes);
}

static uintptr_t field_of(const uint8_t *type, size_t offset)
{
    return python_word_in(type, python_in_object(layout, offset));
}

/* The same of a type that is alive. */
static uintptr_t field_at(uintptr_t type, size_t offset)
{
    return python_word_at(type + python_in_object(layout, offset));
}

static bool is_type(uintptr_t type)
{
    uint8_t bytes[TYPE_BYTES];
    if (python_alive_number(&alive, type) != PYTHON_UNKNOWN)
        return true;
    if (!copy_type(type, bytes) || (field_of(bytes, PYTHON_TYPE_FLAGS) & IS_READY) == 0)
        return false;
    for (int depth = 0; depth < 8; depth++) {
        uintptr_t its_type = field_of(bytes, PYTHON_TYPE);
        if (its_type == type_of_types) {
            python_alive_add(&alive, type, 0);
            return true;
        }
        if (!copy_type(its_type, bytes) || (field_of(bytes, PYTHON_TYPE_FLAGS) & IS_TYPE_OF_TYPES) == 0)
            return false;
    }
    return false;
}

/* How far from the start of their blocks objects of a type begin. */
static size_t words_before(uintptr_t type)
{
    uint64_t flags = field_at(type, PYTHON_TYPE_FLAGS);
    bool has_header = (flags & HAS_COLLECTOR) != 0 && !layout->is_free_threaded;
    return (has_header ? TWO_WORDS : 0) + ((flags & layout->with_two_words) != 0 ? TWO_WORDS : 0);
}

/* The type of the object in a block; 0: it is none, or none yet. */
static uintptr_t type_in(const struct python_block *block)
{
    if (!block->is_object)
        return 0;
    size_t header_bytes = python_in_object(layout, TWO_WORDS);
    for (size_t before = 0; before <= 2 * TWO_WORDS && before + header_bytes <= block->size; before += TWO_WORDS) {
        uintptr_t header = block->address + before;
        uintptr_t type = field_at(header, PYTHON_TYPE);
        /* One that is about to be freed has no references. */
        bool is_counted = layout->is_free_threaded || python_word_at(header) == 0 ||
                          python_may_be_alive(layout, (const uint8_t *)header);
        if (is_counted && is_type(type) && words_before(type) == before)
            return type;
    }
    return 0;
}

/* ---- tables of dictionaries ---- */

/* A table has 2^`log_slots` slots, each wide enough for the number of an entry, and entries for two thirds of them. */
static size_t bytes_of_table(unsigned log_slots, bool has_hashes)
{
    size_t slots = (size_t)1 << log_slots, width = log_slots < 8 ? 1 : log_slots < 16 ? 2 : log_slots < 32 ? 4 : 8;
    return (layout->minor <= 10 ? 40 : 32) + slots * width + (slots << 1) / 3 * (has_hashes ? 24 : 16);
}

static bool has_size_of_table(size_t size)
{
    for (unsigned log_slots = FEWEST_SLOTS; log_slots <= MOST_SLOTS && bytes_of_table(log_slots, false) <= size; log_slots++) {
        if (size == bytes_of_table(log_slots, true) || (layout->minor > 10 && size == bytes_of_table(log_slots, false)))
            return true;
    }
    return false;
}

/* PyDictKeysObject: references; then up to 3.10 the number of slots, from 3.11 on its logarithm, that of their bytes, and
 * whether all keys are str, whose entries lack a hash. */
static bool is_table(const struct python_block *block)
{
    if (!has_size_of_table(block->size) || python_word_at(block->address) - 1 >= MOST_REFERENCES)
        return false;
    uintptr_t second = python_word_at(block->address + 8);
    if (layout->minor <= 10)
        return second >= 8 && (second & (second - 1)) == 0 && block->size == bytes_of_table(__builtin_ctzl(second), true);
    unsigned log_slots = second & 0xff, kind = second >> 16 & 0xff;
    return log_slots >= FEWEST_SLOTS && log_slots <= MOST_SLOTS && kind <= 2 &&
           block->size == bytes_of_table(log_slots, kind == 0);
}

/* ---- names ---- */

static uint32_t number_of_name(const char *name, bool is_of_malloc)
{
    bool is_new;
    uint32_t number = names_number(is_of_malloc ? &names_of_malloc : &names, names_hash(NAMES_SEED, name), &is_new);
    if (is_new && !is_of_malloc)
        hooks->define_type(heap, number, name, "");
    else if (is_new)
        shim_services.define_malloc_type(number, name);
    return number;
}

/* Finds the value of a key that is this very object among the first entries of a dictionary's table; 0: it is not there. To ask
 * the interpreter would take a lock of the dictionary, which this thread may hold. All is copied: another thread may replace the
 * table meanwhile. */
static uintptr_t item_among_first(struct foreign_reader *reader, uintptr_t dict, uintptr_t key)
{
    enum { KIND = 10, LOG_INDEX_BYTES = 9, ENTRIES = 24, HEADER = 32, GENERAL = 0, MOST_ENTRIES = 64 };
    uint8_t header[HEADER];
    uintptr_t table = foreign_word(reader, dict + layout->dict_keys);
    if (table == 0 || !foreign_read(reader, table, header, sizeof header) || header[LOG_INDEX_BYTES] >= MOST_SLOTS)
        return 0;
    /* A key after its hash, or first; then the value. */
    size_t entry_bytes = header[KIND] == GENERAL ? 24 : 16, key_at = entry_bytes - 16;
    uintptr_t entries = table + HEADER + ((uintptr_t)1 << header[LOG_INDEX_BYTES]);
    for (size_t i = 0; i < python_word_in(header, ENTRIES) && i < MOST_ENTRIES; i++) {
        if (foreign_word(reader, entries + i * entry_bytes + key_at) == key)
            return foreign_word(reader, entries + i * entry_bytes + key_at + sizeof(uintptr_t));
    }
    return 0;
}

/* The module that a class was defined in; empty for a built-in one, and where it is not known or has another meaning. */
static void copy_module(uintptr_t class, void *key, char *text, size_t room)
{
    struct foreign_reader reader;
    uintptr_t dict = field_at(class, PYTHON_TYPE_DICT), module = 0;
    foreign_reader_begin(&reader, NULL);
    if (dict != 0 && layout->dict_keys != 0)
        module = item_among_first(&reader, dict, (uintptr_t)key);
    else if (dict != 0)
        /* Looks for a str by its hash, which it has: no code of the program runs. */
        module = (uintptr_t)api.item((void *)dict, key);
    uintptr_t type = module == 0 ? 0 : foreign_word(&reader, module + python_in_object(layout, PYTHON_TYPE));
    bool is_str = type != 0 && (foreign_word(&reader, type + python_in_object(layout, PYTHON_TYPE_FLAGS)) & IS_STR) != 0;
    python_copy_text(layout, &reader, is_str ? module : 0, text, room);
    if (strcmp(text, "builtins") == 0)
        text[0] = 0;
}

static void copy_qualified_name(uintptr_t class, char *text, size_t room)
{
    if (layout->qualified_name != 0) {
        python_copy_text(layout, NULL, python_word_at(class + layout->qualified_name), text, room);
        return;
    }
    /* The class has one, and keeps it: nothing is allocated or freed. */
    void *name = api.qualified_name((void *)class);
    python_copy_text(layout, NULL, (uintptr_t)name, text, room);
    if (name != NULL)
        api.release(name);
}

/* 0: it cannot be named yet, as classes are named with their modules from the first one on. */
static uint32_t number_of(uintptr_t type, bool is_of_malloc)
{
    char name[512], module[256] = "", whole[sizeof name + sizeof module];
    const char *own_name = (const char *)field_at(type, PYTHON_TYPE_NAME);
    /* Types that are made in C have their module in their name. */
    bool is_class = (field_at(type, PYTHON_TYPE_FLAGS) & IS_ON_HEAP) != 0 && strchr(own_name, '.') == NULL;
    void *key = (void *)atomic_load_explicit(&module_key, memory_order_acquire);
    if (is_class && key == NULL)
        return 0;
    if (is_class)
        copy_qualified_name(type, name, sizeof name);
    else
        snprintf(name, sizeof name, "%s", own_name);
    uint64_t hash = names_hash(NAMES_SEED, name);
    struct met *known = &met[((type >> 4) + is_of_malloc) * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (MET - 1)];
    if (known->type == type && known->name == hash && known->is_of_malloc == is_of_malloc)
        return known->number;
    if (is_class)
        copy_module(type, key, module, sizeof module);
    snprintf(whole, sizeof whole, "%s%s%s", module, module[0] == 0 ? "" : ".", name);
    *known = (struct met){type, hash, number_of_name(whole, is_of_malloc), is_of_malloc};
    return known->number;
}

/* ---- objects that wait ---- */

/* Whether there is nothing more to be learned of it. */
static bool is_told(struct awaited *waiting)
{
    const struct python_block *block = &waiting->block;
    uintptr_t type = type_in(block);
    if (type == 0 && !is_table(block))
        return ++waiting->looks == LOOKS;
    uint32_t number = type == 0 ? number_of_name("dict keys", block->is_of_malloc) : number_of(type, block->is_of_malloc);
    if (number == 0)
        return false;
    hooks->typed(heap, block->sample, number);
    return true;
}

static void drop(uint32_t index)
{
    uint32_t left = atomic_load_explicit(&awaited_count, memory_order_relaxed) - 1;
    awaited[index] = awaited[left];
    atomic_store_explicit(&awaited_count, left, memory_order_relaxed);
}

void python_types_look(void)
{
    /* Without an agent nobody has told of what was freed. */
    bool is_on = shim_services.is_on();
    if (atomic_load_explicit(&awaited_count, memory_order_relaxed) == 0 || !is_on || !take_lock())
        return;
    int saved_errno = errno;
    for (uint32_t i = atomic_load_explicit(&awaited_count, memory_order_relaxed); i > 0; i--) {
        if (is_told(&awaited[i - 1]))
            drop(i - 1);
    }
    release_lock();
    errno = saved_errno;
}

void python_types_await(const struct python_block *block)
{
    if (layout == NULL || block->sample == ALLOCSAMPLE_NO_SAMPLE || (!block->is_object && !has_size_of_table(block->size)) ||
        !take_lock())
        return;
    uint32_t count = atomic_load_explicit(&awaited_count, memory_order_relaxed);
    if (count < AWAITED) {
        awaited[count] = (struct awaited){.block = *block};
        atomic_store_explicit(&awaited_count, count + 1, memory_order_relaxed);
    }
    release_lock();
}

/* One of Python's is freed with the interpreter's lock, if there is one. */
void python_types_end(const void *block)
{
    if (atomic_load_explicit(&awaited_count, memory_order_relaxed) == 0 || !take_lock())
        return;
    int saved_errno = errno;
    for (uint32_t i = 0; i < atomic_load_explicit(&awaited_count, memory_order_relaxed); i++) {
        if (awaited[i].block.address != (uintptr_t)block)
            continue;
        (void)is_told(&awaited[i]);
        drop(i);
        break;
    }
    release_lock();
    errno = saved_errno;
}

void python_types_begin(void)
{
    if (layout != NULL && atomic_load_explicit(&module_key, memory_order_relaxed) == 0)
        atomic_store_explicit(&module_key, (uintptr_t)api.intern("__module__"), memory_order_release);
}

void python_types_forget(void)
{
    if (!take_lock())
        return;
    atomic_store_explicit(&awaited_count, 0, memory_order_relaxed);
    release_lock();
}

void python_types_after_fork_in_child(void)
{
    release_lock();
    python_types_forget();
    names_after_fork_in_child(&names);
    names_after_fork_in_child(&names_of_malloc);
}

static void on_death_of_class(uintptr_t class)
{
    python_alive_remove(&alive, class);
}

void python_types_watch(void)
{
    if (layout == NULL)
        return;
    python_alive_clear(&alive);
    python_deaths_watch(PYTHON_CLASS, layout, (const void *)type_of_types, on_death_of_class);
}

void python_types_prepare(const struct python_symbols *symbols, const allocsample_hooks *table, allocsample_heap *registered)
{
    static const struct symbol wanted[] = {
        {&api.item, "PyDict_GetItemWithError"},
        {&api.intern, "PyUnicode_InternFromString"},
        {&api.release, "Py_DecRef"},
    };
    type_of_types = (uintptr_t)dlsym(RTLD_DEFAULT, "PyType_Type");
    *(void **)&api.qualified_name = dlsym(RTLD_DEFAULT, "PyType_GetQualName");
    if (symbols->layout == NULL || (symbols->layout->qualified_name == 0 && api.qualified_name == NULL) || type_of_types == 0 || !symbols_find(wanted, sizeof wanted / sizeof wanted[0], NULL) ||
        !names_make(&names) || !names_make(&names_of_malloc) || !python_alive_make(&alive, ALIVE_SETS))
        return;
    hooks = table;
    heap = registered;
    layout = symbols->layout;
    shim_services.set_on_sampled_end(python_types_end);
}
