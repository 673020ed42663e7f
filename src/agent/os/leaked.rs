//! Values that live for ever, places for references to them, and the memory of those that are replaced.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::memory::map;

/// Moves `value` into memory that lives for ever.
pub fn leak<T: Sync>(value: T) -> Option<&'static T> {
    let place = map(size_of::<T>().max(1))?.cast::<T>();
    debug_assert!(align_of::<T>() <= 4096);
    // For `Retired::take`.
    place.as_ptr().expose_provenance();
    // SAFETY: fresh, page-aligned and large enough; written before it is shared, never unmapped.
    unsafe {
        place.write(value);
        Some(place.as_ref())
    }
}

/// Time that a retired value may still be in use: longer than any wait on one.
const GRACE_NS: u64 = 15_000_000_000;
/// Maximum number of retired values whose memory is reused.
const MOST_RETIRED: usize = 1024;

/// Values of [`leak`] that were current once, and whose memory is used again. Nobody is asked whether they still look at
/// one: who began before it was retired has had `GRACE_NS`.
pub struct Retired<T> {
    places: [(AtomicPtr<T>, AtomicU64); MOST_RETIRED],
    /// Places from here on were never used: most processes retire nothing, and look at none.
    used: AtomicUsize,
}

impl<T: Sync> Retired<T> {
    /// No retired values.
    pub const fn new() -> Self {
        Self {
            places: [const { (AtomicPtr::new(core::ptr::null_mut()), AtomicU64::new(0)) };
                MOST_RETIRED],
            used: AtomicUsize::new(0),
        }
    }

    /// Its memory may be used again after a while. Beyond `MOST_RETIRED` it never is. Any thread.
    pub fn retire(&self, value: &T, now_ns: u64) {
        let value = core::ptr::from_ref(value).cast_mut();
        let is_mine = |(_, place): &(usize, &(AtomicPtr<T>, AtomicU64))| {
            let empty = core::ptr::null_mut();
            let exchanged =
                (place.0).compare_exchange(empty, value, Ordering::Relaxed, Ordering::Relaxed);
            exchanged.is_ok()
        };
        if let Some((index, place)) = self.places.iter().enumerate().find(is_mine) {
            // Release: pairs with `take`.
            place.1.store(now_ns.max(1), Ordering::Release);
            self.used.fetch_max(index + 1, Ordering::Release);
        }
    }

    /// One that was retired long ago, which is the caller's alone from here on. One thread at a time.
    pub fn take(&self, now_ns: u64) -> Option<NonNull<T>> {
        let used = self.used.load(Ordering::Acquire);
        self.places.iter().take(used).find_map(|(place, since_ns)| {
            // Acquire: what the last user did to it is done. 0: none, or it is just being retired.
            let since = since_ns.load(Ordering::Acquire);
            if since == 0 || now_ns.saturating_sub(since) < GRACE_NS {
                return None;
            }
            since_ns.store(0, Ordering::Relaxed);
            let value = place.swap(core::ptr::null_mut(), Ordering::AcqRel);
            // `leak` has exposed it: this pointer may be written through.
            NonNull::new(core::ptr::with_exposed_provenance_mut(
                value.expose_provenance(),
            ))
        })
    }
}

/// As [`leak`], in memory that [`Retired::take`] gave, if there is some.
pub fn leak_again<T: Sync>(place: Option<NonNull<T>>, value: T) -> Option<&'static T> {
    let Some(place) = place else {
        return leak(value);
    };
    // SAFETY: it came from `leak`, which maps memory for ever; it is ours alone, but for threads that have been standing for
    // longer than the grace. Those read and write its atomics, and hold no borrow of the rest.
    unsafe {
        place.write(value);
        Some(place.as_ref())
    }
}

/// A place for a reference that any thread may read and replace.
pub struct StaticRef<T: 'static>(AtomicPtr<T>);

impl<T: Sync> StaticRef<T> {
    /// Empty.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// The reference that was stored last.
    pub fn get(&self) -> Option<&'static T> {
        // Acquire: pairs with the release stores below; the value is complete.
        let pointer = self.0.load(Ordering::Acquire);
        // SAFETY: only `&'static T` are ever stored.
        unsafe { pointer.as_ref() }
    }

    /// Replaces the reference.
    pub fn set(&self, value: Option<&'static T>) {
        let pointer = value.map_or(core::ptr::null_mut(), |value| {
            core::ptr::from_ref(value).cast_mut()
        });
        // Release: pairs with `get`.
        self.0.store(pointer, Ordering::Release);
    }

    /// Stores `value` if it is empty; returns what is there then.
    pub fn set_if_empty(&self, value: &'static T) -> &'static T {
        let pointer = core::ptr::from_ref(value).cast_mut();
        // Release and acquire: as above, in both outcomes.
        match self.0.compare_exchange(
            core::ptr::null_mut(),
            pointer,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => value,
            // SAFETY: not null, and only `&'static T` are ever stored.
            Err(present) => unsafe { &*present },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_memory_is_used_again_after_the_grace_and_not_before() {
        static RETIRED: Retired<u64> = Retired::new();
        let first = leak_again(RETIRED.take(0), 1).unwrap();
        RETIRED.retire(first, 5);
        assert_eq!(RETIRED.take(5 + GRACE_NS - 1), None);
        let place = RETIRED.take(5 + GRACE_NS);
        assert_eq!(place, Some(NonNull::from(first)));
        assert_eq!(RETIRED.take(u64::MAX), None);
        let second = leak_again(place, 2).unwrap();
        assert!(core::ptr::eq(first, second) && *second == 2);
        // What finds no place is kept for ever.
        for value in 0..MOST_RETIRED as u64 + 10 {
            RETIRED.retire(leak(value).unwrap(), 7);
        }
        let again = std::iter::from_fn(|| RETIRED.take(7 + GRACE_NS));
        assert_eq!(again.count(), MOST_RETIRED);
    }
}
