/* See slots.h.
 *
 * Memory that the loader made read-only after it had filled it (RELRO) is made writable while slots in it are stored to.
 * Such memory that is still writable belongs to an object which another thread is loading just now: it is left alone,
 * since nobody may take the loader's right to write from under it. The next pass finds it read-only. */
#define _GNU_SOURCE
#include "slots.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum access { WRITABLE, READ_ONLY, NOT_KNOWN };

/* Whether memory can be stored to, without changing it: the kernel adds 0 to a word of it, and refuses if it may not. */
static enum access access_of_word(uintptr_t address)
{
    static uint32_t nobody_waits_here;
    const unsigned add_nothing = (unsigned)FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0);
    void *word = (void *)(address & ~(uintptr_t)3);
    if (syscall(SYS_futex, &nobody_waits_here, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0, word, add_nothing) >= 0)
        return WRITABLE;
    /* A filter of system calls may say something else. */
    return errno == EFAULT ? READ_ONLY : NOT_KNOWN;
}

/* A slot may lie across two pages, where a linker was told to put it anywhere. */
static enum access access_of(const uintptr_t *slot)
{
    enum access first = access_of_word((uintptr_t)slot);
    uintptr_t last = (uintptr_t)slot + sizeof *slot - 1;
    return first == WRITABLE ? access_of_word(last) : first;
}

void shim_close_window(struct shim_window *window)
{
    /* If the kernel refuses, which it has no reason to, the slots work all the same. */
    if (window->bytes != 0)
        mprotect((void *)window->start, window->bytes, PROT_READ);
    window->bytes = 0;
}

/* The pages of a slot, up to the end of RELRO memory. */
static bool open_window(uintptr_t page_bytes, struct shim_window *window, const struct shim_dynamic *object, uintptr_t at)
{
    uintptr_t start = at & ~(page_bytes - 1);
    uintptr_t end = (at + sizeof(uintptr_t) - 1 + page_bytes) & ~(page_bytes - 1);
    shim_close_window(window);
    end = end < object->relro_end ? end : object->relro_end;
    if (mprotect((void *)start, end - start, PROT_READ | PROT_WRITE) != 0)
        return false;
    *window = (struct shim_window){start, end - start};
    return true;
}

static bool is_in_window(const struct shim_window *window, uintptr_t at)
{
    return at - window->start < window->bytes && at - window->start + sizeof(uintptr_t) <= window->bytes;
}

enum slot_outcome shim_slot_store(uintptr_t page_bytes, struct shim_window *window, const struct shim_dynamic *object,
                                  uintptr_t *slot, const void *value)
{
    uintptr_t at = (uintptr_t)slot;
    bool is_relro = at >= object->relro_start && at < object->relro_end;
    if (!is_in_window(window, at)) {
        enum access access = access_of(slot);
        /* Among code, or protected by the program: that is not ours to change. */
        if (!is_relro && access == READ_ONLY)
            return NOT_OURS;
        if (is_relro && access == WRITABLE)
            return NOT_NOW;
        if (is_relro && !open_window(page_bytes, window, object, at))
            return NOT_OURS;
    }
    __atomic_store_n(slot, (uintptr_t)value, __ATOMIC_RELEASE);
    return STORED;
}

/* Whether these bytes are code of the object that can be read. */
static bool is_readable_code(const struct shim_dynamic *object, uintptr_t address, size_t bytes)
{
    for (size_t i = 0; i < object->segment_count; i++) {
        const ElfW(Phdr) *segment = &object->segments[i];
        uintptr_t offset = address - (object->bias + segment->p_vaddr);
        if (segment->p_type == PT_LOAD && (segment->p_flags & (PF_X | PF_R)) == (PF_X | PF_R) &&
            offset < segment->p_memsz && bytes <= segment->p_memsz - offset)
            return true;
    }
    return false;
}

bool shim_slot_is_unbound(const struct shim_dynamic *object, const ElfW(Rela) *relocation, uintptr_t held)
{
#if defined(__x86_64__)
    /* [endbr64]; push $index of the relocation; [bnd] jmp to the head of the table. */
    static const uint8_t landing[] = {0xf3, 0x0f, 0x1e, 0xfa};
    enum { PUSH = 0x68, BND = 0xf2, JUMP = 0xe9, LONGEST = sizeof landing + 5 + 2 };
    if (!is_readable_code(object, held, LONGEST))
        return false;
    const uint8_t *code = (const uint8_t *)held;
    if (memcmp(code, landing, sizeof landing) == 0)
        code += sizeof landing;
    uint32_t index;
    memcpy(&index, code + 1, sizeof index);
    const uint8_t *jump = code + 1 + sizeof index;
    return code[0] == PUSH && index == (size_t)(relocation - object->tables[1]) &&
           (jump[0] == JUMP || (jump[0] == BND && jump[1] == JUMP));
#else
    /* The head of the table itself: [bti c]; stp x16, x30, [sp, #-16]!. */
    (void)relocation;
    enum { BTI_C = 0xd503245f, PUSH = 0xa9bf7bf0 };
    if (held % sizeof(uint32_t) != 0 || !is_readable_code(object, held, 2 * sizeof(uint32_t)))
        return false;
    const uint32_t *code = (const uint32_t *)held;
    return code[code[0] == BTI_C] == PUSH;
#endif
}

bool shim_slot_is_untouched(const struct shim_dynamic *object, const ElfW(Rela) *relocation, uintptr_t held)
{
    /* The place of its stub, or of the head of the table, if the object lay at 0. */
    if (ELF64_R_TYPE(relocation->r_info) == RELOCATION_SLOT)
        return held < object->bias && is_readable_code(object, object->bias + held, 1);
    const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(relocation->r_info)];
    return ELF64_R_TYPE(relocation->r_info) == RELOCATION_ADDRESS && held == 0 &&
           ELF64_ST_BIND(symbol->st_info) != STB_WEAK;
}
