//! When a step's gradients are there, which of them go together, and when the next step needs them.

use std::{ops::Range, time::Duration};

use ringway::settings::Settings;

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

/// When gradients that wait for others are sent: the settings `batch_window`, `batch_min` and `batch_max`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batches {
    window: Duration,
    least: u64,
    most: u64,
}

impl Batches {
    pub(super) fn of(settings: &Settings) -> Self {
        let values = settings.values();
        Self {
            window: values.batch_window,
            least: values.batch_min,
            most: values.batch_max,
        }
    }
}

impl Timeline {
    /// Of these layers, in `compute` of which backward has two thirds. Each gradient by itself, or in batches: when the first
    /// has waited for the window if there are the least bytes, with the most bytes at the latest.
    pub(super) fn new(layers: &[Layer], compute: Duration, batches: Option<Batches>) -> Self {
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
            let bytes = 4 * (at - begun) as u64;
            let is_full = number == 0
                || batches.is_none_or(|batches| {
                    bytes >= batches.most || bytes >= batches.least && waited >= batches.window
                });
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

    fn batches() -> Batches {
        Batches::of(&Settings::default())
    }

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
            let batches = batched.then(batches);
            let timeline = Timeline::new(&layers(&sizes), Duration::from_millis(50), batches);
            let total: usize = sizes.iter().map(|s| s.0).sum();
            prop_assert_eq!(timeline.elements, total);
            let mut end = 0;
            for operation in &timeline.operations {
                prop_assert_eq!(operation.elements.start, end);
                end = operation.elements.end;
                if let Some(batches) = batches && operation.elements.len() as u64 * 4 > batches.most {
                    let longest = sizes.iter().map(|s| s.0).max().unwrap_or(0);
                    prop_assert!(operation.elements.len() < batches.most as usize / 4 + longest);
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
        assert_eq!(Timeline::new(&small, compute, None).operations.len(), 1000);
        let batched = Timeline::new(&small, compute, Some(batches()));
        let count = batched.operations.len();
        assert!((10..=20).contains(&count), "{count}");
        let forward: Duration = batched.slots.iter().map(|s| s.forward).sum();
        assert!(forward.abs_diff(compute / 3) < Duration::from_micros(1));
    }
}
