#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway bench step`: that all stages run and leave the right gradients.

mod scratch;

use std::process::{Command, Output};

use scratch::File;

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
        "--rounds",
        "2",
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

/// Hosts of 100 Gbit/s at four leaves with half of that above: overlap hides what it can, and topology the rest.
#[test]
fn stages_follow_each_other_in_virtual_time() {
    let file = File::new("step");
    let text = "
fabric: leaf-spine
hosts:
  - {name: host, count: 16}
switches:
  - {name: leaf, count: 4, tier: leaf}
  - {name: spine, count: 2, tier: spine}
links:
  - {from: host, to: leaf, join: {blocks: 4}, rate: 100Gbit/s, latency: 1us}
  - {from: leaf, to: spine, join: full, rate: 100Gbit/s, latency: 1us}
";
    std::fs::write(file.path(), text).unwrap();
    let run = |more: &[&str]| {
        let flags = [
            "--simulate",
            file.path(),
            "--order",
            "random:1",
            "--model",
            "llama-7b-layer",
            "--scale",
            "0.01",
            "--json",
            "-",
        ];
        let output = step(&[&flags, more].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["stages"].as_array().unwrap().clone()
    };
    let seconds = |stage: &serde_json::Value| stage["step_seconds"].as_f64().unwrap();
    let balanced = run(&[]);
    let share = balanced[0]["communication_share"].as_f64().unwrap();
    assert!((share - 0.42).abs() < 1e-6, "{share}");
    assert!(
        seconds(&balanced[2]) < seconds(&balanced[1]),
        "{balanced:?}"
    );

    let bare = run(&["--compute", "0.0001"]);
    for (before, after) in [(0, 1), (2, 3), (3, 4)] {
        assert!(seconds(&bare[after]) < seconds(&bare[before]), "{bare:?}");
    }
    let sent = |stage: &serde_json::Value| stage["sent_bytes"].as_f64().unwrap();
    assert!((sent(&bare[0]) / (2.0238e6 * 4.0 * 2.0 * 15.0 / 16.0) - 1.0).abs() < 0.01);
    assert!(sent(&bare[3]) < 0.55 * sent(&bare[2]));
    assert_eq!(bare, run(&["--compute", "0.0001"]), "it is not repeatable");
}

#[test]
fn layers_are_printed_for_others() {
    let output = step(&["--layers", "--compute", "3", "--model", "gpt2"]);
    let layers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum = |key: &str| -> f64 {
        let layers = layers.as_array().unwrap();
        layers
            .iter()
            .map(|layer| layer[key].as_f64().unwrap())
            .sum()
    };
    assert_eq!(sum("elements"), 124_439_808.0);
    assert!((sum("forward_seconds") - 1.0).abs() < 1e-3);
    assert!((sum("backward_seconds") - 2.0).abs() < 1e-3);
}

#[test]
fn what_is_wrong_is_told() {
    for (flags, says) in [
        (&["--model", "resnet50"][..], "expected one of resnet152"),
        (&["--scale", "0"], "expected a number from 0.000001 to 1"),
        (&["--share", "1"], "expected a number from 0.01 to 0.99"),
        (&["--order", "random:1"], "--simulate"),
        (
            &["--simulate", "/nowhere.yaml"],
            "/nowhere.yaml cannot be read",
        ),
    ] {
        let output = step(flags);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(says), "{error}");
    }
}
