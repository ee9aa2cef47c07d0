//! One model of all systems: what a packet meets at each port.
//!
//! A packet's code point gives its *group* (queue, traffic class, qos-group: the system's number inside). A group may be
//! lossless, and then has the *priority* on the wire that PFC pauses; and it has a queue with its share and marking.

use std::{collections::BTreeMap, rc::Rc};

use super::{
    manifests::Manifests,
    source::{At, Place},
};
use crate::{
    config::Target,
    intent::{Action, Intent},
};

/// What a port takes for a packet's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    Dscp,
    Pcp,
    Nothing,
}

impl Trust {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Dscp => "DSCP",
            Self::Pcp => "the VLAN tag's priority",
            Self::Nothing => "nothing",
        }
    }
}

/// Whether a port takes part in PFC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pfc {
    On,
    /// If the neighbour agrees, by DCBX.
    Auto,
    Off,
}

/// Code points to groups; none where the system's default holds that is not known.
pub(super) type DscpMap = Vec<Option<At<u8>>>;

/// Says the group of a code point; what was said before, and is now said again, goes to `twice`.
pub(super) fn map(map: &mut DscpMap, dscp: u8, group: At<u8>, twice: &mut Vec<(u8, [At<u8>; 2])>) {
    let entry = map.get_mut(usize::from(dscp));
    if let Some(before) = entry.and_then(|entry| entry.replace(group)) {
        twice.push((dscp, [before, group]));
    }
}

/// A map that says nothing of any code point.
pub(super) fn no_map() -> DscpMap {
    vec![None; 64]
}

/// A switch.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) system: Target,
    /// The first line of its file.
    pub(super) place: Place,
    pub(super) ports: Vec<Port>,
    pub(super) watchdog: Timers,
}

/// The watchdog's times, where they are set.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    /// Milliseconds.
    pub(super) poll: Option<At<u32>>,
    pub(super) detect: Option<At<u32>>,
    pub(super) restore: Option<At<u32>>,
    pub(super) action: Option<At<Action>>,
}

/// A port.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) place: Place,
    /// Bytes, in the system's own count.
    pub(super) mtu: Option<At<u32>>,
    pub(super) trust: Option<At<Trust>>,
    pub(super) dscp: Rc<DscpMap>,
    /// Lossless groups, with their priority on the wire.
    pub(super) lossless: Rc<BTreeMap<u8, At<u8>>>,
    pub(super) pfc: Option<At<Pfc>>,
    pub(super) queues: Rc<BTreeMap<u8, Queue>>,
    /// The priorities that the watchdog looks at; all lossless ones where systems say no more than on.
    pub(super) watched: Option<At<Option<Vec<u8>>>>,
    /// Whether the whole link may be paused.
    pub(super) pause: Option<At<bool>>,
    /// Metres.
    pub(super) cable: Option<At<u32>>,
    /// Facts that only this system has, by name: compared with an intent's and not otherwise judged.
    pub(super) others: BTreeMap<String, At<u32>>,
}

impl Port {
    pub(super) fn new(name: &str, place: Place) -> Self {
        Self {
            name: name.to_owned(),
            place,
            mtu: None,
            trust: None,
            dscp: Rc::new(no_map()),
            lossless: Rc::default(),
            pfc: None,
            queues: Rc::default(),
            watched: None,
            pause: None,
            cable: None,
            others: BTreeMap::new(),
        }
    }

    /// The group of a code point, if the configuration says it.
    pub(super) fn group(&self, dscp: u8) -> Option<At<u8>> {
        self.dscp.get(usize::from(dscp)).copied().flatten()
    }

    /// Whether it has to do with lossless traffic.
    pub(super) fn takes_part(&self) -> bool {
        !self.lossless.is_empty() || self.pfc.is_some_and(|pfc| pfc.value != Pfc::Off)
    }
}

/// A queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) strict: Option<At<bool>>,
    /// Percent, or a weight.
    pub(super) bandwidth: Option<At<u32>>,
    pub(super) ecn: Option<Ecn>,
    /// How long it may get before packets are dropped whatever they are, in bytes.
    pub(super) drop: Option<At<u64>>,
}

/// Marking in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ecn {
    /// In the system's unit: bytes but where it marks by fill, which is percent.
    pub(super) min: At<u64>,
    pub(super) max: At<u64>,
    pub(super) probability: Option<At<u32>>,
    /// Whether packets are marked, not dropped.
    pub(super) marks: At<bool>,
}

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    /// The first line of its file.
    pub(super) place: Place,
    /// NICs by interface, and by RDMA device what is set for those.
    pub(super) nics: BTreeMap<String, Nic>,
    /// Settings of the kernel, by file.
    pub(super) settings: BTreeMap<String, At<u32>>,
}

/// A NIC.
#[derive(Clone, Debug)]
pub(super) struct Nic {
    pub(super) place: Place,
    pub(super) mtu: Option<At<u32>>,
    pub(super) trust: Option<At<Trust>>,
    /// Code points to priorities.
    pub(super) dscp: DscpMap,
    /// By priority.
    pub(super) pfc: Option<At<[bool; 8]>>,
    /// Classes of priorities.
    pub(super) classes: Option<At<[u8; 8]>>,
    /// By class.
    pub(super) strict: Option<At<[bool; 8]>>,
    pub(super) bandwidth: Option<At<[u8; 8]>>,
    pub(super) cable: Option<At<u32>>,
    pub(super) cnp_dscp: Option<At<u32>>,
    pub(super) cnp_priority: Option<At<u32>>,
    /// Whether it answers marks, and whether it slows down, by priority.
    pub(super) notifies: BTreeMap<u8, At<bool>>,
    pub(super) reacts: BTreeMap<u8, At<bool>>,
    /// ToS bytes that it gives to queue pairs: of the connection manager, and of all.
    pub(super) tos: Option<At<u32>>,
    pub(super) traffic_class: Option<At<u32>>,
    pub(super) pause: Option<At<bool>>,
}

impl Nic {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            mtu: None,
            trust: None,
            dscp: no_map(),
            pfc: None,
            classes: None,
            strict: None,
            bandwidth: None,
            cable: None,
            cnp_dscp: None,
            cnp_priority: None,
            notifies: BTreeMap::new(),
            reacts: BTreeMap::new(),
            tos: None,
            traffic_class: None,
            pause: None,
        }
    }

    /// The priority of a code point: as set, else the driver's default, DSCP / 8 (mlx5).
    pub(super) fn priority(&self, dscp: u8) -> At<u8> {
        let set = self.dscp.get(usize::from(dscp)).copied().flatten();
        set.unwrap_or_else(|| At::new(dscp / 8, self.trust.map_or(self.place, |trust| trust.place)))
    }

    /// Whether a priority is lossless, if the configuration says it.
    pub(super) fn lossless(&self, priority: u8) -> Option<At<bool>> {
        let pfc = self.pfc?;
        Some(At::new(
            pfc.value
                .get(usize::from(priority))
                .copied()
                .unwrap_or(false),
            pfc.place,
        ))
    }
}

/// What a unit or a job says of the hosts that it is for.
#[derive(Debug)]
pub(super) struct Needs {
    /// What it is: "the unit".
    pub(super) what: &'static str,
    /// The first line of its file.
    pub(super) place: Place,
    /// The hosts' interfaces; `*` at the end is for any ending.
    pub(super) interfaces: Vec<At<String>>,
    /// The hosts' RDMA devices.
    pub(super) devices: Vec<At<DeviceName>>,
    /// The MTU of interfaces that it makes on those.
    pub(super) mtus: Vec<At<u32>>,
    /// Whether it may take other interfaces, or devices, than it names: those of a subnet, or what a shell puts there.
    pub(super) more_interfaces: bool,
    pub(super) more_devices: bool,
}

impl Needs {
    pub(super) fn new(what: &'static str, place: Place) -> Self {
        Self {
            what,
            place,
            interfaces: Vec::new(),
            devices: Vec::new(),
            mtus: Vec::new(),
            more_interfaces: false,
            more_devices: false,
        }
    }
}

/// RDMA devices as applications name them: `mlx5_0:1`, or all whose names begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceName {
    pub(super) name: String,
    /// Whether that is all of the name.
    pub(super) whole: bool,
    pub(super) port: Option<u8>,
}

impl DeviceName {
    pub(super) fn fits(&self, device: &str, port: u8) -> bool {
        let named = match self.whole {
            true => device == self.name,
            false => device.starts_with(&self.name),
        };
        named && self.port.is_none_or(|its| its == port)
    }
}

/// What an application puts into the ToS byte of its packets.
#[derive(Clone, Debug)]
pub(super) struct Marking {
    /// The variable or setting.
    pub(super) name: String,
    /// The ToS byte; a default has the place of what makes it count.
    pub(super) tos: At<u32>,
    pub(super) set: bool,
}

/// All that was read.
#[derive(Debug, Default)]
pub(super) struct Fabric {
    pub(super) switches: Vec<Switch>,
    pub(super) hosts: Vec<Host>,
    pub(super) needs: Vec<Needs>,
    pub(super) manifests: Vec<Manifests>,
    pub(super) markings: Vec<Marking>,
    pub(super) intents: Vec<(Place, Rc<Intent>)>,
}
