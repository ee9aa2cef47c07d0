//! Stages as a table and as JSON.

use anyhow::Result;
use ringway::Communicator;
use serde::Serialize;

use super::{Stage, Step, train::Figures};

/// A stage, measured.
pub(super) struct Row {
    pub(super) stage: Stage,
    /// Collective operations of a step.
    pub(super) operations: usize,
    /// Seconds of a step.
    pub(super) compute: f64,
    pub(super) figures: Figures,
}

impl Row {
    fn name(&self) -> String {
        format!("{:?}", self.stage).to_lowercase()
    }

    /// What of the step isn't compute.
    fn share(&self) -> f64 {
        (1.0 - self.compute / self.figures.step).max(0.0)
    }
}

pub(super) fn heading(step: &Step, comm: &Communicator, bytes: usize, compute: f64) -> String {
    let (what, how) = (
        format!("{} x {}", step.model, step.scale),
        format!("{} ranks over {}", comm.size(), comm.path()),
    );
    format!(
        "{what}: {:.1} MB of gradients, {how}; compute {:.1} ms, waited for\n\n{:<14} {:>10} {:>9} {:>15} {:>11} {:>14} {:>9}\n",
        bytes as f64 / 1e6,
        compute * 1e3,
        "stage",
        "step ms",
        "speed-up",
        "communication %",
        "operations",
        "sent MB a rank",
        "CPU s"
    )
}

pub(super) fn line(row: &Row, baseline: Option<&Row>) -> String {
    let figures = &row.figures;
    let first = baseline.map_or(figures.step, |row| row.figures.step);
    let plus = if baseline.is_some() { "+ " } else { "" };
    format!(
        "{:<14} {:>10.1} {:>9.2} {:>15.1} {:>11} {:>14.2} {:>9.3}\n",
        format!("{plus}{}", row.name()),
        figures.step * 1e3,
        first / figures.step,
        row.share() * 100.0,
        row.operations,
        figures.wire / 1e6,
        figures.processor
    )
}

#[derive(Serialize)]
struct JsonRow {
    stage: String,
    step_seconds: f64,
    compute_seconds: f64,
    exposed_seconds: f64,
    communication_share: f64,
    speed_up: f64,
    operations: usize,
    sent_bytes: f64,
    processor_seconds: f64,
    wrong: u64,
}

pub(super) fn json(step: &Step, ranks: usize, rows: &[Row]) -> Result<String> {
    let first = rows.first().map_or(0.0, |row| row.figures.step);
    let json: Vec<JsonRow> = rows
        .iter()
        .map(|row| JsonRow {
            stage: row.name(),
            step_seconds: row.figures.step,
            compute_seconds: row.compute,
            exposed_seconds: row.figures.exposed,
            communication_share: row.share(),
            speed_up: first / row.figures.step,
            operations: row.operations,
            sent_bytes: row.figures.wire,
            processor_seconds: row.figures.processor,
            wrong: row.figures.wrong,
        })
        .collect();
    let whole = serde_json::json!({
        "model": step.model.to_string(),
        "codec": step.codec.to_string(),
        "scale": step.scale,
        "ranks": ranks,
        "steps": step.steps,
        "stages": json,
    });
    Ok(serde_json::to_string_pretty(&whole)?)
}
