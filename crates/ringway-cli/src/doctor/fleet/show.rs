//! A fleet on a terminal, and as JSON.

use std::io::IsTerminal as _;

use anyhow::Result;
use ringway_doctor::{
    Report, Severity,
    fleet::{Common, Difference, Fleet, Host, Path, Way, common, differences, judge},
};
use serde::Serialize;

use crate::{
    output,
    table::{Side, table},
};

/// Pairs that the table shows, the slowest first.
const PAIRS: usize = 32;

#[derive(Serialize)]
struct All<'a> {
    /// What is wrong between hosts.
    report: &'a Report,
    differences: &'a [Difference],
    /// What is wrong on hosts.
    common: &'a [Common],
    #[serde(flatten)]
    fleet: &'a Fleet,
}

/// Prints it, and returns the exit code for the worst that there is.
pub(super) fn print(fleet: &Fleet, json: bool) -> Result<u8> {
    let report = judge(fleet);
    let (differences, common) = (differences(&fleet.hosts), common(&fleet.hosts));
    if json {
        output::print_json(&All {
            report: &report,
            differences: &differences,
            common: &common,
            fleet,
        })?;
    } else {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let parts = [
            missing(fleet),
            differing(&differences),
            hosts(fleet),
            wires(fleet),
            found(&common),
            format!("of the fleet\n{}", report.text(colour)),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        output::print(&parts.join("\n"))?;
    }
    let worst = common
        .iter()
        .map(|it| it.finding.severity)
        .chain(report.worst())
        .max();
    Ok(match worst {
        None | Some(Severity::Note) => 0,
        Some(Severity::Warning) => 1,
        Some(Severity::Error) => 2,
    })
}

fn missing(fleet: &Fleet) -> String {
    let lines = fleet.missing.iter().map(|it| {
        format!(
            "missing: rank {} (host {}), when asked for {}\n",
            it.rank, it.host, it.during
        )
    });
    lines.collect()
}

fn differing(differences: &[Difference]) -> String {
    if differences.is_empty() {
        return "nothing that is known of the hosts differs\n".to_owned();
    }
    let rows: Vec<Vec<String>> = differences
        .iter()
        .flat_map(|difference| {
            let rows = difference.values.iter().enumerate();
            rows.map(|(i, (value, hosts))| {
                let topic = if i == 0 {
                    difference.topic.clone()
                } else {
                    String::new()
                };
                vec![topic, value.clone(), list(hosts)]
            })
        })
        .collect();
    table(
        &[
            ("differs", Side::Left),
            ("value", Side::Left),
            ("hosts", Side::Left),
        ],
        &rows,
    )
}

fn hosts(fleet: &Fleet) -> String {
    let rows: Vec<Vec<String>> = fleet
        .hosts
        .iter()
        .map(|host| {
            let rates = |of: &dyn Fn(&ringway_doctor::fleet::Work) -> f64| {
                let least = host
                    .work
                    .iter()
                    .map(|(_, work)| of(work))
                    .fold(f64::INFINITY, f64::min);
                if least.is_finite() {
                    format!("{:.2}", least / 1e9)
                } else {
                    "-".to_owned()
                }
            };
            let findings = host
                .look
                .as_ref()
                .map_or_else(|| "-".to_owned(), |it| it.report.summary());
            vec![
                host.name.clone(),
                ranks(&host.ranks),
                rates(&|work| work.compute.best),
                rates(&|work| work.compute.typical),
                rates(&|work| work.memory.best),
                rates(&|work| work.memory.typical),
                waited(host),
                findings,
            ]
        })
        .collect();
    let columns = [
        ("host", Side::Left),
        ("ranks", Side::Left),
        ("Gflop/s best", Side::Right),
        ("typical", Side::Right),
        ("copy GB/s best", Side::Right),
        ("typical", Side::Right),
        ("waited for CPUs", Side::Right),
        ("found there", Side::Left),
    ];
    table(&columns, &rows)
}

/// The share of the time in which a probe wanted a CPU and waited for it, where it was most.
fn waited(host: &Host) -> String {
    let strains = host
        .work
        .iter()
        .map(|(_, work)| &work.strain)
        .chain(&host.wired);
    let worst = strains.filter_map(|it| it.waited).max_by(f64::total_cmp);
    worst.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", 100.0 * share))
}

fn wires(fleet: &Fleet) -> String {
    if fleet.hosts.len() < 2 {
        return "all ranks are on one host: there is no wire to measure\n".to_owned();
    }
    let name = |host: usize| fleet.hosts[host].name.as_str();
    let paths = fleet
        .pairs
        .iter()
        .flat_map(|pair| pair.paths.iter().map(move |path| (pair, path)));
    let mut paths: Vec<_> = paths.collect();
    let rate = |path: &Path| {
        path.there
            .bandwidth
            .unwrap_or(0.0)
            .min(path.back.bandwidth.unwrap_or(0.0))
    };
    paths.sort_by(|(_, a), (_, b)| rate(a).total_cmp(&rate(b)));
    let rows: Vec<Vec<String>> = paths
        .iter()
        .take(PAIRS)
        .map(|(pair, path)| {
            let trip = path
                .round_trip
                .map_or_else(|| "-".to_owned(), |it| format!("{:.0}", it.0 * 1e6));
            vec![
                format!("{} {}", name(pair.a), path.at_a.interface),
                format!("{} {}", name(pair.b), path.at_b.interface),
                bandwidth(&path.there),
                bandwidth(&path.back),
                trip,
                format!("{} {}", lost(&path.there), lost(&path.back)),
                format!("{} {}", path.there.reordered, path.back.reordered),
                format!("{} {}", mark(&path.there), mark(&path.back)),
                format!("{} {}", mtu(&path.there), mtu(&path.back)),
                flows(path),
                path.ways()
                    .map_or_else(|| "-".to_owned(), |it| it.to_string()),
                rdma(path),
            ]
        })
        .collect();
    let columns = [
        ("from", Side::Left),
        ("to", Side::Left),
        ("GB/s there", Side::Right),
        ("back", Side::Right),
        ("us", Side::Right),
        ("lost", Side::Left),
        ("late", Side::Left),
        ("DSCP+ECN", Side::Left),
        ("packet", Side::Left),
        ("us by source port", Side::Left),
        ("ways", Side::Right),
        ("RDMA GB/s", Side::Left),
    ];
    let mut text = table(&columns, &rows);
    if paths.len() > PAIRS {
        text += &format!("and {} more, which are quicker\n", paths.len() - PAIRS);
    }
    text
}

fn bandwidth(way: &Way) -> String {
    way.bandwidth
        .map_or_else(|| "-".to_owned(), |it| format!("{:.3}", it / 1e9))
}

/// There, back, and the latency.
fn rdma(path: &Path) -> String {
    match (&path.rdma, &path.rdma_trouble) {
        (Some(rdma), _) => format!(
            "{:.3} {:.3} {:.1} us",
            rdma.there / 1e9,
            rdma.back / 1e9,
            rdma.latency * 1e6
        ),
        (None, Some(_)) => "failed".to_owned(),
        (None, None) => "-".to_owned(),
    }
}

fn lost(way: &Way) -> String {
    format!("{}/{}", way.sent.saturating_sub(way.arrived), way.sent)
}

fn mark(way: &Way) -> String {
    way.mark
        .map_or_else(|| "-".to_owned(), |it| format!("{}+{}", it >> 2, it & 3))
}

fn mtu(way: &Way) -> String {
    way.mtu.map_or_else(|| "-".to_owned(), |it| it.to_string())
}

/// The quickest round trips by source port: several ways of different lengths show as a spread.
fn flows(path: &Path) -> String {
    let mut best: Vec<f64> = path.flows.iter().filter_map(|flow| flow.best).collect();
    best.sort_by(f64::total_cmp);
    match (best.first(), best.last()) {
        (Some(least), Some(most)) => format!("{:.0}-{:.0}", least * 1e6, most * 1e6),
        _ => "-".to_owned(),
    }
}

fn found(common: &[Common]) -> String {
    if common.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = common
        .iter()
        .map(|it| {
            let finding = &it.finding;
            vec![
                finding.severity.name().to_owned(),
                finding.check.clone().into_owned(),
                list(&it.hosts),
                format!("{}: {}", finding.subject, finding.problem),
            ]
        })
        .collect();
    let columns = [
        ("on hosts", Side::Left),
        ("check", Side::Left),
        ("hosts", Side::Left),
        ("what (remedies: ringway doctor there)", Side::Left),
    ];
    table(&columns, &rows)
}

/// `a, b, c and 5 more`.
fn list(names: &[String]) -> String {
    const MOST: usize = 3;
    let mut text = names[..names.len().min(MOST)].join(", ");
    if names.len() > MOST {
        text += &format!(" and {} more", names.len() - MOST);
    }
    text
}

/// `0-3, 8`.
fn ranks(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let words = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(", ")
}
