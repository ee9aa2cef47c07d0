//! By what all-reduces of the whole job were seen to differ from predictions.

use ringway_plan::{Algorithm, Collective};

/// Thousandths of its predicted time that each algorithm, by its place in [`Algorithm::ALL`], takes for an all-reduce of all
/// ranks: of a short and of a long vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    pub(crate) bytes: [u64; 2],
    pub(crate) thousandths: [[u64; Algorithm::ALL.len()]; 2],
}

impl Tuning {
    /// What predictions are to be multiplied by, in thousandths. Between the two vectors it changes with the logarithm of the
    /// size, to powers of two, in whole numbers: it must be the same on all ranks.
    pub(crate) fn thousandths(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        bytes: usize,
    ) -> u64 {
        if collective != Collective::AllReduce {
            return 1000;
        }
        let class = |bytes: u64| u64::from(bytes.max(1).ilog2());
        let [low, high] = self.bytes.map(class);
        let at = class(bytes as u64).clamp(low, high.max(low)) - low;
        let [short, long] = self.thousandths.map(|t| t[algorithm.place()]);
        match high.saturating_sub(low) {
            0 => long,
            all => (short * (all - at) + long * at) / all,
        }
    }
}

/// Thousandths of their predicted time that algorithms took for all-reduces of all ranks which were as long as the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    /// Bytes of the vector: their logarithm.
    class: u32,
    /// By the place in [`Algorithm::ALL`].
    thousandths: [Option<u64>; Algorithm::ALL.len()],
}

impl Tried {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            class: bytes.max(1).ilog2(),
            thousandths: [None; Algorithm::ALL.len()],
        }
    }

    /// Whether it says something of such operations.
    pub(crate) fn covers(&self, collective: Collective, bytes: usize) -> bool {
        collective == Collective::AllReduce && self.class == bytes.max(1).ilog2()
    }

    /// None of an algorithm that was not tried.
    pub(crate) const fn of(&self, algorithm: Algorithm) -> Option<u64> {
        self.thousandths[algorithm.place()]
    }

    pub(crate) const fn set(&mut self, algorithm: Algorithm, thousandths: u64) {
        self.thousandths[algorithm.place()] = Some(thousandths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_the_sizes_it_changes_with_the_logarithm() {
        let mut tuning = Tuning {
            bytes: [16 << 10, 1 << 20],
            thousandths: [[1000; Algorithm::ALL.len()]; 2],
        };
        let place = Algorithm::Ring.place();
        tuning.thousandths[0][place] = 400;
        tuning.thousandths[1][place] = 1000;
        let of = |bytes| tuning.thousandths(Collective::AllReduce, Algorithm::Ring, bytes);
        let sizes = [0, 16 << 10, 32 << 10, 128 << 10, 1 << 20, 1 << 30];
        assert_eq!(sizes.map(of), [400, 400, 500, 700, 1000, 1000]);
        let other = tuning.thousandths(Collective::AllGather, Algorithm::Ring, 0);
        assert_eq!(other, 1000);
    }
}
