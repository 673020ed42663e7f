/* The parts of CoreCLR's profiling interface that the bridge uses.
 *
 * The interface is public and versioned: objects whose first word points to a table of functions. A table only grows, and an
 * object that is asked for a version by its identifier has all functions up to it. */
#ifndef ALLOCSAMPLE_BRIDGES_DOTNET_CLR_H
#define ALLOCSAMPLE_BRIDGES_DOTNET_CLR_H

#include <stdint.h>

typedef int32_t clr_result; /* negative: failed */
typedef void *const *const *clr_object;
typedef uint8_t clr_guid[16];

/* Calls the function at a place in the object's table. */
#define CLR(OBJECT, PLACE, TYPES, ...) (((clr_result(*) TYPES)(*(OBJECT))[PLACE])(OBJECT __VA_OPT__(, ) __VA_ARGS__))

enum {
    CLR_OK = 0,
    CLR_FALSE = 1,
    CLR_NO_INTERFACE = (int32_t)0x80004002,
    CLR_NO_SUCH_CLASS = (int32_t)0x80040111,
    /* A profiler's answer when it declines: the runtime continues and prints nothing. */
    CLR_CANCEL = (int32_t)0x80131375,
};

/* IUnknown: the first functions of each table. */
enum { CLR_QUERY_INTERFACE = 0, CLR_ADD_REF = 1, CLR_RELEASE = 2 };

/* ICorProfilerInfo to ICorProfilerInfo13, which .NET 7 introduced. The eleventh is of .NET Core 3.1. */
#define CLR_INFO_11                                                                                                    \
    (clr_guid) { 0x76, 0x88, 0x39, 0x06, 0x87, 0x89, 0x54, 0x41, 0xb6, 0x21, 0x40, 0xa0, 0x0d, 0x6e, 0x4d, 0x04 }
#define CLR_INFO_13                                                                                                    \
    (clr_guid) { 0xe2, 0x7e, 0x6c, 0x6e, 0x01, 0x07, 0xc2, 0x4e, 0x9d, 0x29, 0x2e, 0x87, 0x33, 0xb6, 0x69, 0x34 }
enum {
    INFO_IS_ARRAY_CLASS = 11,
    INFO_FUNCTION = 15,
    INFO_MODULE = 20,
    INFO_MODULE_METADATA = 21,
    INFO_STACK_SNAPSHOT = 36,
    INFO_CLASS_2 = 41,
    INFO_GENERATION_BOUNDS = 54,
    INFO_OBJECT_GENERATION = 55,
    INFO_MODULES = 66,
    INFO_RUNTIME = 67,
    INFO_OBJECT_SIZE_2 = 80,
    INFO_SET_EVENT_MASK_2 = 82,
    INFO_DYNAMIC_FUNCTION = 89,
    INFO_CODE_STARTS = 90,
    INFO_IL_TO_NATIVE_3 = 91,
    INFO_CODE_4 = 92,
    INFO_SET_VARIABLE = 100,
    INFO_START_SESSION = 101,
    INFO_STOP_SESSION = 103,
    INFO_PROVIDER = 105,
    INFO_CREATE_HANDLE = 108,
    INFO_DESTROY_HANDLE = 109,
    INFO_OBJECT_OF_HANDLE = 110,
};

/* COR_PRF_MONITOR and COR_PRF_HIGH_MONITOR: what the runtime calls back for. */
enum {
    WATCH_MODULES = 0x4,
    WATCH_OBJECTS = 0x100,
    ALLOW_OBJECTS = 0x800000,
    ALLOW_SNAPSHOTS = 0x10000000,
};
enum { WATCH_LARGE_OBJECTS = 0x40, WATCH_EVENTS = 0x80 };

/* ICorProfilerCallback to ICorProfilerCallback10. */
enum {
    ON_INITIALIZE = 3,
    ON_SHUTDOWN = 4,
    ON_MODULE_LOADED = 14,
    ON_MODULE_UNLOAD = 15,
    ON_OBJECT = 50,
    ON_INITIALIZE_AT_ATTACH = 80,
    ON_ATTACHED = 81,
    ON_EVENT = 95,
    CALLBACKS = 97,
};
/* Of ICorProfilerCallback11, which says more than we want to answer. */
#define CLR_CALLBACK_11                                                                                                \
    (clr_guid) { 0x46, 0x08, 0x35, 0x42, 0xed, 0xaa, 0xf7, 0x47, 0xb1, 0x28, 0xfd, 0x0c, 0x98, 0x88, 0x1c, 0xde }

/* ICorProfilerModuleEnum. */
enum { MODULES_NEXT = 7 };

/* IClassFactory. */
enum { FACTORY_CREATE = 3, FACTORY_FUNCTIONS = 5 };

/* IMetaDataImport. */
#define CLR_METADATA_IMPORT                                                                                            \
    (clr_guid) { 0x07, 0x82, 0xac, 0x7d, 0xae, 0xd3, 0x75, 0x4c, 0x9b, 0x67, 0x92, 0x80, 0x1a, 0x49, 0x7d, 0x44 }
enum { METADATA_TYPE = 12, METADATA_METHOD = 30, METADATA_ENCLOSING_TYPE = 62 };

enum { HANDLE_WEAK = 1 };

/* COR_PRF_GC_GENERATION_RANGE. Generations 3 and 4 are large and pinned objects, which are collected with generation 2. */
enum { GENERATION_LARGE = 3 };
struct clr_range {
    uint32_t generation;
    uintptr_t start, used, reserved;
};

/* COR_DEBUG_IL_TO_NATIVE_MAP */
struct clr_mapping {
    int32_t il_offset; /* negative: of no code of the method's own */
    uint32_t start, end;
};

/* COR_PRF_CODE_INFO */
struct clr_code {
    uintptr_t start;
    size_t bytes;
};

/* COR_PRF_EVENTPIPE_PROVIDER_CONFIG */
struct clr_provider {
    const uint16_t *name;
    uint64_t keywords;
    uint32_t level;
    const uint16_t *filter;
};

/* Events of the runtime. */
enum {
    EVENT_COLLECTION_STARTED = 1, /* GCStart */
    EVENT_COLLECTION_ENDED = 2,   /* GCEnd */
    EVENT_HEAP_SIZES = 4,         /* GCHeapStats */
    EVENT_TICK = 10,              /* GCAllocationTick */
    EVENT_SAMPLED = 303,          /* AllocationSampled, from .NET 10 on */
};
enum { LEVEL_INFORMATIONAL = 4, LEVEL_VERBOSE = 5 };
#define KEYWORD_COLLECTIONS UINT64_C(0x1)
#define KEYWORD_SAMPLING UINT64_C(0x80000000000)

/* A type of collection. */
enum { COLLECTION_IN_BACKGROUND = 1 };

#endif
