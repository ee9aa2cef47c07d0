//! What happens when.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::time::Time;

/// Something that happens. At the same time, events happen in the order of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A hop has sent its packet.
    Free(u32),
    /// The far end of a hop lets it go on.
    Resume(u32),
    /// The far end of a hop lets it pause.
    Pause(u32),
    /// A packet is at the far end of its hop.
    Arrive(u32),
    /// A clock of a connection runs out.
    Wake(u32),
    /// Traffic of others has a message more to send.
    More(u32),
}

impl Event {
    const fn parts(self) -> (u64, u32) {
        match self {
            Self::Free(hop) => (0, hop),
            Self::Resume(hop) => (1, hop),
            Self::Pause(hop) => (2, hop),
            Self::Arrive(packet) => (3, packet),
            Self::Wake(connection) => (4, connection),
            Self::More(background) => (5, background),
        }
    }

    const fn of(kind: u64, index: u32) -> Self {
        match kind {
            0 => Self::Free(index),
            1 => Self::Resume(index),
            2 => Self::Pause(index),
            3 => Self::Arrive(index),
            4 => Self::Wake(index),
            _ => Self::More(index),
        }
    }
}

/// Events to come. Those of a kind at the same time come in an order that is another at each time, always the same in
/// each run: with that of their numbers, of senders in step the same would always be the first, and the others' packets lost.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(Time, u64)>>,
    /// How many events have happened.
    pub(super) happened: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, at: Time, event: Event) {
        let (kind, index) = event.parts();
        let mixed = (at.0 ^ u64::from(index) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        let code = kind << 52 | mixed << 32 | u64::from(index);
        self.heap.push(Reverse((at, code)));
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|next| next.0.0)
    }

    /// The next event, if it happens by `now`.
    pub(super) fn pop(&mut self, now: Time) -> Option<(Time, Event)> {
        if self.next()? > now {
            return None;
        }
        let Reverse((at, code)) = self.heap.pop()?;
        self.happened += 1;
        Some((at, Event::of(code >> 52, code as u32)))
    }
}
