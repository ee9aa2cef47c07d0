#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway lab`: networks of namespaces that carry, spread, change and go.
//!
//! Needs root or namespaces of users, and iproute2; without, the tests say so and pass.

mod scratch;

use std::{
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use scratch::File;
use serde_json::Value;

/// Whether labs can be made; if not, it says so.
fn possible() -> bool {
    let can = ringway_lab::can_make_namespaces();
    if let Err(reason) = &can {
        println!("skipped: {reason}");
    }
    can.is_ok()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(arguments);
    command
}

fn ringway(arguments: &[&str]) -> (bool, String, String) {
    let output: Output = command(arguments).output().unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// The standard output of what has to succeed.
fn succeed(arguments: &[&str]) -> String {
    let (ok, out, err) = ringway(arguments);
    assert!(ok, "{arguments:?}: {out}{err}");
    out
}

/// A name of a lab, or of a file, that no other test has.
fn unique(name: &str) -> String {
    format!("test-{}-{name}", std::process::id())
}

/// `hosts` at two leaves, two spines; 80 Mbit/s everywhere.
fn leaf_spine(name: &str, hosts: usize) -> File {
    let file = File::new(name);
    let text = format!(
        "
fabric: leaf-spine
hosts:
  - {{name: host, count: {hosts}}}
switches:
  - {{name: leaf, count: 2, tier: leaf}}
  - {{name: spine, count: 2, tier: spine}}
links:
  - {{from: host, to: leaf, join: {{blocks: 2}}, rate: 80Mbit/s, latency: 1us}}
  - {{from: leaf, to: spine, join: full, rate: 80Mbit/s, latency: 1us}}
"
    );
    std::fs::write(file.path(), text).unwrap();
    file
}

/// Two ranks on one host, which share memory, and one on another, which has TCP only: they slice messages alike and choose the same
/// algorithms.
#[test]
fn hosts_of_different_numbers_of_ranks_work_together() {
    if !possible() {
        return;
    }
    let lab = Up::new("uneven", &leaf_spine("uneven", 2));
    let program = env!("CARGO_BIN_EXE_ringway");
    let start = |rank: usize| {
        let host = ["host0", "host0", "host1"][rank];
        let bench = [
            "bench",
            "all-reduce",
            "--sizes",
            "4,64K,1M",
            "-n",
            "1",
            "-w",
            "0",
        ];
        let mut command = command(&["lab", "exec", host, "--name", &lab.0, "--", program]);
        command
            .args(bench)
            .env("RINGWAY_RANK", rank.to_string())
            .env("RINGWAY_WORLD_SIZE", "3")
            .env("RINGWAY_MASTER", "10.0.0.1:29555")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let ranks: Vec<Child> = (0..3).map(start).collect();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
    }
}

/// A lab that is up, and goes when dropped.
struct Up(String);

impl Up {
    fn new(name: &str, file: &File) -> Self {
        let name = unique(name);
        let up = succeed(&["lab", "up", file.path(), "--name", &name, "--json"]);
        let up: Value = serde_json::from_str(&up).unwrap();
        assert_eq!(up["name"], name.as_str());
        Self(name)
    }

    /// What a verb says of this lab.
    fn lab(&self, verb: &str, rest: &[&str]) -> (bool, String, String) {
        ringway(&[&["lab", verb, "--name", &self.0], rest].concat())
    }

    /// What a shell prints in a node.
    fn sh(&self, node: &str, script: &str) -> String {
        let (ok, out, err) = self.lab("exec", &[node, "--", "sh", "-c", script]);
        assert!(ok, "{script} in {node}: {out}{err}");
        out
    }

    /// Seconds of a broadcast of 400 KB from one host to another, or what went wrong.
    fn broadcast(&self, from: (&str, &str), to: &str) -> Result<f64, String> {
        let bench = "exec \"$0\" bench broadcast --sizes 400K -n 3 -w 0 -c 0 --json -";
        let rank = |rank: &str, host| {
            let mut rank_command = command(&["lab", "exec", "--name", &self.0, host, "--"]);
            rank_command
                .args(["sh", "-c", bench, env!("CARGO_BIN_EXE_ringway")])
                .envs([("RANK", rank), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")])
                .envs([("MASTER_ADDR", from.1), ("MASTER_PORT", "29500")])
                .env("RINGWAY_CONNECT_TIMEOUT", "3s")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            rank_command.spawn().unwrap()
        };
        let ranks = [rank("0", from.0), rank("1", to)];
        let [first, second] = ranks.map(|child| child.wait_with_output().unwrap());
        if !first.status.success() || !second.status.success() {
            return Err([first.stderr, second.stderr]
                .map(|e| String::from_utf8(e).unwrap())
                .concat());
        }
        let rows: Value = serde_json::from_slice(&first.stdout).unwrap();
        Ok(rows[0]["time_us"]["p50"].as_f64().unwrap() / 1e6)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.lab("down", &[]);
    }
}

/// Whether processes with this word in their command line end within some seconds.
fn gone(word: &str) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    let any = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|p| std::fs::read(p.path().join("cmdline")).ok())
            .any(|line| String::from_utf8_lossy(&line).contains(word))
    };
    while any() && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
    }
    !any()
}

#[test]
fn ranks_run_in_their_hosts_and_all_spines_carry() {
    if !possible() {
        return;
    }
    let (file, json) = (leaf_spine("lab-run.yaml", 8), File::new("lab-run.json"));
    let run = |command: &[&str]| {
        let lab = [
            "lab",
            "run",
            file.path(),
            "--congestion",
            "reno",
            "--json",
            json.path(),
            "--",
        ];
        let (ok, out, err) = ringway(&[&lab, command].concat());
        assert!(ok, "{out}{err}");
        let record = std::fs::read_to_string(json.path()).unwrap();
        (out, serde_json::from_str::<Value>(&record).unwrap())
    };
    let script = "echo $RANK of $WORLD_SIZE: $(cat /proc/sys/kernel/hostname) $GROUP_RANK $LOCAL_RANK, \
                  $MASTER_ADDR, $(cat /proc/sys/net/ipv4/tcp_congestion_control)";
    let (out, record) = run(&["sh", "-c", script]);
    assert_eq!(out.lines().count(), 8);
    assert!(
        out.contains("[5] 5 of 8: host5 5 0, 10.0.0.1, reno\n"),
        "{out}"
    );
    assert_eq!(
        (&record["congestion"], &record["ranks"]),
        (&"reno".into(), &8.into())
    );

    let shuffled = [
        "lab",
        "run",
        file.path(),
        "--order",
        "random:1",
        "--",
        "hostname",
    ];
    let out = succeed(&shuffled);
    let mut hosts: Vec<&str> = out.lines().map(|line| &line[4..]).collect();
    hosts.sort_unstable();
    assert_eq!(
        hosts,
        (0..8).map(|h| format!("host{h}")).collect::<Vec<_>>()
    );
    assert!(!out.contains("[0] host0\n"), "{out}");

    let ringway = env!("CARGO_BIN_EXE_ringway");
    let bench = [
        "bench",
        "all-to-all",
        "--sizes",
        "400K",
        "-n",
        "2",
        "-w",
        "1",
    ];
    let (out, record) = run(&[&[ringway], &bench[..]].concat());
    assert!(out.contains("direct"), "{out}");
    let carried = |link: &str| {
        let links = record["links"].as_array().unwrap();
        let found = links.iter().find(|l| l["link"] == link).unwrap();
        found["bytes"].as_u64().unwrap()
    };
    // Four hosts to four hosts, 50 KB each, five times with warm-up and check, over two spines.
    let up = [carried("leaf0>spine0"), carried("leaf0>spine1")];
    assert!(up.iter().sum::<u64>() > 3 * 800_000, "{up:?}");
    assert!(up.iter().all(|&bytes| bytes > 400_000), "{up:?}");
    // What leaves one end comes to the other, but for what is under way.
    assert!(carried("spine0>leaf1").abs_diff(up[0]) < 20_000, "{record}");
}

#[test]
fn what_is_changed_is_seen() {
    if !possible() {
        return;
    }
    let lab = Up::new("change", &leaf_spine("lab-change.yaml", 4));
    let route = || lab.sh("leaf0", "ip route show 10.0.0.3");
    let first = ("host0", "10.0.0.1");
    let seconds = lab.broadcast(first, "host2").unwrap();
    // 10 MB/s, less what headers take, and a bucket of 18 KB more.
    assert!((0.038..0.08).contains(&seconds), "{seconds}");
    assert_eq!(route().matches("nexthop").count(), 2);

    let (ok, out, err) = lab.lab("rate", &["leaf0", "20%"]);
    assert!(
        ok && out.contains("leaf0-spine1 at 20 % of its rate"),
        "{out}{err}"
    );
    let slow = lab.broadcast(first, "host2").unwrap();
    assert!((0.19..0.4).contains(&slow), "{slow}");
    assert!(lab.lab("rate", &["leaf0", "80Mbit/s"]).0);

    assert!(lab.lab("cut", &["leaf0-spine1"]).0);
    assert!(!route().contains("nexthop"), "{}", route());
    lab.broadcast(first, "host2").unwrap();
    let stats = |links: &[&str]| {
        let (ok, out, err) = lab.lab("stats", &[links, &["--json"]].concat());
        assert!(ok, "{err}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    assert_eq!(stats(&["leaf0-spine1"])[0]["up"], false);
    assert!(stats(&["leaf0-spine0"])[0]["bytes"].as_u64().unwrap() > 1_200_000);

    assert!(lab.lab("cut", &["spine0"]).0);
    assert!(route().starts_with("unreachable"), "{}", route());
    assert!(lab.broadcast(first, "host2").is_err());
    // The leaf is still there.
    lab.broadcast(first, "host1").unwrap();

    let (ok, _, err) = lab.lab("heal", &["spine0", "leaf0-spine1"]);
    assert!(ok, "{err}");
    assert_eq!(route().matches("nexthop").count(), 2);
    lab.broadcast(first, "host2").unwrap();
}

/// A directory of caches that goes with the test.
struct Caches(std::path::PathBuf);

impl Drop for Caches {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_job_measures_its_links_once_and_explains_its_choice() {
    if !possible() {
        return;
    }
    let caches = Caches(std::env::temp_dir().join(unique("caches")));
    let lab = Up::new("probes", &leaf_spine("lab-probes.yaml", 4));
    let explain = || {
        let rank = |rank: usize| {
            let (rank, host) = (rank.to_string(), format!("host{rank}"));
            let mut command = command(&["lab", "exec", "--name", &lab.0, &host, "--"]);
            command
                .args([
                    env!("CARGO_BIN_EXE_ringway"),
                    "explain",
                    "all-reduce",
                    "64K",
                    "--json",
                ])
                .envs([("RANK", &*rank), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "4")])
                .envs([("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")])
                .env("XDG_CACHE_HOME", &caches.0)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let ranks: Vec<Child> = (0..4).map(rank).collect();
        let mut outputs = Vec::new();
        for rank in ranks {
            let output = rank.wait_with_output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{error}");
            outputs.push(output.stdout);
        }
        serde_json::from_slice::<Value>(&outputs[0]).unwrap()
    };
    let first = explain();
    let origin = |json: &Value| json["links"]["origin"].as_str().unwrap().to_owned();
    assert_eq!(origin(&first), "measured at this job's start", "{first}");
    // 80 Mbit/s are 10 MB/s; other programs of this machine only make it slower.
    let rate = first["links"]["between"]["bytes_per_second"]
        .as_f64()
        .unwrap();
    assert!((2e6..2e7).contains(&rate), "{first}");
    let candidates = first["candidates"].as_array().unwrap();
    assert_eq!(candidates[0]["algorithm"], first["choice"]);
    let measured = candidates.iter().filter(|c| c["measured_seconds"].is_f64());
    assert!(measured.count() >= 3, "{first}");
    // What the choice took when it was measured once more.
    assert!(first["choice_again_seconds"].is_f64(), "{first}");

    let again = explain();
    assert!(origin(&again).ends_with(" s ago"), "{again}");
    assert_eq!(again["links"]["between"], first["links"]["between"]);
    let kept: Vec<_> = std::fs::read_dir(caches.0.join("ringway"))
        .unwrap()
        .collect();
    assert_eq!(kept.len(), 1);
    let kept = kept[0].as_ref().unwrap().path();
    std::fs::write(&kept, "ringway probes 1\nfabric of another").unwrap();
    assert_eq!(origin(&explain()), "measured at this job's start");
    let text = std::fs::read_to_string(&kept).unwrap();
    assert!(text.starts_with("ringway probes 1\nfabric "), "{text}");
    assert_eq!(text.lines().count(), 8, "{text}");
}

#[test]
fn racks_are_discovered_by_what_hosts_reach() {
    if !possible() {
        return;
    }
    let file = leaf_spine("lab-discover.yaml", 4);
    // Two hosts of 80 Mbit/s have 20 upwards.
    let text = std::fs::read_to_string(file.path()).unwrap();
    let narrow = text.replace("join: full, rate: 80Mbit/s", "join: full, rate: 10Mbit/s");
    assert_ne!(narrow, text);
    std::fs::write(file.path(), narrow).unwrap();
    let run = [
        "lab",
        "run",
        file.path(),
        "--congestion",
        "reno",
        "--no-prefix",
        "--",
    ];
    let discover = [env!("CARGO_BIN_EXE_ringway"), "fabric", "discover"];
    let found = succeed(&[&run[..], &discover].concat());
    for (host, leaf) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        let link = format!("{{from: host{host}, to: leaf{leaf}, join: full, rate: ");
        assert!(found.contains(&link), "{found}");
    }
    assert!(found.contains("at one leaf: measured"), "{found}");
    // It is a file for the other commands.
    let discovered = File::new("lab-discovered.yaml");
    std::fs::write(discovered.path(), &found).unwrap();
    succeed(&["fabric", "check", discovered.path()]);
    succeed(&["sim", discovered.path(), "all-reduce", "--sizes", "1M"]);
}

#[test]
fn labs_that_are_killed_leave_nothing() {
    if !possible() {
        return;
    }
    let file = leaf_spine("lab-kill.yaml", 4);
    // As long as nobody else sleeps.
    let sleep = format!("86400.{}", std::process::id());
    let name = unique("kill");
    let mut run: Child = command(&["lab", "run", file.path(), "--name", &name])
        .args([
            "--",
            "sh",
            "-c",
            &format!("setsid sleep {sleep} & echo up; wait"),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(run.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.ends_with("up\n"), "{line}");
    assert!(succeed(&["lab", "list"]).contains(&name));
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(gone(&sleep), "what a lab ran is still there");
    assert!(!succeed(&["lab", "list"]).contains(&name));

    // The process that keeps one that is up, and the name of that lab again.
    let lab = Up::new("kill", &file);
    assert_eq!(lab.0, name);
    let list: Value = serde_json::from_str(&succeed(&["lab", "list", "--json"])).unwrap();
    let entry = list
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["name"] == name.as_str());
    let pid = entry.unwrap()["pid"].as_u64().unwrap().to_string();
    let killed = Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success());
    assert!(gone(&name));
    assert!(!succeed(&["lab", "list"]).contains(&name));
    let again = Up::new("kill", &file);
    let sleeper = again.sh(
        "host0",
        &format!("setsid sleep {sleep} > /dev/null 2>&1 & echo $!"),
    );
    assert!(!sleeper.is_empty());
    assert!(again.lab("down", &[]).0);
    assert!(gone(&sleep), "what a lab ran is still there");
}

#[test]
fn the_first_rank_that_fails_gives_the_code_and_a_signal_ends_all() {
    if !possible() {
        return;
    }
    let file = leaf_spine("lab-code.yaml", 2);
    let script = "[ $RANK = 0 ] || exit 7; sleep 60";
    let output = command(&["lab", "run", file.path(), "--", "sh", "-c", script])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));

    let sleep = format!("86401.{}", std::process::id());
    let mut run = command(&["lab", "run", file.path(), "--", "sh", "-c"])
        .arg(format!("echo up; exec sleep {sleep}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(run.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let killed = Command::new("kill")
        .args(["-TERM", &run.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert_eq!(run.wait().unwrap().code(), Some(143));
    assert!(gone(&sleep));
}

/// As a user of no privileges, where this program can be run as one.
#[test]
fn root_is_not_needed() {
    if !possible() {
        return;
    }
    let file = leaf_spine("lab-user.yaml", 2);
    let user = [
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--",
    ];
    let as_user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(user)
            .args(words)
            .env_remove("XDG_RUNTIME_DIR")
            .current_dir("/tmp");
        command.output()
    };
    let namespaces = ["unshare", "--user", "--map-root-user", "--net", "true"];
    let ringway = env!("CARGO_BIN_EXE_ringway");
    for test in [&namespaces[..], &[ringway, "--version"]] {
        if !as_user(test).is_ok_and(|output| output.status.success()) {
            println!("skipped: {test:?} does not work as a user");
            return;
        }
    }
    let run = [
        ringway,
        "lab",
        "run",
        file.path(),
        "--",
        ringway,
        "bench",
        "barrier",
        "-n",
        "2",
    ];
    let output = as_user(&run).unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("[0] "), "{out}");
}

#[test]
fn mistakes_are_told_before_anything_is_made() {
    let file = leaf_spine("lab-mistake.yaml", 2);
    let bad = File::new("lab-bad.yaml");
    std::fs::write(
        bad.path(),
        "fabric: f\nhosts:\n  - {name: host, cuont: 4}\n",
    )
    .unwrap();
    let path = file.path();
    for (arguments, text) in [
        (vec!["run", bad.path(), "--", "true"], "line 3, column"),
        (
            vec!["run", "/nowhere.yaml", "--", "true"],
            "`ringway fabric new` writes one",
        ),
        (
            vec!["up", path, "--name", "a/b"],
            "expected 1 to 64 letters",
        ),
        (vec!["up", path, "--congestion", "a;b"], "such as bbr"),
        (
            vec!["rate", "--name", "none-such", "spine0", "50"],
            "such as 50%",
        ),
        (
            vec!["cut", "--name", "none-such", "spine0"],
            "no lab `none-such` is up",
        ),
        (
            vec!["down", "--name", "none-such"],
            "no lab `none-such` is up",
        ),
        (vec!["rsh", "host77", "true"], "no host `host77`"),
    ] {
        let (ok, out, err) = ringway(&[&["lab"], &arguments[..]].concat());
        assert!(!ok && err.contains(text), "{arguments:?}: {out}{err}");
    }
    if !possible() {
        return;
    }
    let lab = Up::new("mistake", &file);
    for (verb, rest, text) in [
        ("up", vec![path], "is up already"),
        ("cut", vec!["host0-spine0"], "no host0-spine0"),
        ("heal", vec!["spine7"], "a link such as leaf0-spine1"),
        ("exec", vec!["host9", "--", "true"], "no node `host9`"),
    ] {
        let (ok, out, err) = lab.lab(verb, &rest);
        assert!(
            text.is_empty() || !ok && err.contains(text),
            "{verb} {rest:?}: {out}{err}"
        );
    }
    let run = ["lab", "run", path, "--congestion", "pigeon", "--", "true"];
    let (ok, _, err) = ringway(&run);
    assert!(!ok && err.contains("the lab did not start: "), "{err}");
}
