/* See symbol_file.h. */
#define _GNU_SOURCE
#include "kit/symbol_file.h"

#include "kit/debug_file.h"

#include <string.h>

bool symbol_file_read(const struct symbol_file *file, void *to, size_t bytes, uint64_t from)
{
    return elf_file_read(&file->elf, to, bytes, from);
}

bool symbol_file_read_symbols(const struct symbol_file *file, void *to, size_t bytes, uint64_t from)
{
    return elf_file_read(file->is_apart ? &file->debug : &file->elf, to, bytes, from);
}

/* Finds the symbols and their names: of all functions, here or in the debug file, or else of the dynamic ones. */
static bool find_symbols(struct symbol_file *file, const char *path)
{
    struct elf_part symbols, names;
    bool is_found = elf_file_symbols(&file->elf, SHT_SYMTAB, &symbols, &names);
    if (!is_found && debug_file_open(&file->debug, &file->elf, path)) {
        is_found = file->is_apart = elf_file_symbols(&file->debug, SHT_SYMTAB, &symbols, &names);
        if (!is_found)
            elf_file_close(&file->debug);
    }
    if (!is_found && !elf_file_symbols(&file->elf, SHT_DYNSYM, &symbols, &names))
        return false;
    file->symbols = symbols.start;
    file->symbols_end = symbols.start + symbols.bytes;
    file->text = names.start;
    file->text_end = names.start + names.bytes;
    return file->symbols_end >= file->symbols && file->text_end >= file->text;
}

/* Whether this file is mapped. Compares its first page, which describes the sections and usually has the build id. */
static bool is_mapped(const struct symbol_file *file)
{
    unsigned char of_file[4096], of_memory[sizeof of_file];
    struct iovec memory = {(void *)file->start, sizeof of_memory};
    return shim_services.copy_foreign(of_memory, sizeof of_memory, &memory, 1) == sizeof of_memory &&
           symbol_file_read(file, of_file, sizeof of_file, 0) && memcmp(of_file, of_memory, sizeof of_file) == 0;
}

/* Reads how far the file's addresses are from those in memory. */
static bool read_bias(struct symbol_file *file)
{
    Elf64_Phdr segment;
    for (unsigned i = 0; elf_file_segment(&file->elf, i, &segment); i++) {
        if (segment.p_type == PT_LOAD && segment.p_offset == 0) {
            file->bias = file->start - segment.p_vaddr;
            return true;
        }
    }
    return false;
}

bool symbol_file_open(struct symbol_file *file, const struct object_file *object)
{
    *file = (struct symbol_file){.start = object->start, .end = object->end};
    if (!elf_file_open(&file->elf, object->path, object->inode))
        return false;
    if (is_mapped(file) && read_bias(file)) {
        if (find_symbols(file, object->path))
            return true;
        if (file->is_apart)
            elf_file_close(&file->debug);
    }
    elf_file_close(&file->elf);
    return false;
}

void symbol_file_close(struct symbol_file *file)
{
    if (file->is_apart)
        elf_file_close(&file->debug);
    elf_file_close(&file->elf);
}

bool symbol_file_code(const struct symbol_file *file, uintptr_t address, uint64_t *from, uint64_t *length)
{
    Elf64_Phdr segment;
    for (unsigned i = 0; elf_file_segment(&file->elf, i, &segment); i++) {
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
