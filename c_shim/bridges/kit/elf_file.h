/* For all bridges: headers and sections of an ELF file that may hold anything. A read outside of the file fails. Neither allocates nor
 * takes a lock of libc's. */
#ifndef ALLOCSAMPLE_BRIDGES_ELF_FILE_H
#define ALLOCSAMPLE_BRIDGES_ELF_FILE_H

#include "bridge.h"

#include <elf.h>
#include <sys/types.h>

/* Headers of sections that are read at once. */
#define ELF_SECTIONS 16

struct elf_file {
    int file;
    uid_t owner;
    Elf64_Ehdr header;
    unsigned first, count; /* of the sections whose headers were read last */
    Elf64_Shdr sections[ELF_SECTIONS];
};

/* A place in a file. */
struct elf_part {
    uint64_t start, bytes;
};

/* False: it is no regular file, or no 64-bit ELF file. Until elf_file_close, if true. `inode`: which one it must be; 0: any. */
HIDDEN bool elf_file_open(struct elf_file *file, const char *path, uint64_t inode);
HIDDEN void elf_file_close(struct elf_file *file);

/* Whether all bytes were there. */
HIDDEN bool elf_file_read(const struct elf_file *file, void *to, size_t bytes, uint64_t from);
HIDDEN bool elf_file_section(struct elf_file *file, unsigned index, Elf64_Shdr *section);
HIDDEN bool elf_file_segment(const struct elf_file *file, unsigned index, Elf64_Phdr *segment);

/* The symbols of a section of this type, and their names. False: there are none, or more than any program has. */
HIDDEN bool elf_file_symbols(struct elf_file *file, uint32_t type, struct elf_part *symbols, struct elf_part *names);

#endif
