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
#include <pthread.h>
#include <string.h>

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
static uintptr_t base, library_end;
static intptr_t thread_offset; /* of a thread's state, from what its thread-local storage is addressed by */
static _Atomic(bool) has_key;  /* thread_key is a key: PyPy has begun */
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

/* In a thread's state, where vmprof's frames are, and in a code object, how far its fields are from where the build should have
 * them. 0 for the stack: there are no functions, or it is not decided whether there are. */
static _Atomic(uint32_t) stack_at;
static intptr_t fields_shift;
static bool is_decided;
static size_t tries;

/* ---- types ---- */

/* Each line of the text is "member584  GcStruct name { fields }", for the number at the same place of the list, where 0
 * stands for none. Without zlib, which PyPy's library needs itself, types have no names. */
static char *unpack_types(void)
{
    enum { TEXT_MAX = 4 << 20 };
    const uint8_t *packed = (const uint8_t *)(base + build->type_names);
    int (*uncompress)(uint8_t *, unsigned long *, const uint8_t *, unsigned long);
    void *found = dlsym(RTLD_DEFAULT, "uncompress");
    unsigned long length = TEXT_MAX - 1;
    memcpy(&uncompress, &found, sizeof found);
    char *text = found == NULL ? NULL : memory_map(TEXT_MAX);
    if (text == NULL ||
        uncompress((uint8_t *)text, &length, packed + sizeof(int64_t), (unsigned long)*(const int64_t *)packed) != 0)
        return NULL;
    return text;
}

static void read_types(void)
{
    const int64_t *count = (const int64_t *)(base + build->type_ids);
    const uint32_t *ids = (const uint32_t *)&count[1];
    char *line = unpack_types();
    types = memory_map(TYPES_MAX * sizeof *types);
    for (int64_t i = 0; types != NULL && i < *count && type_count < TYPES_MAX; i++) {
        char *end = line == NULL ? NULL : strchrnul(line, '\n');
        if (ids[i] != 0)
            types[type_count++] = (struct type){.line = line == NULL || *line == 0 ? NULL : line, .id = ids[i]};
        if (line != NULL) {
            line = *end == 0 ? end : end + 1;
            *end = 0;
        }
    }
}

/* NULL: there is no such type. */
static struct type *type_of(uint32_t id)
{
    uint32_t low = 0, high = type_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (types[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < type_count && types[low].id == id ? &types[low] : NULL;
}

bool pypy_is_type(uint32_t id)
{
    return type_of(id) != NULL;
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
    struct type *type = type_of(id);
    if (type == NULL || type->line == NULL)
        return 0;
    if (!type->is_told) {
        type->is_told = true;
        tell_type(hooks, heap, id, type->line);
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
    memcpy(&strings[1], code + fields_shift + build->file, sizeof strings[1]);
    memcpy(&line, code + fields_shift + build->line, sizeof line);
    copy_string(name, sizeof name, strings[0]);
    copy_string(file, sizeof file, strings[1]);
    hooks->define_function(heap, number, name, file, line > 0 && line < INT32_MAX ? (uint32_t)line : 0);
}

/* The weak references to all code objects. */
static const struct references *all_codes(void)
{
    return build->codes == 0 ? NULL : *(const struct references *const *)(base + build->codes + build->handles);
}

static const uint8_t *code_at(const struct references *codes, intptr_t index)
{
    return codes->items[index] == NULL ? NULL : codes->items[index]->object;
}

static uint64_t number_of(const uint8_t *code)
{
    uint64_t number;
    memcpy(&number, code + fields_shift + build->number, sizeof number);
    return number / NUMBER_STEP;
}

void pypy_name_functions(const allocsample_hooks *hooks, allocsample_heap *heap)
{
    if (!atomic_exchange_explicit(&is_function_wanted, false, memory_order_relaxed))
        return;
    const struct references *codes = all_codes();
    for (intptr_t i = 0; codes != NULL && i < codes->length; i++) {
        const uint8_t *code = code_at(codes, i);
        uint64_t number = code == NULL ? FUNCTIONS : number_of(code);
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

static uintptr_t word_of(const uint8_t *at)
{
    uintptr_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static const struct pypy_frame *first_frame(const uint8_t *at)
{
    return (const struct pypy_frame *)word_of(at);
}

/* The calling thread's state, which begins with READY; NULL: PyPy has not seen the thread. */
static const uint8_t *this_thread(void)
{
    enum { READY = 42 };
    const uint8_t *thread = (const uint8_t *)thread_pointer() + thread_offset;
    int32_t ready;
    if (build->thread_key != 0) {
        pthread_key_t key;
        memcpy(&key, (const void *)(base + build->thread_key), sizeof key);
        /* It takes no lock. */
        thread = atomic_load_explicit(&has_key, memory_order_relaxed) ? pthread_getspecific(key) : NULL;
    }
    if (thread == NULL)
        return NULL;
    memcpy(&ready, thread, sizeof ready);
    return ready == READY ? thread : NULL;
}

void pypy_names_begin(void)
{
    atomic_store_explicit(&has_key, true, memory_order_relaxed);
}

static bool holds_lock(const uint8_t *thread)
{
    return *(const volatile uintptr_t *)(base + build->lock) == word_of(thread + build->ident);
}

bool pypy_has_lock(void)
{
    const uint8_t *thread = this_thread();
    return thread != NULL && holds_lock(thread);
}

size_t pypy_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    size_t count = 0;
    uint32_t place = atomic_load_explicit(&stack_at, memory_order_relaxed);
    const uint8_t *thread = this_thread();
    if (thread == NULL)
        return 0;
    if (pypy_is_collecting && capacity > 0)
        frames[count++] = (allocsample_frame){.function = PYPY_COLLECTOR};
    if (place == 0)
        return count;
    /* The map of compiled code changes under the lock only. */
    bool has_lock = holds_lock(thread);
    /* The outermost function of compiled code is the one that the interpreter has entered, and tells again. */
    bool is_told = false;
    for (const struct pypy_frame *frame = first_frame(thread + place);
         frame != NULL && count < capacity; frame = frame->caller) {
        size_t before = count;
        if (frame->kind == KIND_FUNCTION) {
            frames[count] = frame_of(frame->value);
            count += !is_told || frames[count].function != frames[count - 1].function;
            is_told = false;
        } else if (frame->kind == KIND_COMPILED && has_lock && compiled_frames != NULL) {
            count += compiled(frame, frames + count, capacity - count);
            is_told = count > before;
        }
    }
    return count;
}

/* ---- comparing a build that was found with live objects ---- */

/* Copies memory that may not be there. */
static bool copies(void *to, size_t bytes, const void *from)
{
    struct iovec piece = {.iov_base = (void *)(uintptr_t)from, .iov_len = bytes};
    return from != NULL && shim_services.copy_foreign(to, bytes, &piece, 1) == bytes;
}

static bool is_string(const uint8_t *field)
{
    enum { LENGTH_MAX = 4096 };
    struct pypy_string string;
    return copies(&string, sizeof string, (const void *)word_of(field)) && (uint32_t)string.header == build->string_type &&
           string.length > 0 && string.length <= LENGTH_MAX;
}

/* Whether a code object has a name, a file, a number and a line where they should be, but for the shift. */
static bool is_code(const uint8_t *code, intptr_t shift)
{
    enum { CODE_MAX = 512, LINE_MAX = 1 << 24 };
    uint8_t copy[CODE_MAX];
    size_t bytes = (size_t)((intptr_t)build->line + shift) + sizeof(uint64_t);
    if (bytes > sizeof copy || !copies(copy, bytes, code) || (uint32_t)word_of(copy) != build->code_type)
        return false;
    uint64_t number = word_of(copy + shift + build->number), line = word_of(copy + shift + build->line);
    return number != 0 && number % NUMBER_STEP == 0 && line <= LINE_MAX && is_string(copy + build->name) &&
           is_string(copy + shift + build->file);
}

enum verdict { OPEN, RIGHT, WRONG };

/* Twenty code objects at least, and nine of ten that are right. */
static enum verdict judge_codes(const struct references *codes, intptr_t shift)
{
    enum { ASKED = 64, LEAST = 20 };
    size_t asked = 0, right = 0;
    for (intptr_t i = 0; i < codes->length && asked < ASKED; i++) {
        const uint8_t *code = code_at(codes, i);
        asked += code != NULL;
        right += code != NULL && is_code(code, shift);
    }
    return asked < LEAST ? OPEN : right * 10 >= asked * 9 ? RIGHT : WRONG;
}

static const uint8_t *code_of(const struct references *codes, intptr_t value)
{
    for (intptr_t i = 0; i < codes->length; i++) {
        const uint8_t *code = code_at(codes, i);
        if (code != NULL && number_of(code) == (uint64_t)value / NUMBER_STEP)
            return code;
    }
    return NULL;
}

/* Whether a chain of frames is a stack of PyPy's first thread: known functions, down to the one that starts every program. Frames
 * that a thread has put aside for reuse are a chain of known functions as well. */
static bool is_stack(const struct references *codes, const struct pypy_frame *first)
{
    enum { DEPTH_MAX = 1000, KIND_MAX = 7 };
    struct pypy_frame frame = {.caller = first};
    const uint8_t *code = NULL;
    for (size_t depth = 0; frame.caller != NULL; depth++) {
        if (depth == DEPTH_MAX || !copies(&frame, sizeof frame, frame.caller) || frame.kind < KIND_FUNCTION ||
            frame.kind > KIND_MAX)
            return false;
        if (frame.kind == KIND_FUNCTION && (code = code_of(codes, frame.value)) == NULL)
            return false;
    }
    char name[NAME_MAX_BYTES] = "";
    if (code != NULL)
        copy_string(name, sizeof name, (const struct pypy_string *)word_of(code + build->name));
    return strcmp(name, "entry_point") == 0;
}

static void decide(const allocsample_hooks *hooks, allocsample_heap *heap, const char *note)
{
    is_decided = true;
    if (note != NULL)
        hooks->marker(heap, note, hooks->now_ns(), hooks->now_ns());
}

void pypy_names_verify(const allocsample_hooks *hooks, allocsample_heap *heap)
{
    enum { TRIES_MAX = 1000 };
    const uint8_t *thread = this_thread();
    const struct references *codes = all_codes();
    if (is_decided || thread == NULL)
        return;
    if (codes == NULL || tries++ == TRIES_MAX)
        return decide(hooks, heap, "note: functions of PyPy are not shown: its code objects or frames were not found in this build");
    enum verdict verdict = judge_codes(codes, 0);
    intptr_t shift = 0;
    for (intptr_t other = -16; verdict == WRONG && other <= 16; other += 8) {
        if (judge_codes(codes, other) == RIGHT) {
            verdict = RIGHT;
            shift = other;
        }
    }
    if (verdict == OPEN)
        return;
    if (verdict == WRONG)
        return decide(hooks, heap, "note: functions of PyPy are not shown: its code objects are not as this build should have them");
    fields_shift = shift;
    uint32_t found = 0;
    size_t candidates = 0;
    for (uint32_t place = build->ident + 8; place + 8 <= build->thread_bytes; place += 8) {
        if (is_stack(codes, first_frame(thread + place))) {
            candidates++;
            found = place;
        }
    }
    if (candidates == 1) {
        atomic_store_explicit(&stack_at, found, memory_order_relaxed);
        decide(hooks, heap, NULL);
    }
}

struct pypy_marked pypy_running_with(uint64_t bits)
{
    struct pypy_marked found = {0};
    uint32_t place = atomic_load_explicit(&stack_at, memory_order_relaxed);
    const uint8_t *thread = this_thread();
    const struct references *codes = all_codes();
    if (place == 0 || thread == NULL || codes == NULL)
        return found;
    for (const struct pypy_frame *frame = first_frame(thread + place); frame != NULL; frame = frame->caller) {
        for (intptr_t i = 0; frame->kind == KIND_FUNCTION && i < codes->length; i++) {
            const uint8_t *code = code_at(codes, i);
            bool is_static = (uintptr_t)code >= base && (uintptr_t)code < library_end;
            if (code == NULL || is_static || number_of(code) != (uint64_t)frame->value / NUMBER_STEP)
                continue;
            found.all++;
            found.marked += (word_of(code) & bits) == bits;
        }
    }
    return found;
}

bool pypy_names_make(const struct pypy_library *library)
{
    build = library->build;
    base = library->base;
    library_end = library->end;
    uintptr_t address = build->frames_of_code == 0 ? 0 : base + build->frames_of_code;
    thread_offset = (const uint8_t *)library->thread - (const uint8_t *)thread_pointer();
    memcpy(&compiled_frames, &address, sizeof address);
    is_decided = library->is_verified;
    atomic_store_explicit(&stack_at, is_decided ? build->stack : 0, memory_order_relaxed);
    functions = memory_map(FUNCTIONS);
    read_types();
    return functions != NULL && types != NULL;
}
