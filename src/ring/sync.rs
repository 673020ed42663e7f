//! The switch between real memory and loom's model of it.
//!
//! Under `--cfg loom` a ring lies in [`ModelMemory`]: each word has loom's atomic value plus a cell whose only purpose
//! is that loom notices when a payload word is touched by two threads without a happens-before between them.

#[cfg(not(loom))]
pub(crate) use {
    crate::memory::{Memory, Words, WordsMut},
    core::sync::atomic::{AtomicU64, Ordering, compiler_fence},
};
#[cfg(loom)]
pub(crate) use {
    core::sync::atomic::compiler_fence,
    loom::sync::atomic::{AtomicU64, Ordering},
    model::{Memory, Words, WordsMut},
};

#[cfg(loom)]
pub use model::ModelMemory;

#[cfg(loom)]
mod model {
    use core::ops::{Deref, DerefMut};
    use std::boxed::Box;
    use std::vec::Vec;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU64, Ordering};

    use crate::layout::{Head, Header, Line, LostCounter, Request, Tail};

    struct Word {
        value: AtomicU64,
        access: UnsafeCell<()>,
    }

    /// Owns a modelled ring; it must outlive every copy of the [`crate::Ring`] made of it.
    pub struct ModelMemory {
        header: Header,
        words: Vec<Word>,
    }

    impl ModelMemory {
        /// Zeroed memory for `capacity_words`.
        pub fn new(capacity_words: u64) -> Box<Self> {
            let zero = || AtomicU64::new(0);
            let lost = || LostCounter {
                events: zero(),
                bytes: zero(),
            };
            Box::new(Self {
                header: Header {
                    magic: zero(),
                    version: zero(),
                    profile_id: [zero(), zero()],
                    capacity_words: zero(),
                    data_offset: zero(),
                    closed: zero(),
                    head: Line(Head { word: zero() }),
                    tail: Line(Tail {
                        released: zero(),
                        consumed: zero(),
                    }),
                    lost: Line(core::array::from_fn(|_| lost())),
                    request: Line(Request {
                        generation: zero(),
                        interval: zero(),
                        obeyed: zero(),
                        what: zero(),
                        more: core::array::from_fn(|_| zero()),
                    }),
                    figures: Line(core::array::from_fn(|_| zero())),
                    collecting: Line(core::array::from_fn(|_| zero())),
                    reserved_up_to: Line(core::array::from_fn(|_| zero())),
                },
                words: (0..capacity_words)
                    .map(|_| Word {
                        value: zero(),
                        access: UnsafeCell::new(()),
                    })
                    .collect(),
            })
        }
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Memory(&'static ModelMemory);

    // SAFETY: loom runs one thread at a time and checks each access.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// # Safety
        /// `model` outlives every copy.
        pub unsafe fn new(model: &ModelMemory) -> Self {
            // SAFETY: the caller keeps it alive.
            Self(unsafe { &*core::ptr::from_ref(model) })
        }

        pub fn capacity_words(&self) -> u64 {
            self.0.words.len() as u64
        }

        pub fn header(&self) -> &Header {
            &self.0.header
        }

        pub fn header_word(&self, position: u64) -> &AtomicU64 {
            &self.word(position).value
        }

        /// # Safety
        /// As in the mapped memory; loom checks it.
        pub unsafe fn payload_mut(&self, position: u64, words: usize) -> WordsMut<'_> {
            WordsMut {
                memory: self,
                position,
                words: self.read(position, words),
            }
        }

        /// # Safety
        /// As in the mapped memory; loom checks it.
        pub unsafe fn payload(&self, position: u64, words: usize) -> Words<'_> {
            Words {
                words: self.read(position, words),
                memory: core::marker::PhantomData,
            }
        }

        /// # Safety
        /// As in the mapped memory; loom checks it.
        pub unsafe fn zero(&self, from: u64, to: u64) {
            (from..to).for_each(|position| self.write(position, 0));
        }

        fn read(&self, position: u64, words: usize) -> Vec<u64> {
            (position..position + words as u64)
                .map(|position| {
                    let word = self.word(position);
                    word.access.with(|_| word.value.load(Ordering::Relaxed))
                })
                .collect()
        }

        fn write(&self, position: u64, value: u64) {
            let word = self.word(position);
            word.access
                .with_mut(|_| word.value.store(value, Ordering::Relaxed));
        }

        fn word(&self, position: u64) -> &Word {
            let index = position as usize % self.0.words.len();
            self.0
                .words
                .get(index)
                .into_iter()
                .next()
                .unwrap_or_else(|| unreachable!())
        }
    }

    /// A copy that is written back when it is dropped.
    pub struct WordsMut<'a> {
        memory: &'a Memory,
        position: u64,
        words: Vec<u64>,
    }

    impl Deref for WordsMut<'_> {
        type Target = [u64];

        fn deref(&self) -> &[u64] {
            &self.words
        }
    }

    impl DerefMut for WordsMut<'_> {
        fn deref_mut(&mut self) -> &mut [u64] {
            &mut self.words
        }
    }

    impl Drop for WordsMut<'_> {
        fn drop(&mut self) {
            for (position, &word) in (self.position..).zip(&self.words) {
                self.memory.write(position, word);
            }
        }
    }

    /// A copy.
    pub struct Words<'a> {
        words: Vec<u64>,
        memory: core::marker::PhantomData<&'a Memory>,
    }

    impl Deref for Words<'_> {
        type Target = [u64];

        fn deref(&self) -> &[u64] {
            &self.words
        }
    }
}
