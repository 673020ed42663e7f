/* What RPython's collector calls; see allocsample.py beside it. Addresses are those of objects with their headers. All
 * calls are made with the interpreter lock held, which makes the nursery one that several threads share. */
#ifndef ALLOCSAMPLE_GC_H
#define ALLOCSAMPLE_GC_H

/* The nursery is left, or goes on elsewhere; the new limit. */
void rpy_allocsample_leave(void *free);
void *rpy_allocsample_enter(void *free, void *top);
/* An object that failed the limit, and fits; the new limit. */
void *rpy_allocsample_point(void *object, long size, void *top);
/* An object outside of the nursery; the new limit. `type` as in rpy_allocsample_answer. */
void *rpy_allocsample_outside(void *object, long size, long type, void *free, void *limit);

/* The next sample that a minor (1) or major (2) collection must look at, or NULL. */
void *rpy_allocsample_next(long kind);
/* What became of it: dead (0) or in the old generation (2). A sample without an answer is asked for again by the next
 * collection. `type`: the number of its type's name, from 0. */
void rpy_allocsample_answer(void *now, long type, long fate);
/* Names of all types, each with a NUL behind it. */
void rpy_allocsample_names(char *names, long count);

/* A minor collection. */
void rpy_allocsample_minor_begin(void);
void rpy_allocsample_minor_end(long survived, long old, long large, long pinned);
/* A step of a major one: it was in the state `from`, and is in the state `to`. An end without a begin does nothing. */
void rpy_allocsample_step_begin(long from);
void rpy_allocsample_step_end(long to, long old, long large);

#endif
