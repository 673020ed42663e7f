/* Python's cyclic collections as records on the agent's time line.
 *
 * gc.callbacks is the one place where the interpreter tells of them. Our callback is put there by a pending call, which
 * the interpreter runs on its main thread between two instructions: not from within an allocation, where Python code must
 * not run. */
#define _GNU_SOURCE
#include "python.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <string.h>

enum { STATISTIC_COLLECTED = 1, STATISTIC_UNCOLLECTABLE = 2, METH_VARARGS = 1 };

/* PyMethodDef: part of the stable ABI, as are all functions below. */
struct method {
    const char *name;
    void *(*function)(void *, void *);
    int flags;
    const char *doc;
};

static struct {
    int (*is_initialized)(void);
    int (*add_pending_call)(int (*)(void *), void *);
    void *(*import)(const char *);
    void *(*attribute)(void *, const char *);
    void *(*new_function)(const struct method *, void *, void *);
    int (*append)(void *, void *);
    void *(*tuple_item)(void *, intptr_t);
    void *(*dict_item)(void *, const char *);
    long (*as_long)(void *);
    int (*compare)(void *, const char *);
    void (*release)(void *);
    void (*retain)(void *);
    void (*clear_error)(void);
    intptr_t (*collect)(void);
    int (*is_enabled)(void); /* NULL before 3.10 */
    void *none;
} api;

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static _Atomic(bool) asked;
static _Atomic(bool) is_wanted; /* a collection */
static bool is_told;            /* of collections; changed on the main thread, with the interpreter's lock */
static uint64_t begin_ns, collections;

static uint64_t number_in(void *info, const char *key)
{
    void *value = api.dict_item(info, key);
    long number = value == NULL ? -1 : api.as_long(value);
    if (number < 0)
        api.clear_error();
    return number < 0 ? 0 : (uint64_t)number;
}

/* callback(phase, info) */
static void *on_collection(void *self, void *arguments)
{
    (void)self;
    void *phase = api.tuple_item(arguments, 0), *info = api.tuple_item(arguments, 1);
    if (phase != NULL && info != NULL && api.compare(phase, "start") == 0) {
        begin_ns = hooks->now_ns();
    } else if (phase != NULL && info != NULL && begin_ns != 0) {
        uint64_t values[] = {STATISTIC_COLLECTED, number_in(info, "collected"), STATISTIC_UNCOLLECTABLE,
                             number_in(info, "uncollectable")};
        allocsample_gc record = {
            .size = sizeof record,
            .kind = number_in(info, "generation") >= 2 ? ALLOCSAMPLE_MAJOR : ALLOCSAMPLE_MINOR,
            .id = ++collections,
            .begin_ns = begin_ns,
            .end_ns = hooks->now_ns(),
            .statistics = 2,
            .values = values,
        };
        hooks->gc(heap, &record);
        begin_ns = 0;
    }
    api.clear_error();
    api.retain(api.none);
    return api.none;
}

/* On the main thread, with the interpreter's lock. */
static int install(void *unused)
{
    (void)unused;
    /* Between any two instructions, also of the importer, whose locks do not expect another import: at a later sample. */
    if (python_frames_are_importing()) {
        atomic_store_explicit(&asked, false, memory_order_relaxed);
        return 0;
    }
    static const struct method method = {"allocsample", on_collection, METH_VARARGS, NULL};
    void *module = api.import("gc");
    void *callbacks = module == NULL ? NULL : api.attribute(module, "callbacks");
    void *function = callbacks == NULL ? NULL : api.new_function(&method, NULL, NULL);
    if (function != NULL)
        is_told = api.append(callbacks, function) == 0;
    /* Both wait for the same moment. */
    python_types_begin();
    void *owned[] = {function, callbacks, module};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        if (owned[i] != NULL)
            api.release(owned[i]);
    }
    api.clear_error();
    return 0;
}

/* On the main thread, between two instructions, as the interpreter's own collections are since 3.12: it runs finalizers. Nothing
 * happens where the program has switched its collector off. */
static int collect(void *unused)
{
    (void)unused;
    uint64_t before = collections;
    api.collect();
    /* Where nobody tells us of collections the interpreter is asked, if it knows (3.10 and later). */
    bool is_done = is_told ? collections != before : api.is_enabled == NULL || api.is_enabled() != 0;
    hooks->collected(heap, is_done ? ALLOCSAMPLE_OK : ALLOCSAMPLE_OFF);
    return 0;
}

int32_t python_gc_want(void *user)
{
    (void)user;
    if (api.none == NULL || api.collect == NULL)
        return ALLOCSAMPLE_OFF;
    atomic_store_explicit(&is_wanted, true, memory_order_relaxed);
    return ALLOCSAMPLE_OK;
}

void python_gc_watch(void)
{
    if (UNLIKELY(atomic_load_explicit(&is_wanted, memory_order_relaxed)) && api.is_initialized() != 0 &&
        atomic_exchange_explicit(&is_wanted, false, memory_order_relaxed) && api.add_pending_call(collect, NULL) != 0)
        atomic_store_explicit(&is_wanted, true, memory_order_relaxed); /* the queue is full: at the next sample */
    /* Before that modules cannot be imported. */
    if (api.none != NULL && api.is_initialized() != 0 &&
        !atomic_exchange_explicit(&asked, true, memory_order_relaxed) &&
        api.add_pending_call(install, NULL) != 0)
        atomic_store_explicit(&asked, false, memory_order_relaxed); /* the queue is full: at the next sample */
}

void python_gc_prepare(const allocsample_hooks *table, allocsample_heap *registered)
{
    static const struct symbol symbols[] = {
        {&api.is_initialized, "Py_IsInitialized"},
        {&api.add_pending_call, "Py_AddPendingCall"},
        {&api.import, "PyImport_ImportModule"},
        {&api.attribute, "PyObject_GetAttrString"},
        {&api.new_function, "PyCFunction_NewEx"},
        {&api.append, "PyList_Append"},
        {&api.tuple_item, "PyTuple_GetItem"},
        {&api.dict_item, "PyDict_GetItemString"},
        {&api.as_long, "PyLong_AsLong"},
        {&api.compare, "PyUnicode_CompareWithASCIIString"},
        {&api.release, "Py_DecRef"},
        {&api.retain, "Py_IncRef"},
        {&api.clear_error, "PyErr_Clear"},
    };
    if (!symbols_find(symbols, sizeof symbols / sizeof symbols[0], NULL))
        return;
    hooks = table;
    heap = registered;
    *(void **)&api.collect = dlsym(RTLD_DEFAULT, "PyGC_Collect");
    *(void **)&api.is_enabled = dlsym(RTLD_DEFAULT, "PyGC_IsEnabled");
    hooks->define_statistic(heap, STATISTIC_COLLECTED, "collected", "objects");
    hooks->define_statistic(heap, STATISTIC_UNCOLLECTABLE, "uncollectable", "objects");
    /* Last: all else is there. */
    api.none = dlsym(RTLD_DEFAULT, "_Py_NoneStruct");
}
