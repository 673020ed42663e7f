/* Files and lines of R's code: its source references, which are there if it was parsed with `keep.source`.
 *
 * A source reference is a vector of integers, the line first, with its file as an attribute. Compiled code has a table with the
 * position of each instruction's reference among the constants. Code that is compiled has the symbol `in_byte_code` as reference. */
#include "r.h"

/* Tables are the last constants. */
#define LAST_CONSTANTS 4

#define KNOWN 4096
/* By the byte code and its constants, and the position in it; by the reference and its attributes for one of those. */
struct r_known_places {
    struct {
        uintptr_t object, part, file;
        int64_t offset;
        uint32_t line;
        uint32_t is_known;
    } entries[KNOWN];
};
_Static_assert(sizeof(struct r_known_places) == R_KNOWN_PLACES_BYTES, "the size that r.h tells");

static struct r_place of_reference(struct r_view *view, uintptr_t reference, const struct r_object *object)
{
    int32_t line;
    if (object->type != R_TYPE_INTEGERS || object->length < 4 ||
        !foreign_read(&view->reader, reference + R_ELEMENTS, &line, sizeof line) || line <= 0)
        return (struct r_place){0};
    uintptr_t file = r_attribute(view, object->attributes, view->constants.source_file);
    if (r_type_of(view, file) != R_TYPE_ENVIRONMENT)
        return (struct r_place){0};
    return (struct r_place){file, (uint32_t)line};
}

struct r_place r_places_of_reference(struct r_view *view, uintptr_t reference)
{
    struct r_object object = r_object_at(view, reference);
    return of_reference(view, reference, &object);
}

/* ---- byte code ---- */

intptr_t r_places_offset(struct r_view *view, uintptr_t body, uintptr_t pc)
{
    struct r_object code = r_object_at(view, body);
    if (code.type != R_TYPE_BYTE_CODE)
        return -1;
    struct r_object words = r_object_at(view, code.value);
    uintptr_t start = code.value + R_ELEMENTS, at = foreign_word(&view->reader, pc);
    /* The length is in integers, of which an instruction takes two. */
    if (words.type != R_TYPE_INTEGERS || words.length < 0 || at < start || (at - start) % sizeof(uintptr_t) != 0 ||
        at - start > (uintptr_t)words.length * sizeof(int32_t))
        return -1;
    return (intptr_t)((at - start) / sizeof(uintptr_t));
}

static bool is_table_of_references(struct r_view *view, const struct r_object *constant)
{
    char class[24];
    if (constant->type != R_TYPE_INTEGERS)
        return false;
    uintptr_t attribute = r_attribute(view, constant->attributes, view->constants.class);
    if (attribute == 0)
        return false;
    r_copy_text(view, attribute, class, sizeof class);
    return strcmp(class, "srcrefsIndex") == 0;
}

static struct r_place of_code(struct r_view *view, uintptr_t constants, intptr_t offset)
{
    struct r_object all = r_object_at(view, constants);
    if (all.type != R_TYPE_VECTOR)
        return (struct r_place){0};
    for (intptr_t at = all.length - 1; at >= 0 && at >= all.length - LAST_CONSTANTS; at--) {
        int32_t index;
        uintptr_t address = r_element(view, constants, at);
        struct r_object table = r_object_at(view, address);
        if (!is_table_of_references(view, &table))
            continue;
        if (offset >= table.length ||
            !foreign_read(&view->reader, address + R_ELEMENTS + (uintptr_t)offset * sizeof index, &index, sizeof index))
            break;
        return r_places_of_reference(view, r_element(view, constants, index));
    }
    return (struct r_place){0};
}

/* ---- both ---- */

struct r_place r_places_of(struct r_view *view, struct r_known_places *known, const struct r_position *position)
{
    bool is_code = position->reference == view->constants.in_byte_code;
    if (position->reference == 0 || position->reference == view->constants.nil || (is_code && position->offset < 0))
        return (struct r_place){0};
    uintptr_t address = is_code ? position->body : position->reference;
    struct r_object object = r_object_at(view, address);
    if (is_code && object.type != R_TYPE_BYTE_CODE)
        return (struct r_place){0};
    uintptr_t part = is_code ? object.next : object.attributes;
    int64_t offset = is_code ? position->offset : 0;
    size_t hash = ((address >> 3) ^ (part >> 4) ^ (uint64_t)offset * 31) * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    __auto_type entry = &known->entries[hash % KNOWN];
    if (entry->object != address || entry->part != part || entry->offset != offset || !entry->is_known) {
        struct r_place found = is_code ? of_code(view, part, position->offset) : of_reference(view, address, &object);
        *entry = (__typeof__(*entry)){address, part, found.file, offset, found.line, true};
    }
    return (struct r_place){entry->file, entry->line};
}

void r_places_copy_file(struct r_view *view, uintptr_t file, char *to, size_t room)
{
    uintptr_t name = file == 0 ? 0 : r_variable(view, file, "filename");
    to[0] = 0;
    if (name != 0)
        r_copy_text(view, name, to, room);
}
