#![allow(clippy::unwrap_used, reason = "tests")]
//! `record` and `ringway replay`: a job is written down, and simulated elsewhere.

mod scratch;

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use scratch::File;
use serde_json::Value;

fn ringway(arguments: &[&str], record: Option<&str>) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(arguments);
    if let Some(record) = record {
        command.env("RINGWAY_RECORD", record);
    }
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A leaf with hosts of one rank each, at this rate.
fn fabric(name: &str, hosts: usize, rate: &str) -> File {
    let file = File::new(name);
    let text = format!(
        "
fabric: one leaf
hosts:
  - {{name: host, count: {hosts}}}
switches:
  - {{name: leaf, tier: leaf}}
links:
  - {{from: host, to: leaf, join: full, rate: {rate}, latency: 1us}}
"
    );
    std::fs::write(file.path(), text).unwrap();
    file
}

const BENCH: [&str; 8] = [
    "bench",
    "all-reduce",
    "--sizes",
    "64K,1M",
    "-n",
    "5",
    "--ranks",
    "2",
];

fn replay(record: &File, fabric: &File, more: &[&str]) -> Value {
    let arguments = [&["replay", record.path(), fabric.path(), "--json"], more].concat();
    let (ok, out, err) = ringway(&arguments, None);
    assert!(ok, "{out}{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_job_is_replayed_on_faster_and_slower_fabrics() {
    for transport in ["shm", "tcp"] {
        let record = File::new(&format!("replay-{transport}.rec"));
        let bench = [&BENCH[..], &["--transport", transport]].concat();
        let (ok, out, err) = ringway(&bench, Some(record.path()));
        assert!(ok, "{out}{err}");
        let fast = replay(
            &record,
            &fabric(&format!("fast-{transport}.yaml"), 8, "100Gbit/s"),
            &[],
        );
        let slow = replay(
            &record,
            &fabric(&format!("slow-{transport}.yaml"), 8, "1Gbit/s"),
            &[],
        );
        // Of both sizes 5 iterations, 5 before and a check, at least; nothing is lost or made up.
        let operations = |json: &Value| json["operations"].as_array().unwrap().clone();
        for size in [65_536, 1 << 20] {
            let all = operations(&fast);
            let alike = all
                .iter()
                .filter(|o| o["bytes"] == size && o["operation"] == "all_reduce");
            let times: u64 = alike.map(|o| o["times"].as_u64().unwrap()).sum();
            assert!(times >= 11, "{fast}");
        }
        for json in [&fast, &slow] {
            let times: u64 = operations(json)
                .iter()
                .map(|o| o["times"].as_u64().unwrap())
                .sum();
            assert_eq!(json["calls"].as_u64(), Some(times));
            let bytes = |o: &Value| o["bytes"].as_u64().unwrap() * o["times"].as_u64().unwrap();
            let sum: u64 = operations(json).iter().map(bytes).sum();
            assert_eq!(json["bytes"].as_u64(), Some(sum));
            assert_eq!(json["whole"], true);
            let seconds = |what: &str| json["replayed"][what].as_f64().unwrap();
            assert!(seconds("exposed_seconds") <= seconds("communication_seconds"));
            let sum = seconds("own_seconds") + seconds("exposed_seconds");
            assert!((seconds("seconds") / sum - 1.0).abs() < 1e-6, "{json}");
            // The program's own time is what it was.
            let own = json["recorded"]["own_seconds"].as_f64().unwrap();
            assert!((seconds("own_seconds") - own).abs() < 1e-6, "{json}");
        }
        // 14/8 of 1 MiB among 8 at 125 MB/s.
        let each = |json: &Value| {
            let all = operations(json);
            let found = all
                .iter()
                .find(|o| o["bytes"] == 1 << 20 && o["operation"] == "all_reduce");
            found.unwrap()["replayed_seconds"].as_f64().unwrap()
        };
        let (slow, fast) = (each(&slow), each(&fast));
        assert!((14.6e-3..22e-3).contains(&slow), "{slow}");
        assert!(slow > 10.0 * fast, "{slow} {fast}");
    }
}

#[test]
fn a_slow_host_and_steps_are_seen() {
    let record = File::new("replay-steps.rec");
    let (ok, out, err) = ringway(&BENCH, Some(record.path()));
    assert!(ok, "{out}{err}");
    let fabric = fabric("steps.yaml", 4, "10Gbit/s");
    let plain = replay(&record, &fabric, &[]);
    let slow = replay(&record, &fabric, &["--slow", "host3:0.25", "--steps", "10"]);
    let seconds = |json: &Value, what: &str| json["replayed"][what].as_f64().unwrap();
    assert!(seconds(&slow, "communication_seconds") > seconds(&plain, "communication_seconds"));
    let step = seconds(&slow, "step_seconds") * 10.0 / seconds(&slow, "seconds");
    assert!((step - 1.0).abs() < 1e-9);
    let (ok, text, err) = ringway(&["replay", record.path(), fabric.path()], None);
    assert!(ok, "{err}");
    for part in [
        "recorded: ",
        "replayed: on one leaf, 4 ranks on 4 hosts",
        "exposed communication",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_job_that_is_killed_leaves_a_recording() {
    let record = File::new("replay-killed.rec");
    let mut job = Command::new(env!("CARGO_BIN_EXE_ringway"))
        .args([
            "bench",
            "all-reduce",
            "--sizes",
            "64K",
            "-n",
            "10000000",
            "--ranks",
            "2",
        ])
        .env("RINGWAY_RECORD", record.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let length = || std::fs::metadata(record.path()).map_or(0, |m| m.len());
    let end = Instant::now() + Duration::from_secs(20);
    while length() < 100_000 && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    job.kill().unwrap();
    job.wait().unwrap();
    let json = replay(&record, &fabric("killed.yaml", 2, "10Gbit/s"), &[]);
    assert_eq!(json["whole"], false);
    assert!(json["calls"].as_u64().unwrap() > 100, "{json}");
}

#[test]
fn what_is_no_recording_is_named_with_its_place() {
    let (record, fabric) = (
        File::new("replay-bad.rec"),
        fabric("bad.yaml", 2, "1Gbit/s"),
    );
    for (bytes, says) in [
        (
            &b"ringway record 1 ranks 2 hosts 1\ncall 0 1 sum\n"[..],
            "line 2 (byte 33): ",
        ),
        (b"\x7fELF\n", "line 1 (byte 0): "),
        (
            b"ringway record 1 ranks 2 hosts 1\n\xff\xfe\n",
            "byte 33 is no text",
        ),
        (b"", "there is no heading"),
    ] {
        std::fs::write(record.path(), bytes).unwrap();
        let (ok, out, err) = ringway(&["replay", record.path(), fabric.path()], None);
        assert!(!ok && out.is_empty() && err.contains(says), "{err}");
        assert!(err.contains(record.path()), "{err}");
    }
    let (ok, _, err) = ringway(&BENCH, Some("/nowhere/at/all.rec"));
    assert!(!ok && err.contains("setting record"), "{err}");
}
