/* What the registry of bridges takes for absent, against the loader: a symbol that the loader finds is never absent, and most
 * names that nobody has are. `none` as argument: nothing may be known to be absent. */
#define _GNU_SOURCE
#include "absence.c"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned present, wrong;

static void look(const struct absence *absence, const char *name)
{
    if (dlsym(RTLD_DEFAULT, name) == NULL)
        return;
    present++;
    if (absence_of(absence, name)) {
        printf("%s is there\n", name);
        wrong++;
    }
}

/* Each name in an object's table of strings: those of its symbols, and some that are none. */
static int look_at_names(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)size;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type != PT_DYNAMIC)
            continue;
        uintptr_t names = 0, bytes = 0;
        for (const ElfW(Dyn) *entry = (void *)(object->dlpi_addr + segment->p_vaddr); entry->d_tag != DT_NULL; entry++) {
            names = entry->d_tag == DT_STRTAB ? entry->d_un.d_ptr : names;
            bytes = entry->d_tag == DT_STRSZ ? entry->d_un.d_val : bytes;
        }
        names += names < object->dlpi_addr ? object->dlpi_addr : 0;
        for (uintptr_t name = names; name < names + bytes; name += strlen((const char *)name) + 1)
            look(argument, (const char *)name);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct absence absence;
    absence_read(&absence);
    dl_iterate_phdr(look_at_names, &absence);
    srand(1);
    unsigned absent = 0;
    for (unsigned i = 0; i < 10000; i++) {
        char name[40];
        snprintf(name, sizeof name, "_nobody_has_%x_%x", (unsigned)rand(), (unsigned)rand());
        absent += absence_of(&absence, name);
    }
    printf("%zu objects, %u names present, %u of 10000 absent\n", absence.count, present, absent);
    bool is_none = argc > 1 && strcmp(argv[1], "none") == 0;
    return wrong != 0 || present < 1000 || (is_none ? absent != 0 : absent < 7000);
}
