/* Replaces the gaps that the JVM draws between samples.
 *
 * A gap must be exponential, independent of all others, and as many bytes of objects long as it says. The JVM's are not:
 *
 *  - It has one generator of random numbers for all threads, and every new thread seeds it with an address of its own, which is often
 *    that of a thread that has ended. Threads that allocate less than a few gaps then all draw the same ones.
 *  - Up to JDK 24, a buffer that a thread leaves counts as full. A third of a small buffer may be left free, because the next object
 *    does not fit, and the JVM then takes a third too many samples.
 *  - JDK 11 draws an exponential gap, and then subtracts the rest of the sampled object, the bytes behind the point that sampled it:
 *
 *      distance = gap - rest   if gap > rest: exponential
 *                 gap          otherwise: shorter than exponential, as it is at most the rest
 *
 *    So it takes up to a sixth too many samples around objects as large as the interval. JDK 13 and later do not subtract.
 *
 * No weight of a sample can correct this. But the distance is stored in the thread, and the JVM reads it only after the callback for
 * the sample, or after the one for a thread that begins, to place the next sample point. The callbacks therefore store another one. A
 * sample that comes before the thread has allocated as many bytes as its gap is none: the callback stores the rest of the gap. */
#define _GNU_SOURCE
#include "gap.h"
#include "buffer.h"
#include "layout.h"

#include <dlfcn.h>
#include <time.h>

/* The JVM's longest gap is 26 ln 2 times the mean, plus 1. */
#define LONGEST 19
/* The last JDK that was tried. The distance has no name in the JVM's tables, only its neighbour has. */
#define LAST_KNOWN 28
#define FRACTION 24
#define LN_2 0.69314718055994530942

/* From the stored distance to the thread's JNI environment. 0: it is not known. */
static _Atomic(uintptr_t) before_jni;
/* The same for what the thread has allocated: the bytes before its allocation buffer, and the buffer. */
static uintptr_t allocated_before_jni, start_before_jni, top_before_jni;
/* The thread's allocated bytes at the end of its gap. 0: the gap is one of the JVM's own. */
static _Thread_local uint64_t end_of_gap;
/* JDK 11 does not move the sample point of a buffer after a sampled object outside it, and comes too late as often as too early. */
static bool keeps_point;
static _Atomic(uint64_t) random_state;

void jvm_gap_begin(environment jvmti, environment jni)
{
    int64_t layout[JVM_FIELDS];
    uintptr_t of_jni;
    struct timespec now = {0};
    int32_t version = jvm_version();
    void *library = version >= 11 && version <= LAST_KNOWN ? dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library == NULL)
        return;
    (void)jvm_layout_read(library, layout);
    dlclose(library);
    if (layout[THREAD_ALLOCATED] == JVM_HAS_NO || layout[THREAD_BUFFER] == JVM_HAS_NO || layout[BUFFER_START] == JVM_HAS_NO ||
        layout[BUFFER_TOP] == JVM_HAS_NO || !jvm_find_distance_of_jni(jvmti, jni, &of_jni))
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    random_state = (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^ (uintptr_t)jni;
    allocated_before_jni = of_jni - (uintptr_t)layout[THREAD_ALLOCATED];
    start_before_jni = of_jni - (uintptr_t)(layout[THREAD_BUFFER] + layout[BUFFER_START]);
    top_before_jni = of_jni - (uintptr_t)(layout[THREAD_BUFFER] + layout[BUFFER_TOP]);
    keeps_point = version == 11;
    /* The sampler lies behind the count of bytes, and the distance is its first field. */
    uintptr_t found = allocated_before_jni - sizeof(int64_t);
    /* Release: pairs with the acquires below; the random state is there. */
    atomic_store_explicit(&before_jni, found, memory_order_release);
}

/* SplitMix64 (Steele, Lea and Flood, 2014). */
static uint64_t random_bits(void)
{
    uint64_t bits = atomic_fetch_add_explicit(&random_state, UINT64_C(0x9e3779b97f4a7c15), memory_order_relaxed);
    bits = (bits ^ bits >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ bits >> 27) * UINT64_C(0x94d049bb133111eb);
    return bits ^ bits >> 31;
}

/* -log2(bits / 2^64) of bits that are not 0, in units of 2^-FRACTION: the leading zeros, and the rest by squaring, which doubles a logarithm. */
static uint64_t negative_log2(uint64_t bits)
{
    unsigned zeros = (unsigned)__builtin_clzll(bits);
    uint64_t mantissa = bits << zeros >> 32, fraction = 0; /* 2^31 is 1 */
    for (unsigned i = 0; i < FRACTION; i++) {
        mantissa = mantissa * mantissa >> 31;
        fraction = fraction << 1 | mantissa >> 32;
        mantissa >>= mantissa >> 32;
    }
    return (((uint64_t)zeros + 1) << FRACTION) - fraction;
}

static uint64_t number_at(environment jni, uintptr_t before)
{
    return __atomic_load_n((const uint64_t *)((uintptr_t)jni - before), __ATOMIC_RELAXED);
}

/* Bytes of objects that the calling thread has made. A collection may take its buffer away meanwhile, and adds that to the count. */
static uint64_t allocated_bytes(environment jni)
{
    for (;;) {
        uint64_t before = number_at(jni, allocated_before_jni);
        uint64_t start = number_at(jni, start_before_jni), top = number_at(jni, top_before_jni);
        if (LIKELY(number_at(jni, allocated_before_jni) == before))
            return before + (start != 0 && top > start ? top - start : 0);
    }
}

/* The distance that the JVM has stored for the calling thread. NULL: it is not known where. */
static size_t *stored_distance(environment jni)
{
    uintptr_t found = atomic_load_explicit(&before_jni, memory_order_acquire);
    return UNLIKELY(found == 0) ? NULL : (size_t *)((uintptr_t)jni - found);
}

bool jvm_gap_goes_on(environment jni)
{
    size_t *distance = stored_distance(jni);
    if (distance == NULL || end_of_gap == 0 || *distance == 0)
        return false;
    uint64_t allocated = allocated_bytes(jni);
    if (LIKELY(allocated >= end_of_gap))
        return false;
    *distance = (size_t)(end_of_gap - allocated);
    return true;
}

/* Only an object that is larger than what the buffer holds is outside for certain. */
static bool is_outside_buffer(environment jni, uint64_t size)
{
    uint64_t start = number_at(jni, start_before_jni), top = number_at(jni, top_before_jni);
    return start == 0 || size > top - start;
}

bool jvm_gap_redraw(environment jni, uint64_t interval_bytes, uint64_t size)
{
    size_t *distance = stored_distance(jni);
    end_of_gap = 0;
    if (distance == NULL || interval_bytes <= 1)
        return false;
    /* No distance: this JVM is built differently. */
    if (*distance == 0 || *distance / LONGEST > interval_bytes)
        return false;
    double exponential = LN_2 * (double)negative_log2(random_bits() | 1) / (double)(UINT64_C(1) << FRACTION);
    *distance = (size_t)(exponential * (double)interval_bytes) + 1;
    if (!keeps_point || size == 0 || !is_outside_buffer(jni, size))
        end_of_gap = allocated_bytes(jni) + *distance;
    return true;
}

/* A thread that native code makes one of Java's has allocated before: its buffer ends at the sample point already. */
void jvm_gap_draw_first(environment jni, uint64_t interval_bytes)
{
    end_of_gap = 0;
    if (stored_distance(jni) != NULL && number_at(jni, start_before_jni) == 0)
        (void)jvm_gap_redraw(jni, interval_bytes, 0);
}
