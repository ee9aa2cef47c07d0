//! User memory that is registered with the device: from there messages are sent, and there they are received, without a copy.
//!
//! A cache by page range. Tensors that lie in the same pages share a registration, which lasts as long as any of them is held;
//! of two ranges that merely overlap each has its own, so that no registration outlives the memory that it was made for.
//! Nothing is registered here that the user hasn't registered: that memory is freed without a word, and what is mapped in its
//! place would be sent from, or received into, pages that are no longer its own.

use std::ops::Range;

use ringway_sys::Memory;

use super::slab::Slab;
use crate::{
    RegisterError,
    rdma::{Access, Device, Local, Region, Remote},
};

/// A registered range of pages.
#[derive(Debug)]
struct Entry {
    pages: Range<usize>,
    region: Region,
    /// How often it was registered and not yet given up.
    holders: usize,
    /// Messages that are on their way from it, or that peers may write to it.
    uses: usize,
}

/// The registrations.
#[derive(Debug)]
pub(super) struct Registrations {
    entries: Slab<Entry>,
    /// Page ranges with the entries' numbers, by start; of the same start the shorter first.
    index: Vec<(Range<usize>, u32)>,
    /// The longest range that there has been: how far back a search has to look.
    longest: usize,
    /// Entries without holders and uses, to be deregistered.
    unused: Vec<u32>,
    bytes: usize,
    limit: usize,
}

impl Registrations {
    /// None, and room for `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            entries: Slab::default(),
            index: Vec::new(),
            longest: 0,
            unused: Vec::new(),
            bytes: 0,
            limit,
        }
    }

    /// Bytes that are registered, and the number of ranges.
    pub(super) const fn total(&self) -> (usize, usize) {
        (self.bytes, self.index.len())
    }

    /// Registers the pages of `memory`, or holds them once more. True if the device was asked.
    pub(super) fn hold(
        &mut self,
        device: &mut dyn Device,
        memory: Memory,
    ) -> Result<bool, RegisterError> {
        let whole = memory.pages();
        let pages = addresses(whole);
        if let Some(at) = self.find_exact(&pages) {
            let number = self.index[at].1;
            if let Some(entry) = self.entries.get_mut(number) {
                entry.holders += 1;
                self.unused.retain(|unused| *unused != number);
                return Ok(false);
            }
        }
        let wanted = self.bytes.saturating_add(whole.len());
        if wanted > self.limit {
            return Err(RegisterError::Limit {
                bytes: whole.len(),
                wanted,
                limit: self.limit,
            });
        }
        let region = device.register(whole, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let number = self.entries.insert(Entry {
            pages: pages.clone(),
            region,
            holders: 1,
            uses: 0,
        });
        let at = self
            .index
            .partition_point(|(other, _)| order(other) < order(&pages));
        self.longest = self.longest.max(pages.len());
        self.index.insert(at, (pages, number));
        self.bytes += whole.len();
        Ok(true)
    }

    /// Gives up a hold. With the last one the registration ends, or, if messages are still under way, with the last of these.
    pub(super) fn give_up(&mut self, device: &mut dyn Device, memory: Memory) {
        let Some(at) = self.find_exact(&addresses(memory.pages())) else {
            return;
        };
        let number = self.index[at].1;
        if let Some(entry) = self.entries.get_mut(number)
            && entry.holders > 0
        {
            entry.holders -= 1;
            if entry.holders == 0 && entry.uses == 0 {
                self.unused.push(number);
            }
        }
        self.settle(device);
    }

    /// A registration that `memory` lies in, counted as used once more.
    pub(super) fn lease(&mut self, memory: Memory) -> Option<u32> {
        let wanted = addresses(memory);
        let end = self
            .index
            .partition_point(|(pages, _)| pages.start <= wanted.start);
        let reach = |pages: &Range<usize>| pages.start + self.longest >= wanted.end;
        for (pages, number) in self.index[..end]
            .iter()
            .rev()
            .take_while(|(pages, _)| reach(pages))
        {
            if pages.end >= wanted.end
                && let Some(entry) = self.entries.get_mut(*number)
                && entry.holders > 0
            {
                entry.uses += 1;
                return Some(*number);
            }
        }
        None
    }

    /// A use has ended.
    pub(super) fn end_lease(&mut self, number: u32) {
        if let Some(entry) = self.entries.get_mut(number) {
            entry.uses -= 1;
            if entry.holders == 0 && entry.uses == 0 {
                self.unused.push(number);
            }
        }
    }

    /// Memory of a registration, for requests of this side.
    pub(super) fn local(&self, number: u32, memory: Memory) -> Option<Local> {
        let entry = self.entries.get(number)?;
        let start = (memory.as_ptr().addr() - entry.pages.start) as u64;
        Some(entry.region.local(start..start + memory.len() as u64))
    }

    /// Memory of a registration, for a WRITE of the peer's.
    pub(super) fn remote(&self, number: u32, memory: Memory) -> Option<Remote> {
        let entry = self.entries.get(number)?;
        let start = memory.as_ptr().addr() - entry.pages.start;
        Some(entry.region.remote(start as u64))
    }

    /// Ends the registrations that nobody holds or uses any more.
    pub(super) fn settle(&mut self, device: &mut dyn Device) {
        while let Some(number) = self.unused.pop() {
            let Some(entry) = self.entries.remove(number) else {
                continue;
            };
            if let Err(error) = device.deregister(&entry.region) {
                tracing::warn!("memory stays registered: {error}");
            }
            self.bytes -= entry.pages.len();
            self.index.retain(|(_, other)| *other != number);
        }
    }

    fn find_exact(&self, pages: &Range<usize>) -> Option<usize> {
        self.index
            .binary_search_by_key(&order(pages), |(other, _)| order(other))
            .ok()
    }
}

const fn order(pages: &Range<usize>) -> (usize, usize) {
    (pages.start, pages.end)
}

fn addresses(memory: Memory) -> Range<usize> {
    let start = memory.as_ptr().addr();
    start..start + memory.len()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;
    use ringway_sys::Staging;

    use super::*;
    use crate::rdma::{SoftwareDevice, SoftwareOptions};

    const PAGE: usize = 4096;

    fn device() -> SoftwareDevice {
        let options = SoftwareOptions {
            ip: Ipv4Addr::LOCALHOST.into(),
            roce_port: false,
        };
        SoftwareDevice::open(&options).unwrap()
    }

    #[test]
    fn tensors_of_the_same_pages_share_a_registration() {
        let (mut device, staging) = (device(), Staging::new(2 * PAGE));
        let part = |range| staging.memory().slice(range);
        let mut all = Registrations::new(PAGE);
        assert!(all.hold(&mut device, part(0..10)).unwrap());
        assert!(!all.hold(&mut device, part(100..PAGE)).unwrap());
        assert_eq!(all.total(), (PAGE, 1));
        let refused = all.hold(&mut device, part(PAGE..PAGE + 1)).unwrap_err();
        assert!(matches!(
            refused,
            RegisterError::Limit { bytes: PAGE, wanted, limit: PAGE } if wanted == 2 * PAGE
        ));
        all.give_up(&mut device, part(0..10));
        let number = all.lease(part(0..10)).unwrap();
        let region = all.entries.get(number).unwrap().region;
        all.give_up(&mut device, part(100..PAGE));
        // A message is under way: the registration lasts, and no other message uses it.
        assert_eq!((all.total().1, all.lease(part(0..10))), (1, None));
        all.end_lease(number);
        all.settle(&mut device);
        assert_eq!(all.total(), (0, 0));
        assert!(device.deregister(&region).is_err(), "it stayed registered");
    }

    proptest! {
        #[test]
        fn a_message_finds_what_is_held_and_nothing_else(
            steps in proptest::collection::vec((any::<bool>(), 0..8_usize, 1..8_usize), 1..40),
            wanted in proptest::collection::vec((0..9 * PAGE, 1..3 * PAGE), 10),
        ) {
            let (mut device, staging) = (device(), Staging::new(16 * PAGE));
            let pages = |&(start, count): &(usize, usize)| {
                staging.memory().slice(start * PAGE..(start + count) * PAGE)
            };
            let mut all = Registrations::new(usize::MAX);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (hold, start, count) in steps {
                if hold || held.is_empty() {
                    all.hold(&mut device, pages(&(start, count))).unwrap();
                    held.push((start, count));
                } else {
                    let range = held.swap_remove(start % held.len());
                    all.give_up(&mut device, pages(&range));
                }
                let mut ranges = held.clone();
                ranges.sort_unstable();
                ranges.dedup();
                prop_assert_eq!(all.total().1, ranges.len());
                for &(start, len) in &wanted {
                    let end = start + len;
                    let covers = |&(first, count): &(usize, usize)| {
                        first * PAGE <= start && end <= (first + count) * PAGE
                    };
                    let found = all.lease(staging.memory().slice(start..end));
                    prop_assert_eq!(found.is_some(), held.iter().any(covers));
                    if let Some(number) = found {
                        let local = all.local(number, staging.memory().slice(start..end)).unwrap();
                        let address = staging.memory().as_ptr().addr() + start;
                        prop_assert_eq!((local.address, local.length), (address as u64, len as u32));
                        all.end_lease(number);
                    }
                }
            }
        }
    }
}
