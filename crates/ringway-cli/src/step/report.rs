//! Stages as a table and as JSON.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::{Stage, Step, timeline::Timeline, train::Figures};
use crate::output;

/// A stage, measured.
#[derive(Clone, Copy)]
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

/// Rows as text, as they come.
pub(super) struct Table<'a> {
    step: &'a Step,
    /// On what.
    how: String,
    first: Option<Row>,
}

impl<'a> Table<'a> {
    pub(super) const fn new(step: &'a Step, how: String) -> Self {
        Self {
            step,
            how,
            first: None,
        }
    }

    /// A row, below the heading if it is the first; nothing where the standard output is for programs.
    pub(super) fn print(&mut self, row: &Row, bytes: usize) -> Result<()> {
        if self
            .step
            .json
            .as_ref()
            .is_some_and(|p| p.as_os_str() == "-")
        {
            return Ok(());
        }
        if self.first.is_none() {
            output::print(&self.heading(bytes, row.compute))?;
        }
        output::print(&self.line(row))?;
        self.first.get_or_insert(*row);
        Ok(())
    }

    fn heading(&self, bytes: usize, compute: f64) -> String {
        format!(
            "{} x {}: {:.1} MB of gradients, {}; compute {:.1} ms, waited for\n\n{:<14} {:>10} {:>9} {:>15} {:>11} {:>14} {:>9}\n",
            self.step.model,
            self.step.scale,
            bytes as f64 / 1e6,
            self.how,
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

    fn line(&self, row: &Row) -> String {
        let figures = &row.figures;
        let first = self.first.map_or(figures.step, |row| row.figures.step);
        let plus = if self.first.is_some() { "+ " } else { "" };
        let processor = figures
            .processor
            .map_or_else(|| "-".to_owned(), |s| format!("{s:.3}"));
        format!(
            "{:<14} {:>10.1} {:>9.2} {:>15.1} {:>11} {:>14.2} {:>9}\n",
            format!("{plus}{}", row.name()),
            figures.step * 1e3,
            first / figures.step,
            row.share() * 100.0,
            row.operations,
            figures.wire / 1e6,
            processor
        )
    }
}

/// The layers for other programs, in the order of forward.
pub(super) fn layers(step: &Step) -> Result<()> {
    #[derive(Serialize)]
    struct JsonLayer {
        name: String,
        elements: usize,
        forward_seconds: f64,
        backward_seconds: f64,
    }
    let layers = step.scaled();
    let compute = Duration::from_secs_f64(step.compute.unwrap_or_default());
    let slots = Timeline::new(&layers, compute, None).slots;
    let json: Vec<JsonLayer> = layers
        .into_iter()
        .zip(slots)
        .map(|(layer, slot)| JsonLayer {
            name: layer.name,
            elements: layer.elements,
            forward_seconds: slot.forward.as_secs_f64(),
            backward_seconds: slot.backward.as_secs_f64(),
        })
        .collect();
    output::print_json(&json)
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
    processor_seconds: Option<f64>,
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
    let is_simulated = step.simulate.is_some();
    let whole = serde_json::json!({
        "model": step.model.to_string(),
        "codec": step.codec.to_string(),
        "scale": step.scale,
        "ranks": ranks,
        "simulated": is_simulated,
        // Every step of a simulation is the same.
        "steps": (!is_simulated).then_some(step.steps),
        "rounds": (!is_simulated).then_some(step.rounds),
        "stages": json,
    });
    Ok(serde_json::to_string_pretty(&whole)?)
}
