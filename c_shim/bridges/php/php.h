/* What the files of the bridge to PHP share: php.c joins it, heap.c samples its heap, frames.c reads
 * its frames, interrupts.c has it come by. */
#ifndef ALLOCSAMPLE_BRIDGES_PHP_H
#define ALLOCSAMPLE_BRIDGES_PHP_H

#include "allocsample.h"
#include "bridge.h"

/* Types of PHP's that are only passed on. */
typedef struct zend_mm_heap zend_mm_heap;
typedef struct zend_execute_data zend_execute_data;
typedef struct zend_string zend_string;

/* Functions and variables of PHP's public interface (ZEND_API). */
struct php_symbols {
    zend_mm_heap *(*heap)(void);
    void (*set_handlers)(zend_mm_heap *, void *(*)(size_t), void (*)(void *), void *(*)(void *, size_t));
    void (*get_handlers)(zend_mm_heap *, void *(**)(size_t), void (**)(void *), void *(**)(void *, size_t));
    void *(*allocate)(zend_mm_heap *, size_t);
    void (*free)(zend_mm_heap *, void *);
    void *(*reallocate)(zend_mm_heap *, void *, size_t);
    size_t (*block_size)(zend_mm_heap *, void *);
    size_t (*peak)(bool is_real);
    zend_string *(*executed_file)(void);
    uint32_t (*executed_line)(void);
    const char *(*active_function)(void);
    void *(*find_in_table)(const void *table, const char *name, size_t length);
    void *(*find_function)(const char *name, size_t length);
    void *emalloc_56; /* builds for debugging have none, and handlers with more arguments */
    void *execute;    /* the function of the interpreter's loop */
    void (**execute_hook)(zend_execute_data *);
    int (**post_startup_hook)(void);
    int (**collect_cycles_hook)(void);
    void (**interrupt_hook)(zend_execute_data *);
    const char *(*version)(void);
    const void *modules;
    char *executor;
    const char *request;
    const char **server; /* its name comes first */
};

/* ---- php.c ---- */

/* On PHP's thread, where any code may run. */
HIDDEN void php_come_by(void);

/* ---- interrupts.c ---- */

/* When PHP has started. */
HIDDEN void php_interrupts_prepare(const struct php_symbols *symbols);
/* Has PHP's thread call php_come_by soon, in a version that is known. On any thread. */
HIDDEN void php_interrupt(void);

/* ---- heap.c ---- */

HIDDEN bool php_heap_prepare(const struct php_symbols *symbols, const allocsample_hooks *hooks, allocsample_heap *heap);
/* Samples what PHP allocates from now on. On PHP's thread, anywhere in PHP's code. Nothing happens where PHP has another heap than
 * its own, or somebody else's handlers. */
HIDDEN void php_heap_enter(void);
/* Gives the heap back to PHP, which is about to drop all that is in it. Every sample ends, unless the process is about to end as
 * well: what a program holds until then counts as live, as with any other. Returns whether there were samples since
 * php_heap_enter. */
HIDDEN bool php_heap_leave(bool is_end_of_process);
/* Around a call that must find the heap as PHP made it. False: it is so already, and does not go on. */
HIDDEN bool php_heap_pause(void);
HIDDEN void php_heap_go_on(void);

/* ---- frames.c ---- */

/* Where the interpreter stood when it called the allocator, as far as registers tell. */
struct php_position {
    uintptr_t frame, instruction;
};

HIDDEN bool php_frames_prepare(const struct php_symbols *symbols, const allocsample_hooks *hooks);
HIDDEN void php_frames_belong_to(allocsample_heap *heap);
/* A request begins, or is joined: the calling thread is PHP's, and functions of before may be gone. */
HIDDEN void php_frames_begin(void);
/* Sets the position for walks until it is set again. */
HIDDEN void php_frames_at(struct php_position position);
HIDDEN size_t php_frames_walk(void *user, allocsample_frame *frames, size_t capacity);
HIDDEN void php_frames_after_fork_in_child(void);

#endif
