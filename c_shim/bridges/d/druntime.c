/* Where a shared druntime has its functions, and through which slots they are called.
 *
 * The collector's functions have C names, which stay. Up to 2.110, so has the function that processes marks. Since 2.111 it is a function
 * of D, whose name holds its module and its types: it is found by its own name, whatever these are. d.c verifies at every collection that
 * it does the same. */
#define _GNU_SOURCE
#include "d.h"
#include "kit/exported.h"
#include "kit/objects.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <string.h>

/* ---- functions ---- */

/* The object that has an address. */
struct search {
    uintptr_t address, start;
};

static void visit(void *argument, const struct object_file *file)
{
    struct search *search = argument;
    if (search->address >= file->start && search->address < file->end)
        search->start = file->start;
}

/* A function `processGCMarks` of some module: its name is followed by its types. */
static bool processes_marks(const char *name)
{
    return strncmp(name, "_D", 2) == 0 && strstr(name, "14processGCMarksF") != NULL;
}

static bool find(const struct d_druntime *druntime, void *slot, const char *name)
{
    void *found = shim_services.symbol_of_object(druntime->start, name);
    memcpy(slot, &found, sizeof found);
    return found != NULL;
}

static bool find_marks(struct d_druntime *druntime)
{
    druntime->marks_name = "thread_processGCMarks";
    if (find(druntime, &druntime->marks_of_all, druntime->marks_name))
        return true;
    return exported_functions(druntime->start, processes_marks, &druntime->marks_name) == 1 &&
           find(druntime, &druntime->marks_of_thread, druntime->marks_name);
}

const char *d_druntime_find(struct d_druntime *druntime)
{
    struct search search = {.address = (uintptr_t)dlsym(RTLD_DEFAULT, "gc_sizeOf")};
    if (search.address != 0)
        objects_each(0, visit, &search);
    if (search.start == 0 || !symbols_code_of((const void *)search.address, &druntime->code, &druntime->code_end))
        return "a shared druntime";
    druntime->start = search.start;
    if (!find(druntime, &druntime->size_of, "gc_sizeOf"))
        return "a shared druntime";
    if (!find(druntime, &druntime->query, "gc_query") || !find(druntime, &druntime->is_in_finalizer, "gc_inFinalizer"))
        return "gc_query";
    if (!find(druntime, &druntime->collections, "gc_profileStats"))
        return "gc_profileStats";
    if (!find(druntime, &druntime->terminate, "gc_term") || !find(druntime, &druntime->suspend_all, "thread_suspendAll"))
        return "thread_suspendAll";
    return find_marks(druntime) ? NULL : "the function that processes marks";
}

/* ---- slots ---- */

static void *address_of(const void *function_pointer)
{
    void *address;
    memcpy(&address, function_pointer, sizeof address);
    return address;
}

/* `own` and `function` are addresses of pointers. Whether all calls go that way now. */
static bool lead(const struct d_druntime *druntime, const char *name, const void *function, const void *own)
{
    return shim_services.redirect_calls_of_object(druntime->start, name, address_of(function), address_of(own)) != 0;
}

bool d_druntime_watch(const struct d_druntime *druntime, const struct d_watched *watched)
{
    bool is_led = druntime->marks_of_all != NULL
                     ? lead(druntime, druntime->marks_name, &druntime->marks_of_all, &watched->marks_of_all)
                     : lead(druntime, druntime->marks_name, &druntime->marks_of_thread, &watched->marks_of_thread);
    if (is_led && lead(druntime, "thread_suspendAll", &druntime->suspend_all, &watched->suspend_all) &&
        lead(druntime, "gc_term", &druntime->terminate, &watched->terminate))
        return true;
    d_druntime_unwatch(druntime, watched);
    return false;
}

static void lead_back(const struct d_druntime *druntime, const char *name, const void *own, const void *function)
{
    shim_services.redirect_in_object(druntime->start, name, address_of(own), address_of(function));
}

void d_druntime_unwatch(const struct d_druntime *druntime, const struct d_watched *watched)
{
    if (druntime->marks_of_all != NULL)
        lead_back(druntime, druntime->marks_name, &watched->marks_of_all, &druntime->marks_of_all);
    else
        lead_back(druntime, druntime->marks_name, &watched->marks_of_thread, &druntime->marks_of_thread);
    lead_back(druntime, "thread_suspendAll", &watched->suspend_all, &druntime->suspend_all);
    lead_back(druntime, "gc_term", &watched->terminate, &druntime->terminate);
}

/* ---- slots of all objects ---- */

struct change {
    const struct d_call *calls;
    size_t count;
    bool enters;
};

static void change_object(void *argument, const struct object_file *file)
{
    const struct change *change = argument;
    if (!objects_is_loaded(file->start))
        return;
    for (size_t i = 0; i < change->count; i++) {
        const struct d_call *call = &change->calls[i];
        void *next = address_of(call->next);
        if (next == NULL)
            continue;
        if (change->enters)
            shim_services.redirect_calls_of_object(file->start, call->name, next, call->entry);
        else
            shim_services.redirect_in_object(file->start, call->name, call->entry, next);
    }
}

void d_druntime_enter(const struct d_call *calls, size_t count, uintptr_t object)
{
    struct change change = {calls, count, true};
    objects_each(object, change_object, &change);
}

void d_druntime_leave(const struct d_call *calls, size_t count)
{
    struct change change = {calls, count, false};
    objects_each(0, change_object, &change);
}
