//! Merges actions. Every merge leaves each place with the same bytes whenever someone reads it.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::{
    action::{Action, Loc, Place},
    cells::Cells,
    flow::Flow,
    program::Mode,
    staging,
};
use crate::schedule::Collective;

/// Merges what can be merged.
pub(super) fn fuse(cells: Cells, actions: Vec<Action>, collective: Collective, mode: Mode) -> Flow {
    let mut flow = Flow::new(cells, actions);
    read_from_origin(&mut flow);
    drop_unread(&mut flow);
    if mode == Mode::Staged {
        flow = staging::publish(flow);
    }
    let unchained = flow.clone();
    chain(&mut flow);
    if collective.reduces() && !same_bits(&flow) {
        // Some ranks that compute the same element would round at other places.
        flow = unchained;
    }
    copy_along(&mut flow, mode);
    if mode == Mode::Staged {
        staging::answer_in_place(&mut flow);
    }
    flow
}

/// What a rank only passes on is read from where it came from.
fn read_from_origin(flow: &mut Flow) {
    for at in 0..flow.actions.len() {
        let Some(action) = &flow.actions[at] else {
            continue;
        };
        let rank = action.rank;
        let origins: Vec<Loc> = action
            .sources
            .iter()
            .map(|&source| match origin(flow, source, at) {
                Some(origin) if source.rank != rank => origin,
                _ => source,
            })
            .collect();
        if origins != action.sources {
            let mut action = flow.take(at);
            action.sources = origins;
            flow.put(at, action);
        }
    }
}

/// Where the bytes at `loc` were copied from, if they are still there at `at`.
fn origin(flow: &Flow, loc: Loc, at: usize) -> Option<Loc> {
    let writer = flow.writer(loc, at)?;
    let copy = flow.get(writer);
    let &[origin] = copy.sources.as_slice() else {
        return None;
    };
    (copy.is_copy() && !flow.written_between(origin, writer, at)).then_some(origin)
}

/// Scratch that nobody reads need not be written.
fn drop_unread(flow: &mut Flow) {
    for at in (0..flow.actions.len()).rev() {
        let Some(action) = &flow.actions[at] else {
            continue;
        };
        let unread = action
            .destinations
            .iter()
            .all(|&loc| matches!(loc.place, Place::Scratch(_)) && !flow.read_after(loc, at));
        if unread {
            flow.take(at);
        }
    }
}

/// An intermediate result that only one action uses is computed there.
fn chain(flow: &mut Flow) {
    for at in 0..flow.actions.len() {
        while let Some(Action { sources, .. }) = &flow.actions[at] {
            let Some((index, earlier)) =
                (0..sources.len()).find_map(|index| Some((index, chainable(flow, at, index)?)))
            else {
                break;
            };
            let inner = flow.take(earlier);
            let mut outer = flow.take(at);
            outer.sources.splice(index..=index, inner.sources);
            flow.put(at, outer);
        }
    }
}

/// The action whose result source `index` of the one at `at` is, if it can be computed there.
fn chainable(flow: &Flow, at: usize, index: usize) -> Option<usize> {
    let action = flow.get(at);
    let source = action.sources[index];
    let earlier = flow.writer(source, at)?;
    let inner = flow.get(earlier);
    // Reductions fold from the left: a reduction can only become the start of another.
    let folds = inner.is_copy() || (index == 0 && !inner.completes);
    // The place must not be needed for its own sake.
    let overwritten = action.destinations.contains(&source);
    let scratch = matches!(source.place, Place::Scratch(_)) && !flow.read_after(source, at);
    let only_use = inner.rank == action.rank
        && inner.destinations.as_slice() == [source]
        && action
            .sources
            .iter()
            .filter(|&&other| other == source)
            .count()
            == 1
        && (overwritten || scratch)
        && !flow.touched_between(source, earlier, at);
    // Its sources must be the same later.
    let unchanged = inner
        .sources
        .iter()
        .all(|&loc| !flow.written_between(loc, earlier, at));
    (folds && only_use && unchanged).then_some(earlier)
}

/// Copies of a result become destinations of the action that computes it: on its own rank, and where memory is
/// mapped on others too, provided that all ranks then have about as much to write.
fn copy_along(flow: &mut Flow, mode: Mode) {
    let mut pushed = vec![0usize; flow.cells.ranks()];
    let mut pushes = Vec::new();
    for at in 0..flow.actions.len() {
        let Some(earlier) = source_of_copy(flow, at) else {
            continue;
        };
        let (from, to) = (flow.get(earlier).rank, flow.get(at).rank);
        if from == to {
            push(flow, earlier, at);
        } else if mode == Mode::Arena && outputs_only(flow.get(at)) {
            pushed[from] += 1;
            pushes.push(at);
        }
    }
    let (most, all) = (
        pushed.iter().max().copied().unwrap_or(0),
        pushed.iter().sum::<usize>(),
    );
    if most * pushed.len() <= 2 * all {
        for at in pushes {
            if let Some(earlier) = source_of_copy(flow, at) {
                push(flow, earlier, at);
            }
        }
    }
}

fn outputs_only(action: &Action) -> bool {
    action
        .destinations
        .iter()
        .all(|loc| matches!(loc.place, Place::Output(_)))
}

/// The reduction whose result the action at `at` copies, if it can store there itself.
fn source_of_copy(flow: &Flow, at: usize) -> Option<usize> {
    let copy = flow.actions[at].as_ref()?;
    let &[source] = copy.sources.as_slice() else {
        return None;
    };
    let earlier = flow.writer(source, at)?;
    let free = copy
        .destinations
        .iter()
        .all(|&loc| !flow.touched_between(loc, earlier, at));
    (copy.is_copy() && !flow.get(earlier).is_copy() && free).then_some(earlier)
}

fn push(flow: &mut Flow, earlier: usize, at: usize) {
    let copy = flow.take(at);
    let mut action = flow.take(earlier);
    action.destinations.extend(copy.destinations);
    flow.put(earlier, action);
}

/// Whether ranks that end with the same chunk reduce it by the same calls: then it has the same bits everywhere, even
/// where each call rounds once.
fn same_bits(flow: &Flow) -> bool {
    let hash = |value: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        value(&mut hasher);
        hasher.finish()
    };
    let mut values: HashMap<Loc, u64> = HashMap::new();
    for action in flow.actions.iter().flatten() {
        let sources: Vec<u64> = action
            .sources
            .iter()
            .map(|loc| {
                values
                    .get(loc)
                    .copied()
                    .unwrap_or_else(|| hash(&|h| loc.hash(h)))
            })
            .collect();
        let value = match *sources.as_slice() {
            [value] if action.is_copy() => value,
            _ => hash(&|h| (&sources, action.completes).hash(h)),
        };
        values.extend(action.destinations.iter().map(|&loc| (loc, value)));
    }
    let mut chunks: HashMap<usize, u64> = HashMap::new();
    values
        .iter()
        .filter(|(loc, _)| matches!(loc.place, Place::Output(_)))
        .all(|(loc, &value)| *chunks.entry(flow.cells.vector(*loc)).or_insert(value) == value)
}
