//! What the cost model predicts, and how far it was off.

use std::{collections::HashMap, time::Duration};

use ringway_plan::{Algorithm, Collective, Cost, DataType};

/// An algorithm that does a collective, and how long the cost model says that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// As what elements go from host to host, if not as they are: the setting `wire_between_hosts`.
    pub wire: Option<DataType>,
    /// On what the slowest rank spends its time.
    pub cost: Cost,
    /// By how much the busiest link between hosts takes longer, if the fabric is known.
    pub contention: Duration,
    /// What both are multiplied by, in thousandths: such as was measured at start of all-reduces of all ranks, else 1000.
    pub thousandths: u64,
}

impl Candidate {
    /// All of it.
    pub fn total(&self) -> Duration {
        let nanos = (self.cost.total + self.contention).as_nanos() * u128::from(self.thousandths);
        Duration::from_nanos(u64::try_from(nanos / 1000).unwrap_or(u64::MAX))
    }
}

/// Operations over messages that this rank has ended, of one algorithm and one class of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// What they did.
    pub collective: Collective,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// Bytes of the vector: from this to less than twice of it.
    pub from_bytes: usize,
    /// How many.
    pub times: u32,
    /// What the cost model said, on average.
    pub predicted: Duration,
    /// From the call to the end, on average.
    pub measured: Duration,
    /// The quickest, by its prediction: measured thousandths of it.
    pub least_thousandths: u64,
}

type Class = (Collective, Algorithm, u32);

#[derive(Default)]
struct Sums {
    times: u32,
    predicted: Duration,
    measured: Duration,
    least_thousandths: u64,
    /// Of the size that came last, which mostly comes again.
    last: (usize, Duration),
}

/// Predictions beside what came of them.
#[derive(Default)]
pub(super) struct Past(HashMap<Class, Sums>);

const fn class(bytes: usize) -> u32 {
    match bytes {
        0 => 0,
        _ => bytes.ilog2(),
    }
}

impl Past {
    /// What was predicted for this before, if it was the last of its class.
    pub(super) fn entry(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        bytes: usize,
    ) -> Option<Duration> {
        let sums = self.0.get(&(collective, algorithm, class(bytes)))?;
        (sums.last.0 == bytes).then_some(sums.last.1)
    }

    pub(super) fn note(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
        bytes: usize,
        predicted: Duration,
        measured: Duration,
    ) {
        let sums = self
            .0
            .entry((collective, algorithm, class(bytes)))
            .or_default();
        let thousandths = measured.as_nanos() * 1000 / predicted.as_nanos().max(1);
        let thousandths = u64::try_from(thousandths).unwrap_or(u64::MAX);
        sums.least_thousandths = match sums.times {
            0 => thousandths,
            _ => sums.least_thousandths.min(thousandths),
        };
        sums.times = sums.times.saturating_add(1);
        sums.predicted = sums.predicted.saturating_add(predicted);
        sums.measured = sums.measured.saturating_add(measured);
        sums.last = (bytes, predicted);
    }

    pub(super) fn predictions(&self) -> Vec<Prediction> {
        let prediction = |(&(collective, algorithm, class), sums): (&Class, &Sums)| Prediction {
            collective,
            algorithm,
            from_bytes: 1 << class,
            times: sums.times,
            predicted: sums.predicted / sums.times.max(1),
            measured: sums.measured / sums.times.max(1),
            least_thousandths: sums.least_thousandths,
        };
        let mut predictions: Vec<Prediction> = self.0.iter().map(prediction).collect();
        predictions.sort_by_key(|r| (r.collective.name(), r.from_bytes, r.algorithm));
        predictions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two_and_means_are_of_all() {
        let mut past = Past::default();
        let micros = Duration::from_micros;
        let (collective, ring) = (Collective::AllReduce, Algorithm::Ring);
        for (bytes, measured) in [(1024, 30), (2047, 90), (2048, 7)] {
            past.note(collective, ring, bytes, micros(20), micros(measured));
        }
        assert_eq!(past.entry(collective, ring, 2047), Some(micros(20)));
        assert_eq!(past.entry(collective, ring, 1024), None);
        assert_eq!(past.entry(collective, Algorithm::Tree, 2047), None);
        let predictions = past.predictions();
        let found: Vec<_> = predictions
            .iter()
            .map(|r| (r.from_bytes, r.times, r.measured, r.least_thousandths))
            .collect();
        assert_eq!(
            found,
            [(1024, 2, micros(60), 1500), (2048, 1, micros(7), 350)]
        );
    }
}
