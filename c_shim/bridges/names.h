/* What the bridges share of names: one hash of text. */
#ifndef ALLOCSAMPLE_BRIDGES_NAMES_H
#define ALLOCSAMPLE_BRIDGES_NAMES_H

#include <stdint.h>

/* Where a hash begins. */
#define NAMES_SEED UINT64_C(0xcbf29ce484222325)

/* FNV-1a of `text`, continued from `hash`; never 0. The end of the text counts, so that "ab", "c" is not "a", "bc". */
static inline uint64_t names_hash(uint64_t hash, const char *text)
{
    for (; *text != 0; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    hash ^= 0x1f;
    return hash + (hash == 0);
}

#endif
