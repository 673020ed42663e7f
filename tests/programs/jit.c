/* A compiler in small: puts functions into the same memory, one after the other, each of which allocates known numbers of
 * bytes, moves one, and tells of them in jit-PID.dump in its working directory. Prints the truth as JSON. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CODE_BYTES 64

static FILE *dump;
static unsigned char *memory;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void put32(uint32_t value)
{
    fwrite(&value, sizeof value, 1, dump);
}

static void put64(uint64_t value)
{
    fwrite(&value, sizeof value, 1, dump);
}

static void put_record(uint32_t kind, size_t body_bytes)
{
    put32(kind);
    put32((uint32_t)(16 + body_bytes));
    put64(now_ns());
}

static void open_dump(void)
{
    char name[64];
    snprintf(name, sizeof name, "jit-%d.dump", (int)getpid());
    dump = fopen(name, "w");
    if (dump == NULL)
        exit(1);
    uint32_t header[] = {0x4a695444, 1, 40, 62, 0, (uint32_t)getpid()};
    for (size_t i = 0; i < sizeof header / sizeof header[0]; i++)
        put32(header[i]);
    put64(now_ns());
    put64(0);
}

static void tell_line(uintptr_t start, uint32_t line)
{
    put_record(2, 32 + sizeof "made.src");
    put64(start);
    put64(1);
    put64(start);
    put32(line);
    put32(0);
    fputs("made.src", dump);
    fputc(0, dump);
}

static void tell_code(uintptr_t start, const char *name)
{
    static uint64_t index;
    put_record(0, 40 + strlen(name) + 1 + CODE_BYTES);
    put32((uint32_t)getpid());
    put32((uint32_t)gettid());
    put64(start);
    put64(start);
    put64(CODE_BYTES);
    put64(index++);
    fwrite(name, strlen(name) + 1, 1, dump);
    fwrite((const void *)start, CODE_BYTES, 1, dump);
    fflush(dump);
}

static void tell_move(uintptr_t from, uintptr_t to)
{
    put_record(1, 48);
    put32((uint32_t)getpid());
    put32((uint32_t)gettid());
    put64(to);
    put64(from);
    put64(to);
    put64(CODE_BYTES);
    put64(0);
    fflush(dump);
}

/* A function that allocates `size` bytes: push rbp; mov rbp, rsp; mov edi, size; mov rax, malloc; call rax; pop rbp; ret. */
static void compile(unsigned char *code, uint32_t size)
{
    static const unsigned char begin[] = {0x55, 0x48, 0x89, 0xe5, 0xbf}, load[] = {0x48, 0xb8},
                               end[] = {0xff, 0xd0, 0x5d, 0xc3};
    void *(*allocate)(size_t) = malloc;
    memset(code, 0xcc, CODE_BYTES);
    memcpy(code, begin, sizeof begin);
    memcpy(code + 5, &size, sizeof size);
    memcpy(code + 9, load, sizeof load);
    memcpy(code + 11, &allocate, sizeof allocate);
    memcpy(code + 19, end, sizeof end);
}

static void run(const char *name, const unsigned char *code, unsigned count, unsigned size, const char *separator)
{
    void *(*function)(void);
    memcpy(&function, &code, sizeof function);
    for (unsigned i = 0; i < count; i++)
        free(function());
    printf("\"%s\":{\"bytes\":%u,\"allocations\":%u,\"live_bytes\":0,\"live_blocks\":0}%s", name, count * size, count,
           separator);
}

int main(void)
{
    memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    open_dump();
    printf("{");
    compile(memory, 1000);
    tell_line((uintptr_t)memory, 11);
    tell_code((uintptr_t)memory, "first");
    run("first", memory, 20000, 1000, ",");
    /* It moves, and another comes to its place. */
    unsigned char *moved = memory + 1024;
    memcpy(moved, memory, CODE_BYTES);
    tell_move((uintptr_t)memory, (uintptr_t)moved);
    compile(memory, 3000);
    tell_code((uintptr_t)memory, "second");
    run("second", memory, 10000, 3000, ",");
    /* Not where the last one began. */
    compile(memory + 16, 500);
    tell_code((uintptr_t)memory + 16, "third");
    run("third", memory + 16, 40000, 500, ",");
    compile(memory, 2000);
    tell_code((uintptr_t)memory, "fourth");
    run("fourth", memory, 10000, 2000, "}\n");
    ((void (*)(void))(uintptr_t)moved)();
    fclose(dump);
    return 0;
}
