//! Hosts: a script that sets them up, or a recorded tree of what the kernel and its tools say.

use std::{collections::BTreeMap, sync::LazyLock};

use super::{
    super::{
        grammar::{Captured, Grammar, Rule, command, nothing},
        model::{Host, Nic, Trust},
        notes::Notes,
        source::{At, Place},
        statement::Statement,
    },
    mlnx_qos,
};
use crate::host::parse::Acs;

#[derive(Debug)]
struct Raw {
    host: Host,
    /// Devices whose directory of the connection manager is made.
    made: BTreeMap<String, Place>,
    /// Lines with problem and remedy.
    wrong: Vec<(Place, String, String)>,
}

impl Raw {
    fn nic(&mut self, name: &str, place: Place) -> &mut Nic {
        self.host
            .nics
            .entry(name.to_owned())
            .or_insert_with(|| Nic::new(place))
    }
}

/// The pairs of words such as `3:on`, with a number from 0 to `most` first.
fn pairs(words: &[String], most: u8) -> impl Iterator<Item = (u8, &str)> {
    words.iter().filter_map(move |word| {
        let (number, value) = word.split_once(':')?;
        let number = number.parse().ok().filter(|number| *number <= most)?;
        Some((number, value))
    })
}

/// The words after `key` and before the next word without a colon.
fn after<'t>(words: &'t [String], key: &str) -> &'t [String] {
    let Some(at) = words.iter().position(|word| word == key) else {
        return &[];
    };
    let rest = &words[at + 1..];
    let end = rest
        .iter()
        .position(|word| !word.contains(':'))
        .unwrap_or(rest.len());
    &rest[..end]
}

fn scan<T: Copy>(words: &[String], mut values: [T; 8], read: impl Fn(&str) -> Option<T>) -> [T; 8] {
    if let Some(all) = words.iter().find_map(|word| word.strip_prefix("all:")) {
        values = [read(all).unwrap_or(values[0]); 8];
    }
    for (index, value) in pairs(words, 7) {
        if let Some(value) = read(value) {
            values[usize::from(index)] = value;
        }
    }
    values
}

/// Notes numbers that are there twice, or out of range, in words such as `3:on`.
fn each_once(raw: &mut Raw, words: &[String], most: u8, place: Place) {
    let mut seen = std::collections::BTreeSet::new();
    for number in words
        .iter()
        .filter_map(|word| Some(word.split_once(':')?.0))
    {
        let fits = number == "all" || number.parse().is_ok_and(|number: u8| number <= most);
        if !fits || !seen.insert(number) {
            let problem = format!(
                "{number} is {}",
                if fits { "there twice" } else { "out of range" }
            );
            let remedy = format!("name each of 0 to {most} at most once");
            raw.wrong.push((place, problem, remedy));
        }
    }
}

/// `ways`: where it is said whether pauses are heeded, and whether they are sent.
fn pause(raw: &mut Raw, c: &Captured<'_>, ways: [usize; 2]) {
    let paused = ways.iter().any(|&way| c.word(way) == "on");
    raw.nic(c.word(0), c.place).pause = Some(c.at(paused));
}

/// Notes a command that turns ACS on: advice to do so, in the BIOS or by hand, takes GPUs and NICs their short way.
fn acs(raw: &mut Raw, words: &[String], place: Place) {
    let set = words.iter().find_map(|word| {
        let (register, value) = word.split_once('=')?;
        // Behind the colon are the bits that are written; the others stay as they are (setpci(8)).
        let (value, mask) = value.split_once(':').unwrap_or((value, "ffff"));
        let bits = |text| u32::from_str_radix(text, 16).ok();
        let acs = register.to_ascii_uppercase().starts_with("ECAP_ACS+");
        Some(bits(value)? & bits(mask)?).filter(|_| acs)
    });
    if let Some(value) = set.filter(|value| value & u32::from(Acs::REDIRECTS) != 0) {
        raw.wrong.push((
            place,
            format!("turns ACS's redirection on ({value:#06x}): what passes between a GPU and a NIC goes up to the root and back"),
            "on bare metal set it to 0000, here and in the BIOS; only virtual machines want it".to_owned(),
        ));
    }
}

static RULES: &[Rule<Raw>] = &[
    command("", "ip link set [dev] <name> mtu <68-65535>", |raw, c| {
        raw.nic(c.word(0), c.place).mtu = c.number(1);
    }),
    command("", "ip link set <rest>", nothing),
    command(
        "",
        "ethtool -A <name> rx on|off tx on|off <rest>",
        |raw, c| {
            pause(raw, c, [1, 2]);
        },
    ),
    command(
        "",
        "ethtool -A <name> autoneg on|off rx on|off tx on|off <rest>",
        |raw, c| pause(raw, c, [2, 3]),
    ),
    command("", "setpci <rest>", |raw, c| acs(raw, c.rest(), c.place)),
    command("", "mlnx_qos <rest>", |raw, c| {
        let Some(name) = mlnx_qos::interface(c.rest()) else {
            let problem = "mlnx_qos without -i INTERFACE".to_owned();
            raw.wrong
                .push((c.place, problem, "name the interface".to_owned()));
            return;
        };
        let wrong = mlnx_qos::apply(c.rest(), raw.nic(name, c.place), c.place);
        let wrong = wrong
            .into_iter()
            .map(|(problem, remedy)| (c.place, problem, remedy));
        raw.wrong.extend(wrong);
    }),
    command(
        "",
        "dcb app replace|add dev <name> dscp-prio <rest>",
        |raw, c| {
            each_once(raw, c.rest(), 63, c.place);
            let nic = raw.nic(c.word(1), c.place);
            // Entries for code points are what makes the driver trust them.
            nic.trust.get_or_insert(At::new(Trust::Dscp, c.place));
            for (dscp, priority) in pairs(c.rest(), 63) {
                if let Ok(priority @ 0..8) = priority.parse() {
                    nic.dscp[usize::from(dscp)] = Some(c.at(priority));
                }
            }
        },
    ),
    command("", "dcb apptrust set dev <name> order <rest>", |raw, c| {
        let dscp = c.rest().first().is_some_and(|first| first == "dscp");
        let trust = if dscp { Trust::Dscp } else { Trust::Pcp };
        raw.nic(c.word(0), c.place).trust = Some(c.at(trust));
    }),
    command("", "dcb pfc set dev <name> <rest>", |raw, c| {
        let flags = after(c.rest(), "prio-pfc");
        each_once(raw, flags, 7, c.place);
        let nic = raw.nic(c.word(0), c.place);
        let before = nic.pfc.map_or([false; 8], |pfc| pfc.value);
        let on = |word: &str| match word {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        };
        nic.pfc = Some(c.at(scan(flags, before, on)));
    }),
    command("", "dcb ets set dev <name> <rest>", |raw, c| {
        for key in ["tc-tsa", "tc-bw", "prio-tc"] {
            each_once(raw, after(c.rest(), key), 7, c.place);
        }
        let nic = raw.nic(c.word(0), c.place);
        let strict = |word: &str| Some(word == "strict");
        let number = |word: &str| word.parse().ok();
        for (key, words) in ["tc-tsa", "tc-bw", "prio-tc"].map(|key| (key, after(c.rest(), key))) {
            match key {
                _ if words.is_empty() => {}
                "tc-tsa" => nic.strict = Some(c.at(scan(words, [false; 8], strict))),
                "tc-bw" => nic.bandwidth = Some(c.at(scan(words, [0; 8], number))),
                _ => nic.classes = Some(c.at(scan(words, [0; 8], number))),
            }
        }
    }),
    command("", "dcb <rest>", nothing),
    command(
        "",
        "cma_roce_tos -d <device> -p <port> -t <0-255>",
        |raw, c| {
            raw.nic(c.word(0), c.place).tos = c.number(2);
        },
    ),
    command("", "cma_roce_tos -d <device> -t <0-255>", |raw, c| {
        raw.nic(c.word(0), c.place).tos = c.number(1);
    }),
    // Without a device it is the tool's own default.
    command("", "cma_roce_tos -p <port> -t <0-255>", |raw, c| {
        raw.nic("mlx5_0", c.place).tos = c.number(1);
    }),
    command("", "cma_roce_tos -t <0-255>", |raw, c| {
        raw.nic("mlx5_0", c.place).tos = c.number(0);
    }),
    command("", "mlxconfig <rest>", |raw, c| {
        let nic = raw.nic("mlxconfig", c.place);
        for (key, value) in c.rest().iter().filter_map(|word| word.split_once('=')) {
            let value = value.parse().ok().map(|value| c.at(value));
            match key {
                "CNP_DSCP_P1" | "CNP_DSCP_P2" => nic.cnp_dscp = value,
                "CNP_802P_PRIO_P1" | "CNP_802P_PRIO_P2" => nic.cnp_priority = value,
                _ => {}
            }
        }
    }),
    command("", "mkdir -p <directory>", |raw, c| {
        if let Some(device) = c.word(0).strip_prefix("/sys/kernel/config/rdma_cm/") {
            raw.made.insert(device.to_owned(), c.place);
        }
    }),
    command("", "put <file> <value>", |raw, c| {
        write(raw, c.word(0), c.word(1), c.place)
    }),
    command("", "offer <file> <value>", |raw, c| {
        write(raw, c.word(0), c.word(1), c.place)
    }),
    command("", "offer <file> <value> <instead>", |raw, c| {
        write(raw, c.word(0), c.word(1), c.place)
    }),
    command("", "echo <value> > <file>", |raw, c| {
        write(raw, c.word(1), c.word(0), c.place)
    }),
    command("", "sysctl -w <setting>", |raw, c| {
        if let Some((key, value)) = c.word(0).split_once('=') {
            write(
                raw,
                &format!("/proc/sys/{}", key.replace('.', "/")),
                value,
                c.place,
            );
        }
    }),
];

static GRAMMAR: LazyLock<Grammar<Raw>> =
    LazyLock::new(|| Grammar::new(RULES, &["mlnx_qos", "cma_roce_tos"]));

/// A value in a file of the kernel.
fn write(raw: &mut Raw, file: &str, value: &str, place: Place) {
    let parts: Vec<&str> = file.split('/').filter(|part| !part.is_empty()).collect();
    let number = value
        .trim_start_matches("Global tclass=")
        .parse()
        .ok()
        .map(|value| At::new(value, place));
    match parts.as_slice() {
        ["sys", "class", "net", name, "mtu"] => raw.nic(name, place).mtu = number,
        ["sys", "class", "net", name, "ecn", "roce_np", "cnp_dscp"] => {
            raw.nic(name, place).cnp_dscp = number;
        }
        [
            "sys",
            "class",
            "net",
            name,
            "ecn",
            "roce_np",
            "cnp_802p_prio",
        ] => {
            raw.nic(name, place).cnp_priority = number;
        }
        [
            "sys",
            "class",
            "net",
            name,
            "ecn",
            side @ ("roce_np" | "roce_rp"),
            "enable",
            priority,
        ] => {
            let Ok(priority) = priority.parse() else {
                return;
            };
            let on = At::new(value == "1", place);
            let nic = raw.nic(name, place);
            match *side {
                "roce_np" => nic.notifies.insert(priority, on),
                _ => nic.reacts.insert(priority, on),
            };
        }
        [
            "sys",
            "kernel",
            "config",
            "rdma_cm",
            device,
            "ports",
            _,
            "default_roce_tos",
        ] => {
            raw.nic(device, place).tos = number;
        }
        [
            "sys",
            "class",
            "infiniband",
            device,
            "tc",
            _,
            "traffic_class",
        ] => {
            raw.nic(device, place).traffic_class = number;
        }
        ["sys", "class", "net", _, "ecn", ..] => raw.wrong.push((
            place,
            format!("the kernel has no file {file}"),
            "write roce_np/cnp_dscp, roce_np/cnp_802p_prio, roce_np/enable/N or roce_rp/enable/N"
                .to_owned(),
        )),
        [
            "sys",
            "kernel",
            "config",
            "rdma_cm",
            ..,
            "default_roce_mode",
        ] => match value {
            "RoCE v2" => {}
            "IB/RoCE v1" => raw.wrong.push((
                place,
                "RoCE v1 has no IP header, and so no DSCP".to_owned(),
                "write RoCE v2".to_owned(),
            )),
            _ => raw.wrong.push((
                place,
                format!("`{value}` is no mode of RoCE"),
                "write RoCE v2".to_owned(),
            )),
        },
        ["proc", "sys", ..] => raw
            .host
            .settings
            .extend(number.map(|number| (parts.join("/"), number))),
        _ => {}
    }
    // Which port it is belongs to what is compared.
    if let [
        "sys",
        "kernel" | "class",
        ..,
        port,
        "default_roce_tos" | "default_roce_mode" | "traffic_class",
    ] = parts.as_slice()
        && let Ok(port) = port.parse()
    {
        raw.host
            .settings
            .insert(format!("port of {}", parts.join("/")), At::new(port, place));
    }
}

/// Reads a script.
pub(in super::super) fn script(
    mut statements: Vec<Statement>,
    file: Place,
    notes: &mut Notes,
) -> Host {
    for statement in &mut statements {
        statement.indent = 0;
        while matches!(
            statement.words.first().map(String::as_str),
            Some("run" | "sudo")
        ) {
            statement.words.remove(0);
        }
    }
    // Functions of the script itself, and what follows on the line.
    statements.retain(|statement| !statement.words.is_empty());
    let mut raw = Raw {
        host: Host {
            place: file,
            nics: BTreeMap::new(),
            settings: BTreeMap::new(),
        },
        made: BTreeMap::new(),
        wrong: Vec::new(),
    };
    GRAMMAR.read(&statements, file, &mut raw, notes);
    for (place, problem, remedy) in std::mem::take(&mut raw.wrong) {
        notes.error(
            "host.command",
            "host",
            problem,
            "the tool refuses it, or does something else than is meant",
            [place],
            remedy,
        );
    }
    for (device, nic) in &raw.host.nics {
        if let Some(tos) = nic.tos
            && !raw.made.is_empty()
            && !raw.made.contains_key(device)
        {
            notes.error(
                "host.directory",
                device.clone(),
                format!("default_roce_tos of {device} is set, and its directory is made nowhere"),
                "the kernel shows the file only after mkdir",
                [tos.place],
                format!("mkdir -p /sys/kernel/config/rdma_cm/{device} before"),
            );
        }
    }
    raw.host
}

/// A file of a recorded tree: its path in it, its contents, and its first line.
#[derive(Debug)]
pub(in super::super) struct TreeFile<'a> {
    pub(in super::super) path: &'a str,
    pub(in super::super) text: &'a str,
    pub(in super::super) place: Place,
}

/// Reads a recorded tree.
pub(in super::super) fn tree(files: &[TreeFile<'_>], place: Place) -> Host {
    let mut raw = Raw {
        host: Host {
            place,
            nics: BTreeMap::new(),
            settings: BTreeMap::new(),
        },
        made: BTreeMap::new(),
        wrong: Vec::new(),
    };
    for file in files {
        if let Some(name) = file.path.strip_prefix("commands/mlnx_qos_-i_") {
            let nic = raw.nic(name, file.place);
            mlnx_qos::printed(file.text, nic, |line| file.place.line(line));
        } else {
            write(&mut raw, file.path, file.text.trim(), file.place);
        }
    }
    // Interfaces that have an MTU and nothing else are not of the lossless network.
    raw.host.nics.retain(|_, nic| {
        nic.trust.is_some()
            || nic.pfc.is_some()
            || nic.cnp_dscp.is_some()
            || nic.tos.is_some()
            || nic.traffic_class.is_some()
            || !nic.notifies.is_empty()
    });
    raw.host
}
