#![allow(clippy::unwrap_used, reason = "tests")]
//! Faults as they occur: each is found, with the lines of both sides, and what is right beside it is not.

use ringway_doctor::{
    Finding, Severity,
    lint::{Input, Kind, lint},
};

fn findings(files: &[(&str, &str)]) -> Vec<Finding> {
    let inputs: Vec<Input> = files
        .iter()
        .map(|(name, text)| {
            let (kind, _) = name.split_once(':').unwrap_or(("", name));
            Input {
                kind: Kind::parse(kind),
                ..Input::new(*name, *text)
            }
        })
        .collect();
    lint(&inputs).findings
}

/// The finding of that check, whose evidence has all those lines and whose problem has those words.
#[track_caller]
fn expect(files: &[(&str, &str)], check: &str, words: &str, lines: &[&str]) -> Finding {
    let all = findings(files);
    let found = all.iter().find(|finding| {
        let has = |line: &&str| {
            finding
                .evidence
                .iter()
                .any(|evidence| evidence.value.contains(*line))
        };
        finding.check == check && finding.problem.contains(words) && lines.iter().all(has)
    });
    let Some(found) = found else {
        panic!("{check} `{words}` {lines:?} not in {all:#?}")
    };
    found.clone()
}

#[track_caller]
fn clean(files: &[(&str, &str)]) {
    let all = findings(files);
    assert!(all.is_empty(), "{all:#?}");
}

/// A host that is right: DSCP 26 in priority 3, which alone is lossless; notifications in 6.
const HOST: &str = "\
mlnx_qos -i eth1 --trust dscp
mlnx_qos -i eth1 -f 0,0,0,1,0,0,0,0
echo 48 > /sys/class/net/eth1/ecn/roce_np/cnp_dscp
mkdir -p /sys/kernel/config/rdma_cm/mlx5_0
echo 106 > /sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos
ip link set dev eth1 mtu 9000
";

/// SONiC's stock quality of service: 3 and 4 lossless, DSCP 3, 4, 5, 8, 46 and 48 mapped, everything else in 1.
fn stock_sonic() -> String {
    let class = |dscp: u8| match dscp {
        3 => 3,
        4 => 4,
        5 => 2,
        8 => 0,
        46 => 5,
        48 => 6,
        _ => 1,
    };
    let map: Vec<String> = (0..64)
        .map(|dscp| format!("\"{dscp}\": \"{}\"", class(dscp)))
        .collect();
    format!(
        r#"{{
  "DSCP_TO_TC_MAP": {{"AZURE": {{
    {}
  }}}},
  "PORT_QOS_MAP": {{
    "Ethernet0": {{
      "dscp_to_tc_map": "AZURE",
      "pfc_enable": "3,4",
      "pfcwd_sw_enable": "3,4"
    }}
  }},
  "PFC_WD": {{"Ethernet0": {{"action": "drop", "detection_time": "200", "restoration_time": "400"}}}}
}}
"#,
        map.join(",\n    ")
    )
}

#[test]
fn c1_stock_sonic_is_lossy_for_dscp_26() {
    let sonic = stock_sonic();
    let found = expect(
        &[("leaf.json", &sonic), ("host.sh", HOST)],
        "path.data",
        "DSCP 26, which has the lossy class 1",
        &["default_roce_tos", "\"26\": \"1\"", "pfc_enable"],
    );
    assert_eq!(found.severity, Severity::Error);
    // Azure's own DSCP is lossless there.
    let azure = HOST.replace("echo 106", "echo 14");
    let all = findings(&[("leaf.json", &sonic), ("host.sh", &azure)]);
    assert!(
        !all.iter().any(|finding| finding.check == "path.data"),
        "{all:#?}"
    );
}

#[test]
fn c2_an_operators_defaults_leave_data_unmarked_and_notifications_in_priority_0() {
    let host = HOST
        .replace("echo 106", "echo 0")
        .replace("echo 48", "echo 4");
    expect(
        &[("host.sh", &host)],
        "path.host",
        "DSCP 0, whose priority 0 is lossy",
        &["default_roce_tos", "-f 0,0,0,1"],
    );
    let host = format!("{host}echo 6 > /sys/class/net/eth1/ecn/roce_np/cnp_802p_prio\n");
    expect(
        &[("host.sh", &host)],
        "path.cnp",
        "DSCP 4 (priority 0) and priority 6 in the VLAN tag",
        &["cnp_dscp", "cnp_802p_prio"],
    );
}

const NXOS: &str = "\
priority-flow-control watch-dog-interval on
class-map type qos match-any DATA
  match dscp 26
class-map type qos match-any CNP
  match dscp 48
policy-map type qos IN
  class DATA
    set qos-group 3
  class CNP
    set qos-group 7
policy-map type network-qos NQ
  class type network-qos c-8q-nq3
    mtu 9216
    pause pfc-cos 3
policy-map type queuing OUT
  class type queuing c-out-8q-q7
    priority level 1
  class type queuing c-out-8q-q3
    bandwidth remaining percent 50
    random-detect minimum-threshold 150 kbytes maximum-threshold 1500 kbytes drop-probability 100 weight 0 ecn
  class type queuing c-out-8q-q-default
    bandwidth remaining percent 50
system qos
  service-policy type queuing output OUT
  service-policy type network-qos NQ
interface Ethernet1/1
  description to host 7
  mtu 9216
  priority-flow-control mode on
  priority-flow-control watch-dog-interval on
  service-policy type qos input IN
";

#[test]
fn what_is_right_is_clean() {
    clean(&[
        ("leaf.cfg", NXOS),
        ("host.sh", HOST),
        ("job.env", "export NCCL_IB_TC=106\nexport NCCL_DEBUG=WARN\n"),
    ]);
    // The rest of a running configuration is nobody's business here.
    let more = format!(
        "hostname leaf1\nfeature bgp\nvlan 10\n  name storage\nrouter bgp 65000\n  address-family ipv4 unicast\n    \
         maximum-paths 8\n{NXOS}interface mgmt0\n  vrf member management\nline vty\n"
    );
    clean(&[("leaf.cfg", &more), ("host.sh", HOST)]);
    // So is indentation.
    let flat: String = NXOS
        .lines()
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    clean(&[("leaf.cfg", &flat), ("host.sh", HOST)]);
}

#[test]
fn c3_pfc_that_waits_for_the_neighbour() {
    let auto = NXOS.replace("mode on", "mode auto");
    let found = expect(
        &[("leaf.cfg", &auto)],
        "pfc.mode",
        "auto",
        &["priority-flow-control mode auto"],
    );
    assert_eq!(found.severity, Severity::Warning);
    let unsaid = NXOS.replace("  priority-flow-control mode on\n", "");
    expect(
        &[("leaf.cfg", &unsaid)],
        "pfc.mode",
        "auto",
        &["interface Ethernet1/1"],
    );
    let off = NXOS.replace("mode on", "mode off");
    expect(
        &[("leaf.cfg", &off)],
        "pfc.off",
        "priority 3",
        &["mode off", "pause pfc-cos 3"],
    );
    let nothing = NXOS.replace("    pause pfc-cos 3\n", "");
    expect(
        &[("leaf.cfg", &nothing)],
        "pfc.nothing",
        "no class is lossless",
        &["mode on"],
    );
}

const EOS: &str = "\
qos map dscp 26 to traffic-class 3
qos map dscp 48 to traffic-class 6
qos profile RW
   qos trust dscp
   priority-flow-control on
   priority-flow-control priority 3 no-drop
   priority-flow-control pause watchdog
   uc-tx-queue 3
      no priority
      bandwidth percent 50
      random-detect ecn minimum-threshold 150 kbytes maximum-threshold 1500 kbytes max-mark-probability 100
   uc-tx-queue 6
      priority strict
interface Ethernet1
   mtu 9214
   service-profile RW
";

#[test]
fn c5_a_switchport_that_trusts_the_tag() {
    clean(&[("leaf.cfg", EOS), ("host.sh", HOST)]);
    let untrusted = EOS.replace("   qos trust dscp\n", "");
    expect(
        &[("leaf.cfg", &untrusted)],
        "classify.trust",
        "the VLAN tag's priority",
        &["interface Ethernet1", "priority 3 no-drop"],
    );
    let routed = untrusted.replace("   mtu 9214\n", "   mtu 9214\n   no switchport\n");
    clean(&[("leaf.cfg", &routed), ("host.sh", HOST)]);
    let cos = EOS.replace("trust dscp", "trust cos");
    expect(
        &[("leaf.cfg", &cos)],
        "classify.trust",
        "tag",
        &["qos trust cos"],
    );
    let off = format!("priority-flow-control all off\n{EOS}");
    expect(
        &[("leaf.cfg", &off)],
        "pfc.off",
        "PFC is off",
        &["priority-flow-control all off"],
    );
}

#[test]
fn c7_queue_pairs_of_the_gpu_are_unmarked() {
    // DSCP 59 rides in priority 7, which this host pauses; NCCL's queue pairs of the GPU do not get it.
    let host = "mlnx_qos -i eth1 --trust dscp\nmlnx_qos -i eth1 -f 0,0,0,0,0,0,0,1\n\
                echo 236 > /sys/class/infiniband/mlx5_0/tc/1/traffic_class\n";
    clean(&[("host.sh", host), ("job.env", "NCCL_DEBUG=INFO\n")]);
    let env = "NCCL_DEBUG=INFO\nNCCL_GIN_TYPE=3\n";
    expect(
        &[("host.sh", host), ("job.env", env)],
        "path.host",
        "NCCL_GIN_IB_TC, which is not set, sends DSCP 0",
        &["NCCL_GIN_TYPE", "-f 0,0"],
    );
    clean(&[
        ("host.sh", host),
        ("job.env", "NCCL_GIN_TYPE=3\nNCCL_GIN_IB_TC=236\n"),
    ]);
    // Without the host's setting NCCL's default counts.
    let bare = "mlnx_qos -i eth1 --trust dscp\nmlnx_qos -i eth1 -f 0,0,0,1,0,0,0,0\n";
    expect(
        &[("host.sh", bare), ("job.env", "NCCL_DEBUG=INFO\n")],
        "path.host",
        "NCCL_IB_TC, which is not set, sends DSCP 0",
        &["NCCL_DEBUG"],
    );
}

#[test]
fn a_code_point_where_a_tos_byte_belongs() {
    let found = expect(
        &[("leaf.cfg", EOS), ("job.env", "NCCL_IB_TC=26\n")],
        "path.data",
        "26 looks like a DSCP: the ToS byte is 106",
        &["NCCL_IB_TC=26"],
    );
    assert!(found.problem.contains("DSCP 6,"), "{found:#?}");
    expect(
        &[("job.env", "UCX_IB_TRAFFIC_CLASS=300\nUCX_TLS=rc\n")],
        "application.value",
        "0 to 255",
        &["300"],
    );
    clean(&[
        ("leaf.cfg", EOS),
        ("ringway.yaml", "communication:\n  transports: rdma\n"),
    ]);
}

#[test]
fn c9_the_first_addresses_of_a_port() {
    for index in ["0", "1"] {
        let env = format!("NCCL_IB_GID_INDEX={index}\nNCCL_IB_TC=106\n");
        expect(
            &[("job.env", &env)],
            "application.gid",
            "link-local",
            &["GID_INDEX"],
        );
    }
    clean(&[("job.env", "NCCL_IB_GID_INDEX=3\nNCCL_IB_TC=106\n")]);
}

#[test]
fn c25_flags_that_mean_something_else() {
    let host = HOST.replace("-f 0,0,0,1", "-p 0,0,0,1");
    expect(
        &[("host.sh", &host)],
        "host.command",
        "puts all priorities into 2 traffic classes",
        &["-p 0,0,0,1"],
    );
    let host = HOST.replace("--trust dscp", "--trust dscp --dscp2prio=26,3");
    expect(
        &[("host.sh", &host)],
        "host.command",
        "expected set,DSCP,PRIORITY",
        &["26,3"],
    );
}

#[test]
fn c27_words_of_another_system_and_classes_of_another_type() {
    let with = |line: &str| {
        NXOS.replace(
            "    pause pfc-cos 3\n",
            &format!("    pause pfc-cos 3\n{line}\n"),
        )
    };
    let onyx = with("    congestion-control ecn minimum-absolute 150 maximum-absolute 1500");
    expect(
        &[("leaf.cfg", &onyx)],
        "command.unknown",
        "congestion-control ecn",
        &["congestion-control"],
    );
    let feature = format!("feature qos\n{NXOS}");
    expect(
        &[("leaf.cfg", &feature)],
        "command.unknown",
        "feature qos",
        &["feature qos"],
    );
    let class = with("  class type network-qos c-out-8q-q3");
    expect(
        &[("leaf.cfg", &class)],
        "class.kind",
        "of another type",
        &["c-out-8q-q3"],
    );
    let queuing = with("  class type queuing c-out-8q-q3");
    expect(
        &[("leaf.cfg", &queuing)],
        "command.mode",
        "belongs into `policy-map type queuing`",
        &["class type queuing"],
    );
    let mode = NXOS.replace(
        "  mtu 9216\n  priority-flow-control",
        "  pause pfc-cos 3\n  priority-flow-control",
    );
    expect(
        &[("leaf.cfg", &mode)],
        "command.mode",
        "stands in `interface`",
        &["pause pfc-cos 3"],
    );
    let range = NXOS.replace("match dscp 26", "match dscp 104");
    expect(
        &[("leaf.cfg", &range)],
        "command.range",
        "expected 0 to 63, found 104",
        &["104"],
    );
}

#[test]
fn c29_strict_data_starves_notifications() {
    let strict = NXOS.replace(
        "    bandwidth remaining percent 50\n    random",
        "    priority level 2\n    random",
    );
    expect(
        &[("leaf.cfg", &strict)],
        "queue.strict",
        "queue 3 is lossless and strict",
        &["priority level 2", "pause pfc-cos 3"],
    );
}

#[test]
fn c30_a_class_that_never_matches() {
    let both = NXOS.replace("match-any DATA\n", "match-all DATA\n  match cos 3\n");
    expect(
        &[("leaf.cfg", &both)],
        "classify.untagged",
        "a DSCP and a priority of the VLAN tag",
        &["match cos 3", "match dscp 26"],
    );
}

#[test]
fn c34_a_watchdog_that_looks_elsewhere() {
    for other in ["3", "4", "", "3,4,5"] {
        let sonic = stock_sonic().replace(
            "\"pfcwd_sw_enable\": \"3,4\"",
            &format!("\"pfcwd_sw_enable\": \"{other}\""),
        );
        expect(
            &[("leaf.json", &sonic)],
            "watchdog.set",
            "3,4 are lossless",
            &["pfcwd_sw_enable", "pfc_enable"],
        );
    }
}

#[test]
fn c6_marking_that_comes_after_dropping() {
    // Complete too late is a warning; beginning too late never marks.
    for (limit, severity, from) in [
        ("1000 kbytes", Severity::Warning, "1000000"),
        ("100000 bytes", Severity::Error, "100000"),
    ] {
        let nxos = NXOS.replace(
            "    random-detect minimum",
            &format!("    queue-limit {limit}\n    random-detect minimum"),
        );
        let words = format!("dropped from {from} on");
        let found = expect(
            &[("leaf.cfg", &nxos)],
            "ecn.beyond",
            &words,
            &["random-detect", "queue-limit"],
        );
        assert_eq!(found.severity, severity);
    }
    let enough = NXOS.replace(
        "    random-detect minimum",
        "    queue-limit 4 mbytes\n    random-detect minimum",
    );
    clean(&[("leaf.cfg", &enough), ("host.sh", HOST)]);
    let eos = EOS.replace(
        "      random-detect ecn",
        "      random-detect drop minimum-threshold 500 kbytes maximum-threshold 900 kbytes drop-probability 100\n      random-detect ecn",
    );
    expect(
        &[("leaf.cfg", &eos)],
        "ecn.beyond",
        "dropped from 500000 on",
        &["random-detect drop", "random-detect ecn"],
    );
    let sonic = r#"{
  "WRED_PROFILE": {"RW": {"ecn": "ecn_all", "wred_green_enable": "true",
    "green_min_threshold": "1048576",
    "green_max_threshold": "2097152", "green_drop_probability": "5"}},
  "QUEUE": {"Ethernet0|3": {"wred_profile": "RW"}},
  "BUFFER_PROFILE": {"small": {"pool": "egress", "size": "0",
    "static_th": "1518000"}},
  "BUFFER_QUEUE": {"Ethernet0|3": {"profile": "small"}},
  "PORT_QOS_MAP": {"Ethernet0": {"pfc_enable": "3", "pfcwd_sw_enable": "3"}}
}
"#;
    expect(
        &[("leaf.json", sonic)],
        "ecn.beyond",
        "dropped from 1518000 on",
        &["2097152", "static_th"],
    );
}

#[test]
fn c36_a_switch_that_is_paused_for_a_lossy_priority() {
    // It logs "PFC frames on lossy queue 3": the host pauses what the switch does not hold back.
    for lossless in ["4", "4,5", ""] {
        let sonic = stock_sonic().replace("\"3,4\"", &format!("\"{lossless}\""));
        expect(
            &[("leaf.json", &sonic), ("host.sh", HOST)],
            "path.pfc",
            "3",
            &["-f 0,0,0,1", "pfc_enable"],
        );
    }
}

#[test]
fn c38_a_script_that_turns_acs_on() {
    for value in ["001d", "0004", "ffff"] {
        let host = format!("{HOST}setpci -s 18:00.0 ECAP_ACS+0x6.w={value}\n");
        expect(
            &[("host.sh", &host)],
            "host.command",
            "turns ACS's redirection on",
            &["setpci -s 18:00.0"],
        );
    }
    // Turned off, source validation alone, and other registers are well.
    for register in ["ECAP_ACS+0x6.w=0000", "ECAP_ACS+6.w=1", "CAP_EXP+8.w=5930"] {
        let host = format!("{HOST}setpci -s 18:00.0 {register}\n");
        clean(&[("host.sh", &host)]);
    }
}

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
    for text in ["", "[]", "apiVersion: v1\nkind: Pod\n"] {
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
