/* Where the JVM keeps what the walk of a stack needs, as it tells debuggers itself: in the tables gHotSpotVMStructs and
 * gHotSpotVMTypes of its library, made for the serviceability agent, in all builds since JDK 6. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_LAYOUT_H
#define ALLOCSAMPLE_BRIDGES_JVM_LAYOUT_H

#include "bridge.h"

/* Fields: distances in bytes from the beginning of what they are part of. Statics: addresses of the variables. */
enum jvm_field {
    /* A thread that runs Java code, and where it left that: */
    THREAD_ANCHOR,
    THREAD_STACK_BASE,
    /* its allocation buffer, and a count of bytes; */
    THREAD_BUFFER,
    THREAD_ALLOCATED,
    BUFFER_START,
    BUFFER_TOP,
    BUFFER_END,
    ANCHOR_SP,
    ANCHOR_PC,
    ANCHOR_FP,
    /* what a call from native code into Java put aside; */
    WRAPPER_ANCHOR,
    /* a piece of code that the JVM has made; */
    BLOB_NAME,
    BLOB_FRAME_SIZE,
    BLOB_CODE_BEGIN,
    BLOB_CODE_OFFSET, /* instead, since JDK 23 */
    /* one of a compiled method; */
    METHOD_ID,
    METHOD_PCS_OFFSET,
    METHOD_DEPENDENCIES_OFFSET,
    METHOD_SCOPES_BEGIN,
    METHOD_SCOPES_OFFSET,   /* instead, since JDK 23 */
    METHOD_IMMUTABLE_DATA,  /* since JDK 23 */
    METHOD_DEOPT_HANDLER,
    METHOD_DEOPT_OFFSET, /* instead, since JDK 23 */
    METHOD_ORIGINAL_PC_OFFSET,
    /* a heap of such pieces. */
    HEAP_MEMORY,
    HEAP_SEGMENTS,
    HEAP_LOG2_SEGMENT,
    SPACE_LOW,
    SPACE_HIGH,
    LIST_LENGTH,
    LIST_DATA,
    INTERPRETER_BEGIN,
    INTERPRETER_LENGTH,
    STATIC_HEAPS,
    STATIC_INTERPRETER,
    STATIC_CALL_STUB_RETURN,
    STATIC_VERSION,
    /* The performance counters, and Java's threads: a list with their number and a row of their addresses; or, up to JDK 11, the
     * first one. */
    STATIC_PERF_START,
    STATIC_FIRST_THREAD,
    STATIC_THREADS,
    THREADS_LENGTH,
    THREADS_FIRST,
    /* Java's heap: the addresses that it has reserved, as a start and a number of words; empty under ZGC. */
    STATIC_OBJECTS,
    OBJECTS_RESERVED,
    REGION_START,
    REGION_WORDS,
    /* If ZGC is the collector: a table of addresses of its variables. */
    STATIC_Z,
    Z_PHASE, /* without generations, until JDK 20 */
    Z_LOAD_GOOD, /* with generations, and the next */
    Z_MARK_GOOD,
    /* The same of ZGC without generations, in JDK 21 to 23. */
    STATIC_X,
    X_PHASE,
    /* The length of what stands before each piece of code in its heap. */
    SIZE_OF_HEAP_BLOCK,
    JVM_FIELDS
};
enum { JVM_HAS_NO = -1 };

/* Reads the tables of the JVM's library, a handle of dlopen. False: something that every JVM has is not in them. */
HIDDEN bool jvm_layout_read(void *library, int64_t layout[JVM_FIELDS]);

/* The number of this JDK, such as 11; JVM_HAS_NO: not known. Only the thread that joins the JVM may ask. */
HIDDEN int32_t jvm_version(void);

#endif
