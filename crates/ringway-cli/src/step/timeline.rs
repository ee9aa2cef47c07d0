//! When a step's gradients are there, which of them go together, and when the next step needs them.

use std::{ops::Range, time::Duration};

use super::model::Layer;

/// A layer in time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    pub(super) forward: Duration,
    pub(super) backward: Duration,
    /// Operations that forward needs the result of here, by number.
    pub(super) needs: Vec<usize>,
    /// Operations that may begin when backward has been here.
    pub(super) starts: Vec<usize>,
}

/// Gradients that are reduced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// Elements of the vector of all gradients, which are in the order in which backward makes them.
    pub(super) elements: Range<usize>,
    /// Higher for what the next forward needs earlier.
    pub(super) priority: u8,
}

/// A step.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    /// In the order of forward.
    pub(super) slots: Vec<Slot>,
    /// In the order in which they may begin.
    pub(super) operations: Vec<Operation>,
    /// Of all gradients.
    pub(super) elements: usize,
}

/// When gradients that wait for others are sent: published bounds, row C4.
const WINDOW: Duration = Duration::from_millis(10);
const LEAST_BYTES: usize = 1_000_000;
const MOST_BYTES: usize = 10_000_000;

impl Timeline {
    /// Of these layers, in `compute` of which backward has two thirds. Each gradient by itself, or batches: after 10 ms if
    /// there is 1 MB, at 10 MB at the latest.
    pub(super) fn new(layers: &[Layer], compute: Duration, batched: bool) -> Self {
        let work: f64 = layers.iter().map(|layer| layer.work).sum();
        let share = |layer: &Layer, part: f64| compute.mul_f64(part * layer.work / work.max(1.0));
        let mut slots: Vec<Slot> = layers
            .iter()
            .map(|layer| Slot {
                forward: share(layer, 1.0 / 3.0),
                backward: share(layer, 2.0 / 3.0),
                needs: Vec::new(),
                starts: Vec::new(),
            })
            .collect();
        let mut operations = Vec::new();
        let (mut at, mut begun) = (0, 0);
        let mut members: Vec<usize> = Vec::new();
        let mut waited = Duration::ZERO;
        for (number, layer) in layers.iter().enumerate().rev() {
            // What is there waits while this layer is computed.
            waited += slots[number].backward;
            if layer.elements > 0 {
                if members.is_empty() {
                    waited = Duration::ZERO;
                }
                members.push(number);
                at += layer.elements;
            }
            let bytes = 4 * (at - begun);
            let is_full = !batched
                || bytes >= MOST_BYTES
                || bytes >= LEAST_BYTES && waited >= WINDOW
                || number == 0;
            // The last that came is the first that forward needs.
            if let Some(&first) = members.last().filter(|_| is_full) {
                slots[number].starts.push(operations.len());
                slots[first].needs.push(operations.len());
                operations.push(Operation {
                    elements: begun..at,
                    priority: (255 * (layers.len() - first) / layers.len()) as u8,
                });
                members.clear();
                begun = at;
            }
        }
        Self {
            slots,
            operations,
            elements: at,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layers(sizes: &[(usize, u32)]) -> Vec<Layer> {
        let layer = |&(elements, work): &(usize, u32)| Layer {
            name: String::new(),
            elements,
            work: work.into(),
        };
        sizes.iter().map(layer).collect()
    }

    proptest! {
        /// Every gradient is in one operation, which begins when the last of its gradients is there, and is waited for where
        /// forward needs the first.
        #[test]
        fn every_gradient_is_reduced_once(
            sizes in prop::collection::vec((0_usize..2_000_000, 0_u32..100), 1..40),
            batched: bool,
        ) {
            let timeline = Timeline::new(&layers(&sizes), Duration::from_millis(50), batched);
            let total: usize = sizes.iter().map(|s| s.0).sum();
            prop_assert_eq!(timeline.elements, total);
            let mut end = 0;
            for operation in &timeline.operations {
                prop_assert_eq!(operation.elements.start, end);
                end = operation.elements.end;
                if batched && operation.elements.len() * 4 > MOST_BYTES {
                    let longest = sizes.iter().map(|s| s.0).max().unwrap_or(0);
                    prop_assert!(operation.elements.len() < MOST_BYTES / 4 + longest);
                }
            }
            prop_assert_eq!(end, total);
            let started: Vec<usize> =
                timeline.slots.iter().rev().flat_map(|s| s.starts.clone()).collect();
            prop_assert_eq!(started, (0..timeline.operations.len()).collect::<Vec<_>>());
            for (number, slot) in timeline.slots.iter().enumerate() {
                for operation in &slot.needs {
                    let start = timeline.slots.iter().position(|s| s.starts.contains(operation));
                    prop_assert!(start.is_some_and(|start| start <= number));
                    prop_assert!(sizes[number].0 > 0);
                }
            }
            let waited: usize = timeline.slots.iter().map(|s| s.needs.len()).sum();
            prop_assert_eq!(waited, timeline.operations.len());
        }
    }

    #[test]
    fn many_small_gradients_become_few_operations() {
        let small = layers(&[(4096, 1); 1000]);
        let compute = Duration::from_millis(300);
        assert_eq!(Timeline::new(&small, compute, false).operations.len(), 1000);
        let batches = Timeline::new(&small, compute, true).operations.len();
        assert!((10..=20).contains(&batches), "{batches}");
        let forward: Duration = Timeline::new(&small, compute, true)
            .slots
            .iter()
            .map(|s| s.forward)
            .sum();
        assert!(forward.abs_diff(compute / 3) < Duration::from_micros(1));
    }
}
