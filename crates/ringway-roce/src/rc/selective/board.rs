//! The requester's side: what is known of each packet under way.

use std::collections::VecDeque;

use super::{Held, SPAN};
use crate::Psn;

/// All packets from the oldest that isn't acknowledged to the last that was sent.
///
/// Each time that something is sent it gets the next number. If a packet is there, all that was sent before it and isn't
/// there is lost: on a path that keeps order, and on others a packet too many goes.
#[derive(Debug)]
pub(in crate::rc) struct Board {
    /// The PSN of the first entry.
    first: Psn,
    entries: VecDeque<Entry>,
    /// How many entries are lost.
    lost: usize,
    /// The number of the next packet. Numbers go round; those on the board lie close together.
    next: u32,
    /// The number of the latest packet that is known to be there.
    latest: u32,
    /// What the last report named as missing, if the responder kept nothing after it.
    unkept: Option<Psn>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Which it was when it was last sent.
    number: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sent,
    /// The responder has it, and may wait for others before it.
    There,
    /// It is to be sent again.
    Lost,
}

const fn is_before(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}

impl Board {
    pub(in crate::rc) fn new(first: Psn) -> Self {
        Self {
            first,
            // A window, and a READ that goes beyond it.
            entries: VecDeque::with_capacity(2 * SPAN.get() as usize),
            lost: 0,
            next: 1,
            latest: 0,
            unkept: None,
        }
    }

    /// So many more packets go out, as one: a READ's question takes the numbers of all its answers.
    pub(in crate::rc) fn sent(&mut self, packets: u32) {
        let entry = Entry {
            number: self.take_number(),
            state: State::Sent,
        };
        self.entries
            .extend(std::iter::repeat_n(entry, packets as usize));
    }

    /// The packets from `psn` on go out again, as one.
    pub(in crate::rc) fn sent_again(&mut self, psn: Psn, packets: u32) {
        let number = self.take_number();
        let at = psn.since(self.first).max(0) as usize;
        for entry in self.entries.iter_mut().skip(at).take(packets as usize) {
            if entry.state == State::Lost {
                self.lost -= 1;
            }
            *entry = Entry {
                number,
                state: State::Sent,
            };
        }
    }

    /// The first packet that is to be sent again.
    pub(in crate::rc) fn first_lost(&self) -> Option<Psn> {
        if self.lost == 0 {
            return None;
        }
        let is_lost = |entry: &Entry| entry.state == State::Lost;
        let at = self.entries.iter().position(is_lost)?;
        Some(self.first.plus(at as u32))
    }

    /// Everything before `psn` is there. What is to go again still does: it may be an answer that is missing.
    pub(in crate::rc) fn there_before(&mut self, psn: Psn) {
        self.unkept = self.unkept.filter(|unkept| !unkept.is_before(psn));
        let count = psn.since(self.first).max(0) as usize;
        let mut latest = None;
        for entry in self.entries.iter_mut().take(count) {
            // Of several the last: if one of a lower number follows, the first was sent again for nothing, as the responder was
            // slow, and what it has said isn't of the repetition.
            if entry.state == State::Sent {
                latest = Some(entry.number);
                entry.state = State::There;
            }
        }
        self.note_latest(latest);
    }

    /// Packets after `psn`, which is missing, are there.
    pub(in crate::rc) fn there_after(&mut self, psn: Psn, held: Held) {
        self.unkept = None;
        let start = psn.since(self.first);
        for bit in held.bits() {
            let at = usize::try_from(start + 1 + bit as i32).ok();
            let Some(at) = at.filter(|at| *at < self.entries.len()) else {
                continue;
            };
            let Entry { number, state } = self.entries[at];
            self.note_latest((state == State::Sent).then_some(number));
            // A READ's question is there with all its numbers.
            let as_one = |entry: &&mut Entry| entry.number == number;
            for entry in self.entries.range_mut(at..).take_while(as_one) {
                if entry.state == State::Lost {
                    self.lost -= 1;
                }
                entry.state = State::There;
            }
        }
    }

    /// What was sent before the latest packet that is there is lost. Returns whether that is news.
    pub(in crate::rc) fn find_lost(&mut self) -> bool {
        let before = self.lost;
        for entry in &mut self.entries {
            if entry.state == State::Sent && is_before(entry.number, self.latest) {
                entry.state = State::Lost;
                self.lost += 1;
            }
        }
        self.lost > before
    }

    /// The first packet goes again, whatever is known of it.
    pub(in crate::rc) fn lose_first(&mut self) {
        if let Some(entry) = self.entries.front_mut()
            && entry.state != State::Lost
        {
            entry.state = State::Lost;
            self.lost += 1;
        }
    }

    /// The responder misses `psn`, and keeps nothing after it: that one goes again, and when it is there, so does what was sent before.
    /// Not twice, as each packet after it is answered like this.
    pub(in crate::rc) fn lose_unkept(&mut self, psn: Psn) {
        self.unkept = Some(psn);
        let Some(at) = self.place(psn) else {
            return;
        };
        // All of a READ's have one number.
        let number = self.entries[at].number;
        let mut after = self.entries.range(at..).map(|entry| entry.number);
        let next = after.find(|other| *other != number);
        if next.is_some_and(|next| is_before(number, next)) {
            self.repeat_unkept();
        }
    }

    /// What the responder misses, keeping nothing after it, goes again.
    fn repeat_unkept(&mut self) {
        let at = self.unkept.and_then(|psn| self.place(psn));
        if let Some(at) = at
            && self.entries[at].state == State::Sent
        {
            self.entries[at].state = State::Lost;
            self.lost += 1;
        }
    }

    /// A question is answered with `psn`, which unlike an acknowledgement says nothing of what follows. But if the responder had missed
    /// the question and kept nothing after it, all that was sent before it is lost.
    pub(in crate::rc) fn answered(&mut self, psn: Psn) {
        let number = |psn| self.place(psn).map(|at| self.entries[at].number);
        let answered = number(psn);
        if answered.is_some() && answered == self.unkept.and_then(number) {
            self.note_latest(answered);
            self.find_lost();
        }
    }

    /// The packet that went last goes again, if the responder doesn't have it: its arrival will show what else is lost. But if none is kept
    /// it shows nothing, and the one that is missing may be lost again: that one goes, too.
    pub(in crate::rc) fn lose_latest(&mut self) {
        self.repeat_unkept();
        let mut latest: Option<&mut Entry> = None;
        for entry in &mut self.entries {
            // Of a READ's, the first.
            if entry.state == State::Sent
                && latest
                    .as_ref()
                    .is_none_or(|it| is_before(it.number, entry.number))
            {
                latest = Some(entry);
            }
        }
        if let Some(latest) = latest {
            latest.state = State::Lost;
            self.lost += 1;
        }
    }

    /// Everything before `psn` is done with.
    pub(in crate::rc) fn forget_before(&mut self, psn: Psn) {
        while self.first.is_before(psn) {
            self.first = self.first.plus(1);
            if let Some(entry) = self.entries.pop_front()
                && entry.state == State::Lost
            {
                self.lost -= 1;
            }
        }
    }

    /// Which entry a packet has, if it is under way.
    fn place(&self, psn: Psn) -> Option<usize> {
        let at = usize::try_from(psn.since(self.first)).ok()?;
        (at < self.entries.len()).then_some(at)
    }

    const fn take_number(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    fn note_latest(&mut self, number: Option<u32>) {
        if let Some(number) = number
            && is_before(self.latest, number)
        {
            self.latest = number;
        }
    }
}
