//! Cases from the field, by number: what others met, as a recorded tree each, and the remedy that helped them. Those that are
//! about switches or about both sides are in `tests/lint_cases`, in functions that begin with the number.

use super::*;

/// All cases, by number. Those that are missing were handed to nobody.
const CASES: [u32; 30] = [
    1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 27, 29, 30,
    32, 34, 36, 38, 39,
];

/// The number, the fault's name in `tests/trees/faults`, the check that finds it (none: all is well), and words of its remedy.
#[rustfmt::skip]
const TREES: &[(u32, &str, &str, &str)] = &[
    (2, "C2: the operator leaves data unmarked and CNPs in priority 0", "qos.cnp", "CNP_DSCP_P1=48"),
    (2, "C2: default_roce_tos is 0", "qos.data_class", "NCCL_IB_TC=106"),
    (3, "C3, H24: lldpad and a unit", "qos.owner", "lldpad"),
    (3, "C3, H24: lldpad and the card's firmware", "qos.owner", "DCBX"),
    (7, "C7: the driver marks, queue pairs of GPUs do not", "qos.global_class", "NCCL_IB_TC=106"),
    (9, "H2, C9: only link-local addresses", "gids.routable", "ip address add"),
    (9, "H3, C9: an index that is link-local", "gids.index", "set it to"),
    (10, "C10: only IPv6, and NCCL filters for IPv4", "gids.family", "NCCL_IB_ADDR_FAMILY=AF_INET6"),
    (11, "C11: types of the first entries cannot be read, the others are well", "", ""),
    (12, "H5, C12: limits.conf was changed, the process is older", "memory.limits_file", "log in again"),
    (13, "H5, C13, C15: 64 KiB in a service", "memory.memlock", "LimitMEMLOCK=infinity"),
    (14, "H5, C14: a container's 64 MB", "memory.memlock", "--ulimit memlock=-1"),
    (15, "H5, C13, C15: 64 KiB in a service", "memory.memlock", "LimitMEMLOCK=infinity"),
    (16, "H11, C16: ACS redirects at the switch's port, and no peermem", "pcie.acs", "ECAP_ACS+0x6.w=0000:001c"),
    (16, "H11, C16: ACS redirects at the switch's port, and no peermem", "devices.gpudirect", "modprobe nvidia-peermem"),
    (16, "H14, C16: a GPU beyond the host bridge", "pcie.gpu_distance", ""),
    (17, "H13, C17: neither nvidia_peermem nor dma-buf", "devices.gpudirect", "modprobe nvidia-peermem"),
    (19, "H20, C19, C20: two cards in one subnet", "sysctls.arp", "arp_ignore=1"),
    (20, "H20, C19, C20: two cards in one subnet", "sysctls.arp", "arp_announce=2"),
    (21, "C21: the shared plugin with exclusive namespaces", "containers.netns", "rdma system set netns shared"),
    (22, "C22: a device without its interface", "containers.netdev", "NetworkAttachmentDefinition"),
    (23, "C23: a virtual function with shared namespaces", "containers.netns", "rdma system set netns exclusive"),
    (23, "C23: a virtual function with exclusive namespaces is well", "", ""),
    (24, "H4, C24: an MTU of 1500", "links.mtu", "mtu 9000"),
    (25, "C25: mlnx_qos -p in place of -f", "qos.pfc", "--pfc 0,0,0,1,0,0,0,0"),
    (25, "C25: --dscp2prio without its verb", "qos.scripts", "--dscp2prio set,26,3"),
    (29, "C29: strict data before CNPs", "qos.strict", ""),
    (32, "H23, C32: nothing sets PFC again after a restart", "qos.persistence", "systemctl enable"),
    (38, "C38, H11: a BIOS that was told to turn ACS on", "pcie.acs", "whatever is advised for NUMA"),
    (39, "C39: UCX over a bond", "links.bond_ece", "UCX_RC_ECE=0"),
];

#[test]
fn each_case_on_a_host_is_found_with_the_remedy_that_helped() {
    let faults = faults();
    for (number, name, check, words) in TREES {
        let fault = faults.iter().find(|it| it.name == *name);
        let fault = fault.unwrap_or_else(|| panic!("C{number}: no tree is called {name}"));
        assert!(name.contains(&format!("C{number}")), "{name}");
        let report = diagnose(&fault.tree());
        if check.is_empty() {
            assert_eq!(report.findings, [], "C{number}: {}", report.text(false));
            continue;
        }
        let finding = report.findings.iter().find(|it| it.check == *check);
        let finding = finding.unwrap_or_else(|| panic!("C{number}: {}", report.text(false)));
        let remedy: Vec<String> = finding.remedy.iter().map(ToString::to_string).collect();
        assert!(
            remedy.iter().any(|it| it.contains(words)),
            "C{number}: {remedy:#?}"
        );
    }
}

#[test]
fn each_case_has_a_test_by_its_number() {
    let both_sides = include_str!("../lint_cases/main.rs");
    for number in CASES {
        let tree = TREES.iter().any(|(of, ..)| *of == number);
        let lint = both_sides.contains(&format!("\nfn c{number}_"));
        assert!(tree || lint, "C{number}");
    }
}
