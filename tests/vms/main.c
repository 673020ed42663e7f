// Behaviour: runs a workload on the virtual machine, and prints on stderr what is exactly known of its heap.
// Usage: vm trees DEPTH TIMES | strings TIMES | known TIMES | mixed | relay DEPTH TIMES | deep DEPTH [TIMES] |
//        threads COUNT [toggle]: each thread switches its own sampling, and one more that of the whole heap, at random
#include "vm.h"
/* One program: the parts are apart for the reader. */
#include "gc.c"
#include "interpreter.c"
#include "hooks.c"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NURSERY = 1 << 20 };

static void print_truth(struct thread *t)
{
    static const char *const names[TYPES] = {"", "Node", "String", "Array", "Blob", "Pinned"};
    for (int type = 1; type < TYPES; type++)
        if (t->objects[type] > 0)
            fprintf(stderr, "type %s %llu %llu %llu\n", names[type], (unsigned long long)t->objects[type],
                    (unsigned long long)t->allocated[type], (unsigned long long)t->survived[type]);
    fprintf(stderr, "collections %llu %llu\n", (unsigned long long)t->minor_collections,
            (unsigned long long)t->major_collections);
}

static value run1(struct thread *t, uint32_t function, long a)
{
    value argument = number(a);
    return vm_run(t, function, &argument, 1);
}

static value run2(struct thread *t, uint32_t function, long a, long b)
{
    value arguments[] = {number(a), number(b)};
    return vm_run(t, function, arguments, 2);
}

/* Pinned objects: the machine holds them outside of any heap that moves. */
static void pin(struct thread *t, int count)
{
    for (int at = 0; at < count; at++)
        vm_new(t, TYPE_PINNED, 0, 64);
}

static void *thread_main(void *argument)
{
    bool toggles = argument != NULL;
    struct thread *t = vm_thread_new(NURSERY / 4);
    for (int turn = 0; turn < 40; turn++) {
        if (toggles)
            hooks_toggle(t, turn % 3 != 0);
        run2(t, BOTTOM_UP, 8, 4);
        run1(t, CHURN, 200);
        run1(t, ALLOCATE_BLOBS, 2);
    }
    vm_collect_minor(t);
    vm_collect_major(t);
    vm_thread_end(t);
    return NULL;
}

static atomic_bool is_over;

/* Has no heap of its own. */
static void *toggle_at_random(void *argument)
{
    for (unsigned random = 1; !atomic_load(&is_over); usleep(random >> 24)) {
        random = random * 1664525 + 1013904223;
        hooks_control(random >> 16);
    }
    return argument;
}

int main(int count, char **words)
{
    if (count < 2) {
        fprintf(stderr, "vm: no workload given\n");
        return 2;
    }
    long first = count > 2 ? atol(words[2]) : 0, second = count > 3 ? atol(words[3]) : 0;
    vm_assemble();
    hooks_start();
    if (strcmp(words[1], "threads") == 0) {
        pthread_t threads[64];
        for (long at = 0; at < first && at < 64; at++)
            pthread_create(&threads[at], NULL, thread_main, count > 3 ? words : NULL);
        pthread_t other;
        if (count > 3)
            pthread_create(&other, NULL, toggle_at_random, NULL);
        for (long at = 0; at < first && at < 64; at++)
            pthread_join(threads[at], NULL);
        if (count > 3) {
            atomic_store(&is_over, true);
            pthread_join(other, NULL);
        }
        puts("done");
        return 0;
    }
    struct thread *t = vm_thread_new(NURSERY);
    if (strcmp(words[1], "trees") == 0) {
        vm_push(t, run1(t, MAKE_TREE, first)); /* stays */
        run2(t, BOTTOM_UP, first / 2, second);
    } else if (strcmp(words[1], "strings") == 0) {
        run1(t, CHURN, first);
    } else if (strcmp(words[1], "known") == 0) {
        run1(t, ALLOCATE_NODES, first);
        vm_push(t, run1(t, ALLOCATE_KEPT, first / 4));
        run1(t, ALLOCATE_STRINGS, first);
        run1(t, ALLOCATE_BLOBS, first / 1000);
        pin(t, (int)(first / 100));
    } else if (strcmp(words[1], "mixed") == 0) {
        run1(t, OUTER, 50000);
    } else if (strcmp(words[1], "relay") == 0) {
        for (long turn = 0; turn < second; turn++)
            run1(t, RELAY, first);
    } else if (strcmp(words[1], "deep") == 0) {
        for (long turn = 0; turn == 0 || turn < second; turn++)
            run1(t, DESCEND, first);
    } else {
        fprintf(stderr, "vm: no such workload: %s\n", words[1]);
        return 2;
    }
    vm_collect_minor(t);
    vm_collect_major(t);
    print_truth(t);
    vm_thread_end(t);
    puts("done");
    return 0;
}
