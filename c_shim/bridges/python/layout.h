/* Offsets of the fields of CPython's structures that the bridge reads. */
#ifndef ALLOCSAMPLE_BRIDGES_PYTHON_LAYOUT_H
#define ALLOCSAMPLE_BRIDGES_PYTHON_LAYOUT_H

#include "kit/foreign.h"
#include "bridge.h"

#include <string.h>

/* Offsets in PyThreadState, in the frame, in PyCodeObject, in str and in PyHeapTypeObject. */
struct python_layout {
    int minor;
    uint16_t frame_in_thread;
    int16_t frame_in_cframe; /* 3.11 and 3.12: the thread's pointer leads to a _PyCFrame; -1 elsewhere */
    uint16_t code, previous, instruction, entry, owner; /* entry 0: none such */
    uint16_t file_name, name, first_line, bytecode;     /* bytecode 0: the instruction is an index */
    uint16_t instruction_bytes;                         /* of an index */
    uint16_t ascii, compact;                            /* where the text of a str begins */
    uint16_t qualified_name;
    uint16_t with_two_words; /* flags of types whose objects have two words before the collector's */
    uint16_t thread_bytes;   /* of PyThreadState, as far as it is read */
    uint16_t chunk, limit;   /* in PyThreadState: the piece of memory in which frames are made, and its end; 0: none such */
};

/* Offsets in PyObject and PyTypeObject, the same in all versions. */
enum { PYTHON_TYPE = 8, PYTHON_TYPE_NAME = 24, PYTHON_TYPE_DEALLOC = 48, PYTHON_TYPE_FLAGS = 168, PYTHON_TYPE_DICT = 264 };

/* Returns the layout of the interpreter with this version (`Py_GetVersion`); NULL: not known. */
HIDDEN const struct python_layout *python_layout_of(const char *version);

/* A str as UTF-8, cut to what has room. Empty for one that is not in the compact form, which names always are, for 0, and
 * where there is none. `reader` is NULL for a str that somebody keeps alive meanwhile. */
HIDDEN void python_copy_text(const struct python_layout *layout, struct foreign_reader *reader, uintptr_t string, char *text,
                             size_t room);

/* For objects that are kept alive during the read. */
static inline uintptr_t python_word_at(uintptr_t address)
{
    uintptr_t word;
    memcpy(&word, (const void *)address, sizeof word);
    return word;
}

static inline uint32_t python_half_word_at(uintptr_t address)
{
    uint32_t word;
    memcpy(&word, (const void *)address, sizeof word);
    return word;
}

#endif
