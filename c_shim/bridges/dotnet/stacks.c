/* Managed stacks, by the runtime's own walk. */
#define _GNU_SOURCE
#include "dotnet.h"

static clr_object info;

struct stack {
    size_t count;
    struct {
        uintptr_t function, address;
    } places[DOTNET_DEPTH];
};

static clr_result put_place(uintptr_t function, uintptr_t address, uintptr_t frame, uint32_t context_bytes, void *context,
                            void *argument)
{
    struct stack *stack = argument;
    (void)frame;
    (void)context_bytes;
    (void)context;
    /* 0: native frames. */
    if (function == 0)
        return CLR_OK;
    stack->places[stack->count].function = function;
    stack->places[stack->count++].address = address;
    return stack->count < DOTNET_DEPTH ? CLR_OK : CLR_CANCEL;
}

size_t dotnet_stack(allocsample_frame *frames)
{
    struct stack stack;
    stack.count = 0;
    CLR(info, INFO_STACK_SNAPSHOT, (clr_object, uintptr_t, void *, uint32_t, void *, void *, uint32_t), 0,
        (void *)put_place, 0, &stack, NULL, 0);
    size_t count = 0;
    for (size_t i = 0; i < stack.count; i++) {
        allocsample_frame frame = dotnet_frame(stack.places[i].function, stack.places[i].address);
        if (frame.function != 0)
            frames[count++] = frame;
    }
    return count;
}

void dotnet_stacks_prepare(clr_object the_info)
{
    info = the_info;
}
