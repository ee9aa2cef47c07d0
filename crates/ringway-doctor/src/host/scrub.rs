//! What is private, taken out of a recording: the same by the same everywhere, so that what belongs together still does.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::{
    Root,
    checks::TOOLS,
    facts::VARIABLES,
    parse::{environment, serial_number},
};

/// Daemons that checks look for, as /proc/PID/comm has their names.
const DAEMONS: [&str; 4] = ["irqbalance", "lldpad", "dcbd", "nv-fabricmanage"];

/// Variables whose values matter; of others that are looked for only the name does.
const VALUES: [&str; 12] = [
    "NCCL_IB_TC",
    "NCCL_IB_FIFO_TC",
    "NCCL_GIN_IB_TC",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_SOCKET_IFNAME",
    "UCX_IB_TRAFFIC_CLASS",
    "UCX_IB_GID_INDEX",
    "UCX_NET_DEVICES",
    "UCX_RC_ECE",
    "SLURM_RLIMIT_MEMLOCK",
];

/// Parameters of the kernel that evidence shows.
const PARAMETERS: [&str; 7] = [
    "iommu",
    "intel_iommu",
    "amd_iommu",
    "pci",
    "pcie_aspm",
    "intel_idle.max_cstate",
    "processor.max_cstate",
];

/// Files of which only the lines that hold one of these words are kept; of files below /etc the others are left empty, as
/// evidence has the numbers of their lines.
const LINES: [(&str, &[&str]); 8] = [
    (
        "proc/self/status",
        &["CapEff", "Cpus_allowed_list", "VmPin"],
    ),
    ("proc/meminfo", &["HugePages_"]),
    ("proc/self/mounts", &["/dev/shm"]),
    ("proc/self/limits", &["Max locked memory"]),
    ("proc/modules", &["nvidia_peermem", "nv_peer_mem"]),
    ("proc/interrupts", &["CPU0", "@pci"]),
    (
        "commands/nft_list_ruleset",
        &["chain ", "hook input", "4791", "}"],
    ),
    ("etc/slurm", &["PropagateResourceLimits", "TaskPlugin"]),
];

/// What was replaced by what.
#[derive(Default)]
pub(super) struct Scrub {
    hosts: Vec<String>,
    macs: BTreeMap<u64, u64>,
    guids: BTreeMap<String, usize>,
    networks: BTreeMap<[u8; 3], u16>,
    prefixes: BTreeMap<u64, u16>,
    interfaces: BTreeMap<u64, u64>,
}

impl Scrub {
    /// For a host with the names that it has.
    pub(super) fn of(root: &Root) -> Self {
        let names = ["proc/sys/kernel/hostname", "etc/hostname"];
        let mut hosts: Vec<String> = names
            .iter()
            .filter_map(|path| root.text(path).ok())
            .flat_map(|name| {
                let short = name.split('.').next().unwrap_or_default().to_owned();
                [name, short]
            })
            .filter(|name| !matches!(name.as_str(), "" | "localhost" | "(none)"))
            .collect();
        // The longer first: a host with its domain before the host.
        hosts.sort_by_key(|name| std::cmp::Reverse(name.len()));
        hosts.dedup();
        Self {
            hosts,
            ..Self::default()
        }
    }

    /// The contents of a file, without what is private or not looked at; `None` if nothing is left that anybody looks at.
    pub(super) fn file(&mut self, path: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        if path.ends_with("/config") {
            return Some(without_serial(bytes));
        }
        if path.ends_with("hostname") {
            return None;
        }
        if path == "dev/cpu_dma_latency" {
            return Some(bytes.to_owned());
        }
        if path.ends_with("/fw_ver") {
            // Some versions have the form of an address.
            return Some(bytes.to_owned());
        }
        let text = String::from_utf8_lossy(bytes);
        // Most entries of a table of hundreds.
        if path.contains("/gids/") && text.bytes().all(|byte| b"0:\n".contains(&byte)) {
            return None;
        }
        let kept = match path {
            "proc/self/environ" => variables(bytes),
            "proc/cmdline" => {
                let named =
                    |it: &&str| PARAMETERS.contains(&it.split('=').next().unwrap_or_default());
                let words: Vec<&str> = text.split_whitespace().filter(named).collect();
                words.join(" ")
            }
            "proc/cpuinfo" if text.contains(" hypervisor") => {
                "flags\t\t: fpu hypervisor\n".to_owned()
            }
            "proc/cpuinfo" => "flags\t\t: fpu\n".to_owned(),
            "proc/net/route" => self.routes(&text),
            _ if is_comm(path) => DAEMONS.contains(&text.trim()).then(|| text.into_owned())?,
            _ if path.starts_with("etc/security/") => limits(&text),
            _ => match words(path) {
                Some(words) => {
                    let kept = lines(&text, path.starts_with("etc/"), |line| {
                        let line = line.to_ascii_lowercase();
                        words
                            .iter()
                            .any(|word| line.contains(&word.to_ascii_lowercase()))
                    });
                    // A unit that has nothing to do with this is nobody's business.
                    (!kept.trim().is_empty() || path.starts_with("proc/")).then_some(kept)?
                }
                None => text.into_owned(),
            },
        };
        Some(self.text(&kept).into_bytes())
    }

    /// Text with names and addresses replaced.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(length);
            if word.is_empty() {
                let next = rest.chars().next().map_or(1, char::len_utf8);
                out.push_str(&rest[..next]);
                rest = &rest[next..];
                continue;
            }
            out.push_str(&self.word(word));
            rest = after;
        }
        out
    }

    /// A word of letters, digits and what stands between them in names and addresses.
    fn word(&mut self, word: &str) -> String {
        if self.hosts.iter().any(|host| host == word) {
            return "host".to_owned();
        }
        // Punctuation that ends a sentence or an entry.
        let bare = word.trim_end_matches(['.', ':', '-']);
        let tail = &word[bare.len()..];
        if let Some(new) = self.address(bare) {
            return new + tail;
        }
        // ADDRESS:PORT, and names with their host or domain in front: host.domain, host-ib0.
        if let Some((address, port)) = bare.split_once(':')
            && let Some(new) = self.address(address)
        {
            return format!("{new}:{port}{tail}");
        }
        let host = self.hosts.iter().find(|host| {
            let rest = bare.strip_prefix(host.as_str());
            rest.is_some_and(|rest| rest.starts_with(['.', '-', ':']) || rest.is_empty())
        });
        match host {
            Some(host) if bare[host.len()..].starts_with('.') => format!("host{tail}"),
            Some(host) => format!("host{}{tail}", &bare[host.len()..]),
            None => word.to_owned(),
        }
    }

    fn address(&mut self, word: &str) -> Option<String> {
        if let Some(digits) = word.strip_prefix("enx").filter(|it| it.len() == 12) {
            let mac = u64::from_str_radix(digits, 16).ok()?;
            return Some(format!("enx{:012x}", self.mac(mac)));
        }
        let groups: Vec<&str> = word.split(':').collect();
        let each = |len| groups.iter().all(|group| group.len() == len);
        if groups.len() == 6 && each(2) {
            let mac = u64::from_str_radix(&groups.concat(), 16).ok()?;
            return Some(mac_text(self.mac(mac)));
        }
        if groups.len() == 4 && each(4) {
            u64::from_str_radix(&groups.concat(), 16).ok()?;
            let next = self.guids.len() + 1;
            let number = *self.guids.entry(word.to_owned()).or_insert(next);
            return Some(format!("0000:0000:0000:{number:04x}"));
        }
        if let Ok(address) = word.parse::<Ipv4Addr>() {
            return Some(self.v4(address).to_string());
        }
        if groups.len() > 2
            && let Ok(address) = word.parse::<Ipv6Addr>()
        {
            let new = self.v6(address);
            // Tables of GIDs write all digits.
            let long = groups.len() == 8 && each(4);
            return Some(if long {
                let groups = new.segments().map(|group| format!("{group:04x}"));
                groups.join(":")
            } else {
                new.to_string()
            });
        }
        None
    }

    /// Addresses that somebody has given out himself say nothing of the card.
    fn mac(&mut self, mac: u64) -> u64 {
        if mac == 0 || mac == 0xffff_ffff_ffff {
            return mac;
        }
        let next = self.macs.len() as u64 + 1;
        0x0200_0000_0000 | *self.macs.entry(mac).or_insert(next)
    }

    /// Private addresses stay: which are in one subnet is what checks look at. Of others the network is replaced by one of
    /// those for measurements (RFC 2544).
    fn v4(&mut self, address: Ipv4Addr) -> Ipv4Addr {
        let [a, b, c, d] = address.octets();
        let mask = a == 255 || a == 0;
        if address.is_private()
            || address.is_loopback()
            || address.is_link_local()
            || address.is_multicast()
            || mask
        {
            return address;
        }
        let next = self.networks.len() as u16;
        let number = *self.networks.entry([a, b, c]).or_insert(next);
        Ipv4Addr::new(198, 18 | (number >> 8) as u8 & 1, number as u8, d)
    }

    fn v6(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        if let Some(inner) = address.to_ipv4_mapped() {
            return self.v4(inner).to_ipv6_mapped();
        }
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return address;
        }
        let bits = address.to_bits();
        let (prefix, interface) = ((bits >> 64) as u64, bits as u64);
        let prefix = if address.is_unicast_link_local() {
            prefix
        } else {
            let next = self.prefixes.len() as u16;
            let number = *self.prefixes.entry(prefix).or_insert(next);
            0x2001_0db8_0000_0000 | u64::from(number)
        };
        Ipv6Addr::from_bits(u128::from(prefix) << 64 | u128::from(self.interface(interface)))
    }

    /// The lower half: what was made of a MAC address (RFC 4291, appendix A) is made of its replacement.
    fn interface(&mut self, interface: u64) -> u64 {
        if interface <= 0xffff {
            return interface;
        }
        if interface >> 24 & 0xffff == 0xfffe {
            let flipped = interface ^ 0x0200_0000_0000_0000;
            let mac = flipped >> 16 & 0xffff_ff00_0000 | flipped & 0xff_ffff;
            let new = self.mac(mac);
            let wide = (new & 0xffff_ff00_0000) << 16 | 0xff_fe00_0000 | new & 0xff_ffff;
            return wide ^ 0x0200_0000_0000_0000;
        }
        let next = 0x1_0000 + self.interfaces.len() as u64;
        *self.interfaces.entry(interface).or_insert(next)
    }

    /// /proc/net/route, whose addresses are numbers in the host's order.
    fn routes(&mut self, text: &str) -> String {
        let replace = |scrub: &mut Self, word: &str| {
            let number = u32::from_str_radix(word, 16).ok()?;
            let address = Ipv4Addr::from(number.to_ne_bytes());
            let new = u32::from_ne_bytes(scrub.v4(address).octets());
            Some(format!("{new:08X}"))
        };
        let mut out = String::new();
        for line in text.lines() {
            let words: Vec<String> = line
                .split_whitespace()
                .enumerate()
                .map(|(at, word)| match at {
                    1 | 2 => replace(self, word).unwrap_or_else(|| word.to_owned()),
                    _ => word.to_owned(),
                })
                .collect();
            out.push_str(&words.join("\t"));
            out.push('\n');
        }
        out
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-')
}

fn mac_text(mac: u64) -> String {
    let bytes = mac.to_be_bytes();
    let parts: Vec<String> = bytes[2..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    parts.join(":")
}

fn is_comm(path: &str) -> bool {
    path.starts_with("proc/") && path.ends_with("/comm")
}

/// The words whose lines are kept of a file; `None`: all are.
fn words(path: &str) -> Option<&'static [&'static str]> {
    let found = LINES.iter().find(|(start, _)| path.starts_with(start));
    let unit = [
        "etc/systemd",
        "etc/network",
        "etc/Network",
        "etc/udev",
        "etc/init",
        "etc/rc",
        "usr/local",
    ];
    match found {
        Some((_, words)) => Some(words),
        None if unit.iter().any(|it| path.starts_with(it)) => Some(&TOOLS),
        None => None,
    }
}

/// The lines to be kept; `numbered`: with empty ones for the others.
fn lines(text: &str, numbered: bool, keep: impl Fn(&str) -> bool) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let kept = keep(line);
        if kept {
            out.push_str(line);
        }
        if kept || numbered {
            out.push('\n');
        }
    }
    out
}

/// Lines of limits.conf on locked memory; users and groups are nobody's business.
fn limits(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().map(str::trim) {
        let domain = line.split_whitespace().next().unwrap_or_default();
        if line.contains("memlock") && !line.starts_with('#') {
            let name = if domain == "*" { "*" } else { "user" };
            out.push_str(name);
            out.push_str(&line[domain.len()..]);
        }
        out.push('\n');
    }
    out
}

fn variables(bytes: &[u8]) -> String {
    environment(bytes)
        .into_iter()
        .filter(|(name, _)| VARIABLES.iter().any(|it| name.starts_with(it)))
        .map(|(name, value)| {
            let value = if VALUES.contains(&name.as_str()) || name == "RDMAV_FORK_SAFE" {
                value
            } else {
                "1".to_owned()
            };
            format!("{name}={value}\0")
        })
        .collect()
}

fn without_serial(config: &[u8]) -> Vec<u8> {
    let mut config = config.to_owned();
    if let Some(number) = serial_number(&config).and_then(|at| config.get_mut(at..at + 8)) {
        number.fill(0);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrub() -> Scrub {
        Scrub {
            hosts: vec!["node17.example.com".to_owned(), "node17".to_owned()],
            ..Scrub::default()
        }
    }

    #[test]
    fn the_same_is_replaced_by_the_same() {
        let mut scrub = scrub();
        let text = scrub.text(
            "node17: b8:ce:f6:01:02:03 at 8.8.4.4, 8.8.4.5:22 and 10.0.0.1 on node17.example.com; b8:ce:f6:01:02:03.",
        );
        assert_eq!(
            text,
            "host: 02:00:00:00:00:01 at 198.18.0.4, 198.18.0.5:22 and 10.0.0.1 on host; 02:00:00:00:00:01."
        );
        // Made of the MAC address above.
        let gid = scrub.text("fe80:0000:0000:0000:bace:f6ff:fe01:0203\n");
        assert_eq!(gid, "fe80:0000:0000:0000:0000:00ff:fe00:0001\n");
        assert_eq!(scrub.text("2a00:1450:4001:801::200e"), "2001:db8::200e");
        assert_eq!(
            scrub.text("0000:0000:0000:0000:0000:ffff:0808:0404"),
            "0000:0000:0000:0000:0000:ffff:c612:0004"
        );
        assert_eq!(scrub.text("b8ce:f603:0001:0203"), "0000:0000:0000:0001");
        assert_eq!(scrub.text("enxb8cef6010203"), "enx020000000001");
    }

    #[test]
    fn what_only_looks_like_it_stays() {
        for text in [
            "0000:17:00.0",
            "mlx5_comp3@pci:0000:17:00.0",
            "0000:0000:0000:0000:0000:0000:0000:0000",
            "6.1.0-22-amd64",
            "255.255.255.0",
            "32.0 GT/s PCIe",
            "mynode17",
            "::",
            "a: b. c- é",
        ] {
            assert_eq!(scrub().text(text), text);
        }
    }

    #[test]
    fn of_files_only_what_is_looked_at_is_kept() {
        let mut scrub = scrub();
        let mut kept = |path: &str, text: &str| {
            let bytes = scrub.file(path, text.as_bytes())?;
            Some(String::from_utf8(bytes).unwrap())
        };
        let variables = kept(
            "proc/self/environ",
            "SECRET=x\0NCCL_IB_TC=106\0NCCL_COMM_ID=a\0",
        );
        assert_eq!(variables.unwrap(), "NCCL_COMM_ID=1\0NCCL_IB_TC=106\0");
        let line = kept("proc/cmdline", "root=UUID=1 iommu=pt quiet");
        assert_eq!(line.unwrap(), "iommu=pt");
        assert_eq!(kept("proc/77/comm", "secretd\n"), None);
        assert_eq!(kept("proc/77/comm", "lldpad\n").unwrap(), "lldpad\n");
        let unit = "[Service]\nEnvironment=TOKEN=x\nExecStart=mlnx_qos -i eth2 -f 0\n";
        let expected = "\n\nExecStart=mlnx_qos -i eth2 -f 0\n";
        assert_eq!(
            kept("etc/systemd/system/a.service", unit).unwrap(),
            expected
        );
        assert_eq!(kept("etc/systemd/system/b.service", "[Service]\n"), None);
        let limits = "# x\nalice soft memlock unlimited\n* soft nofile 1\n";
        assert_eq!(
            kept("etc/security/limits.conf", limits).unwrap(),
            "\nuser soft memlock unlimited\n\n"
        );
        assert_eq!(kept("etc/hostname", "node17\n"), None);
    }
}
