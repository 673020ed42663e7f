/* The tables in which the JVM tells debuggers of itself. */
#define _GNU_SOURCE
#include "layout.h"

#include <dlfcn.h>
#include <string.h>

/* Most fields need no more than the first two members. Compilers differ in what they warn of. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

/* Some fields have moved from one type to another. */
static const struct {
    const char *types[2];
    const char *name;
    /* The type that we can read; NULL: a pointer, or a nested structure. */
    const char *kind;
    bool may_be_missing;
} wanted[JVM_FIELDS] = {
    [THREAD_ANCHOR] = {{"JavaThread"}, "_anchor"},
    [THREAD_STACK_BASE] = {{"JavaThread", "Thread"}, "_stack_base"},
    [THREAD_BUFFER] = {{"Thread"}, "_tlab", .may_be_missing = true},
    /* Signed, and unsigned since JDK 27: jlong and uint64_t. */
    [THREAD_ALLOCATED] = {{"Thread"}, "_allocated_bytes", .may_be_missing = true},
    [BUFFER_START] = {{"ThreadLocalAllocBuffer"}, "_start", .may_be_missing = true},
    [BUFFER_TOP] = {{"ThreadLocalAllocBuffer"}, "_top", .may_be_missing = true},
    [BUFFER_END] = {{"ThreadLocalAllocBuffer"}, "_end", .may_be_missing = true},
    [ANCHOR_SP] = {{"JavaFrameAnchor"}, "_last_Java_sp"},
    [ANCHOR_PC] = {{"JavaFrameAnchor"}, "_last_Java_pc"},
    [ANCHOR_FP] = {{"JavaFrameAnchor"}, "_last_Java_fp"},
    [WRAPPER_ANCHOR] = {{"JavaCallWrapper"}, "_anchor"},
    [BLOB_NAME] = {{"CodeBlob"}, "_name"},
    [BLOB_FRAME_SIZE] = {{"CodeBlob"}, "_frame_size", "int"},
    [BLOB_CODE_BEGIN] = {{"CodeBlob"}, "_code_begin", .may_be_missing = true},
    [BLOB_CODE_OFFSET] = {{"CodeBlob"}, "_code_offset", "int", true},
    [METHOD_ID] = {{"nmethod"}, "_compile_id", "int"},
    [METHOD_PCS_OFFSET] = {{"nmethod"}, "_scopes_pcs_offset", "int"},
    [METHOD_DEPENDENCIES_OFFSET] = {{"nmethod"}, "_dependencies_offset", "int", true},
    [METHOD_SCOPES_BEGIN] = {{"CompiledMethod", "nmethod"}, "_scopes_data_begin", .may_be_missing = true},
    [METHOD_SCOPES_OFFSET] = {{"nmethod"}, "_scopes_data_offset", "int", true},
    [METHOD_IMMUTABLE_DATA] = {{"nmethod"}, "_immutable_data", .may_be_missing = true},
    [METHOD_DEOPT_HANDLER] = {{"CompiledMethod", "nmethod"}, "_deopt_handler_begin", .may_be_missing = true},
    [METHOD_DEOPT_OFFSET] = {{"nmethod"}, "_deopt_handler_offset", "int", true},
    [METHOD_ORIGINAL_PC_OFFSET] = {{"nmethod"}, "_orig_pc_offset", "int", true},
    [HEAP_MEMORY] = {{"CodeHeap"}, "_memory"},
    [HEAP_SEGMENTS] = {{"CodeHeap"}, "_segmap"},
    [HEAP_LOG2_SEGMENT] = {{"CodeHeap"}, "_log2_segment_size", "int"},
    [SPACE_LOW] = {{"VirtualSpace"}, "_low"},
    [SPACE_HIGH] = {{"VirtualSpace"}, "_high"},
    [LIST_LENGTH] = {{"GrowableArrayBase", "GenericGrowableArray"}, "_len", "int"},
    [LIST_DATA] = {{"GrowableArray<int>"}, "_data"},
    [INTERPRETER_BEGIN] = {{"StubQueue"}, "_stub_buffer"},
    [INTERPRETER_LENGTH] = {{"StubQueue"}, "_buffer_limit", "int"},
    [STATIC_HEAPS] = {{"CodeCache"}, "_heaps"},
    [STATIC_INTERPRETER] = {{"AbstractInterpreter"}, "_code"},
    [STATIC_CALL_STUB_RETURN] = {{"StubRoutines"}, "_call_stub_return_address"},
    [STATIC_VERSION] = {{"Abstract_VM_Version"}, "_vm_major_version", "int"},
    [STATIC_PERF_START] = {{"PerfMemory"}, "_start", .may_be_missing = true},
    [STATIC_THREADS] = {{"ThreadsSMRSupport"}, "_java_thread_list", .may_be_missing = true},
    [STATIC_FIRST_THREAD] = {{"Threads"}, "_thread_list", .may_be_missing = true},
    [THREADS_LENGTH] = {{"ThreadsList"}, "_length", .may_be_missing = true},
    [THREADS_FIRST] = {{"ThreadsList"}, "_threads", .may_be_missing = true},
    [STATIC_OBJECTS] = {{"Universe"}, "_collectedHeap", .may_be_missing = true},
    [OBJECTS_RESERVED] = {{"CollectedHeap"}, "_reserved", "MemRegion", true},
    [REGION_START] = {{"MemRegion"}, "_start", .may_be_missing = true},
    [REGION_WORDS] = {{"MemRegion"}, "_word_size", "size_t", true},
    [STATIC_Z] = {{"ZGlobalsForVMStructs"}, "_instance_p", .may_be_missing = true},
    [Z_PHASE] = {{"ZGlobalsForVMStructs"}, "_ZGlobalPhase", .may_be_missing = true},
    [Z_LOAD_GOOD] = {{"ZGlobalsForVMStructs"}, "_ZPointerLoadGoodMask", .may_be_missing = true},
    [Z_MARK_GOOD] = {{"ZGlobalsForVMStructs"}, "_ZPointerMarkGoodMask", .may_be_missing = true},
    [STATIC_X] = {{"XGlobalsForVMStructs"}, "_instance_p", .may_be_missing = true},
    [X_PHASE] = {{"XGlobalsForVMStructs"}, "_XGlobalPhase", .may_be_missing = true},
    [SIZE_OF_HEAP_BLOCK] = {{"HeapBlock"}, ""},
};

/* A table's entries, and where in each the JVM says that its parts are. */
struct entries {
    const char *next;
    uint64_t stride, type, name, kind, is_static, offset, address, size;
};

static bool read_number(void *library, const char *symbol, uint64_t *number)
{
    const uint64_t *variable = dlsym(library, symbol);
    if (variable != NULL)
        *number = *variable;
    return variable != NULL;
}

static const char *text_at(const char *address)
{
    const char *text = *(const char *const *)address;
    return text == NULL ? "" : text;
}

static bool is_wanted(size_t field, const char *type, const char *name)
{
    const char *const *types = wanted[field].types;
    return strcmp(wanted[field].name, name) == 0 &&
           (strcmp(types[0], type) == 0 || (types[1] != NULL && strcmp(types[1], type) == 0));
}

static bool read_structs(void *library, int64_t layout[JVM_FIELDS])
{
    struct entries all = {0};
    uint64_t first;
    if (!read_number(library, "gHotSpotVMStructs", &first) ||
        !read_number(library, "gHotSpotVMStructEntryArrayStride", &all.stride) ||
        !read_number(library, "gHotSpotVMStructEntryTypeNameOffset", &all.type) ||
        !read_number(library, "gHotSpotVMStructEntryFieldNameOffset", &all.name) ||
        !read_number(library, "gHotSpotVMStructEntryTypeStringOffset", &all.kind) ||
        !read_number(library, "gHotSpotVMStructEntryIsStaticOffset", &all.is_static) ||
        !read_number(library, "gHotSpotVMStructEntryOffsetOffset", &all.offset) ||
        !read_number(library, "gHotSpotVMStructEntryAddressOffset", &all.address))
        return false;
    for (const char *entry = (const char *)first; *text_at(entry + all.type) != 0; entry += all.stride) {
        for (size_t field = 0; field < JVM_FIELDS; field++) {
            if (!is_wanted(field, text_at(entry + all.type), text_at(entry + all.name)) ||
                (wanted[field].kind != NULL && strcmp(wanted[field].kind, text_at(entry + all.kind)) != 0))
                continue;
            bool is_static = *(const int32_t *)(entry + all.is_static) != 0;
            layout[field] = *(const int64_t *)(entry + (is_static ? all.address : all.offset));
        }
    }
    return true;
}

static bool read_types(void *library, int64_t layout[JVM_FIELDS])
{
    struct entries all = {0};
    uint64_t first;
    if (!read_number(library, "gHotSpotVMTypes", &first) ||
        !read_number(library, "gHotSpotVMTypeEntryArrayStride", &all.stride) ||
        !read_number(library, "gHotSpotVMTypeEntryTypeNameOffset", &all.type) ||
        !read_number(library, "gHotSpotVMTypeEntrySizeOffset", &all.size))
        return false;
    for (const char *entry = (const char *)first; *text_at(entry + all.type) != 0; entry += all.stride) {
        if (is_wanted(SIZE_OF_HEAP_BLOCK, text_at(entry + all.type), ""))
            layout[SIZE_OF_HEAP_BLOCK] = *(const int64_t *)(entry + all.size);
    }
    return true;
}

static bool read_layout(void *library, int64_t layout[JVM_FIELDS])
{
    for (size_t field = 0; field < JVM_FIELDS; field++)
        layout[field] = JVM_HAS_NO;
    if (!read_structs(library, layout) || !read_types(library, layout))
        return false;
    for (size_t field = 0; field < JVM_FIELDS; field++) {
        if (layout[field] == JVM_HAS_NO && !wanted[field].may_be_missing)
            return false;
    }
    bool is_of_old = layout[BLOB_CODE_BEGIN] != JVM_HAS_NO && layout[METHOD_SCOPES_BEGIN] != JVM_HAS_NO &&
                     layout[METHOD_DEPENDENCIES_OFFSET] != JVM_HAS_NO;
    bool is_of_now = layout[BLOB_CODE_OFFSET] != JVM_HAS_NO && layout[METHOD_SCOPES_OFFSET] != JVM_HAS_NO &&
                     layout[METHOD_IMMUTABLE_DATA] != JVM_HAS_NO;
    return is_of_old || is_of_now;
}

bool jvm_layout_read(void *library, int64_t layout[JVM_FIELDS])
{
    /* The tables are long, so they are read only once. No lock: only the thread that joins the JVM reads them. */
    static int64_t known[JVM_FIELDS];
    static bool is_known, is_complete;
    if (!is_known)
        is_complete = read_layout(library, known);
    is_known = true;
    memcpy(layout, known, sizeof known);
    return is_complete;
}

int32_t jvm_version(void)
{
    int64_t layout[JVM_FIELDS];
    void *library = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return JVM_HAS_NO;
    (void)jvm_layout_read(library, layout);
    dlclose(library);
    return layout[STATIC_VERSION] == JVM_HAS_NO ? JVM_HAS_NO : *(const int32_t *)layout[STATIC_VERSION];
}
