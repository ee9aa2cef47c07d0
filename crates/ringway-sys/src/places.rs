//! Memory that lies in several places.

use std::ops::Range;

use crate::Memory;

/// Bytes that lie in several places, counted as if they were in a row.
#[derive(Clone, Debug, Default)]
pub struct Places {
    places: Vec<Memory>,
    /// Where each of them ends in the row.
    ends: Vec<usize>,
}

impl Places {
    /// The bytes of all `places`, in this order.
    pub fn new(places: impl IntoIterator<Item = Memory>) -> Self {
        let mut row = Self::default();
        let mut end = 0;
        for place in places.into_iter().filter(|place| !place.is_empty()) {
            end += place.len();
            row.places.push(place);
            row.ends.push(end);
        }
        row
    }

    /// Each of them that has bytes.
    pub fn iter(&self) -> impl Iterator<Item = Memory> {
        self.places.iter().copied()
    }

    /// The number of bytes of all of them.
    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether any byte is in two of them.
    pub fn overlap(&self) -> bool {
        let mut sorted = self.places.clone();
        sorted.sort_unstable_by_key(|place| place.as_ptr().addr());
        sorted.windows(2).any(|pair| pair[0].overlaps(pair[1]))
    }

    /// The first bytes of `range` as far as they are in one place.
    ///
    /// # Panics
    /// If the range has no bytes, or begins beyond the last one.
    pub fn first(&self, range: Range<usize>) -> Memory {
        let at = self.ends.partition_point(|&end| end <= range.start);
        let (place, end) = (self.places[at], self.ends[at]);
        let start = end - place.len();
        place.slice(range.start - start..range.end.min(end) - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Staging;

    /// The addresses of all bytes.
    fn addresses(memory: Memory) -> impl Iterator<Item = usize> {
        let start = memory.as_ptr().addr();
        start..start + memory.len()
    }

    #[test]
    fn a_byte_in_two_places_is_found() {
        let memory = Staging::new(12);
        let whole = memory.memory();
        let overlap = |ranges: &[Range<usize>]| {
            let places = ranges.iter().map(|range| whole.slice(range.clone()));
            Places::new(places).overlap()
        };
        assert!(!overlap(&[]));
        assert!(!overlap(&[8..12, 0..4, 4..4, 4..8]));
        assert!(overlap(&[8..12, 0..5, 4..8]));
        assert!(overlap(&[4..8, 0..12]));
        assert!(overlap(&[4..8, 8..12, 4..8]));
    }

    #[test]
    fn parts_in_a_row_are_the_whole() {
        for lens in [&[][..], &[0], &[7], &[0, 3, 0, 1, 8, 0], &[5, 5, 5, 5]] {
            let memory: Vec<Staging> = lens.iter().map(|&len| Staging::new(len)).collect();
            let places = Places::new(memory.iter().map(Staging::memory));
            let whole: Vec<usize> = memory
                .iter()
                .flat_map(|one| addresses(one.memory()))
                .collect();
            assert_eq!(
                (places.len(), places.is_empty()),
                (whole.len(), whole.is_empty())
            );
            for start in 0..whole.len() {
                for end in start + 1..=whole.len() {
                    let mut found = Vec::new();
                    while start + found.len() < end {
                        let part = places.first(start + found.len()..end);
                        assert!(!part.is_empty());
                        found.extend(addresses(part));
                    }
                    assert_eq!(found, whole[start..end]);
                }
            }
        }
    }
}
