/* The list of the bridges that find their runtime by themselves. */
#include "bridges.h"

#define MOST_DECLINED 8

static struct shim_declined declined[MOST_DECLINED];
static size_t declined_count;

/* Runs before `main` on the only thread, so readers need no synchronisation. */
void bridges_decline(const char *heap, const char *what, const char *why)
{
    if (declined_count < MOST_DECLINED)
        declined[declined_count++] = (struct shim_declined){heap, what, why};
}

bool bridges_declined(size_t index, struct shim_declined *found)
{
    if (index >= declined_count)
        return false;
    *found = declined[index];
    return true;
}

void bridges_install(void)
{
    python_install();
    ruby_install();
    ocaml_install();
    v8_install();
    libgc_install();
    mono_install();
    jvm_install();
    lua_install();
}

void bridges_install_pypy(void)
{
    pypy_install();
}

void bridges_attach(void)
{
    python_attach();
}

void bridges_detach(void)
{
    python_detach();
}

void bridges_after_fork_in_child(void)
{
    python_after_fork_in_child();
    ruby_after_fork_in_child();
    lua_after_fork_in_child();
    ocaml_after_fork_in_child();
    v8_after_fork_in_child();
    libgc_after_fork_in_child();
    mono_after_fork_in_child();
}
