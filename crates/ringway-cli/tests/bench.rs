#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway bench`: what it refuses before it starts, and what it does with what it has measured.

use std::process::{Command, Output};

fn bench(flags: &[&str]) -> (Output, String) {
    bench_with(&[], flags)
}

fn bench_with(variables: &[(&str, &str)], flags: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(["bench", "allreduce", "--ranks", "2", "-n", "1", "-w", "0"]);
    command.args(flags).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, errors)
}

#[test]
fn a_file_that_cannot_be_written_ends_it_before_ranks_start() {
    for flag in ["--json", "--plot"] {
        let (output, errors) = bench(&["--sizes", "4", flag, "/proc/none/file"]);
        assert!(!output.status.success());
        assert!(output.stdout.is_empty());
        let expected = format!("ringway: {flag} /proc/none/file cannot be written: No such file");
        assert!(errors.starts_with(&expected), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn rows_that_cannot_be_written_in_the_end_are_printed() {
    let (output, errors) = bench(&["--sizes", "4", "--json", "/dev/full"]);
    assert!(!output.status.success());
    assert!(errors.contains("writing /dev/full"), "{errors}");
    // Nobody else is to blame.
    assert!(errors.contains("rank 0 ended"), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: serde_json::Value =
        serde_json::from_str(&text[text.rfind("\n[").unwrap()..]).unwrap();
    assert_eq!(rows[0]["bytes"], 4);
}

#[test]
fn what_is_wrong_with_the_flags_is_said_once() {
    for (flags, text) in [
        (["--algorithm", "rung"], "'rung'"),
        (["--transport", "pigeon"], "--transport"),
        (["--op", "xor"], "not defined for f32"),
    ] {
        let (output, errors) = bench(&flags);
        assert!(!output.status.success());
        assert!(errors.contains(text), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn a_fabric_file_that_is_wrong_is_told_by_rank_0() {
    let variables = [("RINGWAY_FABRIC", "/proc/none/fabric.yaml")];
    let (output, errors) = bench_with(&variables, &["--sizes", "4"]);
    assert!(!output.status.success());
    let told = "setting fabric: /proc/none/fabric.yaml (RINGWAY_FABRIC): No such file";
    assert_eq!(errors.matches(told).count(), 1, "{errors}");
}

#[test]
fn sizes_that_are_rounded_are_measured_once_and_it_says_so() {
    let (output, errors) = bench(&["--sizes", "4,6", "--json", "-"]);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("multiples of 4 B"), "{errors}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 1);
}

#[test]
fn a_rank_without_memory_says_so_and_is_not_taken_for_a_lost_connection() {
    let flags = [
        "--transport",
        "tcp",
        "--algorithm",
        "direct",
        "--sizes",
        "4M",
    ];
    let (output, errors) = bench_with(&[("RINGWAY_BUFFER_SIZE", "64KiB")], &flags);
    assert!(!output.status.success());
    assert!(errors.contains("cannot go on: a message of"), "{errors}");
    assert!(errors.contains("raise RINGWAY_BUFFER_SIZE"), "{errors}");
    assert!(!errors.contains("lost its connection"), "{errors}");
}
