//! For a terminal: a table, then each finding with all that belongs to it.

use std::fmt::{self, Write as _};

use super::Report;
use crate::finding::{Confidence, Finding, Severity, Step};

pub(super) fn render(report: &Report, colour: bool) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, report, colour);
    out
}

fn write(out: &mut String, report: &Report, colour: bool) -> fmt::Result {
    table(out, report, colour)?;
    for finding in &report.findings {
        writeln!(out)?;
        detail(out, finding, colour)?;
    }
    if !report.unjudged.is_empty() {
        writeln!(out, "\nnot judged, and what would tell:")?;
        for unjudged in &report.unjudged {
            writeln!(
                out,
                "  {}  {}: {}",
                unjudged.check, unjudged.subject, unjudged.reason
            )?;
            for step in &unjudged.ask {
                writeln!(out, "    {step}")?;
            }
        }
    }
    if !report.findings.is_empty() || !report.unjudged.is_empty() {
        writeln!(out)?;
    }
    writeln!(out, "{}", report.summary())
}

fn table(out: &mut String, report: &Report, colour: bool) -> fmt::Result {
    if report.findings.is_empty() {
        return Ok(());
    }
    let width = |head: &str, of: fn(&Finding) -> usize| {
        let longest = report.findings.iter().map(of).max().unwrap_or(0);
        longest.max(head.len())
    };
    let severity = width("severity", |it| it.severity.name().len());
    let check = width("check", |it| it.check.len());
    let subject = width("where", |it| it.subject.chars().count());
    writeln!(
        out,
        "{:severity$}  {:check$}  {:subject$}  what",
        "severity", "check", "where"
    )?;
    for finding in &report.findings {
        let name = painted(
            &format!("{:severity$}", finding.severity.name()),
            finding.severity,
            colour,
        );
        writeln!(
            out,
            "{name}  {:check$}  {:subject$}  {}",
            finding.check, finding.subject, finding.problem
        )?;
    }
    Ok(())
}

fn detail(out: &mut String, finding: &Finding, colour: bool) -> fmt::Result {
    let name = painted(finding.severity.name(), finding.severity, colour);
    writeln!(out, "{name}  {}  {}", finding.check, finding.subject)?;
    writeln!(out, "  {}", finding.problem)?;
    writeln!(out, "  why       {}", finding.why)?;
    for evidence in &finding.evidence {
        // A value of several lines would break the column.
        let value = evidence.to_string().replace('\n', " ");
        writeln!(out, "  evidence  {value}")?;
    }
    steps(out, "remedy  ", &finding.remedy)?;
    steps(out, "rollback", &finding.rollback)?;
    match finding.confidence {
        Confidence::Certain => Ok(()),
        Confidence::Likely => {
            writeln!(out, "  sure?     likely: something else may make up for it")
        }
        Confidence::Unverified => writeln!(
            out,
            "  sure?     unverified: rests on a format or default that was never seen on such hardware"
        ),
    }
}

fn steps(out: &mut String, name: &str, steps: &[Step]) -> fmt::Result {
    for (i, step) in steps.iter().enumerate() {
        writeln!(out, "  {:8}  {step}", if i == 0 { name } else { "" })?;
    }
    Ok(())
}

/// Red, yellow, blue (ECMA-48, SGR).
fn painted(text: &str, severity: Severity, colour: bool) -> String {
    let code = match severity {
        Severity::Error => 31,
        Severity::Warning => 33,
        Severity::Note => 34,
    };
    if colour {
        format!("\x1b[1;{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
