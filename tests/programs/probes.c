/* Listens to the agent's probes without a kernel's help: finds them by their notes in the library's file, as tools do, puts
 * a breakpoint at each nop, counts the semaphores up, and adds up what comes by. Prints
 * {"bytes", "weights", "allocs", "frees", "foreign_frees"} of blocks of malloc, and a line of the same of a registered heap. */
#define _GNU_SOURCE
#include "../../c_shim/include/allocsample.h"

#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#define BLOCKS 400000
#define BLOCK 500
#define SEEN 65536

static uintptr_t at_alloc, at_free;
static volatile uint64_t weights, allocs, frees, foreign_frees;
static uintptr_t seen[SEEN];

static void on_breakpoint(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    const greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t at = (uintptr_t)registers[REG_RIP] - 1, pointer = (uintptr_t)registers[REG_RDI];
    uintptr_t *place = &seen[(pointer >> 4) % SEEN];
    if (at == at_alloc) {
        allocs++;
        weights += (uint64_t)registers[REG_RDX];
        *place = pointer;
    } else if (at == at_free) {
        frees++;
        foreign_frees += *place != pointer;
    }
}

/* Base address and path of the library. */
static uintptr_t find_library(char *path)
{
    char line[4096];
    unsigned long start = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        char *at = strchr(line, '/');
        if (at != NULL && strstr(at, "liballocsample.so") != NULL && sscanf(line, "%lx", &start) == 1) {
            at[strcspn(at, "\n")] = 0;
            strcpy(path, at);
            break;
        }
    }
    if (maps != NULL)
        fclose(maps);
    return start;
}

static void make_writable(uintptr_t address, int protection)
{
    uintptr_t page = address & ~(uintptr_t)4095;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | protection) != 0)
        abort();
}

/* {location, base, semaphore} "provider" "name" "arguments" */
static void listen_to(uintptr_t base, const char *description)
{
    uint64_t words[3];
    memcpy(words, description, sizeof words);
    const char *provider = description + sizeof words, *name = provider + strlen(provider) + 1;
    if (strcmp(provider, "otel_memory") != 0 || words[1] == 0)
        abort();
    *(strcmp(name, "alloc") == 0 ? &at_alloc : &at_free) = base + words[0];
    make_writable(base + words[0], PROT_EXEC);
    if (*(unsigned char *)(base + words[0]) != 0x90)
        abort();
    *(unsigned char *)(base + words[0]) = 0xcc;
    make_writable(base + words[2], 0);
    ++*(volatile uint16_t *)(base + words[2]);
}

static void listen(void)
{
    char path[4096];
    struct stat status;
    uintptr_t base = find_library(path);
    int file = base == 0 ? -1 : open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0)
        abort();
    const char *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    const Elf64_Ehdr *header = (const void *)bytes;
    const Elf64_Shdr *sections = (const void *)(bytes + header->e_shoff);
    const char *names = bytes + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; i++) {
        if (strcmp(names + sections[i].sh_name, ".note.stapsdt") != 0)
            continue;
        const char *note = bytes + sections[i].sh_offset, *end = note + sections[i].sh_size;
        while (note < end) {
            const Elf64_Nhdr *head = (const void *)note;
            const char *description = note + sizeof *head + (head->n_namesz + 3) / 4 * 4;
            listen_to(base, description);
            note = description + (head->n_descsz + 3) / 4 * 4;
        }
    }
    if (at_alloc == 0 || at_free == 0)
        abort();
}

static void *volatile sink;

static __attribute__((noinline)) void probed(void)
{
    for (int i = 0; i < BLOCKS; i++) {
        void *block = malloc(BLOCK);
        sink = block;
        free(block);
    }
}

/* Blocks of a machine, which never exist. */
static void probed_heap(void)
{
    const allocsample_hooks *agent = allocsample_find();
    if (agent == NULL)
        abort();
    allocsample_heap *heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_EXTERNAL, .name = "org.example.probed"});
    static allocsample_nursery state;
    agent->nursery_begin(heap, &state, 0, 0);
    for (uintptr_t i = 0; i < BLOCKS; i++) {
        uintptr_t address = ((uintptr_t)1 << 40) + i * 512;
        agent->alloc(heap, &state, address, BLOCK, 0, 0, NULL);
        agent->freed(heap, address);
    }
    agent->nursery_end(heap, &state, 0);
}

static void print_heard(void (*work)(void))
{
    weights = allocs = frees = foreign_frees = 0;
    work();
    uint64_t heard[] = {weights, allocs, frees, foreign_frees};
    printf("{\"bytes\": %ld, \"weights\": %lu, \"allocs\": %lu, \"frees\": %lu, \"foreign_frees\": %lu}\n",
           (long)BLOCKS * BLOCK, heard[0], heard[1], heard[2], heard[3]);
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = on_breakpoint, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    listen();
    print_heard(probed);
    print_heard(probed_heap);
    return 0;
}
