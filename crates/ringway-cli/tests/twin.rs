#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway twin`: the lab and the simulator run the same, over the same paths.

mod scratch;

use std::process::Command;

use scratch::File;
use serde_json::Value;

/// Two hosts at each of two leaves, two spines; 400 Mbit/s everywhere.
fn fabric(name: &str) -> File {
    let file = File::new(name);
    let text = "
fabric: leaf-spine
hosts:
  - {name: host, count: 4}
switches:
  - {name: leaf, count: 2, tier: leaf}
  - {name: spine, count: 2, tier: spine}
links:
  - {from: host, to: leaf, join: {blocks: 2}, rate: 400Mbit/s, latency: 1us}
  - {from: leaf, to: spine, join: full, rate: 400Mbit/s, latency: 1us}
";
    std::fs::write(file.path(), text).unwrap();
    file
}

fn twin(arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    let output = command.arg("twin").args(arguments).output().unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn both_run_the_same_over_the_same_paths() {
    if let Err(reason) = ringway_lab::can_make_namespaces() {
        println!("skipped: {reason}");
        return;
    }
    let file = fabric("twin.yaml");
    let flags = [
        "--sizes",
        "1M",
        "--algorithms",
        "ring,direct",
        "-n",
        "40",
        "--json",
    ];
    let lab = [file.path(), "--congestion", "reno", "--queues", "fair"];
    let (ok, out, err) = twin(&[&lab, &flags[..]].concat());
    assert!(ok, "{out}{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&json["hosts"], &json["congestion"], &json["queues"]),
        (&4.into(), &"reno".into(), &"fair".into())
    );
    // In each of two runs all 12 pairs talk, if only in barriers, by one connection that carries most.
    let paths = json["paths"].as_u64().unwrap();
    assert!((1..=24).contains(&paths), "{json}");
    let payload = json["calibration"]["payload"].as_f64().unwrap();
    assert!((0.01..1.0).contains(&payload), "{json}");
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let seconds = |key: &str| case[key].as_f64().unwrap();
        let (lab, simulated) = (seconds("lab_seconds"), seconds("simulated_seconds"));
        // No link carries more than its rate, but for a bucket's worth.
        assert!(lab > 0.9 * seconds("bound_seconds"), "{case}");
        assert!(simulated > 0.95 * seconds("bound_seconds"), "{case}");
        assert!(
            (seconds("error") - (simulated / lab - 1.0)).abs() < 1e-9,
            "{case}"
        );
        // Queues of connections drop nothing.
        assert_eq!(case["dropped"], 0, "{case}");
        assert!((0.0..=1.0).contains(&seconds("busy")), "{case}");
        // Acknowledgements and barriers are the rest.
        assert!(seconds("same_links") > 0.9, "{case}");
    }
}

#[test]
fn several_fabrics_have_one_verdict() {
    if let Err(reason) = ringway_lab::can_make_namespaces() {
        println!("skipped: {reason}");
        return;
    }
    let files = [fabric("twin-first.yaml"), fabric("twin-second.yaml")];
    let flags = [
        "--hosts",
        "2",
        "--sizes",
        "64K",
        "--algorithms",
        "ring",
        "-n",
        "1",
    ];
    let both = [&[files[0].path(), files[1].path()], &flags[..]].concat();
    // No simulation is as exact as that.
    let (ok, out, err) = twin(&[&both[..], &["--within", "0,0"]].concat());
    assert!(!ok, "{out}{err}");
    assert_eq!(out.matches("leaf-spine: 2 hosts").count(), 2, "{out}{err}");
    assert!(out.contains("\n2 cases: median error"), "{out}{err}");
    assert!(
        err.contains("leaf-spine: all_reduce by ring ..."),
        "{out}{err}"
    );
}

#[test]
fn mistakes_are_told_before_anything_is_made() {
    let file = fabric("twin-mistake.yaml");
    for (flags, text) in [
        (["--collectives", "barrier"], "carries no data"),
        (["--algorithms", "rung"], "'rung'"),
        (["--collectives", "gather"], "none of these algorithms"),
        (["--hosts", "1"], "at least 2"),
        (["--hosts", "9"], "expected 1 to 4"),
        (["--window", "1"], "expected 16K to 1G"),
        (["--queues", "some"], "expected one or fair"),
        (["--within", "5"], "median and worst, such as 5,15"),
    ] {
        let algorithms = ["--algorithms", "ring"];
        let more = if flags[0] == "--algorithms" {
            &[][..]
        } else {
            &algorithms
        };
        let (ok, out, err) = twin(&[&[file.path()], &flags[..], more].concat());
        assert!(!ok && err.contains(text), "{flags:?}: {out}{err}");
    }
}
