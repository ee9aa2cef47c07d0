//! The interface between ranks and a modelled network.

use ringway_fabric::Routes;
use ringway_plan::Rank;

use crate::{
    error::SimError,
    packet::PacketReport,
    time::{Moment, Time},
};

/// A message that may leave now: both sides have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Names it in its [`Passage`].
    pub id: u32,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Messages of a pair of the same stream stay in order and share a path.
    pub stream: u32,
    /// May be zero.
    pub bytes: u64,
    /// Now, and what led here.
    pub since: Moment,
}

/// What becomes of a message: it arrives, and its sender's memory is free. Both are told once, in this order, at the latest
/// when they happen; the arrival may be told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Its last byte is there, or will be.
    Arrives {
        /// Its [`Message::id`].
        id: u32,
        /// When its first byte left.
        begun: Moment,
        /// When its last byte is there.
        at: Moment,
    },
    /// The sender's memory may be used again.
    Free {
        /// Its [`Message::id`].
        id: u32,
        /// Now: when its last byte has left, or is known to be there.
        at: Moment,
    },
}

/// A network in virtual time: no IO, no clock. The driver hands messages over and changes links, always at times that do
/// not go back; when it has done all that happens at a time, it asks for the [`Network::next`], and goes there.
///
/// Implementations differ in fidelity, not in what they are told.
pub trait Network {
    /// Takes over a message, at `message.since.at`.
    fn send(&mut self, message: Message);

    /// The time at which something happens next, unless something changes before; `None` if nothing will.
    fn next(&mut self) -> Option<Time>;

    /// What has become of a message by `now`; call until there is none.
    fn poll(&mut self, now: Time) -> Option<Passage>;

    /// The share of its rate that each link has from now on ([`ringway_fabric::Link`] by number): 0 is down.
    fn set_link(&mut self, now: Time, link: usize, share: f64);

    /// Switches have learned of links that went down or came up: from now on flows go by these routes.
    fn reroute(&mut self, now: Time, routes: Routes);

    /// Bytes that each direction of each link has carried for the ranks so far, by [`ringway_fabric::Hop::index`].
    fn carried(&self) -> &[f64];

    /// Why it carries no more, if it does not.
    fn failure(&self) -> Option<SimError> {
        None
    }

    /// Whether the ranks' messages stand still until a link changes, though traffic of others goes on.
    fn stands_still(&mut self) -> bool {
        false
    }

    /// What packets did, if it has packets.
    fn report(&self) -> Option<PacketReport> {
        None
    }
}
