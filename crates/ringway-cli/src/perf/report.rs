//! Rows for people, with perftest's columns, and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{
    client::Connection,
    figures::{Figures, Row, histogram, mean, percentile},
    test::{Measure, Test},
};

/// The widest bar of a histogram, in characters.
const BAR: usize = 50;

/// What is measured, and the names of the columns.
pub(super) fn heading(test: &Test, connection: &Connection) -> String {
    let [client, server] = &connection.devices;
    let mut text = format!(
        "# {}: {client} {} {server}, MTU {} bytes",
        test.name(),
        if test.bidirectional { "<->" } else { "->" },
        connection.mtu
    );
    match test.measure {
        Measure::Bw => {
            let _ = writeln!(text, ", queue pairs {}, depth {}", test.qps, test.depth);
            let _ = write!(
                text,
                "{:>10} {:>11} {:>13} {:>16} {:>14}",
                "#bytes", "#iterations", "BW peak[GB/s]", "BW average[GB/s]", "MsgRate[Mpps]"
            );
        }
        Measure::Lat => {
            let of = if test.operation.pushes() {
                "half a round trip"
            } else {
                "a request and its answer"
            };
            let _ = writeln!(text, ", times of {of}");
            let _ = write!(
                text,
                "{:>10} {:>11} {:>11} {:>14} {:>11} {:>9} {:>11} {:>11}",
                "#bytes",
                "#iterations",
                "t_min[usec]",
                "t_median[usec]",
                "t_avg[usec]",
                "99%[usec]",
                "99.9%[usec]",
                "t_max[usec]"
            );
        }
    }
    text
}

/// A row of the table.
pub(super) fn line(row: &Row) -> String {
    let mut text = format!("{:>10} {:>11} ", row.bytes, row.iterations);
    let gigabytes = row.bytes as f64 / 1e9;
    let _ = match &row.figures {
        Figures::Bandwidth { peak, mean } => write!(
            text,
            "{:>13.3} {:>16.3} {:>14.6}",
            peak * gigabytes,
            mean * gigabytes,
            mean / 1e6
        ),
        Figures::Latency(times) => write!(
            text,
            "{:>11.2} {:>14.2} {:>11.2} {:>9.2} {:>11.2} {:>11.2}",
            percentile(times, 0.0),
            percentile(times, 0.5),
            mean(times),
            percentile(times, 0.99),
            percentile(times, 0.999),
            percentile(times, 1.0)
        ),
    };
    text
}

/// The distribution of a row's latencies, a bar for each range; empty for a bandwidth.
pub(super) fn bars(row: &Row) -> String {
    let Figures::Latency(times) = &row.figures else {
        return String::new();
    };
    let counts = histogram(times);
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let mut text = String::new();
    for (limit, count) in counts {
        // What is there is seen, be it ever so little.
        let length = (count * BAR).div_ceil(most.max(1));
        let bar = "#".repeat(length);
        let space = if bar.is_empty() { "" } else { " " };
        let _ = writeln!(text, "{limit:>14.2} us {count:>8}{space}{bar}");
    }
    text
}

/// A row with all that it was measured with: sizes in bytes, times in microseconds, bandwidths in GB/s of 10^9 bytes,
/// message rates in millions per second.
pub(super) fn json(test: &Test, connection: &Connection, row: &Row, bars: bool) -> Value {
    let mut value = json!({
        "operation": test.operation,
        "measure": test.measure,
        "client": connection.devices[0],
        "server": connection.devices[1],
        "mtu": connection.mtu,
        "qps": test.qps,
        "depth": test.depth,
        "bidirectional": test.bidirectional,
        "bytes": row.bytes,
        "iterations": row.iterations,
        // A row with wrong data is an error.
        "checked": true,
    });
    let gigabytes = row.bytes as f64 / 1e9;
    let figures = match &row.figures {
        Figures::Bandwidth { peak, mean } => json!({
            "peak_gb_per_s": peak * gigabytes,
            "average_gb_per_s": mean * gigabytes,
            "mpps": mean / 1e6,
        }),
        Figures::Latency(times) => json!({
            "min_us": percentile(times, 0.0),
            "median_us": percentile(times, 0.5),
            "average_us": mean(times),
            "p99_us": percentile(times, 0.99),
            "p99_9_us": percentile(times, 0.999),
            "max_us": percentile(times, 1.0),
        }),
    };
    if let (Value::Object(value), Value::Object(figures)) = (&mut value, figures) {
        value.extend(figures);
    }
    if let (Figures::Latency(times), true) = (&row.figures, bars) {
        let counts = histogram(times);
        value["histogram"] = counts
            .iter()
            .map(|(limit, count)| json!({"below_us": limit, "count": count}))
            .collect();
    }
    value
}
