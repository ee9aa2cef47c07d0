//! The ring between one sender and one receiver: lock-free, in shared memory.
//!
//! A message is one descriptor. Its first word, stored last, carries the [`stamp`] of its position,
//! so that the cache line that the receiver watches is the one that brings the message. Of a sender
//! that was killed half-way there is no stamp, hence no message.
//!
//! Payloads that do not fit are elsewhere (a slot, or the sender's registered memory), and are the
//! receiver's until it gives back their *ticket*, in any order: it sets the ticket's bit in a word
//! that the sender collects.
//!
//! Neither side believes the other: positions, kinds and tickets that an honest peer cannot have
//! written are errors. Each word is read once, then judged, then used.

use super::{
    cells::Cells,
    descriptor::{self, Body, Descriptor, stamp},
    geometry::{
        DELIVERED, DESCRIPTORS, Geometry, REFERENCES, RETURNED_REFERENCES, RETURNED_SLOTS, REVOKED,
        TAKEN, WAITS,
    },
};

/// How many messages without a ticket a receiver may have to keep that it has not asked for.
const SHORTS: u64 = 256;

/// Tickets, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tickets {
    pub(super) slots: u64,
    pub(super) references: u64,
}

/// The right to a slot or to a piece of the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ticket {
    Reference(u8),
    Slot(u8),
}

/// The sender's side.
#[derive(Debug)]
pub(super) struct Producer<C> {
    cells: C,
    descriptors: u64,
    /// The position of the next descriptor.
    next: u64,
    /// How many messages without a ticket were sent.
    shorts: u64,
    /// What was last seen of the receiver's counts.
    taken: u64,
    delivered: u64,
    revoked: u64,
    waits: bool,
}

impl<C: Cells> Producer<C> {
    /// Starts a ring in cells that are all 0.
    pub(super) const fn new(cells: C, geometry: &Geometry) -> Self {
        let descriptors = geometry.descriptors() as u64;
        Self {
            cells,
            descriptors,
            next: 0,
            shorts: 0,
            taken: 0,
            delivered: 0,
            revoked: 0,
            waits: false,
        }
    }

    /// Whether there is room for a descriptor.
    pub(super) fn room(&mut self) -> Result<bool, String> {
        if self.next - self.taken < self.descriptors {
            return Ok(true);
        }
        // The receiver has read the lines that it counts before they are written anew.
        let taken = self.cells.load(TAKEN);
        if !(self.taken..=self.next).contains(&taken) {
            return Err(format!(
                "it has taken {taken} descriptors, expected {} to {}",
                self.taken, self.next
            ));
        }
        self.taken = taken;
        Ok(self.next - taken < self.descriptors)
    }

    /// Whether the receiver keeps so few messages without a ticket that another can be sent without
    /// being asked for.
    pub(super) fn room_for_short(&mut self) -> Result<bool, String> {
        if self.shorts - self.delivered < SHORTS {
            return Ok(true);
        }
        let delivered = self.cells.load(DELIVERED);
        if !(self.delivered..=self.shorts).contains(&delivered) {
            return Err(format!(
                "it has delivered {delivered} short messages, expected {} to {}",
                self.delivered, self.shorts
            ));
        }
        self.delivered = delivered;
        Ok(self.shorts - delivered < SHORTS)
    }

    /// Publishes a message. Only when there is [`Producer::room`].
    pub(super) fn publish(&mut self, descriptor: &Descriptor) {
        debug_assert!(
            self.next - self.taken < self.descriptors,
            "no room was checked for"
        );
        let [first, rest @ ..] = descriptor.encode(self.next);
        let line = line(self.next, self.descriptors);
        for (word, index) in rest.into_iter().zip(line + 1..) {
            self.cells.store(index, word);
        }
        // Whoever sees the stamp sees the rest, and the payload.
        self.cells.store(line, first);
        self.next += 1;
        self.shorts += u64::from(matches!(descriptor.body, Body::Inline(_)));
    }

    /// Takes the tickets that were given back; `out` says which can have been.
    pub(super) fn collect(&mut self, out: Tickets) -> Result<Tickets, String> {
        let take = |index: usize, out: u64| {
            if out == 0 || self.cells.load(index) == 0 {
                return Ok(0);
            }
            // The receiver has done with the payload before it is written anew.
            let bits = self.cells.take_bits(index);
            if bits & !out == 0 {
                Ok(bits)
            } else {
                Err(format!(
                    "it gave back tickets {bits:#x} where {out:#x} are out"
                ))
            }
        };
        let slots = take(RETURNED_SLOTS, out.slots)?;
        let references = take(RETURNED_REFERENCES, out.references)?;
        if self.revoked & references != 0 {
            self.revoked &= !references;
            self.cells.store(REVOKED, self.revoked);
        }
        Ok(Tickets { slots, references })
    }

    /// Declares that the memory of these references may change from now on, so that the receiver
    /// does not believe what it reads there.
    pub(super) fn revoke(&mut self, references: u64) {
        self.revoked |= references;
        self.cells.store(REVOKED, self.revoked);
        // Before any later store of the owner to that memory.
        self.cells.full_fence();
    }

    /// Says whether the receiver has to wake this rank when it gives something back.
    pub(super) fn set_waits(&mut self, waits: bool) {
        if self.waits != waits {
            self.waits = waits;
            self.cells.store(WAITS, waits.into());
        }
    }

    /// Whether the receiver has given something back that was not looked at yet.
    pub(super) fn has_news(&self, out: Tickets) -> bool {
        (out.slots != 0 && self.cells.load(RETURNED_SLOTS) != 0)
            || (out.references != 0 && self.cells.load(RETURNED_REFERENCES) != 0)
            || (self.next - self.taken >= self.descriptors && self.cells.load(TAKEN) != self.taken)
            || (self.shorts - self.delivered >= SHORTS
                && self.cells.load(DELIVERED) != self.delivered)
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Consumer<C> {
    cells: C,
    geometry: Geometry,
    /// The position of the next descriptor.
    next: u64,
    /// Messages without a ticket that are no longer kept.
    delivered: u64,
    /// What the sender was told of the two.
    told: (u64, u64),
    /// Tickets that came and were not given back.
    held: Tickets,
}

impl<C: Cells> Consumer<C> {
    pub(super) const fn new(cells: C, geometry: Geometry) -> Self {
        let held = Tickets {
            slots: 0,
            references: 0,
        };
        Self {
            cells,
            geometry,
            next: 0,
            delivered: 0,
            told: (0, 0),
            held,
        }
    }

    /// Whether a message has come.
    pub(super) fn ready(&self) -> bool {
        // A stamp that is neither the last lap's nor the one awaited counts too: to be looked at,
        // and refused.
        self.cells.load(self.line()) >> 32 != self.stale() >> 32
    }

    /// Takes the next message, if it has come. Its ticket must be given back.
    pub(super) fn take(&mut self) -> Result<Option<Descriptor>, String> {
        let line = self.line();
        let first = self.cells.load(line);
        let got = first >> 32 << 32;
        if got == self.stale() {
            return Ok(None);
        }
        if got != stamp(self.next) {
            return Err(format!(
                "descriptor {} is stamped {:#x}",
                self.next,
                got >> 32
            ));
        }
        let mut words = [first; descriptor::WORDS];
        for (word, index) in words[1..].iter_mut().zip(line + 1..) {
            *word = self.cells.load(index);
        }
        let descriptor = Descriptor::decode(&words)?;
        self.admit(&descriptor)?;
        self.next += 1;
        Ok(Some(descriptor))
    }

    /// Counts a message without a ticket that is no longer kept.
    pub(super) const fn count_delivered(&mut self) {
        self.delivered += 1;
    }

    /// Gives back a ticket that [`Consumer::take`] brought.
    pub(super) fn give_back(&mut self, ticket: Ticket) {
        let (index, bit) = match ticket {
            Ticket::Slot(t) => {
                self.held.slots &= !(1 << t);
                (RETURNED_SLOTS, 1 << t)
            }
            Ticket::Reference(t) => {
                self.held.references &= !(1 << t);
                (RETURNED_REFERENCES, 1 << t)
            }
        };
        self.cells.set_bits(index, bit);
    }

    /// Tells the sender the counts. Says whether they were news.
    pub(super) fn settle(&mut self) -> bool {
        let (taken, delivered) = self.told;
        if taken != self.next {
            self.cells.store(TAKEN, self.next);
        }
        if delivered != self.delivered {
            self.cells.store(DELIVERED, self.delivered);
        }
        self.told = (self.next, self.delivered);
        (taken, delivered) != self.told
    }

    /// The tickets not given back yet.
    pub(super) const fn held(&self) -> Tickets {
        self.held
    }

    /// Whether what was read of this reference's memory, before this call, may have been changed by
    /// its owner.
    pub(super) fn is_revoked(&self, reference: u8) -> bool {
        self.cells.load_fence();
        self.cells.load(REVOKED) >> reference & 1 == 1
    }

    /// After something was given back: whether the sender sleeps and waits for that.
    pub(super) fn sender_waits(&self) -> bool {
        self.cells.full_fence();
        self.cells.load(WAITS) != 0
    }

    /// Checks what comes with the message, and notes its ticket as held.
    fn admit(&mut self, descriptor: &Descriptor) -> Result<(), String> {
        let (held, ticket, limit) = match descriptor.body {
            Body::Announce | Body::Inline(_) | Body::Relieved | Body::Starved | Body::Waits => {
                return Ok(());
            }
            Body::Slot(ticket) => {
                let room = self.geometry.slot_bytes();
                if descriptor.len > room {
                    return Err(format!("{} bytes in a slot of {room}", descriptor.len));
                }
                (&mut self.held.slots, ticket, self.geometry.slots())
            }
            Body::Reference { ticket, .. } => (&mut self.held.references, ticket, REFERENCES),
        };
        if usize::from(ticket) >= limit {
            return Err(format!("ticket {ticket}, expected one below {limit}"));
        }
        if *held >> ticket & 1 == 1 {
            return Err(format!("ticket {ticket} came twice"));
        }
        *held |= 1 << ticket;
        Ok(())
    }

    const fn line(&self) -> usize {
        line(self.next, self.geometry.descriptors() as u64)
    }

    /// The stamp that the next line has while the next message has not come.
    const fn stale(&self) -> u64 {
        match self.next.checked_sub(self.geometry.descriptors() as u64) {
            Some(before) => stamp(before),
            None => 0,
        }
    }
}

/// The index of the first word of the line for this position.
const fn line(position: u64, descriptors: u64) -> usize {
    // `descriptors` is a power of two and at most 2^16, so the remainder fits.
    DESCRIPTORS + (position & (descriptors - 1)) as usize * descriptor::WORDS
}
