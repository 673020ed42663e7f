/* Makes a small library in which the bridge finds all that it needs of PyPy, and then searches it with random bytes changed and at
 * random lengths: pypy_find SEED ROUNDS. Compiled with sanitizers, it ends with an error if a read leaves the file. */
#define _GNU_SOURCE
#include "../../c_shim/bridges/pypy/find.c"
#include "../../c_shim/bridges/pypy/find_types.c"
#include "../../c_shim/bridges/pypy/image.c"
#include "../../c_shim/bridges/kit/instructions.c"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { CODE = 0x2000, DATA = 0x20000, FILE_BYTES = 0x28000, PLACES = 1100, TYPES = 128, FUNCTIONS = 16 };
enum { GC = DATA + 0x100, FREE = GC + 0x190, TOP = GC + 0x1b0, SMALL = DATA + 0x40, LOCK = DATA + 0x48, LOGGED = DATA + 0x50 };
enum { STRINGS = 0x800, NAMES = 0xa00, SYMBOLS = 0x900, DYNAMIC = 0x700, FRAMES = 0x1000, NOTES = 0x680 };

static uint8_t *library;
static size_t next = CODE;
static uint64_t functions[FUNCTIONS];
static size_t function_count;

static void put(size_t at, const void *bytes, size_t length)
{
    memcpy(library + at, bytes, length);
}

static void emit(size_t count, ...)
{
    va_list bytes;
    va_start(bytes, count);
    for (size_t i = 0; i < count; i++)
        library[next++] = (uint8_t)va_arg(bytes, int);
    va_end(bytes);
}

static void emit_int(int64_t value)
{
    int32_t low = (int32_t)value;
    put(next, &low, sizeof low);
    next += sizeof low;
}

/* The distance to `target`, with `behind` bytes of the instruction behind it. */
static void emit_distance(uint64_t target, size_t behind)
{
    emit_int((int64_t)target - (int64_t)(next + 4 + behind));
}

static uint64_t function(void)
{
    next = (next + 31) & ~(size_t)15;
    functions[function_count++] = next;
    emit(6, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55);
    return next - 6;
}

static void call(uint64_t target)
{
    emit(1, 0xE8);
    emit_distance(target, 0);
}

static void ask_log(size_t times)
{
    while (times-- > 0) {
        emit(2, 0xF6, 0x05);
        emit_distance(LOGGED, 1);
        emit(1, 1);
    }
}

/* A section of the log, with a function of its own. */
static uint64_t section(uint64_t name, uint64_t start)
{
    uint64_t at = function();
    emit(3, 0x48, 0x8D, 0x3D);
    emit_distance(name, 0);
    call(start);
    ask_log(3);
    return at;
}

static void put_code(void)
{
    uint64_t start = function();
    emit(1, 0xC3);
    uint64_t stop = function();
    emit(1, 0xC3);
    uint64_t collect = section(STRINGS + 1, start);
    section(STRINGS + 16, start);
    for (int state = 0; state < 4; state++) {
        emit(7, 0x48, 0xC7, 0x83, 0xC8, 0, 0, 0);
        emit_int(state);
    }
    emit(7, 0x48, 0x8B, 0x83, 0x28, 2, 0, 0);
    emit(3, 0x48, 0x03, 0x05);
    emit_distance(SMALL, 0);
    call(stop);
    uint64_t reserve = function();
    call(collect);
    function();
    emit(4, 0xF2, 0x0F, 0x11, 0x05);
    emit_distance(GC + 0x168, 0);
    emit(6, 0x77, 0x01, 0xC3, 0x48, 0x8B, 0x05);
    emit_distance(TOP, 0);
    emit(3, 0x48, 0x89, 0x05);
    emit_distance(FREE, 0);
    function();
    emit(8, 0x4A, 0xC7, 0x04, 0xFB, 6, 0, 0, 0);
    emit(12, 0x48, 0x83, 0xF8, 0xFF, 0x4A, 0xC7, 0x04, 0xE3, 3, 0, 0, 0);
    uint64_t entry = function();
    uint64_t startup = function();
    emit(9, 0x48, 0x8B, 0x50, 0x38, 0xF0, 0x48, 0x0F, 0xB1, 0x15);
    emit_distance(LOCK, 0);
    emit(6, 0x48, 0x63, 0xFB, 0x48, 0x89, 0xEE);
    call(entry);
    Elf64_Sym symbol = {.st_name = 1, .st_value = startup};
    put(SYMBOLS + sizeof symbol, &symbol, sizeof symbol);
    function();
    for (int i = 0; i < PLACES; i++) {
        emit(3, 0x48, 0x8B, 0x05);
        emit_distance(FREE, 0);
        emit(7, 0x48, 0x8D, 0x50, 0x10, 0x48, 0x89, 0x15);
        emit_distance(FREE, 0);
        emit(3, 0x48, 0x39, 0x15);
        emit_distance(TOP, 0);
        emit(10, 0x72, 0x00, 0xBE, 0x10, 0, 0, 0, 0x48, 0x8D, 0x3D);
        emit_distance(GC, 0);
        call(reserve);
    }
}

/* Numbers, and behind them names that are not packed. */
static void put_types(void)
{
    size_t at = DATA + 0x1000;
    uint64_t count = TYPES;
    put(at, &count, sizeof count);
    for (uint32_t i = 0; i < TYPES; i++)
        put(at + 8 + i * 4, &(uint32_t){8 * i}, 4);
    at += 8 + TYPES * 4;
    char *names = (char *)library + at + 10;
    int length = sprintf(names, "member0 ?\nmember1 GcStruct rpy_string { hash, chars }\n"
                                "member2 GcStruct rpython.rlib.rvmprof.rvmprof.WeakCodeObjectList { super, inst_free_list, inst_handles }\n"
                                "member3 GcStruct pypy.interpreter.eval.Code { super, inst_co_name, inst_fast_natural_arity, inst_hidden_applevel }\n"
                                "member4 GcStruct pypy.interpreter.pycode.PyCode { super, inst_space, inst__signature, inst__vmprof_unique_id, "
                                "inst_co_filename, inst_co_firstlineno }\n");
    for (int i = 5; i < TYPES; i++)
        length += sprintf(names + length, "member%d ?\n", i);
    uint64_t packed = (uint64_t)length + 2;
    put(at, &packed, sizeof packed);
    put(at + 8, "\x78\x9c", 2);
    put(DATA + 0x800, &(uint64_t){UINT64_C(3) << 32 | 16}, 8);
}

static void put_tables(void)
{
    Elf64_Ehdr header = {.e_machine = EM_X86_64, .e_phoff = sizeof header, .e_phnum = 7};
    memcpy(header.e_ident, ELFMAG "\2\1\1", 7);
    put(0, &header, sizeof header);
    Elf64_Phdr segments[] = {
        {.p_type = PT_LOAD, .p_flags = PF_R, .p_filesz = CODE},
        {.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = CODE, .p_vaddr = CODE, .p_filesz = DATA - CODE},
        {.p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_offset = DATA, .p_vaddr = DATA, .p_filesz = FILE_BYTES - DATA},
        {.p_type = PT_GNU_EH_FRAME, .p_vaddr = FRAMES},
        {.p_type = PT_DYNAMIC, .p_vaddr = DYNAMIC, .p_filesz = 64},
        {.p_type = PT_NOTE, .p_vaddr = NOTES, .p_filesz = 36},
        {.p_type = PT_TLS, .p_memsz = 0x50},
    };
    put(sizeof header, segments, sizeof segments);
    put(NOTES, "\4\0\0\0\x14\0\0\0\3\0\0\0GNU", 16);
    put(STRINGS + 1, "gc-minor", 9);
    put(STRINGS + 16, "gc-collect-step", 16);
    put(NAMES + 1, "pypy_main_startup", 18);
    Elf64_Dyn entries[] = {{DT_SYMTAB, {SYMBOLS}}, {DT_STRTAB, {NAMES}}, {DT_STRSZ, {64}}};
    put(DYNAMIC, entries, sizeof entries);
    put(FRAMES, "\1\x1b\3\x3b", 4);
    put(FRAMES + 8, &(uint32_t){(uint32_t)function_count}, 4);
    for (size_t i = 0; i < function_count; i++)
        put(FRAMES + 12 + i * 8, &(int32_t){(int32_t)(functions[i] - FRAMES)}, 4);
}

static int copy_names(uint8_t *to, unsigned long *to_bytes, const uint8_t *from, unsigned long from_bytes)
{
    if (from_bytes < 2 || from_bytes - 2 > *to_bytes)
        return -1;
    memcpy(to, from + 2, from_bytes - 2);
    *to_bytes = from_bytes - 2;
    return 0;
}

static uint64_t random_state;

static uint64_t random_below(uint64_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % bound;
}

int main(int argc, char **argv)
{
    enum { ROOM = 1 << 16 };
    static const size_t areas[][2] = {{0, 0x400}, {NOTES, 0x600}, {FRAMES, 0x90}, {CODE, 0x300}, {DATA, 0x2000}, {0, FILE_BYTES}};
    struct pypy_search search = {copy_names, malloc(ROOM), ROOM};
    struct pypy_build found;
    struct pypy_votes votes[PYPY_BALLOTS];
    random_state = argc > 1 ? strtoull(argv[1], NULL, 0) | 1 : 1;
    unsigned long rounds = argc > 2 ? strtoul(argv[2], NULL, 0) : 1000, refused = 0;
    library = calloc(1, FILE_BYTES);
    put_code();
    put_types();
    put_tables();
    const char *why = pypy_find(library, FILE_BYTES, &search, &found, votes);
    if (why != NULL || found.gc != GC || found.free != 0x190 || found.top != 0x1b0 || found.state != 0xc8 || found.threshold != 0x168 ||
        found.small_bytes != SMALL || found.lock != LOCK || found.ident != 0x38 || found.codes != DATA + 0x800 || found.line != 56 ||
        found.frames_of_code == 0) {
        printf("the whole library: %s\n", why == NULL ? "other places" : why);
        return 1;
    }
    for (unsigned long round = 0; round < rounds; round++) {
        size_t length = random_below(4) == 0 ? random_below(FILE_BYTES) : FILE_BYTES;
        uint8_t *changed = malloc(length + 1);
        memcpy(changed, library, length);
        const size_t *area = areas[random_below(sizeof areas / sizeof areas[0])];
        for (uint64_t i = random_below(12) + 1; i > 0; i--) {
            size_t at = area[0] + random_below(area[1]);
            if (at < length)
                changed[at] = random_below(2) == 0 ? (uint8_t)random_below(256) : changed[at] ^ (uint8_t)(1u << random_below(8));
        }
        /* Exactly as long as it is said to be. */
        changed = realloc(changed, length > 0 ? length : 1);
        refused += pypy_find(changed, length, &search, &found, votes) != NULL;
        free(changed);
    }
    printf("%lu of %lu refused\n", refused, rounds);
    free(library);
    free(search.room);
    return 0;
}
