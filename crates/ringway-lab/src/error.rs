//! What can go wrong with a lab.

use std::path::PathBuf;

/// Why a lab, or a change of it, is not to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A program that the lab is made with failed or is not there.
    #[error("{what} failed: {detail}{}", remedy(.detail))]
    Command {
        /// What it was to do.
        what: String,
        /// What it said.
        detail: String,
    },
    /// A lab of that name is there already.
    #[error(
        "a lab `{name}` is up already; take it down with `ringway lab down {name}`, or give the new one another name with --name"
    )]
    Exists {
        /// The name.
        name: String,
    },
    /// More than fits.
    #[error("the fabric has {found} {what}; a lab has {most} at most")]
    Large {
        /// Of what there are too many.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A name that cannot be one of a lab.
    #[error("`{name}` is no name of a lab; expected 1 to 64 letters, digits, `-` or `_`")]
    Name {
        /// What was given.
        name: String,
    },
    /// No lab of that name.
    #[error("no lab `{name}` is up; {}", known(.up))]
    NoLab {
        /// The name.
        name: String,
        /// Those that are.
        up: Vec<String>,
    },
    /// Something that the fabric does not have.
    #[error(
        "the fabric has no {what}; expected a link such as leaf0-spine1, or a node such as spine1 for all links of it"
    )]
    NoLink {
        /// What was named.
        what: String,
    },
    /// A node that the fabric does not have.
    #[error("the fabric has no node `{name}`; `ringway fabric show` lists its groups")]
    NoNode {
        /// The name.
        name: String,
    },
    /// Neither root nor users may make namespaces.
    #[error(
        "no network namespaces to be had here: {reason}; run as root, or let users make namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
    )]
    Namespaces {
        /// What was tried, and what came of it.
        reason: String,
    },
    /// The lab ended, or said nothing, while it was made.
    #[error("the lab did not start: {detail}")]
    Start {
        /// What is known of it.
        detail: String,
    },
    /// A file of the registry.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// What mends a failure, where its text tells.
fn remedy(detail: &str) -> &'static str {
    if detail.contains("No such file or directory (os error 2)") {
        "; install iproute2 and util-linux"
    } else if detail.contains("no congestion control") {
        "; choose one that namespaces may have (sysctl net.ipv4.tcp_allowed_congestion_control), or, as root of the machine, add it there"
    } else {
        ""
    }
}

fn known(up: &[String]) -> String {
    match up.is_empty() {
        true => "none is; `ringway lab up FABRIC.yaml` makes one".to_owned(),
        false => format!("there are {}", up.join(", ")),
    }
}
