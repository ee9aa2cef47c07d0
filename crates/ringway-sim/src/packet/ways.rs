//! The hops that packets take, each way once.

use std::collections::HashMap;

use super::pool::NONE;

/// Ways one after the other, each with [`NONE`] at its end: a packet knows where its next hop stands.
#[derive(Debug, Default)]
pub(super) struct Ways {
    hops: Vec<u32>,
    known: HashMap<Vec<u32>, u32>,
}

impl Ways {
    /// Where the way begins.
    pub(super) fn add(&mut self, way: Vec<u32>) -> u32 {
        if let Some(&start) = self.known.get(&way) {
            return start;
        }
        let start = self.hops.len() as u32;
        self.hops.extend(&way);
        self.hops.push(NONE);
        self.known.insert(way, start);
        start
    }

    /// The hop that stands there, or [`NONE`].
    pub(super) fn hop(&self, at: u32) -> u32 {
        self.hops[at as usize]
    }
}
