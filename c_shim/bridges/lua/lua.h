/* Declarations shared by the parts of the Lua bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_LUA_H
#define ALLOCSAMPLE_BRIDGES_LUA_H

#include "allocsample.h"
#include "bridge.h"
#include "kit/countdown.h"
#include "kit/names.h"

typedef struct lua_State lua_State;
typedef void *lua_allocator(void *context, void *block, size_t old_size, size_t size);
typedef int lua_c_function(lua_State *);

enum { LUA_IS_OK = 0 };

/* ---- the interpreter's functions (functions.c) ---- */

/* lua_Debug, whose fields have changed their places; those used of it, and room for the others. */
struct lua_frame {
    int event;
    const char *name, *name_what, *what, *source;
    char rest[160];
    uint64_t room[16];
};
_Static_assert(offsetof(struct lua_frame, rest) == 40, "where the layouts of lua_Debug begin to differ");

typedef void lua_hook(lua_State *, struct lua_frame *);

struct lua_layout {
    size_t line, first_line; /* offsets in lua_Debug */
    size_t call;             /* offset in lua_Debug of the call that it is about; 0: not known */
    bool is_stack_readable;  /* also while it moves to another block */
    bool has_types;          /* of new blocks */
    const char *last_types[2]; /* the last two of them */
    const char *part;
    int registry; /* the index of the registry */
    int main;     /* the index of the main thread in it; 0: it is not there */
};
extern HIDDEN const struct lua_layout *lua_layout;

/* Public functions. */
struct lua_functions {
    lua_allocator *(*get_allocator)(lua_State *, void **);
    void (*set_allocator)(lua_State *, lua_allocator *, void *);
    int (*get_stack)(lua_State *, int, struct lua_frame *);
    int (*get_info)(lua_State *, const char *, struct lua_frame *);
    lua_hook *(*get_hook)(lua_State *);
    int (*set_hook)(lua_State *, lua_hook *, int, int);
    const char *(*get_local)(lua_State *, const struct lua_frame *, int);
    const char *(*get_upvalue)(lua_State *, int, int);
    lua_State *(*to_thread)(lua_State *, int);
    lua_c_function *(*to_function)(lua_State *, int);
    int (*status)(lua_State *);
    int (*gc)(lua_State *, int, ...);
    int (*get_top)(lua_State *);
    void (*set_top)(lua_State *, int);
    int (*check_stack)(lua_State *, int);
    int (*push_thread)(lua_State *);
    void (*push_value)(lua_State *, int);
    void (*create_table)(lua_State *, int, int);
    void (*push_function)(lua_State *, lua_c_function *, int);
    void (*set_field)(lua_State *, int, const char *);
    void (*raw_get_number)(lua_State *, int, intptr_t);
    const void *(*to_pointer)(lua_State *, int);
    int (*set_metatable)(lua_State *, int);
    int (*get_metatable)(lua_State *, int);
    /* One of them. */
    void *(*new_userdata)(lua_State *, size_t);
    void *(*new_userdata_5_4)(lua_State *, size_t, int);
    /* Only of LuaJIT. */
    int (*set_mode)(lua_State *, int, int);
    lua_State *(*new_state)(void);
    lua_State *(*new_thread)(lua_State *);
    void (*close)(lua_State *);
    int (*type)(lua_State *, int);
    void (*push_string)(lua_State *, const char *);
    void (*push_boolean)(lua_State *, int);
    void (*raw_get)(lua_State *, int);
    void (*remove)(lua_State *, int);
    int (*load)(lua_State *, const char *, size_t, const char *);
    int (*resume)(lua_State *, int);
    lua_c_function *open_jit;
};
extern HIDDEN struct lua_functions lua;
/* Whether it is LuaJIT, which has the interface of Lua 5.1. */
extern HIDDEN bool lua_is_jit;

/* Looks the interpreter's functions up. It allocates: before `main`, or at an attach. False if one is missing. */
HIDDEN bool lua_find_functions(void);
/* Whether they still are where they were: their library may have been closed, and opened elsewhere. */
HIDDEN bool lua_is_there(void);
/* Whether the interpreter was built with locks of its own (`lua_lock`). It holds one while it allocates, and each function of the
 * interface takes it: our questions would wait for the thread that asks them. lua_getstack takes it before all else, and calls no
 * function otherwise. */
HIDDEN bool lua_has_locks(void);

/* ---- interpreters (lua.c) ---- */

/* An interpreter. It is used by one thread at a time. */
struct lua_interpreter {
    _Atomic(bool) is_taken;
    _Atomic(bool) has_witness;
    lua_allocator *next, *unwatched; /* the latter does what the former does */
    void *next_context;
    lua_State *main; /* NULL: it was closed */
    uintptr_t global; /* LuaJIT's global state, if it is known where things are in it; or 0 */
    struct countdown countdown;
    allocsample_nursery nursery;
};

extern HIDDEN const allocsample_hooks *lua_hooks;
extern HIDDEN allocsample_heap *lua_heap;

/* Finds the interpreter's functions, before `main`. False if one is missing. */
HIDDEN bool lua_prepare(void);
/* An interpreter has called the agent. Any thread. */
HIDDEN void lua_launched(void);
/* A program has opened the libraries of an interpreter that it embeds. The thread that uses the interpreter. */
HIDDEN void lua_join_embedded(lua_State *thread);
/* Redirects the program's calls that open the libraries. Before `main`. */
HIDDEN void lua_watch_embedders(void);
HIDDEN void lua_attach(void);
HIDDEN void lua_detach(void);

/* ---- coroutines that C resumes (resume.c) ---- */

/* Any function of the interface with up to six integer or pointer arguments. */
typedef uintptr_t lua_of_interface(lua_State *, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* The last one that the calling thread has resumed, while it runs; or NULL. */
extern HIDDEN _Thread_local lua_State *lua_resumed __attribute__((tls_model("initial-exec")));
/* Calls lua_resume. */
HIDDEN uintptr_t lua_resume_by(lua_of_interface *resume, lua_State *thread, uintptr_t b, uintptr_t c, uintptr_t d);
HIDDEN void lua_hide_resume(void);

/* ---- stacks (frames.c, luajit.c) ---- */

/* The interpreter whose block the calling thread's sample is, and the bytes of the block that it takes the place of. */
extern HIDDEN _Thread_local const struct lua_interpreter *lua_sampled;
extern HIDDEN _Thread_local size_t lua_replaced_size;
/* Whether a call's caller can be found in one step. By level, each frame takes one step more than the one before. */
extern HIDDEN bool lua_can_step;

HIDDEN bool lua_frames_make(void);
/* The heap's walker. */
HIDDEN size_t lua_walk(void *user, allocsample_frame *frames, size_t capacity);
/* Whether steps lead where levels do, and functions are where calls say. */
HIDDEN bool lua_steps_are_right(lua_State *thread);
/* The functions of one coroutine. The line of the newest one is not asked for if it is not `has_line`. */
HIDDEN size_t lua_walk_thread(lua_State *thread, bool has_line, allocsample_frame *frames, size_t capacity);
HIDDEN void lua_frames_after_fork_in_child(void);

/* Finds out where LuaJIT keeps what a walk needs, by an interpreter of our own. Where the interface of Lua may be used. */
HIDDEN bool luajit_prepare(void);
/* The global state of an interpreter of the program's; 0: it is not where our own one has it. */
HIDDEN uintptr_t luajit_global_of(lua_State *thread);
/* The main thread of that global state. */
HIDDEN lua_State *luajit_main_of(uintptr_t global);
/* The allocator of interpreters whose program has none of its own; NULL: not known. */
HIDDEN lua_allocator *luajit_allocator(void);
/* The main thread of the interpreter whose own allocator has this context. */
HIDDEN lua_State *luajit_main_by_allocator(uintptr_t context);
/* Another profile begins. */
HIDDEN void luajit_note_again(void);
HIDDEN size_t luajit_walk(const struct lua_interpreter *of, allocsample_frame *frames, size_t capacity);

/* ---- collections (collections.c) ---- */

/* Makes the first witness. Where the interface may run any code of the program. */
HIDDEN void lua_watch_collections(lua_State *thread);
/* Witnesses of before say nothing, and leave none behind: the process is detached from. */
HIDDEN void lua_leave_collections(void);

/* ---- interpreters that run already (watch.c) ---- */

/* What calls of the interpreter's functions are led to: the thread that runs the interpreter, and whether it may collect there. */
typedef void lua_on_call(lua_State *thread, bool may_collect);

/* The allocator is called, with this context, on the thread that uses the interpreter. */
typedef void lua_on_block(void *context);

/* False: no function can be led there. `allocator` may be NULL. At an attach, and a detach. */
HIDDEN bool lua_watch(lua_on_call *of_interface, lua_allocator *allocator, lua_on_block *of_allocator);
HIDDEN void lua_unwatch(void);
/* The function that does what the allocator does, and is not watched. */
HIDDEN lua_allocator *lua_unwatched(lua_allocator *allocator);

#endif
