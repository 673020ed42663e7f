/* See elf_file.h. */
#define _GNU_SOURCE
#include "kit/elf_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the symbols of one file, and of their names: a search reads all of them, several times. */
#define MOST_BYTES (UINT64_C(256) << 20)

bool elf_file_read(const struct elf_file *file, void *to, size_t bytes, uint64_t from)
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

static bool read_header(struct elf_file *file)
{
    Elf64_Ehdr *header = &file->header;
    return elf_file_read(file, header, sizeof *header, 0) && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && (header->e_shnum == 0 || header->e_shentsize == sizeof(Elf64_Shdr)) &&
           (header->e_phnum == 0 || header->e_phentsize == sizeof(Elf64_Phdr));
}

bool elf_file_open(struct elf_file *file, const char *path, uint64_t inode)
{
    struct stat status;
    file->count = 0;
    file->file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file->file < 0)
        return false;
    bool is_one = fstat(file->file, &status) == 0 && S_ISREG(status.st_mode) && (inode == 0 || status.st_ino == inode);
    file->owner = status.st_uid;
    if (is_one && read_header(file))
        return true;
    close(file->file);
    return false;
}

void elf_file_close(struct elf_file *file)
{
    close(file->file);
}

static bool read_sections(struct elf_file *file, unsigned first)
{
    unsigned left = file->header.e_shnum - first, count = left < ELF_SECTIONS ? left : ELF_SECTIONS;
    uint64_t from = file->header.e_shoff + (uint64_t)first * sizeof file->sections[0];
    bool is_read = elf_file_read(file, file->sections, count * sizeof file->sections[0], from);
    file->first = first;
    file->count = is_read ? count : 0;
    return is_read;
}

bool elf_file_section(struct elf_file *file, unsigned index, Elf64_Shdr *section)
{
    if (index >= file->header.e_shnum)
        return false;
    bool is_there = index >= file->first && index - file->first < file->count;
    if (!is_there && !read_sections(file, index))
        return false;
    *section = file->sections[index - file->first];
    return true;
}

bool elf_file_segment(const struct elf_file *file, unsigned index, Elf64_Phdr *segment)
{
    return index < file->header.e_phnum &&
           elf_file_read(file, segment, sizeof *segment, file->header.e_phoff + (uint64_t)index * sizeof *segment);
}

static bool read_part(const Elf64_Shdr *section, struct elf_part *part)
{
    *part = (struct elf_part){section->sh_offset, section->sh_size};
    return section->sh_type != SHT_NOBITS && (section->sh_flags & SHF_COMPRESSED) == 0 && part->bytes > 0 &&
           part->bytes <= MOST_BYTES;
}

bool elf_file_symbols(struct elf_file *file, uint32_t type, struct elf_part *symbols, struct elf_part *names)
{
    Elf64_Shdr section, of_names;
    for (unsigned i = 0; elf_file_section(file, i, &section); i++)
        if (section.sh_type == type)
            return elf_file_section(file, section.sh_link, &of_names) && read_part(&section, symbols) &&
                   read_part(&of_names, names);
    return false;
}
