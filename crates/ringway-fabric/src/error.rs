//! What can be wrong with a fabric file.

use crate::units::BadQuantity;

/// A mistake in a fabric file, and where it is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct FabricError {
    /// From 1; 0 if the file is wrong as a whole.
    pub line: u64,
    /// From 1; 0 if the file is wrong as a whole.
    pub column: u64,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong at a place: each says what was expected and what was found.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Groups that a link entry cannot cut in so many parts.
    #[error(
        "{group} has {members} members, which cannot be cut in {parts} equal parts; choose a divisor of {members}"
    )]
    Division {
        /// The group.
        group: String,
        /// How many it has.
        members: usize,
        /// How many parts were asked for.
        parts: usize,
    },
    /// A group name twice.
    #[error(
        "`{name}` is the name of another group too, at line {first}; give one of them another name"
    )]
    Duplicate {
        /// The name.
        name: String,
        /// The line of the other.
        first: u64,
    },
    /// A torus whose size is not that of the group.
    #[error(
        "a torus of {size:?} has {expected} members, but {group} has {members}; make the two equal"
    )]
    Grid {
        /// The torus.
        size: Vec<usize>,
        /// Its members.
        expected: usize,
        /// The group.
        group: String,
        /// Its members.
        members: usize,
    },
    /// Members that a group does not have, or text that names none.
    #[error(
        "`{found}` names no members; expected a group as a whole (`leaf`) or some of it (`leaf0`, `leaf4-7`); {hint}"
    )]
    Members {
        /// What stood there.
        found: String,
        /// What there is.
        hint: String,
    },
    /// A group's name that would be mistaken for something else.
    #[error(
        "`{found}` cannot be the name of a group; expected letters, digits and `_`, a letter first and no digit last, because members have numbers after it"
    )]
    Name {
        /// What stood there.
        found: String,
    },
    /// No hosts at all.
    #[error("the file has no hosts; expected at least one entry under `hosts:`")]
    NoHosts,
    /// A host's NICs are not all linked, or it has more links than NICs.
    #[error(
        "{host} has {nics} NICs and {links} links; expected one link for each NIC: change `nics`, or the links of {host}"
    )]
    Nics {
        /// The host.
        host: String,
        /// As the file says.
        nics: usize,
        /// How many links end there.
        links: usize,
    },
    /// A number outside its range.
    #[error("{what} is {found}; expected {least} to {most}")]
    Number {
        /// Of what.
        what: String,
        /// What stood there.
        found: usize,
        /// The least.
        least: usize,
        /// The most.
        most: usize,
    },
    /// A switch with more links than ports.
    #[error(
        "{switch} has {ports} ports and {links} links; remove links, or use a switch of more ports"
    )]
    Ports {
        /// The switch.
        switch: String,
        /// As the file says.
        ports: usize,
        /// How many links end there.
        links: usize,
    },
    /// A rate or a latency that is none.
    #[error(transparent)]
    Quantity(#[from] BadQuantity),
    /// A rail join that does not fit.
    #[error(
        "{hosts} hosts of {nics} NICs and {switches} switches cannot be joined by rails in {blocks} blocks: expected {nics} switches for each block, {expected} in all"
    )]
    Rails {
        /// How many.
        hosts: usize,
        /// Of each host.
        nics: usize,
        /// How many.
        switches: usize,
        /// How many.
        blocks: usize,
        /// Switches.
        expected: usize,
    },
    /// A list of NUMA nodes that does not fit.
    #[error(
        "{list} has {found} entries from {numa} NUMA nodes; expected {expected} entries, each below {numa}"
    )]
    Numa {
        /// Which list.
        list: &'static str,
        /// How many it has.
        found: usize,
        /// How many it should have.
        expected: usize,
        /// NUMA nodes of the host.
        numa: usize,
    },
    /// Not the YAML that was expected.
    #[error("{detail}")]
    Syntax {
        /// What the parser said.
        detail: String,
    },
    /// A link of a node to itself.
    #[error("{name} would be linked to itself; name two different groups")]
    ToItself {
        /// The node.
        name: String,
    },
    /// A cut between nodes without a link.
    #[error(
        "there is no link between {from} and {to} to cut; remove this entry, or correct its names"
    )]
    Uncut {
        /// One side.
        from: String,
        /// The other side.
        to: String,
    },
    /// A join that needs hosts on one side.
    #[error(
        "rails join NICs to switches; expected hosts at `from` and switches at `to`, found {from} and {to}"
    )]
    WrongSides {
        /// One side.
        from: String,
        /// The other side.
        to: String,
    },
}
