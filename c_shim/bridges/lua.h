/* What the parts of the bridge to Lua share. */
#ifndef ALLOCSAMPLE_BRIDGES_LUA_H
#define ALLOCSAMPLE_BRIDGES_LUA_H

#include "shim.h"

/* An interpreter has called the agent. Any thread. */
HIDDEN void lua_launched(void);

#endif
