/* What tests of single files of a bridge need: random numbers, the same on every machine, and the services that the files use. */
#ifndef BRIDGE_PARTS_H
#define BRIDGE_PARTS_H

#include <stdint.h>
#include <sys/mman.h>

static uint64_t random_state = 88172645463325252u;

static uint64_t below(uint64_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % bound;
}

static void *map_own(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

const struct shim_services shim_services = {.map_own = map_own};

#endif
