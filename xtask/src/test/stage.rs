//! A stage of the test run, its verdict, and how its commands are run.

use std::cell::RefCell;
use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::count::Counts;
use super::failures::Shortener;
use crate::process::{self, Finished};

/// One stage.
pub(super) struct Stage {
    name: &'static str,
    needs: &'static [&'static str],
    minutes: u64,
    run: fn(&Runner) -> Result<Counts>,
}

/// How a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Passed,
    Failed,
    /// Not run, because a stage it needs did not pass.
    NotRun,
}

/// What a stage came to.
pub(super) struct Verdict {
    name: &'static str,
    pub(super) state: State,
    pub(super) counts: Counts,
    /// The names of the tests that failed, of a stage that has tests.
    pub(super) failures: Vec<String>,
    elapsed: Duration,
    note: String,
}

impl Stage {
    /// A stage that cannot work without those it `needs`, and is killed and has failed after so many
    /// minutes.
    pub(super) const fn new(
        name: &'static str,
        needs: &'static [&'static str],
        minutes: u64,
        run: fn(&Runner) -> Result<Counts>,
    ) -> Self {
        Self {
            name,
            needs,
            minutes,
            run,
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the stage unless one it needs is missing from those passed before.
    pub(super) fn judge(&self, before: &[Verdict], end: Instant) -> Verdict {
        let start = Instant::now();
        let missing = before
            .iter()
            .find(|verdict| self.needs.contains(&verdict.name) && verdict.state != State::Passed);
        if let Some(missing) = missing {
            return Verdict {
                name: self.name,
                state: State::NotRun,
                counts: Counts::default(),
                failures: Vec::new(),
                elapsed: Duration::ZERO,
                note: format!("needs {}, which did not pass", missing.name),
            };
        }
        println!("\n== {}", self.name);
        let runner = Runner {
            deadline: end.min(start + Duration::from_secs(60 * self.minutes)),
            failures: RefCell::default(),
            note: RefCell::default(),
        };
        let (counts, note) = match (self.run)(&runner) {
            Ok(counts) => (counts, runner.note.take()),
            Err(error) => (Counts::one_failed(), format!("{error:#}")),
        };
        let state = if counts.failed == 0 {
            State::Passed
        } else {
            State::Failed
        };
        Verdict {
            name: self.name,
            state,
            counts,
            failures: runner.failures.take(),
            elapsed: start.elapsed(),
            note,
        }
    }
}

impl Verdict {
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Passed => "ok",
            State::Failed => "FAILED",
            State::NotRun => "not run",
        };
        write!(
            f,
            "{:<9} {state:<7} {:6.1} s  {}",
            self.name,
            self.elapsed.as_secs_f64(),
            self.counts
        )?;
        if !self.note.is_empty() {
            write!(f, "  {}", self.note)?;
        }
        Ok(())
    }
}

/// Runs a stage's commands against the stage's deadline.
pub(super) struct Runner {
    deadline: Instant,
    failures: RefCell<Vec<String>>,
    note: RefCell<String>,
}

/// What reads a test runner's report.
pub(super) struct Report {
    pub(super) counts: fn(&str) -> Option<Counts>,
    pub(super) failures: fn(&str) -> Vec<String>,
}

impl Runner {
    /// A command that is one check: it passes with exit status 0.
    pub(super) fn check(&self, command: Command) -> Result<Counts> {
        match self.watch(command)?.failure {
            None => Ok(Counts::one_passed()),
            Some(failure) => bail!(failure),
        }
    }

    /// A command that is one check, whose output matters only if it fails. Its output.
    pub(super) fn quiet(&self, command: Command) -> Result<String> {
        let finished = process::watch(command, self.deadline, &mut |_| {})?;
        match finished.failure {
            None => Ok(finished.text),
            Some(failure) => {
                println!("{}", finished.text);
                bail!(failure)
            }
        }
    }

    /// Runs a command whose output is to be read, for so long at most.
    pub(super) fn listen(&self, command: Command, limit: Duration) -> Result<Finished> {
        let deadline = self.deadline.min(Instant::now() + limit);
        process::watch(command, deadline, &mut |_| {})
    }

    /// Says something of the stage in the table, should it pass.
    pub(super) fn note(&self, text: String) {
        self.note.replace(text);
    }

    /// Names a test that failed.
    pub(super) fn failed(&self, name: String) {
        self.failures.borrow_mut().push(name);
    }

    /// A test runner, whose report is read for counts and names. Its failure counts even where its
    /// report names no test, and a success without a report is none.
    pub(super) fn count(&self, command: Command, report: &Report) -> Result<Counts> {
        let finished = self.watch(command)?;
        for name in (report.failures)(&finished.text) {
            self.failed(name);
        }
        match ((report.counts)(&finished.text), finished.failure) {
            (Some(counts), None) => Ok(counts),
            (Some(counts), Some(failure)) => {
                println!("{failure}");
                Ok(Counts {
                    failed: counts.failed.max(1),
                    ..counts
                })
            }
            (None, Some(failure)) => bail!(failure),
            (None, None) => Err(anyhow::anyhow!("no summary line in its output"))
                .context("the test runner succeeded but did not say how many tests ran"),
        }
    }

    fn watch(&self, command: Command) -> Result<Finished> {
        println!("$ {}", process::shown(&command));
        let mut shortener = Shortener::default();
        let finished = process::watch(command, self.deadline, &mut |line| {
            shortener
                .line(line)
                .iter()
                .for_each(|line| println!("{line}"));
        });
        shortener.end().iter().for_each(|line| println!("{line}"));
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::super::PYTEST;
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failure_stops_only_the_stages_that_need_it() {
        let end = Instant::now() + Duration::from_secs(60);
        let stages = [
            Stage::new("bad", &[], 1, |runner| runner.check(sh("exit 1"))),
            Stage::new("needy", &["bad"], 1, |runner| runner.check(sh("true"))),
            Stage::new("needier", &["needy"], 1, |runner| runner.check(sh("true"))),
            Stage::new("free", &[], 1, |runner| runner.check(sh("true"))),
        ];
        let mut verdicts = Vec::new();
        for stage in &stages {
            let verdict = stage.judge(&verdicts, end);
            verdicts.push(verdict);
        }
        let states: Vec<State> = verdicts.iter().map(|verdict| verdict.state).collect();
        assert_eq!(
            states,
            [State::Failed, State::NotRun, State::NotRun, State::Passed]
        );
        let sum = verdicts
            .iter()
            .fold(Counts::default(), |sum, verdict| sum + verdict.counts);
        assert_eq!((sum.passed, sum.failed), (1, 1));
    }

    #[test]
    fn a_test_runner_is_not_believed_against_its_exit_status() {
        let runner = Runner {
            deadline: Instant::now() + Duration::from_secs(60),
            failures: RefCell::default(),
            note: RefCell::default(),
        };
        let counts = runner
            .count(sh("echo '3 passed in 1s'; exit 1"), &PYTEST)
            .unwrap();
        assert_eq!((counts.passed, counts.failed), (3, 1));
        assert!(runner.count(sh("echo nothing"), &PYTEST).is_err());
        assert!(runner.count(sh("exit 2"), &PYTEST).is_err());
    }
}
