/* See dynamic.h. */
#define _GNU_SOURCE
#include "dynamic.h"

#include <string.h>

bool shim_holds(const struct dl_phdr_info *info, uintptr_t address)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t at = address - (info->dlpi_addr + segment->p_vaddr);
        if (segment->p_type == PT_LOAD && at < segment->p_memsz)
            return true;
    }
    return false;
}

bool shim_read_dynamic(const struct dl_phdr_info *info, uintptr_t page_bytes, struct shim_dynamic *object)
{
    *object = (struct shim_dynamic){
        .bias = info->dlpi_addr, .segments = info->dlpi_phdr, .segment_count = info->dlpi_phnum};
    const ElfW(Dyn) *dynamic = NULL;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        uintptr_t end = start + segment->p_memsz;
        if (segment->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)start;
        } else if (segment->p_type == PT_GNU_RELRO) {
            /* Rounded as the loader does. */
            object->relro_start = start & ~(page_bytes - 1);
            object->relro_end = end & ~(page_bytes - 1);
        }
    }
    if (dynamic == NULL)
        return false;
    size_t bytes[2] = {0, 0};
    size_t relative = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t value = dynamic->d_un.d_val;
        /* The loader has relocated these words in place, except in objects whose dynamic section is read-only. */
        uintptr_t address = value < object->bias ? value + object->bias : value;
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            object->symbols = (const ElfW(Sym) *)address;
            break;
        case DT_STRTAB:
            object->names = (const char *)address;
            break;
        case DT_RELA:
            object->tables[0] = (const ElfW(Rela) *)address;
            break;
        case DT_RELASZ:
            bytes[0] = value;
            break;
        case DT_RELACOUNT:
            relative = value;
            break;
        case DT_JMPREL:
            object->tables[1] = (const ElfW(Rela) *)address;
            break;
        case DT_PLTRELSZ:
            bytes[1] = value;
            break;
        }
    }
    for (size_t i = 0; i < 2; i++)
        object->counts[i] = object->tables[i] == NULL ? 0 : bytes[i] / sizeof(ElfW(Rela));
    /* The relative ones come first and name no symbol. */
    if (relative <= object->counts[0] && object->counts[0] != 0) {
        object->tables[0] += relative;
        object->counts[0] -= relative;
    }
    return object->symbols != NULL && object->names != NULL;
}

static const ElfW(Sym) *look_up_gnu(const uint32_t *table, const struct shim_dynamic *object, const char *name)
{
    uint32_t hash = 5381;
    for (const char *at = name; *at != '\0'; at++)
        hash = hash * 33 + (unsigned char)*at;
    uint32_t buckets = table[0], first = table[1], words = table[2];
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)&table[4] + words);
    const uint32_t *chain = bucket + buckets;
    if (buckets == 0)
        return NULL;
    uint32_t index = bucket[hash % buckets];
    if (index < first)
        return NULL;
    for (;; index++) {
        uint32_t entry = chain[index - first];
        const ElfW(Sym) *symbol = &object->symbols[index];
        if ((entry | 1) == (hash | 1) && strcmp(object->names + symbol->st_name, name) == 0)
            return symbol;
        if ((entry & 1) != 0)
            return NULL;
    }
}

uintptr_t shim_dynamic_value(const struct dl_phdr_info *info, ElfW(Sxword) tag)
{
    uintptr_t value = 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + segment->p_vaddr);
        for (; dynamic->d_tag != DT_NULL; dynamic++) {
            if (dynamic->d_tag == tag)
                value = dynamic->d_un.d_val;
        }
    }
    return value;
}

const ElfW(Sym) *shim_look_up(const struct dl_phdr_info *info, const struct shim_dynamic *object, const char *name)
{
    uintptr_t value = shim_dynamic_value(info, DT_GNU_HASH);
    const uint32_t *table = (const uint32_t *)(value < info->dlpi_addr ? value + info->dlpi_addr : value);
    const ElfW(Sym) *symbol = value == 0 ? NULL : look_up_gnu(table, object, name);
    return symbol == NULL || symbol->st_shndx == SHN_UNDEF ? NULL : symbol;
}
