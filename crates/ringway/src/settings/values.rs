//! The values of the settings, typed.

use std::{fmt, path::PathBuf, time::Duration};

use ringway_link::{BadFilter, InterfaceFilter, Ports};
use ringway_plan::DataType;

use super::DEFINITIONS;

/// The value of every setting; [`DEFINITIONS`] says what each means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    /// How long links must have changed before a job adapts to that; none: never.
    pub adapt_after: Option<Duration>,
    /// An algorithm, `auto`, or a choice by size; read by the selector.
    pub algorithm: String,
    /// Virtual bytes reserved for the shared-memory arena of a rank.
    pub arena_size: u64,
    /// Bytes at which a batch of tensors is closed, at most.
    pub batch_max: u64,
    /// Bytes at which a batch of tensors is closed, at least.
    pub batch_min: u64,
    /// How long a tensor waits for others at most.
    pub batch_window: Duration,
    /// Bytes of transport buffers of a rank, at most.
    pub buffer_size: u64,
    /// How long to wait for all ranks to join, and for a connection.
    pub connect_timeout: Duration,
    /// The file that describes the network; none: nobody has told of it.
    pub fabric: Option<PathBuf>,
    /// How long a rank may be silent before it counts as failed.
    pub failure_after: Duration,
    /// Time between two signs of life.
    pub heartbeat: Duration,
    /// Levels of hierarchical algorithms; none: from the topology.
    pub hierarchy_levels: Option<usize>,
    /// Interfaces whose addresses are offered to peers.
    pub interfaces: Interfaces,
    /// What is logged.
    pub log: tracing::level_filters::LevelFilter,
    /// Bytes that a rank may use for everything but the arena's own contents.
    pub memory_limit: u64,
    /// Where a rank listens.
    pub port: Ports,
    /// How long what was measured is kept.
    pub probe_lifetime: Duration,
    /// Whether links are measured at start.
    pub probes: Probing,
    /// RDMA queue pairs to a peer for large messages; none: by the device.
    pub queue_pairs: Option<usize>,
    /// Where rank 0 writes down the job's operations; none: it does not.
    pub record: Option<PathBuf>,
    /// Bytes of the user's memory that are registered with RDMA devices, at most.
    pub registered_limit: u64,
    /// Ranks in a ring of hierarchical algorithms; none: from the topology.
    pub ring_size: Option<usize>,
    /// How long a waiting thread spins before it sleeps.
    pub spin: Duration,
    /// TCP connections to a peer that share its large messages.
    pub streams: usize,
    /// How long an operation may take.
    pub timeout: Duration,
    /// What may carry messages.
    pub transports: Transports,
    /// As what elements of `f32` go from host to host in hierarchical all-reduces; none: as they are.
    pub wire_between_hosts: Option<DataType>,
}

impl Default for Values {
    fn default() -> Self {
        let mut values = Self {
            adapt_after: None,
            algorithm: String::new(),
            arena_size: 0,
            batch_max: 0,
            batch_min: 0,
            batch_window: Duration::ZERO,
            buffer_size: 0,
            connect_timeout: Duration::ZERO,
            fabric: None,
            failure_after: Duration::ZERO,
            heartbeat: Duration::ZERO,
            hierarchy_levels: None,
            interfaces: Interfaces::default(),
            log: tracing::level_filters::LevelFilter::OFF,
            memory_limit: 0,
            port: Ports::Any,
            probe_lifetime: Duration::ZERO,
            probes: Probing::Auto,
            queue_pairs: None,
            record: None,
            registered_limit: 0,
            ring_size: None,
            spin: Duration::ZERO,
            streams: 0,
            timeout: Duration::ZERO,
            transports: Transports::Auto,
            wire_between_hosts: None,
        };
        for definition in DEFINITIONS {
            if let Err(why) = (definition.set)(&mut values, definition.default) {
                unreachable!(
                    "the default of {} is one of its values: {why}",
                    definition.name
                );
            }
        }
        values
    }
}

/// Whether a job of several hosts measures its links at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// Unless what another job on these hosts has measured is kept.
    Auto,
    /// Never.
    Off,
    /// Always.
    Refresh,
}

impl Probing {
    const ALL: [Self; 3] = [Self::Auto, Self::Off, Self::Refresh];

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|p| p.to_string() == text);
        found.ok_or_else(|| "it is none of these".to_owned())
    }
}

impl fmt::Display for Probing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Refresh => "refresh",
        })
    }
}

/// Which interfaces and addresses may be used, as the user wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    text: String,
    filter: InterfaceFilter,
}

impl Interfaces {
    /// What it lets pass.
    pub const fn filter(&self) -> &InterfaceFilter {
        &self.filter
    }

    /// From `all`, or a list such as `eth*,10.0.0.0/8,^docker0`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::default());
        }
        let filter = text
            .parse()
            .map_err(|error: BadFilter| error.problem.to_owned())?;
        Ok(Self {
            text: text.to_owned(),
            filter,
        })
    }
}

impl fmt::Display for Interfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.text.is_empty() {
            "all"
        } else {
            &self.text
        })
    }
}

/// A way to move messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportKind {
    /// Memory that ranks of a host share.
    Shm,
    /// TCP connections.
    Tcp,
    /// An RDMA device, or RoCE v2 in software; and TCP to peers that it does not reach.
    Rdma,
}

impl TransportKind {
    /// All.
    pub const ALL: [Self; 3] = [Self::Shm, Self::Tcp, Self::Rdma];

    /// `shm`, `tcp`, `rdma`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

/// Which transports may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transports {
    /// Shared memory within a host; to others RDMA over a NIC unless TCP is measured to be faster, or TCP where there is none.
    Auto,
    /// Only these, the best of them that reaches each peer.
    Only(Vec<TransportKind>),
}

impl Transports {
    /// Whether this one may be used.
    pub fn allow(&self, kind: TransportKind) -> bool {
        match self {
            Self::Auto => true,
            Self::Only(kinds) => kinds.contains(&kind),
        }
    }

    /// From `auto`, `shm`, `tcp`, `shm,rdma` ...
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let mut kinds = Vec::new();
        for name in text.split(',').map(str::trim) {
            let kind = TransportKind::ALL
                .into_iter()
                .find(|kind| kind.name() == name)
                .ok_or_else(|| format!("`{name}` is no transport"))?;
            if kinds.contains(&kind) {
                return Err(format!("{name} is listed twice"));
            }
            kinds.push(kind);
        }
        Ok(Self::Only(kinds))
    }
}

impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(kinds) => {
                f.write_str(&kinds.iter().map(|k| k.name()).collect::<Vec<_>>().join(","))
            }
        }
    }
}
