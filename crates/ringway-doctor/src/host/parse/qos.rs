//! The quality of service of an interface: what priority a packet has, which priorities may be paused, what queue they leave
//! by. From `mlnx_qos -i`, or from iproute2's `dcb -j` (8 priorities and 8 traffic classes, IEEE 802.1Q).

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

/// What the priority of a packet is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The DSCP of its IP header.
    Dscp,
    /// The priority in its VLAN tag.
    Pcp,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dscp => "dscp",
            Self::Pcp => "pcp",
        })
    }
}

/// Who sets all this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The card's firmware, as the switch tells it by DCBX.
    Firmware,
    /// Programs of the host.
    Host,
}

/// How a traffic class is chosen for transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Before all that is not strict.
    Strict,
    /// By its share of the bandwidth.
    Ets,
    /// As the vendor likes: mlx5's default, which is strict.
    Vendor,
}

/// What is known of an interface's quality of service; `None` is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qos {
    /// What the priority is taken from.
    pub trust: Option<Trust>,
    /// Who sets it.
    pub owner: Option<Owner>,
    /// The priority by DSCP.
    pub dscp: BTreeMap<u8, u8>,
    /// Which priorities are paused by PFC.
    pub pfc: Option<[bool; 8]>,
    /// The traffic class by priority.
    pub class: Option<[u8; 8]>,
    /// How each traffic class is chosen.
    pub selection: [Option<Selection>; 8],
    /// The share of each traffic class, in percent.
    pub share: [Option<u8>; 8],
    /// The receive buffer by priority.
    pub buffer: Option<[u8; 8]>,
    /// The sizes of the receive buffers in bytes.
    pub sizes: Option<[u64; 8]>,
    /// The length of the cable in metres that the buffers are made for.
    pub cable: Option<u32>,
}

impl Qos {
    /// The priority of a packet with this DSCP. Without an entry it is what mlx5 and Linux take by default: the upper three
    /// bits.
    pub fn priority(&self, dscp: u8) -> u8 {
        let known = self.dscp.get(&dscp);
        known.copied().unwrap_or(dscp >> 3 & 7)
    }

    /// Which priorities are paused.
    pub fn lossless(&self) -> Vec<u8> {
        let pfc = self.pfc.unwrap_or_default();
        (0..8).filter(|&it| pfc[usize::from(it)]).collect()
    }

    /// The traffic class of a priority.
    pub fn class_of(&self, priority: u8) -> Option<u8> {
        self.class?.get(usize::from(priority)).copied()
    }

    /// How a traffic class is chosen.
    pub fn selection_of(&self, class: u8) -> Option<Selection> {
        self.selection.get(usize::from(class)).copied().flatten()
    }

    /// From what `mlnx_qos -i INTERFACE` prints.
    pub fn parse_mlnx(output: &str) -> Self {
        let mut qos = Self::default();
        let mut class = None;
        let mut classes = [None; 8];
        for line in output.lines().map(str::trim) {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.trim();
            match name {
                "DCBX mode" => {
                    qos.owner = match value {
                        it if it.starts_with("OS") => Some(Owner::Host),
                        it if it.starts_with("F") => Some(Owner::Firmware),
                        _ => None,
                    }
                }
                "Priority trust state" => {
                    qos.trust = match value {
                        "dscp" => Some(Trust::Dscp),
                        "pcp" => Some(Trust::Pcp),
                        _ => None,
                    }
                }
                "Cable len" => qos.cable = value.parse().ok(),
                "Receive buffer size (bytes)" => qos.sizes = eight(value.split(',')),
                "tc" => class = qos.traffic_class(value),
                "prio" => qos.dscp_row(value),
                "priority" => {
                    let priority = value.parse::<usize>().ok();
                    if let Some(entry) = priority.and_then(|it| classes.get_mut(it)) {
                        *entry = class;
                    }
                }
                _ => {
                    if let Some(flags) = line.strip_prefix("enabled") {
                        let flags: Option<[u8; 8]> = eight(flags.split_whitespace());
                        qos.pfc = flags.map(|flags| flags.map(|flag| flag != 0));
                    } else if let Some(buffers) = line.strip_prefix("buffer") {
                        qos.buffer = eight(buffers.split_whitespace());
                    }
                }
            }
        }
        qos.class = all(classes);
        qos
    }

    /// `3 ratelimit: unlimited, tsa: ets, bw: 50%`
    fn traffic_class(&mut self, text: &str) -> Option<u8> {
        let class: u8 = text.split_whitespace().next()?.parse().ok()?;
        let index = usize::from(class);
        for part in text.split(", ") {
            match part.split_once(": ") {
                Some(("tsa", kind)) => *self.selection.get_mut(index)? = selection(kind.trim()),
                Some(("bw", share)) => {
                    *self.share.get_mut(index)? = share.trim().trim_end_matches('%').parse().ok();
                }
                _ => {}
            }
        }
        Some(class).filter(|&class| class < 8)
    }

    /// `3 dscp:31,30,29,28,27,26,25,24,`
    fn dscp_row(&mut self, text: &str) {
        let Some((priority, list)) = text.split_once("dscp:") else {
            return;
        };
        let Some(priority) = small(priority.trim(), 8) else {
            return;
        };
        for dscp in list.split(',').filter_map(|it| small(it.trim(), 64)) {
            self.dscp.insert(dscp, priority);
        }
    }

    /// From what `dcb -N -j pfc|ets|app|buffer|dcbx|apptrust show dev INTERFACE` print, in any order (iproute2, dcb/*.c).
    pub fn parse_dcb<'a>(outputs: impl IntoIterator<Item = &'a str>) -> Self {
        let mut qos = Self::default();
        for output in outputs {
            let Ok(json) = serde_json::from_str::<Value>(output) else {
                continue;
            };
            let list = |name: &str| json.get(name).and_then(Value::as_array);
            let numbers = |name: &str| -> Option<[u8; 8]> {
                let values = list(name)?.iter();
                all_of(values.map(|it| u8::try_from(it.as_u64()?).ok()))
            };
            if let Some(pfc) = list("prio_pfc") {
                qos.pfc = all_of(pfc.iter().map(Value::as_bool));
            }
            if let Some(classes) = numbers("prio_tc") {
                qos.class = Some(classes);
            }
            if let Some(shares) = numbers("tc_bw") {
                qos.share = shares.map(Some);
            }
            for (entry, kind) in qos
                .selection
                .iter_mut()
                .zip(list("tc_tsa").into_iter().flatten())
            {
                *entry = kind.as_str().and_then(selection);
            }
            if let Some(buffers) = numbers("prio_buffer") {
                qos.buffer = Some(buffers);
            }
            if let Some(sizes) = list("buffer_size") {
                qos.sizes = all_of(sizes.iter().map(Value::as_u64));
            }
            for pair in list("dscp_prio").into_iter().flatten() {
                let number = |at: usize, end| {
                    let value = u8::try_from(pair.get(at)?.as_u64()?).ok()?;
                    (value < end).then_some(value)
                };
                if let (Some(dscp), Some(priority)) = (number(0, 64), number(1, 8)) {
                    qos.dscp.insert(dscp, priority);
                    // The kernel's mlx5 driver trusts the DSCP while there are entries for it.
                    qos.trust.get_or_insert(Trust::Dscp);
                }
            }
            if let Some(first) = list("order").and_then(|order| order.first()?.as_str()) {
                qos.trust = Some(match first.trim() {
                    "dscp" => Trust::Dscp,
                    _ => Trust::Pcp,
                });
            }
            if let Some(host) = json.get("host").and_then(Value::as_bool) {
                qos.owner = Some(if host { Owner::Host } else { Owner::Firmware });
            }
        }
        qos
    }
}

fn selection(word: &str) -> Option<Selection> {
    match word {
        "strict" => Some(Selection::Strict),
        "ets" => Some(Selection::Ets),
        "vendor" => Some(Selection::Vendor),
        _ => None,
    }
}

fn small(text: &str, end: u8) -> Option<u8> {
    text.parse().ok().filter(|&value| value < end)
}

/// The first eight numbers of a list, if there are so many.
fn eight<'a, T: std::str::FromStr + Copy + Default>(
    parts: impl Iterator<Item = &'a str>,
) -> Option<[T; 8]> {
    all_of(parts.take(8).map(|part| part.trim().parse().ok()))
}

fn all_of<T: Copy + Default>(values: impl Iterator<Item = Option<T>>) -> Option<[T; 8]> {
    let mut out = [None; 8];
    for (entry, value) in out.iter_mut().zip(values) {
        *entry = value;
    }
    all(out)
}

fn all<T: Copy + Default>(values: [Option<T>; 8]) -> Option<[T; 8]> {
    values
        .iter()
        .all(Option::is_some)
        .then(|| values.map(Option::unwrap_or_default))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MLNX: &str = "DCBX mode: OS controlled\nPriority trust state: dscp\ndscp2prio mapping:\n\
        \tprio:0 dscp:07,06,05,04,03,02,01,00,\n\tprio:5 dscp:26,\n\tprio:6 dscp:55,54,53,52,51,50,49,48,\n\
        default priority:\nReceive buffer size (bytes): 19872,220896,0,0,0,0,0,0,max_buffer_size=4151520\nCable len: 30\n\
        PFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\
        \tenabled     0   0   0   0   0   1   0   0   \n\tbuffer      0   0   0   0   0   1   0   0   \n\
        tc: 0 ratelimit: unlimited, tsa: ets, bw: 50%\n\t priority:  0\n\t priority:  1\n\t priority:  2\n\t priority:  3\n\
        \t priority:  4\n\t priority:  7\ntc: 5 ratelimit: unlimited, tsa: ets, bw: 50%\n\t priority:  5\n\
        tc: 6 ratelimit: unlimited, tsa: strict\n\t priority:  6\n";

    #[test]
    fn as_mlnx_qos_prints_it() {
        let qos = Qos::parse_mlnx(MLNX);
        assert_eq!(
            (qos.trust, qos.owner),
            (Some(Trust::Dscp), Some(Owner::Host))
        );
        assert_eq!(
            (qos.priority(26), qos.priority(48), qos.priority(27)),
            (5, 6, 3)
        );
        assert_eq!(qos.lossless(), [5]);
        assert_eq!(qos.class, Some([0, 0, 0, 0, 0, 5, 6, 0]));
        assert_eq!(qos.selection_of(6), Some(Selection::Strict));
        assert_eq!(
            (qos.share[5], qos.selection_of(5)),
            (Some(50), Some(Selection::Ets))
        );
        assert_eq!(qos.buffer, Some([0, 0, 0, 0, 0, 1, 0, 0]));
        assert_eq!(qos.sizes.unwrap()[1], 220_896);
        assert_eq!(qos.cable, Some(30));
    }

    #[test]
    fn as_dcb_prints_it() {
        let qos = Qos::parse_dcb([
            r#"{"pfc_cap":8,"macsec_bypass":false,"delay":0,"prio_pfc":[false,false,false,true,false,false,false,false]}"#,
            r#"{"willing":false,"ets_cap":8,"cbs":false,"tc_bw":[50,0,0,50,0,0,0,0],"tc_tsa":["ets","strict","strict","ets","strict","strict","strict","strict"],"prio_tc":[0,1,2,3,4,5,6,7]}"#,
            r#"{"dscp_prio":[[26,3],[48,6],[200,1]]}"#,
            r#"{"prio_buffer":[0,0,0,1,0,0,0,0],"buffer_size":[1,2,0,0,0,0,0,0],"total_size":3}"#,
            r#"{"host":true,"ieee":true}"#,
            "not json",
        ]);
        assert_eq!(qos.lossless(), [3]);
        assert_eq!(qos.trust, Some(Trust::Dscp));
        assert_eq!(qos.owner, Some(Owner::Host));
        assert_eq!(qos.class_of(3), Some(3));
        assert_eq!(qos.selection_of(6), Some(Selection::Strict));
        assert_eq!(qos.dscp.len(), 2);
        let trusted = Qos::parse_dcb([r#"{"order":["pcp","dscp"]}"#]);
        assert_eq!(trusted.trust, Some(Trust::Pcp));
    }

    #[test]
    fn what_is_cut_short_is_unknown() {
        assert_eq!(
            Qos::parse_mlnx("enabled 1 0 1\ntc: 9 tsa: ets\npriority: 77\n"),
            Qos::default()
        );
        assert_eq!(
            Qos::parse_dcb([r#"{"prio_pfc":[true],"prio_tc":[300,0,0,0,0,0,0,0]}"#]),
            Qos::default()
        );
    }
}
