/* Names of .NET's classes and methods, from the metadata of their modules.
 *
 * The runtime calls back while it allocates: nothing may collect, and nobody may wait. So a module's metadata is opened when the
 * runtime reports that the module is loaded, and later questions only read. */
#define _GNU_SOURCE
#include "dotnet.h"
#include "kit/lock.h"
#include "kit/names.h"

#include <string.h>

#define MODULES 4096
/* Of types in types: List<Dictionary<K, V>>. */
#define DEEPEST 6

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static clr_object info;
static struct names functions, types;

/* ---- modules ---- */

enum { NOT_LOOKED_FOR, LOOKING_FOR, LOOKED_FOR };

static struct module {
    uintptr_t module; /* 0: free */
    clr_object metadata;
    /* The module's PDB, and whether it was looked for. */
    const struct dotnet_symbols *symbols;
    uint32_t symbols_state;
} modules[MODULES];
static bridge_lock modules_lock;
/* Changes when a module is unloaded: its classes and methods may leave their addresses to others. */
static _Atomic(uint32_t) unloads;

/* The place of a module, or a free one for it; NULL: there is none. The lock is held. */
static struct module *place_of(uintptr_t module)
{
    for (size_t i = 0; i < MODULES; i++) {
        struct module *place = &modules[((module >> 4) + i) % MODULES];
        if (place->module == module || place->module == 0)
            return place;
    }
    return NULL;
}

static void put_module(uintptr_t module, clr_object metadata)
{
    lock_take(&modules_lock);
    struct module *place = place_of(module);
    if (place != NULL)
        *place = (struct module){.module = module, .metadata = metadata};
    lock_release(&modules_lock);
}

void dotnet_names_has_module(uintptr_t module)
{
    clr_object metadata = NULL;
    /* CLR_FALSE: a module without metadata. */
    if (CLR(info, INFO_MODULE_METADATA, (clr_object, uintptr_t, uint32_t, const uint8_t *, clr_object *), module, 0,
            CLR_METADATA_IMPORT, &metadata) == CLR_OK)
        put_module(module, metadata);
}

/* Its place stays taken: another module with this number takes it, and searches for others do not end here. The metadata
 * stays as well, since another thread may be reading it. */
void dotnet_names_lose_module(uintptr_t module)
{
    put_module(module, NULL);
    atomic_fetch_add_explicit(&unloads, 1, memory_order_relaxed);
}

static clr_object metadata_of(uintptr_t module)
{
    lock_take(&modules_lock);
    const struct module *place = place_of(module);
    clr_object metadata = place == NULL || place->module == 0 ? NULL : place->metadata;
    lock_release(&modules_lock);
    return metadata;
}

/* ---- text ---- */

struct text {
    char *next, *end; /* the end is the place of the last 0 */
};

static void put_byte(struct text *text, uint32_t byte)
{
    if (text->next < text->end)
        *text->next++ = (char)byte;
    *text->next = 0;
}

static void put(struct text *text, const char *part)
{
    for (; *part != 0; part++)
        put_byte(text, (unsigned char)*part);
}

/* UTF-16 as UTF-8. Half of a pair becomes a question mark. */
static void put_wide(struct text *text, const uint16_t *wide)
{
    while (*wide != 0) {
        uint32_t code = *wide++;
        if (code >= 0xd800 && code < 0xdc00 && *wide >= 0xdc00 && *wide < 0xe000)
            code = 0x10000 + ((code - 0xd800) << 10) + (*wide++ - 0xdc00u);
        else if (code >= 0xd800 && code < 0xe000)
            code = '?';
        if (code < 0x80) {
            put_byte(text, code);
        } else if (code < 0x800) {
            put_byte(text, 0xc0 | code >> 6);
            put_byte(text, 0x80 | (code & 0x3f));
        } else {
            if (code < 0x10000) {
                put_byte(text, 0xe0 | code >> 12);
            } else {
                put_byte(text, 0xf0 | code >> 18);
                put_byte(text, 0x80 | (code >> 12 & 0x3f));
            }
            put_byte(text, 0x80 | (code >> 6 & 0x3f));
            put_byte(text, 0x80 | (code & 0x3f));
        }
    }
}

/* ---- types ---- */

/* A type as its module declares it: `Outer.Inner`, without the number of its parameters. */
static bool put_declared(struct text *text, clr_object metadata, uint32_t token, int depth)
{
    uint16_t name[512];
    uint32_t length = 0, flags, base, outer = 0;
    if (depth == DEEPEST || CLR(metadata, METADATA_TYPE,
                                (clr_object, uint32_t, uint16_t *, uint32_t, uint32_t *, uint32_t *, uint32_t *), token,
                                name, sizeof name / sizeof name[0] - 1, &length, &flags, &base) < 0)
        return false;
    name[length < sizeof name / sizeof name[0] ? length : sizeof name / sizeof name[0] - 1] = 0;
    for (size_t i = 0; name[i] != 0; i++)
        if (name[i] == '`')
            name[i] = 0;
    /* Only a nested type's flags have one of these. */
    if ((flags & 7) > 1 && CLR(metadata, METADATA_ENCLOSING_TYPE, (clr_object, uint32_t, uint32_t *), token, &outer) >= 0 &&
        put_declared(text, metadata, outer, depth + 1))
        put(text, ".");
    put_wide(text, name);
    return true;
}

/* CorElementType, as far as an array's elements may be of one and have no class. */
static const char *primitive(uint32_t kind)
{
    static const char *const names[] = {[0x02] = "System.Boolean", [0x03] = "System.Char",    [0x04] = "System.SByte",
                                        [0x05] = "System.Byte",    [0x06] = "System.Int16",   [0x07] = "System.UInt16",
                                        [0x08] = "System.Int32",   [0x09] = "System.UInt32",  [0x0a] = "System.Int64",
                                        [0x0b] = "System.UInt64",  [0x0c] = "System.Single",  [0x0d] = "System.Double",
                                        [0x0e] = "System.String",  [0x18] = "System.IntPtr",  [0x19] = "System.UIntPtr",
                                        [0x1c] = "System.Object"};
    const char *name = kind < sizeof names / sizeof names[0] ? names[kind] : NULL;
    return name == NULL ? "?" : name;
}

static bool put_class(struct text *text, uintptr_t class, int depth);

static bool put_array(struct text *text, uint32_t kind, uintptr_t element, uint32_t rank, int depth)
{
    if (element == 0)
        put(text, primitive(kind));
    else if (!put_class(text, element, depth + 1))
        return false;
    put(text, "[");
    for (uint32_t i = 1; i < rank; i++)
        put(text, ",");
    put(text, "]");
    return true;
}

static bool put_class(struct text *text, uintptr_t class, int depth)
{
    uint32_t kind = 0, rank = 0, token = 0, count = 0;
    uintptr_t element = 0, module = 0, base = 0, arguments[8];
    if (depth == DEEPEST || class == 0)
        return false;
    if (CLR(info, INFO_IS_ARRAY_CLASS, (clr_object, uintptr_t, uint32_t *, uintptr_t *, uint32_t *), class, &kind,
            &element, &rank) == CLR_OK)
        return put_array(text, kind, element, rank, depth);
    if (CLR(info, INFO_CLASS_2,
            (clr_object, uintptr_t, uintptr_t *, uint32_t *, uintptr_t *, uint32_t, uint32_t *, uintptr_t *), class,
            &module, &token, &base, 8, &count, arguments) < 0)
        return false;
    clr_object metadata = metadata_of(module);
    if (metadata == NULL || !put_declared(text, metadata, token, depth))
        return false;
    for (uint32_t i = 0; i < count && i < 8; i++) {
        put(text, i == 0 ? "<" : ", ");
        if (!put_class(text, arguments[i], depth + 1))
            put(text, "?");
    }
    if (count != 0)
        put(text, ">");
    return true;
}

/* What a class, or a place in a method, was found to be. */
static struct known {
    uintptr_t of, at;
    uint32_t unloads, number, line;
} known[1 << 13];
static _Atomic(bool) known_is_taken; /* never waited for */

static struct known *entry_of(const struct known *asked)
{
    uint64_t hash = (asked->of ^ asked->at << 1) * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    return &known[hash % (sizeof known / sizeof known[0])];
}

static bool recall(struct known *asked)
{
    asked->unloads = atomic_load_explicit(&unloads, memory_order_relaxed);
    if (atomic_exchange_explicit(&known_is_taken, true, memory_order_acquire))
        return false;
    const struct known *entry = entry_of(asked);
    bool is_known = entry->number != 0 && entry->of == asked->of && entry->at == asked->at && entry->unloads == asked->unloads;
    if (is_known)
        *asked = *entry;
    atomic_store_explicit(&known_is_taken, false, memory_order_release);
    return is_known;
}

static void keep(const struct known *found)
{
    if (found->number == 0 || atomic_exchange_explicit(&known_is_taken, true, memory_order_acquire))
        return;
    *entry_of(found) = *found;
    atomic_store_explicit(&known_is_taken, false, memory_order_release);
}

uint32_t dotnet_type(uintptr_t class)
{
    struct known type = {.of = class};
    if (recall(&type))
        return type.number;
    char name[1024];
    struct text text = {name, name + sizeof name - 1};
    if (!put_class(&text, class, 0))
        return 0;
    bool is_new;
    type.number = names_number(&types, names_hash(NAMES_SEED, name), &is_new);
    if (is_new)
        hooks->define_type(heap, type.number, name, "");
    keep(&type);
    return type.number;
}

/* ---- lines ---- */

static const struct dotnet_symbols *find_symbols(uintptr_t module)
{
    uint16_t wide[2048] = {0};
    char path[4096];
    uintptr_t base, assembly;
    uint32_t length = 0;
    struct text text = {path, path + sizeof path - 1};
    if (CLR(info, INFO_MODULE, (clr_object, uintptr_t, uintptr_t *, uint32_t, uint32_t *, uint16_t *, uintptr_t *), module,
            &base, sizeof wide / sizeof wide[0] - 1, &length, wide, &assembly) < 0)
        return NULL;
    path[0] = 0;
    put_wide(&text, wide);
    return dotnet_symbols_of(path);
}

/* The module's PDB, or NULL; false while another thread reads it. */
static bool symbols_of(uintptr_t module, const struct dotnet_symbols **found)
{
    lock_take(&modules_lock);
    struct module *place = place_of(module);
    bool is_there = place != NULL && place->module == module;
    bool is_to_look = is_there && place->symbols_state == NOT_LOOKED_FOR;
    bool is_known = !is_there || place->symbols_state == LOOKED_FOR;
    *found = is_there ? place->symbols : NULL;
    if (is_to_look)
        place->symbols_state = LOOKING_FOR;
    lock_release(&modules_lock);
    if (!is_to_look)
        return is_known;
    *found = find_symbols(module);
    lock_take(&modules_lock);
    place->symbols = *found;
    place->symbols_state = LOOKED_FOR;
    lock_release(&modules_lock);
    return true;
}

/* Which of the method's codes an address is in: it may have been compiled more than once. Inside of some events the runtime does
 * not say how long a code is. Then it is the nearest one before the address. */
static uintptr_t start_of_code(uintptr_t function, uintptr_t address)
{
    uintptr_t starts[16];
    uint32_t count = 0;
    if (CLR(info, INFO_CODE_STARTS, (clr_object, uintptr_t, uintptr_t, uint32_t, uint32_t *, uintptr_t *), function, 0, 16,
            &count, starts) < 0)
        return 0;
    uintptr_t nearest = 0;
    for (uint32_t i = 0; i < count && i < 16; i++) {
        struct clr_code code[2];
        uint32_t parts = 0;
        if (CLR(info, INFO_CODE_4, (clr_object, uintptr_t, uint32_t, uint32_t *, struct clr_code *), starts[i], 2, &parts,
                code) < 0) {
            nearest = starts[i] <= address && starts[i] > nearest ? starts[i] : nearest;
            continue;
        }
        /* The other part, if there is one, is code that hardly ever runs. */
        if (parts > 0 && address >= code[0].start && address - code[0].start < code[0].bytes)
            return code[0].start;
    }
    return nearest;
}

/* The offset in the intermediate language that the code at an address was made of; false: it is not known. */
static bool il_offset_of(uintptr_t function, uintptr_t address, uint32_t *il_offset)
{
    struct clr_mapping mappings[1024];
    const uint32_t room = sizeof mappings / sizeof mappings[0];
    uint32_t count = 0, nearest = 0;
    bool is_found = false;
    uintptr_t start = start_of_code(function, address);
    if (start == 0 || CLR(info, INFO_IL_TO_NATIVE_3, (clr_object, uintptr_t, uint32_t, uint32_t *, struct clr_mapping *), start,
                          room, &count, mappings) < 0)
        return false;
    /* Not all of a long method's code is in so many mappings. */
    bool is_inside = count > room;
    for (uint32_t i = 0; i < count && i < room; i++) {
        const struct clr_mapping *mapping = &mappings[i];
        is_inside |= address - start < mapping->end;
        if (mapping->il_offset < 0 || mapping->start > address - start || (is_found && mapping->start < nearest))
            continue;
        is_found = true;
        nearest = mapping->start;
        *il_offset = (uint32_t)mapping->il_offset;
    }
    return is_found && is_inside;
}

/* ---- methods ---- */

static bool put_method(struct text *text, clr_object metadata, uint32_t token)
{
    uint16_t name[512];
    uint32_t class = 0, length = 0, flags, signature_bytes, address, code_flags;
    const void *signature;
    if (CLR(metadata, METADATA_METHOD,
            (clr_object, uint32_t, uint32_t *, uint16_t *, uint32_t, uint32_t *, uint32_t *, const void **, uint32_t *,
             uint32_t *, uint32_t *),
            token, &class, name, sizeof name / sizeof name[0] - 1, &length, &flags, &signature, &signature_bytes,
            &address, &code_flags) < 0)
        return false;
    name[length < sizeof name / sizeof name[0] ? length : sizeof name / sizeof name[0] - 1] = 0;
    if (put_declared(text, metadata, class, 0))
        put(text, ".");
    put_wide(text, name);
    return true;
}

/* Made while the program runs, without metadata. */
static void put_dynamic(struct text *text, uintptr_t function)
{
    uint16_t name[512] = {0};
    uintptr_t module;
    const void *signature;
    uint32_t signature_bytes, length = 0;
    if (CLR(info, INFO_DYNAMIC_FUNCTION,
            (clr_object, uintptr_t, uintptr_t *, const void **, uint32_t *, uint32_t, uint32_t *, uint16_t *), function,
            &module, &signature, &signature_bytes, sizeof name / sizeof name[0] - 1, &length, name) < 0)
        name[0] = 0;
    put_wide(text, name);
    put(text, name[0] == 0 ? "(dynamic method)" : " (dynamic method)");
}

allocsample_frame dotnet_frame(uintptr_t function, uintptr_t address)
{
    struct known place = {.of = function, .at = address};
    uintptr_t class = 0, module = 0;
    uint32_t token = 0;
    if (recall(&place))
        return (allocsample_frame){.function = place.number, .line = place.line};
    char name[1024] = "";
    struct text text = {name, name + sizeof name - 1};
    bool has_token = CLR(info, INFO_FUNCTION, (clr_object, uintptr_t, uintptr_t *, uintptr_t *, uint32_t *), function,
                         &class, &module, &token) >= 0;
    clr_object metadata = has_token ? metadata_of(module) : NULL;
    bool has_name = metadata != NULL && put_method(&text, metadata, token);
    if (!has_name && has_token)
        put(&text, "(method of an unknown module)");
    else if (!has_name)
        put_dynamic(&text, function);
    char file[1024] = "";
    const struct dotnet_symbols *symbols = NULL;
    bool is_final = has_name && symbols_of(module, &symbols);
    uint32_t il_offset = 0;
    /* The address is where a call returns to. */
    if (symbols != NULL && il_offset_of(function, address - 1, &il_offset))
        place.line = dotnet_line(symbols, token, il_offset, file, sizeof file);
    place.number = names_function(&functions, hooks, heap, name, file, 0);
    /* The runtime gives the number of a dynamic method to another one when it is gone. */
    if (is_final)
        keep(&place);
    return (allocsample_frame){.function = place.number, .line = place.line};
}

bool dotnet_names_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap, clr_object the_info)
{
    hooks = the_hooks;
    heap = the_heap;
    info = the_info;
    return names_make(&functions) && names_make(&types);
}

void dotnet_names_after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
    names_after_fork_in_child(&types);
    lock_release(&modules_lock);
    atomic_store_explicit(&known_is_taken, false, memory_order_relaxed);
}
