/* Names of Perl's subs: "Package::sub", with the file and the line of the statement that they run.
 *
 * A sub has its name in a glob, whose stash is its package, or by itself (CvNAMED). All of it is foreign memory: a sub may be
 * freed while it runs. */
#define _GNU_SOURCE
#include "kit/names.h"
#include "perl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The head of any SV. */
enum { SV_BODY = 0, SV_FLAGS = 12, SV_ARRAY = 16, SV_HEAD_BYTES = 24, SV_TYPE = 0xff };
#define SV_HAS_AUX 0x02000000u /* SVf_OOK of a hash */
#define SUB_HAS_OWN_NAME 0x8000u /* CVf_NAMED */
#define SUB_IS_LEXICAL 0x10000u  /* CVf_LEXICAL */
/* HEK: a name that is shared. */
enum { HEK_LENGTH = 4, HEK_TEXT = 8 };
#define OP_TYPE 0x1ff

/* Enough for all fields of a statement, or of a sub, that are read. */
enum { COP_BYTES = 64, SUB_BYTES = 128 };

/* Texts that are evaluated and have a number in the file of their subs. */
#define NUMBERED_EVALS 1000

#define KNOWN 4096
/* By the address of a sub and of a statement that it runs. Perl numbers statements as it compiles them, so that one with the same
 * number at the same address is the same. `sub` is the name of code outside of subs. */
struct perl_known {
    struct {
        uintptr_t sub, cop, file;
        uint32_t sequence, line, number; /* a number of 0: none */
        uint32_t reserved;
    } entries[KNOWN];
};
_Static_assert(sizeof(struct perl_known) == PERL_KNOWN_BYTES, "the size that perl.h tells");

static const char anonymous[] = "__ANON__";
static struct names functions;

bool perl_names_make(void)
{
    return names_make(&functions);
}

void perl_names_after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
}

/* ---- texts ---- */

static void copy_hek(struct foreign_reader *reader, uintptr_t hek, size_t skipped, char *to, size_t room)
{
    int32_t length = 0;
    to[0] = 0;
    if (hek == 0 || !foreign_read(reader, hek + HEK_LENGTH, &length, sizeof length) || length <= 0 || (size_t)length <= skipped)
        return;
    size_t bytes = (size_t)length - skipped;
    if (bytes > room - 1)
        bytes = room - 1;
    if (!foreign_read(reader, hek + HEK_TEXT + skipped, to, bytes))
        bytes = 0;
    to[bytes] = 0;
}

/* ---- statements ---- */

struct place {
    uintptr_t file; /* a text, or a glob where perl has no threads */
    uint32_t line, sequence;
};

static struct place place_of(const struct perl *perl, struct foreign_reader *reader, uintptr_t cop)
{
    struct place place = {0};
    uint8_t bytes[COP_BYTES];
    const struct perl_layout *layout = perl->layout;
    if (!foreign_read(reader, cop + layout->cop_line, bytes, layout->cop_sequence + sizeof place.sequence - layout->cop_line))
        return place;
    memcpy(&place.line, bytes, sizeof place.line);
    memcpy(&place.file, bytes + layout->cop_file - layout->cop_line, sizeof place.file);
    memcpy(&place.sequence, bytes + layout->cop_sequence - layout->cop_line, sizeof place.sequence);
    return place;
}

static void copy_file(const struct perl *perl, struct foreign_reader *reader, uintptr_t file, char *to, size_t room)
{
    if (perl->layout->has_threads) {
        foreign_text(reader, file, to, room);
        return;
    }
    /* The glob "_<file". */
    uintptr_t body = file == 0 ? 0 : foreign_word(reader, file + SV_BODY);
    copy_hek(reader, body == 0 ? 0 : foreign_word(reader, body + perl->layout->glob_name), 2, to, room);
}

/* Texts that are evaluated are numbered, "(eval 12)". The number is left out from `end` on: a program may evaluate the same text a
 * million times. */
static void drop_number(char *file, unsigned long end)
{
    static const char eval[] = "(eval ";
    if (strncmp(file, eval, strlen(eval)) == 0 && strtoul(file + strlen(eval), NULL, 10) >= end)
        memcpy(file, "(eval)", sizeof "(eval)");
}

/* ---- subs ---- */

struct sub {
    uintptr_t stash, start, name;
    uint32_t flags;
};

static bool read_sub(const struct perl *perl, struct foreign_reader *reader, uintptr_t address, struct sub *sub)
{
    uint8_t head[SV_HEAD_BYTES];
    uintptr_t body;
    uint32_t flags;
    const struct perl_layout *layout = perl->layout;
    if (address == 0 || address % sizeof(uintptr_t) != 0 || !foreign_read(reader, address, head, sizeof head))
        return false;
    memcpy(&body, head + SV_BODY, sizeof body);
    memcpy(&flags, head + SV_FLAGS, sizeof flags);
    if ((flags & SV_TYPE) != layout->sv_type_sub && (flags & SV_TYPE) != layout->sv_type_format)
        return false;
    uint8_t bytes[SUB_BYTES];
    if (!foreign_read(reader, body + layout->sub_stash, bytes, layout->sub_flags + sizeof flags - layout->sub_stash))
        return false;
    memcpy(&sub->stash, bytes, sizeof sub->stash);
    memcpy(&sub->start, bytes + layout->sub_start - layout->sub_stash, sizeof sub->start);
    memcpy(&sub->name, bytes + layout->sub_name - layout->sub_stash, sizeof sub->name);
    memcpy(&sub->flags, bytes + layout->sub_flags - layout->sub_stash, sizeof sub->flags);
    return true;
}

static void copy_package(const struct perl *perl, struct foreign_reader *reader, uintptr_t stash, char *to, size_t room)
{
    uint8_t head[SV_HEAD_BYTES];
    uintptr_t body, array, aux;
    uint32_t flags;
    int32_t names;
    const struct perl_layout *layout = perl->layout;
    to[0] = 0;
    if (stash == 0 || !foreign_read(reader, stash, head, sizeof head))
        return;
    memcpy(&body, head + SV_BODY, sizeof body);
    memcpy(&flags, head + SV_FLAGS, sizeof flags);
    memcpy(&array, head + SV_ARRAY, sizeof array);
    if ((flags & SV_TYPE) != layout->sv_type_hash || (flags & SV_HAS_AUX) == 0)
        return;
    if (layout->stash_aux != 0)
        aux = body + layout->stash_aux;
    else
        aux = array + (foreign_word(reader, body + layout->stash_max) + 1) * sizeof(uintptr_t);
    uintptr_t name = foreign_word(reader, aux + layout->aux_name);
    /* A package that goes by several names has them in an array. */
    if (name != 0 && foreign_read(reader, aux + layout->aux_names, &names, sizeof names) && names != 0)
        name = foreign_word(reader, name);
    copy_hek(reader, name, 0, to, room);
}

static void copy_name(const struct perl *perl, struct foreign_reader *reader, const struct sub *sub, char *to, size_t room)
{
    uintptr_t stash = sub->stash, name = sub->name;
    if ((sub->flags & SUB_HAS_OWN_NAME) == 0) {
        uintptr_t body = name == 0 ? 0 : foreign_word(reader, name + SV_BODY);
        stash = body == 0 ? sub->stash : foreign_word(reader, body + perl->layout->glob_stash);
        name = body == 0 ? 0 : foreign_word(reader, body + perl->layout->glob_name);
    }
    size_t length = 0;
    if ((sub->flags & SUB_IS_LEXICAL) == 0) {
        copy_package(perl, reader, stash, to, room / 2);
        length = strlen(to);
    }
    if (length > 0) {
        memcpy(to + length, "::", 2);
        length += 2;
    }
    copy_hek(reader, name, 0, to + length, room - length);
    if (to[length] == 0)
        snprintf(to + length, room - length, "%s", anonymous);
}

/* The line of a sub's first statement, if that is in this file. It tells anonymous subs apart. */
static uint32_t first_line_of(const struct perl *perl, struct foreign_reader *reader, const struct sub *sub, const char *file)
{
    uint16_t type;
    char own_file[1024];
    if (sub->start == 0 || !foreign_read(reader, sub->start + perl->layout->op_type, &type, sizeof type))
        return 0;
    type &= OP_TYPE;
    if (type != perl->layout->next_statement && type != perl->layout->debugged_statement)
        return 0;
    struct place first = place_of(perl, reader, sub->start);
    copy_file(perl, reader, first.file, own_file, sizeof own_file);
    drop_number(own_file, NUMBERED_EVALS);
    return strcmp(own_file, file) == 0 ? first.line : 0;
}

/* "Package::__ANON__[file.pl:12]", as Perl's own profilers name them. */
static void name_anonymous(char *name, size_t room, const char *file, uint32_t first_line)
{
    size_t length = strlen(name);
    const char *slash = strrchr(file, '/');
    bool is_anonymous = length >= strlen(anonymous) && strcmp(name + length - strlen(anonymous), anonymous) == 0;
    if (is_anonymous && first_line != 0)
        snprintf(name + length, room - length, "[%.200s:%u]", slash == NULL ? file : slash + 1, first_line);
}

static uint32_t define_sub(const struct perl *perl, struct foreign_reader *reader, const struct sub *sub, uintptr_t file)
{
    char name[768], text[1024];
    copy_name(perl, reader, sub, name, sizeof name - 256);
    copy_file(perl, reader, file, text, sizeof text);
    drop_number(text, NUMBERED_EVALS);
    uint32_t first_line = first_line_of(perl, reader, sub, text);
    name_anonymous(name, sizeof name, text, first_line);
    return names_function(&functions, perl->hooks, perl->heap, name, text, first_line);
}

static uint32_t define_code(const struct perl *perl, struct foreign_reader *reader, const char *name, uintptr_t file)
{
    char text[1024];
    copy_file(perl, reader, file, text, sizeof text);
    drop_number(text, 0);
    return names_function(&functions, perl->hooks, perl->heap, name, text, 0);
}

static uint32_t define(const struct perl *perl, struct foreign_reader *reader, uintptr_t address, const char *name, uintptr_t file)
{
    struct sub sub;
    if (address == 0)
        return define_code(perl, reader, name, file);
    return read_sub(perl, reader, address, &sub) ? define_sub(perl, reader, &sub, file) : 0;
}

allocsample_frame perl_names_frame(const struct perl *perl, struct foreign_reader *reader, struct perl_known *known,
                                   uintptr_t address, const char *name, uintptr_t cop)
{
    struct place at = place_of(perl, reader, cop);
    if (known == NULL)
        return (allocsample_frame){.function = define(perl, reader, address, name, at.file), .line = at.line};
    uintptr_t key = address != 0 ? address : (uintptr_t)name;
    size_t hash = ((key >> 3) ^ (cop >> 3) * 31) * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    __auto_type entry = &known->entries[hash % KNOWN];
    if (entry->sub != key || entry->cop != cop || entry->file != at.file || entry->sequence != at.sequence ||
        entry->line != at.line || entry->number == 0) {
        uint32_t number = define(perl, reader, address, name, at.file);
        *entry = (__typeof__(*entry)){key, cop, at.file, at.sequence, at.line, number, 0};
    }
    return (allocsample_frame){.function = entry->number, .line = at.line};
}
