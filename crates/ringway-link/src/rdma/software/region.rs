//! Registered memory, as the endpoint sees it.

use ringway_roce::Region;
use ringway_sys::{Memory, Shared64};

/// Memory of this process. The endpoint has checked all bounds before it calls; the memory checks them again.
#[derive(Debug)]
pub(super) struct Registered(pub(super) Memory);

impl Registered {
    fn from(&self, offset: u64) -> Memory {
        self.0.slice(offset as usize..self.0.len())
    }
}

impl Region for Registered {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.from(offset).read(into);
    }

    fn write(&mut self, offset: u64, from: &[u8]) {
        self.from(offset).write(from);
    }

    fn fetch_add(&mut self, offset: u64, add: u64) -> u64 {
        Shared64::at(self.0, offset as usize).fetch_add(add)
    }

    fn compare_swap(&mut self, offset: u64, compare: u64, swap: u64) -> u64 {
        let word = Shared64::at(self.0, offset as usize);
        loop {
            let before = word.load();
            if before != compare || word.replace(before, swap) {
                return before;
            }
        }
    }
}
