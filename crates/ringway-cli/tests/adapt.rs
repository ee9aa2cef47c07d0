#![allow(clippy::unwrap_used, reason = "tests")]
//! A job in a lab, one link of which loses three quarters of its rate in mid-run.
//!
//! Needs root or namespaces of users, and iproute2; without, the test says so and passes.

mod scratch;

use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use scratch::File;
use serde_json::Value;

/// Four hosts, each at a leaf of its own; a link between each two leaves. So between two hosts there is one way, and another order
/// of hosts can do without a link.
const MESH: &str = "
fabric: mesh
hosts:
  - {name: host, count: 4}
switches:
  - {name: leaf, count: 4, tier: leaf}
links:
  - {from: host, to: leaf, join: {blocks: 4}, rate: 80Mbit/s, latency: 1us}
  - {from: leaf0, to: leaf1-3, join: full, rate: 80Mbit/s, latency: 1us}
  - {from: leaf1, to: leaf2-3, join: full, rate: 80Mbit/s, latency: 1us}
  - {from: leaf2, to: leaf3, join: full, rate: 80Mbit/s, latency: 1us}
";

#[test]
fn a_job_goes_around_a_link_that_has_become_slow() {
    if let Err(reason) = ringway_lab::can_make_namespaces() {
        println!("skipped: {reason}");
        return;
    }
    let (file, json) = (File::new("adapt.yaml"), File::new("adapt.json"));
    std::fs::write(file.path(), MESH).unwrap();
    let name = format!("test-{}-adapt", std::process::id());
    let program = env!("CARGO_BIN_EXE_ringway");
    let run = ["lab", "run", file.path(), "--name", &name];
    let network = ["--congestion", "reno", "--window", "128K", "--"];
    let bench = ["bench", "all-reduce", "--sizes", "200K", "-n", "200"];
    let job = Command::new(program)
        .args(run)
        .args(network)
        .arg(program)
        .args(bench)
        .args(["--algorithm", "ring", "--json", json.path()])
        .env("RINGWAY_ADAPT_AFTER", "500ms")
        .env("RINGWAY_PROBE_LIFETIME", "0s")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(5));
    let change = ["lab", "rate", "--name", &name, "leaf1-leaf2", "25%"];
    let changed = Command::new(program).args(change).output().unwrap();
    let ended = job.wait_with_output().unwrap();
    let [out, err] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(changed.status.success(), "{changed:?}");
    assert!(ended.status.success(), "{out}{err}");
    let rows: Value = serde_json::from_slice(&std::fs::read(json.path()).unwrap()).unwrap();
    assert_eq!(rows[0]["wrong"], 0);
    // Where other programs take the processors a change may be seen that is none; the link's own is seen once.
    let replans = rows[0]["replans"].as_u64().unwrap();
    assert!((1..=2).contains(&replans), "{rows}{out}{err}");
    assert!(
        [&out, &err]
            .iter()
            .any(|text| text.contains("hosts side by side")),
        "{out}{err}"
    );
}
