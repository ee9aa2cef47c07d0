//! The quality of service of an interface, by whichever tool tells it.

use crate::host::{Root, Unread, parse::Qos};

/// What `dcb` is asked for.
const TABLES: [&str; 6] = ["pfc", "ets", "app", "buffer", "dcbx", "apptrust"];

/// What was told, and by what.
pub(in crate::host) struct Quality {
    pub(in crate::host) qos: Qos,
    /// NVIDIA's tool, which is also the one to set it with; otherwise iproute2's.
    pub(in crate::host) mlnx: bool,
    interface: String,
}

/// The commands that tell it: `dcb`'s only where NVIDIA's tool is not installed, as a host may have many interfaces.
pub(super) fn commands<'a>(root: &Root, interface: &'a str, mlx5: bool) -> Vec<Vec<&'a str>> {
    if mlx5 && root.installed("mlnx_qos") {
        return vec![vec!["mlnx_qos", "-i", interface]];
    }
    let tables = TABLES.iter();
    tables.map(|table| dcb(table, interface).to_vec()).collect()
}

fn dcb<'a>(table: &'a str, interface: &'a str) -> [&'a str; 7] {
    ["dcb", "-N", "-j", table, "show", "dev", interface]
}

impl Quality {
    pub(super) fn look(root: &Root, interface: &str, mlx5: bool) -> Result<Self, Unread> {
        let of = |qos, mlnx| Self {
            qos,
            mlnx,
            interface: interface.to_owned(),
        };
        if mlx5 && let Ok(output) = root.output(&["mlnx_qos", "-i", interface]) {
            return Ok(of(Qos::parse_mlnx(&output), true));
        }
        // Its first table tells whether the tool and the driver do at all.
        root.output(&dcb("pfc", interface))?;
        let outputs: Vec<String> = TABLES
            .iter()
            .filter_map(|table| root.output(&dcb(table, interface)).ok())
            .collect();
        let qos = Qos::parse_dcb(outputs.iter().map(String::as_str));
        Ok(of(qos, false))
    }

    /// The command that tells a table of it.
    pub(in crate::host) fn source(&self, table: &str) -> String {
        if self.mlnx {
            format!("mlnx_qos -i {}", self.interface)
        } else {
            dcb(table, &self.interface).join(" ")
        }
    }

    /// The command that pauses these priorities only.
    pub(in crate::host) fn set_pfc(&self, pfc: [bool; 8]) -> String {
        let interface = &self.interface;
        if self.mlnx {
            let flags = pfc.map(|on| if on { "1" } else { "0" }).join(",");
            return format!("mlnx_qos -i {interface} --pfc {flags}");
        }
        let on: String = (0..8)
            .filter(|&it| pfc[it])
            .map(|it| format!(" {it}:on"))
            .collect();
        format!("dcb pfc set dev {interface} prio-pfc all:off{on}")
    }

    /// The command that gives a DSCP a priority.
    pub(in crate::host) fn map_dscp(&self, dscp: u8, priority: u8) -> String {
        let interface = &self.interface;
        if self.mlnx {
            format!("mlnx_qos -i {interface} --dscp2prio set,{dscp},{priority}")
        } else {
            format!("dcb app replace dev {interface} dscp-prio {dscp}:{priority}")
        }
    }

    /// The command that gives priorities traffic classes.
    pub(in crate::host) fn map_classes(&self, classes: [u8; 8]) -> String {
        let interface = &self.interface;
        if self.mlnx {
            let list = classes.map(|class| class.to_string()).join(",");
            return format!("mlnx_qos -i {interface} --prio_tc {list}");
        }
        let pairs: String = classes
            .iter()
            .enumerate()
            .map(|(priority, class)| format!(" {priority}:{class}"))
            .collect();
        format!("dcb ets set dev {interface} prio-tc{pairs}")
    }

    /// The command that has priorities taken from the DSCP, or from the VLAN tag.
    pub(in crate::host) fn set_trust(&self, dscp: bool) -> String {
        let interface = &self.interface;
        let word = if dscp { "dscp" } else { "pcp" };
        if self.mlnx {
            format!("mlnx_qos -i {interface} --trust {word}")
        } else {
            format!("dcb apptrust set dev {interface} order {word}")
        }
    }

    /// The command that gives priorities receive buffers.
    pub(in crate::host) fn map_buffers(&self, buffers: [u8; 8]) -> String {
        let interface = &self.interface;
        if self.mlnx {
            let list = buffers.map(|buffer| buffer.to_string()).join(",");
            return format!("mlnx_qos -i {interface} --prio2buffer {list}");
        }
        let pairs: String = buffers
            .iter()
            .enumerate()
            .map(|(priority, buffer)| format!(" {priority}:{buffer}"))
            .collect();
        format!("dcb buffer set dev {interface} prio-buffer{pairs}")
    }
}
