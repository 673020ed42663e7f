/* Looks for the debug file of its first argument as the agent does: prints how many symbols it has, or "none". Reads lines, each an
 * order to look again. Every symbol's name is read, as a search would. */
#include "bridges/kit/debug_file.c"
#include "bridges/kit/elf_file.c"

#include <stdio.h>
#include <stdlib.h>

const char *symbol_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static unsigned long names_of(const struct elf_file *file, const struct elf_part *symbols, const struct elf_part *names)
{
    unsigned long count = 0;
    char *text = calloc(1, names->bytes + 1);
    if (text == NULL || !elf_file_read(file, text, names->bytes, names->start))
        return free(text), 0;
    Elf64_Sym symbol;
    for (uint64_t at = 0; at + sizeof symbol <= symbols->bytes; at += sizeof symbol) {
        if (!elf_file_read(file, &symbol, sizeof symbol, symbols->start + at))
            break;
        count += symbol.st_name < names->bytes && strlen(text + symbol.st_name) > 0;
    }
    free(text);
    return count;
}

static void look(const char *path)
{
    struct elf_file stripped, debug;
    struct elf_part symbols, names;
    if (!elf_file_open(&stripped, path, 0) || !debug_file_open(&debug, &stripped, path)) {
        puts("none");
        return;
    }
    printf("%lu\n", elf_file_symbols(&debug, SHT_SYMTAB, &symbols, &names) ? names_of(&debug, &symbols, &names) : 0);
    elf_file_close(&debug);
    elf_file_close(&stripped);
}

int main(int count, char **arguments)
{
    char line[16];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (count > 1 && fgets(line, sizeof line, stdin) != NULL)
        look(arguments[1]);
}
