//! What a step does to memory, chunk by chunk.

use super::order::{Ordered, chunks};
use crate::{
    schedule::{Op, Order, Rank, Space},
    verify::Verified,
};

/// A chunk of a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Place {
    Input(usize),
    Output(usize),
    Scratch(usize),
    /// A slot of staging, written by one action only.
    Slot(usize),
}

impl Place {
    pub(super) const fn of(space: Space, chunk: usize) -> Self {
        match space {
            Space::Input => Self::Input(chunk),
            Space::Output => Self::Output(chunk),
            Space::Scratch => Self::Scratch(chunk),
        }
    }
}

/// A place of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Loc {
    pub(super) rank: Rank,
    pub(super) place: Place,
}

/// Loads every source, reduces them in order, stores to every destination; of one source, copies.
#[derive(Clone, Debug)]
pub(super) struct Action {
    pub(super) rank: Rank,
    pub(super) sources: Vec<Loc>,
    pub(super) destinations: Vec<Loc>,
    /// Whether the result holds every rank's contribution: an average divides.
    pub(super) completes: bool,
}

impl Action {
    /// Whether it changes nothing about the bytes.
    pub(super) const fn is_copy(&self) -> bool {
        self.sources.len() == 1 && !self.completes
    }
}

/// The actions of all steps, in order. Signals vanish: what they order conflicts in memory, and is ordered by that.
pub(super) fn lower(schedule: &Verified, order: &[Ordered]) -> Vec<Action> {
    let mut actions = Vec::with_capacity(order.len());
    for step in order {
        let rank = step.rank;
        let completes = schedule.completes(rank, step.at);
        let own = |span| chunks(rank, span).collect::<Vec<_>>();
        let sent = |peer| {
            step.sent
                .map_or_else(Vec::new, |span| chunks(peer, span).collect())
        };
        let (operands, dst) = match step.op {
            Op::Copy { src, dst } => (vec![own(src)], dst),
            Op::Recv { peer, dst } => (vec![sent(peer)], dst),
            Op::RecvReduce {
                peer,
                own: mine,
                dst,
                order: Order::LocalFirst,
            } => (vec![own(mine), sent(peer)], dst),
            Op::RecvReduce {
                peer,
                own: mine,
                dst,
                order: Order::RemoteFirst,
            } => (vec![sent(peer), own(mine)], dst),
            Op::Reduce { a, b, dst } => (vec![own(a), own(b)], dst),
            Op::Send { .. } => continue,
        };
        for (i, destination) in chunks(rank, dst).enumerate() {
            actions.push(Action {
                rank,
                sources: operands.iter().filter_map(|o| o.get(i).copied()).collect(),
                destinations: vec![destination],
                completes,
            });
        }
    }
    actions
}
