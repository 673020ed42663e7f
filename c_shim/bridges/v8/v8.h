/* Declarations shared by the parts of the V8 bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_V8_H
#define ALLOCSAMPLE_BRIDGES_V8_H

#include "allocsample.h"
#include "kit/names.h"

/* Maximum depth of a JavaScript stack. */
#define V8_DEPTH 512

typedef void v8_gc_callback(void *isolate, int type, int flags, void *data);

/* Functions of V8 and of Node.js, all of them in their public headers, under the names that C++ compilers give them. Objects
 * are passed by address; a `Local` is the address that it holds. */
struct v8_functions {
    void *(*current_isolate)(void);
    void (*request_interrupt)(void *isolate, void (*callback)(void *isolate, void *data), void *data);
    void *(*profiler_of)(void *isolate);
    bool (*start_sampling)(void *profiler, uint64_t interval, int depth, int flags);
    void (*stop_sampling)(void *profiler);
    void *(*profile_of)(void *profiler);
    void (*before_gc)(void *isolate, v8_gc_callback *callback, void *data, int types);
    void (*after_gc)(void *isolate, v8_gc_callback *callback, void *data, int types);
    void (*not_before_gc)(void *isolate, v8_gc_callback *callback, void *data);
    void (*not_after_gc)(void *isolate, v8_gc_callback *callback, void *data);
    void (*watch_code)(void *isolate, int options, void (*handler)(const void *event));
    void (*statistics_begin)(void *statistics);
    void (*statistics_of)(void *isolate, void *statistics);
    void *(*context_of)(void *isolate);
    void *(*environment_of)(void *context);
    void (*at_exit)(void *environment, void (*callback)(void *), void *data);
    void (*set_flags)(const char *flags);
    const char *(*version)(void);
    /* One of these two: V8 10 to 13 have the first, V8 13 and later the second. */
    int (*write_utf8)(const void *string, void *isolate, char *buffer, int length, int *chars, int options);
    size_t (*write_utf8_v2)(const void *string, void *isolate, char *buffer, size_t size, int flags, size_t *chars);
    /* v8::Isolate::LowMemoryNotification: full collections, until they find nothing more. NULL: not exported. */
    void (*collect)(void *isolate);
};
extern HIDDEN struct v8_functions v8;
extern HIDDEN const allocsample_hooks *v8_hooks;
extern HIDDEN allocsample_heap *v8_heap;
extern HIDDEN struct names v8_names;

/* V8's sampling profiler in one isolate. Only the isolate's thread uses it, and only where V8 may be called and a scope for
 * handles is open: in interrupts and callbacks of collections, where V8 has opened one, and at the environment's end. */
struct v8_sampler {
    void *profiler;
    bool is_running;   /* as far as we know */
    uint64_t interval; /* V8's own, which it keeps as long as it runs */
    uint64_t asked;    /* the interval that was in force since the last reading */
    struct v8_live *live;
    size_t live_capacity;
    struct v8_live *former;
    size_t former_capacity;
    struct v8_place *places;
    size_t places_capacity;
};

/* False: no interval is in force, or somebody else runs V8's profiler. */
HIDDEN bool v8_sampler_begin(struct v8_sampler *sampler, void *isolate);
/* Reports the objects that V8 has sampled since the last reading, and those that have died. False: somebody else has stopped
 * V8's profiler, or its samples do not look as they do in known versions. */
HIDDEN bool v8_sampler_read(struct v8_sampler *sampler, void *isolate);
/* Whether another interval is asked for. */
HIDDEN bool v8_sampler_is_behind(const struct v8_sampler *sampler);
/* Reads, and takes the interval that is asked for. */
HIDDEN bool v8_sampler_follow(struct v8_sampler *sampler, void *isolate);
/* All objects that were reported are gone. */
HIDDEN void v8_sampler_free_all(struct v8_sampler *sampler);
/* Stops V8's profiler, which must not run when V8 13 takes an isolate down, and forgets everything. */
HIDDEN void v8_sampler_end(struct v8_sampler *sampler);

/* Names the code that the isolate has compiled, and will compile. */
HIDDEN void v8_watch_code(void *isolate);
/* Between these two nothing is compiled, and no code moves. V8 reports each object that it moves to a listener, for nothing, which
 * makes a scavenge a good deal slower. */
HIDDEN void v8_pause_watching(void *isolate);
HIDDEN void v8_resume_watching(void *isolate);

/* A scope for handles that V8 makes for us. */
struct v8_scope {
    uintptr_t memory[8];
};

/* Looks the functions up. */
HIDDEN void v8_scope_prepare(void);
/* Finds out how scopes are opened. In an interrupt, where V8 has opened one. */
HIDDEN void v8_scope_find(void *isolate);
/* On the isolate's thread; false: none could be opened. */
HIDDEN bool v8_scope_begin(struct v8_scope *scope, void *isolate);
HIDDEN void v8_scope_end(struct v8_scope *scope, void *isolate);

/* Finds the code that changes a queue of interrupts; false: it is not where it was in other versions. */
HIDDEN bool v8_queue_find(void);
/* Whether the sampled malloc was called by that code. */
HIDDEN bool v8_queue_is_changing(void);

#endif
