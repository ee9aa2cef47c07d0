//! The intent: what the operator wants of the network, once, for hosts and switches of every make.
//!
//! An intent is a YAML file. Unknown keys, wrong values and intents that contradict themselves are errors that name
//! the line, what was expected and the remedy. `docs/lossless.md` explains every key.

mod check;
mod error;
mod value;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde::Deserialize;

pub use error::IntentError;
pub use value::{
    Dscp, Level, Line, Name, OneOrMore, Percent, PortRange, Priority, Size, Time, dscp_list,
};

/// The name of the class that carries RoCE.
pub const DATA: &str = "data";
/// The name of the class that carries congestion notifications.
pub const CNP: &str = "cnp";
/// The name of the class of everything else.
pub const DEFAULT: &str = "default";

/// What the operator wants. Fields have the line that they stand in, so that a contradiction can be shown with it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// How the names of maps, policies and profiles begin on the switches.
    #[serde(default = "value::default_name")]
    pub name: Name,
    /// Classes by name; `data`, `cnp` and `default` have to be there.
    pub classes: BTreeMap<String, Class>,
    /// The packet buffer that thresholds in percent are parts of. Bytes.
    #[serde(default)]
    pub buffer: Option<Line<Size>>,
    /// What the hosts' interfaces have, in bytes of IP packet.
    pub mtu: Line<u32>,
    /// The watchdog for pauses that do not end.
    #[serde(default)]
    pub watchdog: Watchdog,
    /// What switches have to know.
    pub switch: Switch,
    /// What hosts have to know.
    pub host: Host,
    /// Features that configurations of a system go without, because it cannot express them.
    #[serde(default)]
    pub leave_out: BTreeMap<String, BTreeSet<Feature>>,
}

/// A class of traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// The code points that belong to it; none for the default class, which gets what no other has.
    #[serde(default)]
    pub dscp: Option<Line<OneOrMore<Dscp>>>,
    /// The priority on the wire, which PFC pauses.
    pub priority: Line<Priority>,
    /// Whether PFC keeps it from dropping.
    #[serde(default)]
    pub lossless: Line<bool>,
    /// Whether it goes before all classes that share by bandwidth.
    #[serde(default)]
    pub strict: Line<bool>,
    /// The part of the link that it has at least; those of all classes that are not strict are 100 together.
    #[serde(default)]
    pub bandwidth: Option<Line<Percent>>,
    /// When switches mark its packets.
    #[serde(default)]
    pub ecn: Option<Ecn>,
}

/// When switches mark packets of a queue: never below `min`, with `probability` at `max`, always above.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecn {
    /// The least fill of the queue at which packets are marked.
    pub min: Line<Level>,
    /// The fill of the queue at which `probability` is reached.
    pub max: Line<Level>,
    /// The part of packets that are marked at `max`.
    #[serde(default = "value::certain")]
    pub probability: Line<Percent>,
}

/// What happens with a queue that is paused without end.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watchdog {
    /// Whether there is one.
    pub enabled: Line<bool>,
    /// How often queues are looked at; the system's default if none is given.
    pub poll: Option<Line<Time>>,
    /// How long a queue is paused before it counts as stuck; the system's default if none is given.
    pub detect: Option<Line<Time>>,
    /// How long a queue has to be free of pauses before it is used again; the system's default if none is given.
    pub restore: Option<Line<Time>>,
    /// What becomes of the packets of a stuck queue.
    pub action: Line<Action>,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self {
            enabled: Line::default_of(true),
            poll: None,
            detect: None,
            restore: None,
            action: Line::default(),
        }
    }
}

/// What becomes of the packets of a stuck queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// They are dropped, so that what is behind them goes on.
    #[default]
    Drop,
    /// They are sent in spite of the pause.
    Forward,
}

/// What switches have to know.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Ports that lead to hosts and to other switches of the lossless network, numbered from 1 as on the front, or by
    /// name.
    pub ports: OneOrMore<PortRange>,
    /// The longest cable; headroom is made for it. Metres.
    #[serde(default = "value::short_cable")]
    pub cable: Line<u32>,
    /// The largest frame that ports take; the system's usual jumbo frame if none is given. Bytes.
    #[serde(default)]
    pub mtu: Option<Line<u32>>,
    /// How many of SONiC's port numbers a port takes: its lanes.
    #[serde(default = "value::lanes")]
    pub sonic_lanes: Line<u32>,
    /// The word of EOS for an egress queue, which depends on the chip.
    #[serde(default)]
    pub eos_queue: Line<EosQueue>,
}

/// The word of EOS for an egress queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum EosQueue {
    /// Trident and Tomahawk.
    #[default]
    #[serde(rename = "uc-tx-queue")]
    Unicast,
    /// Jericho.
    #[serde(rename = "tx-queue")]
    All,
}

/// What hosts have to know.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The NICs of the lossless network.
    pub nics: Vec<Nic>,
    /// The tool that sets the NIC's priorities.
    #[serde(default)]
    pub tool: Line<Tool>,
}

/// A NIC of a host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// The network interface: `eth1`.
    pub interface: Line<Name>,
    /// The RDMA device: `mlx5_0`.
    pub device: Name,
    /// The device's port.
    #[serde(default = "value::first")]
    pub port: u8,
}

/// The tool that sets the NIC's priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Tool {
    /// NVIDIA's, for ConnectX.
    #[default]
    #[serde(rename = "mlnx_qos")]
    MlnxQos,
    /// iproute2's, for every driver that has DCB.
    #[serde(rename = "dcb")]
    Dcb,
}

/// What a configuration can go without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// Marking of packets.
    Ecn,
    /// The watchdog.
    Watchdog,
    /// The watchdog's times and action: the system's own are taken.
    WatchdogTimers,
}

impl Intent {
    /// Reads an intent. `path` is named in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, IntentError> {
        let options = serde_saphyr::options! { with_snippet: false };
        let intent: Self = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| IntentError::syntax(path, text, &error))?;
        check::check(&intent, path)?;
        Ok(intent)
    }

    /// The class of that name.
    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.get(name)
    }

    /// Classes with their names, by priority.
    pub fn by_priority(&self) -> Vec<(&str, &Class)> {
        let mut classes: Vec<_> = self.classes.iter().map(|(n, c)| (n.as_str(), c)).collect();
        classes.sort_by_key(|(_, class)| class.priority.value);
        classes
    }

    /// The class of a code point: the one that names it, else the default class.
    pub fn class_of(&self, dscp: u8) -> Option<(&str, &Class)> {
        self.classes
            .iter()
            .find(|(_, class)| class.code_points().contains(&dscp))
            .or_else(|| self.classes.get_key_value(DEFAULT))
            .map(|(name, class)| (name.as_str(), class))
    }

    /// Whether configurations for `system` go without `feature`.
    pub fn leaves_out(&self, system: &str, feature: Feature) -> bool {
        self.leave_out
            .get(system)
            .is_some_and(|features| features.contains(&feature))
    }
}

impl Class {
    /// The code points that it names.
    pub fn code_points(&self) -> Vec<u8> {
        self.dscp
            .iter()
            .flat_map(|list| list.value.0.iter().map(|dscp| dscp.0))
            .collect()
    }
}
