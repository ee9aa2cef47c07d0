//! Whether a host is fit for RoCE: devices, links, addresses, limits, PCIe, CPUs, quality of service, kernel settings,
//! containers.
//!
//! All is read through a [`Root`], which is this machine or a recording of one, and nothing is written. What an ordinary
//! user may not read is told as such, with the command that root would run.

mod check;
mod checks;
mod facts;
mod inventory;
pub mod nccl;
pub mod parse;
mod record;
mod root;
mod scrub;
pub mod watch;

pub use check::{Check, Group};
pub use checks::all as checks;
pub use inventory::Item;
pub use record::{RecordError, record};
pub use root::{Root, Unread};

use check::Said;
use facts::Host;

use crate::report::Report;

/// Runs all checks, or those of one group.
pub fn diagnose(root: &Root, only: Option<Group>) -> Report {
    judge(&Host::look(root), only)
}

/// Runs all checks, and takes stock of what the host is made of.
pub fn examine(root: &Root) -> (Report, Vec<Item>) {
    let host = Host::look(root);
    (judge(&host, None), inventory::items(&host))
}

fn judge(host: &Host<'_>, only: Option<Group>) -> Report {
    let mut report = Report::default();
    for check in checks() {
        if only.is_some_and(|group| group != check.group) {
            continue;
        }
        let mut said = Said::new(check);
        if (check.run)(host, &mut said) {
            report.checks += 1;
        }
        report.findings.append(&mut said.findings);
        report.unjudged.append(&mut said.unjudged);
    }
    report.sort();
    report
}
