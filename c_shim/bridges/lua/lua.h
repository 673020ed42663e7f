/* Declarations shared by the parts of the Lua bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_LUA_H
#define ALLOCSAMPLE_BRIDGES_LUA_H

#include "bridge.h"

typedef struct lua_State lua_State;

/* An interpreter has called the agent. Any thread. */
HIDDEN void lua_launched(void);
/* Looks the interpreter's functions up. Before `main`: the search allocates. False if one is missing. */
HIDDEN bool lua_find_functions(void);
/* A program has opened the libraries of an interpreter that it embeds. The thread that uses the interpreter. */
HIDDEN void lua_join_embedded(lua_State *thread);
/* Redirects the program's calls that open the libraries. Before `main`. */
HIDDEN void lua_watch_embedders(void);
HIDDEN void lua_after_fork_in_child(void);

#endif
