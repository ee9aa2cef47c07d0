//! Staging: shared memory of an operation's own, in slots of one chunk.

use std::collections::{BTreeMap, HashMap};

use super::{
    action::{Action, Loc, Place},
    flow::Flow,
};

/// For private memory: what others read is read from a slot. A result is written to one besides; input that nobody
/// has written is copied to one first. Scratch needs none, it is staging already.
pub(super) fn publish(flow: Flow) -> Flow {
    let mut cells = flow.cells.clone();
    let mut slots: HashMap<(Loc, Option<usize>), Loc> = HashMap::new();
    let mut copies = Vec::new();
    let mut more: HashMap<usize, Vec<Loc>> = HashMap::new();
    let mut sources: HashMap<(usize, usize), Loc> = HashMap::new();
    for (at, action) in flow.actions.iter().enumerate() {
        let Some(action) = action else { continue };
        for (index, &source) in action.sources.iter().enumerate() {
            if source.rank == action.rank || matches!(source.place, Place::Scratch(_)) {
                continue;
            }
            let writer = flow.writer(source, at);
            let slot = *slots.entry((source, writer)).or_insert_with(|| {
                let slot = cells.add_slot(source.rank, flow.cells.vector(source));
                match writer {
                    Some(writer) => more.entry(writer).or_default().push(slot),
                    None => copies.push(Action {
                        rank: source.rank,
                        sources: vec![source],
                        destinations: vec![slot],
                        completes: false,
                    }),
                }
                slot
            });
            sources.insert((at, index), slot);
        }
    }
    let rest = flow
        .actions
        .into_iter()
        .enumerate()
        .filter_map(|(at, action)| {
            let mut action = action?;
            for (index, source) in action.sources.iter_mut().enumerate() {
                *source = *sources.get(&(at, index)).unwrap_or(source);
            }
            action
                .destinations
                .extend(more.remove(&at).into_iter().flatten());
            Some(action)
        });
    let actions = copies.into_iter().chain(rest).collect();
    Flow::new(cells, actions)
}

/// A result that goes back to a rank whose contribution was read from a slot goes back in that slot, not in one more.
/// The memory then ends where it began, in the cache of the rank that writes it next: on x86 a third of the time.
pub(super) fn answer_in_place(flow: &mut Flow) {
    for at in 0..flow.actions.len() {
        let Some(action) = &flow.actions[at] else {
            continue;
        };
        let results = action.destinations.iter().copied();
        for result in results.filter(is_slot).collect::<Vec<_>>() {
            let readers: Vec<usize> = flow.readers(result, at).collect();
            let answers: Option<Vec<Loc>> = readers
                .iter()
                .map(|&reader| answer(flow, at, reader))
                .collect();
            let Some(answers) = answers.filter(|answers| !answers.is_empty()) else {
                continue;
            };
            for (reader, answer) in readers.into_iter().zip(&answers) {
                let mut action = flow.take(reader);
                action
                    .sources
                    .iter_mut()
                    .filter(|s| **s == result)
                    .for_each(|s| *s = *answer);
                flow.put(reader, action);
            }
            let mut action = flow.take(at);
            action.destinations.retain(|&loc| loc != result);
            for answer in answers {
                if !action.destinations.contains(&answer) {
                    action.destinations.push(answer);
                }
            }
            flow.put(at, action);
        }
    }
}

/// The slot of the rank of `reader` that only the action at `at` reads, of which it is a source.
fn answer(flow: &Flow, at: usize, reader: usize) -> Option<Loc> {
    let rank = flow.get(reader).rank;
    let action = flow.get(at);
    let slots = action
        .sources
        .iter()
        .copied()
        .filter(|loc| loc.rank == rank && is_slot(loc));
    let mut free = slots.filter(|&slot| {
        flow.writer(slot, at)
            .is_some_and(|writer| flow.readers(slot, writer).eq([at]))
    });
    free.next()
}

const fn is_slot(loc: &Loc) -> bool {
    matches!(loc.place, Place::Slot(_))
}

/// Actions in order, their scratch in slots too, and slots numbered without gaps.
pub(super) struct Staged {
    pub(super) actions: Vec<Action>,
    /// Of each rank: for each slot the vector's chunk whose size it has.
    pub(super) slots: Vec<Vec<usize>>,
}

/// Numbers the slots that are in use.
pub(super) fn number(flow: &Flow) -> Staged {
    let mut slots = vec![Vec::new(); flow.cells.ranks()];
    let mut numbers: BTreeMap<Loc, Loc> = BTreeMap::new();
    let mut actions: Vec<Action> = flow.actions.iter().flatten().cloned().collect();
    for action in &mut actions {
        for loc in action.sources.iter_mut().chain(&mut action.destinations) {
            if matches!(loc.place, Place::Input(_) | Place::Output(_)) {
                continue;
            }
            let its = &mut slots[loc.rank];
            *loc = *numbers.entry(*loc).or_insert_with(|| {
                its.push(flow.cells.vector(*loc));
                Loc {
                    rank: loc.rank,
                    place: Place::Slot(its.len() - 1),
                }
            });
        }
    }
    Staged { actions, slots }
}
