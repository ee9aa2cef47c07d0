//! The whole kind of a fault, not the one value that somebody reported; and whatever files may hold.

use std::fs;

use proptest::prelude::*;
use ringway_doctor::Step;

use crate::{diagnose, found, tree::Tree};

fn has(text: &str, finding: &str) -> bool {
    found(&diagnose(&Tree::with(text))).contains(finding)
}

/// The healthy host with PFC on `lossless` and data of DSCP `dscp` going in `priority`.
fn qos(lossless: u8, dscp: u8, priority: u8) -> String {
    let flags: Vec<&str> = (0..8)
        .map(|it| if it == lossless { "1" } else { "0" })
        .collect();
    let flags = flags.join(" ");
    let tos = dscp << 2 | 2;
    format!(
        "on connectx\n\
         sys/class/infiniband/mlx5_0/tc/1/traffic_class = Global tclass={tos}\n\
         $ mlnx_qos -i eth2\n\
         | DCBX mode: OS controlled\n\
         | Priority trust state: dscp\n\
         | dscp2prio mapping:\n\
         | \tprio:{priority} dscp:{dscp:02},\n\
         | PFC configuration:\n\
         | \tenabled {flags}\n"
    )
}

/// Registers that setpci changes (bytes into the capability of a device's, see pcie.trees), and the place of their words below.
const REGISTERS: [(&str, usize); 3] = [
    ("0000:19:00.0 CAP_EXP+8.w", 0),
    ("0000:19:00.0 CAP_EXP+10.w", 1),
    ("0000:18:00.0 ECAP_ACS+0x6.w", 2),
];

/// A card's Device Control and Link Control, and the ACS control of the port above it.
fn pci(words: [u16; 3]) -> Tree {
    let [device, link, acs] = words;
    Tree::with(&format!(
        "on connectx\n\
         % sys/bus/pci/devices/0000:19:00.0/config devctl=0x{device:04x} lnkctl=0x{link:04x}\n\
         % sys/bus/pci/devices/0000:18:00.0/config devctl=0x0030 lnkctl=0x0000 acs=0x{acs:04x}\n"
    ))
}

/// What steps of setpci make of the words: it writes the bits behind the colon, and leaves the others as they are (setpci(8)).
fn written<'s>(mut words: [u16; 3], steps: impl Iterator<Item = &'s Step>) -> [u16; 3] {
    for step in steps {
        let Step::Run(command) = step else { continue };
        let Some(command) = command.strip_prefix("setpci -s ") else {
            continue;
        };
        let (register, bits) = command.split_once('=').unwrap();
        let (_, place) = REGISTERS.iter().find(|(its, _)| *its == register).unwrap();
        let (value, mask) = bits.split_once(':').unwrap();
        let [value, mask] = [value, mask].map(|it| u16::from_str_radix(it, 16).unwrap());
        words[*place] = words[*place] & !mask | value & mask;
    }
    words
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn setpci_mends_what_is_found_touches_nothing_else_and_is_undone_to_the_bit(before in any::<[u16; 3]>()) {
        let report = diagnose(&pci(before));
        let ours = || report.findings.iter().filter(|it| it.check.starts_with("pcie."));
        let after = written(before, ours().flat_map(|it| &it.remedy));
        // The largest read request, relaxed ordering; ASPM; redirection by ACS.
        let meant = [0x7010, 0x0003, 0x001c];
        for (place, meant) in meant.into_iter().enumerate() {
            prop_assert_eq!(before[place] & !meant, after[place] & !meant, "word {}", place);
        }
        let left = diagnose(&pci(after));
        let still = |check: &str| left.findings.iter().any(|it| it.check == check);
        for check in ["pcie.read_request", "pcie.relaxed_ordering", "pcie.aspm", "pcie.acs"] {
            prop_assert!(!still(check), "{}: {:x?} to {:x?}", check, before, after);
        }
        prop_assert_eq!(written(after, ours().flat_map(|it| &it.rollback)), before);
    }

    #[test]
    fn data_in_a_lossy_priority_is_found_whatever_the_numbers(lossless in 0u8..8, dscp in 1u8..64, priority in 0u8..8) {
        let text = qos(lossless, dscp, priority);
        prop_assert_eq!(has(&text, "error qos.data_class"), lossless != priority, "{}", text);
    }

    #[test]
    fn a_limit_of_locked_memory_is_found_whatever_it_is(bytes in 0u64..1 << 30) {
        let text = format!(
            "on rxe\nproc/self/limits:\n| Max locked memory         {bytes}      {bytes}      bytes\n"
        );
        prop_assert!(has(&text, "error memory.memlock"));
    }

    #[test]
    fn an_mtu_without_room_for_4096_is_found_whatever_it_is(mtu in 68u64..4200) {
        let text = format!("on connectx\nsys/class/net/eth3/mtu = {mtu}\n");
        prop_assert!(has(&text, "warning links.mtu"));
    }

    #[test]
    fn a_read_request_that_is_too_small_is_found_and_its_rollback_is_the_old_one(size in 0u16..5) {
        let text = format!(
            "on connectx\n% sys/bus/pci/devices/0000:19:00.0/config devctl=0x{:04x} lnkctl=0x0040\n",
            0x0930 | size << 12
        );
        let report = diagnose(&Tree::with(&text));
        let finding = report.findings.iter().find(|it| it.check == "pcie.read_request").unwrap();
        let rollback = format!("{:?}", finding.rollback);
        prop_assert!(rollback.contains(&format!("CAP_EXP+8.w={:04x}:7000", size << 12)), "{}", rollback);
    }

    #[test]
    fn acs_that_redirects_is_found_whatever_else_it_does(control in 0u16..128) {
        let text = format!(
            "on connectx\n% sys/bus/pci/devices/0000:18:00.0/config devctl=0x0030 lnkctl=0x0000 acs=0x{control:04x}\n"
        );
        prop_assert_eq!(has(&text, "warning pcie.acs"), control & 0b1_1100 != 0);
    }

    #[test]
    fn whatever_files_hold_the_checks_end(
        which in prop::collection::vec(any::<prop::sample::Index>(), 1..12),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        text in "[-0-9a-fx:., \n]{0,60}",
        cut in any::<bool>(),
    ) {
        let tree = Tree::named("connectx");
        let files = tree.files();
        for (i, index) in which.iter().enumerate() {
            let file = index.get(&files);
            let old = fs::read(file).unwrap();
            let new = match (i % 3, cut) {
                (0, _) => bytes.clone(),
                (1, _) => text.clone().into_bytes(),
                (_, true) => old[..old.len() / 2].to_owned(),
                (_, false) => [old.as_slice(), bytes.as_slice()].concat(),
            };
            fs::write(file, new).unwrap();
        }
        let report = diagnose(&tree);
        prop_assert!(report.text(true).ends_with('\n'));
        prop_assert!(report.html("x").is_ok());
    }
}
