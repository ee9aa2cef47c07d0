//! `ringway fabric check`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;
use ringway_fabric::{Severity, check};

use super::{gigabytes, read};
use crate::{
    output,
    table::{Side, table},
};

/// Check a fabric: every leaf to every spine, oversubscription, bisection, paths, single points of failure, speeds.
///
/// Fails if hosts cannot reach each other; with --strict, also at warnings.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway fabric check fabric.yaml\n  ringway fabric check fabric.yaml --strict --json | jq .findings"
)]
pub(crate) struct Check {
    /// The fabric file.
    fabric: PathBuf,
    /// Fail at warnings too.
    #[arg(long)]
    strict: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn execute(self) -> Result<ExitCode> {
        let fabric = read(&self.fabric)?;
        let check = check(&fabric);
        match self.json {
            true => output::print_json(&as_json(&fabric, &check))?,
            false => output::print(&as_text(&fabric, &check))?,
        }
        let bad = |s| s == Severity::Error || (self.strict && s == Severity::Warning);
        Ok(match check.findings.iter().any(|f| bad(f.severity)) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }
}

fn as_text(fabric: &ringway_fabric::Fabric, check: &ringway_fabric::Check) -> String {
    let mut rows: Vec<Vec<String>> = check
        .tiers
        .iter()
        .map(|t| {
            let loads = format!("{} down, {} up", gigabytes(t.down), gigabytes(t.up));
            vec![
                format!("{} oversubscription", t.tier),
                format!("{:.2}:1", t.oversubscription),
                format!("{loads}, {} switches", t.switches),
            ]
        })
        .collect();
    let (bisection, lengths, diversity) = (&check.bisection, &check.lengths, &check.diversity);
    let part = bisection.rate / bisection.full.max(1.0) * 100.0;
    rows.push(vec![
        "bisection bandwidth".to_owned(),
        gigabytes(bisection.rate),
        format!("{part:.0} % of what the hosts' links allow, one way"),
    ]);
    rows.push(vec![
        "path length".to_owned(),
        format!("{:.2} links", lengths.mean),
        format!(
            "{} to {}, {} pairs of hosts",
            lengths.least, lengths.most, lengths.pairs
        ),
    ]);
    let ways = match diversity.least == diversity.most {
        true => diversity.least.to_string(),
        false => format!("{} to {}", diversity.least, diversity.most),
    };
    rows.push(vec![
        "equal paths".to_owned(),
        ways,
        "between hosts that are not neighbours".to_owned(),
    ]);
    let columns = [
        ("measure", Side::Left),
        ("value", Side::Right),
        ("", Side::Left),
    ];
    let mut text = format!(
        "{}: {} hosts, {} switches, {} links\n\n{}",
        fabric.name(),
        fabric.hosts(),
        fabric.switches().count(),
        fabric.links().len(),
        table(&columns, &rows)
    );
    for f in &check.findings {
        text += &format!(
            "\n{} ({}): {}: {}\n  remedy: {}\n",
            f.severity, f.check, f.place, f.what, f.remedy
        );
    }
    let count = |s| check.findings.iter().filter(|f| f.severity == s).count();
    text += &format!(
        "\n{} errors, {} warnings, {} notes\n",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Note)
    );
    text
}

fn as_json(fabric: &ringway_fabric::Fabric, check: &ringway_fabric::Check) -> serde_json::Value {
    let findings: Vec<_> = check
        .findings
        .iter()
        .map(|f| {
            serde_json::json!({
                "severity": f.severity.to_string(),
                "check": f.check,
                "place": f.place,
                "what": f.what,
                "remedy": f.remedy,
            })
        })
        .collect();
    let tiers: Vec<_> = check
        .tiers
        .iter()
        .map(|t| {
            serde_json::json!({
                "tier": t.tier.name(),
                "switches": t.switches,
                "down_bytes_per_second": t.down,
                "up_bytes_per_second": t.up,
                "oversubscription": t.oversubscription,
            })
        })
        .collect();
    serde_json::json!({
        "fabric": fabric.name(),
        "hosts": fabric.hosts(),
        "switches": fabric.switches().count(),
        "links": fabric.links().len(),
        "tiers": tiers,
        "bisection": {
            "bytes_per_second": check.bisection.rate,
            "full_bytes_per_second": check.bisection.full,
        },
        "path_links": {
            "least": check.lengths.least,
            "mean": check.lengths.mean,
            "most": check.lengths.most,
            "pairs": check.lengths.pairs,
            "unreachable_pairs": check.lengths.unreachable,
        },
        "equal_paths": {"least": check.diversity.least, "most": check.diversity.most},
        "findings": findings,
    })
}
