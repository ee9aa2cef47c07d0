#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway rdma list` on whatever machine this is.

use std::{path::Path, process::Command};

fn list(argument: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    let output = command.args(["rdma", "list", argument]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_is_there_is_listed_and_what_is_not_is_explained() {
    let there = Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut devices| devices.next().is_some());
    let json: serde_json::Value = serde_json::from_str(&list("--json")).unwrap();
    assert_eq!(json["devices"].as_array().unwrap().is_empty(), !there);
    assert_eq!(json["absence"].is_null(), there);
    // The endpoint in software is there on every machine that has an interface.
    assert!(!json["software"]["addresses"].as_array().unwrap().is_empty());
    let text = list("--counters");
    assert_eq!(text.contains("modprobe rdma_rxe"), !there, "{text}");
    assert!(
        text.contains("\nsoftware: RoCE v2 over UDP") || text.starts_with("software:"),
        "{text}"
    );
    assert!(text.contains("\nlocked memory: "), "{text}");
}
