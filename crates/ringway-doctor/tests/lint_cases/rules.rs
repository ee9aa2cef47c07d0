//! Faults that rules are made for, whoever may meet them.

use super::*;

#[test]
fn host_and_switch_disagree_about_the_priority() {
    // The host pauses 3; the switch pauses 7, or reads the same code point as another class.
    let seven = NXOS
        .replace("c-8q-nq3", "c-8q-nq5")
        .replace("pfc-cos 3", "pfc-cos 5")
        .replace("set qos-group 3", "set qos-group 5")
        .replace("c-out-8q-q3", "c-out-8q-q5");
    expect(
        &[("leaf.cfg", &seven), ("host.sh", HOST)],
        "path.pfc",
        "priority 3 is lossless on the host",
        &["-f 0,0,0,1", "pfc-cos 5"],
    );
    expect(
        &[("leaf.cfg", &seven), ("host.sh", HOST)],
        "path.priority",
        "priority 3 on the host and 5 at the switch",
        &["set qos-group 5"],
    );
    // DSCP 46 rides in 5 by default.
    let host = HOST.replace("echo 106", "echo 186");
    expect(
        &[("host.sh", &host)],
        "path.host",
        "DSCP 46, whose priority 5 is lossy",
        &["186"],
    );
}

#[test]
fn qos_group_and_pause_of_one_switch_disagree() {
    let other = NXOS.replace("pause pfc-cos 3", "pause pfc-cos 4");
    expect(
        &[("leaf.cfg", &other)],
        "class.priority",
        "pauses priority 4",
        &["c-8q-nq3", "pfc-cos 4"],
    );
}

#[test]
fn frames_that_do_not_fit() {
    for mtu in ["1500", "8999"] {
        let small = NXOS.replace(
            "  mtu 9216\n  priority",
            &format!("  mtu {mtu}\n  priority"),
        );
        expect(
            &[("leaf.cfg", &small), ("host.sh", HOST)],
            "path.mtu",
            "the host's MTU is 9000",
            &["mtu 9000", mtu],
        );
    }
}

#[test]
fn names_that_lead_nowhere() {
    let wrong = NXOS.replace(
        "type network-qos NQ\ninterface",
        "type network-qos QN\ninterface",
    );
    expect(
        &[("leaf.cfg", &wrong)],
        "reference.undefined",
        "`QN` is used",
        &["service-policy type network-qos QN"],
    );
    expect(
        &[("leaf.cfg", &wrong)],
        "reference.unused",
        "`NQ` is defined",
        &["policy-map type network-qos NQ"],
    );
    let wrong = EOS.replace("service-profile RW", "service-profile WR");
    expect(
        &[("leaf.cfg", &wrong)],
        "reference.undefined",
        "`WR`",
        &["service-profile WR"],
    );
    let wrong = stock_sonic().replace(
        "\"dscp_to_tc_map\": \"AZURE\"",
        "\"dscp_to_tc_map\": \"AZUER\"",
    );
    expect(
        &[("leaf.json", &wrong)],
        "reference.undefined",
        "`AZUER`",
        &["dscp_to_tc_map"],
    );
}

#[test]
fn marking_that_is_elsewhere_or_turned_round_or_drops() {
    let line = "    random-detect minimum-threshold 150 kbytes maximum-threshold 1500 kbytes drop-probability 100 weight 0 ecn\n";
    let moved = NXOS.replace(line, "").replace(
        "c-out-8q-q-default\n",
        &format!("c-out-8q-q-default\n{line}"),
    );
    expect(
        &[("leaf.cfg", &moved)],
        "ecn.elsewhere",
        "queue 3 is lossless and queue 0 is marked",
        &["random-detect", "pfc-cos 3"],
    );
    expect(
        &[("leaf.cfg", &NXOS.replace(line, ""))],
        "ecn.none",
        "nothing is marked",
        &["pfc-cos 3"],
    );
    let round = NXOS.replace("minimum-threshold 150 ", "minimum-threshold 1501 ");
    expect(
        &[("leaf.cfg", &round)],
        "ecn.order",
        "begins at 1501000",
        &["1501"],
    );
    let drops = NXOS.replace("weight 0 ecn", "weight 0");
    expect(
        &[("leaf.cfg", &drops)],
        "ecn.drops",
        "drop packets in place of marking",
        &["random-detect"],
    );
    let shares = EOS
        .replace("bandwidth percent 50", "bandwidth percent 60")
        .replace(
            "   uc-tx-queue 6",
            "   uc-tx-queue 0\n      bandwidth percent 50\n   uc-tx-queue 6",
        );
    expect(
        &[("leaf.cfg", &shares)],
        "queue.shares",
        "110 percent",
        &["bandwidth percent 60", "bandwidth percent 50"],
    );
}

#[test]
fn notifications_that_wait_with_the_data() {
    let host = HOST.replace("echo 48", "echo 26");
    expect(
        &[("host.sh", &host)],
        "path.cnp",
        "DSCP 26, whose priority 3 is lossless on the host",
        &["cnp_dscp"],
    );
    expect(
        &[("leaf.cfg", EOS), ("host.sh", &host)],
        "path.cnp",
        "lossless here",
        &["cnp_dscp", "dscp 26 to"],
    );
    let lazy = EOS.replace("      priority strict\n", "      bandwidth percent 10\n");
    expect(
        &[("leaf.cfg", &lazy), ("host.sh", HOST)],
        "path.cnp",
        "queue 6 is not strict",
        &["cnp_dscp", "dscp 48 to"],
    );
}

#[test]
fn pauses_of_the_whole_link_beside_pfc() {
    let host = format!("{HOST}ethtool -A eth1 rx on tx off\n");
    expect(
        &[("host.sh", &host)],
        "pfc.pause",
        "whole link",
        &["ethtool -A", "-f 0,0"],
    );
    let switch = NXOS.replace(
        "  mtu 9216\n  priority",
        "  flowcontrol receive on\n  priority",
    );
    expect(
        &[("leaf.cfg", &switch)],
        "pfc.pause",
        "whole link",
        &["flowcontrol receive on", "mode on"],
    );
}

#[test]
fn watchdogs_that_are_off_or_never_look() {
    let off = NXOS.replace(
        "priority-flow-control watch-dog-interval on\nclass",
        "class",
    );
    expect(
        &[("leaf.cfg", &off)],
        "watchdog.off",
        "no watchdog",
        &["pfc-cos 3"],
    );
    let slow = format!(
        "priority-flow-control pause watchdog default timeout 0.20\npriority-flow-control pause watchdog default polling-interval 0.15\n{EOS}"
    );
    expect(
        &[("leaf.cfg", &slow)],
        "watchdog.times",
        "polls every 150 ms",
        &["polling-interval 0.15", "timeout 0.20"],
    );
}

#[test]
fn ports_of_one_switch_and_switches_of_one_fabric_differ() {
    let profile = EOS
        .replace("qos profile RW", "qos profile B")
        .replace("150 kbytes", "256 kbytes")
        .replace("service-profile RW", "service-profile B")
        .replace("Ethernet1", "Ethernet2");
    let both = format!("{EOS}{profile}");
    expect(
        &[("leaf.cfg", &both)],
        "ecn.differs",
        "marks from 256000",
        &["256 kbytes", "150 kbytes"],
    );
    let four = EOS.replace("priority 3 no-drop", "priority 4 no-drop");
    expect(
        &[("spine.cfg", &four), ("leaf.cfg", NXOS)],
        "switches.differ",
        "priorities 3 are lossless here, and 4 on spine.cfg",
        &["pfc-cos 3", "priority 4 no-drop"],
    );
}

#[test]
fn shorthands_of_nvidia_are_known() {
    clean(&[
        (
            "nvue:leaf",
            "nv set qos roce mode lossless\nnv set interface swp1-32 link mtu 9216\nnv set interface swp1-32 qos pfc-watchdog state enable\n",
        ),
        ("host.sh", HOST),
    ]);
    clean(&[
        (
            "onyx:leaf",
            "roce lossless\ninterface ethernet 1/1-1/32 mtu 9216\ninterface ethernet 1/1-1/32 pfc-wd\n",
        ),
        ("host.sh", HOST),
    ]);
    // NVUE's YAML says the same as its commands.
    let yaml = "- header:\n    model: x\n- set:\n    qos:\n      mapping:\n        default-global:\n          trust: l2\n      pfc:\n        default-global:\n          switch-priority:\n            '3': {}\n    interface:\n      swp1-2:\n        link:\n          mtu: 9216\n";
    expect(
        &[("nvue:leaf", yaml)],
        "classify.trust",
        "the VLAN tag's priority",
        &["trust: l2"],
    );
}

#[test]
fn junos_needs_all_of_its_parts() {
    let junos = "\
class-of-service {
  classifiers { dscp RW { forwarding-class CNP { loss-priority low code-points 110000; }
                          forwarding-class NO-LOSS { loss-priority low code-points 011010; } } }
  drop-profiles { RW-ECN { interpolate { fill-level [ 55 90 ]; drop-probability [ 0 100 ]; } } }
  forwarding-classes { class CNP queue-num 3; class NO-LOSS queue-num 4 no-loss pfc-priority 3; }
  congestion-notification-profile { RW { pfc-watchdog;
      input { dscp { code-point 011010 { pfc; } } }
      output { ieee-802.1 { code-point 011 { flow-control-queue 4; } } } } }
  schedulers { s-data { drop-profile-map loss-priority any protocol any drop-profile RW-ECN; explicit-congestion-notification; }
               s-cnp { transmit-rate percent 5; priority strict-high; } }
  scheduler-maps { RW { forwarding-class CNP scheduler s-cnp; forwarding-class NO-LOSS scheduler s-data; } }
  interfaces { et-* { congestion-notification-profile RW; scheduler-map RW; unit * { classifiers { dscp RW; } } } } }
interfaces { et-0/0/0 { mtu 9216; } }
";
    let all = findings(&[("leaf.conf", junos), ("host.sh", HOST)]);
    // Its source gives the strict scheduler a share, which has no effect.
    assert!(
        all.iter().all(|finding| finding.check == "queue.both"),
        "{all:#?}"
    );
    let deaf = junos.replace(
        "      output { ieee-802.1 { code-point 011 { flow-control-queue 4; } } } } }",
        "    } }",
    );
    expect(
        &[("leaf.conf", &deaf)],
        "pfc.deaf",
        "no output",
        &["congestion-notification-profile"],
    );
    let lossy = junos.replace(" no-loss pfc-priority 3", "");
    expect(
        &[("leaf.conf", &lossy)],
        "pfc.nothing",
        "no class is lossless",
        &["congestion-notification-profile RW"],
    );
    let silent = junos.replace(" explicit-congestion-notification;", "");
    expect(
        &[("leaf.conf", &silent)],
        "ecn.drops",
        "drop packets",
        &["fill-level"],
    );
}

#[test]
fn a_recorded_host_is_read_like_a_script() {
    let printed = "DCBX mode: OS controlled\nPriority trust state: pcp\nCable len: 7\nPFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   1   0   0   0   0   \ntc: 0 ratelimit: unlimited, tsa: vendor\n\t priority:  0\n";
    let file = |path: &str, text: &str| Input {
        tree: Some(("host7".to_owned(), path.to_owned())),
        ..Input::new(format!("host7/{path}"), text)
    };
    let inputs = [
        file("commands/mlnx_qos_-i_eth1", printed),
        file("sys/class/net/eth1/mtu", "9000\n"),
        file("sys/class/net/eth1/ecn/roce_np/cnp_dscp", "48\n"),
        file(
            "sys/class/infiniband/mlx5_0/tc/1/traffic_class",
            "Global tclass=106\n",
        ),
        file("sys/class/net/lo/mtu", "65536\n"),
        Input::new("leaf.cfg", NXOS),
    ];
    let report = lint(&inputs);
    let trust = report
        .findings
        .iter()
        .find(|finding| finding.check == "classify.trust")
        .unwrap();
    assert_eq!(trust.evidence[0].source, "host7/commands/mlnx_qos_-i_eth1");
    assert_eq!(trust.evidence[0].line, Some(2));
    assert_eq!(report.findings.len(), 1, "{:#?}", report.findings);
}

#[test]
fn what_cannot_be_judged_is_said() {
    let report = lint(&[Input::new("leaf.cfg", NXOS)]);
    assert!(
        report
            .unjudged
            .iter()
            .any(|it| it.check == "path.data" && it.reason.contains("with which DSCP")),
        "{:#?}",
        report.unjudged
    );
    let report = lint(&[Input::new("notes.txt", "nothing of the kind\n")]);
    assert!(
        report.unjudged[0]
            .reason
            .contains("of no kind that is known")
    );
    let broken = lint(&[Input::new("leaf.json", "{\n \"PORT\": [\n")]);
    assert_eq!(broken.findings[0].check, "file.syntax");
    assert_eq!(broken.findings[0].evidence[0].line, Some(2));
}

/// A host whose every packet of data is in a lossy priority of NVIDIA's preset.
const LOSSY: &str = "\
mlnx_qos -i eth1 --trust dscp
mlnx_qos -i eth1 -f 0,0,0,0,1,0,0,0
cma_roce_tos -d mlx5_0 -t 130
";

#[test]
fn a_preset_holds_for_all_ports_where_none_is_named() {
    for (name, preset) in [
        ("nvue:leaf", "nv set qos roce\n"),
        ("nvue:leaf", "nv set qos roce mode lossless\n"),
        (
            "nvue:leaf",
            "- set:\n    qos:\n      roce:\n        enable: on\n",
        ),
        ("onyx:leaf", "roce lossless\n"),
    ] {
        expect(
            &[(name, preset), ("host.sh", LOSSY)],
            "path.data",
            "DSCP 32, which has the lossy class",
            &["cma_roce_tos"],
        );
        // The preset turns no watchdog on.
        let all = findings(&[(name, preset), ("host.sh", HOST)]);
        assert!(all.iter().all(|it| it.check == "watchdog.off"), "{all:#?}");
    }
}

#[test]
fn a_preset_that_is_off_makes_nothing_lossless() {
    for preset in [
        "nv set qos roce enable on\nnv set qos roce enable off\n",
        "nv set qos roce\nnv set qos roce mode lossy\n",
        "- set:\n    qos:\n      roce:\n        enable: off\n        mode: lossless\n",
    ] {
        let ports = "nv set interface swp1-4 link mtu 9216\n";
        let text = if preset.starts_with('-') {
            preset.to_owned()
        } else {
            format!("{preset}{ports}")
        };
        let all = findings(&[("nvue:leaf", &text), ("host.sh", LOSSY)]);
        assert!(
            !all.iter()
                .any(|it| it.check == "path.data" || it.check == "command.unknown"),
            "{preset}: {all:#?}"
        );
    }
    let report = lint(&[Input {
        kind: Kind::parse("onyx"),
        ..Input::new("leaf", "roce lossy\n")
    }]);
    assert_eq!(report.checks, 0);
    assert!(
        report.unjudged[0]
            .reason
            .contains("no check had anything to judge"),
        "{report:#?}"
    );
}

#[test]
fn what_cannot_be_read_does_not_pass() {
    for text in ["", "[]", "FROM debian\nRUN true\n"] {
        let report = lint(&[Input::new("file", text)]);
        assert!(
            report.unread() && report.exit_code() == 3,
            "{text}: {report:#?}"
        );
    }
    let intent = lint(&[Input::new(
        "intent.yaml",
        "name: x\nclasses:\n  data: {dspc: [26]}\n",
    )]);
    assert_eq!(intent.findings[0].check, "file.syntax", "{intent:#?}");
    assert_eq!(intent.findings[0].evidence[0].line, Some(3));
    assert_eq!(intent.exit_code(), 2);
    let sonic = format!("\u{feff}{}", stock_sonic());
    expect(
        &[("leaf.json", &sonic), ("host.sh", HOST)],
        "path.data",
        "DSCP 26, which has the lossy class 1",
        &["default_roce_tos"],
    );
}

#[test]
fn marks_of_hosts_and_applications_in_every_spelling() {
    for arguments in ["-d mlx5_0 -p 1 -t 0", "-d mlx5_0 -t 0", "-p 1 -t 0", "-t 0"] {
        let host = HOST.replace(
            "echo 106 > /sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos",
            &format!("cma_roce_tos {arguments}"),
        );
        expect(
            &[("host.sh", &host)],
            "path.host",
            "DSCP 0",
            &["cma_roce_tos"],
        );
    }
    let host = HOST.replace("echo 48", "echo 192");
    expect(
        &[("host.sh", &host)],
        "path.cnp",
        "DSCP 192: a DSCP is 63 at most",
        &["cnp_dscp"],
    );
    for value in ["0x6a", "0152", "106"] {
        let job = format!("export NCCL_IB_TC={value}\n");
        clean(&[("host.sh", HOST), ("job.env", &job)]);
    }
    expect(
        &[("job.env", "export NCCL_IB_TC=0x1ff\n")],
        "application.value",
        "0x1ff",
        &["NCCL_IB_TC"],
    );
}

#[test]
fn what_junos_is_told_to_leave_out_counts_for_nothing_and_its_braces_are_counted() {
    let leaf = Input {
        kind: Kind::parse("junos"),
        ..Input::new(
            "leaf",
            "class-of-service {\n  interfaces {\n    et-0/0/1 { x y; }\n",
        )
    };
    let report = lint(&[leaf]);
    assert_eq!(report.findings[0].check, "file.syntax", "{report:#?}");
    assert_eq!(report.findings[0].evidence[0].line, Some(2));
}
