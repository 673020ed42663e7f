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

static struct r_object object_in(const uint8_t *bytes)
{
    struct r_object object = {.type = R_TYPE_UNKNOWN};
    /* Objects that compute their contents are none that are looked for. */
    if ((bytes[0] & HEAD_IS_ALTERNATIVE) != 0)
        return object;
    object.type = bytes[0] & HEAD_TYPE;
    memcpy(&object.attributes, bytes + ATTRIBUTES, sizeof object.attributes);
    memcpy(&object.value, bytes + FIRST_WORD, 3 * sizeof(uintptr_t));
    return object;
}

struct r_object r_object_at(struct r_view *view, uintptr_t address)
{
    struct r_object object = {.type = R_TYPE_UNKNOWN};
    uint8_t bytes[OBJECT_BYTES];
    if (address == 0 || address % sizeof(uintptr_t) != 0)
        return object;
    /* A vector's head is a word shorter, and may be the last that its page has. */
    memset(bytes, 0, sizeof bytes);
    if (!foreign_read(&view->reader, address, bytes, sizeof bytes) &&
        !foreign_read(&view->reader, address, bytes, sizeof bytes - sizeof(uintptr_t)))
        return object;
    return object_in(bytes);
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

/* A function of a package is read from disk when it is first needed: until then, and afterwards, a promise stands for it. */
static bool is_promise_of(const struct r_object *promise, uintptr_t value)
{
    return promise->type == R_TYPE_PROMISE && promise->value == value;
}

bool r_is_variable(struct r_view *view, uintptr_t environment, const char *name, uintptr_t value)
{
    uintptr_t bound = r_variable(view, environment, name);
    struct r_object promise = r_object_at(view, bound);
    return bound == value || is_promise_of(&promise, value);
}

/* Reads objects with one call. */
static size_t read_together(const uintptr_t *addresses, size_t count, struct r_object *objects)
{
    uint8_t bytes[BUCKETS_AT_ONCE * OBJECT_BYTES];
    struct iovec pieces[BUCKETS_AT_ONCE];
    for (size_t i = 0; i < count; i++)
        pieces[i] = (struct iovec){(void *)addresses[i], OBJECT_BYTES};
    size_t got = shim_services.copy_foreign(bytes, sizeof bytes, pieces, count) / OBJECT_BYTES;
    for (size_t i = 0; i < got; i++)
        objects[i] = object_in(bytes + i * OBJECT_BYTES);
    return got;
}

/* The tag of the first of these links that is bound to the value; 0: of none. */
static uintptr_t tag_among(const struct r_object *links, size_t count, uintptr_t value)
{
    uintptr_t bound[BUCKETS_AT_ONCE];
    struct r_object objects[BUCKETS_AT_ONCE];
    for (size_t i = 0; i < count; i++) {
        if (links[i].value == value)
            return links[i].tag;
        bound[i] = links[i].value;
    }
    /* A number may stand in a link itself, and then leads nowhere. */
    for (size_t at = 0, got; at < count; at += got + 1) {
        got = read_together(bound + at, count - at, objects);
        for (size_t i = 0; i < got; i++) {
            if (is_promise_of(&objects[i], value))
                return links[at + i].tag;
        }
    }
    return 0;
}

/* Of these lists. */
static uintptr_t tag_in(struct r_view *view, uintptr_t *lists, size_t count, uintptr_t value, size_t *links)
{
    struct r_object objects[BUCKETS_AT_ONCE];
    while (*links < MOST_VARIABLES) {
        size_t left = 0;
        for (size_t i = 0; i < count; i++) {
            if (lists[i] != view->constants.nil)
                lists[left++] = lists[i];
        }
        if (left == 0 || read_together(lists, left, objects) != left)
            return 0;
        uintptr_t tag = tag_among(objects, left, value);
        if (tag != 0)
            return tag;
        for (size_t i = 0; i < left; i++)
            lists[i] = objects[i].type == R_TYPE_LIST ? objects[i].next : view->constants.nil;
        *links += left;
        count = left;
    }
    return 0;
}

bool r_copy_name_of(struct r_view *view, uintptr_t environment, uintptr_t value, char *to, size_t room)
{
    uintptr_t lists[BUCKETS_AT_ONCE], tag = 0;
    size_t links = 0;
    struct r_object object = r_object_at(view, environment), table = r_object_at(view, object.table);
    if (object.type != R_TYPE_ENVIRONMENT)
        return false;
    if (table.type != R_TYPE_VECTOR) {
        lists[0] = object.variables;
        tag = tag_in(view, lists, 1, value, &links);
    }
    for (intptr_t at = 0; table.type == R_TYPE_VECTOR && tag == 0 && at < table.length && at < MOST_VARIABLES; at += BUCKETS_AT_ONCE) {
        size_t count = table.length - at < BUCKETS_AT_ONCE ? (size_t)(table.length - at) : BUCKETS_AT_ONCE;
        if (!foreign_copy(object.table + R_ELEMENTS + (uintptr_t)at * sizeof lists[0], lists, count * sizeof lists[0]))
            return false;
        tag = tag_in(view, lists, count, value, &links);
    }
    to[0] = 0;
    if (tag != 0)
        r_copy_text(view, tag, to, room);
    return to[0] != 0;
}
