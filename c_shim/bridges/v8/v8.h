/* Declarations shared by the parts of the V8 bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_V8_H
#define ALLOCSAMPLE_BRIDGES_V8_H

#include "allocsample.h"
#include "kit/names.h"

/* Frames that are told at most. */
#define V8_DEPTH 512

/* Functions of V8 and of Node.js: public ones of their headers, under the names that C++ compilers give them. Objects are
 * passed by address; a `Local` is the address that it holds. */
struct v8_functions {
    void *(*current_isolate)(void);
    void (*request_interrupt)(void *isolate, void (*callback)(void *isolate, void *data), void *data);
    void *(*profiler_of)(void *isolate);
    bool (*start_sampling)(void *profiler, uint64_t interval, int depth, int flags);
    void *(*profile_of)(void *profiler);
    void (*before_gc)(void *isolate, void (*callback)(void *, int, int, void *), void *data, int types);
    void (*after_gc)(void *isolate, void (*callback)(void *, int, int, void *), void *data, int types);
    void (*begin_scope)(void *scope, void *isolate);
    void (*end_scope)(void *scope);
    int (*write_utf8)(const void *string, void *isolate, char *buffer, int length, int *chars, int options);
    void (*watch_code)(void *isolate, int options, void (*handler)(const void *event));
    void (*statistics_begin)(void *statistics);
    void (*statistics_of)(void *isolate, void *statistics);
    void *(*context_of)(void *isolate);
    void *(*environment_of)(void *context);
    void (*at_exit)(void *environment, void (*callback)(void *), void *data);
    void (*set_flags)(const char *flags);
    /* v8::internal::HeapProfiler's constructor. NULL: not exported. */
    void (*make_profiler)(void *memory, void *heap);
    void (*stop_sampling)(void *profiler);
    /* v8::Isolate::LowMemoryNotification: full collections, until they find nothing more. NULL: not exported. */
    void (*collect)(void *isolate);
};
extern HIDDEN struct v8_functions v8;
extern HIDDEN const allocsample_hooks *v8_hooks;
extern HIDDEN allocsample_heap *v8_heap;
extern HIDDEN struct names v8_names;

/* Handles that V8 makes for us live until the scope's end. */
struct v8_scope {
    void *memory[8];
};

/* One of V8's samplers, which draws at one interval as long as it lives, and the objects that it has drawn. Only the
 * isolate's thread is in here. */
struct v8_sampler {
    void *profiler;
    uint64_t interval;
    bool is_retired; /* what it draws is no sample any more */
    size_t told;     /* samples that live, as far as we know */
    struct v8_live *live;
    size_t live_capacity;
    struct v8_live *former;
    size_t former_capacity;
    struct v8_place *places;
    size_t places_capacity;
};

/* Tells of the objects that V8 has sampled since the last time, as samples of the interval that is asked for, or of the
 * sampler's, if that is longer; and of those that have died. The isolate's thread is where V8 may be called. */
HIDDEN void v8_tell_samples(struct v8_sampler *sampler, uint64_t asked, void *isolate);

/* Those of one isolate: the last one draws, the others only know of deaths. */
struct v8_samplers {
    struct v8_sampler all[12];
    size_t count;
    uint64_t asked; /* the interval that holds since the last reading */
};

/* False: none is asked for, or the program samples by itself. */
HIDDEN bool v8_samplers_begin(struct v8_samplers *samplers, void *isolate);
HIDDEN void v8_samplers_tell(struct v8_samplers *samplers, void *isolate);
/* Whether another interval is asked for. */
HIDDEN bool v8_samplers_are_behind(const struct v8_samplers *samplers);
/* Takes that interval, if there is one. Where V8 may be called, and not in a collection. */
HIDDEN void v8_samplers_follow(struct v8_samplers *samplers, void *isolate);
/* The isolate goes. */
HIDDEN void v8_samplers_end(struct v8_samplers *samplers, void *isolate);

/* Names the code that the isolate has compiled, and will compile. */
HIDDEN void v8_watch_code(void *isolate);
/* Between these two nothing is compiled, and no code moves. V8 tells a listener of each object that it moves, all for
 * nothing, which makes a scavenge a good deal slower. */
HIDDEN void v8_pause_watching(void *isolate);
HIDDEN void v8_resume_watching(void *isolate);

#endif
