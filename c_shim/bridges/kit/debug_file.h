/* For all bridges: the file to which the symbols of a stripped one were moved, as distributions and `objcopy --only-keep-debug` do it. */
#ifndef ALLOCSAMPLE_BRIDGES_DEBUG_FILE_H
#define ALLOCSAMPLE_BRIDGES_DEBUG_FILE_H

#include "kit/elf_file.h"

/* Opens the debug file of `stripped`, which is at `path`: /usr/lib/debug/.build-id/xx/yyy.debug, or the one that its section
 * .gnu_debuglink names, beside it, in .debug there, or below /usr/lib/debug. Until elf_file_close, if true.
 *
 * Its symbols are addresses that get called, so it must have the same build id and the same sections of code, and belong to root or
 * to the owner of the stripped file. */
HIDDEN bool debug_file_open(struct elf_file *file, struct elf_file *stripped, const char *path);

#endif
