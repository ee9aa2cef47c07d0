#![allow(clippy::unwrap_used, reason = "tests")]
//! Fleets in which one thing is wrong: it is found, it is put where it is, and nothing else is blamed.

use proptest::prelude::*;
use ringway_doctor::{
    Finding, Report, Severity,
    fleet::{
        Burner, Fleet, Flow, Host, Look, Missing, Pair, Path, Port, Rate, Rdma, Strain, Way, Work,
        common, differences, judge,
    },
    host::Item,
};

fn name(host: usize) -> String {
    format!("node{host}")
}

fn items() -> Vec<Item> {
    let item = |topic: &str, value: &str| Item {
        topic: topic.to_owned(),
        value: value.to_owned(),
        source: "/sys".to_owned(),
    };
    vec![
        item("kernel", "6.1"),
        item("firmware of MT4129", "2 x 28.39.1002"),
        item("MTU", "2 x 9000"),
    ]
}

fn steady(best: f64) -> Rate {
    Rate {
        best,
        typical: best * 0.97,
    }
}

/// Of a host that has little else to do.
fn idle() -> Strain {
    Strain {
        waited: Some(0.01),
        pressure: Some(0.02),
        ..Strain::default()
    }
}

/// Of one on whose CPUs others compute.
fn burning() -> Strain {
    Strain {
        waited: Some(0.62),
        stolen: 0.0,
        pressure: Some(0.7),
        burners: vec![Burner {
            pid: 4711,
            name: "cc1plus".to_owned(),
            cpus: 1.9,
            kernel: false,
        }],
    }
}

/// Hosts that are all alike, each pair with one way between.
fn healthy(hosts: usize) -> Fleet {
    let port = |host: usize| Port {
        interface: "eth0".to_owned(),
        address: format!("10.0.0.{host}"),
        mtu: Some(9000),
        speed: Some(100e9),
        errors: Vec::new(),
    };
    let way = || Way {
        bandwidth: Some(10e9),
        sent: 400,
        arrived: 400,
        reordered: 0,
        marked: 106,
        mark: Some(106),
        mtu: Some(9000),
    };
    let flow = |port| Flow {
        port,
        sent: 6,
        answered: 6,
        best: Some(12e-6),
        hops: Vec::new(),
    };
    let pairs = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b)));
    Fleet {
        hosts: (0..hosts)
            .map(|host| Host {
                name: name(host),
                ranks: vec![host],
                look: Some(Look {
                    report: Report::default(),
                    items: items(),
                }),
                work: vec![(
                    host,
                    Work {
                        compute: steady(10e9),
                        memory: steady(8e9),
                        strain: idle(),
                    },
                )],
                wired: Some(idle()),
            })
            .collect(),
        pairs: pairs
            .map(|(a, b)| Pair {
                a,
                b,
                paths: vec![Path {
                    at_a: port(a),
                    at_b: port(b),
                    there: way(),
                    back: way(),
                    round_trip: Some((12e-6, 14e-6)),
                    flows: (0..16).map(|i| flow(40_000 + i)).collect(),
                    clock: Some(1e-4),
                    rdma: None,
                    rdma_trouble: None,
                }],
                trouble: None,
            })
            .collect(),
        missing: Vec::new(),
    }
}

/// Changes what leaves, or comes to, a host.
fn change(fleet: &mut Fleet, host: usize, sends: bool, receives: bool, how: impl Fn(&mut Way)) {
    for pair in &mut fleet.pairs {
        for path in &mut pair.paths {
            if pair.a == host && sends || pair.b == host && receives {
                how(&mut path.there);
            }
            if pair.b == host && sends || pair.a == host && receives {
                how(&mut path.back);
            }
        }
    }
}

fn found(fleet: &Fleet) -> Vec<Finding> {
    let report = judge(fleet);
    for finding in &report.findings {
        assert!(
            !finding.evidence.is_empty() && !finding.remedy.is_empty(),
            "{finding:#?}"
        );
    }
    report.findings
}

/// The only finding.
fn only(fleet: &Fleet) -> Finding {
    let findings = found(fleet);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.into_iter().next().unwrap()
}

fn remedy(finding: &Finding) -> String {
    finding.remedy.iter().map(ToString::to_string).collect()
}

#[test]
fn hosts_that_are_alike_have_no_finding() {
    for hosts in 1..9 {
        assert_eq!(found(&healthy(hosts)), [], "{hosts}");
    }
    assert_eq!(found(&Fleet::default()), []);
}

proptest! {
    #[test]
    fn a_slow_port_is_blamed_and_no_one_else(hosts in 3_usize..9, which in 0_usize..8, slow in 0.01_f64..0.75, sends: bool, noise in proptest::collection::vec(0.9_f64..1.0, 60)) {
        let which = which % hosts;
        let mut fleet = healthy(hosts);
        let mut noise = noise.into_iter().cycle();
        for pair in &mut fleet.pairs {
            let path = &mut pair.paths[0];
            for way in [&mut path.there, &mut path.back] {
                way.bandwidth = way.bandwidth.map(|it| it * noise.next().unwrap());
            }
        }
        change(&mut fleet, which, sends, !sends, |way| way.bandwidth = way.bandwidth.map(|it| it * slow));
        let finding = only(&fleet);
        prop_assert_eq!(&finding.check, "fleet.slow_wire");
        prop_assert_eq!(&finding.subject, &format!("{} eth0", name(which)));
        let word = if sends { "as a sender" } else { "as a receiver" };
        prop_assert!(finding.problem.contains(word), "{}", finding.problem);
    }

    #[test]
    fn a_slow_way_between_ports_that_are_well_is_a_switch(hosts in 3_usize..9, which in 0_usize..36, slow in 0.01_f64..0.75) {
        let mut fleet = healthy(hosts);
        let which = which % fleet.pairs.len();
        let pair = &mut fleet.pairs[which];
        pair.paths[0].there.bandwidth = Some(10e9 * slow);
        let subject = format!("{} eth0 - {} eth0", name(pair.a), name(pair.b));
        let finding = only(&fleet);
        prop_assert_eq!(&finding.subject, &subject);
        prop_assert!(remedy(&finding).starts_with("switch"), "{}", remedy(&finding));
    }
}

#[test]
fn what_one_port_explains_counts_against_no_other() {
    // All that comes to node0 is slow: from node1, which is slow itself, and once by noise.
    let mut fleet = healthy(3);
    change(&mut fleet, 1, true, false, |way| {
        way.bandwidth = Some(0.1e9)
    });
    let noisy = fleet
        .pairs
        .iter_mut()
        .find(|pair| (pair.a, pair.b) == (0, 2))
        .unwrap();
    noisy.paths[0].back.bandwidth = Some(7e9);
    let findings = found(&fleet);
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert!(
        findings
            .iter()
            .any(|it| it.subject == "node1 eth0" && it.problem.contains("as a sender"))
    );
    assert!(
        findings
            .iter()
            .any(|it| it.subject == "node2 eth0 - node0 eth0"),
        "{findings:#?}"
    );
}

#[test]
fn a_host_that_is_a_little_slow_does_not_explain_a_wire_that_is_very_slow() {
    let mut fleet = healthy(4);
    change(&mut fleet, 2, true, true, |way| {
        way.bandwidth = Some(0.05e9)
    });
    fleet.hosts[2].work[0].1.memory = steady(5e9);
    let findings = found(&fleet);
    let wire = findings
        .iter()
        .find(|it| it.check == "fleet.slow_wire")
        .unwrap();
    assert!(remedy(wire).starts_with("NIC, cable or"), "{wire:#?}");
}

#[test]
fn the_part_that_is_slow_is_told_by_counters_rates_and_work() {
    let slow = |fleet: &mut Fleet| change(fleet, 2, true, true, |way| way.bandwidth = Some(1e9));
    let ports = |fleet: &mut Fleet, how: &dyn Fn(&mut Port)| {
        for pair in &mut fleet.pairs {
            if pair.a == 2 {
                how(&mut pair.paths[0].at_a);
            }
            if pair.b == 2 {
                how(&mut pair.paths[0].at_b);
            }
        }
    };
    let mut unknown = healthy(4);
    slow(&mut unknown);
    assert!(only(&unknown).problem.contains("both ways"));
    assert!(remedy(&only(&unknown)).starts_with("NIC, cable or"));

    let mut cable = unknown.clone();
    ports(&mut cable, &|port| {
        port.errors = vec![("rx_crc_errors".to_owned(), 12)]
    });
    assert!(remedy(&only(&cable)).starts_with("cable or module"));
    assert!(
        only(&cable)
            .evidence
            .iter()
            .any(|it| it.value == "rose by 12")
    );

    let mut rate = unknown.clone();
    ports(&mut rate, &|port| port.speed = Some(25e9));
    assert!(remedy(&only(&rate)).contains("came up at 25 Gb/s in place of 100"));

    let mut host = unknown.clone();
    host.hosts[2].work[0].1.memory = steady(1.5e9);
    let findings = found(&host);
    let wire = findings
        .iter()
        .find(|it| it.check == "fleet.slow_wire")
        .unwrap();
    assert!(remedy(wire).starts_with("host:"), "{wire:#?}");
    assert!(
        findings
            .iter()
            .any(|it| it.check == "fleet.slow_host" && it.subject == "node2")
    );
}

#[test]
fn a_pair_alone_does_not_tell_which_end_it_is() {
    let mut fleet = healthy(2);
    fleet.pairs[0].paths[0].back.arrived = 390;
    let finding = only(&fleet);
    assert_eq!(
        (finding.check.as_ref(), finding.severity),
        ("fleet.loss", Severity::Error)
    );
    assert!(
        finding.problem.contains("one of both ends"),
        "{}",
        finding.problem
    );
    assert!(remedy(&finding).contains("third host"));
}

#[test]
fn marks_that_are_lost_are_found_and_congestion_is_none() {
    let mut bleached = healthy(4);
    change(&mut bleached, 1, true, false, |way| way.mark = Some(0));
    let finding = only(&bleached);
    assert_eq!(
        (finding.check.as_ref(), finding.subject.as_str()),
        ("fleet.mark", "node1 eth0")
    );
    assert!(
        finding
            .problem
            .contains("DSCP 26 ECN 2 arrive as DSCP 0 ECN 0"),
        "{}",
        finding.problem
    );
    let mut dropped = healthy(3);
    change(&mut dropped, 0, false, true, |way| way.mark = None);
    assert!(only(&dropped).problem.contains("not at all"));
    let mut everywhere = healthy(3);
    (0..3).for_each(|host| {
        change(&mut everywhere, host, true, true, |way| {
            way.mark = Some(104)
        })
    });
    assert_eq!(only(&everywhere).subject, "all");
    let mut congested = healthy(3);
    change(&mut congested, 1, true, true, |way| way.mark = Some(107));
    assert_eq!(found(&congested), []);
}

#[test]
fn a_host_with_a_smaller_mtu_is_told_from_a_switch_with_one() {
    let mut host = healthy(3);
    change(&mut host, 2, false, true, |way| way.mtu = Some(1500));
    let mut switch = host.clone();
    for pair in host.pairs.iter_mut().filter(|pair| pair.b == 2) {
        pair.paths[0].at_b.mtu = Some(1500);
    }
    let finding = only(&host);
    assert_eq!(
        (finding.check.as_ref(), finding.subject.as_str()),
        ("fleet.path_mtu", "node2 eth0")
    );
    assert!(
        remedy(&finding).contains("ip link set dev eth0 mtu 9000"),
        "{}",
        remedy(&finding)
    );
    change(&mut switch, 2, true, false, |way| way.mtu = Some(1500));
    assert!(
        remedy(&only(&switch)).starts_with("switch"),
        "{}",
        remedy(&only(&switch))
    );
}

#[test]
fn a_broken_way_of_several_hits_some_source_ports() {
    let mut fleet = healthy(3);
    for flow in &mut fleet.pairs[0].paths[0].flows[3..5] {
        flow.answered = 0;
    }
    let finding = only(&fleet);
    assert_eq!(finding.check, "fleet.flows");
    assert!(finding.problem.contains("2 of 16"), "{}", finding.problem);
    assert!(finding.evidence[0].value.contains("40003, 40004"));
}

/// Hosts with a network for data, and a slow one for management.
fn two_networks(hosts: usize) -> Fleet {
    let mut fleet = healthy(hosts);
    for pair in &mut fleet.pairs {
        let mut slow = pair.paths[0].clone();
        for port in [&mut slow.at_a, &mut slow.at_b] {
            port.interface = "mgmt0".to_owned();
            port.speed = Some(1e9);
        }
        for way in [&mut slow.there, &mut slow.back] {
            way.bandwidth = Some(0.1e9);
        }
        slow.round_trip = Some((200e-6, 220e-6));
        pair.paths.push(slow);
    }
    fleet
}

#[test]
fn a_network_that_is_slower_by_design_is_no_finding() {
    for hosts in 2..6 {
        assert_eq!(found(&two_networks(hosts)), []);
    }
    // A slow port of it is told by the others of the same.
    let mut fleet = two_networks(4);
    for pair in fleet.pairs.iter_mut().filter(|pair| pair.a == 0) {
        let Path { there, back, .. } = &mut pair.paths[1];
        (there.bandwidth, back.bandwidth) = (Some(0.01e9), Some(0.01e9));
    }
    let finding = only(&fleet);
    assert_eq!(finding.subject, "node0 mgmt0");
    assert!(
        finding.problem.contains("0.100 GB/s are usual"),
        "{finding:#?}"
    );
}

#[test]
fn a_way_on_which_nothing_is_answered_is_an_error() {
    let mut fleet = two_networks(3);
    let path = &mut fleet.pairs[0].paths[0];
    path.flows = vec![Flow {
        sent: 10,
        ..Flow::default()
    }];
    (path.there, path.back, path.round_trip) = (Way::default(), Way::default(), None);
    let finding = only(&fleet);
    assert_eq!(finding.subject, "node0 eth0 - node1 eth0");
    assert_eq!(finding.severity, Severity::Error);
    assert!(
        finding.problem.contains("nothing is answered"),
        "{finding:#?}"
    );
    // Where only what is marked gets lost, datagrams without a mark are answered.
    let mut marked = healthy(3);
    let path = &mut marked.pairs[0].paths[0];
    for flow in &mut path.flows {
        (flow.answered, flow.best) = (0, None);
    }
    for way in [&mut path.there, &mut path.back] {
        (way.arrived, way.mark) = (0, None);
    }
    let checks: Vec<_> = found(&marked).into_iter().map(|it| it.check).collect();
    assert!(checks.iter().all(|it| it != "fleet.flows"), "{checks:?}");
    assert!(checks.iter().any(|it| it == "fleet.loss"), "{checks:?}");
}

#[test]
fn late_datagrams_long_round_trips_and_clocks_are_found() {
    let mut fleet = healthy(4);
    change(&mut fleet, 3, false, true, |way| way.reordered = 4);
    assert_eq!(only(&fleet).check, "fleet.reordering");
    let mut fleet = healthy(4);
    for pair in fleet.pairs.iter_mut().filter(|pair| pair.b == 3) {
        pair.paths[0].round_trip = Some((900e-6, 1e-3));
    }
    let finding = only(&fleet);
    assert_eq!(
        (finding.check.as_ref(), finding.subject.as_str()),
        ("fleet.latency", "node3 eth0")
    );
    let mut fleet = healthy(2);
    fleet.pairs[0].paths[0].clock = Some(-3.5);
    assert!(only(&fleet).problem.contains("-3.500 s"));
}

#[test]
fn eight_percent_are_found_and_a_few_are_not() {
    let with = |best: f64, typical: f64| {
        let mut fleet = healthy(4);
        fleet.hosts[1].work[0].1.compute = Rate { best, typical };
        fleet
    };
    assert_eq!(found(&with(9.5e9, 9.3e9)), []);
    let slow = only(&with(9.1e9, 9e9));
    assert_eq!(
        (slow.check.as_ref(), slow.subject.as_str()),
        ("fleet.slow_host", "node1")
    );
    assert_eq!(only(&with(4e9, 4e9)).severity, Severity::Error);
    let busy = only(&with(10e9, 5e9));
    assert_eq!(
        (busy.check.as_ref(), busy.subject.as_str()),
        ("fleet.busy_host", "node1")
    );
    // Of two hosts the faster one is the measure.
    let mut two = healthy(2);
    two.hosts[0].work[0].1.memory = steady(4e9);
    assert_eq!(only(&two).subject, "node0");
    // A host is as fast as the slowest of its ranks.
    let mut ranks = healthy(3);
    ranks.hosts[2].work.push((
        7,
        Work {
            compute: steady(6e9),
            memory: steady(8e9),
            strain: idle(),
        },
    ));
    assert!(only(&ranks).evidence[0].source.contains("rank 7"));
}

#[test]
fn what_differs_is_named_with_the_odd_hosts() {
    let mut fleet = healthy(4);
    fleet.hosts[2].look.as_mut().unwrap().items[1].value = "2 x 28.36.1010".to_owned();
    let finding = only(&fleet);
    assert_eq!(
        (finding.severity, finding.subject.as_str()),
        (Severity::Warning, "node2")
    );
    assert!(
        finding
            .problem
            .contains("2 x 28.39.1002 on node0, node1, node3; 2 x 28.36.1010 on node2"),
        "{}",
        finding.problem
    );
    fleet.hosts[2].look.as_mut().unwrap().items.remove(1);
    assert_eq!(
        differences(&fleet.hosts)[0].values[1],
        ("absent".to_owned(), vec![name(2)])
    );
    let mut tie = healthy(2);
    tie.hosts[1].look.as_mut().unwrap().items[0].value = "6.8".to_owned();
    let finding = only(&tie);
    assert_eq!(
        (finding.severity, finding.subject.as_str()),
        (Severity::Note, "node0, node1")
    );
}

#[test]
fn what_several_hosts_have_is_one_finding() {
    let mut fleet = healthy(3);
    let finding = |check: &'static str, severity| Finding {
        check: check.into(),
        severity,
        ..only(&{
            let mut any = healthy(2);
            any.pairs[0].paths[0].clock = Some(1.0);
            any
        })
    };
    for host in 0..3 {
        let findings = &mut fleet.hosts[host].look.as_mut().unwrap().report.findings;
        findings.push(finding("cpu.governor", Severity::Warning));
    }
    let findings = &mut fleet.hosts[1].look.as_mut().unwrap().report.findings;
    findings.push(finding("links.state", Severity::Warning));
    let common = common(&fleet.hosts);
    let checks: Vec<_> = common
        .iter()
        .map(|it| (it.finding.check.as_ref(), it.hosts.len()))
        .collect();
    assert_eq!(checks, [("links.state", 1), ("cpu.governor", 3)]);
}

#[test]
fn a_pair_that_was_not_measured_is_not_judged_and_said_so() {
    let mut fleet = healthy(3);
    fleet.pairs[1].paths.clear();
    fleet.pairs[1].trouble = Some("no datagram is answered at 10.0.0.2".to_owned());
    let report = judge(&fleet);
    assert_eq!(report.findings, []);
    assert_eq!(report.unjudged.len(), 1);
    assert_eq!(report.unjudged[0].subject, "node0 - node2");
    assert!(
        report
            .text(false)
            .contains("no datagram is answered at 10.0.0.2")
    );
}

#[test]
fn a_rank_that_is_missing_is_an_error_and_the_rest_is_judged() {
    let mut fleet = healthy(3);
    fleet.hosts[1].look = None;
    fleet.hosts[1].work.clear();
    fleet.pairs.retain(|pair| pair.a != 1 && pair.b != 1);
    fleet.missing.push(Missing {
        rank: 1,
        host: name(1),
        during: "its host and its figures".to_owned(),
        reason: "it did not answer in time".to_owned(),
    });
    let finding = only(&fleet);
    assert_eq!(
        (finding.check.as_ref(), finding.severity),
        ("fleet.missing", Severity::Error)
    );
    assert_eq!(finding.subject, "rank 1 of node1");
    assert!(
        finding.problem.contains("rank 1 (host node1)"),
        "{}",
        finding.problem
    );
}

#[test]
fn a_host_that_is_only_busy_is_called_so_and_neither_it_nor_its_wire_is_called_slow() {
    let mut fleet = healthy(4);
    fleet.hosts[2].work[0].1 = Work {
        compute: Rate {
            best: 7e9,
            typical: 3e9,
        },
        memory: steady(5e9),
        strain: burning(),
    };
    let finding = only(&fleet);
    assert_eq!(
        (finding.check.as_ref(), finding.subject.as_str()),
        ("fleet.busy_host", "node2")
    );
    for words in ["62 %", "7.00 Gflop/s where 10.00 Gflop/s are usual"] {
        assert!(finding.problem.contains(words), "{finding:#?}");
    }
    assert!(
        remedy(&finding).contains("cc1plus, process 4711"),
        "{finding:#?}"
    );
    // A thread of the kernel's nobody can end.
    let mut kernel = burning().burners;
    kernel[0].kernel = true;
    let mut of_kernel = fleet.clone();
    of_kernel.hosts[2].work[0].1.strain.burners = kernel;
    let told = remedy(&only(&of_kernel));
    assert!(told.contains("see who else runs there"), "{told}");
    // Its wire is worth a note, which names the host.
    fleet.hosts[2].wired = Some(burning());
    change(&mut fleet, 2, true, true, |way| way.bandwidth = Some(4e9));
    let findings = found(&fleet);
    let wire = findings.iter().find(|it| it.check == "fleet.slow_wire");
    let wire = wire.unwrap();
    assert_eq!(wire.severity, Severity::Note);
    assert!(remedy(wire).starts_with("host: the processors of node2"));
    assert!(wire.evidence.iter().any(|it| it.value.contains("cc1plus")));
    // A cable with errors is one, whoever is busy.
    for pair in &mut fleet.pairs {
        let path = &mut pair.paths[0];
        for port in [&mut path.at_a, &mut path.at_b] {
            if port.address == "10.0.0.2" {
                port.errors = vec![("rx_crc_errors".to_owned(), 12)];
            }
        }
    }
    let findings = found(&fleet);
    let wire = findings.iter().find(|it| it.check == "fleet.slow_wire");
    assert_eq!(wire.unwrap().severity, Severity::Warning);
    assert!(remedy(wire.unwrap()).starts_with("cable or module"));
    // Others on other CPUs take caches and memory: what is slow then may be only that.
    let mut beside = healthy(3);
    beside.hosts[1].work[0].1.strain.burners = burning().burners;
    assert_eq!(found(&beside), []);
    beside.hosts[1].work[0].1.memory = steady(5e9);
    assert_eq!(only(&beside).check, "fleet.busy_host");
    // So does a hypervisor.
    let mut stolen = healthy(3);
    stolen.hosts[1].work[0].1.strain.stolen = 0.2;
    for burners in [Vec::new(), burning().burners] {
        stolen.hosts[1].work[0].1.strain.burners = burners;
        let finding = only(&stolen);
        assert!(finding.problem.contains("gives 20 %"), "{finding:#?}");
        assert!(
            remedy(&finding).contains("who runs the machines"),
            "{finding:#?}"
        );
    }
}

/// Hosts 0 and 1 at leaf A, 2 and 3 at leaf B, and two spines between; `spine` says which one a source port of a pair takes.
fn two_spines(spine: impl Fn(usize, usize, usize) -> usize) -> Fleet {
    let mut fleet = healthy(4);
    for pair in &mut fleet.pairs {
        let (a, b) = (pair.a, pair.b);
        for (i, flow) in pair.paths[0].flows.iter_mut().enumerate() {
            let leaf = |host: usize| Some(format!("10.255.0.{}", host / 2));
            flow.hops = match a / 2 == b / 2 {
                true => vec![leaf(a)],
                false => vec![
                    leaf(a),
                    Some(format!("10.255.0.{}", 8 + spine(a, b, i))),
                    leaf(b),
                ],
            };
        }
    }
    fleet
}

#[test]
fn equal_ways_are_counted_and_told_if_source_ports_do_not_spread_over_them() {
    let spread = two_spines(|_, _, port| port % 2);
    assert_eq!(found(&spread), []);
    let ways: Vec<_> = spread.pairs.iter().map(|it| it.paths[0].ways()).collect();
    assert_eq!(ways, [1, 2, 2, 2, 2, 1].map(Some));
    assert_eq!(healthy(2).pairs[0].paths[0].ways(), None);
    // Routers that limit what they say, as Linux does, leave holes.
    let mut holes = two_spines(|_, _, port| port % 2);
    for flow in &mut holes.pairs[1].paths[0].flows[3..] {
        flow.hops = vec![None, None, flow.hops[2].clone()];
    }
    assert_eq!(found(&holes), []);
    assert_eq!(holes.pairs[1].paths[0].ways(), Some(2));
    // By addresses only: all of a pair on one.
    let lumped = only(&two_spines(|a, b, _| (a + b) % 2));
    assert_eq!(
        (lumped.check.as_ref(), lumped.subject.as_str()),
        ("fleet.spread", "router 10.255.0.0")
    );
    assert!(lumped.problem.contains("2 ways"), "{lumped:#?}");
    // One spine for all is a fabric of one spine, as far as can be seen.
    assert_eq!(found(&two_spines(|_, _, _| 0)), []);
    // What source ports without an answer reach is said.
    let mut broken = two_spines(|_, _, port| port % 2);
    for flow in broken.pairs[1].paths[0].flows.iter_mut().skip(1).step_by(2) {
        (flow.answered, flow.best) = (0, None);
        flow.hops.truncate(2);
    }
    let finding = only(&broken);
    assert!(
        remedy(&finding).contains("behind 10.255.0.9"),
        "{finding:#?}"
    );
}

#[test]
fn rdma_that_is_slow_or_does_not_work_is_found_where_tcp_is_well() {
    let with = |how: &dyn Fn(&mut Pair)| {
        let mut fleet = healthy(4);
        for pair in &mut fleet.pairs {
            pair.paths[0].rdma = Some(Rdma {
                devices: ["mlx5_0".to_owned(), "mlx5_0".to_owned()],
                there: 12e9,
                back: 12e9,
                latency: 1.4e-6,
            });
            how(pair);
        }
        fleet
    };
    assert_eq!(found(&with(&|_| {})), []);
    let slow = only(&with(&|pair| {
        let rdma = pair.paths[0].rdma.as_mut().unwrap();
        match (pair.a, pair.b) {
            (2, _) => rdma.there = 3e9,
            (_, 2) => rdma.back = 3e9,
            _ => {}
        }
    }));
    assert_eq!(
        (slow.check.as_ref(), slow.subject.as_str()),
        ("fleet.rdma", "node2 eth0")
    );
    assert!(slow.problem.contains("as a sender"), "{slow:#?}");
    let broken = only(&with(&|pair| {
        if (pair.a, pair.b) == (1, 3) {
            pair.paths[0].rdma = None;
            pair.paths[0].rdma_trouble = Some("the GID of mlx5_0 is link-local".to_owned());
        }
    }));
    assert_eq!(broken.severity, Severity::Error);
    assert!(
        remedy(&broken).contains("ringway perf write bw 10.0.0.3"),
        "{broken:#?}"
    );
}
