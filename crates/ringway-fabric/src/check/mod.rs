//! What is wrong with a fabric, and how good it is.

mod bisection;
mod failures;
mod paths;
mod tiers;

use std::fmt;

pub use bisection::Bisection;
pub use paths::{Diversity, PathLengths};
pub use tiers::TierLoad;

use crate::{model::Fabric, routes::Routes};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Hosts cannot reach each other.
    Error,
    /// Jobs are slower than the fabric's parts would allow, or one failure parts it.
    Warning,
    /// Worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Note => "note",
            Self::Warning => "warning",
        })
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// Which check found it: `crossing`, `blocking`, `speed`, `failure`, `nics` or `reachable`.
    pub check: &'static str,
    /// Where: switches, hosts or links.
    pub place: String,
    /// What was found there, and what was expected.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// All that [`check()`] found.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// Each tier of switches that has something below and above it.
    pub tiers: Vec<TierLoad>,
    /// Between two halves of the hosts.
    pub bisection: Bisection,
    /// Links between pairs of hosts.
    pub lengths: PathLengths,
    /// Equal paths between pairs of hosts.
    pub diversity: Diversity,
}

/// Checks a fabric. Takes time in proportion to the square of the number of switches that have hosts.
pub fn check(fabric: &Fabric) -> Check {
    let routes = Routes::new(fabric);
    let (lengths, diversity) = paths::measure(fabric, &routes);
    let (tiers, mut findings) = tiers::check(fabric);
    findings.extend(paths::reachable(fabric, &lengths));
    findings.extend(failures::check(fabric));
    findings.sort_by_key(|f| f.severity);
    Check {
        findings,
        tiers,
        bisection: bisection::measure(fabric),
        lengths,
        diversity,
    }
}

/// `a, b, c and 5 more`.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 4;
    match names.len() {
        n if n > SHOWN => format!(
            "{} and {} more",
            names[..SHOWN - 1].join(", "),
            n + 1 - SHOWN
        ),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn findings(text: &str) -> Vec<Finding> {
        let fabric = Fabric::parse(text).unwrap_or_else(|e| panic!("{e}"));
        check(&fabric).findings
    }

    fn leaf_spine() -> String {
        let shape = Shape::LeafSpine {
            hosts: 16,
            leaves: 4,
            spines: 4,
            gpus: 1,
        };
        shape.file().unwrap()
    }

    /// The finding of a check that is at least a warning.
    fn found<'a>(findings: &'a [Finding], check: &str) -> Option<&'a Finding> {
        let mut of = findings.iter().filter(|f| f.check == check);
        of.find(|f| f.severity != Severity::Note)
    }

    #[test]
    fn a_good_fabric_has_no_finding_but_notes() {
        let fabric = Fabric::parse(&leaf_spine()).unwrap();
        let check = check(&fabric);
        assert!(
            check.findings.iter().all(|f| f.severity == Severity::Note),
            "{:?}",
            check.findings
        );
        assert_eq!(check.tiers[0].oversubscription, 1.0);
        // Eight hosts of 400 Gbit/s on either side.
        assert!((check.bisection.rate - 8.0 * 50e9).abs() < 1.0);
        assert!((check.bisection.full - 8.0 * 50e9).abs() < 1.0);
        assert_eq!((check.lengths.least, check.lengths.most), (2, 4));
        // Of 15 others, 3 are at 2 links and 12 at 4.
        assert!((check.lengths.mean - (3.0 * 2.0 + 12.0 * 4.0) / 15.0).abs() < 1e-9);
        assert_eq!((check.diversity.least, check.diversity.most), (4, 4));
    }

    #[test]
    fn a_missing_link_is_named() {
        let text = leaf_spine() + "cut:\n  - {from: leaf2, to: spine1}\n";
        let findings = findings(&text);
        let crossing = found(&findings, "crossing").unwrap();
        assert_eq!(crossing.place, "leaf2");
        assert!(crossing.what.contains("no link to spine1"), "{crossing:?}");
        let blocking = found(&findings, "blocking").unwrap();
        assert!(blocking.place.contains("leaf2"), "{blocking:?}");
        assert!(blocking.what.contains("1.33:1"), "{blocking:?}");
    }

    #[test]
    fn parted_fabrics_are_errors() {
        let text = leaf_spine() + "cut:\n  - {from: leaf0, to: spine}\n";
        let findings = findings(&text);
        assert_eq!(findings[0].severity, Severity::Error);
        assert_eq!(findings[0].check, "reachable");
        assert!(findings[0].what.contains("48 of 120 pairs"), "{findings:?}");
    }

    #[test]
    fn one_spine_is_a_single_point_of_failure() {
        let shape = Shape::LeafSpine {
            hosts: 8,
            leaves: 2,
            spines: 1,
            gpus: 1,
        };
        let findings = findings(&shape.file().unwrap());
        let failure = found(&findings, "failure").unwrap();
        assert_eq!(failure.place, "spine0");
        assert!(found(&findings, "blocking").is_some());
    }

    #[test]
    fn speeds_that_differ_are_named() {
        let text = leaf_spine()
            .replace("ports: 8", "ports: 9")
            .replace("ports: 4", "ports: 5")
            + "  - {from: leaf0, to: spine0, join: full, rate: 100Gbit/s, latency: 600ns}\n";
        let findings = findings(&text);
        let speed = found(&findings, "speed").unwrap();
        assert!(speed.place.contains("leaf0-spine0"), "{speed:?}");
        assert!(speed.what.contains("100 Gbit/s"), "{speed:?}");
    }

    #[test]
    fn three_tiers_tell_their_oversubscription() {
        let shape = Shape::ThreeTier {
            hosts: 64,
            pods: 4,
            leaves: 2,
            oversubscription: 4,
            gpus: 1,
        };
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let check = check(&fabric);
        let ratios: Vec<f64> = check.tiers.iter().map(|t| t.oversubscription).collect();
        assert_eq!(ratios, [4.0, 4.0]);
        // 32 hosts have 1/16 of their rate through the core.
        assert!((check.bisection.rate - 32.0 * 50e9 / 16.0).abs() < 1.0);
        assert_eq!(check.lengths.most, 6);
    }

    #[test]
    fn a_torus_is_cut_at_its_longest_dimension() {
        let shape = Shape::Torus {
            size: vec![8, 4],
            gpus: 1,
        };
        let check = check(&Fabric::parse(&shape.file().unwrap()).unwrap());
        // Two cuts through four links.
        assert!((check.bisection.rate - 8.0 * 50e9).abs() < 1.0);
        assert_eq!(check.lengths.most, 6);
        assert!(check.findings.is_empty(), "{:?}", check.findings);
    }
}
