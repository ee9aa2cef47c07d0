//! `cargo xtask bench`: all-reduce within this machine, as `ringway bench` measures it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{demo, process, repo, setup};

const CASES: [Case; 4] = [
    Case {
        transport: "shm",
        ranks: 2,
    },
    Case {
        transport: "shm",
        ranks: 4,
    },
    Case {
        transport: "tcp",
        ranks: 2,
    },
    Case {
        transport: "tcp",
        ranks: 4,
    },
];
/// Bytes of the gradient, 4 B to 64 MiB.
const SIZES: [u64; 7] = [4, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 24, 1 << 26];
/// Spent on each size.
const SECONDS: &str = "0.5";

#[derive(Clone, Copy)]
struct Case {
    transport: &'static str,
    ranks: u32,
}

/// What is read of a row of `ringway bench --json`; all of it is kept in the report.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Row {
    bytes: u64,
    time_us: Time,
    busbw_gbps: f64,
    wrong: u64,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Time {
    p50: f64,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

/// Measures every case; writes `bench.md`, `bench.json` and a picture of each case under `report/`.
pub(crate) fn run() -> Result<()> {
    setup::run()?;
    process::run(demo::build_launcher())?;
    let report = repo::report()?;
    let mut columns = Vec::new();
    for case in CASES {
        println!("\nall-reduce, {} ranks, {}:", case.ranks, case.transport);
        columns.push((case, measure(case, &report)?));
    }

    let all: Vec<&Row> = columns.iter().flat_map(|(_, rows)| rows).collect();
    write(
        &report.join("bench.json"),
        &serde_json::to_string_pretty(&all)?,
    )?;
    let table = table(&columns);
    write(&report.join("bench.md"), &table)?;
    println!("\n{table}\nReport: {}", report.join("bench.md").display());

    let wrong: u64 = all.iter().map(|row| row.wrong).sum();
    if wrong != 0 {
        bail!(
            "{wrong} results were wrong; the rows with `wrong` above zero in bench.json say where"
        );
    }
    Ok(())
}

fn measure(case: Case, report: &Path) -> Result<Vec<Row>> {
    let name = format!("bench-{}-{}", case.transport, case.ranks);
    let json = report.join(format!("{name}.json"));
    let mut bench = Command::new(repo::ringway());
    bench.args(["bench", "all-reduce", "--transport", case.transport]);
    bench.args(["--ranks", &case.ranks.to_string(), "--seconds", SECONDS]);
    bench.args(["--sizes", &SIZES.map(|size| size.to_string()).join(",")]);
    bench
        .arg("--json")
        .arg(&json)
        .arg("--plot")
        .arg(report.join(format!("{name}.svg")));
    process::run(bench)?;
    let text =
        fs::read_to_string(&json).with_context(|| format!("cannot read {}", json.display()))?;
    serde_json::from_str(&text).with_context(|| format!("unexpected rows in {}", json.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A row for each size with the median time and the bus bandwidth of each case.
fn table(columns: &[(Case, Vec<Row>)]) -> String {
    let mut head = "| all-reduce, float32 sum |".to_owned();
    let mut line = "|---:|".to_owned();
    let mut rows: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (number, (case, measured)) in columns.iter().enumerate() {
        let _ = write!(head, " {}, {} ranks |", case.transport, case.ranks);
        line += "---:|";
        for row in measured {
            let cells = rows.entry(row.bytes).or_default();
            cells.resize(number, String::new());
            cells.push(format!(
                "{:.1} us, {:.2} GB/s",
                row.time_us.p50, row.busbw_gbps
            ));
        }
    }
    let mut text = format!("{head}\n{line}\n");
    for (bytes, mut cells) in rows {
        cells.resize(columns.len(), String::new());
        let _ = writeln!(text, "| {} | {} |", size(bytes), cells.join(" | "));
    }
    text + "\nMedian time of one operation and nccl-tests' bus bandwidth (10^9 bytes).\n"
}

/// The size in the largest unit that divides it.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    units
        .into_iter()
        .find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit))
        .map_or_else(
            || format!("{bytes} B"),
            |(unit, name)| format!("{} {name}", bytes / unit),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: u64, p50: f64) -> Row {
        let json = format!(
            r#"{{"collective": "all_reduce", "bytes": {bytes}, "wrong": 0, "algbw_gbps": 1.0,
                 "busbw_gbps": 2.5, "time_us": {{"min": 1.0, "p50": {p50}, "max": 9.0}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn cases_stand_beside_each_other() {
        let columns = [
            (CASES[0], vec![row(4, 0.3)]),
            (CASES[2], vec![row(4, 7.0), row(1 << 20, 900.0)]),
        ];
        let table = table(&columns);
        assert!(table.contains("| 4 B | 0.3 us, 2.50 GB/s | 7.0 us, 2.50 GB/s |"));
        assert!(table.contains("| 1 MiB |  | 900.0 us, 2.50 GB/s |"));
    }

    #[test]
    fn fields_not_named_here_are_kept() {
        let text = serde_json::to_string(&row(4, 0.3)).unwrap();
        assert!(text.contains("algbw_gbps") && text.contains("\"max\":9.0"));
    }

    #[test]
    fn sizes_are_written_in_the_largest_fitting_unit() {
        let written = [4, 1 << 10, 1500, 3 << 20, 1 << 30].map(size);
        assert_eq!(written, ["4 B", "1 KiB", "1500 B", "3 MiB", "1 GiB"]);
    }
}
