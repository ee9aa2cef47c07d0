//! How far the simulator is from the lab.

use ringway_lab::Lab;
use ringway_plan::{Algorithm, Collective};
use serde_json::{Value, json};

use super::probe::Calibration;
use crate::size;

/// From which difference on, in the lab, the order of two algorithms has to be the simulator's too.
const DIFFERENT: f64 = 0.10;

/// An operation in both. Seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) collective: Collective,
    pub(super) algorithm: Algorithm,
    pub(super) bytes: usize,
    pub(super) lab: f64,
    pub(super) simulated: f64,
    pub(super) bound: f64,
}

impl Case {
    /// By how much the simulator is wrong: below 0 if the lab took longer.
    fn error(&self) -> f64 {
        self.simulated / self.lab - 1.0
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{:<14}  {:<18}  {:>6}  {:>9.2} ms  {:>9.2} ms  {:>6.1} %  {:>5.1} %\n",
            self.collective.name(),
            self.algorithm.name(),
            size::show(self.bytes),
            self.lab * 1e3,
            self.simulated * 1e3,
            self.error() * 100.0,
            self.bound / self.lab * 100.0,
        )
    }
}

pub(super) fn heading(lab: &Lab, hosts: usize, calibration: &Calibration) -> String {
    let settings = lab.settings();
    format!(
        "{}: {hosts} hosts, one rank each; TCP by {}, packets of {} bytes\n\
         calibration: a message costs {:.0} us and {:.0} us for each link, {:.1} % of a link's rate is data\n\n\
         {:<14}  {:<18}  {:>6}  {:>12}  {:>12}  {:>8}  {:>7}\n",
        lab.fabric().name(),
        settings.congestion,
        settings.mtu,
        calibration.overhead * 1e6,
        calibration.link_latency * 1e6,
        calibration.payload * 100.0,
        "collective",
        "algorithm",
        "size",
        "lab",
        "simulated",
        "error",
        "bound",
    )
}

/// Errors of all cases, and whether the order of algorithms agrees.
struct Verdict {
    /// Without sign, ascending.
    errors: Vec<f64>,
    /// Pairs of algorithms that differ in the lab, and of these those that the simulator has in another order.
    pairs: usize,
    swapped: Vec<(Case, Case)>,
}

impl Verdict {
    fn new(cases: &[Case]) -> Self {
        let mut errors: Vec<f64> = cases.iter().map(|c| c.error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        let (mut pairs, mut swapped) = (0, Vec::new());
        for (i, a) in cases.iter().enumerate() {
            for b in &cases[i + 1..] {
                let same = (a.collective, a.bytes) == (b.collective, b.bytes);
                if !same || a.lab.max(b.lab) <= (1.0 + DIFFERENT) * a.lab.min(b.lab) {
                    continue;
                }
                pairs += 1;
                if (a.lab < b.lab) != (a.simulated < b.simulated) {
                    swapped.push((*a, *b));
                }
            }
        }
        Self {
            errors,
            pairs,
            swapped,
        }
    }

    /// Of two in the middle the greater.
    fn median(&self) -> f64 {
        self.errors
            .get(self.errors.len() / 2)
            .copied()
            .unwrap_or(0.0)
    }

    fn worst(&self) -> f64 {
        self.errors.last().copied().unwrap_or(0.0)
    }
}

/// `paths` of connections were asked of the lab's switches.
pub(super) fn summary(cases: &[Case], paths: usize) -> String {
    let verdict = Verdict::new(cases);
    let mut text = format!(
        "\n{paths} connections took in the simulator the paths that they took in the lab\n\
         {} cases: median error {:.1} %, worst {:.1} %\n\
         the order of algorithms agrees in {} of {} pairs that differ by more than {:.0} % in the lab\n",
        cases.len(),
        verdict.median() * 100.0,
        verdict.worst() * 100.0,
        verdict.pairs - verdict.swapped.len(),
        verdict.pairs,
        DIFFERENT * 100.0,
    );
    for (a, b) in &verdict.swapped {
        text += &format!(
            "  not of {} and {}, {} of {}\n",
            a.algorithm,
            b.algorithm,
            a.collective.name(),
            size::show(a.bytes)
        );
    }
    text
}

pub(super) fn as_json(
    lab: &Lab,
    hosts: usize,
    calibration: &Calibration,
    cases: &[Case],
    paths: usize,
) -> Value {
    let verdict = Verdict::new(cases);
    let settings = lab.settings();
    let case = |case: &Case| {
        json!({
            "collective": case.collective.name(),
            "algorithm": case.algorithm.name(),
            "bytes": case.bytes,
            "lab_seconds": case.lab,
            "simulated_seconds": case.simulated,
            "error": case.error(),
            "bound_seconds": case.bound,
        })
    };
    json!({
        "fabric": lab.fabric().name(),
        "hosts": hosts,
        "congestion": settings.congestion,
        "mtu": settings.mtu,
        "window": settings.window,
        "seed": settings.seed,
        "calibration": {
            "overhead_seconds": calibration.overhead,
            "link_latency_seconds": calibration.link_latency,
            "payload": calibration.payload,
        },
        "paths": paths,
        "cases": cases.iter().map(case).collect::<Vec<_>>(),
        "median_error": verdict.median(),
        "worst_error": verdict.worst(),
        "pairs": verdict.pairs,
        "pairs_that_agree": verdict.pairs - verdict.swapped.len(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn case(algorithm: Algorithm, lab: f64, simulated: f64) -> Case {
        Case {
            collective: Collective::AllReduce,
            algorithm,
            bytes: 1 << 20,
            lab,
            simulated,
            bound: lab / 2.0,
        }
    }

    #[test]
    fn only_algorithms_that_differ_have_to_be_in_order() {
        let cases = [
            case(Algorithm::Ring, 1.0, 1.02),
            case(Algorithm::Tree, 1.05, 1.0),
            case(Algorithm::Direct, 2.0, 1.01),
        ];
        let text = summary(&cases, 6);
        assert!(
            text.contains("3 cases: median error 4.8 %, worst 49.5 %"),
            "{text}"
        );
        assert!(text.contains("agrees in 1 of 2 pairs"), "{text}");
        assert!(
            text.contains("not of ring and direct, all_reduce of 1M"),
            "{text}"
        );
        assert!(
            cases[0]
                .line()
                .contains("1M    1000.00 ms    1020.00 ms     2.0 %   50.0 %"),
            "{}",
            cases[0].line()
        );
    }
}
