//! What was simulated, for people and for programs.

use std::cmp::Reverse;

use ringway_fabric::{Fabric, Hop};
use ringway_plan::{Collective, DataType};
use ringway_sim::{HopLoad, Kind, Outcome, PortCounts, Time};

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
            let part = |time: Time| {
                format!(
                    "{:.1}",
                    100.0 * time.seconds() / end.at.seconds().max(1e-12)
                )
            };
            let (name, busy) = hottest(fabric, outcome);
            vec![
                size::show(outcome.bytes),
                match run.wire {
                    Some(wire) => format!("{}, {wire} between hosts", run.algorithm),
                    None => run.algorithm.to_string(),
                },
                format!("{:.1}", end.at.seconds() * 1e6),
                format!("{:.2}", outcome.algbw() / 1e9),
                format!("{:.2}", outcome.busbw() / 1e9),
                part(end.latency),
                part(end.wire),
                part(end.contention),
                part(end.reduction),
                format!("{:.2}", run.mean_hops),
                format!("{:.2}", run.mean_switches()),
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
        ("switches", Side::Right),
        ("busiest link", Side::Left),
        ("busy %", Side::Right),
    ];
    format!(
        "{collective} on {}: {} ranks on {hosts} hosts, in virtual time; GB/s of 10^9\n\n{}{}",
        fabric.name(),
        hosts * per_host,
        table(&columns, &rows),
        packets(fabric, runs)
    )
}

/// What packets did in each run, if there were any.
fn packets(fabric: &Fabric, runs: &[Run]) -> String {
    let row = |run: &Run| {
        let report = run.outcome.packets.as_ref()?;
        let ports = || report.ports.iter().enumerate();
        let (hop, queue) = ports().max_by_key(|p| (p.1.longest_queue, Reverse(p.0)))?;
        let paused = ports().max_by_key(|p| (p.1.paused, Reverse(p.0)))?.1.paused;
        let sum = |count: fn(&PortCounts) -> u64| ports().map(|p| count(p.1)).sum::<u64>();
        Some(vec![
            size::show(run.outcome.bytes),
            run.algorithm.to_string(),
            kilobytes(queue.longest_queue),
            match queue.longest_queue {
                0 => String::new(),
                _ => Hop::of_index(hop).name(fabric),
            },
            micros(paused),
            sum(|p| u64::from(p.pauses > 0)).to_string(),
            sum(|p| p.marked).to_string(),
            report.notifications.to_string(),
            sum(|p| p.dropped).to_string(),
            report.resent.to_string(),
            report.timeouts.to_string(),
        ])
    };
    let rows: Vec<Vec<String>> = runs.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = [
        ("size", Side::Right),
        ("algorithm", Side::Left),
        ("longest queue KB", Side::Right),
        ("before", Side::Left),
        ("longest pause us", Side::Right),
        ("links paused", Side::Right),
        ("marked", Side::Right),
        ("CNPs", Side::Right),
        ("dropped", Side::Right),
        ("resent", Side::Right),
        ("timeouts", Side::Right),
    ];
    format!("\n{}", table(&columns, &rows))
}

fn kilobytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e3)
}

fn micros(time: Time) -> String {
    format!("{:.1}", time.seconds() * 1e6)
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
            let mut row = vec![
                Hop::of_index(load.hop).name(fabric),
                format!("{:.3}", load.bytes / 1e6),
                format!("{:.1}", load.busy * 100.0),
            ];
            row.extend(port(outcome, load).map_or_else(Vec::new, |port| {
                vec![
                    kilobytes(port.longest_queue),
                    micros(port.paused),
                    port.marked.to_string(),
                    port.notifications.to_string(),
                    port.dropped.to_string(),
                    port.resent.to_string(),
                ]
            }));
            row
        })
        .collect();
    let mut columns = vec![
        ("link", Side::Left),
        ("MB", Side::Right),
        ("busy %", Side::Right),
    ];
    if outcome.packets.is_some() {
        let names = [
            "queue KB",
            "paused us",
            "marked",
            "CNPs",
            "dropped",
            "resent",
        ];
        columns.extend(names.map(|name| (name, Side::Right)));
    }
    table(&columns, &rows)
}

/// What packets did on a link.
fn port<'a>(outcome: &'a Outcome, load: &HopLoad) -> Option<&'a PortCounts> {
    outcome.packets.as_ref()?.ports.get(load.hop)
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
    let link = |outcome: &Outcome, load: &HopLoad| {
        let mut link = serde_json::json!({
            "link": Hop::of_index(load.hop).name(fabric),
            "bytes": load.bytes,
            "busy": load.busy,
        });
        if let Some(port) = port(outcome, load) {
            link["packets"] = serde_json::json!({
                "sent": port.packets,
                "wire_bytes": port.wire_bytes,
                "longest_queue_bytes": port.longest_queue,
                "paused_seconds": port.paused.seconds(),
                "pauses": port.pauses,
                "marked": port.marked,
                "notifications": port.notifications,
                "dropped": port.dropped,
                "resent": port.resent,
                "resent_bytes": port.resent_bytes,
            });
        }
        link
    };
    let runs: Vec<_> = runs
        .iter()
        .map(|run| {
            let (outcome, end) = (&run.outcome, run.outcome.end);
            let links: Vec<_> = outcome
                .hottest()
                .iter()
                .take(HOTTEST)
                .map(|load| link(outcome, load))
                .collect();
            let packets = outcome.packets.as_ref().map(|report| {
                serde_json::json!({
                    "notifications": report.notifications,
                    "resent": report.resent,
                    "timeouts": report.timeouts,
                    "events": report.events,
                })
            });
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
                "mean_switches": run.mean_switches(),
                "wire_between_hosts": run.wire.map(DataType::name),
                "busiest_links": links,
                "packets": packets,
            })
        })
        .collect();
    serde_json::json!({
        "fabric": fabric.name(),
        "collective": collective.name(),
        "runs": runs,
    })
}
