//! What was simulated, for people and for programs.

use ringway_fabric::{Fabric, Hop};
use ringway_plan::Collective;
use ringway_sim::{HopLoad, Kind, Outcome};

use super::Run;
use crate::{
    size,
    table::{Side, table},
};

/// How many links JSON has for each run.
const HOTTEST: usize = 16;

/// How many steps of a critical path are printed at its beginning and at its end.
const STEPS: usize = 12;

pub(super) fn as_text(
    fabric: &Fabric,
    collective: Collective,
    hosts: usize,
    per_host: usize,
    runs: &[Run],
) -> String {
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let outcome = &run.outcome;
            let end = outcome.end;
            let part = |time: ringway_sim::Time| {
                format!(
                    "{:.1}",
                    100.0 * time.seconds() / end.at.seconds().max(1e-12)
                )
            };
            let (name, busy) = hottest(fabric, outcome);
            vec![
                size::show(outcome.bytes),
                run.algorithm.to_string(),
                format!("{:.1}", end.at.seconds() * 1e6),
                format!("{:.2}", outcome.algbw() / 1e9),
                format!("{:.2}", outcome.busbw() / 1e9),
                part(end.latency),
                part(end.wire),
                part(end.contention),
                part(end.reduction),
                format!("{:.2}", run.mean_hops),
                name,
                busy,
            ]
        })
        .collect();
    let columns = [
        ("size", Side::Right),
        ("algorithm", Side::Left),
        ("time us", Side::Right),
        ("algbw", Side::Right),
        ("busbw", Side::Right),
        ("latency %", Side::Right),
        ("wire %", Side::Right),
        ("contention %", Side::Right),
        ("reduction %", Side::Right),
        ("hops", Side::Right),
        ("busiest link", Side::Left),
        ("busy %", Side::Right),
    ];
    format!(
        "{collective} on {}: {} ranks on {hosts} hosts, in virtual time; GB/s of 10^9\n\n{}",
        fabric.name(),
        hosts * per_host,
        table(&columns, &rows)
    )
}

fn hottest(fabric: &Fabric, outcome: &Outcome) -> (String, String) {
    match outcome.hottest().first().filter(|load| load.bytes > 0.0) {
        None => (String::new(), String::new()),
        Some(load) => {
            let name = Hop::of_index(load.hop).name(fabric);
            (name, format!("{:.1}", load.busy * 100.0))
        }
    }
}

/// The busiest links.
pub(super) fn links(fabric: &Fabric, outcome: &Outcome, count: usize) -> String {
    let rows: Vec<Vec<String>> = outcome
        .hottest()
        .iter()
        .take(count)
        .map(|load| {
            vec![
                Hop::of_index(load.hop).name(fabric),
                format!("{:.3}", load.bytes / 1e6),
                format!("{:.1}", load.busy * 100.0),
            ]
        })
        .collect();
    let columns = [
        ("link", Side::Left),
        ("MB", Side::Right),
        ("busy %", Side::Right),
    ];
    table(&columns, &rows)
}

/// What the end waited for, the middle left out.
pub(super) fn critical_path(outcome: &Outcome) -> String {
    let path = outcome.critical_path();
    let rows = |records: &[ringway_sim::Record]| -> Vec<Vec<String>> {
        let row = |record: &ringway_sim::Record| {
            let what = match record.kind {
                Kind::Message { to } => format!("rank {} to {to}", record.rank),
                Kind::Work => format!("rank {} reduces", record.rank),
            };
            vec![
                format!("{:.3}", record.begun.seconds() * 1e6),
                format!("{:.3}", record.ended.seconds() * 1e6),
                what,
                record.bytes.to_string(),
            ]
        };
        records.iter().map(row).collect()
    };
    let columns = [
        ("from us", Side::Right),
        ("to us", Side::Right),
        ("critical path", Side::Left),
        ("bytes", Side::Right),
    ];
    if path.len() <= 2 * STEPS {
        return table(&columns, &rows(&path));
    }
    let mut shown = rows(&path[..STEPS]);
    let left = format!("... {} steps", path.len() - 2 * STEPS);
    shown.push(vec![String::new(), String::new(), left, String::new()]);
    shown.extend(rows(&path[path.len() - STEPS..]));
    table(&columns, &shown)
}

pub(super) fn as_json(fabric: &Fabric, collective: Collective, runs: &[Run]) -> serde_json::Value {
    let link = |load: &HopLoad| {
        serde_json::json!({
            "link": Hop::of_index(load.hop).name(fabric),
            "bytes": load.bytes,
            "busy": load.busy,
        })
    };
    let runs: Vec<_> = runs
        .iter()
        .map(|run| {
            let (outcome, end) = (&run.outcome, run.outcome.end);
            let links: Vec<_> = outcome.hottest().iter().take(HOTTEST).map(link).collect();
            serde_json::json!({
                "algorithm": run.algorithm.name(),
                "bytes": outcome.bytes,
                "seconds": end.at.seconds(),
                "latency_seconds": end.latency.seconds(),
                "wire_seconds": end.wire.seconds(),
                "contention_seconds": end.contention.seconds(),
                "reduction_seconds": end.reduction.seconds(),
                "algbw_gbps": outcome.algbw() / 1e9,
                "busbw_gbps": outcome.busbw() / 1e9,
                "messages": outcome.messages,
                "mean_hops": run.mean_hops,
                "busiest_links": links,
            })
        })
        .collect();
    serde_json::json!({
        "fabric": fabric.name(),
        "collective": collective.name(),
        "runs": runs,
    })
}
