//! A vector that lies in several places, over messages: each of those is gathered from there, or scattered to there.
//!
//! What lies in one place goes from there and to there without a copy.

use std::{ops::Range, sync::Arc};

use ringway_link::MessageKey;
use ringway_plan::Rank;
use ringway_sys::{Memory, Places, Staging};

/// The messages of one operation that lie in more than one place.
pub(super) struct Spread {
    places: Arc<Places>,
    /// What has not left yet.
    leaving: Vec<(Rank, MessageKey, Staging)>,
    /// What has not come yet, and where it belongs.
    coming: Vec<(Rank, MessageKey, Staging, Range<usize>)>,
}

impl Spread {
    pub(super) const fn new(places: Arc<Places>) -> Self {
        Self {
            places,
            leaving: Vec::new(),
            coming: Vec::new(),
        }
    }

    /// The first bytes of `range`, as far as they are in one place.
    pub(super) fn first(&self, range: Range<usize>) -> Memory {
        match range.is_empty() {
            true => Memory::EMPTY,
            false => self.places.first(range),
        }
    }

    /// Memory to send the bytes of `range` from; it stays until [`Self::left`].
    pub(super) fn leave(&mut self, peer: Rank, key: MessageKey, range: Range<usize>) -> Memory {
        let row = self.first(range.clone());
        if row.len() == range.len() {
            return row;
        }
        let gathered = Staging::new(range.len());
        let memory = gathered.memory();
        self.each(range, |at, place| {
            memory.slice(at..at + place.len()).copy_from(place);
        });
        self.leaving.push((peer, key, gathered));
        memory
    }

    pub(super) fn left(&mut self, peer: Rank, key: MessageKey) {
        self.leaving.retain(|(p, k, _)| (*p, *k) != (peer, key));
    }

    /// Memory to receive the bytes of `range` in, which [`Self::come`] brings to where they belong.
    pub(super) fn expect(&mut self, peer: Rank, key: MessageKey, range: Range<usize>) -> Memory {
        let row = self.first(range.clone());
        if row.len() == range.len() {
            return row;
        }
        let gathered = Staging::new(range.len());
        let memory = gathered.memory();
        self.coming.push((peer, key, gathered, range));
        memory
    }

    /// A message is in the memory that was given for it.
    pub(super) fn come(&mut self, peer: Rank, key: MessageKey) {
        let asked =
            |(p, k, ..): &(Rank, MessageKey, Staging, Range<usize>)| (*p, *k) == (peer, key);
        let Some(at) = self.coming.iter().position(asked) else {
            return;
        };
        let (_, _, gathered, range) = self.coming.swap_remove(at);
        let memory = gathered.memory();
        self.each(range, |at, place| {
            place.copy_from(memory.slice(at..at + place.len()));
        });
    }

    /// Calls `f` with each place of the bytes of `range`, and where in the range it is.
    fn each(&self, range: Range<usize>, f: impl Fn(usize, Memory)) {
        let mut at = range.start;
        while at < range.end {
            let place = self.places.first(at..range.end);
            f(at - range.start, place);
            at += place.len();
        }
    }
}
