#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway fabric config`, `lint`, `k8s` and `slurm` on the example's intent.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn fabric(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("fabric").args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = fabric(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn example() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lossless.yaml");
    path.display().to_string()
}

/// A directory of the test's own, removed when it ends well.
fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ringway-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn what_is_configured_lints_clean_and_what_is_changed_does_not() {
    let (intent, directory) = (example(), directory("lint"));
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let leaf = printed(&["config", &intent, "--for", "nxos"]);
    let switch = file("leaf.cfg", &leaf);
    let host = file("host.sh", &printed(&["config", &intent, "--for", "host"]));
    let job = file("job.sh", &printed(&["slurm", &intent, "--", "train.py"]));
    let clean = fabric(&["lint", &intent, &switch, &host, &job]);
    assert_eq!(
        clean.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&clean.stdout)
    );

    file(
        "leaf.cfg",
        &leaf.replace("pause pfc-cos 3", "pause pfc-cos 4"),
    );
    let found = fabric(&["lint", &switch, &host, "--json"]);
    assert_eq!(found.status.code(), Some(2), "{found:?}");
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    let checks: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["check"].clone())
        .collect();
    assert!(
        checks.contains(&"path.pfc".into()) && checks.contains(&"path.priority".into()),
        "{checks:?}"
    );
    let missing = fabric(&["lint", "/nowhere/leaf.cfg"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nowhere/leaf.cfg cannot be read"));
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn configurations_say_what_to_know_of_them() {
    let output = fabric(&["config", &example(), "--for", "eos"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("note: never run on a switch"));
    let json = printed(&["config", &example(), "--for", "eos", "--rollback", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["system"], &json["purpose"]),
        (&"eos".into(), &"rollback".into())
    );
    assert!(
        json["text"]
            .as_str()
            .unwrap()
            .contains("no qos profile RINGWAY")
    );
    let refused = fabric(&["config", &example(), "--for", "os10"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("leave_out: {os10: [watchdog]}"));
}

#[test]
fn manifests_ask_for_what_rdma_needs() {
    let text = printed(&[
        "k8s",
        &example(),
        "--image",
        "train:1",
        "--hosts",
        "3",
        "--no-gpus",
        "--",
        "python",
        "train.py",
    ]);
    for part in [
        "completions: 3",
        "add: [IPC_LOCK]",
        "rdma/roce_eth1: \"1\"",
        "clusterIP: None",
        "hugepages-2Mi",
        "- \"train.py\"",
    ] {
        assert!(text.contains(part), "{part} not in {text}");
    }
    assert!(
        !text.contains("nvidia.com/gpu") && !text.contains("python"),
        "{text}"
    );
}

#[test]
fn files_that_are_no_configuration_are_told_by_what_they_are() {
    let directory = directory("broken");
    let wide: Vec<u8> = "\u{feff}name: RW\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let good = fs::read_to_string(example()).unwrap();
    let deep = "[".repeat(1 << 16);
    let cases: [(&str, &[u8], &str); 7] = [
        ("wide.yaml", &wide, "iconv -f UTF-16 -t UTF-8"),
        ("binary.yaml", &[0x80, 0, 1, 0xfe], "is no text in UTF-8"),
        ("empty.yaml", b"\n", "it is empty"),
        ("large.yaml", &[b'a'; (1 << 20) + 1], "of at most 1048576"),
        ("deep.yaml", deep.as_bytes(), "deep.yaml"),
        (
            "twice.yaml",
            b"name: A\nname: B\n",
            "duplicate mapping key: name",
        ),
        ("none.yaml", b"hosts: []\n", "unknown field `hosts`"),
    ];
    for (name, bytes, words) in cases {
        let path = directory.join(name);
        fs::write(&path, bytes).unwrap();
        let output = fabric(&["config", path.to_str().unwrap(), "--for", "eos"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(words),
            "{name}: {said}"
        );
        assert!(
            !said.contains("Options") && !said.contains("Budget"),
            "{said}"
        );
        let lint = fabric(&["lint", path.to_str().unwrap()]);
        assert_eq!(lint.status.code(), Some(3), "{name}: {lint:?}");
    }
    // Windows' ways of writing text are well.
    for (name, text) in [
        ("mark.yaml", format!("\u{feff}{good}")),
        ("lines.yaml", good.replace('\n', "\r\n")),
    ] {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        printed(&["config", path.to_str().unwrap(), "--for", "nxos"]);
    }
    fs::remove_dir_all(&directory).unwrap();
}
