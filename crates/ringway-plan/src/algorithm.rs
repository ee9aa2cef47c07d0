//! The algorithms that generators know, and what each is for.

use std::{fmt, str::FromStr};

use crate::{
    data::{UnknownName, lookup},
    schedule::Collective,
};

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Each rank exchanges with every other at once: two rounds at most. For small groups.
    Direct,
    /// Two binary trees, each for half of the vector; who forwards in one is a leaf in the other.
    DoubleTree,
    /// Recursive halving and doubling (Rabenseifner): few rounds, and each byte only where it is needed.
    HalvingDoubling,
    /// Inside hosts, then between them by all members at once, then inside again.
    Hierarchical,
    /// Every rank gets all inputs and reduces them itself: one round. For small vectors.
    OneShot,
    /// Whole vectors between partners at distance 1, 2, 4 ...: the fewest rounds.
    RecursiveDoubling,
    /// Around a ring: the fewest bytes, and neighbours only.
    Ring,
    /// Rings along the rows and the columns of a grid, half of the vector rows first, half columns first.
    Torus,
    /// A binomial tree of hosts, and one of ranks in each host.
    Tree,
}

impl Algorithm {
    /// Every algorithm, for tests and help texts.
    pub const ALL: [Self; 9] = [
        Self::Direct,
        Self::DoubleTree,
        Self::HalvingDoubling,
        Self::Hierarchical,
        Self::OneShot,
        Self::RecursiveDoubling,
        Self::Ring,
        Self::Torus,
        Self::Tree,
    ];

    /// Where it is in [`Self::ALL`].
    pub const fn place(self) -> usize {
        self as usize
    }

    /// The name users write: `ring`, `double_tree` ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DoubleTree => "double_tree",
            Self::HalvingDoubling => "halving_doubling",
            Self::Hierarchical => "hierarchical",
            Self::OneShot => "one_shot",
            Self::RecursiveDoubling => "recursive_doubling",
            Self::Ring => "ring",
            Self::Torus => "torus",
            Self::Tree => "tree",
        }
    }

    /// Whether there is a generator for `collective`. Its root does not matter, nor does the number of ranks.
    pub const fn supports(self, collective: Collective) -> bool {
        use Collective::{
            AllGather, AllReduce, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
        };
        match self {
            Self::Direct => true,
            Self::DoubleTree => {
                matches!(collective, AllReduce | Broadcast { .. } | Reduce { .. })
            }
            Self::HalvingDoubling | Self::Hierarchical | Self::Ring => matches!(
                collective,
                AllGather | AllReduce | Broadcast { .. } | Reduce { .. } | ReduceScatter
            ),
            Self::OneShot => matches!(collective, AllReduce),
            Self::RecursiveDoubling => matches!(collective, AllGather | AllReduce | Barrier),
            Self::Torus => matches!(collective, AllGather | AllReduce | ReduceScatter),
            Self::Tree => matches!(
                collective,
                AllReduce
                    | Barrier
                    | Broadcast { .. }
                    | Gather { .. }
                    | Reduce { .. }
                    | Scatter { .. }
            ),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownName;

    /// Accepts `-` or nothing for `_`, and the names that other libraries use.
    fn from_str(s: &str) -> Result<Self, UnknownName> {
        const ALIASES: &[(&str, Algorithm)] = &[
            ("2d_torus", Algorithm::Torus),
            ("double_binary_tree", Algorithm::DoubleTree),
            ("rabenseifner", Algorithm::HalvingDoubling),
        ];
        lookup("algorithm", &Self::ALL, Self::name, ALIASES, s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_all() {
        assert_eq!(
            Algorithm::ALL.map(|a| Algorithm::ALL[a.place()]),
            Algorithm::ALL
        );
    }

    #[test]
    fn names_round_trip() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        assert_eq!("Double-Tree".parse(), Ok(Algorithm::DoubleTree));
        assert_eq!("doublebinarytree".parse(), Ok(Algorithm::DoubleTree));
        let error = "rung".parse::<Algorithm>().unwrap_err().to_string();
        assert!(
            error.contains("'rung'") && error.contains("ring"),
            "{error}"
        );
    }
}
