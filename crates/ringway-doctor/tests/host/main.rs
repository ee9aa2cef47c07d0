#![allow(clippy::unwrap_used, reason = "tests")]
//! The checks of hosts on recorded hosts: healthy ones, and one for each fault.

mod cases;
mod docs;
mod kinds;
mod nccl;
mod recording;
mod tree;

use std::collections::BTreeSet;

use ringway_doctor::{
    Report, Severity, Step,
    host::{self, Root},
};
use tree::{Tree, faults};

fn diagnose(tree: &Tree) -> Report {
    host::diagnose(&Root::recorded(tree.root()).unwrap(), None)
}

/// What was found, each kind once.
fn found(report: &Report) -> BTreeSet<String> {
    let findings = report.findings.iter();
    findings
        .map(|finding| format!("{} {}", finding.severity.name(), finding.check))
        .collect()
}

fn subjects(report: &Report) -> Vec<&str> {
    report.unjudged.iter().map(|it| it.check.as_ref()).collect()
}

#[test]
fn a_healthy_host_with_cards_has_no_finding_and_leaves_nothing_open() {
    let report = diagnose(&Tree::named("connectx"));
    assert_eq!(report.findings, [], "{}", report.text(false));
    assert_eq!(report.unjudged, [], "{}", report.text(false));
    assert!(report.checks > 35, "{}", report.summary());
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn an_ordinary_user_is_told_what_only_root_may_see() {
    let report = diagnose(&Tree::named("user"));
    assert_eq!(report.findings, [], "{}", report.text(false));
    let open = subjects(&report);
    for check in [
        "pcie.read_request",
        "pcie.acs",
        "cpu.cstates",
        "qos.data_class",
    ] {
        assert!(open.contains(&check), "{check}: {}", report.text(false));
    }
    assert!(report.unjudged.iter().all(|it| !it.ask.is_empty()));
}

#[test]
fn soft_roce_and_pods_that_are_well_have_no_finding() {
    for name in ["rxe", "rxe-vm", "container"] {
        let report = diagnose(&Tree::named(name));
        assert_eq!(report.findings, [], "{name}: {}", report.text(false));
    }
}

#[test]
fn a_host_without_rdma_gets_an_answer_and_no_wall_of_errors() {
    let report = diagnose(&Tree::named("none"));
    assert_eq!(
        found(&report),
        BTreeSet::from(["note devices.present".to_owned()])
    );
    assert_eq!(report.unjudged, []);
    assert_eq!(report.exit_code(), 0);
    let remedy = format!("{:?}", report.findings[0].remedy);
    assert!(remedy.contains("netdev ens3"), "{remedy}");
}

#[test]
fn an_empty_directory_is_a_host_without_rdma() {
    let report = diagnose(&Tree::empty());
    assert_eq!(
        found(&report),
        BTreeSet::from(["note devices.present".to_owned()])
    );
    assert!(Root::recorded(std::path::Path::new("/nonexistent")).is_err());
}

#[test]
fn each_fault_is_found_and_nothing_else() {
    let faults = faults();
    assert!(faults.len() > 120, "{}", faults.len());
    let mut wrong = Vec::new();
    for fault in &faults {
        let report = diagnose(&fault.tree());
        well_formed(&fault.name, &report);
        if found(&report) != fault.expected {
            wrong.push(format!(
                "{}\n  expected {:?}\n{}",
                fault.name,
                fault.expected,
                report.text(false)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is so for every report.
fn well_formed(name: &str, report: &Report) {
    let findings = report.findings.iter();
    let order: Vec<Severity> = findings.clone().map(|it| it.severity).collect();
    assert!(order.is_sorted_by(|a, b| a >= b), "{name}");
    let code = match order.first() {
        Some(Severity::Error) => 2,
        Some(Severity::Warning) => 1,
        Some(Severity::Note) | None => 0,
    };
    assert_eq!(report.exit_code(), code, "{name}");
    for finding in findings {
        let all = format!("{name}: {finding:#?}");
        assert!(!finding.evidence.is_empty(), "{all}");
        assert!(
            finding.evidence.iter().all(|it| !it.value.is_empty()),
            "{all}"
        );
        assert!(!finding.remedy.is_empty(), "{all}");
        let runs = |steps: &[Step]| steps.iter().any(|step| matches!(step, Step::Run(_)));
        assert!(
            !runs(&finding.remedy) || !finding.rollback.is_empty(),
            "{all}"
        );
        assert!(
            !finding.why.contains('\n') && finding.why.len() < 130,
            "{all}"
        );
    }
}

#[test]
fn each_check_is_seen_to_find_something() {
    let expected: BTreeSet<String> = faults().into_iter().flat_map(|it| it.expected).collect();
    for check in host::checks() {
        let seen = expected.iter().any(|it| it.ends_with(check.id));
        assert!(seen, "no tree shows {}", check.id);
        assert!(check.id.starts_with(check.group.name()), "{}", check.id);
    }
}

#[test]
fn a_page_and_json_hold_all_of_it() {
    let fault = faults()
        .into_iter()
        .find(|it| it.expected.len() > 1)
        .unwrap();
    let report = diagnose(&fault.tree());
    let page = report.html("host").unwrap();
    let json = serde_json::to_value(&report).unwrap();
    for (i, finding) in report.findings.iter().enumerate() {
        assert!(page.contains(finding.check.as_ref()));
        let shown = &json["findings"][i];
        assert_eq!(shown["check"], finding.check.as_ref());
        assert_eq!(shown["severity"], finding.severity.name());
        assert!(shown["remedy"][0].is_object() && shown["evidence"][0]["source"].is_string());
    }
}

#[test]
fn one_group_alone_says_only_its_own() {
    let fault = faults()
        .into_iter()
        .find(|it| it.name.starts_with("H11, C16"))
        .unwrap();
    let tree = fault.tree();
    let root = Root::recorded(tree.root()).unwrap();
    let report = host::diagnose(&root, Some("pcie".parse().unwrap()));
    assert_eq!(
        found(&report),
        BTreeSet::from(["warning pcie.acs".to_owned()])
    );
    let error = "pci".parse::<host::Group>().unwrap_err();
    assert!(error.contains("pcie, cpu"), "{error}");
}

#[test]
fn a_host_is_taken_stock_of_in_words_that_are_equal_on_equal_hosts() {
    let items = |text: &str| {
        let tree = Tree::with(text);
        let (report, items) = host::examine(&Root::recorded(tree.root()).unwrap());
        assert_eq!(report, diagnose(&tree));
        items
    };
    let plain = items("on connectx\n");
    let value = |topic: &str| {
        plain
            .iter()
            .find(|it| it.topic == topic)
            .map(|it| it.value.as_str())
    };
    for (topic, expected) in [
        ("kernel", "5.15.0-105-generic"),
        ("kernel's options", "iommu=pt"),
        ("memory", "1007 GiB"),
        ("GPU driver", "535.104.05"),
        ("RDMA devices", "2 x MT4129 (mlx5_core)"),
        ("firmware of MT4129", "2 x 28.39.1002"),
        ("link rate", "2 x 400 Gb/sec (4X NDR)"),
        ("MTU", "2 x 9000"),
        ("GID index", "2 x 3"),
        (
            "quality of service",
            "2 x trust dscp, PFC on [3], DSCP 26 to 3, 48 to 6",
        ),
        ("locked memory", "unlimited"),
    ] {
        assert_eq!(value(topic), Some(expected), "{topic}");
    }
    // A name that is only this host's changes nothing.
    assert_eq!(
        items("on connectx\nproc/sys/kernel/hostname = node18\n"),
        plain
    );
    let other = items("on connectx\nsys/class/net/eth3/mtu = 1500\n");
    let mtu = other.iter().find(|it| it.topic == "MTU").unwrap();
    assert_eq!(mtu.value, "1500, 9000");
}

/// All steps of a finding of the fault of that name, and then those that undo them.
fn steps(name: &str, check: &str) -> String {
    let fault = faults().into_iter().find(|it| it.name == name).unwrap();
    let report = diagnose(&fault.tree());
    let mut findings = report.findings.iter();
    let finding = findings.find(|it| it.check == check).unwrap();
    format!("{:?} undone by {:?}", finding.remedy, finding.rollback)
}

#[test]
fn remedies_set_what_is_wrong_and_what_undoes_them_sets_all_of_it_back() {
    // Link Control is at 0x10 of the capability, and setpci's offsets are hexadecimal (PCIe base specification, 7.5.3.7).
    let aspm = steps("H28: the BIOS lets the card's link sleep", "pcie.aspm");
    assert!(aspm.contains("CAP_EXP+10.w=0000:0003"), "{aspm}");
    assert!(aspm.contains("CAP_EXP+10.w=0002:0003"), "{aspm}");
    let pause = steps("H21: pause of the whole link, one way", "qos.pause");
    let (_, undo) = pause.split_once("undone by").unwrap();
    assert!(undo.contains("eth2 autoneg off rx off tx on"), "{pause}");
    let cnp = steps(
        "C2: the operator leaves data unmarked and CNPs in priority 0",
        "qos.cnp",
    );
    assert!(cnp.contains("CNP_DSCP_P1=48"), "{cnp}");
    let unit = steps(
        "H23, C32: nothing sets PFC again after a restart",
        "qos.persistence",
    );
    for command in ["--trust dscp", "--pfc 0,0,0,1,0,0,0,0", "--for host-unit"] {
        assert!(unit.contains(command), "{command}: {unit}");
    }
}
