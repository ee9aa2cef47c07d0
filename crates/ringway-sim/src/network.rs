//! The interface between ranks and a modelled network.

use ringway_fabric::Routes;
use ringway_plan::Rank;

use crate::time::{Moment, Time};

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

/// A message that has left its sender, with its fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Its [`Message::id`].
    pub id: u32,
    /// When its first byte left.
    pub begun: Moment,
    /// When its last byte left: the sender's memory may be reused.
    pub left: Moment,
    /// When its last byte is there.
    pub arrives: Moment,
}

/// A network in virtual time: no IO, no clock. The driver hands messages over and changes links, always at times that do
/// not go back; when it has done all that happens at a time, it asks for the [`Network::next`], and goes there.
///
/// Implementations differ in fidelity, not in what they are told.
pub trait Network {
    /// Takes over a message, at `message.since.at`.
    fn send(&mut self, message: Message);

    /// The time at which the next message will have left, unless something changes before; `None` if none will.
    fn next(&mut self) -> Option<Time>;

    /// A message that has left by `now`; call until there is none.
    fn poll(&mut self, now: Time) -> Option<Passage>;

    /// The share of its rate that each link has from now on ([`ringway_fabric::Link`] by number): 0 is down.
    fn set_link(&mut self, now: Time, link: usize, share: f64);

    /// Switches have learned of links that went down or came up: from now on flows go by these routes.
    fn reroute(&mut self, now: Time, routes: Routes);

    /// Bytes that each direction of each link has carried for the ranks so far, by [`ringway_fabric::Hop::index`].
    fn carried(&self) -> &[f64];
}
