/* Finds the functions that are redirected and their next ones: in a process that is attached to, and in one that started with us. */
#define _GNU_SOURCE
#include "attach.h"
#include "dynamic.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

static _Atomic(bool) is_late;

bool shim_is_late(void)
{
    return atomic_load_explicit(&is_late, memory_order_acquire);
}

void *shim_late_symbol(const char *name)
{
    for (size_t i = 0; i < SHIM_ROWS; i++) {
        if (strcmp(shim_functions[i].name, name) == 0)
            return shim_functions[i].next;
    }
    return NULL;
}

/* musl has neither: nobody attaches there. */
#pragma weak dladdr1
#pragma weak _r_debug

/* Whether an address that the loader gave for a symbol is that of its code. In a program that is linked to a fixed
 * address it may be that of the program's own stub, which jumps through a slot: ours, once that is redirected. */
static bool is_definition(const void *address)
{
    Dl_info info;
    void *symbol = NULL;
    return dladdr1(address, &info, &symbol, RTLD_DL_SYMENT) != 0 &&
           (symbol == NULL || ((const ElfW(Sym) *)symbol)->st_shndx != SHN_UNDEF);
}

/* The function that calls of most objects reach: the first definition in the program's global scope. */
static void *find_definition(const char *name)
{
    void *first = dlsym(RTLD_DEFAULT, name);
    if (first == NULL || is_definition(first))
        return first;
    for (const struct link_map *object = _r_debug.r_map; object != NULL; object = object->l_next) {
        if (object->l_name == NULL || object->l_name[0] == '\0')
            continue;
        void *handle = dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle == NULL)
            continue;
        /* Found in what the object depends on as well, hence the comparison. */
        void *found = dlsym(handle, name);
        bool is_its_own = found != NULL && shim_same_object(found, object->l_ld);
        dlclose(handle);
        if (is_its_own)
            return found;
    }
    return NULL;
}

/* A plugin with such functions may not be in the global scope, and ours are then the first. */
void shim_find_definitions(struct shim_redirection *rows, size_t count)
{
    for (struct shim_redirection *row = rows; row < rows + count; row++) {
        void *found = find_definition(row->name);
        row->next = found != NULL && shim_same_object(found, &is_late) ? NULL : found;
    }
}

bool shim_prepare_late(void)
{
    struct shim_object own;
    if (dladdr1 == NULL || &_r_debug == NULL || !shim_find_object(&is_late, &own))
        return false;
    /* By our own name: a reference to `malloc` from this very file would be bound to the program's. */
    void *handle = dlopen(own.path, RTLD_LAZY | RTLD_NOLOAD);
    void *next_malloc = find_definition("malloc");
    if (handle == NULL || next_malloc == NULL)
        return false;
    bool is_complete = true;
    shim_enable_look_ups();
    shim_enable_extensions();
    for (struct shim_function *function = shim_functions; function < shim_functions + SHIM_ROWS; function++) {
        if (function->group == SHIM_START || function->group == SHIM_ENTRY)
            continue;
        if (function->own == NULL)
            function->own = dlsym(handle, function->name);
        void *next = find_definition(function->name);
        /* Blocks of two allocators must not be mixed; and operators that call malloc are seen there. */
        bool is_of_another = function->group <= SHIM_EXTENSION && next != NULL && !shim_same_object(next, next_malloc);
        if (!is_of_another && function->own != NULL && function->own != next)
            function->next = next;
        /* Without it shim_find_next would end the program. */
        is_complete &= function->group != SHIM_MALLOC || function->next != NULL;
    }
    dlclose(handle);
    atomic_store_explicit(&is_late, is_complete, memory_order_release);
    return is_complete;
}

/* ---- in a process that started with us ---- */

static void set(void **place, void *found)
{
    /* Other threads may do the same, or be in a pass: a row without both addresses is left out. */
    __atomic_store_n(place, found, __ATOMIC_RELEASE);
}

static void *address_in(struct dl_phdr_info *info, const struct shim_dynamic *object, const char *name)
{
    const ElfW(Sym) *symbol = shim_look_up(info, object, name);
    return symbol == NULL ? NULL : (void *)(object->bias + symbol->st_value);
}

/* Nothing is asked of dlsym, whose failures are for the program to see. */
static int find_in_object(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    (void)argument;
    struct shim_dynamic object;
    bool is_own = shim_holds(info, (uintptr_t)&is_late);
    bool is_of_next = shim_holds(info, (uintptr_t)shim_next_malloc_address());
    if ((!is_own && !is_of_next) || !shim_read_dynamic(info, 1, &object))
        return 0;
    for (struct shim_function *function = shim_functions; function < shim_functions + SHIM_ROWS; function++) {
        bool is_operator = function->group == SHIM_NEW || function->group == SHIM_DELETE;
        bool is_exported = function->group != SHIM_LATE && function->group != SHIM_EXTENSION;
        if (is_own && is_exported && function->group != SHIM_ENTRY)
            set(&function->own, address_in(info, &object, function->name));
        if (is_of_next && is_operator)
            set(&function->next, address_in(info, &object, function->name));
    }
    return 0;
}

/* A composed one is ours: no slot holds it. */
static void set_next(struct shim_function *function, const void *next)
{
    if (shim_same_object(next, shim_next_malloc_address()))
        set(&function->next, (void *)(uintptr_t)next);
}

void shim_prepare_early(void)
{
    static _Atomic(bool) is_prepared;
    if (atomic_load_explicit(&is_prepared, memory_order_acquire))
        return;
#define MALLOC(NAME) set_next(&shim_functions[SHIM_ROW_##NAME], (const void *)(uintptr_t)shim_next.NAME);
#define COMPOSED(NAME, COMPOSITION) MALLOC(NAME)
#include "interposed.def"
    dl_iterate_phdr(find_in_object, NULL);
    atomic_store_explicit(&is_prepared, true, memory_order_release);
}
