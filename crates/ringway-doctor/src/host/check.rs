//! What a check is, and how it says what it has found.

use std::{borrow::Cow, fmt, str::FromStr};

use super::Host;
use crate::finding::{Confidence, Evidence, Finding, Severity, Step, Unjudged};

/// What checks are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// RDMA devices, their drivers and libraries, GPUs' drivers.
    Devices,
    /// Ports, MTUs, bonds, errors on the wire.
    Links,
    /// Addresses of ports.
    Gids,
    /// Locked memory, huge pages, shared memory, fork.
    Memory,
    /// Links of cards, ACS, IOMMU, ASPM, read requests, NUMA, distance of GPUs.
    Pcie,
    /// C-states, frequency, interrupts.
    Cpu,
    /// Trust, DSCP, PFC, ETS, buffers, ECN, CNP, traffic class.
    Qos,
    /// Kernel settings of the network and of memory.
    Sysctls,
    /// Containers and Kubernetes.
    Containers,
    /// Overlay networks.
    Overlays,
    /// Slurm.
    Slurm,
}

impl Group {
    /// All of them, in the order in which they are run and printed.
    pub const ALL: [Self; 11] = [
        Self::Devices,
        Self::Links,
        Self::Gids,
        Self::Memory,
        Self::Pcie,
        Self::Cpu,
        Self::Qos,
        Self::Sysctls,
        Self::Containers,
        Self::Overlays,
        Self::Slurm,
    ];

    /// The name in ids of checks and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Links => "links",
            Self::Gids => "gids",
            Self::Memory => "memory",
            Self::Pcie => "pcie",
            Self::Cpu => "cpu",
            Self::Qos => "qos",
            Self::Sysctls => "sysctls",
            Self::Containers => "containers",
            Self::Overlays => "overlays",
            Self::Slurm => "slurm",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|group| group.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no group `{name}`: expected one of {names}")
        })
    }
}

/// A check of a host: an entry of the table that `docs/doctor.md` shows.
pub struct Check {
    /// `group.check`.
    pub id: &'static str,
    /// What it is about.
    pub group: Group,
    /// What is well, in a few words.
    pub expects: &'static str,
    /// Why it matters, in one line.
    pub why: &'static str,
    /// Where that is from.
    pub source: &'static str,
    /// Looks, and tells what it has found. `false`: there is nothing here that it is about.
    pub(super) run: fn(&Host<'_>, &mut Said) -> bool,
}

/// What a check has said so far.
pub(super) struct Said {
    id: &'static str,
    why: &'static str,
    pub(super) findings: Vec<Finding>,
    pub(super) unjudged: Vec<Unjudged>,
}

impl Said {
    pub(super) fn new(check: &Check) -> Self {
        Self {
            id: check.id,
            why: check.why,
            findings: Vec::new(),
            unjudged: Vec::new(),
        }
    }

    /// RDMA does not work, or loses packets where it must not.
    pub(super) fn error(
        &mut self,
        subject: impl Into<String>,
        problem: impl Into<String>,
    ) -> Draft<'_> {
        self.find(Severity::Error, subject.into(), problem.into())
    }

    /// It works, but not well, or not for long.
    pub(super) fn warn(
        &mut self,
        subject: impl Into<String>,
        problem: impl Into<String>,
    ) -> Draft<'_> {
        self.find(Severity::Warning, subject.into(), problem.into())
    }

    /// Worth knowing.
    pub(super) fn note(
        &mut self,
        subject: impl Into<String>,
        problem: impl Into<String>,
    ) -> Draft<'_> {
        self.find(Severity::Note, subject.into(), problem.into())
    }

    fn find(&mut self, severity: Severity, subject: String, problem: String) -> Draft<'_> {
        self.findings.push(Finding {
            check: Cow::Borrowed(self.id),
            severity,
            confidence: Confidence::Certain,
            subject,
            problem,
            why: Cow::Borrowed(self.why),
            evidence: Vec::new(),
            remedy: Vec::new(),
            rollback: Vec::new(),
        });
        let last = self.findings.len() - 1;
        Draft {
            finding: &mut self.findings[last],
        }
    }

    /// Something could not be judged; `ask` is a command that finds out.
    pub(super) fn unknown(
        &mut self,
        subject: impl Into<String>,
        reason: impl Into<String>,
        ask: impl Into<String>,
    ) {
        self.unjudged.push(Unjudged {
            check: Cow::Borrowed(self.id),
            subject: subject.into(),
            reason: reason.into(),
            ask: vec![Step::run(ask)],
        });
    }
}

/// A finding that is being told.
pub(super) struct Draft<'a> {
    finding: &'a mut Finding,
}

impl Draft<'_> {
    /// A file, from the root without the leading slash, or a command, and what it said.
    pub(super) fn saw(self, source: impl AsRef<str>, value: impl Into<String>) -> Self {
        let source = source.as_ref();
        let is_file = ["sys/", "proc/", "etc/", "dev/", "run/"]
            .iter()
            .any(|it| source.starts_with(it));
        let source = if is_file {
            format!("/{source}")
        } else {
            source.to_owned()
        };
        self.finding.evidence.push(Evidence::new(source, value));
        self
    }

    /// A line of a file, from 1, and what it said.
    pub(super) fn saw_line(self, file: &str, line: usize, value: impl Into<String>) -> Self {
        let evidence = Evidence::line(format!("/{file}"), line, value);
        self.finding.evidence.push(evidence);
        self
    }

    /// A command that mends it.
    pub(super) fn run(self, command: impl Into<String>) -> Self {
        self.finding.remedy.push(Step::run(command));
        self
    }

    /// What mends it and is no command.
    pub(super) fn act(self, text: impl Into<String>) -> Self {
        self.finding.remedy.push(Step::act(text));
        self
    }

    /// A command that undoes the remedy.
    pub(super) fn undo(self, command: impl Into<String>) -> Self {
        self.finding.rollback.push(Step::run(command));
        self
    }

    /// What undoes the remedy and is no command.
    pub(super) fn undo_by(self, text: impl Into<String>) -> Self {
        self.finding.rollback.push(Step::act(text));
        self
    }

    /// Something else on the way may make up for it.
    pub(super) fn likely(self) -> Self {
        self.finding.confidence = Confidence::Likely;
        self
    }

    /// It rests on a format or default that was not seen on such hardware.
    pub(super) fn unverified(self) -> Self {
        self.finding.confidence = Confidence::Unverified;
        self
    }
}
