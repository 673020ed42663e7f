// Behaviour: a library with functions that have the names of D's collector, but its own arguments and results; it calls them through the
// loader's tables.
#include <stdint.h>

#ifndef NUMBER
#define NUMBER 0
#endif

struct sums {
    double real;
    long whole;
};

// More arguments than there are registers.
struct sums gc_free(double a, long b, long c, long d, long e, long f, long g, long h, double i, float j) {
    return (struct sums){a + i + j + NUMBER, b + 2 * c + 3 * d + 4 * e + 5 * f + 6 * g + 7 * h};
}

double gc_malloc(double a, double b, double c, double d, double e, double f, double g, double h, double i) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + NUMBER;
}

// 0: both gave what they should, also the second time.
int check(void) {
    for (int i = 0; i < 3; i++) {
        struct sums sums = gc_free(0.5, 1, 2, 3, 4, 5, 6, 7, 0.25, 8.0f);
        if (sums.real != 8.75 + NUMBER || sums.whole != 1 + 4 + 9 + 16 + 25 + 36 + 49)
            return 1;
        if (gc_malloc(1, 2, 3, 4, 5, 6, 7, 8, 9) != 1 + 4 + 9 + 16 + 25 + 36 + 49 + 64 + 81 + NUMBER)
            return 2;
    }
    return 0;
}
