/* Declarations shared by the parts of the Lua bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_LUA_H
#define ALLOCSAMPLE_BRIDGES_LUA_H

#include "bridge.h"

/* An interpreter has called the agent. Any thread. */
HIDDEN void lua_launched(void);
HIDDEN void lua_after_fork_in_child(void);

#endif
