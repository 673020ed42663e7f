/* For all bridges: the symbols of a loaded file, as the file has them, or its debug file. Most libraries with an allocator inside have
 * no dynamic symbols for it.
 *
 * Neither allocates nor takes a lock of libc's. The headers in memory are compared with those in the file first: an address
 * from another file must never be used. */
#ifndef ALLOCSAMPLE_BRIDGES_SYMBOL_FILE_H
#define ALLOCSAMPLE_BRIDGES_SYMBOL_FILE_H

#include "bridge.h"
#include "kit/elf_file.h"
#include "kit/objects.h"

struct symbol_file {
    struct elf_file elf;
    struct elf_file debug; /* has the symbols, if `is_apart` */
    bool is_apart;
    uintptr_t start, end;          /* where it is mapped */
    uintptr_t bias;                /* from the addresses in its symbols to those in memory */
    uint64_t symbols, symbols_end; /* places in the file that has the symbols */
    uint64_t text, text_end;       /* of the names */
};

/* False: it has no symbols, or is not the file that is mapped. Until symbol_file_close, if true. */
HIDDEN bool symbol_file_open(struct symbol_file *file, const struct object_file *object);
HIDDEN void symbol_file_close(struct symbol_file *file);

/* Reads code and headers. Whether all bytes were there. */
HIDDEN bool symbol_file_read(const struct symbol_file *file, void *to, size_t bytes, uint64_t from);
/* Reads symbols and their names, likewise. */
HIDDEN bool symbol_file_read_symbols(const struct symbol_file *file, void *to, size_t bytes, uint64_t from);

/* The part of the file that the code at `address` in memory is from; its bytes there begin at `*from`, and go on for
 * `*length`. False: no code is there. */
HIDDEN bool symbol_file_code(const struct symbol_file *file, uintptr_t address, uint64_t *from, uint64_t *length);

/* The file's own name. */
HIDDEN const char *symbol_file_name(const char *path);

#endif
