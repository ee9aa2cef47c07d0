//! Why there is no outcome.

/// Why a simulation came to no end, or could not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A scenario that the level knows nothing of.
    #[error(
        "links that change and traffic of others mean nothing to a network without shared links; choose the level `flow`"
    )]
    Level,
    /// More ranks than the fabric has places for.
    #[error(
        "{ranks} ranks for each of {hosts} hosts; {host} has {gpus} GPUs: choose {gpus} ranks for each host at most"
    )]
    Gpus {
        /// For each host.
        ranks: usize,
        /// How many.
        hosts: usize,
        /// The first that has fewer.
        host: String,
        /// How many it has.
        gpus: usize,
    },
    /// A program that starts or waits for what it cannot.
    #[error(
        "act {at} of a program of {operations} operations: expected each to be started once, and waited for only after that"
    )]
    Program {
        /// Which act.
        at: usize,
        /// How many operations there are.
        operations: usize,
    },
    /// A schedule for another number of ranks.
    #[error(
        "a schedule of {schedule} ranks for a world of {world}; make it for the world's topology"
    )]
    Ranks {
        /// Of the schedule.
        schedule: usize,
        /// Of the world.
        world: usize,
    },
    /// Nothing will ever happen again, and ranks are not done.
    #[error(
        "the operation stands still at {at}: rank {rank} is {what}; links that are down without a way around, or pauses that wait for each other, stop it: bring links up, cut less, or let packets be lost"
    )]
    Stalled {
        /// When.
        at: String,
        /// The first that waits.
        rank: usize,
        /// For what.
        what: String,
    },
    /// Two hosts between which there is no path.
    #[error("there is no path from {from} to {to}; `ringway fabric check` says what is missing")]
    Unreachable {
        /// The sender's host.
        from: String,
        /// The receiver's host.
        to: String,
    },
    /// No such host in an order of hosts.
    #[error(
        "there is no host {host} in a fabric of {hosts}; hosts are counted from 0, each at most once"
    )]
    NoHost {
        /// Its number.
        host: usize,
        /// How many there are.
        hosts: usize,
    },
    /// A figure of the level of packets that cannot be.
    #[error("the {what} is {found}; expected {expected}")]
    Setting {
        /// Which.
        what: &'static str,
        /// What was given.
        found: String,
        /// What could be.
        expected: String,
    },
    /// A switch whose links may send more, until they pause, than its buffer holds.
    #[error(
        "{node} has {links} links, and {buffer} bytes of buffer for XOFF at {xoff} each and {headroom} of headroom (what comes until a link pauses): lossless needs {needed} bytes; make the buffer larger, XOFF lower, or let packets be lost"
    )]
    Buffer {
        /// The switch.
        node: String,
        /// How many it has.
        links: usize,
        /// The threshold, in bytes.
        xoff: u64,
        /// Of all links, in bytes.
        headroom: u64,
        /// In bytes.
        buffer: u64,
        /// In bytes.
        needed: u64,
    },
    /// A connection whose packets were not answered, again and again.
    #[error(
        "the connection from {from} to {to} broke at {at}: {status}; its packets are lost or stand still behind links that are down or paused: bring links up, make `--reroute` shorter, buffers larger, or the network lossless"
    )]
    Connection {
        /// When.
        at: String,
        /// The sender's host.
        from: String,
        /// The receiver's host.
        to: String,
        /// What the sender was told.
        status: String,
    },
}
