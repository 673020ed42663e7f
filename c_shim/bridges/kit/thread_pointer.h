/* Where the calling thread's thread-local memory is. */
#ifndef ALLOCSAMPLE_BRIDGES_THREAD_POINTER_H
#define ALLOCSAMPLE_BRIDGES_THREAD_POINTER_H

static inline char *thread_pointer(void)
{
#if defined(__x86_64__)
    /* gcc has the builtin function on this machine since version 11. */
    char *self;
    __asm__("mov %%fs:0, %0" : "=r"(self));
    return self;
#else
    return __builtin_thread_pointer();
#endif
}

#endif
