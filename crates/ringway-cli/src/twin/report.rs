//! How far the simulator is from the lab.

use ringway_lab::{Lab, Queues, Settings};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::probe::Calibration;
use crate::size;

/// From which difference on, in the lab, the order of two algorithms has to be the simulator's too.
const DIFFERENT: f64 = 0.10;

/// An operation in both.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) collective: String,
    pub(super) algorithm: String,
    /// Of the vector.
    pub(super) bytes: usize,
    pub(super) lab_seconds: f64,
    pub(super) simulated_seconds: f64,
    /// No time can be shorter.
    pub(super) bound_seconds: f64,
    /// Of the machine's processor time while the job ran, 0 to 1.
    pub(super) busy: f64,
    /// Packets, in all sizes of the job.
    pub(super) dropped: u64,
    /// The part of bytes that went over the same links in both, 0 to 1.
    pub(super) same_links: f64,
}

impl Case {
    /// By how much the simulator is wrong: below 0 if the lab took longer.
    fn error(&self) -> f64 {
        self.simulated_seconds / self.lab_seconds - 1.0
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{:<14}  {:<18}  {:>6}  {:>9.2} ms  {:>9.2} ms  {:>6.1} %  {:>5.1} %  {:>4.0} %  {:>7}  {:>4.0} %\n",
            self.collective,
            self.algorithm,
            size::show(self.bytes),
            self.lab_seconds * 1e3,
            self.simulated_seconds * 1e3,
            self.error() * 100.0,
            self.bound_seconds / self.lab_seconds * 100.0,
            self.busy * 100.0,
            self.dropped,
            self.same_links * 100.0,
        )
    }
}

/// The part of bytes that two networks carry over the same links.
pub(super) fn common(one: &[f64], other: &[f64]) -> f64 {
    let [all, others] = [one, other].map(|carried| carried.iter().sum::<f64>().max(1.0));
    let both = one.iter().zip(other);
    both.map(|(a, b)| (a / all).min(b / others)).sum()
}

/// The cases of a fabric, and how they came about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    fabric: String,
    hosts: usize,
    congestion: String,
    mtu: u32,
    window: Option<u32>,
    seed: u32,
    queues: Queues,
    calibration: Calibration,
    /// How many connections' paths were asked of the lab's switches.
    pub(super) paths: usize,
    pub(super) cases: Vec<Case>,
}

impl Report {
    pub(super) fn new(lab: &Lab, hosts: usize, calibration: Calibration) -> Self {
        let Settings {
            mtu,
            congestion,
            window,
            seed,
            queues,
        } = lab.settings().clone();
        Self {
            fabric: lab.fabric().name().to_owned(),
            hosts,
            congestion,
            mtu,
            window,
            seed,
            queues,
            calibration,
            paths: 0,
            cases: Vec::new(),
        }
    }

    pub(super) fn heading(&self) -> String {
        let queues = match self.queues {
            Queues::One => "one queue for each link",
            Queues::Fair => "a queue for each connection",
        };
        let window = self
            .window
            .map_or_else(String::new, |w| format!(", windows of {w}"));
        format!(
            "{}: {} hosts, one rank each; TCP by {}, packets of {} bytes{window}, {queues}\n\
             calibration: a message costs {:.0} us and {:.0} us for each link, {:.1} % of a link's rate is data\n\n\
             {:<14}  {:<18}  {:>6}  {:>12}  {:>12}  {:>8}  {:>7}  {:>6}  {:>7}  {:>6}\n",
            self.fabric,
            self.hosts,
            self.congestion,
            self.mtu,
            self.calibration.overhead * 1e6,
            self.calibration.link_latency * 1e6,
            self.calibration.payload * 100.0,
            "collective",
            "algorithm",
            "size",
            "lab",
            "simulated",
            "error",
            "bound",
            "cpu",
            "dropped",
            "links",
        )
    }

    pub(super) fn verdict(&self) -> Verdict {
        Verdict::new(&self.cases)
    }
}

/// Errors of all cases, and whether the order of algorithms agrees.
#[derive(Default)]
pub(super) struct Verdict {
    /// Without sign, ascending.
    errors: Vec<f64>,
    /// Pairs of algorithms that differ in the lab, and of these those that the simulator has in another order.
    pairs: usize,
    swapped: Vec<(Case, Case)>,
    /// The greatest share of the processors' time.
    busiest: f64,
}

impl Verdict {
    fn new(cases: &[Case]) -> Self {
        let (mut pairs, mut swapped) = (0, Vec::new());
        for (i, a) in cases.iter().enumerate() {
            for b in &cases[i + 1..] {
                let same = (&a.collective, a.bytes) == (&b.collective, b.bytes);
                let (more, less) = (
                    a.lab_seconds.max(b.lab_seconds),
                    a.lab_seconds.min(b.lab_seconds),
                );
                if !same || more <= (1.0 + DIFFERENT) * less {
                    continue;
                }
                pairs += 1;
                let by_lab = a.lab_seconds < b.lab_seconds;
                if by_lab != (a.simulated_seconds < b.simulated_seconds) {
                    swapped.push((a.clone(), b.clone()));
                }
            }
        }
        let alone = Self {
            errors: cases.iter().map(|c| c.error().abs()).collect(),
            pairs,
            swapped,
            busiest: cases.iter().map(|c| c.busy).fold(0.0, f64::max),
        };
        alone.and(Self::default())
    }

    /// Of both, whose cases are of different fabrics.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.errors.extend(other.errors);
        self.errors.sort_by(f64::total_cmp);
        self.swapped.extend(other.swapped);
        Self {
            errors: self.errors,
            pairs: self.pairs + other.pairs,
            swapped: self.swapped,
            busiest: self.busiest.max(other.busiest),
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

    /// Whether errors are within these bounds, in per cent, and the order of algorithms is the same.
    pub(super) fn is_within(&self, bounds: Bounds) -> bool {
        self.swapped.is_empty()
            && self.median() * 100.0 <= bounds.median
            && self.worst() * 100.0 <= bounds.worst
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} cases: median error {:.1} %, worst {:.1} %; processors in use for {:.0} % of the time at most\n\
             the order of algorithms agrees in {} of {} pairs that differ by more than {:.0} % in the lab\n",
            self.errors.len(),
            self.median() * 100.0,
            self.worst() * 100.0,
            self.busiest * 100.0,
            self.pairs - self.swapped.len(),
            self.pairs,
            DIFFERENT * 100.0,
        );
        for (a, b) in &self.swapped {
            text += &format!(
                "  not of {} and {}, {} of {}\n",
                a.algorithm,
                b.algorithm,
                a.collective,
                size::show(a.bytes)
            );
        }
        text
    }

    /// Adds the verdict to a report's figures.
    pub(super) fn add_to(&self, json: &mut Value) {
        json["median_error"] = self.median().into();
        json["worst_error"] = self.worst().into();
        json["busiest"] = self.busiest.into();
        json["pairs"] = self.pairs.into();
        json["pairs_that_agree"] = (self.pairs - self.swapped.len()).into();
    }
}

/// A report's figures, with the verdict.
pub(super) fn as_json(report: &Report) -> Value {
    let mut json = json!(report);
    for (case, json) in report
        .cases
        .iter()
        .zip(json["cases"].as_array_mut().into_iter().flatten())
    {
        json["error"] = case.error().into();
    }
    report.verdict().add_to(&mut json);
    json
}

/// What errors may be, in per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    median: f64,
    worst: f64,
}

impl Bounds {
    /// From `5,15`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse().ok().filter(|n: &f64| *n >= 0.0);
        let both = text.split_once(',');
        let both = both.and_then(|(median, worst)| Some((number(median)?, number(worst)?)));
        let (median, worst) =
            both.ok_or("expected two numbers of per cent, median and worst, such as 5,15")?;
        Ok(Self { median, worst })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn case(algorithm: &str, lab_seconds: f64, simulated_seconds: f64) -> Case {
        Case {
            collective: "all_reduce".to_owned(),
            algorithm: algorithm.to_owned(),
            bytes: 1 << 20,
            lab_seconds,
            simulated_seconds,
            bound_seconds: lab_seconds / 2.0,
            busy: 0.25,
            dropped: 0,
            same_links: 0.99,
        }
    }

    #[test]
    fn only_algorithms_that_differ_have_to_be_in_order() {
        let cases = [
            case("ring", 1.0, 1.02),
            case("tree", 1.05, 1.0),
            case("direct", 2.0, 1.01),
        ];
        let verdict = Verdict::new(&cases);
        let text = verdict.text();
        assert!(
            text.contains("3 cases: median error 4.8 %, worst 49.5 %"),
            "{text}"
        );
        assert!(text.contains("agrees in 1 of 2 pairs"), "{text}");
        assert!(
            text.contains("not of ring and direct, all_reduce of 1M"),
            "{text}"
        );
        let line = cases[0].line();
        assert!(
            line.contains(
                "1M    1000.00 ms    1020.00 ms     2.0 %   50.0 %    25 %        0    99 %"
            ),
            "{line}"
        );
        assert!((common(&[3.0, 1.0, 0.0], &[10.0, 5.0, 5.0]) - 0.75).abs() < 1e-9);
        // Algorithms of different fabrics are not compared.
        let both = verdict.and(Verdict::new(&[case("ring", 9.0, 9.0)]));
        assert!(both.text().contains("4 cases: median error 4.8 %"));
        assert!(both.text().contains("agrees in 1 of 2 pairs"));
    }

    #[test]
    fn bounds_are_of_median_worst_and_order() {
        let bounds = Bounds::parse("5,15").unwrap();
        let verdict =
            |simulated| Verdict::new(&[case("ring", 1.0, 1.02), case("tree", 1.5, simulated)]);
        assert!(verdict(1.53).is_within(bounds));
        assert!(!verdict(1.75).is_within(bounds));
        assert!(!verdict(1.01).is_within(Bounds::parse("50,50").unwrap()));
        for wrong in ["5", "5,x", "-1,5", ""] {
            assert!(Bounds::parse(wrong).is_err(), "{wrong}");
        }
    }
}
