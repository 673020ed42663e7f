/* See symbol_file.h. */
#define _GNU_SOURCE
#include "kit/symbol_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool symbol_file_read(const struct symbol_file *file, void *to, size_t bytes, uint64_t from)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(file->file, (char *)to + done, bytes - done, (off_t)(from + done));
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

/* Reads where the symbols and their names are: of all functions, or else of the dynamic ones. */
static bool read_sections(struct symbol_file *file)
{
    const Elf64_Ehdr *header = &file->header;
    bool is_found = false;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        Elf64_Shdr section, names;
        uint64_t at = header->e_shoff + (uint64_t)i * sizeof section;
        if (!symbol_file_read(file, &section, sizeof section, at))
            return false;
        bool is_whole = section.sh_type == SHT_SYMTAB;
        if ((!is_whole && section.sh_type != SHT_DYNSYM) || section.sh_link >= header->e_shnum)
            continue;
        at = header->e_shoff + (uint64_t)section.sh_link * sizeof names;
        if (!symbol_file_read(file, &names, sizeof names, at))
            return false;
        file->symbols = section.sh_offset;
        file->symbols_end = section.sh_offset + section.sh_size;
        file->text = names.sh_offset;
        file->text_end = names.sh_offset + names.sh_size;
        is_found = file->symbols_end >= file->symbols && file->text_end >= file->text;
        if (is_whole)
            break;
    }
    return is_found;
}

/* Whether this file is mapped. Compares its first page, which describes the sections and usually has the build id. */
static bool is_mapped(const struct symbol_file *file)
{
    unsigned char of_file[4096], of_memory[sizeof of_file];
    struct iovec memory = {(void *)file->start, sizeof of_memory};
    return shim_services.copy_foreign(of_memory, sizeof of_memory, &memory, 1) == sizeof of_memory &&
           symbol_file_read(file, of_file, sizeof of_file, 0) && memcmp(of_file, of_memory, sizeof of_file) == 0;
}

static bool read_segment(const struct symbol_file *file, unsigned index, Elf64_Phdr *segment)
{
    uint64_t at = file->header.e_phoff + (uint64_t)index * sizeof *segment;
    return symbol_file_read(file, segment, sizeof *segment, at);
}

/* Reads how far the file's addresses are from those in memory. */
static bool read_bias(struct symbol_file *file)
{
    Elf64_Phdr segment;
    for (unsigned i = 0; i < file->header.e_phnum && read_segment(file, i, &segment); i++) {
        if (segment.p_type == PT_LOAD && segment.p_offset == 0) {
            file->bias = file->start - segment.p_vaddr;
            return true;
        }
    }
    return false;
}

static bool read_header(struct symbol_file *file)
{
    Elf64_Ehdr *header = &file->header;
    return symbol_file_read(file, header, sizeof *header, 0) && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_shentsize == sizeof(Elf64_Shdr) &&
           header->e_phentsize == sizeof(Elf64_Phdr);
}

bool symbol_file_open(struct symbol_file *file, const struct object_file *object)
{
    struct stat status;
    *file = (struct symbol_file){.start = object->start, .end = object->end};
    file->file = open(object->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file->file < 0)
        return false;
    if (fstat(file->file, &status) == 0 && S_ISREG(status.st_mode) && status.st_ino == object->inode &&
        read_header(file) && is_mapped(file) && read_bias(file) && read_sections(file))
        return true;
    close(file->file);
    return false;
}

void symbol_file_close(struct symbol_file *file)
{
    close(file->file);
}

bool symbol_file_code(const struct symbol_file *file, uintptr_t address, uint64_t *from, uint64_t *length)
{
    Elf64_Phdr segment;
    for (unsigned i = 0; i < file->header.e_phnum && read_segment(file, i, &segment); i++) {
        uint64_t into = address - file->bias - segment.p_vaddr;
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0 || into >= segment.p_filesz)
            continue;
        *from = segment.p_offset + into;
        *length = segment.p_filesz - into;
        return true;
    }
    return false;
}

const char *symbol_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}
