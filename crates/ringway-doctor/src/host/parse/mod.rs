//! What files of /sys and /proc and the outputs of tools say. Every parser takes anything: what it does not know it leaves
//! out, and nothing makes it panic.

mod config_space;
mod cpus;
mod ethtool;
mod firewall;
mod gid;
mod interrupts;
mod mlxconfig;
mod process;
mod qos;
mod route;
mod topology;
mod version;

pub use config_space::{Acs, PciExpress, serial_number};
pub use cpus::CpuSet;
pub use ethtool::{Pause, pause, statistics};
pub use firewall::drops_roce;
pub use gid::{Gid, GidKind};
pub use interrupts::{Interrupt, interrupts};
pub use mlxconfig::mlxconfig;
pub use process::{Locked, capabilities, environment, field, locked_memory};
pub use qos::{Owner, Qos, Selection, Trust};
pub use route::{Network, Route, routes};
pub use topology::{Distance, Topology};
pub use version::Version;
