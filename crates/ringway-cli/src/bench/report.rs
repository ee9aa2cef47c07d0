//! A benchmark's table, JSON and plot.

use anyhow::Result;
use serde_json::json;

use super::measure::{Measure, Sample};
use crate::size;

pub(crate) fn heading(measure: &Measure<'_>) -> String {
    let mut text = format!(
        "# {} on {} ranks, {} memory, medians of the slowest rank's times\n",
        measure.collective,
        measure.comm.size(),
        if measure.placement == super::Placement::Arena {
            "arena"
        } else {
            "user"
        },
    );
    text += &format!(
        "{:>10} {:>12} {:>6} {:>6} {:>6} {:>20} {:>9} {:>11} {:>11} {:>11} {:>9} {:>9} {:>7}\n",
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
    text += &format!(
        "{:>10} {:>12} {:>6} {:>6} {:>6} {:>20} {:>9} {:>11} {:>11} {:>11} {:>9} {:>9} {:>7}\n",
        "(B)", "(elements)", "", "", "", "", "", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", ""
    );
    text
}

pub(crate) fn line(row: &Sample) -> String {
    format!(
        "{:>10} {:>12} {:>6} {:>6} {:>6} {:>20} {:>9} {:>11.2} {:>11.2} {:>11.2} {:>9.3} {:>9.3} {:>7}\n",
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
    )
}

pub(crate) fn summary(rows: &[Sample]) -> String {
    let mean = rows.iter().map(Sample::busbw).sum::<f64>() / rows.len().max(1) as f64;
    format!("# average bus bandwidth: {mean:.3} GB/s\n")
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
                "predicted_us": row.predicted,
                "replans": row.replans,
                "algbw_gbps": row.algbw(),
                "busbw_gbps": row.busbw(),
                "wrong": row.wrong,
            })
        })
        .collect();
    Ok(serde_json::to_string_pretty(&rows)?)
}
