/* Declarations shared by the two halves of the search for allocators in loaded files: names (search.c) and code (plan.c). */
#ifndef ALLOCSAMPLE_BRIDGES_ENTRIES_SEARCH_H
#define ALLOCSAMPLE_BRIDGES_ENTRIES_SEARCH_H

#include "branches.h"
#include "entries.h"

/* Pieces of a file that are read at once, and how much a piece repeats of the one before. */
#define PIECE (UINT64_C(1) << 20)
#define OVERLAP 64
/* Functions of an allocator in one file. */
#define FUNCTIONS 4096
#define HITS 64
/* A function of an allocator is shorter. */
#define LONGEST (UINT64_C(1) << 16)
/* Builds of one allocator in one file. */
#define PREFIXES 4
#define LONGEST_PREFIX 40

struct function {
    uintptr_t start, end;
    enum ownership ownership;
    bool hands_out; /* or takes back blocks, and is not in the table */
    uint32_t name;
};

/* Bytes that are a jump or a call for which the allocator is refused, if they are an instruction. */
struct hit {
    uintptr_t at;
    uintptr_t function; /* the function that it is in; 0: not known */
    const char *what, *why;
};

/* All memory that a search takes. */
struct search {
    void (*join)(const struct entries_found *found);
    struct symbol_file file;
    const char *text;             /* all names, while its symbols are read */
    /* What builds of the allocator have before their names, and the one that is looked for. */
    char prefixes[PREFIXES][LONGEST_PREFIX + 1];
    size_t prefix_count;
    const char *prefix;
    struct function functions[FUNCTIONS]; /* by their addresses, once all are known */
    size_t function_count;
    struct entries_found found;
    struct range bounds; /* of the targets of jumps that matter */
    struct hit hits[HITS];
    size_t hit_count;
    uint8_t code[LONGEST], in_memory[LONGEST];
    uint8_t piece[PIECE + OVERLAP + BRANCHES_OVERRUN];
};

/* The first reason counts. */
HIDDEN void search_refuse(struct entries_found *found, const char *what, const char *why);

/* Calls `visit` with all functions of the file that lie in its mappings. False: the file cannot be read. */
typedef void symbol_visitor(struct search *search, const Elf64_Sym *symbol, const char *name);
HIDDEN bool search_each_function(struct search *search, symbol_visitor *visit);

/* Completes `found`: what a jump replaces, the jumps between functions, and whether the allocator must be refused. */
HIDDEN void search_plan(struct search *search);

#endif
