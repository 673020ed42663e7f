/* Changes the slots through which loaded objects call the allocator, and changes them back; and, for redirect.h, those
 * through which the program itself calls one function. loading.c says when: after an attach, for extensions.c, and for objects
 * that are bound past us.
 *
 * A pass goes over objects while the loader's list of them is locked, so that none is unmapped. It changes a slot
 * if its relocation names one of our functions and it holds the next one's address: then, and only then, our function
 * does what the slot's object asked for. A slot that the loader has yet to fill (lazy binding) points into its own
 * object; it is changed if the loader would certainly find the next function. */
#define _GNU_SOURCE
#include "attach.h"
#include "dynamic.h"
#include "redirect.h"
#include "slots.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum direction { REDIRECT, RESTORE };

/* Which objects define a function, apart from the agent. */
enum definers { NOT_ASKED, ONLY_NEXT, OTHERS };

/* Bits in the filter of names. */
#define BEGINNINGS 4096

struct job {
    enum direction direction;
    uintptr_t page_bytes;
    /* Some object brings a malloc that is not the next one. */
    bool has_other_malloc;
    /* Objects before this one have been visited. */
    size_t first;
    size_t index;
    enum definers definers[SHIM_ROWS];
    /* Beginnings of the functions' names, by their hash. */
    uint64_t beginnings[BEGINNINGS / 64];
    struct shim_window window;
    struct shim_pass pass;
};

/* ---- redirected functions ---- */

/* Functions that a bridge stands before. A list stays for ever, and counts while it is on. */
#define LISTS 4
static struct list {
    struct shim_redirection *rows;
    size_t count;
    bool is_on;
    bool has_other; /* some object has such functions that are not the next ones */
} lists[LISTS];
static size_t list_count;

/* How to redirect the slots of one function. */
struct redirected {
    const void *own, *next;
    /* Of the table; NULL: it is of a list. */
    const struct shim_function *function;
    /* Nobody knows which function the slot of a library will come to hold. */
    bool is_ambiguous;
    /* The library that defines the function calls it by its slot, too. */
    bool is_called_at_home;
};

static bool is_named(const char *name, const char *other)
{
    /* Almost every name is told apart by its first letters. */
    return name[0] == other[0] && name[1] == other[1] && strcmp(name, other) == 0;
}

/* A library may have tens of thousands of relocations: nearly all are told apart by the first letters of their names. */
static unsigned hash_of_beginning(const char *name)
{
    unsigned hash = 0;
    for (size_t i = 0; i < 5 && name[i] != '\0'; i++)
        hash = hash * 33 + (unsigned char)name[i];
    return hash % BEGINNINGS;
}

static void note_name(struct job *job, const char *name)
{
    unsigned hash = hash_of_beginning(name);
    job->beginnings[hash / 64] |= UINT64_C(1) << hash % 64;
}

static void note_names(struct job *job)
{
    for (const struct shim_function *function = shim_functions; function < shim_functions + SHIM_ROWS; function++)
        note_name(job, function->name);
    for (const struct list *list = lists; list < lists + list_count; list++)
        for (const struct shim_redirection *row = list->rows; row < list->rows + list->count; row++)
            note_name(job, row->name);
}

static bool may_be_redirected(const struct job *job, const char *name)
{
    unsigned hash = hash_of_beginning(name);
    return (job->beginnings[hash / 64] >> hash % 64 & 1) != 0;
}

static bool find_in_lists(const struct job *job, const char *name, struct redirected *found)
{
    for (const struct list *list = lists; list < lists + list_count; list++) {
        for (const struct shim_redirection *row = list->rows; row < list->rows + list->count; row++) {
            if (!is_named(row->name, name))
                continue;
            *found = (struct redirected){row->own, row->next, NULL, list->has_other, true};
            return row->next != NULL && (list->is_on || job->direction == RESTORE);
        }
    }
    return false;
}

static bool find_redirected(const struct job *job, const char *name, struct redirected *found)
{
    for (const struct shim_function *function = shim_functions; function < shim_functions + SHIM_ROWS; function++) {
        if (!is_named(function->name, name))
            continue;
        /* Another malloc has no dlopen and no extensions of the next one's. */
        bool is_elsewhere = function->group != SHIM_LATE && function->group != SHIM_EXTENSION &&
                            function != &shim_functions[SHIM_ROW_dlopen];
        *found = (struct redirected){function->own, function->next, function, is_elsewhere && job->has_other_malloc, false};
        return function->own != NULL && function->next != NULL;
    }
    return find_in_lists(job, name, found);
}

struct definition {
    const struct shim_function *function;
    bool has_other;
};

static int look_for_definition(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct definition *definition = argument;
    struct shim_dynamic object;
    if (shim_holds(info, (uintptr_t)shim_functions) || shim_holds(info, (uintptr_t)definition->function->next) ||
        !shim_read_dynamic(info, 1, &object))
        return 0;
    definition->has_other = shim_look_up(info, &object, definition->function->name) != NULL;
    return definition->has_other;
}

/* Whether the loader may bind a slot of some object to a function that is neither ours nor the next one. */
static bool has_other_definition(struct job *job, const struct shim_function *function)
{
    enum definers *known = &job->definers[function - shim_functions];
    if (*known == NOT_ASKED) {
        struct definition definition = {.function = function};
        dl_iterate_phdr(look_for_definition, &definition);
        *known = definition.has_other ? OTHERS : ONLY_NEXT;
    }
    return *known == OTHERS;
}

/* Whether the loader would certainly bind this slot, which it has yet to fill, to the next function, or to ours. */
static bool is_certain(struct job *job, const struct redirected *redirected)
{
    /* After an attach the next function is the first one that objects find. An object that is bound past us may find any, and another
     * preloaded library may have what comes before ours. */
    if (redirected->function != NULL && !shim_is_late())
        return !has_other_definition(job, redirected->function);
    return !redirected->is_ambiguous || job->index == 0;
}

static void visit_slot(struct job *job, const struct shim_dynamic *object, const ElfW(Rela) *relocation)
{
    unsigned type = ELF64_R_TYPE(relocation->r_info);
    if (type != RELOCATION_SLOT && !(IS_ADDRESS(type) && relocation->r_addend == 0))
        return;
    const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(relocation->r_info)];
    const char *name = object->names + symbol->st_name;
    struct redirected function;
    if (!may_be_redirected(job, name) || !find_redirected(job, name, &function))
        return;
    uintptr_t *slot = (uintptr_t *)(object->bias + relocation->r_offset);
    uintptr_t held = __atomic_load_n(slot, __ATOMIC_RELAXED);
    const void *from = job->direction == REDIRECT ? function.next : function.own;
    const void *to = job->direction == REDIRECT ? function.own : function.next;
    bool is_due = held == (uintptr_t)from;
    bool leads_to_next = symbol->st_shndx == SHN_UNDEF ||
                      (function.is_called_at_home && object->bias + symbol->st_value == (uintptr_t)function.next);
    bool is_lazy = job->direction == REDIRECT && type == RELOCATION_SLOT && leads_to_next &&
                   shim_slot_is_unbound(object, relocation, held);
    if (is_lazy && !is_certain(job, &function)) {
        job->pass.unsure++;
        return;
    }
    if (!is_due && !is_lazy) {
        job->pass.pending += job->direction == REDIRECT && shim_slot_is_untouched(object, relocation, held);
        return;
    }
    switch (shim_slot_store(job->page_bytes, &job->window, object, slot, to)) {
    case STORED:
        job->pass.slots++;
        break;
    case NOT_NOW:
        job->pass.pending++;
        break;
    case NOT_OURS:
        job->pass.unsure++;
        break;
    }
}

static int visit_object(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct job *job = argument;
    struct shim_dynamic object;
    if (job->index >= job->first && !shim_holds(info, (uintptr_t)shim_functions) &&
        shim_read_dynamic(info, job->page_bytes, &object)) {
        for (size_t table = 0; table < 2; table++) {
            for (size_t i = 0; i < object.counts[table]; i++)
                visit_slot(job, &object, &object.tables[table][i]);
        }
        shim_close_window(&job->window);
    }
    job->index++;
    return 0;
}

/* ---- one function of the program ---- */

struct replacement {
    const char *name;
    const void *from; /* NULL: whatever the slot holds */
    void *own;
    bool takes_unbound; /* slots that the loader has yet to fill, too: it would put `from` there */
    size_t leading;     /* slots that lead to `own` in the end */
};

/* The program itself comes first. */
static int replace_in_program(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct replacement *replacement = argument;
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct shim_window window = {0};
    struct shim_dynamic object;
    (void)size;
    if (!shim_read_dynamic(info, page_bytes, &object))
        return 1;
    for (size_t table = 0; table < 2; table++) {
        for (size_t i = 0; i < object.counts[table]; i++) {
            const ElfW(Rela) *relocation = &object.tables[table][i];
            unsigned type = ELF64_R_TYPE(relocation->r_info);
            const ElfW(Sym) *symbol = &object.symbols[ELF64_R_SYM(relocation->r_info)];
            if ((type != RELOCATION_SLOT && !IS_ADDRESS(type)) ||
                strcmp(object.names + symbol->st_name, replacement->name) != 0)
                continue;
            uintptr_t *slot = (uintptr_t *)(object.bias + relocation->r_offset);
            uintptr_t held = __atomic_load_n(slot, __ATOMIC_RELAXED);
            bool is_due = replacement->from == NULL || held == (uintptr_t)replacement->from ||
                          (replacement->takes_unbound && type == RELOCATION_SLOT && shim_slot_is_unbound(&object, relocation, held));
            if (held == (uintptr_t)replacement->own ||
                (is_due && shim_slot_store(page_bytes, &window, &object, slot, replacement->own) == STORED))
                replacement->leading++;
        }
    }
    shim_close_window(&window);
    return 1;
}

void shim_redirect_in_program(const char *name, void *own)
{
    struct replacement replacement = {.name = name, .own = own};
    dl_iterate_phdr(replace_in_program, &replacement);
}

/* What the loader says of an object, without its lock. */
static struct dl_phdr_info info_of_object(uintptr_t start)
{
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)start;
    struct dl_phdr_info info = {.dlpi_phdr = (const ElfW(Phdr) *)(start + header->e_phoff),
                                .dlpi_phnum = header->e_phnum};
    for (size_t i = 0; i < info.dlpi_phnum; i++)
        if (info.dlpi_phdr[i].p_type == PT_LOAD && info.dlpi_phdr[i].p_offset == 0)
            info.dlpi_addr = start - info.dlpi_phdr[i].p_vaddr;
    return info;
}

void shim_redirect_in_object(uintptr_t start, const char *name, const void *from, void *to)
{
    struct dl_phdr_info info = info_of_object(start);
    struct replacement replacement = {.name = name, .from = from, .own = to};
    replace_in_program(&info, sizeof info, &replacement);
}

size_t shim_redirect_calls_of_object(uintptr_t start, const char *name, const void *from, void *to)
{
    struct dl_phdr_info info = info_of_object(start);
    struct replacement replacement = {
        .name = name, .from = from, .own = to, .takes_unbound = dlsym(RTLD_DEFAULT, name) == from};
    replace_in_program(&info, sizeof info, &replacement);
    return replacement.leading;
}

/* ---- other allocators ---- */

/* Whether an object defines a malloc that is neither the next one nor the C library's, nor the loader's or ours. */
static int look_for_other_malloc(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct shim_dynamic object;
    if (shim_holds(info, (uintptr_t)shim_functions) || !shim_read_dynamic(info, 1, &object) ||
        strstr(info->dlpi_name, "/libc.so.6") != NULL || strstr(info->dlpi_name, "/ld-linux") != NULL)
        return 0;
    uintptr_t next = (uintptr_t)shim_late_symbol("malloc");
    if (shim_holds(info, next) || shim_look_up(info, &object, "malloc") == NULL)
        return 0;
    *(bool *)argument = true;
    return 1;
}

/* Whether an object has functions of a list that are not the next ones: its first one is enough to know. */
static int look_for_others(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    (void)argument;
    struct shim_dynamic object;
    if (shim_holds(info, (uintptr_t)shim_functions) || !shim_read_dynamic(info, 1, &object))
        return 0;
    for (struct list *list = lists; list < lists + list_count; list++) {
        const ElfW(Sym) *symbol = shim_look_up(info, &object, list->rows->name);
        list->has_other |= symbol != NULL && object.bias + symbol->st_value != (uintptr_t)list->rows->next;
    }
    return 0;
}

static void find_others(void)
{
    for (struct list *list = lists; list < lists + list_count; list++)
        list->has_other = false;
    if (list_count > 0)
        dl_iterate_phdr(look_for_others, NULL);
}

void *shim_symbol_of_object(uintptr_t start, const char *name)
{
    struct dl_phdr_info info = info_of_object(start);
    struct shim_dynamic object;
    const ElfW(Sym) *symbol = shim_read_dynamic(&info, 1, &object) ? shim_look_up(&info, &object, name) : NULL;
    unsigned type = symbol == NULL ? STT_NOTYPE : ELF64_ST_TYPE(symbol->st_info);
    return type == STT_FUNC || type == STT_OBJECT ? (void *)(object.bias + symbol->st_value) : NULL;
}

/* ---- passes ---- */

/* 1 while a thread is in a pass. */
static _Atomic(uint32_t) is_busy;
static _Atomic(bool) is_redirecting;
/* At the last pass that left nothing pending; nothing: there was none. */
static struct shim_loaded seen;

static int count_object(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct shim_loaded *loaded = argument;
    *loaded = (struct shim_loaded){info->dlpi_adds, info->dlpi_subs, loaded->objects + 1};
    return 0;
}

/* The first one knows how many have come and gone. */
static int count_changes(struct dl_phdr_info *info, size_t size, void *argument)
{
    count_object(info, size, argument);
    return 1;
}

void shim_count_loaded(struct shim_loaded *loaded)
{
    *loaded = (struct shim_loaded){0};
    dl_iterate_phdr(count_object, loaded);
}

/* New objects come last in the loader's list. Those before `first` are known to need nothing. */
static void pass_over_objects(enum direction direction, size_t first, struct shim_pass *pass)
{
    struct shim_loaded now;
    shim_count_loaded(&now);
    struct job job = {.direction = direction, .page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), .first = first};
    note_names(&job);
    if (shim_is_late())
        dl_iterate_phdr(look_for_other_malloc, &job.has_other_malloc);
    find_others();
    dl_iterate_phdr(visit_object, &job);
    seen = job.pass.pending == 0 ? now : (struct shim_loaded){0};
    *pass = job.pass;
}

/* The first object that a pass may have left out. */
static size_t first_unseen(const struct shim_loaded *now)
{
    return seen.subs == now->subs ? seen.objects : 0;
}

/* A pass takes milliseconds. In a child of a raw clone, a pass of another thread never ends, so the wait has a limit. It sleeps by
 * the raw system call: libc's functions are cancellation points, and would end a thread inside its dlopen. */
static void take_turn(void)
{
    const struct timespec a_millisecond = {.tv_nsec = 1000000};
    for (int i = 0; i < 5000 && atomic_exchange_explicit(&is_busy, 1, memory_order_acquire) != 0; i++)
        syscall(SYS_nanosleep, &a_millisecond, NULL);
}

void shim_redirect(struct shim_pass *pass)
{
    *pass = (struct shim_pass){0};
    take_turn();
    atomic_store_explicit(&is_redirecting, true, memory_order_relaxed);
    pass_over_objects(REDIRECT, 0, pass);
    atomic_store_explicit(&is_busy, 0, memory_order_release);
}

void shim_restore(struct shim_pass *pass)
{
    *pass = (struct shim_pass){0};
    take_turn();
    atomic_store_explicit(&is_redirecting, false, memory_order_relaxed);
    pass_over_objects(RESTORE, 0, pass);
    for (struct list *list = lists; list < lists + list_count; list++)
        list->is_on = false;
    atomic_store_explicit(&is_busy, 0, memory_order_release);
}

/* NULL: there is no room. */
static struct list *list_of(struct shim_redirection *rows)
{
    for (size_t i = 0; i < list_count; i++)
        if (lists[i].rows == rows)
            return &lists[i];
    return list_count == LISTS ? NULL : &lists[list_count++];
}

bool shim_redirect_calls(struct shim_redirection *rows, size_t count, uint64_t *left_alone)
{
    struct shim_pass pass = {0};
    take_turn();
    struct list *list = list_of(rows);
    if (list != NULL) {
        *list = (struct list){.rows = rows, .count = count, .is_on = true};
        pass_over_objects(REDIRECT, 0, &pass);
    }
    atomic_store_explicit(&is_busy, 0, memory_order_release);
    *left_alone = pass.unsure + pass.pending;
    return list != NULL;
}

void shim_redirect_after_fork_in_child(void)
{
    atomic_store_explicit(&is_busy, 0, memory_order_relaxed);
}

bool shim_is_redirecting(void)
{
    return atomic_load_explicit(&is_redirecting, memory_order_relaxed);
}

void shim_redirect_loaded_since(const struct shim_loaded *before)
{
    struct shim_pass pass;
    struct shim_loaded now;
    shim_count_loaded(&now);
    if (now.adds == before->adds) {
        shim_redirect_what_is_new();
        return;
    }
    /* Whoever is in a pass now may have met these objects before they were relocated. */
    take_turn();
    size_t first = before->subs == now.subs ? before->objects : 0;
    size_t unseen = first_unseen(&now);
    if (!shim_is_late() || shim_is_redirecting())
        pass_over_objects(REDIRECT, first < unseen ? first : unseen, &pass);
    atomic_store_explicit(&is_busy, 0, memory_order_release);
}

/* Never waits: whoever is in a pass now has seen these objects, or leaves something pending. */
void shim_redirect_what_is_new(void)
{
    if (!shim_is_redirecting() || atomic_exchange_explicit(&is_busy, 1, memory_order_acquire) != 0)
        return;
    struct shim_pass pass;
    struct shim_loaded now = {0};
    dl_iterate_phdr(count_changes, &now);
    if (shim_is_redirecting() && (now.adds != seen.adds || now.subs != seen.subs))
        pass_over_objects(REDIRECT, first_unseen(&now), &pass);
    atomic_store_explicit(&is_busy, 0, memory_order_release);
}
