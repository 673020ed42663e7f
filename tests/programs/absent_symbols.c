/* What the registry of bridges takes for absent, against the loader: a symbol that the loader finds is never absent, and most
 * names that nobody has are. `none` as argument: nothing may be known to be absent. `storm`: another thread loads and unloads a
 * library meanwhile. */
#define _GNU_SOURCE
#include "absence.c"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned present, wrong;

static void look(const char *name)
{
    if (dlsym(RTLD_DEFAULT, name) == NULL)
        return;
    present++;
    /* Among others, as the registry asks. */
    const char *names[] = {"_nobody_has_this", NULL, name};
    if (absence_exceptions(names, 3) >> 2 != 1) {
        printf("%s is there\n", name);
        wrong++;
    }
}

/* Each name in an object's table of strings: those of its symbols, and some that are none. */
static int look_at_names(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)size, (void)argument;
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
            look((const char *)name);
    }
    return 0;
}

static int done;

static void *load_and_unload(void *unused)
{
    for (int turn = 0; turn < 2000; turn++) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        if (library == NULL || dlclose(library) != 0)
            exit(2);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    return unused;
}

static int storm(void)
{
    pthread_t thread;
    const char *names[ABSENCE_SYMBOLS];
    unsigned long turns = 0, found = 0;
    for (size_t i = 0; i < ABSENCE_SYMBOLS; i++)
        names[i] = i % 8 == 7 ? "malloc" : "_nobody_has_this";
    if (pthread_create(&thread, NULL, load_and_unload, NULL) != 0)
        return 2;
    for (; !__atomic_load_n(&done, __ATOMIC_ACQUIRE); turns++)
        found += (absence_exceptions(names, ABSENCE_SYMBOLS) & 0x8080808080808080) == 0x8080808080808080;
    pthread_join(thread, NULL);
    printf("%lu turns\n", turns);
    return turns == 0 || found != turns;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "storm") == 0)
        return storm();
    dl_iterate_phdr(look_at_names, NULL);
    srand(1);
    unsigned absent = 0;
    for (unsigned i = 0; i < 10000; i++) {
        char name[40];
        const char *names[] = {name};
        snprintf(name, sizeof name, "_nobody_has_%x_%x", (unsigned)rand(), (unsigned)rand());
        absent += absence_exceptions(names, 1) == 0;
    }
    printf("%u names present, %u of 10000 absent\n", present, absent);
    bool is_none = argc > 1 && strcmp(argv[1], "none") == 0;
    return wrong != 0 || present < 1000 || (is_none ? absent != 0 : absent < 7000);
}
