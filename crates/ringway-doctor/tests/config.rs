#![allow(clippy::unwrap_used, reason = "tests")]
//! Configurations are the same bytes each time, those of the golden files; what a system cannot express is refused.
//! `BLESS=1 cargo nextest run -p ringway-doctor golden` writes the golden files anew.

use std::{fs, path::Path};

use ringway_doctor::{
    config::{ConfigError, Job, Purpose, Scheduler, Target, render, render_job},
    intent::Intent,
};

fn here(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(path)
}

fn intent(name: &str) -> Intent {
    let path = here(&format!("intents/{name}.yaml"));
    let text = fs::read_to_string(&path).unwrap();
    Intent::parse(&text, &path).unwrap()
}

#[test]
fn golden() {
    for name in ["plain", "rich"] {
        let intent = intent(name);
        for target in Target::ALL {
            for purpose in [Purpose::Apply, Purpose::Rollback, Purpose::Verify] {
                let text = render(&intent, target, purpose, None).unwrap().text;
                assert!(text.ends_with('\n') && !text.contains("\n\n\n"), "{text}");
                let file = here(&format!("golden/{name}.{target}.{}.txt", purpose.name()));
                if std::env::var_os("BLESS").is_some() {
                    fs::write(&file, &text).unwrap();
                }
                let golden = fs::read_to_string(&file).unwrap_or_default();
                assert!(golden == text, "{} differs:\n{text}", file.display());
            }
        }
    }
}

fn job() -> Job {
    Job {
        name: "train".to_owned(),
        hosts: 4,
        ranks: 8,
        cpus: 4,
        memory: "64Gi".to_owned(),
        gpus: true,
        image: "registry.example/train:1".to_owned(),
        command: ["python", "train.py", "--note", "it's: a \"test\""]
            .map(str::to_owned)
            .to_vec(),
    }
}

#[test]
fn golden_jobs() {
    for name in ["plain", "rich"] {
        for (scheduler, kind) in [
            (Scheduler::Kubernetes, "k8s.yaml"),
            (Scheduler::Slurm, "slurm.sh"),
        ] {
            let text = render_job(&intent(name), &job(), scheduler).unwrap();
            let file = here(&format!("golden/{name}.{kind}"));
            if std::env::var_os("BLESS").is_some() {
                fs::write(&file, &text).unwrap();
            }
            let golden = fs::read_to_string(&file).unwrap_or_default();
            assert!(golden == text, "{} differs:\n{text}", file.display());
            if scheduler == Scheduler::Slurm {
                assert_is_shell(&text);
            }
        }
    }
}

#[test]
fn jobs_that_cannot_be_are_refused() {
    type Spoil = fn(&mut Job);
    let wrong: [(Spoil, &str); 5] = [
        (
            |job| job.name = "Train_1".to_owned(),
            "expected 1 to 40 lower-case letters",
        ),
        (|job| job.hosts = 0, "hosts is 0, expected 1"),
        (|job| job.ranks = 1000, "ranks is 1000"),
        (
            |job| job.memory = "64GB".to_owned(),
            "expected a size such as 64Gi",
        ),
        (|job| job.command.clear(), "the command is empty"),
    ];
    for (spoil, reason) in wrong {
        let mut job = job();
        spoil(&mut job);
        let error = render_job(&intent("plain"), &job, Scheduler::Kubernetes)
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn the_rollback_takes_back_all_that_is_named() {
    // What a configuration makes by name, its rollback names too.
    for name in ["plain", "rich"] {
        let intent = intent(name);
        for target in [Target::Nxos, Target::Eos, Target::Os10, Target::Junos] {
            let apply = render(&intent, target, Purpose::Apply, None).unwrap().text;
            let rollback = render(&intent, target, Purpose::Rollback, None)
                .unwrap()
                .text;
            let named = |text: &str| -> std::collections::BTreeSet<String> {
                text.split_whitespace()
                    .filter(|word| word.starts_with(&intent.name.0))
                    .map(str::to_owned)
                    .collect()
            };
            let left: Vec<_> = named(&apply)
                .difference(&named(&rollback))
                .cloned()
                .collect();
            assert!(left.is_empty(), "{target}: {left:?}");
        }
    }
}

/// Whether bash can parse it; nothing is run.
fn assert_is_shell(text: &str) {
    let checked = std::process::Command::new("bash")
        .args(["-n", "-c", text])
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn scripts_are_shell() {
    for name in ["plain", "rich"] {
        for (target, purpose) in [
            (Target::Host, Purpose::Apply),
            (Target::Host, Purpose::Rollback),
            (Target::Host, Purpose::Verify),
            (Target::HostUnit, Purpose::Rollback),
            (Target::Sonic, Purpose::Rollback),
            (Target::Sonic, Purpose::Verify),
        ] {
            let text = render(&intent(name), target, purpose, None).unwrap().text;
            assert_is_shell(&text);
        }
    }
}

#[test]
fn the_hosts_script_changes_nothing_unless_told() {
    let text = render(&intent("plain"), Target::Host, Purpose::Apply, None)
        .unwrap()
        .text;
    let state = std::env::temp_dir().join(format!("ringway-state-{}", std::process::id()));
    let run = |argument: &str| {
        std::process::Command::new("bash")
            .args(["-c", &text, "ringway-lossless", argument])
            .env("RINGWAY_STATE", &state)
            .output()
            .unwrap()
    };
    let dry = run("--dry-run");
    let said = String::from_utf8(dry.stdout).unwrap();
    assert!(dry.status.success(), "{said}");
    assert!(
        said.contains("mlnx_qos -i eth1 -f 0,0,0,1,0,0,0,0"),
        "{said}"
    );
    assert!(
        said.contains("106 > /sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos"),
        "{said}"
    );
    assert!(said.contains("dry run: nothing was changed"), "{said}");
    assert!(!state.exists());
    assert_eq!(run("--aply").status.code(), Some(2));
}

#[test]
fn the_hosts_rollback_leaves_interrupts_of_another_boot_and_files_that_are_gone() {
    let base = std::env::temp_dir().join(format!("ringway-gone-{}", std::process::id()));
    let (state, there) = (base.join("state"), base.join("there"));
    fs::create_dir_all(&state).unwrap();
    fs::write(&there, "2\n").unwrap();
    let kept =
        |path: &str, value: &str| fs::write(state.join(path.replace('/', ",")), value).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(state.join("boot"), boot).unwrap();
    kept("/proc/irq/none/smp_affinity_list", "0-3\n");
    kept(there.to_str().unwrap(), "1\n");
    let text = render(&intent("plain"), Target::Host, Purpose::Rollback, None)
        .unwrap()
        .text;
    let undo = || {
        let output = std::process::Command::new("bash")
            .args(["-c", &text, "rollback", "--apply"])
            .env("RINGWAY_STATE", &state)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = undo();
    assert!(
        said.contains("# gone: /proc/irq/none/smp_affinity_list\n"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&there).unwrap(), "1\n");
    assert!(!state.exists());
    // Of another boot: the number may be any device's by now.
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("boot"), "another\n").unwrap();
    kept("/proc/irq/1/smp_affinity_list", "0-3\n");
    let said = undo();
    assert!(
        said.contains("# of another boot: /proc/irq/1/smp_affinity_list\n"),
        "{said}"
    );
    assert!(!said.contains("0-3 >"), "{said}");
    fs::remove_dir_all(&base).unwrap();
}

#[test]
fn the_hosts_rollback_restores_what_was_kept() {
    let state = std::env::temp_dir().join(format!("ringway-kept-{}", std::process::id()));
    fs::create_dir_all(&state).unwrap();
    let keep = |name: &str, text: &str| fs::write(state.join(name), text).unwrap();
    let undo = |name: &str| {
        let text = render(&intent(name), Target::Host, Purpose::Rollback, None)
            .unwrap()
            .text;
        let output = std::process::Command::new("bash")
            .args(["-c", &text, "rollback", "--dry-run"])
            .env("RINGWAY_STATE", &state)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // As mlnx_qos, ethtool and the driver say it.
    keep(
        "eth1.qos",
        "DCBX mode: OS controlled\nPriority trust state: pcp\ndscp2prio mapping:\n\tprio:0 dscp:01,00,\n\tprio:3 dscp:26,\n\
         Cable len: 7\nPFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\
         \tenabled     0   0   0   0   1   0   0   0   \ntc: 0 ratelimit: unlimited, tsa: vendor\n\t priority:  1\n\
         tc: 1 ratelimit: unlimited, tsa: ets, bw: 30%\n\t priority:  0\n",
    );
    keep("eth1.link", "1500\n");
    keep(
        "eth1.pause",
        "Pause parameters for eth1:\nAutonegotiate:\ton\nRX:\t\ton\nTX:\t\toff\n",
    );
    keep(
        ",sys,class,infiniband,mlx5_0,tc,1,traffic_class",
        "Global tclass=0\n",
    );
    let said = undo("plain");
    for line in [
        "ip link set dev eth1 mtu 1500",
        "ethtool -A eth1 autoneg on rx on tx off",
        "mlnx_qos -i eth1 --dscp2prio set,26,3",
        "mlnx_qos -i eth1 --cable_len 7",
        "mlnx_qos -i eth1 -f 0,0,0,0,1,0,0,0",
        "mlnx_qos -i eth1 -p 1,0,0,0,0,0,0,0",
        "mlnx_qos -i eth1 -s vendor,ets,vendor,vendor,vendor,vendor,vendor,vendor -t 0,30,0,0,0,0,0,0",
        "mlnx_qos -i eth1 --trust pcp",
        "0 > /sys/class/infiniband/mlx5_0/tc/1/traffic_class",
    ] {
        assert!(said.lines().any(|it| it == line), "{line} not in {said}");
    }
    // As dcb says it.
    keep(
        "rdma-1.pfc",
        "pfc-cap 8 macsec-bypass off delay 0\nprio-pfc 0:off 1:on\n",
    );
    keep(
        "rdma-1.ets",
        "willing off ets-cap 8 cbs off\ntc-bw 0:0 1:100\ntc-tsa 0:strict 1:ets\nprio-tc 0:0 1:1\n",
    );
    keep("rdma-1.app", "");
    let said = undo("rich");
    for line in [
        "dcb pfc set dev rdma-1 prio-pfc 0:off 1:on",
        "dcb ets set dev rdma-1 tc-bw 0:0 1:100 tc-tsa 0:strict 1:ets prio-tc 0:0 1:1",
        "dcb app flush dev rdma-1 dscp-prio",
    ] {
        assert!(said.lines().any(|it| it == line), "{line} not in {said}");
    }
    assert!(state.exists());
    fs::remove_dir_all(&state).unwrap();
}

#[test]
fn templates_that_are_not_there_are_no_reason_for_others() {
    let nowhere = Some(Path::new("/nonexistent/templates"));
    let error = render(&intent("plain"), Target::Eos, Purpose::Apply, nowhere).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("/nonexistent/templates") && text.contains("No such file"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_expressed_is_refused_with_every_reason() {
    let text = fs::read_to_string(here("intents/plain.yaml")).unwrap();
    let refusal = |from: &str, to: &str, target: Target| {
        assert!(text.contains(from), "{from}");
        let intent = Intent::parse(&text.replace(from, to), Path::new("i.yaml")).unwrap();
        match render(&intent, target, Purpose::Apply, None) {
            Err(error @ ConfigError::Inexpressible { .. }) => error.to_string(),
            other => panic!("{target} with {to}: {other:?}"),
        }
    };
    for (from, to, target, reason) in [
        (
            "  junos: [ecn]",
            "",
            Target::Junos,
            "marks by percent of the queue's fill",
        ),
        (
            "  os10: [watchdog]",
            "",
            Target::Os10,
            "no command of a PFC watchdog",
        ),
        (
            "150kB",
            "65537B",
            Target::Nxos,
            "65537 bytes, and thresholds are in kB",
        ),
        (
            "150kB, max: 1500kB",
            "10%, max: 15%",
            Target::Sonic,
            "a buffer of unknown size",
        ),
        (
            "dscp: 26",
            "dscp: 35",
            Target::Onyx,
            "DSCP 35 of class `data` has priority 4",
        ),
        (
            "1500kB}",
            "1500kB, probability: 50}",
            Target::Onyx,
            "the command has none",
        ),
        (
            "priority: 6",
            "priority: 7",
            Target::Eos,
            "traffic class 7 is the switch's own",
        ),
        (
            "mtu: 9000\nswitch:",
            "mtu: 9000\nwatchdog: {poll: 50ms}\nswitch:",
            Target::Nxos,
            "looked at every 100 ms",
        ),
        (
            "mtu: 9000\nswitch:",
            "mtu: 9000\nwatchdog: {poll: 300ms, detect: 400ms}\nswitch:",
            Target::Eos,
            "more than half of detect",
        ),
        (
            "mtu: 9000\nswitch:",
            "mtu: 9000\nwatchdog: {restore: 1s}\nswitch:",
            Target::Nvue,
            "no such setting",
        ),
        (
            "mtu: 9000\nswitch:",
            "mtu: 9000\nwatchdog: {action: forward}\nswitch:",
            Target::Junos,
            "only drop is there",
        ),
        (
            "mtu: 9000",
            "mtu: 9200",
            Target::Sonic,
            "ports take at most 9100",
        ),
        (
            "ports: [1-2]",
            "ports: [swp1]",
            Target::Eos,
            "are called Ethernet1",
        ),
    ] {
        let refused = refusal(from, to, target);
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn users_templates_go_before_those_built_in() {
    let directory = std::env::temp_dir().join(format!("ringway-templates-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let template = directory.join("nxos.apply.j2");
    fs::write(
        &template,
        "{% for port in ports %}{{ port }} {{ mtu }};{% endfor %}",
    )
    .unwrap();
    let plain = intent("plain");
    let of = |target| render(&plain, target, Purpose::Apply, Some(&directory));
    assert_eq!(
        of(Target::Nxos).unwrap().text,
        "Ethernet1/1 9216;Ethernet1/2 9216;"
    );
    assert_eq!(
        of(Target::Eos).unwrap(),
        render(&plain, Target::Eos, Purpose::Apply, None).unwrap()
    );
    // A name that is misspelt is no empty line in a switch's configuration.
    fs::write(&template, "interface x\n  mtu {{ mtuu }}\n").unwrap();
    let error = of(Target::Nxos).unwrap_err().to_string();
    assert!(error.contains("nxos.apply.j2:2"), "{error}");
    // What has no end is no template, and a pipe that nobody writes to is an empty one.
    fs::remove_file(&template).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &template).unwrap();
    let error = of(Target::Nxos).unwrap_err().to_string();
    assert!(error.contains("it has more than 1048576 bytes"), "{error}");
    fs::remove_file(&template).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&template).status();
    assert!(made.unwrap().success());
    assert_eq!(of(Target::Nxos).unwrap().text, "");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn wrong_intents_are_refused_with_line_and_remedy() {
    let text = fs::read_to_string(here("intents/plain.yaml")).unwrap();
    for (from, to, line, says) in [
        (
            "dscp: 26",
            "dscp: 104",
            4,
            "expected a DSCP from 0 to 63, found 104; a ToS byte divided by four",
        ),
        ("dscp: 26", "dcsp: 26", 4, "dcsp"),
        ("priority: 3", "priority: 8", 5, "a priority from 0 to 7"),
        ("priority: 3", "priority: 6", 5, "both have priority 6"),
        (
            "dscp: 26",
            "dscp: [26, 0]",
            4,
            "DSCP 0 belongs to class `data`",
        ),
        ("dscp: 48", "dscp: 26", 4, "DSCP 26 belongs to"),
        (
            "strict: true",
            "strict: true, lossless: true",
            9,
            "class `cnp` is lossless",
        ),
        ("strict: true", "bandwidth: 10", 7, "110 percent together"),
        (
            "    bandwidth: 50\n",
            "    strict: true\n",
            7,
            "starves the notifications",
        ),
        ("min: 150kB", "min: 2MB", 8, "min 2000kB and max 1500kB"),
        ("min: 150kB", "min: 150", 8, "with its unit"),
        ("min: 150kB", "min: 5%", 8, "mixes bytes and percent"),
        ("mtu: 9000", "mtu: 1500", 11, "`mtu` is 1500, expected 4180"),
        (
            "priority: 0",
            "priority: 1",
            10,
            "class `default` has to have priority 0",
        ),
        ("  cnp: {", "  cpn: {", 1, "no class `cnp`"),
        ("[1-2]", "[0-2]", 13, "port numbers from 1"),
        ("eth1", "$(reboot)", 16, "expected a name"),
        (
            "os10: [watchdog]",
            "os9: [watchdog]",
            1,
            "known are nxos, sonic",
        ),
        ("os10: [watchdog]", "os10: [watchdgo]", 18, "watchdgo"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Intent::parse(&text.replacen(from, to, 1), Path::new("i.yaml"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
        assert!(
            error.starts_with(&format!("i.yaml:{line}: ")),
            "{line}: {error}"
        );
    }
}
