//! What templates see: the intent in the words and units of one system.

use serde::Serialize;

use super::{PortNameError, Target, ports, refuse::Timers};
use crate::intent::{Action, CNP, Class, DATA, DEFAULT, Feature, Intent, Level, Nic, Tool};

/// ECT(0) in the two low bits of the ToS byte: the sender takes part in ECN (RFC 3168).
const ECT0: u8 = 2;

/// The variables of a template.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct View {
    /// How names of maps and policies begin.
    pub(crate) name: String,
    /// All classes, by priority.
    pub(crate) classes: Vec<ClassView>,
    /// All 64 code points.
    pub(crate) dscp: Vec<DscpView>,
    /// The class that carries RoCE.
    pub(crate) data: ClassView,
    /// The class of notifications.
    pub(crate) cnp: ClassView,
    /// Priorities that are lossless, ascending.
    pub(crate) lossless: Vec<u8>,
    /// For each priority 0 to 7, 1 if it is lossless and else 0.
    pub(crate) pfc: [u8; 8],
    /// For each group (queue, traffic class) 0 to 7, the percent of its class; 0 where it has none or is strict.
    pub(crate) bandwidth: [u8; 8],
    /// The groups that no class has.
    pub(crate) unused: Vec<u8>,
    /// For each group 0 to 7, whether it is strict.
    pub(crate) strict: [bool; 8],
    /// Ports as the system calls them.
    pub(crate) ports: Vec<String>,
    /// The largest frame of the switch's ports.
    pub(crate) mtu: u32,
    /// The MTU of hosts' interfaces.
    pub(crate) host_mtu: u32,
    /// Metres.
    pub(crate) cable: u32,
    /// The watchdog, if there is to be one.
    pub(crate) watchdog: Option<WatchdogView>,
    /// EOS's word for an egress queue.
    pub(crate) eos_queue: &'static str,
    /// The hosts' NICs.
    pub(crate) nics: Vec<NicView>,
    /// `mlnx_qos` or `dcb`.
    pub(crate) tool: &'static str,
    /// The ToS byte of RoCE's packets.
    pub(crate) tos: u8,
}

/// A class.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ClassView {
    pub(crate) name: String,
    /// The name in capitals, as in names of maps.
    pub(crate) upper: String,
    pub(crate) dscp: Vec<u8>,
    /// Code points of six binary digits.
    pub(crate) binary: Vec<String>,
    pub(crate) priority: u8,
    /// The priority in three binary digits.
    pub(crate) priority_binary: String,
    /// The system's number inside: queue, traffic class, qos-group.
    pub(crate) group: u8,
    pub(crate) lossless: bool,
    pub(crate) strict: bool,
    pub(crate) bandwidth: u8,
    pub(crate) ecn: Option<EcnView>,
    pub(crate) is_default: bool,
}

/// Thresholds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EcnView {
    /// In the system's unit: kB, bytes, or percent of the queue.
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) probability: u8,
}

/// A code point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DscpView {
    pub(crate) dscp: u8,
    /// The code point in six binary digits.
    pub(crate) binary: String,
    pub(crate) priority: u8,
    pub(crate) group: u8,
}

/// The watchdog.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WatchdogView {
    /// Milliseconds.
    pub(crate) poll: u32,
    pub(crate) detect: u32,
    pub(crate) restore: u32,
    /// Polls, rounded down.
    pub(crate) polls_to_detect: u32,
    pub(crate) polls_to_restore: u32,
    /// The times in seconds, as text.
    pub(crate) poll_s: String,
    pub(crate) detect_s: String,
    pub(crate) restore_s: String,
    pub(crate) drop: bool,
    /// Which times the intent gives, so that the others stay the system's own.
    pub(crate) sets_detect: bool,
    pub(crate) sets_restore: bool,
}

/// A NIC.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NicView {
    pub(crate) interface: String,
    /// The interface as the name of a systemd unit has it.
    pub(crate) unit: String,
    /// The interface as part of a Kubernetes name (RFC 1123), and as that of a resource.
    pub(crate) label: String,
    pub(crate) resource: String,
    pub(crate) device: String,
    pub(crate) port: u8,
}

impl View {
    pub(crate) fn new(intent: &Intent, target: Target) -> Result<Self, PortNameError> {
        let groups = groups(intent, target);
        let group_of = |name: &str| {
            groups
                .iter()
                .find(|(known, _)| *known == name)
                .map_or(0, |(_, group)| *group)
        };
        let classes: Vec<ClassView> = intent
            .by_priority()
            .into_iter()
            .map(|(name, class)| ClassView::new(name, class, group_of(name), intent, target))
            .collect();
        let named = |name: &str| {
            // The check of an intent has seen all three.
            classes
                .iter()
                .find(|class| class.name == name)
                .or_else(|| classes.first())
                .cloned()
        };
        let fallback = || ClassView {
            name: DEFAULT.to_owned(),
            upper: String::new(),
            dscp: Vec::new(),
            binary: Vec::new(),
            priority: 0,
            priority_binary: "000".to_owned(),
            group: 0,
            lossless: false,
            strict: false,
            bandwidth: 0,
            ecn: None,
            is_default: true,
        };
        let data = named(DATA).unwrap_or_else(fallback);
        let cnp = named(CNP).unwrap_or_else(fallback);
        let (mut pfc, mut bandwidth, mut strict) = ([0; 8], [0; 8], [false; 8]);
        for class in &classes {
            pfc[usize::from(class.priority & 7)] = u8::from(class.lossless);
            bandwidth[usize::from(class.group & 7)] = class.bandwidth;
            strict[usize::from(class.group & 7)] = class.strict;
        }
        let tos = data.dscp.first().copied().unwrap_or(0) << 2 | ECT0;
        Ok(Self {
            name: intent.name.0.clone(),
            dscp: (0..64)
                .map(|dscp| {
                    let (name, priority) = intent
                        .class_of(dscp)
                        .map_or((DEFAULT, 0), |(name, class)| (name, class.priority.value.0));
                    DscpView {
                        dscp,
                        binary: format!("{dscp:06b}"),
                        priority,
                        group: group_of(name),
                    }
                })
                .collect(),
            data,
            cnp,
            lossless: classes
                .iter()
                .filter(|class| class.lossless)
                .map(|class| class.priority)
                .collect(),
            pfc,
            bandwidth,
            unused: (0..8)
                .filter(|group| classes.iter().all(|class| class.group != *group))
                .collect(),
            strict,
            classes,
            ports: ports::names(intent, target)?,
            mtu: intent
                .switch
                .mtu
                .as_ref()
                .map_or_else(|| target.jumbo(), |mtu| mtu.value),
            host_mtu: intent.mtu.value,
            cable: intent.switch.cable.value,
            watchdog: watchdog(intent, target),
            eos_queue: match intent.switch.eos_queue.value {
                crate::intent::EosQueue::Unicast => "uc-tx-queue",
                crate::intent::EosQueue::All => "tx-queue",
            },
            nics: intent.host.nics.iter().map(NicView::new).collect(),
            tool: match intent.host.tool.value {
                Tool::MlnxQos => "mlnx_qos",
                Tool::Dcb => "dcb",
            },
            tos,
        })
    }
}

impl ClassView {
    fn new(name: &str, class: &Class, group: u8, intent: &Intent, target: Target) -> Self {
        let dscp = class.code_points();
        let priority = class.priority.value.0;
        Self {
            name: name.to_owned(),
            upper: name.to_ascii_uppercase(),
            binary: dscp.iter().map(|dscp| format!("{dscp:06b}")).collect(),
            dscp,
            priority,
            priority_binary: format!("{priority:03b}"),
            group,
            lossless: class.lossless.value,
            strict: class.strict.value,
            bandwidth: class
                .bandwidth
                .as_ref()
                .map_or(0, |bandwidth| bandwidth.value.0),
            ecn: class
                .ecn
                .as_ref()
                .filter(|_| !intent.leaves_out(target.name(), Feature::Ecn))
                .map(|ecn| {
                    let level = |level| native(level, intent, target);
                    EcnView {
                        min: level(ecn.min.value),
                        max: level(ecn.max.value),
                        probability: ecn.probability.value.0,
                    }
                }),
            is_default: name == DEFAULT,
        }
    }
}

impl NicView {
    fn new(nic: &Nic) -> Self {
        Self {
            interface: nic.interface.value.0.clone(),
            unit: nic.interface.value.0.replace('-', "\\x2d"),
            label: nic
                .interface
                .value
                .0
                .to_ascii_lowercase()
                .replace(['_', '.'], "-"),
            resource: format!(
                "roce_{}",
                nic.interface
                    .value
                    .0
                    .to_ascii_lowercase()
                    .replace(['-', '.'], "_")
            ),
            device: nic.device.0.clone(),
            port: nic.port,
        }
    }
}

/// A threshold in the system's unit; what it cannot express was refused before.
fn native(level: Level, intent: &Intent, target: Target) -> u64 {
    let bytes = level
        .bytes(intent.buffer.as_ref().map(|buffer| buffer.value))
        .unwrap_or(0);
    match (target, level) {
        (Target::Junos, Level::Percent(percent)) => u64::from(percent),
        (Target::Nxos | Target::Eos | Target::Onyx | Target::Os10, _) => bytes / 1000,
        _ => bytes,
    }
}

/// The system's number of each class inside.
fn groups(intent: &Intent, target: Target) -> Vec<(&str, u8)> {
    // Where the known-good configurations have them: Cisco's strict queue is 7, Junos's 3, and Junos's lossless
    // ones begin at 4.
    let (mut lossless, mut shared) = (4..7, 1..3);
    intent
        .by_priority()
        .into_iter()
        .map(|(name, class)| {
            let group = match target {
                Target::Nxos if class.strict.value => 7,
                Target::Junos if name == DEFAULT => 0,
                Target::Junos if class.strict.value => 3,
                Target::Junos if class.lossless.value => lossless.next().unwrap_or(6),
                Target::Junos => shared.next().unwrap_or(2),
                _ => class.priority.value.0,
            };
            (name, group)
        })
        .collect()
}

fn watchdog(intent: &Intent, target: Target) -> Option<WatchdogView> {
    let wanted = &intent.watchdog;
    let lossless = intent.classes.values().any(|class| class.lossless.value);
    if !wanted.enabled.value || !lossless || intent.leaves_out(target.name(), Feature::Watchdog) {
        return None;
    }
    let own = intent.leaves_out(target.name(), Feature::WatchdogTimers);
    let Timers {
        poll,
        detect,
        restore,
    } = Timers::new(intent, target);
    let seconds = |ms: u32| format!("{}.{:03}", ms / 1000, ms % 1000);
    let hundredths = |ms: u32| format!("{}.{:02}", ms / 1000, ms % 1000 / 10);
    Some(WatchdogView {
        poll,
        detect,
        restore,
        polls_to_detect: detect / poll.max(1),
        polls_to_restore: restore / poll.max(1),
        poll_s: seconds(poll),
        detect_s: hundredths(detect),
        restore_s: hundredths(restore),
        drop: own || wanted.action.value == Action::Drop,
        sets_detect: !own && wanted.detect.is_some(),
        sets_restore: !own && wanted.restore.is_some(),
    })
}
