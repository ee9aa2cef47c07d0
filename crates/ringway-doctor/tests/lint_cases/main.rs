#![allow(clippy::unwrap_used, reason = "tests")]
//! Faults as they occur: each is found, with the lines of both sides, and what is right beside it is not. Here those that others
//! met, by number, as in `tests/host/cases.rs`.

mod jobs;
mod rules;

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
    for value in ["001d", "0004", "ffff", "001d:001c", "5d:ffff"] {
        let host = format!("{HOST}setpci -s 18:00.0 ECAP_ACS+0x6.w={value}\n");
        expect(
            &[("host.sh", &host)],
            "host.command",
            "turns ACS's redirection on",
            &["setpci -s 18:00.0"],
        );
    }
    // Turned off, source validation alone, and other registers are well.
    for register in [
        "ECAP_ACS+0x6.w=0000",
        "ECAP_ACS+0x6.w=0000:001c",
        "ECAP_ACS+6.w=001d:0001",
        "ECAP_ACS+6.w=1",
        "CAP_EXP+8.w=5930",
    ] {
        let host = format!("{HOST}setpci -s 18:00.0 {register}\n");
        clean(&[("host.sh", &host)]);
    }
}
