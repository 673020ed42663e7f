/* Java's frames of the thread for which the JVM calls back, without the JVM's own walk, which copies a map of all registers
 * at each frame: 4.8 KB, and more time than all else that a sample takes.
 *
 * The JVM is asked for a stack only if there is code in it that was not seen before. Its answer says which methods and
 * bytecodes the frames stand for: the frames on the machine's stack are walked beside it, each is told by its compiled code's
 * own notes for how many of Java's it stands and at which bytecodes, and where all of this is as the JVM says, it is kept under
 * the return address. From then on a frame is one look-up. One stack in 256 is still held against the JVM's answer, and this
 * file retires at the first difference.
 *
 * Why what was learned stays true. Compiled code that a thread is in is not freed; code that comes to lie where other code was
 * has another number, which is read again at each frame. A method that is interpreted is known by its address and that of the
 * bytecode: another method comes to lie there only if its class was made ready meanwhile, and then these are learned anew.
 *
 * The thread is in the JVM's callback, so that its Java frames do not change under us; what can is the return address of a
 * frame whose code has been given up, which then has the address of the code that gives it up, and keeps the other beside. */
#define _GNU_SOURCE
#include "stack.h"
#include "buffer.h"
#include "frames.h"
#include "kit/lock.h"
#include "kit/memory.h"
#include "layout.h"

#include <dlfcn.h>
#include <string.h>

#if JVM_FRAMES_ARE_KNOWN

enum kind {
    /* Frames end here for us: the JVM must be asked. */
    UNKNOWN = 1,
    /* The code by which compiled code calls the JVM, with no frame of Java's. */
    STUB,
    COMPILED,
    /* A return address that was changed; the one before is in the frame. */
    DEOPTIMIZED,
    INTERPRETED,
    /* The boundary between a virtual thread's frames and its carrier's. */
    END
};

/* The meaning of a return address or of a place in interpreted code. */
struct place {
    uintptr_t at;     /* the return address, or the method's */
    uintptr_t within; /* the bytecode's address, of interpreted code */
    const char *blob; /* of compiled code */
    uint32_t number;  /* of compiled code; of interpreted code, how many classes there had been */
    uint32_t words;   /* of the frame; where the return address is kept, of a changed one */
    uint32_t first;   /* in `known` */
    uint16_t count;   /* of Java's frames */
    uint8_t kind;
};
#define PLACES (UINT32_C(1) << 15)
#define KNOWN (UINT32_C(1) << 18)
/* Entries that a look-up tries. */
#define REACH 64

struct cursor {
    uintptr_t pc, sp, fp;
};

/* The frames that are being learnt from an answer of the JVM. */
struct lesson {
    const struct frame *found;
    size_t count;
    size_t used;
    struct place places[DEPTH];
};

/* All below is guarded by this lock, which only callbacks of the JVM take; it is held for no longer than a walk. */
static bridge_lock lock;
static struct place *places;
static allocsample_frame *known;
static uint32_t places_used, known_used;
static _Atomic(bool) is_usable;
static _Atomic(uint32_t) classes;
static _Atomic(uint64_t) walks;
/* Walks that are held against the JVM's answer: these, and then one of so many. */
#define CHECKED_AT_FIRST 64
#define CHECKED_OF 256
/* Lessons since the last one that taught something, and how many in a row it takes to make them rarer. */
static _Atomic(uint32_t) in_vain;
#define PATIENCE 16
static struct lesson lesson; /* here, as a thread's stack may be small */
static int64_t layout[JVM_FIELDS];
/* From a thread of the JVM's to what it gives native code for itself. */
static uintptr_t distance_of_jni;
static uint32_t least_digit;

static uintptr_t word_at(const void *base, int64_t distance)
{
    return *(const uintptr_t *)((const char *)base + distance);
}

static int32_t int_at(const void *base, int64_t distance)
{
    return *(const int32_t *)((const char *)base + distance);
}

/* ---- places ---- */

/* The entry of a place, or a free one, whose kind is 0; NULL: there is no room. */
static inline struct place *find(uintptr_t at, uintptr_t within)
{
    uint64_t hash = (at + within * UINT64_C(0xd6e8feb86659fd93)) * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    for (uint32_t i = 0; i < REACH; i++) {
        struct place *place = &places[(hash + i) % PLACES];
        if (place->kind == 0 || (place->at == at && place->within == within))
            return place;
    }
    return NULL;
}

/* Whether it is still what it was when it was learned. */
static bool is_still(const struct place *place)
{
    if (place->kind == INTERPRETED)
        return place->number == atomic_load_explicit(&classes, memory_order_relaxed);
    return place->blob == NULL || (uint32_t)int_at(place->blob, layout[METHOD_ID]) == place->number;
}

static void forget_all(void)
{
    memset(places, 0, PLACES * sizeof *places);
    places_used = known_used = 0;
}

static void keep(const struct place *learned, const allocsample_frame *frames)
{
    if (places_used > PLACES / 2 || known_used + learned->count > KNOWN)
        forget_all();
    struct place *place = find(learned->at, learned->within);
    if (place == NULL)
        return;
    if (place->kind != 0 && is_still(place))
        return; /* in this stack for the second time */
    places_used += place->kind == 0;
    *place = *learned;
    place->first = known_used;
    memcpy(known + known_used, frames, learned->count * sizeof *frames);
    known_used += learned->count;
}

/* ---- code ---- */

/* The piece of code that `pc` is in, or NULL. The heap's map has a byte for each segment: 0 where a piece begins, else how
 * far it is back, in steps; 255 where nothing is. */
static const char *blob_of(uintptr_t pc)
{
    const void *heaps = *(const void *const *)layout[STATIC_HEAPS];
    int32_t count = heaps == NULL ? 0 : int_at(heaps, layout[LIST_LENGTH]);
    for (int32_t i = 0; i < count; i++) {
        const char *heap = (const char *)((const uintptr_t *)word_at(heaps, layout[LIST_DATA]))[i];
        const char *memory = heap + layout[HEAP_MEMORY];
        uintptr_t low = word_at(memory, layout[SPACE_LOW]);
        if (pc < low || pc >= word_at(memory, layout[SPACE_HIGH]))
            continue;
        const char *map = heap + layout[HEAP_SEGMENTS];
        const uint8_t *steps = (const uint8_t *)word_at(map, layout[SPACE_LOW]);
        int32_t shift = int_at(heap, layout[HEAP_LOG2_SEGMENT]);
        size_t segment = (pc - low) >> shift;
        if (steps[segment] == UINT8_MAX)
            return NULL;
        while (steps[segment] > 0 && steps[segment] <= segment)
            segment -= steps[segment];
        return (const char *)low + (segment << shift) + layout[SIZE_OF_HEAP_BLOCK];
    }
    return NULL;
}

static uintptr_t code_of(const char *blob)
{
    if (layout[BLOB_CODE_BEGIN] != JVM_HAS_NO)
        return word_at(blob, layout[BLOB_CODE_BEGIN]);
    return (uintptr_t)blob + (uintptr_t)int_at(blob, layout[BLOB_CODE_OFFSET]);
}

/* UNSIGNED5 of the JVM: a number's digits, the lowest first, the last one below 192 unless it is the fifth. */
static uint32_t read_number(const uint8_t **at)
{
    uint32_t digit = *(*at)++, number = digit - least_digit;
    for (unsigned shift = 6; digit >= 192 && shift <= 24; shift += 6) {
        digit = *(*at)++;
        number += (digit - least_digit) << shift;
    }
    return number;
}

/* PcDesc: a compiled method's notes on one place in its code. */
struct note {
    int32_t distance; /* from where the code begins */
    int32_t scope;    /* where those on Java's frames begin; 0: nowhere */
    int32_t objects, flags;
};

/* Those on the return address `pc`, and where scopes are counted from; NULL: there are none. They lie in the order of their
 * distances. */
static const struct note *note_on(const char *blob, uintptr_t pc, const uint8_t **scopes)
{
    bool is_apart = layout[METHOD_IMMUTABLE_DATA] != JVM_HAS_NO;
    const char *data = is_apart ? (const char *)word_at(blob, layout[METHOD_IMMUTABLE_DATA]) : blob;
    int32_t end = int_at(blob, layout[is_apart ? METHOD_SCOPES_OFFSET : METHOD_DEPENDENCIES_OFFSET]);
    const struct note *low = (const struct note *)(data + int_at(blob, layout[METHOD_PCS_OFFSET]));
    const struct note *last = (const struct note *)(data + end), *high = last;
    int64_t distance = (int64_t)(pc - code_of(blob));
    *scopes = is_apart ? (const uint8_t *)data + end : (const uint8_t *)word_at(blob, layout[METHOD_SCOPES_BEGIN]);
    while (low < high) {
        const struct note *middle = low + (high - low) / 2;
        if (middle->distance < distance)
            low = middle + 1;
        else
            high = middle;
    }
    return low < last && low->distance == distance && low->scope > 0 ? low : NULL;
}

/* How many of Java's frames a note tells of: 0 unless they are those from `found` on. Of each, from the innermost on, it has
 * where its caller is told of, the method, and the bytecode plus one. */
static uint16_t frames_of(const struct note *note, const uint8_t *scopes, const struct frame *found, size_t count)
{
    uint16_t frames = 0;
    uint32_t scope = (uint32_t)note->scope;
    for (; scope != 0 && frames < count; frames++) {
        const uint8_t *at = scopes + scope;
        scope = read_number(&at);
        (void)read_number(&at);
        if ((int64_t)read_number(&at) - 1 != found[frames].location)
            return 0;
    }
    return scope == 0 ? frames : 0;
}

/* Where a return address into the method leads when its code has been given up; 0: not known. */
static uintptr_t deopt_handler_of(const char *blob)
{
    if (layout[METHOD_ORIGINAL_PC_OFFSET] == JVM_HAS_NO)
        return 0;
    if (layout[METHOD_DEOPT_HANDLER] != JVM_HAS_NO)
        return word_at(blob, layout[METHOD_DEOPT_HANDLER]);
    if (layout[METHOD_DEOPT_OFFSET] != JVM_HAS_NO)
        return (uintptr_t)blob + (uintptr_t)int_at(blob, layout[METHOD_DEOPT_OFFSET]);
    return 0;
}

/* What the code at a return address is, of which Java's frames from `at` on are the first; the kind is 0 if they are not. */
static struct place resolve(uintptr_t pc, const struct lesson *lesson, size_t at)
{
    struct place place = {.at = pc, .kind = UNKNOWN};
    const char *blob = blob_of(pc);
    const char *name = blob == NULL ? NULL : (const char *)word_at(blob, layout[BLOB_NAME]);
    if (name == NULL)
        return place;
    bool is_native = strcmp(name, "native nmethod") == 0;
    place.words = (uint32_t)int_at(blob, layout[BLOB_FRAME_SIZE]);
    if (!is_native && strcmp(name, "nmethod") != 0) {
        place.kind = place.words > 0 ? STUB : UNKNOWN;
        return place;
    }
    place.blob = blob;
    place.number = (uint32_t)int_at(blob, layout[METHOD_ID]);
    const struct frame *found = lesson->found + at;
    size_t left = lesson->count - at;
    if (place.words == 0)
        return place;
    if (is_native) {
        place.count = left > 0;
        place.kind = left == 0 ? END : found->location == -1 ? COMPILED : 0;
    } else if (pc == deopt_handler_of(blob)) {
        place.kind = DEOPTIMIZED;
        place.words = (uint32_t)int_at(blob, layout[METHOD_ORIGINAL_PC_OFFSET]) / sizeof(uintptr_t);
    } else {
        const uint8_t *scopes;
        const struct note *note = note_on(blob, pc, &scopes);
        if (note != NULL) {
            place.count = frames_of(note, scopes, found, left);
            place.kind = place.count > 0 ? COMPILED : 0;
        }
    }
    return place;
}

/* ---- the walk ---- */

/* The thread's stack from its innermost Java frame on. */
struct stack {
    uintptr_t low, high;
};

static bool is_within(const struct stack *stack, uintptr_t address)
{
    return address >= stack->low && address < stack->high && address % sizeof(uintptr_t) == 0;
}

/* Where the thread, or the call that this is the record of, left Java code. False: nowhere. */
static bool leave(const struct stack *stack, const void *anchor, struct cursor *cursor)
{
    cursor->sp = word_at(anchor, layout[ANCHOR_SP]);
    cursor->fp = word_at(anchor, layout[ANCHOR_FP]);
    cursor->pc = word_at(anchor, layout[ANCHOR_PC]);
    if (cursor->sp == 0 || !is_within(stack, cursor->sp))
        return false;
    if (cursor->pc == 0)
        cursor->pc = word_at((const void *)cursor->sp, -(int64_t)sizeof(uintptr_t));
    cursor->pc = jvm_address(cursor->pc);
    return true;
}

static bool is_interpreter(uintptr_t pc)
{
    const void *queue = *(const void *const *)layout[STATIC_INTERPRETER];
    if (queue == NULL)
        return false;
    return pc - word_at(queue, layout[INTERPRETER_BEGIN]) < (uintptr_t)int_at(queue, layout[INTERPRETER_LENGTH]);
}

/* Steps from a frame with a frame pointer to its caller. */
static bool step_by_fp(const struct stack *stack, struct cursor *cursor)
{
    const uintptr_t *fp = (const uintptr_t *)cursor->fp;
    uintptr_t sp = jvm_sender_sp(fp);
    if (sp <= cursor->sp || !is_within(stack, sp))
        return false;
    *cursor = (struct cursor){.pc = jvm_address(fp[RETURN_ADDRESS]), .sp = sp, .fp = fp[SAVED_FP]};
    return true;
}

static bool step_by_size(const struct stack *stack, uint32_t words, struct cursor *cursor)
{
    uintptr_t sp = cursor->sp + words * sizeof(uintptr_t);
    if (words < 2 || !is_within(stack, sp))
        return false;
    const uintptr_t *top = (const uintptr_t *)sp;
    *cursor = (struct cursor){.pc = jvm_address(top[-1]), .sp = sp, .fp = top[-2]};
    return true;
}

/* What a frame of the interpreter or of compiled code stands for; NULL: it is not known. In a lesson it is found out. */
static const struct place *place_of(const struct stack *stack, const struct cursor *cursor, struct lesson *lesson, size_t at)
{
    bool is_interpreted = is_interpreter(cursor->pc);
    uintptr_t pc = cursor->pc, within = 0;
    if (is_interpreted) {
        if (!is_within(stack, cursor->fp + INTERPRETED_BYTECODE * (intptr_t)sizeof(uintptr_t)) ||
            !is_within(stack, cursor->fp + FRAME_END * sizeof(uintptr_t)))
            return NULL;
        const uintptr_t *fp = (const uintptr_t *)cursor->fp;
        pc = fp[INTERPRETED_METHOD];
        within = fp[INTERPRETED_BYTECODE];
    }
    const struct place *place = find(pc, within);
    if (place != NULL && place->kind != 0 && is_still(place))
        return place;
    if (lesson == NULL || lesson->used == DEPTH || (is_interpreted && at >= lesson->count))
        return NULL;
    struct place *learned = &lesson->places[lesson->used++];
    if (is_interpreted)
        *learned = (struct place){.at = pc, .within = within, .count = 1, .kind = INTERPRETED,
                                  .number = atomic_load_explicit(&classes, memory_order_relaxed)};
    else
        *learned = resolve(pc, lesson, at);
    learned->first = (uint32_t)at;
    return learned;
}

static const char *thread_of(environment jni)
{
    return (const char *)jni - distance_of_jni;
}

/* Walks. `frames` are written, unless this is a lesson: then those that are known are held against `lesson`'s, which is what
 * `frames` are. */
static ALWAYS_INLINE enum jvm_walked walk(environment jni, struct lesson *lesson, allocsample_frame *frames,
                                          size_t capacity, size_t *count)
{
    const char *thread = thread_of(jni);
    struct stack stack = {(uintptr_t)__builtin_frame_address(0), word_at(thread, layout[THREAD_STACK_BASE])};
    struct cursor cursor;
    uintptr_t return_of_entry = *(const uintptr_t *)layout[STATIC_CALL_STUB_RETURN];
    *count = 0;
    if (!leave(&stack, thread + layout[THREAD_ANCHOR], &cursor))
        return JVM_NOT_WALKED;
    stack.low = cursor.sp;
    while (*count < capacity) {
        if (cursor.pc == return_of_entry) {
            uintptr_t at = cursor.fp + ENTRY_WRAPPER * (intptr_t)sizeof(uintptr_t);
            uintptr_t wrapper = is_within(&stack, at) ? *(const uintptr_t *)at : 0;
            if (!is_within(&stack, wrapper) || wrapper <= cursor.sp)
                return JVM_NOT_WALKED;
            const char *anchor = (const char *)wrapper + layout[WRAPPER_ANCHOR];
            uintptr_t sp = cursor.sp;
            if (word_at(anchor, layout[ANCHOR_SP]) == 0)
                return JVM_WALKED;
            if (!leave(&stack, anchor, &cursor) || cursor.sp <= sp)
                return JVM_NOT_WALKED;
            continue;
        }
        const struct place *place = place_of(&stack, &cursor, lesson, *count);
        if (place == NULL)
            return lesson == NULL ? JVM_HAS_NEW_CODE : JVM_NOT_WALKED;
        if (place->kind == DEOPTIMIZED) {
            uintptr_t kept = cursor.sp + place->words * sizeof(uintptr_t);
            if (!is_within(&stack, kept) || *(const uintptr_t *)kept == cursor.pc)
                return JVM_NOT_WALKED;
            cursor.pc = *(const uintptr_t *)kept;
            continue;
        }
        if (place->kind == END)
            return JVM_WALKED;
        if (place->kind == UNKNOWN || place->kind == 0)
            return JVM_NOT_WALKED;
        if (lesson != NULL && *count + place->count > lesson->count)
            return JVM_NOT_WALKED;
        bool is_new = lesson != NULL && place >= lesson->places && place < lesson->places + DEPTH;
        size_t fitting = place->count < capacity - *count ? place->count : capacity - *count;
        for (size_t i = 0; lesson == NULL && i < fitting; i++)
            frames[*count + i] = known[place->first + i];
        if (lesson != NULL && !is_new && memcmp(frames + *count, known + place->first, fitting * sizeof *frames) != 0)
            return JVM_NOT_WALKED;
        *count += fitting;
        bool has_caller = place->kind == INTERPRETED
                              ? step_by_fp(&stack, &cursor)
                              : step_by_size(&stack, place->words, &cursor);
        if (!has_caller)
            return JVM_NOT_WALKED;
    }
    return JVM_WALKED;
}

enum jvm_walked jvm_stack_walk(environment jni, allocsample_frame *frames, size_t capacity, size_t *count)
{
    if (!atomic_load_explicit(&is_usable, memory_order_acquire))
        return JVM_NOT_WALKED;
    lock_take(&lock);
    enum jvm_walked walked = walk(jni, NULL, frames, capacity, count);
    lock_release(&lock);
    if (walked == JVM_WALKED)
        atomic_fetch_add_explicit(&walks, 1, memory_order_relaxed);
    return walked;
}

void jvm_stack_learn(environment jni, const struct frame *found, const allocsample_frame *frames, size_t count)
{
    size_t walked;
    /* A virtual thread that has been waiting has most of its frames elsewhere, and there is nothing to be learned from it:
     * among many of these, few are tried. */
    uint32_t lessons_in_vain = atomic_load_explicit(&in_vain, memory_order_relaxed);
    if (lessons_in_vain >= PATIENCE && lessons_in_vain % PATIENCE != 0) {
        atomic_fetch_add_explicit(&in_vain, 1, memory_order_relaxed);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (frames[i].function == 0)
            return;
    }
    lock_take(&lock);
    lesson.found = found;
    lesson.count = count;
    lesson.used = 0;
    /* What was cut off is not looked for; of what was not, nothing may be left. */
    size_t capacity = count == DEPTH ? DEPTH : count + 1;
    bool is_right = walk(jni, &lesson, (allocsample_frame *)frames, capacity, &walked) == JVM_WALKED && walked == count;
    atomic_store_explicit(&in_vain, is_right ? 0 : lessons_in_vain + 1, memory_order_relaxed);
    for (size_t i = 0; i < lesson.used; i++) {
        struct place *place = &lesson.places[i];
        if (is_right || place->kind == UNKNOWN)
            keep(place, frames + place->first);
    }
    lock_release(&lock);
}

bool jvm_stack_is_to_be_checked(void)
{
    uint64_t walk = atomic_load_explicit(&walks, memory_order_relaxed);
    return walk < CHECKED_AT_FIRST || walk % CHECKED_OF == 0;
}

void jvm_stack_is_wrong(void)
{
    atomic_store_explicit(&is_usable, false, memory_order_release);
}

void jvm_stack_has_new_class(void)
{
    atomic_fetch_add_explicit(&classes, 1, memory_order_relaxed);
}

/* ---- start ---- */

void jvm_stack_begin(environment jvmti, environment jni)
{
    void *library = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL || atomic_load_explicit(&is_usable, memory_order_relaxed) || !jvm_layout_read(library, layout) ||
        !jvm_find_distance_of_jni(jvmti, jni, &distance_of_jni))
        return;
    /* Since then no digit is 0. */
    least_digit = *(const int32_t *)layout[STATIC_VERSION] >= 20;
    places = memory_map(PLACES * sizeof *places);
    known = memory_map(KNOWN * sizeof *known);
    if (places != NULL && known != NULL)
        atomic_store_explicit(&is_usable, true, memory_order_release);
}

#else

void jvm_stack_begin(environment jvmti, environment jni)
{
    (void)jvmti;
    (void)jni;
}

void jvm_stack_has_new_class(void) {}

enum jvm_walked jvm_stack_walk(environment jni, allocsample_frame *frames, size_t capacity, size_t *count)
{
    (void)jni;
    (void)frames;
    (void)capacity;
    *count = 0;
    return JVM_NOT_WALKED;
}

void jvm_stack_learn(environment jni, const struct frame *found, const allocsample_frame *frames, size_t count)
{
    (void)jni;
    (void)found;
    (void)frames;
    (void)count;
}

bool jvm_stack_is_to_be_checked(void)
{
    return false;
}

void jvm_stack_is_wrong(void) {}

#endif
