/* See next_function.h. */
#define _GNU_SOURCE
#include "kit/next_function.h"

#include <dlfcn.h>
#include <link.h>

static void *find_in_caller(const char *name, const void *caller)
{
    /* A library that was opened for another one alone is in no order with us: its caller was linked with it. */
    Dl_info info;
    void *object = dladdr(caller, &info) == 0 ? NULL : dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    void *found = object == NULL ? NULL : dlsym(object, name);
    if (object != NULL)
        dlclose(object);
    return found;
}

struct search {
    const char *name;
    void *found;
};

static int find_in_object(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct search *search = argument;
    void *object = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    /* The program's own scope holds us too. */
    void *found = object == NULL || info->dlpi_name[0] == 0 ? NULL : dlsym(object, search->name);
    if (object != NULL)
        dlclose(object);
    if (found != NULL && !shim_services.same_object(found, (const void *)(uintptr_t)find_in_object))
        search->found = found;
    return search->found != NULL;
}

void *next_function(const char *name, const void *caller)
{
    struct search search = {name, shim_services.find_symbol(name)};
    if (search.found == NULL)
        search.found = find_in_caller(name, caller);
    if (search.found == NULL)
        dl_iterate_phdr(find_in_object, &search);
    return search.found;
}
