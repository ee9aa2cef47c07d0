#![allow(clippy::unwrap_used, reason = "tests")]
//! What the generator writes has no finding, and a number that is changed has one.

use std::{fs, path::Path};

use proptest::prelude::*;
use ringway_doctor::{
    Report,
    config::{Job, Purpose, Scheduler, Target, render, render_job},
    intent::Intent,
    lint::{Input, Kind, detect, lint},
};

const SYSTEMS: [Target; 7] = [
    Target::Nxos,
    Target::Sonic,
    Target::Eos,
    Target::Nvue,
    Target::Onyx,
    Target::Os10,
    Target::Junos,
];

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/intents")
        .join(name);
    fs::read_to_string(path).unwrap()
}

fn configuration(intent: &str, target: Target) -> String {
    let intent = Intent::parse(intent, Path::new("intent.yaml")).unwrap();
    render(&intent, target, Purpose::Apply, None).unwrap().text
}

/// What is printed beside the configurations: the unit that runs the host's, and jobs.
fn beside(intent: &str) -> Vec<(&'static str, String)> {
    let job = Job {
        name: "train".to_owned(),
        hosts: 4,
        ranks: 8,
        cpus: 4,
        memory: "64Gi".to_owned(),
        gpus: true,
        image: "registry.example/train:1".to_owned(),
        command: vec!["train.py".to_owned()],
    };
    let parsed = Intent::parse(intent, Path::new("intent.yaml")).unwrap();
    let made = |scheduler| render_job(&parsed, &job, scheduler).unwrap();
    vec![
        ("host.service", configuration(intent, Target::HostUnit)),
        ("job.yaml", made(Scheduler::Kubernetes)),
        ("job.sh", made(Scheduler::Slurm)),
    ]
}

/// One line for each finding.
fn shown(report: &Report) -> Vec<String> {
    let show = |finding: &ringway_doctor::Finding| {
        let evidence: Vec<String> = finding.evidence.iter().map(ToString::to_string).collect();
        format!(
            "{}: {}: {} [{}]",
            finding.check,
            finding.subject,
            finding.problem,
            evidence.join(" | ")
        )
    };
    report.findings.iter().map(show).collect()
}

fn files(files: &[(&str, &str)]) -> Vec<Input> {
    files
        .iter()
        .map(|(name, text)| Input::new(*name, *text))
        .collect()
}

#[test]
fn what_the_generator_writes_has_no_finding() {
    for name in ["plain.yaml", "rich.yaml"] {
        let intent = text(name);
        let host = configuration(&intent, Target::Host);
        let mut all = files(&[
            ("intent.yaml", &intent),
            ("host.sh", &host),
            ("job.env", "export NCCL_IB_TC=106\n"),
        ]);
        let kinds = [Kind::Unit, Kind::Manifest, Kind::Application];
        for ((file, text), kind) in beside(&intent).into_iter().zip(kinds) {
            assert_eq!(detect(&text), Some(kind), "{text}");
            let report = lint(&files(&[("intent.yaml", &intent), (file, &text)]));
            assert_eq!(shown(&report), [""; 0], "{file} {name}");
            assert_eq!(report.unjudged, [], "{file} {name}");
            all.push(Input::new(file, text));
        }
        for system in SYSTEMS {
            let switch = configuration(&intent, system);
            assert_eq!(detect(&switch), Some(Kind::Switch(system)), "{switch}");
            let report = lint(&files(&[
                ("intent.yaml", &intent),
                ("switch.cfg", &switch),
                ("host.sh", &host),
            ]));
            assert_eq!(shown(&report), [""; 0], "{system} {name}");
            assert_eq!(report.unjudged, [], "{system} {name}");
            // Without the intent, what it wants to go without is missed.
            let report = lint(&files(&[("switch.cfg", &switch), ("host.sh", &host)]));
            let missed = ["ecn.none", "watchdog.off"];
            let rest: Vec<_> = shown(&report)
                .into_iter()
                .filter(|line| !missed.iter().any(|check| line.starts_with(check)))
                .collect();
            assert_eq!(rest, [""; 0], "{system} {name}");
            all.push(Input::new(format!("{system}.cfg"), switch));
        }
        assert_eq!(shown(&lint(&all)), [""; 0], "{name}");
    }
}

/// Every number of the lines that say something, made greater by `by`.
fn mutations(text: &str, by: u64, counts: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        // What is in quotes at the end is for people.
        let says = [" \"mlx", " \"app", " ||"]
            .iter()
            .find_map(|end| line.find(end))
            .unwrap_or(line.len());
        let mut at = 0;
        while counts(line) && at < says {
            let rest = &line[at..];
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            if digits == 0 {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            }
            let number: u64 = rest[..digits].parse().unwrap();
            let mut changed = text.to_owned();
            let width = if rest.starts_with('0') && digits > 1 || digits == 6 {
                digits
            } else {
                0
            };
            changed.replace_range(
                begin + at..begin + at + digits,
                &format!("{:0width$}", number + by),
            );
            all.push((line.trim_end().to_owned(), changed));
            at += digits;
        }
        begin += line.len();
    }
    all
}

/// The lines of which every number is changed: of many that differ only in their numbers, a few.
fn worth_a_look(text: &str, system: Target) -> impl Fn(&str) -> bool {
    let shape = |line: &str| line.replace(|c: char| c.is_ascii_digit(), "");
    let mut shapes = std::collections::BTreeMap::<String, Vec<String>>::new();
    for line in text.split_inclusive('\n') {
        shapes.entry(shape(line)).or_default().push(line.to_owned());
    }
    move |line: &str| {
        let says = match system {
            Target::Host => ["run ", "put ", "offer "]
                .iter()
                .any(|begin| line.starts_with(begin)),
            _ => !line.trim_start().starts_with(['!', '#']),
        };
        let alike = &shapes[&shape(line)];
        // That a class shares by weight is NVUE's default: said of another class, it changes nothing.
        says && !line.contains("mode dwrr")
            && (alike.len() < 9
                || alike
                    .iter()
                    .take(3)
                    .chain(alike.last())
                    .any(|it| it == line))
    }
}

/// Of what is beside the configurations, the lines whose numbers say something of the network.
fn of_the_network(file: &str) -> impl Fn(&str) -> bool + use<> {
    let says: &[&str] = match file {
        "host.service" => &["BindsTo=", "After=sys", "WantedBy=sys"],
        "job.yaml" => &[
            "\"mtu\"",
            "pfNames",
            "resourceName",
            "networks:",
            "rdma/",
            "value: \"106\"",
            "value: net",
            "completions:",
            "parallelism:",
            "--nnodes",
            "  name: train-",
        ],
        _ => &[
            "export NCCL_IB_",
            "export NCCL_GIN",
            "export UCX",
            "export RINGWAY",
        ],
    };
    move |line: &str| !line.trim_start().starts_with('#') && says.iter().any(|it| line.contains(it))
}

#[test]
fn numbers_of_units_and_jobs_that_are_changed_are_found() {
    for name in ["plain.yaml", "rich.yaml"] {
        let intent = text(name);
        for (file, good) in beside(&intent) {
            let changes = mutations(&good, 1, of_the_network(file));
            assert!(changes.len() > 2, "{file} {name}");
            for (line, bad) in changes {
                let report = lint(&files(&[("intent.yaml", &intent), (file, &bad)]));
                assert!(!report.findings.is_empty(), "{file} {name}: {line}");
                // A value that cannot be has no other side.
                let first = &report.findings[0];
                let sides = first.evidence.len() > 1 || first.check == "application.value";
                assert!(sides, "{file} {name}: {line}: {:?}", shown(&report));
            }
        }
    }
}

#[test]
fn every_number_of_the_intent_that_is_changed_is_found() {
    for name in ["plain.yaml", "rich.yaml"] {
        let intent = text(name);
        let mut made: Vec<Input> = configurations(&intent)
            .into_iter()
            .map(|(target, made)| Input::new(format!("{target}.cfg"), made))
            .collect();
        made.extend(
            beside(&intent)
                .into_iter()
                .map(|(file, made)| Input::new(file, made)),
        );
        // Names of maps and profiles may be what they like.
        let counts = |line: &str| !line.starts_with('#') && !line.starts_with("name:");
        let changes = mutations(&intent, 1, counts);
        assert!(changes.len() > 10, "{name}");
        for (line, bad) in changes {
            let mut all = vec![Input::new("intent.yaml", bad)];
            all.extend(made.iter().cloned());
            let report = lint(&all);
            let first = report
                .findings
                .first()
                .unwrap_or_else(|| panic!("{name}: {line}"));
            let sides = first.evidence.len() > 1 || first.check == "file.syntax";
            assert!(sides, "{name}: {line}: {:?}", shown(&report));
        }
    }
}

#[test]
fn a_script_that_writes_a_unit_or_a_manifest_is_a_script() {
    for written in ["[Unit]\n[Service]", "apiVersion: v1\nkind: Service"] {
        let script =
            format!("#!/bin/sh\nmlnx_qos -i eth1 --trust dscp\ncat > file <<EOF\n{written}\nEOF\n");
        assert_eq!(detect(&script), Some(Kind::Host), "{script}");
        assert_ne!(detect(written), Some(Kind::Host), "{written}");
    }
}

#[test]
fn what_undoes_and_shows_configurations_is_no_configuration() {
    for name in ["plain.yaml", "rich.yaml"] {
        let parsed = Intent::parse(&text(name), Path::new("intent.yaml")).unwrap();
        for target in Target::ALL {
            for purpose in [Purpose::Rollback, Purpose::Verify] {
                let made = render(&parsed, target, purpose, None).unwrap().text;
                assert_eq!(detect(&made), Some(Kind::Aside), "{made}");
                let report = lint(&files(&[("intent.yaml", &text(name)), ("there", &made)]));
                assert_eq!(shown(&report), [""; 0], "{target}");
                assert_eq!(report.unjudged.len(), 1, "{target}: {:?}", report.unjudged);
                assert_eq!(report.exit_code(), 0);
            }
        }
    }
}

fn every_number_that_is_changed_is_found(intent: &str) {
    let intent = text(intent).replace("ports: [1-2]", "ports: [1]");
    for system in SYSTEMS.into_iter().chain([Target::Host]) {
        let good = configuration(&intent, system);
        let mut missed = Vec::new();
        for (line, bad) in mutations(&good, 1, worth_a_look(&good, system)) {
            let report = lint(&files(&[("intent.yaml", &intent), ("there.cfg", &bad)]));
            if report.findings.is_empty() {
                missed.push(line);
            }
        }
        assert_eq!(missed, [""; 0], "{system}");
    }
}

#[test]
fn every_number_that_is_changed_is_found_plain() {
    every_number_that_is_changed_is_found("plain.yaml");
}

#[test]
fn every_number_that_is_changed_is_found_rich() {
    every_number_that_is_changed_is_found("rich.yaml");
}

/// Intents that are valid: two to five classes, with priorities, code points, shares and thresholds of all kinds.
fn intents() -> impl Strategy<Value = String> {
    let priorities = Just((1..7u8).collect::<Vec<_>>()).prop_shuffle();
    let code_points = Just((1..64u8).collect::<Vec<_>>()).prop_shuffle();
    let classes = 0..3usize;
    let shares = (1..40u8, 1..20u8, 1..20u8);
    let ecn = (
        1..2000u32,
        1..2000u32,
        1..=100u8,
        1..50u8,
        1..50u8,
        any::<bool>(),
    );
    let rest = (
        1..5u32,
        1..200u32,
        4200..9100u32,
        any::<[bool; 4]>(),
        1..8u32,
    );
    (priorities, code_points, classes, shares, ecn, rest).prop_map(
        |(priorities, code_points, more, (a, b, c), (min, width, probability, low, high, percent), (ports, cable, mtu, flags, polls))| {
            let (min, max) = match percent {
                true => (format!("{low}%"), format!("{}%", low + high)),
                false => (format!("{min}kB"), format!("{}kB", min + width)),
            };
            let mut text = format!(
                "name: N{ports}\nclasses:\n  data:\n    dscp: [{}, {}]\n    priority: {}\n    lossless: true\n    bandwidth: {a}\n    ecn: {{min: {min}, max: {max}, probability: {probability}}}\n  cnp: {{dscp: {}, priority: {}, strict: true}}\n",
                code_points[0], code_points[1], priorities[0], code_points[2], priorities[1]
            );
            let mut left = 100 - a;
            for (index, share) in [b, c].into_iter().take(more).enumerate() {
                left -= share;
                let lossless = flags[index];
                text += &format!(
                    "  more{index}: {{dscp: {}, priority: {}, lossless: {lossless}, bandwidth: {share}}}\n",
                    code_points[3 + index], priorities[2 + index]
                );
            }
            text += &format!("  default: {{priority: 0, bandwidth: {left}}}\nbuffer: 64MB\nmtu: {mtu}\n");
            if flags[2] {
                let (poll, detect) = (polls * 100, polls * 300);
                text += &format!("watchdog: {{poll: {poll}ms, detect: {detect}ms, restore: {detect}ms}}\n");
            }
            let tool = if flags[3] { "dcb" } else { "mlnx_qos" };
            text + &format!(
                "switch: {{ports: [1-{ports}], cable: {cable}}}\nhost:\n  tool: {tool}\n  nics:\n    - {{interface: eth{ports}, device: mlx5_0}}\n"
            )
        },
    )
}

/// The configurations of the systems that can express an intent.
fn configurations(text: &str) -> Vec<(Target, String)> {
    let intent = Intent::parse(text, Path::new("intent.yaml"))
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let of = |target| {
        Some((
            target,
            render(&intent, target, Purpose::Apply, None).ok()?.text,
        ))
    };
    SYSTEMS
        .into_iter()
        .chain([Target::Host])
        .filter_map(of)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_intent_makes_a_contradiction(text in intents()) {
        let made = configurations(&text);
        let mut all = files(&[("intent.yaml", &text)]);
        all.extend(made.iter().map(|(target, made)| Input::new(format!("{target}.cfg"), made.as_str())));
        all.extend(beside(&text).into_iter().map(|(file, made)| Input::new(file, made)));
        prop_assert_eq!(shown(&lint(&all)), [""; 0]);
        // Without the intent the configurations still say the same as each other.
        let apart = shown(&lint(&all[1..]));
        prop_assert!(apart.iter().all(|line| line.starts_with("ecn.none")), "{:#?}", apart);
    }

    #[test]
    fn no_number_can_be_changed_unseen(text in intents(), which in any::<(prop::sample::Index, prop::sample::Index)>(), by in 1..9u64) {
        let parsed = Intent::parse(&text, Path::new("intent.yaml")).unwrap();
        let lossless = parsed.classes.values().filter(|class| class.lossless.value);
        let data: Vec<u16> = lossless.flat_map(|it| it.code_points()).map(u16::from).collect();
        let made = configurations(&text);
        let (system, good) = which.0.get(&made);
        let changes = mutations(good, by, worth_a_look(good, *system));
        let (line, bad) = which.1.get(&changes);
        let report = lint(&files(&[("intent.yaml", &text), ("there.cfg", bad)]));
        prop_assert!(!report.findings.is_empty(), "{}: {}", system, line);
        let made = beside(&text);
        let (file, good) = which.0.get(&made);
        let mut changes = mutations(good, by, of_the_network(file));
        // Another type of service may be as good: ECN's bits are the card's own, unless they say that there was congestion.
        changes.retain(|(_, bad)| {
            let line = bad.lines().zip(good.lines()).find(|(bad, good)| bad != good).unwrap().0;
            let tos = line.rsplit(['=', '"']).find_map(|word| word.parse::<u16>().ok());
            tos.is_none_or(|tos| tos & 3 == 3 || !data.contains(&(tos >> 2)))
        });
        let (line, bad) = which.1.get(&changes);
        let report = lint(&files(&[("intent.yaml", &text), (file, bad)]));
        prop_assert!(!report.findings.is_empty(), "{}: {}", file, line);
    }

    #[test]
    fn no_text_makes_it_panic(
        text in intents(),
        which in any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index)>(),
        noise in "\\PC{0,12}",
        kind in prop::sample::select(vec!["nxos", "sonic", "eos", "nvue", "onyx", "os10", "junos", "host", "host-unit", "k8s", "env", "intent"]),
    ) {
        // A configuration with a piece cut out and something else in its place, taken for whatever it may be.
        let mut made: Vec<String> = configurations(&text).into_iter().map(|(_, made)| made).collect();
        made.extend(beside(&text).into_iter().map(|(_, made)| made));
        let good = which.0.get(&made);
        let (a, b) = (which.1.index(good.len() + 1), which.2.index(good.len() + 1));
        let bytes = [&good.as_bytes()[..a.min(b)], noise.as_bytes(), &good.as_bytes()[a.max(b)..]].concat();
        let input = Input {
            kind: Kind::parse(kind),
            ..Input::new("broken", String::from_utf8_lossy(&bytes).into_owned())
        };
        let report = lint(&[input, Input::new("intent.yaml", text.as_str())]);
        prop_assert!(report.findings.iter().all(|finding| !finding.evidence.is_empty()));
    }
}
