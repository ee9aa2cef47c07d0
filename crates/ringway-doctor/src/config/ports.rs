//! What systems call their ports.

use super::Target;
use crate::intent::{Intent, PortRange};

/// A name of a port that a system does not have.
#[derive(Debug, thiserror::Error)]
#[error(
    "`switch.ports` names `{name}`, but ports of {target} are called {example}; number them from 1 instead"
)]
pub struct PortNameError {
    name: String,
    target: Target,
    example: String,
}

/// The ports of an intent as `target` calls them, each once, in the order of the intent.
pub(super) fn names(intent: &Intent, target: Target) -> Result<Vec<String>, PortNameError> {
    let mut names: Vec<String> = Vec::new();
    for range in &intent.switch.ports.0 {
        match range {
            PortRange::Numbers(first, last) => {
                let lanes = intent.switch.sonic_lanes.value;
                names.extend((*first..=*last).map(|number| numbered(target, number, lanes)));
            }
            PortRange::Name(name) if target.is_switch() && !fits(target, name) => {
                return Err(PortNameError {
                    name: name.clone(),
                    target,
                    example: numbered(target, 1, 4),
                });
            }
            PortRange::Name(name) => names.push(name.clone()),
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}

/// The port with that number on the front, from 1.
fn numbered(target: Target, number: u32, lanes: u32) -> String {
    match target {
        Target::Nxos => format!("Ethernet1/{number}"),
        Target::Sonic => format!("Ethernet{}", (number - 1) * lanes),
        Target::Eos => format!("Ethernet{number}"),
        Target::Nvue => format!("swp{number}"),
        Target::Onyx => format!("1/{number}"),
        Target::Os10 => format!("ethernet1/1/{number}"),
        Target::Junos => format!("et-0/0/{}", number - 1),
        Target::Host | Target::HostUnit => format!("port {number}"),
    }
}

fn fits(target: Target, name: &str) -> bool {
    let prefixes: &[&str] = match target {
        Target::Nxos | Target::Sonic | Target::Eos => &["Ethernet"],
        Target::Nvue => &["swp"],
        Target::Onyx => &["1/", "2/"],
        Target::Os10 => &["ethernet"],
        Target::Junos => &["et-", "xe-", "ge-"],
        Target::Host | Target::HostUnit => &[""],
    };
    prefixes.iter().any(|prefix| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}
