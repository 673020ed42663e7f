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
    /* v8::UnboundScript::GetId. NULL: not exported. */
    int (*script_id)(const void *unbound_script);
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
    /* v8::CpuProfiler and what it makes. `collect_sample` has another argument from V8 13 on. NULL, all of them: not exported. */
    void *(*cpu_profiler_new)(void *isolate, int naming, int logging);
    void (*cpu_profiler_dispose)(void *cpu_profiler);
    void (*set_cpu_interval)(void *cpu_profiler, int microseconds);
    int (*start_cpu_profile)(void *cpu_profiler, const void *title, bool has_samples);
    void *(*stop_cpu_profile)(void *cpu_profiler, const void *title);
    void (*collect_sample)(void *isolate, uint64_t trace, bool has_trace);
    void (*detail_positions)(void *isolate);
    int (*cpu_samples_count)(const void *cpu_profile);
    const void *(*cpu_sample)(const void *cpu_profile, int index);
    int64_t (*cpu_sample_us)(const void *cpu_profile, int index);
    void (*delete_cpu_profile)(void *cpu_profile);
    const void *(*cpu_node_parent)(const void *node);
    int (*cpu_node_script)(const void *node);
    int (*cpu_node_line)(const void *node);
    int (*cpu_node_column)(const void *node);
    const char *(*cpu_node_name)(const void *node);
    const char *(*cpu_node_file)(const void *node);
    const void *(*new_string)(void *isolate, const char *text, int type, int length);
    /* v8::Isolate::LowMemoryNotification: full collections, until they find nothing more. NULL: not exported. */
    void (*collect)(void *isolate);
};
extern HIDDEN struct v8_functions v8;
extern HIDDEN const allocsample_hooks *v8_hooks;
extern HIDDEN allocsample_heap *v8_heap;
extern HIDDEN struct names v8_names;

/* Names a function of JavaScript: see functions.c. Empty or NULL: it has no name, or is in no file. */
HIDDEN void v8_define_function(uint32_t number, const char *name, const char *file, int line, int column);

/* When V8's sampling profiler draws an object: see draws.c. One isolate's, which only its thread uses. */
struct v8_caller;
struct v8_draws {
    uint64_t count;   /* draws since the profiler was started: the number of the last sample */
    uint64_t highest; /* number of a sample so far */
    void (*on_draw)(void *user);
    void *user;
    /* Called at the first draw, and whenever there are four times as many. */
    void (*on_progress)(void *isolate);
    void *isolate;
    uint64_t count_before; /* when the last reading began */
    uint64_t readings;     /* that had new samples, until the place was known */
    uint64_t short_readings; /* in a row, whose highest number was too low */
    struct v8_caller *callers;
    size_t callers_used;
};
/* Makes V8's calls of `operator new` lead here; `address_in_v8` is any function of V8's. `on_calls` is called for one
 * in many on threads where no profiler runs for us. */
HIDDEN void v8_draws_watch(const void *address_in_v8, void (*on_calls)(const struct shim_caller *));
HIDDEN void v8_draws_unwatch(void);
/* No more draws are noticed on this thread. */
HIDDEN void v8_draws_after_fork_in_child(void);
/* Whether it is known where V8 draws. */
HIDDEN bool v8_draws_are_known(void);
/* On the isolate's thread, just before its profiler is started. */
HIDDEN void v8_draws_begin(struct v8_draws *draws);
HIDDEN void v8_draws_end(struct v8_draws *draws);
/* Whether the draws since the last reading have the numbers that they were given. WRONG: no more will be noticed. */
enum v8_numbers { NUMBERS_RIGHT, NUMBERS_DOUBTFUL, NUMBERS_WRONG };
/* Before V8 is asked for its list, and after, with the highest number in it. */
HIDDEN void v8_draws_before_reading(struct v8_draws *draws);
HIDDEN enum v8_numbers v8_draws_after_reading(struct v8_draws *draws, uint64_t highest);

/* A machine's frame. */
struct v8_frame {
    uint32_t function;
    int32_t script; /* 0: it is of none */
    int64_t old_until_us; /* until when V8 may have run old code of it (older.c); 0: it has none */
};

/* The hash under which a function of a script has its number. Workers give the same numbers to other scripts. */
static inline uint64_t v8_place_hash(const void *isolate, int script, int line, int column)
{
    /* No text of a name begins so. */
    uint64_t hash = names_hash(NAMES_SEED, "\x1f") ^ (uintptr_t)isolate;
    hash = (hash ^ (uint32_t)script) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ (hash >> 32) ^ (uint64_t)(uint32_t)line << 32 ^ (uint32_t)column) * UINT64_C(0x9e3779b97f4a7c15);
    return (hash ^ hash >> 32) | 1;
}

/* V8's flags: see flags.c. */
/* Whether Node.js was given this option, by its arguments or by NODE_OPTIONS: libc has no environment yet. */
HIDDEN bool v8_has_option(const char *option);
/* Whether V8's CPU profiler does not know the functions that V8 inlines: then none are inlined, where they are to be named. */
HIDDEN bool v8_inlining_is_unknown(void);
/* Whether V8 draws too few of the objects that optimized code makes: V8 11 does, 12 does not (integrations/node has figures). */
HIDDEN bool v8_draws_too_few(void);
/* Whether flags may be changed after V8 has started. */
HIDDEN bool v8_flags_are_open(void);
HIDDEN void v8_flags_change(void);
/* To V8's defaults, after a detach. */
HIDDEN void v8_flags_change_back(void);
HIDDEN void v8_flags_stop_inlining(void);

/* Functions that V8 may have compiled before an attach: see older.c. One isolate's, on its thread; times are microseconds of the
 * monotonic clock, and places are hashes as above. All zeros: there are none. */
struct v8_older_function;
struct v8_older {
    struct v8_older_function *functions; /* NULL: all functions are alike */
    int64_t begin_us, others_until_us;
    size_t count;
};
HIDDEN void v8_older_begin(struct v8_older *older, int64_t now_us);
HIDDEN void v8_older_end(struct v8_older *older);
HIDDEN void v8_older_add(struct v8_older *older, uint64_t place);
/* V8 has compiled it with optimization. */
HIDDEN void v8_older_is_compiled(struct v8_older *older, uint64_t place, int64_t now_us);
/* V8 has discarded all old code: no later draw is in any. */
HIDDEN void v8_older_all_are_new(struct v8_older *older, int64_t since_us);
/* Until when a draw in this function may have been in old code: 0 for ever new, INT64_MAX for still old. */
HIDDEN int64_t v8_older_until_us(const struct v8_older *older, uint64_t place);

/* Has V8 compile everything again: see recompile.c. */
HIDDEN void v8_recompile_prepare(void);
/* Calls `callback` on the isolate's thread, where JavaScript may be run. */
HIDDEN void v8_recompile_soon(void *isolate, void (*callback)(void *isolate));
/* In such a callback. False: it was not done. */
HIDDEN bool v8_recompile(void *isolate);

/* A sample that waits for the names of inlined functions. */
struct v8_late {
    uint64_t number;
    uint64_t size, interval;    /* the interval is the one that was in force; 0: V8 has not listed it so far */
    uint64_t drawn_ns, died_ns; /* 0: just now, and not at all so far */
};

/* Names of the functions that V8 has inlined: see inlined.c. All of it on the isolate's thread, and but for `number` and `defer` where
 * V8 may be called and a scope for handles is open. */
struct v8_sampler;
struct v8_inlined;
/* A new recording begins. */
HIDDEN void v8_inlined_forget_marks(void);
/* Notes that V8 draws too few objects, if it does. */
HIDDEN void v8_note_few_draws(void);
/* Notes that V8 inlines none, if it was told so because it does not know them. */
HIDDEN void v8_inlined_note_none(void);
/* Starts V8's CPU profiler. NULL: there is no memory. */
HIDDEN struct v8_inlined *v8_inlined_begin(struct v8_sampler *sampler, void *isolate);
/* Tells all that waits, and stops it. */
HIDDEN void v8_inlined_end(struct v8_inlined *inlined);
/* After a reading: keeps the draws since the last one, or drops them, if their numbers may be wrong. */
HIDDEN void v8_inlined_check(struct v8_inlined *inlined, enum v8_numbers numbers);
/* Keeps a new sample until the functions on its stack are known. False: they will not be. */
HIDDEN bool v8_inlined_defer(struct v8_inlined *inlined, uint64_t number, uint64_t size, const struct v8_frame *frames,
                             size_t depth);
/* It has died meanwhile. */
HIDDEN void v8_inlined_died(struct v8_inlined *inlined, uint64_t number, uint64_t time_ns);
/* After a reading: tells what waits, at once or if it is time to. */
HIDDEN void v8_inlined_turn(struct v8_inlined *inlined, bool at_once);

HIDDEN int64_t v8_now_us(void); /* of V8's own clock, which is the monotonic one */

/* V8's sampling profiler in one isolate. Only the isolate's thread uses it, and only where V8 may be called and a scope for
 * handles is open: in interrupts and callbacks of collections, where V8 has opened one, and at the environment's end. */
struct v8_sampler {
    void *profiler;
    bool is_running;   /* as far as we know */
    bool is_being_read;
    uint64_t interval; /* V8's own, which it keeps as long as it runs */
    uint64_t asked;    /* the interval that was in force since the last reading */
    struct v8_live *live;
    size_t live_capacity;
    struct v8_live *former;
    size_t former_capacity;
    struct v8_place *places;
    size_t places_capacity;
    struct v8_draws draws;
    bool is_busy; /* V8 has collected this heap, or optimized a function in it */
    const struct v8_older *older; /* NULL: there was no attach */
    struct v8_inlined *inlined; /* NULL: inlined functions are charged to their callers */
};

/* False: no interval is in force, or somebody else runs V8's profiler. */
HIDDEN bool v8_sampler_begin(struct v8_sampler *sampler, void *isolate, const struct v8_older *older);
/* Reports the objects that V8 has sampled since the last reading, and those that have died. False: somebody else has stopped
 * V8's profiler, or its samples do not look as they do in known versions. */
HIDDEN bool v8_sampler_read(struct v8_sampler *sampler, void *isolate);
/* Whether another interval is asked for. */
HIDDEN bool v8_sampler_is_behind(const struct v8_sampler *sampler);
/* Reads, and takes the interval that is asked for. */
HIDDEN bool v8_sampler_follow(struct v8_sampler *sampler, void *isolate);
/* Whether the names of inlined functions are asked for, can be had, and are not yet: v8_sampler_name_inlined begins with it. */
HIDDEN bool v8_sampler_lacks_names(const struct v8_sampler *sampler);
HIDDEN void v8_sampler_name_inlined(struct v8_sampler *sampler, void *isolate);
/* Tells what waits for names, after a reading. */
HIDDEN void v8_sampler_tell_waiting(struct v8_sampler *sampler);
/* The same, and stops V8's CPU profiler, for which a scope must be open. */
HIDDEN void v8_sampler_end_names(struct v8_sampler *sampler);
/* A sample whose functions are known by now. */
HIDDEN void v8_sampler_tell_late(struct v8_sampler *sampler, const struct v8_late *late, const allocsample_frame *frames,
                                 size_t depth);
/* All objects that were reported are gone. */
HIDDEN void v8_sampler_free_all(struct v8_sampler *sampler);
/* Stops V8's profiler, which must not run when V8 13 takes an isolate down, and forgets everything. */
HIDDEN void v8_sampler_end(struct v8_sampler *sampler);

/* Names the code that the isolate has compiled, and will compile. Functions that it has compiled so far are `older`, unless that is
 * NULL. `on_optimized` is called on the isolate's thread, in the middle of V8, after a function was optimized. */
HIDDEN void v8_watch_code(void *isolate, struct v8_older *older, void (*on_optimized)(void *isolate));
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
/* Whether one can be opened at the environment's end. */
HIDDEN bool v8_scope_is_found(void);
/* On the isolate's thread; false: none could be opened. */
HIDDEN bool v8_scope_begin(struct v8_scope *scope, void *isolate);
HIDDEN void v8_scope_end(struct v8_scope *scope, void *isolate);

/* Finds the code that changes a queue of interrupts; false: it is not where it was in other versions. */
HIDDEN bool v8_queue_find(void);
/* Whether that code has called for memory. `caller` is the caller of malloc or `operator new`; NULL if it is not known. */
HIDDEN bool v8_queue_is_changing(const struct shim_caller *caller);

#endif
