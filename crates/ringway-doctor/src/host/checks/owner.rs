//! Quality of service: who sets it, and whether it outlives a restart.

use crate::host::{
    Host,
    check::{Check, Group, Said},
    facts::Quality,
    parse::{Owner, Trust, mlxconfig},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "qos.owner",
        group: Group::Qos,
        expects: "one owner: a unit of the host's, lldpad, or the card's firmware",
        why: "two that speak DCBX or write the same tables undo each other, at the next link-up or LLDP frame",
        source: "NVIDIA, mlxconfig: LLDP_NB_DCBX, DCBX_WILLING; lldpad(8); Azure, Troubleshoot-TOR-LLDP-DCBX-PFC-RoCEv2",
        run: owner,
    },
    Check {
        id: "qos.persistence",
        group: Group::Qos,
        expects: "a unit or hook that sets it again",
        why: "it lives in the driver: after a restart the switch pauses and the host drops, half of the fabric is lossy",
        source: "NVIDIA, mlnx_qos; systemd.service(5), networkd-dispatcher(8)",
        run: persistence,
    },
    Check {
        id: "qos.scripts",
        group: Group::Qos,
        expects: "-f for PFC, and set,DSCP,PRIORITY for --dscp2prio",
        why: "mlnx_qos -p gives priorities classes: with PFC's flags it puts all of them into two",
        source: "NVIDIA, mlnx_qos --help",
        run: scripts,
    },
];

/// Where units and hooks are.
const PLACES: [&str; 9] = [
    "etc/systemd/system",
    "etc/networkd-dispatcher/routable.d",
    "etc/networkd-dispatcher/configured.d",
    "etc/networkd-dispatcher/carrier.d",
    "etc/NetworkManager/dispatcher.d",
    "etc/network/if-up.d",
    "etc/udev/rules.d",
    "etc/init.d",
    "usr/local/sbin",
];

/// Tools that set it.
pub(in crate::host) const TOOLS: [&str; 4] = ["mlnx_qos", "dcb ", "lldptool", "cma_roce_tos"];

/// Lines of units and hooks that name a tool: file, number from 1, and the line.
fn lines(host: &Host<'_>) -> Vec<(String, usize, String)> {
    let mut files: Vec<String> = PLACES
        .iter()
        .flat_map(|dir| {
            let names = host.root.names(dir).into_iter();
            names.map(move |name| format!("{dir}/{name}"))
        })
        .collect();
    files.push("etc/rc.local".to_owned());
    let mut found = Vec::new();
    for file in files {
        let Ok(text) = host.root.text(&file) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.starts_with('#') && TOOLS.iter().any(|tool| line.contains(tool)) {
                found.push((file.clone(), number + 1, line.to_owned()));
            }
        }
    }
    found
}

fn owner(host: &Host<'_>, said: &mut Said) -> bool {
    if host.surroundings.container {
        return false;
    }
    let scripts = lines(host);
    let agent = ["lldpad", "dcbd"].into_iter().find(|name| host.runs(name));
    let mut any = false;
    for (interface, quality) in host.quality() {
        any = true;
        let interfaces = host.interfaces();
        let found = interfaces.iter().find(|(name, _, _)| name == interface);
        let Some((_, device, port)) = found else {
            continue;
        };
        let mut owners: Vec<(&str, String, String)> = Vec::new();
        let query = device
            .address
            .as_deref()
            .map(|address| ["mlxconfig", "-d", address, "query"]);
        let settings = query.and_then(|command| host.root.output(&command).ok());
        let name = format!("LLDP_NB_DCBX_P{}", port.number);
        let firmware = settings.is_some_and(|text| mlxconfig(&text).get(&name) == Some(&1));
        if let (true, Some(command)) = (firmware, query) {
            owners.push((
                "the card's firmware",
                command.join(" "),
                format!("{name} True(1)"),
            ));
        } else if quality.qos.owner == Some(Owner::Firmware) {
            owners.push((
                "the card's firmware",
                quality.source("dcbx"),
                "firmware controlled".to_owned(),
            ));
        }
        if let Some(agent) = agent {
            owners.push(("an LLDP agent", "proc/*/comm".to_owned(), agent.to_owned()));
        }
        if let Some((file, _, line)) = scripts.first() {
            owners.push(("a unit or hook", file.clone(), line.clone()));
        }
        if owners.len() < 2 {
            continue;
        }
        let names: Vec<&str> = owners.iter().map(|(name, _, _)| *name).collect();
        let mut finding = said.warn(
            interface,
            format!("{} all set the quality of service", names.join(" and ")),
        );
        for (_, source, value) in &owners {
            finding = finding.saw(source, value);
        }
        finding =
            finding.act("keep one; the host's own unit is the one that does what was written down");
        if let Some(agent) = agent {
            finding = finding
                .run(format!("systemctl disable --now {agent}"))
                .undo(format!("systemctl enable --now {agent}"));
        }
        if let (true, Some(address)) = (names[0].contains("firmware"), &device.address) {
            let set = |value: u8| {
                format!(
                    "mlxconfig -y -d {address} set {name}={value} && mlxfwreset -y -d {address} reset"
                )
            };
            finding = finding
                .run(format!("mlnx_qos -i {interface} --dcbx os"))
                .run(set(0))
                .undo(set(1))
                .undo(format!("mlnx_qos -i {interface} --dcbx fw"));
        }
        finding.likely();
    }
    any
}

fn persistence(host: &Host<'_>, said: &mut Said) -> bool {
    if host.surroundings.container {
        return false;
    }
    let set: Vec<_> = host
        .quality()
        .filter(|(_, quality)| !quality.qos.lossless().is_empty())
        // The switch tells the firmware again after each restart.
        .filter(|(_, quality)| quality.qos.owner != Some(Owner::Firmware))
        .collect();
    let Some((interface, quality)) = set.first() else {
        return false;
    };
    if !lines(host).is_empty() || host.runs("lldpad") {
        return true;
    }
    let unit = "/etc/systemd/system/roce-qos.service";
    let commands: Vec<String> = set
        .iter()
        .flat_map(|(_, quality)| restored(quality))
        .map(|command| format!("ExecStart={command}\\n"))
        .collect();
    said.warn(*interface, "nothing sets trust and PFC again after a restart")
        .saw(quality.source("pfc"), format!("PFC on {:?}", quality.qos.lossless()))
        .saw("etc/systemd/system", "no unit or hook names mlnx_qos, dcb or lldptool")
        .act("with classes, shares, buffers and marks as well: ringway fabric config INTENT.yaml --for host, and --for host-unit; or trust, code points and PFC alone:")
        .run(format!(
            "printf '[Unit]\\nAfter=network-online.target\\nWants=network-online.target\\n[Service]\\nType=oneshot\\nRemainAfterExit=yes\\n{}[Install]\\nWantedBy=multi-user.target\\n' > {unit} && systemctl daemon-reload && systemctl enable roce-qos",
            commands.concat()
        ))
        .undo(format!("systemctl disable roce-qos && rm {unit} && systemctl daemon-reload"))
        .likely();
    true
}

/// The commands that set what makes a priority lossless: whom to trust, which DSCPs are of it, and PFC.
fn restored(quality: &Quality) -> Vec<String> {
    let qos = &quality.qos;
    // mlnx_qos shows all 64, and what the driver does by itself needs no command; dcb shows what was set.
    let moved = qos
        .dscp
        .iter()
        .filter(|(dscp, priority)| !quality.mlnx || **dscp >> 3 != **priority);
    let points = moved.map(|(dscp, priority)| quality.map_dscp(*dscp, *priority));
    // The kernel's mlx5 refuses `dcb apptrust`, and trusts the DSCP by its entries: a `-` lets the unit go on.
    let lenient = if quality.mlnx { "" } else { "-" };
    let trust =
        (qos.trust == Some(Trust::Dscp)).then(|| format!("{lenient}{}", quality.set_trust(true)));
    let pfc = qos.pfc.map(|pfc| quality.set_pfc(pfc));
    trust.into_iter().chain(points).chain(pfc).collect()
}

/// What is wrong with a line that calls mlnx_qos, and what was meant.
fn mistake(line: &str) -> Option<(String, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let start = words.iter().position(|word| word.ends_with("mlnx_qos"))?;
    let words = &words[start..];
    let value = |short: &str, long: &str| {
        words.iter().enumerate().find_map(|(i, word)| {
            let given = word.strip_prefix(long).and_then(|it| it.strip_prefix('='));
            let next = || (*word == short || *word == long).then(|| words.get(i + 1).copied());
            given.or_else(|| next().flatten())
        })
    };
    if let Some(flags) = value("-p", "--prio_tc") {
        let parts: Vec<&str> = flags.split(',').collect();
        let ones = parts.iter().filter(|part| **part == "1").count();
        let binary = parts.iter().all(|part| matches!(*part, "0" | "1"));
        if parts.len() == 8 && binary && ones <= 2 {
            return Some((
                format!("-p {flags} gives priorities classes; these look like the flags of PFC"),
                format!("-f {flags}"),
            ));
        }
    }
    let mapping = value("--dscp2prio", "--dscp2prio")?;
    let first = mapping.split(',').next()?.trim_matches(['\'', '"']);
    if first.parse::<u8>().is_ok() {
        return Some((
            format!("--dscp2prio {mapping} lacks its verb"),
            format!("--dscp2prio set,{}", mapping.trim_matches(['\'', '"'])),
        ));
    }
    None
}

fn scripts(host: &Host<'_>, said: &mut Said) -> bool {
    let lines = lines(host);
    for (file, number, line) in &lines {
        if let Some((problem, meant)) = mistake(line) {
            said.error(format!("/{file}"), problem)
                .saw_line(file, *number, line)
                .act(format!("write {meant}, and run it again"))
                .undo_by("write the line as it was");
        }
    }
    !lines.is_empty()
}
