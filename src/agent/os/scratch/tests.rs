use std::vec::Vec;

use super::*;

/// Counts the times that it was reset.
struct Area {
    number: u64,
    resets: u64,
}

// SAFETY: numbers may be zero.
unsafe impl Zeroed for Area {
    fn forget(&mut self) {
        self.resets += 1;
    }
}

fn here() -> u64 {
    let local = 0_u8;
    core::hint::black_box(&raw const local).expose_provenance() as u64
}

#[test]
fn a_thread_comes_back_to_its_area() {
    let pool: Pool<Area> = Pool::new();
    let (first, second) = (Cell::new(0), Cell::new(0));
    pool.run(&first, |area| area.number = 1).unwrap();
    pool.run(&second, |area| {
        assert_eq!(area.number, 0, "an area of its own");
        area.number = 2;
    })
    .unwrap();
    for _ in 0..3 {
        assert_eq!(pool.run(&first, |area| area.number), Some(1));
        assert_eq!(pool.run(&second, |area| area.number), Some(2));
    }
}

#[test]
fn work_runs_on_the_area_s_stack_unless_it_is_to_stay() {
    let pool: Pool<Area> = Pool::new();
    let thread = Cell::new(0);
    let (outside, inside) = (here(), pool.run(&thread, |_| here()).unwrap());
    assert!(outside.abs_diff(inside) > STACK_BYTES as u64);
    pool.stay();
    let staying = pool.run(&thread, |_| here()).unwrap();
    assert!(outside.abs_diff(staying) < STACK_BYTES as u64);
    let aside = pool.run_aside(&thread, |_| here()).unwrap();
    assert!(outside.abs_diff(aside) > STACK_BYTES as u64);
}

#[test]
fn a_thread_is_at_work_only_while_its_work_runs() {
    let pool: Pool<Area> = Pool::new();
    let thread = Cell::new(0);
    assert!(!pool.is_at_work_at(&thread, here()));
    let was_at_work = pool.run(&thread, |_| pool.is_at_work_at(&thread, here()));
    assert_eq!(was_at_work, Some(true));
    let from_elsewhere = here();
    let is_elsewhere = pool.run(&thread, |_| pool.is_at_work_at(&thread, from_elsewhere));
    assert_eq!(is_elsewhere, Some(false));
    assert!(!pool.is_at_work_at(&thread, here()));
}

/// A signal handler that samples on a thread which is at work in its area.
#[test]
fn nested_work_gets_other_areas_and_leaves_the_thread_s_own() {
    let pool: Pool<Area> = Pool::new();
    let thread = Cell::new(0);
    let numbers = pool.run(&thread, |outer| {
        outer.number = 1;
        let inner = pool.run(&thread, |inner| {
            assert_eq!(inner.number, 0);
            inner.number = 2;
            inner.number
        });
        (outer.number, inner)
    });
    assert_eq!(numbers, Some((1, Some(2))));
    assert_eq!(pool.run(&thread, |area| area.number), Some(1));
}

#[test]
fn threads_beyond_the_limit_share_areas_that_are_free() {
    let pool: Pool<Area> = Pool::new();
    let threads: Vec<_> = (0..2 * OWN_AREAS).map(|_| Cell::new(0)).collect();
    for thread in &threads {
        pool.run(thread, |area| area.number += 1).unwrap();
    }
    assert_eq!(pool.made.load(Ordering::Relaxed) as usize, OWN_AREAS);
    let uses = threads.iter().take(OWN_AREAS);
    let sum: u64 = uses
        .map(|thread| pool.run(thread, |area| area.number).unwrap())
        .sum();
    assert_eq!(sum as usize, 2 * OWN_AREAS);
}

#[test]
fn a_single_use_makes_no_area_while_one_is_free() {
    let pool: Pool<Area> = Pool::new();
    assert_eq!(pool.run_once(|area| area.number), Some(0));
    pool.run_once(|area| area.number = 7).unwrap();
    assert_eq!(pool.made.load(Ordering::Relaxed), 1);
    pool.run_once(|_| pool.run_once(|_| ()).unwrap()).unwrap();
    assert_eq!(pool.made.load(Ordering::Relaxed), 2);
}

#[test]
fn no_two_threads_are_in_one_area() {
    let pool: Pool<Area> = Pool::new();
    std::thread::scope(|scope| {
        for number in 1..=4_u64 {
            let pool = &pool;
            scope.spawn(move || {
                // As signal handlers do, which have no area of their own.
                for _ in 0..2_000 {
                    let is_alone = pool.run_once(|area| {
                        area.number = number;
                        std::hint::spin_loop();
                        core::hint::black_box(&mut *area).number == number
                    });
                    assert_eq!(is_alone, Some(true));
                }
            });
        }
    });
    assert!(pool.made.load(Ordering::Relaxed) <= 4);
}

#[test]
fn a_forked_child_begins_with_areas_of_its_own() {
    let pool: Pool<Area> = Pool::new();
    let thread = Cell::new(0);
    pool.run(&thread, |area| area.number = 1).unwrap();
    pool.forget();
    thread.set(0);
    assert_eq!(pool.run(&thread, |area| area.number), Some(0));
    // A fork in the middle of it: the area stays with the work, and does not come back to the pool.
    pool.run(&thread, |area| {
        area.number = 5;
        pool.forget();
        assert_eq!(area.number, 5);
    })
    .unwrap();
    let other = Cell::new(0);
    assert_eq!(pool.run(&other, |area| area.number), Some(0));
}

/// As a handler does that finds its thread in a slow path that is gone: it leaves the area, and takes another one.
#[test]
fn an_area_that_was_left_is_used_again_when_nobody_can_come_back_to_it() {
    let pool: Pool<Area> = Pool::new();
    let thread = Cell::new(0);
    let of = |index: usize| pool.uses.get(index).unwrap();
    pool.run(&thread, |first| {
        first.number = 1;
        pool.leave(&thread);
        assert_eq!((thread.get(), pool.left.load(Ordering::Relaxed)), (0, 1));
        // Once is enough.
        pool.leave(&thread);
        assert_eq!(pool.left.load(Ordering::Relaxed), 1);
        // Whoever was there may come back: its frame still has the note.
        assert_eq!(pool.reclaim(), None);
        pool.run(&thread, |second| {
            second.number = 2;
            assert_eq!(pool.reclaim(), None);
        })
        .unwrap();
    })
    .unwrap();
    // It has come back, and nothing is left.
    assert_eq!(pool.left.load(Ordering::Relaxed), 0);
    assert_eq!(pool.reclaim(), None);
    assert_eq!(of(0).state.load(Ordering::Relaxed), FREE);
    // Now it does not come back: where its frame was is something else.
    let other = Cell::new(0);
    assert_eq!(
        pool.run(&other, |area| area.number),
        Some(0),
        "an area of its own"
    );
    let frame = 0_u64;
    pool.run(&thread, |_| {
        let noted_at = of(0).noted_at.load(Ordering::Relaxed);
        pool.leave(&thread);
        of(0).noted_at.store(
            (&raw const frame).expose_provenance() as u64,
            Ordering::Relaxed,
        );
        assert_eq!(pool.reclaim(), Some(0));
        assert_eq!(of(0).state.load(Ordering::Relaxed), BUSY);
        assert_eq!(pool.left.load(Ordering::Relaxed), 0);
        of(0).noted_at.store(noted_at, Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!(
        pool.run(&Cell::new(1), |area| (area.number, area.resets)),
        Some((1, 1))
    );
}

/// Whoever comes back at the very moment when another thread finds that it cannot has given it back: nobody else has it.
#[test]
fn an_area_whose_user_comes_back_while_it_is_looked_at_is_free() {
    let pool: Pool<Area> = Pool::new();
    let thread = Cell::new(0);
    let place = pool.uses.first().unwrap();
    pool.run(&thread, |_| {
        pool.leave(&thread);
        assert!(place.change(LEFT, LOOKED_AT));
    })
    .unwrap();
    assert_eq!(place.state.load(Ordering::Relaxed), FREE);
    assert!(!place.change(LOOKED_AT, BUSY) && !place.change(LOOKED_AT, LEFT));
    assert_eq!(pool.left.load(Ordering::Relaxed), 0);
    assert!(place.take());
}
