#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
//! `ringway perf` over the device in software: both ends in one process and in two, and what goes wrong.

#[path = "../../ringway/tests/common/port.rs"]
mod port;

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use port::free_port;
use serde_json::Value;

fn perf(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("perf").args(flags);
    command
}

fn run(flags: &[&str]) -> (Output, String) {
    let output = perf(flags).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, errors)
}

/// The rows of a test with both ends in one process.
fn local(test: [&str; 2], flags: &[&str]) -> Vec<Value> {
    let mut all = test.to_vec();
    all.extend(["--local", "-d", "software", "-n", "20", "--json", "-"]);
    all.extend(flags);
    let (output, errors) = run(&all);
    assert!(output.status.success(), "{all:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_operation_is_measured_and_its_data_checked() {
    for operation in ["write", "send", "read", "atomic"] {
        // Less than a word, a packet and one byte, many packets.
        let (sizes, expected): (&[&str], &[u64]) = match operation {
            "atomic" => (&[], &[8]),
            _ => (&["--sizes", "1,4097,100K"], &[1, 4097, 102_400]),
        };
        for measure in ["bw", "lat"] {
            let rows = local([operation, measure], sizes);
            let bytes: Vec<_> = rows
                .iter()
                .map(|row| row["bytes"].as_u64().unwrap())
                .collect();
            assert_eq!(bytes, expected, "{operation} {measure}");
            for row in rows {
                assert_eq!(row["operation"], operation);
                assert_eq!(row["measure"], measure);
                assert_eq!(row["iterations"], 20);
                assert_eq!(row["client"], "software (127.0.0.1)");
                assert_eq!(row["mtu"], 4096);
                assert_eq!(row["checked"], true);
                let ascending: &[&str] = match measure {
                    "bw" => &["average_gb_per_s", "peak_gb_per_s"],
                    _ => &["min_us", "median_us", "p99_us", "p99_9_us", "max_us"],
                };
                let figures: Vec<_> = ascending.iter().map(|name| row[name].as_f64()).collect();
                assert!(figures[0] > Some(0.0), "{row}");
                assert!(figures.is_sorted(), "{row}");
                assert_eq!(row["mpps"].is_f64(), measure == "bw", "{row}");
                assert!(row["histogram"].is_null(), "{row}");
            }
        }
    }
}

#[test]
fn several_queue_pairs_send_in_both_directions() {
    for operation in ["write", "send", "read", "atomic"] {
        let rows = local(
            [operation, "bw"],
            &[
                "-s", "8", "--qps", "3", "-b", "--depth", "5", "--mtu", "1024",
            ],
        );
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["qps"], 3);
        assert_eq!(rows[0]["depth"], 5);
        assert_eq!(rows[0]["mtu"], 1024);
        assert_eq!(rows[0]["bidirectional"], true);
    }
}

/// One test, as each side has UDP port 4791 of its address, which nobody else can have meanwhile.
#[test]
fn queue_pairs_are_connected_by_rdma_cm() {
    for operation in ["write", "send", "read", "atomic"] {
        let sizes: &[&str] = if operation == "atomic" {
            &["--cm", "-q", "3"]
        } else {
            &["--cm", "-q", "3", "-s", "1,9000"]
        };
        let rows = local([operation, "bw"], sizes);
        assert_eq!(rows[0]["checked"], true);
        assert_eq!(rows[0]["qps"], 3);
    }
    // Where the server has requests of its own, too.
    for operation in ["send", "write"] {
        let (child, port) = server([operation, "lat"]);
        let asks = [operation, "lat", "127.0.0.2", "-p", &port, "-d", "software"];
        let (output, errors) = run(&[&asks[..], &["--cm", "-s", "8", "-n", "10"]].concat());
        assert!(output.status.success(), "{errors}");
        let (success, text) = words(child);
        assert!(success, "{text}");
    }
    // Both at 127.0.0.1.
    let (child, port) = server(["send", "lat"]);
    let asks = ["send", "lat", "127.0.0.1", "-p", &port, "-d", "software"];
    let (output, errors) = run(&[&asks[..], &["--cm", "-s", "8"]].concat());
    assert!(!output.status.success());
    assert!(errors.contains("another process of this host"), "{errors}");
    assert!(!words(child).0);
}

#[test]
fn all_times_are_in_the_histogram() {
    let rows = local(["read", "lat"], &["-s", "64", "--histogram"]);
    let counts = rows[0]["histogram"].as_array().unwrap();
    let count: u64 = counts.iter().map(|it| it["count"].as_u64().unwrap()).sum();
    assert_eq!(count, 20);
    let last = counts.last().unwrap()["below_us"].as_f64().unwrap();
    assert!(rows[0]["max_us"].as_f64().unwrap() < last);
}

#[test]
fn a_table_has_perftests_columns() {
    let (output, errors) = run(&[
        "send",
        "bw",
        "--local",
        "-d",
        "software",
        "-s",
        "2,64K",
        "--seconds",
        "0.01",
    ]);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with("# send bw: software (127.0.0.1) -> software"),
        "{text}"
    );
    assert!(
        lines[1].trim_start().starts_with("#bytes #iterations"),
        "{text}"
    );
    assert_eq!(lines.len(), 4, "{text}");
    // Each column ends below the end of its name.
    assert!(
        lines
            .iter()
            .skip(1)
            .all(|line| line.len() == lines[1].len()),
        "{text}"
    );
}

#[test]
fn what_is_wrong_with_the_flags_is_said_before_anything_is_measured() {
    for (flags, text) in [
        (&["write", "speed", "--local"][..], "'speed'"),
        (&["write", "bw", "--local", "-s", "0"], "at least 1 byte"),
        (
            &["write", "bw", "--local", "-s", "2G"],
            "2147483648 bytes asked for",
        ),
        (&["write", "bw", "--local", "-q", "0"], "queue pairs: 0"),
        (
            &["write", "bw", "--local", "--mtu", "1500"],
            "has 1500 bytes",
        ),
        (&["write", "bw", "--local", "host1"], "cannot be used with"),
        (
            &["write", "bw", "--local", "--histogram"],
            "goes with `lat`",
        ),
        (&["write", "lat", "--local", "-b"], "go with `bw`"),
        (
            &["write", "lat", "--local", "-t", "4"],
            "--depth goes with `bw`",
        ),
        (&["atomic", "bw", "--local", "-s", "4,8"], "on 8 bytes"),
        (
            &["read", "bw", "--qps", "2"],
            "--qps is for the client to say",
        ),
        (&["read", "bw", "--local", "-d", "none0"], "none0"),
        (
            &["read", "bw", "--local", "--json", "/proc/none/file"],
            "cannot be written",
        ),
    ] {
        let (output, errors) = run(flags);
        assert!(!output.status.success(), "{flags:?}");
        assert!(errors.contains(text), "{flags:?}: {errors}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
}

/// A server, and its port. What it is a server for are the first two flags.
fn server(test: [&str; 2]) -> (Child, String) {
    let port = free_port().to_string();
    let mut command = perf(&[test[0], test[1], "-d", "software", "-p", &port]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    (child, port)
}

fn words(child: Child) -> (bool, String) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), text)
}

#[test]
fn a_server_follows_a_client_and_ends() {
    let (child, port) = server(["write", "bw"]);
    let (output, errors) = run(&[
        "write",
        "bw",
        "127.0.0.1",
        "-d",
        "software",
        "-p",
        &port,
        "-s",
        "1,9000",
        "-n",
        "10",
        "--mtu",
        "1024",
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{errors}");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["mtu"], 1024);
    let (success, text) = words(child);
    assert!(success, "{text}");
    assert!(text.contains("waiting at TCP port"), "{text}");
    assert!(text.contains("sizes 2, all data right"), "{text}");
}

#[test]
fn both_sides_say_that_they_were_started_for_different_tests() {
    let (child, port) = server(["send", "lat"]);
    let (output, errors) = run(&["write", "bw", "127.0.0.1", "-d", "software", "-p", &port]);
    assert!(!output.status.success());
    let says = "asks for `write bw`, and this server was started for `send lat`";
    assert!(
        errors.contains(&format!("the server 127.0.0.1:{port} says: ")),
        "{errors}"
    );
    assert!(errors.contains(says), "{errors}");
    let (success, text) = words(child);
    assert!(!success);
    assert!(text.contains(says), "{text}");
}

#[test]
fn a_client_says_where_no_server_is() {
    let port = free_port().to_string();
    let (output, errors) = run(&["write", "bw", "127.0.0.1", "-d", "software", "-p", &port]);
    assert!(!output.status.success());
    assert!(
        errors.contains(&format!("no server at 127.0.0.1:{port}")),
        "{errors}"
    );
}

/// Ends one of the two while they measure, once the client has begun. Returns what the other says.
fn killed(test: [&str; 2], kill_server: bool) -> String {
    let (mut server, port) = server(test);
    let mut client = perf(&[
        test[0],
        test[1],
        "127.0.0.1",
        "-d",
        "software",
        "-p",
        &port,
        "-s",
        "64",
        "-n",
        "5000000",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut first = String::new();
    // Held until the end, as the client prints more.
    let mut lines = BufReader::new(client.stdout.take().unwrap());
    lines.read_line(&mut first).unwrap();
    assert!(first.starts_with("# "), "{first}");
    let (victim, other) = if kill_server {
        (&mut server, &mut client)
    } else {
        (&mut client, &mut server)
    };
    victim.kill().unwrap();
    victim.wait().unwrap();
    // It waits for nothing that has no deadline.
    let deadline = Instant::now() + Duration::from_secs(60);
    while other.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the other side still waits");
        thread::sleep(Duration::from_millis(5));
    }
    let (success, text) = words(if kill_server { client } else { server });
    assert!(!success, "{text}");
    text
}

#[test]
fn a_side_that_is_killed_is_named() {
    for test in [["write", "lat"], ["send", "bw"], ["read", "bw"]] {
        for (kill_server, name) in [
            (true, "the server 127.0.0.1:"),
            (false, "the client 127.0.0.1:"),
        ] {
            let text = killed(test, kill_server);
            assert!(text.contains(name), "{test:?}: {text}");
            // Whichever is noticed first: that its connection has ended, or that its device answers no more.
            let reasons = ["closed the connection", "is lost", "does not answer"];
            assert!(
                reasons.iter().any(|reason| text.contains(reason)),
                "{test:?}: {text}"
            );
        }
    }
}
