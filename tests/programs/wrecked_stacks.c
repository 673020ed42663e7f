/* Allocates on a stack whose frames lead anywhere, in code that no module covers, so that only frame pointers lead on; while
 * another thread unmaps some of the pages to which they lead, and maps them again. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__x86_64__)

enum { PAGE = 4096, STACK_PAGES = 32, PAGES = 64, VOLATILE_PAGES = 8, ROUNDS = 20000 };

/* From low to high: the stack, frames, frames that come and go, a page that may not be read, one that is gone. */
static uint8_t *memory;
static unsigned seed = 7;

static uint8_t *wrecks(void) {
    return memory + STACK_PAGES * PAGE;
}

static uint8_t *volatile_pages(void) {
    return wrecks() + PAGES * PAGE;
}

/* push %rbp; mov %rdi, %rbp; call *%rsi; pop %rbp; ret */
static const uint8_t code[] = {0x55, 0x48, 0x89, 0xfd, 0xff, 0xd6, 0x5d, 0xc3};
enum { BEHIND_CALL = 6 };
static void (*with_frame_pointer)(uintptr_t frame_pointer, void (*function)(void));
static uintptr_t return_address;

/* Half of them where pages come and go; few in the last two pages. */
static uintptr_t somewhere(void) {
    size_t first = next_random(&seed) % 2 == 0 ? PAGES : 0;
    size_t pages = first != 0 ? VOLATILE_PAGES + next_random(&seed) % 16 / 14 : PAGES;
    uintptr_t place = (uintptr_t)wrecks() + first * PAGE + next_random(&seed) % (pages * PAGE);
    return next_random(&seed) % 16 == 0 ? place : place & ~(uintptr_t)7;
}

static void wreck(void) {
    uintptr_t *words = (uintptr_t *)wrecks();
    for (size_t i = 0; i < PAGES * PAGE / sizeof *words; i++)
        words[i] = next_random(&seed) % 2 == 0 ? somewhere() : return_address;
}

static _Atomic(int) is_over;

static void *unmap_and_map(void *unused) {
    (void)unused;
    while (!atomic_load(&is_over)) {
        CHECK(munmap(volatile_pages(), VOLATILE_PAGES * PAGE) == 0);
        void *again = mmap(volatile_pages(), VOLATILE_PAGES * PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(again == volatile_pages());
        memcpy(again, wrecks(), VOLATILE_PAGES * PAGE);
    }
    return NULL;
}

static void NOINLINE allocate(void) {
    void *block = malloc(100);
    KEEP(block);
    free(block);
}

static void on_the_stack(void) {
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 1000 == 0) wreck();
        with_frame_pointer(somewhere(), allocate);
    }
}

int main(void) {
    size_t pages = STACK_PAGES + PAGES + VOLATILE_PAGES + 2;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(mprotect(memory + (pages - 2) * PAGE, PAGE, PROT_NONE) == 0);
    uint8_t *stub = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stub != MAP_FAILED);
    memcpy(stub, code, sizeof code);
    CHECK(mprotect(stub, PAGE, PROT_READ | PROT_EXEC) == 0);
    memcpy(&with_frame_pointer, &stub, sizeof stub);
    return_address = (uintptr_t)stub + BEHIND_CALL;
    wreck();

    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, unmap_and_map, NULL) == 0);
    /* After what `pthread_create` and the others map. */
    CHECK(munmap(memory + (pages - 1) * PAGE, PAGE) == 0);
    ucontext_t here, there;
    CHECK(getcontext(&there) == 0);
    there.uc_stack.ss_sp = memory;
    there.uc_stack.ss_size = STACK_PAGES * PAGE;
    there.uc_link = &here;
    makecontext(&there, on_the_stack, 0);
    CHECK(swapcontext(&here, &there) == 0);
    atomic_store(&is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    puts("walked");
    return 0;
}

#else

int main(void) {
    puts("walked");
    return 0;
}

#endif
