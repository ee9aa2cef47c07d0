//! What others take of a host's processors while it is measured.

use serde::{Deserialize, Serialize};

/// Shares of the time in which a host was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Strain {
    /// Of the time in which the rank's threads wanted a CPU, the share that they waited for one; none where the kernel does
    /// not count it.
    pub waited: Option<f64>,
    /// Of all CPUs' time, the share that the hypervisor gave to other virtual machines.
    pub stolen: f64,
    /// Of all CPUs' time, the share in which one was used while another process waited for it; none where the kernel does not
    /// count it.
    pub pressure: Option<f64>,
    /// Who else took CPU time, those who took most first.
    pub burners: Vec<Burner>,
}

/// A process that took CPU time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Burner {
    /// Its number.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// How many CPUs it took: seconds of CPU time per second.
    pub cpus: f64,
    /// Whether it is a thread of the kernel's own, which nobody can end or move.
    pub kernel: bool,
}

/// Waiting for a CPU in less than this share of the time is what any host has.
const WAITED: f64 = 0.1;

/// And so much of a virtual machine's time may be others'.
const STOLEN: f64 = 0.05;

/// Others that take less than this, in CPUs, leave caches and memory alone.
const OTHERS: f64 = 0.5;

/// Where processes wait in less than this share of all CPUs' time, a probe finds a CPU of its own. Those of other containers show
/// in nothing else.
const PRESSURE: f64 = 0.25;

impl Strain {
    /// Whether the rank itself did not get the CPUs that it wanted.
    pub fn busy(&self) -> bool {
        self.waiting().is_some() || self.robbed().is_some()
    }

    /// The share that it waited for CPUs, if that is more than any host has.
    pub(super) fn waiting(&self) -> Option<f64> {
        self.waited.filter(|it| *it > WAITED)
    }

    /// The share that the hypervisor took, if that is more than it may.
    pub(super) fn robbed(&self) -> Option<f64> {
        Some(self.stolen).filter(|it| *it > STOLEN)
    }

    /// Whether what it measured tells less of the hardware than of who else uses it.
    pub fn disturbed(&self) -> bool {
        let others: f64 = self.burners.iter().map(|it| it.cpus).sum();
        self.busy() || others > OTHERS || self.pressure.is_some_and(|it| it > PRESSURE)
    }

    /// What was read, and its values.
    pub(super) fn evidence(&self) -> Vec<(&'static str, String)> {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let mut found = Vec::new();
        if let Some(waited) = self.waited {
            let value = format!(
                "waited for a CPU {} of the time that it wanted one",
                percent(waited)
            );
            found.push(("/proc/self/task/*/schedstat", value));
        }
        if self.stolen >= 0.005 {
            let value = format!("{} stolen by the hypervisor", percent(self.stolen));
            found.push(("/proc/stat", value));
        }
        if let Some(pressure) = self.pressure {
            let value = format!(
                "processes waited for {} of the CPUs' time",
                percent(pressure)
            );
            found.push(("/proc/pressure/cpu and /proc/stat", value));
        }
        if !self.burners.is_empty() {
            found.push(("/proc/*/stat", self.others()));
        }
        found
    }

    /// `python3 (1234) 0.98 CPUs, sh (1235) 0.50 CPUs`.
    pub fn others(&self) -> String {
        let words = self
            .burners
            .iter()
            .map(|it| format!("{} ({}) {:.2} CPUs", it.name, it.pid, it.cpus));
        words.collect::<Vec<_>>().join(", ")
    }
}
