// Embeds languages that it loads late: Python from the library that the first argument names, which runs the text of the second one. There
// `other()` has perl, from the library of the third argument, run the text of the fourth. With three arguments a sub-interpreter runs
// the text.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

extern char **environ;
static char **arguments;

static void *load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

#define CALL(LIBRARY, TYPE, NAME, ARGUMENTS, ...) ((TYPE(*) ARGUMENTS)function(LIBRARY, #NAME))(__VA_ARGS__)

static int run_perl(void)
{
    void *library = load(arguments[3]);
    char *words[] = {arguments[0], "-e", arguments[4], NULL};
    int words_count = 3;
    char **all_words = words;
    CALL(library, void, Perl_sys_init3, (int *, char ***, char ***), &words_count, &all_words, &environ);
    void *perl = CALL(library, void *, perl_alloc, (void));
    CALL(library, void, perl_construct, (void *), perl);
    int status = CALL(library, int, perl_parse, (void *, void *, int, char **, char **), perl, NULL, words_count, words, NULL);
    if (status == 0)
        status = CALL(library, int, perl_run, (void *), perl);
    CALL(library, int, perl_destruct, (void *), perl);
    CALL(library, void, perl_free, (void *), perl);
    return status;
}

static void *python;

static void *other(void *self, void *unused)
{
    (void)self, (void)unused;
    return CALL(python, void *, PyLong_FromLong, (long), run_perl());
}

// PyMethodDef, of a function without arguments.
static struct {
    const char *name;
    void *(*function)(void *, void *);
    int flags;
    const char *description;
} method = {"other", other, 4, NULL};

// Outside of all languages, on the thread that has called them.
static void allocate(void)
{
    for (int i = 0; i < 2000; i++) {
        volatile char *block = malloc(5000);
        block[i] = 1;
        free((void *)block);
    }
}

int main(int count, char **all)
{
    if (count < 3)
        return 2;
    arguments = all;
    python = load(arguments[1]);
    CALL(python, void, Py_InitializeEx, (int), 0);
    void *module = CALL(python, void *, PyImport_AddModule, (const char *), "__main__");
    void *callable = CALL(python, void *, PyCFunction_NewEx, (void *, void *, void *), &method, NULL, NULL);
    CALL(python, int, PyObject_SetAttrString, (void *, const char *, void *), module, "other", callable);
    void *state = CALL(python, void *, PyThreadState_Get, (void));
    void *other_state = count == 4 ? CALL(python, void *, Py_NewInterpreter, (void)) : NULL;
    int status = CALL(python, int, PyRun_SimpleString, (const char *), arguments[2]);
    if (other_state != NULL) {
        CALL(python, void, Py_EndInterpreter, (void *), other_state);
        CALL(python, void *, PyThreadState_Swap, (void *), state);
    }
    allocate();
    status |= CALL(python, int, Py_FinalizeEx, (void));
    dlclose(python);
    allocate();
    return status;
}
