/* The types of sampled objects, without a question for a class's name where that is avoidable. The JVM copies the name into memory
 * of malloc, which takes longer than the walk of a stack.
 *
 * Nearly all objects that one line allocates are of one class, or of a few. The classes seen there are kept as weak references, which
 * do not keep a class from being unloaded. One comparison by the JVM then confirms the class of the next object.
 *
 * An entry never changes once it is ready, and its reference is never given back: a thread may be comparing it at any time. Entries
 * of classes that were unloaded match nothing. Where all entries of a line are taken, the JVM is asked for the name. */
#include "jvm.h"

enum { JNI_EXCEPTION_CLEAR = 17, JNI_IS_SAME_OBJECT = 24, JNI_NEW_WEAK_GLOBAL_REF = 226 };

/* Lines, and classes of one line. */
#define LINES 512u
#define CLASSES 4u
/* An entry that a thread is about to fill; no number of a type gets that far. */
#define RESERVED UINT32_MAX

struct class {
    _Atomic(uint32_t) type; /* 0: free */
    void *reference;        /* not before there is a type */
};
static struct class classes[LINES][CLASSES];

/* The entries of the line that allocates: that of the two innermost frames, as the innermost may be one of a library. */
static struct class *classes_of(const allocsample_frame *frames, size_t count)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < count && i < 2; i++)
        hash = (hash ^ ((uint64_t)frames[i].function << 32 | frames[i].line)) * UINT64_C(0x9e3779b97f4a7c15);
    return classes[(hash >> 32) % LINES];
}

/* Fills the entry, if no other thread has reserved it meanwhile. */
static void keep(environment jni, struct class *entry, void *class, uint32_t type)
{
    uint32_t free_entry = 0;
    if (!atomic_compare_exchange_strong_explicit(&entry->type, &free_entry, RESERVED, memory_order_relaxed,
                                                 memory_order_relaxed))
        return;
    entry->reference =
        ((void *(*)(environment, void *))(*jni)[JNI_NEW_WEAK_GLOBAL_REF])(jni, class);
    if (entry->reference == NULL) {
        /* There is no memory: the entry stays reserved. */
        ((void (*)(environment))(*jni)[JNI_EXCEPTION_CLEAR])(jni);
        return;
    }
    /* Release: pairs with the acquire in `jvm_type`; the reference is there. */
    atomic_store_explicit(&entry->type, type, memory_order_release);
}

uint32_t jvm_type(environment jni, void *class, const allocsample_frame *frames, size_t count)
{
    struct class *kept = classes_of(frames, count), *free_entry = NULL;
    for (size_t i = 0; i < CLASSES && free_entry == NULL; i++) {
        uint32_t type = atomic_load_explicit(&kept[i].type, memory_order_acquire);
        if (type == 0)
            free_entry = &kept[i];
        else if (type != RESERVED &&
                 ((uint8_t(*)(environment, void *, void *))(*jni)[JNI_IS_SAME_OBJECT])(jni, kept[i].reference, class) != 0)
            return type;
    }
    uint32_t type = jvm_type_by_name(class);
    if (free_entry != NULL && type != 0)
        keep(jni, free_entry, class, type);
    return type;
}
