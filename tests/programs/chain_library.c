// Behaviour: functions that are called through the PLT, and call back.
#include "check.h"

NOINLINE void *linked_start(void *(*callback)(size_t), size_t size) {
    void *block = callback(size);
    KEEP(block);
    return block;
}

NOINLINE int linked_nothing(int value) {
    __asm__ volatile("" : "+r"(value));
    return value + 1;
}
