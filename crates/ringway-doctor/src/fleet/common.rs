//! What the doctor has found on hosts, each finding once.

use serde::Serialize;

use super::Host;
use crate::finding::Finding;

/// A finding, and the hosts that have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Common {
    /// As the first of them has it.
    pub finding: Finding,
    /// Their names.
    pub hosts: Vec<String>,
}

/// The findings of all hosts: those that are about the same check and thing are one. The worst come first, and of equally bad
/// ones those that only some hosts have.
pub fn common(hosts: &[Host]) -> Vec<Common> {
    let mut found: Vec<Common> = Vec::new();
    for host in hosts {
        let findings = host.look.iter().flat_map(|look| &look.report.findings);
        for finding in findings {
            let same = |it: &&mut Common| {
                let known = &it.finding;
                (&known.check, &known.subject, known.severity)
                    == (&finding.check, &finding.subject, finding.severity)
            };
            match found.iter_mut().find(same) {
                Some(known) if known.hosts.last() == Some(&host.name) => {}
                Some(known) => known.hosts.push(host.name.clone()),
                None => found.push(Common {
                    finding: finding.clone(),
                    hosts: vec![host.name.clone()],
                }),
            }
        }
    }
    found.sort_by_key(|it| (std::cmp::Reverse(it.finding.severity), it.hosts.len()));
    found
}
