//! Fabric files: what is in them, and how mistakes are told.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use ringway_fabric::{Fabric, NodeId};

const GOOD: &str = "\
fabric: small
hosts:
  - name: host
    count: 4
    gpus: 2
    nics: 2
    numa: 2
  - name: head
switches:
  - {name: leaf, count: 2, tier: leaf, ports: 8}
links:
  - {from: host, to: leaf, join: full, rate: 100Gbit/s, latency: 500ns}
  - {from: head, to: leaf1, join: full, rate: 25Gbit/s, latency: 1us}
";

#[test]
fn groups_become_nodes_and_links() {
    let fabric = Fabric::parse(GOOD).unwrap();
    assert_eq!((fabric.hosts(), fabric.nodes()), (5, 7));
    assert_eq!(fabric.node("head"), Some(NodeId(4)));
    assert_eq!(fabric.node("leaf1"), Some(NodeId(6)));
    assert_eq!(fabric.node("leaf01"), None);
    assert_eq!(fabric.node("leaf2"), None);
    assert_eq!(fabric.link_name(8), "head-leaf1");
    let kind = fabric.host(0).unwrap();
    assert_eq!((kind.gpu_numa.as_slice(), kind.nic_of(1)), (&[0, 1][..], 1));
    assert!(fabric.host(5).is_none());
}

/// Each mistake with its line and column, and words of what was expected.
#[test]
fn mistakes_are_told_with_their_place() {
    let cases = [
        (
            "ports: 8",
            "ports: 3",
            "10:12",
            "leaf0 has 3 ports and 4 links",
        ),
        ("nics: 2", "nics: 1", "3:11", "host0 has 1 NICs and 2 links"),
        ("count: 4", "count: 0", "4:12", "count is 0; expected 1 to"),
        ("count: 4", "count: four", "4:12", ""),
        ("gpus: 2", "gpu: 2", "5:5", "gpu"),
        ("tier: leaf,", "tier: lead,", "10:34", "lead"),
        (
            "join: full, rate: 100",
            "join: {blocks: 3}, rate: 100",
            "12:12",
            "4 members, which cannot be cut in 3",
        ),
        (
            "join: full, rate: 100",
            "join: {torus: [2, 3]}, rate: 100",
            "12:5",
            "has 6 members, but host has 4",
        ),
        (
            "join: full, rate: 100",
            "join: {rails: 2}, rate: 100",
            "12:22",
            "expected 2 switches for each block, 4 in all",
        ),
        (
            "100Gbit/s",
            "100G",
            "12:46",
            "`100G` is no rate; expected a number above 0 with its unit",
        ),
        ("500ns", "fast", "12:66", "no latency"),
        (
            "to: leaf1,",
            "to: leaf7,",
            "13:22",
            "members of leaf are leaf0 to leaf1",
        ),
        (
            "to: leaf1,",
            "to: loaf,",
            "13:22",
            "the groups are host, head, leaf",
        ),
        (
            "name: head",
            "name: host",
            "8:11",
            "another group too, at line 3",
        ),
        ("name: head", "name: head2", "8:11", "no digit last"),
        (
            "numa: 2",
            "numa: 2\n    gpu_numa: [0, 2]",
            "8:15",
            "expected 2 entries, each below 2",
        ),
        (
            "from: head, to: leaf1",
            "from: head, to: head",
            "13:5",
            "linked to itself",
        ),
        (
            "hosts:",
            "hosts: []\nhusts:",
            "3:1",
            "unknown field `husts`, expected one of",
        ),
    ];
    let mut wrong = Vec::new();
    for (good, bad, place, words) in cases {
        let text = GOOD.replacen(good, bad, 1);
        assert_ne!(text, GOOD, "{good}");
        let error = Fabric::parse(&text).expect_err(bad);
        let found = format!("{}:{}", error.line, error.column);
        if found != place || !error.to_string().contains(words) {
            wrong.push(format!("{bad}: expected {place}: {words}\n  found {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let text = format!("{GOOD}cut:\n  - {{from: host0, to: host1}}\n");
    let error = Fabric::parse(&text).unwrap_err().to_string();
    assert!(
        error.contains("line 15") && error.contains("no link between host0 and host1"),
        "{error}"
    );
    let error = Fabric::parse("fabric: none\nhosts: []\n")
        .unwrap_err()
        .to_string();
    assert!(error.contains("no hosts"), "{error}");
}
