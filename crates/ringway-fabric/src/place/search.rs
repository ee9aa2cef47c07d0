//! The search among orders of hosts.

use super::{Load, Placed, distances::Distances, pattern::Pattern};

/// An order and what it makes of every link, kept up to date by differences.
pub(super) struct State<'a, 'd, 'f> {
    pattern: &'a Pattern,
    distances: &'d mut Distances<'f>,
    order: Vec<usize>,
    /// By link: the part of the vector that it carries, in seconds for each byte.
    busy: Vec<f64>,
    hops: f64,
    /// Loads that were changed, and links that were looked at.
    work: u64,
    /// Flows that a change touches: a scratch list, and for each flow whether it is in there.
    touched: Vec<usize>,
    marked: Vec<bool>,
}

impl<'a, 'd, 'f> State<'a, 'd, 'f> {
    pub(super) fn new(
        pattern: &'a Pattern,
        distances: &'d mut Distances<'f>,
        order: Vec<usize>,
    ) -> Self {
        let mut state = Self {
            pattern,
            busy: vec![0.0; distances.seconds().len()],
            distances,
            order,
            hops: 0.0,
            work: 0,
            touched: Vec::new(),
            marked: vec![false; pattern.flows().len()],
        };
        for flow in 0..pattern.flows().len() {
            state.add(flow, 1.0);
        }
        state
    }

    pub(super) const fn distances(&mut self) -> &mut Distances<'f> {
        self.distances
    }

    /// Adds a flow `sign` times.
    fn add(&mut self, flow: usize, sign: f64) {
        let (from, to, part) = self.pattern.flows()[flow];
        let (from, to) = (self.order[from], self.order[to]);
        let way = self.distances.way(from, to);
        for &(link, share) in &way.links {
            let link = link as usize;
            self.busy[link] += sign * part * share * self.distances.seconds()[link];
        }
        self.hops += sign * way.hops;
        self.work += 1 + way.links.len() as u64;
    }

    fn load(&mut self) -> Load {
        self.work += self.busy.len() as u64 / 8;
        let (mut busiest, mut most) = (0, 0.0);
        for (link, &busy) in self.busy.iter().enumerate() {
            if busy > most {
                (busiest, most) = (link, busy);
            }
        }
        Load {
            seconds_per_byte: most,
            busiest,
            mean_hops: self.hops / self.pattern.flows().len().max(1) as f64,
        }
    }

    pub(super) fn placed(&mut self) -> Placed {
        Placed {
            order: self.order.clone(),
            load: self.load(),
        }
    }

    /// Gives the places from `first` on the hosts `hosts`, which were there in another order.
    fn rearrange(&mut self, first: usize, hosts: &[usize]) {
        let pattern = self.pattern;
        let changed = (first..first + hosts.len()).zip(hosts);
        for (place, _) in changed.filter(|&(place, &host)| self.order[place] != host) {
            for &flow in pattern.of(place) {
                if !std::mem::replace(&mut self.marked[flow], true) {
                    self.touched.push(flow);
                }
            }
        }
        let touched = std::mem::take(&mut self.touched);
        for &flow in &touched {
            self.add(flow, -1.0);
        }
        self.order[first..first + hosts.len()].copy_from_slice(hosts);
        for &flow in &touched {
            self.add(flow, 1.0);
            self.marked[flow] = false;
        }
        self.touched = touched;
        self.touched.clear();
    }
}

/// The best of all orders.
pub(super) fn all(state: &mut State<'_, '_, '_>) -> Placed {
    let n = state.order.len();
    let mut best = state.placed();
    // Heap's algorithm (1963): each order by one exchange from the one before.
    let mut counters = vec![0; n];
    let mut i = 1;
    while i < n {
        if counters[i] < i {
            let j = if i % 2 == 0 { 0 } else { counters[i] };
            exchange(state, j.min(i), j.max(i));
            let load = state.load();
            if load.better_than(&best.load) {
                best = state.placed();
            }
            counters[i] += 1;
            i = 1;
        } else {
            counters[i] = 0;
            i += 1;
        }
    }
    // From scratch: thousands of differences have left their rounding.
    State::new(state.pattern, state.distances, best.order).placed()
}

fn exchange(state: &mut State<'_, '_, '_>, one: usize, other: usize) {
    let mut hosts = state.order[one..=other].to_vec();
    let last = hosts.len() - 1;
    hosts.swap(0, last);
    state.rearrange(one, &hosts);
}

/// Improves the order move by move until no move improves it or the work is done; says how many moves that took, and
/// whether none was left.
pub(super) fn improve(state: &mut State<'_, '_, '_>, work: u64) -> (u64, bool) {
    /// The longest run that is moved as a whole (Or-opt).
    const RUN: usize = 3;
    let n = state.order.len();
    let mut best = state.load();
    let mut moves = 0;
    let mut hosts = Vec::with_capacity(n);
    loop {
        let before = moves;
        for first in 0..n {
            for last in first + 1..n {
                let range = first..last + 1;
                let length = range.len();
                // Exchange, reversal, and a run from either end to the other.
                let kinds = 2 + 2 * RUN.min(length - 1);
                for kind in 0..kinds {
                    if state.work > work {
                        return (moves, false);
                    }
                    hosts.clear();
                    hosts.extend_from_slice(&state.order[range.clone()]);
                    match kind {
                        0 => hosts.swap(0, length - 1),
                        1 if length < 4 => continue,
                        1 => hosts.reverse(),
                        k if k % 2 == 0 => hosts.rotate_left(k / 2),
                        k => hosts.rotate_right(k / 2),
                    }
                    let old = state.order[range.clone()].to_vec();
                    state.rearrange(first, &hosts);
                    let load = state.load();
                    if load.better_than(&best) {
                        best = load;
                        moves += 1;
                    } else {
                        state.rearrange(first, &old);
                    }
                }
            }
        }
        if moves == before {
            return (moves, true);
        }
    }
}
