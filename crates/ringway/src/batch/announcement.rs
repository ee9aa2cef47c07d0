//! What rank 0 tells the others of a batch before it is added up.

use ringway_plan::Rank;

use crate::group::mix;

/// Words of an announcement: always the same number, as it is broadcast.
pub(super) const WORDS: usize = 64;

/// Tensors whose lengths are told one by one.
const TOLD: usize = WORDS - 3;

/// Which tensors are in a batch: the next so many, of these lengths.
pub(super) type Announcement = [u64; WORDS];

/// Announces a batch of tensors with these `lengths`; `flushed`: all were asked for up to here.
pub(super) fn announce(lengths: &[usize], flushed: bool) -> Announcement {
    let mut words = [0; WORDS];
    words[0] = lengths.len() as u64;
    words[1] = flushed.into();
    words[2] = fingerprint(lengths);
    for (word, &length) in words[3..].iter_mut().zip(lengths) {
        *word = length as u64;
    }
    words
}

/// The number of tensors.
pub(super) const fn count(words: &Announcement) -> usize {
    words[0] as usize
}

/// Whether all up to here were asked for.
pub(super) const fn flushed(words: &Announcement) -> bool {
    words[1] != 0
}

fn fingerprint(lengths: &[usize]) -> u64 {
    lengths
        .iter()
        .fold(0, |hash, &length| mix(&[hash, length as u64]))
}

/// What is wrong if this rank's next tensors, from the `first`-th on, have these `lengths`.
pub(super) fn mismatch(
    words: &Announcement,
    me: Rank,
    first: u64,
    lengths: &[usize],
) -> Option<String> {
    if words[2] == fingerprint(lengths) {
        return None;
    }
    let told = words[3..].iter().zip(lengths).take(TOLD);
    let differs = told
        .enumerate()
        .find(|(_, (theirs, ours))| **theirs != **ours as u64);
    let expected = "expected the same tensors in the same order on all ranks";
    Some(match differs {
        Some((i, (theirs, ours))) => format!(
            "tensor {} of a batcher has {ours} elements on rank {me} and {theirs} on rank 0; {expected}",
            first + i as u64
        ),
        None => format!(
            "of tensors {first} to {} of a batcher one after the first {TOLD} has another length on rank {me} than on \
             rank 0; {expected}",
            first + words[0].saturating_sub(1)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_tensor_that_differs_is_named() {
        let words = announce(&[5, 6, 7], false);
        assert_eq!((count(&words), flushed(&words)), (3, false));
        assert_eq!(mismatch(&words, 2, 40, &[5, 6, 7]), None);
        let text = mismatch(&words, 2, 40, &[5, 9, 7]).unwrap();
        assert!(
            text.contains("tensor 41 of a batcher has 9 elements on rank 2 and 6 on rank 0"),
            "{text}"
        );
        let many = vec![1; 100];
        let mut other = many.clone();
        other[99] = 2;
        let text = mismatch(&announce(&many, true), 1, 0, &other).unwrap();
        assert!(
            text.contains("tensors 0 to 99") && text.contains("after the first 61"),
            "{text}"
        );
    }
}
