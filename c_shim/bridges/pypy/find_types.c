/* Finds a build's types and code objects: RPython stores the names of all types and their fields, and their numbers. */
#define _GNU_SOURCE
#include "find_types.h"

/* The numbers end right before the names; 0 if there are none. They ascend, with zeros in between. */
static uint64_t numbers_before(const struct image *image, const struct segment *segment, uint64_t names)
{
    enum { LEAST = 100, MOST = 1 << 16, GAP = 64 };
    const uint8_t *data = image->file + segment->offset;
    for (uint64_t back = 8; back <= names && back < MOST * 4 + GAP; back += 8) {
        uint64_t count = word_at(data + names - back);
        if (count < LEAST || count > MOST || count * 4 + 8 > back || back - (count * 4 + 8) >= GAP)
            continue;
        uint32_t last = 0;
        uint64_t i = 0;
        for (; i < count; i++) {
            uint32_t number = (uint32_t)int_at(data + names - back + 8 + i * 4);
            if (number != 0 && (number <= last || number % 8 != 0))
                break;
            last = number != 0 ? number : last;
        }
        if (i == count)
            return names - back;
    }
    return 0;
}

/* The place of a name in the list between braces behind `start`; -1: it is not there. */
static int position_of(const char *start, const char *name)
{
    const char *end = strchrnul(start, '}'), *next = strchrnul(start, '{');
    size_t length = strlen(name);
    for (int position = 0; next < end; position++) {
        next += *next == '{' ? 2 : 1;
        if (next >= end)
            return -1;
        if (next + length < end && strncmp(next, name, length) == 0 && (next[length] == ',' || next[length] == ' '))
            return position;
        next = strchrnul(next, ' ');
        while (next < end && next[-1] != ',')
            next = strchrnul(next + 1, ' ');
    }
    return -1;
}

/* The line of a type, with its number; NULL: there is none, or no objects are made of it. */
static const char *type_line(const struct image *image, const struct pypy_build *found, const char *names, const char *type,
                             uint32_t *number)
{
    const char *line = strstr(names, type);
    const uint8_t *numbers = pypy_image_at(image, found->type_ids, 8);
    if (line == NULL || numbers == NULL)
        return NULL;
    uint64_t before = 0;
    for (const char *next = names; (next = strchr(next, '\n')) != NULL && next < line; next++)
        before++;
    if (before >= word_at(numbers))
        return NULL;
    *number = (uint32_t)int_at(numbers + 8 + before * 4);
    return *number != 0 ? line : NULL;
}

/* Finds the fields of code objects, which have 8 bytes each and follow the header and the inherited fields. The object space is a
 * constant, and takes no bytes. */
static bool find_code_fields(const struct image *image, struct pypy_build *found, const char *names)
{
    const char *code = type_line(image, found, names, "GcStruct pypy.interpreter.pycode.PyCode {", &found->code_type);
    const char *inherited = strstr(names, "GcStruct pypy.interpreter.eval.Code {");
    if (code == NULL || inherited == NULL ||
        type_line(image, found, names, "GcStruct rpy_string {", &found->string_type) == NULL)
        return false;
    int name = position_of(inherited, "inst_co_name"), last = position_of(inherited, "inst_hidden_applevel");
    int space = position_of(code, "inst_space"), number = position_of(code, "inst__vmprof_unique_id");
    int file = position_of(code, "inst_co_filename"), line = position_of(code, "inst_co_firstlineno");
    if (name < 1 || last < name || space != 1 || number < 2 || file < 2 || line < 2)
        return false;
    int start = 1 + last - 2;
    found->name = 8u * (uint32_t)name;
    found->number = 8u * (uint32_t)(start + number);
    found->file = 8u * (uint32_t)(start + file);
    found->line = 8u * (uint32_t)(start + line);
    return true;
}

/* The list is made before the program starts: its header is in the file. */
void pypy_find_codes(const struct image *image, struct pypy_build *found, const char *names, struct pypy_votes *votes)
{
    uint32_t type;
    const char *line = type_line(image, found, names, "GcStruct rpython.rlib.rvmprof.rvmprof.WeakCodeObjectList {", &type);
    int handles = line == NULL ? -1 : position_of(line, "inst_handles");
    uint64_t header = UINT64_C(3) << 32 | type, list = 0;
    if (handles < 1 || !find_code_fields(image, found, names))
        return;
    for (size_t i = 0; i < image->segment_count; i++) {
        const struct segment *segment = &image->segments[i];
        const uint8_t *data = image->file + segment->offset;
        uint64_t start = -segment->address % 8;
        for (uint64_t place = start; segment->is_writable && place + 32 <= segment->bytes; place += 8) {
            if (word_at(data + place) == header) {
                list = segment->address + place;
                votes[PYPY_CODES].all++;
            }
        }
    }
    votes[PYPY_CODES].winner = votes[PYPY_CODES].all > 0;
    if (pypy_is_unanimous(votes[PYPY_CODES])) {
        found->codes = (uint32_t)list;
        found->handles = 8u * (uint32_t)handles;
    }
}

static bool unpacks(const struct pypy_search *search, const uint8_t *packed, uint64_t bytes)
{
    unsigned long length = search->room_bytes - 1;
    if (search->uncompress == NULL)
        return true;
    if (search->uncompress(search->room, &length, packed, bytes) != 0 || length < 8 ||
        memcmp(search->room, "member0 ", 8) != 0)
        return false;
    search->room[length] = 0;
    return true;
}

/* The names are in the file as zlib packs them, behind their length. */
bool pypy_find_types(const struct image *image, const struct pypy_search *search, struct pypy_build *found,
                     struct pypy_votes *votes)
{
    enum { LEAST = 1000, MOST = 1 << 22, TRIED_MOST = 256 };
    size_t tried = 0;
    for (size_t i = 0; i < image->segment_count; i++) {
        const struct segment *segment = &image->segments[i];
        const uint8_t *data = image->file + segment->offset;
        uint64_t start = -segment->address % 8;
        for (uint64_t place = start; segment->is_writable && place + 16 <= segment->bytes; place += 8) {
            uint64_t packed = word_at(data + place);
            if (packed < LEAST || packed > MOST || packed > segment->bytes - place - 8 || data[place + 8] != 0x78 ||
                (data[place + 8] * 256 + data[place + 9]) % 31 != 0 || tried++ >= TRIED_MOST)
                continue;
            uint64_t numbers = numbers_before(image, segment, place);
            if (numbers == 0 || !unpacks(search, data + place + 8, packed))
                continue;
            found->type_names = (uint32_t)(segment->address + place);
            found->type_ids = (uint32_t)(segment->address + numbers);
            votes[PYPY_TYPES].all++;
        }
    }
    votes[PYPY_TYPES].winner = votes[PYPY_TYPES].all > 0;
    return pypy_is_unanimous(votes[PYPY_TYPES]);
}
