//! Hosts whose processor or memory is slow.

use super::{Aspect, Host, Rate, Work, finding, median};
use crate::finding::{Finding, Severity};

pub(super) const SLOW: Aspect = Aspect {
    id: "fleet.slow_host",
    sign: "the best of several runs of a computation or a copy takes longer than on the others",
    why: "every step of a job takes as long as on its slowest host",
    source: "Ringway: the same work on all hosts, the quickest of several runs",
};

pub(super) const BUSY: Aspect = Aspect {
    id: "fleet.busy_host",
    sign: "runs of the same work on one host take very different times",
    why: "something else takes the processor: ranks wait for it at random, and all others for them",
    source: "Ringway: the median of several runs beside the quickest",
};

/// Hosts that are alike differ by a few percent; batches of the same model were seen to differ by 8.
const PACE: f64 = 0.92;

/// What the median may lose against the quickest run.
const STEADY: f64 = 0.75;

/// Which of a rank's rates.
type Which = fn(&Work) -> Rate;

/// What a host does, the rate, and its unit.
const KINDS: [(&str, Which, &str); 2] = [
    ("computes", |work| work.compute, "Gflop/s"),
    ("copies memory", |work| work.memory, "GB/s"),
];

pub(super) fn judge(hosts: &[Host]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (verb, rate, unit) in KINDS {
        let Some(usual) = usual(hosts, rate) else {
            continue;
        };
        for host in hosts {
            let Some((rank, slowest)) = slowest(host, rate) else {
                continue;
            };
            let source = |what: &str| format!("rank {rank}, {what} of several runs");
            let figure = |rate: f64| format!("{:.2} {unit}", rate / 1e9);
            if slowest.best < PACE * usual {
                let percent = 100.0 * (1.0 - slowest.best / usual);
                let text = format!(
                    "the host {verb} {percent:.0} % slower than the others: {} where they do {}",
                    figure(slowest.best),
                    figure(usual)
                );
                let severity = if slowest.best < usual / 2.0 {
                    Severity::Error
                } else {
                    Severity::Warning
                };
                findings.push(
                    finding(&SLOW, severity, &host.name, text)
                        .saw(source("best"), figure(slowest.best))
                        .saw("median of all hosts", figure(usual))
                        .act("see clock, cooling and power of the host (turbostat, dmesg | grep -i throttl), its BIOS' power profile, missing memory modules, and who else runs there")
                        .likely()
                        .0,
                );
            }
            let unsteady = host.work.iter().map(|(rank, work)| (*rank, rate(work)));
            let share = |rate: Rate| rate.typical / rate.best.max(f64::MIN_POSITIVE);
            let worst = unsteady.min_by(|(_, a), (_, b)| share(*a).total_cmp(&share(*b)));
            if let Some((rank, worst)) = worst.filter(|(_, it)| share(*it) < STEADY) {
                let text = format!(
                    "most runs on the host take {:.1} times as long as the quickest ({verb})",
                    1.0 / share(worst)
                );
                findings.push(
                    finding(&BUSY, Severity::Warning, &host.name, text)
                        .saw(format!("rank {rank}, median of several runs"), figure(worst.typical))
                        .saw(format!("rank {rank}, best of several runs"), figure(worst.best))
                        .act("see who else runs there (top, ps -eo pid,psr,pcpu,comm --sort=-pcpu), and bind ranks to CPUs of their own")
                        .likely()
                        .0,
                );
            }
        }
    }
    findings
}

/// What a host mostly does of what is usual, where it does least; none if it was not measured.
pub(super) fn pace(hosts: &[Host], host: usize) -> Option<f64> {
    let paces = KINDS.iter().filter_map(|(_, rate, _)| {
        let (_, slowest) = slowest(&hosts[host], *rate)?;
        Some(slowest.typical / usual(hosts, *rate)?)
    });
    paces.min_by(f64::total_cmp)
}

/// A host is as fast as the slowest of its ranks.
fn slowest(host: &Host, rate: Which) -> Option<(usize, Rate)> {
    let rates = host.work.iter().map(|(rank, work)| (*rank, rate(work)));
    rates.min_by(|(_, a), (_, b)| a.best.total_cmp(&b.best))
}

/// The median of all hosts, the upper of two in the middle: of two hosts the faster.
fn usual(hosts: &[Host], rate: Which) -> Option<f64> {
    let all = hosts
        .iter()
        .filter_map(|host| Some(-slowest(host, rate)?.1.best));
    median(all).map(|it| -it)
}
