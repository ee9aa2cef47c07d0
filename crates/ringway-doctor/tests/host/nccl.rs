//! NCCL's settings: what follows from a host is set and well by the checks' own judgement, what does not is left open.

use std::{fs, path::Path};

use ringway_doctor::host::{
    self, Root,
    nccl::{Advice, advise},
};

use crate::{
    diagnose, found,
    tree::{Tree, faults},
};

fn of(tree: &Tree) -> Advice {
    advise(&Root::recorded(tree.root()).unwrap())
}

fn with(text: &str) -> Advice {
    of(&Tree::with(text))
}

fn value<'a>(advice: &'a Advice, name: &str) -> Option<&'a str> {
    let setting = advice.settings.iter().find(|it| it.name == name)?;
    Some(&setting.value)
}

/// Why it was left open.
fn open<'a>(advice: &'a Advice, name: &str) -> &'a str {
    assert_eq!(value(advice, name), None, "{name}");
    &advice
        .open
        .iter()
        .find(|it| it.name == name)
        .unwrap()
        .reason
}

const ROUTE: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask";

const BOND: &str = "on connectx\nproc/net/bonding/bond0:\n| Bonding Mode: IEEE 802.3ad Dynamic link aggregation\n\
                    | Transmit Hash Policy: layer3+4 (1)\n| LACP active: on\n| LACP rate: slow\n| Slave Interface: eth2\n";

#[test]
fn golden_settings() {
    for name in ["connectx", "user", "container", "rxe-vm", "none"] {
        let advice = of(&Tree::named(name));
        for (kind, text) in [("txt", advice.text()), ("sh", advice.export())] {
            let file = format!("tests/golden/nccl.{name}.{kind}");
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            if std::env::var_os("BLESS").is_some() {
                fs::write(&file, &text).unwrap();
            }
            let golden = fs::read_to_string(&file).unwrap_or_default();
            assert!(golden == text, "{} differs:\n{text}", file.display());
        }
    }
}

#[test]
fn what_is_advised_is_well_by_the_checks() {
    for name in ["connectx", "user", "rxe", "rxe-vm"] {
        let tree = Tree::named(name);
        let before = found(&diagnose(&tree));
        let mut environment: String = of(&tree)
            .settings
            .iter()
            .map(|it| format!("{}={}\0", it.name, it.value))
            .collect();
        environment.push_str("WORLD_SIZE=16\0");
        tree.write("proc/self/environ", environment.as_bytes());
        let report = diagnose(&tree);
        assert_eq!(found(&report), before, "{name}: {}", report.text(false));
    }
}

#[test]
fn every_fault_gets_settings_with_reason_and_evidence_or_an_open_question() {
    for fault in faults() {
        let tree = fault.tree();
        let advice = of(&tree);
        for setting in &advice.settings {
            let all = format!("{}: {setting:#?}", fault.name);
            assert!(
                !setting.why.is_empty() && !setting.evidence.is_empty(),
                "{all}"
            );
            assert!(
                setting.evidence.iter().all(|it| !it.value.is_empty()),
                "{all}"
            );
        }
        for open in &advice.open {
            assert!(
                !open.reason.is_empty() && !open.ask.is_empty(),
                "{}: {open:#?}",
                fault.name
            );
            assert_eq!(value(&advice, open.name), None, "{}", fault.name);
        }
        for name in ["NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME"] {
            let settings = advice.settings.iter().map(|it| it.name);
            let told = settings.chain(advice.open.iter().map(|it| it.name));
            assert_eq!(told.filter(|it| *it == name).count(), 1, "{}", fault.name);
        }
    }
}

#[test]
fn a_recording_is_advised_like_its_host() {
    for text in ["on connectx\n", "on rxe-vm\n", "on none\n", BOND] {
        let tree = Tree::with(text);
        let copy = Tree::empty();
        host::record(Root::recorded(tree.root()).unwrap(), copy.root()).unwrap();
        let names =
            |advice: &Advice| -> Vec<_> { advice.settings.iter().map(|it| it.name).collect() };
        assert_eq!(names(&of(&copy)), names(&of(&tree)), "{text}");
    }
}

#[test]
fn ports_that_are_down_slow_or_of_another_network_carry_no_data() {
    let hca = |text: &str| {
        let advice = with(&format!("on connectx\n{text}"));
        value(&advice, "NCCL_IB_HCA").unwrap().to_owned()
    };
    assert_eq!(hca(""), "=mlx5_0:1,mlx5_1:1");
    assert_eq!(
        hca("sys/class/infiniband/mlx5_1/ports/1/state = 1: DOWN"),
        "=mlx5_0:1"
    );
    assert_eq!(
        hca("sys/class/infiniband/mlx5_0/ports/1/rate = 25 Gb/sec (1X EDR)"),
        "=mlx5_1:1"
    );
    let advice = with("on connectx\nsys/class/infiniband/mlx5_1/ports/1/link_layer = InfiniBand");
    assert!(open(&advice, "NCCL_IB_HCA").contains("InfiniBand"));
    let ports = "sys/class/infiniband/mlx5_{0,1}/ports/1";
    let only = format!("on connectx\n- {ports}/gids/3\n{ports}/link_layer = InfiniBand");
    assert!(open(&with(&only), "NCCL_IB_HCA").contains("finds them by itself"));
    assert_eq!(value(&with(&only), "NCCL_IB_DISABLE"), None);
    let advice = with("on connectx\n- sys/class/infiniband/mlx5_{0,1}/ports/1/gids/3");
    assert!(open(&advice, "NCCL_IB_DISABLE").contains("routable"));
}

#[test]
fn an_index_is_one_that_is_right_for_all_ports() {
    let gids = |text: &str| with(&format!("on connectx\n{text}"));
    assert_eq!(value(&gids(""), "NCCL_IB_GID_INDEX"), Some("3"));
    let port = "sys/class/infiniband/mlx5_1/ports/1";
    let elsewhere = format!(
        "- {port}/gids/3\n{port}/gids/5 = 0000:0000:0000:0000:0000:ffff:0a01:0005\n\
         {port}/gid_attrs/types/5 = RoCE v2\n{port}/gid_attrs/ndevs/5 = eth3\n"
    );
    let advice = gids(&elsewhere);
    assert!(open(&advice, "NCCL_IB_GID_INDEX").contains("no index"));
    assert_eq!(value(&advice, "NCCL_IB_ROCE_VERSION_NUM"), Some("2"));
    let vlan = format!(
        "{port}/gids/5 = 0000:0000:0000:0000:0000:ffff:0a09:0005\n\
         {port}/gid_attrs/types/5 = RoCE v2\n{port}/gid_attrs/ndevs/5 = eth3.9\n"
    );
    assert!(open(&gids(&vlan), "NCCL_IB_GID_INDEX").contains("several interfaces"));
    let six = "sys/class/infiniband/mlx5_{0,1}/ports/1/gids/3 = fd00:0000:0000:0000:0000:0000:0000:0005\n";
    assert_eq!(value(&gids(six), "NCCL_IB_ADDR_FAMILY"), Some("AF_INET6"));
    let mixed =
        "sys/class/infiniband/mlx5_0/ports/1/gids/3 = fd00:0000:0000:0000:0000:0000:0000:0005\n";
    assert!(open(&gids(mixed), "NCCL_IB_ADDR_FAMILY").contains("IPv6 only"));
}

#[test]
fn the_mark_is_what_the_host_makes_lossless() {
    let class = |text: &str| with(&format!("on connectx\n{text}"));
    let qos = "in commands/mlnx_qos_-i_eth{2,3}\n";
    assert_eq!(value(&class(""), "NCCL_IB_TC"), Some("106"));
    // The driver's own mark, where its priority is lossless.
    let driver = "sys/class/infiniband/mlx5_{0,1}/tc/1/traffic_class = Global tclass=96\n";
    assert_eq!(value(&class(driver), "NCCL_IB_TC"), Some("96"));
    let lossy = "sys/class/infiniband/mlx5_{0,1}/tc/1/traffic_class = Global tclass=40\n";
    assert_eq!(value(&class(lossy), "NCCL_GIN_IB_TC"), Some("106"));
    let priority4 =
        format!("{qos}s enabled     0   0   0   1   0 / enabled     0   0   0   0   1\n");
    assert!(open(&class(&priority4), "NCCL_IB_TC").contains("32, 33, 34"));
    let none = format!("{qos}s enabled     0   0   0   1 / enabled     0   0   0   0\n");
    assert!(open(&class(&none), "NCCL_IB_TC").contains("no priority of eth2"));
    let tags = format!("{qos}s Priority trust state: dscp / Priority trust state: pcp\n");
    assert!(open(&class(&tags), "NCCL_IB_TC").contains("VLAN tags"));
    assert!(open(&of(&Tree::named("rxe")), "NCCL_IB_TC").contains("software"));
}

#[test]
fn routes_tell_where_ranks_meet_and_whether_rails_do() {
    let route = |lines: &str| with(&format!("on connectx\nproc/net/route:\n| {ROUTE}\n{lines}"));
    let rails = "| eth2 0000000A 00000000 0001 0 0 0 0000FFFF\n| eth3 0000010A 00000000 0001 0 0 0 0000FFFF\n";
    let advice = route(rails);
    assert_eq!(value(&advice, "NCCL_SOCKET_IFNAME"), Some("=eth2"));
    assert_eq!(value(&advice, "NCCL_CROSS_NIC"), Some("0"));
    let advice = route(&format!(
        "{rails}| eth0 00000000 0102A8C0 0003 0 0 100 00000000\n| wlan0 00000000 0102A8C0 0003 0 0 600 00000000\n"
    ));
    assert_eq!(value(&advice, "NCCL_SOCKET_IFNAME"), Some("=eth0"));
    assert_eq!(value(&advice, "NCCL_CROSS_NIC"), Some("0"));
    let advice = route(
        "| eth0 00000000 0102A8C0 0003 0 0 0 00000000\n| eth1 00000000 0102A8C0 0003 0 0 0 00000000\n",
    );
    assert!(open(&advice, "NCCL_SOCKET_IFNAME").contains("eth0 and eth1"));
    assert!(open(&advice, "NCCL_CROSS_NIC").contains("no route of some port"));
    let advice = route(&format!(
        "{rails}| eth2 0000010A 0100000A 0003 0 0 0 0000FFFF\n"
    ));
    assert!(open(&advice, "NCCL_CROSS_NIC").contains("up to the fabric"));
}

#[test]
fn a_bond_needs_time_to_take_out_a_dead_link() {
    assert!(open(&of(&Tree::named("connectx")), "NCCL_IB_TIMEOUT").contains("not to be seen"));
    let slow = with(BOND);
    // 7 times 4.096 us * 2^22 are 120 s, of 2^21 60 s: LACP takes 90.
    assert_eq!(value(&slow, "NCCL_IB_TIMEOUT"), Some("22"));
    assert_eq!(value(&slow, "NCCL_IB_RETRY_CNT"), Some("7"));
    let fast = with(&BOND.replace("rate: slow", "rate: fast"));
    assert_eq!(value(&fast, "NCCL_IB_TIMEOUT"), Some("20"));
}

#[test]
fn what_the_job_has_now_is_shown_beside() {
    let advice = with("on connectx\nproc/self/environ:\n| NCCL_IB_HCA=mlx5\n| NCCL_IB_TC=106\n");
    let evidence = |name: &str| {
        let setting = advice.settings.iter().find(|it| it.name == name).unwrap();
        setting
            .evidence
            .iter()
            .any(|it| it.source.starts_with("environment"))
    };
    assert!(evidence("NCCL_IB_HCA") && !evidence("NCCL_IB_TC"));
}

#[test]
fn what_a_shell_is_given_is_one_line_each_whatever_names_there_are() {
    let advice = with(&format!(
        "on none\nproc/net/route:\n| {ROUTE}\n| a';id;' 00000000 00000000 0003 0 0 0 00000000\n"
    ));
    assert_eq!(value(&advice, "NCCL_SOCKET_IFNAME"), Some("=a';id;'"));
    let script = format!("{}printf %s \"$NCCL_SOCKET_IFNAME\"", advice.export());
    let shell = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(shell.stdout).unwrap(), "=a';id;'");
    for line in advice.export().lines() {
        assert!(
            line.starts_with("# ") || line.starts_with("#   ") || line.starts_with("export NCCL_"),
            "{line}"
        );
    }
}
