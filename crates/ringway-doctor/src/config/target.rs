//! The systems that configurations are made for.

use std::{fmt, str::FromStr};

use super::Purpose;

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Cisco NX-OS on Nexus 9000, eight queues.
    Nxos,
    /// SONiC's `config_db.json`.
    Sonic,
    /// Arista EOS.
    Eos,
    /// NVIDIA Cumulus Linux 5, by NVUE.
    Nvue,
    /// NVIDIA Onyx.
    Onyx,
    /// Dell SmartFabric OS10.
    Os10,
    /// Juniper Junos and Junos Evolved on QFX.
    Junos,
    /// Linux hosts: a shell script.
    Host,
    /// Linux hosts: the systemd unit that runs the script at boot.
    HostUnit,
}

/// A name that no system has.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no system that configurations are made for; known are {list}", list = Target::names().join(", "))]
pub struct UnknownTarget(String);

impl Target {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Nxos,
        Self::Sonic,
        Self::Eos,
        Self::Nvue,
        Self::Onyx,
        Self::Os10,
        Self::Junos,
        Self::Host,
        Self::HostUnit,
    ];

    /// The name on the command line and in `leave_out`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nxos => "nxos",
            Self::Sonic => "sonic",
            Self::Eos => "eos",
            Self::Nvue => "nvue",
            Self::Onyx => "onyx",
            Self::Os10 => "os10",
            Self::Junos => "junos",
            Self::Host => "host",
            Self::HostUnit => "host-unit",
        }
    }

    /// All names.
    pub fn names() -> [&'static str; 9] {
        Self::ALL.map(Self::name)
    }

    /// Whether it runs on a switch.
    pub const fn is_switch(self) -> bool {
        !matches!(self, Self::Host | Self::HostUnit)
    }

    /// The largest frame that its ports usually take, in its own count. Bytes.
    pub const fn jumbo(self) -> u32 {
        match self {
            Self::Sonic => 9100,
            Self::Eos => 9214,
            _ => 9216,
        }
    }

    /// What everybody who uses its configurations has to know.
    pub(super) const fn notes(self) -> &'static [&'static str] {
        match self {
            Self::Nxos => &[
                "never run on a switch; the commands are those of Cisco's 9000 guides and of published configurations",
                "the multipliers of the watchdog are unverified",
            ],
            Self::Sonic => &[
                "never run on a switch; keys and ranges are those of SONiC's YANG models",
                "buffer profiles and pools are the platform's own: load them first (config qos reload)",
            ],
            Self::Eos => &[
                "never run on a switch",
                "cEOS has no chip and refuses PFC and ECN; uc-tx-queue or tx-queue depends on the chip (switch.eos_queue)",
            ],
            Self::Nvue => &["never run on a switch; written for NVUE 5.9 to 5.18"],
            Self::Onyx => &[
                "never run on a switch; the mtu line is unverified",
                "the priority is DSCP / 8 for all code points, also for those that the intent leaves to `default`",
            ],
            Self::Os10 => &[
                "EXPERIMENTAL: no configuration of this kind was seen on a switch",
                "lines marked `unverified` are from memory: DSCP trust, attaching WRED, strict priority",
            ],
            Self::Junos => &[
                "never run on a switch",
                "ECN is percent of the queue's fill; shared-buffer partitions stay as they are",
            ],
            Self::Host => &[
                "never run on a NIC; without --apply the script only shows what it would do",
                "what it changes is lost at reboot and driver reload: install the unit too (--for host-unit)",
            ],
            Self::HostUnit => &[
                "install the script as /usr/local/sbin/ringway-lossless, this as /etc/systemd/system/ringway-lossless.service",
            ],
        }
    }

    pub(super) const fn template(self, purpose: Purpose) -> &'static str {
        macro_rules! of {
            ($system:literal) => {
                match purpose {
                    Purpose::Apply => include_str!(concat!("templates/", $system, ".apply.j2")),
                    Purpose::Rollback => {
                        include_str!(concat!("templates/", $system, ".rollback.j2"))
                    }
                    Purpose::Verify => include_str!(concat!("templates/", $system, ".verify.j2")),
                }
            };
        }
        match self {
            Self::Nxos => of!("nxos"),
            Self::Sonic => of!("sonic"),
            Self::Eos => of!("eos"),
            Self::Nvue => of!("nvue"),
            Self::Onyx => of!("onyx"),
            Self::Os10 => of!("os10"),
            Self::Junos => of!("junos"),
            Self::Host => of!("host"),
            Self::HostUnit => of!("host-unit"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(name: &str) -> Result<Self, UnknownTarget> {
        Self::ALL
            .into_iter()
            .find(|target| target.name() == name)
            .ok_or_else(|| UnknownTarget(name.to_owned()))
    }
}
