/* Fewer samples than a machine draws, as if it had drawn so many.
 *
 * A machine that keeps the interval that it was told first draws an object of S bytes with 1 - exp(-S / drawn_at). Of what it
 * has drawn each object is kept by a coin of
 *
 *     (1 - exp(-S / asked)) / (1 - exp(-S / drawn_at))
 *
 * so that it is a sample with 1 - exp(-S / asked), which is the law at the longer interval, and stands for what it would
 * there. (Large objects are nearly all kept: a coin of drawn_at / asked would take too many of them.) It does not matter
 * under which interval an object was allocated, only that coin and weight are of the same. */
#ifndef ALLOCSAMPLE_BRIDGES_THINNING_H
#define ALLOCSAMPLE_BRIDGES_THINNING_H

#include <stdbool.h>
#include <stdint.h>

/* 1 - exp(-x), for x >= 0, without libm. Nothing cancels: the last bits are right where x is small, too. */
static inline double thinning_drawn_share(double x)
{
    int halvings = 0;
    if (x > 64)
        return 1;
    for (; x > 0.5; x /= 2)
        halvings++;
    double term = x, share = 0;
    for (int n = 2; n < 20; n++) {
        share += term;
        term *= -x / n;
    }
    /* 1 - (1 - a)^2 */
    for (; halvings > 0; halvings--)
        share *= 2 - share;
    return share;
}

/* The share of objects of `bytes` that are samples at this interval; at 1 every object is one. */
static inline double thinning_share(uint64_t bytes, uint64_t interval)
{
    return interval <= 1 ? 1 : thinning_drawn_share((double)bytes / (double)interval);
}

/* A coin, from 0 to 1: the object's number, well mixed, which nothing of the machine's draws depends on. No state, and the same
 * in each run. */
static inline double thinning_coin(uint64_t number)
{
    uint64_t mixed = (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((mixed ^ mixed >> 31) >> 11) * 0x1p-53;
}

/* Whether this one, which was drawn at `drawn_at`, is a sample at `asked`: always, if that is not longer. */
static inline bool thinning_keeps(uint64_t number, uint64_t bytes, uint64_t drawn_at, uint64_t asked)
{
    return asked <= drawn_at || thinning_coin(number) * thinning_share(bytes, drawn_at) < thinning_share(bytes, asked);
}

#endif
