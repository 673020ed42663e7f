/* A stack machine. Programs are arrays of numbers; each function begins with its arguments and its further locals. */
#include "vm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum op { CONST, LOAD, STORE, ADD, SUB, LESS, JUMP, IF_ZERO, CALL, NATIVE, NEW, GET, SET, POP, RETURN };

const char *const vm_functions[] = {"make_tree",      "build_and_drop",   "churn",         "descend",        "outer", "inner",
                                    "allocate_nodes", "allocate_strings", "allocate_kept", "allocate_blobs", "relay",
                                    NULL};

/* NEW takes a type, references and bytes; jumps take places in the array. Locals are numbered, arguments first. */
static int code[16][256];
static int length;
static int *now;

static void begin(int function, int arguments, int locals)
{
    now = code[function];
    length = 0;
    now[length++] = arguments;
    now[length++] = locals;
}
static void put(int word)
{
    if (length == 256) {
        fprintf(stderr, "vm: a function is too long\n");
        exit(99);
    }
    now[length++] = word;
}
static void put2(int a, int b) { put(a), put(b); }
static void new_object(int type, int references, int bytes) { put(NEW), put(type), put(references), put(bytes); }
/* for (local = count; local != 0; local--) */
static int loop_begin(int local)
{
    int top = length;
    put2(LOAD, local), put2(IF_ZERO, 0);
    return top;
}
static void loop_end(int local, int top)
{
    put2(LOAD, local), put2(CONST, 1), put(SUB), put2(STORE, local), put2(JUMP, top);
    now[top + 3] = length;
}

void vm_assemble(void)
{
    begin(MAKE_TREE, 1, 1);
    new_object(TYPE_NODE, 2, 16), put2(STORE, 1);
    int leaf = length + 2;
    put2(LOAD, 0), put2(IF_ZERO, 0);
    for (int child = 0; child < 2; child++) {
        put2(LOAD, 1), put2(LOAD, 0), put2(CONST, 1), put(SUB);
        put(CALL), put2(MAKE_TREE, 1), put2(SET, child);
    }
    now[leaf + 1] = length;
    put2(LOAD, 1), put(RETURN);

    begin(BOTTOM_UP, 2, 0); /* depth, times */
    int top = loop_begin(1);
    put2(LOAD, 0), put(CALL), put2(MAKE_TREE, 1), put(POP);
    loop_end(1, top);
    put2(CONST, 0), put(RETURN);

    begin(CHURN, 1, 1); /* times; ring of strings */
    new_object(TYPE_ARRAY, 64, 0), put2(STORE, 1);
    top = loop_begin(0);
    put2(LOAD, 1), new_object(TYPE_STRING, 0, 24), put2(SET, -1);
    put2(LOAD, 1), new_object(TYPE_STRING, 0, 200), put2(SET, -1);
    loop_end(0, top);
    put2(CONST, 0), put(RETURN);

    begin(DESCEND, 1, 0); /* depth */
    leaf = length + 2;
    put2(LOAD, 0), put2(IF_ZERO, 0);
    put2(LOAD, 0), put2(CONST, 1), put(SUB), put(CALL), put2(DESCEND, 1), put(RETURN);
    now[leaf + 1] = length;
    put2(CONST, 20000), put(CALL), put2(ALLOCATE_NODES, 1), put(RETURN);

    begin(OUTER, 1, 0); /* outer -> native extension -> a new activation of the loop -> inner */
    put2(LOAD, 0), put2(NATIVE, INNER), put(RETURN);
    begin(INNER, 1, 0);
    put2(LOAD, 0), put(CALL), put2(ALLOCATE_NODES, 1), put(RETURN);

    begin(RELAY, 1, 0); /* depth: relay -> native extension -> a new activation of the loop -> relay ... */
    leaf = length + 2;
    put2(LOAD, 0), put2(IF_ZERO, 0);
    put2(LOAD, 0), put2(CONST, 1), put(SUB), put2(NATIVE, RELAY), put(RETURN);
    now[leaf + 1] = length;
    put2(CONST, 5000), put(CALL), put2(ALLOCATE_NODES, 1), put(RETURN);

    static const struct {
        int function, type, references, bytes;
    } sites[] = {{ALLOCATE_NODES, TYPE_NODE, 2, 16}, {ALLOCATE_STRINGS, TYPE_STRING, 0, 100}, {ALLOCATE_BLOBS, TYPE_BLOB, 0, 40000}};
    for (size_t at = 0; at < sizeof sites / sizeof *sites; at++) {
        begin(sites[at].function, 1, 0);
        top = loop_begin(0);
        new_object(sites[at].type, sites[at].references, sites[at].bytes), put(POP);
        loop_end(0, top);
        put2(CONST, 0), put(RETURN);
    }
    begin(ALLOCATE_KEPT, 1, 1); /* a list that stays: each array holds the one before */
    put2(CONST, 0), put2(STORE, 1);
    top = loop_begin(0);
    new_object(TYPE_ARRAY, 4, 0);
    put2(LOAD, 1), put2(SET, 0); /* SET leaves the holder */
    put2(STORE, 1);
    loop_end(0, top);
    put2(LOAD, 1), put(RETURN);
}

void vm_push(struct thread *t, value v)
{
    if (t->sp == STACK_VALUES) {
        fprintf(stderr, "vm: the stack is full\n");
        exit(99);
    }
    t->stack[t->sp++] = v;
}

value vm_pop(struct thread *t) { return t->stack[--t->sp]; }

static void enter(struct thread *t, uint32_t function, bool is_entry)
{
    if (t->depth == FRAMES) {
        fprintf(stderr, "vm: too many frames\n");
        exit(99);
    }
    t->frames[t->depth++] = (struct frame){.function = function, .line = 0, .is_entry = is_entry};
}

/* A native extension: it calls back into the machine. */
__attribute__((noinline)) static value native_extension(struct thread *t, uint32_t function, value argument)
{
    value result = vm_run(t, function, &argument, 1);
    __asm__ volatile("" : : "r"(result) : "memory");
    return result;
}

/* The interpreter loop. In a section of its own, so that its range is known. */
__attribute__((noinline, section("vm_loop"))) static value loop(struct thread *t, uint32_t function, size_t base)
{
    size_t bottom = t->depth - 1;
    const int *program = code[function];
    int pc = 2;
    /* Calls inside the machine do not use the native stack: their return places are on the value stack. */
    for (;;) {
        t->frames[t->depth - 1].line = (uint32_t)pc;
        switch ((enum op)program[pc++]) {
        case CONST: vm_push(t, number(program[pc++])); break;
        case LOAD: vm_push(t, t->stack[base + (size_t)program[pc++]]); break;
        case STORE: t->stack[base + (size_t)program[pc++]] = vm_pop(t); break;
        case ADD: { int64_t b = as_number(vm_pop(t)), a = as_number(vm_pop(t)); vm_push(t, number(a + b)); break; }
        case SUB: { int64_t b = as_number(vm_pop(t)), a = as_number(vm_pop(t)); vm_push(t, number(a - b)); break; }
        case LESS: { int64_t b = as_number(vm_pop(t)), a = as_number(vm_pop(t)); vm_push(t, number(a < b)); break; }
        case JUMP: pc = program[pc]; break;
        case IF_ZERO: pc = as_number(vm_pop(t)) == 0 ? program[pc] : pc + 1; break;
        case POP: vm_pop(t); break;
        case NEW: {
            struct object *object = vm_new(t, (enum type)program[pc], (uint32_t)program[pc + 1], (uint64_t)program[pc + 2]);
            pc += 3;
            vm_push(t, (value)object);
            break;
        }
        case GET: { struct object *o = (struct object *)vm_pop(t); vm_push(t, references_of(o)[program[pc++]]); break; }
        case SET: {
            /* SET -1: the next place of a ring. The holder stays on the stack, for a store to a local or a pop. */
            value v = vm_pop(t);
            struct object *holder = (struct object *)t->stack[t->sp - 1];
            static __thread unsigned next;
            int at = program[pc++];
            vm_store(t, holder, at < 0 ? next++ % holder->references : (size_t)at, v == number(0) ? 0 : v);
            if (at < 0) vm_pop(t);
            break;
        }
        case CALL: {
            uint32_t callee = (uint32_t)program[pc++];
            size_t arguments = (size_t)program[pc++];
            /* Arguments, locals, return place, caller's base. Numbers, for the collector. */
            size_t new_base = t->sp - arguments;
            for (int at = 0; at < code[callee][1]; at++) vm_push(t, number(0));
            vm_push(t, number(pc)), vm_push(t, number((int64_t)base));
            enter(t, callee, false);
            base = new_base;
            program = code[callee];
            pc = 2;
            break;
        }
        case NATIVE: {
            uint32_t callee = (uint32_t)program[pc++];
            value argument = vm_pop(t);
            vm_push(t, native_extension(t, callee, argument));
            break;
        }
        case RETURN: {
            value result = vm_pop(t);
            t->depth--;
            if (t->depth == bottom) {
                t->sp = base;
                return result;
            }
            /* Behind the locals; what the function left on top of it is dropped. */
            size_t link = base + (size_t)(program[0] + program[1]);
            t->sp = base;
            pc = (int)as_number(t->stack[link]);
            base = (size_t)as_number(t->stack[link + 1]);
            vm_push(t, result);
            program = code[t->frames[t->depth - 1].function];
            break;
        }
        }
    }
}

value vm_run(struct thread *t, uint32_t function, const value *arguments, int count)
{
    size_t base = t->sp;
    for (int at = 0; at < count; at++) vm_push(t, arguments[at]);
    for (int at = 0; at < code[function][1]; at++) vm_push(t, number(0));
    enter(t, function, true);
    value result = loop(t, function, base);
    __asm__ volatile("" : : "r"(result) : "memory");
    return result;
}
