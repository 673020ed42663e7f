/* Lines of .NET's methods, from the portable PDB beside a module's file.
 *
 * A PDB is tables and heaps of bytes, in the format of metadata (ECMA-335, with the tables of the portable PDB). It is read whole
 * into memory of its own, since a mapped file may be cut short, and every index in it may lead anywhere. */
#define _GNU_SOURCE
#include "dotnet.h"
#include "kit/memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LARGEST_PDB (64u << 20)
enum { ID_BYTES = 20, TABLE_DOCUMENT = 0x30, TABLE_METHOD = 0x31, TABLES = 64, DEBUG_CODEVIEW = 2 };

struct span {
    const uint8_t *at, *end;
};

struct dotnet_symbols {
    struct span blobs, documents, methods;
    uint32_t document_bytes, method_bytes; /* of a row */
    uint32_t blob_index_bytes, document_index_bytes;
};

/* ---- reading, which stays inside of a span: 0 beyond its end ---- */

static struct span part(struct span span, size_t offset, size_t bytes)
{
    size_t all = (size_t)(span.end - span.at);
    if (offset > all)
        return (struct span){span.end, span.end};
    const uint8_t *at = span.at + offset;
    return (struct span){at, bytes < all - offset ? at + bytes : span.end};
}

static uint64_t take(struct span *span, size_t bytes)
{
    uint64_t number = 0;
    if ((size_t)(span->end - span->at) < bytes) {
        span->at = span->end;
        return 0;
    }
    memcpy(&number, span->at, bytes);
    span->at += bytes;
    return number;
}

static uint32_t number_at(struct span span, size_t offset, size_t bytes)
{
    struct span there = part(span, offset, bytes);
    return (uint32_t)take(&there, bytes);
}

/* Of 1, 2 or 4 bytes, the highest first; `bits` is how many of them count. */
static uint32_t take_packed(struct span *span, int *bits)
{
    uint32_t first = (uint32_t)take(span, 1);
    if ((first & 0x80) == 0) {
        *bits = 7;
        return first;
    }
    if ((first & 0x40) == 0) {
        *bits = 14;
        return (first & 0x3f) << 8 | (uint32_t)take(span, 1);
    }
    uint32_t number = first & 0x1f;
    for (int i = 0; i < 3; i++)
        number = number << 8 | (uint32_t)take(span, 1);
    *bits = 29;
    return number;
}

static uint32_t take_unsigned(struct span *span)
{
    int bits;
    return take_packed(span, &bits);
}

/* The lowest bit is the sign. */
static int32_t take_signed(struct span *span)
{
    int bits;
    uint32_t number = take_packed(span, &bits);
    return (number & 1) != 0 ? (int32_t)(number >> 1) - (1 << (bits - 1)) : (int32_t)(number >> 1);
}

static struct span blob_at(const struct dotnet_symbols *symbols, uint32_t index)
{
    struct span blob = part(symbols->blobs, index, SIZE_MAX);
    uint32_t bytes = take_unsigned(&blob);
    return part(blob, 0, bytes);
}

/* ---- files ---- */

static bool read_at(int file, void *to, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

static bool read_whole(const char *path, struct span *content)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t *memory = NULL;
    if (file < 0)
        return false;
    size_t bytes = fstat(file, &status) == 0 && status.st_size > 0 ? (size_t)status.st_size : 0;
    if (bytes != 0 && bytes <= LARGEST_PDB && S_ISREG(status.st_mode))
        memory = memory_map(bytes);
    bool is_read = memory != NULL && read_at(file, memory, bytes, 0);
    close(file);
    if (!is_read && memory != NULL)
        munmap(memory, bytes);
    if (is_read)
        *content = (struct span){memory, memory + bytes};
    return is_read;
}

/* Where an address of the module is in its file. */
static uint64_t offset_in_file(int file, uint64_t sections, uint32_t count, uint32_t address)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t section[10]; /* name (2 words), size, address, size in the file, place in the file, and what does not matter */
        if (!read_at(file, section, sizeof section, sections + (uint64_t)i * sizeof section))
            return 0;
        if (address >= section[3] && address - section[3] < section[4])
            return (uint64_t)section[5] + (address - section[3]);
    }
    return 0;
}

/* The identifier of the module's PDB, by the module's table of debug data. */
static bool read_id(int file, uint8_t *id)
{
    uint32_t header, directory[2], words[6];
    uint16_t sections, optional_bytes, magic;
    if (!read_at(file, &header, 4, 0x3c) || !read_at(file, &sections, 2, header + 6ull) ||
        !read_at(file, &optional_bytes, 2, header + 20ull) || !read_at(file, &magic, 2, header + 24ull))
        return false;
    uint64_t directories = header + 24ull + (magic == 0x20b ? 112 : 96);
    if (!read_at(file, directory, sizeof directory, directories + 6 * 8))
        return false;
    uint64_t entries = offset_in_file(file, header + 24ull + optional_bytes, sections, directory[0]);
    for (uint32_t i = 0; entries != 0 && i < directory[1] / 28 && i < 16; i++) {
        uint32_t entry[7]; /* flags, time, version, type, size, address, place in the file */
        if (!read_at(file, entry, sizeof entry, entries + (uint64_t)i * sizeof entry))
            return false;
        if (entry[3] != DEBUG_CODEVIEW || !read_at(file, words, sizeof words, entry[6]) || memcmp(words, "RSDS", 4) != 0)
            continue;
        memcpy(id, &words[1], 16);
        memcpy(id + 16, &entry[1], 4);
        return true;
    }
    return false;
}

static bool id_of_module(const char *path, uint8_t *id)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool is_read = file >= 0 && read_id(file, id);
    if (file >= 0)
        close(file);
    return is_read;
}

/* ---- the PDB ---- */

static struct span stream(struct span pdb, const char *name)
{
    struct span head = pdb;
    struct span none = {pdb.end, pdb.end};
    if (take(&head, 4) != 0x424a5342)
        return none;
    head = part(head, 8, SIZE_MAX);
    uint32_t version_bytes = (uint32_t)take(&head, 4);
    head = part(head, version_bytes, SIZE_MAX);
    take(&head, 2);
    for (uint32_t count = (uint32_t)take(&head, 2); count > 0; count--) {
        uint32_t offset = (uint32_t)take(&head, 4), bytes = (uint32_t)take(&head, 4);
        size_t room = (size_t)(head.end - head.at), length = strnlen((const char *)head.at, room < 32 ? room : 32);
        if (length < room && strcmp((const char *)head.at, name) == 0)
            return part(pdb, offset, bytes);
        head = part(head, (length + 4) & ~(size_t)3, SIZE_MAX);
    }
    return none;
}

static bool find_tables(struct span pdb, struct dotnet_symbols *symbols)
{
    struct span tables = stream(pdb, "#~");
    uint32_t rows[TABLES] = {0};
    take(&tables, 6);
    uint32_t sizes = (uint32_t)take(&tables, 1);
    take(&tables, 1);
    uint64_t present = take(&tables, 8);
    take(&tables, 8);
    /* Tables of the module itself, which would stand before. */
    if ((present & ((UINT64_C(1) << TABLE_DOCUMENT) - 1)) != 0)
        return false;
    for (uint32_t i = 0; i < TABLES; i++)
        if ((present >> i & 1) != 0)
            rows[i] = (uint32_t)take(&tables, 4);
    uint32_t guid_index_bytes = (sizes & 2) != 0 ? 4 : 2;
    symbols->blob_index_bytes = (sizes & 4) != 0 ? 4 : 2;
    symbols->document_index_bytes = rows[TABLE_DOCUMENT] > 0xffff ? 4 : 2;
    symbols->document_bytes = 2 * (symbols->blob_index_bytes + guid_index_bytes);
    symbols->method_bytes = symbols->document_index_bytes + symbols->blob_index_bytes;
    size_t documents_bytes = (size_t)rows[TABLE_DOCUMENT] * symbols->document_bytes;
    symbols->documents = part(tables, 0, documents_bytes);
    symbols->methods = part(tables, documents_bytes, (size_t)rows[TABLE_METHOD] * symbols->method_bytes);
    symbols->blobs = stream(pdb, "#Blob");
    return symbols->methods.at < symbols->methods.end && symbols->blobs.at < symbols->blobs.end;
}

const struct dotnet_symbols *dotnet_symbols_of(const char *module_path)
{
    char path[4096];
    uint8_t id[ID_BYTES];
    struct span pdb;
    size_t length = strlen(module_path);
    if (length < 4 || length >= sizeof path || module_path[length - 4] != '.')
        return NULL;
    memcpy(path, module_path, length + 1);
    memcpy(path + length - 3, "pdb", 3);
    if (access(path, R_OK) != 0 || !id_of_module(module_path, id) || !read_whole(path, &pdb))
        return NULL;
    struct span own_id = stream(pdb, "#Pdb");
    struct dotnet_symbols *symbols = memory_map(sizeof *symbols);
    if (symbols != NULL && own_id.end - own_id.at >= ID_BYTES && memcmp(own_id.at, id, ID_BYTES) == 0 &&
        find_tables(pdb, symbols))
        return symbols; /* stays for ever */
    munmap((void *)(uintptr_t)pdb.at, (size_t)(pdb.end - pdb.at));
    if (symbols != NULL)
        munmap(symbols, sizeof *symbols);
    return NULL;
}

/* A document's name: the separator of its parts, and the parts' blobs. */
static void put_document(const struct dotnet_symbols *symbols, uint32_t document, char *name, size_t size)
{
    size_t used = 0;
    struct span row = part(symbols->documents, (document - 1ull) * symbols->document_bytes, symbols->document_bytes);
    uint32_t index = number_at(row, 0, symbols->blob_index_bytes);
    struct span parts = blob_at(symbols, index);
    uint8_t separator = (uint8_t)take(&parts, 1);
    for (bool is_first = true; parts.at < parts.end; is_first = false) {
        struct span text = blob_at(symbols, take_unsigned(&parts));
        if (!is_first && separator != 0 && used + 1 < size)
            name[used++] = (char)separator;
        for (; text.at < text.end && *text.at != 0 && used + 1 < size; text.at++)
            name[used++] = (char)*text.at;
    }
    name[used] = 0;
}

uint32_t dotnet_line(const struct dotnet_symbols *symbols, uint32_t token, uint32_t il_offset, char *file, size_t size)
{
    uint32_t line = 0, line_found = 0, document_found = 0, at = 0;
    struct span row = part(symbols->methods, ((token & 0xffffff) - 1ull) * symbols->method_bytes, symbols->method_bytes);
    uint32_t document = number_at(row, 0, symbols->document_index_bytes);
    uint32_t index = number_at(row, symbols->document_index_bytes, symbols->blob_index_bytes);
    struct span points = blob_at(symbols, index);
    file[0] = 0;
    if (index == 0)
        return 0;
    take_unsigned(&points); /* the signature of its variables */
    if (document == 0)
        document = take_unsigned(&points);
    for (bool is_first = true, has_line = false; points.at < points.end; is_first = false) {
        uint32_t step = take_unsigned(&points);
        if (step == 0 && !is_first) {
            document = take_unsigned(&points);
            continue;
        }
        at += step;
        if (at > il_offset)
            break;
        uint32_t lines = take_unsigned(&points);
        int32_t columns = lines == 0 ? (int32_t)take_unsigned(&points) : take_signed(&points);
        if (lines == 0 && columns == 0)
            continue; /* code that the compiler has made */
        line += has_line ? (uint32_t)take_signed(&points) : take_unsigned(&points);
        if (has_line)
            take_signed(&points);
        else
            take_unsigned(&points);
        has_line = true;
        line_found = line;
        document_found = document;
    }
    if (document_found != 0)
        put_document(symbols, document_found, file, size);
    return line_found;
}
