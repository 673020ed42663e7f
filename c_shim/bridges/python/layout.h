/* Offsets of the fields of CPython's structures that the bridge reads: up to 3.12 from a table, from 3.13 on from what the
 * interpreter says of itself (offsets.c). */
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
    uint16_t qualified_name;                            /* 0: PyType_GetQualName is asked (3.11 on) */
    uint16_t with_two_words; /* flags of types whose objects have two words before the collector's */
    uint16_t thread_bytes;   /* of PyThreadState, as far as it is read */
    uint16_t chunk, limit;   /* in PyThreadState: the piece of memory in which frames are made, and its end; 0: none such */
    uint16_t frame_bytes, code_bytes; /* of a frame and of a code object, as far as they are read */
    /* The rest is zero in the table. */
    uint16_t base_frame;     /* in PyThreadState: a frame that ends the chain (3.15 on); 0: none such */
    uint16_t thread_id;      /* in PyThreadState: what pthread_self returns; 0: not looked at */
    uint16_t bytecode_index; /* in the frame, and where the code has copies of its bytecode for threads; 0: none such */
    uint16_t bytecode_copies;
    uint16_t dict_keys; /* in dict; 0: the interpreter is asked */
    /* Without the interpreter's lock each object begins with two words more, has no collector's header before it, and is
     * counted in two fields. */
    bool is_free_threaded;
};

/* Flags of types: Py_TPFLAGS_MANAGED_DICT, and Py_TPFLAGS_MANAGED_WEAKREF. */
enum { PYTHON_HAS_DICT = 1 << 4, PYTHON_HAS_WEAKREFS = 1 << 3 };

/* Bytes that are read of a frame and of a code object, at most. */
enum { PYTHON_FRAME_BYTES = 128, PYTHON_CODE_BYTES = 256 };

/* Offsets in PyObject and PyTypeObject, the same in all versions but for a larger header of every object in builds without the
 * interpreter's lock. */
enum { PYTHON_TYPE = 8, PYTHON_TYPE_NAME = 24, PYTHON_TYPE_DEALLOC = 48, PYTHON_TYPE_FLAGS = 168, PYTHON_TYPE_DICT = 264 };
enum { PYTHON_TYPE_BASIC_SIZE = 32, PYTHON_LARGER_HEADER = 16 };

static inline size_t python_in_object(const struct python_layout *layout, size_t offset)
{
    return offset + (layout->is_free_threaded ? PYTHON_LARGER_HEADER : 0);
}

/* What an interpreter is, for the choice of its layout. */
struct python_identity {
    const char *version; /* Py_GetVersion */
    const uint64_t *self_description; /* _PyRuntime, or NULL */
    size_t words; /* that can be read there */
    const void *code_type, *str_type; /* PyCode_Type, PyUnicode_Type */
};

/* Returns the layout of this interpreter; NULL: not known. The layout stays where it is until the next call. */
HIDDEN const struct python_layout *python_layout_of(const struct python_identity *identity);

/* Reads what an interpreter of 3.13 or later says of itself. False, if that is not a description of it: a number is out of its
 * bounds, or not that of the two types, which are as in all versions. */
HIDDEN bool python_offsets_read(const struct python_identity *identity, int minor, struct python_layout *layout);

/* Whether an object with this header (24 bytes) may be alive: one that has ended has no references, or the address of something
 * else where references are counted. */
HIDDEN bool python_may_be_alive(const struct python_layout *layout, const uint8_t *header);

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

static inline uintptr_t python_word_in(const uint8_t *bytes, size_t offset)
{
    return python_word_at((uintptr_t)bytes + offset);
}

static inline uint32_t python_half_word_in(const uint8_t *bytes, size_t offset)
{
    return python_half_word_at((uintptr_t)bytes + offset);
}

#endif
