/* What PyPy calls its types and functions.
 *
 * A thread of PyPy always keeps, for vmprof, the functions that it runs, by the numbers of their code objects: in a chain
 * of frames, and for compiled code in a map from its addresses. Neither is changed by reading it. A number is looked up
 * in the list of all code objects when it is first met. What is met runs, so its code object is there. */
#define _GNU_SOURCE
#include "kit/memory.h"
#include "pypy.h"
#include "kit/symbols.h"
#include "kit/thread_pointer.h"

#include <dlfcn.h>
#include <string.h>

#if defined(__x86_64__)

/* Numbers of code objects are multiples of 4. Those beyond are not named: a program that makes code all the time. */
enum { NUMBER_STEP = 4, FUNCTIONS = PYPY_COLLECTOR };
enum { NOT_MET, WANTED, NAMED };
/* Kinds of vmprof's frames, and of what compiled code tells of its own. */
enum { KIND_FUNCTION = 1, KIND_COMPILED = 3 };
enum { COMPILED_MAX = 128, NAME_MAX_BYTES = 256 };
enum { TYPES_MAX = 1 << 16 };

/* Owned by the thread, so plain loads are safe: enter_code allocates it, and leave_code unlinks it before freeing it. A
 * continulet switch swaps the whole chain. */
struct pypy_frame {
    const struct pypy_frame *caller;
    intptr_t value, kind;
};

struct reference {
    uintptr_t header;
    const uint8_t *object; /* NULL: it is dead */
};
struct references {
    uintptr_t header;
    intptr_t length;
    const struct reference *items[];
};

_Thread_local bool pypy_is_collecting;

static const struct pypy_build *build;
static uintptr_t base;
static intptr_t thread_offset; /* of a thread's state, from what its thread-local storage is addressed by */
static int64_t (*compiled_frames)(intptr_t *found, int64_t count, intptr_t address, int capacity);

/* Types by their numbers, which ascend. */
static struct type {
    const char *line;
    uint32_t id;
    bool is_told;
} *types;
static uint32_t type_count;

/* A byte for each number. */
static _Atomic(uint8_t) *functions;
static _Atomic(bool) is_function_wanted;

/* ---- types ---- */

/* Each line of the text is "member584  GcStruct name { fields }", for the number at the same place of the list, where 0
 * stands for none. Without zlib, which PyPy's library needs itself, types have no names. */
static void read_types(void)
{
    enum { TEXT_MAX = 4 << 20 };
    const uint8_t *packed = (const uint8_t *)(base + build->type_names);
    const int64_t *ids_length = (const int64_t *)(base + build->type_ids);
    const uint32_t *ids = (const uint32_t *)&ids_length[1];
    int (*uncompress)(uint8_t *, unsigned long *, const uint8_t *, unsigned long);
    void *found = dlsym(RTLD_DEFAULT, "uncompress");
    unsigned long length = TEXT_MAX - 1;
    memcpy(&uncompress, &found, sizeof found);
    char *line = memory_map(TEXT_MAX);
    types = memory_map(TYPES_MAX * sizeof *types);
    if (found == NULL || line == NULL || types == NULL ||
        uncompress((uint8_t *)line, &length, packed + sizeof(int64_t), (unsigned long)*(const int64_t *)packed) != 0)
        return;
    for (int64_t i = 0; i < *ids_length && type_count < TYPES_MAX && *line != 0; i++) {
        char *end = strchrnul(line, '\n');
        if (ids[i] != 0)
            types[type_count++] = (struct type){.line = line, .id = ids[i]};
        line = *end == 0 ? end : end + 1;
        *end = 0;
    }
}

static void tell_type(const allocsample_hooks *hooks, allocsample_heap *heap, uint32_t id, const char *line)
{
    char name[NAME_MAX_BYTES];
    const char *start = strchrnul(line, ' ');
    while (*start == ' ')
        start++;
    if (strncmp(start, "GcStruct ", sizeof "GcStruct " - 1) == 0)
        start += sizeof "GcStruct " - 1;
    const char *fields = strstr(start, " {");
    size_t length = fields != NULL ? (size_t)(fields - start) : strlen(start);
    if (length >= sizeof name)
        length = sizeof name - 1;
    memcpy(name, start, length);
    name[length] = 0;
    hooks->define_type(heap, id, name, "");
}

allocsample_type pypy_type(const allocsample_hooks *hooks, allocsample_heap *heap, uint32_t id)
{
    uint32_t low = 0, high = type_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (types[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == type_count || types[low].id != id)
        return 0;
    if (!types[low].is_told) {
        types[low].is_told = true;
        tell_type(hooks, heap, id, types[low].line);
    }
    return id;
}

/* ---- functions ---- */

static void copy_string(char *to, size_t capacity, const struct pypy_string *string)
{
    size_t length = string == NULL || string->length < 0 ? 0 : (size_t)string->length;
    if (length >= capacity)
        length = capacity - 1;
    if (length > 0)
        memcpy(to, string->bytes, length);
    to[length] = 0;
}

static void tell_function(const allocsample_hooks *hooks, allocsample_heap *heap, uint32_t number, const uint8_t *code)
{
    char name[NAME_MAX_BYTES], file[1024];
    const struct pypy_string *strings[2];
    int64_t line;
    memcpy(&strings[0], code + build->name, sizeof strings[0]);
    memcpy(&strings[1], code + build->file, sizeof strings[1]);
    memcpy(&line, code + build->line, sizeof line);
    copy_string(name, sizeof name, strings[0]);
    copy_string(file, sizeof file, strings[1]);
    hooks->define_function(heap, number, name, file, line > 0 && line < INT32_MAX ? (uint32_t)line : 0);
}

void pypy_name_functions(const allocsample_hooks *hooks, allocsample_heap *heap)
{
    if (!atomic_exchange_explicit(&is_function_wanted, false, memory_order_relaxed))
        return;
    const struct references *codes = *(const struct references *const *)(base + build->codes + build->handles);
    for (intptr_t i = 0; codes != NULL && i < codes->length; i++) {
        const uint8_t *code = codes->items[i] == NULL ? NULL : codes->items[i]->object;
        uint64_t number;
        if (code == NULL)
            continue;
        memcpy(&number, code + build->number, sizeof number);
        number /= NUMBER_STEP;
        if (number < FUNCTIONS && atomic_load_explicit(&functions[number], memory_order_relaxed) == WANTED) {
            atomic_store_explicit(&functions[number], NAMED, memory_order_relaxed);
            tell_function(hooks, heap, (uint32_t)number, code);
        }
    }
}

static allocsample_frame frame_of(intptr_t value)
{
    uint64_t number = (uint64_t)value / NUMBER_STEP;
    if (number >= FUNCTIONS)
        return (allocsample_frame){0};
    if (atomic_load_explicit(&functions[number], memory_order_relaxed) == NOT_MET) {
        atomic_store_explicit(&functions[number], WANTED, memory_order_relaxed);
        atomic_store_explicit(&is_function_wanted, true, memory_order_relaxed);
    }
    return (allocsample_frame){.function = (allocsample_function)number};
}

/* Compiled code, with what was inlined in it: pairs of a kind and a number, leaf first. */
static size_t compiled(const struct pypy_frame *frame, allocsample_frame *frames, size_t capacity)
{
    intptr_t found[2 * COMPILED_MAX];
    size_t count = 0;
    /* The word below the start of the frame holds the address that it called from. */
    intptr_t address = ((const intptr_t *)frame->value)[-1];
    int64_t words = compiled_frames(found, 0, address, 2 * COMPILED_MAX);
    for (int64_t i = 0; i + 1 < words && count < capacity; i += 2) {
        if (found[i] == KIND_COMPILED)
            frames[count++] = frame_of(found[i + 1]);
    }
    return count;
}

size_t pypy_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    size_t count = 0;
    const struct pypy_thread *thread =
        (const struct pypy_thread *)((const uint8_t *)thread_pointer() + thread_offset);
    if (thread->ready != PYPY_READY)
        return 0;
    /* The map of compiled code changes under the lock only. */
    bool has_lock = *(const volatile uintptr_t *)(base + build->lock) == thread->ident;
    /* The outermost function of compiled code is the one that the interpreter has entered, and tells again. */
    bool is_told = false;
    if (pypy_is_collecting && capacity > 0)
        frames[count++] = (allocsample_frame){.function = PYPY_COLLECTOR};
    for (const struct pypy_frame *frame = thread->stack; frame != NULL && count < capacity; frame = frame->caller) {
        size_t before = count;
        if (frame->kind == KIND_FUNCTION) {
            frames[count] = frame_of(frame->value);
            count += !is_told || frames[count].function != frames[count - 1].function;
            is_told = false;
        } else if (frame->kind == KIND_COMPILED && has_lock) {
            count += compiled(frame, frames + count, capacity - count);
            is_told = count > before;
        }
    }
    return count;
}

bool pypy_names_make(const struct pypy_build *this_build, uintptr_t this_base, const void *thread)
{
    build = this_build;
    base = this_base;
    uintptr_t address = base + build->frames_of_code;
    thread_offset = (const uint8_t *)thread - (const uint8_t *)thread_pointer();
    memcpy(&compiled_frames, &address, sizeof address);
    functions = memory_map(FUNCTIONS);
    read_types();
    return functions != NULL;
}

#endif
