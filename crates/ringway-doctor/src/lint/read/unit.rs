//! Systemd units that set up hosts: which interfaces they are bound to, and what they run.

use std::collections::BTreeMap;

use super::super::{
    model::Needs,
    notes::Notes,
    source::{At, Place},
};

/// Keys by which a unit starts and stops with a NIC, and what each is for.
const KEYS: [(&str, &str); 3] = [
    (
        "BindsTo",
        "which makes it run again when the driver is loaded again",
    ),
    ("After", "which makes it wait for the NIC"),
    ("WantedBy", "which starts it with the NIC"),
];

/// Reads a unit.
pub(in super::super) fn read(text: &str, file: Place, notes: &mut Notes) -> Needs {
    let mut needs = Needs::new("the unit", file);
    let mut bound: BTreeMap<String, Vec<(&str, Place)>> = BTreeMap::new();
    for (line, number) in text.lines().zip(1..) {
        let Some((key, value)) = line.trim().split_once('=') else {
            continue;
        };
        let (key, place) = (key.trim(), file.line(number));
        if let Some((key, _)) = KEYS.iter().find(|(known, _)| *known == key) {
            for name in value.split_whitespace().filter_map(interface) {
                needs.interfaces.push(At::new(name.clone(), place));
                bound.entry(name).or_default().push((key, place));
            }
        }
        if key == "ExecStart" {
            runs(value, place, notes);
        }
    }
    for (name, lines) in &bound {
        for (key, what) in KEYS {
            if lines.iter().any(|(its, _)| *its == key) {
                continue;
            }
            // The line that names another interface by that key, if there is one.
            let mut others = bound.values().flatten().filter(|(its, _)| *its == key);
            let other = others.next().map_or(file, |(_, place)| *place);
            let (by, place) = lines[0];
            notes.error(
                "unit.binding",
                name.as_str(),
                format!("{name} is in {by}=, and not in {key}=, {what}"),
                "when a driver is loaded again its interface comes back unconfigured: half of the fabric is lossy",
                [place, other],
                "name the same interfaces in BindsTo=, After= and WantedBy=: sys-subsystem-net-devices-NAME.device",
            );
        }
    }
    needs
}

/// Notes a script that only shows what it would do.
fn runs(command: &str, place: Place, notes: &mut Notes) {
    let mut words = command.split_whitespace();
    let script = words
        .next()
        .unwrap_or("")
        .trim_start_matches(['-', '@', '+', '!']);
    let ours = script
        .rsplit('/')
        .next()
        .unwrap_or("")
        .starts_with("ringway-lossless");
    if ours && !words.any(|word| word == "--apply") {
        notes.error(
            "unit.dry_run",
            "ExecStart",
            "the script is run without --apply: it only shows what it would do",
            "after a reboot the host is as if it had never been configured",
            [place],
            "ExecStart=/usr/local/sbin/ringway-lossless --apply",
        );
    }
}

/// The interface of a device's unit, whose name has `-` for slashes and `\x2d` for that (systemd.unit(5), string escaping).
fn interface(unit: &str) -> Option<String> {
    let name = unit
        .strip_prefix("sys-subsystem-net-devices-")?
        .strip_suffix(".device")?;
    let mut parts = name.split("\\x");
    let mut interface = parts.next()?.replace('-', "/");
    for part in parts {
        let code = part
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(code) => {
                interface.push(char::from(code));
                interface.push_str(&part[2..].replace('-', "/"));
            }
            // No escape: as it stands, which is no interface's name.
            None => interface.push_str(&format!("\\x{part}")),
        }
    }
    Some(interface)
}

#[cfg(test)]
mod tests {
    use super::interface;

    #[test]
    fn names_are_those_that_systemd_escapes() {
        for (unit, name) in [
            ("sys-subsystem-net-devices-eth1.device", Some("eth1")),
            (
                "sys-subsystem-net-devices-rdma\\x2d1.device",
                Some("rdma-1"),
            ),
            (
                "sys-subsystem-net-devices-bond0.100.device",
                Some("bond0.100"),
            ),
            ("sys-subsystem-net-devices-a\\xzz.device", Some("a\\xzz")),
            ("sys-subsystem-net-devices-a\\x2.device", Some("a\\x2")),
            ("network-pre.target", None),
        ] {
            assert_eq!(interface(unit).as_deref(), name, "{unit}");
        }
    }
}
