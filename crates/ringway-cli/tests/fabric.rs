#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway fabric`: a file is written, checked, shown and placed on.

mod scratch;

use std::process::Command;

use scratch::File;

struct Output {
    ok: bool,
    out: String,
    err: String,
}

fn fabric(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    let output = command.arg("fabric").args(arguments).output().unwrap();
    Output {
        ok: output.status.success(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_three_tier_fabric_is_checked() {
    let file = File::new("three-tier.yaml");
    let new = [
        "new",
        "three-tier",
        "--hosts",
        "32",
        "--output",
        file.path(),
    ];
    assert!(fabric(&new).ok);
    let check = fabric(&["check", file.path()]);
    assert!(check.ok, "{}", check.err);
    let expected = "\
three-tier: 32 hosts, 18 switches, 64 links

measure                      value
leaf oversubscription       4.00:1  1600.0 GB/s down, 400.0 GB/s up, 8 switches
spine oversubscription      4.00:1  400.0 GB/s down, 100.0 GB/s up, 8 switches
bisection bandwidth      50.0 GB/s  6 % of what the hosts' links allow, one way
path length             5.35 links  2 to 6, 496 pairs of hosts
equal paths                 2 to 8  between hosts that are not neighbours

warning (blocking): leaf0, leaf1, leaf2 and 5 more: 1.6 Tbit/s from below and 400 Gbit/s upwards is 4:1; expected 1:1
";
    assert!(check.out.starts_with(expected), "{}", check.out);
    assert!(check.out.ends_with("\n0 errors, 2 warnings, 1 notes\n"));
    assert!(!fabric(&["check", "--strict", file.path()]).ok);
    let json = fabric(&["check", "--json", file.path()]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["tiers"][0]["oversubscription"], 4.0);
    assert_eq!(json["findings"][0]["check"], "blocking");
}

#[test]
fn fabrics_are_shown_and_drawn() {
    let (file, svg) = (File::new("torus.yaml"), File::new("torus.svg"));
    assert!(fabric(&["new", "torus", "--size", "4x4", "-o", file.path()]).ok);
    let show = fabric(&["show", file.path()]).out;
    let expected = "\
torus

group  role  count
host   host     16  8 GPUs, 4 NICs, 2 NUMA nodes, forwards

from  to    links        rate  latency
host  host     32  400 Gbit/s   600 ns
";
    assert_eq!(show, expected);
    assert!(fabric(&["show", file.path(), "--svg", svg.path()]).ok);
    assert!(
        std::fs::read_to_string(svg.path())
            .unwrap()
            .contains("host15")
    );
    let path = fabric(&["path", file.path(), "host0", "host5", "--json"]).out;
    let path: serde_json::Value = serde_json::from_str(&path).unwrap();
    assert_eq!(path["equal_paths"], 2);
    let missing = fabric(&["path", file.path(), "host0", "host16"]);
    assert!(missing.err.contains("no host `host16`"), "{}", missing.err);
}

#[test]
fn a_random_order_is_put_right() {
    let file = File::new("place.yaml");
    let new = ["new", "three-tier", "--hosts", "16", "-o", file.path()];
    assert!(fabric(&new).ok);
    let place = |from| fabric(&["place", file.path(), "ring", "--from", from, "--json"]).out;
    let random: serde_json::Value = serde_json::from_str(&place("random:3")).unwrap();
    let sorted: serde_json::Value = serde_json::from_str(&place("file")).unwrap();
    let busiest =
        |v: &serde_json::Value, order: &str| v[order]["busiest_seconds_per_byte"].as_f64().unwrap();
    assert!(busiest(&random, "given") > 2.0 * busiest(&random, "found"));
    assert_eq!(busiest(&random, "found"), busiest(&sorted, "found"));
    let list = fabric(&["place", file.path(), "ring", "--list"]).out;
    assert_eq!(list.lines().count(), 16);
}

#[test]
fn a_mistake_is_told_with_file_line_and_column() {
    let file = File::new("bad.yaml");
    std::fs::write(
        file.path(),
        "fabric: f\nhosts:\n  - {name: host, cuont: 4}\n",
    )
    .unwrap();
    let check = fabric(&["check", file.path()]);
    assert!(!check.ok);
    assert!(
        check.err.contains(".yaml: line 3, column "),
        "{}",
        check.err
    );
    assert!(
        check.err.contains("expected one of name, count"),
        "{}",
        check.err
    );
}
