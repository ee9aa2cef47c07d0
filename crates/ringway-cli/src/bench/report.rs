//! A benchmark's table, JSON and plot.

use anyhow::Result;
use serde_json::json;

use super::measure::{Measure, Sample};
use crate::size;

pub(crate) fn heading(measure: &Measure<'_>) {
    println!(
        "# {} on {} ranks, {} memory, medians of the slowest rank's times",
        measure.collective,
        measure.comm.size(),
        if measure.placement == super::Placement::Arena {
            "arena"
        } else {
            "user"
        },
    );
    println!(
        "{:>10} {:>12} {:>6} {:>6} {:>6} {:>20} {:>9} {:>11} {:>11} {:>11} {:>9} {:>9} {:>7}",
        "size",
        "count",
        "type",
        "redop",
        "path",
        "algorithm",
        "iters",
        "min",
        "time",
        "p99",
        "algbw",
        "busbw",
        "#wrong"
    );
    println!(
        "{:>10} {:>12} {:>6} {:>6} {:>6} {:>20} {:>9} {:>11} {:>11} {:>11} {:>9} {:>9} {:>7}",
        "(B)", "(elements)", "", "", "", "", "", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", ""
    );
}

pub(crate) fn line(row: &Sample) {
    println!(
        "{:>10} {:>12} {:>6} {:>6} {:>6} {:>20} {:>9} {:>11.2} {:>11.2} {:>11.2} {:>9.3} {:>9.3} {:>7}",
        size::show(row.bytes),
        row.bytes / row.dtype.size(),
        row.dtype,
        row.op.map_or("-", |op| op.name()),
        row.transport,
        row.algorithm,
        row.iterations,
        row.percentile(0.0),
        row.percentile(0.5),
        row.percentile(0.99),
        row.algbw(),
        row.busbw(),
        row.wrong,
    );
}

pub(crate) fn summary(rows: &[Sample]) {
    let mean = rows.iter().map(Sample::busbw).sum::<f64>() / rows.len().max(1) as f64;
    println!("# average bus bandwidth: {mean:.3} GB/s");
}

/// The rows for programs.
pub(crate) fn json(rows: &[Sample]) -> Result<String> {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "collective": row.collective.name(),
                "transport": row.transport,
                "algorithm": row.algorithm.name(),
                "ranks": row.ranks,
                "dtype": row.dtype.name(),
                "op": row.op.map(|op| op.name()),
                "bytes": row.bytes,
                "iters": row.iterations,
                "time_us": {
                    "min": row.percentile(0.0),
                    "p50": row.percentile(0.5),
                    "p90": row.percentile(0.9),
                    "p99": row.percentile(0.99),
                    "max": row.percentile(1.0),
                },
                "algbw_gbps": row.algbw(),
                "busbw_gbps": row.busbw(),
                "wrong": row.wrong,
            })
        })
        .collect();
    Ok(serde_json::to_string_pretty(&rows)?)
}
