//! Jobs over the lossless network: Kubernetes manifests and Slurm scripts from the same intent.

use minijinja::Value;
use minijinja::value::Serde;
use serde::Serialize;

use super::{ConfigError, Target, View, environment};
use crate::intent::Intent;

/// What starts the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// Manifests: device plugin, networks, headless service, indexed job.
    Kubernetes,
    /// A batch script.
    Slurm,
}

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name, of lower-case letters, digits and `-`.
    pub name: String,
    /// How many hosts.
    pub hosts: u32,
    /// Ranks on each host.
    pub ranks: u32,
    /// Processors for each rank.
    pub cpus: u32,
    /// Memory of each host, as Kubernetes writes it: `64Gi`.
    pub memory: String,
    /// Whether each rank has a GPU.
    pub gpus: bool,
    /// The container's image.
    pub image: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

impl Job {
    fn script(&self) -> &[String] {
        match self.command.split_first() {
            Some((first, rest))
                if matches!(first.as_str(), "python" | "python3") && !rest.is_empty() =>
            {
                rest
            }
            _ => &self.command,
        }
    }
}

#[derive(Serialize)]
struct JobView {
    name: String,
    hosts: u32,
    ranks: u32,
    cpus: u32,
    cpus_per_rank: u32,
    memory: String,
    gpus: bool,
    image: String,
    command: Vec<String>,
    /// The command for torchrun, which starts Python itself.
    script: Vec<String>,
}

#[derive(Serialize)]
struct Variables {
    #[serde(flatten)]
    view: View,
    job: JobView,
}

/// The manifests or the script of a job, the same bytes for the same intent and job.
pub fn render_job(intent: &Intent, job: &Job, scheduler: Scheduler) -> Result<String, ConfigError> {
    check(job)?;
    let inexpressible = |reason: String| ConfigError::Inexpressible {
        target: Target::Host,
        reasons: vec![reason],
    };
    let view = View::new(intent, Target::Host).map_err(|error| inexpressible(error.to_string()))?;
    let (name, source, quote): (_, _, fn(&str) -> String) = match scheduler {
        Scheduler::Kubernetes => ("k8s.job.j2", include_str!("templates/k8s.job.j2"), yaml),
        Scheduler::Slurm => (
            "slurm.job.j2",
            include_str!("templates/slurm.job.j2"),
            shell,
        ),
    };
    let variables = Variables {
        view,
        job: JobView {
            name: job.name.clone(),
            hosts: job.hosts,
            ranks: job.ranks,
            cpus: job.cpus.saturating_mul(job.ranks),
            cpus_per_rank: job.cpus,
            memory: job.memory.clone(),
            gpus: job.gpus,
            image: quote(&job.image),
            command: job.command.iter().map(|word| quote(word)).collect(),
            script: job.script().iter().map(|word| quote(word)).collect(),
        },
    };
    let wrong = |error: minijinja::Error| ConfigError::Template {
        name: name.to_owned(),
        detail: format!("{error:#}"),
    };
    environment()
        .map_err(wrong)?
        .render_named_str(name, source, Value::from(Serde(variables)))
        .map_err(wrong)
}

/// Names become names of Kubernetes objects (RFC 1123), and counts become resources.
fn check(job: &Job) -> Result<(), ConfigError> {
    let refuse = |reason: String| Err(ConfigError::Job { reason });
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let name = &job.name;
    if !(1..=40).contains(&name.len())
        || !name.chars().all(fits)
        || !name.starts_with(|c: char| c.is_ascii_lowercase())
        || name.ends_with('-')
    {
        return refuse(format!(
            "the name is `{name}`, expected 1 to 40 lower-case letters, digits and `-`, a letter first"
        ));
    }
    for (what, count, most) in [
        ("hosts", job.hosts, 65_536),
        ("ranks", job.ranks, 256),
        ("cpus", job.cpus, 4096),
    ] {
        if !(1..=most).contains(&count) {
            return refuse(format!("{what} is {count}, expected 1 to {most}"));
        }
    }
    let digits = job.memory.trim_end_matches("Gi").trim_end_matches("Mi");
    if digits == job.memory || digits.parse::<u32>().map_or(true, |number| number == 0) {
        return refuse(format!(
            "memory is `{}`, expected a size such as 64Gi or 512Mi",
            job.memory
        ));
    }
    if job.command.is_empty() {
        return refuse("the command is empty: give the program after `--`".to_owned());
    }
    Ok(())
}

/// A word as YAML's double-quoted scalar, which is JSON's string.
fn yaml(word: &str) -> String {
    serde_json::Value::from(word).to_string()
}

/// A word as the shell takes it for one.
fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        assert_eq!(shell("train.py"), "train.py");
        assert_eq!(shell("a b"), "'a b'");
        assert_eq!(shell("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(yaml("a: \"b\"\n"), r#""a: \"b\"\n""#);
    }
}
