//! Where what a command prints can't go.
#![allow(
    clippy::unwrap_used,
    reason = "a test that panics has failed, as it should"
)]

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

const COMMANDS: [&[&str]; 4] = [
    &["config", "show"],
    &["plan", "show", "all-reduce", "ring", "--ranks", "64"],
    &["fabric", "new", "leaf-spine"],
    &["doctor", "--json"],
];

fn output(arguments: &[&str], to: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    let child = command.args(arguments).stdout(to).stderr(Stdio::piped());
    child.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn a_reader_that_has_enough_is_no_fault() {
    for arguments in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = output(arguments, writer.into());
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(words, "", "{arguments:?}");
        assert_eq!(output.status.code(), Some(141), "{arguments:?}");
    }
}

/// The reader goes when it has read the heading: no rank takes that for a fault of another.
#[test]
fn ranks_stop_together_when_their_reader_has_gone() {
    let few = [
        "bench",
        "all-reduce",
        "--ranks",
        "3",
        "--sizes",
        "4,64,1K,4K",
        "-n",
        "5",
    ];
    let step = [
        "bench",
        "step",
        "--ranks",
        "3",
        "--scale",
        "0.001",
        "--compute",
        "0.01",
        "-n",
        "1",
    ];
    for arguments in [&few[..], &step] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = output(arguments, writer.into());
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(words, "", "{arguments:?}");
        assert_eq!(output.status.code(), Some(141), "{arguments:?}");
    }
}

#[test]
fn a_full_disk_is_named() {
    for arguments in COMMANDS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = output(arguments, full.into());
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(words.contains("No space left"), "{arguments:?}: {words}");
        assert!(!output.status.success(), "{arguments:?}");
    }
}
