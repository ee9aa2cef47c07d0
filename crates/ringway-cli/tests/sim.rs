#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway sim`: what it prints, and that its files are what they say.

mod scratch;

use std::process::Command;

use scratch::File;

fn ringway(arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    let output = command.args(arguments).output().unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn leaf_spine(name: &str) -> File {
    let file = File::new(name);
    let new = [
        "fabric",
        "new",
        "leaf-spine",
        "--hosts",
        "16",
        "--leaves",
        "4",
        "--spines",
        "2",
    ];
    let (ok, _, error) = ringway(&[&new[..], &["--gpus", "1", "-o", file.path()]].concat());
    assert!(ok, "{error}");
    file
}

/// The simulation is exact arithmetic of fixed order, so its table is the same everywhere.
#[test]
fn a_table_is_what_it_was() {
    let file = leaf_spine("table.yaml");
    let sim = ["sim", file.path(), "all-reduce", "--sizes", "64K,64M"];
    let (ok, table, error) =
        ringway(&[&sim[..], &["--algorithm", "ring,halving_doubling"]].concat());
    assert!(ok, "{error}");
    let expected = include_str!("sim-table.txt");
    assert_eq!(table, expected, "\n{table}");
}

#[test]
fn a_random_order_is_slower_and_placement_puts_it_right() {
    let file = leaf_spine("order.yaml");
    let run = |more: &[&str]| {
        let sim = [
            "sim",
            file.path(),
            "all-reduce",
            "--sizes",
            "64M",
            "--algorithm",
            "ring",
            "--json",
        ];
        let (ok, json, error) = ringway(&[&sim[..], more].concat());
        assert!(ok, "{error}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["runs"][0]["seconds"].as_f64().unwrap()
    };
    let (random, placed) = (
        run(&["--order", "random:2"]),
        run(&["--order", "random:2", "--place"]),
    );
    assert!(random > 1.5 * placed, "{random} {placed}");
    assert!((placed / run(&[]) - 1.0).abs() < 0.01);
}

#[test]
fn scenarios_traces_and_pictures() {
    let (file, svg, trace) = (
        leaf_spine("scenario.yaml"),
        File::new("hot.svg"),
        File::new("trace.json"),
    );
    let sim = [
        "sim",
        file.path(),
        "all-reduce",
        "--sizes",
        "1M",
        "--algorithm",
        "ring",
    ];
    let files = [
        "--svg",
        svg.path(),
        "--trace",
        trace.path(),
        "--slow",
        "host3:0.5",
    ];
    let show = ["--links", "2", "--critical-path"];
    let (ok, text, error) = ringway(&[&sim[..], &files, &show].concat());
    assert!(ok, "{error}");
    assert!(
        text.contains("critical path") && text.contains("steps"),
        "{text}"
    );
    let json = std::fs::read_to_string(trace.path()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let messages = events
        .iter()
        .filter(|e| e["name"].as_str().unwrap().starts_with("to "));
    // Every rank sends 30 chunks, each in one slice.
    assert_eq!(messages.count(), 16 * 30);
    assert!(
        std::fs::read_to_string(svg.path())
            .unwrap()
            .contains("% busy")
    );

    let (ok, _, error) = ringway(&[&sim[..], &["--down", "host3-leaf0@10us"]].concat());
    assert!(!ok);
    assert!(
        error.contains("stands still at") && error.contains("waiting for rank"),
        "{error}"
    );
    let (ok, _, error) = ringway(
        &[
            &sim[..],
            &["--level", "latency", "--down", "host3-leaf0@10us"],
        ]
        .concat(),
    );
    assert!(!ok && error.contains("choose the level `flow`"), "{error}");
}

/// An incast by packets: what it does to links is in the table, in JSON and in the trace.
#[test]
fn packets_are_told_of() {
    let (file, trace) = (leaf_spine("packets.yaml"), File::new("packets.json"));
    let sim = ["sim", file.path(), "gather", "--algorithm", "direct"];
    let packet = ["--sizes", "16M", "--level", "packet"];
    let none = ["--congestion", "none", "--links", "3"];
    let traced = ["--trace", trace.path()];
    let (ok, text, error) = ringway(&[&sim[..], &packet, &none, &traced].concat());
    assert!(ok, "{error}");
    for says in ["longest pause us", "paused us", "leaf0>host0"] {
        assert!(text.contains(says), "{text}");
    }
    let json = std::fs::read_to_string(trace.path()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|e| e["name"] == "paused"));

    let lossy = ["--lossy", "--buffer", "1M", "--json"];
    let (ok, json, error) = ringway(&[&sim[..], &packet, &lossy].concat());
    assert!(ok, "{error}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let run = &json["runs"][0];
    assert!(run["packets"]["resent"].as_u64().unwrap() > 0, "{run}");
    let link = &run["busiest_links"][0]["packets"];
    assert!(link["wire_bytes"].as_u64().unwrap() > 15 << 20, "{link}");

    for (arguments, says) in [
        (&["--mtu", "1024"][..], "add --level packet"),
        (&["--level", "packet", "--xoff", "64M"], "has 6 links"),
        (
            &["--level", "packet", "--ecn", "1M:1K:0.1"],
            "Kmin up to Kmax",
        ),
        (&["--level", "packet", "--mtu", "1500"], "as RoCE has them"),
    ] {
        let (ok, _, error) = ringway(&[&sim[..], arguments].concat());
        assert!(!ok && error.contains(says), "{error}");
    }
}

#[test]
fn a_choice_is_explained() {
    let file = leaf_spine("explain.yaml");
    let explain = ["explain", "all-reduce", "25MB", "--fabric", file.path()];
    let (ok, text, error) = ringway(&explain);
    assert!(ok, "{error}");
    assert!(text.contains(" is the choice: "), "{text}");
    assert!(
        text.contains("\nrule of thumb for 16 to 64 nodes: hierarchical, predicted "),
        "{text}"
    );
    let explain = ["explain", "all-reduce", "100KB", "--fabric", file.path()];
    let (ok, json, error) = ringway(
        &[
            &explain[..],
            &["--order", "random:2", "--simulate", "--json"],
        ]
        .concat(),
    );
    assert!(ok, "{error}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let candidates = json["candidates"].as_array().unwrap();
    assert_eq!(json["choice"], candidates[0]["algorithm"]);
    assert_eq!(candidates.len(), 9);
    for candidate in candidates {
        let seconds = |key: &str| candidate[key].as_f64().unwrap();
        let parts = [
            "latency_seconds",
            "wire_seconds",
            "contention_seconds",
            "reduction_seconds",
        ];
        let sum: f64 = parts.iter().map(|p| seconds(p)).sum();
        assert!(
            (sum / seconds("predicted_seconds") - 1.0).abs() < 1e-3,
            "{candidate}"
        );
        assert!(seconds("simulated_seconds") > 0.0);
    }
}

#[test]
fn without_a_fabric_it_is_the_job_that_is_explained() {
    let (ok, _, error) = ringway(&["explain", "all-reduce", "1M"]);
    assert!(
        !ok && error.contains("name a fabric with --fabric"),
        "{error}"
    );
    let ringway_path = env!("CARGO_BIN_EXE_ringway");
    let run = [
        "run",
        "-n",
        "2",
        "--no-prefix",
        "--",
        ringway_path,
        "explain",
        "all-reduce",
        "1M",
    ];
    let (ok, text, error) = ringway(&run);
    assert!(ok, "{error}");
    assert!(text.contains("ranks that share memory"), "{text}");
    assert!(
        text.contains("\nrule of thumb for less than 16 nodes: ring"),
        "{text}"
    );
}

/// `explain`, `place` and `sim` say the same of a fabric in two pieces, and print no figures.
#[test]
fn a_cut_fabric_has_no_figures() {
    let file = leaf_spine("cut.yaml");
    let whole = std::fs::read_to_string(file.path()).unwrap();
    let is_kept = |line: &&str| !line.contains("from: leaf, to: spine");
    let cut: Vec<&str> = whole.lines().filter(is_kept).collect();
    std::fs::write(file.path(), cut.join("\n")).unwrap();
    for command in [
        &["explain", "all-reduce", "1M", "--fabric", file.path()][..],
        &["fabric", "place", file.path(), "ring"],
        &["sim", file.path(), "all-reduce", "--algorithm", "ring"],
    ] {
        let (ok, text, error) = ringway(command);
        assert!(!ok && text.is_empty(), "{text}");
        assert!(error.contains("there is no path from host"), "{error}");
    }
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    let file = leaf_spine("numbers.yaml");
    for (flag, value, says) in [
        ("--sizes", "0", "at least 1 byte"),
        ("--sizes", "2097152G", "1 PiB (1048576G) at most"),
        ("--streams", "0", "1..=256"),
        ("--ranks-per-host", "0", "whole number from 1"),
        ("--slow", "host1:1e-300", "from 0.001 to 1"),
        ("--down", "leaf0-spine0@2ms-1ms", "FROM before TO"),
    ] {
        let (ok, _, error) = ringway(&["sim", file.path(), "all-reduce", flag, value]);
        assert!(!ok && error.contains(says), "{flag} {value}: {error}");
    }
    let (ok, _, error) = ringway(&["fabric", "path", file.path(), "host0", "host0"]);
    assert!(!ok && error.contains("expected two hosts"), "{error}");
}

/// On a link of 1 Mbit/s the largest vector takes longer than times can hold: late, but no overflow.
#[test]
fn the_largest_vector_is_simulated() {
    let file = leaf_spine("largest.yaml");
    let slow = std::fs::read_to_string(file.path()).unwrap();
    std::fs::write(file.path(), slow.replace("400Gbit/s", "1Mbit/s")).unwrap();
    let fabric = ["--fabric", file.path()];
    let (ok, _, error) = ringway(&[&["explain", "all-reduce", "1048576G"], &fabric[..]].concat());
    assert!(ok, "{error}");
    let sim = [
        "sim",
        file.path(),
        "all-reduce",
        "--sizes",
        "1048576G",
        "--hosts",
        "4",
    ];
    let (ok, _, error) = ringway(&[&sim[..], &["--algorithm", "ring"]].concat());
    assert!(ok, "{error}");
}
