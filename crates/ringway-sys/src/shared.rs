//! Atomic words in shared memory: what processes tell each other through.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::Memory;

macro_rules! shared {
    ($name:ident, $atomic:ident, $word:ident, $doc:literal) => {
        #[doc = $doc]
        ///
        /// A handle without a lifetime, as [`Memory`] is; other processes may change the word at any time.
        #[derive(Clone, Copy, Debug)]
        pub struct $name(*const $atomic);

        // SAFETY: the handle is an address of an atomic word; `Memory::new` promises validity in any thread.
        unsafe impl Send for $name {}
        // SAFETY: as for Send; every access is atomic.
        unsafe impl Sync for $name {}

        impl $name {
            /// The word at byte `offset` of `memory`.
            ///
            /// # Panics
            /// If it is not aligned, or not within the memory.
            #[inline]
            pub fn at(memory: Memory, offset: usize) -> Self {
                let word = memory.slice(offset..offset + size_of::<$atomic>()).as_ptr();
                assert!(
                    word.addr().is_multiple_of(align_of::<$atomic>()),
                    "shared word at offset {offset} is not aligned"
                );
                Self(word.cast_const().cast())
            }

            /// The word itself.
            #[inline]
            pub(crate) fn atomic(&self) -> &$atomic {
                // SAFETY: `at` checked bounds and alignment; the memory is valid by the contract of
                // `Memory::new`, and an atomic may be shared with writers.
                unsafe { &*self.0 }
            }

            /// Reads, so that what the writer wrote before storing this value is visible after.
            #[inline]
            pub fn load(self) -> $word {
                self.atomic().load(Ordering::Acquire)
            }

            /// Writes, after everything written before.
            #[inline]
            pub fn store(self, value: $word) {
                self.atomic().store(value, Ordering::Release);
            }

            /// Writes and returns what was there; a full barrier.
            #[inline]
            pub fn swap(self, value: $word) -> $word {
                self.atomic().swap(value, Ordering::SeqCst)
            }

            /// Adds, wrapping around, and returns what was there; a full barrier.
            #[inline]
            pub fn fetch_add(self, value: $word) -> $word {
                self.atomic().fetch_add(value, Ordering::SeqCst)
            }

            /// Sets bits and returns what was there; a full barrier.
            #[inline]
            pub fn fetch_or(self, bits: $word) -> $word {
                self.atomic().fetch_or(bits, Ordering::SeqCst)
            }

            /// Keeps only `bits` and returns what was there; a full barrier.
            #[inline]
            pub fn fetch_and(self, bits: $word) -> $word {
                self.atomic().fetch_and(bits, Ordering::SeqCst)
            }

            /// Writes `new` if `old` is there, and says whether it was; a full barrier.
            #[inline]
            pub fn replace(self, old: $word, new: $word) -> bool {
                self.atomic()
                    .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            }
        }
    };
}

shared!(
    Shared8,
    AtomicU8,
    u8,
    "An atomic byte in shared memory, or in memory that a device writes to."
);
shared!(
    Shared32,
    AtomicU32,
    u32,
    "An atomic word of 32 bits in shared memory; a futex can wait for it."
);
shared!(
    Shared64,
    AtomicU64,
    u64,
    "An atomic word of 64 bits in shared memory."
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;

    #[test]
    fn words_see_each_other() {
        let segment = Segment::create("test", 4096).unwrap();
        let word = Shared64::at(segment.memory(), 64);
        word.store(5);
        assert_eq!(Shared64::at(segment.memory(), 64).load(), 5);
        assert_eq!(word.fetch_add(2), 5);
        assert_eq!(word.fetch_or(8), 7);
        assert_eq!(word.fetch_and(12), 15);
        assert!(!word.replace(1, 2) && word.replace(12, 3));
        assert_eq!(word.swap(0), 3);
        assert_eq!(Shared32::at(segment.memory(), 64).load(), 0);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn a_misaligned_word_is_refused() {
        let segment = Segment::create("test", 4096).unwrap();
        let _ = Shared64::at(segment.memory(), 4);
    }

    #[test]
    #[should_panic(expected = "outside of memory")]
    fn a_word_past_the_end_is_refused() {
        let segment = Segment::create("test", 4096).unwrap();
        let _ = Shared32::at(segment.memory(), 4096);
    }
}
