/* See debug_file.h. */
#define _GNU_SOURCE
#include "kit/debug_file.h"

#include "kit/symbol_file.h"

#include <string.h>

#define DEBUG_FILES "/usr/lib/debug"

/* A file has one note or two; the build id is 20 bytes long, or 16 or 8. */
#define MOST_NOTES 16
#define NOTE_BYTES 1024
#define LONGEST_ID 32
#define LONGEST_NAME 256
#define LONGEST_PATH 4096

struct build_id {
    size_t bytes; /* 0: it has none */
    uint8_t id[LONGEST_ID];
};

/* ---- build ids ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + 3) & ~(size_t)3;
}

static void find_in_notes(const uint8_t *notes, size_t bytes, struct build_id *id)
{
    Elf64_Nhdr note;
    for (size_t at = 0; id->bytes == 0 && bytes - at >= sizeof note;) {
        memcpy(&note, notes + at, sizeof note);
        at += sizeof note;
        if (note.n_namesz > bytes - at || aligned(note.n_namesz) > bytes - at)
            return;
        const uint8_t *name = notes + at;
        at += aligned(note.n_namesz);
        if (note.n_descsz > bytes - at)
            return;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof ELF_NOTE_GNU &&
            memcmp(name, ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0 && note.n_descsz <= LONGEST_ID) {
            id->bytes = note.n_descsz;
            memcpy(id->id, notes + at, note.n_descsz);
        }
        size_t rest = bytes - at;
        at += aligned(note.n_descsz) < rest ? aligned(note.n_descsz) : rest;
    }
}

/* In a debug file, segments describe the stripped file, but sections are where they say. */
static void read_build_id(struct elf_file *file, struct build_id *id)
{
    uint8_t notes[NOTE_BYTES];
    Elf64_Shdr section;
    *id = (struct build_id){0};
    size_t seen = 0;
    for (unsigned i = 0; id->bytes == 0 && seen < MOST_NOTES && elf_file_section(file, i, &section); i++) {
        if (section.sh_type != SHT_NOTE || section.sh_size > sizeof notes)
            continue;
        seen++;
        if (elf_file_read(file, notes, section.sh_size, section.sh_offset))
            find_in_notes(notes, section.sh_size, id);
    }
}

/* ---- which file ---- */

static bool is_code(const Elf64_Shdr *section)
{
    uint64_t wanted = SHF_ALLOC | SHF_EXECINSTR;
    return (section->sh_flags & wanted) == wanted;
}

/* The next section of code; false: there is none. */
static bool next_code(struct elf_file *file, unsigned *index, Elf64_Shdr *section)
{
    while (elf_file_section(file, (*index)++, section))
        if (is_code(section))
            return true;
    return false;
}

/* Whether code has the same addresses in both. */
static bool has_same_code(struct elf_file *one, struct elf_file *other)
{
    unsigned of_one = 0, of_other = 0, count = 0;
    for (;; count++) {
        Elf64_Shdr section, same;
        bool is_there = next_code(one, &of_one, &section);
        if (next_code(other, &of_other, &same) != is_there)
            return false;
        if (!is_there)
            return count > 0;
        if (section.sh_addr != same.sh_addr || section.sh_size != same.sh_size)
            return false;
    }
}

struct wanted {
    struct elf_file *stripped;
    struct build_id id;
};

static bool open_wanted(struct elf_file *file, const struct wanted *wanted, const char *path)
{
    struct elf_file *stripped = wanted->stripped;
    struct build_id id;
    if (!elf_file_open(file, path, 0))
        return false;
    read_build_id(file, &id);
    if (id.bytes == wanted->id.bytes && memcmp(id.id, wanted->id.id, id.bytes) == 0 &&
        (file->owner == 0 || file->owner == stripped->owner) && file->header.e_machine == stripped->header.e_machine &&
        has_same_code(file, stripped))
        return true;
    elf_file_close(file);
    return false;
}

/* ---- where it is ---- */

struct path {
    size_t length;
    char text[LONGEST_PATH];
};

/* What has no room makes a path that nothing has. */
static void add(struct path *path, const char *text, size_t length)
{
    if (length >= sizeof path->text - path->length) {
        path->length = 0;
        path->text[0] = 0;
        return;
    }
    memcpy(path->text + path->length, text, length);
    path->length += length;
    path->text[path->length] = 0;
}

static void add_text(struct path *path, const char *text)
{
    add(path, text, strlen(text));
}

static void add_hex(struct path *path, const uint8_t *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++)
        add(path, (const char[]){digits[bytes[i] >> 4], digits[bytes[i] & 15]}, 2);
}

static bool open_by_id(struct elf_file *file, const struct wanted *wanted)
{
    struct path path = {0};
    add_text(&path, DEBUG_FILES "/.build-id/");
    add_hex(&path, wanted->id.id, 1);
    add_text(&path, "/");
    add_hex(&path, wanted->id.id + 1, wanted->id.bytes - 1);
    add_text(&path, ".debug");
    return open_wanted(file, wanted, path.text);
}

/* The name in .gnu_debuglink, a file's and no path. The checksum behind it would take a pass through the whole debug file, and the
 * build id says more. */
static bool read_link(struct elf_file *file, char name[LONGEST_NAME])
{
    static const char link[] = ".gnu_debuglink";
    Elf64_Shdr names, section;
    char of_section[sizeof link];
    if (!elf_file_section(file, file->header.e_shstrndx, &names))
        return false;
    for (unsigned i = 0; elf_file_section(file, i, &section); i++) {
        if (section.sh_type != SHT_PROGBITS || section.sh_flags != 0 || section.sh_size > LONGEST_NAME ||
            !elf_file_read(file, of_section, sizeof link, names.sh_offset + section.sh_name) ||
            memcmp(of_section, link, sizeof link) != 0)
            continue;
        return elf_file_read(file, name, section.sh_size, section.sh_offset) &&
               strnlen(name, section.sh_size) < section.sh_size && name[0] != 0 && strchr(name, '/') == NULL;
    }
    return false;
}

static bool open_by_link(struct elf_file *file, const struct wanted *wanted, const char *stripped_path)
{
    static const char *const before[] = {"", "", DEBUG_FILES}, *const behind[] = {"", ".debug/", ""};
    size_t directory = (size_t)(symbol_file_name(stripped_path) - stripped_path);
    char name[LONGEST_NAME];
    bool is_found = false;
    for (size_t i = 0; i < sizeof before / sizeof before[0] && !is_found; i++) {
        struct path path = {0};
        if (i == 0 && !read_link(wanted->stripped, name))
            return false;
        add_text(&path, before[i]);
        add(&path, stripped_path, directory);
        add_text(&path, behind[i]);
        add_text(&path, name);
        is_found = open_wanted(file, wanted, path.text);
    }
    return is_found;
}

bool debug_file_open(struct elf_file *file, struct elf_file *stripped, const char *path)
{
    struct wanted wanted = {.stripped = stripped};
    read_build_id(stripped, &wanted.id);
    /* The first byte is a directory. */
    return wanted.id.bytes > 1 && (open_by_id(file, &wanted) || open_by_link(file, &wanted, path));
}
