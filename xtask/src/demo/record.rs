//! What `examples/train_digits.py --json` writes: a line for each epoch and one for the run.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// One backend's training.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    pub(super) epochs: Vec<Epoch>,
    pub(crate) run: Run,
}

/// One epoch's figures. Times are medians over its steps; the script's documentation says how they
/// are taken.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Epoch {
    pub(super) loss: f64,
    pub(super) accuracy: f64,
}

/// The whole run's figures, medians over all epochs.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Run {
    pub(super) backend: String,
    pub(super) ranks: u32,
    pub(super) torch: String,
    pub(super) parameters: u64,
    pub(super) batch: u32,
    pub(super) seconds: f64,
    pub(crate) accuracy: f64,
    pub(super) step_ms: f64,
    pub(super) comm_ms: f64,
    pub(super) comm_share: f64,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line {
    Epoch(Epoch),
    Run(Run),
}

impl Records {
    /// Reads the lines of one run; an error if it did not come to its end.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut epochs = Vec::new();
        let mut run = None;
        for (number, line) in text.lines().enumerate() {
            let line =
                serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
            match line {
                Line::Epoch(epoch) => epochs.push(epoch),
                Line::Run(this) => run = Some(this),
            }
        }
        match run {
            Some(run) if !epochs.is_empty() => Ok(Self { epochs, run }),
            _ => bail!(
                "the training did not come to its end: {} epochs and no closing line",
                epochs.len()
            ),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) const SAMPLE: &str = r#"{"event": "epoch", "backend": "gloo", "ranks": 2, "epoch": 1, "loss": 1.5, "accuracy": 0.8, "step_ms": 6.1, "comm_ms": 1.8, "comm_share": 0.3}
{"event": "epoch", "backend": "gloo", "ranks": 2, "epoch": 2, "loss": 0.02, "accuracy": 0.98, "step_ms": 6.0, "comm_ms": 1.6, "comm_share": 0.27}
{"event": "run", "backend": "gloo", "ranks": 2, "torch": "2.15.0", "parameters": 151306, "epochs": 2, "batch": 32, "seconds": 4.6, "accuracy": 0.98, "step_ms": 6.2, "comm_ms": 1.5, "comm_share": 0.24}
"#;

    #[test]
    fn a_run_is_read() {
        let records = Records::parse(SAMPLE).unwrap();
        assert_eq!(records.epochs.len(), 2);
        assert_eq!(records.epochs[1].accuracy, 0.98);
        assert_eq!((records.run.ranks, records.run.parameters), (2, 151_306));
    }

    #[test]
    fn a_run_cut_short_is_refused() {
        let cut: String = SAMPLE
            .lines()
            .take(2)
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(
            Records::parse(&cut)
                .unwrap_err()
                .to_string()
                .contains("2 epochs")
        );
        assert!(Records::parse("{\"event\": \"epoch\"}").is_err());
    }
}
