/* See objects.h. */
#define _GNU_SOURCE
#include "kit/objects.h"

#include "kit/memory.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* A line of the list. */
struct mapping {
    uintptr_t start, end;
    uint64_t offset, inode;
    bool is_code;
    const char *path;
};

struct reader {
    struct object_file file; /* that the lines so far were about */
    bool is_wanted, has_code;
    char path[4096];
    char line[4096 + 256];
    char text[1 << 16];
};

static uint64_t number(char **text, unsigned base)
{
    uint64_t value = 0;
    for (;; (*text)++) {
        unsigned character = (unsigned char)**text;
        unsigned digit = character >= 'a' && character <= 'f' ? character - 'a' + 10 : character - '0';
        if (digit >= base)
            return value;
        value = value * base + digit;
    }
}

/* `start-end rwxp offset major:minor inode   path` */
static bool parse(char *line, struct mapping *mapping)
{
    mapping->start = number(&line, 16);
    if (*line++ != '-')
        return false;
    mapping->end = number(&line, 16);
    if (strlen(line) < strlen(" rwxp "))
        return false;
    mapping->is_code = line[3] == 'x';
    line += strlen(" rwxp ");
    mapping->offset = number(&line, 16);
    char *inode = *line == ' ' ? strchr(line + 1, ' ') : NULL;
    if (inode == NULL)
        return false;
    line = inode + 1;
    mapping->inode = number(&line, 10);
    while (*line == ' ')
        line++;
    mapping->path = line;
    return true;
}

static void finish_file(struct reader *reader, object_visitor *visit, void *argument)
{
    if (reader->is_wanted && reader->has_code)
        visit(argument, &reader->file);
    reader->is_wanted = false;
}

/* Lines of a file follow each other; memory without one may lie among them. */
static void read_line(struct reader *reader, uintptr_t start, object_visitor *visit, void *argument)
{
    struct mapping mapping;
    if (!parse(reader->line, &mapping) || mapping.inode == 0)
        return;
    if (mapping.inode != reader->file.inode || mapping.offset == 0) {
        finish_file(reader, visit, argument);
        reader->is_wanted =
            mapping.offset == 0 && (start == 0 || start == mapping.start) && mapping.path[0] == '/';
        reader->has_code = false;
        strncpy(reader->path, mapping.path, sizeof reader->path - 1);
        reader->file = (struct object_file){.start = mapping.start, .inode = mapping.inode, .path = reader->path};
    }
    reader->file.end = mapping.end;
    reader->has_code |= mapping.is_code;
}

void objects_each(uintptr_t start, object_visitor *visit, void *argument)
{
    struct reader *reader = memory_map(sizeof *reader);
    int list = reader == NULL ? -1 : open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    for (ssize_t got; list >= 0 && (got = read(list, reader->text, sizeof reader->text)) > 0;) {
        for (ssize_t i = 0; i < got; i++) {
            if (reader->text[i] != '\n') {
                if (length < sizeof reader->line - 1)
                    reader->line[length++] = reader->text[i];
                continue;
            }
            reader->line[length] = 0;
            length = 0;
            read_line(reader, start, visit, argument);
        }
    }
    if (list >= 0) {
        finish_file(reader, visit, argument);
        close(list);
    }
    if (reader != NULL)
        munmap(reader, sizeof *reader);
}

const void *objects_headers(uintptr_t start)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)start;
    return (const char *)start + header->e_phoff;
}

bool objects_is_loaded(uintptr_t start)
{
    struct shim_object object;
    return shim_services.find_object((const void *)start, &object) && object.headers == objects_headers(start);
}
