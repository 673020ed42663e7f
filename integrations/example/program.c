/* What the toy machine runs: `keep` leaks 20 MB, `use` has 100 MB made and deleted. */
#include "tally.h"

#include <string.h>

enum { ROUNDS = 100000, KEPT_BYTES = 200, USED_BYTES = 1000 };

static void *keep(void)
{
    struct tally_call call = {.function = "keep", .file = "program.tally", .first_line = 10, .line = 12};
    tally_enter(&call);
    void *object = tally_new(KEPT_BYTES);
    tally_leave();
    return object;
}

static void use(void)
{
    struct tally_call call = {.function = "use", .file = "program.tally", .first_line = 20, .line = 21};
    tally_enter(&call);
    void *object = tally_new(USED_BYTES);
    memset(object, 1, USED_BYTES);
    call.line = 23;
    tally_delete(object);
    tally_leave();
}

int main(void)
{
    struct tally_call call = {.function = "main", .file = "program.tally", .first_line = 1, .line = 2};
    tally_enter(&call);
    for (int i = 0; i < ROUNDS; i++) {
        call.line = 4;
        memset(keep(), 1, KEPT_BYTES);
        call.line = 5;
        use();
    }
    tally_leave();
    return 0;
}
