//! Max-min fair shares: no flow can have more without one that has no more having less (Bertsekas, Gallager, "Data
//! Networks", 2nd edition, section 6.5.2). What long-lived flows under a fair congestion control come to.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// A share that a resource could give, for a heap; of equals the resource of the lowest number.
#[derive(Clone, Copy, PartialEq)]
struct Offer {
    share: f64,
    resource: u32,
}

impl Eq for Offer {}

impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_share = self.share.total_cmp(&other.share);
        by_share.then(self.resource.cmp(&other.resource))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What a resource has left, and flows that have no rate yet.
#[derive(Clone, Copy, Default)]
struct Left {
    rate: f64,
    flows: u32,
}

/// Fills resources with flows, again and again, without allocating anew.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    left: Vec<Left>,
    heap: BinaryHeap<Reverse<Offer>>,
    /// By flow: whether it has its rate.
    frozen: Vec<bool>,
}

/// Lists of numbers, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Lists {
    all: Vec<u32>,
    ends: Vec<u32>,
}

impl Lists {
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.ends.clear();
    }

    /// Adds a list.
    pub(super) fn push(&mut self, list: impl Iterator<Item = u32>) {
        self.all.extend(list);
        self.ends.push(self.all.len() as u32);
    }

    fn of(&self, list: u32) -> &[u32] {
        let start = list.checked_sub(1).map_or(0, |at| self.ends[at as usize]);
        &self.all[start as usize..self.ends[list as usize] as usize]
    }
}

impl std::fmt::Debug for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} for {}", self.rate, self.flows)
    }
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {}", self.share, self.resource)
    }
}

impl Sharing {
    /// Progressive filling. `resources` are the rates of those in use, `flows` has the flows of each, and `paths` the resources
    /// of each flow, by these numbers. Sets `rates[f]`; flows without resources stay as they are.
    pub(super) fn fill(
        &mut self,
        resources: &[f64],
        flows: &Lists,
        paths: &Lists,
        rates: &mut [f64],
    ) {
        self.left.clear();
        self.heap.clear();
        self.frozen.clear();
        self.frozen.resize(rates.len(), false);
        for (i, &rate) in resources.iter().enumerate() {
            let flows = flows.of(i as u32).len() as u32;
            self.left.push(Left { rate, flows });
            if flows > 0 {
                self.heap.push(Reverse(Offer {
                    share: rate / f64::from(flows),
                    resource: i as u32,
                }));
            }
        }
        while let Some(Reverse(offer)) = self.heap.pop() {
            let left = self.left[offer.resource as usize];
            if left.flows == 0 {
                continue;
            }
            // Shares only grow as flows that are bound elsewhere leave; an offer of before comes back with its new share.
            let share = (left.rate / f64::from(left.flows)).max(0.0);
            if share > offer.share {
                self.heap.push(Reverse(Offer { share, ..offer }));
                continue;
            }
            for &flow in flows.of(offer.resource) {
                if std::mem::replace(&mut self.frozen[flow as usize], true) {
                    continue;
                }
                rates[flow as usize] = share;
                for &resource in paths.of(flow) {
                    let left = &mut self.left[resource as usize];
                    left.rate -= share;
                    left.flows -= 1;
                }
            }
        }
    }
}

/// The max-min fair rates of flows: `paths[f]` are the resources that flow f takes, each at most once, `capacity[r]` is what
/// resource r has. A flow without resources gets no rate: infinity.
///
/// # Panics
/// If a path names a resource that is not there.
pub fn max_min(capacity: &[f64], paths: &[Vec<u32>]) -> Vec<f64> {
    let mut flows: Vec<Vec<u32>> = vec![Vec::new(); capacity.len()];
    for (flow, path) in paths.iter().enumerate() {
        for &resource in path {
            flows[resource as usize].push(flow as u32);
        }
    }
    let lists = |of: &[Vec<u32>]| {
        let mut lists = Lists::default();
        of.iter().for_each(|list| lists.push(list.iter().copied()));
        lists
    };
    let mut rates = vec![f64::INFINITY; paths.len()];
    Sharing::default().fill(capacity, &lists(&flows), &lists(paths), &mut rates);
    rates
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hand_solved_cases() {
        // One flow over two links, and one over each of them: all have half of the narrower.
        assert_eq!(
            max_min(&[10.0, 10.0], &[vec![0, 1], vec![0], vec![1]]),
            [5.0, 5.0, 5.0]
        );
        // The wider link's own flow has what the long one leaves.
        assert_eq!(
            max_min(&[10.0, 30.0], &[vec![0, 1], vec![0], vec![1]]),
            [5.0, 5.0, 25.0]
        );
        // Bertsekas and Gallager's example, figure 6.10: five sessions over four links of 1.
        let paths = [vec![0, 1, 2], vec![0], vec![0], vec![1, 3], vec![3]];
        let rates = max_min(&[1.0; 4], &paths);
        let third = 1.0 / 3.0;
        for (rate, expected) in rates.iter().zip([third, third, third, 0.5, 0.5]) {
            assert!((rate - expected).abs() < 1e-12, "{rates:?}");
        }
        // A link that is down takes its flows with it, and leaves others alone.
        assert_eq!(max_min(&[0.0, 8.0], &[vec![0, 1], vec![1]]), [0.0, 8.0]);
        assert_eq!(max_min(&[4.0], &[vec![], vec![0]]), [f64::INFINITY, 4.0]);
    }

    /// By bisection instead of sorting: raise all rates together until a link is full, freeze its flows, go on.
    fn reference(capacity: &[f64], paths: &[Vec<u32>]) -> Vec<f64> {
        let mut rates = vec![0.0; paths.len()];
        let mut frozen: Vec<bool> = paths.iter().map(Vec::is_empty).collect();
        let used = |rates: &[f64], r: u32| -> f64 {
            let over = rates.iter().zip(paths).filter(|(_, p)| p.contains(&r));
            over.map(|(rate, _)| rate).sum()
        };
        while frozen.iter().any(|f| !f) {
            let fits = |rise: f64| {
                let raised: Vec<f64> = rates
                    .iter()
                    .zip(&frozen)
                    .map(|(r, &f)| if f { *r } else { r + rise })
                    .collect();
                let full = |r| used(&raised, r) > capacity[r as usize];
                (!(0..capacity.len() as u32).any(full)).then_some(raised)
            };
            let (mut low, mut high) = (0.0, 1e6);
            for _ in 0..100 {
                let middle = (low + high) / 2.0;
                if fits(middle).is_some() {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            rates = fits(low).unwrap();
            for (flow, path) in paths.iter().enumerate() {
                let full = |&r: &u32| used(&rates, r) > capacity[r as usize] - 1e-6;
                frozen[flow] = frozen[flow] || path.iter().any(full);
            }
        }
        rates
    }

    proptest! {
        #[test]
        fn as_by_bisection_and_no_link_above_its_rate(
            capacity in proptest::collection::vec(1.0..100.0_f64, 1..7),
            paths in proptest::collection::vec(proptest::collection::btree_set(0..7_u32, 1..5), 1..9),
        ) {
            let links = capacity.len() as u32;
            let paths: Vec<Vec<u32>> = paths
                .into_iter()
                .map(|p| {
                    let path: std::collections::BTreeSet<u32> = p.into_iter().map(|r| r % links).collect();
                    path.into_iter().collect()
                })
                .collect();
            let rates = max_min(&capacity, &paths);
            for (rate, expected) in rates.iter().zip(reference(&capacity, &paths)) {
                prop_assert!((rate - expected).abs() < 1e-4, "{rate} for {expected}");
            }
            for (r, capacity) in capacity.iter().enumerate() {
                let over = rates.iter().zip(&paths).filter(|(_, p)| p.contains(&(r as u32)));
                let used: f64 = over.map(|(rate, _)| rate).sum();
                prop_assert!(used <= capacity * (1.0 + 1e-9));
            }
        }
    }
}
