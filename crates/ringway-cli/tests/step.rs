#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway bench step`: that all stages run and leave the right gradients.

use std::process::{Command, Output};

fn step(flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(["bench", "step"]).args(flags);
    command.output().unwrap()
}

#[test]
fn stages_follow_each_other() {
    let output = step(&[
        "--ranks",
        "3",
        "--transport",
        "tcp",
        "--scale",
        "0.001",
        "--compute",
        "0.05",
        "-n",
        "1",
        "--json",
        "-",
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let stages = json["stages"].as_array().unwrap();
    let names: Vec<_> = stages
        .iter()
        .map(|s| s["stage"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "baseline",
            "hierarchical",
            "overlap",
            "compression",
            "batching"
        ]
    );
    for stage in stages {
        assert_eq!(stage["wrong"], 0);
        assert!(stage["step_seconds"].as_f64().unwrap() >= 0.05, "{stage}");
    }
    // Parameters of a ResNet-152: convolutions, norms of two vectors each, and a layer with a bias.
    assert_eq!(stages[2]["operations"], 467);
    assert_eq!(stages[4]["operations"], 1, "all of it is less than a batch");
}

#[test]
fn what_is_wrong_is_told() {
    for (flags, says) in [
        (["--model", "resnet50"], "expected one of resnet152"),
        (["--scale", "0"], "expected a number from 0.000001 to 1"),
        (["--share", "1"], "expected a number from 0.01 to 0.99"),
    ] {
        let output = step(&flags);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(says), "{error}");
    }
}
