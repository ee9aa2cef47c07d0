//! Actions in their order, and who touches each cell when.

use super::{
    action::{Action, Loc},
    cells::Cells,
};

/// One access of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Touch {
    /// Which action: its place in the order.
    at: usize,
    write: bool,
}

/// All actions of a schedule, `None` where one was merged into another. Merging keeps the touches up to date.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) cells: Cells,
    pub(super) actions: Vec<Option<Action>>,
    /// Of each cell, ascending.
    touches: Vec<Vec<Touch>>,
}

impl Flow {
    pub(super) fn new(cells: Cells, actions: Vec<Action>) -> Self {
        let touches = vec![Vec::new(); cells.total()];
        let count = actions.len();
        let mut flow = Self {
            cells,
            actions: vec![None; count],
            touches,
        };
        for (at, action) in actions.into_iter().enumerate() {
            flow.put(at, action);
        }
        flow
    }

    /// The action at a place that holds one.
    pub(super) fn get(&self, at: usize) -> &Action {
        match self.actions.get(at) {
            Some(Some(action)) => action,
            _ => unreachable!("place {at} holds an action: touches name only such"),
        }
    }

    /// Takes an action out.
    pub(super) fn take(&mut self, at: usize) -> Action {
        let Some(action) = self.actions[at].take() else {
            unreachable!("place {at} holds an action: touches name only such")
        };
        for &loc in action.sources.iter().chain(&action.destinations) {
            self.touches[self.cells.of(loc)].retain(|touch| touch.at != at);
        }
        action
    }

    /// Puts an action in an empty place.
    pub(super) fn put(&mut self, at: usize, action: Action) {
        for (loc, write) in action
            .sources
            .iter()
            .map(|&loc| (loc, false))
            .chain(action.destinations.iter().map(|&loc| (loc, true)))
        {
            let touch = Touch { at, write };
            let touches = &mut self.touches[self.cells.of(loc)];
            let place = touches.partition_point(|other| *other < touch);
            if touches.get(place) != Some(&touch) {
                touches.insert(place, touch);
            }
        }
        self.actions[at] = Some(action);
    }

    fn touches(&self, loc: Loc) -> &[Touch] {
        &self.touches[self.cells.of(loc)]
    }

    /// The action that wrote `loc` last before `at`, if it wrote that very place and not one that may be the same
    /// memory.
    pub(super) fn writer(&self, loc: Loc, at: usize) -> Option<usize> {
        let writer = self
            .touches(loc)
            .iter()
            .rev()
            .find(|t| t.at < at && t.write)?
            .at;
        self.get(writer)
            .destinations
            .contains(&loc)
            .then_some(writer)
    }

    /// Whether any action after `from` and before `to` writes the cell.
    pub(super) fn written_between(&self, loc: Loc, from: usize, to: usize) -> bool {
        self.touches(loc)
            .iter()
            .any(|t| t.write && t.at > from && t.at < to)
    }

    /// Whether any action after `from` and before `to` reads or writes the cell.
    pub(super) fn touched_between(&self, loc: Loc, from: usize, to: usize) -> bool {
        self.touches(loc).iter().any(|t| t.at > from && t.at < to)
    }

    /// Whether an action after `at` reads what the cell holds then.
    pub(super) fn read_after(&self, loc: Loc, at: usize) -> bool {
        // A read sorts before the write of the same action, so the first touch decides.
        self.touches(loc)
            .iter()
            .find(|t| t.at > at)
            .is_some_and(|t| !t.write)
    }

    /// The actions after `at` that read the cell, up to the next that writes it.
    pub(super) fn readers(&self, loc: Loc, at: usize) -> impl Iterator<Item = usize> {
        let after = self.touches(loc).iter().filter(move |t| t.at > at);
        after.take_while(|t| !t.write).map(|t| t.at)
    }
}
