//! One deadline for each of many queue pairs, and the earliest of all at hand.
//!
//! A deadline moves with every acknowledgement, nearly always to a later time. So one that moves later stays where it
//! is and goes off early once, for nothing; only one that moves to an earlier time costs work.

use std::time::Instant;

/// A binary heap with the place of each member, so that a member has one entry and its entry can be moved.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<(Instant, u32)>,
    /// Of each member, one more than its place in the heap; 0 if it has none.
    places: Vec<u32>,
}

impl Timers {
    /// Has `member` go off at `deadline` or before.
    pub(super) fn set(&mut self, member: u32, deadline: Instant) {
        let index = member as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        match self.places[index].checked_sub(1) {
            Some(place) if self.heap[place as usize].0 <= deadline => {}
            Some(place) => {
                self.heap[place as usize].0 = deadline;
                self.up(place as usize);
            }
            None => {
                self.heap.push((deadline, member));
                self.up(self.heap.len() - 1);
            }
        }
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|&(deadline, _)| deadline)
    }

    /// Takes out a member whose time has come.
    pub(super) fn pop(&mut self, now: Instant) -> Option<u32> {
        let &(deadline, member) = self.heap.first()?;
        if deadline > now {
            return None;
        }
        self.remove(member);
        Some(member)
    }

    /// Takes out a member.
    pub(super) fn remove(&mut self, member: u32) {
        let Some(place) = self
            .places
            .get_mut(member as usize)
            .and_then(|place| std::mem::take(place).checked_sub(1))
        else {
            return;
        };
        let place = place as usize;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.up(place);
            self.down(place);
        }
    }

    fn up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].0 <= self.heap[place].0 {
                break;
            }
            self.heap.swap(parent, place);
            self.note(place);
            place = parent;
        }
        self.note(place);
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(child) = children.min_by_key(|&child| self.heap[child].0) else {
                break;
            };
            if self.heap[place].0 <= self.heap[child].0 {
                break;
            }
            self.heap.swap(place, child);
            self.note(place);
            place = child;
        }
        self.note(place);
    }

    fn note(&mut self, place: usize) {
        let member = self.heap[place].1;
        self.places[member as usize] = place as u32 + 1;
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn a_deadline_that_moves_later_goes_off_early_once() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut timers = Timers::default();
        timers.set(3, at(10));
        timers.set(3, at(20));
        assert_eq!((timers.next(), timers.pop(at(9))), (Some(at(10)), None));
        assert_eq!(timers.pop(at(10)), Some(3));
        assert_eq!((timers.next(), timers.pop(at(99))), (None, None));
    }

    proptest! {
        #[test]
        fn the_earliest_comes_first(steps in vec((0..5_u8, 0..12_u32, 0..50_u64), 1..200)) {
            let start = Instant::now();
            let at = |millis| start + Duration::from_millis(millis);
            let (mut timers, mut model) = (Timers::default(), BTreeMap::new());
            for (step, member, millis) in steps {
                match step {
                    0 => {
                        timers.remove(member);
                        model.remove(&member);
                    }
                    1 => {
                        let popped = timers.pop(at(millis));
                        let first = model.values().min().copied();
                        prop_assert_eq!(popped.is_some(), first.is_some_and(|first| first <= at(millis)));
                        if let Some(popped) = popped {
                            prop_assert_eq!(model.remove(&popped), first);
                        }
                    }
                    _ => {
                        timers.set(member, at(millis));
                        let deadline = model.entry(member).or_insert_with(|| at(millis));
                        *deadline = at(millis).min(*deadline);
                    }
                }
                prop_assert_eq!(timers.next(), model.values().min().copied());
            }
        }
    }
}
