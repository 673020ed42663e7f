/* Objects that a machine drew at one interval are samples at a longer one with the probability of that one, whatever their
 * size; a rule that ignores the size would be found out. */
#include "../../c_shim/bridges/kit/thinning.h"
#include "check.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

static double uniform(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) * 0x1p-53;
}

static void shares_are_exact(void)
{
    for (double x = 1e-12; x < 100; x *= 1.37) {
        double expected = -expm1(-x);
        CHECK(fabs(thinning_drawn_share(x) / expected - 1) < 1e-14);
    }
    CHECK(thinning_drawn_share(0) == 0 && thinning_drawn_share(1e300) == 1);
    CHECK(thinning_share(8, 1) == 1);
}

/* How many of a million objects are kept, in standard errors from what the interval says. */
static double deviation(uint64_t bytes, uint64_t drawn_at, uint64_t asked, bool ignores_size)
{
    enum { OBJECTS = 1000000 };
    uint64_t state = UINT64_C(0x9a3c15f7) + bytes, number = 0, kept = 0;
    for (unsigned i = 0; i < OBJECTS; i++) {
        if (uniform(&state) >= thinning_share(bytes, drawn_at))
            continue;
        number++;
        kept += ignores_size ? uniform(&state) < (double)drawn_at / (double)asked
                             : thinning_keeps(number, bytes, drawn_at, asked);
    }
    double share = thinning_share(bytes, asked), expected = OBJECTS * share;
    return ((double)kept - expected) / sqrt(expected * (1 - share) + 1);
}

int main(void)
{
    static const uint64_t sizes[] = {24, 1000, 30000, 200000, 3000000};
    double worst_of_other = 0;
    shares_are_exact();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK(fabs(deviation(sizes[i], 8 << 10, 256 << 10, false)) < 5);
        CHECK(fabs(deviation(sizes[i], 1, 32 << 10, false)) < 5);
        CHECK(fabs(deviation(sizes[i], 500000, 700000, false)) < 5);
        /* A shorter one takes all that there are. */
        CHECK(thinning_keeps(i, sizes[i], 8 << 10, 8 << 10) && thinning_keeps(i, sizes[i], 8 << 10, 1));
        worst_of_other = fmax(worst_of_other, fabs(deviation(sizes[i], 8 << 10, 256 << 10, true)));
    }
    CHECK(worst_of_other > 100);
    puts("thinned");
    return 0;
}
