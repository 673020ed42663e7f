/* R's objects, which are where R's headers of 4.0 to 4.6 have them. All of it is foreign memory: an object may be freed, and its
 * page given back, at any time. */
#include "r.h"

/* The first word: five bits of its type, and others. */
enum { HEAD_TYPE = 0x1f, HEAD_IS_ALTERNATIVE = 0x80 };
enum { ATTRIBUTES = 8, FIRST_WORD = 32, OBJECT_BYTES = 56 };
/* Links of a list that are followed, and buckets of an environment. */
#define MOST_LINKS 256
#define MOST_BUCKETS (1 << 24)
/* Variables of an environment among which a value is looked for. */
#define MOST_VARIABLES 8192
#define BUCKETS_AT_ONCE 64

struct r_object r_object_at(struct r_view *view, uintptr_t address)
{
    struct r_object object = {.type = R_TYPE_UNKNOWN};
    uint8_t bytes[OBJECT_BYTES];
    if (address == 0 || address % sizeof(uintptr_t) != 0)
        return object;
    /* A vector's head is a word shorter, and may be the last that its page has. */
    if (!foreign_read(&view->reader, address, bytes, OBJECT_BYTES - sizeof(uintptr_t)))
        return object;
    memset(bytes + OBJECT_BYTES - sizeof(uintptr_t), 0, sizeof(uintptr_t));
    foreign_read(&view->reader, address + OBJECT_BYTES - sizeof(uintptr_t), bytes + OBJECT_BYTES - sizeof(uintptr_t), sizeof(uintptr_t));
    /* Objects that compute their contents are none that are looked for. */
    if ((bytes[0] & HEAD_IS_ALTERNATIVE) != 0)
        return object;
    object.type = bytes[0] & HEAD_TYPE;
    memcpy(&object.attributes, bytes + ATTRIBUTES, sizeof object.attributes);
    memcpy(&object.value, bytes + FIRST_WORD, 3 * sizeof(uintptr_t));
    return object;
}

uint8_t r_type_of(struct r_view *view, uintptr_t address)
{
    uint8_t first;
    if (address == 0 || address % sizeof(uintptr_t) != 0 || !foreign_read(&view->reader, address, &first, sizeof first))
        return R_TYPE_UNKNOWN;
    return first & HEAD_TYPE;
}

uintptr_t r_element(struct r_view *view, uintptr_t vector, intptr_t at)
{
    struct r_object object = r_object_at(view, vector);
    if ((object.type != R_TYPE_VECTOR && object.type != R_TYPE_STRINGS) || at < 0 || at >= object.length)
        return 0;
    return foreign_word(&view->reader, vector + R_ELEMENTS + (uintptr_t)at * sizeof(uintptr_t));
}

uintptr_t r_attribute(struct r_view *view, uintptr_t attributes, uintptr_t symbol)
{
    for (int links = 0; links < MOST_LINKS && attributes != view->constants.nil; links++) {
        struct r_object link = r_object_at(view, attributes);
        if (link.type != R_TYPE_LIST)
            return 0;
        if (link.tag == symbol)
            return link.value;
        attributes = link.next;
    }
    return 0;
}

/* ---- texts ---- */

/* The characters of a symbol's name, or of a vector's first string; `length` is how many. 0: it has none. */
static uintptr_t characters_of(struct r_view *view, uintptr_t address, size_t *length)
{
    struct r_object object = r_object_at(view, address);
    uintptr_t characters = address;
    if (object.type == R_TYPE_SYMBOL)
        characters = object.name;
    else if (object.type == R_TYPE_STRINGS)
        characters = r_element(view, address, 0);
    struct r_object text = r_object_at(view, characters);
    if (text.type != R_TYPE_CHARACTERS || text.length < 0)
        return 0;
    *length = (size_t)text.length;
    return characters + R_ELEMENTS;
}

void r_copy_text(struct r_view *view, uintptr_t object, char *to, size_t room)
{
    size_t length = 0;
    uintptr_t characters = characters_of(view, object, &length);
    if (length > room - 1)
        length = room - 1;
    if (characters == 0 || !foreign_read(&view->reader, characters, to, length))
        length = 0;
    to[length] = 0;
}

static bool is_text(struct r_view *view, uintptr_t object, const char *text)
{
    char found[64];
    size_t length = 0, wanted = strlen(text);
    uintptr_t characters = characters_of(view, object, &length);
    return characters != 0 && length == wanted && wanted <= sizeof found &&
           foreign_read(&view->reader, characters, found, length) && memcmp(found, text, length) == 0;
}

/* ---- variables ---- */

static uintptr_t variable_in(struct r_view *view, uintptr_t list, const char *name)
{
    for (int links = 0; links < MOST_LINKS && list != view->constants.nil; links++) {
        struct r_object link = r_object_at(view, list);
        if (link.type != R_TYPE_LIST)
            return 0;
        if (is_text(view, link.tag, name))
            return link.value;
        list = link.next;
    }
    return 0;
}

/* As R hashes the names of variables (P. J. Weinberger's function). */
static uint32_t hash_of(const char *name)
{
    uint32_t hash = 0;
    for (; *name != 0; name++) {
        hash = (hash << 4) + (uint32_t)*name;
        uint32_t high = hash & 0xf0000000u;
        hash = (hash ^ high >> 24) & ~high;
    }
    return hash;
}

uintptr_t r_variable(struct r_view *view, uintptr_t environment, const char *name)
{
    struct r_object object = r_object_at(view, environment);
    if (object.type != R_TYPE_ENVIRONMENT)
        return 0;
    struct r_object table = r_object_at(view, object.table);
    if (table.type != R_TYPE_VECTOR)
        return variable_in(view, object.variables, name);
    if (table.length <= 0 || table.length > MOST_BUCKETS)
        return 0;
    return variable_in(view, r_element(view, object.table, hash_of(name) % table.length), name);
}

/* A function of a package is read from disk when it is first needed: until then a promise stands for it. */
static bool is_bound_to(struct r_view *view, uintptr_t bound, uintptr_t value)
{
    if (bound == value)
        return true;
    struct r_object promise = r_object_at(view, bound);
    return promise.type == R_TYPE_PROMISE && promise.value == value;
}

bool r_is_variable(struct r_view *view, uintptr_t environment, const char *name, uintptr_t value)
{
    uintptr_t bound = r_variable(view, environment, name);
    return bound != 0 && is_bound_to(view, bound, value);
}

static bool name_in(struct r_view *view, uintptr_t list, uintptr_t value, char *to, size_t room, int *links)
{
    while (list != view->constants.nil && (*links)++ < MOST_VARIABLES) {
        struct r_object link = r_object_at(view, list);
        if (link.type != R_TYPE_LIST)
            return false;
        if (is_bound_to(view, link.value, value)) {
            r_copy_text(view, link.tag, to, room);
            return to[0] != 0;
        }
        list = link.next;
    }
    return false;
}

bool r_copy_name_of(struct r_view *view, uintptr_t environment, uintptr_t value, char *to, size_t room)
{
    /* What is read here is not read again in the next walk. */
    struct r_view once = *view;
    once.reader.lines = NULL;
    int links = 0;
    struct r_object object = r_object_at(&once, environment), table = r_object_at(&once, object.table);
    if (object.type != R_TYPE_ENVIRONMENT)
        return false;
    if (table.type != R_TYPE_VECTOR)
        return name_in(&once, object.variables, value, to, room, &links);
    for (intptr_t at = 0; at < table.length && at < MOST_VARIABLES; at += BUCKETS_AT_ONCE) {
        uintptr_t lists[BUCKETS_AT_ONCE];
        size_t count = table.length - at < BUCKETS_AT_ONCE ? (size_t)(table.length - at) : BUCKETS_AT_ONCE;
        if (!foreign_copy(object.table + R_ELEMENTS + (uintptr_t)at * sizeof lists[0], lists, count * sizeof lists[0]))
            return false;
        for (size_t i = 0; i < count; i++) {
            if (name_in(&once, lists[i], value, to, room, &links))
                return true;
        }
    }
    return false;
}
