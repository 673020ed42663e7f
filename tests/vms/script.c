// Behaviour: plays scripts of allocations and collections against the hook ABI, and holds each answer against a model that
// knows, byte by byte, where the sample points are. Prints on stderr the sums that the profile must contain.
// Usage: script FILE LAW INTERVAL, where LAW is periodic or poisson and INTERVAL that of the agent
//
// A line of FILE is a sequence: the scripts of its threads, with `|` between. An operation is a letter and numbers:
//   a SIZE TYPE  an object in the nursery           l SIZE TYPE  one outside of it        n SIZE  a block of malloc
//   c SEED BYTES a minor collection; the nursery has BYTES from then on    m SEED  a major one    h BYTES  a hole: pinned objects
//   i BYTES      another interval for the heap      s, g         the heap's sampling stops, goes on
//   x, y         the thread's sampling off, on      e            the thread leaves and comes back
//   d            all that is pending is discarded      f            a child plays the rest
// Those that concern the heap (m i s g d f) are for sequences of one thread. Threads take turns in two heaps.
#include "../../c_shim/include/allocsample.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HEAPS = 2, THREADS = 4, TYPES = 4, SAMPLES = 1 << 17, BATCH = 7 };

static const allocsample_hooks *agent;
static bool is_periodic;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "script: line %d, operation %zu (%s): ", line_number, operation_number, #condition);       \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            _exit(99);                                                                                                 \
        }                                                                                                              \
    } while (0)

static int line_number;
static __thread size_t operation_number;

/* ---- the model ---- */

struct sample {
    allocsample_id id;
    uintptr_t address;
    double weight;
    uint32_t type;
    bool has_survived;
};

struct samples {
    struct sample *all;
    size_t count;
};

struct heap {
    allocsample_heap *handle;
    const char *name;
    bool is_on;
    uint64_t interval;
    uint32_t generation;          /* grows with each of the two above */
    uint32_t interval_generation; /* ... and with the second alone */
    pthread_mutex_t lock;         /* for what follows */
    struct samples old;
    uint64_t exact, recorded, minor, major;
    double weights, survived[TYPES], died[TYPES];
};

static struct heap heaps[HEAPS] = {{.name = "org.example.first"}, {.name = "org.example.second"}};

struct thread {
    struct heap *heap;
    allocsample_nursery agent;
    uintptr_t base, free, limit, top;
    uintptr_t plain_free; /* of the same machine without sampling */
    uint64_t collections, plain_collections;
    bool is_on, is_enabled;
    uint64_t distance; /* bytes before the next sample point */
    bool is_distance_known;
    uint64_t interval;
    uint32_t generation, interval_generation;
    struct samples young;
    uint64_t random;
};

static struct thread threads[THREADS];
static __thread struct sample *heard; /* what on_sample is to fill in */

static void keep(struct samples *list, struct sample sample)
{
    if (list->all == NULL)
        list->all = malloc(SAMPLES * sizeof *list->all);
    if (list->count == SAMPLES) {
        fprintf(stderr, "script: too many samples\n");
        _exit(98);
    }
    list->all[list->count++] = sample;
}

static void on_sample(void *user, allocsample_id id, uintptr_t address, uint64_t size, allocsample_type type)
{
    (void)user, (void)size;
    CHECK(heard != NULL && heard->id == ALLOCSAMPLE_NO_SAMPLE, "a sample that is not due");
    *heard = (struct sample){.id = id, .address = address, .type = type};
}

static uint64_t draw(struct thread *t, uint64_t below)
{
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (t->random >> 33) % below;
}

/* The limit that the agent returned must be the model's. Where the point was drawn anew, it is asked for first. */
static void agreed(struct thread *t, uintptr_t limit, bool is_drawn_anew)
{
    struct heap *heap = t->heap;
    if (t->generation != heap->generation) {
        t->generation = heap->generation;
        if (t->interval_generation != heap->interval_generation) {
            t->interval_generation = heap->interval_generation;
            t->interval = heap->interval;
            is_drawn_anew = true;
        }
        t->is_on = heap->is_on && t->is_enabled;
    }
    t->is_distance_known &= !is_drawn_anew;
    /* Only a nursery that is on tells where its point is. */
    if (!t->is_distance_known && t->is_on) {
        const uintptr_t far = (uintptr_t)INT64_MAX;
        t->distance = agent->nursery_sync(heap->handle, &t->agent, t->free, t->free, t->free + far) - t->free;
        t->is_distance_known = true;
        limit = agent->nursery_sync(heap->handle, &t->agent, t->free, t->free, t->top);
    }
    uint64_t space = t->top - t->free;
    uintptr_t expected = t->free + (t->is_on && t->distance < space ? t->distance : space);
    CHECK(limit == expected, "the limit is at %+ld", (long)(limit - expected));
    t->limit = limit;
}

/* What the model says of an object: the points in it. */
static uint64_t points_in(struct thread *t, uint64_t size)
{
    if (!t->is_on)
        return 0;
    pthread_mutex_lock(&t->heap->lock);
    t->heap->exact += size;
    pthread_mutex_unlock(&t->heap->lock);
    if (size <= t->distance) {
        t->distance -= size;
        return 0;
    }
    uint64_t points = 1 + (size - 1 - t->distance) / t->interval;
    t->distance = t->distance + points * t->interval - size;
    return points;
}

static double weight_of(struct thread *t, uint64_t size, uint64_t points)
{
    if (is_periodic)
        return (double)points * (double)t->interval;
    return t->interval == 1 ? (double)size : (double)size / -expm1(-(double)size / (double)t->interval);
}

/* An object with points in it has been told of: it must have become this sample. */
static void sampled(struct thread *t, struct sample sample, uint64_t size, uint64_t points, uint32_t type,
                    uintptr_t address)
{
    CHECK((sample.id != ALLOCSAMPLE_NO_SAMPLE) == (points > 0), "%lu points", (unsigned long)points);
    if (points == 0)
        return;
    CHECK(sample.address == address && sample.type == type, "it is another object");
    sample.weight = weight_of(t, size, points);
    pthread_mutex_lock(&t->heap->lock);
    t->heap->recorded++;
    t->heap->weights += sample.weight;
    pthread_mutex_unlock(&t->heap->lock);
    keep(&t->young, sample);
}

/* ---- collections ---- */

static struct sample take(struct samples *list, allocsample_id id)
{
    for (size_t at = 0; at < list->count; at++) {
        if (list->all[at].id == id) {
            struct sample sample = list->all[at];
            list->all[at] = list->all[--list->count];
            return sample;
        }
    }
    CHECK(false, "sample %lu is not pending", (unsigned long)id);
    return (struct sample){0};
}

/* Asks for the samples of a list, and answers at random: some not at all, some twice, and in any order. */
static void resolve(struct thread *t, uint32_t kind, struct samples *list)
{
    struct heap *heap = t->heap;
    allocsample_nursery *nursery = kind == ALLOCSAMPLE_MINOR ? &t->agent : NULL;
    allocsample_pending pending[BATCH];
    struct samples left = {0};
    uint64_t cursor = 0;
    size_t count, seen = 0, expected = list->count;
    while ((count = agent->pending(heap->handle, nursery, kind, pending, BATCH, &cursor)) > 0) {
        allocsample_resolution answers[BATCH * 2];
        size_t answered = 0, taken = 0;
        seen += count;
        for (size_t at = 0; at < count; at++) {
            struct sample sample = take(list, pending[at].id);
            CHECK(pending[at].address == sample.address && pending[at].type == sample.type, "it is another object");
            uint64_t choice = draw(t, 8);
            if (choice == 0) { /* no answer */
                keep(&left, sample);
                continue;
            }
            uint32_t fate = choice < 4   ? ALLOCSAMPLE_DEAD
                            : choice < 6 ? ALLOCSAMPLE_PROMOTED
                            : choice < 7 ? ALLOCSAMPLE_ALIVE
                                         : ALLOCSAMPLE_UNKNOWN;
            bool is_alive = fate == ALLOCSAMPLE_PROMOTED || fate == ALLOCSAMPLE_ALIVE;
            if (is_alive)
                sample.address += 16 + draw(t, 1 << 20);
            allocsample_resolution answer = {
                .id = sample.id, .slot = pending[at].slot, .address = sample.address, .fate = fate};
            answers[answered++] = answer;
            taken++;
            if (choice % 2 == 0) { /* the same again, with another fate */
                answer.fate = ALLOCSAMPLE_DEAD;
                if (!(kind == ALLOCSAMPLE_MAJOR && is_alive))
                    answers[answered++] = answer;
            }
            pthread_mutex_lock(&heap->lock);
            if (!sample.has_survived && is_alive)
                heap->survived[sample.type] += sample.weight;
            /* Also of a thread that has left before any collection. */
            if (!sample.has_survived && fate == ALLOCSAMPLE_DEAD)
                heap->died[sample.type] += sample.weight;
            sample.has_survived |= is_alive;
            if (is_alive)
                keep(kind == ALLOCSAMPLE_MINOR ? &heap->old : &left, sample);
            pthread_mutex_unlock(&heap->lock);
        }
        size_t got = agent->resolve(heap->handle, nursery, kind, answers, answered, heap->minor + 1);
        CHECK(got == taken, "%zu answers were taken, not %zu", got, taken);
    }
    CHECK(seen == expected && list->count == 0, "%zu were pending, not %zu", seen, expected);
    for (size_t at = 0; at < left.count; at++)
        keep(list, left.all[at]);
    free(left.all);
}

static void told(struct heap *heap, uint32_t kind)
{
    pthread_mutex_lock(&heap->lock);
    uint64_t id = kind == ALLOCSAMPLE_MINOR ? ++heap->minor : ++heap->major;
    pthread_mutex_unlock(&heap->lock);
    uint64_t now = agent->now_ns();
    agent->gc(heap->handle,
              &(allocsample_gc){.size = sizeof(allocsample_gc), .kind = kind, .id = id, .begin_ns = now, .end_ns = now});
}

static void collect_minor(struct thread *t, uint64_t bytes)
{
    resolve(t, ALLOCSAMPLE_MINOR, &t->young);
    uintptr_t old_free = t->free;
    /* Another chunk each time, now above, now below. */
    t->base = t->free = ((uintptr_t)1 << 40) + (draw(t, 1 << 20) << 16);
    t->top = t->base + bytes;
    t->collections++;
    agreed(t, agent->nursery_sync(t->heap->handle, &t->agent, old_free, t->free, t->top), false);
    told(t->heap, ALLOCSAMPLE_MINOR);
}

/* ---- operations ---- */

static void begin(struct thread *t)
{
    t->base = t->free = t->plain_free = (uintptr_t)1 << 41;
    t->top = t->base + 512;
    t->is_enabled = true;
    uintptr_t limit = agent->nursery_begin(t->heap->handle, &t->agent, t->free, t->top);
    t->generation = 0;
    t->interval_generation = 0;
    agreed(t, limit, true);
}

static void outside(struct thread *t, uint64_t size, uint32_t type)
{
    uintptr_t address = ((uintptr_t)1 << 50) + (draw(t, 1 << 30) << 4), limit = t->limit;
    struct sample sample = {.id = ALLOCSAMPLE_NO_SAMPLE};
    heard = &sample;
    allocsample_id id = agent->alloc(t->heap->handle, &t->agent, address, size, type, t->free, &limit);
    heard = NULL;
    CHECK(id == sample.id, "on_sample heard of another one");
    uint64_t points = points_in(t, size);
    sampled(t, sample, size, points, type, address);
    agreed(t, limit, points > 0 && !is_periodic);
}

static void allocate(struct thread *t, uint64_t size, uint32_t type)
{
    /* The machine without sampling. */
    if (size > t->top - t->base) {
        outside(t, size, type);
        return;
    }
    bool collects = size > t->top - t->plain_free;
    t->plain_collections += collects;
    /* The machine. */
    if (size > t->limit - t->free && size > t->top - t->free)
        collect_minor(t, t->top - t->base);
    if (collects)
        t->plain_free = t->base;
    CHECK(t->free == t->plain_free && t->collections == t->plain_collections, "the object is elsewhere");
    if (size <= t->limit - t->free) {
        uint64_t points = points_in(t, size);
        CHECK(points == 0, "the fast path passes %lu points", (unsigned long)points);
        t->free += size;
    } else {
        struct sample sample = {.id = ALLOCSAMPLE_NO_SAMPLE};
        uintptr_t object = t->free;
        heard = &sample;
        uintptr_t limit = agent->nursery_point(t->heap->handle, &t->agent, object, size, t->top, type);
        heard = NULL;
        uint64_t points = points_in(t, size);
        CHECK(points > 0, "the slow path without a point");
        sampled(t, sample, size, points, type, object);
        t->free += size;
        agreed(t, limit, !is_periodic);
    }
    t->plain_free += size;
}

static void control(struct heap *heap, uint32_t operation, uint64_t value)
{
    CHECK(agent->control(heap->handle, operation, value) == ALLOCSAMPLE_OK, "control refuses");
    if (operation == ALLOCSAMPLE_SET_INTERVAL) {
        heap->interval = value;
        heap->interval_generation++;
    } else {
        heap->is_on = operation == ALLOCSAMPLE_START;
    }
    heap->generation++;
}

static void print_sums(const char *who)
{
    for (int at = 0; at < HEAPS; at++) {
        struct heap *heap = &heaps[at];
        fprintf(stderr, "%s %s %lu %lu %.17g %lu %lu", who, heap->name, (unsigned long)heap->exact,
                (unsigned long)heap->recorded, heap->weights, (unsigned long)heap->minor, (unsigned long)heap->major);
        for (int type = 1; type < TYPES; type++)
            fprintf(stderr, " %.17g %.17g", heap->survived[type], heap->died[type]);
        fputc('\n', stderr);
    }
}

/* In the child: nothing is pending, no sum has begun, and where the next point is must be asked for. */
static void become_child(struct thread *t)
{
    for (int at = 0; at < HEAPS; at++) {
        struct heap *heap = &heaps[at];
        heap->old.count = 0;
        heap->exact = heap->recorded = heap->minor = heap->major = 0;
        heap->weights = 0;
        memset(heap->survived, 0, sizeof heap->survived);
        memset(heap->died, 0, sizeof heap->died);
    }
    for (int at = 0; at < THREADS; at++)
        threads[at].young.count = 0;
    uintptr_t limit = agent->nursery_sync(t->heap->handle, &t->agent, t->free, t->free, t->top);
    t->generation = t->heap->generation;
    t->interval_generation = t->heap->interval_generation;
    t->interval = t->heap->interval;
    t->is_on = t->heap->is_on && t->is_enabled;
    agreed(t, limit, true);
}

static void play(struct thread *t, const char *script)
{
    bool is_child = false;
    operation_number = 0;
    while (*script != '\0') {
        char letter = *script++;
        uint64_t numbers[2] = {0, 0};
        for (int at = 0; at < 2; at++) {
            char *end;
            numbers[at] = strtoull(script, &end, 10);
            script = end;
        }
        script += strspn(script, " ");
        operation_number++;
        struct heap *heap = t->heap;
        switch (letter) {
        case 'a':
            allocate(t, numbers[0], (uint32_t)numbers[1]);
            break;
        case 'l':
            outside(t, numbers[0], (uint32_t)numbers[1]);
            break;
        case 'n': {
            void *volatile block = malloc(numbers[0]);
            free(block);
            break;
        }
        case 'c':
            t->random ^= numbers[0];
            collect_minor(t, numbers[1]);
            t->plain_free = t->base;
            t->plain_collections++;
            break;
        case 'm':
            t->random ^= numbers[0];
            resolve(t, ALLOCSAMPLE_MAJOR, &heap->old);
            told(heap, ALLOCSAMPLE_MAJOR);
            break;
        case 'h': {
            uint64_t bytes = numbers[0] < t->top - t->free ? numbers[0] : t->top - t->free;
            t->free += bytes;
            t->plain_free += bytes;
            agreed(t, agent->nursery_sync(heap->handle, &t->agent, t->free - bytes, t->free, t->top), false);
            break;
        }
        case 'i':
            control(heap, ALLOCSAMPLE_SET_INTERVAL, numbers[0]);
            break;
        case 's':
        case 'g':
            control(heap, letter == 'g' ? ALLOCSAMPLE_START : ALLOCSAMPLE_STOP, 0);
            break;
        case 'x':
        case 'y': {
            t->is_enabled = letter == 'y';
            uintptr_t limit = agent->nursery_enable(heap->handle, &t->agent, t->free, t->top, t->is_enabled);
            t->is_on = heap->is_on && t->is_enabled;
            agreed(t, limit, false);
            break;
        }
        case 'e':
            agent->nursery_end(heap->handle, &t->agent, t->free);
            pthread_mutex_lock(&heap->lock);
            while (t->young.count > 0)
                keep(&heap->old, t->young.all[--t->young.count]);
            pthread_mutex_unlock(&heap->lock);
            begin(t);
            break;
        case 'd':
            agent->control(heap->handle, ALLOCSAMPLE_DISCARD, 0);
            heap->old.count = 0;
            for (int at = 0; at < THREADS; at++)
                if (threads[at].heap == heap)
                    threads[at].young.count = 0;
            break;
        case 'f': {
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) {
                is_child = true;
                become_child(t);
                break;
            }
            int status = 0;
            waitpid(child, &status, 0);
            CHECK(status == 0, "the child ended with %d", status);
            break;
        }
        default:
            CHECK(false, "no operation %c", letter);
        }
    }
    if (is_child) {
        char who[32];
        snprintf(who, sizeof who, "%d", (int)getpid());
        agent->nursery_sync(t->heap->handle, &t->agent, t->free, t->free, t->top);
        print_sums(who);
        exit(0);
    }
}

struct part {
    struct thread *thread;
    const char *script;
};

static void *play_part(void *part)
{
    struct part *of = part;
    play(of->thread, of->script);
    return NULL;
}

/* The threads of a sequence, at once. */
static void play_line(char *line)
{
    struct part parts[THREADS];
    pthread_t ids[THREADS];
    int count = 0;
    char *rest;
    for (char *script = strtok_r(line, "|", &rest); script != NULL && count < THREADS;
         script = strtok_r(NULL, "|", &rest), count++)
        parts[count] = (struct part){&threads[count], script + strspn(script, " ")};
    if (count == 1) {
        play(parts[0].thread, parts[0].script);
        return;
    }
    for (int at = 0; at < count; at++)
        pthread_create(&ids[at], NULL, play_part, &parts[at]);
    for (int at = 0; at < count; at++)
        pthread_join(ids[at], NULL);
}

int main(int count, char **words)
{
    FILE *file = count == 4 ? fopen(words[1], "r") : NULL;
    agent = allocsample_find();
    if (file == NULL || agent == NULL) {
        fprintf(stderr, "script: %s\n", agent == NULL ? "there is no agent" : "no FILE, LAW and INTERVAL");
        return 2;
    }
    is_periodic = strcmp(words[2], "periodic") == 0;
    for (int at = 0; at < HEAPS; at++) {
        struct heap *heap = &heaps[at];
        heap->handle = agent->heap_register(&(allocsample_heap_description){.size = sizeof(allocsample_heap_description),
                                                                            .kind = ALLOCSAMPLE_NURSERY,
                                                                            .name = heap->name,
                                                                            .on_sample = on_sample});
        heap->is_on = true;
        heap->interval = strtoull(words[3], NULL, 10);
        heap->generation = heap->interval_generation = 1;
        pthread_mutex_init(&heap->lock, NULL);
        static const char *const names[TYPES] = {"", "One", "Two", "Three"};
        for (uint32_t type = 1; type < TYPES; type++)
            agent->define_type(heap->handle, type, names[type], NULL);
    }
    for (int at = 0; at < THREADS; at++) {
        threads[at].heap = &heaps[at % HEAPS];
        threads[at].random = (uint64_t)at + 1;
        begin(&threads[at]);
    }
    /* All at once: a child that ends would move the place where its parent reads. */
    char *script = NULL;
    size_t size = 0;
    if (getdelim(&script, &size, '\0', file) < 0)
        script = strdup("");
    for (char *line = script, *end; *line != '\0'; line = end) {
        end = line + strcspn(line, "\n");
        if (*end == '\n')
            *end++ = '\0';
        line_number++;
        play_line(line);
    }
    /* What was allocated since the last call. */
    for (int at = 0; at < THREADS; at++)
        agreed(&threads[at],
               agent->nursery_sync(threads[at].heap->handle, &threads[at].agent, threads[at].free, threads[at].free,
                                   threads[at].top),
               false);
    print_sums("main");
    return 0;
}
