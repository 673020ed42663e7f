/* Names of types, methods and lines: each is asked for once, where the JVM can be asked.
 *
 * Classes may be unloaded, so a name is asked for at the first sample that needs it. Inside malloc the JVM cannot be asked: a place
 * that is seen there gets a number, and its name later. */
#include "jvm.h"
#include "kit/lock.h"
#include "kit/memory.h"
#include "kit/names.h"

#include <stdio.h>
#include <string.h>

struct line {
    int64_t start;
    int32_t number;
};

/* What has a number or a line already, by what tells it apart: never removed, so that a number means one thing. */
struct entry {
    uint64_t key, location;
    uint32_t number, line;
};
#define ENTRIES (1u << 16)
struct table {
    struct entry *entries;
    uint32_t used;
};

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static environment jvmti;
static struct table methods, places, types;
/* Guards the tables. Only threads that run a callback or are in native code take it, none of which the JVM stops
 * meanwhile. In malloc it is not waited for long: what a signal handler interrupted may hold it. */
static bridge_lock lock;
/* Places that were seen in malloc, whose names are to be asked for. */
#define UNNAMED 4096
static struct frame unnamed[UNNAMED];
static _Atomic(uint32_t) unnamed_count; /* changed under the lock */

/* The entry of a key, which is not 0, or a free one, whose key is 0; NULL if there is no room. */
static struct entry *find(struct table *table, uint64_t key, uint64_t location)
{
    uint64_t hash = (key + location * UINT64_C(0xd6e8feb86659fd93)) * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    for (uint32_t i = 0; i < 256; i++) {
        struct entry *entry = &table->entries[(hash + i) % ENTRIES];
        if ((entry->key == key && entry->location == location) || entry->key == 0)
            return entry;
    }
    return NULL;
}

void jvm_give_back(void *memory)
{
    if (memory != NULL)
        CALL(jvmti, DEALLOCATE, (environment, void *), jvmti, memory);
}

/* `Ljava/lang/String;` as `java.lang.String`, `[[I` as `int[][]`. */
static void write_type(const char *signature, char *text, size_t room)
{
    static const char *const primitives[] = {
        ['B'] = "byte", ['C'] = "char", ['D'] = "double", ['F'] = "float", ['I'] = "int",
        ['J'] = "long", ['S'] = "short", ['Z'] = "boolean",
    };
    size_t dimensions = strspn(signature, "[");
    const char *element = signature + dimensions;
    unsigned char kind = (unsigned char)*element;
    size_t used = 0;
    if (kind == 'L') {
        for (element++; *element != 0 && *element != ';' && used + 1 < room; element++)
            text[used++] = *element == '/' ? '.' : *element;
    } else if (kind < sizeof primitives / sizeof primitives[0] && primitives[kind] != NULL) {
        used = strlen(primitives[kind]);
        memcpy(text, primitives[kind], used + 1);
    }
    for (; dimensions > 0 && used + 3 < room; dimensions--, used += 2)
        memcpy(text + used, "[]", 2);
    text[used] = 0;
}

uint32_t jvm_type_by_name(void *class)
{
    char *signature = NULL, name[512];
    if (CALL(jvmti, GET_CLASS_SIGNATURE, (environment, void *, char **, char **), jvmti, class, &signature, NULL) != 0)
        return 0;
    lock_take(&lock);
    struct entry *entry = find(&types, names_hash(NAMES_SEED, signature), 0);
    if (entry != NULL && entry->key == 0) {
        write_type(signature, name, sizeof name);
        *entry = (struct entry){.key = names_hash(NAMES_SEED, signature), .number = ++types.used};
        hooks->define_type(heap, entry->number, name, "");
    }
    uint32_t number = entry == NULL ? 0 : entry->number;
    lock_release(&lock);
    jvm_give_back(signature);
    return number;
}

static void define_method(environment jni, void *method, uint32_t number)
{
    char *method_name = NULL, *signature = NULL, *file = NULL, name[1024] = "";
    void *class = NULL;
    CALL(jvmti, GET_METHOD_NAME, (environment, void *, char **, char **, char **), jvmti, method, &method_name, NULL,
         NULL);
    if (CALL(jvmti, GET_METHOD_DECLARING_CLASS, (environment, void *, void **), jvmti, method, &class) == 0) {
        CALL(jvmti, GET_CLASS_SIGNATURE, (environment, void *, char **, char **), jvmti, class, &signature, NULL);
        CALL(jvmti, GET_SOURCE_FILE_NAME, (environment, void *, char **), jvmti, class, &file);
        CALL(jni, JNI_DELETE_LOCAL_REF, (environment, void *), jni, class);
    }
    if (signature != NULL)
        write_type(signature, name, sizeof name / 2);
    size_t used = strlen(name);
    snprintf(name + used, sizeof name - used, "%s%s", used > 0 ? "." : "", method_name == NULL ? "?" : method_name);
    hooks->define_function(heap, number, name, file == NULL ? "" : file, 0);
    jvm_give_back(method_name);
    jvm_give_back(signature);
    jvm_give_back(file);
}

static uint32_t line_at(void *method, int64_t location)
{
    struct line *table = NULL;
    int32_t count = 0;
    uint32_t found = 0;
    if (location < 0 ||
        CALL(jvmti, GET_LINE_NUMBER_TABLE, (environment, void *, int32_t *, struct line **), jvmti, method, &count,
             &table) != 0)
        return 0;
    int64_t nearest = -1;
    for (int32_t i = 0; i < count; i++) {
        if (table[i].start <= location && table[i].start > nearest) {
            nearest = table[i].start;
            found = (uint32_t)table[i].number;
        }
    }
    jvm_give_back(table);
    return found;
}

/* The number of a method, which is defined if it is new. The lock is not held while the JVM is asked: it may stop this
 * thread for a collection then. */
static uint32_t number_of_method(environment jni, void *method)
{
    lock_take(&lock);
    struct entry *entry = find(&methods, (uintptr_t)method, 0);
    bool is_new = entry != NULL && entry->key == 0;
    if (is_new)
        *entry = (struct entry){.key = (uintptr_t)method, .number = ++methods.used};
    bool is_unnamed = entry != NULL && entry->line == 0;
    if (is_unnamed)
        entry->line = 1; /* of a method: whether its name was asked for */
    uint32_t number = entry == NULL ? 0 : entry->number;
    lock_release(&lock);
    if (is_unnamed)
        define_method(jni, method, number);
    return number;
}

/* Two threads may learn the same at once; their answers are equal. */
static void learn(environment jni, const struct frame *found, allocsample_frame *frame)
{
    frame->function = number_of_method(jni, found->method);
    frame->line = line_at(found->method, found->location);
    lock_take(&lock);
    struct entry *place = find(&places, (uintptr_t)found->method, (uint64_t)found->location);
    if (place != NULL)
        *place = (struct entry){(uintptr_t)found->method, (uint64_t)found->location, frame->function, frame->line};
    lock_release(&lock);
}

/* Runs in a context where Java code may run. */
void jvm_name_places(environment jni)
{
    while (UNLIKELY(atomic_load_explicit(&unnamed_count, memory_order_relaxed) > 0)) {
        struct frame place = {0};
        allocsample_frame frame;
        lock_take(&lock);
        uint32_t count = atomic_load_explicit(&unnamed_count, memory_order_relaxed);
        if (count > 0) {
            place = unnamed[count - 1];
            atomic_store_explicit(&unnamed_count, count - 1, memory_order_relaxed);
        }
        lock_release(&lock);
        if (place.method != NULL)
            learn(jni, &place, &frame);
    }
}

allocsample_frame jvm_frame_in_malloc(void *method, int64_t location)
{
    allocsample_frame frame = {0};
    if (!lock_try(&lock))
        return frame;
    const struct entry *place = find(&places, (uintptr_t)method, (uint64_t)location);
    struct entry *entry = find(&methods, (uintptr_t)method, 0);
    if (place != NULL && place->key != 0) {
        frame = (allocsample_frame){.function = place->number, .line = place->line};
    } else if (entry != NULL) {
        if (entry->key == 0)
            *entry = (struct entry){.key = (uintptr_t)method, .number = ++methods.used};
        frame.function = entry->number;
        uint32_t count = atomic_load_explicit(&unnamed_count, memory_order_relaxed);
        if (count < UNNAMED) {
            unnamed[count] = (struct frame){method, location};
            atomic_store_explicit(&unnamed_count, count + 1, memory_order_relaxed);
        }
    }
    lock_release(&lock);
    return frame;
}

void jvm_describe(environment jni, const struct frame *found, allocsample_frame *frames, int32_t count)
{
    bool is_known[DEPTH];
    bool are_all_known = true;
    lock_take(&lock);
    for (int32_t i = 0; i < count; i++) {
        const struct entry *place = find(&places, (uintptr_t)found[i].method, (uint64_t)found[i].location);
        is_known[i] = place != NULL && place->key != 0;
        are_all_known &= is_known[i];
        frames[i] = (allocsample_frame){.function = is_known[i] ? place->number : 0,
                                        .line = is_known[i] ? place->line : 0};
    }
    lock_release(&lock);
    for (int32_t i = 0; i < count && !are_all_known; i++) {
        if (!is_known[i])
            learn(jni, &found[i], &frames[i]);
    }
}

static bool make_table(struct table *table)
{
    table->entries = memory_map(ENTRIES * sizeof *table->entries);
    return table->entries != NULL;
}

bool jvm_names_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap, environment the_jvmti)
{
    hooks = the_hooks;
    heap = the_heap;
    jvmti = the_jvmti;
    return make_table(&methods) && make_table(&places) && make_table(&types);
}
