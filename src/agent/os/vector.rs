//! A list that grows, in memory straight from the kernel.

use core::ptr::NonNull;

use super::memory;

/// Like a `Vec` of plain data; it is never dropped, only released.
pub struct Vector<T: Copy + 'static> {
    base: Option<NonNull<T>>,
    length: usize,
    capacity: usize,
}

// SAFETY: plain data, owned: it may be used from one thread after another.
unsafe impl<T: Copy + Send> Send for Vector<T> {}

impl<T: Copy> Vector<T> {
    /// Without memory yet.
    pub const fn new() -> Self {
        Self {
            base: None,
            length: 0,
            capacity: 0,
        }
    }

    /// Appends; false if there is no memory.
    pub fn push(&mut self, value: T) -> bool {
        if self.length == self.capacity && !self.grow() {
            return false;
        }
        let Some(base) = self.base else {
            return false;
        };
        // SAFETY: below the capacity of our own mapping.
        unsafe { base.add(self.length).write(value) };
        self.length += 1;
        true
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        let base = self.base.unwrap_or(NonNull::dangling());
        // SAFETY: that many were written, into our own memory; none needs none.
        unsafe { core::slice::from_raw_parts(base.as_ptr(), self.length) }
    }

    /// The elements, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        let base = self.base.unwrap_or(NonNull::dangling());
        // SAFETY: as above, and `&mut self` makes it unique.
        unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), self.length) }
    }

    /// Keeps the elements that pass, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let all = self.as_mut_slice();
        let mut kept = 0;
        for index in 0..all.len() {
            let Some(&value) = all.get(index) else { break };
            if keep(&value) {
                if let Some(place) = all.get_mut(kept) {
                    *place = value;
                }
                kept += 1;
            }
        }
        self.length = kept;
    }

    /// Empties it; the memory stays.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Gives the memory back.
    pub fn release(&mut self) {
        if let Some(base) = self.base.take() {
            // SAFETY: our own mapping of this many; nothing refers to it, as `&mut self` shows.
            unsafe { memory::unmap(base.cast(), self.capacity * size_of::<T>()) };
        }
        self.length = 0;
        self.capacity = 0;
    }

    fn grow(&mut self) -> bool {
        const PAGE: usize = 4096;
        let capacity = (self.capacity * 2).max((PAGE / size_of::<T>().max(1)).max(1));
        let Some(bytes) = capacity.checked_mul(size_of::<T>()) else {
            return false;
        };
        let Some(base) = memory::map(bytes) else {
            return false;
        };
        let base = base.cast::<T>();
        // SAFETY: the new mapping is larger and does not overlap; a page's alignment suffices for plain data.
        unsafe {
            base.copy_from_nonoverlapping(self.base.unwrap_or(NonNull::dangling()), self.length);
        }
        let length = self.length;
        self.release();
        (self.base, self.length, self.capacity) = (Some(base), length, capacity);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_keeps_its_order_and_shrinks() {
        let mut vector = Vector::new();
        assert!(vector.as_slice().is_empty());
        for number in 0..100_000u64 {
            assert!(vector.push(number));
        }
        assert!(vector.as_slice().iter().copied().eq(0..100_000));
        vector.retain(|number| number % 3 == 0);
        assert!(
            vector
                .as_slice()
                .iter()
                .copied()
                .eq((0..100_000).step_by(3))
        );
        *vector.as_mut_slice().first_mut().unwrap() = 7;
        assert_eq!(vector.as_slice().first(), Some(&7));
        vector.clear();
        assert!(vector.push(1));
        assert_eq!(vector.as_slice(), [1]);
        vector.release();
        assert!(vector.as_slice().is_empty());
    }
}
