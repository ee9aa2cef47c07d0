#![allow(clippy::unwrap_used, reason = "tests")]
//! `ringway doctor` on whatever machine this is, and on recordings.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn doctor(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("doctor").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A directory that is not there yet.
fn fresh(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("ringway-doctor-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    dir
}

fn host(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let dir = fresh(name);
    for (path, text) in files {
        let file = dir.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    dir
}

#[test]
fn this_machine_gets_an_answer_in_every_form() {
    let page = fresh("page.html");
    let output = doctor(&["--json", "--html", page.to_str().unwrap()]);
    let code = output.status.code().unwrap();
    assert!((0..=2).contains(&code), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let severities: Vec<&str> = json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["severity"].as_str().unwrap())
        .collect();
    assert_eq!(code == 2, severities.contains(&"error"), "{severities:?}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
    fs::remove_file(page).unwrap();
    // Without RDMA there is one finding, and it says how to get it.
    let rdma = Path::new("/sys/class/infiniband").read_dir();
    let shown = text(&doctor(&[]).stdout);
    assert!(
        !shown.contains('\x1b'),
        "colours where there is no terminal: {shown}"
    );
    if !rdma.is_ok_and(|mut devices| devices.next().is_some()) {
        assert!(shown.contains("note  devices.present  host"), "{shown}");
    }
}

#[test]
fn a_fault_has_its_exit_code_and_its_commands() {
    let port = "sys/class/infiniband/rxe0/ports/1";
    let files = [
        ("sys/class/infiniband/rxe0/parent", "ens3\n".to_owned()),
        (&format!("{port}/state"), "4: ACTIVE\n".to_owned()),
        (
            &format!("{port}/gids/0"),
            "fe80:0000:0000:0000:0000:0000:0000:0001\n".to_owned(),
        ),
        (&format!("{port}/gid_attrs/types/0"), "RoCE v2\n".to_owned()),
    ];
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (*path, text.as_str()))
        .collect();
    let dir = host("gids", &files);
    let output = doctor(&["--root", dir.to_str().unwrap(), "--only", "gids"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let shown = text(&output.stdout);
    for part in [
        "error     gids.routable  rxe0 port 1  RoCE v2 has link-local addresses only",
        "\n            # ip address add 10.0.0.1/24 dev ens3",
        "\n  rollback  # ip address del 10.0.0.1/24 dev ens3",
        "\n1 error; 1 check\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let copy = fresh("copy");
    let output = doctor(&[
        "record",
        copy.to_str().unwrap(),
        "--root",
        dir.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{output:?}");
    let again = doctor(&["--root", copy.to_str().unwrap(), "--only", "gids"]);
    assert_eq!(text(&again.stdout), shown);
    fs::remove_dir_all(dir).unwrap();
    fs::remove_dir_all(copy).unwrap();
}

#[test]
fn what_cannot_be_looked_at_is_told_apart_from_what_was_found() {
    let output = doctor(&["--root", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(3));
    let error = text(&output.stderr);
    assert!(
        error.contains("ringway doctor record has written"),
        "{error}"
    );
    let error = text(&doctor(&["--only", "pci"]).stderr);
    assert!(error.contains("there is no group `pci`"), "{error}");
    let output = doctor(&["record", "/proc"]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn there_is_nothing_to_watch_where_there_is_no_port() {
    let rdma = Path::new("/sys/class/infiniband").read_dir();
    if rdma.is_ok_and(|mut devices| devices.next().is_some()) {
        return;
    }
    let output = doctor(&["watch", "--seconds", "0.1"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).contains("no RDMA port to watch"),
        "{output:?}"
    );
}

#[test]
fn nccl_gets_settings_in_every_form() {
    let route = "Iface Destination Gateway Flags RefCnt Use Metric Mask\neth0 00000000 0102A8C0 0003 0 0 0 00000000\n";
    let dir = host("nccl", &[("proc/net/route", route)]);
    let root = dir.to_str().unwrap();
    let run = |form: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
        let command = command.args(["env", "nccl", "--root", root]).args(form);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    assert!(run(&[]).contains("\n  evidence  /proc/net/route: default by eth0\n"));
    assert!(run(&["--export"]).contains("\nexport NCCL_SOCKET_IFNAME='=eth0'\n"));
    let json: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    assert_eq!(json["settings"][0]["name"], "NCCL_SOCKET_IFNAME");
    assert_eq!(json["settings"][0]["value"], "=eth0");
    fs::remove_dir_all(dir).unwrap();
}
