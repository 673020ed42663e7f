// Works a while, allocates, and sends itself the signal whose number it is given.
#include "check.h"

#include <signal.h>

static volatile unsigned sink;

int main(int argc, char **argv) {
    CHECK(argc == 2);
    churn(2000, 4000, 1);
    for (unsigned i = 0; i < 50000000; i++) sink += i;
    raise(atoi(argv[1]));
    return 0;
}
