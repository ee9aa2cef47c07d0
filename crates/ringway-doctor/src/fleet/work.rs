//! Hosts whose processor or memory is slow.

use super::{Aspect, Host, Rate, Strain, Work, finding, median};
use crate::finding::{Finding, Severity};

pub(super) const SLOW: Aspect = Aspect {
    id: "fleet.slow_host",
    sign: "the best of several short runs of a computation or a copy takes longer than on the others, on a host that is not busy",
    why: "every step of a job takes as long as on its slowest host",
    source: "Ringway: the same work on all hosts, the quickest of several runs",
};

pub(super) const BUSY: Aspect = Aspect {
    id: "fleet.busy_host",
    sign: "a probe that waits for CPUs, time that a hypervisor steals, runs of the same work that take very different times",
    why: "something else takes the processor: ranks wait for it at random, and all others for them",
    source: "Linux, Documentation/scheduler/sched-stats.rst and accounting/psi.rst; proc(5): steal; Ringway: the median of several runs beside the quickest",
};

/// Hosts that are alike differ by a few percent; batches of the same model were seen to differ by 8.
const PACE: f64 = 0.92;

/// What the median may lose against the quickest run.
const STEADY: f64 = 0.75;

/// Which of a rank's rates.
type Which = fn(&Work) -> Rate;

/// What a host does, the rate, and its unit.
type Kind = (&'static str, Which, &'static str);

const KINDS: [Kind; 2] = [
    ("computes", |work| work.compute, "Gflop/s"),
    ("copies memory", |work| work.memory, "GB/s"),
];

pub(super) fn judge(hosts: &[Host]) -> Vec<Finding> {
    let slow = KINDS
        .iter()
        .flat_map(|kind| hosts.iter().filter_map(move |host| slow(hosts, host, kind)));
    slow.chain(hosts.iter().filter_map(|host| busy(hosts, host)))
        .collect()
}

/// A host that is slower than the others, if nothing but its hardware and settings explains it.
fn slow(hosts: &[Host], host: &Host, &(verb, rate, unit): &Kind) -> Option<Finding> {
    let usual = usual(hosts, rate)?;
    let (rank, slowest) = slowest(host, rate)?;
    let disturbed = host
        .work
        .iter()
        .any(|(of, work)| *of == rank && work.strain.disturbed());
    if slowest.best >= PACE * usual || disturbed {
        return None;
    }
    let percent = 100.0 * (1.0 - slowest.best / usual);
    let text = format!(
        "the host {verb} {percent:.0} % slower than the others: {} where they do {}",
        figure(slowest.best, unit),
        figure(usual, unit)
    );
    let severity = if slowest.best < usual / 2.0 {
        Severity::Error
    } else {
        Severity::Warning
    };
    Some(
        finding(&SLOW, severity, &host.name, text)
            .saw(format!("rank {rank}, best of several runs"), figure(slowest.best, unit))
            .saw("median of all hosts", figure(usual, unit))
            .act("see clock, cooling and power of the host (turbostat, dmesg | grep -i throttl), its BIOS' power profile, missing memory modules, and who else runs there")
            .likely()
            .0,
    )
}

/// A host whose processors others take.
fn busy(hosts: &[Host], host: &Host) -> Option<Finding> {
    // The rank whose runs lost most.
    let share = |rate: Rate| rate.typical / rate.best.max(f64::MIN_POSITIVE);
    let runs = host.work.iter().flat_map(|(rank, work)| {
        KINDS
            .iter()
            .map(move |kind| (*rank, kind, (kind.1)(work), &work.strain))
    });
    let (rank, kind, worst, strain) = runs.min_by(|a, b| share(a.2).total_cmp(&share(b.2)))?;
    let strains = host
        .work
        .iter()
        .map(|(_, work)| &work.strain)
        .chain(&host.wired);
    let strained = strains.clone().any(Strain::busy);
    // Others that take what is not waited for, and yet make it slower: caches, memory, a core's other thread.
    let slower = KINDS.iter().find_map(|&(verb, rate, unit)| {
        let (rank, slowest) = slowest(host, rate)?;
        let usual = usual(hosts, rate)?;
        let disturbed = host
            .work
            .iter()
            .any(|(of, work)| *of == rank && work.strain.disturbed());
        let words = format!(
            "; it {verb} {} where {} are usual, which may be only that",
            figure(slowest.best, unit),
            figure(usual, unit)
        );
        (disturbed && slowest.best < PACE * usual).then_some(words)
    });
    if share(worst) >= STEADY && !strained && slower.is_none() {
        return None;
    }
    let strain = strains.clone().find(|it| it.busy()).unwrap_or(strain);
    let text = match (strain.waiting(), strain.robbed()) {
        (Some(waited), _) => format!(
            "others take its processors: this probe waited for one {:.0} % of the time that it wanted one",
            100.0 * waited
        ),
        (None, Some(stolen)) => format!(
            "the hypervisor gives {:.0} % of its processors' time to other machines",
            100.0 * stolen
        ),
        (None, None) if share(worst) < STEADY => format!(
            "most runs on the host take {:.1} times as long as the quickest ({})",
            1.0 / share(worst),
            kind.0
        ),
        (None, None) => "others use its processors and memory".to_owned(),
    };
    let mut draft = finding(
        &BUSY,
        Severity::Warning,
        &host.name,
        text + &slower.unwrap_or_default(),
    )
    .saw(
        format!("rank {rank}, median of several runs"),
        figure(worst.typical, kind.2),
    )
    .saw(
        format!("rank {rank}, best of several runs"),
        figure(worst.best, kind.2),
    );
    for (source, value) in strain.evidence() {
        draft = draft.saw(source, value);
    }
    let first = strain.burners.iter().find(|it| !it.kernel);
    let end = match first.filter(|_| strain.waiting().is_some() || strain.robbed().is_none()) {
        Some(first) => format!(
            "end or move what runs there beside the job ({}, process {}, first)",
            first.name, first.pid
        ),
        None if strain.stolen > 0.0 => {
            "ask who runs the machines for processors that are not shared".to_owned()
        }
        None => "see who else runs there (top, ps -eo pid,psr,pcpu,comm --sort=-pcpu)".to_owned(),
    };
    Some(
        draft
            .act(format!(
                "{end}, bind ranks to CPUs of their own, then measure again"
            ))
            .likely()
            .0,
    )
}

fn figure(rate: f64, unit: &str) -> String {
    format!("{:.2} {unit}", rate / 1e9)
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
