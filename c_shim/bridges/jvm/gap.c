/* Replaces the gap that JDK 11 draws after a sampled object.
 *
 * The distance from the end of a sampled object to the next sample point must be exponential. JDK 11 draws an exponential gap, and
 * then subtracts the rest of the object, the bytes behind the point that sampled it:
 *
 *   distance = gap - rest   if gap > rest: exponential
 *              gap          otherwise: shorter than exponential, as it is at most the rest
 *
 * So it takes up to a sixth too many samples around objects as large as the interval. JDK 13 and later do not subtract.
 *
 * The JVM does not report the rest, so no weight of a sample can correct this. But the distance is stored in the thread, and the JVM
 * reads it only after the callback for the sample, to place the next sample point. The callback therefore stores another one. */
#define _GNU_SOURCE
#include "gap.h"
#include "buffer.h"
#include "layout.h"

#include <dlfcn.h>
#include <time.h>

/* The JVM's longest gap is 26 ln 2 times the mean, plus 1. */
#define LONGEST 19
#define FRACTION 24
#define LN_2 0.69314718055994530942

/* From the stored distance to the thread's JNI environment. 0: this JVM's distances are right, or it is not known where they are. */
static _Atomic(uintptr_t) before_jni;
static _Atomic(uint64_t) random_state;

void jvm_gap_begin(environment jvmti, environment jni)
{
    int64_t layout[JVM_FIELDS];
    uintptr_t of_jni;
    struct timespec now = {0};
    void *library = jvm_version() == 11 ? dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library == NULL)
        return;
    (void)jvm_layout_read(library, layout);
    dlclose(library);
    if (layout[THREAD_ALLOCATED] == JVM_HAS_NO || !jvm_find_distance_of_jni(jvmti, jni, &of_jni))
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    random_state = (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^ (uintptr_t)jni;
    /* The sampler lies behind the count of bytes, and the distance is its first field. */
    uintptr_t found = of_jni - (uintptr_t)layout[THREAD_ALLOCATED] - sizeof(int64_t);
    /* Release: pairs with the acquire in jvm_gap_redraw; the random state is there. */
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

void jvm_gap_redraw(environment jni, uint64_t interval_bytes)
{
    uintptr_t found = atomic_load_explicit(&before_jni, memory_order_acquire);
    if (LIKELY(found == 0) || interval_bytes <= 1)
        return;
    size_t *distance = (size_t *)((uintptr_t)jni - found);
    /* No distance: this JVM is built differently. */
    if (*distance == 0 || *distance / LONGEST > interval_bytes)
        return;
    double exponential = LN_2 * (double)negative_log2(random_bits() | 1) / (double)(UINT64_C(1) << FRACTION);
    *distance = (size_t)(exponential * (double)interval_bytes) + 1;
}
