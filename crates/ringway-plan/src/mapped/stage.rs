//! From ordered actions to a rank's steps: who waits for whom, and in which round.

use std::collections::HashMap;

use super::{
    action::{Action, Loc, Place},
    cells::Cells,
    program::{MappedProgram, MappedStep, Mode, Wait},
    staging::Staged,
};
use crate::schedule::Rank;

/// An action as the others see it.
#[derive(Clone, Debug, Default)]
struct Node {
    stage: u32,
    /// Earlier actions, of any rank, that must be done first.
    after: Vec<usize>,
    /// Others' actions that read a slot which this one writes.
    readers: Vec<usize>,
    /// Whether another rank waits for it.
    awaited: bool,
    /// Whether another rank waits for it before writing a slot anew.
    reused: bool,
    point: u32,
}

/// The program of `rank`.
pub(super) fn program(staged: &Staged, cells: &Cells, rank: Rank, mode: Mode) -> MappedProgram {
    let actions = &staged.actions;
    let mut nodes = depend(actions, cells);
    let ring = slot_lifetimes(actions, &mut nodes);
    let last = last_uses(actions, &mut nodes, mode, cells.ranks());
    let bodies = number(actions, &mut nodes, cells.ranks());
    let points: Vec<u32> = bodies
        .iter()
        .map(|body| body.iter().map(|&at| nodes[at].point).max().unwrap_or(0))
        .collect();
    let wait = |at: usize| {
        let rank = actions[at].rank;
        Wait {
            rank,
            stage: nodes[at].stage,
            point: nodes[at].point,
            points: points[rank],
        }
    };
    let steps = bodies[rank]
        .iter()
        .map(|&at| MappedStep {
            stage: nodes[at].stage,
            waits: latest(nodes[at].after.iter().map(|&on| wait(on)), rank),
            reuse: latest(nodes[at].readers.iter().map(|&on| wait(on)), rank),
            sources: actions[at].sources.iter().map(|&loc| loc.into()).collect(),
            destinations: actions[at]
                .destinations
                .iter()
                .map(|&loc| loc.into())
                .collect(),
            completes: actions[at].completes,
            point: (nodes[at].awaited || nodes[at].reused).then_some(nodes[at].point),
            only_reuse: !nodes[at].awaited,
        })
        .collect();
    MappedProgram {
        rank,
        mode,
        steps,
        points: points[rank],
        stages: nodes.iter().map(|node| node.stage + 1).max().unwrap_or(1),
        slots: staged.slots.iter().map(Vec::len).max().unwrap_or(0),
        slot_chunks: staged.slots.clone(),
        ring,
        last: latest(last[rank].iter().map(|&at| wait(at)), rank),
        shows_input_only: shows_input_only(actions),
        read_by_others: read_by_others(staged),
    }
}

/// Finds what each action comes after, and its stage.
fn depend(actions: &[Action], cells: &Cells) -> Vec<Node> {
    #[derive(Default)]
    struct Uses {
        writer: Option<usize>,
        readers: Vec<usize>,
    }
    let mut uses: HashMap<Loc, Uses> = HashMap::new();
    let mut nodes: Vec<Node> = vec![Node::default(); actions.len()];
    for (at, action) in actions.iter().enumerate() {
        // In place, a copy of a chunk to itself changes nothing; out of place, it does not touch the input. Either way
        // it is no access of the place's twin.
        let to_itself = action.is_copy()
            && action
                .destinations
                .iter()
                .all(|&loc| cells.twin(loc) == Some(action.sources[0]));
        let twin = |loc| cells.twin(loc).filter(|_| !to_itself);
        let mut after = Vec::new();
        for &loc in &action.sources {
            for its in [Some(loc), twin(loc)].into_iter().flatten() {
                after.extend(uses.get(&its).and_then(|its| its.writer));
            }
            uses.entry(loc).or_default().readers.push(at);
        }
        for &loc in &action.destinations {
            for its in [Some(loc), twin(loc)].into_iter().flatten() {
                let Some(its) = uses.get_mut(&its) else {
                    continue;
                };
                after.extend(its.writer);
                after.append(&mut its.readers);
            }
            uses.entry(loc).or_default().writer = Some(at);
        }
        after.sort_unstable();
        after.dedup();
        after.retain(|&on| on != at);
        let stage = |&on: &usize| nodes[on].stage + u32::from(actions[on].rank != action.rank);
        nodes[at].stage = after.iter().map(stage).max().unwrap_or(0);
        nodes[at].after = after;
    }
    for at in 0..actions.len() {
        for i in 0..nodes[at].after.len() {
            let on = nodes[at].after[i];
            nodes[on].awaited |= actions[on].rank != actions[at].rank;
        }
    }
    nodes
}

/// Finds who reads each slot; returns how many segments a slot must hold so that ranks can work on different ones.
fn slot_lifetimes(actions: &[Action], nodes: &mut [Node]) -> u32 {
    let slots = |locs: &[Loc]| {
        locs.iter()
            .copied()
            .filter(|l| matches!(l.place, Place::Slot(_)))
            .collect::<Vec<_>>()
    };
    let mut readers: HashMap<Loc, Vec<usize>> = HashMap::new();
    for (at, action) in actions.iter().enumerate() {
        for loc in slots(&action.sources) {
            readers.entry(loc).or_default().push(at);
        }
    }
    let mut ring = 1;
    for (at, action) in actions.iter().enumerate() {
        for loc in slots(&action.destinations) {
            for &reader in readers.get(&loc).into_iter().flatten() {
                // One more than the time from writing to reading, so that nobody waits for a reader at once.
                ring = ring.max(nodes[reader].stage.saturating_sub(nodes[at].stage) + 2);
                if actions[reader].rank != action.rank {
                    nodes[reader].reused = true;
                    nodes[at].readers.push(reader);
                }
            }
        }
    }
    ring
}

/// For each rank, the actions of others that are the last of theirs to touch its memory.
fn last_uses(actions: &[Action], nodes: &mut [Node], mode: Mode, ranks: usize) -> Vec<Vec<usize>> {
    let mut last: HashMap<(Rank, Rank), usize> = HashMap::new();
    if mode == Mode::Arena {
        for (at, action) in actions.iter().enumerate() {
            for loc in action.sources.iter().chain(&action.destinations) {
                if loc.rank != action.rank && !matches!(loc.place, Place::Slot(_)) {
                    let latest = last.entry((loc.rank, action.rank)).or_insert(at);
                    if nodes[*latest].stage <= nodes[at].stage {
                        *latest = at;
                    }
                }
            }
        }
    }
    let mut of = vec![Vec::new(); ranks];
    for ((owner, _), at) in last {
        nodes[at].awaited = true;
        of[owner].push(at);
    }
    of
}

/// Puts each rank's actions in the order of a round and numbers those that others wait for.
fn number(actions: &[Action], nodes: &mut [Node], ranks: usize) -> Vec<Vec<usize>> {
    let mut bodies = vec![Vec::new(); ranks];
    for (at, action) in actions.iter().enumerate() {
        bodies[action.rank].push(at);
    }
    for body in &mut bodies {
        body.sort_by_key(|&at| (std::cmp::Reverse(nodes[at].stage), at));
        // Publishing waits for nobody, so that one point behind all of it tells others as soon as several.
        let shows = |at: usize| {
            actions[at]
                .destinations
                .iter()
                .all(|loc| matches!(loc.place, Place::Slot(_)))
                && nodes[at].after.is_empty()
        };
        let published: Vec<usize> = body.iter().copied().filter(|&at| shows(at)).collect();
        let behind = published.iter().rposition(|&at| nodes[at].awaited);
        let mut point = 0;
        for &at in body.iter() {
            match published.iter().position(|&p| p == at) {
                Some(i) if behind.is_some_and(|b| i <= b) => nodes[at].point = point + 1,
                _ if nodes[at].awaited || nodes[at].reused => {
                    point += 1;
                    nodes[at].point = point;
                }
                _ => {}
            }
            if behind.is_some_and(|b| published[b] == at) {
                point += 1;
            }
        }
        for (i, &at) in published.iter().enumerate() {
            nodes[at].awaited = behind == Some(i);
        }
    }
    bodies
}

/// The latest point of each other rank.
fn latest(waits: impl Iterator<Item = Wait>, own: Rank) -> Vec<Wait> {
    let mut latest: Vec<Wait> = Vec::new();
    for wait in waits.filter(|wait| wait.rank != own) {
        match latest.iter_mut().find(|other| other.rank == wait.rank) {
            Some(other) if (other.stage, other.point) < (wait.stage, wait.point) => *other = wait,
            Some(_) => {}
            None => latest.push(wait),
        }
    }
    latest
}

fn read_by_others(staged: &Staged) -> bool {
    let mut read: Vec<Vec<bool>> = staged.slots.iter().map(|s| vec![false; s.len()]).collect();
    for action in &staged.actions {
        for source in &action.sources {
            let Place::Slot(slot) = source.place else {
                continue;
            };
            if source.rank == action.rank {
                return false;
            }
            read[source.rank][slot] = true;
        }
    }
    read.iter().flatten().all(|&read| read)
}

fn shows_input_only(actions: &[Action]) -> bool {
    let slot = |loc: &Loc| matches!(loc.place, Place::Slot(_));
    actions
        .iter()
        .filter(|action| action.destinations.iter().any(slot))
        .all(|action| {
            action.is_copy()
                && action.destinations.iter().all(slot)
                && action
                    .sources
                    .iter()
                    .all(|loc| loc.rank == action.rank && matches!(loc.place, Place::Input(_)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 0 has a slot, which the ranks `readers` read.
    fn slot_read_by(readers: &[Rank]) -> bool {
        let at = |rank, place| Loc { rank, place };
        let copy = |rank, from, to| Action {
            rank,
            sources: vec![from],
            destinations: vec![to],
            completes: false,
        };
        let slot = at(0, Place::Slot(0));
        let write = copy(0, at(0, Place::Input(0)), slot);
        let reads = readers
            .iter()
            .map(|&rank| copy(rank, slot, at(rank, Place::Output(0))));
        read_by_others(&Staged {
            actions: [write].into_iter().chain(reads).collect(),
            slots: vec![vec![0], vec![]],
        })
    }

    #[test]
    fn a_slot_that_its_rank_or_nobody_reads_is_not_read_by_others_only() {
        assert!(slot_read_by(&[1]));
        assert!(!slot_read_by(&[1, 0]));
        assert!(!slot_read_by(&[0]));
        assert!(!slot_read_by(&[]));
    }
}
