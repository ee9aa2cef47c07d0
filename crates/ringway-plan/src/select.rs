//! Which algorithm an operation takes: the user's choice by size, else the one that the cost model finds the
//! quickest.

use std::{fmt, str::FromStr};

use crate::{
    algorithm::Algorithm,
    cost::{Cost, Machine, estimate},
    data::UnknownName,
    generate::Topology,
    schedule::Collective,
};

/// An algorithm, and what there was to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The quickest.
    pub algorithm: Algorithm,
    /// Every algorithm that does the collective, with its estimated time, the quickest first.
    pub candidates: Vec<(Algorithm, Cost)>,
}

/// Chooses the algorithm for a vector of `bytes` among the hosts of `topology`. The same on all ranks: it depends on
/// nothing but its arguments, computes in whole numbers, and takes the first in alphabetical order of equals.
/// Takes a few microseconds and is worth keeping for each size.
pub fn choose(
    collective: Collective,
    bytes: usize,
    topology: &Topology,
    machine: &Machine,
) -> Choice {
    let time = |a| Some((a, estimate(collective, a, bytes, topology, machine)?));
    let mut candidates: Vec<_> = Algorithm::ALL.into_iter().filter_map(time).collect();
    candidates.sort_by_key(|&(algorithm, cost)| (cost, algorithm));
    // `Direct` does every collective, so there is a first.
    let algorithm = candidates
        .first()
        .map_or(Algorithm::Direct, |&(algorithm, _)| algorithm);
    Choice {
        algorithm,
        candidates,
    }
}

/// The user's choice of algorithms by size: `ring:0-64KiB;hierarchical:64KiB-max`, or one name for all sizes, or
/// `auto` for none. Ranges include both ends; a size that ends one range and begins another belongs to the
/// one it begins. With a collective before it, `broadcast=tree:0-1MiB`, an entry is for that one only, and goes before those for
/// all. Sizes outside all ranges are left to the selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Overrides {
    /// Ascending, and not overlapping but for their ends within a collective.
    ranges: Vec<Range>,
}

/// From, to, and by what; of one collective, by its name, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Range {
    only: Option<&'static str>,
    from: usize,
    to: usize,
    algorithm: Algorithm,
}

impl Overrides {
    /// The user's algorithm for `collective` on a vector of `bytes`; `None` if the selector is to choose,
    /// because the size is in no range, or because the algorithm named does not do the collective.
    pub fn algorithm(&self, collective: Collective, bytes: usize) -> Option<Algorithm> {
        let of = |only: Option<&str>| {
            let mut holding = self.ranges.iter().rev();
            holding.find(|r| r.only == only && (r.from..=r.to).contains(&bytes))
        };
        of(Some(collective.name()))
            .or_else(|| of(None))
            .map(|range| range.algorithm)
            .filter(|a| a.supports(collective))
    }
}

/// What is wrong with a choice of algorithms by size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOverrides {
    /// An entry of another shape.
    #[error(
        "algorithm choice '{entry}': expected NAME:FROM-TO such as ring:0-64KiB, or one NAME for all sizes; for one collective, \
         broadcast=NAME:FROM-TO"
    )]
    Entry {
        /// The entry.
        entry: String,
    },
    /// A name that is no algorithm's.
    #[error("algorithm choice '{entry}': {source}")]
    Name {
        /// The entry.
        entry: String,
        /// What was expected.
        source: UnknownName,
    },
    /// An algorithm that does not do the collective it is to do.
    #[error(
        "algorithm choice '{entry}': {algorithm} does not do {collective}; expected one of {able}"
    )]
    Unable {
        /// The entry.
        entry: String,
        /// The algorithm.
        algorithm: Algorithm,
        /// The collective.
        collective: Collective,
        /// The algorithms that do it.
        able: String,
    },
    /// Ranges that overlap.
    #[error(
        "algorithm choices '{first}' and '{second}' overlap; let one end where the other begins"
    )]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other.
        second: String,
    },
    /// A range that ends before it begins.
    #[error("algorithm choice '{entry}': the range ends before it begins; exchange its ends")]
    Reversed {
        /// The entry.
        entry: String,
    },
    /// Something that is no size.
    #[error(
        "algorithm choice '{entry}': '{size}' is no size; expected bytes such as 4096, 64KiB, 1MiB or max"
    )]
    Size {
        /// The entry.
        entry: String,
        /// What stood there.
        size: String,
    },
}

impl FromStr for Overrides {
    type Err = BadOverrides;

    fn from_str(s: &str) -> Result<Self, BadOverrides> {
        if s.trim().is_empty() || s.trim() == "auto" {
            return Ok(Self::default());
        }
        let entries = s.split(';').map(str::trim).filter(|e| !e.is_empty());
        let mut ranges = entries
            .map(|entry| Ok((range(entry)?, entry)))
            .collect::<Result<Vec<_>, _>>()?;
        ranges.sort_by_key(|r| r.0);
        for pair in ranges.windows(2) {
            let ((first, one), (second, other)) = (pair[0], pair[1]);
            let same = (second.from, second.to) == (first.from, first.to);
            if second.only == first.only && (second.from < first.to || same) {
                let (first, second) = (one.to_owned(), other.to_owned());
                return Err(BadOverrides::Overlap { first, second });
            }
        }
        Ok(Self {
            ranges: ranges.into_iter().map(|(range, _)| range).collect(),
        })
    }
}

impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ranges.is_empty() {
            return f.write_str("auto");
        }
        for (i, range) in self.ranges.iter().enumerate() {
            let Range {
                only,
                from,
                to,
                algorithm,
            } = range;
            f.write_str(if i == 0 { "" } else { ";" })?;
            if let Some(collective) = only {
                write!(f, "{collective}=")?;
            }
            match *to {
                usize::MAX => write!(f, "{algorithm}:{from}-max")?,
                to => write!(f, "{algorithm}:{from}-{to}")?,
            }
        }
        Ok(())
    }
}

fn range(entry: &str) -> Result<Range, BadOverrides> {
    let owned = || entry.to_owned();
    let named = |source| BadOverrides::Name {
        entry: owned(),
        source,
    };
    let (only, choice) = match entry.split_once('=') {
        Some((only, choice)) => (Some(only.trim()), choice.trim()),
        None => (None, entry),
    };
    let only = only.map(|only| Collective::parse(only, 0)).transpose();
    let only = only.map_err(named)?;
    let (name, sizes) = match choice.split_once(':') {
        Some((name, sizes)) => (name, Some(sizes)),
        None => (choice, None),
    };
    let algorithm: Algorithm = name.parse().map_err(named)?;
    if let Some(collective) = only.filter(|&collective| !algorithm.supports(collective)) {
        let able = Algorithm::ALL
            .into_iter()
            .filter(|a| a.supports(collective));
        let able: Vec<&str> = able.map(Algorithm::name).collect();
        return Err(BadOverrides::Unable {
            entry: owned(),
            algorithm,
            collective,
            able: able.join(", "),
        });
    }
    let parse = |text: &str| {
        size(text).ok_or_else(|| BadOverrides::Size {
            entry: owned(),
            size: text.to_owned(),
        })
    };
    let (from, to) = match sizes.map(|sizes| sizes.split_once('-')) {
        None => (0, usize::MAX),
        Some(None) => return Err(BadOverrides::Entry { entry: owned() }),
        Some(Some((from, to))) => (parse(from)?, parse(to)?),
    };
    if from > to {
        return Err(BadOverrides::Reversed { entry: owned() });
    }
    Ok(Range {
        only: only.map(Collective::name),
        from,
        to,
        algorithm,
    })
}

/// Bytes: `4096`, `64KiB` (and `64K`) of 1024, `64kB` of 1000.
fn size(text: &str) -> Option<usize> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("max") {
        return Some(usize::MAX);
    }
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Overrides {
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn sizes_fall_into_ranges() {
        let overrides = parsed("hierarchical:64KiB-max; ring:0-64KiB");
        let of = |bytes| overrides.algorithm(Collective::AllReduce, bytes);
        assert_eq!(of(0), Some(Algorithm::Ring));
        assert_eq!(of(65_535), Some(Algorithm::Ring));
        assert_eq!(of(65_536), Some(Algorithm::Hierarchical));
        assert_eq!(of(usize::MAX), Some(Algorithm::Hierarchical));
        assert_eq!(overrides.to_string(), "ring:0-65536;hierarchical:65536-max");
        assert_eq!(parsed(&overrides.to_string()), overrides);
        // As oneCCL writes it.
        let overrides = parsed("recursive_doubling:0-8192;rabenseifner:8193-1M");
        let of = |bytes| overrides.algorithm(Collective::AllReduce, bytes);
        assert_eq!(of(8192), Some(Algorithm::RecursiveDoubling));
        assert_eq!(of(1 << 20), Some(Algorithm::HalvingDoubling));
        assert_eq!(of((1 << 20) + 1), None);
    }

    #[test]
    fn one_name_is_for_all_sizes_and_all_that_it_does() {
        let ring = parsed("ring");
        assert_eq!(
            ring.algorithm(Collective::AllReduce, 5),
            Some(Algorithm::Ring)
        );
        assert_eq!(ring.algorithm(Collective::Barrier, 0), None);
        assert_eq!(parsed("tree:0-2kB").to_string(), "tree:0-2000");
        assert_eq!(parsed("auto"), Overrides::default());
        assert_eq!(parsed(" ").to_string(), "auto");
    }

    #[test]
    fn what_is_for_one_collective_goes_before_what_is_for_all() {
        let overrides = parsed("ring; broadcast=tree:0-1MiB; all-reduce=direct:0-64KiB");
        let of = |collective, bytes| overrides.algorithm(collective, bytes);
        let broadcast = Collective::Broadcast { root: 3 };
        assert_eq!(of(broadcast, 1 << 20), Some(Algorithm::Tree));
        assert_eq!(of(broadcast, 2 << 20), Some(Algorithm::Ring));
        assert_eq!(of(Collective::AllReduce, 5), Some(Algorithm::Direct));
        assert_eq!(of(Collective::AllGather, 5), Some(Algorithm::Ring));
        let written = "ring:0-max;all_reduce=direct:0-65536;broadcast=tree:0-1048576";
        assert_eq!(overrides.to_string(), written);
        assert_eq!(parsed(written), overrides);
    }

    #[test]
    fn bad_choices_are_named() {
        for (text, says) in [
            (
                "rung:0-5",
                "'rung:0-5': unknown algorithm 'rung'; expected one of direct,",
            ),
            ("ring:0", "'ring:0': expected NAME:FROM-TO"),
            ("ring:0-5q", "'5q' is no size; expected bytes such as"),
            ("ring:9-5", "'ring:9-5': the range ends before it begins"),
            ("ring:0-9;tree:8-max", "'ring:0-9' and 'tree:8-max' overlap"),
            ("ring;tree", "'ring' and 'tree' overlap"),
            ("barrier=ring", "ring does not do barrier; expected one of "),
            ("bcast=ring", "unknown collective 'bcast'"),
            ("broadcast=tree;broadcast=ring", "overlap"),
            ("ring:0-99999999999G", "'99999999999G' is no size"),
        ] {
            let error = text.parse::<Overrides>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
